//! A boundary between stages that run in different places: its tensors, without the type.

use burn::tensor::{Device, Gradients, Tensor};
use rekindle_run::Parcel;

use crate::boundary::{Boundary, Parts, PartsReader};
use crate::node::{self, AnyTensor};
use crate::{Error, backward};

/// A boundary that leaves for another process, or has come from one.
///
/// The stages of a [section](crate::Region::section) read one and make one. It travels as a [`Parcel`], and its gradients as
/// another.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use rekindle::{Carried, Region};
///
/// let device = Device::flex().autodiff();
/// let layers: Vec<Linear> = (0..4).map(|_| LinearConfig::new(8, 8).init(&device)).collect();
/// let region = || Region::new().stages("layer", &layers, |layer: &Linear, x: Tensor<2>| layer.forward(x).tanh());
///
/// // Two layers here, two there.
/// let sent = region().section(0..2)?.forward(Carried::of(Tensor::<2>::ones([2, 8], &device)))?;
/// let received = Carried::from_parcel(sent.to_parcel()?, &device)?.tracked();
/// let made: Tensor<2> = region().section(2..4)?.forward(received.clone())?.into_tree()?;
///
/// // And back.
/// let there = rekindle::backward(&made.sum())?;
/// let gradients = Carried::from_parcel(received.gradients(&there)?.to_parcel()?, &device)?;
/// let here = sent.backward(gradients)?;
/// assert!(layers[0].weight.val().grad(&here).is_some());
/// # Ok::<(), rekindle::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Carried {
    tensors: Vec<AnyTensor>,
    structure: Vec<u64>,
}

impl Carried {
    /// A boundary without its type.
    pub fn of(tree: impl Boundary) -> Self {
        Parts::of(tree).into()
    }

    /// The boundary with its type.
    ///
    /// # Errors
    /// When it is of another.
    pub fn into_tree<T: Boundary>(self) -> Result<T, Error> {
        Parts::from(self).into_tree()
    }

    /// The same values with a graph of their own that begins here: gradients are wanted of all floats.
    #[must_use]
    pub fn tracked(self) -> Self {
        let tensors = self.tensors.into_iter().map(AnyTensor::into_leaf).collect();
        Self { tensors, structure: self.structure }
    }

    /// The values, to be sent.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn to_parcel(&self) -> Result<Parcel, Error> {
        let tensors = self.tensors.iter().map(AnyTensor::to_packed);
        Ok(Parcel { tensors: tensors.collect::<Result<_, _>>()?, structure: self.structure.clone() })
    }

    /// What was sent, on `device`.
    ///
    /// # Errors
    /// When a tensor's bytes are not those of its type and shape.
    pub fn from_parcel(parcel: Parcel, device: &Device) -> Result<Self, Error> {
        let tensors = parcel.tensors.into_iter().map(|packed| AnyTensor::from_packed(packed, device));
        Ok(Self { tensors: tensors.collect::<Result<_, _>>()?, structure: parcel.structure })
    }

    /// The gradients of each float, in order: those of the floats that a graph began at, see [`tracked`](Self::tracked). What
    /// nothing reached has a gradient of zeros.
    ///
    /// # Errors
    /// When a tensor has more dimensions than eight.
    pub fn gradients(&self, gradients: &Gradients) -> Result<Self, Error> {
        let floats = self.tensors.iter().filter(|tensor| tensor.is_tracked());
        let found = floats.map(|tensor| tensor.gradient(gradients));
        Ok(Self { tensors: found.collect::<Result<_, _>>()?, structure: Vec::new() })
    }

    /// Goes back from here: `gradients` are those of each float, in order, as [`gradients`](Self::gradients) has them.
    ///
    /// # Errors
    /// When there are more or fewer of them than floats, or of other shapes, nothing is tracked, or a stage fails.
    pub fn backward(self, gradients: Self) -> Result<Gradients, Error> {
        let floats: Vec<AnyTensor> = self.tensors.into_iter().filter(AnyTensor::is_float).collect();
        let describe = |tensors: &[AnyTensor]| {
            let each: Vec<String> = tensors.iter().map(AnyTensor::describe).collect();
            format!("[{}]", each.join(", "))
        };
        let (found, expected) = (describe(&gradients.tensors), describe(&floats));
        if found != expected {
            return Err(Error::Boundary { found: format!("gradients of {found}"), expected });
        }
        let pairs = floats.into_iter().zip(gradients.tensors).filter(|(float, _)| float.is_tracked());
        let root: Tensor<1> = node::start_from(pairs.collect())?.try_into()?;
        backward(&root)
    }
}

impl Boundary for Carried {
    fn take_apart(self, parts: &mut Parts) {
        parts.tensors.extend(self.tensors);
        parts.structure.extend(self.structure);
    }

    fn put_together(parts: &mut PartsReader) -> Result<Self, Error> {
        Ok(parts.rest().into())
    }
}

impl From<Parts> for Carried {
    fn from(parts: Parts) -> Self {
        Self { tensors: parts.tensors, structure: parts.structure }
    }
}

impl From<Carried> for Parts {
    fn from(carried: Carried) -> Self {
        Self { tensors: carried.tensors, structure: carried.structure }
    }
}
