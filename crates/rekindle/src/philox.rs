//! Philox2x64-10: random words from a key and a position, in any order and on any number of threads.
//!
//! Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A block of 128 bits is a
//! function of a 64-bit key and a 128-bit counter; nothing is carried from one block to the next. Of the paper's family
//! this one needs the fewest multiplications on a CPU.

use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

/// Elements made at once: those of 16 blocks, so that the compiler can use the machine's vectors on them.
const GROUP: usize = 64;
/// Groups a thread takes at a time. Fewer than two of these are made where they are asked for: waking a thread costs
/// more than making them.
const SHARE: usize = 256;

/// The block of `key` at `counter`.
fn block(mut key: u64, mut counter: [u64; 2]) -> [u64; 2] {
    for _ in 0..10 {
        let product = u128::from(counter[0]) * 0xD2B7_4407_B1CE_6E93;
        counter = [(product >> 64) as u64 ^ key ^ counter[1], product as u64];
        key = key.wrapping_add(0x9E37_79B9_7F4A_7C15);
    }
    counter
}

/// The 32-bit words of a group of positions, four of each block.
fn words(key: u64, group: u64) -> [u32; GROUP] {
    let mut words = [0; GROUP];
    for (index, words) in words.chunks_exact_mut(4).enumerate() {
        let position = group * (GROUP as u64 / 4) + index as u64;
        let [first, second] = block(key, [position, 0]);
        words[0] = first as u32;
        words[1] = (first >> 32) as u32;
        words[2] = second as u32;
        words[3] = (second >> 32) as u32;
    }
    words
}

/// `length` elements, each zero where the word at its position is less than `dropped`, and `kept` elsewhere.
///
/// What an element is depends on the key and its position alone.
pub(crate) fn mask(key: u64, dropped: u32, kept: f32, length: usize) -> Vec<f32> {
    // Without a branch, which nobody could predict; and signed, because that is what vectors compare.
    let (least, kept) = ((dropped ^ (1 << 31)) as i32, kept.to_bits());
    let element =
        |word: u32| f32::from_bits(kept & u32::from((word ^ (1 << 31)) as i32 >= least).wrapping_neg());
    let group = |index: usize| words(key, index as u64).map(element);
    let groups = length.div_ceil(GROUP);
    let made: Vec<[f32; GROUP]> = match groups < 2 * SHARE {
        true => (0..groups).map(group).collect(),
        false => (0..groups).into_par_iter().with_min_len(SHARE).map(group).collect(),
    };
    let mut elements = made.into_flattened();
    elements.truncate(length);
    elements
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors that come with the paper's code (Random123, `kat_vectors`).
    #[test]
    fn the_words_are_those_of_the_paper() {
        let cases: [([u64; 2], u64, [u64; 2]); 3] = [
            ([0; 2], 0, [0xca00_a045_9843_d731, 0x66c2_4222_c9a8_45b5]),
            ([u64::MAX; 2], u64::MAX, [0x65b0_21d6_0cd8_310f, 0x4d02_f322_2f86_df20]),
            (
                [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344],
                0xa409_3822_299f_31d0,
                [0x0a5e_742c_2997_341c, 0xb0f8_83d3_8000_de5d],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(block(key, counter), expected);
        }
    }

    #[test]
    fn an_element_depends_on_its_position_and_on_nothing_else() {
        let dropped = 1 << 30;
        let one_by_one = |length: usize| {
            let words = (0..length).map(|position| {
                let half = block(9, [position as u64 / 4, 0])[position % 4 / 2];
                (half >> (32 * (position % 2))) as u32
            });
            words.map(|word| if word < dropped { 0.0 } else { 2.0 }).collect::<Vec<f32>>()
        };
        for length in [0, 1, 63, 65, SHARE * GROUP + 3, 5 * SHARE * GROUP + GROUP + 7] {
            let expected = one_by_one(length);
            for threads in [1, 2, 7] {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let found = pool.install(|| mask(9, dropped, 2.0, length));
                assert!(found == expected, "{length} elements on {threads} threads");
            }
        }
    }

    #[test]
    fn the_ends_of_the_range_keep_all_and_almost_none() {
        assert!(mask(1, 0, 1.0, 1000).iter().all(|element| *element == 1.0));
        assert!(mask(1, u32::MAX, 1.0, 1000).iter().all(|element| *element == 0.0));
    }
}
