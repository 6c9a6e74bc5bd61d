//! A server of many connections in one epoll loop, without a thread for each: it sends back what it gets.
//!
//! Run with a library preloaded: `softrnic run -- server`; see `send_recv` for two hosts. The loop waits for two
//! descriptors: the event channel of all connections, and the completion channel of all their completion queues. Both
//! are nonblocking; the cookies of their events say whose they are. Answers and receives are prepared once for each
//! connection, so a message is served without an allocation. The server ends when as many connections as one client
//! makes have come and gone.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use rdma::sys::cma::*;
use rdma::{Access, CmEvent, CmParam, CompChannel, Context, Data, Library, Pd, RecvList, RecvWr};
use rdma::{SendList, SendOp, SendWr, Wc};
use rustix::event::{Timespec, epoll};

mod common;
use common::{End, Outcome, PATIENCE, good, listen, resolve, run};

/// Connections of a client.
const CLIENTS: u64 = 16;
/// Messages of each.
const ROUNDS: u64 = 10;
/// Messages that a connection takes before it has answered the first; each has a slot in its memory.
const DEPTH: usize = 4;
const SLOT: usize = 64;
/// Marks the wr_id of answers; the rest is the slot.
const ANSWER: u64 = 1 << 32;

/// What epoll gives back.
const CONNECTIONS: u64 = 0;
const COMPLETIONS: u64 = 1;

/// A connection of the server.
struct Connection {
    end: End,
    answer: SendList,
    receive: RecvList,
    // The id last: its queue pair is gone before.
    id: Arc<rdma::CmId>,
}

impl Connection {
    fn new(server: &Server, id: Arc<rdma::CmId>, cookie: u64) -> Outcome<Connection> {
        // A receive and an answer for each slot.
        let cq = server.context.create_cq(2 * DEPTH as u32, Some(&server.completions), cookie)?;
        let end = End::with(&id, &server.pd, cq, Access::empty())?;
        let slots: Vec<_> = (0..DEPTH).map(|slot| [end.mr.sge(slot * SLOT, SLOT)]).collect();
        let receives: Vec<_> = (0..).zip(&slots).map(|(wr_id, sges)| RecvWr { wr_id, sges }).collect();
        let mut receive = RecvList::new(&receives);
        end.qp.post_recv_list(&mut receive).map_err(|(_, error)| error)?;
        let answer = SendList::new(&[SendWr::new(0, SendOp::Send, Data::Sges(&slots[0]))])?;
        end.cq.arm(false)?;
        id.set_cookie(cookie);
        id.accept(&end.qp, &CmParam::default())?;
        Ok(Connection { end, answer, receive, id })
    }

    /// After an event: arms first, then polls, so that no completion is missed.
    fn serve(&mut self) -> Outcome<()> {
        self.end.cq.arm(false)?;
        let mut wcs = [Wc::default(); 2 * DEPTH];
        loop {
            let found = self.end.cq.poll(&mut wcs)?;
            if found == 0 {
                return Ok(());
            }
            for wc in &wcs[..found] {
                if wc.status() == rdma::Status::FLUSHED {
                    continue; // the connection ends
                }
                good(wc)?;
                let slot = (wc.wr_id() & !ANSWER) as usize;
                if wc.wr_id() & ANSWER == 0 {
                    let data = self.end.mr.sge(slot * SLOT, wc.byte_len() as usize);
                    self.answer.request(0).wr_id(ANSWER | slot as u64).sge(0, data);
                    self.end.qp.post_send_list(&mut self.answer).map_err(|(_, error)| error)?;
                } else {
                    self.end.qp.post_recv_part(&mut self.receive, slot..slot + 1).map_err(|(_, error)| error)?;
                }
            }
        }
    }
}

struct Server {
    context: Arc<Context>,
    pd: Arc<Pd>,
    completions: Arc<CompChannel>,
    connections: HashMap<u64, Connection>,
    /// Connections that came, which number them, and that went.
    came: u64,
    gone: u64,
}

impl Server {
    /// Takes an event of a connection, or of the listener.
    fn connection(&mut self, event: CmEvent) -> Outcome<()> {
        match event.kind {
            RDMA_CM_EVENT_CONNECT_REQUEST => {
                let cookie = self.came;
                self.came += 1;
                let connection = Connection::new(self, event.id.ok_or("the request has no id")?, cookie)?;
                self.connections.insert(cookie, connection);
            }
            RDMA_CM_EVENT_DISCONNECTED | RDMA_CM_EVENT_CONNECT_ERROR | RDMA_CM_EVENT_UNREACHABLE => {
                if let Some(connection) = self.connections.remove(&event.cookie) {
                    // Flushes what is posted, and answers the peer. Either may find that the connection is gone.
                    let _ = connection.id.disconnect(&connection.end.qp);
                    self.gone += 1;
                }
            }
            _ => {} // ESTABLISHED: the first message may have come before it
        }
        Ok(())
    }
}

fn serve(library: &Arc<Library>, at: SocketAddr, tell: &dyn Fn(SocketAddr)) -> Outcome<()> {
    let events = library.create_event_channel()?;
    events.set_nonblocking()?;
    let listener = listen(&events, at, tell)?;
    // The device of the address; requests come through it.
    let context = listener.context()?;
    let completions = context.create_comp_channel()?;
    completions.set_nonblocking()?;

    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&poll, &events, epoll::EventData::new_u64(CONNECTIONS), epoll::EventFlags::IN)?;
    epoll::add(&poll, &completions, epoll::EventData::new_u64(COMPLETIONS), epoll::EventFlags::IN)?;
    let pd = context.alloc_pd()?;
    let mut server = Server { context, pd, completions, connections: HashMap::new(), came: 0, gone: 0 };
    let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
    let timeout = Timespec::try_from(PATIENCE)?;
    let mut most = 0;
    while server.gone < CLIENTS {
        let mut ready = [nothing; 2];
        let count = epoll::wait(&poll, &mut ready, Some(&timeout))?;
        if count == 0 {
            return Err(format!("nothing comes; {} connections are open", server.connections.len()).into());
        }
        for event in &ready[..count] {
            if event.data.u64() == CONNECTIONS {
                while let Some(event) = events.try_event()? {
                    server.connection(event)?;
                }
            } else {
                while let Some(cookie) = server.completions.try_event()? {
                    if let Some(connection) = server.connections.get_mut(&cookie) {
                        connection.serve()?;
                    }
                }
            }
        }
        most = most.max(server.connections.len());
    }
    println!("{} connections were served, up to {most} at a time", server.gone);
    Ok(())
}

/// Makes all connections, then sends on all before it waits for any.
fn call(library: &Arc<Library>, to: SocketAddr) -> Outcome<()> {
    let events = library.create_event_channel()?;
    let mut ends = Vec::new();
    for _ in 0..CLIENTS {
        let id = resolve(&events, to)?;
        let end = End::new(&id, Access::empty())?;
        id.connect(&end.qp, &CmParam::default())?;
        ends.push((id, end));
    }
    for (id, end) in &ends {
        id.expect(RDMA_CM_EVENT_CONNECT_RESPONSE)?;
        id.establish(&end.qp, &CmParam::default())?;
    }
    for round in 0..ROUNDS {
        let text = |number: usize| format!("round {round} of connection {number}").into_bytes();
        for (number, (_, end)) in ends.iter().enumerate() {
            end.qp.post_recv(&RecvWr { wr_id: 1, sges: &[end.mr.sge(0, SLOT)] })?;
            let text = text(number);
            end.mr.write(SLOT, &text);
            let data = Data::Sges(&[end.mr.sge(SLOT, text.len())]);
            end.qp.post_send(&SendWr::new(2, SendOp::Send, data))?;
        }
        for (number, (_, end)) in ends.iter().enumerate() {
            end.completed(2)?;
            let text = text(number);
            if end.bytes(0, text.len()) != text {
                return Err(format!("connection {number} got another's answer").into());
            }
        }
    }
    println!("{} answers came back", CLIENTS * ROUNDS);
    for (id, end) in &ends {
        id.disconnect(&end.qp)?;
        id.expect(RDMA_CM_EVENT_DISCONNECTED)?;
    }
    Ok(())
}

fn main() -> Outcome<()> {
    run(serve, call)
}
