//! Transfers that do not wait for the device, and what is learned from how they are answered.
#![allow(unsafe_code)]

use std::time::Instant;

use super::stopwatch::nanoseconds_since;
use crate::backend::threads::execute::{execute_now, switches, wanted_bytes};
use crate::completion::Answer;
use crate::op::{Op, Prepare, Request, Road, Seen, SeenOf};
use crate::policy::ASKED_MAX_BYTES;

/// Makes a transfer without waiting for the device, and lets the operation learn from it. Of a
/// large read that is to show what the device is, that is its beginning alone.
#[inline]
pub(super) fn look<O: Prepare>(road: Road, operation: &mut O, request: &Request) -> Look {
    if road == Road::Ask && request.op.is_write() {
        return look_by_writing(operation, request);
    }
    if road != Road::Ask {
        let (seen, look) = try_now(request);
        if let Some(seen) = seen {
            operation.note(SeenOf::new(seen, &request.op));
        }
        return look;
    }
    if let Op::ReadAt { span, .. } = request.op
        && span.len > ASKED_MAX_BYTES
        && let Some(is_refused) = probe(road, operation, request)
    {
        return match is_refused {
            true => Look::Refused,
            false => Look::WouldWait,
        };
    }
    // How long it takes shows what the device is.
    let begun = Instant::now();
    let (seen, look) = try_now(request);
    let Some(mut seen) = seen else {
        return look;
    };
    if let Look::Done(answer) = &look {
        let ns = nanoseconds_since(begun);
        let bytes = answer.bytes();
        if bytes == 0 {
            // The end of the file shows nothing.
            return look;
        }
        seen = Seen::Asked { ns, bytes };
    }
    operation.note(SeenOf::new(seen, &request.op));
    look
}

/// As [`look`], of a direct write that is to show whether it meets a device: a call that gives up
/// its processor waits, and one that does not has done the work itself, if it did not take long. Of
/// a large one nobody asks for the beginning: to write it twice is not what the program wanted.
#[cold]
fn look_by_writing<O: Prepare>(operation: &mut O, request: &Request) -> Look {
    if request.op.has_long_list() {
        return Look::WouldWait;
    }
    let before = switches();
    let begun = Instant::now();
    let (seen, look) = try_now(request);
    let ns = nanoseconds_since(begun);
    let seen = match (&look, seen) {
        (Look::Done(answer), Some(Seen::Hit)) => {
            let bytes = answer.bytes();
            match before.is_some() && before == switches() {
                true => Some(Seen::Asked { ns, bytes }),
                false => Some(Seen::Waited { ns, bytes }),
            }
        }
        (_, seen) => seen,
    };
    if let Some(seen) = seen {
        operation.note(SeenOf::new(seen, &request.op));
    }
    look
}

/// Bytes that show as much as all of a large read. The device needs no more for one request.
const PROBED_BYTES: usize = 4096;

/// Reads the beginning of what is wanted without waiting for the page cache, and lets the operation
/// learn from it. Whether the file cannot be asked; `None` if this has shown nothing.
pub(super) fn probe<O: Prepare>(road: Road, operation: &mut O, request: &Request) -> Option<bool> {
    let mut first = *request;
    let Op::ReadAt { span, .. } = &mut first.op else {
        return None;
    };
    span.len = span.len.min(PROBED_BYTES);
    let begun = Instant::now();
    // SAFETY: the addresses point into what the operation owns, and it is over when this returns.
    let result = unsafe { execute_now(&first.op) };
    let ns = nanoseconds_since(begun);
    let seen = match usize::try_from(result) {
        Ok(bytes @ PROBED_BYTES) if road == Road::Ask => Seen::Asked { ns, bytes },
        Ok(PROBED_BYTES) => Seen::Hit,
        // The end of the file shows nothing.
        Ok(_) => return None,
        Err(_) => match -result {
            libc::EOPNOTSUPP | libc::ENOSYS => Seen::Refused,
            libc::EAGAIN => Seen::Miss,
            // It needs larger pieces, or fails; all of it tells how.
            _ => return None,
        },
    };
    operation.note(SeenOf::new(seen, &request.op));
    Some(seen == Seen::Refused)
}

#[inline(always)]
fn try_now(request: &Request) -> (Option<Seen>, Look) {
    if request.op.has_long_list() {
        // It would be short, whatever the page cache has, and say nothing of the file.
        return (None, Look::WouldWait);
    }
    // SAFETY: the addresses point into what the operation owns or has borrowed, and it is over
    // when this returns.
    let result = unsafe { execute_now(&request.op) };
    // SAFETY: as above.
    let wanted = unsafe { wanted_bytes(&request.op) };
    let (seen, look) = match usize::try_from(result) {
        // Nothing is the end of the file, which waiting does not change.
        Ok(moved) if moved == wanted || (moved == 0 && request.op.is_read()) => {
            (Seen::Hit, Look::Done(Answer::moved(moved)))
        }
        Err(_) if matches!(-result, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS) => {
            (Seen::Refused, Look::Refused)
        }
        // SAFETY: as above; that call is over.
        Ok(moved) => match unsafe { at_the_end(&request.op, moved, wanted) } {
            Some(moved) => (Seen::Hit, Look::Done(Answer::moved(moved))),
            // The whole of it is done once more: what was moved stays as it is.
            None => (Seen::Short, Look::WouldWait),
        },
        Err(_) if request.op.is_told_once(result) => {
            return (None, Look::Done(Answer::from_result(result)));
        }
        Err(_) => (Seen::Miss, Look::WouldWait),
    };
    // The kernel does not look at the file for a transfer of no bytes.
    ((wanted > 0).then_some(seen), look)
}

/// How much has been moved by a read into one buffer that moved so much at first, if that is all
/// that there is: a buffer may be larger than the file. The rest of it is asked for, and that there
/// is none does not wait either.
///
/// # Safety
///
/// As for [`execute_now`].
#[inline(never)]
unsafe fn at_the_end(op: &Op, moved: usize, wanted: usize) -> Option<usize> {
    if !matches!(op, Op::ReadAt { .. }) {
        return None;
    }
    // SAFETY: passed on from the caller.
    let more = unsafe { execute_now(&op.part(moved, wanted - moved)) };
    let more = usize::try_from(more).ok()?;
    (more == 0 || moved + more == wanted).then_some(moved + more)
}

/// What has come of a transfer that was not to wait.
pub(super) enum Look {
    Done(Answer),
    WouldWait,
    /// The file cannot be asked.
    Refused,
}
