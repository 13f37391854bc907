//! What each of Burn's operations does with memory and time.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

use burn::backend::ir::{
    BaseOperationIr, FloatOperationIr, IntOperationIr, ModuleOperationIr, NumericOperationIr, OperationIr,
    TensorIr,
};

use super::operation::{Kind, View, product};

/// What Burn calls an operation: the innermost of its variants. There are a few hundred of these, and each is kept once.
pub(super) fn name_of(operation: &OperationIr) -> &'static str {
    static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    /// The beginning of a text. What follows, which is all of the operation's tensors, is not written.
    struct Beginning(String);
    impl Write for Beginning {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            self.0.push_str(text);
            // Such as `NumericFloat(F32, Mul(BinaryOpIr {`.
            match self.0.contains('{') {
                true => Err(std::fmt::Error),
                false => Ok(()),
            }
        }
    }
    let mut beginning = Beginning(String::new());
    // An error says that it has seen enough.
    let _ = write!(beginning, "{operation:?}");
    let variants = beginning.0.split('{').next().unwrap_or_default();
    let mut names = variants.split(['(', ')', ',', ' ']).filter(|name| !name.is_empty()).rev();
    let innermost = names.find(|name| !name.ends_with("Ir")).unwrap_or("operation");
    let mut name = String::with_capacity(innermost.len() + 2);
    for letter in innermost.chars() {
        if letter.is_uppercase() && !name.is_empty() {
            name.push(' ');
        }
        name.extend(letter.to_lowercase());
    }
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    match known.get(name.as_str()) {
        Some(known) => known,
        None => {
            let name: &'static str = name.leak();
            known.insert(name);
            name
        }
    }
}

/// What an operation does with memory and time.
pub(super) fn kind_of(operation: &OperationIr) -> Kind {
    match operation {
        OperationIr::BaseFloat(base) | OperationIr::BaseInt(base) | OperationIr::BaseBool(base) => {
            base_kind(base)
        }
        OperationIr::NumericFloat(_, numeric) | OperationIr::NumericInt(_, numeric) => numeric_kind(numeric),
        OperationIr::Float(_, FloatOperationIr::Matmul(matmul)) => matmul_kind(&matmul.lhs, &matmul.out),
        OperationIr::Int(IntOperationIr::Matmul(matmul)) => matmul_kind(&matmul.lhs, &matmul.out),
        OperationIr::Float(_, FloatOperationIr::Random(_)) => Kind::Pass,
        OperationIr::Float(..) | OperationIr::Int(_) | OperationIr::Bool(_) => Kind::Elementwise,
        OperationIr::Module(module) => module_kind(module),
        OperationIr::Init(_) | OperationIr::Drop(_) => Kind::Creation,
        // Backends have kernels of their own for activations, which need not write in place.
        OperationIr::Activation(_) | OperationIr::Custom(_) | OperationIr::Distributed(_) => Kind::Pass,
    }
}

fn base_kind(operation: &BaseOperationIr) -> Kind {
    match operation {
        BaseOperationIr::Reshape(_) => Kind::View(View::Reshape),
        BaseOperationIr::SwapDims(swap) => {
            let mut axes: Vec<usize> = (0..swap.input.shape.num_dims()).collect();
            axes.swap(swap.dim1, swap.dim2);
            Kind::View(View::Permute(axes))
        }
        BaseOperationIr::Permute(permute) => Kind::View(View::Permute(permute.axes.clone())),
        BaseOperationIr::Expand(_) => Kind::View(View::Expand),
        BaseOperationIr::Slice(slice) => {
            Kind::View(View::Slice(slice.ranges.iter().map(|range| range.step).collect()))
        }
        BaseOperationIr::Flip(_) | BaseOperationIr::Unfold(_) => Kind::View(View::Scattered),
        BaseOperationIr::Empty(_) => Kind::Creation,
        BaseOperationIr::Select(_) | BaseOperationIr::Gather(_) | BaseOperationIr::GatherNd(_) => {
            Kind::Lookup
        }
        _ => Kind::Pass,
    }
}

fn numeric_kind(operation: &NumericOperationIr) -> Kind {
    use NumericOperationIr as Numeric;
    match operation {
        Numeric::Add(_)
        | Numeric::AddScalar(_)
        | Numeric::Sub(_)
        | Numeric::SubScalar(_)
        | Numeric::Mul(_)
        | Numeric::MulScalar(_)
        | Numeric::Div(_)
        | Numeric::DivScalar(_)
        | Numeric::Rem(_)
        | Numeric::RemScalar(_)
        | Numeric::Abs(_)
        | Numeric::Neg(_)
        | Numeric::Sign(_)
        | Numeric::Clamp(_)
        | Numeric::ClampMin(_)
        | Numeric::ClampMax(_)
        | Numeric::Powi(_)
        | Numeric::PowiScalar(_) => Kind::Elementwise,
        _ => Kind::Pass,
    }
}

fn module_kind(operation: &ModuleOperationIr) -> Kind {
    use ModuleOperationIr as Op;
    /// Every element of `of` is a sum over what stands behind the first dimension of the weights.
    fn convolution(of: &TensorIr, weight: &TensorIr) -> Kind {
        flops(elements(of), product(weight.shape.as_slice().get(1..).unwrap_or_default()))
    }
    match operation {
        Op::Embedding(_) => Kind::Lookup,
        Op::Linear(linear) => flops(elements(&linear.out), last(&linear.x)),
        Op::LinearXBackward(linear) => flops(elements(&linear.output_grad), last(&linear.out)),
        Op::LinearWeightBackward(linear) => flops(elements(&linear.output_grad), last(&linear.x)),
        Op::Conv1d(conv) => convolution(&conv.out, &conv.weight),
        Op::Conv1dXBackward(conv) => convolution(&conv.output_grad, &conv.weight),
        Op::Conv1dWeightBackward(conv) => convolution(&conv.output_grad, &conv.weight),
        Op::Conv2d(conv) => convolution(&conv.out, &conv.weight),
        Op::Conv2dXBackward(conv) => convolution(&conv.output_grad, &conv.weight),
        Op::Conv2dWeightBackward(conv) => convolution(&conv.output_grad, &conv.weight),
        Op::Conv3d(conv) => convolution(&conv.out, &conv.weight),
        Op::Conv3dXBackward(conv) => convolution(&conv.output_grad, &conv.weight),
        Op::Conv3dWeightBackward(conv) => convolution(&conv.output_grad, &conv.weight),
        Op::DeformableConv2d(conv) => convolution(&conv.out, &conv.weight),
        // Gradients of the input and of the weights in one.
        Op::DeformableConv2dBackward(conv) => match convolution(&conv.out_grad, &conv.weight) {
            Kind::Product { flops } => Kind::Product { flops: flops.saturating_mul(2) },
            other => other,
        },
        // A transposed convolution spreads what a convolution gathers.
        Op::ConvTranspose1d(conv) => convolution(&conv.x, &conv.weight),
        Op::ConvTranspose1dWeightBackward(conv) => convolution(&conv.x, &conv.weight),
        Op::ConvTranspose2d(conv) => convolution(&conv.x, &conv.weight),
        Op::ConvTranspose2dWeightBackward(conv) => convolution(&conv.x, &conv.weight),
        Op::ConvTranspose3d(conv) => convolution(&conv.x, &conv.weight),
        Op::ConvTranspose3dWeightBackward(conv) => convolution(&conv.x, &conv.weight),
        Op::Attention(attention) => {
            // The scores, and the sum of the values that they weigh.
            let keys = attention.key.shape.as_slice().iter().rev().nth(1).copied().unwrap_or(1) as u64;
            let rows = elements(&attention.query) / last(&attention.query).max(1);
            flops(rows.saturating_mul(keys), last(&attention.query).saturating_add(last(&attention.value)))
        }
        _ => Kind::Pass,
    }
}

fn matmul_kind(lhs: &TensorIr, out: &TensorIr) -> Kind {
    flops(elements(out), last(lhs))
}

/// Sums of `terms` products each: two operations for a product and its addition.
fn flops(sums: u64, terms: u64) -> Kind {
    Kind::Product { flops: sums.saturating_mul(terms).saturating_mul(2) }
}

fn elements(tensor: &TensorIr) -> u64 {
    product(tensor.shape.as_slice())
}

/// The last dimension, which a matrix product sums over.
fn last(tensor: &TensorIr) -> u64 {
    tensor.shape.as_slice().last().map_or(1, |last| *last as u64)
}
