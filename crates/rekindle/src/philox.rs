//! Philox2x64-7: random words from a key and a position, in any order and on any number of threads.
//!
//! Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A block of 128 bits is a
//! function of a 64-bit key and a 128-bit counter; nothing is carried from one block to the next. Of the paper's family
//! this one needs the fewest multiplications on a CPU. It passes the paper's tests from 6 rounds on; 7 are made here.

use rayon::iter::{
    IndexedParallelIterator, IntoParallelRefIterator, IntoParallelRefMutIterator, ParallelIterator,
};

/// Elements made at once: those of 8 blocks, so that the compiler can use the machine's vectors on them.
const GROUP: usize = 64;
/// Groups a thread takes at a time. Fewer than two of these are made where they are asked for: waking a thread costs
/// more than making them.
const SHARE: usize = 128;

/// The block of `key` at `counter`.
#[inline(always)]
fn block(mut key: u64, mut counter: [u64; 2]) -> [u64; 2] {
    for _ in 0..7 {
        let product = u128::from(counter[0]) * 0xD2B7_4407_B1CE_6E93;
        counter = [(product >> 64) as u64 ^ key ^ counter[1], product as u64];
        key = key.wrapping_add(0x9E37_79B9_7F4A_7C15);
    }
    counter
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
    /// The elements of `input`, dropped or multiplied.
    pub(crate) fn apply(&self, input: &[f32]) -> Vec<f32> {
        let (groups, rest) = input.as_chunks::<GROUP>();
        let group = |(index, group): (usize, &[f32; GROUP])| {
            let mut group = *group;
            self.group(index, &mut group);
            group
        };
        let made: Vec<[f32; GROUP]> = match groups.len() < 2 * SHARE {
            true => groups.iter().enumerate().map(group).collect(),
            false => groups.par_iter().enumerate().with_min_len(SHARE).map(group).collect(),
        };
        let mut made = made.into_flattened();
        made.extend_from_slice(rest);
        self.rest(groups.len(), &mut made[groups.len() * GROUP..]);
        made
    }

    /// Writes over the elements.
    pub(crate) fn apply_to(&self, elements: &mut [f32]) {
        let (groups, rest) = elements.as_chunks_mut::<GROUP>();
        self.rest(groups.len(), rest);
        let group = |(index, group): (usize, &mut [f32; GROUP])| self.group(index, group);
        match groups.len() < 2 * SHARE {
            true => groups.iter_mut().enumerate().for_each(group),
            false => groups.par_iter_mut().enumerate().with_min_len(SHARE).for_each(group),
        }
    }

    /// What each of `length` elements is multiplied by.
    pub(crate) fn factors(&self, length: usize) -> Vec<f32> {
        let mut elements = vec![1.0; length];
        self.apply_to(&mut elements);
        elements
    }

    /// The elements behind the last whole group.
    fn rest(&self, index: usize, elements: &mut [f32]) {
        let mut group = [0.0; GROUP];
        group[..elements.len()].copy_from_slice(elements);
        self.group(index, &mut group);
        elements.copy_from_slice(&group[..elements.len()]);
    }

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
                let position = (index * GROUP + place) as u64;
                if word == least && (block(self.key, [position, 1])[0] as u16) < lower {
                    *keep = 0;
                }
            }
        }
        for (element, keep) in elements.iter_mut().zip(keep) {
            *element *= f32::from_bits(kept & i32::from(keep) as u32);
        }
    }
}

/// Sixteen bits for each of a group of positions, eight of each block.
#[inline(always)]
fn words(key: u64, group: u64) -> [u16; GROUP] {
    let mut bytes = [[0; 16]; GROUP / 8];
    for (index, bytes) in bytes.iter_mut().enumerate() {
        let [first, second] = block(key, [group * (GROUP as u64 / 8) + index as u64, 0]);
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..].copy_from_slice(&second.to_le_bytes());
    }
    let mut words = [0; GROUP];
    for (word, bytes) in words.iter_mut().zip(bytes.as_flattened().as_chunks::<2>().0) {
        *word = u16::from_le_bytes(*bytes);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors that come with the paper's code (Random123, `kat_vectors`).
    #[test]
    fn the_words_are_those_of_the_paper() {
        let cases: [([u64; 2], u64, [u64; 2]); 3] = [
            ([0; 2], 0, [0xb41d_a69f_bfef_c666, 0x511e_9ce1_a553_4056]),
            ([u64::MAX; 2], u64::MAX, [0xa469_6cc0_4462_015d, 0x7247_82da_e171_69e9]),
            (
                [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344],
                0xa409_3822_299f_31d0,
                [0x98ed_1534_392b_f372, 0x6752_8b15_6888_2fd5],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(block(key, counter), expected);
        }
    }

    /// The 32 bits of a position, all of them.
    fn word(key: u64, position: usize) -> u32 {
        let half = block(key, [position as u64 / 8, 0])[position % 8 / 4];
        let upper = (half >> (16 * (position % 4))) as u16;
        u32::from(upper) << 16 | u32::from(block(key, [position as u64, 1])[0] as u16)
    }

    #[test]
    fn an_element_depends_on_its_position_and_on_nothing_else() {
        let mask = Mask { key: 9, dropped: 1 << 30, kept: 2.0 };
        for length in [0, 1, 63, 65, SHARE * GROUP + 3, 5 * SHARE * GROUP + GROUP + 7] {
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
