//! Budgets: how much memory the activations may take.

use std::fmt;

use rekindle_plan::solvers::optimal;
use rekindle_plan::{Bytes, Plan, Profile, Rule};

use crate::{Error, memory};

/// How much memory a region's activations may take at the worst moment: its boundaries, its tapes, and the gradients as
/// they come.
///
/// ```
/// use rekindle::{Budget, Bytes};
///
/// let budgets = [Budget::bytes(Bytes::mebibytes(64)), Budget::of_plain(0.25)?, Budget::free()];
/// assert_eq!(budgets.map(|budget| budget.to_string()), ["64.0 MiB", "25% of plain's peak", "what is free"]);
/// # Ok::<(), rekindle::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    amount: Amount,
    /// What is not the region's to use.
    held: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Amount {
    Bytes(Bytes),
    OfPlain(f64),
    Free,
    Smallest,
}

/// The part of the free memory that is used when all of it is asked for: others need some as well.
const OF_FREE: f64 = 0.9;

impl Budget {
    /// So many bytes.
    pub fn bytes(bytes: Bytes) -> Self {
        Self { amount: Amount::Bytes(bytes), held: Bytes::ZERO }
    }

    /// A part of what training takes when everything is kept: 0.25 is a quarter.
    ///
    /// # Errors
    /// When it is no number from 0 to 10.
    pub fn of_plain(part: f64) -> Result<Self, Error> {
        match (0.0..=10.0).contains(&part) {
            true => Ok(Self { amount: Amount::OfPlain(part), held: Bytes::ZERO }),
            false => Err(Error::BudgetPart { found: part }),
        }
    }

    /// Nine tenths of the memory that is free when the plan is made: of the machine, or of the control group the process
    /// is in where that allows less.
    pub fn free() -> Self {
        Self { amount: Amount::Free, held: Bytes::ZERO }
    }

    /// The least that any plan can do with.
    pub fn smallest() -> Self {
        Self { amount: Amount::Smallest, held: Bytes::ZERO }
    }

    /// The same budget for more than the region: `bytes` of it are held by something else the whole time, such as
    /// weights and the optimizer's state, or a sum of gradients. A part of plain's peak is then one of both together.
    #[must_use]
    pub fn holding(mut self, bytes: Bytes) -> Self {
        self.held = bytes;
        self
    }

    /// What it comes to for a model, when `margin` of what a plan takes is to be left free.
    ///
    /// # Errors
    /// When the free memory is asked for and nobody knows it.
    pub fn resolve(self, profile: &Profile, margin: f64) -> Result<Bytes, Error> {
        let all = match self.amount {
            Amount::Bytes(bytes) => bytes,
            Amount::OfPlain(part) => {
                let plain = Plan::by_rule(profile, Rule::StoreAll, None)?.predicted.peak_bytes;
                let all = with_margin(profile, plain, 0.0).get().saturating_add(self.held.get());
                Bytes::new((all as f64 * part) as u64)
            }
            Amount::Smallest => {
                let smallest = optimal::smallest_budget(profile).map_err(Error::NoPlan)?;
                return Ok(with_margin(profile, smallest, margin));
            }
            Amount::Free => {
                let free = memory::free().ok_or(Error::NothingKnownFree)?;
                Bytes::new((free.get() as f64 * OF_FREE) as u64)
            }
        };
        Ok(all.saturating_sub(self.held))
    }
}

/// What Burn's graphs and our own lists take for a stage: nodes, handles, names. A dozen kibibytes on a model of small
/// stages, and nothing to speak of on a large one.
const BOOKKEEPING: u64 = 14 << 10;

/// The same where a model is cut into few stages, which have more nodes each, and what comes on top however few there are: scratch memory
/// of threads, nodes that the next sweep frees. A recurrence in seven or fifteen stages took up to 65 KiB more than its smallest budget
/// without it, in one run of five.
const OF_FEW: u64 = 10 << 10;
const APART: u64 = 128 << 10;

/// What so many stages take that is in no profile: nodes of Burn's graphs, handles, names. To be left free of a budget.
pub fn bookkeeping(stages: usize) -> Bytes {
    let of = |each: u64| each.saturating_mul(stages as u64);
    Bytes::new(of(BOOKKEEPING).max(of(OF_FEW).saturating_add(APART)))
}

/// What a step usually lists, of small models to a residual network of 335 stages with 15 parameters each: once, for each of its first
/// stages, and for each beyond (names, seeds, nodes), for each parameter that a stage has (its handle, its node, its place among the
/// gradients), and for each tensor that it captures (what a step of a recurrence reads: a view with its shape, wherever it is listed).
/// [`bookkeeping`] is the most that was ever seen, with nodes that wait for the next sweep and, in a plan's first step, its
/// actions once more.
const LISTED_ONCE: u64 = 16 << 10;
const LISTED_OF_FIRST: u64 = 2 << 10;
const LISTED: u64 = 256;
const FIRST: usize = 32;
const LISTED_OF_PARAMETER: u64 = 220;
const LISTED_OF_CAPTURED: u64 = 1 << 10;

/// What a step under a plan for so many stages, with so many parameters and captured tensors in all of them, usually takes beside what the
/// simulator says.
pub(crate) fn usual_bookkeeping(stages: usize, parameters: usize, captured: usize) -> Bytes {
    let first = stages.min(FIRST);
    let of = |number: usize, each: u64| each.saturating_mul(number as u64);
    let listed = [
        LISTED_ONCE,
        of(first, LISTED_OF_FIRST),
        of(stages - first, LISTED),
        of(parameters, LISTED_OF_PARAMETER),
        of(captured, LISTED_OF_CAPTURED),
    ];
    let listed = listed.into_iter().fold(0, u64::saturating_add);
    // A plan is never expected to take what it leaves free.
    Bytes::new(listed).min(bookkeeping(stages))
}

/// What is left of a budget for the profile's own bytes once bookkeeping is taken off.
pub(crate) fn without_bookkeeping(profile: &Profile, budget: Bytes) -> Bytes {
    budget.saturating_sub(bookkeeping(profile.stages().len()))
}

/// The least budget that leaves `bytes` when the margin and the bookkeeping are taken off.
pub(crate) fn with_margin(profile: &Profile, bytes: Bytes, margin: f64) -> Bytes {
    let bytes = match margin > 0.0 {
        // A few bytes more than the product: it is rounded, and the margin is never too small.
        true => (bytes.get() as f64 * (1.0 + margin) * (1.0 + 1e-9)) as u64 + 2,
        false => bytes.get(),
    };
    Bytes::new(bytes + bookkeeping(profile.stages().len()).get())
}

impl fmt::Display for Budget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.amount {
            Amount::Bytes(bytes) => bytes.fmt(formatter)?,
            Amount::OfPlain(part) => write!(formatter, "{:.0}% of plain's peak", part * 100.0)?,
            Amount::Smallest => formatter.write_str("the smallest there is a plan for")?,
            Amount::Free => formatter.write_str("what is free")?,
        }
        match self.held {
            Bytes::ZERO => Ok(()),
            held => write!(formatter, ", {held} of it held"),
        }
    }
}
