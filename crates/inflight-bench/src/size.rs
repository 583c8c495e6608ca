//! Sizes and rates as people write them: `4k` is 4 KiB, and 4,000 operations a second.

use anyhow::{Result, bail};

/// The largest block that is accepted.
const MAX_BLOCK_BYTES: u32 = 16 << 20;

/// The largest offset of a file.
const MOST_BYTES: u64 = i64::MAX as u64;

/// Reads a size: a number and an optional `k`, `m`, `g` or `t`, always in powers of 1024.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| !c.is_ascii_digit());
    let shift = match &lower[digits.len()..] {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        unit => {
            return Err(format!(
                "unknown unit `{unit}`; use k, m, g or t (powers of 1024)"
            ));
        }
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("`{text}` is not a size; a number with k, m, g or t is one"))?;
    match number.checked_mul(1 << shift) {
        Some(bytes @ 1..=MOST_BYTES) => Ok(bytes),
        _ => Err(format!(
            "`{text}` is outside 1 byte to 8 EiB, the most that a file can have"
        )),
    }
}

/// Most operations per second that can be asked for: more than a processor can begin.
const MOST_PER_S: u64 = 10_000_000;

/// Reads a rate: a number and an optional `k` or `m`, always in powers of 1000.
pub(crate) fn parse_rate(text: &str) -> Result<u64, String> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.trim_end_matches(|c: char| !c.is_ascii_digit());
    let scale = match &lower[digits.len()..] {
        "" => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        unit => {
            return Err(format!(
                "unknown unit `{unit}`; use k or m (powers of 1000)"
            ));
        }
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("`{text}` is not a rate"))?;
    match number.checked_mul(scale) {
        Some(rate @ 1..=MOST_PER_S) => Ok(rate),
        _ => Err(format!("`{text}` is outside 1..={MOST_PER_S} per second")),
    }
}

/// Reads a block size.
pub(crate) fn parse_block(text: &str) -> Result<u32, String> {
    let bytes = u32::try_from(parse(text)?).map_err(|_| format!("`{text}` is too large"))?;
    check_block(bytes).map_err(|error| error.to_string())?;
    Ok(bytes)
}

/// Refuses block sizes that direct I/O could never take, or that make no sense.
pub(crate) fn check_block(bytes: u32) -> Result<()> {
    if bytes == 0 || !bytes.is_multiple_of(512) || bytes > MAX_BLOCK_BYTES {
        bail!("a block is a multiple of 512 bytes and at most 16 MiB, not {bytes} bytes");
    }
    Ok(())
}

/// A size before what has it: `4 KiB` reads, `512-byte` reads.
pub(crate) fn before_noun(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes}-byte"),
        _ => human(bytes),
    }
}

/// Bytes for people, in powers of 1024.
pub(crate) fn human(bytes: u64) -> String {
    if bytes == 1 {
        return "1 byte".to_owned();
    }
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut scale = 1u64;
    while unit + 1 < units.len() && bytes / scale >= 1024 {
        scale *= 1024;
        unit += 1;
    }
    let name = units[unit];
    if bytes.is_multiple_of(scale) {
        format!("{} {name}", bytes / scale)
    } else {
        format!("{:.1} {name}", bytes as f64 / scale as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_no_file_has_are_told_with_those_that_one_can_have() {
        assert_eq!(parse("8388607t"), Ok(8_388_607 << 40));
        for text in ["0", "0k", "8388608t", "16777216t"] {
            let refused = parse(text).expect_err("no file has it");
            assert!(refused.contains("1 byte to 8 EiB"), "{refused}");
        }
    }

    #[test]
    fn rates_are_read_in_thousands() {
        assert_eq!(parse_rate("500"), Ok(500));
        assert_eq!(parse_rate("20k"), Ok(20_000));
        assert_eq!(parse_rate("1M"), Ok(1_000_000));
        for wrong in ["0", "", "k", "11m", "20x", "1.5k", "-1"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn units_are_powers_of_1024() {
        assert_eq!(parse("4k"), Ok(4096));
        assert_eq!(parse("4KiB"), Ok(4096));
        assert_eq!(parse("1g"), Ok(1 << 30));
        assert_eq!(parse("512"), Ok(512));
        assert!(parse("4x").is_err() && parse("k").is_err() && parse("0").is_err());
        assert!(parse("99999999t").is_err());
    }

    #[test]
    fn a_block_is_a_multiple_of_a_sector() {
        assert_eq!(parse_block("4k"), Ok(4096));
        assert!(parse_block("1000").is_err() && parse_block("32m").is_err());
    }

    #[test]
    fn sizes_read_back_well() {
        assert_eq!(human(4096), "4 KiB");
        assert_eq!(human(1 << 30), "1 GiB");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(7), "7 bytes");
        assert_eq!(human(1), "1 byte");
        assert_eq!(before_noun(512), "512-byte");
        assert_eq!(before_noun(4096), "4 KiB");
    }
}
