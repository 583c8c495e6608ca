//! Cells that work by turns of a few milliseconds, all of them open at the same time.
//!
//! A machine is disturbed for milliseconds at a time, so what is to be compared runs next to each
//! other within milliseconds: there and back again (A B C, C B A), so that what drifts goes up as
//! often as down. A lane on this thread rests as soon as nobody turns it; threads and tasks are
//! told to, and waited for. What is in flight then is completed by the kernel at the beginning of
//! the next turn, and collected at the beginning of its own: both are warm-up.
//!
//! Each reads blocks of its own choice. Of the same ones in the same order, whoever is behind finds
//! what the other has just brought into the processor's caches. And all read the clock equally
//! seldom, as the one that does so most seldom, but for threads whose operations are slow.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::Result;
use inflight_report::record::{Round, Turns};
use oorandom::Rand64;

use crate::measure::alone::warm_up;
use crate::measure::caught::caught;
use crate::measure::meter::Meter;
use crate::measure::run::{Place, Running, Stage, Stretch, drive, length_of, shuffle};
use crate::measure::snapshot::Snapshot;
use crate::measure::usage::device_work_of_both;
use crate::measure::{crew, tasks};
use crate::strategy::tasks::Runtime;
use crate::strategy::{Job, Lane, Modes, Way};
use crate::work::mix;

/// Shorter turns are not: a turn is to be much longer than taking its snapshots.
const SHORTEST_TURN: Duration = Duration::from_millis(2);
/// Longer ones are no turns: whoever needs that works in rounds.
const LONGEST_TURN: Duration = Duration::from_millis(20);
/// Turns of a round, of each cell: fewer are no better than a round as a whole.
const TURNS: RangeInclusive<u32> = 8..=64;

/// What a thread has done is seen from outside whenever it reads the clock: about so many times in
/// a turn, or after each operation where fewer fit into it. Less often, what it did in the warm-up
/// would count in the turn, or what it did in the turn in none: reads of 0.4 ms, of which one in 8
/// was timed, seemed up to 1.4 times as many.
const SEEN: u64 = 32;

/// A round by turns takes as long as so many stretches: what is told apart is told by it.
pub(crate) const IN_STRETCHES: u32 = 2;

/// How the turns of some cells go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    pub(crate) warmup: Duration,
    pub(crate) turn: Duration,
    /// Of each cell, in a round.
    turns: u32,
}

impl Pace {
    /// For cells that are to take as long in a round as [`IN_STRETCHES`]; `None` where operations
    /// take so long that turns would be no better.
    pub(crate) fn of(cells: &[&mut Running], job: &Job<'_>) -> Option<Self> {
        let latencies = cells.iter().map(|cell| cell.latencies.ns_p50());
        let slowest = Duration::from_nanos(latencies.flatten().max()?);
        // What the one before has left in flight, and what is there for itself.
        let warmup = (slowest * 2).max(SHORTEST_TURN / 2);
        let turn = (warmup * 2).max(SHORTEST_TURN);
        let round = (job.warmup + job.measured) * IN_STRETCHES;
        let turns = round.as_nanos() / (warmup + turn).as_nanos().max(1);
        let turns = u32::try_from(turns).unwrap_or(u32::MAX);
        let turns = turns.min(*TURNS.end());
        (turn <= LONGEST_TURN && TURNS.contains(&turns)).then_some(Self {
            warmup,
            turn,
            turns,
        })
    }
}

/// Whether a cell can take turns: it rests between them, and finds from one turn to the next what
/// it would also have found alone. A cold cache and a file that begins anew are not, nor is a sync
/// for all that was written. Tasks must be those of a runtime that may be woken by other threads.
pub(crate) fn can_take(cell: &Running, job: &Job<'_>, place: &Place<'_>) -> bool {
    let rests = match cell.strategy.way() {
        Way::Lanes(_) => cell.strategy.rests(),
        Way::Tasks(runtime) => matches!(runtime, Runtime::Steps(_)),
        Way::Program(_) => false,
    };
    let finds_the_same = place.ground.stays() && !job.work.synced_at_end();
    rests && finds_the_same && cell.cell.rate_per_s.is_none() && cell.cell.skipped.is_none()
}

/// How a round by turns ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Whole,
    /// Its time was over before: nothing of it counts.
    Late,
}

/// Lets the cells take turns for the first round of a stage, until `latest` at most: on a busy
/// machine handing over to many threads, and waiting until all of them rest, takes much longer than
/// the turns. They are as before if it is late then, and also if one of them fails or panics, so
/// that each can be tried alone.
pub(crate) fn measure(
    cells: &mut [&mut Running],
    job: &Job<'_>,
    place: &Place<'_>,
    pace: Pace,
    stage: &Stage,
    latest: Option<Instant>,
) -> Result<Ended> {
    let is_late = || latest.is_some_and(|latest| Instant::now() >= latest);
    if is_late() {
        return Ok(Ended::Late);
    }
    place.ground.prepare()?;
    let begun = Round {
        block: stage.blocks.start,
        confirms: stage.confirms,
        ..Round::default()
    };
    let mut random = Rand64::new(u128::from(job.seed ^ mix(u64::from(begun.block))));
    let mut there: Vec<usize> = (0..cells.len()).collect();
    shuffle(&mut there, &mut random);
    let job = &Job {
        seed: mix(random.rand_u64()),
        ..job.clone()
    };
    let mut taken: Vec<Vec<Stretch>> = cells.iter().map(|_| Vec::new()).collect();
    let lanes: Vec<&Running> = cells.iter().map(|cell| &**cell).collect();
    let sample_every = lanes.iter().filter_map(|cell| cell.sample_every).max();
    let nobody = &mut |_: usize| -> Result<Stretch> { unreachable!("every cell has a lane") };
    let course = Open {
        lanes: &lanes,
        job,
        place,
        pace,
        sample_every: sample_every.unwrap_or(1),
    };
    let mut ended = Ended::Whole;
    let mut body = |turn: Turn<'_>| {
        for number in 0..pace.turns {
            for place in 0..there.len() {
                if is_late() {
                    ended = Ended::Late;
                    return Ok(());
                }
                let back = there.len() - 1 - place;
                let index = there[if number % 2 == 0 { place } else { back }];
                taken[index].push(turn(index)?);
            }
        }
        Ok(())
    };
    caught(|| course.open(0, nobody, &mut body))?;
    if ended == Ended::Late {
        return Ok(ended);
    }
    for (cell, stretches) in cells.iter_mut().zip(taken) {
        let op_ps = stretches.iter().map(op_ps).collect();
        let rounds = stretches.iter().map(|stretch| stretch.round(begun));
        cell.cell.rounds.extend(rounds.reduce(together));
        cell.cell.turns.push(Turns {
            block: begun.block,
            op_ps,
        });
    }
    Ok(ended)
}

/// Picoseconds per operation, with four digits, beside which any noise is large; 0 where none was
/// completed.
fn op_ps(stretch: &Stretch) -> u64 {
    let ps = u128::from(stretch.duration_ns) * 1_000;
    let ops = u128::from(stretch.counters.ops);
    let each = ps.checked_div(ops).unwrap_or(0);
    let each = u64::try_from(each).unwrap_or(u64::MAX);
    let unit = 10u64.pow(each.checked_ilog10().unwrap_or(0).saturating_sub(3));
    each / unit * unit
}

/// Every how many operations a thread reads the clock, if others do so as seldom as `every`.
fn seen_every(every: u32, turn: Duration, op_ns: Option<u64>) -> u32 {
    let at_most = op_ns.map_or(u64::MAX, |ns| length_of(turn) / SEEN / ns.max(1));
    every.min(u32::try_from(at_most).unwrap_or(u32::MAX).max(1))
}

/// Two parts of one round; where one of them does not know, the round does not.
fn together(a: Round, b: Round) -> Round {
    let both = |of: fn(&Round) -> Option<u64>| Some(of(&a)? + of(&b)?);
    Round {
        duration_ns: a.duration_ns + b.duration_ns,
        ops: a.ops + b.ops,
        bytes: a.bytes + b.bytes,
        device_bytes: both(|round| round.device_bytes),
        errors: a.errors + b.errors,
        errno: b.errno.or(a.errno),
        short: a.short + b.short,
        user_ns: a.user_ns + b.user_ns,
        sys_ns: a.sys_ns + b.sys_ns,
        worker_ns: both(|round| round.worker_ns),
        syscalls: both(|round| round.syscalls),
        ctxsw: a.ctxsw + b.ctxsw,
        wrong: a.wrong + b.wrong,
        device: a
            .device
            .zip(b.device)
            .map(|(a, b)| device_work_of_both(&a, &b)),
        ..a
    }
}

/// Gives the cell of this number its turn.
type Turn<'t> = &'t mut dyn FnMut(usize) -> Result<Stretch>;

/// Gives a cell its turn.
type Own<'t> = &'t mut dyn FnMut() -> Result<Stretch>;

/// What is needed to open the lanes, one inside the other.
struct Open<'a> {
    lanes: &'a [&'a Running],
    job: &'a Job<'a>,
    place: &'a Place<'a>,
    pace: Pace,
    sample_every: u32,
}

impl Open<'_> {
    /// Opens the lanes from this number on; `others` turns those before it.
    fn open(
        &self,
        number: usize,
        others: Turn<'_>,
        body: &mut dyn FnMut(Turn<'_>) -> Result<()>,
    ) -> Result<()> {
        let Some(cell) = self.lanes.get(number) else {
            return body(others);
        };
        let threads = cell.shape.threads.max(1);
        let job = Job {
            depth: cell.shape.depth / threads,
            // Never the same blocks in the same order.
            seed: mix(self.job.seed ^ mix(u64::try_from(number)?)),
            ..self.job.clone()
        };
        let mut inside = |own: Own<'_>| {
            let mut turn = |index: usize| match index == number {
                true => own(),
                false => others(index),
            };
            self.open(number + 1, &mut turn, body)
        };
        let (device, pace, every) = (&self.place.device, self.pace, self.sample_every);
        match cell.strategy.way() {
            Way::Lanes(with_lane) if threads == 1 => with_lane(&job, &mut |lane| {
                lane.sample_every(every);
                let mut meter = Meter::new(job.clock);
                inside(&mut || self.turn(lane, &mut meter))
            }),
            Way::Lanes(with_lane) => {
                let every = seen_every(every, pace.turn, cell.latencies.ns_p50());
                crew::in_turns(with_lane, &job, threads, every, &mut |crew| {
                    inside(&mut || crew.turn(pace, device))
                })
            }
            Way::Tasks(runtime) => tasks::in_turns(runtime, &job, every, &mut |crowd| {
                inside(&mut || crowd.turn(pace, device))
            }),
            Way::Program(_) => unreachable!("asked before: a program takes no turns"),
        }
    }

    /// One turn of one lane on this thread.
    fn turn(&self, lane: &mut dyn Lane, meter: &mut Meter) -> Result<Stretch> {
        let (device, clock) = (&self.place.device, self.job.clock);
        let mut known = warm_up(lane, meter, clock, self.pace.warmup)?;
        lane.settle(meter);
        let before = Snapshot::begin(device, clock, &known, || meter.counters);
        let until_ns = clock.now_ns() + length_of(self.pace.turn);
        drive(lane, meter, |meter| meter.last_reading_ns() >= until_ns)?;
        let mut after = Snapshot::end(device, clock, &mut known, || meter.counters);
        lane.settle(meter);
        after.counters.syscalls = meter.counters.syscalls;
        let stretch = Stretch::between(&before, &after, None, Modes::new(), 1);
        let syscalls = stretch.syscalls.filter(|_| lane.knows_syscalls());
        Ok(Stretch {
            syscalls,
            ..stretch
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::PathBuf;
    use std::sync::Mutex;
    use std::thread::scope;

    use super::*;
    use crate::measure::ground::Ground;
    use crate::measure::snapshot;
    use crate::measure::tasks::run_to_end;
    use crate::measure::usage::DeviceMeter;
    use crate::plan::PlannedCell;
    use crate::profile::load;
    use crate::strategy::cut::Cut;
    use crate::strategy::one_by_one::{OneByOne, Perform};
    use crate::strategy::tasks::{Performs, StepStrategy};
    use crate::strategy::{ALONE, STRATEGIES, Shape, Strategy, find};
    use crate::work::Step;

    /// Who did a step, by the seed of its lane, and where.
    static STEPS: Mutex<Vec<(u64, u64)>> = Mutex::new(Vec::new());

    struct Notes {
        seed: u64,
        block: [u8; 4096],
    }

    impl Perform for Notes {
        const SYSCALLS: u64 = 0;

        fn perform(&mut self, step: &Step) -> i32 {
            let mut steps = STEPS.lock().expect("nobody panics");
            steps.push((self.seed, step.offset));
            i32::try_from(step.wanted()).expect("a block")
        }

        fn block(&mut self, bytes: usize) -> &mut [u8] {
            &mut self.block[..bytes]
        }
    }

    /// Of how many operations a lane is to time one.
    static TIMED_ONE_IN: Mutex<Vec<u32>> = Mutex::new(Vec::new());

    struct Told<'l>(&'l mut dyn Lane);

    impl Lane for Told<'_> {
        fn turn(&mut self, meter: &mut Meter) -> Result<()> {
            self.0.turn(meter)
        }

        fn sample_every(&mut self, every: u32) -> u32 {
            TIMED_ONE_IN.lock().expect("nobody panics").push(every);
            self.0.sample_every(every)
        }
    }

    struct Noting;

    impl Strategy for Noting {
        fn name(&self) -> &'static str {
            "noting"
        }

        fn about(&self) -> &'static str {
            "for a test"
        }

        fn way(&self) -> Way {
            Way::Lanes(|job, body| {
                let notes = Notes {
                    seed: job.seed,
                    block: [0; 4096],
                };
                OneByOne::unverified(job, notes).lend(job, &mut |lane| body(&mut Told(lane)))
            })
        }
    }

    struct Noted;

    impl Performs<Cut> for Noted {
        async fn perform(&mut self, block: Cut, step: Step) -> (io::Result<usize>, Cut) {
            STEPS.lock().expect("nobody panics").push((0, step.offset));
            (Ok(step.bytes()), block)
        }
    }

    /// The same in tasks, two threads of them.
    static TASKS: StepStrategy = StepStrategy {
        name: "tasks",
        about: "for a test",
        awaits_library: false,
        run: |job, tasks| {
            scope(|scope| {
                for task in tasks {
                    scope.spawn(|| {
                        let block = Cut::of(&job.work).unwrap();
                        run_to_end(task.run_steps(block, Noted));
                    });
                }
            });
            Ok(Modes::new())
        },
    };

    const TWO: Shape = Shape {
        depth: 2,
        threads: 1,
    };
    const TWO_THREADS: Shape = Shape {
        depth: 2,
        threads: 2,
    };

    fn cell(strategy: &'static dyn Strategy, shape: Shape, sample_every: u32) -> Running {
        let planned = PlannedCell::new(strategy, shape);
        let mut cell = planned.begin("cached-random-read", Modes::new());
        cell.sample_every = Some(sample_every);
        cell
    }

    /// Lets two of them take four turns each, and returns what they did.
    fn take_turns(mut one: Running, mut other: Running) -> Vec<(u64, u64)> {
        let profile = load(&["cached-random-read".to_owned()]).unwrap().remove(0);
        let work = profile.work(1 << 30);
        let job = Job {
            paths: &[PathBuf::from("/dev/null")],
            ..Job::of(&work)
        };
        let place = Place {
            device: DeviceMeter::open(None),
            ground: Ground::new(&profile, &[], 0),
        };
        let pace = Pace {
            warmup: Duration::from_micros(100),
            turn: Duration::from_micros(100),
            turns: 4,
        };
        let stage = Stage {
            blocks: 8..9,
            confirms: true,
        };
        assert!(can_take(&one, &job, &place) && can_take(&other, &job, &place));
        let mut both = [&mut one, &mut other];
        let ended = measure(&mut both, &job, &place, pace, &stage, None).unwrap();
        assert_eq!(ended, Ended::Whole);
        for cell in [&one, &other] {
            let round = &cell.cell.rounds[0];
            assert!(cell.cell.rounds.len() == 1 && round.confirms && round.block == 8);
            let turns = &cell.cell.turns[0];
            assert_eq!((turns.block, turns.op_ps.len()), (8, 4));
        }
        std::mem::take(&mut *STEPS.lock().unwrap())
    }

    #[test]
    fn they_go_there_and_back_with_blocks_of_their_own_and_the_same_clock() {
        let one = || cell(&Noting, ALONE, 2);
        let others = [
            cell(&Noting, ALONE, 5),
            cell(&Noting, TWO_THREADS, 5),
            cell(&TASKS, TWO, 5),
        ];
        for other in others {
            let (name, on_this_thread) = (other.cell.id.clone(), other.shape == ALONE);
            let steps = take_turns(one(), other);
            let mut turns: Vec<u64> = steps.iter().map(|(seed, _)| *seed).collect();
            turns.dedup();
            // Whose turns follow one another: A, B B, A A, B B, A. Other threads may find no
            // processor during a turn; who rests does nothing.
            let (a, b) = (turns[0], *turns.get(1).unwrap_or(&turns[0]));
            assert!(turns.len() <= 5, "{name}: {} turns", turns.len());
            assert!(turns == [a, b, a, b, a] || !on_this_thread, "{name}");
            let read_by = |who| {
                let own = steps.iter().filter(move |(seed, _)| *seed == who);
                own.map(|(_, offset)| *offset).take(16)
            };
            assert!(
                a == b || read_by(a).ne(read_by(b)),
                "{name}: not the same blocks"
            );
        }
        assert_eq!(*TIMED_ONE_IN.lock().unwrap(), [5; 6]);
        // Threads whose operations take longer than a turn are seen after each.
        let mut slow = cell(&Noting, TWO_THREADS, 5);
        slow.latencies.record(400_000);
        take_turns(one(), slow);
        assert_eq!(TIMED_ONE_IN.lock().unwrap()[6..], [5, 1, 1]);
    }

    #[test]
    fn a_round_that_is_not_over_in_time_leaves_nothing() {
        let profile = load(&["cached-random-read".to_owned()]).unwrap().remove(0);
        let work = profile.work(1 << 30);
        let job = Job::of(&work);
        let place = Place {
            device: DeviceMeter::open(None),
            ground: Ground::new(&profile, &[], 0),
        };
        let pace = Pace {
            warmup: Duration::from_millis(1),
            turn: Duration::from_millis(1),
            turns: 10_000,
        };
        let stage = Stage {
            blocks: 8..9,
            confirms: true,
        };
        let null = find(STRATEGIES, "null").expect("it is in the list");
        let (mut one, mut other) = (cell(null, ALONE, 1), cell(null, TWO_THREADS, 1));
        let mut both = [&mut one, &mut other];
        for time in [Duration::ZERO, Duration::from_millis(10)] {
            let latest = Some(Instant::now() + time);
            let ended = measure(&mut both, &job, &place, pace, &stage, latest).unwrap();
            assert_eq!(ended, Ended::Late);
            let mut cells = both.iter().map(|running| &running.cell);
            assert!(cells.all(|cell| cell.rounds.is_empty() && cell.turns.is_empty()));
        }
    }

    #[test]
    fn a_lane_is_driven_between_the_look_for_workers_and_its_turn() {
        let profile = load(&["cached-random-read".to_owned()]).unwrap().remove(0);
        let work = profile.work(1 << 30);
        let course = Open {
            lanes: &[],
            job: &Job::of(&work),
            place: &Place {
                device: DeviceMeter::open(None),
                ground: Ground::new(&profile, &[], 0),
            },
            pace: Pace {
                warmup: Duration::from_micros(100),
                turn: Duration::from_micros(100),
                turns: 1,
            },
            sample_every: 1,
        };
        let (mut lane, mut meter) = (
            snapshot::tests::Noting::default(),
            Meter::new(course.job.clock),
        );
        let stretch = course.turn(&mut lane, &mut meter).unwrap();
        assert!(stretch.counters.ops > 0);
        lane.check();
    }

    #[test]
    fn what_a_thread_has_done_is_seen_many_times_in_a_turn() {
        let turn = Duration::from_millis(4);
        assert_eq!(seen_every(16, turn, Some(400_000)), 1);
        assert_eq!(seen_every(16, turn, Some(25_000)), 5);
        assert_eq!(seen_every(16, turn, Some(1_100)), 16);
        assert_eq!(seen_every(16, turn, None), 16);
    }

    #[test]
    fn who_finds_something_else_each_time_takes_no_turns() {
        let takes = |name: &str| {
            let profile = load(&[name.to_owned()]).unwrap().remove(0);
            let work = profile.work(1 << 30);
            let place = Place {
                device: DeviceMeter::open(None),
                ground: Ground::new(&profile, &[], 0),
            };
            let job = Job::of(&work);
            can_take(&cell(&Noting, ALONE, 1), &job, &place)
        };
        assert!(takes("direct-random-write") && takes("mixed-70-30") && takes("many-files"));
        for name in [
            "cold-random-read",
            "durable-append",
            "buffered-random-write",
        ] {
            assert!(!takes(name), "{name}");
        }
    }
}
