//! Attention that never holds a score for every pair of positions.

mod blocks;
mod tensors;

use std::sync::Arc;

use burn::backend::TensorMetadata;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{Bool, Tensor};

use crate::node::{AnyTensor, Found, GraphBackend, Operation, apply, converted, made, strided, widened};
use crate::philox::Mask;
use crate::{Dropout, Error};

/// Scaled dot-product attention in memory that grows with the sequence, not with its square: exact, and with exact gradients.
///
/// Scores are made a block of queries and a block of keys at a time, and forgotten; the backward makes them again from
/// queries, keys and one number a query, which are all that is kept beside the output. The whole is one node of the
/// autodiff graph. On Flex blocks run on all threads, with kernels of their own; on any other backend through Burn's
/// operations. The bits depend on neither the number of threads nor the plan.
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use rekindle::Attention;
///
/// let device = Device::flex().autodiff();
/// let random = |heads| Tensor::<4>::random([2, heads, 6, 8], Distribution::Default, &device);
/// // Two queries share a key and a value: grouped-query attention.
/// let (query, key, value) = (random(4).require_grad(), random(2), random(2));
/// let output = Attention::new().causal().forward(query.clone(), key, value)?;
/// assert_eq!(output.dims(), [2, 4, 6, 8]);
/// let gradients = output.sum().backward();
/// assert_eq!(query.grad(&gradients).unwrap().dims(), [2, 4, 6, 8]);
/// # Ok::<(), rekindle::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Attention {
    causal: bool,
    scale: Option<f64>,
    hidden_keys: Option<Tensor<2, Bool>>,
    dropout: Option<Dropout>,
}

impl Attention {
    /// Every query looks at every key.
    pub fn new() -> Self {
        Self::default()
    }

    /// A query looks at no key that comes after it. The last query and the last key belong together, if there are more
    /// of one, as in Burn.
    #[must_use]
    pub fn causal(mut self) -> Self {
        self.causal = true;
        self
    }

    /// What scores are multiplied by, instead of one over the square root of the depth.
    #[must_use]
    pub fn scale(mut self, scale: f64) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Nobody looks at a key where `hidden`, of batch and keys, is true. A query that is left nothing to look at gives zeros.
    #[must_use]
    pub fn hide_keys(mut self, hidden: Tensor<2, Bool>) -> Self {
        self.hidden_keys = Some(hidden);
        self
    }

    /// Drops scores after the softmax. The mask is made in the forward and once more in the backward, never kept.
    #[must_use]
    pub fn dropout(mut self, dropout: &Dropout) -> Self {
        self.dropout = Some(dropout.clone());
        self
    }

    /// Attends. Queries are `[batch, heads, queries, depth]`, keys `[batch, groups, keys, depth]`, values `[batch, groups,
    /// keys, depth of values]`: as many queries in a row share the keys and values of a group as there are heads to a group.
    ///
    /// # Errors
    /// When shapes, element types or the mask do not go together.
    pub fn forward(&self, query: Tensor<4>, key: Tensor<4>, value: Tensor<4>) -> Result<Tensor<4>, Error> {
        let sizes = Sizes::of(&query, &key, &value)?;
        let captured = crate::dropout::has_no_values(&query.device());
        let hidden = match &self.hidden_keys {
            Some(hidden) => Some(sizes.hidden(hidden, captured)?),
            None => None,
        };
        let dropped = self.dropout.as_ref().and_then(|dropout| dropout.mask(&query));
        let scale = self.scale.unwrap_or_else(|| 1.0 / (sizes.depth as f64).sqrt());
        let attend = Attend { sizes, scale, causal: self.causal, hidden, dropped };
        let [query, key, value] = [query, key, value].map(AnyTensor::from);
        let attended = apply(attend.clone(), [query, key, value]);
        Ok(attended.map(|output| Tensor::from_dispatch(output.0)).unwrap_or_else(|inputs| {
            let [query, key, value] = inputs.map(|input| Tensor::<4>::from_dispatch(input.0));
            tensors::plain(&attend, query, key, value)
        }))
    }
}

/// How many there are of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sizes {
    batch: usize,
    heads: usize,
    /// Heads of keys and values.
    groups: usize,
    queries: usize,
    keys: usize,
    depth: usize,
    value_depth: usize,
}

impl Sizes {
    fn of(query: &Tensor<4>, key: &Tensor<4>, value: &Tensor<4>) -> Result<Self, Error> {
        let [batch, heads, queries, depth] = query.dims();
        let [key_batch, groups, keys, key_depth] = key.dims();
        let [value_batch, value_groups, value_keys, value_depth] = value.dims();
        if groups == 0 || !heads.is_multiple_of(groups) {
            return Err(Error::AttentionHeads { heads, groups });
        }
        let refused = |what, found: Vec<usize>, expected: Vec<usize>| {
            Err(Error::AttentionShape { what, found, expected })
        };
        if [key_batch, key_depth] != [batch, depth] {
            return refused("keys", key.dims().to_vec(), vec![batch, groups, keys, depth]);
        }
        if [value_batch, value_groups, value_keys] != [batch, groups, keys] {
            return refused("values", value.dims().to_vec(), vec![batch, groups, keys, value_depth]);
        }
        for other in [key.dtype(), value.dtype()] {
            if other != query.dtype() {
                return Err(Error::AttentionType { found: other.name(), expected: query.dtype().name() });
            }
        }
        Ok(Self { batch, heads, groups, queries, keys, depth, value_depth })
    }

    /// Which keys are hidden, one batch after the other.
    fn hidden(&self, hidden: &Tensor<2, Bool>, captured: bool) -> Result<Arc<[bool]>, Error> {
        let expected = [self.batch, self.keys];
        if hidden.dims() != expected {
            let (found, expected) = (hidden.dims().to_vec(), expected.to_vec());
            return Err(Error::AttentionShape { what: "the mask of hidden keys", found, expected });
        }
        if captured {
            // Tensors without values hide nothing; the work is the same.
            return Ok(vec![false; self.batch * self.keys].into());
        }
        let read = hidden.clone().try_into_data().map_err(|error| format!("{error:?}"));
        let read = read.and_then(|data| data.try_into_vec_as::<bool>().map_err(|error| format!("{error:?}")));
        read.map(Into::into).map_err(|reason| Error::AttentionMask { reason })
    }

    /// Queries that share a key.
    fn shared(&self) -> usize {
        self.heads / self.groups
    }
}

/// One attention, as the node runs it.
#[derive(Clone, Debug)]
struct Attend {
    sizes: Sizes,
    scale: f64,
    causal: bool,
    /// Of batch and keys.
    hidden: Option<Arc<[bool]>>,
    dropped: Option<Mask>,
}

impl Attend {
    /// How many keys from the first a query may look at.
    #[inline(always)]
    fn visible(&self, query: usize) -> usize {
        let Sizes { queries, keys, .. } = self.sizes;
        match self.causal {
            true => (query + 1 + keys).saturating_sub(queries).min(keys),
            false => keys,
        }
    }

    /// Which keys of a batch are hidden.
    fn hidden_of(&self, batch: usize) -> Option<&[bool]> {
        let keys = self.sizes.keys;
        self.hidden.as_deref().map(|hidden| &hidden[batch * keys..][..keys])
    }

    /// Where the first score of a query would lie, if all of them were held: that is what dropout goes by.
    #[inline(always)]
    fn position(&self, batch: usize, head: usize, query: usize) -> usize {
        ((batch * self.sizes.heads + head) * self.sizes.queries + query) * self.sizes.keys
    }
}

impl Operation<3> for Attend {
    const READS: [bool; 3] = [true; 3];
    const CHEAP: bool = false;
    const ANYWHERE: bool = true;

    fn forward<B: GraphBackend>(self, inputs: [FloatTensor<B>; 3]) -> FloatTensor<B> {
        self.record::<B>(inputs).0
    }

    fn record<B: GraphBackend>(self, inputs: [FloatTensor<B>; 3]) -> (FloatTensor<B>, Vec<FloatTensor<B>>) {
        let given = inputs[0].dtype();
        let [query, key, value] = inputs.map(widened::<B>);
        let (output, sums) = match (strided::<B, 4>(&query), strided::<B, 4>(&key), strided::<B, 4>(&value)) {
            (Some(q), Some(k), Some(v)) => {
                let Sizes { batch, heads, queries, value_depth, .. } = self.sizes;
                let (output, sums) = blocks::forward(&self, q, k, v);
                // Heads lie side by side, as what comes next wants them.
                let output = made::<B>(output, [batch, queries, heads, value_depth], &query);
                (B::float_swap_dims(output, 1, 2), made::<B>(sums, [batch, queries, heads], &query))
            }
            _ => tensors::forward::<B>(&self, query, key, value),
        };
        let output = converted::<B>(output, given);
        (output.clone(), vec![output, sums])
    }

    fn backward<B: GraphBackend>(self, found: Found<B, 3>) -> [Option<FloatTensor<B>>; 3] {
        let Found { inputs: [Some(query), Some(key), Some(value)], mut kept, gradient, .. } = found else {
            return [None, None, None];
        };
        let (Some(sums), Some(output)) = (kept.pop(), kept.pop()) else { return [None, None, None] };
        let given = query.dtype();
        let [query, key, value] = [query, key, value].map(widened::<B>);
        let [output, gradient] = [output, gradient].map(widened::<B>);
        let lying = (
            strided::<B, 4>(&query),
            strided::<B, 4>(&key),
            strided::<B, 4>(&value),
            strided::<B, 4>(&output),
            strided::<B, 4>(&gradient),
            strided::<B, 3>(&sums),
        );
        let gradients = match lying {
            (Some(query_at), Some(key), Some(value), Some(output), Some(gradient), Some(sums)) => {
                let kept = blocks::Kept { query: query_at, key, value, output, sums };
                let Sizes { batch, heads, groups, queries, keys, depth, value_depth } = self.sizes;
                let [of_query, of_key, of_value] = blocks::backward(&self, kept, gradient);
                let by_head = |elements, shape: [usize; 4]| {
                    B::float_swap_dims(made::<B>(elements, shape, &query), 1, 2)
                };
                [
                    by_head(of_query, [batch, queries, heads, depth]),
                    by_head(of_key, [batch, keys, groups, depth]),
                    by_head(of_value, [batch, keys, groups, value_depth]),
                ]
            }
            _ => tensors::backward::<B>(&self, [query, key, value], [output, sums], gradient),
        };
        gradients.map(|gradient| Some(converted::<B>(gradient, given)))
    }
}
