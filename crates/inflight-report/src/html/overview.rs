//! What stands around the charts: verdicts, what spoils figures, legends, all the figures.

use super::markup::{Table, esc, put};
use super::view::{View, latency};
use crate::figures::{calls_per_op, cpu_ns_per_op, disk_share, iops, mib_per_second};
use crate::ranking::Ranking;
use crate::record::{Cell, Device, Finding, Record, Severity};
use crate::stats::compare;
use crate::strategy::{NULL, condition, name_at_depth, plain_call};
use crate::text;
use crate::truth::in_memory;
use crate::units::{MISSING, bytes, comparison, count, nanos, or_missing, percent, plain};
use crate::verdict::{Verdict, verdict};

/// The first thing on the page: what was measured, where and when.
pub(super) fn header(record: &Record) -> String {
    let (machine, target) = (&record.machine, &record.target);
    let mut facts = vec![
        record.started_utc.replace('T', " ").replace('Z', " UTC"),
        format!("Linux {}", machine.kernel),
        format!("{} CPUs", machine.cpus),
        format!("{} of data", bytes(target.size_bytes as f64)),
        format!(
            "{} rounds of {}",
            record.rounds_planned,
            nanos(record.cell_duration_ns as f64)
        ),
        format!("took {}", nanos(record.took_ns as f64)),
    ];
    if machine.virtualised {
        facts.insert(2, "virtual machine".to_owned());
    }
    if record.interrupted {
        facts.push("interrupted".to_owned());
    }
    let facts: Vec<String> = facts
        .iter()
        .map(|fact| format!("<li>{}</li>", esc(fact)))
        .collect();
    format!(
        "<header><p class=\"brand\">inflight bench</p><h1>{}</h1><ul class=\"facts\">{}</ul>\
         </header>\n",
        esc(&title(record)),
        facts.concat()
    )
}

/// The title of the page: what was measured.
pub(super) fn title(record: &Record) -> String {
    let target = &record.target;
    let named = |device: &Device| {
        let model = device.model.as_deref().map(str::trim);
        model
            .filter(|model| !model.is_empty())
            .unwrap_or(&device.name)
            .to_owned()
    };
    match target.stack.first().map(named) {
        Some(device) => format!("{} on {device}", target.fs),
        None => target.fs.clone(),
    }
}

/// The way around the page, where it has more than one profile.
pub(super) fn navigation(
    views: &[View<'_>],
    has_regret: bool,
    has_beside: bool,
    has_open: bool,
) -> String {
    let mut html = String::from("<nav aria-label=\"Contents\"><ul>");
    if !views.is_empty() {
        html += "<li><a href=\"#verdict\">Verdict</a></li>";
    }
    if has_regret {
        html += "<li><a href=\"#regret\">Regret</a></li>";
    }
    for view in views {
        let name = esc(&view.ranking.profile.name);
        put!(&mut html, "<li><a href=\"#{}\">{name}</a></li>", view.id);
    }
    if has_beside {
        html += "<li><a href=\"#beside\">Side by side</a></li>";
    }
    if has_open {
        html += "<li><a href=\"#open\">Open loop</a></li>";
    }
    html += "<li><a href=\"#machine\">Machine</a></li></ul></nav>\n";
    html
}

/// One card for each profile.
pub(super) fn verdicts(record: &Record, views: &[View<'_>]) -> String {
    let mut html = String::from(
        "<section id=\"verdict\" aria-labelledby=\"verdict-t\"><h2 id=\"verdict-t\">Verdict</h2>\
         <div class=\"cards\">",
    );
    for view in views {
        html += &card(record, view);
    }
    html += "</div></section>\n";
    html
}

fn card(record: &Record, view: &View<'_>) -> String {
    let Verdict {
        lines,
        settled,
        pick,
        ..
    } = verdict(record, &view.ranking);
    let state = match (pick, settled) {
        (None, _) => ("none", "no verdict"),
        (Some(_), true) => ("settled", "settled"),
        (Some(_), false) => ("open", "not settled"),
    };
    let profile = view.ranking.profile;
    let mut lines = lines.iter();
    let headline = lines.next().map_or("", |line| line.text.as_str());
    let mut html = format!(
        "<article class=\"card {}\"><p class=\"what\"><a href=\"#{}\">{}</a>\
         <span class=\"badge\">{}</span></p><p class=\"headline\">{}</p><dl>",
        state.0,
        view.id,
        esc(&profile.title),
        state.1,
        esc(headline)
    );
    for line in lines {
        put!(
            &mut html,
            "<dt>{}</dt><dd>{}</dd>",
            esc(line.label),
            esc(&line.text)
        );
    }
    html += "</dl></article>";
    html
}

/// What the reader has to know before trusting a figure; the worst first.
pub(super) fn findings(record: &Record) -> String {
    if record.findings.is_empty() {
        return String::new();
    }
    let mut found: Vec<&Finding> = record.findings.iter().collect();
    found.sort_by_key(|finding| std::cmp::Reverse(weight(finding.severity)));
    let mut html = String::from(
        "<section id=\"findings\" aria-labelledby=\"findings-t\"><h2 id=\"findings-t\">Before you \
         trust a figure</h2><ul class=\"findings\">",
    );
    for finding in found {
        let (class, word) = match finding.severity {
            Severity::Blocker => ("blocker", "Blocker"),
            Severity::Warning => ("warning", "Warning"),
            Severity::Hint => ("hint", "Hint"),
        };
        put!(
            &mut html,
            "<li class=\"{class}\"><strong>{word}</strong> <b>{}</b> {}",
            esc(&sentence(&finding.what)),
            esc(&sentence(&finding.why_it_matters))
        );
        if let Some(affected) = text::concerned(record, finding) {
            put!(&mut html, " It concerns {}.", esc(&affected));
        }
        if !finding.fix.is_empty() {
            // Often a command: a full stop would become part of it.
            put!(&mut html, "<p><em>Fix:</em> {}</p>", esc(&finding.fix));
        }
        put!(
            &mut html,
            "<p><em>More:</em> <code>inflight doctor --explain {}</code></p></li>",
            esc(&finding.id)
        );
    }
    html += "</ul></section>\n";
    html
}

fn weight(severity: Severity) -> u8 {
    match severity {
        Severity::Hint => 0,
        Severity::Warning => 1,
        Severity::Blocker => 2,
    }
}

fn sentence(text: &str) -> String {
    match text.trim_end_matches(['.', ' ']) {
        "" => String::new(),
        text => format!("{text}."),
    }
}

/// Cells that are in no chart, each with its reason, those with one reason together.
pub(super) fn notes(view: &View<'_>) -> String {
    let mut said: Vec<(&Cell, String)> = Vec::new();
    for cell in &view.ranking.cells {
        match (&cell.skipped, iops(cell)) {
            (Some(skipped), None) => said.push((cell, skipped.reason.clone())),
            (None, None) => said.push((cell, "no round was completed".to_owned())),
            _ => {}
        }
    }
    let out = view.ranking.out.iter();
    said.extend(out.map(|(cell, why)| (*cell, format!("not ranked, {why}"))));
    for series in &view.series {
        let cell = series.cells[0];
        if let Some(why) = condition(&cell.strategy) {
            said.push((cell, format!("shown but not ranked: {why}")));
        }
    }
    if said.is_empty() {
        return String::new();
    }
    let mut html = String::from("<ul class=\"notes\">");
    for (cells, why) in text::by_reason(said) {
        put!(
            &mut html,
            "<li><b>{}</b>: {}</li>",
            esc(&text::names_in(view.ranking.profile, &cells)),
            esc(&sentence(&why))
        );
    }
    html += "</ul>";
    html
}

/// Which line is which; a button hides a strategy in every chart of its profile.
pub(super) fn legend(view: &View<'_>) -> String {
    let mut html = String::from("<div class=\"legend\" role=\"group\" aria-label=\"Strategies\">");
    for series in &view.series {
        put!(
            &mut html,
            "<button type=\"button\" aria-pressed=\"true\" data-s=\"{}\">{}{}</button>",
            series.key,
            series.look.swatch(),
            esc(&series.name)
        );
    }
    html += "</div>";
    html
}

/// Every figure of every measured cell.
pub(super) fn figures(view: &View<'_>) -> String {
    let ranking = &view.ranking;
    let columns = [
        "strategy".to_owned(),
        format!("{}/s", view.many),
        "MiB/s".to_owned(),
        format!("vs {}", plain_call(ranking.profile.access)),
        "interval".to_owned(),
        "p50".to_owned(),
        "p99".to_owned(),
        "p99.9".to_owned(),
        "max".to_owned(),
        format!("CPU/{}", view.one),
        format!("calls/{}", view.one),
        "disk".to_owned(),
        "ranked".to_owned(),
    ];
    let measured = ranking
        .cells
        .iter()
        .copied()
        .filter(|cell| iops(cell).is_some());
    let table = Table {
        caption: format!("All figures: {}", ranking.profile.title),
        columns: columns.into(),
        rows: measured.map(|cell| row(ranking, cell)).collect(),
    };
    format!(
        "<details class=\"all\"><summary>All figures<span class=\"of\">: {}</span></summary>{}{}\
         </details>\n",
        esc(&ranking.profile.name),
        table.html(),
        roads(view)
    )
}

/// Which way the library took, in its own words.
fn roads(view: &View<'_>) -> String {
    let roads = text::roads(&view.ranking);
    if roads.is_empty() {
        return String::new();
    }
    let table = Table {
        caption: "The roads that the library took, in its own words".to_owned(),
        columns: vec!["road".to_owned(), "strategy".to_owned()],
        rows: roads
            .into_iter()
            .map(|(cells, road)| vec![road, text::names_in(view.ranking.profile, &cells)])
            .collect(),
    };
    table.html()
}

fn row(ranking: &Ranking<'_>, cell: &Cell) -> Vec<String> {
    let of = |figure: fn(&crate::record::Latency) -> Option<u64>| {
        or_missing(latency(cell).and_then(figure).map(|ns| ns as f64), nanos)
    };
    let baseline = ranking.baseline.filter(|_| cell.strategy != NULL);
    let [times, interval] = baseline
        .and_then(|baseline| compare(cell, baseline))
        .map_or_else(
            || [MISSING.to_owned(), String::new()],
            |found| comparison(&found),
        );
    let is_pick = ranking.pick().is_some_and(|pick| pick.id == cell.id);
    let place = ranking
        .ranked
        .iter()
        .position(|ranked| ranked.id == cell.id);
    let place = place.map_or_else(|| "no".to_owned(), |place| (place + 1).to_string());
    let share = disk_share(cell, ranking.profile);
    vec![
        format!(
            "{}{}",
            if is_pick { "▸ " } else { "" },
            name_at_depth(cell, ranking.profile.access)
        ),
        or_missing(iops(cell), count),
        or_missing(mib_per_second(cell), plain),
        times,
        interval,
        of(|found| Some(found.ns_p50)),
        of(|found| found.ns_p99),
        of(|found| found.ns_p999),
        of(|found| Some(found.ns_max)),
        or_missing(cpu_ns_per_op(cell), nanos),
        or_missing(calls_per_op(cell), |calls| format!("{calls:.2}")),
        or_missing(share, percent),
        place,
    ]
}

/// Why a profile has no charts.
pub(super) fn no_charts(view: &View<'_>) -> String {
    let why = if view.ranking.profile.direct && in_memory(&view.record.target) {
        "this is memory and not a disk, so its figures say nothing about one"
    } else {
        "none of its figures counts"
    };
    format!("<p class=\"empty\">Nothing is drawn here: {why}.</p>")
}
