//! Philox4x32-7: random words from a key and a position, in any order and on any number of threads.
//!
//! Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A block of 128 bits is a
//! function of a 64-bit key and a 128-bit counter; nothing is carried from one block to the next. Of the paper's family
//! this is the one whose products the machine's vectors can make, many blocks at once. It passes the paper's tests from
//! 7 rounds on.

use crate::kernel::Kernel;

/// Blocks made at once: a wide vector of each of their words.
const BLOCKS: usize = 16;
/// Elements of so many blocks, eight of each.
const GROUP: usize = 8 * BLOCKS;
/// The blocks of `key` at `BLOCKS` counters, word by word.
#[inline(always)]
fn blocks(mut key: [u32; 2], mut counters: [[u32; BLOCKS]; 4]) -> [[u32; BLOCKS]; 4] {
    for _ in 0..7 {
        let [a, b, c, d] = &mut counters;
        for place in 0..BLOCKS {
            let first = u64::from(a[place]) * 0xD251_1F53;
            let second = u64::from(c[place]) * 0xCD9E_8D57;
            a[place] = (second >> 32) as u32 ^ b[place] ^ key[0];
            c[place] = (first >> 32) as u32 ^ d[place] ^ key[1];
            b[place] = second as u32;
            d[place] = first as u32;
        }
        key = [key[0].wrapping_add(0x9E37_79B9), key[1].wrapping_add(0xBB67_AE85)];
    }
    counters
}

/// Both halves, the lower first.
#[inline(always)]
fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

/// Which elements are dropped, and what the others are multiplied by. What happens to an element depends on the key and
/// its position alone.
///
/// An element is dropped when 32 random bits are less than `dropped`. Sixteen of them tell, unless they equal the upper
/// half of `dropped`: then, once in 65,536 elements, sixteen more are made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask {
    pub(crate) key: u64,
    pub(crate) dropped: u32,
    pub(crate) kept: f32,
}

impl Mask {
    /// Elements whose words are made together: kernels start at multiples of it.
    pub(crate) const GROUP: usize = GROUP;

    /// The elements of `input`, dropped or multiplied.
    pub(crate) fn apply(&self, input: &[f32]) -> Vec<f32> {
        let mut made = input.to_vec();
        self.apply_to(&mut made);
        made
    }

    /// Writes over the elements.
    pub(crate) fn apply_to(&self, elements: &mut [f32]) {
        self.over(elements, GROUP);
    }

    /// Writes over elements of which the first has this position, on this thread.
    #[inline(always)]
    pub(crate) fn apply_at(&self, first: usize, elements: &mut [f32]) {
        let (index, before) = (first / GROUP, first % GROUP);
        // A group that starts before them.
        let (head, elements) = elements.split_at_mut(match before {
            0 => 0,
            _ => (GROUP - before).min(elements.len()),
        });
        if !head.is_empty() {
            let mut group = [0.0; GROUP];
            group[before..][..head.len()].copy_from_slice(head);
            self.group(index, &mut group);
            head.copy_from_slice(&group[before..][..head.len()]);
        }
        self.run((index + usize::from(before > 0)) * GROUP, elements);
    }

    /// What each of `length` elements is multiplied by.
    pub(crate) fn factors(&self, length: usize) -> Vec<f32> {
        let mut elements = vec![1.0; length];
        self.apply_to(&mut elements);
        elements
    }

    #[inline(always)]
    fn group(&self, index: usize, elements: &mut [f32; GROUP]) {
        // Signed, because that is what vectors compare; and without a branch, which nobody could predict.
        let signed = |half: u16| (half ^ (1 << 15)) as i16;
        let (least, kept) = (signed((self.dropped >> 16) as u16), self.kept.to_bits());
        let words = words(self.key, index as u64).map(signed);
        let mut keep = [0i16; GROUP];
        let mut tie = 0;
        for (keep, word) in keep.iter_mut().zip(words) {
            *keep = -i16::from(word >= least);
            tie |= i16::from(word == least);
        }
        if tie != 0 {
            let lower = self.dropped as u16;
            for (place, (keep, word)) in keep.iter_mut().zip(words).enumerate() {
                if word == least && more(self.key, index * GROUP + place) < lower {
                    *keep = 0;
                }
            }
        }
        for (element, keep) in elements.iter_mut().zip(keep) {
            *element *= f32::from_bits(kept & i32::from(keep) as u32);
        }
    }
}

impl Kernel for Mask {
    #[inline(always)]
    fn run(&self, first: usize, elements: &mut [f32]) {
        let first = first / GROUP;
        let (groups, rest) = elements.as_chunks_mut::<GROUP>();
        for (index, group) in groups.iter_mut().enumerate() {
            self.group(first + index, group);
        }
        if !rest.is_empty() {
            let mut group = [0.0; GROUP];
            group[..rest.len()].copy_from_slice(rest);
            self.group(first + groups.len(), &mut group);
            rest.copy_from_slice(&group[..rest.len()]);
        }
    }
}

/// Sixteen bits for each of a group of positions: both halves of the first words of all blocks, then of the second.
#[inline(always)]
fn words(key: u64, group: u64) -> [u16; GROUP] {
    let [lower, upper] = halves(group * BLOCKS as u64);
    // A group starts at a multiple of the blocks in it, so that only the lower half counts up.
    let counters =
        [std::array::from_fn(|place| lower | place as u32), [upper; BLOCKS], [0; BLOCKS], [0; BLOCKS]];
    let made = blocks(halves(key), counters);
    let mut words = [0; GROUP];
    for (pair, word) in words.as_chunks_mut::<2>().0.iter_mut().zip(made.as_flattened()) {
        *pair = [*word as u16, (*word >> 16) as u16];
    }
    words
}

/// Sixteen more bits of a position.
#[cold]
fn more(key: u64, position: usize) -> u16 {
    let [lower, upper] = halves(position as u64);
    let mut counters = [[0; BLOCKS]; 4];
    (counters[0][0], counters[1][0], counters[2][0]) = (lower, upper, 1);
    blocks(halves(key), counters)[0][0] as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors that come with the paper's code (Random123, `kat_vectors`).
    #[test]
    fn the_words_are_those_of_the_paper() {
        let cases: [([u32; 4], [u32; 2], [u32; 4]); 3] = [
            ([0; 4], [0; 2], [0x5f6f_b709, 0x0d89_3f64, 0x4f12_1f81, 0x4f73_0a48]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x5207_ddc2, 0x4516_5e59, 0x4d8e_e751, 0x8c52_f662]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0x4dfc_caba, 0x190a_87f0, 0xc473_62ba, 0xb6b5_242a],
            ),
        ];
        for (counter, key, expected) in cases {
            let made = blocks(key, counter.map(|word| [word; BLOCKS]));
            assert_eq!(made, expected.map(|word| [word; BLOCKS]));
        }
    }

    /// The 32 bits of a position, all of them.
    fn word(key: u64, position: usize) -> u32 {
        let (group, place) = (position / GROUP, position % GROUP);
        let (word, block) = (place / 2 / BLOCKS, group * BLOCKS + place / 2 % BLOCKS);
        let mut counters = [[0; BLOCKS]; 4];
        counters[0][3] = block as u32;
        let upper = (blocks(halves(key), counters)[word][3] >> (16 * (place % 2))) as u16;
        u32::from(upper) << 16 | u32::from(more(key, position))
    }

    #[test]
    fn an_element_depends_on_its_position_and_on_nothing_else() {
        let mask = Mask { key: 9, dropped: 1 << 30, kept: 2.0 };
        for length in [0, 1, GROUP - 1, GROUP + 1, 8 * 1024 + 3, 40 * 1024 + GROUP + 7] {
            let input: Vec<f32> = (0..length).map(|position| position as f32 - 7.0).collect();
            let expected = input.iter().enumerate().map(|(position, x)| match word(9, position) < 1 << 30 {
                true => x * 0.0,
                false => x * 2.0,
            });
            let expected: Vec<f32> = expected.collect();
            for threads in [1, 2, 7] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                assert!(
                    pool.install(|| mask.apply(&input)) == expected,
                    "{length} elements, {threads} threads"
                );
                let mut over = input.clone();
                pool.install(|| mask.apply_to(&mut over));
                assert!(over == expected, "{length} elements written over, {threads} threads");
            }
        }
    }

    #[test]
    fn elements_from_any_position_on_are_those_of_the_whole() {
        let mask = Mask { key: 5, dropped: 1 << 31, kept: 2.0 };
        let whole = mask.factors(10 * GROUP);
        for first in [0, 1, GROUP - 1, GROUP, 3 * GROUP + 17] {
            for length in [0, 1, 5, GROUP, 4 * GROUP + 3] {
                let mut elements = vec![1.0; length];
                mask.apply_at(first, &mut elements);
                assert_eq!(elements, whole[first..][..length], "{length} from {first}");
            }
        }
    }

    /// All 32 bits count: the upper half of such a `dropped` is a word that occurs.
    #[test]
    fn a_tie_is_decided_by_sixteen_more_bits() {
        for position in [5, 70, 1000] {
            let word = word(3, position);
            for (dropped, expected) in [(word, 1.0), (word + 1, 0.0)] {
                let factors = Mask { key: 3, dropped, kept: 1.0 }.factors(1024);
                assert_eq!(factors[position], expected, "{position} with {dropped}");
            }
        }
    }

    #[test]
    fn the_ends_of_the_range_keep_all_and_almost_none() {
        let factors = |dropped| Mask { key: 1, dropped, kept: 1.0 }.factors(1000);
        assert!(factors(0).iter().all(|element| *element == 1.0));
        assert!(factors(u32::MAX).iter().all(|element| *element == 0.0));
    }
}
