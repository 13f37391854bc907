//! `rekindle plan --pipeline`: a plan for each rank, and how a step goes, without any rank.

use rekindle_plan::pipeline::{self, PipelineError, RankPlan, Simulated, Span, Work};
use rekindle_plan::{Bytes, Nanos, Profile, Request, Rule};
use serde::Serialize;

use crate::amount::{Budget, Target};
use crate::arguments::{Named, PlanArguments};
use crate::failure::Failure;
use crate::strategy::Strategy;
use crate::{files, report};
use rekindle_plan::solvers::Solver;

/// How many characters a step is drawn with.
const WIDTH: usize = 96;
/// How many ranks are shown; of more, the first and the last.
const SHOWN: usize = 16;

/// A plan for each rank of a pipeline, and the budget if there is one, of which something `beside` is left free.
pub(crate) fn plans(
    profile: &Profile,
    stages: usize,
    micro_batches: usize,
    strategy: &Strategy,
    (margin, beside): (f64, Bytes),
) -> Result<(Vec<RankPlan>, Option<Bytes>), Failure> {
    let refuse = |error| refused(error, None, beside);
    let by_rule =
        |rule: Rule| Ok((pipeline::by_rule(profile, stages, micro_batches, rule).map_err(refuse)?, None));
    let budget = match strategy {
        Strategy::Plain => return by_rule(Rule::StoreAll),
        Strategy::Rule(rule) => return by_rule(*rule),
        Strategy::Optimal(Target::Bytes(bytes)) => *bytes,
        Strategy::Optimal(Target::Part(part)) => {
            let all = pipeline::by_rule(profile, stages, micro_batches, Rule::StoreAll).map_err(refuse)?;
            let most = all.iter().map(|rank| rank.peak_bytes.get()).max().unwrap_or(0);
            Bytes::new(((most + beside.get()) as f64 * part.0) as u64)
        }
        Strategy::Burn
        | Strategy::Balanced
        | Strategy::Policy(_)
        | Strategy::Slots(..)
        | Strategy::Optimal(_) => {
            return Err(Failure::request(
                anyhow::anyhow!("`{strategy}` is not for a pipeline"),
                "give --budget in bytes or percent, or --strategy store-all, every-K, sqrt or full",
            ));
        }
    };
    let request = Request::new(budget.saturating_sub(beside)).margin(margin);
    Ok((
        pipeline::plan(profile, stages, micro_batches, &request)
            .map_err(|error| refused(error, Some(budget), beside))?,
        Some(budget),
    ))
}

pub(crate) fn simulated(plans: &[RankPlan], micro_batches: usize) -> Result<Simulated, Failure> {
    let costs: Vec<_> = plans.iter().map(|rank| rank.cost).collect();
    pipeline::simulate(&costs, micro_batches).map_err(|error| refused(error, None, Bytes::ZERO))
}

/// What to try when there is no pipeline. Sizes are those that were asked for and would have to be: with what is left free beside
/// the plans.
fn refused(error: PipelineError, budget: Option<Bytes>, beside: Bytes) -> Failure {
    let error = match (error, budget) {
        (PipelineError::BudgetTooSmall { rank, in_flight, enough_bytes, .. }, Some(budget_bytes)) => {
            let enough_bytes = Bytes::new(enough_bytes.get().saturating_add(beside.get()));
            PipelineError::BudgetTooSmall { rank, budget_bytes, in_flight, enough_bytes }
        }
        (error, _) => error,
    };
    let hint = match &error {
        PipelineError::BudgetTooSmall { enough_bytes, .. } => {
            format!("give --budget {} or more", enough_bytes.get())
        }
        PipelineError::TooFewStages { stages, .. } => {
            format!("give --pipeline {stages} or less, or more --layers")
        }
        _ => "give a smaller --pipeline".to_owned(),
    };
    Failure::request(error, hint)
}

/// Runs `rekindle plan --pipeline`.
pub(crate) fn run(arguments: &PlanArguments, profile: &Profile, ranks: usize) -> Result<(), Failure> {
    let micro_batches = arguments.micro_batches.map_or(ranks, |micro_batches| micro_batches as usize);
    let strategy = match (&arguments.solver, arguments.budget) {
        (Named::Solver(Solver::Rule(rule)), None) => Strategy::Rule(*rule),
        (Named::Solver(Solver::Optimal), Some(Budget::Bytes(bytes))) => {
            Strategy::Optimal(Target::Bytes(bytes))
        }
        (Named::Solver(Solver::Optimal), Some(Budget::Part(part))) => Strategy::Optimal(Target::Part(part)),
        (Named::Solver(Solver::Optimal), None) => {
            let error = anyhow::anyhow!("a rank's budget is not given");
            return Err(Failure::request(
                error,
                "give --budget, such as --budget 2GiB, or --solver store-all",
            ));
        }
        _ => {
            let error = anyhow::anyhow!(
                "ranks of a pipeline are planned by `optimal` for a budget, or by a rule without one"
            );
            return Err(Failure::request(
                error,
                "leave --solver out, or leave --budget out and give a rule such as every-1",
            ));
        }
    };
    let waiting = report::spinner(&format!("planning {ranks} ranks"));
    let found = plans(profile, ranks, micro_batches, &strategy, (arguments.margin.0, Bytes::ZERO));
    waiting.finish_and_clear();
    let (plans, budget) = found?;
    let step = simulated(&plans, micro_batches)?;
    if let Some(path) = &arguments.output {
        for (rank, planned) in plans.iter().enumerate() {
            let path = path.with_extension(format!("rank-{rank}.json"));
            files::write(&path, &format!("{}\n", planned.plan.to_json()))?;
            tell!("wrote {}", path.display());
        }
    }
    match arguments.json {
        true => report::show_json(&Answer::of(&plans, &step, micro_batches, budget)),
        false => show(profile, &plans, &step, micro_batches, budget),
    }
}

/// The answer for programs.
#[derive(Serialize)]
struct Answer<'a> {
    ranks: Vec<AnsweredRank<'a>>,
    micro_batches: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_bytes: Option<Bytes>,
    step_ns: Nanos,
    /// The part of their time in which ranks wait.
    waiting: f64,
    /// The same if all took as long: (P-1)/(m+P-1).
    waiting_of_equal_ranks: f64,
}

#[derive(Serialize)]
struct AnsweredRank<'a> {
    rank: usize,
    first_stage: usize,
    last_stage: usize,
    in_flight: usize,
    waiting_bytes: Bytes,
    summed_bytes: Bytes,
    peak_bytes: Bytes,
    forward_ns: Nanos,
    backward_ns: Nanos,
    plan: &'a rekindle_plan::Plan,
    /// What it does when: forward or backward, of which micro-batch, from when to when.
    timeline: Vec<(&'static str, usize, Nanos, Nanos)>,
}

impl<'a> Answer<'a> {
    fn of(plans: &'a [RankPlan], step: &Simulated, micro_batches: usize, budget: Option<Bytes>) -> Self {
        let ranks = plans.iter().zip(&step.spans).enumerate().map(|(rank, (planned, spans))| AnsweredRank {
            rank,
            first_stage: planned.stages.start + 1,
            last_stage: planned.stages.end,
            in_flight: planned.in_flight,
            waiting_bytes: planned.waiting_bytes,
            summed_bytes: planned.summed_bytes,
            peak_bytes: planned.peak_bytes,
            forward_ns: planned.cost.forward,
            backward_ns: planned.cost.backward,
            plan: &planned.plan,
            timeline: spans.iter().map(entry).collect(),
        });
        Self {
            ranks: ranks.collect(),
            micro_batches,
            budget_bytes: budget,
            step_ns: step.step,
            waiting: step.bubble,
            waiting_of_equal_ranks: of_equal_ranks(plans.len(), micro_batches),
        }
    }
}

fn entry(span: &Span) -> (&'static str, usize, Nanos, Nanos) {
    match span.work {
        Work::Forward(number) => ("forward", number, span.start, span.end),
        Work::Backward(number) => ("backward", number, span.start, span.end),
    }
}

fn of_equal_ranks(ranks: usize, micro_batches: usize) -> f64 {
    (ranks - 1) as f64 / (micro_batches + ranks - 1) as f64
}

fn show(
    profile: &Profile,
    plans: &[RankPlan],
    step: &Simulated,
    micro_batches: usize,
    budget: Option<Bytes>,
) -> Result<(), Failure> {
    let shown = |rank: usize| rank < SHOWN / 2 || rank + SHOWN / 2 >= plans.len();
    let rows = plans.iter().enumerate().filter(|(rank, _)| shown(*rank)).map(|(rank, planned)| {
        let stages = planned.stages.clone();
        [
            rank.to_string(),
            format!("{}-{}", stages.start + 1, stages.end),
            planned.in_flight.to_string(),
            planned.waiting_bytes.to_string(),
            planned.peak_bytes.to_string(),
            planned.cost.forward.to_string(),
            planned.cost.backward.to_string(),
            planned.plan.predicted.recompute_ns.to_string(),
            planned.plan.status.to_string(),
        ]
    });
    let header = [
        "rank",
        "stages",
        "in flight",
        "each waits with",
        "peak",
        "forward",
        "backward",
        "of it recomputing",
        "plan",
    ];
    let budget = budget.map(|budget| format!(", {budget} each")).unwrap_or_default();
    report::show(&format!(
        "{} on {} with {}{budget}",
        profile.model(),
        report::counted(plans.len(), "rank"),
        match micro_batches {
            1 => "one micro-batch".to_owned(),
            more => format!("{more} micro-batches"),
        }
    ))?;
    report::show(&report::table(header, rows))?;
    if plans.len() > SHOWN {
        report::show(&format!("{} ranks between them are not shown; --json has all", plans.len() - SHOWN))?;
    }
    report::show(&format!(
        "\na step takes {}; ranks wait {:.1}% of it ({:.1}% if all took as long)",
        step.step,
        100.0 * step.bubble,
        100.0 * of_equal_ranks(plans.len(), micro_batches)
    ))?;
    if plans.len() <= SHOWN {
        let lines: Vec<String> = step
            .spans
            .iter()
            .enumerate()
            .map(|(rank, spans)| format!("{rank:>4} {}", line(spans, step.step)))
            .collect();
        report::show(&format!(
            "\n{}\nforward: the micro-batch's number; backward: its letter",
            lines.join("\n")
        ))?;
    }
    Ok(())
}

/// What a rank does over a step, drawn with characters: the last digit of the micro-batch that goes forth, the letter of the one that
/// comes back, a point where it waits.
fn line(spans: &[Span], step: Nanos) -> String {
    let mut drawn = vec!['.'; WIDTH];
    let at = |time: Nanos| (time.ratio(step) * WIDTH as f64).round() as usize;
    for span in spans {
        let mark = match span.work {
            Work::Forward(number) => char::from(b'0' + (number % 10) as u8),
            Work::Backward(number) => char::from(b'a' + (number % 10) as u8),
        };
        let (start, end) = (at(span.start).min(WIDTH), at(span.end).min(WIDTH));
        drawn[start..end].fill(mark);
    }
    drawn.into_iter().collect()
}
