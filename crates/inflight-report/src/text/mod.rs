//! The screen: header, one table a profile, warnings, verdicts.
//!
//! A pure function of the record. Whether there is a terminal, how wide it is and whether it
//! has colours is the caller's business.

pub(crate) mod compare;
pub mod doctor;
pub(crate) mod grid;
mod merged;
pub(crate) mod notes;
pub(crate) mod open;
mod paint;
mod reasons;
pub(crate) mod side_by_side;
pub(crate) mod table;

pub use compare::{comparison, limits, not_told};
pub use merged::merged;
pub use notes::names;
pub(crate) use notes::{by_reason, names_in, roads};
pub use paint::clean;
pub(crate) use paint::is_unseen;

use crate::figures::{full_rounds, rounds_run, screening_rounds};
use crate::noun::heading;
use crate::ranking::Ranking;
use crate::record::{Cell, Finding, Machine, ProfileSummary, Record, Regret, STOPPED, Severity};
use crate::regret;
use crate::stats::{FEWEST_ROUNDS, LEVEL};
use crate::strategy::{
    INFLIGHT, INFLIGHT_THREADS, LIBAIO, NULL, URING_BUSY, URING_IOPOLL, URING_SQPOLL, URING_TUNED,
    access_of, plain_call,
};
use crate::units::{bytes, counted, nanos};
use crate::verdict::answers::regret_in_words;
use crate::verdict::verdict;
use notes::Note;
use paint::{Paint, Screen};

/// How the screen is to be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Columns of the terminal; below about 60 lines may be longer than it.
    pub width: usize,
    /// Whether to use ANSI colours.
    pub colour: bool,
}

impl Default for Style {
    /// Plain text of 100 columns.
    fn default() -> Self {
        Self {
            width: 100,
            colour: false,
        }
    }
}

/// Draws the whole record: what was measured, the tables, the warnings and the verdicts.
#[must_use]
pub fn screen(record: &Record, style: Style) -> String {
    let mut screen = Screen::new(style);
    header(&mut screen, record);
    let closed = record.profiles.iter();
    let closed = closed.filter(|profile| !crate::open::is_only(record, profile));
    let rankings: Vec<_> = closed
        .map(|profile| Ranking::new(record, profile))
        .collect();
    for ranking in &rankings {
        screen.blank();
        screen.prose(&heading(ranking.profile), 1, Paint::Bold);
        table::draw(&mut screen, ranking);
        notes::draw(&mut screen, ranking);
    }
    side_by_side::draw(&mut screen, &rankings);
    for profile in &record.profiles {
        open::draw(&mut screen, record, profile);
    }
    if !rankings.is_empty() {
        draw_legend(&mut screen, record, &rankings);
    }
    draw_findings(&mut screen, record);
    for ranking in &rankings {
        screen.blank();
        if rankings.len() > 1 {
            screen.prose(&heading(ranking.profile), 1, Paint::Bold);
        }
        for line in verdict(record, ranking).lines {
            screen.statement(line.label, &line.text, Paint::Bold);
        }
    }
    worst_regret(&mut screen, record);
    screen.finish()
}

/// A title, and what is said about it below.
#[must_use]
pub fn paragraphs(title: &str, about: &[String], style: Style) -> String {
    let mut screen = Screen::new(style);
    screen.prose(title, 0, Paint::Bold);
    for text in about {
        screen.prose(text, 4, Paint::Plain);
    }
    screen.finish()
}

/// Over all profiles, where there are several: of the library waited for, and of it awaited.
fn worst_regret(screen: &mut Screen, record: &Record) {
    // As the tables have them, also of a record that was made when they were found another way.
    let all = regret::regrets(record);
    let (waited_for, others) = regret::blocking_and_others(&all);
    let awaited: Vec<&Regret> = others
        .into_iter()
        .filter(|regret| regret.is_awaited())
        .collect();
    let of = [
        (
            "inflight, by a queue or by as many threads, whichever does better",
            waited_for,
        ),
        ("Awaited, in its run loop or on tokio", awaited),
    ];
    let said = of
        .iter()
        .filter_map(|(who, regrets)| of_roads(record, who, regrets));
    let mut said: Vec<String> = said.collect();
    if all.iter().any(|regret| !regret.is_known()) {
        said.push(regret::what_tells(record));
    }
    if record.profiles.len() > 1 && !said.is_empty() {
        screen.blank();
        screen.statement("Worst regret", &said.join(" "), Paint::Bold);
    }
}

/// How many cells of some roads keep up, and the worst of those of which that is known.
fn of_roads(record: &Record, who: &str, regrets: &[&Regret]) -> Option<String> {
    let all = regrets.len();
    let within = regrets.iter().filter(|regret| regret.is_within()).count();
    let beyond = regrets.iter().filter(|regret| regret.is_beyond()).count();
    let (worst, unknown) = regret::worst_known(regrets);
    let open = all - within - beyond;
    let because = match unknown {
        0 => String::new(),
        _ if unknown == open => ", because the rounds scatter too much".to_owned(),
        _ => format!(", {unknown} of them because the rounds scatter too much"),
    };
    let one_or = |count, one, many| if count == 1 { one } else { many };
    let open = match open {
        0 => String::new(),
        open => {
            let need = one_or(open, "needs", "need");
            format!(", and {open} {need} more rounds to tell{because}")
        }
    };
    let find = |id: &String| record.cells.iter().find(|cell| cell.id == *id);
    let at_worst = worst.and_then(|worst| {
        let (road, reference) = (find(&worst.cell)?, find(&worst.reference)?);
        let of = if unknown > 0 { " of the others" } else { "" };
        let access = access_of(road, &record.profiles);
        let said = regret_in_words(worst, road, reference, access);
        Some(format!(" At worst{of}, in {}: {said}.", worst.profile))
    });
    (all > 0).then(|| {
        format!(
            "{who}: of {}, {within} certainly {} up with the best of the others (at most 3 % \
             behind), {beyond} certainly {} not{open}.{}",
            counted(all, "cell"),
            one_or(within, "keeps", "keep"),
            one_or(beyond, "does", "do"),
            at_worst.unwrap_or_default()
        )
    })
}

fn header(screen: &mut Screen, record: &Record) {
    let (machine, target) = (&record.machine, &record.target);
    let place = match target.stack.first() {
        Some(device) => format!("{} on {}", target.fs, device.name),
        None => target.fs.clone(),
    };
    let first = [
        format!("inflight {}", record.tool.version),
        format!("Linux {}", machine.kernel),
        place,
        format!("{} CPUs", machine.cpus),
        virtualised(machine).to_owned(),
    ];
    screen.prose(&joined(&first), 0, Paint::Plain);
    let origin = if target.scratch {
        "made for this run"
    } else {
        "which was there before"
    };
    let size = bytes(target.size_bytes as f64);
    let second = [
        format!("Test data: {size} in {}, {origin}", target.path),
        rounds(record),
        format!("took {}", nanos(record.took_ns as f64)),
    ];
    screen.prose(&joined(&second), 0, Paint::Plain);
}

fn virtualised(machine: &Machine) -> &'static str {
    if machine.virtualised {
        "virtual machine"
    } else {
        ""
    }
}

/// How many rounds there were, and whether all that were planned.
pub(crate) fn rounds(record: &Record) -> String {
    let of_kind = |cell: &Cell, confirms| {
        let rounds = cell.rounds.iter();
        rounds.filter(|round| round.confirms == confirms).count()
    };
    let done = match record.interrupted {
        true => whole_rounds(record),
        false => most_rounds(record, |cell| of_kind(cell, false)),
    };
    let fresh = match most_rounds(record, |cell| of_kind(cell, true)) {
        0 => String::new(),
        fresh => {
            format!(", and up to {fresh} fresh ones of the cells that verdict and regret rest on")
        }
    };
    let each = nanos(record.cell_duration_ns as f64);
    let planned = match usize::try_from(record.rounds_planned) {
        Ok(planned) if done < planned => format!("{done} of {planned}"),
        _ => done.to_string(),
    };
    let rounds = if planned == "1" { "round" } else { "rounds" };
    let cut = match record.interrupted {
        true => "interrupted after ",
        false => "",
    };
    format!("{cut}{planned} shuffled {rounds} of {each}{fresh}")
}

/// The most rounds of a profile in which all of its cells had their turn.
fn whole_rounds(record: &Record) -> usize {
    let took_part = |cell: &&Cell| match &cell.skipped {
        None => true,
        Some(skipped) => skipped.reason == STOPPED,
    };
    let of_profile = |profile: &ProfileSummary| {
        let cells = record.cells.iter().filter(took_part);
        let cells = cells.filter(|cell| cell.profile == profile.name);
        cells.map(rounds_run).min()
    };
    let profiles = record.profiles.iter();
    profiles.filter_map(of_profile).max().unwrap_or(0)
}

fn most_rounds(record: &Record, of: impl Fn(&Cell) -> usize) -> usize {
    record.cells.iter().map(of).max().unwrap_or(0)
}

/// Strategies whose names do not say what they are, or not what to ask for.
const NAMES: [(&str, &str); 8] = [
    (NULL, "null: what measuring costs."),
    (
        URING_TUNED,
        "io_uring, tuned: with registered buffers and files.",
    ),
    (
        URING_SQPOLL,
        "io_uring, kernel thread: a thread of the kernel takes what is queued \
         (--strategy uring-sqpoll).",
    ),
    (
        URING_BUSY,
        "io_uring, never asleep: tuned, and looks for completions instead of sleeping \
         (--strategy uring-busy).",
    ),
    (
        URING_IOPOLL,
        "io_uring, polled: the device is asked for completions instead of interrupting \
         (--strategy uring-iopoll).",
    ),
    (LIBAIO, "Linux AIO: io_submit(2) (--strategy libaio)."),
    (
        INFLIGHT,
        "inflight: this library, by its own choice; the road is the way it took.",
    ),
    (
        INFLIGHT_THREADS,
        "inflight, N threads: each waits for one operation at a time.",
    ),
];

fn draw_legend(screen: &mut Screen, record: &Record, rankings: &[Ranking<'_>]) {
    let mark = picked(rankings);
    for (at, text) in legend(record).iter().enumerate() {
        if at == 0 {
            screen.blank();
        }
        let mark = mark.filter(|_| at == 0).unwrap_or_default();
        screen.prose(&format!("{mark}{text}"), 1, Paint::Plain);
    }
}

/// What the mark at a row means, where a row has it.
pub(crate) fn picked(rankings: &[Ranking<'_>]) -> Option<&'static str> {
    let mut picks = rankings.iter().filter_map(Ranking::pick);
    picks
        .next()
        .map(|_| "▸ what the verdict says to use or to keep. ")
}

/// What the columns of the tables mean, and then what the names of strategies do; nothing where
/// there are no rounds.
pub(crate) fn legend(record: &Record) -> Vec<String> {
    let pairs = most_rounds(record, screening_rounds);
    if pairs == 0 {
        return Vec::new();
    }
    // Of rows with fresh rounds it is more.
    let ends = match pairs >= FEWEST_ROUNDS {
        true => format!(" and interval, of {:.0} % or more", LEVEL * 100.0),
        false => String::new(),
    };
    let has = |name: &str| {
        let mut cells = record.cells.iter();
        cells.any(|cell| cell.strategy == name && full_rounds(cell) > 0)
    };
    let regret = match has(INFLIGHT) {
        true => {
            " regret: how far the library may be behind the best of the others with as many in \
             flight or fewer (the bad end of the interval); ? not known, because the rounds \
             scatter too much."
        }
        false => "",
    };
    let mut versus: Vec<String> = Vec::new();
    for profile in &record.profiles {
        let versus_call = format!("vs {}", plain_call(profile.access));
        if !versus.contains(&versus_call) {
            versus.push(versus_call);
        }
    }
    let versus = versus.join(", ");
    let mut told = vec![format!(
        "depth: how many operations are in flight at a time. {versus}: ratio{ends}; = no real \
         difference (within 3 %); ? cannot tell yet. Rates are of all rounds of a row, ratios of \
         rounds that both rows ran: two rates may be the other way round. p50, p99: half of the \
         operations, and 99 % of them, took no longer.{regret} disk: bytes that the device served \
         or took, over those that were asked for; more than 100 % are readahead, or what a file \
         system writes about files, as its journal. – not known."
    )];
    let known = NAMES.iter().filter(|(name, _)| has(name));
    let names: Vec<&str> = known.map(|(_, words)| *words).collect();
    if !names.is_empty() {
        told.push(names.join(" "));
    }
    told
}

fn draw_findings(screen: &mut Screen, record: &Record) {
    for (at, (label, text, warns)) in findings(record).iter().enumerate() {
        if at == 0 {
            screen.blank();
        }
        let paint = if *warns { Paint::Red } else { Paint::Plain };
        screen.statement(label, text, paint);
    }
}

/// What was found in the run and on the machine, the worst first.
pub(crate) fn findings(record: &Record) -> Vec<Note> {
    let mut findings: Vec<&Finding> = record.findings.iter().collect();
    findings.sort_by_key(|finding| match finding.severity {
        Severity::Blocker => 0,
        Severity::Warning => 1,
        Severity::Hint => 2,
    });
    let one = |finding: &Finding| {
        let (label, warns) = match finding.severity {
            Severity::Blocker => ("Blocker", true),
            Severity::Warning => ("Warning", true),
            Severity::Hint => ("Hint", false),
        };
        let mut text = sentence(&finding.what) + &sentence(&finding.why_it_matters);
        if let Some(affected) = concerned(record, finding) {
            text += &sentence(&format!("It concerns {affected}"));
        }
        if !finding.fix.is_empty() {
            text += &sentence(&format!("Fix: {}", finding.fix));
        }
        text += &sentence(&format!("More: inflight doctor --explain {}", finding.id));
        (label, text, warns)
    };
    findings.into_iter().map(one).collect()
}

/// Names the cells that a finding affects: whole profiles, where it affects all that was measured.
pub(crate) fn concerned(record: &Record, finding: &Finding) -> Option<String> {
    let is_affected = |cell: &Cell| finding.affects.contains(&cell.id);
    let mut parts = Vec::new();
    let mut single: Vec<&Cell> = Vec::new();
    for profile in &record.profiles {
        let cells = || {
            let of_it = |cell: &&Cell| cell.profile == profile.name;
            record.cells.iter().filter(of_it)
        };
        let counts = |cell: &&Cell| cell.strategy != NULL && full_rounds(cell) > 0;
        match cells().filter(counts).all(is_affected) {
            true if cells().any(is_affected) => parts.push(format!("all of {}", profile.name)),
            _ => single.extend(cells().filter(|cell| is_affected(cell))),
        }
    }
    if !single.is_empty() {
        parts.push(names(&single, &record.profiles));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn sentence(text: &str) -> String {
    match text.trim_end_matches(['.', ' ']) {
        "" => String::new(),
        text => format!("{text}. "),
    }
}

fn joined(parts: &[String]) -> String {
    let parts: Vec<&str> = parts
        .iter()
        .map(String::as_str)
        .filter(|part| !part.is_empty())
        .collect();
    parts.join(" · ")
}
