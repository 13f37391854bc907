//! Residual networks.

use rekindle_plan::{Bytes, Profile};

use crate::architecture::Part;
use crate::{EstimateError, Setting};

/// A stack of bottlenecks: three convolutions with batch norms around a residual.
#[derive(Clone, Debug, PartialEq)]
pub struct ResNet {
    /// Which kind.
    pub kind: ResNetKind,
    /// How many bottlenecks at each resolution.
    pub bottlenecks: Vec<u64>,
    /// What pictures are sorted into.
    pub classes: u64,
    /// The pixels along a side that it is usually trained with.
    pub pixels: u64,
}

/// Where a residual network begins, and where its norms are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResNetKind {
    /// He and others 2015: norms behind convolutions, a stem of 7 by 7 and a pooling, 64 channels first.
    ImageNet,
    /// He and others 2016: norms before convolutions, a stem of 3 by 3, 16 channels first. The one of a thousand layers.
    Cifar,
}

/// A bottleneck: its channels, and the pixels along a side.
struct Bottleneck {
    from: u64,
    inner: u64,
    to: u64,
    stride: u64,
    side: u64,
}

impl ResNet {
    /// The layers with weights along the longest way.
    pub fn depth(&self) -> u64 {
        self.bottlenecks.iter().sum::<u64>() * 3 + 2
    }

    fn stem(&self) -> u64 {
        match self.kind {
            ResNetKind::ImageNet => 64,
            ResNetKind::Cifar => 16,
        }
    }

    fn stack(&self, pixels: u64) -> Vec<Bottleneck> {
        let mut side = match self.kind {
            ResNetKind::ImageNet => pixels.div_ceil(4),
            ResNetKind::Cifar => pixels,
        };
        let mut from = self.stem();
        let mut stack = Vec::new();
        for (level, count) in self.bottlenecks.iter().enumerate() {
            let inner = self.stem() << level;
            for index in 0..*count {
                let stride = if index == 0 && level > 0 { 2 } else { 1 };
                stack.push(Bottleneck { from, inner, to: 4 * inner, stride, side });
                side = side.div_ceil(stride);
                from = 4 * inner;
            }
        }
        stack
    }

    pub(crate) fn parameters(&self) -> u64 {
        let norm = |channels: u64| 2 * channels;
        let stem = match self.kind {
            ResNetKind::ImageNet => 3 * 49 * 64 + norm(64),
            ResNetKind::Cifar => 3 * 9 * 16,
        };
        let stack = self.stack(self.pixels);
        let end = stack.last().map_or(self.stem(), |last| last.to);
        let of = |block: &Bottleneck| {
            let Bottleneck { from, inner, to, .. } = *block;
            let weights = from * inner + 9 * inner * inner + inner * to;
            match self.kind {
                ResNetKind::ImageNet if from != to => {
                    weights + 2 * norm(inner) + norm(to) + from * to + norm(to)
                }
                ResNetKind::ImageNet => weights + 2 * norm(inner) + norm(to),
                ResNetKind::Cifar if from != to => weights + norm(from) + 2 * norm(inner) + from * to,
                ResNetKind::Cifar => weights + norm(from) + 2 * norm(inner),
            }
        };
        let last_norm = if self.kind == ResNetKind::Cifar { norm(end) } else { 0 };
        stem + stack.iter().map(of).sum::<u64>() + last_norm + (end + 1) * self.classes
    }

    pub(crate) fn blocks(&self, setting: &Setting) -> Result<Profile, EstimateError> {
        if self.bottlenecks.iter().all(|count| *count == 0) {
            return Err(EstimateError::Zero { what: "the number of bottlenecks" });
        }
        let (p, batch) = (setting.element(), setting.batch);
        let tensor = |channels: u64, side: u64| {
            batch.saturating_mul(channels).saturating_mul(p).saturating_mul(side.saturating_mul(side))
        };
        let work = |from: u64, to: u64, side: u64| {
            (batch.saturating_mul(2)).saturating_mul(from * to).saturating_mul(side.saturating_mul(side))
        };
        let all = |sizes: &[u64]| sizes.iter().copied().fold(0, u64::saturating_add);
        let stack = self.stack(setting.length);
        let first = stack.first().map_or(setting.length, |block| block.side);
        let mut parts = Vec::with_capacity(stack.len() + 2);
        parts.push(match self.kind {
            ResNetKind::ImageNet => {
                let side = setting.length.div_ceil(2);
                // The convolution's output, and what is pooled, with the place each was found at.
                let places = batch.saturating_mul(64 * 8).saturating_mul(first.saturating_mul(first));
                let inside = all(&[tensor(64, side), tensor(64, side), places]);
                let flops = work(3 * 49, 64, side);
                Part { name: "stem".to_owned(), inside, made: tensor(64, first), flops, ..Part::default() }
            }
            ResNetKind::Cifar => {
                let flops = work(27, 16, first);
                Part { name: "stem".to_owned(), made: tensor(16, first), flops, ..Part::default() }
            }
        });
        for (index, block) in stack.iter().enumerate() {
            let Bottleneck { from, inner, to, stride, side } = *block;
            let out = side.div_ceil(stride);
            // Behind each convolution its output, which a norm reads, and what the next convolution reads.
            let (near, far) = (tensor(inner, side), tensor(inner, out));
            let between = all(&[near, near, far, far]);
            let shortcut = from != to;
            let inside = match self.kind {
                ResNetKind::ImageNet if shortcut => all(&[between, tensor(to, out), tensor(to, out)]),
                ResNetKind::ImageNet => all(&[between, tensor(to, out)]),
                // A norm reads the input itself; what the last convolution makes, nobody does.
                ResNetKind::Cifar => all(&[between, tensor(from, side)]),
            };
            let of_shortcut = if shortcut { work(from, to, out) } else { 0 };
            let flops = all(&[
                work(from, inner, side),
                work(9 * inner, inner, out),
                work(inner, to, out),
                of_shortcut,
            ]);
            parts.push(Part {
                name: format!("block.{index}"),
                inside,
                made: tensor(to, out),
                flops,
                workspace: tensor(to, out).max(tensor(from, side)),
                ..Part::default()
            });
        }
        let (end, side) = stack.last().map_or((0, 1), |block| (block.to, block.side.div_ceil(block.stride)));
        let pooled = batch.saturating_mul(end * p);
        let last = match self.kind {
            ResNetKind::ImageNet => pooled,
            ResNetKind::Cifar => all(&[pooled, tensor(end, side)]),
        };
        let flops = batch.saturating_mul(2 * end * self.classes);
        parts.push(Part { name: "head".to_owned(), inside: last, made: 4, flops, ..Part::default() });
        let input = tensor(3, setting.length);
        let stages = parts.iter().map(Part::stage).collect();
        Ok(Profile::new("resnet", "estimate", Bytes::new(input), stages)?)
    }
}
