//! Programs that read, and what is found to be faster for them.

use super::*;

/// A program that reads some blocks at a time, and what that takes.
#[derive(Clone, Copy)]
struct Program {
    own_ns: u64,
    shared_ns: u64,
    /// What it does with the blocks after a run, by whoever they were copied.
    then_ns: [u64; 2],
    blocks: u64,
    bytes: u64,
    /// Whether a ring makes what is not shared, all of it at a time.
    has_ring: bool,
}

const USUAL: Program = Program {
    own_ns: 16_000,
    shared_ns: 10_000,
    then_ns: [2_000; 2],
    blocks: 32,
    bytes: 4096,
    has_ring: false,
};

struct Machine {
    /// Without a ring, and with one.
    spreads: [Spread; 2],
    now_ns: u64,
    runs: u64,
}

impl Machine {
    fn new() -> Self {
        Self {
            spreads: [false, true].map(Spread::new),
            now_ns: 0,
            runs: 0,
        }
    }

    /// How many of so many runs are shared; one in `slow` takes a hundred times as long.
    fn run(&mut self, runs: u64, slow: u64, program: Program) -> u64 {
        let mut shared = 0;
        for _ in 0..runs {
            shared += self.run_once(slow, program);
        }
        shared
    }

    /// One run, in which all reads are asked for before one is waited for. Returns 1 if it was
    /// shared.
    fn run_once(&mut self, slow: u64, program: Program) -> u64 {
        let spread = &mut self.spreads[usize::from(program.has_ring)];
        let weight = weight(program.bytes);
        self.runs += 1;
        let factor = match self.runs.is_multiple_of(slow) {
            true => 100,
            false => 1,
        };
        let (mut waiting, mut in_ring) = (0, 0);
        for _ in 0..program.blocks {
            let hands = match (spread.is_open(), spread.is_on_trial()) {
                (true, true) => {
                    let others = u32::try_from(waiting).expect("a few");
                    let in_flight = waiting + in_ring;
                    let in_flight = || u32::try_from(in_flight).expect("a few");
                    spread.enters(weight, others, in_flight, || self.now_ns)
                }
                _ => {
                    spread.passes(1, weight);
                    spread.chosen
                }
            };
            match hands {
                Hands::Own if program.has_ring => in_ring += 1,
                Hands::Own => self.now_ns += factor * program.own_ns / program.blocks,
                Hands::Shared => waiting += 1,
            }
        }
        self.now_ns += factor * program.shared_ns * waiting / program.blocks;
        self.now_ns += factor * program.own_ns * in_ring / program.blocks;
        (0..waiting).for_each(|_| spread.completes(weight));
        if spread.asks_for_pauses() {
            spread.pauses(self.now_ns);
        }
        let is_shared = 2 * waiting > program.blocks;
        self.now_ns += program.then_ns[usize::from(is_shared)];
        u64::from(is_shared)
    }
}

const NEVER: u64 = u64::MAX;

#[test]
fn what_wins_is_shared_until_it_loses() {
    let mut machine = Machine::new();
    machine.run(500, NEVER, USUAL);
    let shared = machine.run(10_000, NEVER, USUAL);
    assert!(shared > 9_700, "{shared}");
    let busy = Program {
        shared_ns: 17_000,
        ..USUAL
    };
    machine.run(1_500, NEVER, busy);
    let shared = machine.run(10_000, NEVER, busy);
    assert!(shared < 200, "{shared}");
}

#[test]
fn half_a_trial_is_enough_where_it_leaves_no_doubt() {
    let reads = REST_MIN * RUN_READS + LEAD_READS + HALF as u64 * RUN_READS;
    let chosen_after = |reads: u64, shared_ns| {
        let mut machine = Machine::new();
        let program = Program { shared_ns, ..USUAL };
        machine.run(reads / program.blocks + 2, NEVER, program);
        machine.spreads[0].chosen
    };
    assert_eq!(chosen_after(reads, 10_000), Hands::Shared);
    assert_eq!(chosen_after(reads, 13_500), Hands::Own, "it wins a little");
    let whole = reads + LEAD_READS + (2 * RUNS - HALF) as u64 * RUN_READS;
    assert_eq!(chosen_after(whole, 13_500), Hands::Shared);
}

#[test]
fn few_in_flight_in_a_ring_are_compared_in_short_runs() {
    let chosen_after = |reads: u64, blocks: u64| {
        let program = Program {
            own_ns: 1_000 * blocks,
            shared_ns: 600 * blocks,
            then_ns: [0; 2],
            blocks,
            has_ring: true,
            ..USUAL
        };
        let mut machine = Machine::new();
        machine.run(reads / blocks, NEVER, program);
        machine.spreads[1].chosen
    };
    assert_eq!(chosen_after(2_000, 4), Hands::Shared);
    assert_eq!(chosen_after(2_000, 128), Hands::Own);
    assert_eq!(chosen_after(6_000, 128), Hands::Shared);
}

#[test]
fn a_little_is_not_worth_another_processor() {
    let little = Program {
        shared_ns: 14_600,
        ..USUAL
    };
    assert!(Machine::new().run(20_000, NEVER, little) < 200);
}

#[test]
fn a_ring_that_answers_in_waves_is_compared_all_the_same() {
    let waves = |shared_ns| Program {
        own_ns: 64_000,
        shared_ns,
        then_ns: [0; 2],
        blocks: 128,
        has_ring: true,
        ..USUAL
    };
    let mut machine = Machine::new();
    machine.run(200, NEVER, waves(40_000));
    assert!(machine.run(10_000, NEVER, waves(40_000)) > 9_700);
    let mut machine = Machine::new();
    assert!(machine.run(20_000, NEVER, waves(62_000)) < 1_000);
}

#[test]
fn one_at_a_time_is_found_to_be_alone_at_once() {
    let alone = Program {
        own_ns: 500,
        shared_ns: 250,
        then_ns: [0; 2],
        blocks: 1,
        ..USUAL
    };
    let mut machine = Machine::new();
    // As if the one that is shown were made by two.
    let shared = machine.run(200_000, NEVER, alone);
    let trials = 1 + 200_000 / REST_ALONE;
    assert!(shared <= trials * RUN_READS, "{shared}");
    // That says nothing of several, which are tried soon.
    let shared = machine.run(10_000, NEVER, USUAL);
    assert!(shared > 9_300, "{shared}");
}

#[test]
fn what_is_won_by_copying_may_be_lost_by_using_it() {
    let used = Program {
        then_ns: [10_000, 16_500],
        ..USUAL
    };
    assert!(Machine::new().run(20_000, NEVER, used) < 200);
    // Who waits for something in between gets it sooner all the same.
    let waits = Program {
        then_ns: [1_000_000; 2],
        shared_ns: 8_500,
        ..USUAL
    };
    assert!(Machine::new().run(20_000, NEVER, waits) > 19_000);
}

#[test]
fn what_the_scheduler_does_decides_nothing() {
    for slow in 7..12 {
        let shared = Machine::new().run(10_000, slow, USUAL);
        assert!(shared > 9_000, "{shared} with one slow run in {slow}");
    }
}

#[test]
fn a_few_reads_at_a_time_are_measured_over_several_times() {
    let few = |shared_ns| Program {
        own_ns: 1_500,
        shared_ns,
        then_ns: [100; 2],
        blocks: 3,
        ..USUAL
    };
    let mut machine = Machine::new();
    machine.run(1_000, NEVER, few(1_000));
    assert!(machine.run(10_000, NEVER, few(1_000)) > 9_000);
    // Five trials at the beginning, each after twice as many, and then few.
    let mut machine = Machine::new();
    assert!(machine.run(20_000, NEVER, few(1_400)) < 1_500);
    assert!(machine.run(80_000, NEVER, few(1_400)) < 800);
}

const LARGE: Program = Program {
    own_ns: 64_000,
    shared_ns: 40_000,
    then_ns: [0; 2],
    blocks: 4,
    bytes: 64 << 10,
    has_ring: false,
};

#[test]
fn what_is_large_is_tried_with_fewer_reads() {
    for has_ring in [false, true] {
        let large = Program { has_ring, ..LARGE };
        let mut machine = Machine::new();
        machine.run(130, NEVER, large);
        assert!(machine.run(1_000, NEVER, large) > 950, "ring: {has_ring}");
    }
}

#[test]
fn what_was_tried_with_small_reads_says_nothing_of_large_ones() {
    let loses = Program {
        shared_ns: 17_000,
        ..USUAL
    };
    let mut machine = Machine::new();
    machine.run(20_000, NEVER, loses);
    assert!(machine.spreads[0].rest > 100_000, "it lost many times");
    machine.run(COMPARED_READS / 4 + 100, NEVER, LARGE);
    assert!(machine.run(1_000, NEVER, LARGE) > 950);
    // Nor the other way round.
    machine.run(COMPARED_READS / 32 + 100, NEVER, loses);
    assert!(machine.run(10_000, NEVER, loses) < 300);
}

#[test]
fn reads_of_all_sizes_are_not_in_trials_for_ever() {
    let loses = |bytes, own_ns| Program {
        bytes,
        own_ns,
        shared_ns: own_ns + own_ns / 10,
        ..USUAL
    };
    let mut machine = Machine::new();
    let mut shared = 0;
    for _ in 0..20_000 {
        shared += machine.run_once(NEVER, loses(4096, 16_000));
        shared += machine.run_once(NEVER, loses(64 << 10, 200_000));
    }
    assert!(shared < 800, "{shared}");
}
