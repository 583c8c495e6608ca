//! The same operations from every kind of runtime.

use std::future::Future;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inflight::fs::AllocateRange;
use inflight::{AnyOp, Awaited, Batch, Engine, Operation};
use tokio::runtime::Builder;

#[cfg(feature = "tokio")]
use super::lanes::{in_lanes_of, runtimes};
use crate::support::{on_every_backend, pattern, temp_file};

/// Runs a future on every kind of host.
pub(crate) fn on_every_host<F: Future>(engine: &Engine, mut future: impl FnMut() -> F) {
    for host in Host::EVERY {
        host.run(engine, future());
    }
}

/// A kind of host.
#[derive(Clone, Copy)]
pub(crate) enum Host {
    Pollster,
    Smol,
    Loop,
    /// A tokio runtime of one thread, and one of two workers.
    Tokio,
    TokioWorkers,
    /// The same, which serve the engine: their place among [`runtimes`].
    #[cfg(feature = "tokio")]
    Lanes(usize),
}

impl Host {
    pub(crate) const EVERY: [Self; if cfg!(feature = "tokio") { 7 } else { 5 }] = [
        Self::Pollster,
        Self::Smol,
        Self::Loop,
        Self::Tokio,
        Self::TokioWorkers,
        #[cfg(feature = "tokio")]
        Self::Lanes(0),
        #[cfg(feature = "tokio")]
        Self::Lanes(1),
    ];

    pub(crate) fn run(self, engine: &Engine, future: impl Future) {
        match self {
            Self::Pollster => _ = pollster::block_on(future),
            Self::Smol => _ = smol::block_on(future),
            Self::Loop => _ = engine.run(future).expect("nothing is demanded"),
            Self::Tokio => in_tokio(&mut Builder::new_current_thread(), future),
            Self::TokioWorkers => {
                in_tokio(Builder::new_multi_thread().worker_threads(2), future);
            }
            #[cfg(feature = "tokio")]
            Self::Lanes(place) => in_lanes_of(engine, &runtimes()[place], future),
        }
    }
}

fn in_tokio(builder: &mut Builder, future: impl Future) {
    builder.build().expect("a runtime").block_on(future);
}

#[test]
fn every_operation_can_be_awaited() {
    on_every_backend(|engine| {
        on_every_host(engine, || async {
            let file = temp_file(engine, b"");
            engine.nop().await.unwrap();
            let (result, buf) = file.write_all_at(b"hello world".to_vec(), 0).await;
            assert_eq!((result.unwrap(), buf.len()), (11, 11));
            file.sync_data().await.unwrap();
            file.sync_all().await.unwrap();
            assert_eq!(file.metadata().await.unwrap().len, 11);
            let (result, buf) = file.read_at(vec![0; 64], 6).await;
            assert_eq!(result.unwrap(), 5);
            assert_eq!(&buf[..5], b"world");
            let (result, _) = file.read_exact_at(vec![0; 64], 6).await;
            assert_eq!(result.unwrap_err().kind(), ErrorKind::UnexpectedEof);
            let bufs = vec![vec![1; 3], vec![2; 4]];
            assert_eq!(file.write_vectored_all_at(bufs, 20).await.0.unwrap(), 7);
            let (result, bufs) = file
                .read_vectored_at(vec![vec![0; 2], vec![0; 5]], 20)
                .by_backend()
                .await;
            assert_eq!(result.unwrap(), 7);
            assert_eq!(bufs, [vec![1, 1], vec![1, 2, 2, 2, 2]]);
            file.allocate(AllocateRange::Reserve, 0, 4096)
                .await
                .unwrap();
            assert_eq!(file.metadata().await.unwrap().len, 4096);
            file.allocate(AllocateRange::PunchHole, 0, 4096)
                .await
                .unwrap();
            let any: AnyOp<'_, Vec<u8>> = file.read_at(vec![9; 4], 0).into();
            assert_eq!(any.await.1.unwrap(), [0; 4]);
        });
    });
}

#[test]
fn many_tasks_read_what_is_there() {
    const BLOCKS: u8 = 64;
    on_every_backend(|engine| {
        let content: Vec<u8> = (0..BLOCKS).flat_map(|block| vec![block; 512]).collect();
        let file = temp_file(engine, &content);
        let file = Arc::new(file);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .build()
            .unwrap();
        runtime.block_on(async {
            let tasks: Vec<_> = (0..BLOCKS)
                .map(|block| {
                    let file = Arc::clone(&file);
                    tokio::spawn(async move {
                        for turn in 0..20 {
                            let block = (block + turn) % BLOCKS;
                            let (result, buf) =
                                file.read_at(vec![0; 512], u64::from(block) * 512).await;
                            assert_eq!(result.unwrap(), 512);
                            assert_eq!(buf, [block; 512]);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
        });
    });
}

#[test]
fn a_batch_can_be_awaited() {
    on_every_backend(|engine| {
        let content: Vec<u8> = pattern(600);
        let file = temp_file(engine, &content);
        on_every_host(engine, || async {
            let mut batch = Batch::new();
            for n in (0..600).rev() {
                batch.push(file.read_at(vec![0; 1], n));
            }
            let results = batch.await;
            assert_eq!(results.len(), 600);
            for (n, (result, buf)) in (0..600_u64).rev().zip(results) {
                assert_eq!(
                    (result.unwrap(), buf[0]),
                    (1, content[usize::try_from(n).unwrap()])
                );
            }
            let none: Batch<inflight::fs::ReadAt<'_, Vec<u8>>> = Batch::new();
            assert!(none.await.is_empty());
        });
    });
}

#[test]
fn nothing_happens_before_the_first_poll() {
    on_every_backend(|engine| {
        let file = temp_file(engine, b"before");
        let write = file.write_at(b"after!".to_vec(), 0).into_future();
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(file.read_at(vec![0; 6], 0).wait().1, b"before");
        drop(write);
        assert_eq!(engine.drain(Duration::from_secs(5)), 0);
        assert_eq!(file.read_at(vec![0; 6], 0).wait().1, b"before");
    });
}

#[test]
fn sleep_lasts_and_a_timeout_in_time_is_none() {
    on_every_backend(|engine| {
        let file = temp_file(engine, b"abc");
        on_every_host(engine, || async {
            let begun = Instant::now();
            engine.sleep(Duration::from_millis(3)).await.unwrap();
            assert!(begun.elapsed() >= Duration::from_millis(3));
            let read = file.read_at(vec![0; 3], 0).timeout(Duration::from_secs(60));
            assert_eq!(read.await.expect("in time").1, b"abc");
            let write = file.write_at(b"abc".to_vec(), 0).timeout(Duration::MAX);
            assert_eq!(write.await.expect("in time").0.unwrap(), 3);
        });
    });
}
