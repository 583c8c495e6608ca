//! `inflight bench --dry-run`: what would be measured, and the same as a job for fio.
//!
//! Writes nothing and measures nothing. All of it is one job file, in which the plan is comment:
//! fio can run what is printed, as an outside check of the whole plan.

use std::path::Path;

use anyhow::Result;
use inflight_report::record::{Access, ProfileSummary, Sync};
use inflight_report::text::clean;

use crate::cli::Options;
use crate::exit;
use crate::measure::host;
use crate::plan::{Plan, PlannedProfile};
use crate::profile::{PageCache, Profile};
use crate::show;
use crate::size::human;
use crate::strategy::{HUGE_PAGES, fio_access, fio_lengths, fio_memory, fio_path, fio_together};
use crate::target::{self, Place};
use crate::timetable;
use crate::work::Work;

/// Prints the plan and returns the exit code.
pub(crate) fn print(options: &Options) -> Result<u8> {
    let plan = Plan::new(options, host::cpus())?;
    let target = &options.target;
    // A plan may be made for another machine, where what is named is there.
    let place = match target.symlink_metadata() {
        Ok(_) => target::examine(target)?,
        Err(_) => Place::Directory(target.clone()),
    };
    let size_bytes = place.size_for(options, &plan.asked())?;
    let file = match &place {
        Place::File { path, .. } => path.clone(),
        Place::Directory(directory) => directory.join("inflight-fio-data"),
    };
    let would = "Nothing was measured: this is what `inflight bench` would do";
    let (heading, job) = match fio_path(&file) {
        Ok(name) => (
            [
                format!("{would}, and below it the same reads"),
                "and writes as a job for fio.".to_owned(),
            ],
            job(options, &plan, (&file, &name), size_bytes),
        ),
        Err(why) => (
            [
                format!("{would}."),
                format!("The same as a job for fio is left out: {why}."),
            ],
            String::new(),
        ),
    };
    show::print(&(summary(options, &plan, size_bytes, heading) + &job))?;
    Ok(exit::DONE)
}

/// The plan for people, as comment.
fn summary(options: &Options, plan: &Plan, size_bytes: u64, heading: [String; 2]) -> String {
    let mut lines = Vec::from(heading);
    lines.extend([
        String::new(),
        format!("target: {}", options.target.display()),
        format!("test data: {}", human(size_bytes)),
        format!("plan: {}", plan.hash(size_bytes)),
        format!(
            "{} cells, {} rounds of {} ms for each, after {} ms that do not count (more where \
             files grow by synced writes)",
            plan.profiles.iter().flat_map(PlannedProfile::runs).count(),
            plan.rounds,
            plan.measured.as_millis(),
            plan.warmup.as_millis()
        ),
        format!("expected: {}", timetable::told(plan, plan.expected())),
    ]);
    lines.extend(plan.left_out.told(options.quick));
    for planned in &plan.profiles {
        lines.push(String::new());
        let ProfileSummary { name, title, .. } = planned.profile.summary();
        lines.push(format!("{name}: {}", clean(&title)));
        lines.extend(cells(planned));
    }
    let comment = |line: String| format!("; {line}").trim_end().to_owned() + "\n";
    lines.into_iter().map(comment).collect()
}

/// The strategies of a profile with their depths.
fn cells(planned: &PlannedProfile) -> Vec<String> {
    let mut groups: Vec<(&str, Vec<String>)> = Vec::new();
    for cell in planned.runs() {
        let name = cell.strategy.name();
        let threads = match cell.shape.threads {
            0 | 1 => String::new(),
            threads => format!("x{threads}"),
        };
        let rate = match cell.rate_per_s {
            None => String::new(),
            Some(rate) => format!(" at {rate}/s"),
        };
        let depth = format!("{}{threads}{rate}", cell.shape.depth);
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, depths)) => depths.push(depth),
            None => groups.push((name, vec![depth])),
        }
    }
    let line =
        |(name, depths): &(&str, Vec<String>)| format!("  {name}: depth {}", depths.join(", "));
    groups.iter().map(line).collect()
}

/// The job: a section for each profile and depth, one after the other. The file has its name as
/// fio takes it beside it.
fn job(options: &Options, plan: &Plan, (file, name): (&Path, &str), size_bytes: u64) -> String {
    let rates: Vec<Option<u64>> = match options.rates.as_slice() {
        [] => vec![None],
        rates => rates.iter().copied().map(Some).collect(),
    };
    let mut text = format!(
        "\n[global]\nioengine=io_uring\nfilename={name}\ntime_based=1\n\
         runtime={}ms\nnorandommap=1\nrandrepeat=0\nrefill_buffers=1\n",
        (plan.measured * plan.rounds).as_millis().max(1)
    );
    for planned in &plan.profiles {
        let profile = &planned.profile;
        // A file that was there before is never written to: not by fio either.
        if file == options.target && profile.writes() {
            text += &format!("\n; {} writes, and has no section here\n", profile.name);
            continue;
        }
        for depth in &profile.asked.queue_depths {
            for rate in &rates {
                text += &section(profile, *depth, *rate, size_bytes);
                text += &format!("ramp_time={}ms\n", plan.warmup(profile).as_millis());
            }
        }
    }
    text
}

fn section(profile: &Profile, depth: u32, rate: Option<u64>, size_bytes: u64) -> String {
    let at_rate = rate.map_or_else(String::new, |rate| format!("-at-{rate}"));
    let mut lines = vec![
        format!("\n[{}-{depth}{at_rate}]", profile.name),
        "stonewall".to_owned(),
    ];
    if let Some(rate) = rate {
        lines.push("; not the same: fio counts latencies from the call".to_owned());
        lines.push(format!("rate_iops={rate}"));
    }
    let work = profile.work(size_bytes);
    if let Some(missing) = not_in_fio(&profile.summary(), &work) {
        lines.push(format!("; {missing}"));
    }
    // The option that forbids writing is one of the command line only.
    let access = fio_access(&work).into_iter();
    let access = access.filter(|flag| flag != "--readonly");
    lines.extend(access.map(|flag| flag.trim_start_matches('-').to_owned()));
    lines.push(fio_lengths(&work).unwrap_or_else(|| format!("bs={}", work.block_bytes)));
    if let Some(aligned) = fio_memory(&work) {
        lines.push(format!(
            "; of huge pages, if {HUGE_PAGES} is among GLIBC_TUNABLES"
        ));
        lines.push(aligned);
    }
    lines.push(format!("iodepth={depth}"));
    lines.extend(fio_together(depth, work.batched));
    lines.push(format!("direct={}", u8::from(profile.direct())));
    let cache: &[&str] = match profile.asked.page_cache {
        PageCache::Warm => &["pre_read=1", "invalidate=0"],
        PageCache::Cold => &["invalidate=1"],
        // It has no option that leaves half of a file.
        PageCache::Half | PageCache::Unused => &[],
    };
    lines.extend(cache.iter().map(|&line| line.to_owned()));
    lines.extend(match profile.asked.sync {
        Sync::None => None,
        Sync::End => Some("end_fsync=1".to_owned()),
        Sync::Each => Some("fdatasync=1".to_owned()),
    });
    lines.join("\n") + "\n"
}

/// What the section leaves out, because fio has no option for it or another meaning.
fn not_in_fio(profile: &ProfileSummary, work: &Work) -> Option<&'static str> {
    match profile.access {
        _ if fio_lengths(work).is_none() => {
            Some("not the same: fio reads blocks of one size, the plan ranges")
        }
        Access::Append => Some("not the same: the plan writes to the end of a file that grows"),
        _ if profile.half_cached => Some("not the same: the plan has every other block in memory"),
        _ if profile.read_back => Some("not the same: the plan reads back what it has written"),
        _ if profile.files > 1 => Some("not the same: the plan has several files"),
        _ => None,
    }
}
