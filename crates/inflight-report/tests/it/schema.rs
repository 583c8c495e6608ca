//! The published schemas, against records and against `docs/schema`.

use inflight_report::{doctor_schema, merged_schema, schema};

use inflight_report::record::{OpenRound, Record, Reread, Round, Turns, load};

use crate::builder::{disk, skip};

fn turns_of(block: u32) -> Turns {
    Turns {
        block,
        op_ps: vec![1_000_000; 64],
    }
}

#[test]
fn a_record_that_no_run_can_have_written_is_not_read() {
    let read = |change: fn(&mut Record)| {
        let mut record = disk(8);
        change(&mut record);
        let stored = serde_json::to_string(&record).unwrap();
        load(&stored).map_or_else(|error| error.to_string(), |_| String::new())
    };
    assert_eq!(read(|_| {}), "");
    for (change, told) in [
        (
            (|record| record.profiles.push(record.profiles[0].clone())) as fn(&mut Record),
            "the profile `direct-random-read` is in it twice",
        ),
        (
            |record| record.cells.push(record.cells[1].clone()),
            "the cell `direct-random-read/pread/1` is in it twice",
        ),
        (
            |record| record.profiles.clear(),
            "the cell `direct-random-read/null/1` is of a profile that is not in it",
        ),
        (
            |record| record.cells[0].depth = 0,
            "the cell `direct-random-read/null/1` has nothing in flight",
        ),
        (
            |record| record.cells[0].rounds[3].block = 2,
            "the cell `direct-random-read/null/1` has the round 2 twice",
        ),
        (
            |record| {
                let round = record.cells[0].rounds[0];
                let rounds = (0..20_001).map(|block| Round { block, ..round });
                record.cells[0].rounds = rounds.collect();
            },
            "the cell `direct-random-read/null/1` has 20001 rounds",
        ),
        (
            |record| record.cells[0].turns = vec![turns_of(2), turns_of(2)],
            "has turns of the round 2 twice, or without it",
        ),
        (
            |record| record.cells[0].turns = vec![turns_of(99)],
            "has turns of the round 99 twice, or without it",
        ),
    ] {
        let found = read(change);
        assert!(found.contains(told), "{told}: {found}");
    }
}

#[test]
fn a_record_obeys_its_schema_and_survives_being_stored() {
    let mut record = disk(8);
    skip(&mut record, &["uring-tuned"], "no registered buffers");
    record.cells[1].rate_per_s = Some(20_000);
    record.cells[1].rounds[0].open = Some(OpenRound {
        due: 10_000,
        backlog: 7,
        unserved: 3,
        lag_ns: 60_000,
    });
    record.reread = Some(Reread {
        profile: record.profiles[0].name.clone(),
        blocks: 256,
        ns_first: 90_000,
        ns_second: 9_000,
        ratio: 10.0,
        lo: 9.0,
        hi: 11.0,
        level: 0.96,
        cached: true,
    });
    let stored = serde_json::to_value(&record).unwrap();
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(&stored)
        .map(|e| e.to_string())
        .collect();
    assert!(errors.is_empty(), "{errors:?}");
    let read: inflight_report::Record = serde_json::from_value(stored.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), stored);
}

#[test]
fn the_schema_refuses_what_is_no_record() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let mut stored = serde_json::to_value(disk(1)).unwrap();
    stored["cells"][0]["rounds"][0]["ops"] = "many".into();
    assert!(!validator.is_valid(&stored));
    let mut stored = serde_json::to_value(disk(1)).unwrap();
    stored.as_object_mut().unwrap().remove("cells");
    assert!(!validator.is_valid(&stored));
}

#[test]
fn the_published_files_are_in_step() {
    for (name, schema) in [
        ("inflight.bench-1", schema()),
        ("inflight.merged-1", merged_schema()),
        ("inflight.doctor-1", doctor_schema()),
    ] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema");
        let path = format!("{folder}/{name}.json");
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if std::env::var_os("INFLIGHT_BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let published = std::fs::read_to_string(&path).unwrap();
        assert!(text == published, "{name}: INFLIGHT_BLESS=1 writes it anew");
    }
}
