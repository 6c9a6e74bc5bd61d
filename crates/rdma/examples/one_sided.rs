//! One-sided operations: WRITE, READ, CMP_SWAP and FETCH_ADD on the server's memory, without a step of the server.
//!
//! Run with a library preloaded: `softrnic run -- one_sided`; see `send_recv` for two hosts. The server says in its
//! answer to the request where its memory is, and looks at it when the client has gone. The client builds its requests
//! once, and changes addresses and operands from post to post.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rdma::sys::cma::*;
use rdma::{Access, CmParam, Data, Library, SendList, SendOp, SendWr};

mod common;
use common::{End, MEMORY, Outcome, listen, resolve, run};

const TEXT: &[u8] = b"written by the client, without a receive of the server";
/// Where in the server's memory.
const COUNTER: usize = 0;
const WRITTEN: usize = 64;
/// Where in the client's memory: what a word was before, what is written, what is read.
const BEFORE: usize = 0;
const SOURCE: usize = 64;
const READ: usize = 1024;

/// The server's memory as its answer names it: address and key, in network order.
fn name(addr: u64, rkey: u32) -> [u8; 12] {
    let mut name = [0; 12];
    name[..8].copy_from_slice(&addr.to_be_bytes());
    name[8..].copy_from_slice(&rkey.to_be_bytes());
    name
}

/// What [`name`] has made. Private data come with zeroes behind (rdma_get_cm_event(3)).
fn place(name: &[u8]) -> Option<(u64, u32)> {
    let (addr, rest) = name.split_first_chunk()?;
    Some((u64::from_be_bytes(*addr), u32::from_be_bytes(*rest.first_chunk()?)))
}

fn serve(library: &Arc<Library>, at: SocketAddr, tell: &dyn Fn(SocketAddr)) -> Outcome<()> {
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let events = library.create_event_channel()?;
    let listener = listen(&events, at, tell)?;
    let id = listener.expect(RDMA_CM_EVENT_CONNECT_REQUEST)?.id.ok_or("the request has no id")?;
    let end = End::new(&id, access)?;
    let name = name(end.mr.addr(), end.mr.rkey());
    id.accept(&end.qp, &CmParam { private_data: &name, access, responder_resources: 4, ..CmParam::default() })?;
    id.expect(RDMA_CM_EVENT_ESTABLISHED)?;
    id.expect(RDMA_CM_EVENT_DISCONNECTED)?;
    let counter = end.mr.word(COUNTER).load(Relaxed);
    println!("the counter is {counter}");
    let text = end.bytes(WRITTEN, TEXT.len());
    println!("the memory has {:?}", String::from_utf8_lossy(&text));
    if counter == 42 && text == TEXT { Ok(()) } else { Err("the memory is not as the client left it".into()) }
}

fn call(library: &Arc<Library>, to: SocketAddr) -> Outcome<()> {
    let events = library.create_event_channel()?;
    let id = resolve(&events, to)?;
    let end = End::new(&id, Access::empty())?;
    let param = CmParam { initiator_depth: 4, ..CmParam::default() };
    id.connect(&end.qp, &param)?;
    let response = id.expect(RDMA_CM_EVENT_CONNECT_RESPONSE)?;
    let (start, rkey) = place(&response.private_data).ok_or("the answer does not name the server's memory")?;
    id.establish(&end.qp, &param)?;
    let at = |offset: usize| start + offset as u64;

    // A WRITE, and a READ of the same bytes: on one queue pair, the READ finds what the WRITE wrote (IBTA vol. 1, 9.5).
    let (source, read) = ([end.mr.sge(SOURCE, TEXT.len())], [end.mr.sge(READ, TEXT.len())]);
    let mut list = SendList::new(&[
        SendWr::new(1, SendOp::Write { addr: at(WRITTEN), rkey }, Data::Sges(&source)),
        SendWr::new(2, SendOp::Read { addr: at(WRITTEN), rkey }, Data::Sges(&read)),
    ])?;
    end.mr.write(SOURCE, TEXT);
    end.qp.post_send_list(&mut list).map_err(|(_, error)| error)?;
    end.completed(2)?;
    if end.bytes(READ, TEXT.len()) != TEXT {
        return Err("READ found something else than was written".into());
    }

    // The same list for the second half of the memory: only the addresses differ.
    list.request(0).wr_id(3).remote(at(MEMORY / 2), rkey);
    list.request(1).wr_id(4).remote(at(MEMORY / 2), rkey);
    end.qp.post_send_list(&mut list).map_err(|(_, error)| error)?;
    end.completed(2)?;

    // Each atomic leaves in our memory what the word was before.
    let before = [end.mr.sge(BEFORE, 8)];
    let (addr, swap) = (at(COUNTER), 40);
    let mut atomics = SendList::new(&[
        SendWr::new(5, SendOp::CompareSwap { addr, rkey, compare: 0, swap }, Data::Sges(&before)),
        SendWr::new(6, SendOp::FetchAdd { addr, rkey, add: 1 }, Data::Sges(&before)),
    ])?;
    for (request, expected) in [(0, 0), (1, 40), (1, 41), (0, 42)] {
        end.qp.post_send_part(&mut atomics, request..request + 1).map_err(|(_, error)| error)?;
        end.completed(1)?;
        let before = end.mr.word(BEFORE).load(Relaxed);
        println!("the counter was {before}");
        if before != expected {
            return Err(format!("the counter should have been {expected}").into());
        }
    }
    id.disconnect(&end.qp)?;
    id.expect(RDMA_CM_EVENT_DISCONNECTED)?;
    Ok(())
}

fn main() -> Outcome<()> {
    run(serve, call)
}
