//! Text to learn from, byte by byte.

use burn::tensor::{Device, Int, Tensor, TensorData};

use super::Source;
use crate::GptBatch;

/// A text, of which windows are drawn; what follows each of a window's bytes is to be predicted.
///
/// ```
/// use burn::tensor::Device;
/// use rekindle_models::data::{Source, Text};
///
/// let text = Text::new(b"to be, or not to be".to_vec(), 8)?;
/// let batch = text.draw(2, &mut fastrand::Rng::with_seed(1), &Device::flex());
/// assert_eq!(batch.tokens.dims(), [2, 8]);
/// # Ok::<(), rekindle_models::data::TextTooShort>(())
/// ```
#[derive(Clone, Debug)]
pub struct Text {
    bytes: Vec<u8>,
    sequence: usize,
}

/// A text has not enough bytes for one sequence and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the text has {found} bytes, expected at least {needed} for one sequence")]
pub struct TextTooShort {
    /// Its bytes.
    pub found: usize,
    /// Those of a sequence, and one.
    pub needed: usize,
}

impl Text {
    /// How many different tokens there are.
    pub const VOCABULARY: usize = 256;

    /// A text in sequences of so many bytes.
    ///
    /// # Errors
    /// When it is too short for one.
    pub fn new(bytes: Vec<u8>, sequence: usize) -> Result<Self, TextTooShort> {
        let (found, needed) = (bytes.len(), sequence.saturating_add(1));
        match found < needed {
            true => Err(TextTooShort { found, needed }),
            false => Ok(Self { bytes, sequence }),
        }
    }

    /// The last tenth, to be held out, and the rest; nothing is held out of a text that is too short for it.
    pub fn hold_out(self) -> (Self, Option<Self>) {
        let start = self.bytes.len() - self.bytes.len() / 10;
        match Self::new(self.bytes[start..].to_vec(), self.sequence) {
            Ok(held) if start > self.sequence => {
                let mut rest = self;
                rest.bytes.truncate(start);
                (rest, Some(held))
            }
            _ => (self, None),
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Source for Text {
    type Batch = GptBatch;

    fn draw(&self, examples: usize, random: &mut fastrand::Rng, device: &Device) -> GptBatch {
        let mut tokens = Vec::with_capacity(examples * self.sequence);
        let mut targets = Vec::with_capacity(examples * self.sequence);
        for _ in 0..examples {
            let start = random.usize(0..self.bytes.len() - self.sequence);
            let window = &self.bytes[start..=start + self.sequence];
            tokens.extend(window[..self.sequence].iter().map(|byte| i32::from(*byte)));
            targets.extend(window[1..].iter().map(|byte| i32::from(*byte)));
        }
        let of = |tokens: Vec<i32>| {
            Tensor::<2, Int>::from_data(TensorData::new(tokens, [examples, self.sequence]), device)
        };
        GptBatch { tokens: of(tokens), targets: of(targets) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenth_is_held_out_where_it_is_long_enough() {
        let text = |count: usize| Text::new(vec![7; count], 9).unwrap().hold_out();
        let (rest, held) = text(100);
        assert_eq!((rest.bytes.len(), held.unwrap().bytes.len()), (90, 10));
        assert!(matches!(text(99), (rest, None) if rest.bytes.len() == 99));
        let error = Text::new(vec![7; 9], 9).unwrap_err();
        assert_eq!(error.to_string(), "the text has 9 bytes, expected at least 10 for one sequence");
    }
}
