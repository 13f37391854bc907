//! From a solved chain with places to actions.

use super::{Ask, Choice, Place, Places, Used};
use crate::rules::MOST_ACTIONS;
use crate::{Action, Boundary, Name, Stage};

/// Writes the actions of a solved chain.
pub(super) struct Writer<'a> {
    places: &'a Places,
    actions: Vec<Action>,
    tasks: Vec<Task>,
    /// Which boundaries the plan said to keep.
    kept: Vec<bool>,
    /// Copies that are dropped when the boundary that came back from them is read.
    copies: Vec<Option<Name>>,
}

enum Task {
    Cell { ask: Ask, room: u64, free: Used, arriving: Option<(usize, Name)> },
    Backward { stage: usize, arriving: Option<(usize, Name)> },
    Restore { boundary: usize, place: Name },
}

impl<'a> Writer<'a> {
    pub(super) fn new(places: &'a Places) -> Self {
        let stages = places.chain.stages();
        Self {
            places,
            actions: Vec::new(),
            tasks: Vec::new(),
            kept: vec![false; stages],
            copies: vec![None; stages],
        }
    }

    pub(super) fn write(mut self, room: u64) -> Option<Vec<Action>> {
        let free = self.places.free();
        self.tasks.push(Task::Cell { ask: self.places.whole(), room, free, arriving: None });
        while let Some(task) = self.tasks.pop() {
            if self.actions.len() > MOST_ACTIONS {
                return None;
            }
            match task {
                Task::Cell { ask, room, free, arriving } => self.cell(ask, room, free, arriving)?,
                Task::Backward { stage, arriving } => {
                    let start = self.places.chain.starts[stage];
                    let later = start + 1..self.places.chain.starts[stage + 1];
                    self.actions.extend(later.rev().map(|stage| Action::backward(Stage::at(stage))));
                    if let Some((boundary, place)) = arriving {
                        let at = self.boundary(boundary);
                        self.actions.push(Action::Fetch { boundary: at, place: place.clone() });
                        self.copies[boundary] = Some(place);
                    }
                    self.actions.push(Action::backward(Stage::at(start)));
                }
                Task::Restore { boundary, place } => {
                    let at = self.boundary(boundary);
                    self.actions.push(Action::Fetch { boundary: at, place: place.clone() });
                    self.actions.push(Action::Drop { boundary: at, place: Some(place) });
                }
            }
        }
        Some(self.actions)
    }

    fn boundary(&self, index: usize) -> Boundary {
        Boundary::new(self.places.chain.starts[index] as u32)
    }

    fn drop_copy(&mut self, boundary: usize) {
        if let Some(place) = self.copies[boundary].take() {
            self.actions.push(Action::Drop { boundary: self.boundary(boundary), place: Some(place) });
        }
    }

    fn cell(&mut self, ask: Ask, room: u64, free: Used, arriving: Option<(usize, Name)>) -> Option<()> {
        let Ask { first, end, .. } = ask;
        let places = self.places;
        let chain = &places.chain;
        let (choice, after, left, left_free) = self.places.choose(ask, room, free)?;
        let input = self.boundary(first);
        let start = chain.starts[first];
        match choice {
            Choice::Tape(way) => {
                let tapes = (start..).zip(chain.tapes[first][way].options.iter().cloned());
                for (stage, option) in tapes {
                    self.actions.push(Action::Tape { stage: Stage::at(stage), option });
                    self.drop_copy(first);
                }
                if std::mem::take(&mut self.kept[first]) {
                    self.actions.push(Action::drop(input));
                }
                self.tasks.push(Task::Backward { stage: first, arriving });
                if first + 1 < end {
                    self.tasks.push(Task::Cell { ask: after, room: left, free: left_free, arriving: None });
                }
            }
            Choice::Sweep { middle, place } => {
                let name = self.places.name_of(place);
                if !std::mem::replace(&mut self.kept[first], true) {
                    self.actions.push(Action::keep(input));
                }
                if let (Place::Tier { .. }, Some(tier)) = (place, &name) {
                    // It came from there, and goes there again.
                    self.drop_copy(first);
                    self.actions.push(Action::Offload { boundary: input, tier: tier.clone() });
                }
                for stage in start..chain.starts[middle] {
                    self.actions.push(Action::forward(Stage::at(stage)));
                    self.drop_copy(first);
                }
                if let (Place::Codec(_), Some(codec)) = (place, &name) {
                    self.actions.push(Action::Compress { boundary: input, codec: codec.clone() });
                }
                if name.is_some() {
                    self.actions.push(Action::drop(input));
                    self.kept[first] = false;
                }
                let before = Ask { end: middle, ..ask };
                self.tasks.push(Task::Cell { ask: before, room, free, arriving });
                let early = matches!(place, Place::Tier { early: true, .. });
                let arriving = name.clone().filter(|_| early).map(|name| (first, name));
                if let Some(place) = name.filter(|_| !early) {
                    self.tasks.push(Task::Restore { boundary: first, place });
                }
                self.tasks.push(Task::Cell { ask: after, room: left, free: left_free, arriving });
            }
        }
        Some(())
    }
}
