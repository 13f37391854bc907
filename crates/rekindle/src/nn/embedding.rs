//! Tokens as vectors.

use burn::tensor::{Int, Tensor};

use crate::Error;
use crate::dropout::has_no_values;

/// The vectors of tokens: rows of `weight`. Burn's `embedding`, which panics where this refuses a token that has none.
///
/// ```
/// use burn::nn::EmbeddingConfig;
/// use burn::tensor::{Device, Tensor};
/// use rekindle::nn::embedding;
///
/// let device = Device::flex().autodiff();
/// let layer = EmbeddingConfig::new(10, 4).init(&device);
/// let vectors = embedding(layer.weight.val(), Tensor::from_data([[1, 2, 9]], &device))?;
/// assert_eq!(vectors.dims(), [1, 3, 4]);
/// let refused = embedding(layer.weight.val(), Tensor::from_data([[1, 2, 10]], &device)).unwrap_err();
/// assert_eq!(refused.to_string(), "token 2 of sequence 0 is 10, expected 0 to 9");
/// # Ok::<(), rekindle::Error>(())
/// ```
///
/// # Errors
/// When a token is no row of the weights, or the tokens cannot be read.
pub fn embedding(weight: Tensor<2>, tokens: Tensor<2, Int>) -> Result<Tensor<3>, Error> {
    let [vocabulary, _] = weight.dims();
    let [_, length] = tokens.dims();
    if !has_no_values(&tokens.device()) {
        let data = tokens.clone().try_into_data().map_err(|error| format!("{error:?}"));
        let read = data.and_then(|data| data.try_into_vec_as::<i64>().map_err(|error| format!("{error:?}")));
        let read = read.map_err(|reason| Error::Tokens { reason })?;
        let is_row = |token: i64| usize::try_from(token).is_ok_and(|row| row < vocabulary);
        if let Some((index, found)) = read.into_iter().enumerate().find(|(_, token)| !is_row(*token)) {
            let (sequence, place) = (index / length.max(1), index % length.max(1));
            return Err(Error::Token { sequence, place, found, vocabulary });
        }
    }
    Ok(burn::tensor::module::embedding(weight, tokens))
}
