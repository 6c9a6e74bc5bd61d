//! Descriptors of `exs_socket`: the table of them, and what each is.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use exs::protocol::Kind;
use exs::socket::{Bound, Listener, Options, Queue, Socket};
use libc::c_int;
use rdma::Errno;
use rustix::fs::{Mode, OFlags};

use crate::address;
use crate::device::device;
use crate::entry::{call, refuse};
use crate::queue::Fill;

/// How far a socket is.
pub enum Stage {
    /// With an address or without.
    New(Option<Bound>),
    Listening(Arc<Listener>),
    /// The CONNECT event has not been taken.
    Connecting(Arc<Socket>),
    Connected(Arc<Socket>),
    /// The CLOSE event has not been taken.
    Closing,
}

/// What a socket knows beside its stage.
pub struct State {
    pub stage: Stage,
    pub options: Options,
    /// SO_ERROR.
    pub error: c_int,
    /// SO_RCVTIMEO and SO_SNDTIMEO.
    pub receive_time: Option<Duration>,
    pub send_time: Option<Duration>,
    /// After SHUT_RD.
    pub deaf: bool,
    /// The number is this socket's as long as it is open.
    number: Option<OwnedFd>,
}

/// A socket.
pub struct Sock {
    pub fd: c_int,
    pub domain: c_int,
    /// O_NONBLOCK.
    pub nonblock: AtomicBool,
    state: Mutex<State>,
}

static TABLE: RwLock<Vec<Option<Arc<Sock>>>> = RwLock::new(Vec::new());

/// The socket of a descriptor of `exs_socket`.
pub fn get(fd: c_int) -> Option<Arc<Sock>> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.get(usize::try_from(fd).ok()?)?.clone()
}

/// The socket of a descriptor. EBADF: it is no socket.
pub fn find(fd: c_int) -> Result<Arc<Sock>, Errno> {
    get(fd).ok_or(Errno(libc::EBADF))
}

/// Make a descriptor. EMFILE, ENFILE.
fn create(domain: c_int, options: Options, stage: Stage) -> Result<c_int, Errno> {
    // The kernel's calls that read, write or know sockets refuse such a descriptor (open(2), O_PATH).
    let number = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let number = number.map_err(|errno| Errno(errno.raw_os_error()))?;
    let fd = number.as_raw_fd();
    let state =
        State { stage, options, error: 0, receive_time: None, send_time: None, deaf: false, number: Some(number) };
    let sock = Arc::new(Sock { fd, domain, nonblock: AtomicBool::new(false), state: Mutex::new(state) });
    let place = fd as usize;
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    if table.len() <= place {
        table.resize(place + 1, None);
    }
    let before = table[place].replace(sock);
    drop(table);
    if let Some(before) = before {
        // The program has closed it by close(2): the number is not its any more.
        before.abandon();
    }
    Ok(fd)
}

impl Sock {
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection. ENOTCONN: there is none. EBADF: it is being closed.
    pub fn connection(&self) -> Result<Arc<Socket>, Errno> {
        match &self.state().stage {
            Stage::Connected(socket) => Ok(socket.clone()),
            Stage::Closing => refuse(libc::EBADF),
            _ => refuse(libc::ENOTCONN),
        }
    }

    /// True after SHUT_RD.
    pub fn is_deaf(&self) -> bool {
        self.state().deaf
    }

    pub fn is_nonblocking(&self) -> bool {
        self.nonblock.load(Ordering::Relaxed)
    }

    /// A CONNECT event was taken.
    pub fn connected(&self, errno: c_int) {
        let mut state = self.state();
        match std::mem::replace(&mut state.stage, Stage::New(None)) {
            Stage::Connecting(socket) if errno == 0 => state.stage = Stage::Connected(socket),
            Stage::Connecting(_) => state.error = errno,
            stage => state.stage = stage,
        }
    }

    /// An ACCEPT event of this listener was taken: the descriptor of the connection, which is closed if there can be
    /// none.
    pub fn accepted(&self, connection: Arc<Socket>, fill: &Fill) -> Result<c_int, Errno> {
        let options = self.state().options;
        let made = create(self.domain, options, Stage::Connected(connection.clone()));
        match made {
            Ok(_) => fill.addresses(connection.local_addr(), connection.peer_addr()),
            Err(_) => leave(&connection),
        }
        made
    }

    /// A CLOSE event was taken.
    pub fn closed(&self) {
        let number = self.state().number.take();
        let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = table.get_mut(self.fd as usize)
            && place.as_ref().is_some_and(|sock| std::ptr::eq(&**sock, self))
        {
            *place = None;
        }
        // Nothing can get the number before the table has forgotten it.
        drop(table);
        drop(number);
    }

    /// End what a program has left behind.
    fn abandon(&self) {
        let mut state = self.state();
        if let Some(number) = state.number.take() {
            // It is the new socket's, which has it too.
            std::mem::forget(number);
        }
        match std::mem::replace(&mut state.stage, Stage::Closing) {
            Stage::Listening(listener) => {
                let _ = listener.close();
            }
            Stage::Connecting(socket) | Stage::Connected(socket) => leave(&socket),
            Stage::New(_) | Stage::Closing => {}
        }
    }
}

/// Close a connection without an event.
fn leave(socket: &Socket) {
    if let Ok(queue) = Queue::alone(1) {
        let _ = socket.close(&queue, 0);
    }
}

/// `exs_socket`. EAFNOSUPPORT, EPROTOTYPE, EPROTONOSUPPORT; ENOSYS: there is no verbs library; ENODEV: it has no
/// device; EMFILE, ENFILE.
#[unsafe(no_mangle)]
pub extern "C" fn exs_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    call(|| {
        if domain != libc::AF_INET && domain != libc::AF_INET6 {
            return refuse(libc::EAFNOSUPPORT);
        }
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let of = match kind & !flags {
            libc::SOCK_STREAM => Kind::Stream,
            libc::SOCK_SEQPACKET => Kind::SeqPacket,
            _ => return refuse(libc::EPROTOTYPE),
        };
        if protocol != 0 {
            return refuse(libc::EPROTONOSUPPORT);
        }
        device()?;
        let fd = create(domain, Options::new(of), Stage::New(None))?;
        if kind & libc::SOCK_NONBLOCK != 0 {
            find(fd)?.nonblock.store(true, Ordering::Relaxed);
        }
        Ok(fd)
    })
}

/// `exs_bind`. EINVAL: it has an address. EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT.
///
/// # Safety
/// `at` is null or points to `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_bind(fd: c_int, at: *const libc::sockaddr, len: libc::socklen_t) -> c_int {
    call(|| {
        let Some(sock) = get(fd) else {
            // SAFETY: the caller's promise.
            return kernel(unsafe { libc::bind(fd, at, len) });
        };
        // SAFETY: the caller's promise.
        let addr = unsafe { address::read(at, len, sock.domain)? };
        let mut state = sock.state();
        match state.stage {
            Stage::New(None) => {}
            Stage::Closing => return refuse(libc::EBADF),
            _ => return refuse(libc::EINVAL),
        }
        // rdma_bind_addr(3) has one errno for an address in use and for one that this host does not have.
        let bound = device()?.bind(addr).map_err(|error| match error {
            Errno(libc::EADDRNOTAVAIL) if std::net::UdpSocket::bind((addr.ip(), 0)).is_ok() => Errno(libc::EADDRINUSE),
            Errno(libc::ENODEV) => Errno(libc::EADDRNOTAVAIL),
            error => error,
        })?;
        state.stage = Stage::New(Some(bound));
        Ok(0)
    })
}

/// `exs_listen`. EINVAL: it is connected. EADDRINUSE.
#[unsafe(no_mangle)]
pub extern "C" fn exs_listen(fd: c_int, backlog: c_int) -> c_int {
    call(|| {
        let Some(sock) = get(fd) else {
            // SAFETY: no memory is involved.
            return kernel(unsafe { libc::listen(fd, backlog) });
        };
        let mut state = sock.state();
        let bound = match std::mem::replace(&mut state.stage, Stage::New(None)) {
            Stage::New(Some(bound)) => bound,
            Stage::New(None) => device()?.bind(address::any(sock.domain))?,
            stage => {
                let errno = if matches!(stage, Stage::Closing) { libc::EBADF } else { libc::EINVAL };
                state.stage = stage;
                return refuse(errno);
            }
        };
        let backlog = backlog.clamp(1, libc::SOMAXCONN) as u16;
        state.stage = Stage::Listening(device()?.listen_at(bound, backlog, state.options)?);
        Ok(0)
    })
}

/// The result of a call of the kernel.
pub fn kernel(result: c_int) -> Result<c_int, Errno> {
    if result >= 0 { Ok(result) } else { refuse(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)) }
}
