//! The records of a file of comma-separated values, with the lines they begin at.

use std::io::Read;

use csv_core::ReadRecordResult;

use super::TableError;

/// The fields of a record, without blanks around them.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) line: u64,
    pub(super) fields: Vec<String>,
}

impl Record {
    pub(super) fn get(&self, index: usize) -> &str {
        self.fields.get(index).map_or("", String::as_str)
    }
}

/// Reads one record after the other; all have as many fields as the first.
pub(super) struct Records {
    reader: csv_core::Reader,
    bytes: Vec<u8>,
    /// How many bytes are read.
    read: usize,
    fields: Option<usize>,
}

impl Records {
    pub(super) fn new(mut reader: impl Read) -> Result<Self, TableError> {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes)?;
        Ok(Self { reader: csv_core::Reader::new(), bytes, read: 0, fields: None })
    }

    /// The next record; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Record>, TableError> {
        let line = self.reader.line();
        let (mut text, mut ends) = (vec![0; 256], vec![0; 16]);
        let (mut written, mut ended) = (0, 0);
        loop {
            let rest = &self.bytes[self.read..];
            let (result, read, more, fields) =
                self.reader.read_record(rest, &mut text[written..], &mut ends[ended..]);
            self.read += read;
            written += more;
            ended += fields;
            match result {
                // What is left is nothing, which tells the reader that this was all.
                ReadRecordResult::InputEmpty => {}
                ReadRecordResult::OutputFull => text.resize(2 * text.len(), 0),
                ReadRecordResult::OutputEndsFull => ends.resize(2 * ends.len(), 0),
                ReadRecordResult::Record => break,
                ReadRecordResult::End => return Ok(None),
            }
        }
        let mut start = 0;
        let mut record = Record { line, fields: Vec::with_capacity(ended) };
        for end in &ends[..ended] {
            let field = std::str::from_utf8(&text[start..*end]).map_err(|_| TableError::NotText { line })?;
            record.fields.push(field.trim().to_owned());
            start = *end;
        }
        let (found, expected) = (ended as u64, *self.fields.get_or_insert(ended) as u64);
        match found == expected {
            true => Ok(Some(record)),
            false => Err(TableError::Columns { line, found, expected }),
        }
    }
}
