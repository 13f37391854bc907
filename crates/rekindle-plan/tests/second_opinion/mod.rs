//! The memory model a second time, deliberately naive, and plans that try its corners.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use rekindle_plan::{Action, Boundary, Bytes, Illegal, Name, Profile, Simulation, Stage, simulate};

use crate::chains::name;

/// One making of a boundary: the same boundary made again is other memory.
type Making = (Boundary, usize);

/// What is held after some actions, written down as a person would: no running totals, no rules for what counts.
#[derive(Clone, Default)]
struct Board {
    hands: BTreeMap<Boundary, (Making, bool)>,
    tapes: BTreeMap<Stage, TapeOnBoard>,
    copies: BTreeSet<(Boundary, Name)>,
    gradient: Option<Boundary>,
    turned: bool,
}

#[derive(Clone)]
struct TapeOnBoard {
    option: Option<Name>,
    input: Making,
    output: Making,
}

impl Board {
    /// The board after all of `actions`, from the start.
    fn after(profile: &Profile, actions: &[Action]) -> Self {
        let mut board = Self::default();
        let input = Boundary::new(0);
        board.hands.insert(input, ((input, 0), false));
        for (index, action) in actions.iter().enumerate() {
            board.arrive(profile);
            board.write(profile, action, index + 1);
        }
        board
    }

    /// After the turn the gradient of the output comes in.
    fn arrive(&mut self, profile: &Profile) {
        if self.turned && self.gradient.is_none() {
            self.gradient = Some(last(profile));
        }
    }

    fn write(&mut self, profile: &Profile, action: &Action, making: usize) {
        match action {
            Action::Forward { stage } => {
                self.make(stage.output(), making);
                self.read(stage.input());
            }
            Action::Tape { stage, option } => {
                self.record(*stage, option.clone(), making);
                self.read(stage.input());
            }
            Action::Backward { stage } => {
                self.tapes.remove(stage);
                self.gradient = Some(stage.input());
            }
            Action::Keep { boundary } => {
                let found = self.find(*boundary);
                self.hands.insert(*boundary, (found, true));
            }
            Action::Drop { boundary, place: None } => {
                self.hands.remove(boundary);
            }
            Action::Drop { boundary, place: Some(place) } => {
                self.copies.remove(&(*boundary, place.clone()));
            }
            Action::Fetch { boundary, .. } => self.make(*boundary, making),
            Action::Compress { boundary, codec: place } | Action::Offload { boundary, tier: place } => {
                self.copies.insert((*boundary, place.clone()));
            }
        }
        let runs_last = action.stage().map(Stage::output) == Some(last(profile));
        if runs_last && !self.turned {
            self.turned = true;
            // Handed out.
            self.hands.remove(&last(profile));
        }
    }

    fn make(&mut self, boundary: Boundary, making: usize) {
        self.hands.insert(boundary, ((boundary, making), false));
    }

    fn record(&mut self, stage: Stage, option: Option<Name>, making: usize) {
        let tape = TapeOnBoard { option, input: self.find(stage.input()), output: (stage.output(), making) };
        self.tapes.insert(stage, tape);
    }

    fn read(&mut self, boundary: Boundary) {
        if self.hands.get(&boundary).is_some_and(|(_, kept)| !kept) {
            self.hands.remove(&boundary);
        }
    }

    fn find(&self, boundary: Boundary) -> Making {
        let in_tape = || self.tapes[&Stage::new(boundary.number())].output;
        let held = self.hands.get(&boundary);
        held.map_or_else(in_tape, |(making, _)| *making)
    }

    /// Every making of a boundary that something holds, once.
    fn makings(&self) -> BTreeSet<Making> {
        let held = self.hands.values().map(|(making, _)| *making);
        let tapes = self.tapes.values();
        held.chain(tapes.flat_map(|tape| [tape.input, tape.output])).collect()
    }

    fn bytes(&self, profile: &Profile) -> u64 {
        let size = |boundary: Boundary| profile.boundary_bytes(boundary).unwrap().get();
        let boundaries = self.makings().into_iter().map(|making| size(making.0));
        let tapes = self.tapes.iter().map(|(number, tape)| {
            let stage = &profile.stages()[number.index()];
            let mut options = stage.options.iter();
            let option = options.find(|option| Some(&option.name) == tape.option.as_ref());
            let all = option.map_or(stage.tape_bytes, |option| option.tape_bytes);
            // The output it includes is among the boundaries.
            all.get() - stage.output_bytes.get()
        });
        // A tape holds its input and its output, which have this much in common.
        let passed = self.tapes.keys().map(|number| profile.stages()[number.index()].passed_bytes.get());
        let copies = self.copies.iter().map(|(boundary, codec)| {
            let mut codecs = profile.codecs().iter();
            let codec = codecs.find(|found| found.name == *codec);
            // A copy in a tier takes nothing of the device.
            codec.map_or(0, |codec| codec.compressed(Bytes::new(size(*boundary))).unwrap().get())
        });
        let gradient = self.gradient;
        let gradient = gradient.map_or(0, |at| {
            let stages = profile.stages();
            let own = match at.index() {
                0 => profile.input_bytes(),
                number => stages[number - 1].gradient_bytes.unwrap_or(stages[number - 1].output_bytes),
            };
            let behind = stages[at.index()..].iter().map(|stage| stage.parameter_gradient_bytes.get());
            own.get() + behind.sum::<u64>()
        });
        boundaries.chain(tapes).chain(copies).sum::<u64>() + gradient - passed.sum::<u64>()
    }
}

fn last(profile: &Profile) -> Boundary {
    Boundary::new(u32::try_from(profile.stages().len()).unwrap())
}

/// The peak while the action at `index` runs and what is left after it, from the rules alone.
fn second_opinion(profile: &Profile, actions: &[Action], index: usize) -> (u64, u64) {
    let mut before = Board::after(profile, &actions[..index]);
    before.arrive(profile);
    let after = Board::after(profile, &actions[..=index]).bytes(profile);
    let mut during = before.clone();
    let stage = |stage: &Stage| &profile.stages()[stage.index()];
    let peak = match &actions[index] {
        Action::Forward { stage: number } => {
            during.make(number.output(), index + 1);
            during.bytes(profile) + stage(number).forward_extra_bytes.get()
        }
        Action::Tape { stage: number, option } => {
            during.record(*number, option.clone(), index + 1);
            let stage = stage(number);
            let option = stage.options.iter().find(|of| Some(&of.name) == option.as_ref());
            let extra = option.and_then(|option| option.taped_extra_bytes).or(stage.taped_extra_bytes);
            during.bytes(profile) + extra.unwrap_or(stage.forward_extra_bytes).get()
        }
        Action::Backward { stage: number } => {
            let taped = before.tapes[number].option.as_ref();
            let option =
                taped.and_then(|name| stage(number).options.iter().find(|option| option.name == *name));
            let extra = option.and_then(|option| option.backward_extra_bytes);
            before.bytes(profile)
                + extra.unwrap_or(stage(number).backward_extra_bytes).get()
                + stage(number).parameter_gradient_bytes.get()
        }
        _ => before.bytes(profile),
    };
    (peak.max(after), after)
}

pub(crate) fn agrees_with_the_second_opinion(
    profile: &Profile,
    actions: &[Action],
    simulation: &Simulation,
) -> Result<(), TestCaseError> {
    for (index, moment) in simulation.moments.iter().enumerate() {
        let found = (moment.peak.get(), moment.after.get());
        let expected = second_opinion(profile, actions, index);
        prop_assert_eq!(found, expected, "at {} of {:?}", index, actions);
    }
    Ok(())
}

/// A plan that does whatever is legal, action by action, and is then brought to an end. It goes where no solver would:
/// boundaries offloaded out of tapes, kept twice, fetched and dropped unread.
pub(crate) fn wander(profile: &Profile, rolls: &[(u32, u32)]) -> Vec<Action> {
    let stages = last(profile).number();
    // Kept to the end, so that every stage can be reached from it.
    let mut actions = vec![Action::keep(Boundary::new(0))];
    for (verb, number) in rolls {
        let action = any_verb(*verb, number % (stages + 1));
        if action == Action::drop(Boundary::new(0)) {
            continue;
        }
        actions.push(action);
        // Up to here it is a plan, or one that only stops too early.
        let goes_on = |illegal: &Illegal| illegal.index == actions.len();
        if simulate(profile, &actions).is_err_and(|illegal| !goes_on(&illegal)) {
            actions.pop();
        }
    }
    bring_to_an_end(profile, &mut actions);
    actions
}

pub(crate) fn any_verb(verb: u32, number: u32) -> Action {
    let (stage, boundary) = (Stage::new(number.max(1)), Boundary::new(number));
    let (host, half) = (name("host"), name("half"));
    match verb % 13 {
        0 | 1 => Action::forward(stage),
        2 | 3 => Action::tape(stage),
        4 => Action::backward(stage),
        5 => Action::keep(boundary),
        6 => Action::drop(boundary),
        7 => Action::Offload { boundary, tier: host },
        8 => Action::Compress { boundary, codec: half },
        9 => Action::Fetch { boundary, place: host },
        10 => Action::Fetch { boundary, place: half },
        11 => Action::Drop { boundary, place: Some(host) },
        _ => Action::Drop { boundary, place: Some(half) },
    }
}

fn bring_to_an_end(profile: &Profile, actions: &mut Vec<Action>) {
    let board = Board::after(profile, actions);
    let from = board.gradient.unwrap_or(last(profile)).number();
    for number in (1..=from).rev() {
        let (board, stage) = (Board::after(profile, actions), Stage::new(number));
        if !board.tapes.contains_key(&stage) {
            if board.hands.contains_key(&stage.output()) {
                actions.push(Action::drop(stage.output()));
            }
            let there = |number: &u32| {
                let in_tape = board.tapes.contains_key(&Stage::new(*number));
                in_tape || board.hands.contains_key(&Boundary::new(*number))
            };
            let nearest = (0..number).rev().find(there).unwrap();
            actions.extend((nearest + 1..number).map(|next| Action::forward(Stage::new(next))));
            actions.push(Action::tape(stage));
        }
        actions.push(Action::backward(stage));
    }
    let board = Board::after(profile, actions);
    actions.extend(board.hands.into_keys().map(Action::drop));
    actions.extend(board.copies.into_iter().map(|(boundary, place)| {
        let place = Some(place);
        Action::Drop { boundary, place }
    }));
}
