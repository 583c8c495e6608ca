//! Reads of what was in the page cache until now, in a run loop: one that has nothing else to do
//! makes them by calls that may wait, and nobody else is kept waiting.

use std::cell::Cell;
use std::future::IntoFuture;
use std::io;
use std::time::Duration;

use inflight::fs::{File, OpenOptions};
use inflight::{Engine, local};
use tempfile::NamedTempFile;

use super::hands::poll_once;
use crate::support::{evict, on_every_faultless_backend, pattern, skip, temp_path};

const BLOCK: usize = 4096;

/// After so many reads from the page cache the next one is taken to be another.
const WARM: usize = 200;

/// Reads of blocks that are not there any more; of those that are taken to be, one in 16 is asked
/// about.
const TRIES: u64 = 24;

/// Where a block is that is read often, and those that are read once.
const WARM_BLOCK: u64 = 0;
const COLD_BLOCKS: u64 = 64;

/// What the loop has beside the read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    Nothing,
    Task,
    Timer,
    Request,
    OuterLoop,
}

fn content() -> Vec<u8> {
    pattern(BLOCK * 256)
}

fn open(engine: &Engine, path: &NamedTempFile) -> File {
    let options = OpenOptions::new().read(true).engine(engine);
    options.open(path.path()).expect("the file is there")
}

async fn read(file: &File, block: u64) -> (io::Result<usize>, Vec<u8>) {
    file.read_at(vec![0; BLOCK], block * BLOCK as u64).await
}

/// Reads a block that is not in the page cache of a file whose last reads were.
async fn read_cold(file: &File, block: u64) {
    let (result, buf) = read(file, block).await;
    assert_eq!(result.expect("it is there"), BLOCK);
    let at = BLOCK * usize::try_from(block).expect("a few");
    assert!(buf == content()[at..][..BLOCK], "block {block}");
}

/// How often such a read of a new file went to the backend.
fn handed_over(engine: &Engine, path: &NamedTempFile, beside: Beside) -> u64 {
    let handed = Cell::new(0);
    for number in 0..TRIES {
        evict(path.as_file());
        let (file, other) = (open(engine, path), open(engine, path));
        let counted = async {
            for _ in 0..WARM {
                let (result, _) = read(&file, WARM_BLOCK).await;
                assert_eq!(result.expect("it is there"), BLOCK);
            }
            let cold = COLD_BLOCKS + 2 * number;
            // Of a file of which nothing is known, so it is asked about and handed over.
            let offset = (cold + 1) * BLOCK as u64;
            let mut request = other.read_at(vec![0; BLOCK], offset).into_future();
            let mut timer = local::sleep(Duration::from_secs(600)).expect("this is a loop");
            match beside {
                Beside::Task => drop(local::spawn(async {})),
                Beside::Timer => assert!(poll_once(&mut timer).is_pending()),
                Beside::Request => drop(poll_once(&mut request)),
                Beside::Nothing | Beside::OuterLoop => {}
            }
            let mut cold = Box::pin(read_cold(&file, cold));
            if poll_once(&mut cold).is_pending() {
                handed.set(handed.get() + 1);
                cold.await;
            }
        };
        let run = match beside {
            Beside::OuterLoop => {
                engine.run(async { engine.run(counted).expect("a loop can run in another") })
            }
            _ => engine.run(counted),
        };
        run.expect("a loop can run");
    }
    handed.get()
}

#[test]
fn only_a_loop_with_nothing_else_to_do_waits_where_a_read_is_polled() {
    let name = "reads that wait in a loop";
    on_every_faultless_backend(|engine| {
        let path = temp_path(&content());
        let with_task = handed_over(engine, &path, Beside::Task);
        if with_task == 0 {
            return skip(name, "the file system keeps its files in memory");
        }
        let alone = handed_over(engine, &path, Beside::Nothing);
        assert!(alone < TRIES / 2, "{alone} of {TRIES} are handed over");
        for beside in [Beside::Timer, Beside::Request, Beside::OuterLoop] {
            let handed = handed_over(engine, &path, beside);
            assert!(
                handed > TRIES / 2,
                "{handed} of {TRIES} with {beside:?} beside"
            );
        }
        assert!(
            with_task > TRIES / 2,
            "{with_task} of {TRIES} with a task beside"
        );
    });
}
