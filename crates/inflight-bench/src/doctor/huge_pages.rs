//! Whether programs get huge pages.

use super::explain::Topic;
use super::{Found, Site};

const ID: &str = "huge-pages";

const ENABLED: &str = "sys/kernel/mm/transparent_hugepage/enabled";

pub(super) const TOPICS: &[Topic] = &[Topic {
    id: ID,
    text: "Direct I/O hands the disk a list of pieces of physical memory. Of small pages there is \
        one for each 4 KiB, of huge pages one alone, and some disks of virtual machines take twice \
        as long for a list as for one piece. The library has the memory of its buffers from 16 KiB \
        on in huge pages where the kernel gives them to those who ask (`madvise`, or `always`); \
        with `never` it gives none. `madvise` changes nothing for programs that do not ask. The \
        setting lasts until the next start.",
}];

pub(super) fn check(site: &Site) -> Vec<Found> {
    let Some(line) = site.line(ENABLED) else {
        let finding = "this kernel has no transparent huge pages";
        return vec![Found::note(ID, finding).so(SO)];
    };
    let chosen = line.split(['[', ']']).nth(1).unwrap_or_default();
    let finding = format!("transparent huge pages: {chosen}");
    vec![match chosen {
        "always" | "madvise" => Found::ok(ID, finding),
        "never" => Found::warning(ID, finding)
            .so(SO)
            .fix(format!("echo madvise | sudo tee /{ENABLED}")),
        _ => Found::unknown(ID, format!("{ENABLED} says: {line}")),
    }]
}

const SO: &str = "Direct transfers of 16 KiB and more are slower than they need be on some disks";

#[cfg(test)]
mod tests {
    use inflight_report::doctor::Status;

    use super::*;
    use crate::doctor::site::Tree;

    #[test]
    fn what_is_chosen_is_judged() {
        let of = |line| {
            check(&Tree::of(&[(ENABLED, line)]).site(&[]))
                .remove(0)
                .line
        };
        assert_eq!(of("always [madvise] never\n").status, Status::Ok);
        assert_eq!(of("[always] madvise never\n").status, Status::Ok);
        let never = of("always madvise [never]\n");
        assert_eq!(never.status, Status::Warning);
        assert_eq!(of("soon\n").status, Status::Unknown);
        assert_eq!(check(&Tree::of(&[]).site(&[]))[0].line.status, Status::Note);
    }
}
