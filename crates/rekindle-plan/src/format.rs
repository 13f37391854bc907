//! Reading the versioned JSON formats: the version first, then everything, and nothing that is not known.

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Why a text is not a profile or a plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The text stops in the middle.
    #[error(
        "the {document} ends too early, at line {line}, column {column}: it was cut off, or its writing was interrupted"
    )]
    Truncated {
        /// What was to be read.
        document: &'static str,
        /// The line where it ends.
        line: usize,
        /// The column where it ends.
        column: usize,
    },
    /// The text is not JSON, or a value is not what the format asks for.
    #[error("the {document} cannot be read: {message}")]
    Invalid {
        /// What was to be read.
        document: &'static str,
        /// What was found and what was expected, with its place.
        message: String,
    },
    /// The text is of another format, or of another version of it.
    #[error("the {document} has the format {found}, expected \"{expected}\"")]
    Version {
        /// What was to be read.
        document: &'static str,
        /// The format the text names.
        found: String,
        /// The format that can be read.
        expected: &'static str,
    },
}

#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    format: Option<serde_json::Value>,
}

/// Reads `text` as `T` when its `format` key is `expected`.
pub(crate) fn read<T: DeserializeOwned>(
    document: &'static str,
    expected: &'static str,
    text: &str,
) -> Result<T, FormatError> {
    let explain = |error: serde_json::Error| {
        if error.is_eof() {
            FormatError::Truncated { document, line: error.line(), column: error.column() }
        } else {
            FormatError::Invalid { document, message: error.to_string() }
        }
    };
    // The version is judged before the content: a newer file is "newer", not "has an unknown key".
    let header: Header = serde_json::from_str(text).map_err(explain)?;
    match header.format {
        Some(serde_json::Value::String(format)) if format == expected => {}
        other => {
            return Err(FormatError::Version {
                document,
                found: other.map_or_else(|| "(none)".to_owned(), |value| value.to_string()),
                expected,
            });
        }
    }
    serde_json::from_str(text).map_err(explain)
}
