//! Products of matrices that lie anywhere in a slice.

use std::mem::MaybeUninit;

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

/// Rows of a large product that one thread makes at a time. A number of its own, not one that goes by the threads there are:
/// how a product is cut may decide how its sums are rounded.
const ROWS: usize = 128;

/// Where a matrix lies in a slice: the element of row `i` and column `j` is at `i * row_step + j * column_step`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) row_step: usize,
    pub(crate) column_step: usize,
}

impl Shape {
    /// Row after row.
    pub(crate) const fn by_rows(rows: usize, columns: usize, row_step: usize) -> Self {
        Self { rows, columns, row_step, column_step: 1 }
    }

    pub(crate) const fn transposed(self) -> Self {
        let Self { rows, columns, row_step, column_step } = self;
        Self { rows: columns, columns: rows, row_step: column_step, column_step: row_step }
    }

    /// Elements from the first to the last, both included.
    const fn extent(self) -> Option<usize> {
        if self.rows == 0 || self.columns == 0 {
            return Some(0);
        }
        let Some(rows) = (self.rows - 1).checked_mul(self.row_step) else { return None };
        let Some(columns) = (self.columns - 1).checked_mul(self.column_step) else { return None };
        match rows.checked_add(columns) {
            Some(last) => last.checked_add(1),
            None => None,
        }
    }

    fn fits(self, length: usize) -> bool {
        let steps = isize::try_from(self.row_step).is_ok() && isize::try_from(self.column_step).is_ok();
        steps && self.extent().is_some_and(|extent| extent <= length)
    }
}

/// A matrix to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    pub(crate) elements: &'a [f32],
    pub(crate) shape: Shape,
}

impl<'a> Matrix<'a> {
    /// Row after row, without gaps.
    pub(crate) const fn new(elements: &'a [f32], rows: usize, columns: usize) -> Self {
        Self { elements, shape: Shape::by_rows(rows, columns, columns) }
    }

    pub(crate) const fn transposed(self) -> Self {
        Self { elements: self.elements, shape: self.shape.transposed() }
    }

    /// Some of its rows.
    fn rows(self, first: usize, rows: usize) -> Self {
        let elements = self.elements.get(first * self.shape.row_step..).unwrap_or_default();
        Self { elements, shape: Shape { rows, ..self.shape } }
    }
}

/// What becomes of what lies where a product goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Into {
    /// It is written over.
    Over,
    /// The product is added to it.
    Sum,
}

/// Writes `scale` times the product of `a` and `b` to a matrix, on this thread.
///
/// # Panics
/// When sizes do not go together or a matrix does not lie within its slice, which is a mistake in this crate.
pub(crate) fn multiply(target: &mut [f32], shape: Shape, into: Into, scale: f32, factors: [Matrix<'_>; 2]) {
    // SAFETY: what is initialised may be taken for what may not be; only numbers are written to it.
    #[allow(unsafe_code)]
    let target = unsafe { &mut *(std::ptr::from_mut(target) as *mut [MaybeUninit<f32>]) };
    run(target, shape, into, scale, factors);
}

/// Has this thread make the scratch memory that products of matrices keep for each thread.
pub(crate) fn make_scratch() {
    const SIDE: usize = 64;
    let elements = [0.0; SIDE * SIDE];
    let mut target = elements;
    let factor = Matrix::new(&elements, SIDE, SIDE);
    // Which of them packs where is the library's affair.
    for a in [factor, factor.transposed()] {
        for b in [factor, factor.transposed()] {
            multiply(&mut target, Shape::by_rows(SIDE, SIDE, SIDE), Into::Over, 1.0, [a, b]);
        }
    }
}

/// `a` times `b`, row after row, on all threads. The bits do not depend on how many they are.
pub(crate) fn product([a, b]: [Matrix<'_>; 2]) -> Vec<f32> {
    let (rows, columns) = (a.shape.rows, b.shape.columns);
    let length = rows * columns;
    let mut made = Vec::with_capacity(length);
    let target = &mut made.spare_capacity_mut()[..length];
    by_rows(target, columns, a, |target, rows| {
        let shape = Shape::by_rows(rows.shape.rows, columns, columns);
        run(target, shape, Into::Over, 1.0, [rows, b]);
    });
    // SAFETY: each of these elements is in the rows of one piece, and was written over.
    #[allow(unsafe_code)]
    unsafe {
        made.set_len(length);
    }
    made
}

/// Adds `a` times `b` to what there is, on all threads. The bits do not depend on how many they are.
pub(crate) fn add_product(target: &mut [f32], [a, b]: [Matrix<'_>; 2]) {
    let columns = b.shape.columns;
    by_rows(target, columns, a, |target, rows| {
        multiply(target, Shape::by_rows(rows.shape.rows, columns, columns), Into::Sum, 1.0, [rows, b]);
    });
}

/// Cuts a product by the rows of its first factor.
fn by_rows<T: Send>(
    target: &mut [T],
    columns: usize,
    a: Matrix<'_>,
    run: impl Fn(&mut [T], Matrix<'_>) + Sync,
) {
    // At least two pieces of what is worth it, and pieces of a few rows where the sums are long.
    let rows = ROWS.min(a.shape.rows.div_ceil(2)).max(1);
    target.par_chunks_mut((rows * columns).max(1)).enumerate().for_each(|(index, target)| {
        run(target, a.rows(index * rows, target.len() / columns.max(1)));
    });
}

fn run(target: &mut [MaybeUninit<f32>], shape: Shape, into: Into, scale: f32, [a, b]: [Matrix<'_>; 2]) {
    let inner = a.shape.columns;
    assert!(
        inner == b.shape.rows && shape.rows == a.shape.rows && shape.columns == b.shape.columns,
        "{:?} times {:?} is not {shape:?}",
        a.shape,
        b.shape
    );
    assert!(
        shape.fits(target.len()) && a.shape.fits(a.elements.len()) && b.shape.fits(b.elements.len()),
        "{:?} times {:?} to {shape:?} leaves its elements",
        a.shape,
        b.shape
    );
    // Different rows and columns of the target are different elements.
    assert!(
        shape.column_step == 1 && (shape.rows <= 1 || shape.row_step >= shape.columns),
        "{shape:?} overlaps"
    );
    if shape.rows == 0 || shape.columns == 0 {
        return;
    }
    // A sum of nothing is zero, and nobody else writes it.
    if inner == 0 {
        if into == Into::Over {
            let rows = target.chunks_mut(shape.row_step.max(1)).take(shape.rows);
            rows.for_each(|row| row[..shape.columns].fill(MaybeUninit::new(0.0)));
        }
        return;
    }
    // SAFETY: by the assertions every element that is read or written lies within its slice; what may not be initialised
    // is read only to add to it, which nobody but `multiply` asks for.
    #[allow(unsafe_code)]
    unsafe {
        gemm::gemm(
            shape.rows,
            shape.columns,
            inner,
            target.as_mut_ptr().cast::<f32>(),
            shape.column_step as isize,
            shape.row_step as isize,
            into == Into::Sum,
            a.elements.as_ptr(),
            a.shape.column_step as isize,
            a.shape.row_step as isize,
            b.elements.as_ptr(),
            b.shape.column_step as isize,
            b.shape.row_step as isize,
            1.0,
            scale,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_written_over_or_added_wherever_it_lies() {
        // 2 x 3, row after row with a gap, times 3 x 2, column after column.
        let a = [1.0, 2.0, 3.0, 9.0, 4.0, 5.0, 6.0];
        let b = [1.0, 0.0, 2.0, 0.0, 1.0, 1.0];
        let factors = [
            Matrix { elements: &a, shape: Shape::by_rows(2, 3, 4) },
            Matrix { elements: &b, shape: Shape::by_rows(2, 3, 3) }.transposed(),
        ];
        let mut target = [100.0; 7];
        multiply(&mut target, Shape::by_rows(2, 2, 5), Into::Over, 2.0, factors);
        assert_eq!(target, [14.0, 10.0, 100.0, 100.0, 100.0, 32.0, 22.0]);
        multiply(&mut target, Shape::by_rows(2, 2, 5), Into::Sum, 1.0, factors);
        assert_eq!(target, [21.0, 15.0, 100.0, 100.0, 100.0, 48.0, 33.0]);
    }

    #[test]
    fn a_large_product_is_the_same_on_any_number_of_threads() {
        let (rows, inner, columns) = (300, 70, 33);
        let a: Vec<f32> = (0..rows * inner).map(|i| (i as f32 * 0.37).sin()).collect();
        let b: Vec<f32> = (0..inner * columns).map(|i| (i as f32 * 0.73).cos()).collect();
        let factors = [Matrix::new(&a, rows, inner), Matrix::new(&b, inner, columns)];
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut made = product(factors);
                add_product(&mut made, factors);
                made
            })
        };
        let made = on(1);
        assert!(on(2) == made && on(7) == made);
        for (index, made) in made.iter().enumerate() {
            let (row, column) = (index / columns, index % columns);
            let term = |k| f64::from(a[row * inner + k]) * f64::from(b[k * columns + column]);
            let expected = 2.0 * (0..inner).map(term).sum::<f64>();
            assert!((f64::from(*made) - expected).abs() < 1e-4, "{made}, expected {expected}");
        }
    }

    #[test]
    fn a_product_over_nothing_is_zero() {
        let factors = [Matrix::new(&[], 3, 0), Matrix::new(&[], 0, 2)];
        assert_eq!(product(factors), [0.0; 6]);
        let mut target = [1.0; 5];
        multiply(
            &mut target,
            Shape::by_rows(2, 2, 3),
            Into::Over,
            1.0,
            factors.map(|of| match of.shape.rows {
                0 => of,
                _ => of.rows(0, 2),
            }),
        );
        assert_eq!(target, [0.0, 0.0, 1.0, 0.0, 0.0]);
        add_product(&mut target[..4], [Matrix::new(&[], 2, 0), factors[1]]);
        assert_eq!(target, [0.0, 0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    #[should_panic(expected = "leaves its elements")]
    fn a_matrix_larger_than_its_elements_is_refused() {
        let factor = Matrix { elements: &[1.0; 3], shape: Shape::by_rows(2, 2, 2) };
        multiply(&mut [0.0; 4], Shape::by_rows(2, 2, 2), Into::Over, 1.0, [factor, factor]);
    }

    #[test]
    #[should_panic(expected = "overlaps")]
    fn rows_that_overlap_are_refused() {
        let factor = Matrix { elements: &[1.0; 4], shape: Shape::by_rows(2, 2, 2) };
        multiply(&mut [0.0; 4], Shape::by_rows(2, 2, 1), Into::Over, 1.0, [factor, factor]);
    }
}
