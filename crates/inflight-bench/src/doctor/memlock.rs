//! Locked memory: the limit, and whether what the library needs can really be had.

use super::explain::Topic;
use super::probe::{BUFFERS_BYTES, DEEP_ENTRIES};
use super::{Found, Site, Spoils};
use crate::measure::host;
use crate::size::human;

const ID: &str = "memlock";

pub(super) const TOPICS: &[Topic] = &[
    Topic {
        id: ID,
        text: "Registered buffers, and on most kernels rings, count as locked memory. The limit \
            (RLIMIT_MEMLOCK) is for all processes of a user together, and what a closed ring held \
            is given back late. Beyond it the kernel answers ENOMEM: the library then takes \
            smaller rings, goes without registered buffers, and at last uses threads; it never \
            fails for it. A process with CAP_IPC_LOCK is not counted. To raise the limit: \
            LimitMEMLOCK= in a systemd unit, --ulimit memlock=-1 for Docker, a line in \
            /etc/security/limits.conf for logins.",
    },
    Topic {
        id: "buffers-not-registered",
        text: "A contestant of `inflight bench` asked for registered buffers and the kernel \
            refused, nearly always because of the limit of locked memory (see memlock). Its \
            figures are those of plain buffers, which the kernel has to look up and pin for each \
            operation: they cost processor time, most where the device is fast.",
    },
];

/// CAP_IPC_LOCK, of linux/capability.h.
const CAP_IPC_LOCK: u32 = 14;

/// For the shell in which it is run.
const FIX: &str = "sudo prlimit --memlock=unlimited --pid $$";

/// What the limit is by default since Linux 5.16.
const USUAL_BYTES: u64 = 8 << 20;

/// The limit against what was really granted.
pub(super) fn check(site: &Site) -> Vec<Found> {
    let status = site.text("proc/self/status").unwrap_or_default();
    let limit = match site.machine.memlock_bytes {
        _ if has_ipc_lock(&status) => "not limited for this process (CAP_IPC_LOCK)".to_owned(),
        None => "not limited".to_owned(),
        Some(bytes) => format!("limited to {}", human(bytes)),
    };
    let ring = site.ring();
    if ring.errno("setup") != Some(Ok(())) {
        let finding = format!("locked memory is {limit}; there is no ring to try it with");
        return vec![Found::unknown(ID, finding)];
    }
    let short = Some(Err(libc::ENOMEM));
    let buffers = human(BUFFERS_BYTES as u64);
    let found = match (ring.errno("deep"), ring.errno("buffers")) {
        (deep, _) if deep == short => Found::warning(
            ID,
            format!("a ring of {DEEP_ENTRIES} entries gets no memory; locked memory is {limit}"),
        )
        .so("Rings are smaller than they should be, or threads are used"),
        (_, registered) if registered == short => Found::warning(
            ID,
            format!("buffers of {buffers} cannot be registered; locked memory is {limit}"),
        )
        .so("Each operation looks its buffer up and pins it, which costs processor time"),
        (Some(Ok(())), Some(Ok(()))) => return vec![enough(site, &status, &limit, &buffers)],
        _ => {
            return vec![Found::unknown(
                ID,
                format!("locked memory is {limit}; not tried"),
            )];
        }
    };
    vec![found.fix(FIX).spoils(Spoils::Rings)]
}

fn enough(site: &Site, status: &str, limit: &str, buffers: &str) -> Found {
    let finding = format!(
        "a ring of {DEEP_ENTRIES} entries and {buffers} of registered buffers were granted; \
         locked memory is {limit}"
    );
    match site.machine.memlock_bytes {
        Some(bytes) if bytes < USUAL_BYTES && !has_ipc_lock(status) => Found::note(ID, finding)
            .so("All processes of this user share it: a few programs with rings use it up")
            .fix(FIX),
        _ => Found::ok(ID, finding),
    }
}

fn has_ipc_lock(status: &str) -> bool {
    let effective = host::field(status, "CapEff:");
    let bits = effective.and_then(|bits| u64::from_str_radix(bits, 16).ok());
    bits.is_some_and(|bits| bits & (1 << CAP_IPC_LOCK) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capability_is_one_bit() {
        assert!(has_ipc_lock("CapEff:\t000001ffffffffff\n"));
        assert!(has_ipc_lock("CapEff:\t0000000000004000\n"));
        assert!(!has_ipc_lock("CapEff:\t000001ffffffbfff\n"));
        assert!(!has_ipc_lock(""));
    }
}
