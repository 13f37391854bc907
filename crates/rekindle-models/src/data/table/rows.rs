//! From the rows of a file to sequences.

use std::collections::HashSet;
use std::io::Read;

use super::records::{Record, Records};
use super::{Sequence, SequenceTable, TableError, TableShape};

/// More classes than these are a mistake: a column of times or numbers taken for classes.
const MOST_CLASSES: usize = 1 << 16;
/// Some classes may be missing from a small table. Where far more are missing than are there, one of them is mistyped, and what
/// is learned from would get outputs for all that lie between.
const FEW_CLASSES: usize = 8;

/// Where what is in a row.
struct Columns {
    sequence: usize,
    class: usize,
    features: Vec<usize>,
    names: Vec<String>,
}

pub(super) fn read(reader: impl Read, shape: TableShape) -> Result<SequenceTable, TableError> {
    for (what, asked) in [("steps", shape.steps), ("classes", shape.classes)] {
        if asked == Some(0) {
            return Err(TableError::Nothing { what });
        }
    }
    let mut records = Records::new(reader)?;
    let columns = Columns::of(&records.next()?.ok_or(TableError::Empty)?.fields)?;
    let most = shape.classes.unwrap_or(MOST_CLASSES);
    // Each with the line it begins at.
    let mut sequences: Vec<(u64, Sequence)> = Vec::new();
    let mut seen = HashSet::new();
    while let Some(record) = records.next()? {
        let line = record.line;
        let name = record.get(columns.sequence);
        let class = columns.class_of(&record, most)?;
        if sequences.last().is_none_or(|(_, last)| last.name != name) {
            if !seen.insert(name.to_owned()) {
                return Err(TableError::Scattered { line, sequence: name.to_owned() });
            }
            sequences.push((line, Sequence { name: name.to_owned(), class, values: Vec::new() }));
        }
        let Some((_, sequence)) = sequences.last_mut() else { continue };
        if sequence.class != class {
            let (sequence, expected) = (sequence.name.clone(), sequence.class);
            return Err(TableError::TwoClasses { line, sequence, found: class, expected });
        }
        columns.read_values(&record, &mut sequence.values)?;
    }
    finished(columns, shape, sequences)
}

/// Holds the lengths against each other, and cuts where that is asked for.
fn finished(
    columns: Columns,
    shape: TableShape,
    sequences: Vec<(u64, Sequence)>,
) -> Result<SequenceTable, TableError> {
    let width = columns.features.len();
    let Some((_, first)) = sequences.first() else { return Err(TableError::Empty) };
    let expected = first.values.len() / width;
    let steps = shape.steps.unwrap_or(expected);
    let mut kept = Vec::with_capacity(sequences.len());
    let (mut largest, mut different) = ((0, 0), HashSet::new());
    for (line, mut sequence) in sequences {
        let found = sequence.values.len() / width;
        match shape.steps {
            Some(asked) if found < asked => {
                return Err(TableError::TooShort { line, sequence: sequence.name, found, asked });
            }
            None if found != expected => {
                return Err(TableError::Lengths { line, sequence: sequence.name, found, expected });
            }
            _ => sequence.values.truncate(steps * width),
        }
        different.insert(sequence.class);
        if sequence.class > largest.0 {
            largest = (sequence.class, line);
        }
        kept.push(sequence);
    }
    let (found, line) = largest;
    let classes = shape.classes.unwrap_or(found + 1);
    let different = different.len();
    if shape.classes.is_none() && classes > 2 * different + FEW_CLASSES {
        return Err(TableError::Gaps { line, found, different });
    }
    Ok(SequenceTable { features: columns.names, classes, steps, sequences: kept })
}

impl Columns {
    fn of(header: &[String]) -> Result<Self, TableError> {
        if header.iter().all(String::is_empty) {
            return Err(TableError::Empty);
        }
        let mut seen = HashSet::new();
        if let Some(column) = header.iter().find(|column| !seen.insert(*column)) {
            return Err(TableError::DoubleColumn { column: column.clone() });
        }
        let place = |column: &'static str| {
            header.iter().position(|name| name == column).ok_or_else(|| {
                let found = header.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                TableError::MissingColumn { column, found }
            })
        };
        let (sequence, class) = (place("sequence")?, place("class")?);
        let features: Vec<usize> =
            (0..header.len()).filter(|index| ![sequence, class].contains(index)).collect();
        if features.is_empty() {
            return Err(TableError::NoFeature);
        }
        let names = features.iter().map(|index| header[*index].clone()).collect();
        Ok(Self { sequence, class, features, names })
    }

    fn class_of(&self, record: &Record, most: usize) -> Result<usize, TableError> {
        let found = record.get(self.class);
        let refused = || TableError::Class { line: record.line, found: found.to_owned(), largest: most - 1 };
        found.parse::<usize>().ok().filter(|class| *class < most).ok_or_else(refused)
    }

    fn read_values(&self, record: &Record, values: &mut Vec<f32>) -> Result<(), TableError> {
        for (index, name) in self.features.iter().zip(&self.names) {
            let found = record.get(*index);
            let value = found.parse::<f32>().ok().filter(|value| value.is_finite());
            values.push(value.ok_or_else(|| TableError::NotANumber {
                line: record.line,
                column: name.clone(),
                found: found.to_owned(),
            })?);
        }
        Ok(())
    }
}
