//! The page: one file that needs no network, with the record inside.
//!
//! A pure function of the record. In order of flow: `view` picks what of a profile is shown,
//! `overview` and `machine` say in words what was found, and where; `open` has the tables of an
//! open loop, `beside` that of a published comparison; `depth`, `spread`, `heatmap`, `bars`,
//! `rounds` and `regret` draw, on `plot` and `scale`, each chart with a table of the same figures;
//! `look` and the style sheet say how.
//! Deliberately absent: a library for charts. What is drawn here is few
//! and plain, and most of it (nines, maps over time on one scale) no such library has.

mod bars;
mod beside;
mod depth;
mod heatmap;
mod look;
mod machine;
mod markup;
mod open;
mod overview;
mod plot;
mod regret;
mod rounds;
mod scale;
mod spread;
mod view;

use crate::record::Record;
use markup::{Figure, esc, put};
use view::View;

/// Draws the whole record. The page holds it too, and [`crate::record::load`] reads it from there.
///
/// # Panics
/// Never: a record is made of strings, numbers and maps with string keys.
#[must_use]
pub fn page(record: &Record) -> String {
    let views: Vec<View<'_>> = (1..)
        .zip(&record.profiles)
        .filter(|(_, profile)| !crate::open::is_only(record, profile))
        .map(|(number, profile)| View::new(record, profile, number))
        .collect();
    let regret = regret::section(record);
    let beside = beside::section(&views);
    let open_loop = open::section(record);
    let mut html = head(record);
    html += "<body><a class=\"skip\" href=\"#main\">Skip to the verdict</a>\n";
    html += &look::definitions();
    html += &overview::header(record);
    html += &overview::navigation(
        &views,
        regret.is_some(),
        beside.is_some(),
        open_loop.is_some(),
    );
    html += "<main id=\"main\">\n";
    if !views.is_empty() {
        html += &overview::verdicts(record, &views);
    }
    html += &overview::findings(record);
    html += &regret.unwrap_or_default();
    for view in &views {
        html += &profile(view);
    }
    html += &beside.unwrap_or_default();
    html += &open_loop.unwrap_or_default();
    html += &machine::section(record);
    html += "</main>\n";
    html += &foot(record);
    html
}

fn head(record: &Record) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
         <meta name=\"color-scheme\" content=\"light dark\"/>\
         <meta name=\"generator\" content=\"inflight {}\"/><title>inflight: {}</title>\n\
         <link rel=\"icon\" href=\"data:,\"/><style>\n{}</style></head>\n",
        esc(&record.tool.version),
        esc(&overview::title(record)),
        include_str!("style.css")
    )
}

/// One profile: its charts, or why it has none, and all its figures.
fn profile(view: &View<'_>) -> String {
    let (id, profile) = (&view.id, view.ranking.profile);
    let mut html = format!(
        "<section class=\"profile\" id=\"{id}\" aria-labelledby=\"{id}-t\">\
         <h2 id=\"{id}-t\">{}</h2>",
        esc(&profile.title)
    );
    put!(
        &mut html,
        "<p class=\"lead\"><code>{}</code> ",
        esc(&profile.name)
    );
    put!(&mut html, "{}</p>", esc(&profile.reason));
    html += &overview::notes(view);
    if view.has_charts() {
        html += &overview::legend(view);
        html += "<div class=\"charts\">\n";
        html.extend(charts(view).iter().map(Figure::html));
        html += "</div>";
    } else {
        html += &overview::no_charts(view);
    }
    html += &overview::figures(view);
    html += "</section>\n";
    html
}

fn charts(view: &View<'_>) -> Vec<Figure> {
    let mut charts = vec![depth::rates(view)];
    charts.extend(depth::frontier(view));
    charts.extend(depth::latencies(view));
    charts.extend(spread::figures(view));
    charts.extend(heatmap::figure(view));
    charts.extend(bars::processor(view));
    charts.extend(bars::calls(view));
    charts.extend(rounds::figure(view));
    charts
}

/// The record itself, and the few lines that make the legend work.
fn foot(record: &Record) -> String {
    format!(
        "<footer><p>Made by inflight {}. The record is inside: <code>inflight show</code> and \
         <code>inflight compare</code> read this file. <button type=\"button\" id=\"save\" \
         hidden=\"hidden\">Save it as JSON</button></p></footer>\n\
         {}{}</script>\n<script>\n{}</script></body></html>\n",
        esc(&record.tool.version),
        crate::record::EMBEDDED,
        crate::packed::pack(record),
        include_str!("script.js")
    )
}
