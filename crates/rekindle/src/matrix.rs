//! Products of small matrices that lie anywhere in a slice.

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

    fn fits(self, elements: &[f32]) -> bool {
        let steps = isize::try_from(self.row_step).is_ok() && isize::try_from(self.column_step).is_ok();
        steps && self.extent().is_some_and(|extent| extent <= elements.len())
    }
}

/// A matrix to be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    pub(crate) elements: &'a [f32],
    pub(crate) shape: Shape,
}

impl Matrix<'_> {
    pub(crate) const fn transposed(self) -> Self {
        Self { elements: self.elements, shape: self.shape.transposed() }
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

/// On how many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Threads {
    /// On the one that asks.
    This,
    /// On all. No result depends on how many they are: rows and columns are shared out, sums are not.
    All,
}

/// Writes `scale` times the product of `a` and `b` to a matrix whose rows do not overlap.
///
/// # Panics
/// When sizes do not go together or a matrix does not lie within its slice, which is a mistake in this crate.
pub(crate) fn multiply(
    target: &mut [f32],
    shape: Shape,
    into: Into,
    scale: f32,
    [a, b]: [Matrix<'_>; 2],
    threads: Threads,
) {
    let inner = a.shape.columns;
    assert!(
        inner == b.shape.rows && shape.rows == a.shape.rows && shape.columns == b.shape.columns,
        "{:?} times {:?} is not {shape:?}",
        a.shape,
        b.shape
    );
    assert!(
        shape.fits(target) && a.shape.fits(a.elements) && b.shape.fits(b.elements),
        "{:?} times {:?} to {shape:?} leaves its elements",
        a.shape,
        b.shape
    );
    // Different rows and columns of the target are different elements.
    assert!(shape.column_step == 1 && (shape.rows <= 1 || shape.row_step >= shape.columns), "{shape:?} overlaps");
    if shape.rows == 0 || shape.columns == 0 {
        return;
    }
    let parallelism = match threads {
        Threads::This => gemm::Parallelism::None,
        Threads::All => gemm::Parallelism::Rayon(0),
    };
    // SAFETY: by the assertions every element that is read or written lies within its slice, and no two threads write
    // the same one.
    #[allow(unsafe_code)]
    unsafe {
        gemm::gemm(
            shape.rows,
            shape.columns,
            inner,
            target.as_mut_ptr(),
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
            parallelism,
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
        multiply(&mut target, Shape::by_rows(2, 2, 5), Into::Over, 2.0, factors, Threads::This);
        assert_eq!(target, [14.0, 10.0, 100.0, 100.0, 100.0, 32.0, 22.0]);
        multiply(&mut target, Shape::by_rows(2, 2, 5), Into::Sum, 1.0, factors, Threads::All);
        assert_eq!(target, [21.0, 15.0, 100.0, 100.0, 100.0, 48.0, 33.0]);
    }

    #[test]
    #[should_panic(expected = "leaves its elements")]
    fn a_matrix_larger_than_its_elements_is_refused() {
        let factor = Matrix { elements: &[1.0; 3], shape: Shape::by_rows(2, 2, 2) };
        multiply(&mut [0.0; 4], Shape::by_rows(2, 2, 2), Into::Over, 1.0, [factor, factor], Threads::This);
    }

    #[test]
    #[should_panic(expected = "overlaps")]
    fn rows_that_overlap_are_refused() {
        let factor = Matrix { elements: &[1.0; 4], shape: Shape::by_rows(2, 2, 2) };
        multiply(&mut [0.0; 4], Shape::by_rows(2, 2, 1), Into::Over, 1.0, [factor, factor], Threads::This);
    }
}
