//! Parts of buffers, as buffers.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use inflight::fs::{Direct, File};
use inflight::{AlignedBuf, Batch, BufPool, InPlace, IoBuf, Operation, Spare};

use super::{BLOCK, file_past_the_cache};
use crate::support::{on_every_backend, pattern, read_write, temp_path};
use crate::wishes::by_every_host;

/// Three blocks, of which the one in the middle is moved.
const LEN: usize = 3 * BLOCK;

fn written<B: IoBuf>(file: &File, path: &Path, buf: B, data: &[u8]) -> B {
    let (result, part) = file.write_all_at(buf.slice(BLOCK..2 * BLOCK), 0).wait();
    assert_eq!(result.expect("it is written"), BLOCK);
    assert!(part[..] == data[BLOCK..2 * BLOCK]);
    assert!(fs::read(path).expect("the file is there") == data[BLOCK..2 * BLOCK]);
    part.into_inner()
}

fn read<B: InPlace>(file: &File, buf: B) -> B {
    let read = file.read_exact_at(buf.slice(BLOCK..=2 * BLOCK - 1), 0);
    let mut batch = Batch::new();
    batch.push(read.by_backend());
    let (result, part) = batch.wait().next().expect("one was pushed");
    assert_eq!(result.expect("it is read"), BLOCK);
    part.into_inner()
}

#[test]
fn a_part_is_moved_and_the_rest_stays() {
    on_every_backend(|engine| {
        let data = pattern(LEN);
        let kept = |buf: &[u8], middle: &[u8]| {
            assert!(buf[..BLOCK] == data[..BLOCK] && buf[2 * BLOCK..] == data[2 * BLOCK..]);
            assert!(buf[BLOCK..2 * BLOCK] == *middle);
        };
        let (path, file) = file_past_the_cache(engine);
        let vec = written(&file, path.path(), data.clone(), &data);
        written(&file, path.path(), Arc::<[u8]>::from(&vec[..]), &data);
        written(&file, path.path(), &vec, &data);
        let mut aligned = AlignedBuf::new(LEN, BLOCK).unwrap();
        aligned.copy_from_slice(&data);
        let mut aligned = written(&file, path.path(), aligned, &data);
        let mut pooled = BufPool::new(1, LEN).unwrap().take().unwrap();
        pooled.copy_from_slice(&data);
        let pooled = written(&file, path.path(), pooled, &data);
        let mut vec = written(&file, path.path(), vec, &data);

        let other = vec![7; BLOCK];
        file.write_all_at(&other, 0)
            .wait()
            .0
            .expect("it is written");
        kept(&read(&file, pooled), &other);
        read(&file, &mut aligned);
        kept(&aligned, &other);
        read(&file, &mut vec);
        kept(&vec, &other);
        // Part of a part.
        let part = vec.slice(BLOCK..).slice(..BLOCK);
        let (result, part) = file.read_exact_at(part.slice(1..2), 0).wait();
        assert_eq!(result.expect("it is read"), 1);
        assert_eq!(part[..], [7]);
        kept(&part.into_inner().into_inner().into_inner(), &other);
    });
}

#[test]
fn a_part_of_an_aligned_buffer_goes_past_the_page_cache() {
    on_every_backend(|engine| {
        let path = temp_path(&pattern(LEN));
        let options = read_write(engine).direct(Direct::Required);
        let file = options.open(path.path()).expect("the file is there");
        let part = || {
            file.aligned_buf(LEN)
                .expect("there is memory")
                .slice(BLOCK..)
        };
        for (result, part) in by_every_host!(engine, file.read_exact_at(part(), BLOCK as u64)) {
            assert_eq!(result.expect("it is aligned"), LEN - BLOCK);
            assert!(part[..] == pattern(LEN)[BLOCK..]);
            assert!(part.into_inner()[..BLOCK].iter().all(|byte| *byte == 0));
        }
    });
}

#[test]
fn a_part_of_what_grows_is_of_what_it_has() {
    on_every_backend(|engine| {
        let path = temp_path(b"");
        let file = read_write(engine).open(path.path()).expect("it is there");
        let spare = Spare::sized(b"what it has".to_vec(), LEN);
        let (result, part) = file.write_all_at(spare.slice(8..), 0).wait();
        assert_eq!(result.expect("it is written"), 3);
        assert_eq!(fs::read(path.path()).expect("it is there"), b"has");
        assert_eq!(*part.into_inner(), b"what it has");
    });
}

#[test]
fn what_lies_without_the_buffer_is_no_part() {
    let refused = |range: fn(Vec<u8>) -> usize| std::panic::catch_unwind(|| range(vec![0; 4]));
    assert!(refused(|buf| buf.slice(2..5).len()).is_err());
    assert!(refused(|buf| buf.slice(..=4).len()).is_err());
    assert!(refused(|buf| buf.slice(..=usize::MAX).len()).is_err());
    #[expect(clippy::reversed_empty_ranges, reason = "it is refused")]
    let reversed = refused(|buf| buf.slice(3..2).len());
    assert!(reversed.is_err());
    assert_eq!(refused(|buf| buf.slice(4..).len()).unwrap(), 0);
    assert_eq!(refused(|buf| buf.slice(1..3).len()).unwrap(), 2);
}
