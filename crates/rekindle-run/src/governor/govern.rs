//! The governor itself: readings in, decisions out.

use std::time::Duration;

use rekindle_plan::Bytes;

use super::{
    BackOff, Change, Decision, Gauge, Ladder, Position, Pressure, Reading, Reason, Room, Rung, Short,
};

/// How to govern.
///
/// ```
/// use rekindle_plan::Bytes;
/// use rekindle_run::governor::Governing;
///
/// let governing = Governing { limit: Some(Bytes::mebibytes(512)), patience: 20, ..Governing::default() };
/// assert_eq!(governing.reserve, None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Governing {
    /// What to leave free. `None` leaves a twentieth of all memory, at most 256 MiB.
    pub reserve: Option<Bytes>,
    /// The most that a step may ever take, however much is free.
    pub limit: Option<Bytes>,
    /// For how many steps in a row a faster rung must have fitted before it is taken; 0 counts as 1.
    pub patience: u32,
    /// How much more than its budget must have been there for it, in percent of the budget.
    pub margin_percent: u32,
    /// The pressure from which on a tighter rung is taken, whatever is free.
    pub tighten_at: Pressure,
    /// The pressure from which on no faster rung is taken.
    pub hold_at: Pressure,
}

impl Default for Governing {
    fn default() -> Self {
        Self {
            reserve: None,
            limit: None,
            patience: 8,
            margin_percent: 5,
            tighten_at: Pressure::percent(10.0),
            hold_at: Pressure::percent(1.0),
        }
    }
}

impl Governing {
    /// The most that is reserved when nobody says how much.
    const MOST_RESERVED: Bytes = Bytes::mebibytes(256);

    fn reserve(&self, total: Option<Bytes>) -> Bytes {
        let part = total.map_or(Bytes::MAX, |total| Bytes::new(total.get() / 20));
        self.reserve.unwrap_or(part.min(Self::MOST_RESERVED))
    }
}

/// The limit is below the smallest rung, so nothing could ever run.
///
/// ```
/// use rekindle_plan::{Bytes, Nanos};
/// use rekindle_run::governor::{Governing, Governor, Ladder, Rung};
///
/// let rung = Rung { budget: Bytes::mebibytes(64), step_time: Nanos::new(1), plan: () };
/// let limit = Some(Bytes::mebibytes(32));
/// let error = Governor::new(Ladder::new(vec![rung])?, Governing { limit, ..Governing::default() }).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "the limit is 32.0 MiB, but the tightest plan needs 64.0 MiB; raise the limit, or add a tighter plan"
/// );
/// # Ok::<(), rekindle_run::governor::LadderError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the limit is {limit}, but the tightest plan needs {smallest}; raise the limit, or add a tighter plan"
)]
pub struct LimitTooSmall {
    /// The limit.
    pub limit: Bytes,
    /// What the smallest rung takes.
    pub smallest: Bytes,
}

/// Chooses the rung of every step. See the [module's page](crate::governor).
///
/// ```
/// use rekindle_plan::{Bytes, Nanos};
/// use rekindle_run::governor::{Gauge, Governing, Governor, Ladder, Rung, SystemMemory};
///
/// let rung = |budget, time, plan| Rung { budget: Bytes::new(budget), step_time: Nanos::new(time), plan };
/// let ladder = Ladder::new(vec![rung(1_000, 9, "tight"), rung(2_000, 5, "fast")])?;
/// let mut governor = Governor::new(ladder, Governing::default())?;
/// let mut gauge = SystemMemory::new();
///
/// for _step in 0..3 {
///     let decision = governor.next(&gauge.read(), Bytes::ZERO);
///     if let Some(change) = decision.change {
///         eprintln!("{change}");
///     }
///     let _run = governor.rung(decision.rung).plan;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Governor<P> {
    ladder: Ladder<P>,
    governing: Governing,
    /// The rung of the last step; `None` before the first.
    current: Option<usize>,
    /// How many decisions were asked for.
    step: u64,
    spare: Spare,
    /// For how many steps pressure must be looked at before it counts again.
    settling: u32,
}

/// For how long there has been room for a faster rung.
#[derive(Clone, Copy, Debug, Default)]
struct Spare {
    steps: u32,
    /// The fastest that fitted in all of them.
    rung: usize,
}

impl<P> Governor<P> {
    /// A governor that has decided nothing yet.
    ///
    /// # Errors
    /// When the limit is below the smallest rung.
    ///
    /// ```
    /// # use rekindle_plan::{Bytes, Nanos};
    /// # use rekindle_run::governor::{Governing, Governor, Ladder, Rung};
    /// # let rung = Rung { budget: Bytes::new(1), step_time: Nanos::new(1), plan: () };
    /// let governor = Governor::new(Ladder::new(vec![rung])?, Governing::default())?;
    /// assert_eq!(governor.current(), None);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(ladder: Ladder<P>, governing: Governing) -> Result<Self, LimitTooSmall> {
        let smallest = ladder.rungs()[0].budget;
        if let Some(limit) = governing.limit.filter(|limit| *limit < smallest) {
            return Err(LimitTooSmall { limit, smallest });
        }
        Ok(Self { ladder, governing, current: None, step: 0, spare: Spare::default(), settling: 0 })
    }

    /// The ladder.
    ///
    /// ```
    /// # use rekindle_plan::{Bytes, Nanos};
    /// # use rekindle_run::governor::{Governing, Governor, Ladder, Rung};
    /// # let rung = Rung { budget: Bytes::new(1), step_time: Nanos::new(1), plan: () };
    /// let governor = Governor::new(Ladder::new(vec![rung])?, Governing::default())?;
    /// assert_eq!(governor.ladder().rungs().len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn ladder(&self) -> &Ladder<P> {
        &self.ladder
    }

    /// The rung of a number; the fastest for one that is too high.
    ///
    /// ```
    /// # use rekindle_plan::{Bytes, Nanos};
    /// # use rekindle_run::governor::{Governing, Governor, Ladder, Rung};
    /// # let rung = Rung { budget: Bytes::new(1), step_time: Nanos::new(1), plan: "only" };
    /// let governor = Governor::new(Ladder::new(vec![rung])?, Governing::default())?;
    /// assert_eq!(governor.rung(0).plan, "only");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rung(&self, rung: usize) -> &Rung<P> {
        let rungs = self.ladder.rungs();
        &rungs[rung.min(rungs.len() - 1)]
    }

    /// The rung of the last decision; `None` before the first.
    ///
    /// ```
    /// # use rekindle_plan::{Bytes, Nanos};
    /// # use rekindle_run::governor::{Governing, Governor, Ladder, Reading, Rung};
    /// # let rung = Rung { budget: Bytes::new(1), step_time: Nanos::new(1), plan: () };
    /// let mut governor = Governor::new(Ladder::new(vec![rung])?, Governing::default())?;
    /// let _ = governor.next(&Reading::default(), Bytes::ZERO);
    /// assert_eq!(governor.current(), Some(0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn current(&self) -> Option<usize> {
        self.current
    }

    /// Which rung the next step runs on. Called between steps, with what is free *now*.
    ///
    /// `held` is what the process still holds of the last step and the next one will use again, so that the reading does
    /// not count it as free: a pool's memory, or an allocator's that keeps what is freed. It is zero where activations
    /// went back to the system when the step was over.
    ///
    /// When the reading is unknown the governor stays where it is, and starts on the fastest rung within the limit.
    ///
    /// ```
    /// # use rekindle_plan::{Bytes, Nanos};
    /// # use rekindle_run::governor::{Governing, Governor, Ladder, Reading, Rung, Short};
    /// # let rung = |budget, time| Rung { budget: Bytes::new(budget), step_time: Nanos::new(time), plan: () };
    /// # let ladder = Ladder::new(vec![rung(10, 9), rung(20, 5)])?;
    /// let mut governor = Governor::new(ladder, Governing { reserve: Some(Bytes::ZERO), ..Governing::default() })?;
    /// assert_eq!(governor.next(&Reading::free(Bytes::new(20)), Bytes::ZERO).rung, 1);
    /// // The pool keeps the 20 bytes of the last step; the next one takes them again.
    /// assert_eq!(governor.next(&Reading::free(Bytes::new(0)), Bytes::new(20)).rung, 1);
    /// // Someone else took them.
    /// let decision = governor.next(&Reading::free(Bytes::new(8)), Bytes::ZERO);
    /// assert_eq!(decision.rung, 0);
    /// assert_eq!(decision.short, Some(Short { needed: Bytes::new(10), free: Bytes::new(8) }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next(&mut self, reading: &Reading, held: Bytes) -> Decision {
        self.step = self.step.saturating_add(1);
        let room = reading.free.map(|_| Room::new(reading, held, self.governing.reserve(reading.total)));
        let usable = room.map_or(Bytes::MAX, |room| room.usable());
        let smallest = self.rung(0).budget;
        let short = (usable < smallest).then_some(Short { needed: smallest, free: usable });

        let fits = self.fastest_within(usable, 0);
        let (to, reason) = match self.current {
            None => self.first(fits, room, reading.pressure),
            Some(current) => self.move_from(current, fits, room, reading.pressure),
        };
        let from = self.current.replace(to);
        let change = (from != Some(to)).then(|| Change {
            step: self.step,
            from: from.map(|rung| self.position(rung)),
            to: self.position(to),
            reason,
        });
        Decision { rung: to, change, short }
    }

    /// The same, and while not even the smallest rung fits, it waits and looks again as long as `back_off` allows. What
    /// it says in the end may still be short.
    ///
    /// `sleep` is [`std::thread::sleep`], or a way to wait that can be interrupted. The waits are no steps: they do not
    /// count for patience.
    ///
    /// ```
    /// # use rekindle_plan::{Bytes, Nanos};
    /// # use rekindle_run::governor::{BackOff, DeviceMemory, Governing, Governor, Ladder, Rung};
    /// # let rung = Rung { budget: Bytes::new(10), step_time: Nanos::new(1), plan: () };
    /// # let governing = Governing { reserve: Some(Bytes::ZERO), ..Governing::default() };
    /// let mut governor = Governor::new(Ladder::new(vec![rung])?, governing)?;
    /// // Memory comes back after a while.
    /// let mut free = [3, 3, 30].into_iter().map(Bytes::new);
    /// let mut gauge = DeviceMemory::new(|| free.next().map(|free| (free, Bytes::new(40))));
    /// let mut waits = 0;
    /// let decision = governor.next_waiting(&mut gauge, Bytes::ZERO, BackOff::default(), |_| waits += 1);
    /// assert_eq!((decision.short, waits), (None, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_waiting(
        &mut self,
        gauge: &mut dyn Gauge,
        held: Bytes,
        back_off: BackOff,
        mut sleep: impl FnMut(Duration),
    ) -> Decision {
        let mut reading = gauge.read();
        for wait in back_off {
            let room = reading.free.map(|_| Room::new(&reading, held, self.governing.reserve(reading.total)));
            if room.is_none_or(|room| room.usable() >= self.rung(0).budget) {
                break;
            }
            sleep(wait);
            reading = gauge.read();
        }
        self.next(&reading, held)
    }

    /// There is no history before the first step: the fastest that fits, and one less under pressure.
    fn first(&mut self, fits: usize, room: Option<Room>, pressure: Option<Pressure>) -> (usize, Reason) {
        match self.pressed(pressure) {
            Some(reason) if fits > 0 => (fits - 1, reason),
            _ => (fits, Reason::Start { room }),
        }
    }

    fn move_from(
        &mut self,
        current: usize,
        fits: usize,
        room: Option<Room>,
        pressure: Option<Pressure>,
    ) -> (usize, Reason) {
        let stay = (current, Reason::Start { room });
        if fits < current
            && let Some(room) = room
        {
            self.spare = Spare::default();
            return (fits, Reason::NoRoom { room });
        }
        if let Some(reason) = self.pressed(pressure) {
            return (current.saturating_sub(1), reason);
        }
        // Unknown is no news: it neither adds to what was seen nor takes away from it.
        let Some(room) = room else { return stay };
        let roomy = self.fastest_within(room.usable(), self.governing.margin_percent);
        if roomy <= current || pressure.is_some_and(|pressure| pressure >= self.governing.hold_at) {
            self.spare = Spare::default();
            return stay;
        }
        let rung = if self.spare.steps == 0 { roomy } else { self.spare.rung.min(roomy) };
        let steps = self.spare.steps.saturating_add(1);
        if steps < self.governing.patience {
            self.spare = Spare { steps, rung };
            return stay;
        }
        self.spare = Spare::default();
        (rung, Reason::Spare { room, steps })
    }

    /// Why to go tighter, when programs wait for memory. What Linux tells is a mean over ten seconds, so that the last
    /// move is given some steps to show before pressure counts again.
    fn pressed(&mut self, pressure: Option<Pressure>) -> Option<Reason> {
        self.settling = self.settling.saturating_sub(1);
        let allowed = self.governing.tighten_at;
        let found = pressure.filter(|found| *found >= allowed && *found > Pressure::NONE)?;
        self.spare = Spare::default();
        if self.settling > 0 {
            return None;
        }
        self.settling = self.governing.patience.max(1);
        Some(Reason::Pressure { found, allowed })
    }

    /// The fastest rung within the limit that takes at most `usable` and `margin_percent` more; the smallest when none
    /// does.
    fn fastest_within(&self, usable: Bytes, margin_percent: u32) -> usize {
        let limit = self.governing.limit.unwrap_or(Bytes::MAX);
        let fits = |rung: &Rung<P>| {
            let with_margin = u128::from(rung.budget.get()) * (100 + u128::from(margin_percent));
            rung.budget <= limit && with_margin <= u128::from(usable.get()) * 100
        };
        self.ladder.rungs().partition_point(fits).saturating_sub(1)
    }

    fn position(&self, rung: usize) -> Position {
        let Rung { budget, step_time, .. } = self.rung(rung);
        Position { rung, budget: *budget, step_time: *step_time }
    }
}
