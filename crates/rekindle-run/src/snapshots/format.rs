//! The bytes of a snapshot: `rekindle.snapshot/1`.
//!
//! ```text
//! rekindle.snapshot/1\n     the format and its version, a line of text
//! 8 bytes                   the header's length, little-endian
//! the header                JSON: step, metadata, of every section its name, length and checksum
//! the sections              one after another, nothing between them
//! 16 bytes                  XXH3-128 of all bytes before, big-endian
//! ```

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::{Damage, Metadata, Section, SnapshotError};

/// The version of the snapshot format.
pub const SNAPSHOT_FORMAT: &str = "rekindle.snapshot/1";

/// What every version begins with.
const FAMILY: &[u8] = b"rekindle.snapshot/";

/// The longest version that is shown.
const MOST_VERSION: usize = 20;

/// The first line and the header's length.
const START: usize = SNAPSHOT_FORMAT.len() + 1 + 8;

/// The checksum of the whole.
const END: usize = 16;

/// The longest header: names and metadata, not contents. A damaged length may not make anyone allocate gigabytes.
const MOST_HEADER: u64 = 16 << 20;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    step: u64,
    metadata: Metadata,
    sections: Vec<SectionHeader>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SectionHeader {
    name: String,
    length: u64,
    xxh3: String,
}

fn checksum(bytes: &[u8]) -> String {
    format!("{:032x}", xxh3_128(bytes))
}

/// Everything before the sections.
pub(super) fn head(
    step: u64,
    metadata: &Metadata,
    sections: &[Section<'_>],
) -> Result<Vec<u8>, SnapshotError> {
    let mut names = BTreeSet::new();
    for Section { name, .. } in sections {
        let problem = match (name.is_empty(), names.insert(*name)) {
            (true, _) => "empty",
            (_, false) => "there twice",
            _ => continue,
        };
        return Err(SnapshotError::SectionName { name: (*name).to_owned(), problem });
    }
    let header = Header {
        step,
        metadata: metadata.clone(),
        sections: sections
            .iter()
            .map(|section| SectionHeader {
                name: section.name.to_owned(),
                length: section.bytes.len() as u64,
                xxh3: checksum(section.bytes),
            })
            .collect(),
    };
    // Text and numbers: there is nothing in it that JSON cannot write.
    let json = serde_json::to_vec(&header).unwrap_or_default();
    let length = json.len() as u64;
    if length > MOST_HEADER {
        return Err(SnapshotError::HeaderTooLarge { found: length, most: MOST_HEADER });
    }
    let mut head = Vec::with_capacity(START + json.len());
    head.extend_from_slice(SNAPSHOT_FORMAT.as_bytes());
    head.push(b'\n');
    head.extend_from_slice(&length.to_le_bytes());
    head.extend_from_slice(&json);
    Ok(head)
}

/// Writes a snapshot, and says how many bytes it takes.
pub(super) fn write(out: &mut impl Write, head: &[u8], sections: &[Section<'_>]) -> io::Result<u64> {
    let mut whole = Xxh3::new();
    let mut written = END as u64;
    for part in std::iter::once(head).chain(sections.iter().map(|section| section.bytes)) {
        whole.update(part);
        out.write_all(part)?;
        written += part.len() as u64;
    }
    out.write_all(&whole.digest128().to_be_bytes())?;
    Ok(written)
}

/// What a snapshot says of itself, held against its length.
pub(super) struct Layout {
    pub(super) step: u64,
    pub(super) metadata: Metadata,
    pub(super) sections: Vec<(String, Range<usize>)>,
    checksums: Vec<String>,
}

/// The length of the header that begins after `start`, when all of it is there.
fn header_length(start: &[u8], total: u64) -> Result<usize, Damage> {
    let Some(rest) = start.strip_prefix(FAMILY) else {
        // What stops in the middle of the first line was cut off.
        return Err(match FAMILY.starts_with(start) && !start.is_empty() {
            true => Damage::Length { expected: (START + END) as u64, found: total },
            false => Damage::NotASnapshot,
        });
    };
    let own = &SNAPSHOT_FORMAT.as_bytes()[FAMILY.len()..];
    let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if line != own && !(line.len() == rest.len() && own.starts_with(line)) {
        let version = String::from_utf8_lossy(&line[..line.len().min(MOST_VERSION)]);
        let found = format!("{}{}", String::from_utf8_lossy(FAMILY), version.escape_debug());
        return Err(Damage::Version { found });
    }
    let length = start.get(START - 8..START).and_then(|bytes| bytes.try_into().ok());
    let length = length.map(u64::from_le_bytes).unwrap_or(0);
    let least = ((START + END) as u64).saturating_add(length);
    if total < least {
        return Err(Damage::Length { expected: least, found: total });
    }
    match usize::try_from(length) {
        Ok(header) if length <= MOST_HEADER => Ok(header),
        _ => Err(Damage::Header {
            message: format!("it has {length} bytes, at most {MOST_HEADER} are allowed"),
        }),
    }
}

/// Reads the header and holds the lengths it names against the `total` length of the file.
fn layout(header: &[u8], total: u64) -> Result<Layout, Damage> {
    let wrong = |message: String| Damage::Header { message };
    let begin = START as u64 + header.len() as u64;
    let Header { step, metadata, sections } =
        serde_json::from_slice(header).map_err(|error| wrong(error.to_string()))?;
    let end = sections.iter().try_fold(begin, |sum, section| sum.checked_add(section.length));
    let expected = end.and_then(|end| end.checked_add(END as u64)).unwrap_or(u64::MAX);
    if expected != total {
        return Err(Damage::Length { expected, found: total });
    }
    let mut names = BTreeSet::new();
    if let Some(twice) = sections.iter().find(|section| !names.insert(&section.name)) {
        return Err(wrong(format!("the section `{}` is there twice", twice.name)));
    }
    if sections.iter().any(|section| section.name.is_empty()) {
        return Err(wrong("a section has no name".to_owned()));
    }
    let at = |place: u64| usize::try_from(place).unwrap_or(usize::MAX);
    let mut place = begin;
    let mut ranges = Vec::with_capacity(sections.len());
    let mut checksums = Vec::with_capacity(sections.len());
    for SectionHeader { name, length, xxh3 } in sections {
        ranges.push((name, at(place)..at(place + length)));
        checksums.push(xxh3);
        place += length;
    }
    Ok(Layout { step, metadata, sections: ranges, checksums })
}

/// Checks every byte of a snapshot.
pub(super) fn check(bytes: &[u8]) -> Result<Layout, Damage> {
    let total = bytes.len() as u64;
    let header = header_length(&bytes[..bytes.len().min(START)], total)?;
    let layout = layout(bytes.get(START..START + header).unwrap_or_default(), total)?;
    for ((name, range), expected) in layout.sections.iter().zip(&layout.checksums) {
        if checksum(bytes.get(range.clone()).unwrap_or_default()) != *expected {
            return Err(Damage::Section { name: name.clone() });
        }
    }
    let (before, whole) = bytes.split_at(bytes.len().saturating_sub(END));
    match xxh3_128(before).to_be_bytes() == whole {
        true => Ok(layout),
        false => Err(Damage::Whole),
    }
}

/// Looks at the head of a file of `total` bytes, before all of it is read: whether the lengths are right. `Ok` with what
/// is wrong with it, `Err` when it cannot be read.
pub(super) fn look(file: &mut impl Read, total: u64) -> io::Result<Result<(), Damage>> {
    let mut start = Vec::with_capacity(START);
    file.by_ref().take(START as u64).read_to_end(&mut start)?;
    let length = match header_length(&start, total) {
        Ok(length) => length,
        Err(damage) => return Ok(Err(damage)),
    };
    let mut header = Vec::new();
    file.by_ref().take(length as u64).read_to_end(&mut header)?;
    Ok(layout(&header, total).map(|_| ()))
}
