//! What was done, one step after the other, and the plan it amounts to.

use super::evictor::Held;
use crate::rules::MOST_ACTIONS;
use crate::{Action, Boundary, Stage};

/// Steps as they were taken. A tape that was let go before its backward is struck out afterwards: its stage ran, but
/// as far as the plan goes without a tape, which takes less memory at every moment and no more time.
#[derive(Debug, Default)]
pub(super) struct Trace {
    steps: Vec<Step>,
    /// Where each stage was taped last, by number.
    taped_at: Vec<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Run { stage: Stage, taped: bool, keeps_input: bool },
    LetGo { boundary: Boundary },
    Backward { stage: Stage },
}

/// The plan would be too long to hold.
#[derive(Debug)]
pub(super) struct TooLong;

impl Trace {
    pub(super) fn run(&mut self, stage: Stage, taped: bool) -> Result<(), TooLong> {
        let number = stage.number() as usize;
        if self.taped_at.len() <= number {
            self.taped_at.resize(number + 1, 0);
        }
        self.taped_at[number] = self.steps.len();
        self.push(Step::Run { stage, taped, keeps_input: true })
    }

    pub(super) fn backward(&mut self, stage: Stage) -> Result<(), TooLong> {
        self.push(Step::Backward { stage })
    }

    pub(super) fn let_go(&mut self, gone: Vec<Held>) -> Result<(), TooLong> {
        if gone.is_empty() {
            return Ok(());
        }
        let previous = self.steps.iter().rposition(|step| !matches!(step, Step::LetGo { .. }));
        for held in gone {
            match held {
                Held::Tape(stage) => {
                    let at = self.taped_at.get(stage.number() as usize).copied().unwrap_or_default();
                    if let Some(Step::Run { taped, .. }) = self.steps.get_mut(at) {
                        *taped = false;
                    }
                }
                Held::Boundary(boundary) => match previous.and_then(|at| self.steps.get_mut(at)) {
                    // It goes as soon as it has been read, which needs no word in a plan.
                    Some(Step::Run { stage, keeps_input, .. }) if stage.input() == boundary => {
                        *keeps_input = false;
                    }
                    _ => self.push(Step::LetGo { boundary })?,
                },
            }
        }
        Ok(())
    }

    /// What goes between the two halves, to make room for the gradient that arrives. A plan has no moment there, so it
    /// goes before the last stage runs, which does not read it; its input goes when it has run.
    pub(super) fn let_go_at_the_turn(&mut self, gone: Vec<Held>) -> Result<(), TooLong> {
        let Some(Step::Run { stage, taped, .. }) = self.steps.pop() else { return Ok(()) };
        let (input, rest): (Vec<Held>, Vec<Held>) =
            gone.into_iter().partition(|held| *held == Held::Boundary(stage.input()));
        self.let_go(rest)?;
        self.run(stage, taped)?;
        self.let_go(input)
    }

    fn push(&mut self, step: Step) -> Result<(), TooLong> {
        if self.steps.len() >= MOST_ACTIONS {
            return Err(TooLong);
        }
        self.steps.push(step);
        Ok(())
    }

    /// The actions of the steps, in the simulator's words: what is read goes unless it is kept, and what was kept has
    /// to be dropped.
    pub(super) fn actions(&self, stages: usize) -> Result<Vec<Action>, TooLong> {
        let mut actions = Vec::with_capacity(self.steps.len());
        let mut kept = vec![false; stages + 1];
        let mut taped = vec![false; stages + 1];
        for step in &self.steps {
            match *step {
                Step::Run { stage, taped: with_tape, keeps_input } => {
                    let input = stage.input();
                    let (at, keeps) = (input.index(), keeps_input && !with_tape);
                    // A boundary in a tape stays as long as the tape.
                    if keeps && !kept[at] && !taped[at] {
                        actions.push(Action::keep(input));
                        kept[at] = true;
                    }
                    actions.push(match with_tape {
                        true => Action::tape(stage),
                        false => Action::forward(stage),
                    });
                    taped[stage.output().index()] = with_tape;
                    if !keeps && std::mem::take(&mut kept[at]) {
                        actions.push(Action::drop(input));
                    }
                }
                Step::LetGo { boundary } => {
                    kept[boundary.index()] = false;
                    actions.push(Action::drop(boundary));
                }
                Step::Backward { stage } => {
                    taped[stage.output().index()] = false;
                    actions.push(Action::backward(stage));
                }
            }
            if actions.len() > MOST_ACTIONS {
                return Err(TooLong);
            }
        }
        Ok(actions)
    }
}
