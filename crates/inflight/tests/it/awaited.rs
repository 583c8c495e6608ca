//! Operations that are awaited: on drivers from any runtime, and in a run loop.

mod dropped;
mod everywhere;
mod hostile;
mod loops;
