//! The library's run loop: a program with a thread for each core has one on each. What its tasks
//! share needs no lock.
//!
//! `cargo run --release -p inflight --example local -- FILE`

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use inflight::fs::OpenOptions;
use inflight::local;

fn main() -> io::Result<()> {
    let path = std::env::args_os().nth(1);
    let path = path.ok_or_else(|| io::Error::other("give a file to read"))?;
    local::run(async {
        let file = OpenOptions::new().read(true).opening(path).await?;
        let file = Rc::new(file);
        let bytes = Rc::new(Cell::new(0));
        let tasks: Vec<_> = (0..32)
            .map(|task| {
                let (file, bytes) = (Rc::clone(&file), Rc::clone(&bytes));
                local::spawn(async move {
                    let mut buf = vec![0; 4096];
                    for block in (task..1024).step_by(32) {
                        let (result, back) = file.read_at(buf, block * 4096).await;
                        bytes.set(bytes.get() + result?);
                        buf = back;
                    }
                    io::Result::Ok(())
                })
            })
            .collect();
        for task in tasks {
            task.await?;
        }
        local::sleep(Duration::from_millis(1))?.await?;
        println!("{} bytes", bytes.get());
        Ok(())
    })?
}
