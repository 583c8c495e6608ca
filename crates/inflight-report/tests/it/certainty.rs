//! How often the words are wrong, and how often they are found, on rounds that were really run.
//!
//! The noise is taken from the records of `docs/measurements`: for two cells that ran in the same
//! shuffled rounds, how far the ratio of each round is from that of all. A simulated run draws
//! its rounds from such a pair. One strategy under two names is the noise alone; a slowdown is
//! added to it. `--nocapture` prints the figures.

use std::path::{Path, PathBuf};

use inflight_report::Record;
use inflight_report::record::{Cell, Turns};
use inflight_report::stats::{FEWEST_ROUNDS, MOST_LOOKS, Word, compare, rate, signed_rank};
use oorandom::Rand64;

use crate::builder::cell;

/// Simulated runs of each kind.
const RUNS: u32 = 200;

/// Rounds of a run when nothing else is said.
const ROUNDS: usize = 8;

/// Pairs that would need more rounds than this are too noisy for a slowdown of 5 %.
const MOST_ROUNDS: usize = 64;

const SLOWDOWN: f64 = 0.05;

/// The noise of two cells: logarithms of the ratios of their rounds, around zero.
struct Pair {
    logs: Vec<f64>,
}

impl Pair {
    fn of(a: &Cell, b: &Cell) -> Option<Self> {
        let ratio = |round: &inflight_report::record::Round| {
            let twin = b.rounds.iter().find(|other| other.block == round.block)?;
            Some((rate(round)? / rate(twin)?).ln())
        };
        let logs: Vec<f64> = a.rounds.iter().filter_map(ratio).collect();
        let centre = signed_rank(&logs)
            .filter(|found| found.n >= ROUNDS)?
            .ratio
            .ln();
        let logs = logs.iter().map(|log| log - centre).collect();
        Some(Self { logs })
    }

    /// Spread of a round's ratio, as a share.
    fn spread(&self) -> f64 {
        let squares = self.logs.iter().map(|log| log * log).sum::<f64>();
        (squares / self.logs.len() as f64).sqrt()
    }

    /// Rounds in which a slowdown is found 19 times in 20: its distance from the zone of no
    /// difference has to be 1.96 + 1.645 standard errors; and ranks may need 1 / 0.864 times as
    /// many rounds as means, whatever the noise looks like (Hodges and Lehmann, 1956).
    fn rounds_needed(&self) -> usize {
        let distance = -(1.0 - SLOWDOWN).ln() - 1.03_f64.ln();
        let errors = 3.605 * self.spread() / distance;
        let rounds =
            (ROUNDS..=MOST_ROUNDS).find(|rounds| *rounds as f64 * 0.864 >= errors * errors);
        rounds.unwrap_or(usize::MAX)
    }

    /// One simulated run: the word for so many rounds, with this change on top of the noise.
    fn word(&self, rounds: usize, change: f64, random: &mut Rand64) -> Word {
        let one = |_| {
            let count = u64::try_from(self.logs.len()).expect("a few rounds");
            let at = usize::try_from(random.rand_range(0..count)).expect("a few rounds");
            let sign = if random.rand_float() < 0.5 { -1.0 } else { 1.0 };
            sign * self.logs[at] + (1.0 + change).ln()
        };
        let logs: Vec<f64> = (0..rounds).map(one).collect();
        signed_rank(&logs).expect("there are rounds").word()
    }
}

/// The records that are kept, by name.
fn kept() -> Vec<(String, Record)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/measurements");
    let list = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).expect("the folder is there");
        let mut paths: Vec<PathBuf> = entries
            .map(|entry| entry.expect("an entry").path())
            .collect();
        paths.sort();
        paths
    };
    let folders = list(&folder).into_iter().filter(|path| path.is_dir());
    let files = folders.flat_map(|folder| list(&folder));
    let record = |file: PathBuf| {
        let text = std::fs::read_to_string(&file).ok()?;
        let record: Record = serde_json::from_str(&text).ok()?;
        let name = file.strip_prefix(&folder).ok()?.display().to_string();
        Some((name, record))
    };
    files.filter_map(record).collect()
}

/// Every two cells of a record that ran in the same rounds.
fn pairs(record: &Record) -> Vec<Pair> {
    let works = |cell: &&Cell| !["null", "fio"].contains(&cell.strategy.as_str());
    let cells: Vec<&Cell> = record.cells.iter().filter(works).collect();
    let mut pairs = Vec::new();
    for (at, a) in cells.iter().enumerate() {
        let others = cells[at + 1..].iter().filter(|b| b.profile == a.profile);
        pairs.extend(others.filter_map(|b| Pair::of(a, b)));
    }
    pairs
}

/// In how many of the runs, in percent, the word is one of these.
fn share(pairs: &[Pair], words: &[Word], change: f64, rounds: impl Fn(&Pair) -> usize) -> f64 {
    let mut random = Rand64::new(20);
    let count = u64::try_from(pairs.len()).expect("a few pairs");
    let found = (0..RUNS).filter(|_| {
        let at = usize::try_from(random.rand_range(0..count)).expect("a few pairs");
        let word = pairs[at].word(rounds(&pairs[at]), change, &mut random);
        words.contains(&word)
    });
    found.count() as f64 * 100.0 / f64::from(RUNS)
}

const DIFFERENT: [Word; 2] = [Word::ClearlyFaster, Word::ClearlySlower];

#[test]
fn one_strategy_under_two_names_is_called_different_in_one_run_of_twenty_at_most() {
    let mut records = 0;
    for (name, record) in kept() {
        let pairs = pairs(&record);
        if pairs.is_empty() {
            println!("skipped: {name} has too few rounds");
            continue;
        }
        records += 1;
        let wrong = share(&pairs, &DIFFERENT, 0.0, |_| ROUNDS);
        let found = share(&pairs, &[Word::ClearlySlower], -SLOWDOWN, |_| ROUNDS);
        let mut spreads: Vec<f64> = pairs.iter().map(Pair::spread).collect();
        spreads.sort_by(f64::total_cmp);
        println!(
            "{name}: {} pairs, a round's ratio varies by {:.1} % (median), {ROUNDS} rounds: \
             {wrong:.1} % called different, {found:.1} % of slowdowns by 5 % found",
            pairs.len(),
            spreads[spreads.len() / 2] * 100.0
        );
        assert!(wrong <= 5.0, "{name}: {wrong} %");
    }
    assert!(records > 0);
}

#[test]
fn a_slowdown_of_5_percent_is_found_with_as_many_rounds_as_the_noise_asks_for() {
    let all: Vec<Pair> = kept()
        .iter()
        .flat_map(|(_, record)| pairs(record))
        .collect();
    let count = all.len();
    let fit = |pair: &Pair| pair.rounds_needed() <= MOST_ROUNDS;
    let pairs: Vec<Pair> = all.into_iter().filter(fit).collect();
    assert!(!pairs.is_empty());
    let mut needed: Vec<usize> = pairs.iter().map(Pair::rounds_needed).collect();
    needed.sort_unstable();
    let found = share(
        &pairs,
        &[Word::ClearlySlower],
        -SLOWDOWN,
        Pair::rounds_needed,
    );
    let wrong = share(&pairs, &DIFFERENT, 0.0, Pair::rounds_needed);
    println!(
        "{} of {count} pairs need {MOST_ROUNDS} rounds or fewer, {} in the median; with as many \
         as each needs: {found:.1} % found, {wrong:.1} % called different without a slowdown",
        pairs.len(),
        needed[needed.len() / 2]
    );
    assert!(found >= 90.0, "{found} %");
    assert!(wrong <= 5.0, "{wrong} %");
}

/// Turns of a round, and rounds before the first look.
const TURNS: usize = 16;

/// One whole confirmation by turns, as the command makes it: looks at half as many rounds more each
/// time, until there is a word. One cell takes a microsecond for an operation, the other so many
/// picoseconds; the word is that for the first. For all of a round each is so much faster or slower
/// at most, in thousandths.
fn confirmed(other_ps: u64, lasting: u64, random: &mut Rand64) -> Word {
    let [mut one, mut other] = ["pread", "uring"].map(|strategy| cell(strategy, 1, 1_000, 1, 0));
    // Every other turn is disturbed, and takes up to four times as long.
    let op_ps = |ps: u64, random: &mut Rand64| {
        let most = [1_150, 4_000][usize::from(random.rand_float() < 0.5)];
        ps * random.rand_range(1_000..most) / 1_000
    };
    let mut rounds = 0;
    for look in 0..MOST_LOOKS {
        let more = if look == 0 { 8 } else { rounds / 2 };
        for block in rounds..rounds + more {
            for (cell, ps) in [(&mut one, 1_000_000), (&mut other, other_ps)] {
                let ps = ps * random.rand_range(1_000 - lasting..1_001 + lasting) / 1_000;
                let op_ps = (0..TURNS).map(|_| op_ps(ps, random)).collect();
                cell.turns.push(Turns { block, op_ps });
            }
        }
        rounds += more;
        let word = compare(&one, &other).expect("they took turns").word();
        if word != Word::CannotTellYet {
            return word;
        }
    }
    Word::CannotTellYet
}

/// Of the fewest rounds that are compared, which differ as much as their turns do: how much they
/// differ is an estimate from so few, and without Student's quantile 3.7 % were outside.
#[test]
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "about a million picoseconds"
)]
fn intervals_of_few_rounds_of_turns_hold_as_often_as_they_say() {
    let mut random = Rand64::new(6);
    let runs = 4_000_u32;
    let off = |random: &mut Rand64| (0..12).map(|_| random.rand_float()).sum::<f64>() - 6.0;
    let outside = (0..runs).filter(|_| {
        let [mut one, mut other] = ["pread", "uring"].map(|name| cell(name, 1, 1_000, 1, 0));
        for block in (0..).take(FEWEST_ROUNDS) {
            let lasting = off(&mut random);
            let turn = |_| 1e6 * ((lasting + off(&mut random)) / 100.0).exp();
            let op_ps = (0..TURNS).map(turn).map(|ps| ps as u64).collect();
            one.turns.push(Turns { block, op_ps });
            let op_ps = vec![1_000_000; TURNS];
            other.turns.push(Turns { block, op_ps });
        }
        let found = compare(&one, &other).expect("they took turns");
        found.lo > 1.0 || found.hi < 1.0
    });
    let outside = outside.count() as f64 * 100.0 / f64::from(runs);
    println!("of the fewest rounds, {outside:.1} % of intervals of 98 % were beside the truth");
    assert!(outside > 0.2 && outside <= 3.0, "{outside} %");
}

#[test]
fn looking_again_and_again_makes_words_wrong_in_one_run_of_twenty_at_most() {
    let mut random = Rand64::new(20);
    let mut share_of = |other_ps: u64, lasting: u64, words: &[Word]| {
        let mut words_of = (0..RUNS * 2).map(|_| confirmed(other_ps, lasting, &mut random));
        let found = words_of
            .by_ref()
            .filter(|word| words.contains(word))
            .count();
        found as f64 * 100.0 / f64::from(RUNS * 2)
    };
    // Noise that lasts as long as a round is in all of its turns.
    let lasting = share_of(1_029_999, 60, &DIFFERENT);
    let mut share = |other_ps, words: &[Word]| share_of(other_ps, 0, words);
    // The end of the zone is where words are wrong most often.
    let different = share(1_029_999, &DIFFERENT);
    let same = share(1_030_001, &[Word::NoRealDifference]);
    let twins = share(1_000_000, &DIFFERENT);
    let slowed = share(1_052_632, &[Word::ClearlyFaster]);
    println!(
        "by turns: at the end of the zone {different:.1} % called different and {same:.1} % the \
         same; {twins:.1} % of twins called different, {slowed:.1} % of slowdowns by 5 % found; \
         with rounds that differ by 6 % {lasting:.1} % called different"
    );
    // Of 400 runs, 5 % are up to 7.5 % 99 times in a hundred.
    assert!(lasting <= 7.5, "{lasting} %");
    assert!(different <= 7.5 && same <= 7.5 && different > 0.0);
    assert!(twins <= 0.5 && slowed >= 90.0);
}
