//! The least of many sums of rows.
//!
//! A cell may begin with a sweep to any later boundary, and for each there is a sum of two rows: most of the time of a
//! grid goes into them. Few of them matter. More room never costs more, so what the two rows have in their last lane,
//! with the sweep, is a bound for all lanes; a sum whose bound is no less than what the first lane has already changes
//! nothing. The bounds of many sums are compared at once.

use std::ops::Range;

use super::rows::{HALF, Row, Rows};

/// Bounds that are compared at once. Lists of what they are made of are longer by this than they need be.
pub(super) const STRIDE: usize = 32;

/// The sums of a cell: what follows a sweep, with its input paid; what is before it; and the sweep itself.
pub(super) struct Sums<'a> {
    pub(super) shifted: &'a Rows,
    /// The numbers of the shifted rows.
    pub(super) after: &'a [u32],
    pub(super) cells: &'a Rows,
    /// The numbers of the cells before.
    pub(super) before: &'a [u32],
    /// Sweeps that get longer; more of them than there are.
    pub(super) units: &'a [u16],
    /// Whether cells repeat. Otherwise numbers follow each other.
    pub(super) repeat: bool,
}

impl Sums<'_> {
    /// Lowers each lane of `row` to the least `after + before + units` of some sweeps; lanes before `start` need not be
    /// known. Says how many sums were looked at.
    #[inline(always)]
    pub(super) fn lower(&self, row: &mut Row, start: usize, sweeps: Range<usize>) -> u64 {
        let (low, high) = row.0.split_at_mut(HALF);
        let mut done = self.lower_half::<1>(high, start.saturating_sub(HALF), sweeps.clone());
        if start < HALF {
            done += self.lower_half::<0>(low, start, sweeps);
        }
        done.div_ceil(2)
    }

    #[inline(always)]
    fn lower_half<const UPPER: usize>(&self, half: &mut [u16], start: usize, sweeps: Range<usize>) -> u64 {
        let mut least = [0; HALF];
        least.copy_from_slice(half);
        let mut done = 0;
        for from in sweeps.clone().step_by(STRIDE) {
            // Sweeps get longer: once the sweep alone is slower than what every lane has, so are all that follow.
            if self.units[from] >= least[start] {
                break;
            }
            let count = (sweeps.end - from).min(STRIDE);
            done += count as u64;
            let Some(bounds) = self.bounds::<UPPER>(from) else {
                // Not a closure: it would not be inlined, and have the narrowest instructions only.
                for sweep in from..from + count {
                    self.add::<UPPER>(&mut least, sweep);
                }
                continue;
            };
            let mut promising = below(&bounds, least[start]) & (u32::MAX >> (STRIDE - count));
            while promising != 0 {
                let index = promising.trailing_zeros() as usize % STRIDE;
                promising &= promising - 1;
                // Another may have been better since.
                if bounds[index] < least[start] {
                    self.add::<UPPER>(&mut least, from + index);
                }
            }
        }
        half.copy_from_slice(&least);
        done
    }

    /// The least that each sum of a stride can have in any lane of a half; what is past the last sum means nothing. `None`
    /// when the rows of the stride do not lie side by side: then it takes as long as adding them up.
    #[inline(always)]
    fn bounds<const UPPER: usize>(&self, from: usize) -> Option<[u16; STRIDE]> {
        let (least_after, least_before) = (&self.shifted.least[UPPER], &self.cells.least[UPPER]);
        let (first_after, first_before) = (self.after[from] as usize, self.before[from] as usize);
        let mut bounds = [0; STRIDE];
        bounds.copy_from_slice(&self.units[from..][..STRIDE]);
        let (mut longer, mut shorter) = (!self.repeat, false);
        if self.repeat {
            // In a run of equal stages, cells before get longer one by one. Cells after get shorter; those that end the
            // chain have numbers of their own.
            let after = self.after.get(from..from + STRIDE)?;
            let before = self.before.get(from..from + STRIDE)?;
            (longer, shorter) = (true, true);
            for index in 0..STRIDE {
                let run = before[index].wrapping_sub(index as u32) == before[0];
                longer &= run & (after[index].wrapping_sub(index as u32) == after[0]);
                shorter &= run & (after[index].wrapping_add(index as u32) == after[0]);
            }
        }
        let before = &least_before[first_before..][..STRIDE];
        if longer {
            let after = &least_after[first_after..][..STRIDE];
            for index in 0..STRIDE {
                bounds[index] = bounds[index].saturating_add(after[index]).saturating_add(before[index]);
            }
        } else if shorter {
            let after = &least_after[first_after + 1 - STRIDE..][..STRIDE];
            for index in 0..STRIDE {
                let parts = after[STRIDE - 1 - index].saturating_add(before[index]);
                bounds[index] = bounds[index].saturating_add(parts);
            }
        } else {
            return None;
        }
        Some(bounds)
    }

    #[inline(always)]
    fn add<const UPPER: usize>(&self, least: &mut [u16; HALF], sweep: usize) {
        let after = self.shifted.half::<UPPER>(self.after[sweep]);
        let before = self.cells.half::<UPPER>(self.before[sweep]);
        let units = self.units[sweep];
        for lane in 0..HALF {
            let sum = after[lane].saturating_add(before[lane]).saturating_add(units);
            least[lane] = least[lane].min(sum);
        }
    }
}

/// Which bounds are below a limit, a bit for each.
#[inline(always)]
fn below(bounds: &[u16; STRIDE], limit: u16) -> u32 {
    let mut bits = 0;
    for (index, bound) in bounds.iter().enumerate() {
        bits |= u32::from(*bound < limit) << index;
    }
    bits
}
