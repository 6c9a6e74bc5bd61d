//! A SEND over a connection, and its answer.
//!
//! Run with a library preloaded: `softrnic run -- send_recv`; with an adapter: `send_recv serve 192.0.2.1:4000` and, on
//! another host, `send_recv call 192.0.2.1:4000`. Both sides wait on their event channels, then poll their completion
//! queues.

use std::net::SocketAddr;
use std::sync::Arc;

use rdma::sys::cma::*;
use rdma::{Access, CmParam, Data, Library, RecvWr, SendOp, SendWr, Wc};

mod common;
use common::{End, Outcome, listen, resolve, run};

/// What each request comes back with.
const RECV: u64 = 1;
const SEND: u64 = 2;
/// Where in the memory: what is received, what is sent.
const RECEIVED: usize = 0;
const SENT: usize = 64;

fn post_recv(end: &End) -> Outcome<()> {
    Ok(end.qp.post_recv(&RecvWr { wr_id: RECV, sges: &[end.mr.sge(RECEIVED, 64)] })?)
}

fn send(end: &End, text: &[u8]) -> Outcome<()> {
    end.mr.write(SENT, text);
    Ok(end.qp.post_send(&SendWr::new(SEND, SendOp::Send, Data::Sges(&[end.mr.sge(SENT, text.len())])))?)
}

/// The bytes of the receive among these completions.
fn received(end: &End, wcs: &[Wc]) -> Outcome<Vec<u8>> {
    let wc = wcs.iter().find(|wc| wc.wr_id() == RECV).ok_or("nothing was received")?;
    Ok(end.bytes(RECEIVED, wc.byte_len() as usize))
}

fn serve(library: &Arc<Library>, at: SocketAddr, tell: &dyn Fn(SocketAddr)) -> Outcome<()> {
    let events = library.create_event_channel()?;
    let listener = listen(&events, at, tell)?;
    let request = listener.expect(RDMA_CM_EVENT_CONNECT_REQUEST)?;
    if !request.private_data.starts_with(b"hello") {
        return Err("the request's private data are missing".into());
    }
    let id = request.id.ok_or("the request has no id")?;
    let end = End::new(&id, Access::empty())?;
    post_recv(&end)?;
    id.accept(&end.qp, &CmParam { private_data: b"welcome", ..CmParam::default() })?;
    id.expect(RDMA_CM_EVENT_ESTABLISHED)?;
    let ping = received(&end, &end.completed(1)?)?;
    println!("the server received {:?}", String::from_utf8_lossy(&ping));
    send(&end, b"pong")?;
    end.completed(1)?;
    id.expect(RDMA_CM_EVENT_DISCONNECTED)?;
    Ok(())
}

fn call(library: &Arc<Library>, to: SocketAddr) -> Outcome<()> {
    let events = library.create_event_channel()?;
    let id = resolve(&events, to)?;
    let end = End::new(&id, Access::empty())?;
    post_recv(&end)?;
    let param = CmParam { private_data: b"hello", ..CmParam::default() };
    id.connect(&end.qp, &param)?;
    let response = id.expect(RDMA_CM_EVENT_CONNECT_RESPONSE)?;
    if !response.private_data.starts_with(b"welcome") {
        return Err("the answer's private data are missing".into());
    }
    id.establish(&end.qp, &param)?;
    send(&end, b"ping")?;
    let pong = received(&end, &end.completed(2)?)?;
    println!("the client received {:?}", String::from_utf8_lossy(&pong));
    id.disconnect(&end.qp)?;
    id.expect(RDMA_CM_EVENT_DISCONNECTED)?;
    if pong == b"pong" { Ok(()) } else { Err("the answer is not the one that was sent".into()) }
}

fn main() -> Outcome<()> {
    run(serve, call)
}
