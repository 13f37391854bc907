//! Multi-level: boundaries in slots on the device, and in slower places such as host memory and disk.
//!
//! H-Revolve (Herrmann and Pallez 2020) and Disk-Revolve (Aupy, Herrmann, Hovland and Robert 2016), for stages that
//! differ in nothing, when a write or a read stops everything else (*blocking*). What counts is forwards without a tape
//! and transfers; taping and going back cost the same in every plan. With `O_0(n)` revolve's cost on the device alone,
//! and for each level `k` from the fastest tier to the slowest, `m` of its slots free:
//!
//! ```text
//! P_k[m](n) = min( O_(k-1)(n),   min over 0 < i < n of  i f + O_k[m-1](n-i) + read_k + P_k[m](i) )    x is in a slot of k
//! O_k[m](n) = min( O_(k-1)(n),   write_k + P_k[m](n) )                                                x is not
//! O_k[0]    = O_(k-1)            O_k = O_k[slots of k]
//! ```
//!
//! A backward takes part in no choice, so it cannot be mistaken for a forward. In a plan transfers run beside the
//! computation, and the simulator counts what is really waited for: the cost here is an upper bound.
//! See `docs/solvers/multi-level.md`.

mod table;

use std::time::Instant;

use super::revolve::{self, check, too_long};
use super::slots::{self, Counted, Tried};
use crate::rules::MOST_ACTIONS;
use crate::{Action, Boundary, Bytes, Name, Nanos, Plan, Profile, Request, SolveError, Stage, Tier};
use table::Table;

/// The solver's name, on the command line and in plans.
pub const NAME: &str = "multi-level";

/// The name of [`solve_disk_revolve`], on the command line and in plans.
pub const DISK_REVOLVE: &str = "disk-revolve";

/// What the stages of a uniform chain and its transfers cost, in one unit of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    /// One forward, taped or not.
    pub forward: u64,
    /// One backward.
    pub backward: u64,
    /// How many boundaries the device keeps at once.
    pub slots: u32,
    /// The slower places, fastest first.
    pub levels: Vec<Level>,
}

/// One of the slower places for boundaries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// The tier's name in plans.
    pub tier: Name,
    /// How many boundaries it holds.
    pub slots: u32,
    /// To move a boundary there.
    pub write: u64,
    /// To bring one back.
    pub read: u64,
}

/// A schedule and what it costs when every transfer blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocking {
    /// What to do.
    pub actions: Vec<Action>,
    /// All forwards, backwards, writes and reads, one after the other.
    pub cost: u64,
    /// Whether no plan of the recurrence is cheaper. Not so when a long chain made the solver leave slots unused, or
    /// costs do not fit into 64 bits.
    pub optimal: bool,
}

/// H-Revolve: the cheapest schedule for `stages` on all levels.
///
/// ```
/// use rekindle_plan::solvers::multi_level::{Costs, Level, h_revolve};
///
/// let disk = Level { tier: "disk".parse()?, slots: 10, write: 5, read: 5 };
/// let costs = Costs { forward: 1, backward: 0, slots: 3, levels: vec![disk] };
/// assert_eq!(h_revolve(100, &costs)?.cost, 425);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When there is no stage, no slot for more than one stage, or the schedule would be too long to hold.
pub fn h_revolve(stages: usize, costs: &Costs) -> Result<Blocking, SolveError> {
    schedule(NAME, stages, costs, Table::bounded)
}

/// Disk-Revolve: the cheapest schedule for `stages` with as many boundaries in the one slower place as it likes.
///
/// Boundaries go there in the forward half only, in one pass. Only the last of the levels is used, and its slots are
/// not counted.
///
/// ```
/// use rekindle_plan::solvers::multi_level::{Costs, Level, disk_revolve};
///
/// let disk = Level { tier: "disk".parse()?, slots: 0, write: 5, read: 5 };
/// let costs = Costs { forward: 1, backward: 2, slots: 3, levels: vec![disk] };
/// let found = disk_revolve(100, &costs)?;
/// assert!(found.cost <= 425 + 200);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When there is no stage, no level, no slot for more than one stage, or the schedule would be too long to hold.
pub fn disk_revolve(stages: usize, costs: &Costs) -> Result<Blocking, SolveError> {
    let Some(level) = costs.levels.last() else { return Err(no_tier(DISK_REVOLVE)) };
    let one = Costs { levels: vec![level.clone()], ..costs.clone() };
    schedule(DISK_REVOLVE, stages, &one, Table::one_pass)
}

/// The H-Revolve plan for a profile and its tiers: with the slots of the request on the device, or the fastest whose
/// peak there is within its budget.
///
/// The tiers are used from the fastest to the slowest, each for as many boundaries of the largest size as it holds.
/// Costs are those of the mean stage and the largest boundary. The status is `feasible`, with the gap to running
/// everything once: the recurrence is optimal for blocking transfers, while those of a plan overlap.
///
/// ```
/// use rekindle_plan::solvers::multi_level;
/// use rekindle_plan::{Bytes, Nanos, Profile, Request, StageProfile, Tier};
///
/// let stages = (0..30).map(|i| StageProfile {
///     name: format!("block.{i}"),
///     output_bytes: Bytes::new(1),
///     tape_bytes: Bytes::new(8),
///     forward_ns: Nanos::new(10),
///     backward_ns: Nanos::new(20),
///     ..StageProfile::default()
/// });
/// let host = Tier {
///     name: "host".parse()?,
///     capacity_bytes: Bytes::new(5),
///     write_bytes_per_second: 1_000_000_000,
///     read_bytes_per_second: 1_000_000_000,
/// };
/// let profile = Profile::new("thirty", "none", Bytes::new(1), stages.collect())?.with_places(vec![host], vec![])?;
/// let request = Request::with_slots(2);
/// let plan = multi_level::solve(&profile, &request)?;
/// let alone = rekindle_plan::solvers::revolve::solve(&profile, &request)?;
/// assert!(plan.predicted.step_ns < alone.predicted.step_ns);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When the profile has no tier, neither slots nor a budget are given, nothing fits, a pinned stage would run twice, or
/// the schedule would be too long to hold.
pub fn solve(profile: &Profile, request: &Request) -> Result<Plan, SolveError> {
    Way::HRevolve.counted(profile, request, |counted| counted.solve())?
}

/// The Disk-Revolve plan for a profile: the device and its largest tier, which must have room for all the plan puts
/// there.
///
/// ```
/// use rekindle_plan::solvers::multi_level;
/// use rekindle_plan::{Bytes, Profile, Request, SolveError, StageProfile};
///
/// let stage = StageProfile { name: "block".into(), ..StageProfile::default() };
/// let profile = Profile::new("one", "none", Bytes::new(1), vec![stage])?;
/// let error = multi_level::solve_disk_revolve(&profile, &Request::with_slots(2)).unwrap_err();
/// assert!(matches!(error, SolveError::NoTier { .. }));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// As for [`solve`]; and when the tier is too small.
pub fn solve_disk_revolve(profile: &Profile, request: &Request) -> Result<Plan, SolveError> {
    Way::DiskRevolve.counted(profile, request, |counted| counted.solve())?
}

/// One of the two recurrences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    HRevolve,
    DiskRevolve,
}

impl Way {
    /// What each number of slots that is worth trying comes to, for as long as there is time.
    pub(super) fn every(self, profile: &Profile, until: Instant) -> Vec<Tried> {
        self.counted(profile, &Request::default(), |counted| counted.every(until)).unwrap_or_default()
    }

    /// The schedule with so many slots on the device.
    pub(super) fn actions(self, profile: &Profile, slots: u32) -> Result<Vec<Action>, SolveError> {
        self.counted(profile, &Request::default(), |counted| (counted.actions)(slots))?
    }

    fn counted<R>(
        self,
        profile: &Profile,
        request: &Request,
        then: impl FnOnce(&Counted<'_>) -> R,
    ) -> Result<R, SolveError> {
        let tiers = self.tiers(profile);
        let name = match self {
            Self::HRevolve => NAME,
            Self::DiskRevolve => DISK_REVOLVE,
        };
        if tiers.is_empty() {
            return Err(no_tier(name));
        }
        let stages = profile.stages().len();
        let costs = Costs::of(profile, &tiers);
        let elsewhere = costs.levels.iter().any(|level| level.slots > 0);
        let counted = Counted {
            name,
            profile,
            request,
            // With a tier, the device needs no slot of its own.
            least: u32::from(!elsewhere && stages > 1),
            most: slots::useful(stages),
            // Overlapped transfers can make a plan that is dearer by the recurrence the faster one.
            falling: false,
            costly: true,
            actions: &|slots| {
                let costs = Costs { slots, ..costs.clone() };
                let found = match self {
                    Self::HRevolve => h_revolve(stages, &costs),
                    Self::DiskRevolve => within_the_tier(disk_revolve(stages, &costs)?, &costs),
                };
                found.map(|found| found.actions)
            },
            proven: &|_, _| false,
        };
        Ok(then(&counted))
    }

    /// The tiers it uses.
    fn tiers(self, profile: &Profile) -> Vec<&Tier> {
        let tiers = profile.tiers().iter();
        // Of two equally large the faster.
        let size = |tier: &&Tier| {
            let speed = tier.write_bytes_per_second.min(tier.read_bytes_per_second);
            (tier.capacity_bytes, speed, std::cmp::Reverse(tier.name.clone()))
        };
        match self {
            Self::HRevolve => tiers.collect(),
            Self::DiskRevolve => tiers.max_by_key(size).into_iter().collect(),
        }
    }
}

/// Disk-Revolve does not count what it puts into its tier: refused when that is too much.
fn within_the_tier(found: Blocking, costs: &Costs) -> Result<Blocking, SolveError> {
    let (mut there, mut most) = (0u32, 0u32);
    for action in &found.actions {
        match action {
            Action::Offload { .. } => there += 1,
            Action::Drop { place: Some(_), .. } => there = there.saturating_sub(1),
            _ => {}
        }
        most = most.max(there);
    }
    let room = costs.levels.first().map_or(0, |level| level.slots);
    if most <= room {
        return Ok(found);
    }
    Err(SolveError::NoTier {
        solver: DISK_REVOLVE,
        needed: "a tier with room for all it puts there (`multi-level` makes do with less)",
        found: format!("room for {room} boundaries where it needs {most}"),
    })
}

fn no_tier(solver: &'static str) -> SolveError {
    SolveError::NoTier { solver, needed: "a tier", found: "none".to_owned() }
}

impl Costs {
    /// Of a profile with these tiers and no slot on the device: the mean stage, the largest boundary that may be moved.
    fn of(profile: &Profile, tiers: &[&Tier]) -> Self {
        let stages = profile.stages();
        let count = stages.len() as u64;
        let mean = |times: Nanos| times.get().div_ceil(count.max(1));
        let largest = (0..stages.len())
            .filter_map(|number| profile.boundary_bytes(Boundary::new(u32::try_from(number).ok()?)))
            .max()
            .unwrap_or_default();
        let time = |speed| Nanos::to_move(largest, speed).map_or(u64::MAX, Nanos::get);
        let mut levels: Vec<Level> = tiers
            .iter()
            .map(|tier| Level {
                tier: tier.name.clone(),
                slots: room(tier.capacity_bytes, largest),
                write: time(tier.write_bytes_per_second),
                read: time(tier.read_bytes_per_second),
            })
            .collect();
        levels.sort_by_key(|level| level.write.saturating_add(level.read));
        Self {
            forward: mean(stages.iter().map(|stage| stage.forward_ns).sum()),
            backward: mean(stages.iter().map(|stage| stage.backward_ns).sum()),
            slots: 0,
            levels,
        }
    }
}

/// How many boundaries of a size fit.
fn room(capacity: Bytes, boundary: Bytes) -> u32 {
    let count = capacity.get().checked_div(boundary.get());
    count.and_then(|count| u32::try_from(count).ok()).unwrap_or(u32::MAX)
}

/// What is left to do.
enum Task {
    /// Go back through stages from a boundary that is on the device and in no slot, with what is free at this level
    /// and all that is below.
    Open { level: usize, free: u32, start: u32, stages: u32 },
    /// The same, for a boundary that is also in a slot of this level, which is among those free.
    Stored { level: usize, free: u32, start: u32, stages: u32 },
    /// Bring back the boundary of the task below.
    Fetch { level: usize, start: u32 },
}

fn schedule(
    name: &'static str,
    stages: usize,
    costs: &Costs,
    table: fn(&[u64], u64, &Level) -> Table,
) -> Result<Blocking, SolveError> {
    let (count, _) = check(name, stages, 1, Some(stages as u64))?;
    // Level 0 is the device: revolve's forwards, less the taped ones.
    let mut cost: Vec<u64> = (0..=count)
        .map(|length| {
            let untaped = revolve::forwards(length as usize, costs.slots).map(|all| all - u64::from(length));
            match (length, untaped) {
                (0, _) => 0,
                (_, None) => table::NEVER,
                (_, Some(untaped)) => untaped.saturating_mul(costs.forward).min(table::NEVER),
            }
        })
        .collect();
    let mut tables = Vec::with_capacity(costs.levels.len());
    for level in &costs.levels {
        let table = table(&cost, costs.forward, level);
        cost.clone_from(&table.cost);
        tables.push(table);
    }
    let untaped = cost[count as usize];
    if untaped >= table::NEVER && costs.slots == 0 && count > 1 {
        return Err(SolveError::TooFewSlots { solver: name, slots: 0, least: 1, stages });
    }
    let once = costs.forward.saturating_add(costs.backward).saturating_mul(u64::from(count));
    let optimal = untaped < table::NEVER && tables.iter().all(|table| table.exact);
    let actions = emit(name, count, costs, &tables)?;
    Ok(Blocking { actions, cost: untaped.saturating_add(once), optimal })
}

fn emit(name: &'static str, count: u32, costs: &Costs, tables: &[Table]) -> Result<Vec<Action>, SolveError> {
    let slots_of = |level: usize| level.checked_sub(1).map_or(costs.slots, |at| tables[at].slots);
    let tier_of = |level: usize| costs.levels[level - 1].tier.clone();
    let too_many = |needed: u128| too_long(name, count as usize, Some(needed));
    let mut actions = Vec::new();
    let top = tables.len();
    let mut tasks = vec![Task::Open { level: top, free: slots_of(top), start: 0, stages: count }];
    while let Some(task) = tasks.pop() {
        if actions.len() > MOST_ACTIONS {
            return Err(too_many(actions.len() as u128));
        }
        match task {
            Task::Open { level: 0, free, start, stages } => {
                let (_, needed) =
                    check(name, stages as usize, free, revolve::forwards(stages as usize, free))?;
                if actions.len() + needed > MOST_ACTIONS {
                    return Err(too_many((actions.len() + needed) as u128));
                }
                revolve::segment(&mut actions, start, stages, free, false);
            }
            Task::Open { level, free, start, stages } => {
                if tables[level - 1].stores(free, stages) {
                    let boundary = Boundary::new(start);
                    actions.push(Action::Offload { boundary, tier: tier_of(level) });
                    tasks.push(Task::Stored { level, free, start, stages });
                } else {
                    tasks.push(Task::Open { level: level - 1, free: slots_of(level - 1), start, stages });
                }
            }
            Task::Stored { level, free, start, stages } => {
                let left = tables[level - 1].left(free, stages);
                if left == 0 {
                    let (boundary, place) = (Boundary::new(start), Some(tier_of(level)));
                    actions.push(Action::Drop { boundary, place });
                    tasks.push(Task::Open { level: level - 1, free: slots_of(level - 1), start, stages });
                } else {
                    let forwards = start + 1..=start + left;
                    actions.extend(forwards.map(|number| Action::forward(Stage::new(number))));
                    let again = tables[level - 1].again(free);
                    tasks.push(Task::Stored { level, free: again, start, stages: left });
                    tasks.push(Task::Fetch { level, start });
                    tasks.push(Task::Open {
                        level,
                        free: tables[level - 1].fewer(free),
                        start: start + left,
                        stages: stages - left,
                    });
                }
            }
            Task::Fetch { level, start } => {
                actions.push(Action::Fetch { boundary: Boundary::new(start), place: tier_of(level) });
            }
        }
    }
    Ok(actions)
}
