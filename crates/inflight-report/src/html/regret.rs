//! The regret of the library over the whole matrix: profiles down, depths across, a map for each
//! of its roads.
//!
//! The map is a table, so that it can be read as one: colour only says again what is written.

use std::collections::BTreeSet;

use super::markup::{esc, put};
use super::view::series_name;
use crate::record::{Record, Regret};
use crate::regret::{blocking_and_others, regrets, what_tells, worst_known};
use crate::stats::SAME_ZONE;
use crate::strategy::{INFLIGHT, access_of};

/// The map with its heading; nothing where the library took no part.
pub(super) fn section(record: &Record) -> Option<String> {
    let all = regrets(record);
    let (blocking, others) = blocking_and_others(&all);
    let told = if blocking.is_empty() {
        others
    } else {
        blocking
    };
    if told.is_empty() {
        return None;
    }
    let cell = |regret: &Regret| record.cells.iter().find(|cell| cell.id == regret.cell);
    let road = |regret: &Regret| {
        let named = |cell| series_name(cell, access_of(cell, &record.profiles));
        cell(regret).map_or_else(|| regret.strategy.clone(), named)
    };
    let (worst, unknown) = worst_known(&told);
    let known = worst.map_or_else(String::new, |worst| {
        format!(
            " Worst of its blocking calls, by a queue or by as many threads, whichever does \
             better: {} ({} at depth {}, {}; in the middle of its interval {}).",
            percent(worst.percent_at_worst()),
            esc(&road(worst)),
            worst.depth,
            esc(&worst.profile),
            percent(worst.percent())
        )
    });
    let not_known = match unknown {
        0 => String::new(),
        _ => format!(
            " Not known of {unknown} of {} of these, because the rounds scatter too much. {}",
            told.len(),
            what_tells(record)
        ),
    };
    let mut html = format!(
        "<section id=\"regret\" aria-labelledby=\"regret-t\"><h2 id=\"regret-t\">Regret</h2>\
         <p class=\"lead\">How far the library may be behind the best strategy that copies and \
         reports errors with as many operations in flight or fewer, in per cent: the bad end of \
         the interval.{known}{not_known}</p>"
    );
    html += "<div class=\"regrets\">";
    for (strategy, title) in roads(&all, road) {
        let found: Vec<&Regret> = all.iter().filter(|one| one.strategy == strategy).collect();
        html += &map(record, &title, &found);
    }
    html += "</div><p class=\"key\"><span class=\"step\"><i class=\"r-ahead\"></i>ahead</span>\
             <span class=\"step\"><i class=\"r-same\"></i>within 3 %</span>\
             <span class=\"step\"><i class=\"r-little\"></i>up to 10 % behind</span>\
             <span class=\"step\"><i class=\"r-much\"></i>more</span>\
             <span class=\"step\">? not known</span></p></section>\n";
    Some(html)
}

/// The roads that were measured, the library's queue first.
fn roads(all: &[Regret], title: impl Fn(&Regret) -> String) -> Vec<(String, String)> {
    let mut roads: Vec<(String, String)> = Vec::new();
    for regret in all {
        if roads.iter().all(|(known, _)| *known != regret.strategy) {
            roads.push((regret.strategy.clone(), title(regret)));
        }
    }
    roads.sort_by_key(|(strategy, _)| strategy != INFLIGHT);
    roads
}

fn map(record: &Record, title: &str, found: &[&Regret]) -> String {
    let depths: BTreeSet<u32> = found.iter().map(|regret| regret.depth).collect();
    let caption = esc(title);
    let mut html = format!(
        "<figure class=\"map-table\"><div class=\"scroll\" role=\"region\" \
         aria-label=\"Regret of {caption}\" tabindex=\"0\"><table class=\"regret\">\
         <caption>{caption}</caption><thead><tr><th scope=\"col\">in flight</th>"
    );
    for depth in &depths {
        put!(&mut html, "<th scope=\"col\">{depth}</th>");
    }
    html += "</tr></thead><tbody>";
    for profile in &record.profiles {
        let of_profile: Vec<&Regret> = found
            .iter()
            .copied()
            .filter(|regret| regret.profile == profile.name)
            .collect();
        if of_profile.is_empty() {
            continue;
        }
        put!(
            &mut html,
            "<tr><th scope=\"row\">{}</th>",
            esc(&profile.name)
        );
        for depth in &depths {
            let regret = of_profile.iter().find(|regret| regret.depth == *depth);
            html += &regret.map_or_else(|| "<td class=\"none\">–</td>".to_owned(), |one| cell(one));
        }
        html += "</tr>";
    }
    html += "</tbody></table></div></figure>";
    html
}

fn cell(regret: &Regret) -> String {
    let (middle, good) = (regret.percent(), regret.percent_at_best());
    let [middle, good, bad] = [middle, good, regret.percent_at_worst()].map(percent);
    let against = &regret.reference;
    let (class, shown, said) = match regret.is_known() {
        true => (
            class(regret.hi),
            bad.as_str(),
            format!("in the middle {middle}, at the good end {good}, against {against}"),
        ),
        false => (
            "none",
            "?",
            format!("not known: {good} to {bad}, in the middle {middle}, against {against}"),
        ),
    };
    format!(
        "<td class=\"{class}\" title=\"{}\">{shown}</td>",
        esc(&said)
    )
}

fn class(ratio: f64) -> &'static str {
    match ratio {
        _ if ratio < 1.0 / SAME_ZONE => "r-ahead",
        _ if ratio <= SAME_ZONE => "r-same",
        _ if ratio <= 1.1 => "r-little",
        _ => "r-much",
    }
}

/// Behind is a plus, ahead is a minus.
fn percent(percent: f64) -> String {
    // No minus before a zero.
    let rounded = (percent * 10.0).round() / 10.0 + 0.0;
    let digits = usize::from(rounded.abs() < 9.95);
    format!("{rounded:+.digits$} %").replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regret_is_written_with_its_sign() {
        let figures = [0.04, -0.04, 3.12, -2.6, 41.7];
        assert_eq!(
            figures.map(percent),
            ["+0.0 %", "+0.0 %", "+3.1 %", "−2.6 %", "+42 %"]
        );
    }
}
