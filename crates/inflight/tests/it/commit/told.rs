//! What is told of an errno that the program answers which serves a file.

use std::io;

use inflight::fs::OpenOptions;
use inflight::{Operation, errno_of};

use super::SYNCED;
use super::disk::mounted_or_skip;
use crate::support::on_every_faultless_backend;
use crate::wishes::by_every_host;

fn assert_bare<T>(result: io::Result<T>) {
    let Err(error) = result else {
        panic!("it fails");
    };
    assert_eq!(error.raw_os_error(), Some(libc::EBADF), "{error:?}");
    assert_eq!(errno_of(&error), Some(libc::EBADF));
}

#[test]
fn a_server_that_answers_ebadf_is_not_taken_for_a_file_that_is_not_open_for_it() {
    let name = "a_server_that_answers_ebadf_is_not_taken_for_a_file_that_is_not_open_for_it";
    let Some(mounted) = mounted_or_skip(name) else {
        return;
    };
    let failing = Some(libc::EBADF);
    on_every_faultless_backend(|engine| {
        let options = || OpenOptions::new().engine(engine);
        let reads = options().read(true).open(mounted.path(SYNCED));
        let writes = options().write(true).open(mounted.path(SYNCED));
        let (reads, writes) = (reads.expect("it is there"), writes.expect("it is there"));
        mounted.disk.fail_reads(failing);
        mounted.disk.fail_writes(failing);
        mounted.disk.fail(failing);
        for (result, _) in by_every_host!(engine, reads.read_at(vec![0; 8], 0)) {
            assert_bare(result);
        }
        for (result, _) in by_every_host!(engine, reads.read_vectored_at(vec![vec![0; 8]], 0)) {
            assert_bare(result);
        }
        for (result, _) in by_every_host!(engine, writes.write_at(vec![0; 8], 0)) {
            assert_bare(result);
        }
        for (result, _) in by_every_host!(engine, writes.write_vectored_at(vec![vec![0; 8]], 0)) {
            assert_bare(result);
        }
        assert_bare(reads.sync_data().wait());
        assert_bare(writes.sync_data().wait());
        mounted.disk.fail(None);
        mounted.disk.fail_writes(None);
        mounted.disk.fail_reads(None);
    });
}
