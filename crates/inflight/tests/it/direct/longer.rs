//! Direct files that somebody else makes longer: what is written there then does not make them
//! grow, so it need not be one write after the other.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fuser::{Errno, INodeNo};
use inflight::fs::{Alignment, Direct, File};
use inflight::{Batch, Engine, Way};
use seccompiler::{SeccompAction, SeccompFilter, apply_filter};

use super::{filled, required};
use crate::names::cached::is_filtered;
use crate::support::fuse::Served;
use crate::support::own::in_own_process;
use crate::support::{
    FuseMount, on_every_backend, pattern, read_write, skip, temp_path, uring_or_skip,
};

const BLOCK: usize = 4096;
/// In one step.
const STEP: usize = 64;

/// Whether a write of this block is taken for one that makes the file grow. Every other one is of
/// several buffers.
fn grows(file: &File, block: usize) -> bool {
    let at = (block * BLOCK) as u64;
    let buf = || filled(file, &pattern(BLOCK));
    let explained = match block % 2 {
        0 => file.write_at(buf(), at).explain(),
        _ => file.write_vectored_at(vec![buf()], at).explain(),
    };
    explained.batched == Way::PlainCall
}

/// Appends to a file as somebody else does.
fn make_longer(others: &fs::File, step: usize) {
    let content = pattern(STEP * BLOCK);
    let at = (step * STEP * BLOCK) as u64;
    others.write_all_at(&content, at).expect("there is room");
    others.sync_all().expect("it is written");
}

/// Enters and plain calls of a batch of writes.
fn write(engine: &Engine, file: &File, blocks: std::ops::Range<usize>) -> (u64, u64) {
    let before = engine.stats();
    let mut batch = Batch::on(engine);
    for block in blocks {
        batch.push(file.write_all_at(filled(file, &pattern(BLOCK)), (block * BLOCK) as u64));
    }
    assert!(
        batch
            .wait()
            .all(|(result, _)| result.is_ok_and(|moved| moved == BLOCK))
    );
    let after = engine.stats();
    let enters = after.enters - before.enters;
    (enters, after.plain_calls - before.plain_calls)
}

#[test]
fn writes_into_what_somebody_else_has_appended_go_by_the_ring() {
    let name = "direct files that others make longer";
    let Some(engine) = uring_or_skip(name) else {
        return;
    };
    let path = temp_path(b"");
    let Some(file) = required(name, &engine, path.path()) else {
        return;
    };
    if file.alignment() == Alignment::Unknown {
        return skip(name, "the file system has no device");
    }
    let others = fs::OpenOptions::new().write(true).open(path.path());
    let others = others.expect("it is there");
    // What the file and its device are like is found out first.
    make_longer(&others, 0);
    for _ in 0..64 {
        write(&engine, &file, 0..8);
    }
    let way = file.write_at(filled(&file, &pattern(BLOCK)), 0).explain();
    if way.batched != Way::Backend {
        return skip(name, "the device is memory, or cannot be asked");
    }
    for step in 1..8 {
        make_longer(&others, step);
        for begin in (step * STEP..(step + 1) * STEP).step_by(8) {
            let (enters, plain_calls) = write(&engine, &file, begin..begin + 8);
            assert!(enters > 0 && plain_calls == 0, "step {step}: {plain_calls}");
        }
    }
}

#[test]
fn what_is_taken_for_growth_is_what_makes_the_file_grow() {
    on_every_backend(|engine| {
        let path = temp_path(b"");
        let Some(file) = required("growth", engine, path.path()) else {
            return;
        };
        let others = fs::OpenOptions::new().write(true).open(path.path());
        let others = others.expect("it is there");
        assert!(grows(&file, 0));
        for (blocks, before) in [(8, 0), (9, 8), (64, 9)] {
            // By its length alone, as whoever reserves space does.
            others.set_len(blocks * BLOCK as u64).expect("it is ours");
            assert!((before..8).all(|block| !grows(&file, block)));
            assert!(!grows(&file, usize::try_from(blocks).unwrap() - 1));
        }
        write(engine, &file, 0..65);
        assert!(!grows(&file, 64) && grows(&file, 65));
        file.truncate(BLOCK as u64).wait().unwrap();
        assert!(!grows(&file, 0) && grows(&file, 1));
        // One in many is asked about, so it is found to be so in the end.
        others.set_len(128 * BLOCK as u64).expect("it is ours");
        assert!((0..64).any(|_| !grows(&file, 127)));
        assert!(!grows(&file, 126));
    });
}

/// A file that becomes longer whenever it is asked for.
#[derive(Default)]
struct Longer(AtomicU64);

impl Served for Longer {
    fn len(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) * BLOCK as u64
    }

    fn find(&self, _: &OsStr) -> Result<(INodeNo, Duration), Errno> {
        Ok((INodeNo(2), Duration::ZERO))
    }

    fn asked_again(&self, _: INodeNo) -> Duration {
        Duration::ZERO
    }
}

/// Others such as 9p ask their server, whatever they are told.
#[test]
fn nobody_is_asked_how_long_a_file_is_that_is_served() {
    let Some(mount) = FuseMount::or_skip("how long a served file is", Longer::default()) else {
        return;
    };
    on_every_backend(|engine| {
        let options = read_write(engine).direct(Direct::Required);
        let file = options.open(mount.path("file")).expect("it is there");
        let len = || fs::metadata(mount.path("file")).expect("it is there").len();
        let block = usize::try_from(len()).unwrap() / BLOCK + 100;
        assert!(grows(&file, block));
        // Then the kernel knows it, but where it does not it would have to ask.
        while len() <= ((block + 1) * BLOCK) as u64 {}
        assert!((0..64).all(|_| grows(&file, block)));
    });
}

#[test]
fn who_would_be_ended_for_it_does_not_ask() {
    let test = "who_would_be_ended_for_it_does_not_ask";
    in_own_process(module_path!(), test, || {
        if is_filtered() {
            return skip(test, "calls are filtered already");
        }
        let engine = Engine::new().expect("nothing is demanded");
        let path = temp_path(b"");
        let Some(file) = required(test, &engine, path.path()) else {
            return;
        };
        let rules = [(libc::SYS_statx, Vec::new())].into();
        let arch = env::consts::ARCH.try_into().expect("a filter can be made");
        let (others, these) = (SeccompAction::Allow, SeccompAction::KillProcess);
        let filter = SeccompFilter::new(rules, others, these, arch).expect("it is sound");
        let program: seccompiler::BpfProgram = filter.try_into().expect("it is sound");
        apply_filter(&program).expect("it is sound");
        write(&engine, &file, 0..8);
    });
}
