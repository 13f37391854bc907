//! What is cheap to make again, beside what it takes to keep.
//!
//! Stages fall into stretches: each ends where the chain is narrow again, as a transformer is where a part of a block has gone back onto
//! the residual stream. To run the end of a stretch again frees what lies inside and keeps the narrow boundaries on both of its sides; a
//! whole stretch needs no more than the boundary before it. That, and other ways to keep a tape, are the moves there are. They are taken
//! in the order of what they free in the time they take.

use std::cmp::Reverse;
use std::ops::Range;

use super::choices::{Choices, Run};
use super::schedule;
use crate::{Bytes, Name, Nanos, Profile, simulate};

/// Something to keep less by, for some time.
struct Move {
    stages: Range<usize>,
    /// The option to keep the tape of the one stage under; none where the stages are run again.
    option: Option<Name>,
    frees: Bytes,
    takes: Nanos,
}

impl Move {
    fn apply(&self, choices: &mut Choices<'_>) {
        let Self { stages, option, .. } = self;
        match option {
            Some(option) => {
                // Who runs a stage again keeps none of its tapes.
                let run = &mut choices.runs[stages.start];
                if *run != Run::Recompute {
                    *run = Run::Tape(Some(option.clone()));
                }
            }
            None => choices.run_again(stages.clone()),
        }
    }

    /// Bytes in a second, which is only compared.
    fn yields(&self) -> u128 {
        u128::from(self.frees.get()) * 1_000_000_000 / u128::from(self.takes.get().max(1))
    }
}

/// Of everything that is cheap to make again as much, the cheapest first, as it takes to come to a part of the peak of keeping all;
/// all of it where that is not enough. Stages in `costly` are not run again.
pub(super) fn until<'a>(profile: &'a Profile, percent: u64, costly: &[bool]) -> Choices<'a> {
    let mut moves = moves(profile, costly);
    // Stable: of moves that are alike the first of the chain are taken. Its end is where the peak is, and what is run again there comes
    // on top of all that is kept.
    moves.sort_by_key(|one| Reverse(one.yields()));
    let with = |count: usize| {
        let mut choices = Choices::new(profile, Run::Tape(None));
        moves.iter().take(count).for_each(|one| one.apply(&mut choices));
        choices
    };
    let peak = |choices: &Choices<'_>| {
        let pieces = schedule::pieces(choices);
        simulate(profile, &schedule::actions(choices, &pieces)).map_or(Bytes::MAX, |found| found.peak_bytes)
    };
    let wanted = u128::from(peak(&with(0)).get()) * u128::from(percent) / 100;
    // How many are too few; more moves free more.
    let (mut too_few, mut enough) = (0, moves.len());
    while too_few < enough {
        let middle = too_few.midpoint(enough);
        match u128::from(peak(&with(middle)).get()) <= wanted {
            true => enough = middle,
            false => too_few = middle + 1,
        }
    }
    with(enough)
}

fn moves(profile: &Profile, costly: &[bool]) -> Vec<Move> {
    let mut moves = options(profile);
    for stretch in stretches(profile) {
        let stages = &profile.stages()[stretch.clone()];
        let never = |index: usize| costly[index] || profile.stages()[index].pinned;
        let end = stretch.end;
        if end == profile.stages().len() || stretch.clone().any(never) {
            continue;
        }
        let last = &stages[stages.len() - 1];
        let (mut tapes, mut takes) = (Bytes::ZERO, Nanos::ZERO);
        for (index, stage) in stretch.zip(stages).rev() {
            tapes = [tapes, stage.taped_bytes()].into_iter().sum();
            takes = [takes, stage.forward_ns].into_iter().sum();
            // The boundary behind them stays, and nobody reads it in the second run.
            let frees = tapes.saturating_sub(last.output_bytes);
            if frees > Bytes::ZERO {
                let takes = takes.saturating_sub(last.unread_ns);
                moves.push(Move { stages: index..end, option: None, frees, takes });
            }
        }
    }
    moves
}

/// Every other way to keep a tape that takes less.
fn options(profile: &Profile) -> Vec<Move> {
    let stages = profile.stages().iter().enumerate().filter(|(_, stage)| !stage.pinned);
    let smallest = stages.filter_map(|(index, stage)| {
        let option = stage.options.iter().min_by_key(|option| option.tape_bytes)?;
        let frees = stage.taped_bytes().saturating_sub(stage.taped_bytes_under(Some(option)));
        let both = |forward: Nanos, backward: Nanos| [forward, backward].into_iter().sum::<Nanos>();
        let takes = both(option.forward_ns, option.backward_ns)
            .saturating_sub(both(stage.forward_ns, stage.backward_ns));
        let option = Some(option.name.clone());
        (frees > Bytes::ZERO).then_some(Move { stages: index..index + 1, option, frees, takes })
    });
    smallest.collect()
}

/// The chain cut behind every stage that makes less than it reads, unless the next makes less still.
fn stretches(profile: &Profile) -> Vec<Range<usize>> {
    let stages = profile.stages();
    let made = |index: usize| stages.get(index).map(|stage| stage.output_bytes);
    let mut start = 0;
    let mut stretches = Vec::new();
    for index in 0..stages.len() {
        let reads = index.checked_sub(1).and_then(made).unwrap_or(profile.input_bytes());
        // What the chain ends with is no place to go on from, such as a loss.
        let next = made(index + 1).filter(|_| index + 2 < stages.len());
        let narrow = made(index) < Some(reads) && next.is_none_or(|next| Some(next) >= made(index));
        if narrow || index + 1 == stages.len() {
            stretches.push(start..index + 1);
            start = index + 1;
        }
    }
    stretches
}
