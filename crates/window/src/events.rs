//! Events of the epoll instance: what they are about, waiting for them, and handling them.

use std::os::fd::{AsFd, BorrowedFd};

use memory::fds::TrackedFd;
use rustix::event::{Timespec, epoll};
use verbs::Errno;
use wire::{LinkId, Nanos};

use crate::WindowEnv;
use crate::socket::errno;

/// Events that are taken at once.
const MOST: usize = 64;
/// Batches of events that are handled in one call, so that a peer that never stops cannot keep the thread here.
const ROUNDS: u32 = 4;

/// The subject of an epoll event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token {
    Listener(u16),
    HalfOpen(u32),
    Socket(LinkId),
    Process(LinkId),
    Bell(LinkId),
    /// A descriptor of the adapter whose only use is to wake the thread that waits.
    Wake,
    /// A descriptor of the adapter that is heard once.
    Once,
    /// The timer of the thread that waits.
    Timer,
}

impl Token {
    pub(crate) fn pack(self) -> u64 {
        let (kind, value) = match self {
            Token::Listener(block) => (1, u32::from(block)),
            Token::HalfOpen(serial) => (2, serial),
            Token::Socket(id) => (3, id.0),
            Token::Process(id) => (4, id.0),
            Token::Bell(id) => (5, id.0),
            Token::Wake => (6, 0),
            Token::Once => (7, 0),
            Token::Timer => (8, 0),
        };
        kind << 32 | u64::from(value)
    }

    pub(crate) fn unpack(raw: u64) -> Option<Token> {
        let value = raw as u32;
        Some(match raw >> 32 {
            1 => Token::Listener(value as u16),
            2 => Token::HalfOpen(value),
            3 => Token::Socket(LinkId(value)),
            4 => Token::Process(LinkId(value)),
            5 => Token::Bell(LinkId(value)),
            6 => Token::Wake,
            7 => Token::Once,
            8 => Token::Timer,
            _ => return None,
        })
    }
}

pub(crate) fn watch(epoll: &TrackedFd, fd: impl AsFd, token: Token) -> Result<(), Errno> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(token.pack()), epoll::EventFlags::IN).map_err(errno)
}

/// Hears each ring of a doorbell once. Edge-triggered, so no thread has to read it: a read could block, or take the
/// ring of another peer.
pub(crate) fn watch_bell(epoll: &TrackedFd, bell: impl AsFd, id: LinkId) -> Result<(), Errno> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(epoll, bell, epoll::EventData::new_u64(Token::Bell(id).pack()), flags).map_err(errno)
}

/// Events that a thread has waited for, without the lock, and that are to be handled under it.
pub struct Events {
    buffer: [epoll::Event; MOST],
    /// The number of events that were waited for; `None`: the thread has not waited.
    waited: Option<usize>,
    /// True if the descriptor of [`hear_once`] was heard.
    once: bool,
}

impl Default for Events {
    fn default() -> Self {
        let none = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        Events { buffer: [none; MOST], waited: None, once: false }
    }
}

impl Events {
    /// Wait until there are events, for [`WindowEnv::handle_events_of`]. `epoll` is [`WindowEnv::epoll_fd`].
    /// One system call waits for the events and takes them. The thread must handle them before it waits
    /// again, because bells are heard once.
    pub fn wait(&mut self, epoll: BorrowedFd<'_>) {
        // An interrupted call has taken none.
        self.waited = Some(rustix::event::epoll::wait(epoll, &mut self.buffer, None).unwrap_or(0));
    }

    /// True if the thread has waited, and only its timer has ended that ([`hear_timer`]).
    pub fn only_timer(&self) -> bool {
        self.waited == Some(1) && Token::unpack(self.buffer[0].data.u64()) == Some(Token::Timer)
    }

    /// Take the mark that the descriptor of [`hear_once`] was heard.
    pub fn take_once(&mut self) -> bool {
        std::mem::take(&mut self.once)
    }
}

/// Let each write to this eventfd wake the thread that waits. Edge-triggered, so no thread has to read it.
///
/// # Errors
/// ENOMEM, ENOSPC (epoll_ctl(2)).
pub fn hear_wakes(epoll: BorrowedFd<'_>, fd: impl AsFd) -> Result<(), Errno> {
    hear_each(epoll, fd, Token::Wake)
}

/// Let each expiration of this timer wake the thread that waits, as [`hear_wakes`] does.
///
/// # Errors
/// ENOMEM, ENOSPC (epoll_ctl(2)).
pub fn hear_timer(epoll: BorrowedFd<'_>, timer: impl AsFd) -> Result<(), Errno> {
    hear_each(epoll, timer, Token::Timer)
}

fn hear_each(epoll: BorrowedFd<'_>, fd: impl AsFd, token: Token) -> Result<(), Errno> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
    epoll::add(epoll, fd, epoll::EventData::new_u64(token.pack()), flags).map_err(errno)
}

/// Hear once that this descriptor is readable ([`Events::take_once`]): at once if it is readable already. `again`: it
/// was heard before.
///
/// # Errors
/// ENOMEM, ENOSPC (epoll_ctl(2)).
pub fn hear_once(epoll: BorrowedFd<'_>, fd: impl AsFd, again: bool) -> Result<(), Errno> {
    let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
    let data = epoll::EventData::new_u64(Token::Once.pack());
    let set = if again { epoll::modify(epoll, fd, data, flags) } else { epoll::add(epoll, fd, data, flags) };
    set.map_err(errno)
}

impl WindowEnv {
    /// Handle what a thread has waited for; or, if it has not waited, or there may be more, what there is. Packets are
    /// left for [`WindowEnv::peek`].
    pub fn handle_events_of(&mut self, events: &mut Events, now: Nanos) {
        if self.closed_until.is_some_and(|at| at <= now) {
            self.listen(true, now);
        }
        for _ in 0..ROUNDS {
            let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
            let count = events.waited.take().unwrap_or_else(|| {
                rustix::event::epoll::wait(&self.epoll, &mut events.buffer, Some(&zero)).unwrap_or(0)
            });
            for at in 0..count {
                let event = events.buffer[at];
                let (data, flags) = (event.data, event.flags);
                match Token::unpack(data.u64()) {
                    Some(Token::Listener(block)) => self.accept(block, now),
                    Some(Token::HalfOpen(serial)) => self.hear_half_open(serial),
                    Some(Token::Socket(id)) => self.hear(id, flags),
                    Some(Token::Process(id)) => self.lose(id),
                    Some(Token::Once) => events.once = true,
                    // The thread that waits is awake.
                    Some(Token::Bell(_) | Token::Wake | Token::Timer) | None => {}
                }
            }
            if count < MOST {
                break;
            }
        }
        self.drop_late(now);
        self.connect_back_again(now);
    }
}
