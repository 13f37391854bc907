//! Sizes as text.

use pyo3::prelude::*;
use rekindle_plan::{Bytes, ParseBytesError};

use crate::arguments;
use crate::errors::Refusal;

/// Read a size as people write it.
///
/// Parameters
/// ----------
/// text : str
///     A number and a unit: ``64MiB``, ``1.5 GiB``, ``2GB`` or ``4096``.
///
/// Returns
/// -------
/// int
///     The size in bytes.
///
/// Raises
/// ------
/// SizeError
///     If the text is no size.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> rekindle.parse_bytes("1.5GiB")
/// 1610612736
#[pyfunction]
pub(crate) fn parse_bytes(text: &str) -> Result<u64, Refusal> {
    Ok(text.parse::<Bytes>().map_err(|error: ParseBytesError| error)?.get())
}

/// Write a size as people read it.
///
/// Parameters
/// ----------
/// size : int
///     A size in bytes.
///
/// Returns
/// -------
/// str
///     The size in its largest unit.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> rekindle.format_bytes(1610612736)
/// '1.5 GiB'
#[pyfunction]
pub(crate) fn format_bytes(size: &Bound<'_, PyAny>) -> PyResult<String> {
    Ok(arguments::size("size", size)?.to_string())
}
