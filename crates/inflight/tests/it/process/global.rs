//! The engine that is used where none is named, in a forked child.

use inflight::Operation;
use inflight::fs::File;

use super::{PAGE, is_forked};
use crate::support::own::{in_forked_child, in_own_process, settle};
use crate::support::{pattern, temp_path};

#[test]
fn a_forked_child_has_a_global_engine_of_its_own() {
    let test = "a_forked_child_has_a_global_engine_of_its_own";
    in_own_process(module_path!(), test, || {
        let path = temp_path(&pattern(PAGE));
        let of_parent = File::open(path.path()).unwrap();
        assert!(of_parent.read_at(vec![0; PAGE], 0).wait().0.is_ok());
        for _ in 0..3 {
            settle();
            in_forked_child(|| {
                let (result, _) = of_parent.read_at(vec![0; PAGE], 0).wait();
                assert!(is_forked(&result.expect_err("forked")));
                let own = File::open(path.path()).unwrap();
                let (result, buf) = own.read_at(vec![0; PAGE], 0).wait();
                assert_eq!((result.unwrap(), buf), (PAGE, pattern(PAGE)));
                let read = inflight::local::run(async { own.read_at(vec![0; 9], 1).await.0 });
                assert_eq!(read.unwrap().unwrap(), 9);
                let (result, _) = pollster::block_on(async { own.read_at(vec![0; 9], 2).await });
                assert_eq!(result.unwrap(), 9);
            });
        }
        assert!(of_parent.read_at(vec![0; PAGE], 0).wait().0.is_ok());
    });
}
