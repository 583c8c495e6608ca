//! A file system in user space: this one, in a thread of the test.

use inflight_report::doctor::Status;

use super::{doctor, examine, is_root, line};
use crate::slow_disk::{Habit, Mounted};

#[test]
fn a_file_system_in_user_space_is_told() {
    let Some(disk) = Mounted::new("a_file_system_in_user_space_is_told", Habit::None) else {
        assert!(!is_root(), "root may mount");
        return;
    };
    let (_, examination) = examine(&mut doctor(disk.directory.path()));
    assert!(examination.target.fs.starts_with("fuse"), "{examination:?}");
    let found = line(&examination, "file-system");
    assert_eq!(found.status, Status::Warning);
    assert!(found.finding.contains("user space"), "{found:?}");
    assert_eq!(line(&examination, "pseudo-device").status, Status::Unknown);
    let direct = line(&examination, "direct-io");
    assert_eq!(
        direct.status,
        Status::Unknown,
        "a file cannot be made: {direct:?}"
    );

    let (_, examination) = examine(&mut doctor(&disk.file()));
    let direct = line(&examination, "direct-io");
    assert_eq!(
        direct.status,
        Status::Warning,
        "no device serves it: {direct:?}"
    );
    disk.end();
}
