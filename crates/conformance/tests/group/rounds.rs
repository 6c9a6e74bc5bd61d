//! The rounds that operations take.

use conformance::Fixture;
use group::{Operation, Wait};

use super::{Chain, client};

/// An operation of the replicas on their own memory takes every second round, and an empty message the one before it. A
/// gWRITE and a gFLUSH take any.
#[test]
fn rounds_without_an_operation_are_few() {
    let fixture = Fixture::open();
    let write = Operation::Write { offset: 64, size: 8 };
    let flush = Operation::Flush { offset: 0, size: 8 };
    let swap = |old| Operation::CompareSwap { offset: 0, old, new: old + 1, execute: 0b101 };
    for (ops, messages) in [
        (vec![write; 5], 5),
        (vec![swap(0), write, swap(1), write], 4),
        (vec![swap(0), swap(1), swap(2)], 5),
        (vec![flush, swap(0), flush, flush], 5),
        (vec![write, swap(0), write, write, swap(1)], 7),
    ] {
        let mut chain = Chain::start(&[1, 2]);
        let (mut client, _) = client(&fixture, chain.first, 1);
        let done = client.run(&ops, Wait::Poll).expect("a group");
        let had: Vec<_> = done.iter().filter_map(|done| done.values.clone()).collect();
        assert_eq!(had, (0..had.len() as u64).map(|old| vec![old, 0, old]).collect::<Vec<_>>());
        assert!(done.iter().map(|done| done.ticket).eq(0..ops.len() as u64));
        assert!(chain.look().iter().all(|(_, counts)| counts[1] == messages), "{ops:?}");
    }
}
