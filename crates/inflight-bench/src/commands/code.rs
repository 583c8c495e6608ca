//! `inflight show --code rust`: the small program that does what a verdict recommends.
//!
//! The programs are files of `programs/`, which a test compiles and runs; what differs from disk
//! to disk are constants at their top.

use anyhow::Result;
use inflight_report::Record;
use inflight_report::ranking::Ranking;
use inflight_report::record::{Cell, ProfileSummary};
use inflight_report::strategy::is_library;
use inflight_report::text::clean;
use inflight_report::verdict::verdict;

use crate::exit::{cannot, usage};

const ONE_LOOP: &str = include_str!("../../programs/one_loop.rs");
const THREADS: &str = include_str!("../../programs/threads.rs");
const RING: &str = include_str!("../../programs/ring.rs");
const RUN_LOOP: &str = include_str!("../../programs/run_loop.rs");
const TOKIO_TASKS: &str = include_str!("../../programs/tokio_tasks.rs");
const TOKIO_BLOCKING: &str = include_str!("../../programs/tokio_blocking.rs");

/// The program for the verdict of a profile: the one named, else the first that has a verdict.
pub(super) fn rust(record: &Record, named: Option<&str>) -> Result<String> {
    let profile = match named {
        Some(name) => find(record, name)?,
        None => {
            let mut profiles = record.profiles.iter();
            let decided = |profile: &&ProfileSummary| {
                !profile.access.writes() && Ranking::new(record, profile).pick().is_some()
            };
            let found = profiles.find(decided);
            found.ok_or_else(|| cannot("no profile of this record that reads has a verdict"))?
        }
    };
    if profile.access.writes() {
        return Err(cannot(format!(
            "{} writes, and the programs only read; --profile names another one",
            profile.name
        )));
    }
    let ranking = Ranking::new(record, profile);
    let Some(pick) = ranking.pick() else {
        return Err(cannot(format!("there is no verdict for {}", profile.name)));
    };
    let headline = verdict(record, &ranking).lines.into_iter().next();
    let headline = headline.map_or_else(String::new, |line| line.text);
    let heading = comment(&format!("{}. {headline}", profile.title));
    let instead = instead(pick).map_or_else(String::new, |text| comment(&text));
    Ok(heading + &instead + &comment(&wanted(pick)) + "\n" + &filled_in(pick, profile))
}

/// The program where nothing was measured: the library's own choice.
pub(super) fn unmeasured() -> String {
    let heading = comment("Nothing was measured: `inflight bench` says what to use on this disk.");
    heading + "\n" + RING
}

fn find<'a>(record: &'a Record, name: &str) -> Result<&'a ProfileSummary> {
    let found = record.profiles.iter().find(|profile| profile.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = record
            .profiles
            .iter()
            .map(|profile| &*profile.name)
            .collect();
        let names = names.join(", ");
        usage(format!(
            "the record has no profile `{name}`; it has {names}"
        ))
    })
}

/// Which file of `programs/` does what this cell did.
fn program(cell: &Cell) -> &'static str {
    match cell.strategy.as_str() {
        "threads" | "inflight-threads" => THREADS,
        "tokio" => TOKIO_BLOCKING,
        "inflight-local" => RUN_LOOP,
        "inflight-async" | "inflight-async-1" => TOKIO_TASKS,
        "pread" | "preadv2-nowait" => ONE_LOOP,
        // One read at a time is a plain call for the library, whatever there is besides.
        "inflight" if cell.depth == 1 => ONE_LOOP,
        _ => RING,
    }
}

const TOKIO: &str = r#"tokio = { version = "1", features = ["rt-multi-thread"] }"#;

/// What a manifest needs. The library is in no registry yet: its path is for the reader to fill in.
fn wanted(cell: &Cell) -> String {
    const OURS: &str = r#"inflight = { path = "inflight/crates/inflight" }"#;
    const WITH_TOKIO: &str =
        r#"inflight = { path = "inflight/crates/inflight", features = ["tokio"] }"#;
    match program(cell) {
        TOKIO_TASKS => format!("Needs {WITH_TOKIO} and {TOKIO}"),
        TOKIO_BLOCKING => format!("Needs {OURS} and {TOKIO}"),
        _ => format!("Needs {OURS}"),
    }
}

/// Says that the program does not do what the cell did, where that takes much code by hand.
fn instead(cell: &Cell) -> Option<String> {
    let is_by_hand = program(cell) == RING && !is_library(&cell.strategy);
    is_by_hand.then(|| {
        format!(
            "It is not `{}` itself, but the library with as many reads in flight.",
            cell.strategy
        )
    })
}

/// The program with the figures of the cell in its constants.
fn filled_in(cell: &Cell, profile: &ProfileSummary) -> String {
    let direct = if profile.direct { "Required" } else { "Off" };
    let workers = match cell.strategy.as_str() {
        "inflight-async-1" => 1,
        _ => {
            // A record may come from anywhere: nothing of it but a number becomes code.
            let told = cell.effective.get("worker-threads");
            let told = told.and_then(|told| told.parse::<u32>().ok());
            told.filter(|workers| *workers > 0).unwrap_or(cell.threads)
        }
    };
    let constants = [
        ("BLOCK_BYTES", profile.block_size_bytes.to_string()),
        ("DIRECT", format!("Direct::{direct}")),
        ("DEPTH", cell.depth.to_string()),
        ("THREADS", cell.threads.to_string()),
        ("WORKERS", workers.to_string()),
    ];
    let mut text = String::new();
    for line in program(cell).lines() {
        let here = constants.iter().find_map(|(name, value)| {
            let declaration = line.strip_prefix("const ")?.strip_prefix(name)?;
            let (kind, _) = declaration.strip_prefix(": ")?.split_once(" = ")?;
            Some(format!("const {name}: {kind} = {value};\n"))
        });
        text += &here.unwrap_or_else(|| format!("{line}\n"));
    }
    text
}

/// Sentences as comment lines of at most 100 columns; a record's line breaks end nothing, and what
/// would control a terminal becomes a space.
fn comment(text: &str) -> String {
    let text = clean(text);
    let mut lines = String::new();
    let mut line = "//".to_owned();
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > 100 {
            lines += &(line + "\n");
            line = "//".to_owned();
        }
        line += &format!(" {word}");
    }
    lines + &line + "\n"
}
