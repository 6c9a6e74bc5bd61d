//! Events in the program's own loop, and events of several connections on one channel.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use conformance::{PATIENCE, library};
use rdma::sys::cma::*;
use rdma::{Access, CmId, CmParam, Data, Errno, EventChannel, Qp, QpCap, QpOptions, QpType, SendOp, SendWr};
use rustix::event::epoll;
use rustix::time::Timespec;

use crate::pair::Pair;

/// Milliseconds for a step of resolving.
const RESOLVE: u16 = 10_000;

/// An epoll of the program, with one descriptor.
fn watch(fd: impl AsFd) -> impl Fn(Duration) -> bool {
    let own = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll_create1");
    epoll::add(&own, fd, epoll::EventData::new_u64(3), epoll::EventFlags::IN).expect("epoll_ctl");
    move |longest| {
        let mut ready = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 2];
        let timeout = Timespec::try_from(longest).expect("a duration");
        let count = epoll::wait(&own, &mut ready, Some(&timeout)).expect("epoll_wait");
        assert!(ready[..count].iter().all(|event| event.data.u64() == 3));
        count == 1
    }
}

fn send(pair: &Pair, flags: rdma::SendFlags) {
    let wr = SendWr { flags, ..SendWr::new(1, SendOp::Write { addr: 0, rkey: 0 }, Data::Sges(&[])) };
    pair.from.post_send(&wr).expect("ibv_post_send");
}

#[test]
fn completion_events_come_through_the_programs_epoll() {
    let pair =
        Pair::with_channel(Some(|fixture| fixture.context.create_comp_channel().expect("ibv_create_comp_channel")));
    let channel = pair.cq.channel().expect("a channel");
    channel.set_nonblocking().expect("fcntl");
    assert_eq!(channel.as_raw_fd(), channel.as_fd().as_raw_fd());
    let readable = watch(channel);
    for _ in 0..20 {
        assert!(!readable(Duration::ZERO));
        assert_eq!(channel.try_event(), Ok(None));
        pair.cq.arm(false).expect("ibv_req_notify_cq");
        send(&pair, rdma::SendFlags::SIGNALED);
        assert!(readable(PATIENCE), "no event");
        assert_eq!(channel.try_event(), Ok(Some(7)), "the queue's cookie");
        pair.done(1);
    }
}

#[test]
fn events_are_counted_and_acknowledged_together() {
    let pair =
        Pair::with_channel(Some(|fixture| fixture.context.create_comp_channel().expect("ibv_create_comp_channel")));
    let channel = pair.cq.channel().expect("a channel").clone();
    let other = pair.fixture.context.create_cq(4, Some(&channel), 8).expect("ibv_create_cq");
    let next = |pair: &Pair| {
        pair.cq.arm(false).expect("ibv_req_notify_cq");
        send(pair, rdma::SendFlags::SIGNALED);
        let event = channel.pending_event().expect("ibv_get_cq_event");
        pair.done(1);
        event
    };
    let mut events = next(&pair);
    for count in 2..10 {
        events.join(next(&pair)).map_err(drop).expect("one queue");
        assert_eq!((events.count(), events.cookie), (count, 7));
    }
    // With a wrong count, the destruction waits for ever.
    let (told, tell) = std::sync::mpsc::channel::<()>();
    let thread = thread::spawn(move || {
        drop(events);
        drop(pair);
        told.send(()).expect("the test waits");
    });
    tell.recv_timeout(PATIENCE).expect("the queue's destruction waits for acknowledgements");
    thread.join().expect("the thread");
    drop(other);
}

/// A listener on a port of its own.
fn listen(events: &Arc<EventChannel>, cookie: u64) -> (Arc<CmId>, SocketAddr) {
    let listener = events.create_id(cookie).expect("rdma_create_id");
    listener.bind(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0)).expect("rdma_bind_addr");
    listener.listen(16).expect("rdma_listen");
    let addr = listener.local_addr().expect("an address");
    (listener, addr)
}

fn qp(id: &CmId) -> Arc<Qp> {
    let context = id.context().expect("a device");
    let (pd, cq) = (context.alloc_pd().expect("ibv_alloc_pd"), context.create_cq(8, None, 0).expect("ibv_create_cq"));
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let (send_cq, recv_cq) = (Some(&cq), Some(&cq));
    let options = QpOptions { qp_type: QpType::Rc, send_cq, recv_cq, srq: None, xrcd: None, cap, sq_sig_all: true };
    let qp = pd.create_qp(&options).expect("ibv_create_qp");
    id.init_qp(&qp, Access::empty()).expect("rdma_init_qp_attr");
    qp
}

/// Up to the point where it can ask for a connection.
fn resolved(events: &Arc<EventChannel>, to: SocketAddr, cookie: u64) -> (Arc<CmId>, Arc<Qp>) {
    let id = events.create_id(cookie).expect("rdma_create_id");
    id.resolve_addr(to, RESOLVE).expect("rdma_resolve_addr");
    id.expect(RDMA_CM_EVENT_ADDR_RESOLVED).expect("ADDR_RESOLVED");
    id.resolve_route(RESOLVE).expect("rdma_resolve_route");
    id.expect(RDMA_CM_EVENT_ROUTE_RESOLVED).expect("ROUTE_RESOLVED");
    let qp = qp(&id);
    (id, qp)
}

fn text(number: u64) -> CmParam<'static> {
    const TEXTS: [&[u8]; 2] = [b"zero", b"one!"];
    CmParam { private_data: TEXTS[number as usize], ..CmParam::default() }
}

#[test]
fn events_of_other_ids_wait_for_their_own() {
    let (server, client) = (library().create_event_channel(), library().create_event_channel());
    let (server, client) = (server.expect("a channel"), client.expect("a channel"));
    let (listener, addr) = listen(&server, 100);
    let ends = [0, 1].map(|number| resolved(&client, addr, number));
    for (number, (id, qp)) in ends.iter().enumerate() {
        id.connect(qp, &text(number as u64)).expect("rdma_connect");
    }
    let mut accepted = Vec::new();
    for _ in 0..2 {
        let request = listener.expect(RDMA_CM_EVENT_CONNECT_REQUEST).expect("CONNECT_REQUEST");
        assert_eq!(request.cookie, 100);
        let number = u64::from(request.private_data.starts_with(b"one!"));
        let id = request.id.expect("the new id");
        id.set_cookie(200 + number);
        let qp = qp(&id);
        id.accept(&qp, &text(number)).expect("rdma_accept");
        accepted.push((number, id, qp));
    }
    accepted.sort_by_key(|(number, ..)| *number);

    // The second end asks first, whatever came first.
    for (number, (id, qp)) in ends.iter().enumerate().rev() {
        let response = id.expect(RDMA_CM_EVENT_CONNECT_RESPONSE).expect("CONNECT_RESPONSE");
        assert_eq!(response.cookie, number as u64);
        assert!(response.private_data.starts_with(text(number as u64).private_data), "another's answer");
        id.establish(qp, &text(number as u64)).expect("rdma_establish");
        let (_, id, _) = &accepted[number];
        let established = id.expect(RDMA_CM_EVENT_ESTABLISHED).expect("ESTABLISHED");
        assert_eq!(established.cookie, 200 + number as u64);
    }

    // What comes before the event that is waited for stays in the channel.
    for (id, qp) in &ends {
        id.disconnect(qp).expect("rdma_disconnect");
    }
    let (_, id, _) = &accepted[1];
    id.expect(RDMA_CM_EVENT_DISCONNECTED).expect("DISCONNECTED");
    server.set_nonblocking().expect("fcntl");
    let event = conformance::until("the other's DISCONNECTED", || server.event().ok());
    assert_eq!((event.kind, event.cookie), (RDMA_CM_EVENT_DISCONNECTED, 200));
    assert_eq!(server.queued(), 0);
}

#[test]
fn threads_wait_on_one_channel_each_for_its_id() {
    const THREADS: u64 = 4;
    let (server, client) = (library().create_event_channel(), library().create_event_channel());
    let (server, client) = (server.expect("a channel"), client.expect("a channel"));
    let (_listener, addr) = listen(&server, 0);
    let (told, tell) = channel();
    for thread in 0..THREADS {
        let (told, client) = (told.clone(), client.clone());
        thread::spawn(move || {
            for round in 0..25 {
                let id = client.create_id(thread << 32 | round).expect("rdma_create_id");
                for (begin, kind) in [(true, RDMA_CM_EVENT_ADDR_RESOLVED), (false, RDMA_CM_EVENT_ROUTE_RESOLVED)] {
                    match begin {
                        true => id.resolve_addr(addr, RESOLVE).expect("rdma_resolve_addr"),
                        false => id.resolve_route(RESOLVE).expect("rdma_resolve_route"),
                    }
                    assert_eq!(id.expect(kind).expect("resolved").cookie, thread << 32 | round);
                }
            }
            told.send(thread).expect("the test waits");
        });
    }
    for _ in 0..THREADS {
        tell.recv_timeout(PATIENCE).expect("a thread waits for what another has read");
    }
    assert_eq!(client.queued(), 0);
}

#[test]
fn what_is_left_goes_with_its_id() {
    let (server, client) = (library().create_event_channel(), library().create_event_channel());
    let (server, client) = (server.expect("a channel"), client.expect("a channel"));
    let (first, to_first) = listen(&server, 1);
    let (second, to_second) = listen(&server, 2);
    let (a, qp_a) = resolved(&client, to_first, 10);
    let (b, qp_b) = resolved(&client, to_second, 20);
    a.connect(&qp_a, &text(0)).expect("rdma_connect");
    b.connect(&qp_b, &text(1)).expect("rdma_connect");

    // Both requests are read; that of the first listener stays in the channel.
    let request = second.expect(RDMA_CM_EVENT_CONNECT_REQUEST).expect("CONNECT_REQUEST");
    server.set_nonblocking().expect("fcntl");
    conformance::until("the first request", || match second.event() {
        Err(error) if error.errno == Errno::EAGAIN => (server.queued() == 1).then_some(()),
        Err(error) => panic!("{error}"),
        Ok(event) => panic!("event {} of the second listener", event.kind),
    });
    drop(first);
    assert_eq!(server.queued(), 0, "an event without its id");
    let event = a.event().expect("the end of the attempt");
    let ends = [RDMA_CM_EVENT_REJECTED, RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_CONNECT_ERROR];
    assert!(ends.contains(&event.kind), "event {}: a request that nobody answers", event.kind);

    // The other connection is as it was.
    let id = request.id.expect("the new id");
    let qp = qp(&id);
    id.accept(&qp, &text(1)).expect("rdma_accept");
    b.expect(RDMA_CM_EVENT_CONNECT_RESPONSE).expect("CONNECT_RESPONSE");
}

#[test]
fn connection_events_come_through_the_programs_epoll() {
    let (server, client) = (library().create_event_channel(), library().create_event_channel());
    let (server, client) = (server.expect("a channel"), client.expect("a channel"));
    server.set_nonblocking().expect("fcntl");
    assert_eq!(server.as_raw_fd(), server.as_fd().as_raw_fd());
    let readable = watch(&server);
    let (_listener, addr) = listen(&server, 1);
    assert!(!readable(Duration::ZERO));
    assert_eq!(server.event().map(drop).expect_err("nothing is there").errno, Errno::EAGAIN);
    let (id, qp) = resolved(&client, addr, 0);
    id.connect(&qp, &text(0)).expect("rdma_connect");
    assert!(readable(PATIENCE), "no event");
    let request = server.event().expect("an event");
    assert_eq!((request.kind, request.cookie), (RDMA_CM_EVENT_CONNECT_REQUEST, 1));
    request.id.expect("the new id").reject(b"no").expect("rdma_reject");
    let refused = id.expect(RDMA_CM_EVENT_CONNECT_RESPONSE).map(drop).expect_err("it was rejected");
    assert_eq!(refused.errno, Errno(libc::ECONNREFUSED));
}
