//! Boundaries: the tensors between two stages, as a tree.

use burn::tensor::{Bool, Int, Tensor};

use crate::Error;
use crate::node::{AnyTensor, TapeStrategy};

/// A tree of tensors that can cross from one stage to the next: a tensor, a tuple, a `Vec`, an array, an `Option`, a
/// number, or a struct of these with `#[derive(Boundary)]`.
///
/// ```
/// use burn::tensor::{Bool, Tensor};
/// use rekindle::Boundary;
///
/// #[derive(Boundary)]
/// struct Hidden {
///     residual: Tensor<3>,
///     mask: Option<Tensor<3, Bool>>,
///     depth: usize,
/// }
/// ```
///
/// Numbers and the shape of the tree are remembered as they are; tensors are what a plan keeps or recomputes.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot cross from one stage to the next",
    note = "a boundary is a `Tensor`, a number, or a tuple, `Vec`, array, `Option` or `#[derive(Boundary)]` struct of these"
)]
pub trait Boundary: Sized + 'static {
    /// Takes the tree apart, in the order [`Boundary::put_together`] asks for.
    fn take_apart(self, parts: &mut Parts);

    /// Puts the tree together again.
    ///
    /// # Errors
    /// When the parts are not those of this type.
    fn put_together(parts: &mut PartsReader) -> Result<Self, Error>;
}

/// A tree of tensors taken apart: its tensors, and numbers that say how they belong together.
#[derive(Debug, Default)]
pub struct Parts {
    pub(crate) tensors: Vec<AnyTensor>,
    pub(crate) structure: Vec<u64>,
}

impl Parts {
    pub(crate) fn of(tree: impl Boundary) -> Self {
        let mut parts = Self::default();
        tree.take_apart(&mut parts);
        parts
    }

    /// Changes the strategy of the tensors that carry autodiff.
    pub(crate) fn set_strategy(&mut self, strategy: TapeStrategy) {
        let tensors = self.tensors.iter_mut();
        tensors.for_each(|tensor| tensor.set_strategy(strategy));
    }

    pub(crate) fn is_tracked(&self) -> bool {
        self.tensors.iter().any(AnyTensor::is_tracked)
    }

    /// The same values, tracked by nobody.
    pub(crate) fn detached(&self) -> Self {
        let tensors = self.tensors.iter().map(AnyTensor::detached).collect();
        Self { tensors, structure: self.structure.clone() }
    }

    pub(crate) fn into_tree<T: Boundary>(self) -> Result<T, Error> {
        let mut reader =
            PartsReader { tensors: self.tensors.into_iter(), structure: self.structure.into_iter() };
        let tree = T::put_together(&mut reader)?;
        match (reader.tensors.len(), reader.structure.len()) {
            (0, 0) => Ok(tree),
            (tensors, numbers) => Err(Error::Boundary {
                found: format!("{tensors} tensors and {numbers} numbers too many"),
                expected: std::any::type_name::<T>().to_owned(),
            }),
        }
    }

    /// Adds a number: a length, a flag, a value.
    pub fn number(&mut self, number: u64) {
        self.structure.push(number);
    }
}

/// Hands out what [`Parts`] took in, in the same order.
#[derive(Debug)]
pub struct PartsReader {
    tensors: std::vec::IntoIter<AnyTensor>,
    structure: std::vec::IntoIter<u64>,
}

impl PartsReader {
    /// The next number.
    ///
    /// # Errors
    /// When there is none.
    pub fn number(&mut self) -> Result<u64, Error> {
        self.structure
            .next()
            .ok_or_else(|| Error::Boundary { found: "no number".to_owned(), expected: "one more".to_owned() })
    }

    /// All that is left.
    pub(crate) fn rest(&mut self) -> Parts {
        Parts { tensors: self.tensors.by_ref().collect(), structure: self.structure.by_ref().collect() }
    }

    fn tensor(&mut self) -> Result<AnyTensor, Error> {
        self.tensors
            .next()
            .ok_or_else(|| Error::Boundary { found: "no tensor".to_owned(), expected: "one more".to_owned() })
    }
}

macro_rules! tensor_boundary {
    ($kind:ty) => {
        impl<const D: usize> Boundary for Tensor<D, $kind> {
            fn take_apart(self, parts: &mut Parts) {
                parts.tensors.push(AnyTensor::from(self));
            }

            fn put_together(parts: &mut PartsReader) -> Result<Self, Error> {
                parts.tensor()?.try_into()
            }
        }
    };
}
tensor_boundary!(burn::tensor::Float);
tensor_boundary!(Int);
tensor_boundary!(Bool);

macro_rules! number_boundary {
    ($($number:ty: $write:expr, $read:expr;)*) => {$(
        impl Boundary for $number {
            fn take_apart(self, parts: &mut Parts) {
                parts.number($write(self));
            }

            fn put_together(parts: &mut PartsReader) -> Result<Self, Error> {
                parts.number().map($read)
            }
        }
    )*};
}
number_boundary! {
    bool: u64::from, |bits| bits != 0;
    u8: u64::from, |bits| bits as u8;
    u32: u64::from, |bits| bits as u32;
    u64: |value| value, |bits| bits;
    usize: |value| value as u64, |bits| bits as usize;
    i32: |value: i32| value as u64, |bits| bits as i32;
    i64: |value: i64| value as u64, |bits| bits as i64;
    f32: |value: f32| u64::from(value.to_bits()), |bits| f32::from_bits(bits as u32);
    f64: f64::to_bits, f64::from_bits;
}

impl<T: Boundary> Boundary for Vec<T> {
    fn take_apart(self, parts: &mut Parts) {
        parts.number(self.len() as u64);
        self.into_iter().for_each(|item| item.take_apart(parts));
    }

    fn put_together(parts: &mut PartsReader) -> Result<Self, Error> {
        let length = parts.number()?;
        (0..length).map(|_| T::put_together(parts)).collect()
    }
}

impl<T: Boundary, const N: usize> Boundary for [T; N] {
    fn take_apart(self, parts: &mut Parts) {
        self.into_iter().for_each(|item| item.take_apart(parts));
    }

    fn put_together(parts: &mut PartsReader) -> Result<Self, Error> {
        let items = (0..N).map(|_| T::put_together(parts)).collect::<Result<Vec<T>, Error>>()?;
        items.try_into().map_err(|items: Vec<T>| Error::Boundary {
            found: format!("{} items", items.len()),
            expected: format!("{N}"),
        })
    }
}

impl<T: Boundary> Boundary for Option<T> {
    fn take_apart(self, parts: &mut Parts) {
        parts.number(u64::from(self.is_some()));
        if let Some(item) = self {
            item.take_apart(parts);
        }
    }

    fn put_together(parts: &mut PartsReader) -> Result<Self, Error> {
        match parts.number()? {
            0 => Ok(None),
            _ => T::put_together(parts).map(Some),
        }
    }
}

macro_rules! tuple_boundary {
    ($($item:ident)*) => {
        #[allow(non_snake_case, unused_variables)]
        impl<$($item: Boundary),*> Boundary for ($($item,)*) {
            fn take_apart(self, parts: &mut Parts) {
                let ($($item,)*) = self;
                $($item.take_apart(parts);)*
            }

            fn put_together(parts: &mut PartsReader) -> Result<Self, Error> {
                Ok(($($item::put_together(parts)?,)*))
            }
        }
    };
}
tuple_boundary!();
tuple_boundary!(A);
tuple_boundary!(A B);
tuple_boundary!(A B C);
tuple_boundary!(A B C D);
tuple_boundary!(A B C D E);
tuple_boundary!(A B C D E F);
tuple_boundary!(A B C D E F G);
tuple_boundary!(A B C D E F G H);
