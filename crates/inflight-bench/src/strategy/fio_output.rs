//! What fio prints, as numbers.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

/// One job of fio.
#[derive(Debug, PartialEq)]
pub(crate) struct Output {
    pub(crate) version: String,
    pub(crate) duration_ns: u64,
    pub(crate) ops: u64,
    pub(crate) bytes: u64,
    pub(crate) errors: u64,
    pub(crate) short: u64,
    pub(crate) user_ns: u64,
    pub(crate) sys_ns: u64,
    pub(crate) ctxsw: u64,
    /// Latency in nanoseconds and how often it was seen.
    pub(crate) bins: Vec<(u64, u64)>,
}

#[derive(Deserialize)]
struct Document {
    #[serde(rename = "fio version")]
    version: String,
    jobs: Vec<FioJob>,
}

#[derive(Deserialize)]
struct FioJob {
    read: Side,
    #[serde(default)]
    write: Side,
    usr_cpu: f64,
    sys_cpu: f64,
    ctx: u64,
    #[serde(default)]
    total_err: u64,
    job_runtime: u64,
}

/// The reads or the writes of a job.
#[derive(Default, Deserialize)]
struct Side {
    io_bytes: u64,
    /// Milliseconds.
    runtime: u64,
    total_ios: u64,
    short_ios: u64,
    lat_ns: Bins,
}

#[derive(Default, Deserialize)]
struct Bins {
    #[serde(default)]
    bins: BTreeMap<String, u64>,
}

/// Reads the output of `--output-format=json+`. fio prints messages into it, before and after the
/// document (axboe/fio#731), so that it is looked for.
pub(crate) fn parse(text: &str) -> Result<Output> {
    let start = if text.starts_with('{') {
        0
    } else {
        text.find("\n{").context("no JSON")? + 1
    };
    let mut documents = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Document>();
    let document = documents
        .next()
        .context("no JSON")?
        .context("fio's JSON has a new form")?;
    let job = document.jobs.first().context("fio reports no job")?;
    let sides = [&job.read, &job.write];
    let sum = |field: fn(&Side) -> u64| sides.iter().map(|side| field(side)).sum();
    let bins = sides.iter().flat_map(|side| &side.lat_ns.bins);
    Ok(Output {
        version: document.version.trim_start_matches("fio-").to_owned(),
        duration_ns: job.read.runtime.max(job.write.runtime) * 1_000_000,
        ops: sum(|side| side.total_ios),
        bytes: sum(|side| side.io_bytes),
        errors: job.total_err,
        short: sum(|side| side.short_ios),
        user_ns: share_of(job.usr_cpu, job.job_runtime),
        sys_ns: share_of(job.sys_cpu, job.job_runtime),
        ctxsw: job.ctx,
        bins: bins
            .filter_map(|(ns, count)| Some((ns.parse().ok()?, *count)))
            .collect(),
    })
}

/// Per cent of milliseconds, in nanoseconds.
fn share_of(percent: f64, milliseconds: u64) -> u64 {
    let milliseconds = u32::try_from(milliseconds).unwrap_or(u32::MAX);
    let seconds = percent.max(0.0) / 100.0 * f64::from(milliseconds) / 1000.0;
    let time = std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = r#"{"fio version":"fio-3.33","jobs":[{"usr_cpu":6.0,"sys_cpu":43.0,
        "ctx":2656,"total_err":0,"job_runtime":200,"read":{"io_bytes":43577344,"runtime":201,
        "total_ios":10636,"short_ios":0,"lat_ns":{"bins":{"40490":3,"75000":10}}}}]}"#;

    #[test]
    fn messages_around_the_document_do_no_harm() {
        let text = format!("fio: a warning {{x}}\n{DOCUMENT}\nfio: another\n");
        let output = parse(&text).unwrap();
        assert_eq!(output, parse(DOCUMENT).unwrap());
        assert_eq!((output.ops, output.duration_ns), (10_636, 201_000_000));
        assert_eq!((output.user_ns, output.sys_ns), (12_000_000, 86_000_000));
        assert_eq!(output.bins, [(40_490, 3), (75_000, 10)]);
    }

    #[test]
    fn reads_and_writes_are_added_up() {
        let write = r#""write":{"io_bytes":4096,"runtime":300,"total_ios":1,"short_ios":1,
            "lat_ns":{"bins":{"75000":1}}},"read":"#;
        let output = parse(&DOCUMENT.replace("\"read\":", write)).unwrap();
        assert_eq!((output.ops, output.short), (10_637, 1));
        assert_eq!(output.duration_ns, 300_000_000);
        assert_eq!(output.bins, [(40_490, 3), (75_000, 10), (75_000, 1)]);
    }

    #[test]
    fn no_document_is_an_error() {
        assert!(parse("fio: engine io_uring not loadable\n").is_err());
    }
}
