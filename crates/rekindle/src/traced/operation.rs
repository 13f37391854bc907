//! What was written down of a stage: operations with shapes, and which tensors are which.

/// A tensor that an operation reads or makes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Value {
    /// Counts from zero within a recording, in the order of appearance.
    pub(super) id: usize,
    /// In a box and not a list: there are many of these.
    pub(super) shape: Box<[usize]>,
    /// What its elements are called.
    pub(super) elements: &'static str,
    pub(super) element_bytes: u8,
    /// For a tensor that is read: nobody else holds it, so the operation may write into its memory.
    pub(super) last: bool,
}

impl Value {
    pub(super) fn count(&self) -> u64 {
        product(&self.shape)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.count().saturating_mul(u64::from(self.element_bytes))
    }
}

/// The product of a shape, or of a part of it. A shape that no machine could hold is as large as a number can say.
pub(super) fn product(sizes: &[usize]) -> u64 {
    sizes.iter().fold(1, |product, size| product.saturating_mul(*size as u64))
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Operation {
    /// What Burn calls it.
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) reads: Vec<Value>,
    pub(super) makes: Vec<Value>,
}

/// What an operation does with memory and time.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    /// Another look at the same memory.
    View(View),
    /// Memory that nobody writes.
    Creation,
    /// Reads as much of its first input as it makes: an embedding, a gather.
    Lookup,
    /// One element from one element: it may write into an input that is read for the last time.
    Elementwise,
    /// A matrix product, a convolution, attention.
    Product { flops: u64 },
    /// Anything else: reads its inputs and writes its outputs.
    Pass,
}

/// How a view lays out the memory of what it looks at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum View {
    /// A copy when the elements do not lie in order.
    Reshape,
    /// The dimension of the input that each dimension of the output is.
    Permute(Vec<usize>),
    Expand,
    /// The step in each dimension.
    Slice(Vec<isize>),
    /// Elements in an order of their own.
    Scattered,
}

/// One run of a stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Recording {
    pub(super) operations: Vec<Operation>,
    /// How many of the operations are the forward's.
    pub(super) forward: usize,
    /// Tensors that are there before the stage runs: its input, its parameters, what it reads besides.
    pub(super) given: Vec<usize>,
    pub(super) outputs: Vec<usize>,
    /// What the backward starts from, with its bytes: nothing in the forward knows of it.
    pub(super) gradients_in: Vec<(usize, u64)>,
    /// The gradients of the stage's input.
    pub(super) gradients_out: Vec<usize>,
    pub(super) parameter_gradients: Vec<usize>,
}
