//! The screen of a comparison: what agrees, a table a profile, and what follows.

use super::Style;
use super::grid::{self, Column};
use super::notes::{by_reason, names};
use super::paint::{Paint, Screen, clean};
use crate::compare::limit::{Checked, Held, Limit};
use crate::compare::{Comparison, Row, rounds_to_show};
use crate::figures::{cpu_ns_per_op, iops};
use crate::noun::heading;
use crate::record::{Access, Cell, Latency, ProfileSummary, Record};
use crate::stats::Word;
use crate::strategy::{access_of, name, name_at_depth};
use crate::units::{count, counted, nanos, or_missing, signed_percent};

pub(crate) const COLUMNS: [Column; 9] = [
    ("  strategy", false),
    ("depth", true),
    ("old", true),
    ("new", true),
    ("change", true),
    ("interval", false),
    ("verdict", false),
    ("p99", false),
    ("CPU", false),
];

/// Draws one comparison; a regression is a cell clearly slower by at least `threshold`.
#[must_use]
pub fn comparison(compared: &Comparison<'_>, threshold: f64, style: Style) -> String {
    let mut screen = Screen::new(style);
    agreement(&mut screen, compared);
    for profile in &compared.new.profiles {
        let of_profile = |row: &&Row<'_>| row.new.profile == profile.name;
        let rows: Vec<&Row<'_>> = compared.rows.iter().filter(of_profile).collect();
        if rows.is_empty() {
            continue;
        }
        screen.blank();
        screen.prose(&heading(profile), 1, Paint::Bold);
        let painted = |row: &&Row<'_>| {
            let texts = texts(row, profile.access, threshold);
            (texts.to_vec(), paint(row, threshold))
        };
        let rows: Vec<_> = rows.iter().map(painted).collect();
        grid::draw(&mut screen, &COLUMNS, &rows);
    }
    if !compared.left_out.is_empty() {
        screen.blank();
    }
    for text in not_told(compared) {
        screen.statement("not told", &text, Paint::Plain);
    }
    screen.blank();
    conclusion(&mut screen, compared, threshold);
    screen.finish()
}

/// The cells that were not compared, with the reason.
#[must_use]
pub fn not_told(compared: &Comparison<'_>) -> Vec<String> {
    // What was left out may be in one of the records alone.
    let profiles = [&*compared.new.profiles, &*compared.old.profiles].concat();
    let of_profile = |(cell, why): &(&Cell, String)| format!("{}: {why}", cell.profile);
    let left_out = compared.left_out.iter();
    let groups = by_reason(left_out.map(|left| (left.0, of_profile(left))));
    let one = |(cells, why): &(Vec<&Cell>, String)| format!("{} of {why}", names(cells, &profiles));
    groups.iter().map(one).collect()
}

/// Draws what became of limits on cells of these profiles.
#[must_use]
pub fn limits(all: &[(&Limit, Held<'_>)], profiles: &[ProfileSummary], style: Style) -> String {
    let mut screen = Screen::new(style);
    for (limit, held) in all {
        if held.is_kept() {
            let text = format!("{}: {}", limit.text, kept_by(held));
            screen.statement("limit", &text, Paint::Plain);
        }
        let failed = held.checked.iter().filter(|cell| !cell.kept);
        for Checked { cell, figure, .. } in failed {
            let name = name_at_depth(cell, access_of(cell, profiles));
            let profile = &cell.profile;
            let text = format!("{}: {name} of {profile}: {figure}", limit.text);
            screen.statement("NOT KEPT", &text, Paint::Red);
        }
    }
    for (cells, why) in left_out(all) {
        let (count, names) = (cells.len(), names(&cells, profiles));
        let text = format!("{count} without a round: {names} of {why}");
        screen.statement("left out", &text, Paint::Plain);
    }
    screen.finish()
}

/// By how many cells a limit is kept, and how many were not asked.
pub(crate) fn kept_by(held: &Held<'_>) -> String {
    let (kept, over) = (held.checked.len(), held.left_out.len());
    match over {
        0 => format!("kept by all {kept} cells"),
        _ => format!("kept by all {kept} cells that were measured; {over} were not"),
    }
}

/// Cells that limits have left out, by profile and reason, each cell once.
pub(crate) fn left_out<'a>(all: &[(&Limit, Held<'a>)]) -> Vec<(Vec<&'a Cell>, String)> {
    let mut cells: Vec<(&Cell, String)> = Vec::new();
    for (cell, why) in all.iter().flat_map(|(_, held)| &held.left_out) {
        if cells.iter().all(|(known, _)| known.id != cell.id) {
            cells.push((cell, format!("{}: {why}", cell.profile)));
        }
    }
    by_reason(cells)
}

fn agreement(screen: &mut Screen, compared: &Comparison<'_>) {
    for (text, good) in standing(compared) {
        screen.prose(&text, 1, if good { Paint::Plain } else { Paint::Red });
    }
}

/// What the two records have in common and what not; and whether that is well.
pub(crate) fn standing(compared: &Comparison<'_>) -> Vec<(String, bool)> {
    let Comparison { old, new, .. } = compared;
    let began =
        |record: &Record| format!("{}, Linux {}", record.started_utc, record.machine.kernel);
    let mismatches = compared.mismatches.join("; ");
    let same = mismatches.is_empty();
    let mut said = vec![
        (format!("Old: {}. New: {}.", began(old), began(new)), true),
        if same {
            let text = "Same processor, device, file system and plan.";
            (text.to_owned(), true)
        } else {
            let text = format!("Not of the same kind, compared all the same: {mismatches}.");
            (text, false)
        },
    ];
    if !compared.changes.is_empty() {
        let text = format!("Changed besides: {}.", compared.changes.join("; "));
        said.push((text, true));
    }
    said
}

fn paint(row: &Row<'_>, threshold: f64) -> Paint {
    match row.interval.word() {
        _ if row.regressed(threshold) => Paint::Red,
        Word::ClearlyFaster => Paint::Bold,
        _ => Paint::Plain,
    }
}

/// One row, every column of it.
pub(crate) fn texts(row: &Row<'_>, access: Access, threshold: f64) -> [String; 9] {
    let Row {
        old, new, interval, ..
    } = row;
    let ends = [interval.lo, interval.hi].map(|end| signed_percent(end - 1.0));
    let word = match interval.word() {
        Word::NoRealDifference => "no real difference",
        Word::CannotTellYet => "cannot tell",
        Word::ClearlyFaster => "faster",
        Word::ClearlySlower if row.regressed(threshold) => "SLOWER",
        Word::ClearlySlower if row.may_be_chance(threshold) => "slower, or chance",
        Word::ClearlySlower => "slower",
    };
    let p99 = |latency: &Latency| latency.ns_p99;
    let texts = [
        format!("  {}", name(new, access)),
        new.depth.to_string(),
        or_missing(iops(old), count),
        or_missing(iops(new), count),
        signed_percent(row.change()),
        format!("[{}, {}]", ends[0], ends[1]),
        word.to_owned(),
        both(old, new, |cell| Some(p99(cell.latency.as_ref()?)? as f64)),
        both(old, new, cpu_ns_per_op),
    ];
    texts.map(|text| clean(&text))
}

/// A figure before and after.
fn both(old: &Cell, new: &Cell, figure: impl Fn(&Cell) -> Option<f64>) -> String {
    let [old, new] = [old, new].map(|cell| or_missing(figure(cell), nanos));
    format!("{old} > {new}")
}

fn conclusion(screen: &mut Screen, compared: &Comparison<'_>, threshold: f64) {
    for (text, good) in conclusions(compared, threshold) {
        screen.prose(&text, 1, if good { Paint::Plain } else { Paint::Red });
    }
}

/// What follows, and whether that is well.
pub(crate) fn conclusions(compared: &Comparison<'_>, threshold: f64) -> Vec<(String, bool)> {
    let level = compared.rows.iter().map(|row| row.interval.level);
    let level = level.fold(1.0, f64::min) * 100.0;
    let mut said = vec![(
        format!(
            "Two runs share no rounds: a change is the median over each round of one with each of \
             the other, not the quotient of the two rates; the intervals are unpaired, at \
             {level:.1} % or more, each of its row alone. Whatever else changed between the runs \
             is in them: the disk, its neighbours, the temperature."
        ),
        true,
    )];
    let weather: Vec<&Cell> = compared.weather().iter().map(|row| row.new).collect();
    if !weather.is_empty() {
        let text = format!(
            "{} changed clearly, where not a line of the library runs: the machine or the disk \
             differs between the runs.",
            names(&weather, &compared.new.profiles)
        );
        said.push((text, false));
    }
    said.extend(too_few(compared));
    // Not 7.000000000000001.
    let percent = (threshold * 1e8).round() / 1e6;
    said.extend(may_be_chance(compared, threshold, percent));
    let (regressions, rows) = (compared.regressions(threshold).count(), compared.judged());
    let text = format!(
        "{} beyond {percent} %, of {} that were compared.",
        counted(regressions, "regression"),
        counted(rows, "row")
    );
    said.push((text, regressions == 0));
    said
}

/// That rows have too few rounds to show anything: they have not passed, nobody can tell.
fn too_few(compared: &Comparison<'_>) -> Option<(String, bool)> {
    let (few, rows) = (compared.too_few(), compared.judged());
    let told = match few {
        0 => return None,
        _ if few == rows => format!(
            "Too few rounds to show a regression among {}",
            counted(rows, "row")
        ),
        _ => format!("{few} of {rows} rows have too few rounds to show a regression among all"),
    };
    let text = format!(
        "{told}, however slow: measure {} rounds or more in each run, or fewer rows.",
        rounds_to_show(rows)
    );
    Some((text, false))
}

/// That rows look slower by themselves, which some of many do by chance.
fn may_be_chance(
    compared: &Comparison<'_>,
    threshold: f64,
    percent: f64,
) -> Option<(String, bool)> {
    let doubtful = compared.rows.iter();
    let doubtful = doubtful.filter(|row| row.may_be_chance(threshold)).count();
    let text = format!(
        "{doubtful} of the rows would be slower beyond {percent} % if no other one had been \
         compared. Among {} some look so by chance alone: to know, measure them again, with more \
         rounds.",
        compared.judged()
    );
    (doubtful > 0).then_some((text, true))
}
