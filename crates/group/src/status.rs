//! What the servers of a chain say about themselves.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::MOST_REPLICAS;
use crate::error::{Error, Result};
use crate::setup::{self, Numbers, kind};

/// How long the first server may take to answer.
const PATIENCE: Duration = Duration::from_secs(40);

/// The state of a replica, over all groups that live.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HopStatus {
    /// The groups.
    pub groups: u64,
    /// Requests that were posted to their queues: all of them at set-up.
    pub posted: u64,
    /// Messages that came: one for each operation, and empty ones before some gMEMCPYs and gCASs.
    pub arrived: u64,
    /// Messages whose part on this replica is done.
    pub done: u64,
    /// Rounds of the queues, which run in a circle.
    pub rounds: u64,
}

const FIELDS: usize = 5;
const BYTES: usize = 8 * FIELDS;

impl HopStatus {
    /// Rounds whose entries no operation uses.
    pub fn left(&self) -> u64 {
        self.rounds.saturating_sub(self.arrived.saturating_sub(self.done))
    }

    /// Operations that came to the replica before, and not to this one. A replica counts later than those behind it.
    pub fn lag(&self, before: &HopStatus) -> u64 {
        before.arrived.saturating_sub(self.arrived)
    }

    fn numbers(&self) -> [u64; FIELDS] {
        [self.groups, self.posted, self.arrived, self.done, self.rounds]
    }
}

/// Ask a server, and those behind it. The server that is asked comes first.
///
/// # Errors
/// Those of sockets; [`Error::Refused`] says which hop does not answer.
pub fn status(to: SocketAddr) -> Result<Vec<HopStatus>> {
    ask(to, 0)
}

/// Ask the server that is hop `hop` of the question.
pub fn ask(to: SocketAddr, hop: usize) -> Result<Vec<HopStatus>> {
    if hop >= MOST_REPLICAS {
        return Err(Error::Invalid(setup::TOO_LONG));
    }
    // Less at each hop: the one before a server that is silent has to say so before its own asker gives up.
    let patience = PATIENCE * (2 * MOST_REPLICAS - hop) as u32 / (2 * MOST_REPLICAS) as u32;
    let stream = TcpStream::connect_timeout(&to, patience)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(patience))?;
    setup::tell_numbers(&stream, kind::STATUS, &[setup::MAGIC, setup::VERSION, hop as u64])?;
    let (answer, bytes) = setup::hear(&stream)?;
    if answer == kind::REFUSED {
        return Err(Error::Refused(setup::text(&bytes)));
    }
    if answer != kind::STATUS {
        return Err(Error::Refused(setup::NO_SERVER.into()));
    }
    of_bytes(&bytes, MOST_REPLICAS - hop)
}

/// The answer of a server, with `most` replicas at most.
fn of_bytes(bytes: &[u8], most: usize) -> Result<Vec<HopStatus>> {
    let count = bytes.len() / BYTES;
    if !bytes.len().is_multiple_of(BYTES) || !(1..=most).contains(&count) {
        return Err(Error::Refused(format!("an answer of {} bytes for {most} replicas at most", bytes.len())));
    }
    let mut numbers = Numbers::of(bytes);
    let mut one = || -> Result<HopStatus> {
        let (groups, posted, arrived) = (numbers.take()?, numbers.take()?, numbers.take()?);
        Ok(HopStatus { groups, posted, arrived, done: numbers.take()?, rounds: numbers.take()? })
    };
    (0..count).map(|_| one()).collect()
}

/// The hop that a question is for.
pub fn asked(bytes: &[u8]) -> Result<usize> {
    let mut numbers = Numbers::of(bytes);
    setup::check_version(&mut numbers)?;
    let hop = numbers.take()?;
    usize::try_from(hop).ok().filter(|hop| *hop < MOST_REPLICAS).ok_or(Error::Invalid(setup::TOO_LONG))
}

/// Answer a client, or the server before.
pub fn answer(stream: &TcpStream, all: &[HopStatus]) -> Result<()> {
    setup::tell_numbers(stream, kind::STATUS, &all.iter().flat_map(HopStatus::numbers).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_other_lengths_are_refused() {
        let bytes: Vec<u8> = (1..=10u64).flat_map(u64::to_le_bytes).collect();
        let found = of_bytes(&bytes, 2).unwrap();
        assert_eq!(found[1], HopStatus { groups: 6, posted: 7, arrived: 8, done: 9, rounds: 10 });
        assert!(of_bytes(&bytes, 1).is_err());
        assert!(of_bytes(&bytes[1..], 2).is_err());
        assert!(of_bytes(&[], 2).is_err());
    }

    #[test]
    fn questions_of_other_versions_and_for_hops_that_cannot_be_are_refused() {
        let ask = |numbers: [u64; 3]| asked(&numbers.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<_>>());
        assert_eq!(ask([setup::MAGIC, setup::VERSION, 63]).unwrap(), 63);
        assert!(ask([setup::MAGIC, setup::VERSION, 64]).is_err());
        assert!(ask([setup::MAGIC, setup::VERSION, u64::MAX]).is_err());
        assert!(ask([setup::MAGIC, setup::VERSION + 1, 0]).is_err());
        assert!(ask([0, setup::VERSION, 0]).is_err());
        assert!(asked(&[0; 8]).is_err());
    }

    /// Numbers that contradict each other come from a server that lies.
    #[test]
    fn figures_of_strange_numbers_do_not_overflow() {
        let strange = HopStatus { arrived: u64::MAX, ..HopStatus::default() };
        assert_eq!((strange.left(), HopStatus::default().lag(&strange)), (0, u64::MAX));
        assert_eq!((HopStatus { done: 1, rounds: 4, ..strange }.left(), strange.lag(&HopStatus::default())), (0, 0));
    }
}
