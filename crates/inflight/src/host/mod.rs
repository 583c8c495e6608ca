//! Who owns a proactor. A host is small: everything that can be in the proactor is there.
//!
//! [`shared`] is what all hosts of one engine have in common, [`caller`] lets the calling thread
//! own a proactor for as long as one call lasts. Next: [`crate::proactor`].

pub(crate) mod caller;
pub(crate) mod fork;
pub(crate) mod shared;
