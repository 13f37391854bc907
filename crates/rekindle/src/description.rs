//! What a plan is for: the stages of a model, the sizes of everything, and where it runs.

use std::fmt;

use rekindle_plan::Bytes;
use serde::{Deserialize, Serialize};

use crate::budget;

/// A model as far as a plan depends on it. Two models of one description can run each other's plans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Where it runs.
    pub device: String,
    /// The element types and shapes of the region's input.
    pub input: Vec<String>,
    /// The ways to keep a tape beside the whole of it.
    pub options: Vec<String>,
    /// The stages, first to last.
    pub stages: Vec<StageDescription>,
}

/// A stage as far as a plan depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageDescription {
    /// What people call it.
    pub name: String,
    /// The element types and shapes of its parameters, in their order.
    pub parameters: Vec<String>,
    /// The element types and shapes of what it reads besides its input.
    pub side: Vec<String>,
    /// Everything else its module is set to, as its `Debug` has it.
    pub settings: String,
}

/// The first thing in which two descriptions differ.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Difference {
    /// Where it is, such as "the parameters of stage 3 (`block.2`)".
    pub place: String,
    /// What one of them has.
    pub found: String,
    /// What the other has.
    pub expected: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { place, found, expected } = self;
        write!(formatter, "{place}: found {found}, expected {expected}")
    }
}

impl Description {
    /// What a step under a plan usually takes beside what the simulator says: lists of stages and of their parameters, and nodes of Burn's
    /// graphs. Next to nothing of a large model, and an eighth of what a thousand narrow layers take.
    ///
    /// ```
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::tensor::{Device, Tensor};
    /// use rekindle::{Bytes, Region};
    ///
    /// let device = Device::flex().autodiff();
    /// let layers: Vec<Linear> = (0..6).map(|_| LinearConfig::new(8, 8).init(&device)).collect();
    /// let region = Region::new().stages("layer", &layers, |layer: &Linear, x: Tensor<2>| layer.forward(x));
    /// let listed = region.describe(&Tensor::ones([2, 8], &device)).usual_bookkeeping();
    /// assert!(listed > Bytes::new(10 << 10) && listed <= rekindle::bookkeeping(6));
    /// ```
    pub fn usual_bookkeeping(&self) -> Bytes {
        let all = |of: fn(&StageDescription) -> usize| self.stages.iter().map(of).sum();
        let (parameters, captured) = (all(|stage| stage.parameters.len()), all(|stage| stage.side.len()));
        budget::usual_bookkeeping(self.stages.len(), parameters, captured)
    }

    /// The first thing in which this description differs from `expected`; `None` when they are the same.
    pub fn difference(&self, expected: &Self) -> Option<Difference> {
        let lists = |place: &str, found: &[String], expected: &[String]| {
            let text = |list: &[String]| match list.is_empty() {
                true => "none".to_owned(),
                false => list.join(", "),
            };
            differ(place, text(found), text(expected))
        };
        let numbers = || {
            let count = |description: &Self| description.stages.len().to_string();
            differ("the number of stages", count(self), count(expected))
        };
        let stages = || {
            let pairs = self.stages.iter().zip(&expected.stages).zip(1..);
            pairs.into_iter().find_map(|((found, expected), number)| {
                let of = |what: &str| format!("{what} of stage {number} (`{}`)", expected.name);
                differ(&of("the name"), found.name.clone(), expected.name.clone())
                    .or_else(|| lists(&of("the parameters"), &found.parameters, &expected.parameters))
                    .or_else(|| lists(&of("the side inputs"), &found.side, &expected.side))
                    .or_else(|| {
                        let [found, expected] = differing(&found.settings, &expected.settings);
                        differ(&of("the settings"), found.to_owned(), expected.to_owned())
                    })
            })
        };
        differ("the device", self.device.clone(), expected.device.clone())
            .or_else(numbers)
            .or_else(|| lists("the input", &self.input, &expected.input))
            .or_else(|| lists("the tape options", &self.options, &expected.options))
            .or_else(stages)
    }
}

/// Of two texts the first field in which they differ, such as `prob: 0.1`.
fn differing<'a>(one: &'a str, other: &'a str) -> [&'a str; 2] {
    let same = one.bytes().zip(other.bytes()).take_while(|(one, other)| one == other).count();
    [one, other].map(|text| {
        let ends = |byte: &u8| b"{}(),".contains(byte);
        let bytes = text.as_bytes();
        let same = same.min(bytes.len());
        let start = bytes[..same].iter().rposition(ends).map_or(0, |end| end + 1);
        let end = bytes[same..].iter().position(ends).map_or(bytes.len(), |end| same + end);
        // Where it begins and ends are single bytes, which are no part of any other letter.
        text.get(start..end).unwrap_or(text).trim()
    })
}

fn differ(place: &str, found: String, expected: String) -> Option<Difference> {
    (found != expected).then(|| Difference { place: place.to_owned(), found, expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_settings_the_field_that_differs_is_told() {
        let one = "Block { norm: Norm { epsilon: 1e-5 }, dropout: Dropout { prob: 0.1 }, kind: Gelu }";
        let of = |from: &str, to: &str| differing(one, &one.replace(from, to)).map(str::to_owned);
        assert_eq!(of("0.1", "0.25"), ["prob: 0.1", "prob: 0.25"]);
        assert_eq!(of("Gelu", "Swiglu"), ["kind: Gelu", "kind: Swiglu"]);
        assert_eq!(of("Block", "Stück"), ["Block", "Stück"]);
        assert_eq!(differing("", "a"), ["", "a"]);
        assert_eq!(differing("ä", "ö"), ["ä", "ö"]);
    }
}
