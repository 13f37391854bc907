//! Which weight has which name, and how it lies in a file.

use burn::module::Param;
use burn::nn;
use burn::tensor::Tensor;

use crate::layers::{Linear, Norm};
use crate::{Activation, Gpt, GptConfig, Norms, Positions};

/// How a weight of ours lies in a tensor of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lies {
    Whole,
    /// Rows are columns: PyTorch's linear layers.
    Transposed,
    /// One of three, side by side: GPT-2's queries, keys and values.
    Third(usize),
}

pub(super) enum Target<'a> {
    Matrix(&'a mut Param<Tensor<2>>),
    Vector(&'a mut Param<Tensor<1>>),
}

/// A weight, and where it is found.
pub(super) struct Slot<'a> {
    pub(super) name: String,
    pub(super) lies: Lies,
    pub(super) target: Target<'a>,
}

impl Slot<'_> {
    pub(super) fn shape_in_file(&self) -> Vec<usize> {
        let shape = match &self.target {
            Target::Matrix(param) => param.shape(),
            Target::Vector(param) => param.shape(),
        };
        let mut sizes = shape.as_slice().to_vec();
        match self.lies {
            Lies::Whole => {}
            Lies::Transposed => sizes.reverse(),
            Lies::Third(_) => {
                if let Some(last) = sizes.last_mut() {
                    *last *= 3;
                }
            }
        }
        sizes
    }
}

/// The weights of a model; `None`, if it is neither of GPT-2's kind nor of Llama's.
pub(super) fn slots<'a>(model: &'a mut Gpt, config: &GptConfig) -> Option<Vec<Slot<'a>>> {
    let rotary = matches!(config.positions, Positions::Rotary { .. });
    let mut slots = Slots(Vec::new());
    match (rotary, config.norms, config.activation, config.bias, config.key_heads() == config.heads) {
        (false, Norms::Layer, Activation::Gelu | Activation::GeluTanh, true, true) => slots.gpt2(model),
        (true, Norms::Rms, Activation::SwiGlu, false, _) => slots.llama(model),
        _ => return None,
    }
    Some(slots.0)
}

struct Slots<'a>(Vec<Slot<'a>>);

impl<'a> Slots<'a> {
    fn matrix(&mut self, name: String, lies: Lies, param: &'a mut Param<Tensor<2>>) {
        self.0.push(Slot { name, lies, target: Target::Matrix(param) });
    }

    fn vector(&mut self, name: String, lies: Lies, param: &'a mut Param<Tensor<1>>) {
        self.0.push(Slot { name, lies, target: Target::Vector(param) });
    }

    fn linear(&mut self, name: &str, lies: Lies, layer: &'a mut Linear) {
        let nn::Linear { weight, bias } = layer.layer_mut();
        self.matrix(format!("{name}.weight"), lies, weight);
        if let Some(bias) = bias {
            let lies = if lies == Lies::Transposed { Lies::Whole } else { lies };
            self.vector(format!("{name}.bias"), lies, bias);
        }
    }

    fn norm(&mut self, name: &str, norm: &'a mut Norm) {
        let layer = norm.layer_mut();
        self.vector(format!("{name}.weight"), Lies::Whole, &mut layer.gamma);
        if let Some(beta) = &mut layer.beta {
            self.vector(format!("{name}.bias"), Lies::Whole, beta);
        }
    }

    fn gpt2(&mut self, model: &'a mut Gpt) {
        let named = |part: &str| format!("transformer.{part}");
        self.matrix(named("wte.weight"), Lies::Whole, &mut model.embedding.tokens.weight);
        if let Some(positions) = &mut model.embedding.positions {
            self.matrix(named("wpe.weight"), Lies::Whole, &mut positions.weight);
        }
        for (index, block) in model.blocks.iter_mut().enumerate() {
            let of = |part: &str| format!("transformer.h.{index}.{part}");
            self.norm(&of("ln_1"), &mut block.projection.norm);
            self.linear(&of("attn.c_attn"), Lies::Third(0), &mut block.projection.query);
            self.linear(&of("attn.c_attn"), Lies::Third(1), &mut block.projection.key);
            self.linear(&of("attn.c_attn"), Lies::Third(2), &mut block.projection.value);
            self.linear(&of("attn.c_proj"), Lies::Whole, &mut block.output.linear);
            self.norm(&of("ln_2"), &mut block.up.norm);
            self.linear(&of("mlp.c_fc"), Lies::Whole, &mut block.up.linear);
            self.linear(&of("mlp.c_proj"), Lies::Whole, &mut block.down.linear);
        }
        self.norm(&named("ln_f"), &mut model.head.norm);
        if let Some(linear) = &mut model.head.linear {
            self.linear("lm_head", Lies::Transposed, linear);
        }
    }

    fn llama(&mut self, model: &'a mut Gpt) {
        self.matrix("model.embed_tokens.weight".to_owned(), Lies::Whole, &mut model.embedding.tokens.weight);
        for (index, block) in model.blocks.iter_mut().enumerate() {
            let of = |part: &str| format!("model.layers.{index}.{part}");
            self.norm(&of("input_layernorm"), &mut block.projection.norm);
            self.linear(&of("self_attn.q_proj"), Lies::Transposed, &mut block.projection.query);
            self.linear(&of("self_attn.k_proj"), Lies::Transposed, &mut block.projection.key);
            self.linear(&of("self_attn.v_proj"), Lies::Transposed, &mut block.projection.value);
            self.linear(&of("self_attn.o_proj"), Lies::Transposed, &mut block.output.linear);
            self.norm(&of("post_attention_layernorm"), &mut block.up.norm);
            if let Some(gate) = &mut block.up.gate {
                self.linear(&of("mlp.gate_proj"), Lies::Transposed, gate);
            }
            self.linear(&of("mlp.up_proj"), Lies::Transposed, &mut block.up.linear);
            self.linear(&of("mlp.down_proj"), Lies::Transposed, &mut block.down.linear);
        }
        self.norm("model.norm", &mut model.head.norm);
        if let Some(linear) = &mut model.head.linear {
            self.linear("lm_head", Lies::Transposed, linear);
        }
    }
}
