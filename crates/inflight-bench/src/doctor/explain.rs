//! `inflight doctor --explain ID`: a paragraph for each id, kept beside the check that raises it.

use std::fmt::Write;

use anyhow::Result;
use inflight_report::unsteady::{DRIFTED, LEFT_OUT, UNSETTLED};

use super::{
    cgroup, clock, device, direct_io, file_system, governor, halt, huge_pages, io_uring, iopoll,
    kernel, memlock, numa, queue, read_ahead, scheduler, space, write_cache,
};
use crate::exit::usage;
use crate::findings::{CACHE_BELOW, DISK_NOT_SHOWN, FALLBACK, TIMING};

/// An id, and what there is to say about it beyond one line.
pub(super) struct Topic {
    pub(super) id: &'static str,
    pub(super) text: &'static str,
}

/// What only a benchmark finds.
const OF_RUNS: &[Topic] = &[
    Topic {
        id: CACHE_BELOW,
        text: "Before the first profile that reads past the page cache, a few hundred blocks that \
            nobody had read in the run were read, each group of them twice. A disk takes as long \
            for the second reading. Where that was clearly faster, something below keeps what it \
            has read: the page cache of a hypervisor (cache=writeback or unsafe of a virtual \
            disk), the memory of a controller, or that of the file a loop device is made of. \
            Then a benchmark that reads the same data again and again measures this cache. Data \
            that is much larger than it, or cache=none, shows the disk. What was written just \
            before may be in such a cache as a whole: then nothing is seen, so test with a file \
            that is old.",
    },
    Topic {
        id: DISK_NOT_SHOWN,
        text: "The kernel counts what a process fetches from devices (/proc/self/io), and by that \
            it is told whether a disk was read, or memory: the page cache, a file system in \
            memory, or the holes of a file that was never written. Where there is no /proc, as in \
            a bare chroot, or where the kernel was built without that count, nobody can tell, and \
            such figures may be those of memory. Mount /proc, and take a file that was written.",
    },
    Topic {
        id: FALLBACK,
        text: "The library does what it can where something is refused: another backend where \
            io_uring is, its threads where no ring can be had, a transfer without a hint that the \
            kernel does not take. It tells each, with the reason and what to do about it; a \
            program finds the same in Engine::stats, under fallbacks. These rows show what an \
            application would get on this machine as it is, not what the library can do where \
            nothing is refused.",
    },
    Topic {
        id: TIMING,
        text: "Of fast operations only one in so many is timed, so that reading the clock and \
            counting take 1 % of the fastest: as many in all rows of a profile, so that none has \
            more of it than another. That is found before the first round. These rows were more \
            than twice as fast later, as a processor is that another program had slowed down. The \
            figure here is the most it can be: two readings for each operation that is timed. \
            Rates of these rows are too low by it, and their median latency is too long.",
    },
    Topic {
        id: DRIFTED,
        text: "The rates of these cells went up or down from round to round by more than 3 %, in \
            an order that chance alone brings about in one run of twenty over all cells of a \
            profile (Spearman's rank correlation with time, counted exactly). A disk that gets \
            warm, a neighbour, credits of a cloud disk that run out, or garbage collection of an \
            SSD do that. Ratios hurt little, because they are of rounds that ran side by side; \
            rates do. Run again when the machine is quiet, or longer.",
    },
    Topic {
        id: LEFT_OUT,
        text: "Without --rounds and --max-time a run is done in time: two minutes, with --quick 25 \
            seconds, or a quarter more than planned where that is longer, the writing of its data \
            included. Each profile has its part of what the clock has left. Where not all cells \
            have time for the 6 rounds below which no verdict is sure, those that it needs least \
            rest from the first round on, or a later one, and are not ranked; and where a round \
            takes so long that another would not fit, none is begun. The figures are right, there \
            are fewer of them. Other programs on this machine, and a disk that takes long to write \
            the data, do that.",
    },
    Topic {
        id: UNSETTLED,
        text: "A solid state disk that was not written to for a while has room to write fast, and \
            loses it. SNIA's test specification calls a disk steady when five rounds are within 20 \
            % of their mean and the line through them moves by 10 % at most. The last five rounds \
            of these cells are not. More rounds, after the disk was written over twice, show what \
            it does for long; a rate of this run is of its first minutes.",
    },
];

/// In the order of the checks.
const TOPICS: &[&[Topic]] = &[
    io_uring::TOPICS,
    memlock::TOPICS,
    direct_io::TOPICS,
    kernel::TOPICS,
    file_system::TOPICS,
    device::TOPICS,
    iopoll::TOPICS,
    scheduler::TOPICS,
    queue::TOPICS,
    read_ahead::TOPICS,
    write_cache::TOPICS,
    space::TOPICS,
    cgroup::TOPICS,
    governor::TOPICS,
    halt::TOPICS,
    huge_pages::TOPICS,
    clock::TOPICS,
    numa::TOPICS,
    OF_RUNS,
];

/// Columns of the paragraphs.
const WIDTH: usize = 80;

fn topics() -> impl Iterator<Item = &'static Topic> {
    TOPICS.iter().copied().flatten()
}

/// Whether there is a paragraph for it.
pub(crate) fn is_explained(id: &str) -> bool {
    topics().any(|topic| topic.id == id)
}

/// The paragraph for one id, or for all of them.
///
/// # Errors
/// A usage error that lists the ids, if this is none.
pub(super) fn text(id: &str) -> Result<String> {
    let wanted = topics().filter(|topic| id == "all" || topic.id == id);
    let paragraphs: Vec<String> = wanted
        .map(|topic| format!("{}\n{}", topic.id, folded(topic.text)))
        .collect();
    if paragraphs.is_empty() {
        let mut ids: Vec<&str> = topics().map(|topic| topic.id).collect();
        ids.sort_unstable();
        let ids = ids.join(", ");
        return Err(usage(format!(
            "nothing is known about `{id}`; known are {ids}"
        )));
    }
    let mut text = paragraphs.join("\n");
    if id != "all" && id == kernel::ID {
        text += &kernel::table();
    }
    Ok(text)
}

fn folded(text: &str) -> String {
    let (mut folded, mut line) = (String::new(), String::new());
    for word in text.split_whitespace() {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            _ = writeln!(folded, " {line}");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    _ = writeln!(folded, " {line}");
    folded
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_id_is_explained_once_and_in_sentences() {
        let mut seen = HashSet::new();
        for topic in topics() {
            assert!(seen.insert(topic.id), "{} is there twice", topic.id);
            assert!(
                topic.text.ends_with('.') && topic.text.len() > 150,
                "{}",
                topic.id
            );
        }
    }

    #[test]
    fn an_unknown_id_is_a_usage_error_that_lists_the_known() {
        let error = text("no-such-id").unwrap_err();
        assert_eq!(crate::exit::code_of(&error), crate::exit::USAGE);
        assert!(error.to_string().contains("iopoll"), "{error}");
    }

    #[test]
    fn a_paragraph_is_folded() {
        for line in text("all").unwrap().lines() {
            assert!(line.chars().count() <= WIDTH + 1, "{line}");
        }
    }
}
