//! What every value here does alike: lists from iterables, hashes, quotes as Python writes them, files.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::Path;

use pyo3::prelude::*;

use crate::errors::{self, Refusal};

/// Every item of an iterable, each by the same way.
pub(crate) fn list<'py, T>(
    items: &Bound<'py, PyAny>,
    each: impl Fn(&Bound<'py, PyAny>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    items.try_iter()?.map(|item| each(&item?)).collect()
}

/// A hash of what a value is, so that equal values have the same.
pub(crate) fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Text as Python writes it.
pub(crate) fn quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push(quote);
    for letter in text.chars() {
        match letter {
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            letter if letter == quote => quoted.extend(['\\', letter]),
            letter if letter.is_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(letter))),
            letter => quoted.push(letter),
        }
    }
    quoted.push(quote);
    quoted
}

/// An index as Python counts, from either end; `None` when there is no such item.
pub(crate) fn index(index: isize, length: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add(isize::try_from(length).ok()?)? } else { index };
    usize::try_from(index).ok().filter(|index| *index < length)
}

/// Reads a text file; `refusal` is the class of the error when it is none.
pub(crate) fn read(path: &Path, refusal: &'static str) -> PyResult<String> {
    let bytes = std::fs::read(path).map_err(|error| errors::file(&error, "read", path))?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let words = format!("`{}` is not text: byte {at} is not UTF-8", path.display());
        let refused = Refusal::new(refusal, words).hint("profiles, plans and settings are text in UTF-8");
        refused.part("kind", "invalid").into()
    })
}

/// Writes a file as a whole: what was there before stays until the new text is complete.
pub(crate) fn write(path: &Path, text: &str) -> PyResult<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let written = std::fs::File::create(&part)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| std::fs::rename(&part, path));
    written.map_err(|error| {
        // Nothing is lost when this fails too: the part is ours.
        let _ = std::fs::remove_file(&part);
        errors::file(&error, "write", path)
    })
}
