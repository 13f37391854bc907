//! Where boundaries of a Python engine can go: host memory, a file, codecs, or a store that is itself written in Python.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use rekindle_plan::{Boundary, Bytes, Name};
use rekindle_run::{
    Coded, DiskFile, HostPool, PackedTensor, Parcel, Store, StoreError, Stores, codec, measure_codec,
    measure_store,
};

use crate::errors::Refusal;

/// The places of a region. Each run has stores of its own; they share their buffers and files.
#[pyclass(frozen, module = "rekindle._core")]
#[derive(Default)]
pub(crate) struct Storage {
    places: Mutex<Vec<(Name, Place)>>,
}

enum Place {
    Host(HostPool),
    Disk(DiskFile),
    /// A codec, and the memory that what it makes lies in.
    Codec(HostPool),
    /// An object with the methods of [`PythonStore`]; called to make an empty one.
    Python(Arc<Py<PyAny>>),
}

#[pymethods]
impl Storage {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Up to `limit` bytes of host memory. Gives how fast boundaries of these sizes go there and come back, in bytes
    /// per second.
    fn add_host(&self, name: &str, limit: u64, sizes: Vec<u64>) -> PyResult<(u64, u64)> {
        let pool = HostPool::new(Bytes::new(limit));
        let speed = speed(&mut pool.store(), &sizes)?;
        self.add(name, Place::Host(pool))?;
        Ok(speed)
    }

    /// A file of up to `limit` bytes in a private folder inside `directory`. Gives its speeds.
    fn add_disk(&self, name: &str, directory: PathBuf, limit: u64, sizes: Vec<u64>) -> PyResult<(u64, u64)> {
        let file = DiskFile::open(directory, Bytes::new(limit)).map_err(refuse)?;
        let speed = speed(&mut file.store(), &sizes)?;
        self.add(name, Place::Disk(file))?;
        Ok(speed)
    }

    /// A codec by its name. Gives what 1,024 bytes of the sample become, and the speeds there and back.
    fn add_codec(&self, name: &str, sample: Vec<u8>) -> PyResult<(u32, u64, u64)> {
        let parsed: Name = name.parse().map_err(Refusal::from)?;
        let Some(codec) = codec::by_name(&parsed) else {
            let known = "bf16, f16, int8, int4, top-k, lz4";
            let words = format!("there is no codec `{name}`, expected one of: {known}");
            return Err(Refusal::new("UnknownName", words).part("found", name).into());
        };
        let shape = vec![sample.len() / 4];
        let tensor = PackedTensor { dtype: "f32".to_owned(), shape, bytes: sample.into() };
        let parcel = Parcel { tensors: vec![tensor], structure: Vec::new() };
        let speed = measure_codec(codec.as_ref(), &parcel, RUNS)
            .map_err(|error| Refusal::new("PlaceError", error))?;
        // It is the device's memory, which the plan counts.
        self.add(name, Place::Codec(HostPool::new(Bytes::MAX)))?;
        Ok((speed.bytes_per_kibibyte, speed.compress_bytes_per_second, speed.restore_bytes_per_second))
    }

    /// A store in Python. `make()` gives an empty one for each run, with `put`, `wait`, `prefetch`, `take` and `forget`.
    fn add_python(&self, name: &str, make: Py<PyAny>) -> PyResult<()> {
        self.add(name, Place::Python(Arc::new(make)))
    }

    /// What plans call them.
    fn names(&self) -> Vec<String> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.iter().map(|(name, _)| name.to_string()).collect()
    }
}

/// How often a place is tried when it is measured.
const RUNS: usize = 3;

impl Storage {
    fn add(&self, name: &str, place: Place) -> PyResult<()> {
        let name: Name = name.parse().map_err(Refusal::from)?;
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.retain(|(known, _)| *known != name);
        places.push((name, place));
        Ok(())
    }

    /// Empty stores for one run.
    pub(super) fn stores(&self) -> PyResult<Stores> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let stores = places.iter().map(|(name, place)| {
            let store: Box<dyn Store> = match place {
                Place::Host(pool) => Box::new(pool.store()),
                Place::Disk(file) => Box::new(file.store()),
                Place::Codec(pool) => match codec::by_name(name) {
                    Some(codec) => Box::new(Coded::boxed(codec, Box::new(pool.store()))),
                    None => Box::new(pool.store()),
                },
                Place::Python(make) => Box::new(PythonStore(Python::attach(|py| make.call0(py))?)),
            };
            Ok((name.clone(), store))
        });
        stores.collect()
    }
}

fn speed(store: &mut dyn Store, sizes: &[u64]) -> PyResult<(u64, u64)> {
    let sizes: Vec<Bytes> = sizes.iter().copied().map(Bytes::new).collect();
    let speed = measure_store(store, &sizes, RUNS).map_err(refuse)?;
    Ok((speed.write_bytes_per_second, speed.read_bytes_per_second))
}

fn refuse(error: StoreError) -> PyErr {
    Refusal::new("PlaceError", error).into()
}

/// A store whose parcels never leave Python: each is the number under which the engine has exported the boundary.
struct PythonStore(Py<PyAny>);

impl PythonStore {
    fn ask<T>(&self, ask: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T, StoreError> {
        Python::attach(|py| {
            ask(self.0.bind(py)).map_err(|error| StoreError::Failed { message: error.to_string() })
        })
    }
}

impl Store for PythonStore {
    fn put(&mut self, boundary: Boundary, parcel: Parcel) -> Result<(), StoreError> {
        let number = parcel.structure.first().copied().unwrap_or_default();
        self.ask(|store| {
            store.call_method1(intern!(store.py(), "put"), (boundary.number(), number)).map(|_| ())
        })
    }

    fn wait(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        self.ask(|store| store.call_method1(intern!(store.py(), "wait"), (boundary.number(),)).map(|_| ()))
    }

    fn prefetch(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        self.ask(|store| {
            store.call_method1(intern!(store.py(), "prefetch"), (boundary.number(),)).map(|_| ())
        })
    }

    fn take(&mut self, boundary: Boundary) -> Result<Parcel, StoreError> {
        let number = self.ask(|store| {
            store.call_method1(intern!(store.py(), "take"), (boundary.number(),))?.extract::<u64>()
        })?;
        Ok(Parcel { tensors: Vec::new(), structure: vec![number] })
    }

    fn forget(&mut self, boundary: Boundary) -> Result<(), StoreError> {
        self.ask(|store| store.call_method1(intern!(store.py(), "forget"), (boundary.number(),)).map(|_| ()))
    }
}
