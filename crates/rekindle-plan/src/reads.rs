//! Who reads what a taped forward makes.

use crate::Action;

/// For each action of a chain of so many stages that tapes: how many later ones read the output its tape includes. The
/// run that hands the region's output out is read by whoever asked for the region.
///
/// Past the turn, a tape whose output nobody reads need not make it: only what the backward starts from.
pub(crate) fn reads_of_outputs(stages: usize, actions: &[Action]) -> Vec<usize> {
    let mut pending = vec![0usize; stages + 1];
    let mut reads = vec![0; actions.len()];
    // A list that is still to be judged may name boundaries that are not there.
    let add = |pending: &mut Vec<usize>, index: usize| {
        if let Some(reads) = pending.get_mut(index) {
            *reads += 1;
        }
    };
    let mut first_of_last = None;
    for (index, action) in actions.iter().enumerate().rev() {
        match action {
            Action::Backward { stage } => {
                if let Some(pending) = pending.get_mut(stage.output().index()) {
                    *pending = 0;
                }
            }
            Action::Forward { stage } => add(&mut pending, stage.input().index()),
            Action::Tape { stage, .. } => {
                reads[index] = pending.get_mut(stage.output().index()).map_or(0, std::mem::take);
                add(&mut pending, stage.input().index());
            }
            Action::Keep { boundary }
            | Action::Offload { boundary, .. }
            | Action::Compress { boundary, .. } => add(&mut pending, boundary.index()),
            Action::Drop { .. } | Action::Fetch { .. } => {}
        }
        if matches!(action, Action::Forward { stage } | Action::Tape { stage, .. } if stage.number() as usize == stages)
        {
            first_of_last = Some(index);
        }
    }
    if let Some(index) = first_of_last {
        reads[index] += 1;
    }
    reads
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use super::*;

    fn reads(stages: usize, text: &str) -> Vec<usize> {
        let actions: Vec<Action> = text.split('/').map(|line| line.trim().parse().unwrap()).collect();
        reads_of_outputs(stages, &actions)
    }

    #[test]
    fn a_recomputed_tape_at_the_end_of_its_segment_is_read_by_nobody() {
        let text = "keep x0 / forward 1 / tape 2 / backward 2 / tape 1 / backward 1 / drop x0";
        assert_eq!(reads(2, text), [0, 0, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn the_stage_behind_a_tape_reads_it() {
        assert_eq!(reads(2, "tape 1 / tape 2 / backward 2 / backward 1"), [1, 1, 0, 0]);
    }

    #[test]
    fn the_last_stage_is_read_in_its_first_run_only() {
        let text = "keep x0 / forward 1 / forward 2 / forward 1 / tape 2 / backward 2 / tape 1 / backward 1";
        assert_eq!(reads(2, text), [0, 0, 1, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn boundaries_that_are_not_there_are_left_to_the_simulator() {
        assert_eq!(reads(1, "keep x9 / tape 7 / backward 7"), [0, 0, 0]);
    }
}
