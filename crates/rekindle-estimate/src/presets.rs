//! Models by name.

use crate::{Architecture, ResNet, ResNetKind, Transformer};

/// The names there are, and what each is.
pub fn presets() -> impl Iterator<Item = (&'static str, Architecture)> {
    NAMES.iter().filter_map(|name| Some((*name, preset(name)?)))
}

const NAMES: [&str; 14] = [
    "gpt2",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "gpt3-175b",
    "bert-large",
    "llama-7b",
    "llama-13b",
    "llama-70b",
    "vit-l",
    "vit-h",
    "resnet-50",
    "resnet-152",
    "resnet-1001",
];

/// A model by its name.
pub fn preset(name: &str) -> Option<Architecture> {
    let gpt = |layers, width, heads, length, vocabulary| Transformer {
        layers,
        width,
        heads,
        key_value_heads: heads,
        hidden: 4 * width,
        gated: false,
        vocabulary,
        tied: true,
        positions: length,
        length,
        dropout: true,
        patch: 0,
        other: 0,
    };
    let gpt2 = |layers, width, heads| gpt(layers, width, heads, 1_024, 50_257);
    let llama = |layers, width, heads, key_value_heads, hidden, length| Transformer {
        key_value_heads,
        hidden,
        gated: true,
        tied: false,
        positions: 0,
        dropout: false,
        ..gpt(layers, width, heads, length, 32_000)
    };
    let vit = |layers, width, heads, patch| Transformer {
        tied: false,
        positions: (224 / patch) * (224 / patch) + 1,
        length: 224,
        patch,
        ..gpt(layers, width, heads, 224, 1_000)
    };
    let resnet = |bottlenecks: &[u64]| ResNet {
        kind: ResNetKind::ImageNet,
        bottlenecks: bottlenecks.to_vec(),
        classes: 1_000,
        pixels: 224,
    };
    Some(match name {
        "gpt2" => Architecture::Transformer(gpt2(12, 768, 12)),
        "gpt2-medium" => Architecture::Transformer(gpt2(24, 1_024, 16)),
        "gpt2-large" => Architecture::Transformer(gpt2(36, 1_280, 20)),
        "gpt2-xl" => Architecture::Transformer(gpt2(48, 1_600, 25)),
        "gpt3-175b" => Architecture::Transformer(gpt(96, 12_288, 96, 2_048, 50_257)),
        // Two segments, a norm behind the embeddings where the others have one behind the layers, and a pooler.
        "bert-large" => Architecture::Transformer(Transformer {
            other: 2 * 1_024 + 1_024 * 1_024 + 1_024,
            ..gpt(24, 1_024, 16, 512, 30_522)
        }),
        "llama-7b" => Architecture::Transformer(llama(32, 4_096, 32, 32, 11_008, 2_048)),
        "llama-13b" => Architecture::Transformer(llama(40, 5_120, 40, 40, 13_824, 2_048)),
        "llama-70b" => Architecture::Transformer(llama(80, 8_192, 64, 8, 28_672, 4_096)),
        "vit-l" => Architecture::Transformer(vit(24, 1_024, 16, 16)),
        "vit-h" => Architecture::Transformer(vit(32, 1_280, 16, 14)),
        "resnet-50" => Architecture::ResNet(resnet(&[3, 4, 6, 3])),
        "resnet-152" => Architecture::ResNet(resnet(&[3, 8, 36, 3])),
        "resnet-1001" => Architecture::ResNet(ResNet {
            kind: ResNetKind::Cifar,
            bottlenecks: vec![111, 111, 111],
            classes: 10,
            pixels: 32,
        }),
        _ => return None,
    })
}
