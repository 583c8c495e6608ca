//! Many operations in flight in a runtime of several threads, each of which has a lane then.

use std::fs;
use std::sync::{Arc, Barrier};

use tokio::runtime::Runtime;

use super::hands::{Read, begun, check, drained};
use super::lanes::{drivers_end, run_nops, runtimes, served};
use crate::support::own::in_own_process;
use crate::support::{given_up, pattern, skip, temp_file, threads_named, uring_or_skip};

/// Has the two workers of a runtime wait while `then` runs.
fn while_workers_wait<R>(runtime: &Runtime, then: impl FnOnce() -> R) -> R {
    let at_rest = Arc::new(Barrier::new(3));
    let held = Arc::new(Barrier::new(3));
    for _ in 0..2 {
        let (at_rest, held) = (Arc::clone(&at_rest), Arc::clone(&held));
        runtime.spawn(async move {
            at_rest.wait();
            held.wait();
        });
    }
    at_rest.wait();
    let returned = then();
    held.wait();
    returned
}

#[test]
fn a_crowd_needs_no_driver_either() {
    in_own_process(module_path!(), "a_crowd_needs_no_driver_either", || {
        let Some(engine) = uring_or_skip("a crowd") else {
            return;
        };
        let content = pattern(200);
        let file = temp_file(&engine, &content);
        let [_, multi] = runtimes();
        let multi = served(&engine, multi);
        let _entered = multi.enter();
        let served_of = |reads: Vec<Read<'_>>| {
            let count = reads.len();
            multi.block_on(check(reads, &content[..count]));
            drained(&engine);
            engine.stats().lane_operations
        };
        // Nothing is answered before all have been begun.
        let of_crowd = served_of(while_workers_wait(&multi, || begun(&file, 200)));
        let of_few = served_of(begun(&file, 4));
        run_nops(&multi, &engine, 32);
        if !given_up(&engine, "has not polled its lane").is_empty() {
            return skip("a crowd", "this machine is too busy to run its threads");
        }
        assert_eq!([of_crowd, of_few], [200, 204]);
        assert_eq!(engine.stats().lane_operations, 204 + 32 * 200);
        assert_eq!(threads_named("inflight-driver"), 0);
    });
}

#[test]
fn of_several_lanes_the_one_that_nobody_polls_is_taken_over() {
    let this = "of_several_lanes_the_one_that_nobody_polls_is_taken_over";
    in_own_process(module_path!(), this, || {
        let Some(engine) = uring_or_skip("several lanes") else {
            return;
        };
        let content = pattern(4);
        let file = temp_file(&engine, &content);
        let [_, multi] = runtimes();
        let multi = served(&engine, multi);
        while_workers_wait(&multi, || {
            let entered = multi.enter();
            let reads = begun(&file, 4);
            drop(entered);
            pollster::block_on(check(reads, &content));
        });
        let taken = || given_up(&engine, "has not polled its lane").len();
        assert!(taken() > 0, "who has polled it?");
        let before = engine.stats();
        run_nops(&multi, &engine, 32);
        let after = engine.stats();
        if taken() > 1 {
            return skip(
                "several lanes",
                "this machine is too busy to run its threads",
            );
        }
        let all = 32 * 200;
        assert_eq!(after.operations - before.operations, all);
        // A driver has those that were begun while the lane came to its end.
        let by_lanes = after.lane_operations - before.lane_operations;
        assert!(by_lanes >= all / 2, "{by_lanes}");
    });
}

/// Descriptors of this process.
fn descriptors() -> usize {
    let listed = fs::read_dir("/proc/self/fd").expect("/proc is there");
    listed.count()
}

#[test]
fn engines_and_runtimes_that_come_and_go_leave_nothing_open() {
    let this = "engines_and_runtimes_that_come_and_go_leave_nothing_open";
    in_own_process(module_path!(), this, || {
        let mut open = Vec::new();
        for round in 0..8 {
            let Some(engine) = uring_or_skip("what is left") else {
                return;
            };
            let [_, multi] = runtimes();
            let multi = served(&engine, multi);
            run_nops(&multi, &engine, 32);
            let file = temp_file(&engine, &pattern(64));
            multi.block_on(async { drop(begun(&file, 64)) });
            drop(file);
            if round % 2 == 0 {
                drop(multi);
                drained(&engine);
                drop(engine);
            } else {
                drop(engine);
                drop(multi);
            }
            drivers_end();
            open.push(descriptors());
        }
        // The first round opens what stays.
        assert_eq!(open[1..], [open[1]; 7]);
    });
}
