//! The process that answers, the target.

use std::sync::atomic::Ordering;
use std::time::Instant;

use rdma::{SendOp, Status, Wc};
use serde::{Deserialize, Serialize};

use super::case::{Case, Operation, Transport, Waiting};
use super::end::{End, Lane, RECEIVES, Room};
use super::limits;
use super::measure::{LAST, Sender, mark};
use super::wait::{SILENCE, Watch, poll_for, reap};
use crate::fixture::{Endpoint, text};
use crate::link::Link;

/// How often a target that is awake polls between two looks at the link, each of which is a system call.
const LOOKS: u32 = 256;

/// A task of the target.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub enum Job {
    /// Answers every message by one of the same kind.
    Pong {
        /// The case that is measured.
        case: Case,
        /// The number of messages.
        count: u32,
    },
    /// Takes messages until the last one.
    Sink(Case),
    /// Sleeps until the last message, or polls if it is to be awake.
    Idle {
        /// True if it polls.
        awake: bool,
    },
    /// Sleeps while other programs are measured, however long that takes.
    Rest,
    /// Makes or destroys idle queue pairs, until there are so many, and returns the new ones.
    MakeIdle(usize),
    /// Connects the new idle queue pairs.
    ConnectIdle(Vec<Endpoint>),
    /// A measurement of the machine.
    Limit(limits::Job),
    /// Ends the process.
    End,
}

/// Carry out jobs until [`Job::End`].
pub fn serve(end: &mut End, link: &mut Link) -> Result<(), String> {
    let mut stand = None;
    loop {
        let job: Job = link.receive()?;
        // An unreliable message may be lost; the other side decides what to do then.
        let reliable = !matches!(&job, Job::Pong { case, .. } if case.transport != Transport::Rc);
        let outcome = match job {
            Job::End => return Ok(()),
            Job::Pong { case, count } => pong(end, link, &case, count).map(|()| 0),
            Job::Sink(case) => sink(end, link, &case),
            Job::Idle { awake } => idle(end, link, awake).map(|()| 0),
            Job::Rest => {
                link.receive_at_last::<()>()?;
                continue;
            }
            Job::MakeIdle(count) => {
                let made = end.make_idle(count)?;
                link.send(&made)?;
                continue;
            }
            Job::ConnectIdle(peers) => {
                end.connect_idle(&peers)?;
                link.send(&())?;
                continue;
            }
            Job::Limit(job) => limits::answer(&mut stand, job, link).map(|()| 0),
        };
        link.send(&outcome)?;
        if reliable {
            outcome?;
        }
    }
}

/// Do nothing until the last message. A target that is awake looks at its completion queue, as a program does that
/// waits for messages.
fn idle(end: &End, link: &mut Link, awake: bool) -> Result<(), String> {
    link.send(&())?;
    // An initiator that is gone makes the link readable, too.
    while awake && !link.is_readable()? {
        for _ in 0..LOOKS {
            reap(&end.polled()[1])?;
        }
        std::thread::yield_now();
    }
    link.receive()
}

fn pong(end: &End, link: &mut Link, case: &Case, count: u32) -> Result<(), String> {
    let lane = end.lane(case)?;
    match case.operation {
        Operation::Send => pong_send(end, link, lane, case, count),
        _ => pong_write(end, link, lane, case, count),
    }
}

fn pong_send(end: &End, link: &mut Link, lane: &Lane, case: &Case, count: u32) -> Result<(), String> {
    end.fill(lane, RECEIVES)?;
    if case.waiting == Waiting::Events {
        lane.receives.arm(false).map_err(text)?;
    }
    link.send(&())?;
    let mut sender = Sender::new(count);
    let mut received = 0;
    for turn in 1..=u64::from(count) {
        received = wait(lane, case, received, turn, count.into())?;
        sender.post(end, lane, SendOp::Send, case.bytes)?;
        end.fill(lane, RECEIVES)?;
    }
    sender.finish(lane)
}

/// Wait for the `turn`th message of so many.
#[inline]
pub fn wait(lane: &Lane, case: &Case, received: u64, turn: u64, count: u64) -> Result<u64, String> {
    let now = match case.waiting {
        Waiting::Events => lane.sleep_for_receives(turn == count, received, turn)?,
        Waiting::Polling => poll_for(&lane.receives, received, turn)?,
    };
    lane.ready.set(lane.ready.get() - (now - received));
    Ok(now)
}

fn pong_write(end: &End, link: &mut Link, lane: &Lane, case: &Case, count: u32) -> Result<(), String> {
    let last = end.room.sink() + case.bytes - 1;
    end.mr.store(last, 0);
    link.send(&())?;
    let mut sender = Sender::new(count);
    let op = SendOp::Write { addr: lane.peer.addr + end.room.sink() as u64, rkey: lane.peer.rkey };
    for turn in 0..count {
        let mark = mark(turn);
        watch(end, last, mark)?;
        end.mr.store(Room::SOURCE + case.bytes - 1, mark);
        sender.post(end, lane, op, case.bytes)?;
    }
    sender.finish(lane)
}

/// Look at a byte of memory, and at nothing else, until it is `mark`.
#[inline]
pub fn watch(end: &End, at: usize, mark: u8) -> Result<(), String> {
    let mut watch = Watch::new();
    while end.mr.load(at) != mark {
        std::hint::spin_loop();
        watch.tick()?;
    }
    Ok(())
}

/// Take messages until the last one; the result is how many came.
fn sink(end: &End, link: &mut Link, case: &Case) -> Result<u64, String> {
    let lane = end.lane(case)?;
    end.mr.word(end.room.over()).store(0, Ordering::SeqCst);
    if case.waiting == Waiting::Events {
        return sink_by_events(end, link, case, lane);
    }
    end.fill(lane, RECEIVES)?;
    link.send(&())?;
    let (mut received, mut quiet) = (0, None);
    let mut watch = Watch::new();
    loop {
        match reap(&lane.receives)? {
            0 => {
                watch.tick()?;
                if end.mr.load(end.room.over()) != 0 {
                    // An unreliable message that was sent before may still be on its way.
                    let since = *quiet.get_or_insert_with(Instant::now);
                    if since.elapsed() > SILENCE {
                        return Ok(received);
                    }
                }
            }
            more => {
                received += more;
                (quiet, watch) = (None, Watch::new());
                lane.ready.set(lane.ready.get() - more);
                end.fill(lane, RECEIVES)?;
            }
        }
    }
}

/// Take messages until the last one, and sleep while none comes. The last message, over the reliable connection, has an
/// immediate value; an unreliable one that was sent before it may still be on its way.
fn sink_by_events(end: &End, link: &mut Link, case: &Case, lane: &Lane) -> Result<u64, String> {
    let reliable = end.lane(&LAST)?;
    end.fill(lane, RECEIVES)?;
    end.fill(reliable, RECEIVES)?;
    link.send(&())?;
    let (mut received, mut armed, mut over, mut quiet) = (0, false, false, Instant::now());
    loop {
        let mut out = [Wc::default(); 16];
        let count = lane.receives.poll(&mut out).map_err(text)?;
        for wc in &out[..count] {
            if wc.status() != Status::SUCCESS {
                return Err(format!("a receive failed with {}", wc.status()));
            }
            let last = wc.imm().is_some();
            over |= last;
            received += u64::from(!last);
            let of = if last { reliable } else { lane };
            of.ready.set(of.ready.get() - 1);
        }
        if count > 0 {
            end.fill(lane, RECEIVES)?;
            quiet = Instant::now();
        }
        if over {
            if case.transport == Transport::Rc || quiet.elapsed() > SILENCE {
                // The event is taken, so that no later case finds it.
                return lane.take_event().map(|()| received);
            }
            continue;
        }
        match (count, armed) {
            (1.., _) => {}
            (0, true) => {
                lane.next_event()?;
                armed = false;
            }
            (0, false) => {
                lane.receives.arm(false).map_err(text)?;
                armed = true;
            }
        }
    }
}
