//! What tapes take beside their elements.

use burn::tensor::{Device, Tensor};
use rekindle_plan::{Bytes, StageProfile};
use rekindle_run::Measuring;
use serde::{Deserialize, Serialize};

use super::{DeviceModel, trace};
use crate::Region;
use crate::stage::NoModule;

/// What a tape takes beside its elements: nodes, names, shapes, and the graph they are in. They are in the host's memory, so
/// nothing for a device with memory of its own. Small stages of many operations notice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Nodes {
    /// What an operation leaves on a plain tape.
    pub bytes_per_op: u64,
    /// What an operation leaves on a balanced tape, which also knows how to run it again.
    pub balanced_bytes_per_op: u64,
    /// What every stage leaves, whatever it does.
    pub bytes_per_stage: u64,
}

impl Nodes {
    /// Measures stages of a few and of many operations on one number each. All 0 where the device's memory is its own, or
    /// nobody counts it.
    pub(super) fn measure(device: &Device) -> Self {
        if device.memory_pool_usage().is_some() {
            return Self::default();
        }
        let device = device.clone().autodiff();
        Self::between(&device, 1, 32).unwrap_or_default()
    }

    /// What stages of `few` and of `many` rounds of operations differ by, and what they have in common.
    fn between(device: &Device, few: usize, many: usize) -> Option<Self> {
        let (few, many) = (Seen::of(device, few)?, Seen::of(device, many)?);
        let operations = many.operations.checked_sub(few.operations).filter(|more| *more > 0)?;
        let per_op = |of: fn(&Seen) -> u64| of(&many).saturating_sub(of(&few)).div_ceil(operations);
        let bytes_per_op = per_op(|seen| seen.plain);
        Some(Self {
            bytes_per_op,
            balanced_bytes_per_op: per_op(|seen| seen.balanced),
            bytes_per_stage: few.plain.saturating_sub(few.operations * bytes_per_op),
        })
    }
}

/// What a stage of so many operations takes beside its elements.
struct Seen {
    operations: u64,
    plain: u64,
    balanced: u64,
}

impl Seen {
    fn of(device: &Device, rounds: usize) -> Option<Self> {
        let region = || {
            let run = move |_: &NoModule, x: Tensor<1>| {
                (0..rounds).fold(x, |x, _| (x.clone().tanh() * x).reshape([1]))
            };
            Region::new().stage("operations", &NoModule, run)
        };
        let input = || Tensor::<1>::full([1], 0.5, device).require_grad();
        let found = region().measure(input(), Measuring::default(), &mut |_, _| {}).ok()?;
        if !found.sized {
            return None;
        }
        let traced = trace("operations", &region(), input(), &DeviceModel::of_shapes_alone()).ok()?;
        let [measured] = &found.stages[..] else { return None };
        let [elements] = traced.profile().stages() else { return None };
        let beside =
            |of: fn(&StageProfile) -> Option<Bytes>| Some(of(measured)?.saturating_sub(of(elements)?).get());
        let plain = beside(|stage| Some(stage.tape_bytes))?;
        Some(Self {
            operations: traced.stages().first()?.nodes,
            plain,
            balanced: beside(|stage| Some(stage.options.first()?.tape_bytes)).unwrap_or(plain),
        })
    }
}
