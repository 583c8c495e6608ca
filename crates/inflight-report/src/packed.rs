//! A record as a page holds it: what is alike beside what is alike, deflated, in letters that are
//! no markup.
//!
//! Deflating finds what is alike only nearby. So the rounds of all cells come first, each figure in
//! a list of its own, then their latencies, then those over time: an eighth less than cell by cell.
//! Eighty-five letters carry 32 bits in five of them, where 64 carry 30; the script of the page
//! undoes the same.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use serde_json::Value;

use crate::record::Record;

/// Most bytes of JSON that a page is believed to hold: a bomb ends here.
const UNPACKED_MAX_BYTES: u64 = 256 << 20;

/// No quotes, no `&`, `<` and `>`, and no parentheses and colons, so that no address is in it.
const DIGITS: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%*+,-./;=?@[]^_`{|}~";

/// What of a cell is put beside the same of other cells.
const COLUMNS: [&str; 3] = ["rounds", "latency", "heat"];

/// Where the cells stand in a record without any.
const NO_CELLS: &str = "\"cells\":[]";

/// Packs a record.
pub(crate) fn pack(record: &Record) -> String {
    let mut packer = ZlibEncoder::new(Vec::new(), Compression::best());
    let packed = packer
        .write_all(by_columns(record).as_bytes())
        .and_then(|()| packer.finish());
    letters(&packed.expect("memory takes everything"))
}

/// The JSON of a record that was packed, or why there is none.
pub(crate) fn unpack(packed: &str) -> Result<String, String> {
    let packed = bytes(packed.trim().as_bytes()).ok_or("it has letters of something else")?;
    let mut lines = String::new();
    let mut unpacker = ZlibDecoder::new(&packed[..]).take(UNPACKED_MAX_BYTES);
    match unpacker.read_to_string(&mut lines) {
        Ok(_) => by_cells(&lines).ok_or_else(|| "its cells are incomplete".to_owned()),
        Err(why) => Err(why.to_string()),
    }
}

/// A line with the record without cells, one for each cell without its columns, and then column by
/// column one for each cell.
fn by_columns(record: &Record) -> String {
    let plain = "a record is plain data";
    let bare = Record {
        cells: Vec::new(),
        ..record.clone()
    };
    let mut rest = Vec::new();
    let mut columns = COLUMNS.map(|_| Vec::new());
    for cell in &record.cells {
        let mut cell = serde_json::to_value(cell).expect(plain);
        for (name, column) in COLUMNS.iter().zip(&mut columns) {
            let taken = cell.as_object_mut().and_then(|cell| cell.remove(*name));
            column.push(figure_by_figure(taken.unwrap_or(Value::Null)).to_string());
        }
        rest.push(cell.to_string());
    }
    let first = serde_json::to_string(&bare).expect(plain);
    let lines = [vec![first], rest].into_iter().chain(columns);
    lines.flatten().collect::<Vec<_>>().join("\n")
}

/// The JSON of those lines.
fn by_cells(lines: &str) -> Option<String> {
    let lines: Vec<&str> = lines.lines().collect();
    let (first, rest) = lines.split_first()?;
    let parts = COLUMNS.len() + 1;
    let count = rest.len() / parts;
    let cell = |at: usize| {
        let begun = rest[at].strip_suffix('}')?;
        let columns = (1..).zip(COLUMNS);
        let column = |(part, name)| {
            let packed: Value = serde_json::from_str(rest[part * count + at]).ok()?;
            let unpacked = if name == "rounds" {
                one_by_one(packed)
            } else {
                packed
            };
            Some(format!(",\"{name}\":{unpacked}"))
        };
        let columns = columns.map(column).collect::<Option<String>>()?;
        Some(format!("{begun}{columns}}}"))
    };
    let cells = (0..count).map(cell).collect::<Option<Vec<_>>>()?;
    let all = format!("\"cells\":[{}]", cells.join(","));
    (rest.len() == count * parts).then(|| first.replacen(NO_CELLS, &all, 1))
}

/// A list of objects with the same names as one object of lists, and so on inside; anything else
/// as it is.
fn figure_by_figure(value: Value) -> Value {
    let names = |one: &Value| {
        let names = one.as_object()?.keys().cloned();
        Some(names.collect::<Vec<_>>())
    };
    let Value::Array(list) = &value else {
        return value;
    };
    let Some(first) = list
        .first()
        .and_then(names)
        .filter(|first| !first.is_empty())
    else {
        return value;
    };
    if list.iter().any(|one| names(one).as_ref() != Some(&first)) {
        return value;
    }
    let of = |name: String| {
        let figures = list.iter().map(|one| one[&name].clone()).collect();
        (name, figure_by_figure(Value::Array(figures)))
    };
    Value::Object(first.into_iter().map(of).collect())
}

/// The list of objects that was an object of lists.
fn one_by_one(value: Value) -> Value {
    let Value::Object(columns) = value else {
        return value;
    };
    let columns: Vec<(String, Value)> = columns
        .into_iter()
        .map(|(name, column)| (name, one_by_one(column)))
        .collect();
    let lengths = columns
        .iter()
        .filter_map(|(_, column)| Some(column.as_array()?.len()));
    let one = |at: usize| {
        let figure = |(name, column): &(String, Value)| (name.clone(), column[at].clone());
        Value::Object(columns.iter().map(figure).collect())
    };
    (0..lengths.min().unwrap_or(0)).map(one).collect()
}

/// Four bytes are five letters, and what is left over one letter more than it has bytes.
fn letters(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() / 4 * 5 + 5);
    for group in bytes.chunks(4) {
        let mut four = [0; 4];
        four[..group.len()].copy_from_slice(group);
        let word = u32::from_be_bytes(four);
        let powers = [85u32.pow(4), 85u32.pow(3), 85u32.pow(2), 85, 1];
        for power in &powers[..=group.len()] {
            let digit = usize::try_from(word / power % 85).expect("a small number");
            text.push(char::from(DIGITS[digit]));
        }
    }
    text
}

fn bytes(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 5 * 4 + 4);
    for group in text.chunks(5) {
        let mut word = 0u64;
        for at in 0..5 {
            let letter = group.get(at).unwrap_or(&DIGITS[84]);
            let digit = DIGITS.iter().position(|digit| digit == letter)?;
            word = word * 85 + u64::try_from(digit).ok()?;
        }
        let four = u32::try_from(word).ok()?.to_be_bytes();
        bytes.extend(&four[..group.len() - 1]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_bytes_come_back_in_every_length() {
        let all: Vec<u8> = (0..=255).rev().chain([255; 9]).chain([0; 9]).collect();
        for length in 0..all.len() {
            let text = letters(&all[..length]);
            assert_eq!(bytes(text.as_bytes()).as_deref(), Some(&all[..length]));
            assert_eq!(text.len(), length + length.div_ceil(4));
        }
        assert_eq!(bytes(b"<script>"), None);
        assert_eq!(bytes(b"~~~~~"), None, "more than 32 bits");
    }

    #[test]
    fn what_was_cut_short_is_refused() {
        let whole = r#"{"cells":[]}
{"id":"a"}
{"ops":[1,2],"device":{"reads":[3,4]}}
null
{"rounds":[]}"#;
        let cells: Value = serde_json::from_str(&by_cells(whole).unwrap()).unwrap();
        let expected = json!({"cells": [{"id": "a", "latency": null, "heat": {"rounds": []},
            "rounds": [{"ops": 1, "device": {"reads": 3}}, {"ops": 2, "device": {"reads": 4}}]}]});
        assert_eq!(cells, expected);
        let mixed = json!([{"a": 1}, {"b": 1}, 3]);
        for list in [json!([]), mixed, expected["cells"][0]["rounds"].clone()] {
            assert_eq!(one_by_one(figure_by_figure(list.clone())), list);
        }

        assert_eq!(by_cells("{\"cells\":[]}\n{}\n1\n2"), None);
        assert_eq!(by_cells(""), None);
    }
}
