//! The messages of two processes that meet: greetings, proofs, and what a process gets that may trace us.
//!
//! The kernel's word comes first (SO_PEERCRED: process and user). Beyond the window, a process gets nothing of ours
//! before it has read a nonce from our memory and returned it: the keys and addresses on the export table, and a
//! descriptor that it could make block, are for those that could read and stop us anyway. A process that may not trace
//! us, because Yama, a security module or a container forbids it, rings by the socket. The end of the socket here is
//! ours alone.
//!
//! Where our own uid stands for all users that have no number in our user namespace, the kernel's word for the user
//! says nothing: such a link is held, with no packet taken from it or put into it, until the peer has proved itself. So
//! is one from a process that has no process number here (`identity`).

use std::os::fd::AsFd;
use std::sync::Arc;

use memory::backing::Memfd;
use memory::export_table::Reader;
use memory::fds::TrackedFd;
use memory::received_fds::ReceivedFd;
use memory::{Half, PeerTable, single_copy};
use rustix::event::{EventfdFlags, epoll};
use wire::{LinkId, SingleCopyError};

use crate::WindowEnv;
use crate::events::watch_bell;
use crate::identity::Identity;
use crate::known::Known;
use crate::link::{Remote, Side, State};
use crate::peers::{Standing, TURN, Who, unwatch};
use crate::quiet::Offence;
use crate::rendezvous::{Greeting, Message, NONCE, SECRET};
use crate::socket::{self, Received};
use crate::thresholds;

impl Remote {
    /// True if no packet may be taken from the link or put into it yet.
    pub(crate) fn is_held(&self) -> bool {
        self.who.standing == Standing::Unsure || self.is_unknown()
    }

    /// Takes all descriptors of the peer out of the epoll instance.
    pub(crate) fn unwatch(&self, epoll: &TrackedFd) {
        for fd in [Some(&self.socket), self.pidfd.as_ref(), self.bell.as_ref()].into_iter().flatten() {
            unwatch(epoll, fd);
        }
    }
}

impl WindowEnv {
    /// A peer that nothing is known of but what the kernel says.
    pub(crate) fn remote(&mut self, socket: TrackedFd, who: Who) -> Remote {
        let Who { pid, standing, .. } = who;
        let pidfd = i32::try_from(pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .and_then(|pid| rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).ok())
            .map(|fd| TrackedFd::new(fd, &self.fds));
        let nonce = (standing != Standing::Other).then(|| {
            let mut nonce = Box::new([0; NONCE]);
            self.fill_random(&mut nonce[..]);
            nonce
        });
        let offence = self.offence_of(pid);
        Remote {
            socket,
            who,
            visits: false,
            offence,
            peer: self.peer_number(pid),
            instance: None,
            identity: Identity::default(),
            pidfd,
            nonce,
            proved: false,
            single_copy: false,
            given: false,
            bell: None,
            doorbell: None,
            awaits_welcome: false,
            we_permitted: false,
            it_permitted: false,
            favours_window: false,
            export_table: None,
            known: Known::default(),
            arena: None,
            arena_failed: false,
            alive_at: 0,
            ran_at: 0,
        }
    }

    pub(crate) fn greeting(&self, remote: &Remote) -> Greeting {
        Greeting {
            instance: self.instance,
            nonce_addr: remote.nonce.as_ref().map_or(0, |nonce| nonce.as_ptr().expose_provenance() as u64),
            single_copy: self.copies_with(remote),
            secret: remote.identity.own.map_or([0; SECRET], |(secret, _)| secret),
            block: if remote.identity.own.is_some() { self.own_block() } else { 0 },
        }
    }

    /// True if this process neither refuses single copies nor has been held up by this one's.
    fn copies_with(&self, remote: &Remote) -> bool {
        self.config.single_copy && remote.offence != Some(Offence::Mark)
    }

    /// Takes the window that a peer offers which has come to this block of ours. Whatever is wrong with the offer: the
    /// connection is dropped.
    pub(crate) fn welcome(&mut self, socket: TrackedFd, who: Who, at: u16, hello: &Greeting, fds: Vec<ReceivedFd>) {
        let [memfd] = &fds[..] else { return };
        let Ok(window) = Memfd::open(memfd, Half::WINDOW) else {
            return;
        };
        let mut remote = self.remote(socket, who);
        remote.visits = true;
        remote.identity = Identity::of_visitor(hello, at);
        // A peer that is gone already is taken in all the same: what it has sent lies in the window.
        let _ = socket::send(&remote.socket, &Message::Welcome(self.greeting(&remote)), &[]);
        Self::meet(&mut remote, hello);
        if let Ok(id) = self.install(Arc::new(window), Side::Taker, remote) {
            self.connect_back(id);
            self.return_secrets();
        }
    }

    /// Reads the nonce that the peer's greeting names, if the kernel permits it, and returns it. Both sides do so.
    fn meet(remote: &mut Remote, greeting: &Greeting) {
        (remote.instance, remote.single_copy) = (Some(greeting.instance), greeting.single_copy);
        let (Who { pid, standing, .. }, mut nonce) = (remote.who, [0; NONCE]);
        if standing == Standing::Other || pid == 0 {
            return;
        }
        match single_copy::peek(pid, greeting.nonce_addr, &mut nonce) {
            // If it does not get through, the peer gives us nothing. Nothing else depends on it.
            Ok(()) => drop(socket::send(&remote.socket, &Message::Proof(nonce), &[])),
            Err(SingleCopyError::Denied) if greeting.single_copy && !remote.gone() => report::log_once(
                report::Matter::NoTracing,
                format_args!(
                    "the kernel forbids this process to copy from and to process {} (ptrace_scope of Yama, a security \
                     module, or a container), so large messages take two copies, and wake-ups a socket. softrnic run \
                     --permit-ptrace for both lifts a ptrace_scope of 1",
                    pid
                ),
            ),
            Err(_) => {}
        }
    }

    /// Takes the answer to our HELLO, if it is there, before its turn has come.
    pub(crate) fn hear_greeting(&mut self, id: LinkId) {
        if self.link(id).and_then(|link| link.remote.as_ref()).is_some_and(|remote| remote.awaits_welcome) {
            self.hear(id, epoll::EventFlags::empty());
        }
    }

    /// Takes the peer's TABLE, if it is there, before its turn has come. A peer sends TABLE before it names its memory
    /// in a packet, but a poll looks into the window more often than at the socket.
    pub(crate) fn hear_table(&mut self, id: LinkId) {
        if self.link(id).and_then(|link| link.remote.as_ref()).is_some_and(|remote| !remote.given) {
            self.hear(id, epoll::EventFlags::empty());
        }
    }

    /// Messages of a peer that we have a link to.
    pub(crate) fn hear(&mut self, id: LinkId, flags: epoll::EventFlags) {
        for _ in 0..TURN {
            let Some(remote) = self.link(id).and_then(|l| l.remote.as_ref()) else {
                return;
            };
            match socket::receive(&remote.socket) {
                Received::Nothing if flags.contains(epoll::EventFlags::HUP) => {
                    return self.lose(id);
                }
                Received::Nothing => return,
                Received::Message(message, fds) => {
                    if !self.obey(id, &message, Some(fds)) {
                        return self.lose(id);
                    }
                }
                Received::Cut(message) => {
                    self.tell_visitors("a peer's descriptors could not be taken");
                    // The window is there already, and may have been used: the link goes on without the rest. The peer
                    // is rung by the socket then.
                    let table = message.filter(|message| matches!(message, Message::Table { .. }));
                    if !table.is_some_and(|table| self.obey(id, &table, None)) {
                        return self.lose(id);
                    }
                }
                Received::Closed | Received::Garbage => return self.lose(id),
            }
        }
    }

    /// Does what a message says; its descriptors are `None` if they were lost. False if it has no place here.
    pub(crate) fn obey(&mut self, id: LinkId, message: &Message, fds: Option<Vec<ReceivedFd>>) -> bool {
        // Out of its link for a moment: what is said is answered with what is the platform's.
        let Some(mut remote) = self.link_mut(id).and_then(|l| l.remote.take()) else {
            return false;
        };
        let none = fds.as_ref().is_some_and(Vec::is_empty);
        let awaits_welcome = remote.awaits_welcome;
        let fits = match message {
            Message::Ring => none,
            Message::Welcome(greeting) if none && awaits_welcome => {
                remote.awaits_welcome = false;
                Self::meet(&mut remote, greeting);
                true
            }
            Message::Proof(nonce) => none && !awaits_welcome && self.check_proof(id, &mut remote, nonce),
            Message::Table { export_table } => !awaits_welcome && self.take_table(&mut remote, *export_table, fds),
            Message::Echo { .. } => none && !awaits_welcome,
            Message::Hello(_) | Message::Welcome(_) => false,
        };
        let held = remote.is_held();
        if let Some(link) = self.link_mut(id) {
            link.remote = Some(remote);
            if !held && link.state == State::Held {
                link.state = State::Up;
            }
        }
        if let (Message::Echo { secret, block }, true) = (message, fits) {
            self.hear_secret(id, &(*secret, *block));
        }
        fits
    }

    /// A peer that has read the right nonce may trace us, and gets what that is worth: a doorbell of its own and the
    /// export table. False if it was not asked. A peer may answer once, so that no peer comes to the right answer by
    /// trying.
    fn check_proof(&mut self, id: LinkId, remote: &mut Remote, nonce: &[u8; NONCE]) -> bool {
        let Some(own) = remote.nonce.take() else { return false };
        remote.proved = *own == *nonce;
        if !remote.proved {
            return true;
        }
        if remote.who.standing == Standing::Unsure {
            remote.who.standing = Standing::Same;
        }
        remote.it_permitted = self.copies_with(remote) && remote.single_copy;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = rustix::event::eventfd(0, flags).ok().map(|fd| TrackedFd::new(fd, &self.fds));
        // For want of a descriptor it gets nothing, and rings by the socket.
        let Some(bell) = bell.filter(|bell| watch_bell(&self.epoll, bell, id).is_ok()) else { return true };
        self.make_exports();
        let export_table = self.export_table.as_ref().filter(|_| remote.it_permitted);
        let message = Message::Table { export_table: export_table.is_some() };
        let fds = [Some(bell.as_fd()), export_table.map(|export_table| export_table.fd.as_fd())];
        let fds: Vec<_> = fds.into_iter().flatten().collect();
        let _ = socket::send(&remote.socket, &message, &fds);
        remote.bell = Some(bell);
        true
    }

    /// The peer has found that we may trace it. What it gives is used only if it may trace us, too: a process that
    /// holds an eventfd can make writing to it block.
    fn take_table(&mut self, remote: &mut Remote, export_table: bool, fds: Option<Vec<ReceivedFd>>) -> bool {
        let complete = fds.as_ref().is_none_or(|fds| fds.len() == 1 + usize::from(export_table));
        if !complete || remote.who.standing == Standing::Other || std::mem::replace(&mut remote.given, true) {
            return false;
        }
        remote.we_permitted = self.copies_with(remote) && remote.single_copy && remote.who.pid != 0;
        if remote.we_permitted {
            remote.favours_window = self.config.single_copy_above.is_none() && thresholds::window_is_quicker();
        }
        let mut fds = fds.filter(|_| remote.proved).unwrap_or_default().into_iter();
        remote.doorbell = fds
            .next()
            .filter(|fd| fd.is_eventfd() && rustix::io::ioctl_fionbio(fd, true).is_ok())
            .map(|fd| Arc::new(TrackedFd::new(fd.keep(), &self.fds)));
        if remote.we_permitted {
            // An export table that is not as it must be is none: then requests are sent.
            remote.known = Known::default();
            remote.export_table = fds.next().and_then(|fd| PeerTable::open(fd).ok()).map(Reader::new);
        }
        true
    }
}
