//! Made-up images: shapes of any place, size and colour.

use burn::tensor::{Device, Int, Tensor, TensorData};

use super::Source;
use crate::ImageBatch;

/// What the images show, in the order of their classes.
const NAMES: [&str; 5] = ["circle", "square", "triangle", "cross", "ring"];

/// The longest side: 4,096 by 4,096 pixels of three channels are 192 MiB.
const LONGEST: usize = 4_096;

/// Light shapes on a dark ground, in noise. Which shape it is, is the class; where it is, how large and in which colour
/// says nothing.
///
/// A shape is some three quarters of the image wide, and a stroke of a cross a fifth: from 12 pixels along a side on they can be
/// told apart.
///
/// ```
/// use burn::tensor::Device;
/// use rekindle_models::data::{Shapes, Source};
///
/// let shapes = Shapes::new(16)?.classes(3)?;
/// let batch = shapes.draw(8, &mut fastrand::Rng::with_seed(1), &Device::flex());
/// assert_eq!(batch.images.dims(), [8, 3, 16, 16]);
/// assert_eq!(shapes.names(), ["circle", "square", "triangle"]);
/// # Ok::<(), rekindle_models::data::ShapesError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Shapes {
    side: usize,
    channels: usize,
    classes: usize,
    noise: f32,
}

/// Why there are no such images.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{found} {what} are asked for, expected {least} to {most}")]
pub struct ShapesError {
    /// What is to be so many.
    pub what: &'static str,
    /// How many.
    pub found: usize,
    /// The fewest there can be.
    pub least: usize,
    /// The most there can be.
    pub most: usize,
}

fn check(what: &'static str, found: usize, most: usize) -> Result<usize, ShapesError> {
    match (1..=most).contains(&found) {
        true => Ok(found),
        false => Err(ShapesError { what, found, least: 1, most }),
    }
}

impl Shapes {
    /// Images of so many pixels along a side, in three channels, of all shapes there are.
    ///
    /// # Errors
    /// When the side is 0, or longer than 4,096.
    pub fn new(side: usize) -> Result<Self, ShapesError> {
        let side = check("pixels along a side", side, LONGEST)?;
        Ok(Self { side, channels: 3, classes: NAMES.len(), noise: 0.1 })
    }

    /// Images of so many channels.
    ///
    /// # Errors
    /// When it is 0, or more than 64.
    pub fn channels(self, channels: usize) -> Result<Self, ShapesError> {
        Ok(Self { channels: check("channels", channels, 64)?, ..self })
    }

    /// Images of the first so many shapes.
    ///
    /// # Errors
    /// When it is 0, or there are fewer.
    pub fn classes(self, classes: usize) -> Result<Self, ShapesError> {
        Ok(Self { classes: check("classes", classes, NAMES.len())?, ..self })
    }

    /// The name of each class.
    pub fn names(&self) -> &'static [&'static str] {
        &NAMES[..self.classes]
    }

    /// The channels, height and width of an image.
    pub fn image(&self) -> [usize; 3] {
        [self.channels, self.side, self.side]
    }

    /// Adds the pixels of an image of a class, from -1 to 1 but for noise.
    fn paint(&self, class: usize, random: &mut fastrand::Rng, pixels: &mut Vec<f32>) {
        let side = self.side as f32;
        let between = |random: &mut fastrand::Rng, low: f32, high: f32| low + (high - low) * random.f32();
        let radius = between(random, 0.3, 0.45) * side;
        // The whole shape is inside of the image.
        let mut middle = || between(random, radius, side - radius);
        let (down, across) = (middle(), middle());
        for _ in 0..self.channels {
            let (ground, light) = (between(random, -1.0, -0.6), between(random, 0.2, 1.0));
            for row in 0..self.side {
                for column in 0..self.side {
                    let x = (column as f32 + 0.5 - across) / radius;
                    let y = (row as f32 + 0.5 - down) / radius;
                    let colour = if covers(class, x, y) { light } else { ground };
                    pixels.push(colour + between(random, -self.noise, self.noise));
                }
            }
        }
    }
}

/// Whether a shape, from -1 to 1 in both directions, covers a point. The second goes down.
fn covers(class: usize, x: f32, y: f32) -> bool {
    let (distance, farther) = (x.hypot(y), x.abs().max(y.abs()));
    match NAMES.get(class) {
        Some(&"circle") => distance <= 1.0,
        Some(&"square") => farther <= 0.9,
        Some(&"triangle") => (-1.0..=0.8).contains(&y) && x.abs() <= (y + 1.0) / 1.8,
        Some(&"cross") => farther <= 1.0 && x.abs().min(y.abs()) <= 0.3,
        _ => (0.6..=1.0).contains(&distance),
    }
}

impl Source for Shapes {
    type Batch = ImageBatch;

    fn draw(&self, examples: usize, random: &mut fastrand::Rng, device: &Device) -> ImageBatch {
        let [channels, height, width] = self.image();
        let mut pixels = Vec::with_capacity(examples * channels * height * width);
        let mut classes = Vec::with_capacity(examples);
        for _ in 0..examples {
            let class = random.usize(..self.classes);
            self.paint(class, random, &mut pixels);
            classes.push(class as i64);
        }
        let pixels = TensorData::new(pixels, [examples, channels, height, width]);
        ImageBatch {
            images: Tensor::from_data(pixels, device),
            classes: Tensor::<1, Int>::from_data(TensorData::new(classes, [examples]), device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(shapes: &Shapes, examples: usize, seed: u64) -> (Vec<f32>, Vec<i64>) {
        let batch = shapes.draw(examples, &mut fastrand::Rng::with_seed(seed), &Device::flex());
        let [channels, height, width] = shapes.image();
        assert_eq!(batch.images.dims(), [examples, channels, height, width]);
        (
            batch.images.into_data().try_into_vec_as::<f32>().unwrap(),
            batch.classes.into_data().try_into_vec_as::<i64>().unwrap(),
        )
    }

    #[test]
    fn the_same_numbers_draw_the_same_images() {
        let shapes = Shapes::new(12).unwrap().channels(2).unwrap();
        assert!(drawn(&shapes, 9, 4) == drawn(&shapes, 9, 4));
        assert!(drawn(&shapes, 9, 4) != drawn(&shapes, 9, 5));
    }

    #[test]
    fn every_class_is_drawn_and_has_a_shape_of_its_own() {
        let shapes = Shapes::new(32).unwrap().channels(1).unwrap();
        let (pixels, classes) = drawn(&shapes, 200, 1);
        let mut covered = [(0.0, 0.0); 5];
        for (image, class) in pixels.chunks(32 * 32).zip(classes) {
            let light = image.iter().filter(|pixel| **pixel > -0.2).count() as f32;
            let (count, sum) = &mut covered[class as usize];
            *count += 1.0;
            *sum += light / (32.0 * 32.0);
        }
        let mean = covered.map(|(count, sum)| sum / count);
        assert!(covered.iter().all(|(count, _)| *count > 20.0), "{covered:?}");
        // A square covers more than a circle around the same middle, and that more than what is cut out of it.
        let [circle, square, triangle, cross, ring] = mean;
        assert!(square < 0.6 && triangle > 0.1, "{mean:?}");
        assert!(square > circle && circle > ring && circle > cross && circle > triangle, "{mean:?}");
    }

    #[test]
    fn images_of_any_size_are_drawn() {
        for side in [1, 2, 3, 7] {
            let (pixels, classes) = drawn(&Shapes::new(side).unwrap().channels(4).unwrap(), 3, 2);
            assert_eq!((pixels.len(), classes.len()), (3 * 4 * side * side, 3));
            assert!(pixels.iter().all(|pixel| pixel.abs() <= 1.2));
        }
    }

    #[test]
    fn images_that_cannot_be_are_refused() {
        let refused = Shapes::new(0).unwrap_err();
        assert_eq!(refused.to_string(), "0 pixels along a side are asked for, expected 1 to 4096");
        assert!(Shapes::new(LONGEST + 1).is_err());
        let shapes = Shapes::new(8).unwrap();
        assert_eq!(shapes.clone().channels(0).unwrap_err().what, "channels");
        assert_eq!(shapes.clone().classes(0).unwrap_err().most, 5);
        assert!(shapes.classes(6).is_err());
    }
}
