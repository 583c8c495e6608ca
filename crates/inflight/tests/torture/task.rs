//! One task: what it does next, and its private file, which is cut, lengthened, renamed and opened
//! anew while operations that were dropped may still be in flight.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use inflight::fs::{Direct, File};

use crate::actor::{Actor, Rules, Target};
use crate::fate::Fates;
use crate::files::{Files, PLACES, Place, REGION, REGIONS, open};
use crate::model::Region;
use crate::random::Random;
use crate::yard::Yard;

/// The longest that a private file gets.
const PRIVATE: usize = 4 * REGION;

/// See the module.
pub(crate) struct Task {
    number: usize,
    files: Arc<Files>,
    regions: Vec<(Place, u64, Region)>,
    private: Private,
    actor: Actor,
}

struct Private {
    file: File,
    path: PathBuf,
    len: usize,
    renames: u32,
    region: Region,
}

impl Private {
    fn new(files: &Files, number: usize) -> Self {
        let path = files.folder.join(format!("{number}-0"));
        fs::File::create_new(&path).expect("the folder is new");
        Self {
            file: open(&files.engine, &path, Direct::Off),
            path,
            len: 0,
            renames: 0,
            region: Region::new(&[0; PRIVATE]),
        }
    }

    /// Cuts the file or lengthens it with zeros, unless a write may still be under way.
    fn set_len(&mut self, random: &mut Random) {
        if !self.region.is_calm(&(0..PRIVATE)) {
            return;
        }
        let len = random.below(PRIVATE);
        let file = fs::OpenOptions::new().write(true).open(&self.path);
        let file = file.expect("the file is there");
        file.set_len(len as u64).expect("there is room");
        if len < self.len {
            self.region.know(len..self.len, &vec![0; self.len - len]);
        }
        self.len = len;
    }

    /// Renames the file, and half of the time opens it anew.
    fn rename(&mut self, files: &Files, number: usize, random: &mut Random) {
        self.renames += 1;
        let path = files.folder.join(format!("{number}-{}", self.renames));
        fs::rename(&self.path, &path).expect("both are in one folder");
        self.path = path;
        if random.happens(500) {
            self.file = open(&files.engine, &self.path, Direct::Off);
        }
    }
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
        let random = &mut self.actor.random;
        let action = random.below(1000);
        match action {
            0..4 => {
                self.private.set_len(random);
                return Ok(());
            }
            4..6 => {
                self.private.rename(&self.files, self.number, random);
                return Ok(());
            }
            _ => {}
        }
        let place = match random.below(100) {
            0..50 => Some(Place::Cached),
            50..53 => Some(Place::Direct),
            53..60 => Some(Place::Lost),
            _ => None,
        };
        let index = random.below(REGIONS);
        let mut target = match place {
            Some(place) => Self::shared(&self.files, &mut self.regions, place, index),
            None => Target {
                file: &self.private.file,
                at: 0,
                region: &mut self.private.region,
                end: self.private.len,
                pages: false,
                forgets: false,
                grows: true,
            },
        };
        let done = match action {
            6..24 => self.actor.upkeep(&mut target).await,
            24..300 => self.actor.write(&mut target).await,
            _ => self.actor.read(&mut target).await,
        };
        let end = target.end;
        if place.is_none() {
            self.private.len = end;
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
        let mut target = Target {
            file: &self.private.file,
            at: 0,
            region: &mut self.private.region,
            end: self.private.len,
            pages: false,
            forgets: false,
            grows: true,
        };
        self.actor.read_all(&mut target).await
    }
}
