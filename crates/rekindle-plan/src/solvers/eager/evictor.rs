//! What to let go when room is needed and nothing is known in advance.

use super::tournament::{Player, Tournament};
use crate::{Boundary, Bytes, Nanos, Stage};

/// What can be held, and let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Held {
    /// A boundary. `x0` cannot be made again, so it never goes.
    Boundary(Boundary),
    /// A stage's tape. Its input stays while it is there; its output stays when it goes.
    Tape(Stage),
}

/// Why the [`Evictor`] does not go along.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EvictError {
    /// Everything that may go is not enough. Nothing went.
    #[error("{} bytes are needed at once with what cannot be let go, but the limit is {} bytes",
        needed_bytes.get(), limit_bytes.get())]
    NoRoom {
        /// What was asked for, and what must stay beside it.
        needed_bytes: Bytes,
        /// The limit.
        limit_bytes: Bytes,
    },
    /// Something was recorded without making room for it first. It is not counted.
    #[error("{} bytes were recorded with {} bytes free; make room before memory is taken",
        bytes.get(), free_bytes.get())]
    NoRoomMade {
        /// What was recorded.
        bytes: Bytes,
        /// What was free.
        free_bytes: Bytes,
    },
    /// A stage ran that cannot have run.
    #[error("stage {stage} cannot have run {how}: {why}")]
    Impossible {
        /// The stage.
        stage: Stage,
        /// Forward, or back.
        how: &'static str,
        /// What speaks against it.
        why: &'static str,
    },
}

/// Decides what to let go, as the stages of a chain run one by one, within a limit that is never exceeded.
///
/// Whoever runs the stages asks for room before each, lets go of what is named, and records what ran. The evictor
/// needs no plan and no length, touches no memory and reads no clock: its time is the sum of the times recorded, so the
/// same calls give the same answers everywhere.
///
/// What goes first has the smallest
///
/// ```text
///   the time to bring it back, with the boundaries beside it that are gone
///   ----------------------------------------------------------------------
///            the bytes it frees  x  the time since it was last used
/// ```
///
/// (Kirisame et al. 2021, "Dynamic Tensor Rematerialization", the heuristic with the evicted neighbourhood `e*`). What is
/// pinned never goes, nor does `x0`, nor a boundary that a tape holds. A run counts as one nanosecond at least, so that
/// a chain without times is planned by the number of runs. Between equals the longest unused goes, then what belongs to
/// the earlier stage, then the boundary before the tape.
///
/// ```
/// use rekindle_plan::solvers::eager::{Evictor, Held};
/// use rekindle_plan::{Boundary, Bytes, Nanos, Stage};
///
/// let (kib, ms) = (|count: u64| Bytes::new(count << 10), |count: u64| Nanos::new(count * 1_000_000));
/// let mut evictor = Evictor::new(kib(4), kib(1))?;
/// for number in 1..=3 {
///     // Room first: nothing has to go for x1, x2 and x3 beside x0.
///     assert_eq!(evictor.make_room(kib(1))?, []);
///     evictor.record_forward(Stage::new(number), kib(1), ms(1))?;
/// }
/// // The next stage reads x3, so that stays. Of x1 and x2, as dear as each other, x1 was used longer ago.
/// let input = Held::Boundary(Boundary::new(3));
/// evictor.pin(input);
/// assert_eq!(evictor.make_room(kib(1))?, [Held::Boundary(Boundary::new(1))]);
/// evictor.record_forward(Stage::new(4), kib(1), ms(1))?;
/// evictor.unpin(input);
/// assert_eq!(evictor.live_bytes(), kib(4));
/// // x2 is unused for twice as long as x3, but with x1 gone it takes two stages to bring back: the same score. Between
/// // equals the longest unused goes.
/// let (x2, x3) = (Held::Boundary(Boundary::new(2)), Held::Boundary(Boundary::new(3)));
/// assert_eq!(evictor.score(x2), evictor.score(x3));
/// assert_eq!(evictor.make_room(kib(1))?, [x2]);
///
/// // What cannot be is said before anything goes.
/// let error = evictor.make_room(kib(4)).unwrap_err();
/// assert!(error.to_string().starts_with("5120 bytes are needed at once"));
/// # Ok::<(), rekindle_plan::solvers::eager::EvictError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Evictor {
    limit: u64,
    live: u64,
    /// What of `live` is neither boundary nor tape.
    reserved: u64,
    /// What of `live` is a boundary or a tape and cannot go.
    stuck: u64,
    now: u64,
    /// By number; the first is `x0`, which no stage makes.
    links: Vec<Link>,
    /// The last boundary that may still be read: what is gone beyond it is not missed.
    last: usize,
    turned: bool,
    candidates: Tournament,
    /// The links whose candidates are to be brought up to date, each once.
    changed: Vec<usize>,
}

/// A boundary and the tape of the stage that makes it.
#[derive(Clone, Debug, Default)]
struct Link {
    boundary_bytes: u64,
    tape_bytes: u64,
    /// The time to make this boundary from `x0`, all stages together.
    from_start: u64,
    /// The time to make it from the one before.
    cost: u64,
    /// There, in its own right or in its tape.
    here: bool,
    taped: bool,
    boundary_pins: u32,
    tape_pins: u32,
    boundary_used: u64,
    tape_used: u64,
    /// The neighbours that are there, when this one is.
    before: usize,
    after: Option<usize>,
    /// Places among the candidates.
    boundary_slot: Option<u32>,
    tape_slot: Option<u32>,
    /// Its candidates are to be brought up to date.
    changed: bool,
    /// What this link adds to `live` and to `stuck`.
    live: u64,
    stuck: u64,
}

impl Evictor {
    /// Starts with `x0`, of `input_bytes`.
    ///
    /// # Errors
    /// When not even that fits.
    pub fn new(limit_bytes: Bytes, input_bytes: Bytes) -> Result<Self, EvictError> {
        if input_bytes > limit_bytes {
            return Err(EvictError::NoRoom { needed_bytes: input_bytes, limit_bytes });
        }
        let bytes = input_bytes.get();
        let input = Link { boundary_bytes: bytes, here: true, live: bytes, stuck: bytes, ..Link::default() };
        Ok(Self {
            limit: limit_bytes.get(),
            live: bytes,
            reserved: 0,
            stuck: bytes,
            now: 0,
            links: vec![input],
            last: 0,
            turned: false,
            candidates: Tournament::default(),
            changed: Vec::new(),
        })
    }

    /// The limit.
    pub fn limit_bytes(&self) -> Bytes {
        Bytes::new(self.limit)
    }

    /// What is held now, reserved memory included.
    pub fn live_bytes(&self) -> Bytes {
        Bytes::new(self.live)
    }

    /// Names what has to go so that `bytes` fit beside the rest, in the order in which it goes; it counts as gone.
    ///
    /// # Errors
    /// When everything that may go is not enough; then nothing goes.
    pub fn make_room(&mut self, bytes: Bytes) -> Result<Vec<Held>, EvictError> {
        let mut gone = Vec::new();
        let fits = |live: u64| live.checked_add(bytes.get()).is_some_and(|sum| sum <= self.limit);
        if fits(self.live) {
            return Ok(gone);
        }
        let staying = self.reserved.saturating_add(self.stuck);
        let no_room = EvictError::NoRoom {
            needed_bytes: Bytes::new(staying.saturating_add(bytes.get())),
            limit_bytes: self.limit_bytes(),
        };
        if !fits(staying) {
            return Err(no_room);
        }
        let limit = self.limit;
        while self.live.checked_add(bytes.get()).is_none_or(|sum| sum > limit) {
            self.update_candidates();
            // Whatever is not stuck is a candidate, or becomes one when the tape beside it has gone.
            let Some(best) = self.candidates.best(self.now) else { return Err(no_room) };
            let held = held_named(best.name);
            match held {
                Held::Boundary(boundary) => self.unlink(boundary.index()),
                Held::Tape(stage) => self.lose_tape(stage.number() as usize),
            }
            gone.push(held);
        }
        Ok(gone)
    }

    /// Counts memory that is neither boundary nor tape, such as a gradient.
    ///
    /// # Errors
    /// When no room was made for it.
    pub fn reserve(&mut self, bytes: Bytes) -> Result<(), EvictError> {
        self.check_room(bytes.get())?;
        self.live += bytes.get();
        self.reserved += bytes.get();
        Ok(())
    }

    /// Gives reserved memory back.
    pub fn release(&mut self, bytes: Bytes) {
        let bytes = bytes.get().min(self.reserved);
        self.live -= bytes;
        self.reserved -= bytes;
    }

    /// Records that `stage` ran without a tape in `cost`: its input was used, its output of `output_bytes` is there.
    ///
    /// # Errors
    /// When no room was made for the output, the input is gone, the output is there already, a stage before has never
    /// run, or the stage has gone back.
    pub fn record_forward(
        &mut self,
        stage: Stage,
        output_bytes: Bytes,
        cost: Nanos,
    ) -> Result<(), EvictError> {
        self.record_run(stage, output_bytes.get(), None, cost)
    }

    /// Records that `stage` ran in `cost` and its tape of `tape_bytes` is there, which includes its output and holds on
    /// to its input.
    ///
    /// # Errors
    /// As for [`Evictor::record_forward`].
    pub fn record_tape(
        &mut self,
        stage: Stage,
        output_bytes: Bytes,
        tape_bytes: Bytes,
        cost: Nanos,
    ) -> Result<(), EvictError> {
        self.record_run(stage, output_bytes.get(), Some(tape_bytes.get().max(output_bytes.get())), cost)
    }

    /// Records that the last boundary was handed out: from here on the stages go back. It is gone unless a tape has it.
    /// A second turn changes nothing.
    pub fn record_turn(&mut self) {
        let last = self.links.len() - 1;
        if self.turned {
            return;
        }
        self.turned = true;
        if !self.links[last].taped && last > 0 {
            self.unlink(last);
        }
        self.last = last.saturating_sub(1);
        self.refresh_tail();
    }

    /// Records that `stage` went back in `cost`: its tape is gone, and with it its input, which nobody reads any more,
    /// unless another tape has it.
    ///
    /// # Errors
    /// When its tape is not there, or it is not its turn: the last stage goes back first, after
    /// [`Evictor::record_turn`].
    pub fn record_backward(&mut self, stage: Stage, cost: Nanos) -> Result<(), EvictError> {
        let number = stage.number() as usize;
        let impossible = |why| EvictError::Impossible { stage, how: "back", why };
        if !self.is_taped(stage) {
            return Err(impossible("its tape is not there"));
        }
        if !self.turned || number != self.last + 1 {
            return Err(impossible("it is not the next to go back"));
        }
        self.tick(cost);
        self.links[number].taped = false;
        self.unlink(number);
        let input = number - 1;
        self.last = input.saturating_sub(1);
        match self.links[input].taped {
            true => self.refresh(input),
            false => self.unlink(input),
        }
        self.refresh_tail();
        Ok(())
    }

    /// What is pinned stays, however often it was pinned, until it is unpinned as often.
    pub fn pin(&mut self, held: Held) {
        self.change_pins(held, |pins| pins.saturating_add(1));
    }

    /// Takes a pin back.
    pub fn unpin(&mut self, held: Held) {
        self.change_pins(held, |pins| pins.saturating_sub(1));
    }

    /// Whether the tape of `stage` is there.
    pub fn is_taped(&self, stage: Stage) -> bool {
        stage.number() > 0 && self.links.get(stage.number() as usize).is_some_and(|link| link.taped)
    }

    /// Whether `boundary` is there, in its own right or in a tape.
    pub fn has(&self, boundary: Boundary) -> bool {
        self.links.get(boundary.index()).is_some_and(|link| link.here)
    }

    /// The boundary that is there, up to `boundary`, from which the fewest stages lead to it.
    pub fn nearest(&self, boundary: Boundary) -> Option<Boundary> {
        let until = boundary.index().min(self.links.len() - 1);
        let found = self.links[..=until].iter().rposition(|link| link.here)?;
        u32::try_from(found).ok().map(Boundary::new)
    }

    /// Its score now, in nanoseconds to a byte and a nanosecond: the smallest goes first. `None` for what cannot go.
    pub fn score(&self, held: Held) -> Option<f64> {
        let player = match held {
            Held::Boundary(boundary) => self.boundary_player(boundary.index()),
            Held::Tape(stage) => self.tape_player(stage.number() as usize),
        }?;
        Some(player.cost as f64 / (player.freed as f64 * player.staleness(self.now) as f64))
    }

    fn record_run(
        &mut self,
        stage: Stage,
        output_bytes: u64,
        tape_bytes: Option<u64>,
        cost: Nanos,
    ) -> Result<(), EvictError> {
        let number = stage.number() as usize;
        let impossible = |why| Err(EvictError::Impossible { stage, how: "forward", why });
        if number == 0 || number > self.links.len() {
            return impossible("a stage before it has never run");
        }
        if number > self.last + 1 {
            return impossible("the chain has turned before it, or it has gone back");
        }
        if !self.links[number - 1].here {
            return impossible("its input is not there");
        }
        if self.has(stage.output()) || self.is_taped(Stage::at(number)) {
            return impossible("its output is there already");
        }
        self.check_room(tape_bytes.unwrap_or(output_bytes))?;
        // Used from when the stage started. Were it when it ended, what was just read would have no staleness at all,
        // and stay at the expense of everything else.
        let used = self.now;
        self.tick(cost);
        let cost = cost.get().max(1);
        if number == self.links.len() {
            let from_start = self.links[number - 1].from_start.saturating_add(cost);
            self.links.push(Link { from_start, ..Link::default() });
            self.last = self.last.max(number);
        }
        let after = self.links[number - 1].after.replace(number);
        if let Some(after) = after {
            self.links[after].before = number;
        }
        let link = &mut self.links[number];
        link.boundary_bytes = output_bytes;
        link.cost = cost;
        link.here = true;
        link.boundary_used = used;
        link.before = number - 1;
        link.after = after;
        if let Some(tape_bytes) = tape_bytes {
            link.taped = true;
            link.tape_bytes = tape_bytes;
            link.tape_used = used;
        }
        self.links[number - 1].boundary_used = used;
        self.refresh(number - 1);
        self.refresh(number);
        if let Some(after) = after {
            self.rescore(after);
        }
        Ok(())
    }

    fn tick(&mut self, time: Nanos) {
        self.now = self.now.saturating_add(time.get().max(1));
    }

    fn check_room(&self, bytes: u64) -> Result<(), EvictError> {
        let free = self.limit - self.live;
        match bytes <= free {
            true => Ok(()),
            false => Err(EvictError::NoRoomMade { bytes: Bytes::new(bytes), free_bytes: Bytes::new(free) }),
        }
    }

    fn change_pins(&mut self, held: Held, change: impl Fn(u32) -> u32) {
        let number = match held {
            Held::Boundary(boundary) => boundary.index(),
            Held::Tape(stage) => stage.number() as usize,
        };
        let Some(link) = self.links.get_mut(number) else { return };
        match held {
            Held::Boundary(_) => link.boundary_pins = change(link.boundary_pins),
            Held::Tape(_) => link.tape_pins = change(link.tape_pins),
        }
        self.refresh(number);
        if let (Held::Tape(_), Some(input)) = (held, number.checked_sub(1)) {
            self.refresh(input);
        }
    }

    fn lose_tape(&mut self, number: usize) {
        self.links[number].taped = false;
        match number > self.last {
            // Nobody reads its output any more.
            true => self.unlink(number),
            false => self.refresh(number),
        }
        self.refresh(number - 1);
    }

    /// Takes a boundary out of the line of those that are there.
    fn unlink(&mut self, number: usize) {
        let link = &mut self.links[number];
        if !link.here {
            return;
        }
        link.here = false;
        let (before, after) = (link.before, link.after.take());
        self.refresh(number);
        if number > 0 {
            self.links[before].after = after;
            self.rescore(before);
        }
        if let Some(after) = after {
            self.links[after].before = before;
            self.rescore(after);
        }
    }

    /// The score of the last boundary that is there changes with what is missed beyond it.
    fn refresh_tail(&mut self) {
        if let Some(tail) = self.links[..=self.last].iter().rposition(|link| link.here) {
            self.rescore(tail);
        }
    }

    /// Brings the sums up to date with a link, and notes that its candidates may have changed.
    fn refresh(&mut self, number: usize) {
        let (live, stuck) = self.bytes_of(number);
        let link = &mut self.links[number];
        self.live = self.live - link.live + live;
        self.stuck = self.stuck - link.stuck + stuck;
        (link.live, link.stuck) = (live, stuck);
        self.rescore(number);
    }

    /// Notes that the score of a link may have changed. Much changes and changes back before anything has to go, so the
    /// candidates are brought up to date only then.
    fn rescore(&mut self, number: usize) {
        if !std::mem::replace(&mut self.links[number].changed, true) {
            self.changed.push(number);
        }
    }

    fn update_candidates(&mut self) {
        while let Some(number) = self.changed.pop() {
            let (boundary, tape) = (self.boundary_player(number), self.tape_player(number));
            let link = &mut self.links[number];
            link.changed = false;
            for (slot, player) in [(&mut link.boundary_slot, boundary), (&mut link.tape_slot, tape)] {
                match (*slot, player) {
                    (None, None) => {}
                    (None, Some(player)) => *slot = Some(self.candidates.enter(player, self.now)),
                    (Some(at), Some(player)) => self.candidates.change(at, player, self.now),
                    (Some(at), None) => {
                        self.candidates.leave(at, self.now);
                        *slot = None;
                    }
                }
            }
        }
    }

    /// What a link takes, and what of it cannot go.
    fn bytes_of(&self, number: usize) -> (u64, u64) {
        let link = &self.links[number];
        let boundary_stays = link.here && (self.is_needed(number) || self.is_held_by_pinned_tape(number));
        let boundary_stuck = if boundary_stays { link.boundary_bytes } else { 0 };
        match (link.taped, link.here) {
            (true, _) if link.tape_pins > 0 => (link.tape_bytes, link.tape_bytes),
            (true, _) => (link.tape_bytes, boundary_stuck),
            (false, true) => (link.boundary_bytes, boundary_stuck),
            (false, false) => (0, 0),
        }
    }

    fn is_needed(&self, number: usize) -> bool {
        number == 0 || self.links[number].boundary_pins > 0
    }

    fn is_held_by_pinned_tape(&self, number: usize) -> bool {
        self.links.get(number + 1).is_some_and(|link| link.taped && link.tape_pins > 0)
    }

    fn boundary_player(&self, number: usize) -> Option<Player> {
        let link = self.links.get(number)?;
        let in_a_tape = link.taped || self.links.get(number + 1).is_some_and(|link| link.taped);
        if !link.here || in_a_tape || self.is_needed(number) || link.boundary_bytes == 0 {
            return None;
        }
        // With those gone on both sides: they could not be brought back without this one, or this one without them.
        let until = link.after.map_or(self.last.max(number), |after| after - 1);
        let cost = self.links[until].from_start.saturating_sub(self.links[link.before].from_start);
        Some(Player {
            freed: link.boundary_bytes,
            cost: cost.max(1),
            used: link.boundary_used,
            name: number as u64 * 2,
        })
    }

    fn tape_player(&self, number: usize) -> Option<Player> {
        let link = self.links.get(number)?;
        (link.taped && link.tape_pins == 0).then_some(Player {
            // Its output stays behind. A tape that frees nothing still frees what it holds on to.
            freed: link.tape_bytes.saturating_sub(link.boundary_bytes).max(1),
            cost: link.cost,
            used: link.tape_used,
            name: number as u64 * 2 + 1,
        })
    }
}

/// The names of the candidates: even for boundaries, odd for tapes.
fn held_named(name: u64) -> Held {
    let number = u32::try_from(name / 2).unwrap_or(u32::MAX);
    match name % 2 {
        0 => Held::Boundary(Boundary::new(number)),
        _ => Held::Tape(Stage::new(number)),
    }
}

#[cfg(test)]
mod tests;
