//! Where the elements of a tensor lie: which views share memory, and which reshapes have to copy.

use std::collections::HashMap;

use super::operation::{Kind, Operation, Value, View, product};

/// The layouts of tensors by their ids. One that is not here lies in order.
#[derive(Default)]
pub(super) struct Layouts(HashMap<usize, Layout>);

impl Layouts {
    pub(super) fn in_order(&self, id: usize) -> bool {
        self.0.get(&id).is_none_or(Layout::is_contiguous)
    }

    /// The tensor whose memory a view looks at; `None` when the operation is no view, or a reshape that has to copy.
    pub(super) fn seen_by(&mut self, operation: &Operation, made: &Value) -> Option<usize> {
        let Kind::View(view) = &operation.kind else { return None };
        let read = operation.reads.first()?;
        let layout = match self.0.get(&read.id) {
            Some(layout) => layout.seen(view, &made.shape)?,
            None => Layout::contiguous(&read.shape).seen(view, &made.shape)?,
        };
        self.0.insert(made.id, layout);
        Some(read.id)
    }
}

/// Finds the reshapes that copy, and makes them operations like others.
pub(super) fn settle(operations: &mut [Operation]) {
    let mut layouts = Layouts::default();
    for operation in operations {
        let views = operation.makes.iter().all(|made| layouts.seen_by(operation, made).is_some());
        if matches!(operation.kind, Kind::View(_)) && !views {
            operation.kind = Kind::Pass;
        }
    }
}

/// Where the elements of a tensor lie.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layout {
    shape: Vec<usize>,
    /// `None` when it is not worth knowing: certainly not in order.
    strides: Option<Vec<i128>>,
}

impl Layout {
    fn contiguous(shape: &[usize]) -> Self {
        let strides = (0..shape.len()).map(|dimension| i128::from(product(&shape[dimension + 1..])));
        Self { shape: shape.to_vec(), strides: Some(strides.collect()) }
    }

    fn is_contiguous(&self) -> bool {
        let ordered = Self::contiguous(&self.shape);
        match (&self.strides, &ordered.strides) {
            (Some(strides), Some(ordered)) => {
                let mut dimensions = self.shape.iter().zip(strides).zip(ordered);
                dimensions.all(|((size, stride), ordered)| *size == 1 || stride == ordered)
            }
            _ => false,
        }
    }

    /// The layout of a view with this shape; `None` when there is none.
    fn seen(&self, view: &View, shape: &[usize]) -> Option<Self> {
        let strides = match (view, &self.strides) {
            (View::Reshape, _) => return self.is_contiguous().then(|| Self::contiguous(shape)),
            (View::Scattered, _) | (_, None) => None,
            (View::Permute(axes), Some(strides)) => {
                axes.iter().map(|axis| strides.get(*axis).copied()).collect()
            }
            (View::Expand, Some(strides)) => {
                let new = shape.len().saturating_sub(self.shape.len());
                let old = self.shape.iter().zip(strides).zip(&shape[new..]);
                let old = old.map(|((from, stride), to)| if from == to { *stride } else { 0 });
                Some(std::iter::repeat_n(0, new).chain(old).collect())
            }
            (View::Slice(steps), Some(strides)) => {
                let step = |dimension: usize| steps.get(dimension).copied().unwrap_or(1) as i128;
                Some(strides.iter().enumerate().map(|(dimension, stride)| stride * step(dimension)).collect())
            }
        };
        Some(Self { shape: shape.to_vec(), strides })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_of_a_view_is_in_order_when_its_elements_are() {
        let layout = Layout::contiguous(&[2, 3, 4]);
        let swapped = layout.seen(&View::Permute(vec![1, 0, 2]), &[3, 2, 4]).unwrap();
        assert!(!swapped.is_contiguous());
        assert_eq!(swapped.seen(&View::Reshape, &[6, 4]), None);
        let back = swapped.seen(&View::Permute(vec![1, 0, 2]), &[2, 3, 4]).unwrap();
        assert!(back.is_contiguous());
        let one = Layout::contiguous(&[2, 1, 4]).seen(&View::Permute(vec![1, 0, 2]), &[1, 2, 4]).unwrap();
        assert!(one.is_contiguous(), "a dimension of one element lies anywhere");
        let expanded = Layout::contiguous(&[1, 4]).seen(&View::Expand, &[2, 3, 4]).unwrap();
        assert_eq!(expanded.strides, Some(vec![0, 0, 1]));
        let rows = Layout::contiguous(&[8, 4]).seen(&View::Slice(vec![1, 1]), &[5, 4]).unwrap();
        assert!(rows.is_contiguous());
        let columns = Layout::contiguous(&[8, 4]).seen(&View::Slice(vec![1]), &[8, 2]).unwrap();
        assert!(!columns.is_contiguous());
        let flipped = Layout::contiguous(&[8]).seen(&View::Scattered, &[8]).unwrap();
        assert_eq!(flipped.seen(&View::Reshape, &[2, 4]), None);
    }
}
