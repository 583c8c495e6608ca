//! One task: what it does next, and where.

use std::sync::Arc;

use crate::actor::{Actor, Rules, Target};
use crate::fate::Fates;
use crate::files::{Files, PLACES, Place, REGION, REGIONS};
use crate::model::Region;
use crate::private::Private;
use crate::random::Random;
use crate::yard::Yard;

/// See the module.
pub(crate) struct Task {
    number: usize,
    files: Arc<Files>,
    regions: Vec<(Place, u64, Region)>,
    private: Private,
    actor: Actor,
}

impl Task {
    pub(crate) fn new(
        number: usize,
        files: &Arc<Files>,
        all: &[Vec<Region>; 3],
        yard: &Arc<Yard>,
        (seed, rules): (u64, Rules),
    ) -> Self {
        let mine = (number * REGIONS)..((number + 1) * REGIONS);
        let regions = PLACES.iter().zip(all).flat_map(|(&place, regions)| {
            let mine = mine.clone().zip(&regions[mine.clone()]);
            mine.map(move |(at, region)| (place, (at * REGION) as u64, region.clone()))
        });
        Self {
            number,
            files: Arc::clone(files),
            regions: regions.collect(),
            private: Private::new(files, number),
            actor: Actor {
                random: Random::new(seed, number as u64),
                fates: Fates::default(),
                yard: Arc::clone(yard),
                rules,
            },
        }
    }

    /// Does so many operations and looks at everything in the end.
    ///
    /// # Errors
    ///
    /// Says what was wrong, and of which task.
    pub(crate) async fn run(mut self, operations: u64) -> Result<Fates, String> {
        let number = self.number;
        let named = |wrong: String| format!("task {number}: {wrong}");
        while self.actor.fates.operations < operations {
            self.step().await.map_err(named)?;
        }
        self.look_at_all().await.map_err(named)?;
        Ok(self.actor.fates)
    }

    async fn step(&mut self) -> Result<(), String> {
        let action = self.actor.random.below(1000);
        let (files, actor) = (&*self.files, &mut self.actor);
        match action {
            0..4 => return self.private.truncate(files, actor).await,
            4..6 => return self.private.rename(files, actor).await,
            6..8 => return self.private.reopen(files, actor).await,
            _ => {}
        }
        let random = &mut actor.random;
        let place = match random.below(100) {
            0..50 => Some(Place::Cached),
            50..60 => Some(Place::Direct),
            60..67 => Some(Place::Lost),
            _ => None,
        };
        let index = random.below(REGIONS);
        let mut target = match place {
            Some(place) => Self::shared(&self.files, &mut self.regions, place, index),
            None => {
                self.private.settle(&self.files).await?;
                self.private.target()
            }
        };
        let done = match action {
            8..24 => self.actor.upkeep(&mut target).await,
            24..300 => self.actor.write(&mut target).await,
            _ => self.actor.read(&mut target).await,
        };
        let end = target.end;
        if place.is_none() {
            self.private.ends_at(end);
        }
        done.map_err(|wrong| format!("{place:?}, region {index}: {wrong}"))
    }

    fn shared<'t>(
        files: &'t Files,
        regions: &'t mut [(Place, u64, Region)],
        place: Place,
        index: usize,
    ) -> Target<'t> {
        let (place, at, region) = &mut regions[place as usize * REGIONS + index];
        Target {
            file: files.at(*place),
            at: *at,
            end: region.len(),
            region,
            pages: *place == Place::Direct,
            forgets: *place == Place::Lost,
            grows: false,
        }
    }

    async fn look_at_all(&mut self) -> Result<(), String> {
        for index in 0..self.regions.len() {
            let place = self.regions[index].0;
            let index = index % REGIONS;
            let mut target = Self::shared(&self.files, &mut self.regions, place, index);
            self.actor.read_all(&mut target).await?;
        }
        self.private.settle(&self.files).await?;
        let mut target = self.private.target();
        self.actor.read_all(&mut target).await
    }
}
