//! `inflight compare OLD NEW`: what became faster or slower, and whether limits are kept.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use inflight_report::compare::Comparison;
use inflight_report::compare::limit::{Held, Limit};
use inflight_report::stats::SAME_ZONE;
use inflight_report::{Record, markdown, text};

use super::load;
use crate::exit::{self, cannot, refused, usage};
use crate::exports::{Inputs, check_file, is_stdout, write};
use crate::show::{print, style};

const EXAMPLES: &str = "\
Examples:
  inflight compare old.json new.json
  inflight compare old.json new.json --threshold 10 --export-markdown comment.md
  inflight compare new.json --assert 'p99<200us'
  inflight compare new.json --assert 'strategy=inflight,depth=32:iops>=50k'

Exit code 5: something is slower than allowed, or a limit is not kept.";

/// The flags of `inflight compare`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Flags {
    /// Records, the old one first; one alone is enough for --assert.
    #[arg(required = true, value_name = "RECORD")]
    records: Vec<PathBuf>,

    /// How much slower, in percent, is a regression: 3 or more, as less is no real difference. Only
    /// what is clearly slower counts, also among all rows that are compared: of many, some look
    /// slower by chance.
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = percent)]
    threshold: f64,

    /// A limit for the newer records: [strategy=S,depth=N,..:]FIGURE<VALUE, or <=, >, >=. FIGURE is
    /// p50, p90, p99, p99.9, p99.99, max, iops, bandwidth, cpu, calls, disk, errors or regret (the
    /// bad end of its interval). Without a selector it is for every row that was measured; one that
    /// does not count breaks it, unless it is of disk or errors. A regret is for the library's
    /// blocking calls where no strategy is named.
    #[arg(long, value_name = "LIMIT", value_parser = Limit::parse)]
    assert: Vec<Limit>,

    /// Compare records of different plans, disks or machines all the same.
    #[arg(long)]
    anyway: bool,

    /// Write the comparison to FILE as Markdown; `-` writes it to stdout instead of the text.
    #[arg(long, value_name = "FILE")]
    export_markdown: Option<PathBuf>,
}

/// Compares, checks limits, and returns the exit code.
pub(crate) fn compare(flags: &Flags) -> Result<u8> {
    let export = flags.export_markdown.as_deref();
    let inputs = Inputs::of(&flags.records);
    if let Some(file) = export {
        check_file("--export-markdown", file, &inputs)?;
    }
    let [old, newer @ ..] = flags.records.as_slice() else {
        return Err(usage("name two records"));
    };
    if newer.is_empty() && flags.assert.is_empty() {
        return Err(usage(
            "one record has nothing to be compared with: name another one, or a limit by --assert",
        ));
    }
    let base = load::record(old)?;
    let mut shown = Shown::default();
    for path in newer {
        let new = load::record(path)?;
        shown.add_comparison(flags, (old, &base), (path, &new))?;
        shown.add_limits(flags, path, &new)?;
    }
    if newer.is_empty() {
        shown.add_limits(flags, old, &base)?;
    }
    if !export.is_some_and(is_stdout) {
        print(&shown.text)?;
    }
    if let Some(file) = export {
        write(file, &shown.markdown, &inputs)?;
    }
    Ok(if shown.worse { exit::WORSE } else { exit::DONE })
}

/// What is to be printed, and whether something became worse.
#[derive(Default)]
struct Shown {
    text: String,
    markdown: String,
    worse: bool,
}

impl Shown {
    fn add_comparison(
        &mut self,
        flags: &Flags,
        (old_path, old): (&Path, &Record),
        (new_path, new): (&Path, &Record),
    ) -> Result<()> {
        let compared = Comparison::new(old, new);
        let name = |path: &Path| text::clean(&path.to_string_lossy());
        let (old_path, new_path) = (name(old_path), name(new_path));
        if !compared.mismatches.is_empty() && !flags.anyway {
            return Err(refused(format!(
                "{old_path} and {new_path} do not measure the same thing: {}. Measure again with \
                 the same command, or say --anyway",
                compared.mismatches.join("; ")
            )));
        }
        if compared.rows.is_empty() {
            let why = text::not_told(&compared).join("; ");
            return Err(cannot(format!(
                "{old_path} and {new_path} have no measured cell in common that can be compared: \
                 {why}"
            )));
        }
        let threshold = flags.threshold / 100.0;
        self.text += &format!(" {old_path} > {new_path}\n");
        self.text += &text::comparison(&compared, threshold, style());
        let title = format!("{old_path} > {new_path}").replace('`', "'");
        self.markdown += &format!("## `{title}`\n\n");
        self.markdown += &markdown::comparison(&compared, threshold);
        self.worse |= compared.regressions(threshold).next().is_some();
        Ok(())
    }

    fn add_limits(&mut self, flags: &Flags, path: &Path, record: &Record) -> Result<()> {
        let mut all: Vec<(&Limit, Held<'_>)> = Vec::new();
        for limit in &flags.assert {
            let path = path.display();
            let held = limit.check(record);
            all.push((limit, held.map_err(|why| usage(format!("{path}: {why}")))?));
        }
        self.worse |= !all.iter().all(|(_, held)| held.is_kept());
        self.text += &text::limits(&all, &record.profiles, style());
        self.markdown += &markdown::limits(&all);
        Ok(())
    }
}

fn percent(text: &str) -> Result<f64, String> {
    let number: f64 = text
        .trim_end_matches('%')
        .parse()
        .map_err(|_| format!("`{text}` is no percentage"))?;
    // What is within the zone is `no real difference`, and never slower.
    let least = (SAME_ZONE - 1.0) * 100.0;
    match number {
        _ if number < least.round() => Err(format!(
            "a threshold is at least {least:.0} percent: within {least:.0} % two rows are no real \
             difference, so no regression that small would be told"
        )),
        _ if number < 100.0 => Ok(number),
        _ => Err("a threshold is below 100 percent".to_owned()),
    }
}
