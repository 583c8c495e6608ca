//! What a lane that shares reads tells: all that it has taken, and what its ring has besides.

use std::future::IntoFuture;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::hands::poll_once;
use super::shared_lanes::{BLOCK, BLOCKS, Site};
use crate::support::say;

/// As many as a lane shows at a time.
const PLACES: usize = 256;

/// How often it is tried to have a lane show as many.
const TRIES_MAX: u64 = 100;

/// Rounds in which as many were shown.
const ENOUGH: u32 = 8;

#[test]
fn what_was_taken_to_make_room_for_another_read_is_told() {
    let Some(site) = Site::new("a lane that shows as many as it can") else {
        return;
    };
    let seen = site.single().block_on(async {
        let mut seen = 0;
        for round in 0..TRIES_MAX {
            site.read_all(16, round).await;
            let read = |n: u64| site.read(n % BLOCKS).into_future();
            // The lane's task has no turn meanwhile.
            let mut shown = Vec::new();
            for n in 0..2 * PLACES as u64 {
                let mut read = read(n);
                if poll_once(&mut read).is_pending() {
                    shown.push((n % BLOCKS, read));
                }
                if shown.len() == PLACES {
                    break;
                }
            }
            if shown.len() == PLACES {
                seen += 1;
                // For whoever makes them all meanwhile.
                thread::sleep(Duration::from_millis(30));
            }
            // One that waits in the mailbox keeps the next one from being shown.
            let mut waiting = site.read(0).by_backend().into_future();
            assert!(poll_once(&mut waiting).is_pending());
            let mut last = read(1);
            if poll_once(&mut last).is_pending() {
                shown.push((1, last));
            }
            shown.push((0, waiting));
            site.check(shown).await;
            if seen == ENOUGH || site.is_taken_over() {
                break;
            }
        }
        seen
    });
    if seen < ENOUGH {
        say(&format!("{seen} times only a lane showed {PLACES} reads"));
    }
    site.is_over();
}

/// Tasks that read all the time must not keep what the ring has from whoever waits for it.
#[test]
fn what_a_ring_has_is_told_while_reads_are_shared() {
    /// No-ops beside which reads are shared.
    const NOPS: usize = 50;
    /// Before it was so, thousands of reads came before each.
    const READS_MAX: u64 = 1000;
    let Some(site) = Site::new("a no-op beside shared reads") else {
        return;
    };
    let mut reads_beside = site.single().block_on(async {
        let (ends, reads) = (AtomicBool::new(false), AtomicU64::new(0));
        let shared = Arc::new((ends, reads));
        let task = |task: u64| {
            let (file, shared) = (Arc::clone(&site.file), Arc::clone(&shared));
            tokio::spawn(async move {
                let (ends, reads) = &*shared;
                let (mut buf, mut n) = (vec![0; BLOCK], task);
                while !ends.load(Ordering::Relaxed) {
                    n += 1;
                    reads.fetch_add(1, Ordering::Relaxed);
                    let (_, back) = file.read_at(buf, n % BLOCKS * BLOCK as u64).await;
                    buf = back;
                }
            })
        };
        let tasks: Vec<_> = (0..4).map(task).collect();
        let mut beside = Vec::new();
        for _ in 0..20_000 {
            let so_far = || (site.engine.stats().helped, shared.1.load(Ordering::Relaxed));
            let before = so_far();
            site.engine.nop().await.expect("a no-op cannot fail");
            let after = so_far();
            let (helped, reads) = (after.0 - before.0, after.1 - before.1);
            if helped * 5 > reads {
                beside.push(reads);
            }
            if beside.len() == NOPS || site.is_taken_over() {
                break;
            }
        }
        shared.0.store(true, Ordering::Relaxed);
        for task in tasks {
            task.await.expect("no panic");
        }
        beside
    });
    site.is_over();
    if reads_beside.len() < NOPS {
        return say("nobody came to share reads beside no-ops");
    }
    reads_beside.sort_unstable();
    let median = reads_beside[NOPS / 2];
    assert!(
        median <= READS_MAX,
        "{median} reads before a no-op was told"
    );
}
