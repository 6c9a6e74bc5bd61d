//! The start of a connection: MPA's request and reply (RFC 5044, section 7.1).

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use iwarp::mpa::initiator::Answer;
use iwarp::mpa::{Initiator, ReadyKinds, Responder, Role, Wishes};

use crate::{Error, Socket};

/// The room for a frame: 20 bytes and 512 of private data (RFC 5044, section 7.1.1), and one byte to see more.
const FRAME: usize = 20 + 512 + 1;

/// The terms that a side asks for.
#[derive(Clone, Debug)]
pub struct Options {
    /// CRCs. They are used if either side asks.
    pub crc: bool,
    /// Markers in what this side receives.
    pub markers: bool,
    /// READs outstanding at a time, in each direction.
    pub depth: u16,
    /// Bytes of a TCP segment, to which the messages' segments are fitted.
    pub segment: usize,
    /// How long a call waits for the peer.
    pub patience: Duration,
}

impl Default for Options {
    /// CRCs, no markers, one READ, segments of Ethernet, a minute.
    fn default() -> Options {
        Options { crc: true, markers: false, depth: 1, segment: 1448, patience: Duration::from_secs(60) }
    }
}

impl Options {
    fn wishes(&self, role: Role) -> Wishes {
        // The peer-to-peer model lets the side that accepts send first, too (RFC 6581, section 9.2).
        let ready = Some(ReadyKinds::QUIET);
        Wishes { crc: self.crc, markers: self.markers, ready, ..Wishes::new(role, self.depth) }
    }

    fn prepare(&self, tcp: &TcpStream) -> Result<(), Error> {
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(self.patience))?;
        tcp.set_write_timeout(Some(self.patience))?;
        Ok(())
    }
}

fn read<'a>(tcp: &mut TcpStream, bytes: &'a mut [u8; FRAME]) -> Result<&'a [u8], Error> {
    let len = tcp.read(bytes).map_err(|e| match e.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => Error::Timeout,
        _ => Error::Io(e),
    })?;
    Ok(bytes.get(..len).unwrap_or_default())
}

/// Connect, and ask.
pub(crate) fn connect(address: impl ToSocketAddrs, options: &Options) -> Result<Socket, Error> {
    let mut tcp = TcpStream::connect(address)?;
    options.prepare(&tcp)?;
    let mut side = Initiator::new(options.wishes(Role::Initiator), &[], 0).map_err(|_| Error::TooLong)?;
    tcp.write_all(side.output())?;
    side.sent(side.output().len());
    let mut bytes = [0; FRAME];
    loop {
        let came = read(&mut tcp, &mut bytes)?;
        if came.is_empty() {
            return Err(side.closed().into());
        }
        match side.input(came)? {
            Answer::None => {}
            Answer::Rejected => return Err(Error::Rejected),
            Answer::Accepted(agreed) => return Socket::open(tcp, &agreed, options),
        }
    }
}

/// Accept a connection, and answer.
pub(crate) fn accept(listener: &TcpListener, options: &Options) -> Result<Socket, Error> {
    let (mut tcp, _) = listener.accept()?;
    options.prepare(&tcp)?;
    let mut side = Responder::new(options.wishes(Role::Responder), 0);
    let mut bytes = [0; FRAME];
    loop {
        let came = read(&mut tcp, &mut bytes)?;
        if came.is_empty() {
            return Err(side.closed().into());
        }
        if side.input(came)?.is_some() {
            break;
        }
    }
    let answer = side.accept(options.depth, options.depth, &[]).map_err(|_| Error::TooLong)?;
    let agreed = answer.ok_or(Error::Rejected)?;
    tcp.write_all(side.output())?;
    Socket::open(tcp, &agreed, options)
}
