//! What the examples have in common: their command line, and one end of a connection.
//!
//! `EXAMPLE` runs both sides in one process, at 127.0.0.1. `EXAMPLE serve ADDRESS:PORT` and `EXAMPLE call ADDRESS:PORT`
//! are one side each; port 0 lets the library choose, and the server says which.

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rdma::sys::cma::*;
use rdma::{Access, CmId, Cq, EventChannel, Library, Mr, Pd, Qp, QpCap, QpOptions, QpType, Wc};

pub type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// How long anything may take.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// For each step of resolving an address, in milliseconds.
const RESOLVE: u16 = 2000;
/// Bytes of memory of an end.
pub const MEMORY: usize = 4096;

/// Listens at an address, and says at which to the function as soon as it does.
pub type Serve = fn(&Arc<Library>, SocketAddr, &dyn Fn(SocketAddr)) -> Outcome<()>;
/// Connects to an address.
pub type Call = fn(&Arc<Library>, SocketAddr) -> Outcome<()>;

/// What the command line says.
pub fn run(serve: Serve, call: Call) -> Outcome<()> {
    // The library that was preloaded or linked, or the system's.
    let library = Library::this_process()?;
    let words: Vec<String> = env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => both(&library, serve, call),
        ["serve", addr] => serve(&library, addr.parse()?, &|addr| println!("listening at {addr}")),
        ["call", addr] => call(&library, addr.parse()?),
        _ => Err("nothing, `serve ADDRESS:PORT` or `call ADDRESS:PORT`".into()),
    }
}

fn both(library: &Arc<Library>, serve: Serve, call: Call) -> Outcome<()> {
    let (tell, told) = channel();
    let server = {
        let library = library.clone();
        thread::spawn(move || {
            serve(&library, SocketAddr::from(([127, 0, 0, 1], 0)), &|addr| {
                let _ = tell.send(addr);
            })
        })
    };
    // Without an address the server has failed, and says why.
    let called = told.recv().map_or(Ok(()), |addr| call(library, addr));
    called.and(server.join().map_err(|_| "the server panicked")?)
}

/// A listener.
pub fn listen(events: &Arc<EventChannel>, at: SocketAddr, tell: &dyn Fn(SocketAddr)) -> Outcome<Arc<CmId>> {
    let listener = events.create_id(0)?;
    listener.bind(at)?;
    listener.listen(64)?;
    tell(listener.local_addr().ok_or("the listener has no address")?);
    Ok(listener)
}

/// An id that is bound to the device through which the address is reached.
pub fn resolve(events: &Arc<EventChannel>, to: SocketAddr) -> Outcome<Arc<CmId>> {
    let id = events.create_id(0)?;
    id.resolve_addr(to, RESOLVE)?;
    id.expect(RDMA_CM_EVENT_ADDR_RESOLVED)?;
    id.resolve_route(RESOLVE)?;
    id.expect(RDMA_CM_EVENT_ROUTE_RESOLVED)?;
    Ok(id)
}

/// One end of a connection: a queue pair, its completions, and memory.
pub struct End {
    pub qp: Arc<Qp>,
    pub cq: Arc<Cq>,
    pub mr: Arc<Mr>,
}

impl End {
    /// On the device of an id. The queue pair is in state INIT: receives may be posted before the peer can send.
    pub fn new(id: &CmId, access: Access) -> Outcome<End> {
        let context = id.context()?;
        End::with(id, &context.alloc_pd()?, context.create_cq(16, None, 0)?, access)
    }

    /// In a domain, with a completion queue.
    pub fn with(id: &CmId, pd: &Arc<Pd>, cq: Arc<Cq>, access: Access) -> Outcome<End> {
        let mr = pd.reg_mr(MEMORY, access | Access::LOCAL_WRITE)?;
        let cap = QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (Some(&cq), Some(&cq));
        let options = QpOptions { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, xrcd: None, cap, sq_sig_all: true };
        let qp = pd.create_qp(&options)?;
        id.init_qp(&qp, access)?;
        Ok(End { qp, cq, mr })
    }

    /// Polls until `count` requests are completed.
    pub fn completed(&self, count: usize) -> Outcome<Vec<Wc>> {
        let end = Instant::now() + PATIENCE;
        let mut all = vec![Wc::default(); count];
        let mut found = 0;
        while found < count {
            let more = self.cq.poll(&mut all[found..])?;
            for wc in &all[found..found + more] {
                good(wc)?;
            }
            found += more;
            if Instant::now() > end {
                return Err(format!("{found} of {count} completions").into());
            }
            thread::yield_now();
        }
        Ok(all)
    }

    /// A part of the memory, copied out.
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.read(offset, &mut bytes);
        bytes
    }
}

/// An error if the request was not done.
pub fn good(wc: &Wc) -> Outcome<()> {
    match wc.status() {
        rdma::Status::SUCCESS => Ok(()),
        status => Err(format!("request {}: {status}", wc.wr_id()).into()),
    }
}
