//! Measures stages: runs each a few times, forth and back, and looks at the clock and at the memory.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rekindle_plan::{Bytes, Name, Nanos, Profile, ProfileError, Stage, StageProfile, TapeOption};

use crate::Engine;

/// What measuring asks of an engine beyond running stages.
pub trait Measurable: Engine {
    /// How many stages there are.
    fn stages(&self) -> usize;

    /// What people call a stage.
    fn stage_name(&self, stage: Stage) -> String;

    /// A number that is the same for stages that take the same time and memory: the same code and sizes, on such an input.
    fn kind(&self, stage: Stage, input: &Self::Boundary) -> u64;

    /// The other ways to keep a stage's tape. The stage has run by then.
    fn options(&self, stage: Stage) -> Vec<Name>;

    /// The gradients of parameters that a stage's backward is the first to make: not those that a later stage shares.
    fn parameter_gradient_bytes(&self, stage: Stage) -> Bytes;

    /// A gradient for `output`, of whatever values.
    ///
    /// # Errors
    /// When there is no room for one.
    fn some_gradient(&mut self, output: &Self::Boundary) -> Result<Self::Gradient, Self::Error>;

    /// Whether the last [`tape_unread`](Engine::tape_unread) left anything out.
    fn left_out(&self) -> bool {
        false
    }

    /// Starts or stops to look for peaks, where that takes time that stages would be measured with; whether it does.
    fn look_for_peaks(&mut self, look: bool) -> bool {
        let _ = look;
        false
    }

    /// Lets go of the parameters' gradients that backwards have left so far.
    fn forget_gradients(&mut self);

    /// Lets go of the gradients that the backward of `stage` was the first to make, and tells how much memory they kept. Those that a
    /// later stage shares stay: in a step they are there before, and the next backward adds to them.
    ///
    /// Unless an engine knows better, all are let go of, and they kept what [`Self::parameter_gradient_bytes`] says.
    fn forget_own_gradients(&mut self, stage: Stage) -> Bytes {
        self.forget_gradients();
        self.parameter_gradient_bytes(stage)
    }

    /// Waits until the device has done what it was told.
    fn finish(&mut self);
}

/// How to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measuring {
    /// How often each stage runs, at least three times; the median counts. One more run goes before, to warm up.
    pub runs: usize,
    /// Whether to measure the other ways to keep a tape as well.
    pub options: bool,
    /// Whether stages that need more memory in one run than in another run some more: the worst case may not have come yet. How often
    /// that is depends on what is found. So it is not for stages that talk to others while they run, all of which must run as often.
    pub until_steady: bool,
}

impl Measuring {
    /// As usual, and [until it is steady](Self::until_steady): for stages that run on one machine.
    pub fn steady() -> Self {
        Self { until_steady: true, ..Self::default() }
    }
}

impl Default for Measuring {
    fn default() -> Self {
        Self { runs: 9, options: true, until_steady: false }
    }
}

/// How far the times of a stage lie apart: the slowest run less the fastest, as a part of the median.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Spread {
    /// Of its forward.
    pub forward: f64,
    /// Of its backward.
    pub backward: f64,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Measurement {
    /// The size of the region's input.
    pub input_bytes: Bytes,
    /// The stages, first to last.
    pub stages: Vec<StageProfile>,
    /// The noise of each stage's times.
    pub spreads: Vec<Spread>,
    /// How many stages were run: identical ones are measured once.
    pub kinds: usize,
    /// How often each of them ran.
    pub runs: usize,
    /// Whether the engine could tell how much memory is in use. Where it cannot, times and boundaries are all that is
    /// known, and tapes and workspace are as if they took nothing.
    pub sized: bool,
}

impl Measurement {
    /// The measured values as a profile.
    ///
    /// # Errors
    /// When there is no stage, or the sizes do not add up to 64 bits.
    pub fn into_profile(
        self,
        model: impl Into<String>,
        device: impl Into<String>,
    ) -> Result<Profile, ProfileError> {
        Profile::new(model, device, self.input_bytes, self.stages)
    }

    /// The largest part of a stage's time that its runs lie apart; 0 without stages.
    pub fn noise(&self) -> f64 {
        self.spreads.iter().map(|spread| spread.forward.max(spread.backward)).fold(0.0, f64::max)
    }
}

/// Why stages cannot be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError<E: std::error::Error + 'static> {
    /// A stage failed.
    #[error("stage {stage} (`{name}`) failed while it was measured: {source}")]
    Stage {
        /// Which stage.
        stage: Stage,
        /// Its name.
        name: String,
        /// What the engine said.
        source: E,
    },
}

/// Measures the stages of `engine`, from the region's `input` on. `progress` is called before each stage that is run.
///
/// Times are medians, and workspace is the most of all runs. The gradients that a run leaves are let go of.
///
/// ```
/// use rekindle_plan::{Bytes, Profile, StageProfile};
/// use rekindle_run::counted::CountedEngine;
/// use rekindle_run::{Measuring, measure};
///
/// let stages = (0..3).map(|i| StageProfile {
///     name: format!("layer.{i}"),
///     output_bytes: Bytes::new(10),
///     tape_bytes: Bytes::new(80),
///     ..StageProfile::default()
/// });
/// let profile = Profile::new("mlp", "none", Bytes::new(10), stages.collect())?;
/// let mut engine = CountedEngine::new(profile);
/// let input = engine.input();
/// let found = measure(&mut engine, input, Measuring::default(), &mut |_, _| {})?;
/// assert_eq!(found.stages[2].tape_bytes, Bytes::new(80));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When a stage fails.
pub fn measure<E: Measurable>(
    engine: &mut E,
    input: E::Boundary,
    measuring: Measuring,
    progress: &mut dyn FnMut(Stage, &str),
) -> Result<Measurement, MeasureError<E::Error>> {
    let input_bytes = engine.boundary_bytes(&input);
    let count = engine.stages();
    let mut known: HashMap<(u64, Bytes), Kind<E::Boundary>> = HashMap::new();
    let mut found = Measurement {
        input_bytes,
        stages: Vec::with_capacity(count),
        spreads: Vec::with_capacity(count),
        kinds: 0,
        runs: measuring.runs.max(SIZED),
        sized: engine.live_bytes().is_some(),
    };
    let mut boundary = input;
    for stage in (1..).map(Stage::new).take(count) {
        let name = engine.stage_name(stage);
        // To make the gradient of what stages share takes other memory than to add to it.
        let key = (engine.kind(stage, &boundary), engine.parameter_gradient_bytes(stage));
        let kind = match known.remove(&key) {
            Some(kind) => kind,
            None => {
                progress(stage, &name);
                found.kinds += 1;
                let kind = measure_stage(engine, stage, &boundary, measuring);
                kind.map_err(|source| MeasureError::Stage { stage, name: name.clone(), source })?
            }
        };
        found.stages.push(StageProfile { name, ..kind.profile.clone() });
        found.spreads.push(kind.spread);
        boundary = kind.output.clone();
        known.insert(key, kind);
    }
    Ok(found)
}

/// What is known of one kind of stage.
struct Kind<B> {
    profile: StageProfile,
    spread: Spread,
    /// What it makes: the next stage's input.
    output: B,
}

fn measure_stage<E: Measurable>(
    engine: &mut E,
    stage: Stage,
    input: &E::Boundary,
    measuring: Measuring,
) -> Result<Kind<E::Boundary>, E::Error> {
    let mut free = Runs::default();
    let mut own = TapedRuns::default();
    let (mut output, taken) = watch(engine, |engine| engine.forward(stage, input.clone()))?;
    free.note(Run { warms_up: true, is_timed: true }, taken);
    let names = if measuring.options { engine.options(stage) } else { Vec::new() };
    let mut others: Vec<TapedRuns> = names.iter().map(|_| TapedRuns::default()).collect();
    engine.tape_unread(stage, None, input.clone())?;
    let leaves_out = engine.left_out();
    let mut unread = Runs::default();
    let timed = measuring.runs.max(SIZED);
    // Where looking for peaks takes time, that is done afterwards, in runs whose time does not count.
    let looked_at = if engine.look_for_peaks(false) { LOOKED_AT } else { 0 };
    let planned = timed + looked_at;
    // In turns, so that a machine that slows down slows all of them down.
    let start = Instant::now();
    for number in 0..=planned {
        let run = Run { warms_up: number == 0, is_timed: number <= timed };
        if number == timed + 1 {
            engine.look_for_peaks(true);
        }
        if number > 0 {
            drop(output);
            let (made, taken) = watch(engine, |engine| engine.forward(stage, input.clone()))?;
            free.note(run, taken);
            output = made;
        }
        own.run(engine, stage, None, input, run)?;
        if leaves_out && number <= measuring.runs {
            let (_, taken) = watch(engine, |engine| engine.tape_unread(stage, None, input.clone()))?;
            unread.note(run, taken);
        }
        for (name, other) in names.iter().zip(&mut others) {
            other.run(engine, stage, Some(name), input, run)?;
        }
    }
    // Only what differs runs more often, and all of it half as long as all took so far.
    if measuring.until_steady && looked_at == 0 {
        let allowed = (start.elapsed() / 2).min(MORE_TIME);
        let again = Run { warms_up: false, is_timed: false };
        let start = Instant::now();
        let ways = [None].into_iter().chain(names.iter().map(Some));
        let ways = ways.zip([&mut own].into_iter().chain(&mut others));
        let mut differing: Vec<_> = ways.filter(|(_, taped)| taped.differs()).collect();
        for _ in 0..MORE_RUNS {
            for (name, taped) in &mut differing {
                taped.run(engine, stage, *name, input, again)?;
            }
            if differing.is_empty() || start.elapsed() > allowed {
                break;
            }
        }
    }
    engine.look_for_peaks(false);
    engine.forget_gradients();
    let output_bytes = engine.boundary_bytes(&output);
    // What it made no memory for is the input's.
    let passed_bytes = match engine.live_bytes() {
        Some(_) => output_bytes.saturating_sub(free.left()).min(engine.boundary_bytes(input)),
        None => Bytes::ZERO,
    };
    // What gradients of parameters keep is what a backward leaves, and no workspace of it.
    let kept = median(&own.kept);
    let backward_extra_bytes = |taped: &TapedRuns| Bytes::new(taped.backward.extra().saturating_sub(kept));
    // Two numbers: without a tape an engine may leave behind what nobody asks for until it sweeps, and with one it keeps it.
    let taped_extra = own.forward.extra();
    let free_extra = free.extra().saturating_sub(output_bytes.get());
    let tape_bytes =
        |taped: &TapedRuns| Bytes::new(median(&taped.tapes) + passed_bytes.get()).max(output_bytes);
    let gradient = median(&own.gradients);
    // A plan runs a stage without and with its tape about as often.
    let forward_ns = Nanos::new((free.median().get() + own.forward.median().get()) / 2);
    let backward_ns = own.backward.median();
    let options = names.into_iter().zip(&others).map(|(name, taped)| TapeOption {
        name,
        tape_bytes: tape_bytes(taped),
        forward_ns: taped.forward.not_below(&own.forward, forward_ns),
        backward_ns: taped.backward.not_below(&own.backward, backward_ns),
        taped_extra_bytes: Some(taped.forward.extra()).filter(|extra| *extra != taped_extra).map(Bytes::new),
        backward_extra_bytes: Some(backward_extra_bytes(taped)),
    });
    let options: Vec<TapeOption> = options.collect();
    let forwards = options.iter().map(|option| option.forward_ns);
    let unread_ns = match leaves_out {
        true => own.forward.median().saturating_sub(unread.median()),
        false => Nanos::ZERO,
    };
    Ok(Kind {
        profile: StageProfile {
            name: String::new(),
            output_bytes,
            tape_bytes: tape_bytes(&own),
            passed_bytes,
            forward_ns,
            backward_ns,
            // A noisy clock must not save more than there is.
            unread_ns: forwards.fold(forward_ns, Nanos::min).min(unread_ns),
            forward_extra_bytes: Bytes::new(free_extra),
            taped_extra_bytes: (taped_extra != free_extra).then(|| Bytes::new(taped_extra)),
            backward_extra_bytes: backward_extra_bytes(&own),
            parameter_gradient_bytes: Bytes::new(kept),
            gradient_bytes: (gradient != output_bytes.get()).then(|| Bytes::new(gradient)),
            options,
            ..StageProfile::default()
        },
        spread: Spread { forward: free.spread().max(own.forward.spread()), backward: own.backward.spread() },
        output,
    })
}

/// The least number of runs that sizes are taken from. A thread that works for the first time allocates for good, and in
/// some runs an engine frees what others left behind: with one such run in three, the one in the middle is right.
const SIZED: usize = 3;

/// How many runs are looked at for their peaks, where that takes time: whoever looks now and then sees more of a peak the more
/// often it comes.
const LOOKED_AT: usize = 5;

/// How often a stage runs once more where its peaks differ, and for how long: two threads that happen to work at the same time take more
/// than one after the other, and the worst case comes in some run of a step. In stages that take long it comes in every run.
const MORE_RUNS: usize = 24;
const MORE_TIME: Duration = Duration::from_millis(250);

/// What a run is for.
#[derive(Clone, Copy, Debug)]
struct Run {
    warms_up: bool,
    is_timed: bool,
}

/// A stage forth and back with its tape, several times.
#[derive(Default)]
struct TapedRuns {
    /// What its tape took.
    tapes: Vec<u64>,
    /// What the gradient of its output took.
    gradients: Vec<u64>,
    /// What the gradients of its own parameters kept.
    kept: Vec<u64>,
    forward: Runs,
    backward: Runs,
}

impl TapedRuns {
    fn differs(&self) -> bool {
        self.forward.differs() || self.backward.differs()
    }

    fn run<E: Measurable>(
        &mut self,
        engine: &mut E,
        stage: Stage,
        option: Option<&Name>,
        input: &E::Boundary,
        run: Run,
    ) -> Result<(), E::Error> {
        let read = input.clone();
        let ((tape, made), mut taken) = watch(engine, |engine| engine.tape(stage, option, read))?;
        let with_output = taken.left;
        taken.extra = taken.extra.saturating_sub(std::mem::take(&mut taken.left));
        self.forward.note(run, taken);
        let (gradient, taken) = watch(engine, |engine| engine.some_gradient(&made))?;
        if !run.warms_up {
            self.tapes.push(with_output);
            self.gradients.push(taken.left);
        }
        // A tape that does not need the output lets it go. Plans count it as part of the tape all the same, so that
        // much of what the backward needs is there already.
        let held = engine.live_bytes().unwrap_or_default();
        drop(made);
        let released = held.saturating_sub(engine.live_bytes().unwrap_or_default());
        let (gradient, mut taken) = watch(engine, |engine| engine.backward(stage, tape, gradient))?;
        taken.extra = taken.extra.saturating_sub(released.get());
        self.backward.note(run, taken);
        drop(gradient);
        let kept = engine.forget_own_gradients(stage);
        if !run.warms_up {
            self.kept.push(kept.get());
        }
        Ok(())
    }
}

/// What one call took.
struct Taken {
    time: u64,
    /// The most above what was there before.
    extra: u64,
    /// What is left above what was there before.
    left: u64,
}

fn watch<E: Measurable, T>(
    engine: &mut E,
    call: impl FnOnce(&mut E) -> Result<T, E::Error>,
) -> Result<(T, Taken), E::Error> {
    engine.finish();
    let before = engine.live_bytes().unwrap_or_default().get();
    engine.peak_bytes();
    let start = Instant::now();
    let made = call(engine)?;
    engine.finish();
    let time = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let after = engine.live_bytes().unwrap_or_default().get();
    // A pool that tells no peak has at least what is there afterwards.
    let peak = engine.peak_bytes().map_or(after, Bytes::get).max(after);
    Ok((made, Taken { time, extra: peak.saturating_sub(before), left: after.saturating_sub(before) }))
}

/// All runs of one call.
#[derive(Default)]
struct Runs {
    times: Vec<u64>,
    /// The most above what was there before, and what was left of it.
    extras: Vec<(u64, u64)>,
}

impl Runs {
    /// Counts a run, but for the one that warms up: what that allocates for good is no stage's.
    fn note(&mut self, run: Run, taken: Taken) {
        if run.warms_up {
            return;
        }
        self.extras.push((taken.extra, taken.left));
        if run.is_timed {
            self.times.push(taken.time);
        }
    }

    fn median(&self) -> Nanos {
        Nanos::new(median(&self.times))
    }

    /// The median, and no less than `usual`, the time of the usual way, unless each run was faster than every run of that.
    /// Of two ways that take the same time, the cheaper by chance would be in every plan.
    fn not_below(&self, of_usual: &Self, usual: Nanos) -> Nanos {
        let slowest = self.times.iter().max();
        let faster =
            slowest.zip(of_usual.times.iter().min()).is_some_and(|(slowest, fastest)| slowest < fastest);
        if faster { self.median() } else { self.median().max(usual) }
    }

    /// What a run leaves.
    fn left(&self) -> Bytes {
        Bytes::new(median(&self.extras.iter().map(|(_, left)| *left).collect::<Vec<_>>()))
    }

    /// The most that any run needed: how much depends on how many threads work at once. What a thread allocates for
    /// good when it works for the first time is left over, and does not count.
    fn extra(&self) -> u64 {
        let usual = self.extras.iter().map(|(_, left)| *left).min().unwrap_or(0);
        let most = self.extras.iter().map(|(extra, left)| extra.saturating_sub(left - usual));
        most.max().unwrap_or(0)
    }

    /// Whether some runs needed more than others, by more than a few handles.
    fn differs(&self) -> bool {
        let needed = self.extras.iter().map(|(extra, _)| *extra);
        let (most, least) = (needed.clone().max().unwrap_or(0), needed.min().unwrap_or(0));
        most - least > most / 64
    }

    fn spread(&self) -> f64 {
        let ends = self.times.iter().max().zip(self.times.iter().min());
        match (ends, self.median().get()) {
            (Some((most, least)), median @ 1..) => (most - least) as f64 / median as f64,
            _ => 0.0,
        }
    }
}

/// The one in the middle, the upper of two; 0 of none.
fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(times: &[u64]) -> Runs {
        Runs { times: times.to_vec(), extras: Vec::new() }
    }

    #[test]
    fn a_way_that_is_faster_by_chance_is_not_faster() {
        let usual = runs(&[10, 11, 30]);
        assert_eq!(runs(&[8, 9, 10]).not_below(&usual, Nanos::new(11)), Nanos::new(11));
        assert_eq!(runs(&[8, 9, 9]).not_below(&usual, Nanos::new(11)), Nanos::new(9));
        assert_eq!(runs(&[8, 12, 13]).not_below(&usual, Nanos::new(11)), Nanos::new(12));
    }

    #[test]
    fn runs_that_need_a_handle_more_do_not_differ() {
        let needing = |extras: &[u64]| Runs {
            times: Vec::new(),
            extras: extras.iter().map(|extra| (*extra, 0)).collect(),
        };
        assert!(!needing(&[]).differs() && !needing(&[64_000, 65_000, 64_100]).differs());
        assert!(needing(&[64_000, 66_000]).differs());
    }
}
