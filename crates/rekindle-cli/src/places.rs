//! Where a plan may put boundaries, as it is asked for on the command line.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use rekindle::{Bytes, Places};

use crate::failure::Failure;
use crate::meter;
use crate::planning::refused;
use crate::strategy::Strategy;

/// Places besides the device.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct PlaceArguments {
    /// Host memory that a plan may move boundaries to, for a device with memory of its own
    #[arg(long, value_name = "BYTES", help_heading = "Places")]
    pub(crate) host: Option<Bytes>,
    /// A file that a plan may move boundaries to: how much, and in which directory
    #[arg(long, value_name = "BYTES:DIR", help_heading = "Places")]
    pub(crate) disk: Option<DiskPlace>,
    /// Codecs that a plan may shrink boundaries with: lossless, lz4, zstd; bf16, f16, int8, int4, top-k lose digits
    #[arg(long, value_name = "NAMES", value_delimiter = ',', help_heading = "Places")]
    pub(crate) compress: Vec<String>,
}

impl PlaceArguments {
    /// What was asked for, opened; where `strategy` moves nothing there, that is said.
    pub(crate) fn open_for(&self, strategy: &Strategy) -> Result<Places, Failure> {
        if self.any() && !strategy.may_move() {
            tell!(
                "`{strategy}` moves no boundary: --host, --disk and --compress are for budgets and policies, and unused here"
            );
        }
        self.open()
    }

    /// Whether anything was asked for.
    pub(crate) fn any(&self) -> bool {
        self.host.is_some() || self.disk.is_some() || !self.compress.is_empty()
    }

    /// Opens what was asked for.
    pub(crate) fn open(&self) -> Result<Places, Failure> {
        let mut places = Places::new();
        if let Some(limit) = self.host {
            // A plan that moved there would be refused; whoever asks without a plan is told as well.
            if !meter::is_pool() {
                return Err(refused(rekindle::Error::HostIsDevice { device: "flex".to_owned() }));
            }
            places = places.host(limit);
        }
        if let Some(DiskPlace { limit, directory }) = &self.disk {
            places = places.disk(directory, *limit).map_err(|error| {
                Failure::request(
                    error,
                    "give --disk a directory that is there and can be written to, such as 4GiB:.",
                )
            })?;
        }
        for name in &self.compress {
            places = places
                .codec(name)
                .map_err(|error| Failure::request(error, "give --compress one or more of these names"))?;
        }
        Ok(places)
    }
}

/// `64GiB:DIR`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DiskPlace {
    limit: Bytes,
    directory: PathBuf,
}

impl FromStr for DiskPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (limit, directory) = text.split_once(':').unwrap_or((text, ""));
        if directory.is_empty() {
            return Err("expected an amount and a directory, such as 64GiB:/scratch".to_owned());
        }
        let limit = limit.parse().map_err(|error| format!("{error}"))?;
        Ok(Self { limit, directory: directory.into() })
    }
}

impl fmt::Display for DiskPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.limit, self.directory.display())
    }
}

/// Tells what went wrong in them since this was last asked.
pub(crate) fn tell_faults(places: &Places) {
    for fault in places.take_faults() {
        tell!("{fault}");
    }
}

/// What rows and strategies with these places are called.
pub(crate) fn suffix(places: &Places) -> String {
    places.names().map(|name| format!("+{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_an_amount_and_a_directory() {
        let parse = |text: &str| text.parse::<DiskPlace>();
        let place = parse("64MiB:/tmp/a:b").unwrap();
        assert_eq!((place.limit, place.directory), (Bytes::mebibytes(64), PathBuf::from("/tmp/a:b")));
        assert!(parse("64MiB").unwrap_err().contains("such as 64GiB:/scratch"));
        assert!(parse("64MiB:").is_err() && parse("much:/tmp").is_err());
    }
}
