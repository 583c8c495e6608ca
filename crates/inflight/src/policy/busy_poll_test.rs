//! Looking begins where it pays, ends where it does not, and is tried less and less.

use super::*;

/// What a wait takes, and how much of it the thread is on a processor.
#[derive(Clone, Copy)]
struct Cost {
    ns: u64,
    processor_ns: u64,
}

const fn cost(ns: u64, processor_ns: u64) -> Cost {
    Cost { ns, processor_ns }
}

impl Cost {
    /// Whether who looks for so long has not given up.
    fn is_seen(self) -> bool {
        Duration::from_nanos(self.ns) <= LOOK_MAX
    }
}

struct Program {
    rule: BusyPoll,
    now: Moment,
}

impl Program {
    fn new() -> Self {
        let now = Moment {
            now_ns: 0,
            processor_ns: 0,
            completed: 0,
        };
        let rule = BusyPoll::new();
        Self { rule, now }
    }

    /// Makes so many waits. Returns in how many it looked; those that take longer than a look
    /// may have been in vain.
    fn waits(&mut self, count: u32, asleep: Cost, looking: Cost) -> u32 {
        let mut looked = 0;
        for _ in 0..count {
            let now = self.now;
            let looks = self.rule.waits(&Trials::default(), || now);
            self.takes(looks, asleep, looking);
            if looks {
                looked += 1;
                self.rule.looked(looking.is_seen());
            }
        }
        looked
    }

    /// A wait is over.
    fn takes(&mut self, looks: bool, asleep: Cost, looking: Cost) {
        let cost = if looks { looking } else { asleep };
        self.now.now_ns += cost.ns;
        self.now.processor_ns += cost.processor_ns;
        self.now.completed += 1;
    }
}

const WAITS: u32 = 100_000;
const ASLEEP: Cost = cost(65_000, 28_000);

#[test]
fn looking_begins_where_it_is_faster_and_pays() {
    for (looking, begins) in [
        (cost(42_000, 42_000), true),
        (cost(61_000, 20_000), false),
        (cost(50_000, 50_000), false),
        (cost(59_000, 28_000), true),
    ] {
        let mut program = Program::new();
        program.waits(WAITS, ASLEEP, looking);
        assert_eq!(program.rule.looks, begins, "{}", looking.ns);
    }
}

#[test]
fn it_ends_when_it_is_no_use_any_more() {
    let mut program = Program::new();
    program.waits(WAITS, ASLEEP, cost(42_000, 42_000));
    assert!(program.rule.looks);
    program.waits(WAITS, ASLEEP, cost(61_000, 20_000));
    assert!(program.rule.looks, "a little is enough to stay");
    program.waits(WAITS, ASLEEP, cost(64_000, 20_000));
    assert!(!program.rule.looks);
}

#[test]
fn what_is_not_seen_in_time_is_soon_not_looked_for() {
    let mut program = Program::new();
    program.waits(WAITS, ASLEEP, cost(42_000, 42_000));
    assert!(program.rule.looks);
    let slow = cost(5_000_000, 130_000);
    assert!(program.waits(1000, slow, slow) <= 3 * IN_VAIN_MAX);
    // By and by it is hardly tried.
    program.waits(20 * WAITS, slow, slow);
    assert!(program.waits(WAITS, slow, slow) <= 2 * IN_VAIN_MAX);
}

#[test]
fn what_does_not_win_is_tried_less_and_less() {
    let mut program = Program::new();
    let [first, .., last] =
        [(); 4].map(|()| program.waits(10 * WAITS, ASLEEP, cost(60_000, 60_000)));
    assert!(last > 0 && last < first, "{first}, {last}");
    assert!(last * 500 < 10 * WAITS, "{last}");
}

/// As beside a program that has the processor in turn: what is hit by that takes ten times as
/// long, of whatever kind it is.
#[test]
fn what_is_slow_now_and_then_is_mostly_not_taken_for_sleeping() {
    for turn in [5, 11, 23, 41] {
        let mut program = Program::new();
        let mut looked = 0;
        for _ in 0..10 * WAITS / (2 * turn) {
            looked += program.waits(turn, ASLEEP, cost(62_000, 28_000));
            looked += program.waits(turn, cost(650_000, 28_000), cost(620_000, 28_000));
        }
        assert!(looked < WAITS, "in turns of {turn}: {looked}");
    }
}

#[test]
fn looking_that_has_begun_is_soon_confirmed_and_then_seldom() {
    let mut program = Program::new();
    let looking = cost(42_000, 42_000);
    program.waits(FIRST + 2 * RUN * 3 + 1, ASLEEP, looking);
    assert!(program.rule.looks);
    assert_eq!(program.rule.left, REST_MIN_LOOKING * RUN);
    program.waits(WAITS, ASLEEP, looking);
    assert_eq!(program.rule.rest_runs, REST_MAX_LOOKING);
}

#[test]
fn each_class_has_its_own_rule_and_a_few_strays_change_nothing() {
    let mut polls = BusyPolls::new(Arc::default());
    let mut now = Moment {
        now_ns: 0,
        processor_ns: 0,
        completed: 0,
    };
    let mut waits = |in_flight: u32, count: u32| {
        let mut looked = 0;
        for _ in 0..count {
            let at = now;
            let looks = polls.waits(in_flight, || at);
            now.now_ns += match looks && in_flight == 2 {
                true => 20_000,
                false => 40_000,
            };
            now.processor_ns += 15_000;
            now.completed += 1;
            looked += u32::from(looks);
        }
        looked
    };
    waits(2, 10_000);
    waits(20, 1000);
    assert!(waits(20, 4000) < 400);
    waits(2, STRAYS);
    assert!(
        waits(3, 1000) > 600,
        "what is known of a few is still known"
    );
    for _ in 0..100 {
        waits(20, STRAYS - 1);
        assert_eq!(waits(2, 1), 1);
    }
}

#[test]
fn with_very_many_in_flight_nobody_looks() {
    let mut polls = BusyPolls::new(Arc::default());
    let mut program = Program::new();
    let mut waits = |in_flight: u32| {
        let mut looked = 0;
        for _ in 0..WAITS {
            let now = program.now;
            let looks = polls.waits(in_flight, || now);
            program.takes(looks, ASLEEP, cost(20_000, 10_000));
            looked += u32::from(looks);
        }
        looked
    };
    assert!(waits(31) > WAITS / 2);
    assert_eq!(
        waits(32),
        STRAYS - 1,
        "until it is known that this is another class"
    );
    assert_eq!(waits(1000), 0);
    assert!(
        waits(16) > WAITS / 2,
        "what is known of others is still known"
    );
}

/// Makes so many waits of an owner that begins now. Returns in how many it looked.
fn lives(tried: &Arc<Tried>, waits: u32, asleep: Cost, looking: Cost) -> u32 {
    let mut polls = BusyPolls::new(Arc::clone(tried));
    let mut program = Program::new();
    let mut looked = 0;
    for _ in 0..waits {
        let now = program.now;
        let looks = polls.waits(1, || now);
        program.takes(looks, asleep, looking);
        if looks {
            looked += 1;
            polls.looked(looking.is_seen());
        }
    }
    looked
}

#[test]
fn who_lives_for_a_few_waits_hardly_tries_if_others_have() {
    const LIFE: u32 = 300;
    for looking in [cost(64_000, 60_000), cost(5_000_000, 130_000)] {
        let tried = Arc::default();
        let mut looked = (0..1000).map(|_| lives(&tried, LIFE, ASLEEP, looking));
        assert!(looked.next() > Some(0));
        let later: Vec<_> = looked.skip(4).collect();
        let tries = later.iter().filter(|looked| **looked > 0).count();
        assert_eq!(tries, later.len() / AT_ONCE_EVERY as usize, "{later:?}");
    }
}

#[test]
fn the_first_trial_is_put_off_no_longer_than_the_second_and_not_where_looking_pays() {
    let (tried, looking) = (Arc::default(), cost(64_000, 60_000));
    let live = |waits, looking| lives(&tried, waits, ASLEEP, looking);
    for _ in 0..100 {
        live(2 * RUN + FIRST, looking);
    }
    assert_eq!(live(REST_MIN * RUN, looking), 0);
    assert!(live(REST_MIN * RUN + 2 * RUN, looking) > 0);
    assert!(live(20_000, cost(42_000, 42_000)) > 5000);
    assert!(live(2 * RUN + FIRST, looking) > 0, "tried at once");
}

#[test]
fn what_happens_beside_a_trial_decides_nothing() {
    for (looking, looks) in [(cost(42_000, 42_000), true), (cost(64_000, 40_000), false)] {
        let mut program = Program::new();
        for _ in 0..WAITS / 97 {
            program.waits(97, ASLEEP, looking);
            program.now.now_ns += 50_000_000;
        }
        assert_eq!(program.rule.looks, looks);
    }
}
