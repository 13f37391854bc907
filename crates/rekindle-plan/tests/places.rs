//! The optimum with tiers and codecs against exhaustive search over its class.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod chains;

use std::collections::HashMap;
use std::rc::Rc;

use chains::{LEVELS, any_places, name};
use proptest::prelude::*;
use rekindle_plan::solvers::optimal;
use rekindle_plan::{
    Action, Boundary, Bytes, Name, Nanos, Profile, Request, SolveError, Stage, Status, Tier, simulate,
};

/// What happens with the input of a sweep while what follows is done.
#[derive(Clone, Debug)]
enum Place {
    Device,
    Codec(Name),
    /// Fetched before the last backward of what follows, or after it.
    Tier(Name, bool),
}

/// A tree of choices: the plan, before it is written out.
#[derive(Clone, Debug)]
enum Tree {
    Tape(Option<Name>, Option<Rc<Tree>>),
    Sweep(u32, Place, Rc<Tree>, Rc<Tree>),
}

fn every_tree(profile: &Profile, first: u32, last: u32, taped: bool) -> Vec<Tree> {
    let mut all = Vec::new();
    let options = &profile.stages()[first as usize - 1].options;
    for option in [None].into_iter().chain(options.iter().map(|option| Some(option.name.clone()))) {
        match first == last {
            true => all.push(Tree::Tape(option, None)),
            false => {
                let rests = every_tree(profile, first + 1, last, true).into_iter();
                all.extend(rests.map(|rest| Tree::Tape(option.clone(), Some(Rc::new(rest)))));
            }
        }
    }
    let places = every_place(profile, taped);
    for middle in first + 1..=last {
        let afters = every_tree(profile, middle, last, false);
        let befores = every_tree(profile, first, middle - 1, taped);
        for place in &places {
            for after in &afters {
                for before in &befores {
                    let (after, before) = (Rc::new(after.clone()), Rc::new(before.clone()));
                    all.push(Tree::Sweep(middle, place.clone(), after, before));
                }
            }
        }
    }
    all
}

fn every_place(profile: &Profile, taped: bool) -> Vec<Place> {
    let mut places = vec![Place::Device];
    // What a tape includes stays on the device whatever is done.
    if !taped {
        places.extend(profile.codecs().iter().map(|codec| Place::Codec(codec.name.clone())));
        for tier in profile.tiers() {
            places.extend([true, false].map(|early| Place::Tier(tier.name.clone(), early)));
        }
    }
    places
}

#[derive(Default)]
struct Writer {
    actions: Vec<Action>,
    kept: Vec<Boundary>,
    copies: Vec<(Boundary, Name)>,
}

impl Writer {
    fn read(&mut self, boundary: Boundary) {
        if let Some(at) = self.copies.iter().position(|copy| copy.0 == boundary) {
            let (boundary, place) = self.copies.remove(at);
            self.actions.push(Action::Drop { boundary, place: Some(place) });
        }
    }

    fn write(&mut self, tree: &Tree, first: u32, arriving: Option<(Boundary, Name)>) {
        let stage = Stage::new(first);
        let input = stage.input();
        match tree {
            Tree::Tape(option, rest) => {
                self.actions.push(Action::Tape { stage, option: option.clone() });
                self.read(input);
                if let Some(at) = self.kept.iter().position(|boundary| *boundary == input) {
                    self.kept.remove(at);
                    self.actions.push(Action::drop(input));
                }
                if let Some(rest) = rest {
                    self.write(rest, first + 1, None);
                }
                if let Some((boundary, place)) = arriving {
                    self.actions.push(Action::Fetch { boundary, place: place.clone() });
                    self.copies.push((boundary, place));
                }
                self.actions.push(Action::backward(stage));
            }
            Tree::Sweep(middle, place, after, before) => {
                if !self.kept.contains(&input) {
                    self.kept.push(input);
                    self.actions.push(Action::keep(input));
                }
                if let Place::Tier(tier, _) = place {
                    self.read(input);
                    self.actions.push(Action::Offload { boundary: input, tier: tier.clone() });
                }
                for number in first..*middle {
                    self.actions.push(Action::forward(Stage::new(number)));
                    self.read(input);
                }
                if let Place::Codec(codec) = place {
                    self.actions.push(Action::Compress { boundary: input, codec: codec.clone() });
                }
                if !matches!(place, Place::Device) {
                    self.actions.push(Action::drop(input));
                    self.kept.retain(|boundary| *boundary != input);
                }
                match place {
                    Place::Tier(tier, true) => self.write(after, *middle, Some((input, tier.clone()))),
                    Place::Tier(place, false) | Place::Codec(place) => {
                        self.write(after, *middle, None);
                        self.actions.push(Action::Fetch { boundary: input, place: place.clone() });
                        self.actions.push(Action::Drop { boundary: input, place: Some(place.clone()) });
                    }
                    Place::Device => self.write(after, *middle, None),
                }
                self.write(before, first, arriving);
            }
        }
    }
}

/// What the simulator says of a tree: its peak and its time.
fn judged(profile: &Profile, tree: &Tree) -> Option<(Bytes, Nanos)> {
    let mut writer = Writer::default();
    writer.write(tree, 1, None);
    simulate(profile, &writer.actions).ok().map(|found| (found.peak_bytes, found.step_ns))
}

fn exhaustive_frontier(profile: &Profile) -> Vec<(Bytes, Nanos)> {
    let trees = every_tree(profile, 1, profile.stages().len() as u32, false);
    falling(trees.iter().filter_map(|tree| judged(profile, tree)).collect())
}

/// The points at which the time falls.
fn falling(mut points: Vec<(Bytes, Nanos)>) -> Vec<(Bytes, Nanos)> {
    points.sort_unstable();
    let mut frontier: Vec<(Bytes, Nanos)> = Vec::new();
    for point in points {
        if frontier.last().is_none_or(|last| point.1 < last.1) {
            frontier.push(point);
        }
    }
    frontier
}

/// What a tree takes beside its input. Several trees together take what each takes alone, so the best of a run of stages
/// are remembered: a tree that is worse than another in everything is in no best plan.
#[derive(Clone, Debug)]
struct Outcome {
    /// Bytes at the worst moment. Negative when the input is moved away.
    peak: i64,
    time: u64,
    /// Bytes in each tier, at most.
    used: Vec<u64>,
    tree: Rc<Tree>,
}

/// A boundary that comes back during the last backward of a run of stages: its bytes, and how long it takes.
type Arriving = Option<(u64, u64)>;

/// Every tree of a profile, by the run of stages it is for.
struct Search<'a> {
    profile: &'a Profile,
    known: HashMap<(u32, u32, bool, Arriving), Rc<Vec<Outcome>>>,
}

impl<'a> Search<'a> {
    fn new(profile: &'a Profile) -> Self {
        assert!(profile.stages().iter().all(|stage| !stage.pinned));
        Self { profile, known: HashMap::new() }
    }

    fn boundary(&self, number: u32) -> u64 {
        match number.checked_sub(1) {
            None => self.profile.input_bytes().get(),
            Some(stage) => self.profile.stages()[stage as usize].output_bytes.get(),
        }
    }

    fn gradient(&self, number: u32) -> u64 {
        self.profile.gradient_bytes(Boundary::new(number)).unwrap().get()
    }

    /// The gradient that waits while stages up to `last` run forward: none before the turn.
    fn waiting(&self, last: u32) -> u64 {
        if last as usize == self.profile.stages().len() { 0 } else { self.gradient(last) }
    }

    fn tape(
        &self,
        ends: (u32, u32),
        option: Option<&Name>,
        rest: Option<&Outcome>,
        arriving: Arriving,
    ) -> Outcome {
        let (first, last) = ends;
        let stage = &self.profile.stages()[first as usize - 1];
        let option = option.map(|name| stage.options.iter().find(|option| option.name == *name).unwrap());
        let (tape, forward, backward) = match option {
            None => (stage.taped_bytes(), stage.forward_ns, stage.backward_ns),
            Some(option) => (stage.taped_bytes_under(Some(option)), option.forward_ns, option.backward_ns),
        };
        let of_option = option.and_then(|option| option.taped_extra_bytes).or(stage.taped_extra_bytes);
        let extra = of_option.unwrap_or(stage.forward_extra_bytes);
        let running = tape.get() + extra.get() + self.waiting(last);
        let back = tape.get() + stage.backward_workspace_under(option).get() + self.gradient(first);
        let arrives = arriving.map_or(0, |(bytes, _)| bytes);
        let held = rest.map_or(0, |rest| tape.get() as i64 + rest.peak);
        let wait = arriving.map_or(0, |(_, read)| read.saturating_sub(backward.get()));
        // Nobody reads the last output of a piece that goes back for itself.
        let unread = rest.is_none() && first == last && (last as usize) < self.profile.stages().len();
        let saved = if unread { stage.unread_ns.get() } else { 0 };
        let time = forward.get() - saved + backward.get() + wait + rest.map_or(0, |rest| rest.time);
        Outcome {
            peak: held.max(running as i64).max((back + arrives) as i64),
            time,
            used: rest.map_or(vec![0; self.profile.tiers().len()], |rest| rest.used.clone()),
            tree: Rc::new(Tree::Tape(
                option.map(|option| option.name.clone()),
                rest.map(|rest| rest.tree.clone()),
            )),
        }
    }

    /// What arrives when the boundary before `first` was moved to this place.
    fn arriving(&self, first: u32, place: &Place) -> Arriving {
        let Place::Tier(name, true) = place else { return None };
        let tier = self.profile.tiers().iter().find(|tier| tier.name == *name).unwrap();
        let bytes = self.boundary(first - 1);
        Some((bytes, Nanos::to_move(Bytes::new(bytes), tier.read_bytes_per_second).unwrap().get()))
    }

    /// A sweep from `first` to the input of `middle`; `None` when a tier is too small.
    fn sweep(
        &self,
        ends: (u32, u32),
        middle: u32,
        place: &Place,
        after: &Outcome,
        before: &Outcome,
    ) -> Option<Outcome> {
        let (first, last) = ends;
        let (input, kept) = (self.boundary(first - 1), self.boundary(middle - 1));
        let to_move = |speed: u64| Nanos::to_move(Bytes::new(input), speed).unwrap().get();
        let runs = (first..middle).map(|number| {
            let stage = &self.profile.stages()[number as usize - 1];
            let reads = if number == first { 0 } else { self.boundary(number - 1) };
            reads + stage.output_bytes.get() + stage.forward_extra_bytes.get() + self.waiting(last)
        });
        let mut worst = runs.max().unwrap() as i64;
        let stages = &self.profile.stages()[first as usize - 1..middle as usize - 1];
        let mut time = stages.iter().map(|stage| stage.forward_ns.get()).sum::<u64>();
        let mut used = after.used.clone();
        let mut left = 0;
        match place {
            Place::Device => {}
            Place::Codec(name) => {
                let codec = self.profile.codecs().iter().find(|codec| codec.name == *name).unwrap();
                let small = codec.compressed(Bytes::new(input)).unwrap().get();
                left = input as i64 - small as i64;
                worst = worst.max((kept + small + self.waiting(last)) as i64);
                worst = worst.max((self.gradient(middle - 1) + small) as i64);
                time += to_move(codec.compress_bytes_per_second) + to_move(codec.restore_bytes_per_second);
            }
            Place::Tier(name, early) => {
                let index = self.profile.tiers().iter().position(|tier| tier.name == *name).unwrap();
                let tier = &self.profile.tiers()[index];
                left = input as i64;
                time = time.max(to_move(tier.write_bytes_per_second));
                time += if *early { 0 } else { to_move(tier.read_bytes_per_second) };
                used[index] += input;
            }
        }
        for (tier, (used, before)) in self.profile.tiers().iter().zip(used.iter_mut().zip(&before.used)) {
            *used = (*used).max(*before);
            if *used > tier.capacity_bytes.get() {
                return None;
            }
        }
        Some(Outcome {
            peak: worst.max(before.peak).max(kept as i64 + after.peak - left),
            time: time + after.time + before.time,
            used,
            tree: Rc::new(Tree::Sweep(middle, place.clone(), after.tree.clone(), before.tree.clone())),
        })
    }

    /// What every tree of stages `first..=last` takes, less those that others beat in everything.
    fn outcomes(&mut self, first: u32, last: u32, taped: bool, arriving: Arriving) -> Rc<Vec<Outcome>> {
        let key = (first, last, taped, arriving);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let mut all = Vec::new();
        let options = self.profile.stages()[first as usize - 1].options.clone();
        for option in [None].into_iter().chain(options.iter().map(|option| Some(&option.name))) {
            match first == last {
                true => all.push(self.tape((first, last), option, None, arriving)),
                false => {
                    let rests = self.outcomes(first + 1, last, true, None);
                    all.extend(
                        rests.iter().map(|rest| self.tape((first, last), option, Some(rest), arriving)),
                    );
                }
            }
        }
        for middle in first + 1..=last {
            let befores = self.outcomes(first, middle - 1, taped, arriving);
            for place in every_place(self.profile, taped) {
                let afters = self.outcomes(middle, last, false, self.arriving(first, &place));
                for after in afters.iter() {
                    let sums = befores.iter();
                    all.extend(
                        sums.filter_map(|before| self.sweep((first, last), middle, &place, after, before)),
                    );
                }
            }
        }
        let best = Rc::new(unbeaten(all));
        self.known.insert(key, best.clone());
        best
    }

    /// The same of one tree; `None` when a tier is too small for it.
    fn outcome(&self, tree: &Tree, first: u32, last: u32, arriving: Arriving) -> Option<Outcome> {
        match tree {
            Tree::Tape(option, rest) => {
                let rest = match rest {
                    Some(rest) => Some(self.outcome(rest, first + 1, last, None)?),
                    None => None,
                };
                Some(self.tape((first, last), option.as_ref(), rest.as_ref(), arriving))
            }
            Tree::Sweep(middle, place, after, before) => {
                let after = self.outcome(after, *middle, last, self.arriving(first, place))?;
                let before = self.outcome(before, first, middle - 1, arriving)?;
                self.sweep((first, last), *middle, place, &after, &before)
            }
        }
    }

    fn total(&self, outcome: &Outcome) -> (Bytes, Nanos) {
        let peak = outcome.peak + self.profile.input_bytes().get() as i64;
        (Bytes::new(peak as u64), Nanos::new(outcome.time))
    }

    /// The least time for each budget. The simulator says the same of the plans that reach it.
    fn frontier(&mut self) -> Vec<(Bytes, Nanos)> {
        let all = self.outcomes(1, self.profile.stages().len() as u32, false, None);
        for outcome in all.iter() {
            assert_eq!(judged(self.profile, &outcome.tree), Some(self.total(outcome)));
        }
        falling(all.iter().map(|outcome| self.total(outcome)).collect())
    }
}

/// The outcomes that no other beats.
fn unbeaten(mut all: Vec<Outcome>) -> Vec<Outcome> {
    all.sort_by(|left, right| (left.peak, left.time, &left.used).cmp(&(right.peak, right.time, &right.used)));
    let mut best: Vec<Outcome> = Vec::new();
    for outcome in all {
        let beats = |other: &Outcome| {
            other.time <= outcome.time
                && other.used.iter().zip(&outcome.used).all(|(other, own)| other <= own)
        };
        if !best.iter().rev().any(beats) {
            best.push(outcome);
        }
    }
    best
}

/// A tree whose choices are read from `rolls`.
fn random_tree(
    profile: &Profile,
    ends: (u32, u32),
    taped: bool,
    rolls: &mut impl Iterator<Item = u32>,
) -> Tree {
    let (first, last) = ends;
    let mut roll = |sides: usize| rolls.next().unwrap() as usize % sides;
    if first == last || roll(3) == 0 {
        let options = &profile.stages()[first as usize - 1].options;
        let option = roll(options.len() + 1).checked_sub(1).map(|option| options[option].name.clone());
        let rest = (first < last).then(|| Rc::new(random_tree(profile, (first + 1, last), true, rolls)));
        return Tree::Tape(option, rest);
    }
    let middle = first + 1 + roll((last - first) as usize) as u32;
    let mut places = every_place(profile, taped);
    let place = places.swap_remove(roll(places.len()));
    let after = Rc::new(random_tree(profile, (middle, last), false, rolls));
    let before = Rc::new(random_tree(profile, (first, middle - 1), taped, rolls));
    Tree::Sweep(middle, place, after, before)
}

fn check_against_exhaustive(profile: &Profile) {
    let expected = exhaustive_frontier(profile);
    assert_eq!(Search::new(profile).frontier(), expected);
    check(profile, &expected);
}

/// Whether a plan of another class beats those of this one: a copy in a tier may stay for a second sweep.
fn beaten(profile: &Profile, expected: &[(Bytes, Nanos)]) -> bool {
    let slots = 0..=profile.stages().len() as u32;
    slots.flat_map(|slots| LEVELS.map(|solve| solve(profile, &Request::with_slots(slots)))).flatten().any(
        |plan| {
            let within = expected.iter().rev().find(|point| point.0 <= plan.predicted.peak_bytes);
            within.is_none_or(|point| plan.predicted.step_ns < point.1)
        },
    )
}

/// What is optimal does not hang on how fast a machine comes to it.
fn patient(budget: Bytes) -> Request {
    Request { time_limit: std::time::Duration::from_secs(600), ..Request::new(budget) }
}

fn check(profile: &Profile, expected: &[(Bytes, Nanos)]) {
    if beaten(profile, expected) {
        for (budget, time) in expected {
            let plan = optimal::solve(profile, &patient(*budget)).unwrap();
            assert!(plan.predicted.step_ns <= *time, "at {} bytes", budget.get());
            assert!(plan.predicted.lower_bound_ns <= plan.predicted.step_ns);
        }
        return;
    }
    assert_eq!(optimal::smallest_budget(profile), Ok(expected[0].0));
    let frontier = optimal::frontier(profile, &patient(Bytes::MAX)).unwrap();
    let found: Vec<_> = frontier.points().iter().map(|point| (point.budget_bytes, point.step_ns)).collect();
    assert_eq!(found, expected);
    for (budget, time) in expected {
        let plan = optimal::solve(profile, &patient(*budget)).unwrap();
        assert_eq!(plan.predicted.step_ns, *time, "at {} bytes", budget.get());
        assert_eq!(plan.status, Status::Optimal);
        assert!(plan.predicted.peak_bytes <= *budget);
    }
    if let Some(below) = expected[0].0.get().checked_sub(1) {
        let error = optimal::solve(profile, &patient(Bytes::new(below))).unwrap_err();
        let smallest = expected[0].0;
        assert!(
            matches!(error, SolveError::BudgetTooSmall { smallest_bytes, .. } if smallest_bytes == smallest),
            "{error}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn tiers_and_codecs_are_used_as_exhaustive_search_uses_them(profile in any_places(1..5)) {
        check_against_exhaustive(&profile);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]

    #[test]
    fn a_tier_under_seven_stages_is_used_as_exhaustive_search_uses_it(
        profile in any_places(7..8), capacity in 20..300u64,
    ) {
        let plain = profile.stages().iter().map(|stage| rekindle_plan::StageProfile { options: vec![], ..stage.clone() });
        let tier = Tier {
            name: name("host"),
            capacity_bytes: Bytes::new(capacity),
            write_bytes_per_second: 1_000_000_000,
            read_bytes_per_second: 2_000_000_000,
        };
        let profile = Profile::new("seven", "none", profile.input_bytes(), plain.collect()).unwrap();
        check_against_exhaustive(&profile.with_places(vec![tier], vec![]).unwrap());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn options_tiers_and_codecs_under_up_to_eight_stages_are_used_as_exhaustive_search_uses_them(
        profile in any_places(7..9),
    ) {
        let expected = Search::new(&profile).frontier();
        check(&profile, &expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// What the search above adds up is what the simulator counts, of trees that are not the best, too.
    #[test]
    fn a_tree_takes_what_its_parts_take(
        profile in any_places(1..8), rolls in proptest::collection::vec(0..1000u32, 60),
    ) {
        let search = Search::new(&profile);
        let last = profile.stages().len() as u32;
        let tree = random_tree(&profile, (1, last), false, &mut rolls.iter().copied().cycle());
        let outcome = search.outcome(&tree, 1, last, None).map(|outcome| search.total(&outcome));
        prop_assert_eq!(judged(&profile, &tree), outcome);
    }
}
