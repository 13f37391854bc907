//! Safetensors files: tensors by name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::WeightsError;

/// The shape and the bytes of tensors of `f32`.
pub(super) type Tensors = BTreeMap<String, (Vec<usize>, Vec<u8>)>;

pub(super) fn read(path: &Path) -> Result<Vec<u8>, WeightsError> {
    std::fs::read(path).map_err(|source| WeightsError::Read { path: path.to_owned(), source })
}

/// A file that was read.
pub(super) struct File<'a> {
    path: &'a Path,
    pub(super) tensors: SafeTensors<'a>,
    pub(super) metadata: Option<HashMap<String, String>>,
}

impl<'a> File<'a> {
    pub(super) fn open(path: &'a Path, bytes: &'a [u8]) -> Result<Self, WeightsError> {
        let damaged = |error: safetensors::SafeTensorError| WeightsError::Format {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
        let tensors = SafeTensors::deserialize(bytes).map_err(damaged)?;
        Ok(Self { path, tensors, metadata: header.metadata().clone() })
    }

    /// Refuses names that are missing, and names that nobody asked for.
    pub(super) fn has_exactly<'n>(
        &self,
        expected: impl Iterator<Item = &'n str>,
        found: impl Iterator<Item = &'n str>,
    ) -> Result<(), WeightsError> {
        let (expected, found): (BTreeSet<&str>, BTreeSet<&str>) = (expected.collect(), found.collect());
        let without = |all: &BTreeSet<&str>, others: &BTreeSet<&str>| -> Vec<String> {
            all.difference(others).map(|name| (*name).to_owned()).collect()
        };
        let (missing, unexpected) = (without(&expected, &found), without(&found, &expected));
        let path = self.path.to_owned();
        match (missing.is_empty(), unexpected.is_empty()) {
            (false, _) => Err(WeightsError::Missing { path, names: missing }),
            (true, false) => Err(WeightsError::Unexpected { path, names: unexpected }),
            (true, true) => Ok(()),
        }
    }

    /// The numbers of a tensor of this shape.
    pub(super) fn elements(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let (path, named) = (self.path.to_owned(), name.to_owned());
        let view = match self.tensors.tensor(name) {
            Ok(view) => view,
            Err(_) => return Err(WeightsError::Missing { path, names: vec![named] }),
        };
        if view.shape() != shape {
            let (found, expected) = (view.shape().to_vec(), shape.to_vec());
            return Err(WeightsError::Shape { path, name: named, found, expected });
        }
        let found = format!("{:?}", view.dtype());
        numbers(&view).ok_or(WeightsError::Type { path, name: named, found })
    }
}

/// The numbers of a tensor in a file; `None`, if they are of a type that weights do not have.
fn numbers(view: &TensorView<'_>) -> Option<Vec<f32>> {
    let bytes = view.data();
    let halves = || bytes.as_chunks::<2>().0.iter().copied();
    Some(match view.dtype() {
        Dtype::F32 => bytes.as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes).collect(),
        Dtype::F16 => halves().map(|half| half::f16::from_le_bytes(half).to_f32()).collect(),
        Dtype::BF16 => halves().map(|half| half::bf16::from_le_bytes(half).to_f32()).collect(),
        Dtype::F64 => {
            let doubles = bytes.as_chunks::<8>().0.iter().copied();
            doubles.map(|double| f64::from_le_bytes(double) as f32).collect()
        }
        _ => return None,
    })
}

/// Writes tensors and what is said of them. Beside the file first, so that nobody ever finds half of it.
pub(super) fn write(
    path: &Path,
    tensors: &Tensors,
    metadata: HashMap<String, String>,
) -> Result<(), WeightsError> {
    let failed = |error: &dyn std::fmt::Display| WeightsError::Write {
        path: path.to_owned(),
        reason: error.to_string(),
    };
    let mut views = Vec::with_capacity(tensors.len());
    for (name, (shape, bytes)) in tensors {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes);
        views.push((name, view.map_err(|error| failed(&error))?));
    }
    let mut bytes = safetensors::serialize(views, Some(metadata)).map_err(|error| failed(&error))?;
    sort_header(&mut bytes);
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let written =
        tempfile::NamedTempFile::new_in(directory.unwrap_or(Path::new("."))).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.as_file().sync_all()?;
            file.persist(path).map_err(|error| error.error)
        });
    written.map(drop).map_err(|error| failed(&error))
}

/// Puts the header's entries into order, so that the same weights are the same file: metadata come in any order otherwise.
fn sort_header(bytes: &mut [u8]) {
    let Some((length, rest)) = bytes.split_first_chunk_mut::<8>() else { return };
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let Some((header, _)) = rest.split_at_mut_checked(length) else { return };
    let sorted = serde_json::from_slice::<BTreeMap<String, BTreeMap<String, serde_json::Value>>>(header);
    let Some(sorted) = sorted.ok().and_then(|sorted| serde_json::to_vec(&sorted).ok()) else { return };
    // The same entries take the same room; what is left of it is padded with blanks, as before.
    if let Some((entries, padding)) = header.split_at_mut_checked(sorted.len()) {
        entries.copy_from_slice(&sorted);
        padding.fill(b' ');
    }
}
