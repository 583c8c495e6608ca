//! How much is in flight, what is split, which memory is registered, and what waiting costs.

use std::fs;
use std::future::IntoFuture;
use std::sync::Arc;
use std::task::Wake;

use inflight::fs::{Direct, File};
use inflight::{BackendKind, BufPool, Engine};

use super::hands::{Gate, drained, in_flight, on_both_hosts_with, poll_once, until_turned};
use crate::steady::allocations::live_bytes;
use crate::support::own::in_own_process;
use crate::support::{
    direct_file_or_skip, on_every_backend, pattern, read_write, say, share_of, skip, temp_file,
    temp_path, until,
};

const PAGE: usize = 4096;

#[test]
fn no_more_bytes_are_in_flight_than_allowed_and_nobody_overtakes() {
    let few = |builder: inflight::Builder| builder.bytes_in_flight(10_000);
    on_both_hosts_with(
        |faults| faults,
        few,
        async |engine, gate| {
            let file = temp_file(engine, b"");
            let write = |len: usize| file.write_at(vec![1; len], 0).into_future();
            // The third does not fit; the fourth would, but waits its turn.
            let mut writes = [4000, 5000, 4000, 1, 20_000, 1].map(write);
            for write in &mut writes {
                assert!(poll_once(write).is_pending());
            }
            in_flight(engine, 2).await;
            for _ in 0..100 {
                inflight::local::yield_now().await;
            }
            assert_eq!(engine.stats().in_flight, 2);
            gate.open();
            for write in writes {
                write.await.0.unwrap();
            }
        },
    );
}

#[test]
fn lists_of_buffers_count_with_all_their_bytes() {
    let few = |builder: inflight::Builder| builder.bytes_in_flight(10_000);
    on_both_hosts_with(
        |faults| faults,
        few,
        async |engine, gate| {
            let file = temp_file(engine, &pattern(PAGE));
            let mut reads: Vec<_> = (0..20)
                .map(|_| {
                    file.read_vectored_at(vec![vec![0; 1000]; 4], 0)
                        .by_backend()
                        .into_future()
                })
                .collect();
            for read in &mut reads {
                assert!(poll_once(read).is_pending());
            }
            in_flight(engine, 2).await;
            for _ in 0..100 {
                inflight::local::yield_now().await;
            }
            assert_eq!(engine.stats().in_flight, 2);
            gate.open();
            for read in reads {
                assert_eq!(read.await.0.unwrap(), 4000);
            }
        },
    );
}

#[test]
fn one_that_is_larger_than_allowed_runs_alone() {
    let few = |builder: inflight::Builder| builder.bytes_in_flight(1);
    on_both_hosts_with(
        |faults| faults,
        few,
        async |engine, gate| {
            let file = temp_file(engine, b"");
            let write = |at: u64| {
                file.write_all_at(vec![7; PAGE], at * PAGE as u64)
                    .into_future()
            };
            let mut writes: Vec<_> = (0..20).map(write).collect();
            for write in &mut writes {
                assert!(poll_once(write).is_pending());
            }
            in_flight(engine, 1).await;
            gate.open();
            for write in writes {
                assert_eq!(write.await.0.unwrap(), PAGE);
            }
            assert_eq!(file.metadata().await.unwrap().len, 20 * PAGE as u64);
        },
    );
}

#[test]
fn a_large_direct_transfer_is_split_and_put_together() {
    const LEN: usize = 9 << 20;
    let content = pattern(LEN);
    let path = temp_path(&content);
    on_every_backend(|engine| {
        let file = read_write(engine)
            .direct(Direct::Auto)
            .open(path.path())
            .unwrap();
        let run = async || {
            let mut small: Vec<_> = (0..8)
                .map(|page| {
                    file.read_vectored_at(vec![vec![0; PAGE]], page * PAGE as u64)
                        .by_backend()
                })
                .map(IntoFuture::into_future)
                .collect();
            for read in &mut small {
                let _ = poll_once(read);
            }
            let large = file.read_exact_at(file.aligned_buf(LEN).unwrap(), 0);
            let (result, buf) = large.await;
            assert_eq!(result.unwrap(), LEN);
            assert!(buf[..] == content[..]);
            for (read, page) in small.into_iter().zip(content.chunks(PAGE)) {
                let (result, bufs) = read.await;
                assert_eq!((result.unwrap(), &bufs[0][..]), (PAGE, page));
            }
        };
        pollster::block_on(run());
        engine.run(run()).unwrap();
    });
}

/// Rings of this process that have registered buffers.
fn rings_with_buffers() -> usize {
    let infos = fs::read_dir("/proc/self/fdinfo").expect("procfs is there");
    let infos = infos
        .flatten()
        .flat_map(|info| fs::read_to_string(info.path()));
    infos
        .filter(|info| {
            let count = info.lines().find_map(|line| line.strip_prefix("UserBufs:"));
            count.is_some_and(|count| count.trim() != "0")
        })
        .count()
}

#[test]
fn buffers_of_a_pool_are_registered_on_drivers_and_in_loops_and_dead_pools_forgotten() {
    let test = "buffers_of_a_pool_are_registered_on_drivers_and_in_loops_and_dead_pools_forgotten";
    in_own_process(module_path!(), test, || {
        let engine = Engine::new().unwrap();
        if engine.backend().kind != BackendKind::Uring {
            return skip(test, &engine.backend().reason);
        }
        let Some(file) = direct_file_or_skip(test, &engine, &pattern(8 * PAGE)) else {
            return;
        };
        let read = async |pool: &BufPool| {
            let mut reads: Vec<_> = (0..8)
                .map(|page| file.read_at(pool.take().unwrap(), page * PAGE as u64))
                .map(IntoFuture::into_future)
                .collect();
            for read in &mut reads {
                assert!(poll_once(read).is_pending());
            }
            drop(reads.split_off(4));
            for read in reads {
                assert_eq!(read.await.0.unwrap(), PAGE);
            }
            until_turned("the buffers are back", || pool.available() == 8).await;
        };
        let pools = async || {
            // More than a ring can know at a time.
            for _ in 0..40 {
                read(&BufPool::new(8, PAGE).unwrap()).await;
                engine.nop().await.unwrap();
                // The next is not begun before the host has been idle.
                engine
                    .sleep(std::time::Duration::from_millis(1))
                    .await
                    .unwrap();
            }
        };
        pollster::block_on(pools());
        let on_the_driver = rings_with_buffers();
        engine.run(pools()).unwrap();
        let in_both = rings_with_buffers();
        let fallbacks = engine.stats().fallbacks;
        if fallbacks
            .iter()
            .any(|given| given.reason.contains("MEMLOCK"))
        {
            return skip(test, "locked memory is scarce");
        }
        assert_eq!(fallbacks, []);
        assert_eq!((on_the_driver, in_both), (1, 2), "rings with buffers");
    });
}

/// Reads of 512 bytes from many files, all begun before one is awaited.
async fn read_all(files: &[File], data: &[u8], count: usize) {
    let at = |n: usize| (n * 7 % 64) * 512;
    let mut reads: Vec<_> = (0..count)
        .map(|n| {
            files[n % files.len()]
                .read_vectored_at(vec![vec![0; 512]], at(n) as u64)
                .by_backend()
        })
        .map(IntoFuture::into_future)
        .collect();
    for read in &mut reads {
        assert!(poll_once(read).is_pending());
    }
    for (n, read) in reads.into_iter().enumerate() {
        let (result, bufs) = read.await;
        let rotated = n % files.len();
        assert_eq!(result.expect("it is done"), 512);
        let expected = data[at(n)..at(n) + 512]
            .iter()
            .map(|byte| byte.wrapping_add(mark(rotated)));
        assert!(bufs[0].iter().copied().eq(expected), "read {n}");
    }
}

fn mark(file: usize) -> u8 {
    u8::try_from(file % 256).expect("below 256")
}

fn marked_files(engine: &Engine, data: &[u8], count: usize) -> Vec<File> {
    let marked = |file: usize| {
        data.iter()
            .map(|byte| byte.wrapping_add(mark(file)))
            .collect()
    };
    let content = |file: usize| -> Vec<u8> { marked(file) };
    (0..count)
        .map(|file| temp_file(engine, &content(file)))
        .collect()
}

#[test]
fn a_hundred_thousand_reads_may_wait_at_a_time() {
    let all = usize::try_from(share_of(100_000)).expect("a few");
    let data = pattern(64 * 512);
    on_every_backend(|engine| {
        let files = marked_files(engine, &data, 128);
        let count = match engine.backend().kind {
            BackendKind::Uring => all,
            _ => all / 10,
        };
        pollster::block_on(read_all(&files, &data, count));
        engine.run(read_all(&files, &data, count)).unwrap();
        drained(engine);
        let stats = engine.stats();
        assert_eq!((stats.in_flight, stats.strays), (0, 0));
        assert_eq!(stats.operations, 2 * count as u64);
    });
}

struct Nothing;

impl Wake for Nothing {
    fn wake(self: Arc<Self>) {}
}

/// Bytes that a waiting future costs beside itself and its buffer.
fn bytes_for_each(engine: &Engine, count: usize) -> i64 {
    let count_signed = i64::try_from(count).expect("a few");
    let mut nops: Vec<_> = (0..count).map(|_| engine.nop().into_future()).collect();
    let before = live_bytes();
    let waker = Arc::new(Nothing).into();
    for nop in &mut nops {
        assert!(super::hands::poll_with(nop, &waker).is_pending());
    }
    (live_bytes() - before) / count_signed
}

#[test]
fn a_waiting_future_costs_little_memory() {
    let test = "a_waiting_future_costs_little_memory";
    in_own_process(module_path!(), test, || {
        const COUNT: usize = 100_000;
        let (gate, engine) = Gate::closed(|builder| builder);
        let on_a_driver = bytes_for_each(&engine, COUNT);
        gate.open();
        drained(&engine);
        let (gate, engine) = Gate::closed(|builder| builder);
        let measured = engine.run(async {
            let bytes = bytes_for_each(&engine, COUNT);
            gate.open();
            bytes
        });
        let in_a_loop = measured.unwrap();
        let future = size_of_val(&engine.nop().into_future());
        let read = size_of_val(&temp_file(&engine, b"").read_at(vec![0], 0).into_future());
        say(&format!(
            "awaited: a waiting future takes {on_a_driver} bytes on a driver, {in_a_loop} in a \
         loop; the future of a no-op itself {future}, of a read {read}"
        ));
        // A vector grows by doubling, so up to twice the size of a cell.
        assert!(on_a_driver <= 256 && in_a_loop <= 256);
    });
}

#[test]
fn engines_leave_no_descriptor_thread_or_memory_behind() {
    let test = "engines_leave_no_descriptor_thread_or_memory_behind";
    in_own_process(module_path!(), test, || {
        let count = |folder: &str| fs::read_dir(folder).unwrap().count();
        let left = || (count("/proc/self/fd"), count("/proc/self/task"));
        let use_them = || {
            on_every_backend(|engine| {
                let files = marked_files(engine, &pattern(64 * 512), 4);
                let work = async || read_all(&files[..], &pattern(64 * 512), 500).await;
                pollster::block_on(work());
                engine.run(work()).unwrap();
                let mut nops: Vec<_> = (0..100).map(|_| engine.nop().into_future()).collect();
                for nop in &mut nops {
                    let _ = poll_once(nop);
                }
                drop(nops);
            });
        };
        use_them();
        let (before, bytes) = (left(), live_bytes());
        for _ in 0..3 {
            use_them();
        }
        // Descriptors of rings and threads go in the background.
        until("all is back", || left() <= before);
        let grown = live_bytes() - bytes;
        assert!(grown < 4096, "{grown} bytes are left");
    });
}
