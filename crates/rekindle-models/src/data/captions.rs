//! Images with a shape in them, and texts that say which.

use burn::tensor::{Device, Int, Tensor, TensorData};

use super::Source;
use crate::PairBatch;

/// An image of noise with one shape, and a text of four tokens: its colour, what it is, its row and its column.
///
/// There are 672 different texts. No two pairs of a batch have the same one, as long as there are that many.
///
/// ```
/// use burn::tensor::Device;
/// use rekindle_models::data::{Captions, Source};
///
/// let batch = Captions::default().draw(3, &mut fastrand::Rng::with_seed(1), &Device::flex());
/// assert_eq!(batch.images.dims(), [3, 3, 16, 16]);
/// assert_eq!(batch.texts.dims(), [3, Captions::TOKENS]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captions {
    /// The pixels along a side of a cell.
    cell: usize,
}

/// The cells along a side of an image.
const CELLS: usize = 4;
/// Red, green and blue.
const COLOURS: [[f32; 3]; 7] = [
    [1.0, 0.0, 0.0],
    [0.0, 1.0, 0.0],
    [0.0, 0.0, 1.0],
    [1.0, 1.0, 0.0],
    [1.0, 0.0, 1.0],
    [0.0, 1.0, 1.0],
    [1.0, 1.0, 1.0],
];
/// Four rows of four: a square, a frame, a cross, a slash, a beam, a post.
const SHAPES: [[&[u8; 4]; 4]; 6] = [
    [b"####", b"####", b"####", b"####"],
    [b"####", b"#  #", b"#  #", b"####"],
    [b"#  #", b" ## ", b" ## ", b"#  #"],
    [b"   #", b"  # ", b" #  ", b"#   "],
    [b"    ", b"####", b"####", b"    "],
    [b" ## ", b" ## ", b" ## ", b" ## "],
];
const TEXTS: usize = COLOURS.len() * SHAPES.len() * CELLS * CELLS;
/// How far a pixel is from what it should be, at most.
const NOISE: f32 = 0.2;

impl Default for Captions {
    /// Images of 16 by 16 pixels.
    fn default() -> Self {
        Self::new(4)
    }
}

impl Captions {
    /// How many different tokens there are.
    pub const VOCABULARY: usize = COLOURS.len() + SHAPES.len() + 2 * CELLS;
    /// The tokens of a text.
    pub const TOKENS: usize = 4;

    /// Images of four by four cells, of so many pixels along a side. From 4 on all shapes can be told apart.
    pub fn new(cell: usize) -> Self {
        Self { cell }
    }

    /// The pixels along a side of an image.
    pub fn pixels(&self) -> usize {
        CELLS * self.cell
    }
}

impl Source for Captions {
    type Batch = PairBatch;

    fn draw(&self, examples: usize, random: &mut fastrand::Rng, device: &Device) -> PairBatch {
        let mut drawn = Vec::with_capacity(examples + TEXTS);
        while drawn.len() < examples {
            let mut all: Vec<usize> = (0..TEXTS).collect();
            random.shuffle(&mut all);
            drawn.append(&mut all);
        }
        drawn.truncate(examples);
        let pixels = self.pixels();
        let mut images = Vec::with_capacity(examples * 3 * pixels * pixels);
        let mut texts = Vec::with_capacity(examples * Self::TOKENS);
        for text in drawn {
            let (place, what) = (text % (CELLS * CELLS), text / (CELLS * CELLS));
            let (row, column) = (place / CELLS, place % CELLS);
            let (shape, colour) = (what % SHAPES.len(), what / SHAPES.len());
            let places = COLOURS.len() + SHAPES.len();
            texts.extend(
                [colour, COLOURS.len() + shape, places + row, places + CELLS + column]
                    .map(|token| token as i64),
            );
            for strength in COLOURS[colour] {
                for pixel in 0..pixels * pixels {
                    let (y, x) = (pixel / pixels, pixel % pixels);
                    let inside = y / self.cell == row && x / self.cell == column;
                    let of_cell = |pixel: usize| pixel % self.cell * 4 / self.cell;
                    let lit = inside && SHAPES[shape][of_cell(y)][of_cell(x)] == b'#';
                    let noise = (random.f32() * 2.0 - 1.0) * NOISE;
                    images.push(if lit { strength + noise } else { noise });
                }
            }
        }
        let images = TensorData::new(images, [examples, 3, pixels, pixels]);
        let texts = TensorData::new(texts, [examples, Self::TOKENS]);
        PairBatch::new(Tensor::from_data(images, device), Tensor::<2, Int>::from_data(texts, device))
    }
}
