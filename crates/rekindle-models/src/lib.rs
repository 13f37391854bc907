//! What people train: models that offer their stages.
//!
//! A model says once how it is cut into stages; whoever trains it chooses the plan.
//!
//! ```
//! use burn::optim::GradientsParams;
//! use burn::tensor::{Device, Int, Tensor};
//! use rekindle::Rule;
//! use rekindle_models::{GptBatch, GptConfig};
//!
//! let device = Device::flex().autodiff();
//! let model = GptConfig::new(256, 16, 2, 3, 8).init(&device)?;
//! let tokens = Tensor::<2, Int>::zeros([1, 8], &device);
//! let batch = GptBatch { tokens: tokens.clone(), targets: tokens };
//! let loss = model.loss(&batch, Rule::EVERY_ONE)?;
//! let gradients = GradientsParams::from_grads(loss.backward(), &model);
//! # let _ = gradients;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod accuracy;
mod block;
mod config_error;
mod conv_net;
pub mod data;
mod gpt;
mod images;
mod layers;
mod recurrent;
mod resnet;
mod sequences;
mod shape;
mod split;
mod trainable;
mod two_tower;
mod vit;
pub mod weights;

pub use block::GptBlock;
pub use config_error::ConfigError;
pub use conv_net::{ConvBlock, ConvNet, ConvNetConfig};
pub use gpt::{Gpt, GptBatch, GptConfig};
pub use images::ImageBatch;
pub use recurrent::{Recurrent, RecurrentConfig, RecurrentKind, RecurrentState};
pub use rekindle_estimate as estimate;
pub use resnet::{Bottleneck, ResNet, ResNetConfig, ResNetHead, Stem};
pub use sequences::SequenceBatch;
pub use shape::{Activation, Norms, Positions};
pub use split::{Share, Shares};
pub use trainable::{Batch, Coupled, Fine, Trainable};
pub use two_tower::{PairBatch, PairGradient, TwoTower, TwoTowerConfig};
pub use vit::{Vit, VitConfig};
