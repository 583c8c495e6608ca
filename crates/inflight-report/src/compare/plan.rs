//! What differs between the plans of two records, in words: their hashes only say that something
//! does.

use std::collections::BTreeSet;

use crate::record::{Cell, Record};
use crate::units::{bytes, nanos};

/// What differs; nothing if the plans are the same.
pub(super) fn differences(old: &Record, new: &Record) -> Vec<String> {
    if old.plan_hash == new.plan_hash {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut differ = |what: &str, of: fn(&Record) -> String| {
        let (old, new) = (of(old), of(new));
        if old != new {
            found.push(format!("{what}: {old}, now {new}"));
        }
    };
    differ("time of a cell in a round", |record| {
        nanos(record.cell_duration_ns as f64)
    });
    differ("warm-up", |record| nanos(record.warmup_ns as f64));
    found.extend(in_one_only("profiles", &profiles(old), &profiles(new)));
    let mut listed = |what: &str, of: fn(&Cell) -> Option<String>| {
        found.extend(in_one_only(
            what,
            &cells(old, new, of),
            &cells(new, old, of),
        ));
    };
    listed("strategies", |cell| Some(cell.strategy.clone()));
    listed("in flight", |cell| Some(cell.depth.to_string()));
    listed("rates", |cell| {
        cell.rate_per_s.map(|rate| format!("{rate}/s"))
    });
    if found.is_empty() {
        let id = |cell: &Cell| Some(cell.id.clone());
        found.extend(in_one_only(
            "cells",
            &cells(old, new, id),
            &cells(new, old, id),
        ));
    }
    if found.is_empty() {
        let untold = "plan: not the same, by something that the records do not hold";
        found.push(untold.to_owned());
    }
    found
}

/// The profiles, with their block sizes.
fn profiles(record: &Record) -> BTreeSet<String> {
    let named = record.profiles.iter().map(|profile| {
        let block = bytes(f64::from(profile.block_size_bytes));
        format!("{} of {block}", profile.name)
    });
    named.collect()
}

/// Something of all cells of the profiles that the other record has too.
fn cells(record: &Record, other: &Record, of: fn(&Cell) -> Option<String>) -> BTreeSet<String> {
    let in_both = |cell: &&Cell| {
        let mut profiles = other.profiles.iter();
        profiles.any(|profile| profile.name == cell.profile)
    };
    let cells = record.cells.iter().filter(in_both);
    cells.filter_map(of).collect()
}

/// What is in one of two sets.
fn in_one_only(what: &str, old: &BTreeSet<String>, new: &BTreeSet<String>) -> Option<String> {
    let list = |which: &str, one: &BTreeSet<String>, other: &BTreeSet<String>| {
        let mut only: Vec<&str> = one.difference(other).map(String::as_str).collect();
        // Numbers in their own order.
        only.sort_by_key(|name| name.parse::<u64>().unwrap_or(0));
        (!only.is_empty()).then(|| format!("{} only in the {which} record", only.join(", ")))
    };
    let lists = [list("old", old, new), list("new", new, old)];
    let lists: Vec<String> = lists.into_iter().flatten().collect();
    (!lists.is_empty()).then(|| format!("{what}: {}", lists.join(" and ")))
}
