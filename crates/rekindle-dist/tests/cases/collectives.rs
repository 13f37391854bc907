//! What arrives, and what is refused.

use rekindle_dist::{Collective, DistError, Mpi, Reduction};

/// Values of a rank that round when they are added.
fn values(rank: usize, count: usize) -> Vec<f32> {
    let mut random = 0x9e37_79b9_u32.wrapping_mul(rank as u32 + 1);
    let next = |_| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        random as f32 / u32::MAX as f32 - 0.5
    };
    (0..count).map(next).collect()
}

fn sum_in_order(ranks: usize, count: usize) -> Vec<f32> {
    let mut sum = values(0, count);
    for rank in 1..ranks {
        sum.iter_mut().zip(values(rank, count)).for_each(|(sum, value)| *sum += value);
    }
    sum
}

pub(crate) fn everything_arrives(world: &Mpi) {
    let (rank, size) = (world.rank(), world.size());
    for root in 0..size {
        for length in [0, 1, 1_000_003] {
            let own = if rank == root { vec![root as u8 + 1; length] } else { Vec::new() };
            assert!(world.broadcast(root, own).unwrap() == vec![root as u8 + 1; length]);
        }
    }
    let all = world.all_gather(vec![rank as u8; 3 * rank]).unwrap();
    assert!(all.iter().enumerate().all(|(rank, found)| *found == vec![rank as u8; 3 * rank]));
    // More than goes at once.
    for count in [0, 1, 5, (1 << 20) + 1] {
        let parts = world.start_all_gather_parts(values(rank, count)).wait().unwrap();
        assert!(parts == (0..size).flat_map(|rank| values(rank, count)).collect::<Vec<_>>());
    }
    world.barrier().unwrap();
}

pub(crate) fn sums(world: &Mpi) {
    let (rank, size) = (world.rank(), world.size());
    for count in [0, 1, 7, 64, (1 << 20) * size + 3] {
        let expected = sum_in_order(size, count);
        let found = world.all_reduce(values(rank, count), Reduction::Ordered).unwrap();
        assert!(found == expected, "{count}");
        let native = world.all_reduce(values(rank, count), Reduction::Native).unwrap();
        assert!(native.iter().zip(&expected).all(|(found, expected)| (found - expected).abs() < 1e-5));
        let even = count.next_multiple_of(size);
        let expected = sum_in_order(size, even);
        let part = &expected[rank * (even / size)..][..even / size];
        let found = world.reduce_scatter(values(rank, even), Reduction::Ordered).unwrap();
        assert!(found == part, "{count}");
        let native = world.reduce_scatter(values(rank, even), Reduction::Native).unwrap();
        assert!(native.iter().zip(part).all(|(found, expected)| (found - expected).abs() < 1e-5));
    }
    // Several at once, waited for in another order.
    let first = world.start_all_reduce(vec![1.0; 10], Reduction::Ordered);
    let second = world.start_all_reduce(vec![2.0; 10], Reduction::Ordered);
    assert_eq!(second.wait().unwrap(), [2.0 * size as f32; 10]);
    assert_eq!(first.wait().unwrap(), [size as f32; 10]);
}

pub(crate) fn groups(world: &Mpi) {
    let (rank, size) = (world.rank(), world.size());
    let group = world.split(rank % 2, size - rank).unwrap();
    assert_eq!(group.size(), size / 2);
    // The keys turn them around.
    assert_eq!(group.rank(), (size - 1 - rank) / 2);
    let sum = group.all_reduce(vec![rank as f32], Reduction::Ordered).unwrap();
    let expected: usize = (0..size).filter(|other| other % 2 == rank % 2).sum();
    assert_eq!(sum, [expected as f32]);
    let alone = group.split(group.rank(), 0).unwrap();
    assert_eq!((alone.rank(), alone.size()), (0, 1));
    assert_eq!(alone.all_gather(vec![7]).unwrap(), [[7]]);
}

pub(crate) fn out_of_step(world: &Mpi) {
    let (rank, size) = (world.rank(), world.size());
    let lengths = world.all_reduce(vec![0.0; if rank == 0 { 5 } else { 6 }], Reduction::Ordered).unwrap_err();
    let DistError::OutOfStep { other, .. } = &lengths else { panic!("{lengths}") };
    assert_eq!(*other, usize::from(rank == 0));
    assert!(lengths.to_string().contains("an all-reduce of 6 values, ordered"), "{lengths}");
    let calls = match rank {
        0 => world.barrier().unwrap_err(),
        _ => world.all_gather(vec![1]).unwrap_err(),
    };
    assert!(
        calls.to_string().contains("a barrier") && calls.to_string().contains("an all-gather"),
        "{calls}"
    );
    let how = if rank == 0 { Reduction::Native } else { Reduction::Ordered };
    assert!(matches!(world.all_reduce(vec![1.0], how), Err(DistError::OutOfStep { .. })));
    let uneven = world.reduce_scatter(vec![1.0; size + 1], Reduction::Ordered).unwrap_err();
    assert!(matches!(uneven, DistError::Uneven { .. }), "{uneven}");
    assert!(matches!(world.broadcast(size, vec![]), Err(DistError::NoRank { .. })));
    assert!(matches!(world.send(size, vec![]), Err(DistError::NoRank { .. })));
    assert!(matches!(Mpi::start(None), Err(DistError::Started)));
    // Afterwards all is as it was.
    assert_eq!(world.all_reduce(vec![1.0], Reduction::Ordered).unwrap(), [size as f32]);
}

pub(crate) fn both_send(world: &Mpi) {
    let (rank, size) = (world.rank(), world.size());
    // More than MPI takes on without a receiver.
    for length in [0, 10, 5_000_001] {
        let found = world
            .exchange(Some(((rank + 1) % size, vec![rank as u8; length])), Some((rank + size - 1) % size));
        assert!(found.unwrap().unwrap() == vec![((rank + size - 1) % size) as u8; length]);
    }
    match rank {
        0 => world.send(1, b"to the next".to_vec()).unwrap(),
        1 => assert_eq!(world.receive(0).unwrap(), b"to the next"),
        _ => {}
    }
}
