//! What a rank does, in order.

/// One thing a rank does, for one micro-batch, from 0 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// Its stages forth.
    Forward(usize),
    /// Its stages back.
    Backward(usize),
}

/// How many micro-batches stage `stage` of `stages`, from 0 on, holds at most.
pub fn in_flight(stage: usize, stages: usize, micro_batches: usize) -> usize {
    stages.saturating_sub(stage).min(micro_batches)
}

/// What stage `stage` of `stages` does with so many micro-batches.
///
/// ```
/// use rekindle_plan::pipeline::Work::{Backward as B, Forward as F};
/// use rekindle_plan::pipeline::one_forward_one_backward;
///
/// assert_eq!(one_forward_one_backward(0, 2, 3), [F(0), F(1), B(0), F(2), B(1), B(2)]);
/// assert_eq!(one_forward_one_backward(1, 2, 3), [F(0), B(0), F(1), B(1), F(2), B(2)]);
/// ```
pub fn one_forward_one_backward(stage: usize, stages: usize, micro_batches: usize) -> Vec<Work> {
    let ahead = in_flight(stage, stages, micro_batches).saturating_sub(1);
    let mut work: Vec<Work> = (0..ahead).map(Work::Forward).collect();
    for micro_batch in 0..micro_batches {
        if ahead + micro_batch < micro_batches {
            work.push(Work::Forward(ahead + micro_batch));
        }
        work.push(Work::Backward(micro_batch));
    }
    work
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_done_once_in_order_and_no_more_is_held_than_is_said() {
        for stages in 1..=8 {
            for micro_batches in 0..=12 {
                for stage in 0..stages {
                    let work = one_forward_one_backward(stage, stages, micro_batches);
                    let (mut forth, mut back, mut most) = (0, 0, 0);
                    for work in work {
                        match work {
                            Work::Forward(number) => {
                                assert_eq!(number, forth);
                                forth += 1;
                            }
                            Work::Backward(number) => {
                                assert_eq!(number, back);
                                back += 1;
                            }
                        }
                        assert!(back <= forth);
                        most = most.max(forth - back);
                    }
                    assert_eq!((forth, back), (micro_batches, micro_batches));
                    // The one that is gone back through is held until then.
                    assert_eq!(most, in_flight(stage, stages, micro_batches));
                }
            }
        }
    }
}
