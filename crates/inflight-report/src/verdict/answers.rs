//! The answers a reader came for: is io_uring faster here, and is the library as fast.
//!
//! Each is one function from a ranking to a sentence, or to nothing where the record has no
//! figures for it.

use crate::figures::{cpu_ns_per_op, iops};
use crate::noun;
use crate::ranking::Ranking;
use crate::record::{Access, Cell, Record, Regret};
use crate::regret;
use crate::stats::{Word, compare, is_confirmed, word};
use crate::strategy::{self, is_ring, name, name_at_depth, plain_call};
use crate::units::{
    count, counted, ends, nanos, or_missing, ratio, ratio_with_ends, signed_percent,
};

/// Two programs that differ by more than this measure different things.
const AGREES: f64 = 1.1;

/// Whether io_uring is faster than plain calls in this profile, by how much, at what CPU.
pub(super) fn io_uring(ranking: &Ranking<'_>) -> Option<String> {
    let Some(ring) = of_kind(ranking, is_ring) else {
        return no_ring(ranking);
    };
    let access = ranking.profile.access;
    let rivals: Vec<(&Cell, String)> = [strategy::PREAD, strategy::THREADS]
        .into_iter()
        .filter_map(|strategy| of_kind(ranking, |of| of == strategy))
        .map(|rival| (rival, called(ranking, rival)))
        .collect();
    // Ranked cells are in order of speed, so the first of either strategy is the better one.
    let best = ranking.best(|cell| rivals.iter().any(|(rival, _)| rival.id == cell.id))?;
    let here = if ranking.profile.direct {
        "on this disk"
    } else {
        "in this profile"
    };
    let answer = match word(ring, best) {
        Word::ClearlyFaster => format!("Faster than plain calls {here}."),
        Word::ClearlySlower => format!("Slower than plain calls {here}."),
        Word::NoRealDifference => format!("No real difference from plain calls {here}."),
        Word::CannotTellYet => format!("Cannot be told apart from plain calls {here} yet."),
    };
    let against = |(rival, called): &(&Cell, String)| {
        let interval = compare(ring, rival)?;
        Some(format!("{} {called}", ratio_with_ends(&interval)))
    };
    let ratios: Vec<String> = rivals.iter().filter_map(against).collect();
    let mut text = answer;
    if !ratios.is_empty() {
        text += &format!(
            " {} is {}.",
            name_at_depth(ring, access),
            ratios.join(" and ")
        );
    }
    if let Some(cost) = cpu_ns_per_op(ring) {
        let of = |(rival, called): &(&Cell, String)| {
            format!("{called} {}", or_missing(cpu_ns_per_op(rival), nanos))
        };
        let others: Vec<String> = rivals.iter().map(of).collect();
        let (noun, cost) = (noun::of(ranking.profile).one, nanos(cost));
        text += &format!(" CPU per {noun}: {cost}; {}.", others.join(", "));
    }
    Some(text)
}

fn called(ranking: &Ranking<'_>, rival: &Cell) -> String {
    match rival.strategy.as_str() {
        strategy::PREAD => format!("one {} loop", plain_call(ranking.profile.access)),
        // Simpler than the best, and not told apart from it.
        _ if is_pick(ranking, rival) => name(rival, ranking.profile.access),
        // The best of one is no best.
        _ if pools(ranking) == 1 => name(rival, ranking.profile.access),
        _ => format!("the best thread pool ({} threads)", rival.threads),
    }
}

fn pools(ranking: &Ranking<'_>) -> usize {
    let ranked = ranking.ranked.iter();
    ranked
        .filter(|cell| cell.strategy == strategy::THREADS)
        .count()
}

fn is_pick(ranking: &Ranking<'_>, cell: &Cell) -> bool {
    ranking.pick().is_some_and(|pick| pick.id == cell.id)
}

/// Who stands for a kind of strategy: whom the verdict names if that is of the kind, so that the
/// reader meets one winner; else the best.
fn of_kind<'a>(ranking: &Ranking<'a>, is_of_it: impl Fn(&str) -> bool) -> Option<&'a Cell> {
    let named = ranking.pick().filter(|pick| is_of_it(&pick.strategy));
    named.or_else(|| ranking.best(|cell| is_of_it(&cell.strategy)))
}

/// Why no ring is in the ranking; nothing if none was asked for.
fn no_ring(ranking: &Ranking<'_>) -> Option<String> {
    let mut rings = ranking.cells.iter().filter(|cell| is_ring(&cell.strategy));
    let blocked = rings.clone().all(|cell| cell.skipped.is_some());
    let reason = &rings.find_map(|cell| cell.skipped.as_ref())?.reason;
    // Where nothing at all is ranked, the verdict has said why already.
    (blocked && !ranking.ranked.is_empty())
        .then(|| format!("Blocked here: {reason}. The rest is ranked without it."))
}

/// How the library does against the best hand-written ring at the same depth.
///
/// Where no ring runs, against the best of the plain calls, whatever their depth.
pub(super) fn library(ranking: &Ranking<'_>) -> Option<String> {
    let is_library = |cell: &Cell| cell.strategy == strategy::INFLIGHT;
    let at = |depth: u32| ranking.best(|cell| is_library(cell) && cell.depth == depth);
    let ring = ranking.best(|cell| is_ring(&cell.strategy) && at(cell.depth).is_some());
    let (ours, other, called) = match ring {
        Some(ring) if ring.strategy == strategy::URING => {
            (at(ring.depth)?, ring, "the plain ring".to_owned())
        }
        Some(ring) => (at(ring.depth)?, ring, "the tuned ring".to_owned()),
        None => {
            let other = ranking.best(|cell| !strategy::is_library(&cell.strategy))?;
            {
                let called = name_at_depth(other, ranking.profile.access);
                (ranking.best(is_library)?, other, called)
            }
        }
    };
    let interval = compare(ours, other)?;
    let word = in_words(interval.word());
    let (times, depth) = (ratio(interval.ratio), ours.depth);
    let ends = match interval.suffices() {
        true => format!(" ({})", ends(&interval)),
        false => String::new(),
    };
    Some(format!(
        "inflight is {times} {called}{ends} at depth {depth}: {word}."
    ))
}

/// What is said behind a ratio.
pub(super) fn in_words(word: Word) -> &'static str {
    match word {
        Word::ClearlyFaster => "clearly faster",
        Word::ClearlySlower => "clearly slower",
        Word::NoRealDifference => "no real difference",
        Word::CannotTellYet => "cannot be told apart yet",
    }
}

/// The worst regret of the library's blocking calls, and of its other roads.
pub(super) fn regret(record: &Record, ranking: &Ranking<'_>) -> Option<String> {
    let all = regret::of_profile(ranking);
    let (blocking, others) = regret::blocking_and_others(&all);
    let told = [blocking, others].map(|roads| regret::worst_known(&roads));
    let find = |id: &str| ranking.cells.iter().find(|cell| cell.id == id);
    let in_words = |worst: &Regret| {
        let (road, reference) = (find(&worst.cell)?, find(&worst.reference)?);
        let access = ranking.profile.access;
        Some(regret_in_words(worst, road, reference, access))
    };
    let known = told.iter().filter_map(|(worst, _)| in_words((*worst)?));
    let known: Vec<String> = known.collect();
    let unknown: usize = told.iter().map(|(_, unknown)| unknown).sum();
    let mut said = Vec::new();
    if !known.is_empty() {
        let of = if unknown > 0 { " of what is known" } else { "" };
        said.push(format!("At worst{of}, {}.", known.join("; ")));
    }
    if unknown > 0 {
        said.push(format!(
            "Not known of {unknown} of {}, because the rounds scatter too much. {}",
            counted(all.len(), "cell"),
            regret::what_tells(record)
        ));
    }
    (!said.is_empty()).then(|| said.join(" "))
}

/// A regret that is known by the bad end of its interval, with the rest of it.
pub(crate) fn regret_in_words(
    regret: &Regret,
    road: &Cell,
    reference: &Cell,
    access: Access,
) -> String {
    let fresh = match is_confirmed(reference, road) {
        true => "measured by fresh rounds",
        false => "measured",
    };
    let [road, reference] = [road, reference].map(|cell| name_at_depth(cell, access));
    let measured = behind(regret.percent());
    let (worst, best) = (
        behind(regret.percent_at_worst()),
        behind(regret.percent_at_best()),
    );
    let so_far = match regret.percent_at_worst() < 0.0 {
        true => "is at least",
        false => "may be up to",
    };
    let of = if worst.ends_with("ahead") { " of" } else { "" };
    format!("{road} {so_far} {worst}{of} {reference} ({fresh}: {measured}; at best {best})")
}

/// So many per cent behind, or ahead where they are below zero.
fn behind(percent: f64) -> String {
    let text = signed_percent(percent / 100.0).replace('%', " %");
    let place = if text.starts_with('-') {
        "ahead"
    } else {
        "behind"
    };
    format!("{} {place}", text.trim_start_matches(['-', '+']))
}

/// What costs complexity or latency and brings no speed.
pub(super) fn not_worth(ranking: &Ranking<'_>) -> Option<String> {
    let pick = ranking.pick()?;
    let said: Vec<String> = [registered(ranking, pick), deeper(ranking, pick)]
        .into_iter()
        .flatten()
        .collect();
    (!said.is_empty()).then(|| said.join(" "))
}

fn registered(ranking: &Ranking<'_>, pick: &Cell) -> Option<String> {
    let at =
        |strategy: &str| ranking.best(|cell| cell.strategy == strategy && cell.depth == pick.depth);
    let interval = compare(at(strategy::URING_TUNED)?, at(strategy::URING)?)?;
    (interval.word() == Word::NoRealDifference).then(|| {
        let times = ratio_with_ends(&interval);
        format!("Registered buffers and files: {times} the plain ring, no real difference.")
    })
}

fn deeper(ranking: &Ranking<'_>, pick: &Cell) -> Option<String> {
    let deeper = ranking.ranked.iter().filter(|cell| {
        cell.strategy == pick.strategy
            && cell.depth > pick.depth
            && word(cell, pick) == Word::NoRealDifference
    });
    let next = deeper.min_by_key(|cell| cell.depth)?;
    let (near, far) = (pick.latency.as_ref()?.ns_p50, next.latency.as_ref()?.ns_p50);
    (far > near).then(|| {
        let (near, far) = (nanos(near as f64), nanos(far as f64));
        let what = match pick.strategy.as_str() {
            of if strategy::is_threads(of) => format!("More than {} threads", pick.threads),
            _ => format!("More than {} in flight", pick.depth),
        };
        format!("{what}: same speed, longer waits (median {near}, then {far}).")
    })
}

/// What io_uring gains for a program that never has two reads to do at once.
pub(super) fn one_at_a_time(ranking: &Ranking<'_>) -> Option<String> {
    let single = |strategy: &str| {
        ranking.best(|cell| cell.strategy == strategy && cell.depth == 1 && cell.threads <= 1)
    };
    let ring = single(strategy::URING).or_else(|| single(strategy::URING_TUNED))?;
    let interval = compare(ring, of_kind(ranking, |of| of == strategy::PREAD)?)?;
    let gain = match interval.word() {
        Word::ClearlyFaster => format!("gains {}", ratio_with_ends(&interval)),
        Word::ClearlySlower => {
            let call = plain_call(ranking.profile.access);
            format!("loses: it is {} {call}", ratio_with_ends(&interval))
        }
        Word::NoRealDifference => format!("gains nothing ({}x)", ends(&interval)),
        Word::CannotTellYet => format!("may or may not gain: {}", ratio_with_ends(&interval)),
    };
    Some(format!(
        "If your program waits for each {} before the next, {} {gain}.",
        noun::of(ranking.profile).one,
        name(ring, ranking.profile.access)
    ))
}

/// Whether the outside checks measure what we measure: fio's ring beside the best of ours, and its
/// plain calls beside `pread`.
pub(super) fn outside_check(ranking: &Ranking<'_>) -> Option<String> {
    let rings = |cell: &Cell| is_ring(&cell.strategy) && cell.threads <= 1;
    let plain = |cell: &Cell| cell.strategy == strategy::PREAD;
    let said = [
        beside(ranking, strategy::FIO, "fio", rings),
        beside(ranking, strategy::FIO_PSYNC, "fio one at a time", plain),
    ];
    let said: Vec<String> = said.into_iter().flatten().collect();
    (!said.is_empty()).then(|| said.join(" "))
}

/// The check of this name, which is `called` so, beside the best of ours at its depth.
fn beside(
    ranking: &Ranking<'_>,
    check: &str,
    called: &str,
    is_ours: impl Fn(&Cell) -> bool,
) -> Option<String> {
    let checks = ranking.cells.iter().filter(|cell| cell.strategy == check);
    let at = |depth: u32| ranking.best(|cell| is_ours(cell) && cell.depth == depth);
    let (fio, ours) = checks
        .filter_map(|fio| Some((*fio, at(fio.depth)?)))
        .max_by_key(|(fio, _)| fio.depth)?;
    // By the rounds in which both ran: ours may have others, at the front.
    let interval = compare(fio, ours)?;
    let judged = if !interval.suffices() {
        "too few rounds to say whether it agrees"
    } else if interval.lo >= 1.0 / AGREES && interval.hi <= AGREES {
        "agrees"
    } else if interval.hi < 1.0 / AGREES || interval.lo > AGREES {
        "does not agree, so one of the two measures something else"
    } else {
        "cannot tell yet whether it agrees"
    };
    let name = name_at_depth(ours, ranking.profile.access);
    let (theirs, ours) = (count(iops(fio)?), count(iops(ours)?));
    Some(format!(
        "{called} does {theirs} {}/s, {name} {ours}; in the same rounds {}: {judged}.",
        noun::of(ranking.profile).many,
        ratio_with_ends(&interval)
    ))
}
