//! Requests that take more than one operation: those above the device's limit, whose parts are
//! in flight at the same time, and those that resume after a short transfer.

use crate::backend::threads::execute::{after, to_usize};
use crate::completion::Answer;
use crate::op::{Op, Request};

/// A request in parts.
#[derive(Debug)]
pub(super) struct Split {
    pub(super) token: u32,
    request: Request,
    len: usize,
    /// Where the next part begins.
    next: usize,
    in_flight: u32,
    /// End of the contiguous bytes from the start, as far as it is known.
    prefix: usize,
    /// The errno of the part at `prefix`, if it failed.
    errno: i32,
    /// The first errno of a device for a part of a write, wherever that is: the kernel may not tell
    /// of it again.
    lost: i32,
    /// Where the last resumption began: a second one that gets no further is the end.
    resumed_at: usize,
}

/// What is to be done with a split request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Parts are to be issued, or in flight.
    GoOn,
    /// It is over.
    Done(Answer),
}

impl Split {
    /// A request in parts whose first `done` bytes have been moved.
    pub(super) fn new(token: u32, request: Request, done: usize) -> Self {
        let len = request.op.span().map_or(0, |span| span.len);
        Self {
            token,
            request,
            len,
            next: done,
            in_flight: 0,
            prefix: len,
            errno: 0,
            lost: 0,
            resumed_at: done,
        }
    }

    /// Whether threads of the pool do it.
    pub(super) fn is_aside(&self) -> bool {
        self.request.aside
    }

    /// Whether its file cannot be asked not to wait.
    pub(super) fn may_wait(&self) -> bool {
        self.request.submitted
    }

    /// The next part: its operation, where it begins and its length. `None` when all are issued.
    pub(super) fn issue(&mut self) -> Option<(Op, usize, u32)> {
        let limit = self.request.limit_bytes.max(1);
        let len = (self.len - self.next).min(to_usize(limit));
        if len == 0 {
            return None;
        }
        let from = self.next;
        self.next += len;
        self.in_flight += 1;
        let len = u32::try_from(len).expect("at most the limit");
        Some((self.request.op.part(from, to_usize(len)), from, len))
    }

    /// Takes the answer for the part of `len` bytes at `from`: a count, or a negated errno.
    pub(super) fn answer(&mut self, from: usize, len: u32, result: i32) -> Step {
        self.in_flight -= 1;
        match u32::try_from(result) {
            Ok(moved) if moved >= len => {}
            Ok(moved) => self.ends_at(from + to_usize(moved), 0),
            Err(_) => {
                if self.lost == 0 && self.request.op.is_told_once(result) {
                    self.lost = -result;
                }
                self.ends_at(from, -result);
            }
        }
        if self.in_flight > 0 || self.next < self.len {
            return Step::GoOn;
        }
        let errno = match self.lost {
            0 => self.errno,
            lost => lost,
        };
        let ended_early = self.prefix < self.len && errno == 0;
        if ended_early && self.request.whole && self.prefix > self.resumed_at {
            self.resumed_at = self.prefix;
            self.next = self.prefix;
            self.prefix = self.len;
            return Step::GoOn;
        }
        Step::Done(match errno {
            0 => Answer::moved(self.prefix),
            errno => after(self.prefix, self.request.whole, errno),
        })
    }

    /// The answer, given that of the request made anew, all of it.
    pub(super) fn made_anew(&self, answer: Answer) -> Answer {
        match self.lost {
            0 => answer,
            lost => after(answer.bytes(), self.request.whole, lost),
        }
    }

    /// Takes note that a part was refused for its hints: those that follow go without.
    pub(super) fn leave_hints_out(&mut self, errno: i32) {
        self.request.op.leave_hints_out(errno);
    }

    /// The operation, all of it, and whether all of it has been moved.
    pub(super) fn outcome(&self) -> (Op, bool) {
        (self.request.op, self.prefix == self.len && self.errno == 0)
    }

    /// Whether parts remain to be issued.
    pub(super) fn has_more(&self) -> bool {
        self.next < self.len
    }

    /// The request, all of it: repeating parts that were done moves the same bytes again.
    pub(super) fn request(&self) -> &Request {
        &self.request
    }

    /// The contiguous bytes end here; what lies beyond is not asked for any more.
    fn ends_at(&mut self, end: usize, errno: i32) {
        if end < self.prefix {
            self.prefix = end;
            self.errno = errno;
        }
        self.next = self.len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::Span;

    fn split(len: usize, limit_bytes: u32, whole: bool) -> Split {
        let span = Span {
            start: std::ptr::null_mut(),
            len,
            arena: None,
        };
        let op = Op::ReadAt {
            fd: -1,
            span,
            offset: 1000,
            wishes: crate::op::Wishes::NONE,
        };
        Split::new(
            7,
            Request {
                op,
                whole,
                limit_bytes,
                aside: false,
                submitted: false,
                among_hits: false,
            },
            0,
        )
    }

    #[test]
    fn parts_cover_the_request_and_answer_in_any_order() {
        let mut split = split(25, 10, false);
        let parts: Vec<_> = std::iter::from_fn(|| split.issue())
            .map(|(op, from, len)| {
                let Op::ReadAt { offset, .. } = op else {
                    unreachable!()
                };
                (offset, from, len)
            })
            .collect();
        assert_eq!(parts, [(1000, 0, 10), (1010, 10, 10), (1020, 20, 5)]);
        assert_eq!(split.answer(20, 5, 5), Step::GoOn);
        assert_eq!(split.answer(0, 10, 10), Step::GoOn);
        assert_eq!(split.answer(10, 10, 10), Step::Done(Answer::moved(25)));
    }

    #[test]
    fn the_first_gap_ends_the_transfer() {
        let mut split = split(30, 10, false);
        while split.issue().is_some() {}
        assert_eq!(split.answer(20, 10, 10), Step::GoOn);
        assert_eq!(split.answer(10, 10, -libc::EIO), Step::GoOn);
        assert_eq!(split.answer(0, 10, 4), Step::Done(Answer::moved(4)));
    }

    #[test]
    fn an_error_behind_moved_bytes_is_reported_with_them_if_the_whole_was_asked_for() {
        for (whole, expected) in [
            (false, Answer::stopped(10, libc::EIO)),
            (true, Answer::failed(libc::EIO, 10)),
        ] {
            let mut split = split(30, 10, whole);
            while split.issue().is_some() {}
            split.answer(0, 10, 10);
            split.answer(10, 10, -libc::EIO);
            assert_eq!(split.answer(20, 10, 10), Step::Done(expected));
        }
    }

    fn of_write(mut split: Split) -> Split {
        let Op::ReadAt {
            fd,
            span,
            offset,
            wishes,
        } = split.request.op
        else {
            unreachable!("that is what it is made with")
        };
        split.request.op = Op::WriteAt {
            fd,
            span,
            offset,
            wishes,
        };
        split
    }

    #[test]
    fn what_a_device_says_of_a_part_of_a_write_is_told_wherever_that_is() {
        let (eio, enospc) = (-libc::EIO, -libc::ENOSPC);
        for (answers, done) in [
            ([10, eio, 10], 10),
            ([4, 10, eio], 4),
            ([enospc, eio, 10], 0),
            ([10, enospc, eio], 10),
            ([4, eio, eio], 4),
        ] {
            for (whole, order) in [(false, [0, 1, 2]), (true, [0, 1, 2]), (false, [2, 1, 0])] {
                let mut split = of_write(split(30, 10, whole));
                while split.issue().is_some() {}
                let mut steps = order.map(|part| split.answer(part * 10, 10, answers[part]));
                let expected = after(done, whole, libc::EIO);
                assert_eq!(expected.cause(), Some(libc::EIO));
                assert_eq!(steps[2], Step::Done(expected), "{answers:?}, {order:?}");
                steps[2] = Step::GoOn;
                assert_eq!(steps, [Step::GoOn, Step::GoOn, Step::GoOn]);
                // Should the backend break meanwhile.
                assert_eq!(
                    split.made_anew(Answer::moved(30)),
                    after(30, whole, libc::EIO)
                );
            }
        }
        let unharmed = of_write(split(30, 10, false));
        assert_eq!(unharmed.made_anew(Answer::moved(30)), Answer::moved(30));
    }

    #[test]
    fn a_whole_transfer_resumes_until_the_file_ends() {
        let mut split = split(10, 10, true);
        split.issue();
        assert_eq!(split.answer(0, 10, 4), Step::GoOn);
        let (_, from, len) = split.issue().unwrap();
        assert_eq!((from, len), (4, 6));
        assert_eq!(split.answer(4, 6, 0), Step::Done(Answer::moved(4)));
    }
}
