//! Causal self-attention.

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Device, Tensor};
use rekindle::{Dropout, DropoutConfig};

use crate::ConfigError;

/// Attention of a sequence to itself, with several heads.
///
/// Burn's `MultiHeadAttention` with our dropout: its own draws the mask of all probabilities on one thread, which took a
/// seventh of a step.
#[derive(Module, Debug)]
pub(crate) struct SelfAttention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    dropout: Dropout,
    heads: usize,
}

impl SelfAttention {
    pub(crate) fn new(
        width: usize,
        heads: usize,
        dropout: f64,
        device: &Device,
    ) -> Result<Self, ConfigError> {
        if heads == 0 || !width.is_multiple_of(heads) {
            return Err(ConfigError::Heads { width, heads });
        }
        let linear = || LinearConfig::new(width, width).init(device);
        Ok(Self {
            query: linear(),
            key: linear(),
            value: linear(),
            output: linear(),
            dropout: DropoutConfig::new(dropout).init()?,
            heads,
        })
    }

    /// `mask` is true where attention must not look; every position must be left something to look at.
    pub(crate) fn forward(&self, x: Tensor<3>, mask: Tensor<3, Bool>) -> Tensor<3> {
        let [batch, sequence, width] = x.dims();
        let depth = width / self.heads;
        let by_head = |x: Tensor<3>| x.reshape([batch, sequence, self.heads, depth]).swap_dims(1, 2);
        // Scaling the queries is less work than scaling the scores.
        let query = by_head(self.query.forward(x.clone()).div_scalar((depth as f32).sqrt()));
        let key = by_head(self.key.forward(x.clone()));
        let value = by_head(self.value.forward(x));
        // Minus infinity, and not some large number: its exponential is a zero that needs no computing.
        let scores = query.matmul(key.transpose()).mask_fill(mask.unsqueeze_dim::<4>(1), f32::NEG_INFINITY);
        let weights = self.dropout.forward(softmax(scores, 3));
        let context = weights.matmul(value).swap_dims(1, 2).reshape([batch, sequence, width]);
        self.output.forward(context)
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::attention::{MhaInput, MultiHeadAttentionConfig, generate_autoregressive_mask};
    use burn::tensor::{Distribution, Tolerance};

    use super::*;

    #[test]
    fn it_attends_as_burns_attention_does() {
        let device = Device::flex().autodiff();
        let ours = SelfAttention::new(16, 4, 0.0, &device).unwrap();
        let mut burns = MultiHeadAttentionConfig::new(16, 4).with_dropout(0.0).init(&device);
        burns.query = ours.query.clone();
        burns.key = ours.key.clone();
        burns.value = ours.value.clone();
        burns.output = ours.output.clone();
        let x = Tensor::<3>::random([2, 6, 16], Distribution::Normal(0.0, 1.0), &device).require_grad();
        let mask = generate_autoregressive_mask(2, 6, &device);
        let found = ours.forward(x.clone(), mask.clone());
        let expected = burns.forward(MhaInput::self_attn(x.clone()).mask_attn(mask)).context;
        found.to_data().assert_approx_eq::<f32>(&expected.to_data(), Tolerance::default());
        let gradient = |y: Tensor<3>| x.grad(&y.powf_scalar(2.0).sum().backward()).unwrap().into_data();
        gradient(found).assert_approx_eq::<f32>(&gradient(expected), Tolerance::default());
    }
}
