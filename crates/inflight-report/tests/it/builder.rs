//! Synthetic records: what a run would have stored, without a disk.

use std::collections::BTreeMap;

use inflight_report::record::{
    Cell, Device, Latency, LatencyClock, Machine, ProfileSummary, Record, Round, SCHEMA, Skipped,
    Target, Tool,
};

/// Bytes of one operation in every synthetic cell.
const BLOCK_SIZE_BYTES: u64 = 4096;

/// Half a second.
const ROUND_NS: u64 = 500_000_000;

/// What all cells of a round share, in percent: neighbours, heat, the weather.
const DISTURBANCE: [u64; 8] = [100, 91, 104, 98, 107, 85, 101, 96];

/// An empty record of a run on an ext4 disk, with one direct profile.
pub(crate) fn empty(rounds: u32) -> Record {
    Record {
        schema: SCHEMA.to_owned(),
        tool: Tool {
            version: "0.1.0".to_owned(),
            backend: "uring: the kernel offers it".to_owned(),
        },
        started_utc: "2026-01-31T12:00:00Z".to_owned(),
        took_ns: 74_400_000_000,
        seed: 1,
        argv: vec!["inflight".to_owned(), "bench".to_owned()],
        plan_hash: "0".to_owned(),
        rounds_planned: rounds,
        cell_duration_ns: ROUND_NS,
        warmup_ns: 100_000_000,
        interrupted: false,
        machine: Machine {
            kernel: "6.18.0".to_owned(),
            cpus: 16,
            ..Machine::default()
        },
        target: Target {
            path: "data".to_owned(),
            scratch: true,
            size_bytes: 4 << 30,
            fs: "ext4".to_owned(),
            stack: vec![Device {
                name: "nvme0n1".to_owned(),
                ..Device::default()
            }],
            ..Target::default()
        },
        profiles: vec![direct()],
        findings: Vec::new(),
        reread: None,
        cells: Vec::new(),
        regrets: Vec::new(),
    }
}

/// Random reads past the page cache.
pub(crate) fn direct() -> ProfileSummary {
    ProfileSummary {
        name: "direct-random-read".to_owned(),
        title: "4 KiB random reads, straight from the disk".to_owned(),
        block_size_bytes: 4096,
        direct: true,
        ..ProfileSummary::default()
    }
}

/// Random reads of data that is in memory.
pub(crate) fn cached() -> ProfileSummary {
    ProfileSummary {
        name: "cached-random-read".to_owned(),
        title: "4 KiB random reads of cached data".to_owned(),
        block_size_bytes: 4096,
        cached: true,
        ..ProfileSummary::default()
    }
}

/// A measured cell of `rounds` rounds at about `iops`, served by the device.
///
/// Its noise depends on the name and the block alone; `cpu_ns` is per operation.
pub(crate) fn cell(strategy: &str, depth: u32, iops: u64, cpu_ns: u64, rounds: u32) -> Cell {
    let threads = if strategy == "threads" { depth } else { 1 };
    let salt = u64::from(depth) + strategy.bytes().map(u64::from).sum::<u64>();
    let round = |block: u32| {
        let index = usize::try_from(block).expect("a block number fits");
        let shared = DISTURBANCE[index % DISTURBANCE.len()];
        // Within half a percent up or down.
        let own = 995 + (salt * 7 + u64::from(block) * 13) % 11;
        let ops = iops * shared * own / 200_000;
        Round {
            block,
            duration_ns: ROUND_NS,
            ops,
            bytes: ops * BLOCK_SIZE_BYTES,
            device_bytes: Some(ops * BLOCK_SIZE_BYTES),
            user_ns: ops * cpu_ns / 4,
            sys_ns: ops * cpu_ns * 3 / 4,
            syscalls: Some(ops / u64::from(depth / threads)),
            ..Round::default()
        }
    };
    let wait_ns = u64::from(depth) * 1_000_000_000 / iops;
    Cell {
        id: format!("direct-random-read/{strategy}/{depth}"),
        profile: "direct-random-read".to_owned(),
        strategy: strategy.to_owned(),
        depth,
        threads,
        requested: BTreeMap::new(),
        effective: BTreeMap::new(),
        skipped: None,
        rounds: (0..rounds).map(round).collect(),
        rate_per_s: None,
        latency: Some(Latency {
            clock: LatencyClock::Closed,
            sample_every: 1,
            samples: 50_000,
            ns_p50: wait_ns,
            ns_p99: Some(wait_ns * 2),
            ns_p999: Some(wait_ns * 5),
            ns_max: wait_ns * 40,
            hist_v2_b64: String::new(),
        }),
        heat: None,
        turns: Vec::new(),
    }
}

/// A disk that rewards depth, measured with every strategy.
pub(crate) fn disk(rounds: u32) -> Record {
    let mut record = empty(rounds);
    let measured = [
        ("null", 1, 9_000_000, 100),
        ("pread", 1, 12_900, 3_100),
        ("threads", 4, 50_000, 4_200),
        ("threads", 16, 181_000, 5_400),
        ("uring", 1, 13_000, 3_000),
        ("uring", 32, 560_000, 1_400),
        ("uring", 64, 562_000, 1_400),
        ("uring-tuned", 32, 564_000, 1_300),
        ("inflight", 1, 12_900, 3_000),
        ("inflight", 32, 558_000, 1_400),
        ("mmap", 1, 900_000, 800),
    ];
    for (strategy, depth, iops, cpu_ns) in measured {
        record
            .cells
            .push(cell(strategy, depth, iops, cpu_ns, rounds));
    }
    let mut fio = cell("fio", 32, 555_000, 0, rounds);
    for round in &mut fio.rounds {
        (round.device_bytes, round.syscalls) = (None, None);
    }
    record.cells.push(fio);
    record
}

/// Gives a cell `count` fresh rounds at about `iops`, after all those that it has.
pub(crate) fn confirm(record: &mut Record, strategy: &str, depth: u32, iops: u64, count: u32) {
    let done = find(record, strategy, depth).rounds.len();
    let done = u32::try_from(done).expect("a few");
    let fresh = cell(strategy, depth, iops, 1_000, done + count);
    let fresh = fresh.rounds.into_iter().filter(|one| one.block >= done);
    let cell = find(record, strategy, depth);
    cell.rounds.extend(fresh.map(|mut round| {
        round.confirms = true;
        round
    }));
}

/// The cell of a strategy at a depth.
pub(crate) fn find<'a>(record: &'a mut Record, strategy: &str, depth: u32) -> &'a mut Cell {
    let wanted = |cell: &&mut Cell| cell.strategy == strategy && cell.depth == depth;
    record
        .cells
        .iter_mut()
        .find(wanted)
        .expect("the cell is in the record")
}

/// Takes the figures of all cells of these strategies away and gives a reason instead.
pub(crate) fn skip(record: &mut Record, strategies: &[&str], reason: &str) {
    for cell in &mut record.cells {
        if strategies.contains(&cell.strategy.as_str()) {
            cell.rounds.clear();
            cell.latency = None;
            cell.skipped = Some(Skipped {
                reason: reason.to_owned(),
            });
        }
    }
}

/// Turns the disk into memory: it answers everything and the device serves nothing.
pub(crate) fn into_tmpfs(record: &mut Record) {
    record.target.fs = "tmpfs".to_owned();
    record.target.stack.clear();
    serve(record, 0);
}

/// Makes the device serve so many percent of the bytes in every cell that tells.
pub(crate) fn serve(record: &mut Record, percent: u64) {
    let rounds = record.cells.iter_mut().flat_map(|cell| &mut cell.rounds);
    for round in rounds.filter(|round| round.device_bytes.is_some()) {
        round.device_bytes = Some(round.bytes / 100 * percent);
    }
}
