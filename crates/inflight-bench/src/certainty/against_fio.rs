//! Our loops and fio's in the same rounds, one thing changed at a time.

use anyhow::{Context, Result};
use inflight_report::record::Round;
use inflight_report::stats::{compare, median, rate};
use io_uring::IoUring;

use super::with_bench;
use crate::measure::histogram::Latencies;
use crate::measure::run::Running;
use crate::strategy::blocked::open_ring;
use crate::strategy::slots::flags_mode;
use crate::strategy::uring::{self, Calls};
use crate::strategy::{Body, Job, STRATEGIES, Shape, Strategy, Way, find, fio};

/// One of those who are compared.
struct Variant {
    name: &'static str,
    way: Way,
}

impl Strategy for Variant {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        "for a test"
    }

    fn way(&self) -> Way {
        self.way
    }
}

/// What the others are held against.
static YARDSTICK: Variant = Variant {
    name: "fio",
    way: Way::Program(|job| fio::run(job, fio::Engine::Uring, &[])),
};

static VARIANTS: [Variant; 7] = [
    Variant {
        name: "fio again",
        way: Way::Program(|job| fio::run(job, fio::Engine::Uring, &[])),
    },
    Variant {
        name: "fio, one by one",
        way: Way::Program(|job| fio::run(job, fio::Engine::Uring, &ONE_BY_ONE)),
    },
    Variant {
        name: "fio, registered",
        way: Way::Program(|job| {
            fio::run(job, fio::Engine::Uring, &["--fixedbufs", "--registerfiles"])
        }),
    },
    Variant {
        name: "fio, no clock",
        way: Way::Program(|job| fio::run(job, fio::Engine::Uring, &["--gtod_reduce=1"])),
    },
    Variant {
        name: "uring",
        way: Way::Lanes(plain),
    },
    Variant {
        name: "uring, flags of fio",
        way: Way::Lanes(as_fio),
    },
    Variant {
        name: "uring-tuned",
        way: Way::Lanes(tuned),
    },
];

/// What fio does unless told otherwise: hands over each operation, and collects one.
const ONE_BY_ONE: [&str; 2] = ["--iodepth_batch_submit=1", "--iodepth_batch_complete_max=1"];

fn of(name: &str, job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let strategy = find(STRATEGIES, name).context("a strategy of the command")?;
    match strategy.way() {
        Way::Lanes(with_lane) => with_lane(job, body),
        _ => unreachable!("{name} has a lane"),
    }
}

fn plain(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    of("uring", job, body)
}

fn tuned(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    of("uring-tuned", job, body)
}

/// The plain ring, set up as fio 3.33 sets up its own.
fn as_fio(job: &Job<'_>, body: Body<'_>) -> Result<()> {
    let mut builder = IoUring::builder();
    builder.setup_coop_taskrun().setup_single_issuer();
    builder.setup_defer_taskrun().setup_cqsize(job.depth);
    let ring = open_ring(|| builder.build(job.depth))?;
    uring::run(job, ring, Calls::EachTurn, flags_mode("as fio"), body)
}

/// Measures all of them at each depth, and prints how they stand to fio.
pub(super) fn run(
    place: &str,
    depths: &str,
    rounds: &str,
    cell_ms: &str,
    only: &[&str],
) -> Result<()> {
    let args = [
        "--profile",
        "direct-random-read",
        "--rounds",
        rounds,
        "--cell-time",
        cell_ms,
    ];
    with_bench(place, &args, &mut |bench| {
        println!("depth,variant,round,per_s,p50_ns,p99_ns,cpu_ns");
        for depth in depths.split(',') {
            let shape = Shape {
                depth: depth.parse()?,
                threads: 1,
            };
            let is_asked = |one: &&Variant| only.is_empty() || only.contains(&one.name);
            let asked = VARIANTS.iter().filter(is_asked);
            let all = std::iter::once(&YARDSTICK).chain(asked);
            let mut cells: Vec<Running> = all.map(|one| bench.cell(one, shape)).collect();
            bench.screen(&mut cells)?;
            cells.iter().for_each(print);
            let (theirs, others) = cells.split_first().context("fio is the first")?;
            for ours in others {
                say(ours, theirs)?;
            }
        }
        Ok(())
    })
}

fn print(
    Running {
        cell, latencies, ..
    }: &Running,
) {
    let of_all = |ns: Option<u64>| ns.map_or_else(String::new, |ns| ns.to_string());
    for round in &cell.rounds {
        println!(
            "{},\"{}\",{},{:.0},{},{},{}",
            cell.depth,
            cell.strategy,
            round.block,
            rate(round).unwrap_or(0.0),
            of_all(latencies.ns_p50()),
            of_all(latencies.ns_p99()),
            (round.user_ns + round.sys_ns) / round.ops.max(1)
        );
    }
}

/// Prints the ratio to fio with its interval, and how far a single round strays.
fn say(ours: &Running, theirs: &Running) -> Result<()> {
    let ratios: Vec<f64> = ours
        .cell
        .rounds
        .iter()
        .filter_map(|round| {
            let same = |other: &&Round| other.block == round.block;
            let other = theirs.cell.rounds.iter().find(same)?;
            Some(rate(round)? / rate(other)?)
        })
        .collect();
    let middle = median(ratios.clone()).context("they share rounds")?;
    let found = compare(&ours.cell, &theirs.cell).context("they share rounds")?;
    let squares: f64 = ratios.iter().map(|ratio| (ratio - middle).powi(2)).sum();
    let strays = (squares / ratios.len() as f64).sqrt() / middle;
    let times = |of: fn(&Latencies) -> Option<u64>| {
        let both = of(&ours.latencies).zip(of(&theirs.latencies));
        both.map_or_else(
            || "-".to_owned(),
            |(ours, theirs)| format!("{:.3}", ours as f64 / theirs as f64),
        )
    };
    let [p50, p99] = [times(Latencies::ns_p50), times(Latencies::ns_p99)];
    eprintln!(
        "{:>3} {:<20} rate {:.3} ({:.3} to {:.3}; a round strays by {:.0} %), p50 {p50}, p99 {p99}",
        ours.cell.depth,
        ours.cell.strategy,
        found.ratio,
        found.lo,
        found.hi,
        strays * 100.0
    );
    Ok(())
}
