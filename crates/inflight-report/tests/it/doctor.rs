//! An examination: its screen, and its schema.

use inflight_report::doctor::{Examination, Line, SCHEMA, Status};
use inflight_report::doctor_schema;
use inflight_report::record::{Device, Machine, Target, Tool};
use inflight_report::text::Style;
use inflight_report::text::doctor::examination;

fn line(id: &str, status: Status, [finding, consequence, fix]: [&str; 3]) -> Line {
    Line {
        id: id.to_owned(),
        status,
        finding: finding.to_owned(),
        consequence: consequence.to_owned(),
        fix: fix.to_owned(),
    }
}

fn of(lines: Vec<Line>) -> Examination {
    let device = |name: &str| Device {
        name: name.to_owned(),
        ..Device::default()
    };
    Examination {
        schema: SCHEMA.to_owned(),
        tool: Tool {
            version: "1.2.3".to_owned(),
            backend: "uring".to_owned(),
        },
        taken_utc: "2026-01-31T12:00:00Z".to_owned(),
        machine: Machine {
            kernel: "6.12.1".to_owned(),
            cpus: 16,
            virtualised: true,
            ..Machine::default()
        },
        target: Target {
            path: "/data".to_owned(),
            fs: "xfs".to_owned(),
            stack: vec![device("dm-0"), device("nvme0n1")],
            ..Target::default()
        },
        lines,
    }
}

fn some() -> Vec<Line> {
    vec![
        line(
            "io-uring-blocked",
            Status::Ok,
            ["io_uring can be used", "", ""],
        ),
        line(
            "iopoll",
            Status::Note,
            ["no poll queues", "IOPOLL fails", "echo a | sudo tee b"],
        ),
        line(
            "scheduler",
            Status::Warning,
            ["bfq schedules nvme0n1.", "It costs.", ""],
        ),
        line(
            "tmpfs-target",
            Status::Problem,
            ["this is memory", "no disk", "name a disk"],
        ),
        line("numa", Status::Unknown, ["no node is told", "", ""]),
    ]
}

#[test]
fn every_line_says_status_finding_consequence_id_and_fix() {
    let text = examination(&of(some()), Style::default());
    let expected = "\
inflight 1.2.3 · Linux 6.12.1 · 16 CPUs · virtual machine
/data: xfs on dm-0 on nvme0n1

 ok         io_uring can be used. [io-uring-blocked]
 note       no poll queues. IOPOLL fails. [iopoll]
            fix: echo a | sudo tee b
 warning    bfq schedules nvme0n1. It costs. [scheduler]
 problem    this is memory. no disk. [tmpfs-target]
            fix: name a disk
 unknown    no node is told. [numa]

 1 problem, 1 warning, 1 note, 1 unknown. More on one: inflight doctor --explain ID
";
    assert_eq!(text, expected);
}

#[test]
fn a_command_is_never_folded_and_nothing_drives_the_terminal() {
    let command = "echo none | sudo tee /sys/block/nvme0n1/queue/scheduler # and a good deal more";
    let hostile = "a\x1b[2Jb";
    let lines = vec![line("x", Status::Note, [hostile, "", command])];
    let style = Style {
        width: 50,
        colour: false,
    };
    let text = examination(&of(lines), style);
    assert!(text.contains(command), "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");
}

#[test]
fn a_machine_without_findings_is_told_so() {
    let lines = vec![line("x", Status::Ok, ["fine", "", ""])];
    let text = examination(&of(lines), Style::default());
    assert!(
        text.ends_with("\n Everything is as it should be.\n"),
        "{text}"
    );
}

#[test]
fn an_examination_obeys_its_schema_and_survives_being_stored() {
    let stored = serde_json::to_value(of(some())).unwrap();
    let validator = jsonschema::validator_for(&doctor_schema()).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(&stored)
        .map(|error| error.to_string())
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
    assert_eq!(stored["lines"][1]["status"], "note");
    let read: Examination = serde_json::from_value(stored.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), stored);
    let mut wrong = stored;
    wrong["lines"][1]["status"] = "so-so".into();
    assert!(!validator.is_valid(&wrong));
}
