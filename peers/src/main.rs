//! `inflight bench` with published io_uring libraries among its strategies.
//!
//! One file for each library, which says how the library is used and why so; `block.rs` is the
//! buffer that all of them read into. What is measured, and how, is in `crates/inflight-bench`.

mod block;

mod compio;
mod glommio;
mod monoio;
mod tokio_uring;
mod uring_file;

use std::process::ExitCode;

use inflight_bench::TaskStrategy;

/// The peers, after the strategies of the command itself.
const PEERS: &[TaskStrategy] = &[
    compio::COMPIO,
    monoio::MONOIO,
    tokio_uring::TOKIO_URING,
    glommio::GLOMMIO,
    uring_file::URING_FILE,
];

fn main() -> ExitCode {
    inflight_bench::run(PEERS)
}
