//! Transformers.

use rekindle_plan::{Bytes, Profile};

use crate::architecture::Part;
use crate::{AttentionKind, EstimateError, Keeping, Setting};

/// A stack of equal layers of attention and a perceptron.
#[derive(Clone, Debug, PartialEq)]
pub struct Transformer {
    /// How many layers.
    pub layers: u64,
    /// The width of the residual stream.
    pub width: u64,
    /// Attention heads.
    pub heads: u64,
    /// Heads of keys and values: fewer than `heads` share them.
    pub key_value_heads: u64,
    /// The width inside of the perceptron.
    pub hidden: u64,
    /// Two matrices up, one of which gates the other (SwiGLU), and norms without a bias; else GELU.
    pub gated: bool,
    /// Words, or the classes of a picture.
    pub vocabulary: u64,
    /// Whether the head is the embedding of the words.
    pub tied: bool,
    /// Learned positions; 0 for rotary ones.
    pub positions: u64,
    /// The tokens it is usually trained with.
    pub length: u64,
    /// Whether it is usually trained with dropout.
    pub dropout: bool,
    /// Pixels along a side of a patch, of a model that reads pictures instead of words; else 0.
    pub patch: u64,
    /// Weights of other things, such as segments and poolers.
    pub other: u64,
}

/// Which rank of a pipeline a model's ends are on: what stands before its layers, and what stands behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// The embedding, positions and what else is read.
    pub(crate) first: bool,
    /// The last norm and the head.
    pub(crate) last: bool,
}

impl Ends {
    /// A rank that has all.
    pub(crate) const BOTH: Self = Self { first: true, last: true };

    /// A rank of so many.
    pub(crate) fn of(rank: u64, ranks: u64) -> Self {
        Self { first: rank == 0, last: rank + 1 >= ranks }
    }
}

/// Every layer is a stage or six: more of them would take longer to count than anybody waits.
const MOST_LAYERS: u64 = 10_000;

impl Transformer {
    fn key_value_width(&self) -> u64 {
        self.width.checked_div(self.heads).unwrap_or(0).saturating_mul(self.key_value_heads)
    }

    pub(crate) fn parameters(&self) -> u64 {
        self.parameters_on(Ends::BOTH)
    }

    /// Those of a rank that has these layers and some of the ends. A head that is the embedding has a copy of it where that is on another
    /// rank.
    pub(crate) fn parameters_on(&self, ends: Ends) -> u64 {
        let (h, f, kv) = (self.width, self.hidden, self.key_value_width());
        let bias = u64::from(!self.gated);
        let norm = h.saturating_mul(1 + bias);
        let read = h.saturating_add(kv).saturating_mul(2);
        let attention = h.saturating_mul(read).saturating_add(bias.saturating_mul(read));
        let up = if self.gated { 2 } else { 1 };
        let perceptron = h
            .saturating_mul(f)
            .saturating_mul(up + 1)
            .saturating_add(bias.saturating_mul(f.saturating_add(h)));
        let layer = attention.saturating_add(perceptron).saturating_add(norm.saturating_mul(2));
        let words = match self.patch {
            0 => self.vocabulary.saturating_mul(h),
            // A convolution of three colours, and a token for the class.
            patch => patch.saturating_mul(patch).saturating_mul(3).saturating_add(2).saturating_mul(h),
        };
        let head = match (self.tied && ends.first, self.patch) {
            (true, _) => 0,
            (false, 0) => self.vocabulary.saturating_mul(h),
            (false, _) => self.vocabulary.saturating_mul(h.saturating_add(1)),
        };
        let first =
            [words, self.positions.saturating_mul(h), self.other].map(|of| if ends.first { of } else { 0 });
        let last = [norm, head].map(|of| if ends.last { of } else { 0 });
        first.into_iter().chain(last).fold(self.layers.saturating_mul(layer), u64::saturating_add)
    }

    /// Tokens of a step, from words or pixels.
    fn tokens(&self, setting: &Setting) -> u64 {
        match self.patch {
            0 => setting.length,
            patch => (setting.length / patch).saturating_mul(setting.length / patch).saturating_add(1),
        }
    }

    fn check(&self, setting: &Setting) -> Result<(), EstimateError> {
        let numbers = [
            ("the number of layers", self.layers),
            ("the width", self.width),
            ("the number of heads", self.heads),
            ("the number of key and value heads", self.key_value_heads),
            ("the hidden width", self.hidden),
            ("the vocabulary", self.vocabulary),
        ];
        if let Some((what, _)) = numbers.into_iter().find(|(_, number)| *number == 0) {
            return Err(EstimateError::Zero { what });
        }
        if self.layers > MOST_LAYERS {
            let (what, found, most) = ("the number of layers", self.layers, MOST_LAYERS);
            return Err(EstimateError::TooMany { what, found, most });
        }
        let divides = [
            ("the width", self.width, "the number of heads", self.heads),
            ("the number of heads", self.heads, "the number of key and value heads", self.key_value_heads),
            ("the number of heads", self.heads, "the tensor parallel degree", setting.tensor_parallel),
            ("the image", if self.patch == 0 { 0 } else { setting.length }, "the patch", self.patch.max(1)),
        ];
        match divides.into_iter().find(|(_, found, _, by)| found % by != 0) {
            Some((what, found, by_what, by)) => Err(EstimateError::Indivisible { what, found, by_what, by }),
            None => Ok(()),
        }
    }

    /// The parts of one layer: what Korthikanti and others list, and what our nodes make of it.
    fn layer(&self, setting: &Setting) -> [Part; 6] {
        let split = setting.tensor_parallel;
        let whole = if setting.sequence_parallel { split } else { 1 };
        let tokens = setting.batch.saturating_mul(self.tokens(setting));
        let size = |width: u64, ranks: u64, each: u64| {
            let all = (u128::from(tokens) * u128::from(width)).saturating_mul(u128::from(each));
            (all / u128::from(ranks)).min(u64::MAX.into()) as u64
        };
        let p = setting.element();
        let (h, f, kv) = (self.width, self.hidden, self.key_value_width());
        let up = if self.gated { f.saturating_mul(2) } else { f };
        let nodes = setting.keeping == Keeping::Nodes;
        let (residual, normed) = (size(h, whole, p), size(h, whole, p));
        // A byte for each element.
        let mask = if setting.dropout && !nodes { size(h, whole, 1) } else { 0 };
        let attended = size(h, split, p);
        let linear = nodes || setting.attention == AttentionKind::Linear;
        let pairs = |each: u64| size(self.heads.saturating_mul(self.tokens(setting)), split, each);
        let scores = match (linear, setting.dropout) {
            // The logarithm of each query's sum. What is attended lies as the next product reads it.
            (true, _) => size(self.heads, split, 4),
            (false, false) => pairs(p),
            (false, true) => pairs(2 * p + 1),
        };
        let activated = size(f, split, p);
        // A framework keeps the activated gate, too, to multiply by.
        let gate = if self.gated && !nodes { activated } else { 0 };
        let flops = |from: u64, to: u64| size(from.saturating_mul(to), split, 2);
        let product = |from: u64, to: u64| (flops(from, to), flops(from, to));
        let part = |name: &str, inside, made, passed, (flops, unread), workspace| Part {
            name: name.to_owned(),
            inside,
            made,
            passed,
            flops,
            unread,
            workspace,
        };
        let attention = (flops(h, self.tokens(setting).saturating_mul(2)), 0);
        let read = h.saturating_add(kv.saturating_mul(2));
        let of_scores = if linear { 0 } else { pairs(p) };
        [
            part("qkv", normed, size(read, split, p), residual, product(h, read), residual),
            part("attention", scores, attended, residual, attention, of_scores),
            part("projection", mask, residual, 0, product(h, h), residual),
            part("up", normed, size(up, split, p), residual, product(h, up), residual),
            part("activation", gate, activated, residual, (0, 0), 0),
            part("down", mask, residual, 0, product(f, h), activated),
        ]
    }

    /// What comes before the first layer, and after the last.
    fn ends(&self, setting: &Setting) -> [Part; 2] {
        let tokens = setting.batch.saturating_mul(self.tokens(setting));
        let whole = if setting.sequence_parallel { setting.tensor_parallel } else { 1 };
        let stream = tokens.saturating_mul(self.width).saturating_mul(setting.element()) / whole;
        let nodes = setting.keeping == Keeping::Nodes;
        let mask = if setting.dropout && !nodes { tokens.saturating_mul(self.width) / whole } else { 0 };
        // One of a picture is classified.
        let (rows, classes) = (if self.patch == 0 { tokens } else { setting.batch }, self.vocabulary);
        let logits = rows.saturating_mul(classes) / setting.tensor_parallel;
        let product = logits.saturating_mul(self.width).saturating_mul(2);
        // Logits, and their logarithms in 32 bits; ours makes them again, some rows at a time.
        let kept = if nodes { 0 } else { logits.saturating_mul(setting.element() + 4) };
        let work = if nodes { 0 } else { logits.saturating_mul(4) };
        [
            Part { name: "embedding".to_owned(), inside: mask, made: stream, ..Part::default() },
            Part {
                name: "head".to_owned(),
                inside: stream.saturating_add(kept),
                made: 4,
                flops: product,
                workspace: work.max(stream),
                ..Part::default()
            },
        ]
    }

    pub(crate) fn parts(&self, setting: &Setting, ends: Ends) -> Result<Profile, EstimateError> {
        let layer = self.layer(setting);
        let layers = (0..self.layers).flat_map(|index| {
            let named = layer.iter().map(move |part| (index, part));
            named.map(|(index, part)| Part { name: format!("block.{index}.{}", part.name), ..part.clone() })
        });
        self.profile(setting, ends, layers)
    }

    pub(crate) fn blocks(&self, setting: &Setting, ends: Ends) -> Result<Profile, EstimateError> {
        let layer = self.layer(setting);
        let layers = (0..self.layers).map(|index| Part::joined(format!("block.{index}"), &layer));
        self.profile(setting, ends, layers)
    }

    fn profile(
        &self,
        setting: &Setting,
        ends: Ends,
        layers: impl Iterator<Item = Part>,
    ) -> Result<Profile, EstimateError> {
        self.check(setting)?;
        let [embedding, head] = self.ends(setting);
        // What the rank before has made.
        let stream = embedding.made;
        let (first, last) = (ends.first.then_some(embedding), ends.last.then_some(head));
        let stages = first.into_iter().chain(layers).chain(last);
        let tokens = setting.batch.saturating_mul(self.tokens(setting));
        // Numbers of words, or three colours.
        let input = match self.patch {
            _ if !ends.first => stream,
            0 => tokens.saturating_mul(4),
            _ => setting
                .batch
                .saturating_mul(3 * setting.element())
                .saturating_mul(setting.length.saturating_mul(setting.length)),
        };
        let stages = stages.map(|part| part.stage()).collect();
        Ok(Profile::new("transformer", "estimate", Bytes::new(input), stages)?)
    }
}
