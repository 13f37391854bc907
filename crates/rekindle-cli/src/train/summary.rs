//! What a run of training came to, and how it is shown.

use rekindle::training::Precision;
use rekindle::{Bytes, Nanos, Plan};
use serde::Serialize;

use super::against_plain::ROUNDS;
use crate::adaptive::Governed;
use crate::amount::Target;
use crate::failure::Failure;
use crate::measure::{Beside, Comparison};
use crate::planning::Known;
use crate::report;
use crate::strategy::{Ready, Strategy};
use crate::totals::Totals;
use crate::transfers::Transfers;

#[derive(Serialize)]
pub(super) struct Summary {
    pub(super) model: String,
    pub(super) strategy: String,
    pub(super) steps: u32,
    pub(super) first_loss: f32,
    pub(super) last_loss: f32,
    pub(super) examples_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tokens_per_second: Option<f64>,
    /// What people read of it: what is counted, such as tokens, and how many in a second.
    #[serde(skip)]
    pub(super) units: &'static str,
    #[serde(skip)]
    pub(super) pace: f64,
    /// What was learned, told by examples that were held out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) held_out: Option<Learned>,
    pub(super) peak_bytes: Bytes,
    /// The highest peak of those that [`peak_bytes`](Self::peak_bytes) is the median of. A budget is held against this one.
    pub(super) most_bytes: Bytes,
    pub(super) plain_peak_bytes: Bytes,
    pub(super) step_ns: Nanos,
    pub(super) plain_step_ns: Nanos,
    pub(super) overhead: f64,
    pub(super) gradients: Comparison,
    /// What the plan may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) budget_bytes: Option<Bytes>,
    /// What the simulator said before the first step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) predicted: Option<Prediction>,
    /// How long measuring the stages and planning took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) planning_ns: Option<Nanos>,
    /// How often the plan changed while training, when it may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) plan_changes: Option<u32>,
    /// Under which budgets the steps ran one after the other, when the plan may change, and how much they took of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) governed: Vec<Governed>,
    /// What a step moved, for a plan that uses places.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) transfers: Option<Transfers>,
    pub(super) precision: Precision,
    /// How many parts a batch was taken in.
    pub(super) micro_batches: usize,
    /// How the loss was scaled at the end, and what was left out, where that could happen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) scaling: Option<Scaled>,
    /// What clipping did, when it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) clipping: Option<Clipping>,
    pub(super) totals: Totals,
}

/// What became of the loss scale.
#[derive(Serialize)]
pub(super) struct Scaled {
    pub(super) scale: f32,
    /// Steps that were left out, because a gradient was too large for its type.
    pub(super) skipped_steps: u64,
}

/// What became of the gradients.
#[derive(Serialize)]
pub(super) struct Clipping {
    pub(super) most: f64,
    /// How long those of the last step were before.
    pub(super) last_norm: f64,
    pub(super) clipped_steps: u32,
}

/// How much of the examples that no batch had is right, from 0 to 1.
#[derive(Serialize)]
pub(super) struct Learned {
    pub(super) examples: usize,
    pub(super) before: f64,
    pub(super) after: f64,
}

/// What the simulator says of a step.
#[derive(Serialize)]
pub(super) struct Prediction {
    pub(super) peak_bytes: Bytes,
    pub(super) step_ns: Nanos,
    /// What is alive at the peak, the largest first.
    pub(super) set_by: Vec<String>,
}

/// What the simulator says of a step in so many parts, with a sum of gradients beside them.
pub(super) fn prediction(
    ready: &Ready,
    known: Option<&Known>,
    parts: u64,
    beside: Beside,
) -> Option<Prediction> {
    let (profile, plan) = match ready {
        Ready::Planned(planned, _) => (planned.profile(), planned.plan().clone()),
        Ready::Rule(rule) => {
            let profile = &known?.profile;
            (profile, Plan::by_rule(profile, *rule, None).ok()?)
        }
        Ready::Plain | Ready::Balanced => return None,
    };
    let (_, simulation) = plan.judge(profile).ok()?;
    let most = simulation.peak_tensors.iter().take(3).map(|live| format!("{} ({})", live.what, live.bytes));
    Some(Prediction {
        peak_bytes: beside.with(ready.expected_peak(&plan.predicted, known)),
        step_ns: Nanos::new(plan.predicted.step_ns.get().saturating_mul(parts)),
        set_by: most.collect(),
    })
}

/// A budget is never exceeded: where it was, that is no success.
pub(super) fn over_budget(summary: &Summary, memory: Option<Target>) -> Result<(), Failure> {
    if let Some(Target::Bytes(memory)) = memory
        && summary.totals.all > memory
    {
        return Err(Failure::failed(
            anyhow::anyhow!("training took {} at its peak, but --memory is {memory}", summary.totals.all),
            "give a larger --margin",
        ));
    }
    if let Some(over) = summary.governed.iter().find(|steps| steps.most_bytes > steps.budget_bytes) {
        let Governed { from_step, to_step, budget_bytes, most_bytes } = over;
        return Err(Failure::failed(
            anyhow::anyhow!(
                "a step took {most_bytes} at its peak, but the budget of steps {from_step} to {to_step} was {budget_bytes}"
            ),
            "give a larger --margin",
        ));
    }
    match summary.budget_bytes {
        Some(budget) if summary.most_bytes > budget => Err(Failure::failed(
            anyhow::anyhow!("a step took {} at its peak, but the budget is {budget}", summary.most_bytes),
            "measure again with nothing else running, or give a larger --margin",
        )),
        _ => Ok(()),
    }
}

pub(super) fn show(summary: &Summary) -> Result<(), Failure> {
    let learned = summary.held_out.as_ref().map(|Learned { examples, before, after }| {
        let percent = |part: f64| part * 100.0;
        let (before, after) = (percent(*before), percent(*after));
        format!("{before:.1}% -> {after:.1}% right on {examples} examples that were held out\n")
    });
    report::show(&format!(
        "trained {} of {}\nloss {:.3} -> {:.3}, {:.0} {}/s\n{}",
        counted_steps(u64::from(summary.steps)),
        summary.model,
        summary.first_loss,
        summary.last_loss,
        summary.pace,
        summary.units,
        learned.unwrap_or_default()
    ))?;
    if let Some(Scaled { scale, skipped_steps }) = &summary.scaling {
        report::show(&format!(
            "loss scale {scale} at the end, {} left out\n",
            counted_steps(*skipped_steps)
        ))?;
    }
    if let Some(Clipping { most, last_norm, clipped_steps }) = &summary.clipping {
        report::show(&format!(
            "{} clipped to {most}; the last gradients were {last_norm:.3} long\n",
            counted_steps(u64::from(*clipped_steps))
        ))?;
    }
    let Comparison { identical, tensors, .. } = summary.gradients;
    let plain = [
        "plain".to_owned(),
        summary.plain_peak_bytes.to_string(),
        summary.plain_step_ns.to_string(),
        String::new(),
        String::new(),
    ];
    let ours = [
        summary.strategy.clone(),
        summary.peak_bytes.to_string(),
        summary.step_ns.to_string(),
        report::signed_percent(summary.overhead),
        report::yes_or(identical, tensors),
    ];
    let header = ["strategy", "peak", "step", "overhead", "gradients identical"];
    if summary.strategy == Strategy::Plain.to_string() {
        return report::show(&report::table(header, [plain]));
    }
    report::show(&report::table(header, [plain, ours]))?;
    let saved = summary.plain_peak_bytes.saturating_sub(summary.peak_bytes);
    report::show(&format!(
        "\nsaved {saved} of {} ({}) at the peak of a step\n\
         peak and step: medians of {ROUNDS}; overhead: median of {ROUNDS} pairs of steps, run in turns",
        summary.plain_peak_bytes,
        report::percent_of(saved, summary.plain_peak_bytes)
    ))?;
    show_prediction(summary)?;
    if let Some(transfers) = &summary.transfers {
        report::show(&transfers.to_string())?;
    }
    show_totals(&summary.totals)
}

fn counted_steps(count: u64) -> String {
    report::counted(usize::try_from(count).unwrap_or(usize::MAX), "step")
}

fn show_prediction(summary: &Summary) -> Result<(), Failure> {
    let Some(predicted) = &summary.predicted else { return Ok(()) };
    let off = |found: f64, said: f64| match said > 0.0 {
        true => report::signed_percent(found / said - 1.0),
        false => String::new(),
    };
    let bytes = |bytes: Bytes| bytes.get() as f64;
    let rows = [
        [
            "peak".to_owned(),
            summary.budget_bytes.map_or_else(String::new, |budget| budget.to_string()),
            predicted.peak_bytes.to_string(),
            summary.peak_bytes.to_string(),
            off(bytes(summary.peak_bytes), bytes(predicted.peak_bytes)),
        ],
        [
            "step".to_owned(),
            String::new(),
            predicted.step_ns.to_string(),
            summary.step_ns.to_string(),
            off(summary.step_ns.ratio(predicted.step_ns), 1.0),
        ],
    ];
    report::show(&format!("\n{}", report::table(["", "budget", "predicted", "measured", "off by"], rows)))?;
    report::show(&format!("the peak is set by {}", predicted.set_by.join(", ")))
}

fn show_totals(totals: &Totals) -> Result<(), Failure> {
    let rows = [
        ["weights", &totals.weights.to_string()],
        ["optimizer state", &totals.optimizer_state.to_string()],
        ["activations and gradients of a step, at their peak", &totals.step.to_string()],
        ["scratch memory of threads, and the rest", &totals.other.to_string()],
        ["all of training, at its peak", &totals.all.to_string()],
    ];
    let rows = rows.map(|row| row.map(str::to_owned));
    report::show(&format!("\n{}", report::table(["memory", ""], rows)))
}
