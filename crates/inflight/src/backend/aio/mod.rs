//! Linux AIO (io_submit(2)), for where no ring can be had: direct transfers
//! are in flight without a thread for each.
//!
//! Nothing else is asynchronous there: what goes through the page cache would be done by the call
//! that submits it, so that is for the pool. Beside a ring they make direct transfers that the
//! ring would hand to a worker of the kernel although a call only starts them. Next: [`queue`],
//! then [`context`]; [`once`] shows which transfers those are.

mod calls;
mod context;
pub(crate) mod once;
pub(crate) mod queue;

/// A read of this descriptor, for tests.
#[cfg(all(test, not(loom), not(miri)))]
fn read_of(fd: std::os::fd::RawFd, buf: &mut [u8], offset: u64) -> crate::op::Op {
    use crate::op::{Op, Span, Wishes};

    Op::ReadAt {
        fd,
        span: Span {
            start: buf.as_mut_ptr(),
            len: buf.len(),
            arena: None,
        },
        offset,
        wishes: Wishes::NONE,
    }
}
