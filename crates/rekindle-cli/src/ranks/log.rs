//! What one rank writes down.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use crate::failure::Failure;

/// A rank's file.
pub(super) struct Log {
    file: File,
    start: Instant,
}

impl Log {
    /// A file of this rank's in `directory`, in place of one that was there before.
    pub(super) fn open(directory: &Path, rank: usize) -> Result<Self, Failure> {
        let path = directory.join(format!("rank-{rank}.log"));
        let file = std::fs::create_dir_all(directory).and_then(|()| File::create(&path));
        let file = file.map_err(|error| {
            let error = anyhow::Error::new(error).context(format!("cannot write `{}`", path.display()));
            Failure::request(error, "give --rank-logs a directory that can be written to")
        })?;
        Ok(Self { file, start: Instant::now() })
    }

    /// Writes a line, with the seconds since the start. Training does not end because a log cannot be written.
    pub(super) fn say(&mut self, what: &str) {
        let _ = writeln!(self.file, "{:9.3} {what}", self.start.elapsed().as_secs_f64());
    }
}
