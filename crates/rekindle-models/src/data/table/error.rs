//! Tables that cannot be learned from.

/// Why a table was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// There is no such file, or it may not be read.
    #[error("`{path}` cannot be opened: {source}")]
    Open {
        /// The file.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// Reading broke off.
    #[error("the table cannot be read on: {0}")]
    Read(#[from] std::io::Error),
    /// Bytes that are no text.
    #[error("line {line} is not text in UTF-8")]
    NotText {
        /// The line.
        line: u64,
    },
    /// There is nothing, or a header and nothing else.
    #[error("the table has no rows, expected a line of column names and a row for each step")]
    Empty,
    /// A column that must be there is not.
    #[error("the first line names no column `{column}`; it names {found}")]
    MissingColumn {
        /// The column.
        column: &'static str,
        /// Those that are there.
        found: String,
    },
    /// Two columns of one name.
    #[error("the first line names the column `{column}` twice")]
    DoubleColumn {
        /// The column.
        column: String,
    },
    /// Nothing to learn from.
    #[error("the table has no feature, expected a column beside `sequence` and `class`")]
    NoFeature,
    /// A row of another number of columns.
    #[error("line {line} has {found} columns, expected {expected}")]
    Columns {
        /// The line.
        line: u64,
        /// What it has.
        found: u64,
        /// What the first line has.
        expected: u64,
    },
    /// A feature that is no finite number.
    #[error("line {line}, column `{column}`: `{found}` is not a finite number")]
    NotANumber {
        /// The line.
        line: u64,
        /// The column.
        column: String,
        /// What stands there.
        found: String,
    },
    /// A class that is no whole number, or too large.
    #[error("line {line}: `{found}` is not a class, expected a whole number from 0 to {largest}")]
    Class {
        /// The line.
        line: u64,
        /// What stands there.
        found: String,
        /// The largest class there can be.
        largest: usize,
    },
    /// Classes that leave out most of the numbers below the largest.
    #[error(
        "line {line}: class {found} in a table of {different} different classes, expected them to be numbered from 0 on"
    )]
    Gaps {
        /// The line.
        line: u64,
        /// The largest class.
        found: usize,
        /// How many different ones there are.
        different: usize,
    },
    /// A sequence of two classes.
    #[error("line {line}: sequence `{sequence}` has class {found} here and class {expected} before")]
    TwoClasses {
        /// The line.
        line: u64,
        /// The sequence.
        sequence: String,
        /// The class there.
        found: usize,
        /// The class of the rows before.
        expected: usize,
    },
    /// Rows of a sequence with others between them.
    #[error("line {line}: sequence `{sequence}` goes on after another began; its rows must stand together")]
    Scattered {
        /// The line.
        line: u64,
        /// The sequence.
        sequence: String,
    },
    /// Sequences of several lengths.
    #[error(
        "sequence `{sequence}`, from line {line}, has {found} steps, expected {expected} as in the first; ask for a number of steps to cut longer ones"
    )]
    Lengths {
        /// Where it begins.
        line: u64,
        /// The sequence.
        sequence: String,
        /// Its steps.
        found: usize,
        /// Those of the first.
        expected: usize,
    },
    /// A sequence of fewer steps than were asked for.
    #[error("sequence `{sequence}`, from line {line}, has {found} steps, but {asked} are asked for")]
    TooShort {
        /// Where it begins.
        line: u64,
        /// The sequence.
        sequence: String,
        /// Its steps.
        found: usize,
        /// The steps asked for.
        asked: usize,
    },
    /// Sequences of no steps, or of no class, are asked for.
    #[error("0 {what} are asked for, expected at least 1")]
    Nothing {
        /// Steps or classes.
        what: &'static str,
    },
    /// Nothing would be held out, or everything.
    #[error(
        "{part} of {sequences} sequences cannot be held out, expected a part between 0 and 1 of two sequences or more"
    )]
    Split {
        /// The part.
        part: f64,
        /// How many sequences there are.
        sequences: usize,
    },
}
