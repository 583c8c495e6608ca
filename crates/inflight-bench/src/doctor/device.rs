//! Block devices that are no disks: made of files or memory, on the network, or encrypted.

use super::explain::Topic;
use super::{Found, Site, Spoils};

const PSEUDO: &str = "pseudo-device";
const ENCRYPTED: &str = "encrypted";

pub(super) const TOPICS: &[Topic] = &[
    Topic {
        id: PSEUDO,
        text: "loop, zram and ram devices are made of a file or of memory, nbd and rbd of a \
            server elsewhere. Their speed says nothing about a disk in this machine. They are \
            good for one thing: what software costs shows well where the device costs little. A \
            raw zram device moreover refuses to be asked without waiting (RWF_NOWAIT), so that \
            each request of a ring goes to a kernel worker.",
    },
    Topic {
        id: ENCRYPTED,
        text: "dm-crypt hands each request to a kernel thread for encryption and back, unless \
            told otherwise. On a fast disk these hand-overs cost more than the encryption itself. \
            With Linux 5.9 and cryptsetup 2.3.4 or newer, --perf-no_read_workqueue and \
            --perf-no_write_workqueue encrypt where the request is made. Measure before and \
            after: on slow processors the threads can be worth it.",
    },
];

/// Names of devices that are no disks, and what each is made of.
const KINDS: &[(&str, &str)] = &[
    ("loop", "a file"),
    ("zram", "compressed memory"),
    ("ram", "memory"),
    ("nbd", "a server elsewhere"),
    ("rbd", "a server elsewhere"),
];

/// One line for each device that is special, or one that says that none is.
pub(super) fn check(site: &Site) -> Vec<Found> {
    let stack = &site.target.stack;
    let names = stack.iter().map(|device| device.name.as_str());
    let mut found: Vec<Found> = names.filter_map(pseudo).collect();
    found.extend(
        stack
            .iter()
            .filter_map(|device| encrypted(site, &device.name)),
    );
    if found.is_empty() && !stack.is_empty() {
        let names: Vec<&str> = stack.iter().map(|device| device.name.as_str()).collect();
        let finding = format!("{}: no loop, memory or network device", names.join(", "));
        found.push(Found::ok(PSEUDO, finding));
    }
    if stack.is_empty() {
        let finding = format!("no block device was found below {}", site.target.path);
        found.push(Found::unknown(PSEUDO, finding));
    }
    found
}

fn pseudo(name: &str) -> Option<Found> {
    let (_, made_of) = KINDS.iter().find(|(kind, _)| {
        let number = name.strip_prefix(kind);
        number.is_some_and(|rest| rest.starts_with(|digit: char| digit.is_ascii_digit()))
    })?;
    let found = Found::warning(
        PSEUDO,
        format!("{name} is no disk: it is made of {made_of}"),
    )
    .so("Its speed says nothing about a disk; the cost of software shows well on it")
    .spoils(Spoils::Direct);
    Some(found)
}

fn encrypted(site: &Site, name: &str) -> Option<Found> {
    let uuid = site.line(&format!("sys/block/{name}/dm/uuid"))?;
    if !uuid.starts_with("CRYPT-") {
        return None;
    }
    let mapped = site
        .line(&format!("sys/block/{name}/dm/name"))
        .unwrap_or_else(|| name.to_owned());
    let fix = format!(
        "sudo cryptsetup refresh --perf-no_read_workqueue --perf-no_write_workqueue {mapped}"
    );
    let found = Found::note(ENCRYPTED, format!("{name} is encrypted (dm-crypt)"))
        .so("Requests may go through threads of the kernel, which costs on a fast disk")
        .fix(fix)
        .spoils(Spoils::Direct);
    Some(found)
}

#[cfg(test)]
mod tests {
    use inflight_report::doctor::Status;

    use super::*;
    use crate::doctor::site::Tree;

    #[test]
    fn devices_that_are_no_disks_are_named() {
        assert!(pseudo("loop0").is_some() && pseudo("zram1").is_some());
        assert!(pseudo("nvme0n1").is_none() && pseudo("ramparts").is_none());
        let nothing = Site::in_tree(std::path::Path::new("/nowhere"), &[]);
        assert_eq!(check(&nothing)[0].line.status, Status::Unknown);
    }

    #[test]
    fn an_encrypted_device_is_named_as_cryptsetup_knows_it() {
        let tree = Tree::of(&[
            ("sys/block/dm-0/dm/uuid", "CRYPT-LUKS2-0123"),
            ("sys/block/dm-0/dm/name", "home"),
        ]);
        let found = check(&tree.site(&["dm-0", "nvme0n1"]));
        assert!(found[0].line.fix.ends_with(" home"), "{found:?}");
        let plain = Tree::of(&[("sys/block/dm-0/dm/uuid", "LVM-0123")]);
        assert_eq!(check(&plain.site(&["dm-0"]))[0].line.status, Status::Ok);
    }
}
