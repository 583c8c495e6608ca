//! Which parts of huge pages are taken: the index by which [`super::memory`] hands them out.
//!
//! Plain data that touches no memory, so that it can be tried on addresses that are none.

use std::collections::{BTreeMap, BTreeSet};

/// A huge page, as most 64-bit processors with pages of 4 KiB have them. Where they are larger,
/// sheets are of small pages, as any memory.
pub(super) const SHEET_BYTES: usize = 2 << 20;

/// What is handed out is a multiple of this, so that a sheet has 128 of them, a bit each.
pub(super) const UNIT_BYTES: usize = SHEET_BYTES / 128;

/// What is known of one sheet.
#[derive(Debug)]
struct Sheet {
    /// A bit for each unit that somebody has.
    taken: u128,
    /// A bit for each unit that somebody has had: the others are as the kernel made them, zeros.
    touched: u128,
}

/// So many bits from the first on.
fn run(units: u32) -> u128 {
    u128::MAX >> (128 - units)
}

/// How long the longest run of ones is.
fn longest_run(mut bits: u128) -> u32 {
    let mut longest = 0;
    while bits != 0 {
        bits &= bits << 1;
        longest += 1;
    }
    longest
}

/// Where the first run of at least so many ones begins; 128 if there is none.
fn first_run(mut bits: u128, units: u32) -> u32 {
    let mut known = 1;
    while known < units {
        // Each bit that is left stands for so many ones from there on.
        let more = known.min(units - known);
        bits &= bits >> more;
        known += more;
    }
    bits.trailing_zeros()
}

impl Sheet {
    fn room(&self) -> u32 {
        longest_run(!self.taken)
    }
}

/// Units that have been taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) sheet: usize,
    /// In bytes from the start of the sheet.
    pub(super) offset: usize,
    /// Nobody has had them before.
    pub(super) are_zeros: bool,
}

/// All sheets of the process, by their addresses, which are multiples of [`SHEET_BYTES`].
#[derive(Debug, Default)]
pub(super) struct Sheets {
    by_address: BTreeMap<usize, Sheet>,
    /// Those with room, by the longest run of units that nobody has: the tightest that fits is
    /// taken first, so that sheets become empty.
    by_room: BTreeSet<(u32, usize)>,
    /// The only one of which nobody has anything: another one is given back to the kernel.
    empty: Option<usize>,
}

impl Sheets {
    /// As many units as such a buffer takes, at most 128.
    pub(super) fn units(len: usize) -> u32 {
        u32::try_from(len.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
    }

    /// Adds one of which nobody has anything, and all of which is zeros.
    pub(super) fn add(&mut self, sheet: usize) {
        let nothing = Sheet {
            taken: 0,
            touched: 0,
        };
        self.by_room.insert((nothing.room(), sheet));
        self.by_address.insert(sheet, nothing);
        // It may not be the one that is taken next, where something came back meanwhile.
        self.empty.get_or_insert(sheet);
    }

    /// So many units in one piece, 1 to 128. `None` if no sheet has them.
    pub(super) fn take(&mut self, units: u32) -> Option<Taken> {
        let found = *self.by_room.range((units, 0)..).next()?;
        let (_, address) = found;
        let sheet = self.by_address.get_mut(&address)?;
        self.by_room.remove(&found);
        let first = first_run(!sheet.taken, units);
        let bits = run(units) << first;
        let are_zeros = sheet.touched & bits == 0;
        sheet.taken |= bits;
        sheet.touched |= bits;
        let room = sheet.room();
        if room > 0 {
            self.by_room.insert((room, address));
        }
        if self.empty == Some(address) {
            self.empty = None;
        }
        Some(Taken {
            sheet: address,
            offset: usize::try_from(first).expect("below 128") * UNIT_BYTES,
            are_zeros,
        })
    }

    /// Gives back what [`Sheets::take`] has handed out. Returns a sheet that is no longer one of
    /// these, and the kernel's to have; what is of no sheet, as after a fork, is forgotten.
    pub(super) fn give_back(&mut self, start: usize, units: u32) -> Option<usize> {
        let address = start - start % SHEET_BYTES;
        let first = u32::try_from(start % SHEET_BYTES / UNIT_BYTES).expect("below 128");
        let sheet = self.by_address.get_mut(&address)?;
        self.by_room.remove(&(sheet.room(), address));
        sheet.taken &= !(run(units) << first);
        if sheet.taken == 0 && self.empty.is_some() {
            self.by_address.remove(&address);
            return Some(address);
        }
        if sheet.taken == 0 {
            self.empty = Some(address);
        }
        self.by_room.insert((sheet.room(), address));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: usize = 7 * SHEET_BYTES;
    const B: usize = 9 * SHEET_BYTES;

    fn taken(sheet: usize, unit: usize, are_zeros: bool) -> Option<Taken> {
        Some(Taken {
            sheet,
            offset: unit * UNIT_BYTES,
            are_zeros,
        })
    }

    #[test]
    fn runs_are_found() {
        assert_eq!(longest_run(0), 0);
        assert_eq!(longest_run(u128::MAX), 128);
        assert_eq!(longest_run(0b1011_1011_1100), 4);
        assert_eq!(first_run(u128::MAX, 128), 0);
        assert_eq!(first_run(0b1011_1011_1100, 3), 2);
        assert_eq!(first_run(0b1110_1101_1000, 3), 9);
        assert_eq!(first_run(u128::MAX >> 1, 128), 128);
        assert_eq!(first_run(u128::MAX << 63, 65), 63);
        assert_eq!(run(128), u128::MAX);
        assert_eq!(Sheets::units(1), 1);
        assert_eq!(Sheets::units(UNIT_BYTES + 1), 2);
        assert_eq!(Sheets::units(SHEET_BYTES), 128);
    }

    #[test]
    fn the_tightest_room_is_taken_and_zeros_are_known() {
        let mut sheets = Sheets::default();
        assert_eq!(sheets.take(1), None);
        sheets.add(A);
        sheets.add(B);
        assert_eq!(sheets.take(100), taken(A, 0, true));
        // A has 28 left, B 128.
        assert_eq!(sheets.take(29), taken(B, 0, true));
        assert_eq!(sheets.take(28), taken(A, 100, true));
        assert_eq!(sheets.take(100), None);
        assert_eq!(sheets.give_back(A, 100), None);
        assert_eq!(sheets.take(100), taken(A, 0, false));
        // 99 left in B, of which none has been touched.
        assert_eq!(sheets.take(99), taken(B, 29, true));
        assert_eq!(sheets.take(1), None);
    }

    #[test]
    fn one_empty_sheet_is_kept() {
        let mut sheets = Sheets::default();
        for sheet in [A, B] {
            sheets.add(sheet);
            assert_eq!(sheets.take(128), taken(sheet, 0, true));
        }
        assert_eq!(sheets.give_back(A, 128), None);
        assert_eq!(sheets.give_back(B, 128), Some(B));
        assert_eq!(sheets.take(1), taken(A, 0, false));
        sheets.add(B);
        assert_eq!(sheets.take(128), taken(B, 0, true));
        assert_eq!(sheets.give_back(B, 128), None, "A is no longer empty");
        assert_eq!(sheets.give_back(A, 1), Some(A));
        assert_eq!(sheets.give_back(A, 1), None, "it is of no sheet");
    }

    /// Whatever is taken and given back, nobody has what another has, and nothing is lost.
    #[test]
    fn nobody_has_what_another_has() {
        let mut sheets = Sheets::default();
        let mut known = BTreeSet::new();
        let mut had: Vec<(usize, u32)> = Vec::new();
        let mut random = 0x9e37_79b9_u64;
        let mut next = move |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005) + 1_442_695;
            (random >> 33) % below
        };
        for step in 0..if cfg!(miri) { 300 } else { 20_000 } {
            if next(100) < 52 {
                let most = if next(4) == 0 { 128 } else { 12 };
                let units = u32::try_from(1 + next(most)).unwrap();
                let taken = sheets.take(units).unwrap_or_else(|| {
                    let sheet = (1..).find(|at| !known.contains(&(at * SHEET_BYTES)));
                    let sheet = sheet.unwrap() * SHEET_BYTES;
                    known.insert(sheet);
                    sheets.add(sheet);
                    sheets.take(units).expect("a whole sheet is free")
                });
                assert!(known.contains(&taken.sheet));
                let (start, len) = (taken.sheet + taken.offset, units as usize * UNIT_BYTES);
                assert!(taken.offset + len <= SHEET_BYTES);
                for (other, units) in &had {
                    let end = other + *units as usize * UNIT_BYTES;
                    assert!(
                        end <= start || start + len <= *other,
                        "step {step}: two have it"
                    );
                }
                had.push((start, units));
            } else if let Some(at) = usize::try_from(next(1 + had.len() as u64)).ok()
                && at < had.len()
            {
                let (start, units) = had.swap_remove(at);
                if let Some(gone) = sheets.give_back(start, units) {
                    assert!(known.remove(&gone));
                    assert!(
                        !had.iter()
                            .any(|(at, _)| (gone..gone + SHEET_BYTES).contains(at))
                    );
                }
            }
        }
        for (start, units) in had {
            if let Some(gone) = sheets.give_back(start, units) {
                known.remove(&gone);
            }
        }
        assert_eq!(known.len(), 1, "all but one are the kernel's again");
        assert_eq!(sheets.by_room.len(), 1);
    }
}
