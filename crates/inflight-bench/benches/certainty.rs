//! How far the command can be trusted, by real runs. It prints figures and judges nothing.
//!
//! ```sh
//! cargo bench -p inflight-bench --features certainty -- twins PAIR DIR [RUNS]
//! cargo bench -p inflight-bench --features certainty -- rounds PAIR DIR RUNS
//! cargo bench -p inflight-bench --features certainty -- fio PLACE [DEPTHS ROUNDS CELL_MS [NAME..]]
//! ```
//!
//! `twins`: one strategy under two names, and one that is slower by a twentieth; each run is a
//! confirmation as `inflight bench` makes it. `rounds`: twins by whole rounds alone. `fio`: our
//! loops and fio's, one thing changed at a time, in the same rounds. Without arguments it names the
//! pairs.

fn main() -> anyhow::Result<()> {
    // What cargo adds is for harnesses.
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|arg| arg != "--bench")
        .collect();
    inflight_bench::certainty(&args)
}
