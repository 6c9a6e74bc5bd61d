//! The thread that reads the links and handles the deadlines. It sleeps whenever there is nothing to do, and exists
//! only once a program listens or connects.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use memory::fds::TrackedFd;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use verbs::Result;

use crate::ids::State;
use crate::links::Token;
use crate::manager::Cm;
use crate::prepare;
use crate::socket::errno;

/// The number of events that are taken from the kernel at a time.
const BATCH: usize = 64;
/// The time between two attempts to accept connections that cannot be accepted.
const JAMMED: Duration = Duration::from_millis(20);

impl Cm {
    /// Make sure that the thread runs.
    pub(crate) fn run(&'static self, state: &mut State) -> Result<()> {
        if state.epoll.is_some() {
            return Ok(());
        }
        let epoll = Arc::new(TrackedFd::new(epoll::create(CreateFlags::CLOEXEC).map_err(errno)?, state.fds()));
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(errno)?;
        let wake = Arc::new(TrackedFd::new(wake, state.fds()));
        state.epoll = Some(epoll.clone());
        state.watch(&wake, Token::Wake)?;
        state.wake = Some(wake.clone());
        if let Some(ends) = state.nic.ends_fd() {
            state.watch(ends, Token::Ends)?;
        }
        nic::spawn("softrnic-cm", move || self.thread(&epoll, &wake)).inspect_err(|_| state.epoll = None)
    }

    fn thread(&self, epoll: &TrackedFd, wake: &TrackedFd) {
        let mut events = Vec::with_capacity(BATCH);
        let mut until = self.lock().sleep();
        while self.alive() {
            let limit = (until != u64::MAX).then(|| {
                // Rounded up: waking just before the deadline would mean a second, empty round.
                let wait = until.saturating_sub(nic::now()).saturating_add(1000);
                Timespec { tv_sec: (wait / 1_000_000_000) as i64, tv_nsec: (wait % 1_000_000_000) as i64 }
            });
            events.clear();
            let _ = epoll::wait(epoll.as_fd(), spare_capacity(&mut events), limit.as_ref());
            let mut state = self.lock();
            let mut jammed = false;
            for event in &events {
                match Token::unpack(event.data.u64()) {
                    Token::Wake => {
                        let _ = rustix::io::read(wake.as_fd(), &mut [0u8; 8]);
                    }
                    at @ (Token::Listener(_) | Token::Block(..)) => jammed |= !state.accept_links(at),
                    Token::Link(key) => state.link_event(key, event.flags),
                    Token::TcpListener(id) => jammed |= !state.accept_tcp(id),
                    Token::Tcp(key) => state.tcp_event(key),
                    Token::Ends => state.streams_ended(),
                }
            }
            state.timeouts(nic::now());
            state.tcp_timeouts(nic::now());
            let unheard = std::mem::take(&mut state.unheard);
            if !unheard.is_empty() {
                drop(state);
                let names = prepare::text();
                state = self.lock();
                state.look_up(unheard, &names);
            }
            until = state.sleep();
            drop(state);
            if jammed {
                // The connection stays in the socket's queue, and epoll would report it again at once.
                std::thread::sleep(JAMMED);
            }
        }
    }
}
