//! A connection: a TCP socket, and the state machines on it.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::time::{Duration, Instant};

use iwarp::mpa::Agreed;
use iwarp::mpa::send::{Sink, mulpdu};
use iwarp::rdmap::{Config, End, Refused, Stream, Work};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wire::ddp::{tagged, untagged};
use wire::rdmap::read_request;

use crate::placement::{Placement, Request};
use crate::{Access, Buffer, Error, Options, Receive, Tag, start};

/// The most bytes of the peer that wait here for the end of their segment, and for one that is coming.
const READ_SIZE: usize = 0x2_0000;

/// The most messages and notices that wait for the program; a peer that sends more ends the connection. A program that
/// calls nothing but [`Socket::recv`] never has so many: a read of the socket brings fewer.
const MAX_INDICATIONS: usize = 1 << 14;

/// How long an initiator waits for a sign of life before it sends a tagged message of no bytes. Linux's siw, as a
/// responder, does not see bytes that come between its reply and the moment when it takes its socket: it finds them
/// when more come.
const NUDGE: Duration = Duration::from_millis(100);

/// A place at a side: a registration there, and the offset in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The registration.
    pub tag: Tag,
    /// The offset. Peers that are programs of verbs count from the region's address.
    pub offset: u64,
}

/// What the receiver of a tagged message gets to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// Nothing.
    No,
    /// [`Indication::Tagged`] with this id, when all bytes have their place.
    Id(u64),
}

/// What has come.
#[derive(Clone, Debug)]
pub enum Indication {
    /// An untagged message, in the receive that was posted first.
    Message {
        /// The receive; it may be posted again.
        receive: Receive,
        /// Bytes of the message, from the buffer's front on.
        len: usize,
        /// The sender wants an event (RFC 5040, section 5.3).
        solicited: bool,
        /// The registration that the message has ended.
        invalidated: Option<Tag>,
    },
    /// The tagged messages to this registration that were sent before the id.
    Tagged {
        /// The registration.
        tag: Tag,
        /// The id.
        id: u64,
    },
}

/// Bytes of a message that fit into one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Of [`Socket::send`].
    pub untagged: usize,
    /// Of [`Socket::write`] and [`Socket::read`].
    pub tagged: usize,
}

/// A connection in full operation.
pub struct Socket {
    tcp: TcpStream,
    stream: Stream,
    placement: Placement,
    /// Bytes that have come and are not taken, from [`Stream::position`] on.
    held: Vec<u8>,
    /// Bytes that are to be sent.
    out: Vec<u8>,
    /// The time of each wait for the peer.
    patience: Duration,
    segment: usize,
    is_heard: bool,
    /// The peer sends nothing any more.
    is_closed: bool,
}

/// Gathers what a stream sends.
struct Gather<'a> {
    out: &'a mut Vec<u8>,
    payload: &'a [u8],
}

impl Sink for Gather<'_> {
    fn own(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    fn payload(&mut self, range: Range<usize>) {
        self.out.extend_from_slice(self.payload.get(range).unwrap_or_default());
    }
}

impl Socket {
    /// Connect to a peer that listens.
    ///
    /// # Errors
    /// As connect(2); [`Error::Start`], [`Error::Rejected`], [`Error::Timeout`].
    pub fn connect(address: impl ToSocketAddrs, options: &Options) -> Result<Socket, Error> {
        start::connect(address, options)
    }

    /// Accept a connection.
    ///
    /// # Errors
    /// As accept(2); [`Error::Start`], [`Error::Timeout`].
    pub fn accept(listener: &TcpListener, options: &Options) -> Result<Socket, Error> {
        start::accept(listener, options)
    }

    pub(crate) fn open(tcp: TcpStream, agreed: &Agreed, options: &Options) -> Result<Socket, Error> {
        tcp.set_nonblocking(true)?;
        let stream = Stream::new(agreed, &Config::new(options.segment), 0);
        // Tags that are hard to guess: the hasher has keys from the system.
        let seed = RandomState::new().hash_one(0) as u32;
        let mut socket = Socket {
            tcp,
            stream,
            placement: Placement::new(seed),
            held: Vec::new(),
            out: Vec::new(),
            patience: options.patience,
            segment: options.segment,
            is_heard: false,
            is_closed: false,
        };
        socket.flush()?;
        Ok(socket)
    }

    /// The peer's address.
    ///
    /// # Errors
    /// As getpeername(2).
    pub fn peer(&self) -> Result<SocketAddr, Error> {
        Ok(self.tcp.peer_addr()?)
    }

    /// Register a buffer (`ddp_register`, `rdma_register`): the peer may use it through the tag.
    pub fn register(&mut self, buffer: &Buffer, access: Access) -> Tag {
        self.placement.register(buffer, access)
    }

    /// End a registration (`ddp_deregister`, `rdma_deregister`). Messages of the peer to this tag end the connection.
    ///
    /// # Errors
    /// [`Error::NoTag`].
    pub fn deregister(&mut self, tag: Tag) -> Result<(), Error> {
        if self.placement.deregister(tag) { Ok(()) } else { Err(Error::NoTag) }
    }

    /// Post a receive (`ddp_post_recv`, `rdma_post_recv`) for one message of the peer.
    ///
    /// # Errors
    /// [`Error::Taken`]: it has a message that the program has not got.
    pub fn post_recv(&mut self, receive: &Receive) -> Result<(), Error> {
        self.placement.post(receive.post().ok_or(Error::Taken)?);
        Ok(())
    }

    /// The sizes of messages of one segment (`ddp_max_msizes`, `rdma_max_msizes`). Longer messages take more segments.
    pub fn max_sizes(&self) -> Sizes {
        let segment = usize::from(mulpdu(self.segment, self.stream.agreed().markers_out));
        let less = |header: usize| segment.saturating_sub(header);
        Sizes { untagged: less(untagged::LEN), tagged: less(tagged::LEN) }
    }

    /// Send an untagged message (`ddp_send`, `rdma_send`): the peer's next posted receive takes it.
    ///
    /// # Errors
    /// [`Error::TooLong`]; [`Error::Ended`], [`Error::Timeout`], as send(2). Success says that TCP has the message.
    pub fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        let len = length(message.len())?;
        self.post(Work::Send { len, solicited: false, invalidate: None }, message)
    }

    /// Send a tagged message (`ddp_send_ddp`, `rdma_write`): its bytes are placed there, and `notify` says whether the
    /// peer's program gets to know.
    ///
    /// # Errors
    /// As [`Socket::send`].
    pub fn write(&mut self, message: &[u8], to: Address, notify: Notify) -> Result<(), Error> {
        let Address { tag, offset } = to;
        // A message of no bytes would be a notice.
        if !message.is_empty() {
            self.post(Work::Write { stag: tag.into(), offset, len: length(message.len())? }, message)?;
        }
        match notify {
            Notify::No => Ok(()),
            Notify::Id(id) => self.post(Work::Write { stag: tag.into(), offset: id, len: 0 }, &[]),
        }
    }

    /// Read so many bytes of the peer into a registration of this side that may be written (`rdma_read`), and wait for
    /// them. What comes meanwhile is kept for [`Socket::recv`].
    ///
    /// # Errors
    /// [`Error::NoTag`], [`Error::Range`]: of the local place; [`Error::NoReads`]; as [`Socket::send`].
    pub fn read(&mut self, from: Address, len: usize, to: Address) -> Result<(), Error> {
        if len > 0 && !self.placement.is_sink(to.tag.into(), to.offset, len) {
            return Err(if self.placement.has(to.tag) { Error::Range } else { Error::NoTag });
        }
        let request = read_request::Repr {
            sink_stag: to.tag.into(),
            sink_offset: to.offset,
            size: length(len)?,
            source_stag: from.tag.into(),
            source_offset: from.offset,
        };
        self.post(Work::Read(request), &[])?;
        while self.placement.reads_done == 0 {
            self.advance()?;
        }
        self.placement.reads_done -= 1;
        Ok(())
    }

    /// Wait for the next message or notice (`ddp_recv`, `rdma_recv`). `None`: the peer has closed the connection.
    ///
    /// # Errors
    /// [`Error::Ended`]: by an error of a message, found here or by the peer; [`Error::Timeout`], as recv(2).
    pub fn recv(&mut self) -> Result<Option<Indication>, Error> {
        loop {
            if let Some(indication) = self.placement.indications.pop_front() {
                if let Indication::Message { receive, .. } = &indication {
                    receive.give_back();
                }
                return Ok(Some(indication));
            }
            match self.advance() {
                Err(Error::Ended(End::Closed)) => return Ok(None),
                result => result?,
            }
        }
    }

    /// Close the connection: what was sent arrives.
    ///
    /// # Errors
    /// As shutdown(2).
    pub fn close(self) -> Result<(), Error> {
        Ok(self.tcp.shutdown(Shutdown::Write)?)
    }

    /// Send a message. The side that has accepted waits for the peer's first one.
    fn post(&mut self, work: Work, payload: &[u8]) -> Result<(), Error> {
        while !self.stream.may_send() {
            self.advance()?;
        }
        if let Err(why) = self.start(work, payload) {
            return Err(match (why, self.stream.end()) {
                (_, Some(end)) => Error::Ended(*end),
                (Refused::Depth, _) => Error::NoReads,
                (Refused::NotYet, _) => Error::NotYet,
                _ => Error::Range,
            });
        }
        self.flush()
    }

    fn start(&mut self, work: Work, payload: &[u8]) -> Result<(), Refused> {
        self.stream.start(work)?;
        let mut gather = Gather { out: &mut self.out, payload };
        while self.stream.send(payload, &mut gather) == Some(false) {}
        Ok(())
    }

    /// Wait for bytes of the peer, take them, and answer READs.
    fn advance(&mut self) -> Result<(), Error> {
        if let Some(end) = self.stream.end() {
            return Err(Error::Ended(*end));
        }
        let before = self.stream.position() + self.held.len() as u64;
        let started = Instant::now();
        while !self.take()? && self.stream.end().is_none() {
            let is_mute = !self.is_heard && self.stream.may_send();
            let patience = self.patience.saturating_sub(started.elapsed());
            if patience.is_zero() {
                return Err(Error::Timeout);
            }
            if !self.wait(PollFlags::IN, if is_mute { patience.min(NUDGE) } else { patience })? && is_mute {
                let stag = Tag(1).into();
                let _ = self.start(Work::Write { stag, offset: 0, len: 0 }, &[]);
                self.flush()?;
            }
        }
        self.is_heard |= self.stream.position() + self.held.len() as u64 > before;
        self.answer()?;
        self.flush()
    }

    /// Answer the peer's READs. RFC 5040, section 5.2.2: in their order.
    fn answer(&mut self) -> Result<(), Error> {
        while self.stream.end().is_none() {
            let Some(Request { message, request }) = self.placement.requests.pop_front() else { break };
            match self.placement.source(request.source_stag, request.source_offset, request.size as usize) {
                Ok(bytes) => {
                    let _ = self.start(Work::Response(request), &bytes);
                    self.flush()?;
                }
                Err(why) => self.stream.refuse(message, &request, 0, why),
            }
        }
        Ok(())
    }

    /// Take the bytes that are there. False if there are none.
    fn take(&mut self) -> Result<bool, Error> {
        if self.is_closed {
            self.stream.closed(self.held.len());
            return Ok(true);
        }
        let held = self.held.len();
        self.held.resize(held + READ_SIZE, 0);
        let came = self.tcp.read(self.held.get_mut(held..).unwrap_or_default());
        self.held.truncate(held + came.as_ref().map_or(0, |len| *len));
        match came {
            Ok(0) => {
                self.is_closed = true;
                self.stream.closed(held);
            }
            Ok(_) => {
                let from = self.stream.position();
                self.stream.input(from, &self.held, &mut self.placement);
                let taken = usize::try_from(self.stream.position() - from).unwrap_or(usize::MAX);
                self.held.drain(..taken.min(self.held.len()));
                if self.placement.indications.len() > MAX_INDICATIONS {
                    self.stream.fail();
                }
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(e) if e.kind() == ErrorKind::Interrupted => return Ok(false),
            Err(e) => return Err(e.into()),
        }
        Ok(true)
    }

    /// Send what is to be sent. The peer's bytes are taken meanwhile: it may send, too, and wait for room.
    fn flush(&mut self) -> Result<(), Error> {
        let mut started = Instant::now();
        loop {
            while self.stream.urgent(&mut Gather { out: &mut self.out, payload: &[] }) {}
            if self.out.is_empty() {
                return Ok(());
            }
            match self.tcp.write(&self.out) {
                Ok(len) => {
                    self.out.drain(..len);
                    started = Instant::now();
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    let patience = self.patience.saturating_sub(started.elapsed());
                    if patience.is_zero() {
                        return Err(Error::Timeout);
                    }
                    let reads = if self.is_closed { PollFlags::empty() } else { PollFlags::IN };
                    self.wait(PollFlags::OUT | reads, patience)?;
                    if !self.is_closed {
                        self.take()?;
                    }
                }
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Wait until the socket is ready. False if it is not in time.
    fn wait(&self, flags: PollFlags, patience: Duration) -> Result<bool, Error> {
        let time = Timespec::try_from(patience).ok();
        match poll(&mut [PollFd::new(&self.tcp, flags)], time.as_ref()) {
            Ok(ready) => Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => Ok(true),
            Err(e) => Err(Error::Io(e.into())),
        }
    }
}

impl Drop for Socket {
    /// A Terminate message arrives: bytes that are not read would turn FIN into RST, which may overtake it. A peer that
    /// goes on sending is read for a second.
    fn drop(&mut self) {
        let _ = self.tcp.shutdown(Shutdown::Write);
        if matches!(self.stream.end(), Some(End::Fault(_))) {
            let (mut bytes, started) = ([0; 4096], Instant::now());
            while started.elapsed() < 10 * NUDGE
                && self.wait(PollFlags::IN, NUDGE).is_ok_and(|ready| ready)
                && self.tcp.read(&mut bytes).is_ok_and(|len| len > 0)
            {}
        }
    }
}

fn length(len: usize) -> Result<u32, Error> {
    u32::try_from(len).map_err(|_| Error::TooLong)
}
