//! The actions of what a policy chose.
//!
//! The chain falls into pieces: a stage that keeps its tape, or a segment of stages that do not and have no kept boundary
//! between them. Forward, a segment's input is put where it waits; going back it is brought from there, and the segment
//! is taped as a whole, once.
//!
//! A segment at the end of the chain is taped the first time it runs, as by [`crate::rules::every_k`]: its backward comes
//! right after, and to run it twice would save nothing.

use std::ops::Range;

use super::choices::{Choices, Place, Run};
use crate::{Action, Name, Stage};

/// Some stages that run together.
pub(super) struct Piece {
    pub(super) stages: Range<usize>,
    /// Where its input waits, when it is run again.
    again: Option<Place>,
}

impl Piece {
    /// Whether its stages run twice.
    pub(super) const fn runs_again(&self) -> bool {
        self.again.is_some()
    }

    fn first(&self) -> Stage {
        Stage::at(self.stages.start)
    }

    /// The tier its input comes back from.
    fn tier(&self) -> Option<&Name> {
        match &self.again {
            Some(Place::Tier(tier)) => Some(tier),
            _ => None,
        }
    }
}

/// The pieces of a chain, first to last.
pub(super) fn pieces(choices: &Choices<'_>) -> Vec<Piece> {
    let Choices { runs, places, .. } = choices;
    let recomputed = |index: usize| runs.get(index) == Some(&Run::Recompute);
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < runs.len() {
        let joined = |end: &usize| recomputed(start) && recomputed(*end) && places[*end].is_none();
        let end = (start + 1..).take_while(joined).last().map_or(start + 1, |last| last + 1);
        // What a tape includes is on the device as long as the tape is: to put it elsewhere would free nothing.
        let in_tape = start > 0 && !recomputed(start - 1);
        let place = places[start].clone().filter(|_| !in_tape).unwrap_or(Place::Device);
        let again = (recomputed(start) && end < runs.len()).then_some(place);
        pieces.push(Piece { stages: start..end, again });
        start = end;
    }
    pieces
}

/// The actions for these pieces.
pub(super) fn actions(choices: &Choices<'_>, pieces: &[Piece]) -> Vec<Action> {
    let mut actions = Vec::with_capacity(choices.runs.len() * 3);
    for piece in pieces {
        match &piece.again {
            None => actions.extend(piece.stages.clone().map(|index| first_tape(&choices.runs, index))),
            Some(place) => sweep(piece, place, &mut actions),
        }
    }
    for (index, piece) in pieces.iter().enumerate().rev() {
        if let Some(place) = &piece.again {
            tape_again(piece, place, &mut actions);
        }
        let later = piece.stages.clone().skip(1).rev();
        actions.extend(later.map(|index| Action::backward(Stage::at(index))));
        // What waits in a tier comes back beside the last backward before it is read.
        let before = index.checked_sub(1).map(|index| &pieces[index]);
        if let Some((piece, tier)) = before.and_then(|piece| Some((piece, piece.tier()?))) {
            actions.push(Action::Fetch { boundary: piece.first().input(), place: tier.clone() });
        }
        actions.push(Action::backward(piece.first()));
    }
    actions
}

fn first_tape(runs: &[Run], index: usize) -> Action {
    let option = match &runs[index] {
        Run::Tape(option) => option.clone(),
        Run::Recompute => None,
    };
    Action::Tape { stage: Stage::at(index), option }
}

/// A segment forward, and its input to where it waits.
fn sweep(piece: &Piece, place: &Place, actions: &mut Vec<Action>) {
    let input = piece.first().input();
    let rest = piece.stages.clone().skip(1).map(|index| Action::forward(Stage::at(index)));
    actions.push(Action::keep(input));
    match place {
        Place::Device => {
            actions.push(Action::forward(piece.first()));
            actions.extend(rest);
        }
        // On its way while the segment runs; the drop waits for what that does not hide.
        Place::Tier(tier) => {
            actions.push(Action::Offload { boundary: input, tier: tier.clone() });
            actions.push(Action::forward(piece.first()));
            actions.extend(rest);
            actions.push(Action::drop(input));
        }
        // Compressing is not done beside anything, so the sooner the smaller.
        Place::Codec(codec) => {
            actions.push(Action::forward(piece.first()));
            actions.push(Action::Compress { boundary: input, codec: codec.clone() });
            actions.push(Action::drop(input));
            actions.extend(rest);
        }
    }
}

/// A segment once more, with tapes, from where its input waits.
fn tape_again(piece: &Piece, place: &Place, actions: &mut Vec<Action>) {
    let input = piece.first().input();
    let copy = |place: &Name| Action::Drop { boundary: input, place: Some(place.clone()) };
    let rest = piece.stages.clone().skip(1).map(|index| Action::tape(Stage::at(index)));
    match place {
        Place::Device => {
            actions.push(Action::tape(piece.first()));
            actions.extend(rest);
            actions.push(Action::drop(input));
        }
        Place::Tier(tier) => {
            actions.push(Action::tape(piece.first()));
            // Not before: the tape is what waits for the fetch.
            actions.push(copy(tier));
            actions.extend(rest);
        }
        Place::Codec(codec) => {
            actions.push(Action::Fetch { boundary: input, place: codec.clone() });
            actions.push(copy(codec));
            actions.push(Action::tape(piece.first()));
            actions.extend(rest);
        }
    }
}
