//! A little text, in windows of bytes.

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Int, Tensor, TensorData};
use rekindle_models::GptBatch;

const SENTENCE: &[u8] = b"let activations go out, and rekindle them when the backward pass needs them; ";

/// `count` windows of the sentence said over and over, each of `sequence` bytes and the one that follows.
pub fn windows(count: usize, sequence: usize) -> Vec<Vec<u8>> {
    let endless = || SENTENCE.iter().copied().cycle();
    // The stride and the sentence's length have no divisor in common: the windows start everywhere in it.
    (0..count).map(|index| endless().skip(index * 5 % SENTENCE.len()).take(sequence + 1).collect()).collect()
}

/// Makes a batch of windows of one length.
#[derive(Clone, Debug)]
pub struct ByteBatcher;

impl Batcher<Vec<u8>, GptBatch> for ByteBatcher {
    fn batch(&self, windows: Vec<Vec<u8>>, device: &Device) -> GptBatch {
        let length = windows.first().map_or(0, Vec::len);
        let shape = [windows.len(), length];
        let numbers: Vec<i64> = windows.into_iter().flatten().map(i64::from).collect();
        let all = Tensor::<2, Int>::from_data(TensorData::new(numbers, shape), device);
        let from = |start: usize| all.clone().narrow(1, start, length.saturating_sub(1));
        GptBatch { tokens: from(0), targets: from(1) }
    }
}
