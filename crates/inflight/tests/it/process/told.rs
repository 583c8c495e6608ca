//! What a forked child tells of results that its parent has left it.

use inflight::fs::Direct;
use inflight::{Batch, Operation, Priority};

use crate::support::own::{in_forked_child, in_own_process};
use crate::support::{given_up, on_every_backend, pattern, read_write, skip, temp_path};

#[test]
fn a_forked_child_counts_what_was_given_up_and_does_not_wait_to_tell_why() {
    let test = "a_forked_child_counts_what_was_given_up_and_does_not_wait_to_tell_why";
    in_own_process(module_path!(), test, || {
        on_every_backend(|engine| {
            let path = temp_path(&pattern(8192));
            let auto = read_write(engine).direct(Direct::Auto);
            let auto = auto.open(path.path()).expect("it is there");
            let buffered = read_write(engine).open(path.path()).expect("it is there");
            if !auto.is_direct() {
                return skip("results in a child", "there is no direct I/O");
            }
            let mut batch = Batch::on(engine);
            batch.push(auto.read_at(vec![0; 100], 1));
            let hint = Priority::Latency;
            batch.push(buffered.read_at(vec![0; 100], 1).priority(hint));
            let told = || ["Direct::Auto", "priority"].map(|part| given_up(engine, part).len());
            let results = batch.wait();
            in_forked_child(|| {
                for (result, _) in results {
                    assert_eq!(result.expect("it was read before"), 100);
                }
                let stats = engine.stats();
                assert_eq!((stats.unaligned, stats.hints_unheard), (1, 1));
                assert_eq!(told(), [0, 0]);
            });
            let (result, _) = auto.read_at(vec![0; 100], 1).wait();
            assert_eq!(result.expect("it is read"), 100);
            assert_eq!(told()[0], 1);
        });
    });
}
