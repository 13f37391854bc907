//! A step of a pipeline, without running it.

use super::PipelineError;
use super::order::{Work, in_flight, one_forward_one_backward};
use crate::{Bytes, Nanos};

/// What one stage of a pipeline takes for one micro-batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Its forward.
    pub forward: Nanos,
    /// Its backward, with what is recomputed for it.
    pub backward: Nanos,
    /// What it takes to hand a boundary to the next stage, or a gradient to the one before.
    pub send: Nanos,
    /// What is kept of a micro-batch between its forward and its backward.
    pub kept: Bytes,
    /// What a forward or a backward takes beside that.
    pub working: Bytes,
}

/// When a rank did something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What.
    pub work: Work,
    /// When it began.
    pub start: Nanos,
    /// When it was done.
    pub end: Nanos,
}

/// How a step goes.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Simulated {
    /// What each stage does.
    pub spans: Vec<Vec<Span>>,
    /// From the first forward to the last backward.
    pub step: Nanos,
    /// The part of all ranks' time in which they wait.
    pub bubble: f64,
    /// How many micro-batches each stage holds at most.
    pub in_flight: Vec<usize>,
    /// What each stage takes at most: as much as that many micro-batches keep, and what it works with.
    pub peaks: Vec<Bytes>,
}

/// Runs so many micro-batches through stages that take so long.
///
/// # Errors
/// When there is no stage or no micro-batch, or numbers do not fit 64 bits.
pub fn simulate(stages: &[Cost], micro_batches: usize) -> Result<Simulated, PipelineError> {
    if stages.is_empty() || micro_batches == 0 {
        return Err(PipelineError::Empty { ranks: stages.len(), micro_batches });
    }
    let too_large = || PipelineError::TooLarge;
    let add = |a: u64, b: u64| a.checked_add(b).ok_or_else(too_large);
    let work: Vec<Vec<Work>> =
        (0..stages.len()).map(|stage| one_forward_one_backward(stage, stages.len(), micro_batches)).collect();
    // When each micro-batch was through each stage, forth and back.
    let mut forth = vec![vec![None::<u64>; micro_batches]; stages.len()];
    let mut back = forth.clone();
    let mut spans: Vec<Vec<Span>> = work.iter().map(|work| Vec::with_capacity(work.len())).collect();
    let mut free = vec![0_u64; stages.len()];
    // Stages whose next piece of work may have become possible.
    let mut look: Vec<usize> = (0..stages.len()).rev().collect();
    while let Some(stage) = look.pop() {
        while let Some(work) = work[stage].get(spans[stage].len()) {
            let arrived = match *work {
                Work::Forward(number) if stage > 0 => match forth[stage - 1][number] {
                    Some(done) => add(done, stages[stage - 1].send.get())?,
                    None => break,
                },
                Work::Backward(number) if stage + 1 < stages.len() => match back[stage + 1][number] {
                    Some(done) => add(done, stages[stage + 1].send.get())?,
                    None => break,
                },
                Work::Forward(_) | Work::Backward(_) => 0,
            };
            let start = arrived.max(free[stage]);
            let (takes, done, next) = match *work {
                Work::Forward(number) => {
                    (stages[stage].forward, &mut forth[stage][number], stage.checked_add(1))
                }
                Work::Backward(number) => {
                    (stages[stage].backward, &mut back[stage][number], stage.checked_sub(1))
                }
            };
            let end = add(start, takes.get())?;
            *done = Some(end);
            free[stage] = end;
            spans[stage].push(Span { work: *work, start: Nanos::new(start), end: Nanos::new(end) });
            look.extend(next.filter(|next| *next < stages.len()));
        }
    }
    let step = free.iter().copied().max().unwrap_or_default();
    let busy: f64 = stages
        .iter()
        .map(|cost| (cost.forward.get() as f64 + cost.backward.get() as f64) * micro_batches as f64)
        .sum();
    let in_flight: Vec<usize> =
        (0..stages.len()).map(|stage| in_flight(stage, stages.len(), micro_batches)).collect();
    let peaks = stages.iter().zip(&in_flight).map(|(cost, held)| {
        let kept = cost.kept.get().checked_mul(*held as u64).ok_or_else(too_large)?;
        add(kept, cost.working.get()).map(Bytes::new)
    });
    Ok(Simulated {
        peaks: peaks.collect::<Result<_, _>>()?,
        spans,
        step: Nanos::new(step),
        bubble: if step == 0 { 0.0 } else { 1.0 - busy / (step as f64 * stages.len() as f64) },
        in_flight,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(forward: u64, backward: u64) -> Cost {
        Cost { forward: Nanos::new(forward), backward: Nanos::new(backward), ..Cost::default() }
    }

    #[test]
    fn equal_stages_wait_as_long_as_the_formula_says() {
        for stages in 1..=8 {
            for micro_batches in 1..=20 {
                let found = simulate(&vec![cost(100, 200); stages], micro_batches);
                let found = found.unwrap_or_else(|error| panic!("{error}"));
                let expected = (stages - 1) as f64 / (micro_batches + stages - 1) as f64;
                assert!(
                    (found.bubble - expected).abs() < 1e-9,
                    "{stages}, {micro_batches}: {}",
                    found.bubble
                );
                assert!(
                    found.spans.iter().all(|spans| spans.len() == 2 * micro_batches),
                    "all of it is done"
                );
            }
        }
    }

    #[test]
    fn no_work_begins_before_what_it_needs() {
        let stages = [cost(3, 5), cost(10, 1), cost(2, 9)].map(|cost| Cost { send: Nanos::new(4), ..cost });
        let found = simulate(&stages, 5).unwrap_or_else(|error| panic!("{error}"));
        let when = |stage: usize, work| found.spans[stage].iter().find(|span| span.work == work).copied();
        for number in 0..5 {
            for stage in 1..3 {
                let before = when(stage - 1, Work::Forward(number)).map(|span| span.end.get() + 4);
                assert!(when(stage, Work::Forward(number)).map(|span| span.start.get()) >= before);
                let before = when(stage, Work::Backward(number)).map(|span| span.end.get() + 4);
                assert!(when(stage - 1, Work::Backward(number)).map(|span| span.start.get()) >= before);
            }
        }
    }

    #[test]
    fn thousands_of_ranks_are_simulated_with_what_each_holds() {
        let kept = Cost { kept: Bytes::mebibytes(2), working: Bytes::mebibytes(1), ..cost(1_000, 2_000) };
        let found = simulate(&vec![kept; 2_000], 100).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(found.peaks[0], Bytes::mebibytes(201));
        assert_eq!(found.peaks[1_999], Bytes::mebibytes(3));
        let huge = Cost { kept: Bytes::MAX, ..kept };
        assert!(simulate(&[huge; 3], 3).is_err());
        assert!(simulate(&[], 3).is_err() && simulate(&[kept], 0).is_err());
    }
}
