//! Random programs of socket calls, each determined by its seed.
//!
//! A program is made before it runs, and does not depend on what its calls return. A small model says what must be
//! outstanding, so that no call waits for what does not come, and no send is cut short by a full buffer: how much fits
//! into one is nothing that TCP promises.

use crate::executor::FIRST_SET;

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn of<T: Copy>(&mut self, some: &[T]) -> T {
        some[self.below(some.len() as u64) as usize]
    }
}

/// One line for the process of one end.
#[derive(Clone, Debug)]
pub struct Step {
    /// The end: 0 has accepted the connection, 1 has made it.
    pub end: usize,
    pub line: String,
    /// Whether the other end may see something of it, which has to have arrived before the next step.
    pub is_seen: bool,
    /// A wait for an edge: it may be told more than once (epoll(7): "more than one event may be generated").
    pub is_edge: bool,
}

/// What a program is made of besides its steps.
pub struct Program {
    pub is_v6: bool,
    pub nonblocking_connect: bool,
    pub accept_flags: i32,
    pub steps: Vec<Step>,
}

/// Most bytes that are under way in one direction: any buffer has room for as many.
const MOST: u64 = 20_000;

#[derive(Default)]
struct End {
    files: Vec<u32>,
    made: u32,
    is_nonblocking: bool,
    has_timeout: bool,
    write_shut: bool,
    read_shut: bool,
    /// Bytes sent to this end that it has not read.
    unread: u64,
    /// Bytes that it has sent.
    sent: u64,
    /// The other end has sent its FIN.
    fin: bool,
    /// The number of its epoll set, and the descriptor in it.
    set: Option<u32>,
    in_set: Option<(u32, u32)>,
}

struct Maker {
    random: Random,
    /// Chooses among forms that are newer than the programs that are kept. `None`: none of them.
    newer: Option<Random>,
    ends: [End; 2],
    steps: Vec<Step>,
    /// The connection has been, or may be, reset: no call may wait any more.
    is_wild: bool,
}

const WAITALL: i32 = libc::MSG_WAITALL;
const DONTWAIT: i32 = libc::MSG_DONTWAIT;

impl Maker {
    fn add(&mut self, end: usize, line: String, is_seen: bool) {
        self.steps.push(Step { end, line, is_seen, is_edge: false });
    }

    fn file(&mut self, end: usize) -> Option<u32> {
        let files = self.ends[end].files.len() as u64;
        (files > 0).then(|| self.ends[end].files[self.random.below(files) as usize])
    }

    fn new_file(&mut self, end: usize) -> u32 {
        let state = &mut self.ends[end];
        state.made += 1;
        state.made
    }

    /// From now on nothing waits.
    fn go_wild(&mut self) {
        self.is_wild = true;
        for end in 0..2 {
            if !self.ends[end].is_nonblocking
                && let Some(file) = self.file(end)
            {
                self.set_nonblocking(end, file, true);
            }
        }
    }

    fn set_nonblocking(&mut self, end: usize, file: u32, nonblocking: bool) {
        let line = if self.random.one_in(3) {
            format!("ioctl {end} {file} {} {}", libc::FIONBIO, i32::from(nonblocking))
        } else {
            let flags = libc::O_RDWR | if nonblocking { libc::O_NONBLOCK } else { 0 };
            format!("fcntl {end} {file} {} {flags}", libc::F_SETFL)
        };
        self.ends[end].is_nonblocking = nonblocking;
        self.add(end, line, false);
    }

    fn length(&mut self) -> u64 {
        match self.random.below(10) {
            0 => 1,
            1..=5 => 1 + self.random.below(100),
            6..=8 => 1 + self.random.below(3000),
            _ => 1 + self.random.below(8000),
        }
    }

    fn can_send(&self, end: usize) -> bool {
        let (state, peer) = (&self.ends[end], &self.ends[1 - end]);
        !state.files.is_empty() && !state.write_shut && !peer.files.is_empty()
    }

    /// The line of a send; `None`: too much is under way.
    fn send(&mut self, end: usize, plain: bool) -> Option<()> {
        let file = self.file(end)?;
        let length = if !plain && self.random.one_in(20) { 0 } else { self.length() };
        let peer_gone = self.ends[1 - end].files.is_empty();
        if !peer_gone && self.ends[1 - end].unread + length > MOST {
            return None;
        }
        let forms = ["write", "writev", "send", "sendto", "sendmsg", "send", "write", "sendmmsg", "sendfile"];
        let kinds = if self.random.one_in(12) { 9 } else { 7 };
        let mut form = self.random.of(&forms[..kinds]);
        if let Some(newer) = &mut self.newer {
            form = match form {
                "sendmsg" | "sendmmsg" => newer.of(&["sendmsg", "sendmmsg", "sendmmsg-several"]),
                "sendto" | "sendfile" => newer.of(&["sendto", "sendfile", "sendfile-position", "sendfile-short"]),
                "writev" => newer.of(&["writev", "splice", "splice-more"]),
                other => other,
            };
        }
        let takes_flags = !["write", "sendfile", "splice"].iter().any(|call| form.starts_with(call));
        let flags = if takes_flags { self.random.of(&[0, 0, DONTWAIT, libc::MSG_NOSIGNAL]) } else { 0 };
        let offset = self.ends[end].sent;
        self.add(end, format!("send {end} {file} {form} {length} {offset} {end} {flags}"), true);
        if self.ends[end].write_shut {
            return Some(());
        }
        self.ends[end].sent += length;
        let peer = &mut self.ends[1 - end];
        if peer_gone || peer.read_shut && peer.write_shut {
            self.go_wild();
        } else {
            peer.unread += length;
        }
        Some(())
    }

    fn receive(&mut self, end: usize) -> Option<()> {
        let file = self.file(end)?;
        let form = self.random.of(&["read", "readv", "recv", "recvfrom", "recvmsg", "recv", "read"]);
        let takes_flags = !matches!(form, "read" | "readv");
        let mut flags = 0;
        if takes_flags {
            for (flag, times) in [(libc::MSG_PEEK, 5), (WAITALL, 4), (DONTWAIT, 3), (libc::MSG_TRUNC, 15)] {
                flags |= if self.random.one_in(times) { flag } else { 0 };
            }
        }
        let unread = self.ends[end].unread;
        let mut length = match self.random.below(5) {
            0 => unread,
            1 => unread + 1 + self.random.below(50),
            2 => 1 + self.random.below(unread + 1),
            _ => self.length(),
        };
        if self.random.one_in(25) {
            length = 0;
        }
        let state = &self.ends[end];
        let ends_now = state.fin || state.read_shut;
        let wanted = if flags & WAITALL != 0 { length.max(1) } else { 1 };
        let returns = unread >= wanted || ends_now || state.is_nonblocking || self.is_wild;
        let mut sends = false;
        if !returns && flags & DONTWAIT == 0 && !state.has_timeout {
            let can_wait = self.can_send(1 - end) && unread + wanted + 200 < MOST && length > 0;
            if can_wait && flags & libc::MSG_PEEK == 0 {
                sends = true;
            } else if takes_flags {
                flags |= DONTWAIT;
            } else {
                return None;
            }
        }
        let is_several = form == "recvmsg" && !sends && self.newer.as_mut().is_some_and(|newer| newer.one_in(2));
        let is_spliced = form == "readv" && !sends && self.newer.as_mut().is_some_and(|newer| newer.one_in(2));
        let form = match form {
            _ if is_several => self.newer.as_mut().map_or(form, |newer| newer.of(&["recvmmsg", "recvmmsg-time"])),
            _ if is_spliced => self.newer.as_mut().map_or(form, |newer| newer.of(&["splice", "sendfile"])),
            _ => form,
        };
        if is_several && !self.ends[end].is_nonblocking && flags & DONTWAIT == 0 {
            // Only the first message is waited for.
            flags |= libc::MSG_WAITFORONE;
        }
        let line = format!("recv {end} {file} {form} {length} {flags}");
        if sends {
            self.add(end, format!("blocked {line}"), false);
            let before = self.ends[end].unread;
            while self.ends[end].unread < wanted {
                // What comes may not be more than one send, where the call takes what is there.
                self.send_exactly(1 - end, if flags & WAITALL != 0 { wanted - self.ends[end].unread } else { 0 });
            }
            assert!(self.ends[end].unread > before);
            self.add(end, "result".to_owned(), false);
        } else {
            self.add(end, line, true);
        }
        let state = &mut self.ends[end];
        if flags & libc::MSG_PEEK == 0 {
            state.unread -= state.unread.min(length);
        }
        Some(())
    }

    /// A send that a blocked call waits for: of at most `most` bytes, if that is not 0.
    fn send_exactly(&mut self, end: usize, most: u64) {
        let file = self.file(end).unwrap();
        let length = if most > 0 { 1 + self.random.below(most.min(4000)) } else { 1 + self.random.below(100) };
        let form = self.random.of(&["write", "writev", "send", "sendmsg"]);
        let offset = self.ends[end].sent;
        self.add(end, format!("send {end} {file} {form} {length} {offset} {end} 0"), true);
        self.ends[end].sent += length;
        self.ends[1 - end].unread += length;
    }

    fn shutdown(&mut self, end: usize) -> Option<()> {
        let file = self.file(end)?;
        let how = self.random.of(&[libc::SHUT_WR, libc::SHUT_WR, libc::SHUT_RD, libc::SHUT_RDWR]);
        self.add(end, format!("shutdown {end} {file} {how}"), true);
        let state = &mut self.ends[end];
        state.read_shut |= how != libc::SHUT_WR;
        state.write_shut |= how != libc::SHUT_RD;
        if how != libc::SHUT_RD {
            self.ends[1 - end].fin = true;
        }
        Some(())
    }

    fn close(&mut self, end: usize) -> Option<()> {
        let file = self.file(end)?;
        if self.ends[end].in_set.is_some_and(|(there, _)| there == file) {
            // A set keeps what another descriptor still holds: see epoll(7), questions and answers.
            self.change_set(end, libc::EPOLL_CTL_DEL);
        }
        let is_last = self.ends[end].files.len() == 1;
        if is_last && self.random.one_in(4) {
            let line = format!("set {end} {file} {} {} {} 0 8", libc::SOL_SOCKET, libc::SO_LINGER, 1);
            self.add(end, line, false);
            self.is_wild = true;
        }
        self.add(end, format!("close {end} {file}"), true);
        self.ends[end].files.retain(|there| *there != file);
        if is_last {
            if self.ends[end].unread > 0 {
                self.is_wild = true;
            }
            self.ends[1 - end].fin = true;
            if self.is_wild {
                self.go_wild();
            }
        }
        Some(())
    }

    fn copy(&mut self, end: usize) -> Option<()> {
        let file = self.file(end)?;
        if self.ends[end].files.len() >= 2 && self.random.one_in(3) {
            let onto = self.file(end)?;
            let in_set = self.ends[end].in_set.is_some_and(|(there, _)| there == onto);
            if !in_set {
                self.add(end, format!("dup2 {end} {file} {onto}"), true);
            }
        } else if self.ends[end].files.len() < 4 {
            let new = self.new_file(end);
            let how = self.random.of(&["dup", "cloexec", "plain"]);
            self.add(end, format!("dup {end} {file} {new} {how}"), false);
            self.ends[end].files.push(new);
        }
        Some(())
    }

    fn poll(&mut self, end: usize) -> Option<()> {
        let file = self.file(end)?;
        let mut events = 0i16;
        for event in [libc::POLLIN, libc::POLLOUT, libc::POLLRDHUP, libc::POLLRDNORM, libc::POLLPRI] {
            events |= if self.random.one_in(2) { event } else { 0 };
        }
        let line = if self.random.one_in(3) {
            format!("select {end} {file} {} 0", 1 + self.random.below(7))
        } else {
            format!("poll {end} {file} {events} {}", if self.random.one_in(6) { 2 } else { 0 })
        };
        self.add(end, line, false);
        Some(())
    }

    /// A call that waits for readiness, and the send that brings it.
    fn wait(&mut self, end: usize) -> Option<()> {
        let state = &self.ends[end];
        let is_quiet = state.unread == 0 && !state.fin && !state.read_shut && !self.is_wild;
        if !is_quiet || !self.can_send(1 - end) {
            return None;
        }
        let file = self.file(end)?;
        let ready = libc::EPOLLIN as u32;
        let line = match (self.random.below(3), self.ends[end].in_set, self.ends[end].set) {
            (0, Some((_, events)), Some(set)) if events & ready != 0 && events & libc::EPOLLOUT as u32 == 0 => {
                format!("wait {end} {set} 30000")
            }
            (1, ..) => format!("select {end} {file} 1 30000"),
            _ => format!("poll {end} {file} {} 30000", libc::POLLIN),
        };
        self.add(end, format!("blocked {line}"), false);
        self.send_exactly(1 - end, 0);
        self.add(end, "result".to_owned(), false);
        self.note_oneshot(end, line.starts_with("wait"));
        Some(())
    }

    /// What a set that has reported says next is not known here, but to the kernel.
    fn note_oneshot(&mut self, end: usize, has_waited: bool) {
        if let Some((file, events)) = self.ends[end].in_set
            && has_waited
            && events & libc::EPOLLONESHOT as u32 != 0
        {
            self.ends[end].in_set = Some((file, 0));
        }
    }

    fn change_set(&mut self, end: usize, operation: i32) {
        let Some(set) = self.ends[end].set else { return };
        let mut events = 0;
        for (event, times) in [
            (libc::EPOLLIN, 1),
            (libc::EPOLLOUT, 3),
            (libc::EPOLLRDHUP, 2),
            (libc::EPOLLET, 2),
            (libc::EPOLLONESHOT, 4),
        ] {
            events |= if self.random.one_in(times) { event as u32 } else { 0 };
        }
        // An edge that is told twice would disarm what the program has just armed.
        if events & libc::EPOLLET as u32 != 0 {
            events &= !(libc::EPOLLONESHOT as u32);
        }
        let file = match (operation, self.ends[end].in_set) {
            (libc::EPOLL_CTL_ADD, None) => self.file(end),
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, Some((file, _))) => Some(file),
            _ => None,
        };
        if let Some(file) = file {
            self.add(end, format!("ctl {end} {set} {file} {operation} {events}"), false);
            self.ends[end].in_set = (operation != libc::EPOLL_CTL_DEL).then_some((file, events));
        }
    }

    fn epoll(&mut self, end: usize) -> Option<()> {
        self.file(end)?;
        let Some(set) = self.ends[end].set else {
            let set = self.new_file(end) + FIRST_SET;
            self.add(end, format!("epoll {end} {set}"), false);
            self.ends[end].set = Some(set);
            self.change_set(end, libc::EPOLL_CTL_ADD);
            return Some(());
        };
        match self.random.below(8) {
            0 => self.change_set(end, libc::EPOLL_CTL_ADD),
            1 => self.change_set(end, libc::EPOLL_CTL_MOD),
            2 => self.change_set(end, libc::EPOLL_CTL_DEL),
            _ => {
                let edge = libc::EPOLLET as u32;
                let is_edge = self.ends[end].in_set.is_some_and(|(_, events)| events & edge != 0);
                self.steps.push(Step { end, line: format!("wait {end} {set} 0"), is_seen: false, is_edge });
                self.note_oneshot(end, true);
            }
        }
        Some(())
    }

    fn option(&mut self, end: usize) -> Option<()> {
        let file = self.file(end)?;
        let socket = libc::SOL_SOCKET;
        match self.random.below(9) {
            0 | 1 => {
                let nonblocking = self.is_wild || self.random.one_in(2);
                self.set_nonblocking(end, file, nonblocking);
            }
            2 => {
                let micros = self.random.of(&[0, 2000, 3000]);
                self.add(end, format!("set {end} {file} {socket} {} 0 {micros} 16", libc::SO_RCVTIMEO), false);
                self.ends[end].has_timeout = micros > 0;
            }
            3 => self.add(end, format!("get {end} {file} {socket} {}", libc::SO_ERROR), false),
            4 => self.add(end, format!("get {end} {file} {socket} {}", libc::SO_RCVTIMEO), false),
            5 => {
                let line = format!("set {end} {file} {} {} 1 0 4", libc::IPPROTO_TCP, libc::TCP_NODELAY);
                self.add(end, line, false);
            }
            6 => self.add(end, format!("names {end} {file}"), false),
            7 => self.add(end, format!("fcntl {end} {file} {} 0", libc::F_GETFL), false),
            _ => self.add(end, format!("ioctl {end} {file} {} 0", libc::FIONREAD), false),
        }
        Some(())
    }

    fn step(&mut self) {
        let end = self.random.below(2) as usize;
        let _ = match self.random.below(100) {
            0..30 => self.send(end, false),
            30..58 => self.receive(end),
            58..66 => self.poll(end),
            66..74 => self.wait(end),
            74..84 => self.epoll(end),
            84..92 => self.option(end),
            92..95 => self.copy(end),
            95..97 => self.shutdown(end),
            97 => self.close(end),
            _ => self.receive(end),
        };
    }
}

/// The program of a seed. Without `newer` it has no calls that were added after the programs that are kept.
pub fn program(seed: u64, newer: bool) -> Program {
    let newer = newer.then_some(Random(!seed));
    let mut random = Random(seed);
    let is_v6 = random.one_in(4);
    let nonblocking_connect = random.one_in(4);
    let accept_flags = random.of(&[0, 0, libc::SOCK_NONBLOCK, libc::SOCK_CLOEXEC]);
    let mut ends = [End::default(), End::default()];
    ends.iter_mut().for_each(|end| end.files.push(0));
    ends[0].is_nonblocking = accept_flags & libc::SOCK_NONBLOCK != 0;
    ends[1].is_nonblocking = nonblocking_connect;
    let mut maker = Maker { random, newer, ends, steps: Vec::new(), is_wild: false };
    // Messages to and fro, as many as it takes to leave TCP, or fewer.
    for _ in 0..maker.random.below(8) {
        for end in 0..2 {
            if maker.send(end, true).is_some() {
                let reads = 1 - end;
                let length = maker.ends[reads].unread;
                let form = maker.random.of(&["read", "recv", "recvmsg"]);
                maker.add(reads, format!("recv {reads} 0 {form} {length} 0"), true);
                maker.ends[reads].unread = 0;
            }
        }
    }
    let steps = 10 + maker.random.below(40);
    for _ in 0..steps {
        maker.step();
    }
    // Whoever closes first, the other one sees all that is left, and what comes of writing.
    let first = maker.random.below(2) as usize;
    while maker.close(first).is_some() {}
    maker.go_wild();
    let last = 1 - first;
    for _ in 0..6 {
        let _ = match maker.random.below(4) {
            0 => maker.poll(last),
            1 => maker.send(last, true),
            _ => maker.receive(last),
        };
    }
    if let Some(file) = maker.file(last) {
        maker.add(last, format!("recv {last} {file} recv 30000 {DONTWAIT}"), true);
        maker.add(last, format!("recv {last} {file} recv 10 {DONTWAIT}"), true);
        maker.add(last, format!("get {last} {file} {} {}", libc::SOL_SOCKET, libc::SO_ERROR), false);
    }
    Program { is_v6, nonblocking_connect, accept_flags, steps: maker.steps }
}
