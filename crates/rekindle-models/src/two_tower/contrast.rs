//! The loss of a batch, in which every pair is held against every other.

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor};
use rekindle::nn::LinearCrossEntropy;
use rekindle::{Boundary, Error, backward};

use super::PairGradient;

/// How sharply alike is told from unlike.
#[derive(Module, Debug)]
pub(super) struct Contrast {
    /// The logarithm of one over the temperature, so that it stays positive.
    pub(super) log_scale: Param<Tensor<1>>,
}

/// Vectors of length 1, one for each of the pairs.
#[derive(Boundary, Clone)]
pub(super) struct Embedded {
    pub(super) images: Tensor<2>,
    pub(super) texts: Tensor<2>,
}

/// Rows of similarities that are made at a time: few, because what they take comes on top of the embeddings of all.
const ROWS: usize = 128;

impl Contrast {
    pub(super) fn new(temperature: f64, device: &Device) -> Self {
        Self { log_scale: Param::from_tensor(Tensor::full([1], -temperature.ln(), device)) }
    }

    /// The mean of two cross entropies: of telling each image's text, and each text's image, among those of the batch.
    ///
    /// The matrix of all similarities is never there, only some of its rows, here and once more in the backward.
    fn whole(log_scale: Tensor<1>, Embedded { images, texts }: Embedded) -> Result<Tensor<1>, Error> {
        let [count, _] = images.dims();
        let own = Tensor::<1, Int>::arange(0..count as i64, &images.device());
        let entropy = LinearCrossEntropy::new().chunk(ROWS.min(count));
        let images = images * log_scale.exp().unsqueeze::<2>();
        let of_images = entropy.forward(images.clone(), texts.clone().transpose(), None, own.clone())?;
        let of_texts = entropy.forward(texts, images.transpose(), None, own)?;
        Ok((of_images + of_texts).div_scalar(2.0))
    }

    /// The loss of a batch of its own. Of a part of a larger one: a number whose gradient is the part's share of the whole
    /// loss's, for the gradient of a sum of products with constants are the constants.
    pub(super) fn loss(
        &self,
        embedded: Embedded,
        (is_part, known): (bool, PairGradient),
    ) -> Result<Tensor<1>, Error> {
        if !is_part {
            return Self::whole(self.log_scale.val(), embedded);
        }
        for known in [&known.images, &known.texts] {
            if known.dims() != embedded.images.dims() {
                return Err(Error::InputShape {
                    what: "known gradients",
                    found: known.dims().to_vec(),
                    expected: embedded.images.dims().to_vec(),
                });
            }
        }
        let images = (embedded.images * known.images).sum();
        let texts = (embedded.texts * known.texts).sum();
        Ok(images + texts + self.log_scale.val() * known.scale)
    }

    /// The loss of all pairs, and its gradient towards their embeddings and the scale.
    pub(super) fn look_back(&self, embedded: Embedded) -> Result<(Tensor<1>, PairGradient), Error> {
        if !(embedded.images.is_autodiff() && embedded.texts.is_autodiff()) {
            return Err(Error::Untracked);
        }
        let leaf = |tensor: Tensor<2>| tensor.detach().require_grad();
        let Embedded { images, texts } = embedded;
        let all = Embedded { images: leaf(images), texts: leaf(texts) };
        let log_scale = self.log_scale.val().detach().require_grad();
        let loss = Self::whole(log_scale.clone(), all.clone())?;
        let mut gradients = backward(&loss)?;
        let images = all.images.grad_remove(&mut gradients).ok_or(Error::Untracked)?;
        let texts = all.texts.grad_remove(&mut gradients).ok_or(Error::Untracked)?;
        let scale = log_scale.grad_remove(&mut gradients).ok_or(Error::Untracked)?;
        // Constants without autodiff go with every strategy of tapes.
        Ok((loss.without_autodiff(), PairGradient { images, texts, scale }))
    }
}
