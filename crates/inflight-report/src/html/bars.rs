//! Costs as bars, of one cell for each strategy: processor time and system calls.

use super::markup::{Figure, Table, esc, put};
use super::scale::{Kind, Scale, rounded_up};
use super::view::{Series, View, tick_nanos};
use crate::figures::{calls_per_op, cpu_ns_per_op, ops};
use crate::record::{Cell, Round};
use crate::units::{nanos, or_missing};

const WIDTH: f64 = 560.0;
const LEFT: f64 = 8.0;
/// Room for what is written behind a bar.
const RIGHT: f64 = 96.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 48.0;
/// A name, and its bar below it.
const ROW: f64 = 40.0;

/// A bar of one or several parts, each with a class of the style sheet.
struct Bar {
    name: String,
    series: String,
    parts: Vec<(String, f64)>,
    written: String,
    said: String,
}

/// Bars from zero, with an axis below.
fn drawing(said: &str, label: &str, bars: &[Bar], write: fn(f64) -> String) -> String {
    let length = |bar: &Bar| bar.parts.iter().map(|(_, part)| part).sum::<f64>();
    let longest = rounded_up(bars.iter().map(length).fold(0.0, f64::max), 4);
    let height = TOP + bars.len() as f64 * ROW + BOTTOM;
    let scale = Scale::new(Kind::Linear, (0.0, longest), (LEFT, WIDTH - RIGHT));
    let said = esc(said);
    let mut svg = format!(
        "<svg class=\"plot bars\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
         aria-label=\"{said}\"><g class=\"axis\">"
    );
    let floor = height - BOTTOM;
    for tick in scale.ticks(4) {
        let (at, below) = (scale.at(tick), floor + 18.0);
        let anchor = if tick == 0.0 { "tick t0" } else { "tick tx" };
        put!(
            &mut svg,
            "<path class=\"grid\" d=\"M{at:.1} {TOP}V{floor}\"/>\
             <text class=\"{anchor}\" x=\"{at:.1}\" y=\"{below}\">{}</text>",
            esc(&write(tick))
        );
    }
    let (middle, low) = ((LEFT + WIDTH - RIGHT) / 2.0, height - 7.0);
    put!(
        &mut svg,
        "<text class=\"label lx\" x=\"{middle}\" y=\"{low}\">{}</text></g>",
        esc(label)
    );
    for (row, bar) in bars.iter().enumerate() {
        svg += &one(bar, TOP + row as f64 * ROW, &scale);
    }
    svg += "</svg>";
    svg
}

fn one(bar: &Bar, top: f64, scale: &Scale) -> String {
    let (series, said) = (&bar.series, esc(&bar.said));
    let mut svg = format!(
        "<g class=\"s\" data-s=\"{series}\"><title>{said}</title>\
         <text class=\"name\" x=\"{LEFT}\" y=\"{:.1}\">{}</text>",
        top + 16.0,
        esc(&bar.name)
    );
    let mut from = 0.0;
    for (class, part) in &bar.parts {
        let (start, end) = (scale.at(from), scale.at(from + part));
        from += part;
        put!(
            &mut svg,
            "<rect class=\"{class}\" x=\"{start:.1}\" y=\"{:.1}\" width=\"{:.1}\" \
             height=\"14\"/>",
            top + 22.0,
            end - start
        );
    }
    put!(
        &mut svg,
        "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text></g>",
        scale.at(from) + 6.0,
        top + 33.5,
        esc(&bar.written)
    );
    svg
}

/// Where processor time goes, per operation.
struct Cpu {
    user_ns: f64,
    /// System time without that of kernel workers.
    sys_ns: f64,
    /// Absent where the kernel does not tell: it is then in the system time.
    worker_ns: Option<f64>,
}

fn cpu(cell: &Cell) -> Option<Cpu> {
    cpu_ns_per_op(cell)?;
    let all = ops(cell) as f64;
    let sum = |of: fn(&Round) -> u64| {
        cell.rounds
            .iter()
            .map(|round| of(round) as f64)
            .sum::<f64>()
    };
    let told = cell.rounds.iter().all(|round| round.worker_ns.is_some());
    let (user, sys) = (sum(|round| round.user_ns), sum(|round| round.sys_ns));
    let workers = sum(|round| round.worker_ns.unwrap_or(0)).min(sys);
    Some(Cpu {
        user_ns: user / all,
        sys_ns: (sys - workers) / all,
        worker_ns: told.then_some(workers / all),
    })
}

/// Processor time of an operation: in the program, in its system calls, in kernel workers.
pub(super) fn processor(view: &View<'_>) -> Option<Figure> {
    let with_cpu = |(series, cell)| Some((series, cell, cpu(cell)?));
    let cells: Vec<_> = view.focused().into_iter().filter_map(with_cpu).collect();
    cells.first()?;
    let unit = format!("CPU per {}", view.one);
    let bars = cells
        .iter()
        .map(|(series, cell, cpu): &(&Series<'_>, _, _)| {
            let workers = cpu.worker_ns.unwrap_or(0.0);
            let all = nanos(cpu.user_ns + cpu.sys_ns + workers);
            let [user, sys, in_workers] = [cpu.user_ns, cpu.sys_ns, workers].map(nanos);
            let parts = [
                ("user", cpu.user_ns),
                ("system", cpu.sys_ns),
                ("worker", workers),
            ];
            let parts = parts.into_iter().filter(|(_, ns)| *ns > 0.0);
            Bar {
                name: view.row_name(cell),
                series: series.key.clone(),
                parts: parts.map(|(class, ns)| (class.to_owned(), ns)).collect(),
                said: format!(
                    "{}: user {user}, system {sys}, workers {in_workers}",
                    view.row_name(cell)
                ),
                written: all,
            }
        });
    let bars: Vec<Bar> = bars.collect();
    let said = format!("Processor time per {}, one bar for each strategy", view.one);
    let key = "<p class=\"key\">\
        <span class=\"step\"><i class=\"user\"></i>user</span>\
        <span class=\"step\"><i class=\"system\"></i>system</span>\
        <span class=\"step\"><i class=\"worker\"></i>kernel workers</span></p>";
    let row = |(_, cell, cpu): &(_, &Cell, Cpu)| {
        let workers = or_missing(cpu.worker_ns, nanos);
        vec![
            view.row_name(cell),
            nanos(cpu.user_ns),
            nanos(cpu.sys_ns),
            workers,
        ]
    };
    Some(Figure {
        id: format!("{}-cpu", view.id),
        title: "Processor time",
        note: format!(
            "Shorter is better. Interrupts are charged to whoever they interrupt. {}",
            view.focus_note()
        ),
        drawings: drawing(&said, &unit, &bars, tick_nanos) + key,
        table: Table {
            caption: unit,
            columns: ["strategy", "user", "system", "kernel workers"]
                .map(str::to_owned)
                .into(),
            rows: cells.iter().map(row).collect(),
        },
        wide: false,
    })
}

/// System calls of an operation.
pub(super) fn calls(view: &View<'_>) -> Option<Figure> {
    let written = |calls: f64| format!("{calls:.2}");
    let with_calls = |(series, cell)| Some((series, cell, calls_per_op(cell)?));
    let cells: Vec<(&Series<'_>, &Cell, f64)> =
        view.focused().into_iter().filter_map(with_calls).collect();
    cells.first()?;
    let unit = format!("system calls per {}", view.one);
    let bars = cells.iter().map(|(series, cell, calls)| Bar {
        name: view.row_name(cell),
        series: series.key.clone(),
        parts: vec![(format!("c{}", series.look.colour), *calls)],
        written: written(*calls),
        said: format!("{}: {}", view.row_name(cell), written(*calls)),
    });
    let bars: Vec<Bar> = bars.collect();
    let unknown: Vec<String> = view
        .focused()
        .into_iter()
        .filter(|(_, cell)| calls_per_op(cell).is_none())
        .map(|(series, _)| series.name.clone())
        .collect();
    let unknown = match unknown.as_slice() {
        [] => String::new(),
        names => format!("Not counted: {}. ", names.join("; ")),
    };
    let row = |(_, cell, calls): &(_, &Cell, f64)| vec![view.row_name(cell), written(*calls)];
    let said = format!("System calls per {}, one bar for each strategy", view.one);
    Some(Figure {
        id: format!("{}-calls", view.id),
        title: "System calls",
        note: format!("Shorter is better. {unknown}{}", view.focus_note()),
        drawings: drawing(&said, &unit, &bars, |calls| format!("{calls}")),
        table: Table {
            caption: unit.clone(),
            columns: vec!["strategy".to_owned(), unit],
            rows: cells.iter().map(row).collect(),
        },
        wide: false,
    })
}
