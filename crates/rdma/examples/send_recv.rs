//! A SEND over a connection, and its answer, within one process: `softrnic run -- send_recv [ADDRESS]`.
//!
//! One thread listens, the other connects. Both wait on their event channels, then poll their completion queues.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rdma::sys::cma::*;
use rdma::{
    Access, CmId, CmParam, Cq, Data, Library, Mr, Qp, QpCap, QpOptions, QpType, RecvWr, SendFlags, SendOp, SendWr,
};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const PATIENCE: u16 = 2000;

/// The objects of one side: made on the device that its id is bound to, with one receive posted.
struct Side {
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    mr: Arc<Mr>,
}

impl Side {
    fn new(id: &CmId) -> Outcome<Side> {
        let context = id.context()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(8, None, 0)?;
        let mr = pd.reg_mr(4096, Access::LOCAL_WRITE)?;
        let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (Some(&cq), Some(&cq));
        let options = QpOptions { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, xrcd: None, cap, sq_sig_all: true };
        let qp = pd.create_qp(&options)?;
        id.init_qp(&qp, Access::empty())?;
        qp.post_recv(&RecvWr { wr_id: 1, sges: &[mr.sge(0, 64)] })?;
        Ok(Side { cq, qp, mr })
    }

    fn send(&self, text: &[u8]) -> Outcome<()> {
        self.mr.write(64, text);
        let data = Data::Sges(&[self.mr.sge(64, text.len())]);
        let flags = SendFlags::empty();
        Ok(self.qp.post_send(&SendWr { wr_id: 2, flags, op: SendOp::Send, data, to: None, srqn: 0 })?)
    }

    /// Poll until `count` requests are done; the result is the bytes that were received.
    fn done(&self, count: usize) -> Outcome<Vec<u8>> {
        let end = Instant::now() + Duration::from_secs(5);
        let (mut left, mut received) = (count, Vec::new());
        let mut wcs = [rdma::Wc::default(); 4];
        while left > 0 {
            let found = self.cq.poll(&mut wcs[..left.min(4)])?;
            for wc in &wcs[..found] {
                if wc.status() != rdma::Status::SUCCESS {
                    return Err(format!("request {}: {}", wc.wr_id(), wc.status()).into());
                }
                if wc.wr_id() == 1 {
                    received = vec![0; wc.byte_len() as usize];
                    self.mr.read(0, &mut received);
                }
            }
            left -= found;
            if Instant::now() > end {
                return Err(format!("{left} completions are missing").into());
            }
            thread::yield_now();
        }
        Ok(received)
    }
}

fn serve(library: Arc<Library>, addr: IpAddr, port: impl FnOnce(u16)) -> Outcome<()> {
    let events = library.create_event_channel()?;
    let listener = events.create_id(0)?;
    listener.bind(SocketAddr::new(addr, 0))?;
    listener.listen(1)?;
    port(listener.local_addr().ok_or("the listener has no address")?.port());
    let request = events.expect(RDMA_CM_EVENT_CONNECT_REQUEST)?;
    if !request.private_data.starts_with(b"hello") {
        return Err("the request's private data are missing".into());
    }
    let id = request.id.ok_or("the request has no id")?;
    let side = Side::new(&id)?;
    id.accept(&side.qp, &CmParam { private_data: b"welcome", ..CmParam::default() })?;
    events.expect(RDMA_CM_EVENT_ESTABLISHED)?;
    let ping = side.done(1)?;
    println!("the server received {:?}", String::from_utf8_lossy(&ping));
    side.send(b"pong")?;
    side.done(1)?;
    events.expect(RDMA_CM_EVENT_DISCONNECTED)?;
    Ok(())
}

fn call(library: Arc<Library>, to: SocketAddr) -> Outcome<()> {
    let events = library.create_event_channel()?;
    let id = events.create_id(0)?;
    id.resolve_addr(to, PATIENCE)?;
    events.expect(RDMA_CM_EVENT_ADDR_RESOLVED)?;
    id.resolve_route(PATIENCE)?;
    events.expect(RDMA_CM_EVENT_ROUTE_RESOLVED)?;
    let side = Side::new(&id)?;
    let param = CmParam { private_data: b"hello", ..CmParam::default() };
    id.connect(&side.qp, &param)?;
    let response = events.expect(RDMA_CM_EVENT_CONNECT_RESPONSE)?;
    if !response.private_data.starts_with(b"welcome") {
        return Err("the answer's private data are missing".into());
    }
    id.establish(&side.qp, &param)?;
    side.send(b"ping")?;
    let pong = side.done(2)?;
    println!("the client received {:?}", String::from_utf8_lossy(&pong));
    id.disconnect(&side.qp)?;
    events.expect(RDMA_CM_EVENT_DISCONNECTED)?;
    if pong == b"pong" { Ok(()) } else { Err("the answer is not the one that was sent".into()) }
}

fn main() -> Outcome<()> {
    let addr = std::env::args().nth(1).map_or(Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)), |addr| addr.parse())?;
    let library = Library::this_process()?;
    let (tell, port) = channel();
    let server = {
        let library = library.clone();
        thread::spawn(move || {
            serve(library, addr, |port| {
                let _ = tell.send(port);
            })
        })
    };
    if let Ok(port) = port.recv() {
        call(library, SocketAddr::new(addr, port))?;
    }
    server.join().map_err(|_| "the server panicked")?
}
