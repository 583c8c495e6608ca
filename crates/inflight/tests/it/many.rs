//! Many transfers with borrowed buffers.

use std::fs;
use std::io;

use inflight::fs::OpenOptions;
use inflight::{Operation, ReadInto, WriteFrom, errno_of, read_many, write_many};

use crate::support::{
    chill, on_every_backend, on_every_backend_of, open, pattern, read_write, temp_file, temp_path,
};

#[test]
fn borrowed_parts_of_one_buffer_are_filled() {
    let small = |builder: inflight::Builder| builder.queue_depth(8);
    on_every_backend_of(small, |engine| {
        let data = pattern(300 * 16);
        let file = temp_file(engine, &data);
        chill(&file);
        let mut whole = vec![0; data.len()];
        // From the last to the first, so that places and order differ.
        let parts = whole.chunks_mut(16).enumerate().rev();
        let mut reads: Vec<_> = parts
            .map(|(n, part)| ReadInto::new(&file, 16 * n as u64, part))
            .collect();
        read_many(&mut reads).unwrap();
        for (read, n) in reads.iter().zip((0..300).rev()) {
            assert_eq!(read.result().unwrap(), 16);
            assert_eq!(read.buf(), &data[16 * n..16 * n + 16]);
        }
        assert!(whole == data);
        assert_eq!(engine.stats().in_flight, 0);
    });
}

#[test]
fn borrowed_parts_of_one_buffer_are_written() {
    on_every_backend(|engine| {
        for durable in [false, true] {
            let data = pattern(100 * 16);
            let path = temp_path(b"");
            let options = read_write(engine).durable_writes(durable);
            let file = options.open(path.path()).unwrap();
            let parts = data.chunks(16).enumerate().rev();
            let mut writes: Vec<_> = parts
                .map(|(n, part)| WriteFrom::new(&file, 16 * n as u64, part))
                .collect();
            write_many(&mut writes).unwrap();
            assert!(writes.iter().all(|write| write.result().unwrap() == 16));
            drop(writes);
            assert!(fs::read(path.path()).unwrap() == data);
        }
    });
}

#[test]
fn there_is_no_result_before_it_was_run() {
    on_every_backend(|engine| {
        let file = temp_file(engine, b"abc");
        let mut buf = [7; 3];
        let read = ReadInto::new(&file, 0, &mut buf);
        assert_eq!(read.result().unwrap_err().kind(), io::ErrorKind::Other);
        assert_eq!(read.buf(), [7; 3]);
        let write = WriteFrom::new(&file, 0, b"xyz");
        assert_eq!(write.result().unwrap_err().kind(), io::ErrorKind::Other);
        assert_eq!(file.metadata().wait().unwrap().len, 3);
    });
}

#[test]
fn nothing_and_one_are_many_too() {
    on_every_backend(|engine| {
        read_many(&mut []).unwrap();
        write_many(&mut []).unwrap();
        let file = temp_file(engine, b"abc");
        let mut buf = [0; 8];
        let mut read = [ReadInto::new(&file, 1, &mut buf)];
        read_many(&mut read).unwrap();
        assert_eq!(read[0].result().unwrap(), 2, "a short read is no error");
        assert_eq!(buf, *b"bc\0\0\0\0\0\0");
        let mut write = [WriteFrom::new(&file, 0, b"xyz")];
        write_many(&mut write).unwrap();
        assert_eq!(write[0].result().unwrap(), 3);
    });
}

#[test]
fn the_first_error_is_returned_and_the_others_are_run() {
    on_every_backend(|engine| {
        let file = temp_file(engine, &pattern(64));
        let path = temp_path(b"");
        let write_only = OpenOptions::new().write(true).engine(engine);
        let write_only = write_only.open(path.path()).unwrap();
        let mut bufs = [[0; 8]; 5];
        let [a, b, c, d, e] = &mut bufs;
        let mut reads = [
            ReadInto::new(&file, 0, a),
            ReadInto::new(&write_only, 0, b),
            ReadInto::new(&file, 8, c),
            ReadInto::new(&file, u64::MAX, d),
            ReadInto::new(&file, 16, e),
        ];
        let error = read_many(&mut reads).unwrap_err();
        assert_eq!(errno_of(&error), Some(libc::EBADF));
        let errnos = reads.each_ref().map(|read| match read.result() {
            Ok(moved) => Ok(moved),
            Err(error) => Err(errno_of(&error).unwrap()),
        });
        let expected = [Ok(8), Err(libc::EBADF), Ok(8), Err(libc::EINVAL), Ok(8)];
        assert_eq!(errnos, expected);
        for (n, buf) in [(0, bufs[0]), (8, bufs[2]), (16, bufs[4])] {
            assert_eq!(buf, pattern(64)[n..n + 8]);
        }
    });
}

#[test]
fn the_first_write_error_is_returned_and_the_others_are_run() {
    on_every_backend(|engine| {
        let path = temp_path(b"");
        let options = read_write(engine).durable_writes(true);
        let file = options.open(path.path()).unwrap();
        let mut writes = [
            WriteFrom::new(&file, 0, b"ab"),
            WriteFrom::new(&file, u64::MAX, b"cd"),
            WriteFrom::new(&file, 2, b"ef"),
        ];
        let error = write_many(&mut writes).unwrap_err();
        assert_eq!(errno_of(&error), Some(libc::EINVAL));
        assert_eq!(writes[2].result().unwrap(), 2);
        assert_eq!(fs::read(path.path()).unwrap(), b"abef");
    });
}

#[test]
fn the_same_list_can_be_run_again() {
    on_every_backend(|engine| {
        let path = temp_path(b"before");
        let file = open(engine, path.path());
        let (mut a, mut b) = ([0; 3], [0; 3]);
        let mut reads = [
            ReadInto::new(&file, 0, &mut a),
            ReadInto::new(&file, 3, &mut b),
        ];
        read_many(&mut reads).unwrap();
        assert_eq!((reads[0].buf(), reads[1].buf()), (&b"bef"[..], &b"ore"[..]));
        fs::write(path.path(), b"after!").unwrap();
        read_many(&mut reads).unwrap();
        assert_eq!((reads[0].buf(), reads[1].buf()), (&b"aft"[..], &b"er!"[..]));
    });
}
