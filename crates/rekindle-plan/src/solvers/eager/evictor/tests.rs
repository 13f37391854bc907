//! The score, the limit, and what cannot be.

use super::*;
use proptest::prelude::*;

fn boundary(number: u32) -> Held {
    Held::Boundary(Boundary::new(number))
}

fn tape(number: u32) -> Held {
    Held::Tape(Stage::new(number))
}

/// A line of boundaries of these bytes and costs, without tapes.
fn line(limit: u64, stages: &[(u64, u64)]) -> Evictor {
    let mut evictor = Evictor::new(Bytes::new(limit), Bytes::new(1)).unwrap();
    for (index, (bytes, cost)) in stages.iter().enumerate() {
        evictor.record_forward(Stage::at(index), Bytes::new(*bytes), Nanos::new(*cost)).unwrap();
    }
    evictor
}

fn score(evictor: &Evictor, held: Held) -> f64 {
    evictor.score(held).unwrap()
}

#[test]
fn the_score_is_cost_over_bytes_and_staleness() {
    let evictor = line(100, &[(5, 30), (2, 10), (4, 20)]);
    // x1 was made in 30 and read last by stage 2, which started 30 ago; x3 was made by a stage that started 20 ago.
    assert_eq!(score(&evictor, boundary(1)), 30.0 / (5.0 * 30.0));
    assert_eq!(score(&evictor, boundary(2)), 10.0 / (2.0 * 20.0));
    assert_eq!(score(&evictor, boundary(3)), 20.0 / (4.0 * 20.0));
    assert_eq!(evictor.score(boundary(0)), None);
    assert_eq!(evictor.score(boundary(4)), None);
}

#[test]
fn what_is_gone_on_either_side_adds_to_the_cost() {
    let mut evictor = line(6, &[(1, 10), (1, 10), (1, 10), (1, 10), (1, 10)]);
    assert_eq!(evictor.make_room(Bytes::new(1)), Ok(vec![boundary(1)]));
    // x2, with x1 before it.
    assert_eq!(score(&evictor, boundary(2)), 20.0 / 30.0);
    assert_eq!(score(&evictor, boundary(3)), 10.0 / 20.0);
    assert_eq!(evictor.make_room(Bytes::new(2)), Ok(vec![boundary(3)]));
    // x2, with x1 before it and x3 after it.
    assert_eq!(score(&evictor, boundary(2)), 30.0 / 30.0);
    // x1 comes back: only x3 is left to add.
    evictor.record_forward(Stage::new(1), Bytes::new(1), Nanos::new(10)).unwrap();
    assert_eq!(score(&evictor, boundary(2)), 20.0 / 40.0);
    assert_eq!(evictor.nearest(Boundary::new(3)), Some(Boundary::new(2)));
}

#[test]
fn a_tape_frees_what_it_has_beyond_its_output_and_holds_both_its_boundaries() {
    let mut evictor = line(100, &[(4, 10)]);
    evictor.record_tape(Stage::new(2), Bytes::new(4), Bytes::new(24), Nanos::new(5)).unwrap();
    assert_eq!(score(&evictor, tape(2)), 5.0 / (20.0 * 5.0));
    assert_eq!(evictor.score(boundary(1)), None);
    assert_eq!(evictor.score(boundary(2)), None);
    assert_eq!(evictor.live_bytes(), Bytes::new(29));
    assert_eq!(evictor.make_room(Bytes::new(90)), Ok(vec![tape(2)]));
    assert_eq!(evictor.live_bytes(), Bytes::new(9));
    assert!(evictor.score(boundary(1)).is_some());
    assert!(evictor.has(Boundary::new(2)));
}

#[test]
fn what_is_pinned_stays_and_what_would_not_be_enough_stays_too() {
    let mut evictor = line(4, &[(1, 1), (1, 1), (1, 1)]);
    evictor.pin(boundary(1));
    evictor.pin(boundary(1));
    evictor.unpin(boundary(1));
    let refused = evictor.make_room(Bytes::new(3));
    let (needed_bytes, limit_bytes) = (Bytes::new(5), Bytes::new(4));
    assert_eq!(refused, Err(EvictError::NoRoom { needed_bytes, limit_bytes }));
    assert_eq!(evictor.live_bytes(), limit_bytes);
    assert_eq!(evictor.make_room(Bytes::new(2)), Ok(vec![boundary(2), boundary(3)]));
    evictor.unpin(boundary(1));
    assert_eq!(evictor.make_room(Bytes::new(3)), Ok(vec![boundary(1)]));
}

#[test]
fn boundaries_without_bytes_never_go_and_a_chain_without_times_goes_by_runs() {
    let mut evictor = line(3, &[(1, 0), (0, 0), (1, 0)]);
    assert_eq!(evictor.score(boundary(2)), None);
    assert_eq!(score(&evictor, boundary(1)), 1.0 / 2.0);
    assert_eq!(evictor.make_room(Bytes::new(1)), Ok(vec![boundary(1)]));
}

#[test]
fn memory_taken_without_room_is_not_counted() {
    let mut evictor = line(3, &[(1, 1)]);
    let error = EvictError::NoRoomMade { bytes: Bytes::new(2), free_bytes: Bytes::new(1) };
    assert_eq!(evictor.record_forward(Stage::new(2), Bytes::new(2), Nanos::ZERO), Err(error.clone()));
    assert_eq!(evictor.reserve(Bytes::new(2)), Err(error));
    assert_eq!(evictor.live_bytes(), Bytes::new(2));
    assert_eq!(
        Evictor::new(Bytes::ZERO, Bytes::MAX).unwrap_err().to_string(),
        "18446744073709551615 bytes are needed at once with what cannot be let go, but the limit is 0 bytes"
    );
}

#[test]
fn what_cannot_have_run_is_refused() {
    let why = |recorded: Result<(), EvictError>| match recorded {
        Err(EvictError::Impossible { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    let (bytes, time) = (Bytes::new(1), Nanos::new(1));
    let mut evictor = line(10, &[(1, 1), (1, 1)]);
    assert_eq!(why(evictor.record_forward(Stage::new(0), bytes, time)), "a stage before it has never run");
    assert_eq!(why(evictor.record_forward(Stage::new(4), bytes, time)), "a stage before it has never run");
    assert_eq!(why(evictor.record_forward(Stage::new(2), bytes, time)), "its output is there already");
    assert_eq!(why(evictor.record_backward(Stage::new(2), time)), "its tape is not there");
    evictor.record_turn();
    assert_eq!(
        why(evictor.record_forward(Stage::new(3), bytes, time)),
        "the chain has turned before it, or it has gone back"
    );
    evictor.record_tape(Stage::new(2), bytes, bytes, time).unwrap();
    assert_eq!(why(evictor.record_backward(Stage::new(1), time)), "its tape is not there");
    evictor.record_backward(Stage::new(2), time).unwrap();
    assert!(!evictor.has(Boundary::new(1)));
    assert_eq!(evictor.make_room(Bytes::new(9)), Ok(vec![]));
}

#[derive(Clone, Debug)]
enum Call {
    Room(u64),
    Run(u32, u64, Option<u64>, u64),
    Backward(u32, u64),
    Turn,
    Pin(Held),
    Unpin(Held),
    Reserve(u64),
    Release(u64),
}

fn any_call() -> impl Strategy<Value = Call> {
    let held = || prop_oneof![(0..9u32).prop_map(boundary), (0..9u32).prop_map(tape)];
    let bytes = || prop_oneof![9 => 0..12u64, 1 => Just(u64::MAX)];
    prop_oneof![
        4 => bytes().prop_map(Call::Room),
        12 => (0..9u32, bytes(), proptest::option::of(bytes()), bytes())
            .prop_map(|(stage, output, tape, cost)| Call::Run(stage, output, tape, cost)),
        3 => (0..9u32, 0..9u64).prop_map(|(stage, cost)| Call::Backward(stage, cost)),
        1 => Just(Call::Turn),
        1 => held().prop_map(Call::Pin),
        1 => held().prop_map(Call::Unpin),
        1 => bytes().prop_map(Call::Reserve),
        1 => bytes().prop_map(Call::Release),
    ]
}

proptest! {
    #[test]
    fn whatever_is_called_the_limit_holds_and_the_sums_add_up(
        limit in 0..60u64, calls in proptest::collection::vec(any_call(), 1..120),
    ) {
        let Ok(mut evictor) = Evictor::new(Bytes::new(limit), Bytes::new(2)) else { return Ok(()) };
        for call in calls {
            let before = evictor.live;
            match call {
                Call::Room(bytes) => match evictor.make_room(Bytes::new(bytes)) {
                    Ok(_) => prop_assert!(evictor.live + bytes <= limit),
                    Err(_) => prop_assert_eq!(evictor.live, before),
                },
                Call::Run(stage, output, tape, cost) => {
                    let (stage, output, cost) = (Stage::new(stage), Bytes::new(output), Nanos::new(cost));
                    let _ = match tape {
                        Some(tape) => evictor.record_tape(stage, output, Bytes::new(tape), cost),
                        None => evictor.record_forward(stage, output, cost),
                    };
                }
                Call::Backward(stage, cost) => {
                    let _ = evictor.record_backward(Stage::new(stage), Nanos::new(cost));
                }
                Call::Turn => evictor.record_turn(),
                Call::Pin(held) => evictor.pin(held),
                Call::Unpin(held) => evictor.unpin(held),
                Call::Reserve(bytes) => {
                    let _ = evictor.reserve(Bytes::new(bytes));
                }
                Call::Release(bytes) => evictor.release(Bytes::new(bytes)),
            }
            prop_assert!(evictor.live <= limit);
            let all = (0..evictor.links.len()).map(|number| evictor.bytes_of(number));
            let (live, stuck) = all.fold((0, 0), |sum, bytes| (sum.0 + bytes.0, sum.1 + bytes.1));
            prop_assert_eq!((evictor.live, evictor.stuck), (live + evictor.reserved, stuck));
            // What a tape holds on to is there.
            for (number, link) in evictor.links.iter().enumerate() {
                prop_assert!(!link.taped || link.here && evictor.links[number - 1].here);
            }
        }
    }
}
