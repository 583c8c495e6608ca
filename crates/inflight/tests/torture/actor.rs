//! Reads and writes of one task, compared with the model.

use std::future::IntoFuture;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Weak};
use std::task::Poll;

use inflight::Batch;
use inflight::fs::{AllocateRange, File};

use crate::fate::{End, Fates, Leeway, meet, poll_once};
use crate::files::REGION;
use crate::model::{Pattern, Region};
use crate::random::Random;
use crate::yard::{Buf, PAGE, Yard};

/// What a round allows and does.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    /// The backend moves fewer bytes than asked, as a seed decides.
    pub(crate) shorts: bool,
    /// The backend fails operations, as a seed decides.
    pub(crate) errors: bool,
    /// Memory counts as free when its future is dropped: the defect to be found.
    pub(crate) planted: bool,
}

/// Where an operation goes.
pub(crate) struct Target<'t> {
    pub(crate) file: &'t File,
    /// Where the region begins in the file.
    pub(crate) at: u64,
    pub(crate) region: &'t mut Region,
    /// Bytes of the region that the file has.
    pub(crate) end: usize,
    /// Whether only whole pages are asked for.
    pub(crate) pages: bool,
    /// Whether operations may be forgotten here.
    pub(crate) forgets: bool,
    /// Whether a write may lengthen the file.
    pub(crate) grows: bool,
}

/// Who does it.
pub(crate) struct Actor {
    pub(crate) random: Random,
    pub(crate) fates: Fates,
    pub(crate) yard: Arc<Yard>,
    pub(crate) rules: Rules,
}

/// Of so many operations in a thousand the future is left.
const LEAVE: usize = 700;

/// Most operations that one task forgets: each keeps its memory for ever.
const FORGET_MAX: u64 = 2;

type Done = Result<(), String>;

impl Target<'_> {
    fn offset(&self, from: usize) -> u64 {
        self.at + from as u64
    }
}

impl Actor {
    /// Any range of the region, also beyond the end of the file.
    fn range(&mut self, target: &Target<'_>) -> Range<usize> {
        let unit = if target.pages { PAGE } else { 1 };
        let units = target.region.len() / unit;
        let from = self.random.below(units);
        let most = (units - from).min(REGION / unit);
        // Half of them are small.
        let most = match self.random.below(2) {
            0 => most.min(512),
            _ => most,
        };
        let len = 1 + self.random.below(most);
        from * unit..(from + len) * unit
    }

    fn leeway(&self, target: &Target<'_>, bufs: u64) -> Leeway {
        let forgets = target.forgets && self.fates.forgotten < FORGET_MAX;
        Leeway {
            leave: LEAVE,
            forget: forgets.then_some(bufs),
        }
    }

    /// The lengths of one to three buffers that are as long together.
    fn split(&mut self, len: usize, unit: usize) -> Vec<usize> {
        let mut left = len / unit;
        let mut lens = Vec::new();
        while left > 0 {
            let most = if lens.len() == 2 {
                left
            } else {
                self.random.below(left) + 1
            };
            let part = if lens.len() == 2 { left } else { most };
            lens.push(part * unit);
            left -= part;
        }
        lens
    }

    /// The whole of it, after which what is there is known, but for writes that are not over.
    pub(crate) async fn read_all(&mut self, target: &mut Target<'_>) -> Done {
        for from in (0..target.end).step_by(REGION) {
            let len = REGION.min(target.end - from);
            // Faults are over at some time.
            let is_calm = target.region.is_calm(&(from..from + len));
            for attempt in 0.. {
                let buf = self.yard.take(len);
                let (result, buf) = target.file.read_exact_at(buf, target.offset(from)).await;
                match result {
                    Ok(_) => {
                        target.region.check(from, buf.bytes(0..len), is_calm)?;
                        break;
                    }
                    Err(_) if self.rules.errors && attempt < 1000 => {}
                    Err(error) => return Err(format!("the last read failed: {error}")),
                }
            }
        }
        Ok(())
    }

    pub(crate) async fn read(&mut self, target: &mut Target<'_>) -> Done {
        match self.random.below(10) {
            0..5 => self.read_one(target, false).await,
            5..7 => self.read_one(target, true).await,
            7..9 => self.read_several(target).await,
            _ => self.read_batch(target).await,
        }
    }

    async fn read_one(&mut self, target: &mut Target<'_>, exact: bool) -> Done {
        let range = self.range(target);
        let is_calm = target.region.is_calm(&range);
        let buf = self.yard.take(range.len());
        let (ghost, leeway) = (buf.ghost(), self.leeway(target, 1));
        let offset = target.offset(range.start);
        let read = match exact {
            true => target.file.read_exact_at(buf, offset),
            false => target.file.read_at(buf, offset),
        };
        match meet(&mut self.random, &mut self.fates, read, leeway).await {
            End::Answered((result, buf)) => {
                let moved = self.judge(result, &range, target.end, exact)?;
                target
                    .region
                    .check(range.start, buf.bytes(0..moved), is_calm)
            }
            End::Never => Ok(()),
            End::Left => {
                if self.rules.planted {
                    self.yard.plant(ghost);
                }
                Ok(())
            }
        }
    }

    async fn read_several(&mut self, target: &mut Target<'_>) -> Done {
        let range = self.range(target);
        let is_calm = target.region.is_calm(&range);
        let unit = if target.pages { PAGE } else { 1 };
        let lens = self.split(range.len(), unit);
        let bufs: Vec<Buf> = lens.iter().map(|&len| self.yard.take(len)).collect();
        let leeway = self.leeway(target, bufs.len() as u64);
        let exact = self.random.happens(500);
        let offset = target.offset(range.start);
        let read = match exact {
            true => target.file.read_vectored_exact_at(bufs, offset),
            false => target.file.read_vectored_at(bufs, offset),
        };
        // Most would be answered at once, and few would be left in flight.
        let read = match self.random.happens(750) {
            true => read.by_backend(),
            false => read,
        };
        let end = meet(&mut self.random, &mut self.fates, read, leeway).await;
        let End::Answered((result, bufs)) = end else {
            return Ok(());
        };
        let mut moved = self.judge(result, &range, target.end, exact)?;
        let mut from = range.start;
        for buf in bufs {
            let here = moved.min(inflight::IoBuf::len(&buf));
            target.region.check(from, buf.bytes(0..here), is_calm)?;
            from += here;
            moved -= here;
        }
        Ok(())
    }

    async fn read_batch(&mut self, target: &mut Target<'_>) -> Done {
        let count = 2 + self.random.below(6);
        let ranges: Vec<_> = (0..count).map(|_| self.range(target)).collect();
        let calm: Vec<_> = ranges
            .iter()
            .map(|range| target.region.is_calm(range))
            .collect();
        let mut batch = Batch::on(target.file.engine());
        for range in &ranges {
            let buf = self.yard.take(range.len());
            batch.push(target.file.read_at(buf, target.offset(range.start)));
        }
        self.fates.operations += count as u64;
        let results = match self.random.below(20) {
            0 => {
                self.fates.unpolled += count as u64;
                return Ok(());
            }
            1..4 => {
                let mut pending = batch.into_future();
                match poll_once(&mut pending).await {
                    Poll::Pending => {
                        self.fates.dropped += count as u64;
                        return Ok(());
                    }
                    Poll::Ready(results) => results,
                }
            }
            4 => batch.wait().collect(),
            _ => batch.await,
        };
        self.fates.awaited += count as u64;
        for ((range, is_calm), (result, buf)) in ranges.iter().zip(calm).zip(results) {
            let moved = self.judge(result, range, target.end, false)?;
            target
                .region
                .check(range.start, buf.bytes(0..moved), is_calm)?;
        }
        Ok(())
    }

    /// How many bytes a read has moved, if that is right.
    fn judge(
        &mut self,
        result: io::Result<usize>,
        range: &Range<usize>,
        end: usize,
        exact: bool,
    ) -> Result<usize, String> {
        let there = end.saturating_sub(range.start).min(range.len());
        match result {
            Ok(moved) if moved == there && (!exact || moved == range.len()) => Ok(moved),
            Ok(moved) if !exact && self.rules.shorts && (1..there).contains(&moved) => Ok(moved),
            Ok(moved) => Err(format!(
                "a read of {range:?} moved {moved} bytes, not {there}"
            )),
            Err(error) if exact && error.kind() == io::ErrorKind::UnexpectedEof => {
                let is_short = there < range.len();
                let wrong = || format!("{range:?} ends before {end}, but: {error}");
                is_short.then_some(0).ok_or_else(wrong)
            }
            Err(_) if self.rules.errors => {
                self.fates.errors += 1;
                Ok(0)
            }
            Err(error) => Err(format!("a read of {range:?} failed: {error}")),
        }
    }

    pub(crate) async fn write(&mut self, target: &mut Target<'_>) -> Done {
        let range = self.range(target);
        let grows = range.end > target.end;
        if !target.region.is_calm(&range) || (grows && (!target.grows || self.rules.errors)) {
            // What is not over is looked at instead: it is old or new in each byte.
            return self.read_one(target, false).await;
        }
        let pattern = Pattern::new(self.random.below(usize::MAX), range.len());
        let bufs = if self.random.happens(200) { 3 } else { 1 };
        let mut leeway = self.leeway(target, bufs);
        if grows {
            leeway.leave = 0;
        }
        match bufs {
            1 => self.write_one(target, &range, pattern, leeway).await?,
            _ => self.write_several(target, &range, pattern, leeway).await?,
        }
        target.end = target.end.max(if grows { range.end } else { 0 });
        Ok(())
    }

    async fn write_one(
        &mut self,
        target: &mut Target<'_>,
        range: &Range<usize>,
        pattern: Pattern,
        leeway: Leeway,
    ) -> Done {
        let claim = Arc::new(());
        let buf = self.yard.take(range.len());
        let buf = buf.with_content(pattern.bytes()).with_claim(&claim);
        let (ghost, claim) = (buf.ghost(), Arc::downgrade(&claim));
        let all = leeway.leave == 0 || self.random.happens(500);
        let offset = target.offset(range.start);
        let write = match all {
            true => target.file.write_all_at(buf, offset),
            false => target.file.write_at(buf, offset),
        };
        match meet(&mut self.random, &mut self.fates, write, leeway).await {
            End::Answered((result, buf)) => {
                if buf.bytes(0..range.len()) != pattern.bytes() {
                    return Err(format!("the buffer of a write of {range:?} has changed"));
                }
                self.written(target.region, result, range, pattern, all)
            }
            End::Never => Ok(()),
            End::Left => {
                if self.rules.planted {
                    self.yard.plant(ghost);
                }
                target.region.doubt(range.start, pattern.bytes(), claim);
                Ok(())
            }
        }
    }

    async fn write_several(
        &mut self,
        target: &mut Target<'_>,
        range: &Range<usize>,
        pattern: Pattern,
        leeway: Leeway,
    ) -> Done {
        let claim = Arc::new(());
        let unit = if target.pages { PAGE } else { 1 };
        let mut from = 0;
        let mut bufs = Vec::new();
        for len in self.split(range.len(), unit) {
            let content = &pattern.bytes()[from..from + len];
            let buf = self.yard.take(len).with_content(content);
            bufs.push(buf.with_claim(&claim));
            from += len;
        }
        let claim = Arc::downgrade(&claim);
        let leeway = Leeway {
            forget: leeway.forget.map(|_| bufs.len() as u64),
            ..leeway
        };
        let write = target
            .file
            .write_vectored_all_at(bufs, target.offset(range.start));
        match meet(&mut self.random, &mut self.fates, write, leeway).await {
            End::Answered((result, _bufs)) => {
                self.written(target.region, result, range, pattern, true)
            }
            End::Never => Ok(()),
            End::Left => {
                target.region.doubt(range.start, pattern.bytes(), claim);
                Ok(())
            }
        }
    }

    /// Takes the answer of a write to the model.
    fn written(
        &mut self,
        region: &mut Region,
        result: io::Result<usize>,
        range: &Range<usize>,
        pattern: Pattern,
        all: bool,
    ) -> Done {
        let bytes = pattern.bytes();
        match result {
            Ok(moved) if moved == bytes.len() => region.know(range.clone(), bytes),
            Ok(moved) if !all && self.rules.shorts && (1..bytes.len()).contains(&moved) => {
                region.know(range.start..range.start + moved, &bytes[..moved]);
            }
            Ok(moved) => return Err(format!("a write of {range:?} moved {moved} bytes")),
            Err(_) if self.rules.errors => {
                self.fates.errors += 1;
                // It may have got some way, and is over.
                region.doubt(range.start, bytes, Weak::new());
            }
            Err(error) => return Err(format!("a write of {range:?} failed: {error}")),
        }
        Ok(())
    }

    /// What is neither read nor write.
    pub(crate) async fn upkeep(&mut self, target: &mut Target<'_>) -> Done {
        let leeway = Leeway {
            forget: self.leeway(target, 0).forget,
            leave: LEAVE,
        };
        let (random, fates) = (&mut self.random, &mut self.fates);
        let end = match random.below(20) {
            0 => meet(random, fates, target.file.sync_all(), leeway).await,
            1 => meet(random, fates, target.file.sync_data(), leeway).await,
            2..8 => return self.punch(target).await,
            _ => {
                let metadata = target.file.metadata();
                let end = meet(random, fates, metadata, leeway).await;
                let End::Answered(Ok(metadata)) = end else {
                    return Ok(());
                };
                let is_right = !target.grows || metadata.len == target.end as u64;
                let wrong = || format!("a file of {} bytes has {}", target.end, metadata.len);
                return is_right.then_some(()).ok_or_else(wrong);
            }
        };
        match end {
            End::Answered(Err(error)) if !self.rules.errors => Err(format!("sync: {error}")),
            _ => Ok(()),
        }
    }

    /// Punches a hole. It has no buffer that would tell when it is over, so it is not left.
    async fn punch(&mut self, target: &mut Target<'_>) -> Done {
        let range = self.range(target);
        let range = range.start..range.end.min(target.end);
        if range.is_empty() || !target.region.is_calm(&range) {
            return Ok(());
        }
        let leeway = Leeway {
            leave: 0,
            forget: None,
        };
        let hole = AllocateRange::PunchHole;
        let (offset, len) = (target.offset(range.start), range.len() as u64);
        let punch = target.file.allocate(hole, offset, len);
        let zeros = vec![0; range.len()];
        match meet(&mut self.random, &mut self.fates, punch, leeway).await {
            End::Answered(Ok(())) => target.region.know(range, &zeros),
            // Not every file system can.
            End::Answered(Err(error)) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
            End::Answered(Err(_)) if self.rules.errors => {
                target.region.doubt(range.start, &zeros, Weak::new());
            }
            End::Answered(Err(error)) => return Err(format!("a hole of {range:?}: {error}")),
            End::Never | End::Left => {}
        }
        Ok(())
    }
}
