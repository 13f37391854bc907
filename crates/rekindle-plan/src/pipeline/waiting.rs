//! What a rank runs while its micro-batches wait.

use super::PipelineError;
use crate::{Action, Boundary, PlanError, Profile, Schedule, Stage};

/// A schedule for a rank with so many stages, of whose micro-batches nothing but boundaries is to wait.
///
/// A rule such as every-1 records the last stage's tape in the forward, because its backward comes next. In a pipeline other
/// micro-batches come between, and as many of these tapes would be there as micro-batches are in flight: here the last stage
/// is recomputed like all others. For a region's `schedule`.
///
/// # Errors
/// When there is no stage.
pub fn boundaries_wait(stages: u32) -> Result<Schedule, PipelineError> {
    let names = (1..=stages).map(|stage| format!("stage.{stage}"));
    let profile = Profile::unmeasured(names, &[])?;
    let input = |stage: u32| Boundary::new(stage - 1);
    let forth =
        (1..=stages).flat_map(|stage| [Action::keep(input(stage)), Action::forward(Stage::new(stage))]);
    let back = (1..=stages).rev().flat_map(|stage| {
        let (number, input) = (Stage::new(stage), input(stage));
        [Action::tape(number), Action::drop(input), Action::backward(number)]
    });
    let actions: Vec<Action> = forth.chain(back).collect();
    let judged = Schedule::judge(&profile, &actions).map_err(PlanError::from);
    judged
        .map(|(schedule, _)| schedule)
        .map_err(|error| PipelineError::Solve { rank: 0, source: error.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tape_is_there_before_the_backward() {
        let schedule = boundaries_wait(3).unwrap_or_else(|error| panic!("{error}"));
        let text = |actions: &[Action]| actions.iter().map(ToString::to_string).collect::<Vec<_>>().join("/");
        assert_eq!(text(schedule.forward_half()), "keep x0/forward 1/keep x1/forward 2/keep x2/forward 3");
        assert!(text(schedule.backward_half()).starts_with("tape 3/drop x2/backward 3/tape 2"));
        assert!(boundaries_wait(0).is_err());
    }
}
