//! Training on one of several ranks.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::optim::{Adam, AdamConfig};
use burn::tensor::{Device, Tensor};
use rekindle::training::{LossScale, Precision};
use rekindle::{Bytes, Carried, Staged, memory};
use rekindle_dist::pipeline::{Made, train_step};
use rekindle_dist::{Collective, DataParallel, Layout, Mpi, Reduction, Zero, ZeroStage};
use rekindle_models::{Batch, Trainable};
use rekindle_run::snapshots::{Metadata, Section as Part, Snapshots};

use super::Summing;
use super::grid::Grid;
use super::log::Log;
use super::plans::{Decided, Way, decide};
use super::state::{Sections, Statistics, Whole};
use super::summary::{RankSummary, Summary};
use super::together::together;
use crate::arguments::{Scaling, TrainArguments};
use crate::cut::Cut;
use crate::failure::Failure;
use crate::measure::{Recipe, build, median, part_seed, step};
use crate::models::{Job, Kind, with_model};
use crate::progress::{Progress, Rate};
use crate::size::Size;
use crate::strategy::Ready;
use crate::totals::parameter_bytes;
use crate::train::{identity, strategy};
use crate::view::Limit;
use crate::{files, report};

/// Runs the command on this rank.
pub(crate) fn train(arguments: &TrainArguments, size: &Size) -> Result<(), Failure> {
    let world = Mpi::start(Some(Duration::from_secs(u64::from(arguments.ranks.patience))))?;
    let checked = check(arguments, size).and_then(|()| Grid::shape(&arguments.ranks, world.size()));
    let shape = together(&world, checked)?;
    with_model(size, &arguments.data, OnRank { arguments, size, world: &world, shape })
}

/// What ranks do not do, and why.
fn check(arguments: &TrainArguments, size: &Size) -> Result<(), Failure> {
    let pipeline = arguments.ranks.pipeline.is_some_and(|ranks| ranks > 1);
    let refused = [
        (arguments.tui, "--tui", "its screen is one process's; each rank's log is in --rank-logs"),
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
    ];
    match refused.into_iter().find(|(asked, _, _)| *asked) {
        Some((_, what, why)) => {
            Err(Failure::request(anyhow::anyhow!("{what} is not for several ranks"), why))
        }
        None => Ok(()),
    }
}

struct OnRank<'a> {
    arguments: &'a TrainArguments,
    size: &'a Size,
    world: &'a Mpi,
    /// Replicas, and ranks of each.
    shape: (usize, usize),
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
        let parts = shape.0 * size.micro_batches;
        if !size.batch.is_multiple_of(parts) {
            return Err(Failure::request(
                anyhow::anyhow!(
                    "a batch of {} cannot be shared out evenly: {} replicas have {} micro-batches each",
                    size.batch,
                    shape.0,
                    size.micro_batches
                ),
                format!("give --batch {}", size.batch.div_ceil(parts) * parts),
            ));
        }
        let device = Device::flex().autodiff();
        let mut model = build(kind, &device, size.seed)?;
        if let Some(path) = &arguments.weights {
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
            files::check_writable(path)?;
        }
        Ok(Self {
            log: Log::open(&arguments.ranks.rank_logs, world.rank())?,
            model,
            device,
            rate: arguments.learning_rate.unwrap_or(size.model.usual_learning_rate()),
            steps: arguments.steps.unwrap_or(size.model.usual_steps()),
        })
    }

    fn train<K: Kind<Model = M>>(self, on: &OnRank<'_>, kind: &K) -> Result<(), Failure> {
        let Self { mut log, mut model, device, rate, steps } = self;
        let OnRank { arguments, size, world, shape } = on;
        let grid = Grid::new(*world, *shape)?;
        let described = size.describe(kind);
        let strategy = strategy(arguments);
        let places = arguments.places.open()?;
        log.say(&format!(
            "rank {} of {}: replica {} of {}, rank {} of a pipeline of {}",
            world.rank(),
            world.size(),
            grid.replica,
            grid.replicas,
            grid.stage,
            grid.stages
        ));
        if arguments.ranks.partition_checkpoints && world.rank() == 0 {
            eprintln!(
                "--partition-checkpoints: no two ranks have the same boundaries here, so there is nothing to share out"
            );
        }
        let mut data = kind.data().seeded(size.seed);
        let own_parts = |data: &mut crate::data::Data<K::Source>| {
            let mut all = data.batch(&size.in_parts(grid.replicas * size.micro_batches), &device);
            all.keep(grid.replica * size.micro_batches, size.micro_batches)
        };
        let sample = own_parts(&mut data.clone());
        if world.rank() == 0 {
            eprintln!("training {described} with `{strategy}` on {} ranks", world.size());
        }
        let Decided { mut way, foretold } =
            decide(*world, &grid, (&strategy, arguments, size), &model, sample.part(), &places)?;

        // Who has which parameters; what is not this rank's is let go of.
        let whole = Layout::new(&model)?;
        let (stages_of, owners) = owners(&model, sample.part(), *world, &grid, &way)?;
        let sections = Sections::new(&whole, &owners, grid.stages);
        let statistics = Statistics::new(&model, &owners);
        if grid.stages > 1 {
            let own = owners.iter().filter(|(_, owner)| **owner == grid.stage).map(|(id, _)| *id).collect();
            model = model.map(&mut Only { own });
        }
        let mut first_step = 0;
        let saving = match (&arguments.saving.snapshots, world.rank()) {
            (Some(directory), 0) => {
                let opened = Snapshots::open(directory, usize::from(arguments.saving.keep));
                let hint = "give --snapshots a directory that nobody else uses";
                opened.map(Some).map_err(|error| Failure::request(error, hint))
            }
            _ => Ok(None),
        };
        let mut saving = together(*world, saving)?;
        let mut identity: Metadata =
            identity(arguments, &size.in_parts(1).describe(kind), size.seed, rate, data.checksum())
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect();
        identity.insert("of".to_owned(), "ranks".to_owned());

        let reduction = match arguments.ranks.reduction {
            Some(Summing::Native) => Reduction::Native,
            Some(Summing::Ordered) | None => Reduction::Ordered,
        };
        let zero = match arguments.ranks.zero.unwrap_or(0) {
            0 => ZeroStage::Off,
            1 => ZeroStage::One,
            _ => ZeroStage::Two,
        };
        let parallel = DataParallel::new(grid.same_stages.as_ref(), &model)?.reduction(reduction);
        let mut optimizer = Zero::new(parallel, zero, AdamConfig::new().build(), &model)?;
        if arguments.saving.resume {
            let read = || newest(saving.as_mut(), &identity);
            let (known, steps_done, position) = Whole::share(*world, read)?;
            let own =
                |whole: &[f32]| if whole.is_empty() { Vec::new() } else { sections.part(grid.stage, whole) };
            let layout = Layout::new(&model)?;
            model = layout.to_model(model, &own(&known.weights))?;
            let mut moments = known.moments;
            (moments.first, moments.second) = (own(&moments.first), own(&moments.second));
            optimizer.resume(&model, moments)?;
            model = statistics.put(model, &known.statistics);
            (first_step, data) = (steps_done, data.at(position));
            log.say(&format!("going on after step {first_step}"));
        }
        if first_step >= steps {
            let failure = Failure::request(
                anyhow::anyhow!("the run is through: {first_step} of {steps} steps are done"),
                format!("give more --steps than {first_step}"),
            );
            return together(*world, Err(failure));
        }
        let pace = Rate { units: K::UNITS, per_step: size.batch * kind.units() };
        let nothing = || Ok(Limit { name: "the budget", bytes: Bytes::ZERO });
        let mut progress = match world.rank() {
            0 => Some(Progress::start(false, steps, described.clone(), pace, strategy.to_string(), nothing)?),
            _ => None,
        };
        let start = Instant::now();
        let mut losses = Vec::new();
        let (mut peak, mut most, mut busy, mut took) =
            (Bytes::ZERO, Bytes::ZERO, Duration::ZERO, Duration::ZERO);
        for number in first_step..steps {
            let batch = own_parts(&mut data);
            let seed = size.seed.wrapping_add(u64::from(number));
            rekindle::sweep();
            let before = memory::live().unwrap_or_default();
            memory::reset_peak();
            let began = Instant::now();
            let (loss, gradients, computed) = match &mut way {
                Way::All(ready) => {
                    let recipe = Recipe {
                        seed,
                        first_part: grid.replica * size.micro_batches,
                        scale: LossScale::none().scale(),
                        clip: None,
                    };
                    let done = step(&model, &batch, ready, recipe)?;
                    (Some(done.loss.into_scalar::<f32>()), done.gradients, began.elapsed())
                }
                Way::Some(section) => {
                    let last = grid.stage + 1 == grid.stages;
                    let (parts, first) = (batch.parts(), grid.replica * size.micro_batches);
                    let made = train_step(
                        grid.pipeline.as_ref(),
                        &model,
                        parts.len(),
                        &device,
                        |part, input: Option<Carried>| {
                            rekindle::seed(part_seed(seed, first + part));
                            let (region, own) = Cut::Blocks.of(&model).stages(&parts[part]);
                            let input = input.unwrap_or_else(|| Carried::of(own));
                            let region = region.section(section.stages.clone())?;
                            let output = section.under_plan(region, &input)?.forward(input)?;
                            Ok(if last { Made::Loss(output.into_tree()?) } else { Made::Boundary(output) })
                        },
                    )?;
                    (made.loss, made.gradients, made.busy)
                }
            };
            busy += computed;
            took += began.elapsed();
            let own_peak = memory::peak().unwrap_or_default().saturating_sub(before);
            // The first step makes what stays.
            peak = if number == first_step && steps - first_step > 1 { peak } else { peak.max(own_peak) };
            model = optimizer.step(rate, model, gradients, batch.examples() as u64)?;
            most = most.max(memory::peak().unwrap_or_default());
            let shares = vec![loss.map_or(0.0, |loss| loss / grid.replicas as f32)];
            let loss = world.all_reduce(shares, Reduction::Ordered)?.first().copied().unwrap_or(f32::NAN);
            log.say(&format!(
                "step {} loss {loss} peak {own_peak} computed {:.1} ms of {:.1} ms",
                number + 1,
                computed.as_secs_f64() * 1e3,
                began.elapsed().as_secs_f64() * 1e3
            ));
            losses.push(loss);
            if let Some(progress) = &mut progress {
                progress.ran(loss);
            }
            if !loss.is_finite() {
                let failure = Failure::failed(
                    anyhow::anyhow!("the loss is {loss} after {} steps", number + 1),
                    format!("try a smaller --learning-rate than {rate}"),
                );
                return together(*world, Err(failure));
            }
            let last = number + 1 == steps;
            if arguments.saving.snapshots.is_some()
                && (last || (number + 1).is_multiple_of(arguments.saving.snapshot_every))
            {
                let whole = gather(&model, &optimizer, (&sections, &statistics), &grid)?;
                if let (Some(whole), Some(saving)) = (whole, &mut saving) {
                    let (state, batches) = (whole.to_bytes(), data.position().to_le_bytes());
                    let parts = [Part::new("state", &state), Part::new("batches", &batches)];
                    let written = saving.write_with(u64::from(number + 1), &identity, &parts);
                    // A full disk may have room again at the next one; the older ones are there.
                    match written {
                        Err(error) if !last => {
                            progress.iter().for_each(|progress| progress.tell(&error.to_string()))
                        }
                        Err(error) => return Err(Failure::failed(error, "older snapshots are as they were")),
                        Ok(_) => log.say(&format!("wrote the snapshot of step {}", number + 1)),
                    }
                }
            }
        }
        if let Some(progress) = progress {
            progress.end(false);
        }
        if let Some(path) = &arguments.save {
            let own = Layout::new(&model)?.weights(&model)?;
            let weights = sections.gather_weights(grid.pipeline.as_ref(), &own)?;
            let of_model = statistics.gather(grid.pipeline.as_ref(), &statistics.of(&model))?;
            if let (Some(weights), Some(of_model), 0) = (weights, of_model, world.rank()) {
                let all = build(kind, &device, size.seed)?;
                let all = Layout::new(&all)?.to_model(all, &weights)?;
                kind.save(path, &statistics.put(all, &of_model))?;
                eprintln!("wrote {}", path.display());
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let (in_flight, predicted_bytes, budget_bytes) = match &way {
            Way::Some(section) => (section.in_flight, Some(section.predicted), section.budget),
            Way::All(ready) => {
                let summed = sample.held_bytes(&model).get();
                let with_sum = |bytes: Bytes| Bytes::new(bytes.get() + summed);
                let predicted = match ready {
                    Ready::Planned(planned, _) => Some(planned.plan().predicted.peak_bytes),
                    _ => None,
                };
                (1, predicted.map(with_sum), ready.budget_bytes().map(with_sum))
            }
        };
        let own = RankSummary {
            rank: world.rank(),
            replica: grid.replica,
            first_stage: stages_of[grid.stage].start + 1,
            last_stage: stages_of[grid.stage].end,
            in_flight,
            peak_bytes: peak,
            predicted_bytes,
            budget_bytes,
            weights_bytes: parameter_bytes(&model),
            optimizer_bytes: Bytes::new(2 * optimizer.shard_bytes().get()),
            most_bytes: most,
            busy: busy.as_secs_f64() / took.as_secs_f64().max(f64::MIN_POSITIVE),
        };
        log.say(&format!("done: {} of {} at the peak of a step", own.peak_bytes, own.most_bytes));
        let all = world.all_gather(serde_json::to_vec(&own).unwrap_or_default())?;
        let all: Result<Vec<RankSummary>, _> = all.iter().map(|own| serde_json::from_slice(own)).collect();
        let ranks = all.map_err(|error| Failure::failed(error, "use the same build on all ranks"))?;
        let count = losses.len() as u32;
        let summary = Summary {
            model: described,
            strategy: strategy.to_string(),
            steps: count,
            first_loss: losses.first().copied().unwrap_or_default(),
            last_loss: median(&losses[losses.len().saturating_sub(5)..]).unwrap_or_default(),
            examples_per_second: f64::from(count) * size.batch as f64 / seconds,
            data_parallel: grid.replicas,
            pipeline: grid.stages,
            micro_batches: size.micro_batches,
            zero: arguments.ranks.zero.unwrap_or(0),
            reduction: reduction.to_string(),
            foretold,
            ranks,
            pace: pace.after(u64::from(count), seconds),
            units: K::UNITS,
        };
        if world.rank() == 0 {
            match arguments.json {
                true => report::show_json(&summary)?,
                false => summary.show()?,
            }
        }
        together(*world, summary.check())
    }
}

/// Everything that all ranks know, on the first of them.
fn gather(
    model: &impl Module,
    optimizer: &Zero<'_, Adam>,
    (sections, statistics): (&Sections, &Statistics),
    grid: &Grid,
) -> Result<Option<Whole>, Failure> {
    let moments = optimizer.moments()?;
    // All replicas have the same; their running statistics are each one's own, and the first's are kept.
    if grid.replica > 0 {
        return Ok(None);
    }
    let pipeline = grid.pipeline.as_ref();
    let known = sections.gather_all(pipeline, &Layout::new(model)?.weights(model)?, &moments)?;
    let statistics = statistics.gather(pipeline, &statistics.of(model))?;
    Ok(known.zip(statistics).map(|((weights, moments), statistics)| Whole { weights, moments, statistics }))
}

/// The newest snapshot of a run over ranks: what was known, after how many steps, and where the data were.
fn newest(saving: Option<&mut Snapshots>, identity: &Metadata) -> Result<(Whole, u32, u64), Failure> {
    let refuse = |what: String| {
        Failure::request(anyhow::anyhow!(what), "leave --resume out to start anew in another directory")
    };
    let saving = saving.ok_or_else(|| refuse("there is no directory of snapshots".to_owned()))?;
    let latest =
        saving.latest().map_err(|error| Failure::request(error, "give another --snapshots directory"))?;
    for unusable in &latest.skipped {
        eprintln!("{unusable}");
    }
    let directory = saving.directory().display();
    let snapshot =
        latest.snapshot.ok_or_else(|| refuse(format!("`{directory}` has no snapshot to go on from")))?;
    for (name, expected) in identity {
        let found = snapshot.metadata().get(name).map_or("(nothing)", String::as_str);
        if found != expected {
            return Err(refuse(format!(
                "the snapshot of step {} is of another run; {name}: found {found}, expected {expected}",
                snapshot.step()
            )));
        }
    }
    let whole = snapshot.section("state").and_then(Whole::from_bytes);
    let position =
        snapshot.section("batches").and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    let (whole, position) = whole
        .zip(position)
        .ok_or_else(|| refuse(format!("the snapshot of step {} cannot be used", snapshot.step())))?;
    Ok((whole, u32::try_from(snapshot.step()).unwrap_or(u32::MAX), position))
}

/// The stages of each rank of a pipeline, and which of these ranks trains a parameter.
type Owners = (Vec<std::ops::Range<usize>>, HashMap<ParamId, usize>);

fn owners<M: Trainable>(
    model: &M,
    batch: &M::Batch,
    world: &dyn Collective,
    grid: &Grid,
    way: &Way,
) -> Result<Owners, Failure> {
    let cut = match way {
        Way::All(Ready::Planned(_, cut)) => *cut,
        _ => Cut::Blocks,
    };
    let (region, _) = cut.of(model).stages(batch);
    let parameters = region.parameters();
    let own = match way {
        Way::All(_) => 0..region.len(),
        Way::Some(section) => section.stages.clone(),
    };
    let ends = grid.pipeline.all_gather((own.end as u64).to_le_bytes().to_vec())?;
    let ends = ends.iter().map(|end| end[..].try_into().map_or(0, |end| u64::from_le_bytes(end) as usize));
    let mut start = 0;
    let stages: Vec<_> = ends.map(|end| std::mem::replace(&mut start, end)..end).collect();
    let mut owners = HashMap::new();
    let mut shared = None;
    for (rank, stages) in stages.iter().enumerate() {
        for id in parameters[stages.clone()].iter().flatten() {
            if owners.insert(*id, rank).is_some_and(|other| other != rank) {
                shared.get_or_insert(rank);
            }
        }
    }
    let checked = match shared {
        None => Ok(()),
        Some(rank) => Err(Failure::request(
            anyhow::anyhow!(
                "rank {rank} of a pipeline would share a parameter with one before it, such as a tied embedding"
            ),
            "its gradients would have to be added up on the way; leave --pipeline out for this model",
        )),
    };
    together(world, checked)?;
    Ok((stages, owners))
}

/// Lets go of what other ranks train.
struct Only {
    own: HashSet<ParamId>,
}

impl ModuleMapper for Only {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.own.contains(&param.id) || !param.val().is_require_grad() {
            return param;
        }
        param.map(|tensor| Tensor::zeros([0; D], &tensor.device()).set_require_grad(false))
    }
}
