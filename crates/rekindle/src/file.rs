//! Files that are read as far as they may be long, and written as a whole.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

/// A plan of a hundred thousand stages takes a tenth of it.
const LONGEST: u64 = 1 << 30;

/// The text of a file. What may never end, such as a device, is not read.
pub(crate) fn read_text(path: &Path) -> Result<String, Error> {
    if is_device(path) {
        return Err(Error::other("it is a device, which may never end, expected a file"));
    }
    let mut text = String::new();
    let length = File::open(path)?.take(LONGEST + 1).read_to_string(&mut text)?;
    match length as u64 > LONGEST {
        true => Err(Error::new(ErrorKind::FileTooLarge, format!("it is longer than {LONGEST} bytes"))),
        false => Ok(text),
    }
}

#[cfg(unix)]
fn is_device(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let kind = path.metadata().map(|found| found.file_type());
    kind.is_ok_and(|kind| kind.is_char_device() || kind.is_block_device())
}

#[cfg(not(unix))]
fn is_device(_: &Path) -> bool {
    false
}

/// Writes a file as a whole: what was there before stays until the new text is complete and on the disk. The file behind a
/// link is written, and the link stays; what is no file, such as a pipe, is written to as it is.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    if path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        return std::fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes());
    }
    let behind = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let part = part_of(&behind);
    let written = File::create(&part)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&part, &behind));
    if written.is_err() {
        // Nothing is lost when this fails too: the part is ours.
        let _ = std::fs::remove_file(&part);
    }
    written
}

/// What a file is called until it is complete.
fn part_of(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_written_keeps_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        write(&path, "old").unwrap();
        assert_eq!(read_text(&path).unwrap(), "old");
        // Where the part should be, there is something else.
        let part = part_of(&path.canonicalize().unwrap());
        std::fs::create_dir(&part).unwrap();
        assert!(write(&path, "new").is_err());
        assert_eq!(read_text(&path).unwrap(), "old");
        std::fs::remove_dir(&part).unwrap();
        write(&path, "new").unwrap();
        assert_eq!(read_text(&path).unwrap(), "new");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no part is left");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        write(&file, "old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write(&link, "new").unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        assert_eq!(read_text(&file).unwrap(), "new");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_device_is_not_read() {
        let error = read_text(Path::new("/dev/zero")).unwrap_err();
        assert!(error.to_string().contains("may never end"), "{error}");
    }
}
