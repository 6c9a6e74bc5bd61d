//! The side that answers.

use rdma::SendOp;

use super::end::{End, Job, RECEIVES, SINK, SOURCE, Tally, WORD};
use super::initiator::mark;
use crate::bed::Endpoint;
use crate::link::Link;

/// Does what it is told, until told to end.
pub fn serve(end: &End, peer: &Endpoint, link: &mut Link) -> Result<(), String> {
    // Receives that no message has taken yet stay for the next job; all of them are of the largest size used.
    let mut posted = 0u64;
    loop {
        let job: Job = link.receive()?;
        if job == Job::End {
            return Ok(());
        }
        let outcome = work(end, peer, link, job, &mut posted);
        link.send(&outcome)?;
        outcome?;
    }
}

fn work(end: &End, peer: &Endpoint, link: &mut Link, job: Job, posted: &mut u64) -> Result<(), String> {
    let mut tally = Tally::default();
    match job {
        Job::PongSend { size, count } => {
            fill(end, posted, 1)?;
            link.send(&())?;
            for i in 0..u64::from(count) {
                tally.wait(&end.cq, |tally| tally.received > i)?;
                *posted -= 1;
                fill(end, posted, 1)?;
                end.post(SendOp::Send, SOURCE, size, 1)?;
            }
            tally.wait(&end.cq, |tally| tally.sent == u64::from(count))
        }
        Job::PongWrite { size, count } => {
            end.mr.store(SINK + size - 1, 0);
            let (addr, rkey) = (peer.addr + SINK as u64, peer.rkey);
            link.send(&())?;
            for i in 0..count {
                let mark = mark(i);
                tally.wait(&end.cq, |_| end.mr.load(SINK + size - 1) == mark)?;
                end.mr.store(SOURCE + size - 1, mark);
                end.post(SendOp::Write { addr, rkey }, SOURCE, size, 1)?;
            }
            tally.wait(&end.cq, |tally| tally.sent == u64::from(count))
        }
        Job::Serve { .. } => {
            end.mr.word(WORD).store(0, std::sync::atomic::Ordering::SeqCst);
            fill(end, posted, RECEIVES.into())?;
            link.send(&())?;
            let mut seen = 0;
            loop {
                tally.wait(&end.cq, |tally| tally.received > seen || tally.immediate)?;
                *posted -= tally.received - seen;
                seen = tally.received;
                if tally.immediate {
                    return Ok(());
                }
                fill(end, posted, RECEIVES.into())?;
            }
        }
        Job::Sleep => {
            link.send(&())?;
            link.receive()
        }
        Job::End => Ok(()),
    }
}

/// Posts receives until `wanted` are there.
fn fill(end: &End, posted: &mut u64, wanted: u64) -> Result<(), String> {
    while *posted < wanted {
        end.post_receive(super::end::LARGEST)?;
        *posted += 1;
    }
    Ok(())
}
