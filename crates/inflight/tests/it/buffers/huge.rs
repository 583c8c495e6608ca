//! Large buffers are of huge pages, which several of them share.

use std::fs;
use std::thread;

use inflight::{AlignedBuf, BufPool};

use crate::support::own::{in_forked_child, in_own_process, settle};
use crate::support::skip;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn aligned(len: usize) -> AlignedBuf {
    AlignedBuf::new(len, 4096).expect("there is memory")
}

/// The mappings of this process for which huge pages are asked for: `VmFlags` of proc_pid_smaps(5).
fn advised() -> Vec<(usize, usize)> {
    let smaps = fs::read_to_string("/proc/self/smaps").expect("procfs is there");
    let mut range = (0, 0);
    let mut advised = Vec::new();
    for line in smaps.lines() {
        let mut words = line.split(' ');
        let first = words.next().expect("there is one");
        if let Some((start, end)) = first.split_once('-') {
            let parse = |text| usize::from_str_radix(text, 16).expect("an address");
            range = (parse(start), parse(end));
        } else if first == "VmFlags:" && words.any(|flag| flag == "hg") {
            advised.push(range);
        }
    }
    advised
}

fn is_advised(bytes: &[u8]) -> bool {
    let start = bytes.as_ptr().addr();
    let within = |(from, to): &(usize, usize)| (*from..*to).contains(&start);
    advised().iter().any(within)
}

fn has_huge_pages() -> bool {
    let known = fs::exists("/sys/kernel/mm/transparent_hugepage").expect("sysfs is there");
    if !known {
        skip(
            "large buffers",
            "the kernel was built without transparent huge pages",
        );
    }
    known
}

#[test]
fn large_memory_is_of_huge_pages_and_small_memory_is_not() {
    if !has_huge_pages() {
        return;
    }
    for len in [16 * KIB, 256 * KIB, MIB, 2 * MIB - 1, 2 * MIB, 5 * MIB + 1] {
        let buf = aligned(len);
        assert!(is_advised(&buf), "{len} bytes");
        assert!(is_advised(&buf[len - MIB.min(len)..]), "{len} bytes");
        assert!(buf.iter().all(|byte| *byte == 0), "{len} bytes");
    }
    for len in [4 * KIB, 16 * KIB - 1] {
        assert!(!is_advised(&aligned(len)), "{len} bytes");
    }
    // A ring is charged with the whole of a page that it knows a part of, for nothing if a buffer
    // is of one small page.
    let first_of = |count, len| BufPool::new(count, len).map(|pool| pool.take());
    let pools = [
        (32, 4 * KIB, false),
        (256, 4 * KIB, true),
        (2, 8 * KIB, true),
        (1, MIB, true),
        (16, MIB, true),
    ];
    for (count, len, is_huge) in pools {
        let buf = first_of(count, len).expect("there is memory");
        let buf = buf.expect("nobody has it");
        assert_eq!(is_advised(&buf), is_huge, "{count} of {len} bytes");
        assert!(buf.iter().all(|byte| *byte == 0), "{count} of {len} bytes");
    }
    // What is not filled by half is of small pages.
    let buf = aligned(4 * MIB + MIB / 2);
    assert!(!is_advised(&buf[4 * MIB..]));
}

#[test]
fn memory_that_comes_back_is_zeroed_for_the_next_and_nobody_has_that_of_another() {
    let lens = [16 * KIB, 50_000, 512 * KIB, MIB, 2 * MIB - 4096, 3 * MIB];
    let works = |mark: u8| {
        let mut had: Vec<(AlignedBuf, u8)> = Vec::new();
        for (step, salt) in (0..=u8::MAX).cycle().take(300).enumerate() {
            let len = lens[(step * 7 + usize::from(mark)) % lens.len()];
            let mut buf = aligned(len);
            assert_eq!(buf.as_ptr().addr() % 4096, 0);
            let untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
            assert!(untouched(&buf), "{len} bytes, step {step}");
            let own = mark.wrapping_mul(61).wrapping_add(salt) | 1;
            buf.fill(own);
            had.push((buf, own));
            if had.len() > 8 {
                let (buf, own) = had.swap_remove(step * 5 % had.len());
                let is_own = buf.iter().all(|byte| *byte == own);
                assert!(is_own, "another wrote to it, step {step}");
            }
        }
    };
    thread::scope(|scope| {
        (0..3).for_each(|mark| drop(scope.spawn(move || works(mark))));
    });
}

#[test]
fn memory_goes_back_to_the_kernel_and_a_buffer_may_be_dropped_in_a_forked_child() {
    let test = "memory_goes_back_to_the_kernel_and_a_buffer_may_be_dropped_in_a_forked_child";
    in_own_process(module_path!(), test, || {
        if !has_huge_pages() {
            return;
        }
        let bytes = || advised().iter().map(|(from, to)| to - from).sum::<usize>();
        let bufs: Vec<_> = (0..64).map(|_| aligned(MIB)).collect();
        assert_eq!(bytes(), 64 * MIB, "two share a page");
        drop(bufs);
        assert_eq!(bytes(), 2 * MIB, "one is kept");
        let mut own = aligned(MIB);
        own.fill(7);
        settle();
        let mut of_the_parent = Some(aligned(MIB));
        in_forked_child(|| {
            drop(of_the_parent.take());
            let mut bufs: Vec<_> = (0..4).map(|_| aligned(MIB)).collect();
            bufs.iter_mut().for_each(|buf| buf.fill(9));
            assert!(own.iter().all(|byte| *byte == 7));
            assert!(bufs.iter().all(|buf| buf.iter().all(|byte| *byte == 9)));
        });
        drop((own, of_the_parent));
        assert_eq!(bytes(), 2 * MIB);
    });
}
