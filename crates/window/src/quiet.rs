//! Waiting for peers' copies, and what becomes of a peer that does not come to an end.
//!
//! A call that takes memory back may give it to the program only when no peer copies from or to it any more
//! ([`memory::copying`]). A look and a few spins are made under the adapter's lock; what lasts longer is noted here,
//! and waited for by the thread that holds the lock, after it has let go ([`WindowEnv::unquiet`], [`Unquiet::wait`],
//! [`WindowEnv::judge`]): before its call returns, so before the program hears that the memory is its own.
//!
//! The mark is the peer's word. One that lasts for [`COPY_PATIENCE`] is a lie, or the peer has been stopped in the
//! middle of a copy, which then may go on at any time. A thread that waits for a processor is no liar: one that has not
//! run for as long is waited for ([`Excuse`]). Then its links end, and its process is remembered for as long as it
//! lives. It may connect again, and its messages travel through the window, with two copies.

use std::time::{Duration, Instant};

use memory::Half;
use memory::copying::UnderWay;
use memory::fds::TrackedFd;
use memory::files::contents;
use rustix::fs::{Dir, Mode, OFlags};
use wire::LinkId;

use crate::WindowEnv;
use crate::link::{Link, Remote, State};

/// The longest time that a peer that lives may take for a copy of at most a piece of a message (1 MiB): far longer than
/// such a copy takes (docs/lab/constants.md), for what a busy machine may add.
const COPY_PATIENCE: Duration = Duration::from_millis(20);
/// The longest time that a thread of the peer may wait for a processor meanwhile.
const LONGEST_EXCUSE: Duration = Duration::from_secs(1);
/// The number of looks at the mark under the lock.
const SPINS: u32 = 1000;
/// Offenders that are remembered.
const MOST: usize = 64;

/// The offence of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Offence {
    /// It has begun to help with a copy, and not ended: it is not asked again.
    Follower,
    /// It has marked a copy, and not ended: nothing is copied directly between it and this process.
    Mark,
}

/// A process that is remembered.
struct Offender {
    pid: u32,
    /// Readable when the process is dead, and its number may be that of another.
    pidfd: Option<TrackedFd>,
    offence: Offence,
}

/// A copy that was under way when memory was taken back.
struct Pending {
    link: LinkId,
    window: Half,
    copy: UnderWay,
    pid: u32,
    until: Instant,
}

/// Threads of a process that may be in the middle of a copy: each has run, or waited for memory, at every look so far,
/// and has not had the processor for [`COPY_PATIENCE`] since the first.
struct Excuse {
    /// The numbers of the threads, and the time that each had run at the first look, in nanoseconds.
    threads: Vec<(u32, u64)>,
    until: Instant,
}

impl Excuse {
    fn new(pid: u32) -> Excuse {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let tasks = rustix::fs::open(format!("/proc/{pid}/task"), flags, Mode::empty()).and_then(Dir::new);
        let numbers =
            tasks.into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().to_str().ok()?.parse().ok());
        let threads = numbers.filter_map(|tid| Some((tid, Self::ran(pid, tid)?))).collect();
        Excuse { threads, until: Instant::now() + LONGEST_EXCUSE }
    }

    /// The time that a thread has run, if it is running, or waiting for a processor or for memory.
    fn ran(pid: u32, tid: u32) -> Option<u64> {
        let stat = contents(&format!("/proc/{pid}/task/{tid}/stat"));
        // proc_pid_stat(5): the state is the third field; the second, in parentheses, may contain anything.
        let state = stat.iter().rposition(|b| *b == b')').and_then(|at| stat.get(at + 2))?;
        let ran = contents(&format!("/proc/{pid}/task/{tid}/schedstat"));
        let ran = ran.split(|b| *b == b' ').next().and_then(|ran| str::from_utf8(ran).ok()?.parse().ok());
        matches!(state, b'R' | b'D').then(|| ran.unwrap_or(0))
    }

    fn holds(&mut self, pid: u32) -> bool {
        let patience = u64::try_from(COPY_PATIENCE.as_nanos()).unwrap_or(u64::MAX);
        self.threads
            .retain(|(tid, first)| Self::ran(pid, *tid).is_some_and(|ran| ran.saturating_sub(*first) < patience));
        !self.threads.is_empty() && Instant::now() < self.until
    }
}

impl Pending {
    fn lasts(&self) -> bool {
        self.copy.lasts(self.window.copying())
    }
}

/// Copies that are waited for, and processes that were waited for in vain.
#[derive(Default)]
pub(crate) struct Quiet {
    pending: Vec<Pending>,
    offenders: Vec<Offender>,
    /// A process without a number here has done something: such processes cannot be told apart.
    anonymous: Option<Offence>,
}

/// Copies to be waited for without the lock.
pub struct Unquiet(Vec<Pending>);

/// Copies that did not come to an end.
pub struct InVain(Vec<(LinkId, UnderWay)>);

impl Unquiet {
    /// Returns when all these copies are over, or their time is. The result is for [`WindowEnv::judge`].
    pub fn wait(mut self) -> InVain {
        const LONGEST: Duration = Duration::from_millis(1);
        let (mut pause, mut excuses, mut in_vain) =
            (Duration::from_micros(10), Vec::<(u32, Excuse)>::new(), Vec::new());
        loop {
            let now = Instant::now();
            self.0.retain(|pending| {
                if !pending.lasts() {
                    return false;
                }
                if now < pending.until {
                    return true;
                }
                if !excuses.iter().any(|(pid, _)| *pid == pending.pid) {
                    excuses.push((pending.pid, Excuse::new(pending.pid)));
                }
                let excuse = excuses.iter_mut().find(|(pid, _)| *pid == pending.pid);
                let excused = excuse.is_some_and(|(pid, excuse)| excuse.holds(*pid));
                if !excused {
                    in_vain.push((pending.link, pending.copy));
                }
                excused
            });
            if self.0.is_empty() {
                return InVain(in_vain);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST);
        }
    }
}

impl WindowEnv {
    /// Looks whether one of these peers is copying on the strength of the state before this call. A copy that a peer
    /// begins later is not meant.
    pub(crate) fn quiesce_those(&mut self, which: impl Fn(&Self, LinkId) -> bool) {
        let copying = |id: &LinkId| {
            let link = self.link(*id).filter(|link| link.state != State::Dead && which(self, *id))?;
            let pid = link.remote.as_ref()?.who.pid;
            Some((*id, link.consumer.memory().clone(), link.copied_by_peer()?, pid))
        };
        let copies: Vec<_> = self.live.iter().filter_map(copying).collect();
        if copies.is_empty() {
            return;
        }
        let until = Instant::now() + COPY_PATIENCE;
        let mut copies: Vec<_> =
            copies.into_iter().map(|(link, window, copy, pid)| Pending { link, window, copy, pid, until }).collect();
        for _ in 0..SPINS {
            copies.retain(Pending::lasts);
            if copies.is_empty() {
                return;
            }
            std::hint::spin_loop();
        }
        for copy in copies {
            let gone = |link: &Link| link.remote.as_ref().is_none_or(Remote::gone);
            if self.link(copy.link).is_some_and(|link| !gone(link)) && !self.quiet.has(&copy) {
                self.quiet.pending.push(copy);
            }
        }
    }

    /// True if peers may still be copying from or to what was taken back.
    #[inline]
    pub fn is_unquiet(&self) -> bool {
        !self.quiet.pending.is_empty()
    }

    /// The copies that have to be waited for without the lock before the program may hear of what was done under it.
    /// [`WindowEnv::judge`] is to be called after the wait.
    pub fn unquiet(&self) -> Unquiet {
        let copy = |p: &Pending| Pending { window: p.window.clone(), ..*p };
        Unquiet(self.quiet.pending.iter().map(copy).collect())
    }

    /// Forgets the copies that are over, and ends the links of processes that have not come to an end in time.
    pub fn judge(&mut self, in_vain: &InVain) {
        let mut pending = std::mem::take(&mut self.quiet.pending);
        pending.retain(|pending| {
            if !pending.lasts() {
                // A follower copies only while it is marked. It has come to its end, whether it says so or not.
                if let Some(link) = self.link_mut(pending.link) {
                    link.leader.forget_late_writer();
                }
                return false;
            }
            let late = in_vain.0.contains(&(pending.link, pending.copy));
            if late {
                self.offend(pending.link);
            }
            !late && self.link(pending.link).is_some_and(|link| link.state != State::Dead)
        });
        // Nothing was added meanwhile.
        self.quiet.pending = pending;
    }

    /// The process behind a link was waited for in vain.
    fn offend(&mut self, id: LinkId) {
        let Some(remote) = self.link(id).and_then(|link| link.remote.as_ref()).filter(|remote| !remote.gone()) else {
            return;
        };
        let peer = remote.peer;
        self.remember(id, Offence::Mark);
        let its = |id: &LinkId| self.link(*id)?.remote.as_ref().filter(|remote| remote.peer == peer).map(|_| *id);
        let its: Vec<LinkId> = self.live.iter().filter_map(its).collect();
        for id in its {
            self.bury(id);
        }
        // When the process goes on, it goes on to copy.
        self.shared.late_writer = true;
    }

    /// Remembers the process behind a link.
    pub(crate) fn remember(&mut self, id: LinkId, offence: Offence) {
        let Some(remote) = self.link(id).and_then(|link| link.remote.as_ref()) else { return };
        let (pid, fds) = (remote.who.pid, &self.fds);
        if pid == 0 {
            self.quiet.anonymous = self.quiet.anonymous.max(Some(offence));
            return;
        }
        let copy = |fd: &TrackedFd| rustix::io::fcntl_dupfd_cloexec(fd, 0).ok().map(|fd| TrackedFd::new(fd, fds));
        let pidfd = remote.pidfd.as_ref().and_then(copy);
        self.quiet.offenders.retain(|offender| !offender.gone());
        if let Some(known) = self.quiet.offenders.iter_mut().find(|offender| offender.pid == pid) {
            known.offence = known.offence.max(offence);
            return;
        }
        if self.quiet.offenders.len() == MOST {
            self.quiet.offenders.remove(0);
        }
        self.quiet.offenders.push(Offender { pid, pidfd, offence });
    }

    /// The offence of the process with this number.
    pub(crate) fn offence_of(&mut self, pid: u32) -> Option<Offence> {
        if pid == 0 {
            return self.quiet.anonymous;
        }
        self.quiet.offenders.retain(|offender| !offender.gone());
        self.quiet.offenders.iter().find(|offender| offender.pid == pid).map(|offender| offender.offence)
    }
}

impl Quiet {
    fn has(&self, copy: &Pending) -> bool {
        self.pending.iter().any(|known| known.link == copy.link && known.copy == copy.copy)
    }
}

impl Offender {
    fn gone(&self) -> bool {
        self.pidfd.as_ref().is_some_and(crate::link::is_dead)
    }
}
