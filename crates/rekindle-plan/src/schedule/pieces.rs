//! Where a schedule falls apart: pieces of the chain that are gone through one after the other, and back in the other order.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::Schedule;
use crate::reads::reads_of_outputs;
use crate::{Action, Boundary, Name, Stage};

/// A piece of a chain, which a schedule is through with before it turns to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Piece {
    /// One stage that is plain training: taped in the forward half, gone back through in the other, and never run again.
    Plain {
        /// The stage.
        stage: Stage,
        /// How its tape is kept.
        option: Option<Name>,
    },
    /// Stages with a schedule of their own, in which they are numbered from 1.
    Planned {
        /// The first of them, in the whole chain.
        first: Stage,
        /// What to do with them.
        schedule: Schedule,
    },
}

impl Schedule {
    /// The chain in pieces, as small as they get where a stage is plain training and `may_be_plain`, and as large where
    /// it is not. Whoever runs the forward halves of the pieces in order, and their backward halves in the other order,
    /// has run the schedule.
    ///
    /// Where the tape of a plain stage includes what a later piece begins with again, that piece keeps it itself, for no
    /// longer than the tape would have.
    ///
    /// ```
    /// use rekindle_plan::{Action, Piece, Profile, Schedule, Stage};
    ///
    /// let profile = Profile::unmeasured(["a", "b", "c"].map(String::from), &[])?;
    /// let actions = ["tape 1", "forward 2", "tape 3", "backward 3", "tape 2", "backward 2", "backward 1"];
    /// let actions = actions.map(|action| action.parse::<Action>()).into_iter().collect::<Result<Vec<_>, _>>()?;
    /// let (schedule, _) = Schedule::judge(&profile, &actions)?;
    /// let pieces = schedule.pieces(|_, _| true);
    /// let [Piece::Plain { .. }, Piece::Planned { first, schedule }, Piece::Plain { stage, .. }] = &pieces[..] else {
    ///     panic!("{pieces:?}");
    /// };
    /// assert_eq!((*first, *stage), (Stage::new(2), Stage::new(3)));
    /// let actions: Vec<String> = schedule.actions().iter().map(ToString::to_string).collect();
    /// assert_eq!(actions, ["keep x0", "forward 1", "tape 1", "drop x0", "backward 1"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pieces(&self, mut may_be_plain: impl FnMut(Stage, Option<&Name>) -> bool) -> Vec<Piece> {
        let cuts = Cuts::of(self);
        let is_plain = |index: usize| {
            let option = cuts.plain(index);
            option.is_some_and(|option| may_be_plain(Stage::at(index), option))
        };
        let plain: Vec<bool> = (0..self.stages()).map(is_plain).collect();
        self.known.or(plain, |plain| {
            let mut pieces = Vec::new();
            let mut begun = 0;
            let planned = |stages: Range<usize>| {
                let first = Stage::at(stages.start);
                cuts.section(stages).map(|schedule| Piece::Planned { first, schedule })
            };
            let plain = plain.iter().enumerate().filter(|(_, plain)| **plain);
            for (index, option) in plain.filter_map(|(index, _)| Some((index, cuts.plain(index)?))) {
                pieces.extend(planned(begun..index));
                pieces.push(Piece::Plain { stage: Stage::at(index), option: option.cloned() });
                begun = index + 1;
            }
            pieces.extend(planned(begun..self.stages()));
            pieces
        })
    }

    /// The schedule of all stages from the beginning of a piece on, for whoever does not go on piece by piece after all.
    /// `None` where no piece begins.
    pub fn from_piece(&self, first: Stage) -> Option<Self> {
        Cuts::of(self).section(first.index()..self.stages())
    }
}

/// Pieces that a schedule was taken in, by the stages that are plain training in them. A schedule is run again and again, and one for
/// little memory has far more actions than stages: to cut it anew in every step would take more than some steps do.
#[derive(Clone, Debug, Default)]
pub(super) struct Known(Arc<Mutex<Vec<Cut>>>);

/// Which stages are plain training, and the pieces.
type Cut = (Vec<bool>, Vec<Piece>);

/// How many ways to cut are remembered; there are two in a step where stages share parameters.
const MOST_KNOWN: usize = 4;

impl Known {
    fn or(&self, plain: Vec<bool>, cut: impl FnOnce(&[bool]) -> Vec<Piece>) -> Vec<Piece> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, pieces)) = known.iter().find(|(known, _)| *known == plain) {
            return pieces.clone();
        }
        let pieces = cut(&plain);
        known.truncate(MOST_KNOWN - 1);
        known.insert(0, (plain, pieces.clone()));
        pieces
    }
}

/// What is remembered does not tell two schedules apart.
impl PartialEq for Known {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Known {}

/// Where the chain can be cut.
struct Cuts<'a> {
    schedule: &'a Schedule,
    /// For each boundary, if the schedule can be cut there: where its two sides meet in each half.
    at: Vec<Option<Meeting>>,
}

/// From the first to the last of some actions.
#[derive(Clone, Copy)]
struct Span {
    first: usize,
    /// Behind the last.
    end: usize,
}

impl Default for Span {
    fn default() -> Self {
        Self { first: usize::MAX, end: 0 }
    }
}

impl Span {
    fn and(self, other: Self) -> Self {
        Self { first: self.first.min(other.first), end: self.end.max(other.end) }
    }
}

/// The first action in the forward half of what is behind a cut, and the first in the backward half of what is before it.
#[derive(Clone, Copy)]
struct Meeting {
    forth: usize,
    back: usize,
}

impl<'a> Cuts<'a> {
    fn of(schedule: &'a Schedule) -> Self {
        let stages = schedule.stages();
        let halves = [schedule.forward_half(), schedule.backward_half()];
        let mut each = [vec![Span::default(); stages], vec![Span::default(); stages]];
        let mut without_places = 0;
        for (half, actions) in each.iter_mut().zip(halves) {
            for (position, action) in actions.iter().enumerate() {
                let about = about(action).min(stages.saturating_sub(1));
                if let Some(span) = half.get_mut(about) {
                    *span = span.and(Span { first: position, end: position + 1 });
                }
                if names_a_place(action) {
                    without_places = without_places.max(about + 1);
                }
            }
        }
        let [forth, back] = each;
        let behind = [&forth, &back].map(|half| {
            let ends = half.iter().rev().scan(Span::default(), |all, span| {
                *all = all.and(*span);
                Some(*all)
            });
            let mut ends: Vec<Span> = ends.collect();
            ends.reverse();
            ends
        });
        let mut before = [Span::default(); 2];
        let mut at = vec![Some(Meeting { forth: 0, back: halves[1].len() })];
        for index in 1..stages {
            before = [before[0].and(forth[index - 1]), before[1].and(back[index - 1])];
            let [behind_forth, behind_back] = [behind[0][index], behind[1][index]];
            let in_order = before[0].end <= behind_forth.first && behind_back.end <= before[1].first;
            // What is handed on is what was made last.
            let made = before[0].end.checked_sub(1).and_then(|last| halves[0].get(last)?.stage());
            let handed_on = made.is_some_and(|stage| stage.index() + 1 == index);
            let meeting = Meeting { forth: behind_forth.first, back: before[1].first };
            at.push((in_order && handed_on && index >= without_places).then_some(meeting));
        }
        if stages > 0 {
            at.push(Some(Meeting { forth: halves[0].len(), back: 0 }));
        }
        Self { schedule, at }
    }

    /// The actions of both halves about the stages between two cuts.
    fn halves(&self, stages: &Range<usize>) -> Option<[&'a [Action]; 2]> {
        let (begin, end) = ((*self.at.get(stages.start)?)?, (*self.at.get(stages.end)?)?);
        let forth = self.schedule.forward_half().get(begin.forth..end.forth)?;
        let back = self.schedule.backward_half().get(end.back..begin.back)?;
        Some([forth, back])
    }

    /// How a stage's tape is kept, if the stage is plain training.
    fn plain(&self, index: usize) -> Option<Option<&'a Name>> {
        match self.halves(&(index..index + 1))? {
            [[Action::Tape { option, .. }], [Action::Backward { .. }]] => Some(option.as_ref()),
            _ => None,
        }
    }

    /// The schedule of the stages between two cuts. `None` where there are no stages, or no cut.
    fn section(&self, stages: Range<usize>) -> Option<Schedule> {
        let [forth, back] = self.halves(&stages).filter(|_| !stages.is_empty())?;
        if stages.len() == self.schedule.stages() {
            return Some(self.schedule.clone());
        }
        let input = Boundary::new(u32::try_from(stages.start).ok()?);
        let is_about_input = |action: &Action| match action {
            Action::Keep { boundary } | Action::Drop { boundary, .. } => *boundary == input,
            _ => false,
        };
        // The region's own input is nobody else's to keep.
        let is_ours = stages.start > 0;
        let mut actions: Vec<Action> = Vec::with_capacity(forth.len() + back.len() + 2);
        actions.extend(forth.iter().filter(|action| !(is_ours && is_about_input(action))).cloned());
        let mut turn = actions.len();
        actions.extend(back.iter().filter(|action| !(is_ours && is_about_input(action))).cloned());
        let reads_input = |action: &Action| match action {
            Action::Forward { stage } | Action::Tape { stage, .. } => stage.input() == input,
            _ => false,
        };
        if is_ours && actions.iter().filter(|action| reads_input(action)).count() > 1 {
            let last = actions.iter().rposition(reads_input).unwrap_or(0);
            actions.insert((last + 1).max(turn), Action::Drop { boundary: input, place: None });
            actions.insert(0, Action::Keep { boundary: input });
            turn += 1;
        }
        let actions: Vec<Action> = actions.into_iter().map(|action| renumbered(action, input)).collect();
        let pinned = self.schedule.pinned.get(stages)?;
        let reads = reads_of_outputs(pinned.len(), &actions).into();
        Some(Schedule {
            actions: actions.into(),
            pinned: pinned.into(),
            turn,
            reads,
            known: Known::default(),
        })
    }
}

/// The index of the stage that an action runs, or that reads the boundary it is about.
fn about(action: &Action) -> usize {
    match action {
        Action::Forward { stage } | Action::Tape { stage, .. } | Action::Backward { stage } => stage.index(),
        Action::Keep { boundary }
        | Action::Drop { boundary, .. }
        | Action::Offload { boundary, .. }
        | Action::Fetch { boundary, .. }
        | Action::Compress { boundary, .. } => boundary.index(),
    }
}

/// Transfers go on while other stages run.
fn names_a_place(action: &Action) -> bool {
    match action {
        Action::Forward { .. } | Action::Tape { .. } | Action::Backward { .. } | Action::Keep { .. } => false,
        Action::Drop { place, .. } => place.is_some(),
        Action::Offload { .. } | Action::Fetch { .. } | Action::Compress { .. } => true,
    }
}

/// The same action in a chain that begins with `input`.
fn renumbered(action: Action, input: Boundary) -> Action {
    let by = input.number();
    let stage = |stage: Stage| Stage::new(stage.number() - by);
    let boundary = |boundary: Boundary| Boundary::new(boundary.number() - by);
    match action {
        Action::Forward { stage: of } => Action::Forward { stage: stage(of) },
        Action::Tape { stage: of, option } => Action::Tape { stage: stage(of), option },
        Action::Backward { stage: of } => Action::Backward { stage: stage(of) },
        Action::Keep { boundary: of } => Action::Keep { boundary: boundary(of) },
        Action::Drop { boundary: of, place } => Action::Drop { boundary: boundary(of), place },
        Action::Offload { boundary: of, tier } => Action::Offload { boundary: boundary(of), tier },
        Action::Fetch { boundary: of, place } => Action::Fetch { boundary: boundary(of), place },
        Action::Compress { boundary: of, codec } => Action::Compress { boundary: boundary(of), codec },
    }
}
