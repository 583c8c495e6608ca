//! The screen of an examination: a line for each thing that was looked for, a total at the end.

use super::paint::{Paint, Screen};
use super::{Style, joined, sentence, virtualised};
use crate::doctor::{Examination, Line, Status};

/// Draws an examination: status, finding, consequence and fix of every line.
#[must_use]
pub fn examination(examination: &Examination, style: Style) -> String {
    let mut screen = Screen::new(style);
    let (machine, target) = (&examination.machine, &examination.target);
    let devices: Vec<&str> = target.stack.iter().map(|disk| disk.name.as_str()).collect();
    let first = [
        format!("inflight {}", examination.tool.version),
        format!("Linux {}", machine.kernel),
        format!("{} CPUs", machine.cpus),
        virtualised(machine).to_owned(),
    ];
    screen.prose(&joined(&first), 0, Paint::Plain);
    let place = match devices.is_empty() {
        true => format!("{}: {}", target.path, target.fs),
        false => format!("{}: {} on {}", target.path, target.fs, devices.join(" on ")),
    };
    screen.prose(&place, 0, Paint::Plain);
    screen.blank();
    examination
        .lines
        .iter()
        .for_each(|line| draw(&mut screen, line));
    screen.blank();
    screen.prose(&total(examination), 1, Paint::Bold);
    screen.finish()
}

fn draw(screen: &mut Screen, line: &Line) {
    let (label, paint) = match line.status {
        Status::Ok => ("ok", Paint::Plain),
        Status::Note => ("note", Paint::Plain),
        Status::Warning => ("warning", Paint::Red),
        Status::Problem => ("problem", Paint::Red),
        Status::Unknown => ("unknown", Paint::Plain),
    };
    let what = line.finding.trim_end_matches(['.', ' ']);
    let text = format!("{what}. {}[{}]", sentence(&line.consequence), line.id);
    screen.statement(label, &text, paint);
    if !line.fix.is_empty() {
        // A command is to be copied, so it is not folded.
        screen.line(format!(" {:11}fix: {}", "", line.fix), Paint::Plain);
    }
}

fn total(examination: &Examination) -> String {
    let count = |status, one: &str, many: &str| match examination.count(status) {
        0 => None,
        1 => Some(format!("1 {one}")),
        number => Some(format!("{number} {many}")),
    };
    let parts: Vec<String> = [
        count(Status::Problem, "problem", "problems"),
        count(Status::Warning, "warning", "warnings"),
        count(Status::Note, "note", "notes"),
        count(Status::Unknown, "unknown", "unknown"),
    ]
    .into_iter()
    .flatten()
    .collect();
    match parts.is_empty() {
        true => "Everything is as it should be.".to_owned(),
        false => format!(
            "{}. More on one: inflight doctor --explain ID",
            parts.join(", ")
        ),
    }
}
