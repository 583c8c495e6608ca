//! A key-value lookup over many files, as a storage engine does it: `read(fid, offset, buf)`, and a
//! multi-get that asks for many values at once.
//!
//! `cargo run --release -p inflight --example lookup` makes its own files in a temporary folder.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use inflight::fs::{AnyRange, Direct, File, OpenOptions};
use inflight::{Batch, Operation};

/// Where a value is: which file, at which offset, how long.
#[derive(Clone, Copy)]
struct Place {
    file: usize,
    offset: u64,
    len: usize,
}

struct Store {
    files: Vec<File>,
    index: HashMap<String, Place>,
}

impl Store {
    fn open(folder: &Path, files: usize) -> io::Result<Self> {
        // A storage engine has a cache of its own, so this goes past that of the kernel. Values lie
        // anywhere and a `Vec` is not aligned; without `any_range` they would be read through it.
        let options = OpenOptions::new().read(true).direct(Direct::Auto);
        let options = options.any_range(AnyRange::Reads);
        let files = (0..files).map(|file| options.open(folder.join(file.to_string())));
        let files = files.collect::<io::Result<_>>()?;
        let index = HashMap::new();
        Ok(Self { files, index })
    }

    /// One value, on this thread.
    fn get(&self, key: &str) -> io::Result<Option<Vec<u8>>> {
        let Some(place) = self.index.get(key) else {
            return Ok(None);
        };
        let buf = vec![0; place.len];
        let (result, value) = self.files[place.file]
            .read_exact_at(buf, place.offset)
            .wait();
        result.map(|_| Some(value))
    }

    /// Many values, handed to the kernel together, from any runtime: one for each key.
    async fn multi_get(&self, keys: &[&str]) -> io::Result<Vec<Option<Vec<u8>>>> {
        let mut batch = Batch::new();
        let places = keys.iter().map(|key| self.index.get(*key));
        for place in places.clone().flatten() {
            let buf = vec![0; place.len];
            batch.push(self.files[place.file].read_exact_at(buf, place.offset));
        }
        let mut values = batch.await.into_iter();
        let value = |place: Option<&Place>| {
            let (result, value) = place.and_then(|_| values.next())?;
            Some(result.map(|_| value))
        };
        places.map(value).map(Option::transpose).collect()
    }
}

fn main() -> io::Result<()> {
    const FILES: usize = 8;
    let folder = tempfile::tempdir()?;
    for file in 0..FILES {
        let values: String = (0..1000)
            .map(|value| format!("{:<100}", format!("value {value} of file {file}")))
            .collect();
        std::fs::write(folder.path().join(file.to_string()), values)?;
    }
    let mut store = Store::open(folder.path(), FILES)?;
    for file in 0..FILES {
        for value in 0..1000 {
            let offset = value * 100;
            let len = 100;
            let place = Place { file, offset, len };
            store.index.insert(format!("{file}/{value}"), place);
        }
    }
    let one = store.get("3/141")?.expect("it was put in");
    println!("{}", String::from_utf8_lossy(&one).trim());
    let keys = ["0/1", "7/999", "2/718"];
    for value in pollster::block_on(store.multi_get(&keys))?
        .into_iter()
        .flatten()
    {
        println!("{}", String::from_utf8_lossy(&value).trim());
    }
    Ok(())
}
