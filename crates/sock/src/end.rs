//! One end of a connection that has shared memory beside its TCP socket.
//!
//! Each direction is in one of four modes, which only its sender changes ([`Mode`]):
//!
//! | mode | sender writes to | receiver reads | leaves when |
//! |---|---|---|---|
//! | `Before` | TCP | TCP | the receiver is ready: the sender publishes how many bytes have gone by TCP |
//! | `Ring` | the ring | TCP up to that byte, then the ring; TCP beyond it for its end and errors only | see below |
//! | `Retracting` | nothing | TCP | the ring's rest has gone by TCP |
//! | `After` | TCP | the ring's rest, then TCP | never |
//!
//! `Ring` ends with `Retracting` when the receiver asks for it, because somebody will read its socket who does not
//! know of the ring; and with `After` when the sender wants TCP again, or has seen the receiver's end of the other
//! direction: then TCP alone can say whether there is still anybody who reads.
//!
//! **Where the switch is** needs no counting here. The kernel knows how many bytes a socket was given
//! ([`Kernel::written`]), by whomever, and how many have arrived at the other ([`Kernel::arrived`]). The sender
//! publishes the first number and writes nothing more to its socket while it uses the ring. The receiver reads its
//! socket up to that byte: what has arrived less what is unread is what was read. A stream that is never idle is
//! switched as exactly as any other.
//!
//! **The end of a stream** is the kernel's, too: all bytes in the ring were written before the FIN was sent. A
//! receiver that finds the ring empty and then the FIN looks at the ring once more.

use memory::stream::{Broken, Mode, Stream, StreamMemory};
use memory::sync::{AtomicU32, Ordering};
use verbs::Errno;

const EAGAIN: Errno = Errno::EAGAIN;
/// EPIPE.
pub const EPIPE: Errno = Errno(32);
/// ECONNRESET.
pub const ECONNRESET: Errno = Errno(104);

/// The connection's TCP socket, and the other end's bell. No function waits.
pub trait Kernel {
    /// As send(2).
    ///
    /// # Errors
    /// The kernel's.
    fn send(&self, from: &[u8]) -> Result<usize, Errno>;
    /// As recv(2), with MSG_PEEK if `peek`.
    ///
    /// # Errors
    /// The kernel's.
    fn recv(&self, to: &mut [u8], peek: bool) -> Result<usize, Errno>;
    /// Bytes that the socket was given so far. `None`: the kernel does not say.
    fn written(&self) -> Option<u64>;
    /// Bytes that have arrived so far, and how many of them are unread; both of one moment.
    fn arrived(&self) -> Option<(u64, u64)>;
    /// As [`Kernel::arrived`], where the bytes that come by TCP before those in the ring are `most`. A socket that was
    /// reset does not say whether its FIN is among those that have arrived: it is if they are more.
    fn arrived_of(&self, most: u64) -> Option<(u64, u64)> {
        let _ = most;
        self.arrived()
    }
    /// Tells the other end that something has changed, and wakes whoever waits there by one of these bells.
    fn tell(&self, bells: u32);
    /// Whether it is time to look at the socket, though nothing says that it has news.
    fn is_due(&self) -> bool {
        true
    }
}

/// What all holders of one end know, and the other end does not. All are 0 at the beginning.
#[derive(Default)]
#[repr(C)]
pub struct Own {
    /// Not 0: this end never begins to use the ring.
    stay: AtomicU32,
    write_shut: AtomicU32,
    read_shut: AtomicU32,
    /// The other end's FIN or RST was seen.
    ended: AtomicU32,
    /// An error that the kernel has told, to be told when the ring is empty.
    error: AtomicU32,
    broken: AtomicU32,
}

impl Own {
    /// Keeps the end from beginning to use the ring.
    pub fn stay(&self) {
        self.stay.store(1, Ordering::SeqCst);
    }

    /// Whether the end must not begin to use the ring.
    pub fn stays(&self) -> bool {
        self.stay.load(Ordering::SeqCst) != 0
    }

    /// The program has shut down its direction, its peer's, or both.
    pub fn shut(&self, read: bool, write: bool) {
        if read {
            self.read_shut.store(1, Ordering::SeqCst);
        }
        if write {
            self.write_shut.store(1, Ordering::SeqCst);
        }
    }

    /// Whether the other end is known to have finished, or to be gone.
    pub fn has_ended(&self) -> bool {
        is_set(&self.ended)
    }

    /// Whether an error is still to be told.
    pub fn has_error(&self) -> bool {
        is_set(&self.error)
    }

    /// Takes the error that is still to be told, as SO_ERROR does.
    pub fn take_error(&self) -> Option<Errno> {
        let error = if is_set(&self.error) { self.error.swap(0, Ordering::Relaxed) } else { 0 };
        (error != 0).then_some(Errno(error.cast_signed()))
    }

    /// The kernel has told that the other end has finished, or is gone.
    pub fn note_end(&self) {
        self.ended.store(1, Ordering::Relaxed);
    }
}

fn is_set(word: &AtomicU32) -> bool {
    word.load(Ordering::Relaxed) != 0
}

/// Whether a program that polls may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writable {
    /// The kernel's socket says.
    AsKernel,
    /// Yes.
    Yes,
    /// No.
    No,
}

/// One end.
pub struct End<'a, M, K> {
    /// What this end sends.
    pub out: Stream<M>,
    /// What it receives.
    pub incoming: Stream<M>,
    /// What its holders know.
    pub own: &'a Own,
    /// Its socket.
    pub kernel: K,
}

impl<M: StreamMemory, K: Kernel> End<'_, M, K> {
    /// The other end broke the rules: the connection is over.
    fn broken<T>(&self, _: Broken) -> Result<T, Errno> {
        self.own.broken.store(1, Ordering::Relaxed);
        Err(ECONNRESET)
    }

    /// Whether the other end broke the rules.
    pub fn is_broken(&self) -> bool {
        is_set(&self.own.broken)
    }

    /// Sends some bytes, under the lock of this end's senders. With `may_switch` no other thread is inside the kernel
    /// with this socket.
    ///
    /// # Errors
    /// EAGAIN: there is no room, and the receiver will ring, or the kernel's socket will become writable. Else what
    /// the kernel's socket says, or would say.
    pub fn send(&self, from: &[u8], may_switch: bool) -> Result<usize, Errno> {
        if self.is_broken() {
            return Err(ECONNRESET);
        }
        self.send_some(from, may_switch).unwrap_or_else(|broken| self.broken(broken))
    }

    /// Whether [`End::send_by_ring`] may do: the ring is the way, and nothing speaks against it.
    pub fn sends_by_ring_alone(&self) -> bool {
        let own = self.own;
        let stops = [&own.broken, &own.write_shut, &own.ended, &own.stay, &own.error].into_iter().any(is_set);
        self.sends_by_ring() && !stops && !self.out.is_asked_to_retract() && !self.incoming.is_finished()
    }

    /// Sends some bytes by the ring, under the lock of this end's senders. Nothing but the bytes and their count
    /// changes, and the count last: the caller may be a thread whose signal's handlers call this library, and which
    /// they may leave by longjmp(3). 0: there is no room, or the ring is not the way any more.
    ///
    /// # Errors
    /// ECONNRESET.
    pub fn send_by_ring(&self, from: &[u8]) -> Result<usize, Errno> {
        let sent = self.out.write(from);
        if sent.is_ok_and(|some| some > 0) {
            self.wake();
        }
        sent.or_else(|broken| self.broken(broken))
    }

    /// Without the lock of this end's senders, whose holder does not come on: all later bytes go by TCP.
    pub fn leave_ring(&self) {
        self.leave();
    }

    fn send_some(&self, from: &[u8], may_switch: bool) -> Result<Result<usize, Errno>, Broken> {
        if let Some(error) = self.take_error() {
            return Ok(error);
        }
        loop {
            match self.out.mode() {
                Mode::Before => {
                    let may = may_switch && !self.own.stays() && !is_set(&self.own.write_shut);
                    if may
                        && self.out.is_ready()
                        && !self.out.is_asked_to_retract()
                        && !is_set(&self.own.ended)
                        && let Some(before) = self.kernel.written()
                    {
                        self.out.switch(before);
                        self.wake();
                        continue;
                    }
                    return Ok(self.kernel.send(from));
                }
                // The kernel's socket is shut down, too, and may have an error to tell first.
                Mode::Ring if is_set(&self.own.write_shut) => return Ok(self.kernel.send(&[]).and(Err(EPIPE))),
                Mode::Ring if self.out.is_asked_to_retract() => self.out.start_retracting(),
                Mode::Ring if is_set(&self.own.ended) || self.own.stays() => self.leave(),
                Mode::Ring => {
                    let some = self.out.write(from)?;
                    if some > 0 || from.is_empty() {
                        self.wake();
                        return Ok(Ok(some));
                    }
                    self.out.announce_want();
                    if self.out.room()? == 0 {
                        return Ok(Err(EAGAIN));
                    }
                }
                Mode::Retracting => {
                    if !self.take_back()? {
                        return Ok(Err(EAGAIN));
                    }
                }
                Mode::After => return Ok(self.kernel.send(from)),
            }
        }
    }

    /// Whether all that is sent goes by TCP from now on. It needs no lock.
    pub fn sends_by_tcp_for_good(&self) -> bool {
        let own = self.own;
        let is_over = is_set(&own.ended) || own.stays();
        if self.sends_by_ring() && is_over && !self.out.is_asked_to_retract() && !is_set(&own.write_shut) {
            self.leave();
        }
        self.out.mode() == Mode::After && !self.is_broken() && !own.has_error()
    }

    fn wake(&self) {
        self.kernel.tell(self.out.bells());
    }

    fn leave(&self) {
        self.out.leave();
        self.wake();
    }

    fn take_back(&self) -> Result<bool, Broken> {
        self.out.take_back(
            &mut [0; 8192],
            || self.kernel.written(),
            |bytes| match self.kernel.send(bytes) {
                Ok(went) => went,
                Err(EAGAIN) => 0,
                // Nobody can read them any more, and the next call tells why.
                Err(error) => {
                    self.keep(error);
                    bytes.len()
                }
            },
        )
    }

    /// Under the lock of this end's senders: does what the receiver asks for. To be called now and then by an end
    /// that does not send.
    pub fn serve(&self) {
        let served = (|| {
            if self.out.mode() == Mode::Ring && self.needs_service() {
                self.out.start_retracting();
            }
            if self.out.mode() == Mode::Retracting {
                self.take_back()?;
            }
            Ok(())
        })();
        if let Err(broken) = served {
            let _ = self.broken::<()>(broken);
        }
    }

    /// Whether [`End::serve`] has something to do.
    pub fn needs_service(&self) -> bool {
        match self.out.mode() {
            // Behind its FIN nothing can be sent any more: what is in the ring stays there.
            Mode::Ring => self.out.is_asked_to_retract() && !is_set(&self.own.write_shut),
            Mode::Retracting => true,
            _ => false,
        }
    }

    /// Under the lock of this end's senders: sends by TCP from now on, as somebody may who does not know of the ring.
    /// The receiver reads the ring's rest first. False: it has asked for that rest by TCP, and there is no room yet;
    /// to be called again.
    pub fn send_by_tcp(&self) -> bool {
        self.own.stay();
        self.serve();
        match self.out.mode() {
            Mode::Ring => {
                self.leave();
                true
            }
            mode => mode != Mode::Retracting,
        }
    }

    /// Asks the other end to send by TCP from now on, what is still in the ring included, because somebody may read
    /// who does not know of it.
    pub fn receive_by_tcp(&self) {
        self.own.stay();
        self.incoming.ask_to_retract();
        self.wake();
    }

    /// After [`End::receive_by_tcp`]: whether TCP alone has all that is still to be read. `None`: not yet. False:
    /// never, for the sender had gone back to TCP before, or had finished, and the ring's rest would be missing.
    pub fn is_received_by_tcp(&self) -> Option<bool> {
        match self.incoming.mode() {
            Mode::Before | Mode::Retracting => Some(true),
            Mode::Ring if !self.incoming.is_finished() => None,
            Mode::Ring | Mode::After => Some(self.incoming.readable() == Ok(0)),
        }
    }

    /// Receives some bytes; 0 at the end of the stream. Until [`Stream::is_drained`] receivers exclude each other.
    /// With `look` the kernel's socket is looked at, too, if the ring is empty.
    ///
    /// # Errors
    /// EAGAIN: there is nothing. Else what the kernel's socket says.
    pub fn receive(&self, to: &mut [u8], peek: bool, look: bool) -> Result<usize, Errno> {
        if self.is_broken() {
            return Err(ECONNRESET);
        }
        match self.receive_some(to, peek, look).unwrap_or_else(|broken| self.broken(broken)) {
            // An error that the kernel's socket has told before is behind all bytes.
            nothing @ (Ok(0) | Err(EAGAIN)) if self.own.has_error() && !to.is_empty() => {
                if self.unread() == 0 {
                    self.take_error().unwrap_or(nothing)
                } else {
                    nothing
                }
            }
            outcome => outcome,
        }
    }

    fn receive_some(&self, to: &mut [u8], peek: bool, look: bool) -> Result<Result<usize, Errno>, Broken> {
        loop {
            if !self.incoming.is_drained()
                && let Some(outcome) = self.receive_before(to, peek)?
            {
                return Ok(outcome);
            }
            let some = self.incoming.read(to, peek)?;
            if some > 0 {
                if !peek && self.incoming.must_make_room_known() {
                    self.wake();
                }
                if peek && some < to.len() && self.incoming.mode() == Mode::After {
                    let more = self.kernel.recv(to.get_mut(some..).unwrap_or_default(), true);
                    if let Err(error) = more
                        && error != EAGAIN
                    {
                        self.keep(error);
                    }
                    return Ok(Ok(some + more.unwrap_or(0)));
                }
                return Ok(Ok(some));
            }
            if to.is_empty() {
                return Ok(Ok(0));
            }
            match self.incoming.mode() {
                Mode::Before => return Err(Broken),
                Mode::Ring => {
                    if let Some(outcome) = self.nothing_in_ring(look)? {
                        return Ok(outcome);
                    }
                }
                Mode::Retracting => {
                    let got = self.kernel.recv(to, peek);
                    // The other end has died while bytes were neither here nor there: this is no proper end.
                    let lost = matches!(got, Ok(0)) && self.incoming.mode() == Mode::Retracting;
                    return Ok(if lost && !is_set(&self.own.read_shut) { Err(ECONNRESET) } else { got });
                }
                Mode::After => {
                    if self.incoming.readable()? == 0 {
                        return Ok(self.take_error().unwrap_or_else(|| self.kernel.recv(to, peek)));
                    }
                }
            }
        }
    }

    /// Receives bytes that went by TCP before the switch. `None`: there are none any more.
    fn receive_before(&self, to: &mut [u8], peek: bool) -> Result<Option<Result<usize, Errno>>, Broken> {
        let mut most = to.len();
        if self.incoming.mode() == Mode::Before {
            if !self.incoming.is_ready() {
                return Ok(Some(self.kernel.recv(to, peek)));
            }
            // The sender may switch now, and even back. Only what is there while it has not may be taken.
            let there = self.kernel.recv(to, true);
            if self.incoming.mode() == Mode::Before {
                return Ok(Some(match there {
                    Ok(some) if !peek => self.kernel.recv(to.get_mut(..some).unwrap_or_default(), false),
                    _ => there,
                }));
            }
            if let Err(error) = there
                && error != EAGAIN
            {
                self.keep(error);
            }
        }
        // Behind the bytes before the switch there may be some that come after those in the ring.
        if let Some((arrived, unread)) = self.kernel.arrived_of(self.incoming.switched()) {
            let left = self.incoming.switched().saturating_sub(arrived.saturating_sub(unread));
            if left == 0 {
                self.incoming.set_drained();
                return Ok(None);
            }
            most = most.min(usize::try_from(left).unwrap_or(usize::MAX));
        }
        if peek && most < to.len() {
            return self.look_over_border(to, most).map(Some);
        }
        Ok(Some(self.kernel.recv(to.get_mut(..most).unwrap_or_default(), peek)))
    }

    /// Looks at the `left` bytes that went by TCP before the ring, at those in the ring, and at those that went by TCP
    /// after them: the kernel has the first and the last without a gap.
    fn look_over_border(&self, to: &mut [u8], left: usize) -> Result<Result<usize, Errno>, Broken> {
        let is_after = self.incoming.mode() == Mode::After;
        let got = match self.kernel.recv(to, true) {
            Ok(got) if got >= left => got,
            other => return Ok(other),
        };
        let room = to.len() - left;
        let in_ring = room.min(usize::try_from(self.incoming.readable()?).unwrap_or(room));
        let behind = if is_after { (got - left).min(room - in_ring) } else { 0 };
        to.copy_within(left..left + behind, left + in_ring);
        let seen = self.incoming.read(to.get_mut(left..left + in_ring).unwrap_or_default(), true)?;
        Ok(Ok(if seen == in_ring { left + in_ring + behind } else { left + seen }))
    }

    /// What a receiver gets that found the ring empty; `None`: it has to look again.
    fn nothing_in_ring(&self, look: bool) -> Result<Option<Result<usize, Errno>>, Broken> {
        if let Some(error) = self.take_error() {
            return Ok(Some(error));
        }
        let is_shut = is_set(&self.own.read_shut);
        // The other end says when it ends, and a wait shows what the kernel has to say: its socket is looked at now
        // and then only.
        if !is_shut && (!look || !(self.incoming.is_finished() || self.own.has_ended() || self.kernel.is_due())) {
            return Ok(Some(Err(EAGAIN)));
        }
        let got = self.kernel.recv(&mut [0], true);
        let again = self.incoming.readable()? > 0 || self.incoming.mode() != Mode::Ring;
        match got {
            Err(EAGAIN) => return Ok((!again).then_some(got)),
            // Bytes by TCP, though the other end says that it sends none.
            Ok(1..) => return if again { Ok(None) } else { Err(Broken) },
            // This end's own shutdown makes the kernel say so, unless there is an error.
            Ok(0) if is_shut => {}
            Ok(0) => self.own.note_end(),
            Err(error) => {
                self.own.note_end();
                if again {
                    self.keep(error);
                }
            }
        }
        Ok((!again).then_some(got))
    }

    /// Keeps an error of the kernel's socket, which tells it once, for the next call.
    pub fn keep(&self, error: Errno) {
        self.own.error.store(error.0.unsigned_abs(), Ordering::Relaxed);
    }

    fn take_error(&self) -> Option<Result<usize, Errno>> {
        self.own.take_error().map(Err)
    }

    /// Whether all bytes before the switch are read.
    fn has_all_been_read(&self) -> bool {
        let arrived = self.kernel.arrived_of(self.incoming.switched());
        let read = arrived.map(|(arrived, unread)| arrived.saturating_sub(unread));
        read.is_some_and(|read| read >= self.incoming.switched())
    }

    /// Says to the other end that this one reads the ring, from inside a receiving function: whoever calls one of
    /// ours will call it again. Nobody else may be inside the kernel with this socket, where the ring wakes nobody.
    pub fn set_ready(&self) {
        if !self.incoming.is_ready() && !self.own.stays() {
            self.incoming.set_ready();
        }
    }

    /// Whether there is something to read beside what the kernel's socket says: bytes in the ring, an error, or an
    /// end.
    ///
    /// # Errors
    /// ECONNRESET.
    pub fn is_readable(&self) -> Result<bool, Errno> {
        let look = || {
            let mode = self.incoming.mode();
            if mode == Mode::Before {
                return Ok(false);
            }
            if !self.incoming.is_drained() {
                if !self.has_all_been_read() {
                    return Ok(false);
                }
                self.incoming.set_drained();
            }
            let ended = is_set(&self.own.error) || is_set(&self.own.read_shut);
            Ok(ended || self.incoming.readable()? > 0)
        };
        if self.is_broken() { Err(ECONNRESET) } else { look().or_else(|broken| self.broken(broken)) }
    }

    /// After a read: whether there are more bytes of the stream, which another read gets at once.
    pub fn has_more(&self) -> bool {
        let in_ring = self.unread() > 0;
        match self.incoming.mode() {
            Mode::Ring if self.incoming.is_drained() => in_ring,
            _ => in_ring || self.kernel.arrived().is_some_and(|(_, unread)| unread > 0),
        }
    }

    /// Whether no more bytes come, by what is known.
    pub fn is_at_end(&self) -> bool {
        let own = self.own;
        [&own.ended, &own.read_shut, &own.error, &own.broken].into_iter().any(is_set)
    }

    /// Bytes in the ring that can be read without waiting, beside those in the kernel's socket.
    pub fn unread(&self) -> u64 {
        match self.incoming.mode() {
            Mode::Ring | Mode::After => self.incoming.readable().unwrap_or(0),
            _ => 0,
        }
    }

    /// Bytes in the ring that the other end has not read.
    pub fn unsent(&self) -> u64 {
        self.out.room().map_or(0, |room| M::ROOM - room)
    }

    /// Whether a program that polls may write. As TCP does, it says no until a good part is free.
    pub fn writable(&self) -> Writable {
        let look = || {
            Ok(match self.out.mode() {
                Mode::Ring => {
                    let at_once = is_set(&self.own.write_shut) || is_set(&self.own.ended) || self.own.stays();
                    if at_once || self.out.room()? >= M::ROOM / 4 { Writable::Yes } else { Writable::No }
                }
                _ => Writable::AsKernel,
            })
        };
        look().unwrap_or_else(|broken| {
            let _ = self.broken::<()>(broken);
            Writable::Yes
        })
    }

    /// Whether all that comes, comes by the ring.
    pub fn receives_by_ring(&self) -> bool {
        self.incoming.is_drained() && self.incoming.mode() == Mode::Ring
    }

    /// Whether data are in the ring, or have been: what the kernel's socket says of writing is then of no use.
    pub fn sends_by_ring(&self) -> bool {
        self.out.mode() == Mode::Ring
    }
}

#[cfg(test)]
#[path = "end_tests.rs"]
mod tests;
