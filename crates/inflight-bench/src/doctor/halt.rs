//! How soon an idle processor of a virtual machine is halted.

use super::explain::Topic;
use super::{Found, Site, Spoils};

const ID: &str = "halted-at-once";

pub(super) const TOPICS: &[Topic] = &[Topic {
    id: ID,
    text: "A processor with nothing to do is halted, and in a virtual machine that is an exit to \
        the hypervisor, as is the interrupt that ends it. A thread that waits for a fast disk \
        with nothing else running pays for both each time, 20 us and more. With the governor \
        haltpoll the kernel looks for work for up to guest_halt_poll_ns before it halts, which \
        spares that for some processor time; 0 switches it off, 200000 is the kernel's own \
        default. The setting lasts until the next start. The library looks for completions by \
        itself where it measures that this pays; plain calls cannot.",
}];

const GOVERNOR: &str = "sys/devices/system/cpu/cpuidle/current_governor";
const POLL_NS: &str = "sys/module/haltpoll/parameters/guest_halt_poll_ns";

/// One line where the guest has a say, else none.
pub(super) fn check(site: &Site) -> Vec<Found> {
    if !site.machine.virtualised || site.line(GOVERNOR).as_deref() != Some("haltpoll") {
        return Vec::new();
    }
    let Some(poll_ns) = site.line(POLL_NS).and_then(|ns| ns.parse::<u64>().ok()) else {
        return vec![Found::unknown(
            ID,
            "the kernel does not tell how soon an idle processor is halted",
        )];
    };
    let found = match poll_ns {
        0 => Found::note(ID, "an idle processor is halted at once")
            .so("A wait for a fast disk with nothing else to do begins and ends in the hypervisor")
            .fix(format!("echo 200000 | sudo tee /{POLL_NS}"))
            .spoils(Spoils::Nothing),
        _ => {
            let finding = format!("an idle processor looks for work for {poll_ns} ns at most");
            Found::ok(ID, finding)
        }
    };
    vec![found]
}

#[cfg(test)]
mod tests {
    use inflight_report::doctor::Status;

    use super::*;
    use crate::doctor::site::Tree;

    fn found(governor: &str, poll_ns: Option<&str>, virtualised: bool) -> Option<Status> {
        let mut files = vec![(GOVERNOR, governor)];
        files.extend(poll_ns.map(|ns| (POLL_NS, ns)));
        let tree = Tree::of(&files);
        let mut site = tree.site(&[]);
        site.machine.virtualised = virtualised;
        let found = check(&site);
        found.first().map(|found| found.line.status)
    }

    #[test]
    fn a_guest_that_could_look_for_work_and_does_not_is_told_so() {
        assert_eq!(found("haltpoll\n", Some("0\n"), true), Some(Status::Note));
        assert_eq!(
            found("haltpoll\n", Some("200000\n"), true),
            Some(Status::Ok)
        );
        assert_eq!(found("haltpoll\n", None, true), Some(Status::Unknown));
    }

    #[test]
    fn nothing_is_said_where_it_has_no_say() {
        assert_eq!(found("menu\n", Some("0\n"), true), None);
        assert_eq!(found("haltpoll\n", Some("0\n"), false), None);
    }
}
