//! Whether a round lasts long enough for a rate that is asked for.

use std::time::Duration;

use anyhow::Result;

use crate::exit::usage;

/// Operations in a round of which a latency can be told.
const FEW: u64 = 10;

/// Refuses rates at which a round may end before its first operation is due.
pub(super) fn check(rates: &[u64], measured: Duration) -> Result<()> {
    let is_due = |rate: &u64| measured * u32::try_from(*rate).unwrap_or(u32::MAX) >= SECOND;
    let Some(rate) = rates.iter().find(|rate| !is_due(rate)) else {
        return Ok(());
    };
    let needed_ms = (FEW * 1000).div_ceil(*rate);
    Err(usage(format!(
        "--rate {rate} is less than one operation in the {} ms for which a cell is measured in a \
         round: ask for more, or for longer rounds, with --cell-time {needed_ms}",
        measured.as_millis()
    )))
}

const SECOND: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_needs_one_operation_in_a_round() {
        let told = |rate| check(&[1000, rate], Duration::from_millis(400));
        assert!(told(3).is_ok() && told(u64::MAX).is_ok());
        let refused = told(2)
            .expect_err("the second is due after 500 ms")
            .to_string();
        assert!(refused.contains("--cell-time 5000"), "{refused}");
        assert!(check(&[], Duration::ZERO).is_ok());
    }
}
