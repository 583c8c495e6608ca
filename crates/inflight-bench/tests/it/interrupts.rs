//! Signals at random moments leave no file behind, whatever the command is doing.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use oorandom::Rand64;

use crate::support::{Running, bench, directory, scratch_files, until};

/// Enough to see a gross mistake in every check; `INFLIGHT_INTERRUPTS` asks for more.
const USUAL_RUNS: u32 = 10;
/// What a run has said when the moment is drawn from the time that follows: nothing, or that it
/// writes, or that it measures.
const STAGES: [&str; 3] = ["", "writing", "round 1/"];
/// The moment comes within this time.
const LATEST: Duration = Duration::from_millis(250);
/// The second signal follows the first within this time.
const LATEST_SECOND: Duration = Duration::from_millis(40);

/// What is sent.
const SIGNALS: [&[i32]; 3] = [
    &[libc::SIGINT],
    &[libc::SIGINT, libc::SIGINT],
    &[libc::SIGTERM],
];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Lets time pass: the moment itself is what is random here.
fn pass(at_most: Duration, random: &mut Rand64) {
    let micros = u64::try_from(at_most.as_micros()).unwrap();
    std::thread::sleep(Duration::from_micros(random.rand_range(0..micros)));
}

#[test]
fn a_signal_at_any_moment_leaves_no_file() {
    let seed = number("INFLIGHT_TEST_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let runs = number("INFLIGHT_INTERRUPTS").unwrap_or(USUAL_RUNS.into());
    println!("seed {seed}");
    let mut random = Rand64::new(seed.into());
    let args = [
        "--size",
        "64m",
        "--rounds",
        "1000",
        "--cell-time",
        "20",
        "--depth",
        "1,4",
    ];
    let args = [&args[..], &["--strategy", "pread,threads,inflight"]].concat();
    let (mut partial, mut at_once) = (0, 0);
    for run in 0..runs {
        let directory = directory();
        let signals = SIGNALS[usize::try_from(run).unwrap() % SIGNALS.len()];
        let mut command = bench(directory.path(), &args);
        let mut running = Running::start(&mut command);
        let stage = STAGES[usize::try_from(random.rand_range(0..3)).unwrap()];
        running.wait_for(stage);
        pass(LATEST, &mut random);
        running.signal(signals[0]);
        for signal in &signals[1..] {
            pass(LATEST_SECOND, &mut random);
            running.signal(*signal);
        }
        let output = running.end();
        let seen =
            format!("seed {seed}, run {run}, after `{stage}`, signals {signals:?}: {output:?}");
        // Before it has begun to wait for signals, they do what they always do.
        let by_signal = output.status.code().is_none();
        let stopped = Some(128 + signals[0]);
        assert!(by_signal || output.status.code() == stopped, "{seen}");
        assert!(scratch_files(directory.path()).is_empty(), "{seen}");
        assert_eq!(
            std::fs::read_dir(directory.path()).unwrap().count(),
            0,
            "{seen}"
        );
        if output.stdout.is_empty() {
            at_once += 1;
        } else {
            partial += 1;
        }
    }
    println!("{runs} runs: {partial} with partial results, {at_once} without");
}

/// A program that is called as fio is, says its number, and does not end.
const NEVER_ENDS: &str = "#!/bin/sh
case \"$1\" in --version) echo fio-3.33; exit;; esac
echo $$ > \"$0.running\"
exec sleep 600
";

#[test]
fn fio_ends_with_a_command_that_is_killed() {
    let directory = directory();
    let fio = directory.path().join("fio");
    std::fs::write(&fio, NEVER_ENDS).unwrap();
    std::fs::set_permissions(&fio, Permissions::from_mode(0o755)).unwrap();
    let args = ["--size", "4m", "--rounds", "1", "--depth", "1"];
    let mut command = bench(directory.path(), &args);
    command.arg(format!("--fio={}", fio.display()));
    command.args(["--strategy", "fio-psync"]);
    let running = Running::start(&mut command);
    let said = directory.path().join("fio.running");
    let number = || std::fs::read_to_string(&said).unwrap_or_default();
    until("fio was started", || number().ends_with('\n'));
    let stat = PathBuf::from("/proc").join(number().trim()).join("stat");
    // Its new parent may take its time to bury it.
    let runs = || std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z "));
    assert!(runs());
    running.signal(libc::SIGKILL);
    drop(running.end());
    until("fio is gone", || !runs());
}
