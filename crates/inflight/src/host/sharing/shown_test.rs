use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use super::*;
use crate::backend::threads::execute::to_usize;

const CONTENT: &[u8] = b"abcdefgh";
const OFFSET: usize = 2;

/// Buffers and the list of them.
struct List {
    bufs: Vec<Vec<u8>>,
    iovecs: Vec<libc::iovec>,
}

impl List {
    fn new(lens: &[usize]) -> Self {
        let mut bufs: Vec<_> = lens.iter().map(|len| vec![b'-'; *len]).collect();
        let iovec = |buf: &mut Vec<u8>| libc::iovec {
            iov_base: buf.as_mut_ptr().cast(),
            iov_len: buf.len(),
        };
        let iovecs = bufs.iter_mut().map(iovec).collect();
        Self { bufs, iovecs }
    }

    fn request(&mut self, fd: RawFd, whole: bool) -> Request {
        let first = self.iovecs.as_mut_ptr();
        let count = u32::try_from(self.iovecs.len()).expect("a few");
        let op = Op::ReadVectoredAt {
            fd,
            iovecs: Iovecs { first, count },
            offset: OFFSET as u64,
            wishes: Wishes::NONE,
        };
        Request {
            whole,
            ..Request::simple(op)
        }
    }
}

fn file() -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    file.write_all(CONTENT)?;
    Ok(file)
}

/// A place where this read is shown, and what it weighs.
fn shown(places: &Places, request: &Request, twin: Option<RawFd>, manner: Manner) -> u64 {
    // SAFETY: the list is there as long as the test.
    let shown = unsafe { Shown::of(request, twin, manner) };
    places.write(0, &shown)
}

fn make(places: &Places, by: Side) -> Answer {
    // SAFETY: nobody else is at work, and the memory is there as long as the test.
    Answer::from_number(unsafe { places.work(0, by) })
}

#[test]
fn what_a_device_says_of_a_write_is_an_answer_and_no_reason_to_make_it_again() {
    let (mut list, wanted) = (List::new(&[4]), 4);
    let read = list.request(-1, false).op;
    let Op::ReadVectoredAt { iovecs, wishes, .. } = read else {
        unreachable!("that is what it is");
    };
    let write = Op::WriteVectoredAt {
        fd: -1,
        iovecs,
        offset: 0,
        wishes,
    };
    let said = |op: &Op, result| said_without_waiting(op, result, wanted);
    assert_eq!(said(&write, -libc::EIO), Answer::from_result(-libc::EIO));
    assert_eq!(said(&read, -libc::EIO), MISSED);
    assert_eq!(said(&write, -libc::EAGAIN), MISSED);
    assert_eq!(said(&write, -libc::EOPNOTSUPP), REFUSED);
    // A write that has written nothing is not over; a read is at the end of the file.
    assert_eq!(said(&write, 0), MISSED);
    assert_eq!(said(&read, 0), Answer::moved(0));
    assert_eq!(said(&write, 4), Answer::moved(4));
}

#[test]
fn a_list_is_filled_whoever_makes_the_read_by_the_descriptor_that_is_theirs() -> io::Result<()> {
    let (file, places) = (file()?, Places::new());
    let fd = file.as_raw_fd();
    // There is no such file.
    let (none, lens) = (i32::MAX, [1, 0, 3, 2]);
    for (by, fd, twin) in [(Side::Near, fd, none), (Side::Far, none, fd)] {
        for whole in [false, true] {
            let mut list = List::new(&lens);
            let request = list.request(fd, whole);
            let weighed = shown(&places, &request, Some(twin), Manner::Call);
            assert_eq!((weighed, places.place(0).weight()), (weight(6), weight(6)));
            assert_eq!(make(&places, by), Answer::moved(6));
            assert_eq!(list.bufs.concat(), CONTENT[OFFSET..]);
        }
    }
    Ok(())
}

#[test]
fn a_list_that_the_file_ends_in_is_filled_as_far_as_it_goes() -> io::Result<()> {
    let (file, places) = (file()?, Places::new());
    for whole in [false, true] {
        for by in [Side::Near, Side::Far] {
            let mut list = List::new(&[4, 1, 4]);
            let request = list.request(file.as_raw_fd(), whole);
            shown(&places, &request, None, Manner::Call);
            assert_eq!(make(&places, by), Answer::moved(6));
            assert_eq!(list.bufs.concat(), b"cdefgh---");
        }
    }
    Ok(())
}

/// Where the file cannot be asked not to wait, that is a reason to make it once more as well.
#[test]
fn a_list_that_is_not_filled_without_waiting_is_read_once_more_as_it_was() -> io::Result<()> {
    let (file, places) = (file()?, Places::new());
    let fd = file.as_raw_fd();
    for (by, manner) in [
        (Side::Near, Manner::WithoutWaiting),
        (Side::Near, Manner::Asking),
        (Side::Far, Manner::Asking),
        // Whose owner has to be back.
        (Side::Near, Manner::Call),
    ] {
        let mut list = List::new(&[4, 1, 4]);
        let request = list.request(fd, true);
        shown(&places, &request, None, manner);
        if manner == Manner::Call {
            places.place(0).forbid_waiting();
        }
        let answer = make(&places, by);
        let missed = places
            .place(0)
            .missed(answer)
            .expect("the file is too short");
        assert!(missed.whole, "as it was asked for");
        let Op::ReadVectoredAt {
            fd: again,
            iovecs,
            offset,
            ..
        } = missed.op
        else {
            panic!("it has a list");
        };
        assert_eq!((again, offset), (fd, OFFSET as u64));
        assert_eq!(iovecs.first, list.iovecs.as_mut_ptr());
        assert_eq!(to_usize(iovecs.count), list.iovecs.len());
        assert!(list.iovecs.iter().map(|at| at.iov_len).eq([4, 1, 4]));
        // All of it is there: nothing is to be made again, unless that cannot be asked.
        let mut list = List::new(&[6]);
        let request = list.request(fd, true);
        shown(&places, &request, None, manner);
        let answer = make(&places, by);
        if answer != REFUSED {
            assert_eq!(answer, Answer::moved(6));
            assert!(places.place(0).missed(answer).is_none());
        }
    }
    Ok(())
}

#[test]
fn a_write_is_made_by_the_descriptor_of_the_file_whoever_makes_it() -> io::Result<()> {
    let mut bytes = *b"123456";
    let span = Span {
        start: bytes.as_mut_ptr(),
        len: bytes.len(),
        arena: None,
    };
    for by in [Side::Near, Side::Far] {
        let (written, places) = (file()?, Places::new());
        let fd = written.as_raw_fd();
        let one = Request::simple(Op::WriteAt {
            fd,
            span,
            offset: 1,
            wishes: Wishes::NONE,
        });
        assert_eq!(shown(&places, &one, None, Manner::WriteCall), weight(6));
        assert_eq!(make(&places, by), Answer::moved(6));
        assert!(places.place(0).missed(MISSED).is_none(), "it may wait");

        let mut list = List::new(&[1, 0, 2]);
        let Op::ReadVectoredAt { iovecs, .. } = list.request(fd, false).op else {
            unreachable!("it has a list");
        };
        let of_list = Request::simple(Op::WriteVectoredAt {
            fd,
            iovecs,
            offset: 7,
            wishes: Wishes::NONE,
        });
        assert_eq!(
            shown(&places, &of_list, None, Manner::CallOrRing),
            weight(3)
        );
        assert_eq!(make(&places, by), Answer::moved(3));
        let mut content = [0; 10];
        written.read_exact_at(&mut content, 0)?;
        assert_eq!(&content, b"a123456---");
        assert!(list.bufs.concat().iter().all(|byte| *byte == b'-'));
    }
    assert_eq!(&bytes, b"123456");
    Ok(())
}

#[test]
fn a_list_is_told_from_others_by_its_first_buffer() {
    let mut bufs = [const { [0_u8; 4096] }; 4];
    let start = bufs[1].as_mut_ptr();
    let (mut list, mut empty) = (List::new(&[1, 1]), List::new(&[]));
    list.iovecs[0].iov_base = start.cast();
    let span = Span {
        start,
        len: 4096,
        arena: None,
    };
    let one = Request::simple(Op::ReadAt {
        fd: 0,
        span,
        offset: 0,
        wishes: Wishes::NONE,
    });
    let [one, list, empty] =
        [one, list.request(0, false), empty.request(0, false)].map(|request| {
            // SAFETY: the lists are there as long as the test.
            unsafe { Shown::of(&request, None, Manner::Call) }.block.0
        });
    assert_eq!((one, empty), (list, Block::at(0).0));
}
