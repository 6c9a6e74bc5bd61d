//! Requests that must be refused: each fails with the status that the specification names, and no byte changes.

use rdma::{SendFlags, SendOp, Status};

use super::case::{Case, same};
use super::remote::Pair;
use super::shape::Shape;
use super::side::{Answer, BASE, Stretch, Task, WORD};

/// The refusals, by number.
pub const NAMES: [&str; 7] = [
    "a WRITE with a wrong key",
    "a READ with a wrong key",
    "a WRITE beyond the region's end",
    "a READ before the region's start",
    "an atomic at an odd address",
    "a SEND into too small a receive",
    "a SEND out of memory that is not registered",
];

/// True for refusals that need atomics.
pub fn needs_atomics(number: usize) -> bool {
    number == 4
}

/// The number of bytes that are tried.
const LEN: usize = 1000;

/// Break a rule and check the result. The pair cannot be used afterwards.
pub fn refused(case: &Case, pair: &mut Pair<'_>) -> Result<(), String> {
    let number = case.len;
    let case = Case { len: LEN, near: Shape::One, remote: Shape::One, ..*case };
    let (addr, rkey) = (pair.peer.addr + BASE as u64, pair.peer.rkey);
    let end = pair.peer.addr + pair.near.spec.room as u64;
    let wrong = rkey ^ 0x5a_0000;
    let before = Stretch { offset: BASE, len: LEN, seed: case.seed() + 7, start: 0 };
    pair.tell(Task::Fill(vec![before]))?;
    let mut pieces = case.compose(pair);
    let (op, expected) = match number {
        0 => (SendOp::Write { addr, rkey: wrong }, Status::REMOTE_ACCESS),
        1 => (SendOp::Read { addr, rkey: wrong }, Status::REMOTE_ACCESS),
        2 => (SendOp::Write { addr: end - LEN as u64 + 1, rkey }, Status::REMOTE_ACCESS),
        3 => (SendOp::Read { addr: pair.peer.addr - 1, rkey }, Status::REMOTE_ACCESS),
        4 => {
            pieces = vec![(BASE, 8)];
            let addr = pair.peer.addr + WORD as u64 + 4;
            (SendOp::FetchAdd { addr, rkey, add: 1 }, Status::REMOTE_INVALID_REQUEST)
        }
        5 => {
            pair.receive(1, vec![(BASE, LEN - 1)])?;
            (SendOp::Send, Status::REMOTE_INVALID_REQUEST)
        }
        _ => {
            pair.receive(1, vec![(BASE, LEN)])?;
            pair.near.post_unregistered(case.number, LEN)?;
            same("status", pair.near.sent()?.status(), Status::LOCAL_PROTECTION)?;
            return unchanged(pair, before);
        }
    };
    pair.near.post(case.number, op, SendFlags::empty(), &pieces, false)?;
    same("status", pair.near.sent()?.status(), expected)?;
    match number {
        // A responder may have placed the bytes that fit; only the status is certain.
        5 => match pair.call(Task::Take { solicited: false })? {
            Answer::Received(received) => same("status of the receive", Status(received.status), Status::LOCAL_LENGTH),
            other => Err(format!("an answer out of place: {other:?}")),
        },
        _ => unchanged(pair, before),
    }
}

/// Bind a window, make its key invalid, and try it. The pair cannot be used afterwards.
pub fn invalidated(case: &Case, pair: &mut Pair<'_>) -> Result<(), String> {
    let kind = case.len as u8;
    let case = Case { len: LEN, near: Shape::One, remote: Shape::One, ..*case };
    let before = Stretch { offset: BASE, len: LEN, seed: case.seed() + 7, start: 0 };
    pair.tell(Task::Fill(vec![before]))?;
    let Answer::Key(rkey) = pair.call(Task::Bind { kind, offset: BASE, len: LEN })? else {
        return Err("no key".into());
    };
    pair.tell(Task::Unbind)?;
    let pieces = case.compose(pair);
    let op = SendOp::Write { addr: pair.peer.addr + BASE as u64, rkey };
    pair.near.post(case.number, op, SendFlags::empty(), &pieces, false)?;
    same("status", pair.near.sent()?.status(), Status::REMOTE_ACCESS)?;
    unchanged(pair, before)
}

fn unchanged(pair: &mut Pair<'_>, before: Stretch) -> Result<(), String> {
    match pair.call(Task::Compare(vec![before]))? {
        Answer::Difference(None) => Ok(()),
        Answer::Difference(Some((_, at, _, _))) => Err(format!("byte {at} was changed all the same")),
        other => Err(format!("an answer out of place: {other:?}")),
    }
}
