//! Weights as files that others read and write: safetensors, with the names that Hugging Face has for GPT-2 and Llama.
//!
//! ```
//! use burn::tensor::Device;
//! use rekindle_models::{GptConfig, weights};
//!
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("model.safetensors");
//! let device = Device::flex();
//! let config = GptConfig::llama(256, 16, 2, 3, 8);
//! weights::save(&path, &config, &config.init(&device)?)?;
//! let (found, model) = weights::load(&path, &device)?;
//! assert_eq!(found.layers, 3);
//! # let _ = model;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Any other module has the names of its fields: [`save_module`], [`load_module`].

mod config;
mod error;
mod file;
mod module;
mod names;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use burn::module::{Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};

use crate::{Gpt, GptConfig};
use file::{File, Tensors};
use names::{Lies, Target, slots};

pub use error::WeightsError;
pub use module::{load_module, save_module};

/// The model in a file, and its configuration: what [`save`] wrote, or what is said in a `config.json` beside the file, as
/// Hugging Face has it for models of type `gpt2` and `llama`.
///
/// Weights of 16 bits are taken as 32.
///
/// # Errors
/// When the file cannot be read, is no safetensors file, or is of another model than its configuration says: nothing is taken
/// from such a file.
pub fn load(path: &Path, device: &Device) -> Result<(GptConfig, Gpt), WeightsError> {
    let bytes = file::read(path)?;
    let file = File::open(path, &bytes)?;
    let config = config::find(path, file.metadata.as_ref())?;
    // Before a model is built that no file could fill.
    let largest = [config.layers, config.width, config.vocabulary, config.hidden()].into_iter().max();
    let tensors = file.tensors.len();
    if config.layers > tensors || largest.is_some_and(|largest| largest > bytes.len()) {
        let reason = format!(
            "it has {} layers, a width of {} and {} words, far more than the {tensors} tensors of the file",
            config.layers, config.width, config.vocabulary
        );
        return Err(WeightsError::Config { path: path.to_owned(), reason });
    }
    let refused = |source| WeightsError::Model { path: path.to_owned(), source: Box::new(source) };
    let model = config.init(device).map_err(refused)?;
    let model = fill(&config, model, &file, device)?;
    Ok((config, model))
}

/// A model of this configuration, with the weights of a file.
///
/// # Errors
/// As [`load`]'s.
pub fn load_into(path: &Path, config: &GptConfig, model: Gpt, device: &Device) -> Result<Gpt, WeightsError> {
    fill(config, model, &File::open(path, &file::read(path)?)?, device)
}

/// Names of a file that are no weights: masks and angles, which everybody can compute.
fn is_no_weight(name: &str) -> bool {
    [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"].iter().any(|end| name.ends_with(end))
}

fn fill(config: &GptConfig, mut model: Gpt, file: &File<'_>, device: &Device) -> Result<Gpt, WeightsError> {
    let slots = slots(&mut model, config).ok_or(WeightsError::NoNames)?;
    // GPT-2 comes with and without the name of the model in front.
    let bare = |name: &str| name.strip_prefix("transformer.").unwrap_or(name).to_owned();
    let names = file.tensors.names().into_iter().filter(|name| !is_no_weight(name));
    let found: HashMap<String, &str> = names.map(|name| (bare(name), name)).collect();
    let expected: BTreeSet<String> = slots.iter().map(|slot| bare(&slot.name)).collect();
    // A head that is the embedding may be there a second time.
    let doubled = |name: &str| config.tied && name == "lm_head.weight";
    let found_names = found.keys().map(String::as_str).filter(|name| !doubled(name));
    file.has_exactly(expected.iter().map(String::as_str), found_names)?;
    for slot in slots {
        let shape = slot.shape_in_file();
        let elements = file.elements(found[&bare(&slot.name)], &shape)?;
        let data = slot.lies.take(elements, &shape);
        match slot.target {
            Target::Matrix(param) => *param = parameter(data, param.id, device),
            Target::Vector(param) => *param = parameter(data, param.id, device),
        }
    }
    Ok(model)
}

fn parameter<const D: usize>(data: TensorData, id: ParamId, device: &Device) -> Param<Tensor<D>> {
    let loaded = Param::<Tensor<D>>::from_data(data, device);
    Param::initialized(id, loaded.val())
}

/// Writes a model's weights, and its configuration beside them. A file that is there is replaced when the new one is whole.
///
/// # Errors
/// When the file cannot be written, or nobody has names for a model of this shape.
pub fn save(path: &Path, config: &GptConfig, model: &Gpt) -> Result<(), WeightsError> {
    let mut model = model.clone();
    let mut tensors = Tensors::new();
    for slot in slots(&mut model, config).ok_or(WeightsError::NoNames)? {
        let shape = slot.shape_in_file();
        let data = match &slot.target {
            Target::Matrix(param) => param.val().to_data(),
            Target::Vector(param) => param.val().to_data(),
        };
        let elements: Vec<f32> = data.iter::<f32>().collect();
        let (_, bytes) = tensors.entry(slot.name).or_insert_with(|| {
            let count: usize = shape.iter().product();
            (shape.clone(), vec![0; 4 * count])
        });
        slot.lies.put(&elements, &shape, bytes);
    }
    file::write(path, &tensors, config::metadata(config))
}

impl Lies {
    /// The part of a tensor in a file that is ours.
    fn take(self, elements: Vec<f32>, shape: &[usize]) -> TensorData {
        match (self, shape) {
            (Self::Transposed, &[rows, columns]) => {
                let turned = (0..columns).flat_map(|column| {
                    let elements = &elements;
                    (0..rows).map(move |row| elements[row * columns + column])
                });
                TensorData::new(turned.collect::<Vec<f32>>(), [columns, rows])
            }
            (Self::Third(third), &[rows, columns]) => {
                let width = columns / 3;
                let part = elements.chunks_exact(columns).flat_map(|row| &row[third * width..][..width]);
                TensorData::new(part.copied().collect::<Vec<f32>>(), [rows, width])
            }
            (Self::Third(third), &[columns]) => {
                let width = columns / 3;
                TensorData::new(elements[third * width..][..width].to_vec(), [width])
            }
            (_, shape) => TensorData::new(elements, shape.to_vec()),
        }
    }

    /// Writes our elements where they belong in a tensor of a file.
    fn put(self, elements: &[f32], shape: &[usize], bytes: &mut [u8]) {
        let columns = shape.last().copied().unwrap_or(1).max(1);
        let rows = shape.iter().product::<usize>() / columns;
        for (index, element) in elements.iter().enumerate() {
            let place = match self {
                Self::Whole => index,
                Self::Transposed => index % rows * columns + index / rows,
                Self::Third(third) => {
                    let width = columns / 3;
                    index / width * columns + third * width + index % width
                }
            };
            bytes[4 * place..][..4].copy_from_slice(&element.to_le_bytes());
        }
    }
}
