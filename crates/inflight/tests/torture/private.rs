//! The file that a task has to itself: it is cut, lengthened, renamed, opened anew and closed while
//! operations that were left may still be in flight.
//!
//! What was left has happened, happens or never will. Of a name that is found out by giving the
//! file another one: one of the two renames finds it gone. Of a length, by closing the file, which
//! waits for all that is in flight on it.

use std::fs;
use std::io;
use std::path::PathBuf;

use inflight::fs::Direct;
use inflight::fs::{File, rename};

use crate::actor::{Actor, Target};
use crate::fate::{Aside, End, Leeway, meet};
use crate::files::{Files, REGION, open, options};
use crate::model::Region;

/// The longest that it gets.
const LONGEST: usize = 4 * REGION;

/// Of so many calls in a thousand the future is left. A forgotten one would keep its engine.
const CALLS: Leeway = Leeway {
    leave: 560,
    forget: None,
};

type Done = Result<(), String>;

/// See the module.
pub(crate) struct Private {
    file: File,
    path: PathBuf,
    /// The name that it may have instead.
    other_path: Option<PathBuf>,
    len: usize,
    /// The length that it may have instead, or get.
    other_len: Option<usize>,
    /// How many names there have been.
    names: u32,
    number: usize,
    region: Region,
}

impl Private {
    pub(crate) fn new(files: &Files, number: usize) -> Self {
        let path = files.folder.join(format!("{number}-0"));
        fs::File::create_new(&path).expect("the folder is new");
        Self {
            file: open(&files.engine, &path, Direct::Off),
            path,
            other_path: None,
            len: 0,
            other_len: None,
            names: 0,
            number,
            region: Region::new(&[0; LONGEST]),
        }
    }

    /// To be used when it [is settled](Self::settle).
    pub(crate) fn target(&mut self) -> Target<'_> {
        Target {
            file: &self.file,
            at: 0,
            region: &mut self.region,
            end: self.len,
            pages: false,
            forgets: false,
            grows: true,
        }
    }

    /// A write may have lengthened it.
    pub(crate) fn ends_at(&mut self, end: usize) {
        self.len = end;
    }

    /// Cuts the file or lengthens it with zeros, unless a write may still be under way.
    pub(crate) async fn truncate(&mut self, files: &Files, actor: &mut Actor) -> Done {
        self.settle(files).await?;
        if !self.region.is_calm(&(0..LONGEST)) {
            return Ok(());
        }
        let len = actor.random.below(LONGEST);
        let truncate = Aside(self.file.truncate(len as u64));
        match meet(&mut actor.random, &mut actor.fates, truncate, CALLS).await {
            End::Answered(Ok(())) => self.has_len(len),
            End::Answered(Err(error)) => return Err(format!("truncate: {error}")),
            End::Never => {}
            End::Left => self.other_len = Some(len),
        }
        Ok(())
    }

    fn has_len(&mut self, len: usize) {
        if len < self.len {
            self.region.know(len..self.len, &vec![0; self.len - len]);
        }
        self.len = len;
    }

    pub(crate) async fn rename(&mut self, files: &Files, actor: &mut Actor) -> Done {
        self.be_named(files).await?;
        let path = self.next_name(files);
        let call = Aside(rename(&self.path, &path).on(&files.engine));
        match meet(&mut actor.random, &mut actor.fates, call, CALLS).await {
            End::Answered(Ok(())) => self.path = path,
            End::Answered(Err(error)) => return Err(format!("rename: {error}")),
            End::Never => {}
            End::Left => self.other_path = Some(path),
        }
        Ok(())
    }

    fn next_name(&mut self, files: &Files) -> PathBuf {
        self.names += 1;
        let name = format!("{}-{}", self.number, self.names);
        files.folder.join(name)
    }

    /// Opens the file anew, and closes it where it was open before.
    pub(crate) async fn reopen(&mut self, files: &Files, actor: &mut Actor) -> Done {
        self.settle(files).await?;
        self.be_named(files).await?;
        let call = Aside(options(&files.engine, Direct::Off).opening(&self.path));
        let before = match meet(&mut actor.random, &mut actor.fates, call, CALLS).await {
            End::Answered(Ok(file)) => std::mem::replace(&mut self.file, file),
            End::Answered(Err(error)) => return Err(format!("open: {error}")),
            End::Never | End::Left => return Ok(()),
        };
        let close = Aside(before.close());
        match meet(&mut actor.random, &mut actor.fates, close, CALLS).await {
            End::Answered(Err(error)) => Err(format!("close: {error}")),
            End::Answered(Ok(())) | End::Never | End::Left => Ok(()),
        }
    }

    /// Makes its name known: a rename that was left finds no file any more, or is over.
    async fn be_named(&mut self, files: &Files) -> Done {
        let Some(other) = self.other_path.take() else {
            return Ok(());
        };
        let path = self.next_name(files);
        let before = std::mem::replace(&mut self.path, path);
        for from in [&before, &other] {
            match rename(from, &self.path).on(&files.engine).await {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(format!("rename: {error}")),
            }
        }
        Err(format!("neither {before:?} nor {other:?} is there"))
    }

    /// Makes its length known: what is in flight is over when it has been closed.
    pub(crate) async fn settle(&mut self, files: &Files) -> Done {
        let Some(other) = self.other_len.take() else {
            return Ok(());
        };
        self.be_named(files).await?;
        let opening = options(&files.engine, Direct::Off).opening(&self.path);
        let opened = opening.await.map_err(|error| format!("open: {error}"))?;
        let before = std::mem::replace(&mut self.file, opened);
        let closed = before.close().await;
        closed.map_err(|error| format!("close: {error}"))?;
        let metadata = fs::metadata(&self.path).expect("it has been renamed");
        match usize::try_from(metadata.len()) {
            Ok(len) if len == other => self.has_len(len),
            Ok(len) if len == self.len => {}
            len => {
                let known = self.len;
                return Err(format!("cut from {known} to {other} bytes, it has {len:?}"));
            }
        }
        Ok(())
    }
}
