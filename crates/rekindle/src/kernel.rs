//! Loops over elements, on all threads and with the widest vectors the machine has.

use rayon::iter::{IndexedParallelIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;

/// Elements a thread takes at a time: less work than two of these is done where it is asked for.
const SHARE: usize = 8 * 1024;

/// What is done to elements.
///
/// A closure would do, but for one thing: it must become part of the function that is compiled for each kind of vectors,
/// and of closures only the compiler decides whether they do.
pub(crate) trait Kernel: Sync {
    /// Writes over whole rows of elements, the first of which has this index among all. To be marked `#[inline(always)]`,
    /// like all that it calls.
    fn run(&self, first: usize, elements: &mut [f32]);

    /// Runs it over all elements, which come in rows of this many. No result depends on the number of threads, nor on
    /// the width of vectors: nothing is contracted or reordered.
    fn over(&self, elements: &mut [f32], row: usize) {
        let share = SHARE.next_multiple_of(row.max(1));
        match elements.len() < 2 * share {
            true => run(self, 0, elements),
            false => {
                let shares = elements.par_chunks_mut(share).enumerate();
                shares.for_each(|(index, elements)| run(self, index * share, elements));
            }
        }
    }
}

/// Runs something with the widest vectors, on this thread. Its `call` is to be marked `#[inline(always)]`, like all that it
/// calls.
pub(crate) fn vectorised<T: pulp::NullaryFnOnce>(task: T) -> T::Output {
    pulp::Arch::new().dispatch(task)
}

fn run<K: Kernel + ?Sized>(kernel: &K, first: usize, elements: &mut [f32]) {
    struct Run<'a, K: ?Sized> {
        kernel: &'a K,
        first: usize,
        elements: &'a mut [f32],
    }

    impl<K: Kernel + ?Sized> pulp::NullaryFnOnce for Run<'_, K> {
        type Output = ();

        #[inline(always)]
        fn call(self) {
            self.kernel.run(self.first, self.elements);
        }
    }

    vectorised(Run { kernel, first, elements });
}
