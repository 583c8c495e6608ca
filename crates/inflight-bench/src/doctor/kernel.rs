//! Kernels with known defects: the only check by version, because a defect cannot be asked for.

use std::fmt::Write;

use super::explain::Topic;
use super::{Found, Site};

pub(super) const ID: &str = "kernel";

pub(super) const TOPICS: &[Topic] = &[Topic {
    id: ID,
    text: "Some kernels lose completions, hang or put data in the wrong place. What a kernel can \
        do is asked by trying; its defects cannot be tried out safely, so they are looked up by \
        version. Distributions repair defects without changing the upstream version: where a row \
        applies, look for its fix in the change log of your kernel package. Until then \
        INFLIGHT_BACKEND=threads keeps programs that use this library away from io_uring, without \
        a new build.",
}];

/// Major, minor, patch.
type Version = (u32, u32, u32);

/// A defect, the first version with it and the first without it, and where it is described.
struct Defect {
    since: Version,
    fixed: Version,
    /// The file system on which it shows, if not on all.
    only_on: Option<&'static str>,
    /// Whether data is at risk, or a program can hang for good.
    grave: bool,
    what: &'static str,
    link: &'static str,
}

const DEFECTS: &[Defect] = &[
    Defect {
        since: (5, 1, 0),
        fixed: (5, 13, 0),
        only_on: None,
        grave: true,
        what: "reads and writes by io_uring hang on devices of LVM",
        link: "https://github.com/canonical/lxd/issues/10061",
    },
    Defect {
        since: (5, 11, 0),
        fixed: (5, 14, 19),
        only_on: None,
        grave: true,
        what: "io_uring loses completions of writes",
        link: "https://jira.mariadb.org/browse/MDEV-26674",
    },
    Defect {
        since: (5, 15, 0),
        fixed: (5, 15, 3),
        only_on: None,
        grave: true,
        what: "io_uring loses completions of writes",
        link: "https://jira.mariadb.org/browse/MDEV-26674",
    },
    Defect {
        since: (5, 16, 8),
        fixed: (5, 17, 0),
        only_on: Some("btrfs"),
        grave: true,
        what: "io_uring hangs on btrfs",
        link: "https://github.com/NixOS/nixpkgs/issues/160516",
    },
    Defect {
        since: (6, 1, 64),
        fixed: (6, 1, 66),
        only_on: Some("ext4"),
        grave: true,
        what: "direct writes with O_SYNC can land at the wrong place of a file on ext4",
        link: "https://bugs.debian.org/cgi-bin/bugreport.cgi?bug=1057843",
    },
    Defect {
        since: (6, 1, 115),
        fixed: (6, 1, 119),
        only_on: None,
        grave: true,
        what: "processes that use io_uring can stall and cannot be killed",
        link: "https://github.com/amazonlinux/amazon-linux-2023/issues/840",
    },
    Defect {
        since: (6, 6, 57),
        fixed: (6, 6, 60),
        only_on: None,
        grave: true,
        what: "processes that use io_uring can stall and cannot be killed",
        link: "https://github.com/NixOS/nixpkgs/issues/353709",
    },
    Defect {
        since: (6, 15, 4),
        fixed: (6, 15, 5),
        only_on: None,
        grave: false,
        what: "io_uring answers with a long delay",
        link: "https://github.com/ghostty-org/ghostty/issues/7724",
    },
    Defect {
        since: (6, 7, 0),
        fixed: (6, 12, 21),
        only_on: None,
        grave: false,
        what: "io_uring answers ENOMEM though there is memory, when it is in pieces",
        link: "https://github.com/scylladb/seastar/issues/2728",
    },
    Defect {
        since: (5, 1, 0),
        fixed: (6, 6, 86),
        only_on: None,
        grave: false,
        what: "io_uring answers ENOMEM though there is memory, when it is in pieces",
        link: "https://github.com/scylladb/seastar/issues/2728",
    },
    Defect {
        since: (6, 13, 0),
        fixed: (6, 13, 9),
        only_on: None,
        grave: false,
        what: "io_uring answers ENOMEM though there is memory, when it is in pieces",
        link: "https://github.com/scylladb/seastar/issues/2728",
    },
];

/// What is known against the running kernel, each defect on a line.
pub(super) fn check(site: &Site) -> Vec<Found> {
    let release = &site.machine.kernel;
    let Some(version) = parsed(release) else {
        return vec![Found::unknown(ID, format!("`{release}` is no version"))];
    };
    let concerns = |defect: &&Defect| {
        let on_it = defect.only_on.is_none_or(|fs| site.target.fs == fs);
        on_it && (defect.since..defect.fixed).contains(&version)
    };
    let known: Vec<Found> = DEFECTS.iter().filter(concerns).map(found).collect();
    match known.is_empty() {
        true => vec![Found::ok(
            ID,
            format!("nothing is known against Linux {release}"),
        )],
        false => known,
    }
}

fn found(defect: &Defect) -> Found {
    let Defect { what, link, .. } = defect;
    let (major, minor, patch) = defect.fixed;
    let finding = format!("before Linux {major}.{minor}.{patch}, {what}");
    let (found, fix) = match defect.grave {
        true => (
            Found::warning(ID, finding),
            "update the kernel; until then INFLIGHT_BACKEND=threads",
        ),
        false => (Found::note(ID, finding), "update the kernel"),
    };
    let so = format!("Unless your distribution has repaired it in this version: see {link}");
    found.so(so).fix(fix).spoils(super::Spoils::Rings)
}

/// The beginning of a release, as in `6.1.64-1-amd64` or `6.18-rc3`.
fn parsed(release: &str) -> Option<Version> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let mut next = || numbers.next()?.parse::<u32>().ok();
    Some((next()?, next()?, next().unwrap_or(0)))
}

/// All defects, for `--explain`.
pub(super) fn table() -> String {
    let mut table = String::new();
    for defect in DEFECTS {
        let number = |(major, minor, patch): Version| format!("{major}.{minor}.{patch}");
        let (since, fixed) = (number(defect.since), number(defect.fixed));
        _ = writeln!(
            table,
            "\n {since} and later, before {fixed}: {}",
            defect.what
        );
        _ = writeln!(table, "   {}", defect.link);
    }
    table
}

#[cfg(test)]
mod tests {
    use inflight_report::doctor::Status;

    use super::*;

    fn on(kernel: &str, fs: &str) -> Vec<Found> {
        let mut site = Site::in_tree(std::path::Path::new("/nowhere"), &[]);
        kernel.clone_into(&mut site.machine.kernel);
        fs.clone_into(&mut site.target.fs);
        check(&site)
    }

    fn links(kernel: &str, fs: &str) -> String {
        let found = on(kernel, fs);
        let links: Vec<String> = found
            .into_iter()
            .map(|found| found.line.consequence)
            .collect();
        links.join(" ")
    }

    #[test]
    fn a_defect_ends_with_the_version_that_repairs_it() {
        assert!(links("6.1.64-1-amd64", "ext4").contains("1057843"));
        assert!(links("6.1.65", "ext4").contains("1057843"));
        assert!(!links("6.1.66", "ext4").contains("1057843"));
        assert!(!links("6.1.63", "ext4").contains("1057843"));
        assert!(links("5.14.18", "xfs").contains("MDEV-26674"));
        assert!(!links("5.14.19", "xfs").contains("MDEV-26674"));
        assert!(links("5.15.2", "xfs").contains("MDEV-26674"));
        assert!(links("6.6.59", "xfs").contains("353709"));
        assert!(!links("6.6.60", "xfs").contains("353709"));
    }

    #[test]
    fn a_defect_of_one_file_system_shows_on_that_alone() {
        assert!(!links("6.1.64", "xfs").contains("1057843"));
    }

    #[test]
    fn versions_are_read_whatever_follows() {
        assert_eq!(parsed("6.18-rc3"), Some((6, 18, 0)));
        assert_eq!(parsed("6.1.115-126.197.amzn2023"), Some((6, 1, 115)));
        assert_eq!(parsed("mainline"), None);
        assert_eq!(on("6.18.44", "ext4")[0].line.status, Status::Ok);
        assert_eq!(on("", "ext4")[0].line.status, Status::Unknown);
    }

    #[test]
    fn every_row_has_its_link_and_a_range() {
        for defect in DEFECTS {
            assert!(defect.link.starts_with("https://"), "{}", defect.what);
            assert!(defect.since < defect.fixed, "{}", defect.link);
            assert!(table().contains(defect.link));
        }
    }
}
