//! Training on one of several ranks.

use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::optim::AdamConfig;
use burn::tensor::Device;
use rekindle::Bytes;
use rekindle::training::Precision;
use rekindle_dist::{Collective, DataParallel, Mpi, Partitioned, Patience, Reduction, Zero, ZeroStage};
use rekindle_models::{Batch, ConfigError, Trainable};

use super::beside::Beside;
use super::grid::{Grid, Shape};
use super::log::Log;
use super::parts::Parts;
use super::plans::{Decided, decide};
use super::run::{Run, Stepped, Taken};
use super::snapshots::Saving;
use super::state::WholeModel;
use super::summary::{RankSummary, Summary};
use super::together::together;
use super::{RankArguments, Summing};
use crate::amount::Target;
use crate::arguments::{Scaling, TrainArguments};
use crate::cut::Cutting;
use crate::data::Data;
use crate::failure::Failure;
use crate::measure::{self, build, median};
use crate::models::{BatchOf, Job, Kind, with_model};
use crate::progress::{Progress, Rate};
use crate::size::Size;
use crate::strategy::Strategy;
use crate::train::{identity, learning_rate, strategy};
use crate::view::Limit;
use crate::{files, report};

/// A rank that sleeps for so long while the others wait for it is lost: all it ever waits for are disks.
const ASLEEP: Duration = Duration::from_secs(8);
/// One whose process is stopped is lost sooner: those that find it have to be ended as well, which takes some seconds.
const STOPPED: Duration = Duration::from_secs(5);

/// The longest that measuring, planning, a snapshot, or a first step that no plan is for take.
const ANYTHING: Duration = Duration::from_secs(600);
/// A step that takes so many times as long as the slowest before it, or as the plan says, does not end any more; unless that is less than [`ASLEEP`], which a
/// machine may be busy with something else for.
const LONGER: u32 = 20;

/// Runs the command on this rank.
pub(crate) fn train(arguments: &TrainArguments, size: &Size) -> Result<(), Failure> {
    let computing =
        arguments.ranks.patience.map_or(ANYTHING, |seconds| Duration::from_secs(u64::from(seconds)));
    let world = Mpi::start(Patience {
        computing: Some(computing),
        asleep: Some(computing.min(ASLEEP)),
        stopped: Some(computing.min(STOPPED)),
        // A rank that computes for ever is told of before the others, who wait for it.
        waiting: Some(computing * 2),
    })?;
    let checked = check(arguments, size).and_then(|()| Shape::new(&arguments.ranks, world.size()));
    let shape = together(&world, checked)?;
    let settings = format!("{arguments:#?}\n{size:#?}");
    together(&world, same_on_all(&world.all_gather(settings.into_bytes())?))?;
    let ran = with_model(size, &arguments.data, OnRank { arguments, size, world: &world, shape });
    // One that has no model to train, because its data cannot be read, is with those that ask whether all have.
    ran.or_else(|failure| if failure.is_told() { Err(failure) } else { together(&world, Err(failure)) })
}

/// Fails where ranks were started differently: they would train something that nobody asked for, or wait for each other for ever.
fn same_on_all(settings: &[Vec<u8>]) -> Result<(), Failure> {
    let lines = |own: &[u8]| -> Vec<String> {
        // Each rank may write its log where it likes.
        let text = String::from_utf8_lossy(own);
        let compared = text.lines().filter(|line| !line.trim_start().starts_with("rank_logs"));
        compared.map(|line| line.trim().trim_end_matches(',').to_owned()).collect()
    };
    let Some((first, others)) = settings.split_first() else { return Ok(()) };
    let first = lines(first);
    for (rank, other) in (1..).zip(others) {
        let other = lines(other);
        let longest = first.len().max(other.len());
        let at = |lines: &[String], line: usize| lines.get(line).cloned().unwrap_or_default();
        let found = (0..longest).map(|line| (at(&first, line), at(&other, line))).find(|(a, b)| a != b);
        if let Some((first, other)) = found {
            return Err(Failure::request(
                anyhow::anyhow!(
                    "ranks were started with different settings: `{first}` on rank 0, `{other}` on rank {rank}"
                ),
                "start all of them with the same flags, and the same rekindle.toml in their folders",
            ));
        }
    }
    Ok(())
}

/// What ranks do not do, and why.
fn check(arguments: &TrainArguments, size: &Size) -> Result<(), Failure> {
    let pipeline = arguments.ranks.pipeline.is_some_and(|ranks| ranks > 1);
    let refused = [
        (arguments.tui, "--tui", "its screen is one process's; each rank's log is in --rank-logs"),
        (
            matches!(strategy(arguments), Strategy::Optimal(Target::Free)),
            "--budget auto",
            "ranks of one machine share what it has free; give each its bytes",
        ),
        (arguments.trace.is_some(), "--trace", "a trace is of one process; leave it out"),
        (arguments.adaptive, "--adaptive", "all ranks have to run the same plan; give --budget"),
        (arguments.plan.is_some(), "--plan", "a plan for ranks is made by the first of them; give --budget"),
        (
            arguments.cache.is_some(),
            "--cache",
            "a plan for ranks is made by the first of them; give --budget",
        ),
        (
            arguments.memory.is_some(),
            "--memory",
            "what a rank holds beside its activations is told in the end; give --budget",
        ),
        (size.clip_norm.is_some(), "--clip-norm", "no rank has the length of all gradients"),
        (
            size.precision == Precision::F16 || !matches!(arguments.loss_scale, Scaling::Auto),
            "a loss scale",
            "ranks would have to agree on it; --precision bf16 needs none",
        ),
        (
            pipeline && arguments.places.any(),
            "a place such as --disk",
            "a pipeline keeps and recomputes; leave it out",
        ),
        (
            pipeline && arguments.cut == Cutting::Parts,
            "--cut parts in a pipeline",
            "ranks of a pipeline have whole blocks; leave it out",
        ),
        (
            pipeline && arguments.ranks.partition_checkpoints && arguments.ranks.tensor_parallel.is_some(),
            "--partition-checkpoints in a pipeline of --tensor-parallel",
            "a pipeline keeps and recomputes; leave one of them out",
        ),
    ];
    match refused.into_iter().find(|(asked, _, _)| *asked) {
        Some((_, what, why)) => {
            Err(Failure::request(anyhow::anyhow!("{what} is not for several ranks"), why))
        }
        None => Ok(()),
    }
}

/// What to try when ranks cannot have parts of a model's layers.
fn not_split(error: ConfigError) -> Failure {
    let hint = match &error {
        ConfigError::Split { what, .. } => {
            format!("give a --tensor-parallel that divides the {what}, or another number of these")
        }
        ConfigError::NotSplit => {
            "leave --tensor-parallel out; --data-parallel and --pipeline are for every model".to_owned()
        }
        _ => "leave --tensor-parallel out".to_owned(),
    };
    Failure::request(error, hint)
}

impl RankArguments {
    /// How gradients are added up.
    fn how(&self) -> Reduction {
        match self.reduction {
            Some(Summing::Native) => Reduction::Native,
            Some(Summing::Ordered) | None => Reduction::Ordered,
        }
    }

    /// What is shared out.
    pub(super) fn stage(&self) -> ZeroStage {
        match self.zero {
            None | Some(0) => ZeroStage::Off,
            Some(1) => ZeroStage::One,
            Some(_) => ZeroStage::Two,
        }
    }
}

struct OnRank<'a> {
    arguments: &'a TrainArguments,
    size: &'a Size,
    world: &'a Mpi,
    shape: Shape,
}

impl Job for OnRank<'_> {
    type Made = ();

    fn run<K: Kind>(self, kind: &K) -> Result<(), Failure> {
        let world = self.world;
        let prepared = Prepared::new(&self, kind);
        let prepared = together(world, prepared)?;
        // From here on ranks wait for each other: one that cannot go on by itself ends the run.
        prepared.train(&self, kind).or_else(|failure| match failure.is_told() {
            true => Err(failure),
            false => world.abort(&failure.to_string()),
        })
    }
}

/// Everything that a rank can have before it knows what the others do.
struct Prepared<M> {
    log: Log,
    model: M,
    device: Device,
    rate: f64,
    steps: u32,
}

impl<M: Trainable> Prepared<M> {
    fn new<K: Kind<Model = M>>(on: &OnRank<'_>, kind: &K) -> Result<Self, Failure> {
        let OnRank { arguments, size, world, shape } = on;
        let parts = shape.replicas * size.micro_batches;
        if !size.batch.is_multiple_of(parts) {
            return Err(Failure::request(
                anyhow::anyhow!(
                    "a batch of {} cannot be shared out evenly: {} replicas have {} micro-batches each",
                    size.batch,
                    shape.replicas,
                    size.micro_batches
                ),
                format!("give --batch {}", size.batch.div_ceil(parts) * parts),
            ));
        }
        let device = crate::device::cpu();
        let mut model = build(kind, &device, size.seed)?;
        if let Some(path) = &arguments.weights {
            crate::failure::refuse_device(path)?;
            model = kind.load(path, model, &device)?;
        }
        let sample = kind.blank(2, &device);
        if model.couple(&sample.split(2))?.is_some() {
            return Err(Failure::request(
                anyhow::anyhow!("the loss of this model is of a whole batch, not a mean over its parts"),
                "train it on one rank: leave the flags of ranks out",
            ));
        }
        if let (Some(path), 0) = (&arguments.save, world.rank()) {
            files::check_apart("--save", path, arguments.data.data.as_deref())?;
            files::check_writable(path)?;
        }
        Ok(Self {
            log: Log::open(&arguments.ranks.rank_logs, world.rank())?,
            model,
            device,
            rate: learning_rate(arguments, size)?,
            steps: arguments.steps.unwrap_or(size.model.usual_steps()),
        })
    }

    fn train<K: Kind<Model = M>>(self, on: &OnRank<'_>, kind: &K) -> Result<(), Failure> {
        let Self { mut log, model, device, rate, steps } = self;
        let OnRank { arguments, size, world, shape } = *on;
        let grid = Grid::new(world, shape)?;
        log.say(&grid.describe(world));
        let whole = WholeModel::of(&model)?;
        let model = match grid.peers(arguments.ranks.how()) {
            Some(peers) => together(world, model.split(&peers).map_err(not_split))?,
            None => model,
        };
        let (described, strategy) = (size.describe(kind), strategy(arguments));
        if world.rank() == 0 {
            if arguments.ranks.partition_checkpoints && shape.peers == 1 {
                tell!(
                    "--partition-checkpoints: no two ranks have the same boundaries here, so there is nothing to share out"
                );
            }
            if arguments.ranks.stage() != ZeroStage::Off && shape.replicas == 1 {
                tell!("--zero: there is one replica, so there is nothing to share out");
            }
            let ranks = report::counted(world.size(), "rank");
            tell!("training {described} with `{strategy}` on {ranks}");
        }
        let mut data = kind.data().seeded(size.seed);
        let sample = own_parts::<K>(&mut data.clone(), &grid, size, &device);
        let mut places = arguments.places.open()?;
        if arguments.ranks.partition_checkpoints && shape.peers > 1 {
            places = Partitioned::place(places, Arc::clone(&grid.peers));
        }
        let beside = Beside::new(&grid, &arguments.ranks, size.micro_batches, &model)?;
        let decided =
            decide(world, &grid, (&strategy, arguments, size), (&model, beside), sample.part(), &places)?;
        let planned = decided.step_time(size.micro_batches);
        let Decided { way, foretold } = decided;
        let (parts, model) = Parts::share_out(world, &grid, &way, (&whole, model), sample.part())?;

        let parallel = DataParallel::new(grid.same_stages.as_ref(), &model)?.reduction(arguments.ranks.how());
        let optimizer = Zero::new(parallel, arguments.ranks.stage(), AdamConfig::new().build(), &model)?;
        let (grid, device) = (&grid, &device);
        let mut run =
            Run { world, grid, size, device, model, way, optimizer, parts, taken: Taken::default() };
        let of_run = identity(arguments, &size.in_parts(1).describe(kind), size.seed, rate, data.checksum());
        let mut saving = Saving::open(world, &arguments.saving, of_run)?;
        let mut first = 0;
        if arguments.saving.resume {
            let (known, steps_done, position) = saving.newest(world)?;
            run = run.resume(known)?;
            (first, data) = (steps_done, data.at(position));
            log.say(&format!("going on after step {first}"));
        }
        if first >= steps {
            let failure = Failure::request(
                anyhow::anyhow!("the run is through: {first} of {steps} steps are done"),
                format!("give more --steps than {first}"),
            );
            return together(world, Err(failure));
        }

        let pace = Rate { units: K::UNITS, per_step: size.batch * kind.units() };
        let progress = match world.rank() {
            0 => {
                let nothing = || Ok(Limit { name: "the budget", bytes: Bytes::ZERO });
                Some(Progress::start(false, steps, described.clone(), pace, strategy.to_string(), nothing)?)
            }
            _ => None,
        };
        let start = Instant::now();
        let mut losses = Vec::new();
        // Before there is one, a plan says how long it takes.
        let mut slowest = planned;
        for number in first..steps {
            let batch = own_parts::<K>(&mut data, grid, size, device);
            // Whoever says how long knows better.
            let known = slowest.filter(|_| arguments.ranks.patience.is_none());
            let within = known.map(|slowest| world.within(longest(slowest)));
            let stepped;
            (run, stepped) = run.step(&batch, size.seed.wrapping_add(u64::from(number)), rate)?;
            drop(within);
            let Stepped { loss, peak, computing, took } = stepped;
            slowest = slowest.max(Some(took));
            log.say(&format!(
                "step {} loss {loss} peak {peak} computed {:.1} ms of {:.1} ms",
                number + 1,
                computing.as_secs_f64() * 1e3,
                took.as_secs_f64() * 1e3
            ));
            losses.push(loss);
            if let Some(progress) = &progress {
                progress.ran(loss);
            }
            if !loss.is_finite() {
                let failure = Failure::failed(
                    anyhow::anyhow!("the loss is {loss} after {} steps", number + 1),
                    format!("try a smaller --learning-rate than {rate}"),
                );
                return together(world, Err(failure));
            }
            let last = number + 1 == steps;
            if saving.is_due(number + 1, last) {
                match saving.write(number + 1, run.whole()?, data.position()) {
                    // A full disk may have room again at the next one; the older ones are there.
                    Err(failure) if !last => {
                        progress.iter().for_each(|shown| shown.tell(&failure.to_string()))
                    }
                    written => written?,
                }
            }
        }
        if let Some(progress) = progress {
            progress.end(false);
        }
        if let Some(path) = &arguments.save {
            run.save(kind, path)?;
        }
        let seconds = start.elapsed().as_secs_f64();
        let own = run.summary(beside)?;
        log.say(&format!("done: {} of {} at the peak of a step", own.peak_bytes, own.most_bytes));
        let count = losses.len() as u32;
        let summary = Summary {
            model: described,
            strategy: strategy.to_string(),
            steps: count,
            first_loss: losses.first().copied().unwrap_or_default(),
            last_loss: median(&losses[losses.len().saturating_sub(5)..]).unwrap_or_default(),
            examples_per_second: f64::from(count) * size.batch as f64 / seconds,
            data_parallel: shape.replicas,
            pipeline: shape.stages,
            tensor_parallel: shape.peers,
            micro_batches: size.micro_batches,
            zero: arguments.ranks.zero.unwrap_or(0),
            reduction: arguments.ranks.how().to_string(),
            foretold,
            ranks: RankSummary::of_all(world, &own)?,
            pace: pace.after(u64::from(count), seconds),
            units: K::UNITS,
            in_parts: arguments.ranks.partition_checkpoints && shape.peers > 1,
        };
        if world.rank() == 0 {
            match arguments.json {
                true => report::show_json(&summary)?,
                false => summary.show()?,
            }
        }
        together(world, summary.check())
    }
}

/// The longest that a step may take, after the slowest until then or what was planned.
fn longest(slowest: Duration) -> Duration {
    slowest.saturating_mul(LONGER).max(ASLEEP)
}

/// The next batch's parts that are this replica's. All replicas draw the same batch.
fn own_parts<K: Kind>(
    data: &mut Data<K::Source>,
    grid: &Grid,
    size: &Size,
    device: &Device,
) -> measure::Parts<BatchOf<K::Model>> {
    let mut all = data.batch(&size.in_parts(grid.shape.replicas * size.micro_batches), device);
    all.keep(grid.replica * size.micro_batches, size.micro_batches)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{longest, same_on_all};

    #[test]
    fn steps_may_take_twenty_times_as_long_as_before_and_eight_seconds_in_any_case() {
        assert_eq!(longest(Duration::from_millis(20)), Duration::from_secs(8));
        assert_eq!(longest(Duration::from_secs(3)), Duration::from_secs(60));
        assert_eq!(longest(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn ranks_that_were_started_differently_are_told_by_what_differs() {
        let of = |steps: u32, logs: &str| {
            format!("Train {{\n    steps: {steps},\n    rank_logs: {logs:?},\n}}").into_bytes()
        };
        assert!(same_on_all(&[]).is_ok());
        assert!(same_on_all(&[of(3, "a"), of(3, "b"), of(3, "c")]).is_ok());
        let error = same_on_all(&[of(3, "a"), of(3, "a"), of(5, "a")]).map_err(|error| error.to_string());
        let words = "`steps: 3` on rank 0, `steps: 5` on rank 2";
        assert!(error.as_ref().is_err_and(|error| error.contains(words)), "{error:?}");
    }
}
