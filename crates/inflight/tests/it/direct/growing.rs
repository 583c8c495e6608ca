//! Direct transfers that stop within a block, where they cannot be resumed: at the end of a file
//! that grows meanwhile, and on one that takes a part of a block.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::thread;

use fuser::{Errno, OpenFlags};
use inflight::fs::{AnyRange, Direct, File};
use inflight::{AlignedBuf, Ended, Engine, Partial, errno_of};

use super::required;
use crate::support::fuse::Served;
use crate::support::{
    FuseMount, alone_and_batched, on_every_backend, pattern, read_write, share_of, temp_path,
};
use crate::wishes::by_every_host;

const BLOCK: usize = 4096;
const ASKED: usize = 3 * BLOCK;
/// Where the first transfer stops.
const STOP: usize = BLOCK + 100;

/// A file that was [`STOP`] bytes long for the first read, and is longer for the next; it takes as
/// much of the first write. Nothing may begin within a block.
struct Growing;

impl Served for Growing {
    fn len(&self) -> u64 {
        8 * BLOCK as u64
    }

    fn read(&self, offset: usize, _: usize) -> Result<Vec<u8>, Errno> {
        match offset {
            0 => Ok(pattern(STOP)),
            _ => Err(Errno::EINVAL),
        }
    }

    fn write(&self, _: u32, offset: usize, _: &[u8], _: OpenFlags) -> Result<usize, Errno> {
        match offset {
            0 => Ok(STOP),
            _ => Err(Errno::EINVAL),
        }
    }
}

fn buf(len: usize) -> AlignedBuf {
    AlignedBuf::new(len, BLOCK).expect("there is memory")
}

/// Checks that a read of [`ASKED`] bytes has met the end of the file where it stopped.
fn has_ended(result: io::Result<usize>) {
    let error = result.expect_err("it cannot be whole");
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
    let ended = error.get_ref().and_then(|error| error.downcast_ref());
    let expected = Ended {
        done_bytes: STOP,
        asked_bytes: ASKED,
        is_write: false,
    };
    assert_eq!(ended, Some(&expected));
}

/// A file of [`Growing`], opened in every way in which it is direct.
fn each_way(mount: &FuseMount, body: impl Fn(&Engine, &File)) {
    on_every_backend(|engine| {
        for direct in [Direct::Auto, Direct::Required] {
            for range in [AnyRange::Off, AnyRange::Reads] {
                let options = read_write(engine).direct(direct).any_range(range);
                let file = options.open(mount.path("file")).expect("it is there");
                assert!(file.is_direct());
                body(engine, &file);
            }
        }
    });
}

#[test]
fn an_exact_read_that_stops_within_a_block_has_met_the_end() {
    let Some(mount) = FuseMount::or_skip("a direct read of a file that grows", Growing) else {
        return;
    };
    each_way(&mount, |engine, file| {
        for (result, read) in by_every_host!(engine, file.read_exact_at(buf(ASKED), 0)) {
            has_ended(result);
            assert!(read[..STOP] == pattern(STOP));
        }
        let bufs = || vec![buf(BLOCK), buf(ASKED - BLOCK)];
        for (result, read) in by_every_host!(engine, file.read_vectored_exact_at(bufs(), 0)) {
            has_ended(result);
            assert!([&read[0][..], &read[1][..STOP - BLOCK]].concat() == pattern(STOP));
        }
    });
}

#[test]
fn a_refusal_that_is_not_about_the_end_is_told() {
    let Some(mount) = FuseMount::or_skip("a direct read that is refused", Growing) else {
        return;
    };
    each_way(&mount, |engine, file| {
        let at = BLOCK as u64;
        for (result, _) in by_every_host!(engine, file.read_exact_at(buf(ASKED), at)) {
            let error = result.expect_err("nothing can be read there");
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{error}");
        }
    });
}

#[test]
fn a_write_that_stops_within_a_block_tells_how_far_it_came() {
    let Some(mount) = FuseMount::or_skip("a direct write of a part", Growing) else {
        return;
    };
    each_way(&mount, |engine, file| {
        for (result, _) in by_every_host!(engine, file.write_all_at(buf(ASKED), 0)) {
            let error = result.expect_err("it cannot be whole");
            assert_eq!(errno_of(&error), Some(libc::EINVAL));
            let partial = error.get_ref().and_then(|error| error.downcast_ref());
            let expected = Partial {
                done_bytes: STOP,
                errno: libc::EINVAL,
            };
            assert_eq!(partial, Some(&expected));
        }
    });
}

/// Reads a file to which somebody appends, until that is over.
fn read_while_it_grows(file: &File, content: &[u8], is_over: impl Fn() -> bool) {
    while !is_over() {
        for at in (0..content.len()).step_by(8 * BLOCK) {
            let read = || file.read_exact_at(buf(16 * BLOCK), at as u64);
            for (result, read) in alone_and_batched!(read()) {
                let moved = result.unwrap_or_else(|error| {
                    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{error}");
                    let ended = error.get_ref().and_then(|error| error.downcast_ref());
                    ended.map_or(0, |ended: &Ended| ended.done_bytes)
                });
                assert!(read[..moved] == content[at..at + moved], "bytes at {at}");
            }
        }
    }
}

#[test]
fn exact_reads_of_a_file_that_grows_end_where_it_ended() {
    let content = &pattern(48 * BLOCK);
    on_every_backend(|engine| {
        for _ in 0..share_of(20) {
            let path = temp_path(b"");
            let Some(file) = required("a file that grows", engine, path.path()) else {
                return;
            };
            let appended = fs::OpenOptions::new().write(true).open(path.path());
            let appended = appended.expect("it is there");
            thread::scope(|scope| {
                let writer = scope.spawn(move || {
                    for (n, piece) in content.chunks(77).enumerate() {
                        let at = (n * 77) as u64;
                        appended.write_all_at(piece, at).expect("there is room");
                    }
                });
                read_while_it_grows(&file, content, || writer.is_finished());
            });
        }
    });
}
