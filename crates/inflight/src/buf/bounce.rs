//! Aligned memory for transfers that do not fit direct I/O, used again and again.
//!
//! An operation takes what it needs and has it until the kernel is done with it, so at most as
//! much is in use as operations in flight name, and two blocks for each. What comes back is kept
//! up to a limit.

use std::io;
use std::sync::Arc;

use super::{AlignedBuf, IoBufMut};
use crate::fork::{Inherit, Lock};

/// Smallest and largest piece that is kept, in bytes; each is twice as long as the one before.
const KEPT_LEN_MIN: usize = 4096;
const KEPT_LEN_MAX: usize = 1 << 20;

/// Most bytes kept.
const KEPT_BYTES_MAX: usize = 4 << 20;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Bounces(Lock<Kept>);

#[derive(Debug, Default)]
struct Kept {
    pieces: Vec<AlignedBuf>,
    bytes: usize,
}

/// Aligned memory that goes back where it came from. What is in it is not defined.
#[derive(Debug)]
pub(crate) struct Bounce {
    /// Taken when this is dropped.
    memory: Option<AlignedBuf>,
    home: Arc<Bounces>,
}

impl Bounces {
    /// At least `len` bytes at a multiple of `align_bytes`.
    ///
    /// # Errors
    ///
    /// As [`AlignedBuf::new`].
    pub(crate) fn take(self: &Arc<Self>, len: usize, align_bytes: usize) -> io::Result<Bounce> {
        let len = match len {
            0..=KEPT_LEN_MAX => len.next_power_of_two().max(KEPT_LEN_MIN),
            _ => len,
        };
        let kept = self.0.lock();
        let memory = match kept.and_then(|mut kept| kept.take(len, align_bytes)) {
            Some(memory) => memory,
            None => AlignedBuf::new(len, align_bytes.max(KEPT_LEN_MIN))?,
        };
        Ok(Bounce {
            memory: Some(memory),
            home: Arc::clone(self),
        })
    }
}

impl Inherit for Kept {
    /// A child has copies of its parent's.
    fn inherit(&mut self) {}
}

impl Kept {
    fn take(&mut self, len: usize, align_bytes: usize) -> Option<AlignedBuf> {
        let fits = |piece: &AlignedBuf| piece.len() == len && piece.align_bytes() >= align_bytes;
        let place = self.pieces.iter().rposition(fits)?;
        let piece = self.pieces.swap_remove(place);
        self.bytes -= piece.len();
        Some(piece)
    }

    fn keep(&mut self, piece: AlignedBuf) {
        let bytes = self.bytes + piece.len();
        if piece.len() <= KEPT_LEN_MAX && bytes <= KEPT_BYTES_MAX {
            self.bytes = bytes;
            self.pieces.push(piece);
        }
    }
}

impl Bounce {
    fn memory(&mut self) -> &mut AlignedBuf {
        self.memory
            .as_mut()
            .expect("it is there until this is dropped")
    }

    /// What the kernel is not using now.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        self.memory()
    }

    /// For the kernel.
    pub(crate) fn start(&mut self) -> *mut u8 {
        self.memory().as_mut_ptr()
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else {
            return;
        };
        if let Some(mut kept) = self.home.0.lock() {
            kept.keep(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_kept_up_to_a_limit() {
        let bounces = Arc::new(Bounces::default());
        let mut first = bounces.take(5000, 512).unwrap();
        let start = first.bytes().as_ptr();
        assert!(first.bytes().len() >= 5000 && start.addr() % 4096 == 0);
        drop(first);
        assert_eq!(bounces.take(8192, 4096).unwrap().bytes().as_ptr(), start);
        assert_ne!(bounces.take(8192, 1 << 16).unwrap().bytes().len(), 0);
        let many: Vec<_> = (0..20).map(|_| bounces.take(1 << 20, 1).unwrap()).collect();
        drop(many);
        drop(bounces.take(KEPT_BYTES_MAX, 1).unwrap());
        let kept = bounces.0.lock().expect("no thread of a parent has it");
        assert!(kept.bytes <= KEPT_BYTES_MAX);
        assert_eq!(
            kept.bytes,
            kept.pieces.iter().map(|piece| piece.len()).sum::<usize>()
        );
    }

    #[test]
    #[cfg(not(any(loom, miri)))]
    fn a_child_has_memory_of_its_own_while_a_thread_of_its_parent_holds_what_is_kept() {
        use crate::fork::tests::a_child_finds;
        let bounces = Arc::new(Bounces::default());
        drop(bounces.take(4096, 512).unwrap());
        let held = bounces.0.lock();
        assert!(a_child_finds(|| {
            let pieces = [(); 2].map(|()| bounces.take(4096, 512));
            pieces.into_iter().all(|piece| piece.is_ok())
        }));
        drop(held);
    }
}
