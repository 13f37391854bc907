//! What all ranks know together: to be written down, and to go on from with any number of them.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Tensor, TensorData};
use rekindle_dist::{Collective, Layout, Moments};
use rekindle_models::{Shares, Trainable};

use super::grid::Shape;
use super::together::from_first;
use crate::failure::Failure;

/// The whole model, on one rank: every trained value in the order of the model's fields, what Adam knows of it, and what is not
/// trained, such as running statistics.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Whole {
    pub(super) weights: Vec<f32>,
    pub(super) moments: Moments,
    pub(super) statistics: Vec<f32>,
}

/// The values of a model that are not trained, in the order of its fields, and whose they are.
pub(super) struct Statistics {
    /// The rank of the pipeline that has each, and how many values it has.
    owned: Vec<(usize, usize)>,
    trained: HashSet<ParamId>,
}

impl Statistics {
    /// Of a whole model. What is not trained belongs to whoever trains what stands before it: running statistics stand behind the
    /// scale and the shift of their norm.
    pub(super) fn new(model: &impl Module, owners: &HashMap<ParamId, usize>) -> Self {
        struct Look<'a> {
            owners: &'a HashMap<ParamId, usize>,
            last: usize,
            found: Statistics,
        }
        impl ModuleVisitor for Look<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let value = param.val();
                if value.is_require_grad() {
                    self.last = self.owners.get(&param.id).copied().unwrap_or(self.last);
                    self.found.trained.insert(param.id);
                } else {
                    self.found.owned.push((self.last, value.shape().num_elements()));
                }
            }
        }
        let found = Self { owned: Vec::new(), trained: HashSet::new() };
        let mut look = Look { owners, last: 0, found };
        model.visit(&mut look);
        look.found
    }

    /// This model's.
    pub(super) fn of(&self, model: &impl Module) -> Vec<f32> {
        struct Read<'a>(&'a HashSet<ParamId>, Vec<f32>);
        impl ModuleVisitor for Read<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if !self.0.contains(&param.id) {
                    self.1.extend(param.val().into_data().iter::<f32>());
                }
            }
        }
        let mut read = Read(&self.trained, Vec::new());
        // Without autodiff: that brings updates that are pending into the values.
        model.valid().visit(&mut read);
        read.1
    }

    /// A model with these.
    pub(super) fn put<M: Module>(&self, model: M, values: &[f32]) -> M {
        struct Write<'a>(&'a [f32]);
        impl ModuleMapper for Write<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let value = param.val();
                if value.is_require_grad() {
                    return param;
                }
                let Some((own, rest)) = self.0.split_at_checked(value.shape().num_elements()) else {
                    return param;
                };
                self.0 = rest;
                let data = TensorData::new(own.to_vec(), value.shape());
                param.map(|old| Tensor::from_data(data, &old.device()))
            }
        }
        // An update that is still pending would write over them.
        let _ = model.valid();
        model.map(&mut Write(values))
    }

    /// Puts together on the first rank of a pipeline what each has.
    pub(super) fn gather(&self, pipeline: &dyn Collective, own: &[f32]) -> Result<Option<Vec<f32>>, Failure> {
        let bytes: Vec<u8> = own.iter().flat_map(|value| value.to_le_bytes()).collect();
        let all = pipeline.all_gather(bytes)?;
        if pipeline.rank() > 0 {
            return Ok(None);
        }
        let mut whole = own.to_vec();
        let mut start = 0;
        for (owner, length) in &self.owned {
            let of_owner = all.get(*owner).and_then(|all| all.get(4 * start..4 * (start + length)));
            let values =
                of_owner.unwrap_or_default().as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes);
            whole[start..start + length].iter_mut().zip(values).for_each(|(value, own)| *value = own);
            start += length;
        }
        Ok(Some(whole))
    }
}

/// The trained parameters of a whole model, in order, and how ranks that have parts of its layers share them out.
pub(super) struct WholeModel {
    layout: Layout,
    shares: Shares,
}

impl WholeModel {
    pub(super) fn of(model: &impl Trainable) -> Result<Self, Failure> {
        Ok(Self { layout: Layout::new(model)?, shares: model.shares() })
    }

    pub(super) fn parameters(&self) -> impl Iterator<Item = ParamId> + '_ {
        self.layout.parameters().map(|(id, _)| id)
    }
}

/// Where the values of each rank of a replica lie in those of the whole.
pub(super) struct Sections {
    /// For each rank, by stages and then by parts of layers: ranges of the whole, in order.
    ranges: Vec<Vec<std::ops::Range<usize>>>,
    length: usize,
}

impl Sections {
    /// `owners` says which rank of the pipeline has a parameter.
    pub(super) fn new(whole: &WholeModel, owners: &HashMap<ParamId, usize>, shape: Shape) -> Self {
        let Shape { stages, peers, .. } = shape;
        let mut ranges = vec![Vec::new(); stages * peers];
        let mut start = 0;
        for (id, sizes) in whole.layout.shapes() {
            let owner = owners.get(&id).copied().unwrap_or(0);
            let length: usize = sizes.iter().product();
            for peer in 0..peers {
                let own = match whole.shares.of(id).filter(|_| peers > 1) {
                    None => std::iter::once(0..length).collect(),
                    Some(share) => share.ranges(sizes, peer, peers),
                };
                let own = own.into_iter().map(|range| start + range.start..start + range.end);
                ranges[owner * peers + peer].extend(own);
            }
            start += length;
        }
        Self { ranges, length: start }
    }

    /// A rank's part of a vector of the whole; shorter than it is if the vector is of another model, which is then refused.
    pub(super) fn part(&self, of_replica: &dyn Collective, whole: &[f32]) -> Vec<f32> {
        let parts = self.ranges[of_replica.rank()].iter().filter_map(|range| whole.get(range.clone()));
        parts.flatten().copied().collect()
    }

    /// Puts together on the first rank of a replica what each has a part of.
    fn gather(&self, of_replica: &dyn Collective, part: &[f32]) -> Result<Option<Vec<f32>>, Failure> {
        let own: Vec<u8> = part.iter().flat_map(|value| value.to_le_bytes()).collect();
        if of_replica.rank() > 0 {
            of_replica.send(0, own)?;
            return Ok(None);
        }
        let mut whole = vec![0.0; self.length];
        for rank in 0..of_replica.size() {
            let part = if rank == 0 { own.clone() } else { of_replica.receive(rank)? };
            let mut values = part.as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes);
            for range in &self.ranges[rank] {
                whole[range.clone()].iter_mut().zip(&mut values).for_each(|(value, own)| *value = own);
            }
        }
        Ok(Some(whole))
    }

    /// Puts the weights together on the first rank of a replica.
    pub(super) fn gather_weights(
        &self,
        of_replica: &dyn Collective,
        own: &[f32],
    ) -> Result<Option<Vec<f32>>, Failure> {
        self.gather(of_replica, own)
    }

    /// Puts weights and moments together on the first rank of a replica.
    pub(super) fn gather_all(
        &self,
        of_replica: &dyn Collective,
        weights: &[f32],
        moments: &Moments,
    ) -> Result<Option<(Vec<f32>, Moments)>, Failure> {
        let all = [weights, &moments.first, &moments.second].map(|part| self.gather(of_replica, part));
        let [weights, first, second] = all;
        let (Some(weights), Some(first), Some(second)) = (weights?, first?, second?) else { return Ok(None) };
        Ok(Some((weights, Moments { steps: moments.steps, first, second })))
    }
}

impl Whole {
    /// What a file has of it.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let vectors = [&self.weights, &self.moments.first, &self.moments.second, &self.statistics];
        let mut bytes = (self.moments.steps as u64).to_le_bytes().to_vec();
        for vector in vectors {
            bytes.extend((vector.len() as u64).to_le_bytes());
            bytes.extend(vector.iter().flat_map(|value| value.to_le_bytes()));
        }
        bytes
    }

    /// What was written.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        let number = |rest: &mut &[u8]| {
            let (number, behind) = rest.split_at_checked(8)?;
            *rest = behind;
            usize::try_from(u64::from_le_bytes(number.try_into().ok()?)).ok()
        };
        let steps = number(&mut rest)?;
        let vector = |rest: &mut &[u8]| {
            let length = number(rest)?.checked_mul(4)?;
            let (values, behind) = rest.split_at_checked(length)?;
            *rest = behind;
            Some(values.as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes).collect::<Vec<f32>>())
        };
        let (weights, first, second) = (vector(&mut rest)?, vector(&mut rest)?, vector(&mut rest)?);
        let statistics = vector(&mut rest)?;
        rest.is_empty().then_some(Self { weights, moments: Moments { steps, first, second }, statistics })
    }

    /// What the first rank has read, on all ranks, with two numbers beside it: how many steps are done and where the data are.
    pub(super) fn share(
        world: &dyn Collective,
        read: impl FnOnce() -> Result<(Self, u32, u64), Failure>,
    ) -> Result<(Self, u32, u64), Failure> {
        let bytes = from_first(world, || {
            let (whole, steps, position) = read()?;
            Ok([&u64::from(steps).to_le_bytes()[..], &position.to_le_bytes(), &whole.to_bytes()].concat())
        })?;
        let damaged = || Failure::failed(anyhow::anyhow!("the snapshot was damaged on its way"), "try again");
        let (numbers, rest) = bytes.split_at_checked(16).ok_or_else(damaged)?;
        let number = |at: usize| numbers[at..at + 8].try_into().map(u64::from_le_bytes).unwrap_or_default();
        let steps = u32::try_from(number(0)).map_err(|_| damaged())?;
        Ok((Self::from_bytes(rest).ok_or_else(damaged)?, steps, number(8)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_damaged_is_not() {
        let moments = Moments { steps: 7, first: vec![1.5, -2.0], second: vec![0.25, f32::MIN_POSITIVE] };
        let whole = Whole { weights: vec![3.0, 4.0], moments, statistics: vec![5.0] };
        let bytes = whole.to_bytes();
        assert_eq!(Whole::from_bytes(&bytes), Some(whole));
        for end in 0..bytes.len() {
            assert_eq!(Whole::from_bytes(&bytes[..end]), None, "{end} bytes");
        }
        assert_eq!(Whole::from_bytes(&[&bytes[..], &[0]].concat()), None);
    }
}
