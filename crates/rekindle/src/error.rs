//! What can go wrong, said so that it can be mended.

use rekindle_plan::{Bytes, Illegal, PlanError, PolicyError, ProfileError, Rule, RuleError, SolveError};
use rekindle_run::{RunError, StoreError};

/// Why a region, a checkpoint or a backward pass was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plan is for a chain of another length.
    #[error(
        "the plan is for {plan} stages, but the region has {region}; plan the region again, or give it the stages the plan was made for"
    )]
    PlanLength {
        /// The stages of the plan.
        plan: usize,
        /// The stages of the region.
        region: usize,
    },
    /// The plan cannot be run on the region's stages.
    #[error("the plan does not fit the region: {0}")]
    Illegal(#[from] Illegal),
    /// The plan was refused before it came to running it.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The policy gives no plan for the model.
    #[error(transparent)]
    Policy(Box<PolicyError>),
    /// The rule gives no plan for the region.
    #[error("{rule} gives no plan: {source}")]
    Rule {
        /// The rule.
        rule: Rule,
        /// Why.
        source: RuleError,
    },
    /// A stage uses a tensor of the outer graph that is neither its input nor a parameter of its module.
    #[error(
        "stage {stage} (`{name}`) uses a tracked tensor that is neither its input nor a parameter of its module, so its gradient would be lost; pass the tensor as an input, make it a `Param` of the module, or make it a constant with `.detach().set_require_grad(false)`"
    )]
    TrackedCapture {
        /// The stage, from 1.
        stage: usize,
        /// Its name.
        name: String,
    },
    /// The tail of a stage is needed for its backward.
    #[error(
        "stage {stage} (`{name}`) has an operation whose backward reads what its `tail` makes, and the tail was left out because nobody reads the stage's output; begin the tail behind that operation's input"
    )]
    TailRead {
        /// The stage, from 1.
        stage: usize,
        /// Its name.
        name: String,
    },
    /// The stage did not do in the recomputation what it did in the forward pass.
    #[error(
        "stage {stage} (`{name}`) made {recompute} for tensor {tensor} of its output when it was recomputed, but {forward} in the forward pass; make it depend on nothing but its input, its parameters and Burn's random numbers, or leave it out of the region"
    )]
    StageChanged {
        /// The stage, from 1.
        stage: usize,
        /// Its name.
        name: String,
        /// Which tensor of its output, from 0.
        tensor: usize,
        /// What the forward pass made.
        forward: String,
        /// What the recomputation made.
        recompute: String,
    },
    /// The tensors are on a backend that this build of rekindle cannot checkpoint.
    #[error(
        "the tensors are on {device}, but rekindle was built for: {enabled}; turn on the crate feature of that backend, or move the model to one of these"
    )]
    BackendOff {
        /// The device found.
        device: String,
        /// The backends that are on.
        enabled: &'static str,
    },
    /// A stage mixes tensors of several backends.
    #[error(
        "stage {stage} (`{name}`) made a tensor on {found}, but its region runs on {expected}; keep a region on one device"
    )]
    OtherBackend {
        /// The stage, from 1; 0 for the region's input.
        stage: usize,
        /// Its name.
        name: String,
        /// The backend found.
        found: String,
        /// The backend expected.
        expected: String,
    },
    /// A parameter is distributed: Burn synchronises it on every backward, also on those inside a region.
    #[error(
        "stage {stage} (`{name}`) has a distributed parameter, which Burn would synchronise once for every recomputed stage; train it without `set_distributed`, or leave it out of the region"
    )]
    Distributed {
        /// The stage, from 1.
        stage: usize,
        /// Its name.
        name: String,
    },
    /// The plan keeps a tape in a way Burn does not offer.
    #[error("stage {stage} has no tape option `{option}`, expected none or `balanced`")]
    UnknownOption {
        /// The stage, from 1.
        stage: usize,
        /// The option found.
        option: String,
    },
    /// The plan keeps a tape in a way that a tensor of the stage's module does not go with.
    #[error(
        "stage {stage} (`{name}`) has a tensor in its module that is not a `Param`, and Burn keeps no tape `{option}` of it on this device; make it a `Param` without gradient, give it to the stage by `stage_with`, or plan without that option"
    )]
    ConstantOption {
        /// The stage, from 1.
        stage: usize,
        /// Its name.
        name: String,
        /// The option found.
        option: String,
    },
    /// The heads of attention cannot share keys and values.
    #[error("{heads} heads of queries cannot share {groups} heads of keys; the second must divide the first")]
    AttentionHeads {
        /// The heads of the queries.
        heads: usize,
        /// The heads of keys and values.
        groups: usize,
    },
    /// A tensor given to attention has another shape.
    #[error("attention was given {what} of shape {found:?}, expected {expected:?}")]
    AttentionShape {
        /// Which tensor.
        what: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that goes with the others.
        expected: Vec<usize>,
    },
    /// Rotary positions do not go with the tensor.
    #[error(
        "rotary positions: found {sequence} places and a width of {width}, expected {expected} places and whole heads of an \
         even number of elements, here {depth}"
    )]
    Rotary {
        /// Places in the tensor's sequences.
        sequence: usize,
        /// Places there are rotations for.
        expected: usize,
        /// The last dimension.
        width: usize,
        /// The elements of a head.
        depth: usize,
    },
    /// Tensors given to attention have different element types.
    #[error("attention was given keys or values of {found} and queries of {expected}; cast them to one type")]
    AttentionType {
        /// The type of the keys or the values.
        found: &'static str,
        /// That of the queries.
        expected: &'static str,
    },
    /// The mask given to attention cannot be read.
    #[error("the mask of hidden keys cannot be read: {reason}")]
    AttentionMask {
        /// What the device said.
        reason: String,
    },
    /// The mask given to a softmax has another shape.
    #[error(
        "a softmax was given a mask of shape {found:?}, expected {expected:?}, or 1 in place of some of its sizes but the last"
    )]
    SoftmaxMask {
        /// The mask's shape.
        found: Vec<usize>,
        /// That of what it is a mask of.
        expected: Vec<usize>,
    },
    /// A tensor given to a model has another shape than it was made for.
    #[error("the model was given {what} of shape {found:?}, expected {expected:?}")]
    InputShape {
        /// What the tensor is.
        what: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// The shape the model was made for.
        expected: Vec<usize>,
    },
    /// A batch of nothing.
    #[error("the batch has no examples, expected at least one")]
    EmptyBatch,
    /// A text that a model has no positions for.
    #[error("the model was given texts of {found} tokens, expected 1 to {longest}")]
    TextLength {
        /// The tokens of each text.
        found: usize,
        /// The most the model can read.
        longest: usize,
    },
    /// A token that has no vector.
    #[error("token {place} of sequence {sequence} is {found}, expected 0 to {}", vocabulary.saturating_sub(1))]
    Token {
        /// The sequence, from 0.
        sequence: usize,
        /// Where in the sequence, from 0.
        place: usize,
        /// The token.
        found: i64,
        /// How many different tokens there are.
        vocabulary: usize,
    },
    /// Tokens cannot be read.
    #[error("the tokens cannot be read: {reason}")]
    Tokens {
        /// What the device said.
        reason: String,
    },
    /// A tensor given to a loss has another shape.
    #[error("the loss was given {what} of shape {found:?}, expected {expected:?}")]
    LossShape {
        /// Which tensor.
        what: &'static str,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that goes with the others.
        expected: Vec<usize>,
    },
    /// A loss cannot be done in such chunks.
    #[error("chunks of {found} rows were asked for, expected 1 to {rows}")]
    LossChunk {
        /// The rows asked for.
        found: usize,
        /// The rows there are.
        rows: usize,
    },
    /// The smoothing of a loss is no part.
    #[error("the smoothing is {found}, expected 0 to 1")]
    LossSmoothing {
        /// The smoothing found.
        found: f32,
    },
    /// A precision nobody knows.
    #[error("`{found}` is no precision, expected f32, bf16 or f16")]
    UnknownPrecision {
        /// The name found.
        found: String,
    },
    /// A type of elements that the device has no tensors of.
    #[error("{device} has no tensors of {found}, expected a type it supports")]
    UnsupportedType {
        /// The type asked for.
        found: String,
        /// The device.
        device: String,
    },
    /// A share of a loss that is none.
    #[error("the share of a loss is {found}, expected a number above 0")]
    Share {
        /// The share found.
        found: f64,
    },
    /// The end of a sum that was never begun.
    #[error("no loss was added, expected at least one")]
    NothingAccumulated,
    /// A scale that would change digits, or the range of the type.
    #[error("the loss scale is {found}, expected a power of two from 1 to 16777216")]
    LossScale {
        /// The scale found.
        found: f32,
    },
    /// A length that gradients cannot be clipped to.
    #[error("gradients are to be clipped to a length of {found}, expected a number above 0")]
    ClipNorm {
        /// The length found.
        found: f64,
    },
    /// Gradients that would ruin the weights.
    #[error("the gradients have a length of {norm}, expected a finite number")]
    NotFinite {
        /// Their length.
        norm: f64,
    },
    /// A target is no class.
    #[error("the target of row {row} is {found}, expected 0 to {} or the one to ignore", classes.saturating_sub(1))]
    LossTarget {
        /// The row, from 0.
        row: usize,
        /// Its target.
        found: i64,
        /// How many classes there are.
        classes: usize,
    },
    /// Targets cannot be read.
    #[error("the targets cannot be read: {reason}")]
    LossTargets {
        /// What the device said.
        reason: String,
    },
    /// A place for boundaries cannot be used.
    #[error("the place `{place}` cannot be used: {source}")]
    Place {
        /// What plans call it.
        place: String,
        /// What it said.
        source: rekindle_run::StoreError,
    },
    /// Nobody knows such a codec.
    #[error("there is no codec `{found}`, expected one of: {known}")]
    UnknownCodec {
        /// The name given.
        found: String,
        /// The names there are.
        known: &'static str,
    },
    /// Host memory was offered for a device that computes in it.
    #[error(
        "{device} computes in host memory, so moving boundaries there frees nothing; give a disk or a codec, or plan with recomputing alone"
    )]
    HostIsDevice {
        /// The device.
        device: String,
    },
    /// A boundary cannot be put together from its tensors.
    #[error(
        "a boundary cannot be put together: found {found}, expected {expected}; check the type's `Boundary` implementation"
    )]
    Boundary {
        /// What was found.
        found: String,
        /// What the type asked for.
        expected: String,
    },
    /// There is no such section of a region.
    #[error("a section of a region begins at stage {found}, expected {expected}")]
    Section {
        /// What was asked for.
        found: String,
        /// What can be.
        expected: String,
    },
    /// A boundary cannot leave the device.
    #[error("a boundary cannot leave the device: {reason}")]
    Export {
        /// Why.
        reason: String,
    },
    /// Processes that have parts of a layer could not add up what they made.
    #[error("rank {rank} of {size} could not add up a tensor with its peers: {reason}")]
    Peers {
        /// Which of them this is.
        rank: usize,
        /// How many they are.
        size: usize,
        /// What they said.
        reason: String,
    },
    /// A store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The plan asks for something this run does not have.
    #[error("the plan cannot be run: {reason}")]
    Run {
        /// What is missing.
        reason: String,
    },
    /// A dropout with a probability that is none.
    #[error(
        "dropout of {found}, expected a probability of 0 or more and less than 1; 0.1 is usual, 0 turns it off"
    )]
    Dropout {
        /// The probability found.
        found: f64,
    },
    /// A stage cannot be traced: it asks for values, and there are none.
    #[error(
        "stage {stage} (`{name}`) cannot be traced: {reason}; a traced stage sees shapes and no values, so take what reads values out of it, or measure it instead"
    )]
    Untraceable {
        /// The stage, from 1; 0 for what came before the stages.
        stage: usize,
        /// Its name.
        name: String,
        /// What it did.
        reason: String,
    },
    /// What was found about the stages makes no profile.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A stage failed while it was measured.
    #[error(
        "stage {stage} (`{name}`) failed while it was measured: {reason}; run it by itself on the sample to see why"
    )]
    Measuring {
        /// The stage, from 1.
        stage: usize,
        /// Its name.
        name: String,
        /// What it said.
        reason: String,
    },
    /// Nobody knows how much memory is in use.
    #[error(
        "the memory in use on {device} is not known, so its stages cannot be measured; install `rekindle::memory::CountingAllocator` as the global allocator, or trace the model instead"
    )]
    Unmeasured {
        /// Where the stages run.
        device: String,
    },
    /// No plan fits the budget.
    #[error(
        "no plan takes {budget} ({} bytes) or less; the smallest budget is {smallest} ({} bytes), which {set_by} needs. A smaller batch or shorter sequence, or cutting that stage in two, would lower all of it but gradients of parameters",
        budget.get(), smallest.get()
    )]
    BudgetTooSmall {
        /// The budget found.
        budget: Bytes,
        /// The smallest there is a plan for, the margin included.
        smallest: Bytes,
        /// What takes so much.
        set_by: String,
    },
    /// There is no plan for another reason.
    #[error(transparent)]
    NoPlan(SolveError),
    /// A budget that is no part of anything.
    #[error("a budget of {found} of plain's peak, expected a part from 0 to 10; 0.25 is a quarter")]
    BudgetPart {
        /// The part found.
        found: f64,
    },
    /// The free memory was asked for, and nobody knows it.
    #[error("how much memory is free is not known on this system; give the budget in bytes")]
    NothingKnownFree,
    /// The plan is for another model, other shapes or another device.
    #[error(
        "the plan is for another model; {difference}. Plan again for this one, or give it what the plan was made for"
    )]
    OtherModel {
        /// What differs first.
        difference: Box<crate::Difference>,
    },
    /// A file with a plan cannot be used.
    #[error("{path} cannot be used as a plan: {reason}")]
    PlanFile {
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// A plan cannot be kept in its file.
    #[error("cannot write the plan to {path}: {source}")]
    PlanNotWritten {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// The loss does not depend on anything that needs a gradient.
    #[error(
        "the loss is not tracked, so there is nothing to go back through; build the model on a device with `.autodiff()` and keep at least one parameter unfrozen"
    )]
    Untracked,
    /// Burn, or a stage, panicked in the backward pass.
    #[error("the backward pass panicked: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
}

impl From<RunError<Self>> for Error {
    fn from(error: RunError<Self>) -> Self {
        match error {
            RunError::Engine { source, .. } => source,
            RunError::Store { source, .. } => Self::Store(source),
            other => Self::Run { reason: other.to_string() },
        }
    }
}

impl From<PolicyError> for Error {
    fn from(error: PolicyError) -> Self {
        Self::Policy(Box::new(error))
    }
}
