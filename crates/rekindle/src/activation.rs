//! Activations that keep less for the backward than Burn's, and take less time.
//!
//! Each is one node of the autodiff graph, with a kernel of its own on Flex. They compute what Burn's functions of the
//! same names compute, within rounding.

mod gelu;
mod softmax;

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::{ParallelSlice, ParallelSliceMut};

pub use gelu::gelu;
pub use softmax::softmax;

/// Elements a thread takes at a time: less work than this is done where it is asked for.
const SHARE: usize = 16 * 1024;

/// Calls `kernel` for pieces of `input` and the elements of `output` at the same places, of whole rows, on all threads.
fn in_pieces(input: &[f32], output: &mut [f32], row: usize, kernel: impl Fn(&[f32], &mut [f32]) + Sync) {
    let piece = SHARE.next_multiple_of(row);
    match output.len() <= piece {
        true => vectorised(|| kernel(input, output)),
        false => {
            let pieces = input.par_chunks(piece).zip(output.par_chunks_mut(piece));
            pieces.for_each(|(input, output)| vectorised(|| kernel(input, output)));
        }
    }
}

/// The same for elements that are written over.
fn over_pieces(elements: &mut [f32], kernel: impl Fn(&mut [f32]) + Sync) {
    match elements.len() <= SHARE {
        true => vectorised(|| kernel(elements)),
        false => elements.par_chunks_mut(SHARE).for_each(|elements| vectorised(|| kernel(elements))),
    }
}

/// Runs a loop with the widest vectors the machine has. No result depends on how wide they are: nothing is contracted or
/// reordered.
#[inline(always)]
fn vectorised(run: impl FnOnce()) {
    pulp::Arch::new().dispatch(run);
}
