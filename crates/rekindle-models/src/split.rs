//! Blocks that several processes have a part of each: tensor parallel.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::nn;
use burn::tensor::{Tensor, TensorData};
use rekindle::peers::Peers;

use crate::ConfigError;

/// How peers share a parameter out.
///
/// A layer that reads what all have is cut into columns, one that reads what the one before has made of them into rows. The sum of
/// what comes out of rows has one bias, which is the first one's to add and to learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Each has the n-th part along this dimension.
    Along(usize),
    /// The first has it, the others have none.
    First,
}

impl Share {
    /// Where the part of a peer lies in the values of the whole, in order.
    ///
    /// ```
    /// use rekindle_models::Share;
    ///
    /// // Two rows of four columns: the second of two peers has the last two of each.
    /// assert_eq!(Share::Along(1).ranges(&[2, 4], 1, 2), [2..4, 6..8]);
    /// assert_eq!(Share::Along(0).ranges(&[2, 4], 1, 2), [4..8]);
    /// assert!(Share::First.ranges(&[4], 1, 2).is_empty());
    /// ```
    pub fn ranges(self, shape: &[usize], rank: usize, size: usize) -> Vec<Range<usize>> {
        let all: usize = shape.iter().product();
        match self {
            Self::First if rank == 0 => std::iter::once(0..all).collect(),
            Self::First => Vec::new(),
            Self::Along(dimension) => {
                let before: usize = shape.iter().take(dimension).product();
                // One of the values before it has so many values, of which a peer has a part in one piece.
                let stride = all.checked_div(before).unwrap_or(0);
                let part = stride.checked_div(size).unwrap_or(0);
                let range = |start: usize| start * stride + rank * part..start * stride + (rank + 1) * part;
                (0..before).map(range).collect()
            }
        }
    }
}

/// How the layers of a model are shared out, by their parameters; the same on all that is not here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares(HashMap<ParamId, Share>);

impl Shares {
    /// How a parameter is shared out, if it is.
    pub fn of(&self, parameter: ParamId) -> Option<Share> {
        self.0.get(&parameter).copied()
    }

    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A layer that reads what all have.
    pub(crate) fn columns(&mut self, layer: &nn::Linear) {
        self.0.insert(layer.weight.id, Share::Along(1));
        self.0.extend(layer.bias.iter().map(|bias| (bias.id, Share::Along(0))));
    }

    /// A layer that reads what a peer has made with its columns.
    pub(crate) fn rows(&mut self, layer: &nn::Linear) {
        self.0.insert(layer.weight.id, Share::Along(0));
        self.0.extend(layer.bias.iter().map(|bias| (bias.id, Share::First)));
    }

    /// What one of the peers has of a module. A bias that is another's is for its layer to let go of.
    pub(crate) fn cut<M: Module>(&self, module: M, peers: &dyn Peers) -> M {
        struct Cut<'a> {
            shares: &'a Shares,
            peers: &'a dyn Peers,
        }
        impl ModuleMapper for Cut<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let Some(Share::Along(dimension)) = self.shares.of(param.id) else { return param };
                let (rank, size) = (self.peers.rank(), self.peers.size());
                param.map(|tensor| {
                    let (device, trained) = (tensor.device(), tensor.is_require_grad());
                    let whole = tensor.shape().as_slice().to_vec();
                    let values: Vec<f32> = tensor.into_data().iter::<f32>().collect();
                    let ranges = Share::Along(dimension).ranges(&whole, rank, size);
                    let own: Vec<f32> = ranges.into_iter().flat_map(|range| values[range].to_vec()).collect();
                    let mut shape = whole;
                    shape[dimension] /= size;
                    Tensor::from_data(TensorData::new(own, shape), &device).set_require_grad(trained)
                })
            }
        }
        module.map(&mut Cut { shares: self, peers })
    }
}

/// Fails unless so many of something can be shared out evenly.
pub(crate) fn check_even(
    what: &'static str,
    found: usize,
    peers: &Arc<dyn Peers>,
) -> Result<(), ConfigError> {
    match found.is_multiple_of(peers.size()) {
        true => Ok(()),
        false => Err(ConfigError::Split { what, found, peers: peers.size() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_whole_once() {
        for (share, shape) in [
            (Share::Along(0), &[6, 5][..]),
            (Share::Along(1), &[5, 6]),
            (Share::Along(0), &[6]),
            (Share::First, &[7]),
        ] {
            for size in [1, 2, 3, 6] {
                let mut covered: Vec<usize> =
                    (0..size).flat_map(|rank| share.ranges(shape, rank, size)).flatten().collect();
                covered.sort_unstable();
                let all: usize = shape.iter().product();
                assert_eq!(covered, (0..all).collect::<Vec<_>>(), "{share:?} of {shape:?} over {size}");
            }
        }
    }
}
