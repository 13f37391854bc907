//! The only judge of a plan: is it legal, what does it hold at every action, how long does it take.
//!
//! The rules it applies:
//!
//! - A boundary is released when a stage has read it, unless the plan said `keep`.
//! - A tape includes its stage's output and holds on to its stage's input until the backward. What the stage passes on
//!   from one to the other is one piece of memory as long as it does.
//! - The first action that makes the region's output ends the forward half: the output is handed out, and its
//!   gradient is there from then on.
//! - A taped forward whose output nobody reads does not make it: it saves the time that goes into the output alone. The
//!   memory counts all the same.
//! - An offload or a fetch runs beside the computation. Who needs it finished waits: `drop` for an offload, the first
//!   reader for a fetch. What is alive at an action therefore depends on the plan alone, never on how fast a machine is.
//! - At the end nothing may be left: every stage went back once, nothing is kept, no copy lies anywhere.

use crate::illegal::{Illegal, Reason};
use crate::reads::reads_of_outputs;
use crate::simulation::{Live, LiveKind, Moment, Simulation, Span};
use crate::{Action, Boundary, Bytes, Codec, Name, Nanos, Profile, Stage, Tier};

/// Judges `actions` for the chain of `profile`.
///
/// ```
/// use rekindle_plan::{Bytes, Profile, StageProfile, rules, simulate};
///
/// let stage = |name: &str| StageProfile {
///     name: name.into(),
///     output_bytes: Bytes::new(1),
///     tape_bytes: Bytes::new(8),
///     ..StageProfile::default()
/// };
/// let profile = Profile::new("two", "none", Bytes::new(1), vec![stage("a"), stage("b")])?;
/// // Both tapes, and what they hold on to: x0 and the gradient of x2.
/// assert_eq!(simulate(&profile, &rules::store_all(2))?.peak_bytes, Bytes::new(18));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// With the first action that cannot run, and why.
pub fn simulate(profile: &Profile, actions: &[Action]) -> Result<Simulation, Illegal> {
    let mut moments = Vec::with_capacity(actions.len());
    let mut spans = Vec::with_capacity(actions.len());
    let mut walk = Walk::new(profile);
    let mut peak: Option<(Bytes, usize)> = None;
    let reads = reads_of_outputs(profile.stages().len(), actions);
    for (index, action) in actions.iter().enumerate() {
        let reached = walk.now;
        walk.unread = reads[index] == 0;
        let moment =
            walk.run(action).map_err(|reason| Illegal { index, action: Some(action.clone()), reason })?;
        if peak.is_none_or(|(bytes, _)| moment.peak > bytes) {
            peak = Some((moment.peak, index));
        }
        moments.push(moment);
        let (start, end) = walk.work.take().unwrap_or((walk.now, walk.now));
        spans.push(Span { reached, start, end });
    }
    walk.finish().map_err(|reason| Illegal { index: actions.len(), action: None, reason })?;
    let (peak_bytes, peak_action) = peak.unwrap_or_default();
    Ok(Simulation {
        peak_bytes,
        peak_action,
        peak_tensors: alive_at(profile, actions, peak_action),
        moments,
        spans,
        step_ns: walk.now,
        recompute_ns: walk.recompute,
        wait_ns: walk.wait,
        forwards: walk.forwards,
        turn: walk.turn.unwrap_or(actions.len()),
    })
}

/// What is alive while the action at `index` of a legal plan runs, largest first.
fn alive_at(profile: &Profile, actions: &[Action], index: usize) -> Vec<Live> {
    let mut walk = Walk::new(profile);
    for action in &actions[..index] {
        // The plan was judged legal: this repeats what ran.
        let _ = walk.run(action);
    }
    walk.watch = true;
    if let Some(action) = actions.get(index) {
        let _ = walk.run(action);
    }
    let mut live = walk.watched;
    live.sort_by_key(|live| std::cmp::Reverse(live.bytes));
    live
}

/// A boundary while the plan runs.
#[derive(Clone, Default)]
struct BoundaryState {
    /// On the device in its own right, not only inside a tape.
    held: bool,
    /// Stays when it is read.
    kept: bool,
    /// When a fetch that brings it is through.
    ready: Nanos,
    /// When the last offload that reads it is through.
    offloaded: Nanos,
    /// Where copies lie, and when each is complete.
    copies: Vec<(Place, Nanos)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Tier(usize),
    Codec(usize),
}

#[derive(Clone, Default)]
struct TierState {
    used: u64,
    writer_free: Nanos,
    reader_free: Nanos,
}

/// A tape that is there.
#[derive(Clone, Copy, Debug)]
struct Taped {
    bytes: Bytes,
    /// How long its backward takes.
    backward: Nanos,
    /// What that needs beside it.
    workspace: Bytes,
}

#[derive(Clone, Copy, Default)]
struct StageState {
    /// The bytes and the backward time of its tape.
    tape: Option<Taped>,
    ran: bool,
}

struct Walk<'a> {
    profile: &'a Profile,
    boundaries: Vec<BoundaryState>,
    stages: Vec<StageState>,
    tiers: Vec<TierState>,
    /// Where the gradient is; `None` in the forward half.
    gradient: Option<Boundary>,
    /// The gradient that comes in between the two halves.
    arriving: Bytes,
    live: Bytes,
    now: Nanos,
    /// When the work of the action at hand begins and ends, if it takes any.
    work: Option<(Nanos, Nanos)>,
    recompute: Nanos,
    wait: Nanos,
    forwards: u64,
    done: usize,
    turn: Option<usize>,
    /// Whether nobody reads the output of the action at hand.
    unread: bool,
    /// Note what is alive at the peak of the next action.
    watch: bool,
    watched: Vec<Live>,
}

impl<'a> Walk<'a> {
    fn new(profile: &'a Profile) -> Self {
        let count = profile.stages().len();
        let mut boundaries = vec![BoundaryState::default(); count + 1];
        boundaries[0].held = true;
        Self {
            profile,
            boundaries,
            stages: vec![StageState::default(); count],
            tiers: vec![TierState::default(); profile.tiers().len()],
            gradient: None,
            arriving: Bytes::ZERO,
            live: profile.input_bytes(),
            now: Nanos::ZERO,
            work: None,
            recompute: Nanos::ZERO,
            wait: Nanos::ZERO,
            forwards: 0,
            done: 0,
            turn: None,
            unread: false,
            watch: false,
            watched: Vec::new(),
        }
    }

    fn run(&mut self, action: &Action) -> Result<Moment, Reason> {
        let arriving = std::mem::take(&mut self.arriving);
        self.grow(arriving)?;
        let peak = match action {
            Action::Forward { stage } => self.forward(*stage)?,
            Action::Tape { stage, option } => self.tape(*stage, option.as_ref())?,
            Action::Backward { stage } => self.backward(*stage)?,
            Action::Keep { boundary } => self.keep(*boundary)?,
            Action::Drop { boundary, place } => match place {
                None => self.drop_from_device(*boundary)?,
                Some(place) => self.drop_copy(*boundary, place)?,
            },
            Action::Offload { boundary, tier } => self.offload(*boundary, tier)?,
            Action::Fetch { boundary, place } => self.fetch(*boundary, place)?,
            Action::Compress { boundary, codec } => self.compress(*boundary, codec)?,
        };
        self.done += 1;
        Ok(Moment { peak, after: self.live })
    }

    fn forward(&mut self, stage: Stage) -> Result<Bytes, Reason> {
        let profile = self.start(stage)?;
        let (input, output) = (stage.input(), stage.output());
        self.hold(output)?;
        let peak = self.peak_with(LiveKind::ForwardExtra(stage), profile.forward_extra_bytes)?;
        self.spend_forward(stage, profile.forward_ns)?;
        self.release_read(input)?;
        self.turn_after(stage)?;
        Ok(peak)
    }

    fn tape(&mut self, stage: Stage, option: Option<&Name>) -> Result<Bytes, Reason> {
        let profile = self.start(stage)?;
        let (taped, forward, workspace) = match option {
            None => {
                let workspace = profile.backward_workspace();
                let taped = Taped { bytes: profile.taped_bytes(), backward: profile.backward_ns, workspace };
                (taped, profile.forward_ns, profile.taped_workspace())
            }
            Some(name) => {
                let options = &profile.options;
                let option = options.iter().find(|option| option.name == *name);
                let option =
                    option.ok_or_else(|| unknown("option", name, options.iter().map(|o| &o.name)))?;
                let backward_workspace = profile.backward_workspace_under(Some(option));
                let bytes = profile.taped_bytes_under(Some(option));
                let taped = Taped { bytes, backward: option.backward_ns, workspace: backward_workspace };
                (taped, option.forward_ns, profile.taped_workspace_under(Some(option)))
            }
        };
        self.change([stage.input(), stage.output()], taped.bytes, |walk| {
            walk.stages[stage.index()].tape = Some(taped);
        })?;
        let peak = self.peak_with(LiveKind::ForwardExtra(stage), workspace)?;
        let saved = if self.unread { profile.unread_ns } else { Nanos::ZERO };
        self.spend_forward(stage, forward.saturating_sub(saved))?;
        self.release_read(stage.input())?;
        self.turn_after(stage)?;
        Ok(peak)
    }

    fn backward(&mut self, stage: Stage) -> Result<Bytes, Reason> {
        self.check_stage(stage)?;
        if self.gradient != Some(stage.output()) {
            return Err(Reason::NoGradient { stage, found: self.gradient });
        }
        let taped = self.stages[stage.index()].tape.ok_or(Reason::NoTape { stage })?;
        let peak = self.peak_with(LiveKind::BackwardExtra(stage), taped.workspace)?;
        self.spend(taped.backward)?;
        self.wait_until(self.boundaries[stage.output().index()].offloaded);
        self.change([stage.input(), stage.output()], Bytes::ZERO, |walk| {
            walk.stages[stage.index()].tape = None;
        })?;
        self.shrink(taped.bytes);
        self.shrink(self.profile.gradient_bytes(stage.output()).unwrap_or_default());
        self.grow(self.profile.gradient_bytes(stage.input()).unwrap_or_default())?;
        self.gradient = Some(stage.input());
        if self.live > peak {
            self.note();
        }
        Ok(peak.max(self.live))
    }

    fn keep(&mut self, boundary: Boundary) -> Result<Bytes, Reason> {
        self.check_boundary(boundary)?;
        if !self.on_device(boundary) {
            return Err(Reason::NotOnDevice { boundary });
        }
        self.change([boundary], Bytes::ZERO, |walk| {
            let state = &mut walk.boundaries[boundary.index()];
            state.held = true;
            state.kept = true;
        })?;
        self.peak()
    }

    fn drop_from_device(&mut self, boundary: Boundary) -> Result<Bytes, Reason> {
        self.check_boundary(boundary)?;
        if !self.boundaries[boundary.index()].held {
            return Err(Reason::NotOnDevice { boundary });
        }
        let peak = self.peak()?;
        let state = &self.boundaries[boundary.index()];
        // Memory that a transfer still reads or writes is not free.
        self.wait_until(state.offloaded.max(state.ready));
        self.release(boundary)?;
        Ok(peak)
    }

    fn drop_copy(&mut self, boundary: Boundary, name: &Name) -> Result<Bytes, Reason> {
        let (place, position, complete) = self.copy(boundary, name)?;
        let peak = self.peak()?;
        // A copy that is still being written, or read by a fetch, is only gone when that is through.
        self.wait_until(complete);
        self.boundaries[boundary.index()].copies.swap_remove(position);
        let bytes = self.profile.boundary_bytes(boundary).unwrap_or_default();
        match place {
            Place::Tier(index) => self.tiers[index].used -= bytes.get(),
            Place::Codec(index) => {
                let compressed = self.profile.codecs()[index].compressed(bytes);
                self.shrink(compressed.unwrap_or_default());
            }
        }
        Ok(peak)
    }

    fn offload(&mut self, boundary: Boundary, name: &Name) -> Result<Bytes, Reason> {
        self.check_boundary(boundary)?;
        let (index, tier) = find_tier(self.profile, name)?;
        let bytes = self.needs(boundary)?;
        self.check_no_copy(boundary, Place::Tier(index), name)?;
        let state = &mut self.tiers[index];
        let needed = state.used.checked_add(bytes.get()).ok_or(Reason::TooLarge)?;
        if needed > tier.capacity_bytes.get() {
            return Err(Reason::TierFull {
                tier: name.clone(),
                needed: Bytes::new(needed),
                capacity: tier.capacity_bytes,
            });
        }
        state.used = needed;
        let start = self.now.max(state.writer_free);
        let time = Nanos::to_move(bytes, tier.write_bytes_per_second).ok_or(Reason::TooLong)?;
        let through = start.checked_add(time).ok_or(Reason::TooLong)?;
        state.writer_free = through;
        self.work = Some((start, through));
        let boundary = &mut self.boundaries[boundary.index()];
        boundary.offloaded = boundary.offloaded.max(through);
        boundary.copies.push((Place::Tier(index), through));
        self.peak()
    }

    fn fetch(&mut self, boundary: Boundary, name: &Name) -> Result<Bytes, Reason> {
        let (place, position, complete) = self.copy(boundary, name)?;
        self.check_makes(boundary)?;
        self.hold(boundary)?;
        let bytes = self.profile.boundary_bytes(boundary).unwrap_or_default();
        let ready = match place {
            Place::Tier(index) => {
                let state = &mut self.tiers[index];
                let start = self.now.max(state.reader_free).max(complete);
                let speed = self.profile.tiers()[index].read_bytes_per_second;
                let time = Nanos::to_move(bytes, speed).ok_or(Reason::TooLong)?;
                state.reader_free = start.checked_add(time).ok_or(Reason::TooLong)?;
                self.work = Some((start, state.reader_free));
                state.reader_free
            }
            Place::Codec(index) => {
                let speed = self.profile.codecs()[index].restore_bytes_per_second;
                self.spend(Nanos::to_move(bytes, speed).ok_or(Reason::TooLong)?)?;
                self.now
            }
        };
        let state = &mut self.boundaries[boundary.index()];
        state.ready = ready;
        state.copies[position].1 = ready;
        self.peak()
    }

    fn compress(&mut self, boundary: Boundary, name: &Name) -> Result<Bytes, Reason> {
        self.check_boundary(boundary)?;
        let (index, codec) = find_codec(self.profile, name)?;
        let bytes = self.needs(boundary)?;
        self.check_no_copy(boundary, Place::Codec(index), name)?;
        self.grow(codec.compressed(bytes).ok_or(Reason::TooLarge)?)?;
        let time = Nanos::to_move(bytes, codec.compress_bytes_per_second).ok_or(Reason::TooLong)?;
        self.spend(time)?;
        let state = &mut self.boundaries[boundary.index()];
        state.copies.push((Place::Codec(index), self.now));
        self.peak()
    }

    fn finish(&self) -> Result<(), Reason> {
        let left = |what: String| Err(Reason::Left { what });
        match self.gradient {
            Some(boundary) if boundary.number() == 0 => {}
            Some(boundary) => {
                return Err(Reason::Unfinished { stage: Stage::new(boundary.number()) });
            }
            None => {
                return Err(Reason::Unfinished { stage: Stage::at(self.stages.len() - 1) });
            }
        }
        if let Some(index) = self.stages.iter().position(|stage| stage.tape.is_some()) {
            return left(format!("tape {}", Stage::at(index)));
        }
        for (boundary, state) in self.numbered() {
            if state.held {
                return left(boundary.to_string());
            }
            if let Some((place, _)) = state.copies.first() {
                return left(format!("the copy of {boundary} in `{}`", self.name_of(*place)));
            }
        }
        Ok(())
    }

    fn numbered(&self) -> impl Iterator<Item = (Boundary, &BoundaryState)> {
        (0..).map(Boundary::new).zip(&self.boundaries)
    }

    fn name_of(&self, place: Place) -> &Name {
        match place {
            Place::Tier(index) => &self.profile.tiers()[index].name,
            Place::Codec(index) => &self.profile.codecs()[index].name,
        }
    }

    /// What every run of a stage asks for.
    fn start(&mut self, stage: Stage) -> Result<&'a crate::StageProfile, Reason> {
        self.check_stage(stage)?;
        if self.gradient.is_some_and(|at| at < stage.output()) {
            return Err(Reason::Over { stage });
        }
        let profile = &self.profile.stages()[stage.index()];
        if profile.pinned && self.stages[stage.index()].ran {
            return Err(Reason::Pinned { stage, name: profile.name.clone() });
        }
        if self.stages[stage.index()].tape.is_some() {
            return Err(Reason::AlreadyTaped { stage });
        }
        self.check_makes(stage.output())?;
        self.needs(stage.input())?;
        Ok(profile)
    }

    /// The bytes of a boundary that must be on the device, once a fetch that brings it is through.
    fn needs(&mut self, boundary: Boundary) -> Result<Bytes, Reason> {
        if !self.on_device(boundary) {
            return Err(Reason::NotOnDevice { boundary });
        }
        self.wait_until(self.boundaries[boundary.index()].ready);
        Ok(self.profile.boundary_bytes(boundary).unwrap_or_default())
    }

    fn on_device(&self, boundary: Boundary) -> bool {
        self.boundaries[boundary.index()].held || self.in_tape(boundary)
    }

    /// Whether a tape includes the boundary, as its stage's output.
    fn in_tape(&self, boundary: Boundary) -> bool {
        boundary.index().checked_sub(1).is_some_and(|index| self.stages[index].tape.is_some())
    }

    /// Fails when the boundary exists already: a second copy would be memory that nobody counts.
    fn check_makes(&self, boundary: Boundary) -> Result<(), Reason> {
        if self.on_device(boundary) {
            return Err(Reason::AlreadyOnDevice { boundary });
        }
        match self.read_by_tape(boundary) {
            true => Err(Reason::HeldByTape { boundary, stage: Stage::at(boundary.index()) }),
            false => Ok(()),
        }
    }

    /// Whether a tape holds on to the boundary, as its stage's input.
    fn read_by_tape(&self, boundary: Boundary) -> bool {
        let reader = self.stages.get(boundary.index());
        reader.is_some_and(|stage| stage.tape.is_some())
    }

    /// Whether a boundary takes memory of its own: held, or held on to by the tape that reads it, and not in a tape.
    fn counts(&self, boundary: Boundary) -> bool {
        let held = self.boundaries[boundary.index()].held || self.read_by_tape(boundary);
        held && !self.in_tape(boundary)
    }

    /// Makes a change and corrects the live bytes for what it does to these boundaries, plus `grown`.
    fn change<const N: usize>(
        &mut self,
        boundaries: [Boundary; N],
        grown: Bytes,
        change: impl FnOnce(&mut Self),
    ) -> Result<(), Reason> {
        let before = boundaries.map(|boundary| self.counts(boundary));
        change(self);
        for (boundary, counted) in boundaries.into_iter().zip(before) {
            let bytes = self.profile.boundary_bytes(boundary).unwrap_or_default();
            match (counted, self.counts(boundary)) {
                (true, false) => self.shrink(bytes),
                (false, true) => self.grow(bytes)?,
                _ => {}
            }
        }
        self.grow(grown)
    }

    fn hold(&mut self, boundary: Boundary) -> Result<(), Reason> {
        self.change([boundary], Bytes::ZERO, |walk| {
            let state = &mut walk.boundaries[boundary.index()];
            state.held = true;
            state.ready = Nanos::ZERO;
            state.offloaded = Nanos::ZERO;
        })
    }

    fn release(&mut self, boundary: Boundary) -> Result<(), Reason> {
        self.change([boundary], Bytes::ZERO, |walk| {
            let state = &mut walk.boundaries[boundary.index()];
            state.held = false;
            state.kept = false;
        })
    }

    fn release_read(&mut self, boundary: Boundary) -> Result<(), Reason> {
        let state = &self.boundaries[boundary.index()];
        if state.held && !state.kept {
            self.wait_until(state.offloaded);
            self.release(boundary)?;
        }
        Ok(())
    }

    /// The first run of the last stage ends the forward half.
    fn turn_after(&mut self, stage: Stage) -> Result<(), Reason> {
        if stage.number() as usize == self.stages.len() && self.turn.is_none() {
            self.turn = Some(self.done + 1);
            self.gradient = Some(stage.output());
            if self.boundaries[stage.output().index()].held {
                self.release(stage.output())?;
            }
            self.arriving = self.profile.gradient_bytes(stage.output()).unwrap_or_default();
        }
        Ok(())
    }

    fn copy(&self, boundary: Boundary, name: &Name) -> Result<(Place, usize, Nanos), Reason> {
        self.check_boundary(boundary)?;
        let profile = self.profile;
        let place = find_tier(profile, name)
            .map(|(index, _)| Place::Tier(index))
            .or_else(|_| find_codec(profile, name).map(|(index, _)| Place::Codec(index)))
            .map_err(|_| {
                let tiers = profile.tiers().iter().map(|tier| &tier.name);
                let codecs = profile.codecs().iter().map(|codec| &codec.name);
                unknown("tier or codec", name, tiers.chain(codecs))
            })?;
        let copies = &self.boundaries[boundary.index()].copies;
        let position = copies.iter().position(|(at, _)| *at == place);
        let position = position.ok_or_else(|| Reason::NotThere { boundary, place: name.clone() })?;
        Ok((place, position, copies[position].1))
    }

    fn check_no_copy(&self, boundary: Boundary, place: Place, name: &Name) -> Result<(), Reason> {
        let copies = &self.boundaries[boundary.index()].copies;
        match copies.iter().any(|(at, _)| *at == place) {
            false => Ok(()),
            true => Err(Reason::AlreadyThere { boundary, place: name.clone() }),
        }
    }

    fn check_stage(&self, stage: Stage) -> Result<(), Reason> {
        let stages = self.stages.len();
        match (1..=stages).contains(&(stage.number() as usize)) {
            true => Ok(()),
            false => Err(Reason::NoStage { stage, stages }),
        }
    }

    fn check_boundary(&self, boundary: Boundary) -> Result<(), Reason> {
        match boundary.index() < self.boundaries.len() {
            true => Ok(()),
            false => Err(Reason::NoBoundary { boundary, stages: self.stages.len() }),
        }
    }

    fn spend_forward(&mut self, stage: Stage, time: Nanos) -> Result<(), Reason> {
        self.forwards += 1;
        let state = &mut self.stages[stage.index()];
        if std::mem::replace(&mut state.ran, true) {
            self.recompute = self.recompute.checked_add(time).ok_or(Reason::TooLong)?;
        }
        self.spend(time)
    }

    fn spend(&mut self, time: Nanos) -> Result<(), Reason> {
        let start = self.now;
        self.now = start.checked_add(time).ok_or(Reason::TooLong)?;
        self.work = Some((start, self.now));
        Ok(())
    }

    fn wait_until(&mut self, moment: Nanos) {
        let waited = moment.saturating_sub(self.now);
        // `now` never exceeds 64 bits, so neither does the time waited.
        self.wait = self.wait.checked_add(waited).unwrap_or(Nanos::MAX);
        self.now = self.now.max(moment);
    }

    fn grow(&mut self, bytes: Bytes) -> Result<(), Reason> {
        self.live = self.live.checked_add(bytes).ok_or(Reason::TooLarge)?;
        Ok(())
    }

    fn shrink(&mut self, bytes: Bytes) {
        self.live = self.live.saturating_sub(bytes);
    }

    fn peak(&mut self) -> Result<Bytes, Reason> {
        self.note();
        Ok(self.live)
    }

    fn peak_with(&mut self, what: LiveKind, extra: Bytes) -> Result<Bytes, Reason> {
        self.note();
        if self.watch && extra > Bytes::ZERO {
            self.watched.push(Live { what, bytes: extra });
        }
        self.live.checked_add(extra).ok_or(Reason::TooLarge)
    }

    /// Writes down what is alive now, when asked to.
    fn note(&mut self) {
        if !self.watch {
            return;
        }
        let mut live = Vec::new();
        let profile = self.profile;
        for (boundary, state) in self.numbered() {
            let bytes = profile.boundary_bytes(boundary).unwrap_or_default();
            if self.counts(boundary) {
                live.push((LiveKind::Boundary(boundary), bytes));
            }
            for (place, _) in &state.copies {
                if let Place::Codec(index) = place {
                    let codec = &profile.codecs()[*index];
                    let compressed = codec.compressed(bytes).unwrap_or_default();
                    live.push((LiveKind::Compressed(boundary, codec.name.clone()), compressed));
                }
            }
        }
        for (index, stage) in self.stages.iter().enumerate() {
            if let Some(Taped { bytes, .. }) = stage.tape {
                live.push((LiveKind::Tape(Stage::at(index)), bytes));
            }
        }
        if let Some(boundary) = self.gradient {
            let all = profile.gradient_bytes(boundary).unwrap_or_default();
            let of_parameters = profile.parameter_gradient_bytes(boundary).unwrap_or_default();
            live.push((LiveKind::Gradient(boundary), all.saturating_sub(of_parameters)));
            live.push((LiveKind::ParameterGradients(boundary), of_parameters));
        }
        let some = live.into_iter().filter(|(_, bytes)| *bytes > Bytes::ZERO);
        self.watched = some.map(|(what, bytes)| Live { what, bytes }).collect();
    }
}

fn find_tier<'a>(profile: &'a Profile, name: &Name) -> Result<(usize, &'a Tier), Reason> {
    let mut tiers = profile.tiers().iter().enumerate();
    tiers
        .find(|(_, tier)| tier.name == *name)
        .ok_or_else(|| unknown("tier", name, profile.tiers().iter().map(|tier| &tier.name)))
}

fn find_codec<'a>(profile: &'a Profile, name: &Name) -> Result<(usize, &'a Codec), Reason> {
    let mut codecs = profile.codecs().iter().enumerate();
    codecs
        .find(|(_, codec)| codec.name == *name)
        .ok_or_else(|| unknown("codec", name, profile.codecs().iter().map(|codec| &codec.name)))
}

fn unknown<'a>(kind: &'static str, name: &Name, known: impl Iterator<Item = &'a Name>) -> Reason {
    let known: Vec<&str> = known.map(Name::as_str).collect();
    Reason::Unknown {
        kind,
        name: name.clone(),
        known: match known.is_empty() {
            true => "(none)".to_owned(),
            false => known.join(", "),
        },
    }
}
