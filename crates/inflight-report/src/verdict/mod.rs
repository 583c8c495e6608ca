//! What follows from the figures, in plain words, one verdict for each profile.
//!
//! Here are the verdict and how sure it is; the answers about io_uring and about the library
//! are in `answers`, that about maps in `mapped`. Words for a reader who has never heard of an
//! interval come first, the interval stands behind them in brackets.

pub(crate) mod answers;
mod mapped;

use crate::figures::{full_rounds, screening_rounds};
use crate::open;
use crate::ranking::{Outcome, Ranking};
use crate::record::{Access, Cell, ProfileSummary, Record};
use crate::stats::{
    FEWEST_ROUNDS, MOST_ROUNDS, Word, ahead, compare, is_confirmed, took_turns, word,
};
use crate::strategy::{self, name, name_at_depth, plain_call};
use crate::truth::{in_memory, not_durable};
use crate::units::{counted, ends, ratio, ratio_with_ends};

/// What follows for one profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Profile name.
    pub profile: String,
    /// Id of the cell that is recommended, or kept for want of a clear winner.
    pub pick: Option<String>,
    /// Whether that is settled: not too few rounds, no simpler strategy left undecided, and fresh
    /// rounds of what is recommended and the fastest, if there are any of either.
    pub settled: bool,
    /// What is said, in order.
    pub lines: Vec<Line>,
}

/// One statement of a verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// What it is about (`Verdict`, `How sure`).
    pub label: &'static str,
    /// One or more sentences.
    pub text: String,
}

/// The verdicts of a record, in the order of its profiles, without those of an open loop alone:
/// nobody was the fastest there.
#[must_use]
pub fn verdicts(record: &Record) -> Vec<Verdict> {
    let of_profile = |profile| verdict(record, &Ranking::new(record, profile));
    let profiles = record.profiles.iter();
    let profiles = profiles.filter(|profile| !open::is_only(record, profile));
    profiles.map(of_profile).collect()
}

/// The verdict of one profile that has been put in order.
#[must_use]
pub fn verdict(record: &Record, ranking: &Ranking<'_>) -> Verdict {
    let statements = [
        ("Verdict", Some(headline(record, ranking))),
        ("How sure", how_sure(ranking)),
        ("io_uring", answers::io_uring(ranking)),
        ("Library", answers::library(ranking)),
        ("Mapped", mapped::mapped(ranking)),
        ("Regret", answers::regret(record, ranking)),
        ("Not worth", answers::not_worth(ranking)),
        ("But", answers::one_at_a_time(ranking)),
        ("Check", answers::outside_check(ranking)),
    ];
    let line = |(label, text): (_, Option<String>)| Some(Line { label, text: text? });
    let clear = matches!(ranking.outcome, Outcome::Clear { .. });
    Verdict {
        profile: ranking.profile.name.clone(),
        pick: ranking.pick().map(|cell| cell.id.clone()),
        settled: clear && !ranking.tentative && !ranking.rests_on_others(),
        lines: statements.into_iter().filter_map(line).collect(),
    }
}

fn headline(record: &Record, ranking: &Ranking<'_>) -> String {
    let said = answer(record, ranking);
    match not_durable(ranking.profile, &record.target) {
        Some(but) if ranking.pick().is_some() => format!("{said} But {but}."),
        _ => said,
    }
}

fn answer(record: &Record, ranking: &Ranking<'_>) -> String {
    let access = ranking.profile.access;
    match ranking.outcome {
        Outcome::Nothing => no_verdict(record, ranking),
        Outcome::Undecided { keep, leader } | Outcome::Clear { pick: keep, leader }
            if ranking.tentative =>
        {
            too_few_rounds(record, keep, leader, access)
        }
        Outcome::Undecided { keep, .. } => format!(
            "No clear winner after {}; keep {} (simplest){}.",
            rounds_of_both_kinds(keep),
            name_at_depth(keep, access),
            gain(ranking, keep)
        ),
        Outcome::Clear { pick, .. } => {
            capital(&format!("{}{}.", advice(pick, access), gain(ranking, pick)))
        }
    }
}

/// How a cell compares with the plain loop; nothing where it is the plain loop.
fn gain(ranking: &Ranking<'_>, cell: &Cell) -> String {
    let baseline = ranking.baseline.filter(|baseline| baseline.id != cell.id);
    let interval = baseline.and_then(|baseline| compare(cell, baseline));
    interval.map_or_else(String::new, |interval| {
        let call = plain_call(ranking.profile.access);
        format!(": {} one {call} loop", ratio(interval.ratio))
    })
}

fn capital(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

fn advice(pick: &Cell, access: Access) -> String {
    match pick.strategy.as_str() {
        strategy::PREAD if pick.threads <= 1 => {
            let call = plain_call(access);
            format!("keep one {call} loop, nothing that was measured is faster")
        }
        of if strategy::is_threads(of) => format!("use {}", name(pick, access)),
        _ if pick.depth == 1 => format!("use {}, one request at a time", name(pick, access)),
        _ => format!(
            "use {} with {} requests in flight",
            name(pick, access),
            pick.depth
        ),
    }
}

/// Why there is no verdict at all; the reader must not go away with a figure from memory.
fn no_verdict(record: &Record, ranking: &Ranking<'_>) -> String {
    let ProfileSummary { direct, .. } = ranking.profile;
    let reasons = || {
        ranking
            .cells
            .iter()
            .filter_map(|cell| cell.skipped.as_ref())
    };
    if *direct && in_memory(&record.target) {
        let fs = &record.target.fs;
        format!(
            "None: this is no disk. {fs} keeps its files in memory, so no verdict about disks \
             can be given; name a directory on a real disk."
        )
    } else if let Some((_, why)) = ranking.out.first() {
        format!("None: no figure counts: {why}.")
    } else if let Some(skipped) = reasons().next() {
        format!("None: nothing could be measured: {}.", skipped.reason)
    } else if ranking.cells.iter().any(|cell| full_rounds(cell) > 0) {
        "None: nothing that was measured is for every program; measure `pread` beside it."
            .to_owned()
    } else if record.interrupted {
        "None: the run was interrupted before a round was complete.".to_owned()
    } else {
        "None: no round completed a single operation.".to_owned()
    }
}

fn how_sure(ranking: &Ranking<'_>) -> Option<String> {
    let access = ranking.profile.access;
    let (pick, leader) = match ranking.outcome {
        Outcome::Nothing => return None,
        Outcome::Undecided { keep, leader } | Outcome::Clear { pick: keep, leader }
            if ranking.tentative =>
        {
            return in_front(keep, leader, access);
        }
        Outcome::Undecided { keep, leader } => {
            let said = undecided(keep, leader, access);
            return Some(format!("{said}{}", on_others(ranking)));
        }
        Outcome::Clear { pick, leader } => (pick, leader),
    };
    let mut said = Vec::new();
    if pick.id != leader.id
        && let Some(interval) = compare(pick, leader)
    {
        said.push(format!(
            "No real difference from the fastest, {}: {}{}.{}",
            name_at_depth(leader, access),
            ratio_with_ends(&interval),
            confirmed(is_confirmed(pick, leader)),
            on_others(ranking)
        ));
    }
    let rival = ranking
        .best(|cell| cell.strategy != pick.strategy && word(pick, cell) != Word::NoRealDifference);
    said.extend(rival.and_then(|rival| against(pick, rival, access)));
    (!said.is_empty()).then(|| said.join(" "))
}

fn against(pick: &Cell, rival: &Cell, access: Access) -> Option<String> {
    let interval = compare(pick, rival)?;
    let (won, all) = ahead(pick, rival);
    let called = name_at_depth(rival, access);
    let is_ahead = interval.word() == Word::ClearlyFaster;
    let beginning = match is_ahead {
        // Turns are several to a round, and need not tell the same as the rates of the rounds.
        true if took_turns(pick, rival) => format!("Ahead of {called} by"),
        true => format!("Ahead of {called} in {won} of {} by", rounds(all)),
        false => format!("Not told apart from {called} yet:"),
    };
    Some(format!(
        "{beginning} {} ({}, {:.1} % interval){}.",
        ratio(interval.ratio),
        ends(&interval),
        interval.level * 100.0,
        confirmed(is_ahead && is_confirmed(pick, rival))
    ))
}

/// What is added where the rounds behind a comparison took no part in choosing the two.
fn confirmed(fresh: bool) -> &'static str {
    if fresh {
        ", confirmed on fresh rounds"
    } else {
        ""
    }
}

/// What is added where fresh rounds have found one of the two that a verdict names, and too few of
/// them have both.
fn on_others(ranking: &Ranking<'_>) -> &'static str {
    if ranking.rests_on_others() {
        " That is of the rounds of all cells: fresh rounds of the two together are missing."
    } else {
        ""
    }
}

/// What little too few rounds show; nothing where what is kept is in front itself.
fn in_front(keep: &Cell, leader: &Cell, access: Access) -> Option<String> {
    let interval = compare(leader, keep).filter(|_| leader.id != keep.id)?;
    Some(format!(
        "Not sure. In front so far: {}, {} as fast.",
        name_at_depth(leader, access),
        ratio_with_ends(&interval)
    ))
}

fn undecided(keep: &Cell, leader: &Cell, access: Access) -> String {
    let interval = compare(leader, keep);
    // Their rates in the table may be the other way round: those are of all rounds.
    let difference = interval.map_or_else(
        || "it never ran side by side with it".to_owned(),
        |interval| format!("side by side it is {} as fast", ratio_with_ends(&interval)),
    );
    let made = ahead(leader, keep).1;
    // Turns are several to a round.
    let in_rounds = |needed: usize| {
        let rounds = match interval.map(|interval| interval.n) {
            Some(n @ 1..) => (needed * made).div_ceil(n),
            _ => needed,
        };
        // As many as there were have not told.
        rounds.max(made + 1)
    };
    let needed = interval.map(|interval| {
        let needed = interval.rounds_to_tell().map(in_rounds);
        needed.filter(|rounds| *rounds <= MOST_ROUNDS as usize)
    });
    let more = match needed {
        Some(Some(rounds)) if is_confirmed(leader, keep) => {
            format!("About {rounds} fresh rounds instead of {made} can tell (--rounds {rounds}).")
        }
        Some(Some(rounds)) => {
            format!("About {rounds} rounds can tell (--rounds {rounds}).")
        }
        Some(None) => "They are too close to 3 % for more rounds to tell soon.".to_owned(),
        _ => "More rounds can tell.".to_owned(),
    };
    let fresh = match is_confirmed(leader, keep) {
        true => " on fresh rounds",
        false => "",
    };
    let leader = name_at_depth(leader, access);
    format!("Not sure. {leader} is in front; {difference}{fresh}. {more}")
}

fn too_few_rounds(record: &Record, keep: &Cell, leader: &Cell, access: Access) -> String {
    let count = screening_rounds(leader);
    let are = if count == 1 { "is" } else { "are" };
    let remedy = match usize::try_from(record.rounds_planned) {
        _ if record.interrupted => "the run was interrupted: let it end".to_owned(),
        Ok(planned) if planned >= FEWEST_ROUNDS => {
            "there was no time for more: give it some with --max-time".to_owned()
        }
        _ => format!("--rounds {FEWEST_ROUNDS}"),
    };
    format!(
        "No verdict yet: {} {are} too few, {FEWEST_ROUNDS} are needed ({remedy}). Until then, keep \
         {}.",
        rounds(count),
        name_at_depth(keep, access)
    )
}

fn rounds(count: usize) -> String {
    counted(count, "round")
}

/// Rounds of all cells, and fresh ones apart: what more of them can tell is said of one kind.
fn rounds_of_both_kinds(cell: &Cell) -> String {
    let screening = screening_rounds(cell);
    match full_rounds(cell) - screening {
        0 => rounds(screening),
        1 => format!("{} and 1 fresh one", rounds(screening)),
        fresh => format!("{} and {fresh} fresh ones", rounds(screening)),
    }
}
