//! Profiles without running anything: a stage's forward and backward are written down by Burn's capture, and its bytes
//! and its work are read off the shapes.

use std::collections::{HashMap, HashSet};
use std::fmt;

use burn::tensor::Device;
use rekindle_plan::{Bytes, Nanos, Profile, StageProfile, TapeOption};

use crate::boundary::{Boundary, Parts};
use crate::kept::TapeTensor;
use crate::node::{self, Keeping, TapeStrategy, leaving_nodes, sweep_when};
use crate::region::Region;
use crate::stage::AnyStage;
use crate::{Error, tail};

mod capture;
mod cost;
mod device_model;
mod kind;
mod layout;
mod nodes;
mod operation;
mod tape;

pub(crate) use capture::{Lift, is_captured};
pub use cost::Work;
pub use device_model::DeviceModel;
pub use nodes::Nodes;

use capture::{Outline, Parameter, Recorded, Run};
use operation::Recording;

/// The profile of a region, without running it: shapes and types in, bytes, work and times out.
///
/// Nothing is computed and nothing is allocated. The input may be on any device; only its shapes and types are looked
/// at, and whether it is tracked. Parameters are looked at in the same way; those of a model on a real device exist
/// already, for one that is too large for this machine see [`trace_model`].
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use rekindle::{DeviceModel, Region, trace};
///
/// let device = Device::flex().autodiff();
/// let layers: Vec<Linear> = (0..6).map(|_| LinearConfig::new(64, 64).init(&device)).collect();
/// let region = Region::new().stages("layer", &layers, |layer: &Linear, x: Tensor<2>| layer.forward(x).tanh());
///
/// let x = Tensor::<2>::ones([32, 64], &device).require_grad();
/// let traced = trace("layers", &region, x, &DeviceModel::measure(&device))?;
/// let stage = &traced.stages()[0];
/// assert_eq!(stage.forward.flops, 2 * 32 * 64 * 64);
/// assert_eq!(stage.backward.flops, 2 * stage.forward.flops);
/// // What `tanh` read, and the output. The linear layer keeps its input, which is not the stage's own.
/// assert_eq!(traced.profile().stages()[0].tape_bytes.get(), 2 * 32 * 64 * 4);
/// assert_eq!(traced.distinct_stages(), 1);
/// # Ok::<(), rekindle::Error>(())
/// ```
///
/// # Errors
/// When a stage asks for values ([`Error::Untraceable`]), nothing is tracked, or there is no stage.
pub fn trace<I: Boundary, O: Boundary>(
    model: &str,
    region: &Region<I, O>,
    input: I,
    device: &DeviceModel,
) -> Result<Traced, Error> {
    let input = Outline::of(&Parts::of(input));
    let stages = region.stages_to_trace()?;
    let traced = leaving_nodes(|| trace_stages(model, stages, input, device));
    sweep_when(512);
    traced
}

/// The profile of a model that need not fit into this machine: `build` makes the model and the input of its region on
/// the device it is given, where tensors have shapes and no values.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::Tensor;
/// use rekindle::{DeviceModel, Nodes, Region, trace_model};
///
/// let device = DeviceModel {
///     name: "gpu".into(),
///     matmul_flops_per_second: 400_000_000_000_000,
///     memory_bytes_per_second: 3_000_000_000_000,
///     overhead_ns_per_op: 5_000,
///     tape_nodes: Nodes::default(),
/// };
/// // Weights of 256 TiB.
/// let traced = trace_model("wide", &device, |device| {
///     let layers: Vec<Linear> = (0..16).map(|_| LinearConfig::new(1 << 21, 1 << 21).init(device)).collect();
///     let region = Region::new().stages("layer", &layers, |layer: &Linear, x: Tensor<2>| layer.forward(x).tanh());
///     Ok::<_, rekindle::Error>((region, Tensor::empty([4096, 1 << 21], device).require_grad()))
/// })?;
/// assert_eq!(traced.profile().stages()[0].tape_bytes.to_string(), "64.0 GiB");
/// # Ok::<(), rekindle::Error>(())
/// ```
///
/// # Errors
/// What `build` fails with, and as for [`trace`]. Asking for values while building is [`Error::Untraceable`], too.
pub fn trace_model<I, O, E>(
    model: &str,
    device: &DeviceModel,
    build: impl FnOnce(&Device) -> Result<(Region<I, O>, I), E>,
) -> Result<Traced, E>
where
    I: Boundary,
    O: Boundary,
    E: From<Error>,
{
    let built = capture::captured(|on| {
        let (region, input) = build(&on.clone().autodiff())?;
        trace(model, &region, input, device).map_err(E::from)
    });
    match built {
        Ok((traced, _)) => traced,
        Err(reason) => Err(Error::Untraceable { stage: 0, name: model.to_owned(), reason }.into()),
    }
}

/// The tensors that a stage's tape keeps, if it can be traced.
pub(crate) fn tape_of(stage: &dyn AnyStage, input: &Parts, keeping: Keeping) -> Option<Vec<TapeTensor>> {
    let input = Outline::of(input);
    leaving_nodes(|| {
        let free = capture::record(stage, &input, Run::Free).ok()?;
        let taped = capture::record(stage, &input, Run::Taped(keeping)).ok()?;
        Some(tape::tensors(&taped.recording, &free.recording))
    })
}

/// What [`trace`] found.
#[derive(Clone, Debug)]
pub struct Traced {
    profile: Profile,
    stages: Vec<TracedStage>,
    distinct: usize,
}

/// The work of a stage, which a profile does not tell: that has the time it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TracedStage {
    /// Its name.
    pub name: String,
    /// Its parameters, trained or not, and its running statistics.
    pub parameter_bytes: Bytes,
    /// One forward.
    pub forward: Work,
    /// One backward, from a tape.
    pub backward: Work,
    /// How many nodes of Burn's graph a forward makes.
    nodes: u64,
}

impl Traced {
    /// The profile, to plan with.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The profile, to plan with.
    pub fn into_profile(self) -> Profile {
        self.profile
    }

    /// The work of each stage.
    pub fn stages(&self) -> &[TracedStage] {
        &self.stages
    }

    /// How many different stages there are. Those that are alike were gone back through once.
    pub fn distinct_stages(&self) -> usize {
        self.distinct
    }
}

/// A table, with neighbours that are alike in one row.
impl fmt::Display for Traced {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |formatter: &mut fmt::Formatter<'_>, cells: [String; 10]| {
            let [name, rest @ ..] = cells;
            write!(formatter, "{name:<20}")?;
            rest.iter().try_for_each(|cell| write!(formatter, " {cell:>12}"))?;
            writeln!(formatter)
        };
        let heads = [
            "stage",
            "parameters",
            "output",
            "tape",
            "balanced",
            "again",
            "forward",
            "backward",
            "TFLOP",
            "moved",
        ];
        row(formatter, heads.map(str::to_owned))?;
        let rows: Vec<_> = self.stages.iter().zip(self.profile.stages()).collect();
        let alike = |a: &(&TracedStage, &StageProfile), b: &(&TracedStage, &StageProfile)| {
            let unnamed = |row: &(&TracedStage, &StageProfile)| {
                (
                    TracedStage { name: String::new(), ..row.0.clone() },
                    StageProfile { name: String::new(), ..row.1.clone() },
                )
            };
            unnamed(a) == unnamed(b)
        };
        for group in rows.chunk_by(alike) {
            let [(work, sizes), ..] = group else { continue };
            let name = match group {
                [one] => one.0.name.clone(),
                _ => format!("{} and {} like it", work.name, group.len() - 1),
            };
            let under = |name: &str| {
                let option = sizes.options.iter().find(|option| option.name.as_str() == name);
                option.map_or_else(|| "-".to_owned(), |option| option.tape_bytes.to_string())
            };
            let flops = work.forward.flops.saturating_add(work.backward.flops) as f64 / 1e12;
            let moved: Bytes = [work.forward.moved_bytes, work.backward.moved_bytes].into_iter().sum();
            row(
                formatter,
                [
                    name,
                    work.parameter_bytes.to_string(),
                    sizes.output_bytes.to_string(),
                    sizes.tape_bytes.to_string(),
                    under(node::BALANCED),
                    under(node::AGAIN),
                    sizes.forward_ns.to_string(),
                    sizes.backward_ns.to_string(),
                    format!("{flops:.3}"),
                    moved.to_string(),
                ],
            )?;
        }
        Ok(())
    }
}

/// What stages that are alike have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Likeness {
    of: std::any::TypeId,
    input: Outline,
    parameters: Vec<Parameter>,
    forward: Recording,
}

fn trace_stages(
    model: &str,
    stages: &[Box<dyn AnyStage>],
    input: Outline,
    device: &DeviceModel,
) -> Result<Traced, Error> {
    let input_bytes = Bytes::new(input.bytes());
    let mut boundary = input;
    let mut profiles: Vec<StageProfile> = Vec::with_capacity(stages.len());
    let mut traced: Vec<TracedStage> = Vec::with_capacity(stages.len());
    let mut seen: HashMap<Likeness, (usize, Outline)> = HashMap::new();
    let mut tracked = boundary.is_tracked();
    let mut trained = Vec::with_capacity(stages.len());
    for (index, stage) in stages.iter().enumerate() {
        let numbered = |error: Error| match error {
            Error::Untraceable { name, reason, .. } => Error::Untraceable { stage: index + 1, name, reason },
            other => other,
        };
        let free = capture::record(stage.as_ref(), &boundary, Run::Free).map_err(numbered)?;
        tracked |= free.parameters.iter().any(|parameter| parameter.tracked);
        trained.push(free.trained.clone());
        let likeness = Likeness {
            of: free.of,
            input: boundary.clone(),
            parameters: free.parameters.clone(),
            forward: free.recording.clone(),
        };
        let name = stage.name().to_owned();
        if let Some((like, output)) = seen.get(&likeness) {
            profiles.push(StageProfile { name: name.clone(), ..profiles[*like].clone() });
            traced.push(TracedStage { name, ..traced[*like].clone() });
            boundary = output.clone();
            continue;
        }
        let (profile, work, output) = profiled(stage.as_ref(), &boundary, &free, device).map_err(numbered)?;
        profiles.push(profile);
        traced.push(work);
        seen.insert(likeness, (index, output.clone()));
        boundary = output;
    }
    if !tracked && !stages.is_empty() {
        return Err(Error::Untracked);
    }
    // A gradient is there from the stage on that goes back first, and is added to by the others.
    let mut later = HashSet::new();
    for (profile, trained) in profiles.iter_mut().zip(&trained).rev() {
        let first = trained.iter().filter(|(id, _)| later.insert(*id)).map(|(_, bytes)| Bytes::new(*bytes));
        profile.parameter_gradient_bytes = first.sum();
    }
    let profile = Profile::new(model, device.name.clone(), input_bytes, profiles)?;
    Ok(Traced { profile, stages: traced, distinct: seen.len() })
}

/// Goes forward and back through a stage, under each option.
fn profiled(
    stage: &dyn AnyStage,
    input: &Outline,
    free: &Recorded,
    device: &DeviceModel,
) -> Result<(StageProfile, TracedStage, Outline), Error> {
    let whole = Run::Taped(Keeping::under(TapeStrategy::Disabled));
    let plain = capture::record(stage, input, whole)?;
    let bytes = tape::taped(&plain.recording, &free.recording);
    let output_bytes = plain.output.bytes();
    let with_nodes = |tape: u64, run: &Recorded, bytes_per_op: u64| {
        let beside = bytes_per_op.saturating_mul(run.nodes).saturating_add(device.tape_nodes.bytes_per_stage);
        tape.saturating_add(beside)
    };
    let passed = output_bytes.saturating_sub(tape::output_bytes(&free.recording)).min(input.bytes());
    let times = |recording: &Recording| {
        let (forward, backward) = recording.operations.split_at(recording.forward);
        (cost::time(forward, device), cost::time(backward, device))
    };
    let (forward_ns, backward_ns) = times(&plain.recording);
    let (unread, left_out) = tail::run(true, || capture::record(stage, input, whole));
    let unread_ns = match left_out.operations {
        0 => Nanos::ZERO,
        _ => forward_ns.saturating_sub(times(&unread?.recording).0),
    };
    let backward_extra = bytes.backward_extra;
    let mut options = Vec::new();
    for name in node::options() {
        let Some(keeping) = Keeping::of(Some(&name), TapeStrategy::Disabled) else { continue };
        let can_be = stage.can_be_taped(keeping.strategy, TapeStrategy::Disabled);
        if !can_be || (keeping.again && !plain.marks) {
            continue;
        }
        // An operation that Burn cannot recompute is no reason to refuse the stage.
        let Ok(kept) = capture::record(stage, input, Run::Taped(keeping)) else { continue };
        let bytes = tape::taped(&kept.recording, &free.recording);
        let (forward_ns, backward_ns): (Nanos, Nanos) = times(&kept.recording);
        let own = with_nodes(bytes.tape, &kept, device.tape_nodes.balanced_bytes_per_op);
        let tape_bytes = Bytes::new(own.saturating_add(passed).max(output_bytes));
        let backward_extra_bytes = Some(Bytes::new(bytes.backward_extra));
        let taped_extra_bytes = Some(Bytes::new(bytes.forward_extra));
        options.push(TapeOption {
            name,
            tape_bytes,
            forward_ns,
            backward_ns,
            taped_extra_bytes,
            backward_extra_bytes,
        });
    }
    let fastest = options.iter().map(|option| option.forward_ns).fold(forward_ns, Nanos::min);
    let (forward, backward) = plain.recording.operations.split_at(plain.recording.forward);
    let sum = |wanted: fn(&Parameter) -> bool| {
        let parameters = plain.parameters.iter().filter(|parameter| wanted(parameter));
        parameters.map(|parameter| Bytes::new(parameter.bytes)).sum::<Bytes>()
    };
    let work = TracedStage {
        name: stage.name().to_owned(),
        parameter_bytes: sum(|_| true),
        forward: cost::work(forward),
        backward: cost::work(backward),
        nodes: plain.nodes,
    };
    let own = with_nodes(bytes.tape, &plain, device.tape_nodes.bytes_per_op);
    let profile = StageProfile {
        name: stage.name().to_owned(),
        output_bytes: Bytes::new(output_bytes),
        tape_bytes: Bytes::new(own.saturating_add(passed).max(output_bytes)),
        passed_bytes: Bytes::new(passed),
        forward_ns,
        backward_ns,
        unread_ns: unread_ns.min(fastest),
        forward_extra_bytes: Bytes::new(bytes.forward_extra.max(tape::free_extra(&free.recording))),
        taped_extra_bytes: None,
        backward_extra_bytes: Bytes::new(backward_extra),
        gradient_bytes: (bytes.gradient != output_bytes).then(|| Bytes::new(bytes.gradient)),
        parameter_gradient_bytes: sum(|parameter| parameter.tracked),
        pinned: false,
        options,
    };
    Ok((profile, work, plain.output))
}
