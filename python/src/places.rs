//! Where boundaries can lie beside the device: tiers, and smaller on it: codecs.

use pyo3::prelude::*;
use rekindle_plan::{Codec, Tier};

use crate::arguments::{count, size};
use crate::errors::Refusal;
use crate::values;

/// A place outside the device where boundaries can go.
///
/// Parameters
/// ----------
/// name : str
///     The name plans use for it, such as ``host``.
/// capacity_bytes : int or str
///     How much it can hold.
/// write_bytes_per_second, read_bytes_per_second : int or str
///     How fast boundaries go there, and how fast they come back.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> rekindle.Tier("host", "32GiB", write_bytes_per_second="12GB", read_bytes_per_second="12GB")
/// Tier('host', capacity_bytes=34359738368, write_bytes_per_second=12000000000, read_bytes_per_second=12000000000)
#[pyclass(frozen, eq, module = "rekindle", name = "Tier")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PyTier(pub(crate) Tier);

#[pymethods]
impl PyTier {
    #[new]
    fn new(
        name: &str,
        capacity_bytes: &Bound<'_, PyAny>,
        write_bytes_per_second: &Bound<'_, PyAny>,
        read_bytes_per_second: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        Ok(Self(Tier {
            name: name.parse().map_err(Refusal::from)?,
            capacity_bytes: size("capacity_bytes", capacity_bytes)?,
            write_bytes_per_second: size("write_bytes_per_second", write_bytes_per_second)?.get(),
            read_bytes_per_second: size("read_bytes_per_second", read_bytes_per_second)?.get(),
        }))
    }

    /// The name plans use for it.
    #[getter]
    fn name(&self) -> &str {
        self.0.name.as_str()
    }

    /// How much it can hold.
    #[getter]
    fn capacity_bytes(&self) -> u64 {
        self.0.capacity_bytes.get()
    }

    /// How fast boundaries go there.
    #[getter]
    fn write_bytes_per_second(&self) -> u64 {
        self.0.write_bytes_per_second
    }

    /// How fast they come back.
    #[getter]
    fn read_bytes_per_second(&self) -> u64 {
        self.0.read_bytes_per_second
    }

    fn __repr__(&self) -> String {
        format!(
            "Tier({}, capacity_bytes={}, write_bytes_per_second={}, read_bytes_per_second={})",
            values::quoted(self.name()),
            self.capacity_bytes(),
            self.write_bytes_per_second(),
            self.read_bytes_per_second()
        )
    }

    fn __hash__(&self) -> u64 {
        values::hash(&self.__repr__())
    }

    fn __getnewargs__(&self) -> (&str, u64, u64, u64) {
        (self.name(), self.capacity_bytes(), self.write_bytes_per_second(), self.read_bytes_per_second())
    }
}

/// A way to make a boundary smaller on the device.
///
/// Parameters
/// ----------
/// name : str
///     The name plans use for it, such as ``bf16``.
/// bytes_per_kibibyte : int
///     What 1,024 bytes become.
/// compress_bytes_per_second, restore_bytes_per_second : int or str
///     How fast boundaries are compressed, and how fast they are restored.
///
/// Examples
/// --------
/// >>> import rekindle
/// >>> rekindle.Codec("bf16", 512, "40GB", "40GB")
/// Codec('bf16', bytes_per_kibibyte=512, compress_bytes_per_second=40000000000, restore_bytes_per_second=40000000000)
#[pyclass(frozen, eq, module = "rekindle", name = "Codec")]
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PyCodec(pub(crate) Codec);

#[pymethods]
impl PyCodec {
    #[new]
    fn new(
        name: &str,
        bytes_per_kibibyte: &Bound<'_, PyAny>,
        compress_bytes_per_second: &Bound<'_, PyAny>,
        restore_bytes_per_second: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let share = count("bytes_per_kibibyte", bytes_per_kibibyte)?;
        Ok(Self(Codec {
            name: name.parse().map_err(Refusal::from)?,
            bytes_per_kibibyte: u32::try_from(share).map_err(|_| {
                let words = format!("`bytes_per_kibibyte` is {share}, expected less than 2^32");
                Refusal::new("ArgumentError", words)
                    .part("argument", "bytes_per_kibibyte")
                    .part("found", share.to_string())
            })?,
            compress_bytes_per_second: size("compress_bytes_per_second", compress_bytes_per_second)?.get(),
            restore_bytes_per_second: size("restore_bytes_per_second", restore_bytes_per_second)?.get(),
        }))
    }

    /// The name plans use for it.
    #[getter]
    fn name(&self) -> &str {
        self.0.name.as_str()
    }

    /// What 1,024 bytes become.
    #[getter]
    fn bytes_per_kibibyte(&self) -> u32 {
        self.0.bytes_per_kibibyte
    }

    /// How fast boundaries are compressed.
    #[getter]
    fn compress_bytes_per_second(&self) -> u64 {
        self.0.compress_bytes_per_second
    }

    /// How fast they are restored.
    #[getter]
    fn restore_bytes_per_second(&self) -> u64 {
        self.0.restore_bytes_per_second
    }

    fn __repr__(&self) -> String {
        format!(
            "Codec({}, bytes_per_kibibyte={}, compress_bytes_per_second={}, restore_bytes_per_second={})",
            values::quoted(self.name()),
            self.bytes_per_kibibyte(),
            self.compress_bytes_per_second(),
            self.restore_bytes_per_second()
        )
    }

    fn __hash__(&self) -> u64 {
        values::hash(&self.__repr__())
    }

    fn __getnewargs__(&self) -> (&str, u32, u64, u64) {
        (
            self.name(),
            self.bytes_per_kibibyte(),
            self.compress_bytes_per_second(),
            self.restore_bytes_per_second(),
        )
    }
}
