//! The machine, what was read or written, and the command that did it.

use super::markup::esc;
use crate::record::{Device, Record, Reread};
use crate::units::{MISSING, bytes, nanos};

type Row = (&'static str, String);

/// The section with its table.
pub(super) fn section(record: &Record) -> String {
    let devices = record
        .target
        .stack
        .iter()
        .map(|one| ("device", device(one)));
    let rows = machine(record)
        .into_iter()
        .chain(devices)
        .chain(run(record));
    let row = |(name, what): Row| {
        let what = esc(&what);
        format!("<tr><th scope=\"row\">{name}</th><td>{what}</td></tr>")
    };
    let rows: String = rows.map(row).collect();
    format!(
        "<section id=\"machine\" aria-labelledby=\"machine-t\"><h2 id=\"machine-t\">Machine</h2>\
         <div class=\"scroll\" role=\"region\" aria-label=\"Machine\" tabindex=\"0\">\
         <table class=\"facts\"><caption>What was measured, and how</caption><tbody>{rows}\
         </tbody></table></div></section>\n"
    )
}

fn or_missing(text: Option<&str>) -> &str {
    text.unwrap_or(MISSING)
}

fn machine(record: &Record) -> Vec<Row> {
    let (machine, target) = (&record.machine, &record.target);
    let number = |value: Option<u32>| value.map_or_else(|| MISSING.to_owned(), |it| it.to_string());
    let model = or_missing(machine.cpu_model.as_deref());
    let clock = or_missing(machine.clocksource.as_deref());
    let memlock = machine.memlock_bytes.map(|limit| bytes(limit as f64));
    let size = bytes(target.size_bytes as f64);
    let options = or_missing(target.mount_options.as_deref());
    vec![
        ("kernel", machine.kernel.clone()),
        ("processors", format!("{} × {model}", machine.cpus)),
        (
            "governor",
            or_missing(machine.governor.as_deref()).to_owned(),
        ),
        (
            "clock",
            format!(
                "{clock}, {:.0} ns; timing an operation {:.0} ns",
                machine.clock_cost_ns, machine.timing_cost_ns
            ),
        ),
        (
            "locked memory",
            memlock.unwrap_or_else(|| "unlimited".to_owned()),
        ),
        ("io_uring_disabled", number(machine.io_uring_disabled)),
        ("seccomp", number(machine.seccomp)),
        ("library", record.tool.backend.clone()),
        ("target", format!("{} ({size})", target.path)),
        ("file system", format!("{}, {options}", target.fs)),
        ("read twice", reread(record)),
    ]
}

/// What reading the same blocks twice past the page cache took.
fn reread(record: &Record) -> String {
    let told = |found: &Reread| {
        let [first, second] = [found.ns_first, found.ns_second].map(|ns| nanos(ns as f64));
        let cache = match found.cached {
            true => "a cache below answers",
            false => "no cache below was seen",
        };
        format!("{first}, then {second}: {cache}")
    };
    record.reread.as_ref().map_or(MISSING.to_owned(), told)
}

fn device(device: &Device) -> String {
    let polls = |polls| if polls { "polling" } else { "no polling" };
    let facts = [
        device.model.as_deref().map(|model| model.trim().to_owned()),
        device
            .scheduler
            .as_ref()
            .map(|name| format!("scheduler {name}")),
        device.nr_requests.map(|count| format!("{count} requests")),
        device
            .read_ahead_kb
            .map(|size| format!("readahead {size} KiB")),
        device.write_cache.clone(),
        device.io_poll.map(|it| polls(it).to_owned()),
    ];
    let facts: Vec<String> = facts
        .into_iter()
        .flatten()
        .filter(|fact| !fact.is_empty())
        .collect();
    format!("{}: {}", device.name, facts.join(", "))
}

fn run(record: &Record) -> [Row; 4] {
    [
        ("command", record.argv.join(" ")),
        ("seed", record.seed.to_string()),
        ("plan", record.plan_hash.clone()),
        ("began", record.started_utc.clone()),
    ]
}
