//! What can be asked for.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use rekindle::Policy;
use rekindle::training::{LossScale, Precision};
use rekindle_plan::solvers::{ParseSolverError, Solver};

use crate::amount::{Budget, Fraction, Target};
use crate::cut::{Cut, Cutting};
use crate::device::DeviceArguments;
use crate::estimate::EstimateArguments;
use crate::models::DataArguments;
use crate::places::PlaceArguments;
use crate::ranks::RankArguments;
use crate::sample::SampleArguments;
use crate::saving::SavingArguments;
use crate::size::SizeArguments;
use crate::strategy::Strategy;

/// Gradient checkpointing for Burn: train with a fraction of the activations, with identical gradients.
#[derive(Debug, Parser)]
#[command(
    name = "rekindle",
    version,
    after_help = "\
Examples:
  rekindle                                   train the default model and show what it saved
  rekindle train --data book.txt --steps 500
  rekindle train --model llama --save model.safetensors
  rekindle sample model.safetensors --prompt \"Once \"
  rekindle verify --strategy sqrt --json
  rekindle bench
  rekindle profile -o profile.json
  rekindle plan profile.json --budget 30% -o plan.json
  rekindle frontier profile.json
  rekindle explain profile.json plan.json
  rekindle report --budget 25% -o report.html
  rekindle estimate llama-7b --fit 24GiB"
)]
pub(crate) struct Arguments {
    /// What to do; `train` when nothing is said.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Train a model, then compare with plain training: peak memory, time, gradients
    Train(Box<TrainArguments>),
    /// Write on where a prompt ends, with the weights of a trained language model
    Sample(SampleArguments),
    /// Compare the gradients of a strategy with those of plain training, bit for bit
    Verify(VerifyArguments),
    /// Run every strategy side by side on one model: peak, time, overhead, gradients
    Bench(BenchArguments),
    /// Measure or trace the stages of a model
    Profile(ProfileArguments),
    /// Find the fastest plan of a profile for a budget
    Plan(PlanArguments),
    /// Judge any plan: is it legal, what is its peak, how long does it take
    Simulate(SimulateArguments),
    /// Show the cheapest time for every budget
    Frontier(FrontierArguments),
    /// Tell what a plan keeps, where, why, and what sets its peak
    Explain(ExplainArguments),
    /// Write one HTML page: memory over the step, plan, frontier, predicted against measured
    Report(ReportArguments),
    /// Say what training takes before anything is built: parameters, optimizer, activations; and what fits
    Estimate(EstimateArguments),
}

impl Default for Command {
    fn default() -> Self {
        Self::Train(Box::new(TrainArguments::parse_from(["rekindle"])))
    }
}

#[derive(Debug, Parser)]
#[command(after_help = "\
Examples:
  rekindle train                                   a quarter of what plain training takes
  rekindle train --budget 64MiB --data book.txt --steps 500
  rekindle train --memory 1GiB --layers 24         weights, gradients and optimizer included
  rekindle train --budget 30% --cache plan.json    measure and plan once
  rekindle train --budget 25% --disk 1GiB:/tmp     recompute or move, whichever is cheaper
  rekindle train --adaptive --steps 5000           tighter when memory is short, faster when it is free
  rekindle train --steps 5000 --snapshots run1     and --resume after a crash
  rekindle train --policy selective                recompute attention alone
  rekindle train --save model.safetensors          and `rekindle sample` writes on
  rekindle train --strategy every-2 --json > summary.json
  mpirun -n 4 rekindle train --data-parallel 2 --pipeline 2 --micro-batches 4 --zero 1 --budget 24MiB")]
pub(crate) struct TrainArguments {
    /// What the activations may take: 64MiB, 30% of what plain training takes, auto (what is free) or smallest
    /// [default: 25%]
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, conflicts_with_all = ["memory", "plan", "strategy"])]
    pub(crate) budget: Option<Target>,
    /// What all of training may take: weights, gradients, optimizer state, activations; bytes or auto
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, conflicts_with_all = ["plan", "strategy"])]
    pub(crate) memory: Option<Target>,
    /// A plan from a file: what --cache wrote, or a plan (rekindle.plan/1) with its --profile
    #[arg(long, value_name = "FILE", conflicts_with_all = ["strategy", "cache"])]
    pub(crate) plan: Option<PathBuf>,
    /// The profile that --plan was made from (rekindle.profile/1)
    #[arg(long, value_name = "FILE", requires = "plan")]
    pub(crate) profile: Option<PathBuf>,
    /// Keep the measured stages and the plan in this file, and use them when it is there
    #[arg(long, value_name = "FILE", conflicts_with = "strategy")]
    pub(crate) cache: Option<PathBuf>,
    /// How to train instead: plain, balanced, store-all, full, sqrt, every-K, optimal-BUDGET,
    /// revolve-SLOTS, mixed-SLOTS or online-SLOTS
    #[arg(long, value_name = "NAME")]
    pub(crate) strategy: Option<Strategy>,
    /// Say what is kept, moved and recomputed: full, selective, dots-saveable, offload-inputs, or by names (docs/policies.md)
    #[arg(
        long,
        value_name = "POLICY",
        conflicts_with_all = ["budget", "memory", "plan", "cache", "strategy", "adaptive", "deepspeed"]
    )]
    pub(crate) policy: Option<Policy>,
    /// What a plan leaves free of its budget, as a part of what it takes
    #[arg(long, value_name = "PERCENT", default_value = "2%", conflicts_with = "plan")]
    pub(crate) margin: Fraction,
    /// Have plans for many budgets ready, and take before each step the fastest that the free memory allows; --budget is
    /// then the most
    #[arg(long, conflicts_with_all = ["memory", "plan", "cache", "strategy", "deepspeed"])]
    pub(crate) adaptive: bool,
    /// Train as the activation_checkpointing section of this DeepSpeed configuration says
    #[arg(long, value_name = "FILE", conflicts_with_all = ["budget", "memory", "plan", "cache", "strategy"])]
    pub(crate) deepspeed: Option<PathBuf>,
    /// What a stage of a plan is: a block, a part of one, or whichever has the better plan
    #[arg(long, value_enum, default_value = "auto", value_name = "CUT", conflicts_with_all = ["strategy", "plan"])]
    pub(crate) cut: Cutting,
    /// How many steps to train [default: 60 for most models]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) steps: Option<u32>,
    #[command(flatten)]
    pub(crate) data: DataArguments,
    /// Begin with the weights of this file (safetensors)
    #[arg(long, value_name = "FILE")]
    pub(crate) weights: Option<PathBuf>,
    /// Write the weights to this file in the end (safetensors)
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// What the loss is multiplied by before its backward: a power of two, or auto, which finds one for f16
    #[arg(long, default_value = "auto", value_name = "SCALE", value_parser = scaling)]
    pub(crate) loss_scale: Scaling,
    /// How far each step goes [default: 0.001 for most models]
    #[arg(long, value_name = "RATE", allow_negative_numbers = true)]
    pub(crate) learning_rate: Option<f64>,
    #[command(flatten)]
    pub(crate) places: PlaceArguments,
    #[command(flatten)]
    pub(crate) saving: SavingArguments,
    #[command(flatten)]
    pub(crate) ranks: RankArguments,
    /// Watch the run: loss, memory of each step, time left; q ends it after the step
    #[arg(long)]
    pub(crate) tui: bool,
    /// Take one more step in the end, and write what it did and when to this file (JSON; Perfetto and about:tracing open it)
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) on: DeviceArguments,
    #[command(flatten)]
    pub(crate) size: SizeArguments,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle verify
  rekindle verify --strategy full --layers 6 --json
  rekindle verify --strategy optimal-smallest --compress int8 --steps 500

Exits with 1 when a gradient differs, unless a codec that loses digits was asked for.")]
pub(crate) struct VerifyArguments {
    /// What to compare with plain training: balanced, store-all, full, sqrt, every-K,
    /// optimal-BUDGET, revolve-SLOTS, mixed-SLOTS or online-SLOTS
    #[arg(long, default_value = "every-1", value_name = "NAME")]
    pub(crate) strategy: Strategy,
    /// Compare what this policy comes to, such as selective (docs/policies.md)
    #[arg(long, value_name = "POLICY", conflicts_with_all = ["strategy", "deepspeed"])]
    pub(crate) policy: Option<Policy>,
    /// Compare what the activation_checkpointing section of this DeepSpeed configuration comes to
    #[arg(long, value_name = "FILE", conflicts_with = "strategy")]
    pub(crate) deepspeed: Option<PathBuf>,
    /// What a plan leaves free of its budget, as a part of what it takes
    #[arg(long, value_name = "PERCENT", default_value = "2%")]
    pub(crate) margin: Fraction,
    /// What a stage of a plan is: a block, a part of one, or whichever has the better plan
    #[arg(long, value_enum, default_value = "auto", value_name = "CUT")]
    pub(crate) cut: Cutting,
    /// Train so many steps as well, plain and so, and compare the losses
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) steps: u32,
    #[command(flatten)]
    pub(crate) places: PlaceArguments,
    #[command(flatten)]
    pub(crate) on: DeviceArguments,
    #[command(flatten)]
    pub(crate) size: SizeArguments,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle bench
  rekindle bench --strategies every-1,optimal-64MiB,optimal-10% --layers 8 --rounds 3
  rekindle bench --nodes
  rekindle bench --json > bench.json")]
pub(crate) struct BenchArguments {
    /// What to run; plain always runs, to compare with, and `burn` is plain with Burn's modules alone
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAMES",
        default_value = "plain,burn,balanced,store-all,every-1,every-2,sqrt,optimal-50%,optimal-25%,optimal-smallest"
    )]
    pub(crate) strategies: Vec<Strategy>,
    /// Run also what this policy comes to, such as selective (docs/policies.md); may be given several times
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Vec<Policy>,
    /// Run also what the activation_checkpointing section of this DeepSpeed configuration comes to
    #[arg(long, value_name = "FILE")]
    pub(crate) deepspeed: Option<PathBuf>,
    /// What a plan leaves free of its budget, as a part of what it takes
    #[arg(long, value_name = "PERCENT", default_value = "2%")]
    pub(crate) margin: Fraction,
    /// What a stage of a plan is: a block, a part of one, or whichever has the better plan
    #[arg(long, value_enum, default_value = "auto", value_name = "CUT")]
    pub(crate) cut: Cutting,
    /// How many steps of each to take the median of
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Run each of our nodes beside what Burn does for the same, instead of whole steps
    #[arg(long, conflicts_with_all = ["strategies", "policy", "deepspeed", "cut", "margin", "burn"])]
    pub(crate) nodes: bool,
    #[command(flatten)]
    pub(crate) places: PlaceArguments,
    #[command(flatten)]
    pub(crate) on: DeviceArguments,
    #[command(flatten)]
    pub(crate) size: SizeArguments,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle profile -o profile.json
  rekindle profile --layers 48 --sequence 512 --runs 9 --json
  rekindle profile --trace --width 8192 --heads 64 --layers 80 --sequence 4096 --batch 1
  rekindle profile | head -30")]
pub(crate) struct ProfileArguments {
    /// What a stage of a plan is: a block, or a part of one
    #[arg(long, value_enum, default_value = "parts", value_name = "CUT")]
    pub(crate) cut: Cut,
    /// Run each stage a few times here [default]
    #[arg(long, conflicts_with = "trace")]
    pub(crate) measure: bool,
    /// Run nothing: sizes and times from the operations of each stage
    #[arg(long)]
    pub(crate) trace: bool,
    /// How often each stage runs, at least three times; the median counts
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000), conflicts_with = "trace")]
    pub(crate) runs: u16,
    #[command(flatten)]
    pub(crate) places: PlaceArguments,
    #[command(flatten)]
    pub(crate) size: SizeArguments,
    /// Write the profile to a file (rekindle.profile/1)
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print the profile as JSON, with how far apart its times lay
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Solvers: optimal, revolve, mixed, online, multi-level, disk-revolve, eager, and the rules store-all, full, sqrt, every-K;
for graphs optimal, store-all, min-cut, knapsack. `rekindle plan --solver` says what each finds.

Examples:
  rekindle plan profile.json --budget 2GiB
  rekindle plan profile.json --budget 30% --margin 5% -o plan.json
  rekindle plan profile.json --solver revolve --slots 10 --json

Exits with 2 when no plan fits, and says the smallest budget that has one.")]
pub(crate) struct PlanArguments {
    /// The profile (rekindle.profile/1), or a graph (rekindle.graph/1)
    pub(crate) profile: Option<PathBuf>,
    /// The most bytes the plan may take at its worst moment: 2GiB, 64MiB, or 30% of what store-all takes
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    pub(crate) budget: Option<Budget>,
    /// How many boundaries may be kept at once, for solvers that count slots
    #[arg(long, value_name = "N")]
    pub(crate) slots: Option<u32>,
    /// Who finds the plan; without a name, lists the solvers
    #[arg(
        long,
        value_name = "NAME",
        default_value = "optimal",
        num_args = 0..=1,
        default_missing_value = "list",
        value_parser = solver
    )]
    pub(crate) solver: Named,
    /// Take what this policy says instead, such as `selective` or `recompute-all, keep block.*.attention`
    #[arg(long, value_name = "POLICY", conflicts_with_all = ["solver", "slots", "margin", "gap", "time_limit"])]
    pub(crate) policy: Option<Policy>,
    /// Share the stages out among so many ranks, and plan each for the budget, one forward, one backward
    #[arg(long, value_name = "RANKS", conflicts_with_all = ["policy", "slots"], value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pipeline: Option<u32>,
    /// How many micro-batches go through a pipeline in a step [default: as many as ranks]
    #[arg(long, value_name = "N", requires = "pipeline", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) micro_batches: Option<u32>,
    /// Leave room for everything to be this much larger than the profile says
    #[arg(long, value_name = "PERCENT", default_value = "0%")]
    pub(crate) margin: Fraction,
    /// Stop when the plan is proven to be this close to the fastest
    #[arg(long, value_name = "PERCENT", default_value = "1%")]
    pub(crate) gap: Fraction,
    /// Stop looking for a better plan after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) time_limit: u32,
    /// Write the plan to a file
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print the plan as JSON (rekindle.plan/1, or rekindle.graph-plan/1)
    #[arg(long)]
    pub(crate) json: bool,
}

/// How losses are scaled.
#[derive(Clone, Debug)]
pub(crate) enum Scaling {
    /// As the precision asks for.
    Auto,
    Fixed(LossScale),
}

impl Scaling {
    pub(crate) fn of(&self, precision: Precision) -> LossScale {
        match (self, precision) {
            (Self::Fixed(scale), _) => scale.clone(),
            (Self::Auto, Precision::F16) => LossScale::dynamic(),
            (Self::Auto, Precision::F32 | Precision::Bf16) => LossScale::none(),
        }
    }
}

fn scaling(text: &str) -> Result<Scaling, String> {
    if text == "auto" {
        return Ok(Scaling::Auto);
    }
    let number = text.parse().map_err(|_| format!("`{text}` is neither auto nor a number"))?;
    LossScale::fixed(number).map(Scaling::Fixed).map_err(|error| error.to_string())
}

/// A solver, or the wish to see them all.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Named {
    Solver(Solver),
    /// The planner of graphs, by its own name.
    Graph,
    MinCut,
    Knapsack,
    List,
}

fn solver(text: &str) -> Result<Named, ParseSolverError> {
    match text {
        "list" => Ok(Named::List),
        "graph" => Ok(Named::Graph),
        "min-cut" => Ok(Named::MinCut),
        "knapsack" => Ok(Named::Knapsack),
        name => name.parse().map(Named::Solver),
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle frontier profile.json
  rekindle frontier profile.json --json > frontier.json
  rekindle frontier profile.json --budget 30% -o plan.json

A plan is at least as fast as the last point within its budget. `rekindle plan` looks at its
budget alone, which is sooner done, and stops at a plan that may be slower by the gap it states.")]
pub(crate) struct FrontierArguments {
    /// The profile (rekindle.profile/1)
    pub(crate) profile: PathBuf,
    /// Show the plan at this budget as well: 2GiB, 64MiB, or 30% of what store-all takes
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    pub(crate) budget: Option<Budget>,
    /// Write the plan at the budget to a file
    #[arg(short, long, value_name = "FILE", requires = "budget")]
    pub(crate) output: Option<PathBuf>,
    /// Stop refining after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub(crate) time_limit: u32,
    /// Print every point as JSON; with --budget the plan (rekindle.plan/1)
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  rekindle explain profile.json plan.json

Exits with 1 when the plan is not legal, not for this profile, or over its budget.")]
pub(crate) struct ExplainArguments {
    /// The profile (rekindle.profile/1)
    pub(crate) profile: PathBuf,
    /// The plan (rekindle.plan/1)
    pub(crate) plan: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  rekindle simulate profile.json plan.json --json

Exits with 1 when the plan is not legal, not for this profile, or over its budget.")]
pub(crate) struct SimulateArguments {
    /// The profile (rekindle.profile/1), or a graph (rekindle.graph/1)
    pub(crate) profile: PathBuf,
    /// The plan to judge (rekindle.plan/1, or rekindle.graph-plan/1)
    pub(crate) plan: PathBuf,
    /// Print the result as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  rekindle report --budget 25% -o report.html          measure, plan and run the default model
  rekindle report plan.json                            what `rekindle train --cache plan.json` kept
  rekindle report profile.json --plan plan.json --svg

A page from files shows what is predicted; a page of a run shows what was measured as well.")]
pub(crate) struct ReportArguments {
    /// What `rekindle train --cache` wrote, or a profile together with --plan; a model is measured without it
    #[arg(conflicts_with_all = ["SizeArguments", "PlaceArguments"])]
    pub(crate) file: Option<PathBuf>,
    /// The plan that belongs to the profile (rekindle.plan/1)
    #[arg(long, value_name = "FILE", requires = "file")]
    pub(crate) plan: Option<PathBuf>,
    /// What a stage of a plan is: a block, a part of one, or whichever has the better plan
    #[arg(long, value_enum, default_value = "auto", value_name = "CUT", conflicts_with = "file")]
    pub(crate) cut: Cutting,
    /// What its activations may take: 64MiB, 30% of what plain training takes, auto or smallest [default: 25%]
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, conflicts_with = "file")]
    pub(crate) budget: Option<Target>,
    /// What a plan leaves free of its budget, as a part of what it takes
    #[arg(long, value_name = "PERCENT", default_value = "2%", conflicts_with = "file")]
    pub(crate) margin: Fraction,
    #[command(flatten)]
    pub(crate) places: PlaceArguments,
    #[command(flatten)]
    pub(crate) size: SizeArguments,
    /// Where the page goes
    #[arg(short, long, value_name = "FILE", default_value = "report.html")]
    pub(crate) output: PathBuf,
    /// Write each figure as an SVG file beside the page, for papers
    #[arg(long)]
    pub(crate) svg: bool,
}
