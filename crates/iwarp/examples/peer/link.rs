//! A connection: a TCP socket, and the state machines on it. All calls wait.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::time::{Duration, Instant};

use iwarp::mpa::initiator::Answer;
use iwarp::mpa::send::Sink;
use iwarp::mpa::{Agreed, Initiator, Responder, Wishes};
use iwarp::rdmap::{Config, Delivery, End, Stream, Work};
use verbs::RKey;
use wire::rdmap::read_request;

use crate::memory::Memory;

/// How long any call waits for the peer.
const PATIENCE: Duration = Duration::from_secs(40);

/// How long an initiator waits for a sign of life before it sends a WRITE of no bytes.
///
/// Linux's siw, as a responder, does not see bytes that come between its reply and the moment when it connects its
/// socket with the QP (`siw_accept`): it finds them when more come.
const NUDGE: Duration = Duration::from_millis(100);

/// A connection in full operation.
pub struct Link {
    tcp: TcpStream,
    pub stream: Stream,
    pub memory: Memory,
    /// Bytes that have come and are not taken, from [`Stream::position`] on.
    held: Vec<u8>,
    /// Bytes that are to be sent.
    out: Vec<u8>,
    /// Private data of the peer's frame.
    pub private_data: Vec<u8>,
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
        self.out.extend_from_slice(&self.payload[range]);
    }
}

/// Text of an error.
fn text(what: &'static str) -> impl Fn(std::io::Error) -> String {
    move |e| format!("{what}: {e}")
}

fn prepare(tcp: &TcpStream) -> Result<(), String> {
    let set = || {
        tcp.set_read_timeout(Some(PATIENCE))?;
        tcp.set_write_timeout(Some(PATIENCE))?;
        tcp.set_nodelay(true)
    };
    set().map_err(text("options of the socket"))
}

/// Bytes from the peer.
fn read(tcp: &mut TcpStream) -> Result<Vec<u8>, String> {
    let mut bytes = vec![0; 0x1_0000];
    let len = tcp.read(&mut bytes).map_err(text("recv"))?;
    bytes.truncate(len);
    Ok(bytes)
}

impl Link {
    /// The side that connects. It tries again for a while until there is a listener.
    pub fn connect(address: &str, wishes: Wishes, config: &Config, private_data: &[u8]) -> Result<Link, String> {
        let started = Instant::now();
        let mut tcp = loop {
            match TcpStream::connect(address) {
                Ok(tcp) => break tcp,
                Err(e) if started.elapsed() > PATIENCE => return Err(format!("{address}: {e}")),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        prepare(&tcp)?;
        let mut side = Initiator::new(wishes, private_data, 0).map_err(|e| e.to_string())?;
        tcp.write_all(side.output()).map_err(text("send"))?;
        side.sent(side.output().len());
        loop {
            let bytes = read(&mut tcp)?;
            if bytes.is_empty() {
                return Err(side.closed().to_string());
            }
            match side.input(&bytes).map_err(|e| e.to_string())? {
                Answer::None => {}
                Answer::Rejected => return Err("rejected".to_owned()),
                Answer::Accepted(agreed) => {
                    let data = side.private_data().to_vec();
                    let mut link = Link::new(tcp, &agreed, config, data);
                    link.flush()?;
                    return Ok(link);
                }
            }
        }
    }

    /// The side that waits for a connection.
    pub fn accept(
        listener: &TcpListener,
        wishes: Wishes,
        config: &Config,
        private_data: &[u8],
    ) -> Result<Link, String> {
        let (mut tcp, _) = listener.accept().map_err(text("accept"))?;
        prepare(&tcp)?;
        let mut side = Responder::new(wishes, 0);
        loop {
            let bytes = read(&mut tcp)?;
            if bytes.is_empty() {
                return Err(side.closed().to_string());
            }
            if side.input(&bytes).map_err(|e| e.to_string())?.is_some() {
                break;
            }
        }
        let data = side.private_data().to_vec();
        let answer = side.accept(wishes.ird, wishes.ord, private_data).map_err(|e| e.to_string())?;
        let agreed = answer.ok_or("no request")?;
        tcp.write_all(side.output()).map_err(text("send"))?;
        Ok(Link::new(tcp, &agreed, config, data))
    }

    fn new(tcp: TcpStream, agreed: &Agreed, config: &Config, private_data: Vec<u8>) -> Link {
        let stream = Stream::new(agreed, config, 0);
        Link { tcp, stream, memory: Memory::default(), held: Vec::new(), out: Vec::new(), private_data }
    }

    /// Sends a message, and all that has to be sent before it.
    pub fn send(&mut self, work: Work, payload: &[u8]) -> Result<(), String> {
        self.segments(work, payload)?;
        self.flush()
    }

    /// Sends a message whose bytes are changed on their way.
    pub fn send_spoilt(&mut self, work: Work, payload: &[u8], spoil: impl FnOnce(&mut Vec<u8>)) -> Result<(), String> {
        self.segments(work, payload)?;
        spoil(&mut self.out);
        self.flush()
    }

    fn segments(&mut self, work: Work, payload: &[u8]) -> Result<(), String> {
        self.stream.start(work).map_err(|e| format!("{e:?}"))?;
        let mut gather = Gather { out: &mut self.out, payload };
        while !self.stream.send(payload, &mut gather).ok_or("nothing to send")? {}
        Ok(())
    }

    fn flush(&mut self) -> Result<(), String> {
        while self.stream.urgent(&mut Gather { out: &mut self.out, payload: &[] }) {}
        self.tcp.write_all(&self.out).map_err(text("send"))?;
        self.out.clear();
        Ok(())
    }

    /// Waits for bytes.
    fn wait(&mut self) -> Result<Vec<u8>, String> {
        let started = Instant::now();
        let mut is_first = self.stream.position() == 0 && self.held.is_empty() && self.stream.may_send();
        while is_first && started.elapsed() < PATIENCE {
            self.tcp.set_read_timeout(Some(NUDGE)).map_err(text("SO_RCVTIMEO"))?;
            match self.tcp.peek(&mut [0]) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.send(Work::Write { stag: RKey(1), offset: 0, len: 0 }, &[])?;
                }
                _ => is_first = false,
            }
        }
        self.tcp.set_read_timeout(Some(PATIENCE)).map_err(text("SO_RCVTIMEO"))?;
        read(&mut self.tcp)
    }

    /// Waits for bytes, takes them, and answers READs.
    fn receive(&mut self) -> Result<(), String> {
        let bytes = self.wait()?;
        if bytes.is_empty() {
            self.stream.closed(self.held.len());
            return Ok(());
        }
        let from = self.stream.position();
        self.held.extend_from_slice(&bytes);
        self.stream.input(from, &self.held, &mut self.memory);
        let taken = usize::try_from(self.stream.position() - from).map_err(|e| e.to_string())?;
        self.held.drain(..taken.min(self.held.len()));
        while let Some(request) = self.asked() {
            let bytes = self.memory.read(request.source_stag, request.source_offset, request.size as usize);
            self.send(Work::Response(request), &bytes.map_err(|e| format!("{e:?}"))?)?;
        }
        self.flush()
    }

    /// The oldest READ of the peer that is not answered.
    fn asked(&mut self) -> Option<read_request::Repr> {
        let is_request = |(delivery, _): &(Delivery, Vec<u8>)| matches!(delivery, Delivery::Request { .. });
        let at = self.memory.delivered.iter().position(is_request).filter(|_| self.stream.end().is_none())?;
        match self.memory.delivered.remove(at) {
            Some((Delivery::Request { request, .. }, _)) => Some(request),
            _ => None,
        }
    }

    /// Waits for the next delivery that a program would see. `None`: the connection has ended.
    fn next(&mut self) -> Result<Option<(Delivery, Vec<u8>)>, String> {
        loop {
            while let Some((delivery, bytes)) = self.memory.delivered.pop_front() {
                if !matches!(delivery, Delivery::Write { .. } | Delivery::Terminated(_)) {
                    return Ok(Some((delivery, bytes)));
                }
            }
            if self.stream.end().is_some() {
                return Ok(None);
            }
            self.receive()?;
        }
    }

    /// Waits for a SEND. `None`: the connection has ended.
    pub fn message(&mut self) -> Result<Option<Vec<u8>>, String> {
        match self.next()? {
            Some((Delivery::Send { .. }, bytes)) => Ok(Some(bytes)),
            None => Ok(None),
            Some((other, _)) => Err(format!("a SEND was expected, not {other:?}")),
        }
    }

    /// Reads so many bytes of the peer's region into the front of a region of this side.
    pub fn read(&mut self, request: read_request::Repr) -> Result<(), String> {
        self.send(Work::Read(request), &[])?;
        match self.next()? {
            Some((Delivery::Read, _)) => Ok(()),
            other => Err(format!("the end of a READ was expected, not {other:?}, {:?}", self.stream.end())),
        }
    }

    /// Waits for the end of the connection, and closes it as a Terminate message of this side wants.
    pub fn end(mut self) -> Result<End, String> {
        while self.stream.end().is_none() {
            self.receive()?;
        }
        self.flush()?;
        // Bytes that are not read would turn FIN into RST, which may overtake a Terminate message.
        self.tcp.shutdown(Shutdown::Write).map_err(text("shutdown")).or_else(|e| match self.stream.end() {
            Some(End::Terminated(_)) => Ok(()),
            _ => Err(e),
        })?;
        while read(&mut self.tcp).is_ok_and(|bytes| !bytes.is_empty()) {}
        Ok(*self.stream.end().ok_or("no end")?)
    }

    /// Closes a connection that is of no more use.
    pub fn close(self) -> Result<(), String> {
        self.tcp.shutdown(Shutdown::Both).map_err(text("shutdown"))
    }
}
