//! Two sides in one process, over the host's own wire: the work of the sockets and the thread beyond the handshake.

use std::sync::Arc;

use cm::manager::port_space;
use cm::{Channel, Cm, ConnectParams, EventKind, Got, IdKey};
use verbs::Errno;

const RC: u32 = 2;

fn manager() -> &'static Cm {
    static CM: std::sync::OnceLock<Cm> = std::sync::OnceLock::new();
    CM.get_or_init(|| Cm::new(nic::Nic::get().expect("an adapter")))
}

struct Side {
    channel: Arc<Channel>,
    id: IdKey,
}

impl Side {
    fn new(token: u64) -> Side {
        let channel = Channel::new().unwrap();
        let id = manager().create_id(&channel, token, port_space::TCP.into(), RC).unwrap();
        Side { channel, id }
    }

    fn get(&self, kind: EventKind, status: i32) -> Got {
        let got = manager().get_event(&self.channel).unwrap();
        assert_eq!((got.event.kind, got.event.status), (kind, status));
        got
    }

    /// Make a side that has resolved its route.
    fn towards(token: u64, port: u16) -> Side {
        let side = Side::new(token);
        let dst = std::net::SocketAddr::from(([127, 0, 0, 1], port));
        manager().resolve_addr(side.id, None, &dst).unwrap();
        side.get(EventKind::AddrResolved, 0);
        manager().resolve_route(side.id).unwrap();
        side.get(EventKind::RouteResolved, 0);
        side
    }
}

fn listener(backlog: i32) -> (Side, u16) {
    let side = Side::new(1);
    manager().listen(side.id, backlog).unwrap();
    let port = manager().view(side.id).unwrap().src.unwrap().port();
    (side, port)
}

#[test]
fn connect_accept_and_disconnect() {
    let (server, port) = listener(0);
    let client = Side::towards(2, port);
    manager().connect(client.id, ConnectParams { qpn: 7, data: b"hi".to_vec(), ..Default::default() }).unwrap();
    let got = server.get(EventKind::ConnectRequest, 0);
    assert_eq!((got.token, &got.event.data[..3]), (1, &b"hi\0"[..]));
    let child = got.child.unwrap();
    manager().set_token(child, 3);
    manager().accept(child, ConnectParams { qpn: 8, ..Default::default() }).unwrap();
    assert_eq!(client.get(EventKind::ConnectResponse, 0).token, 2);
    manager().established(client.id).unwrap();
    assert_eq!(server.get(EventKind::Established, 0).token, 3);
    let view = manager().view(child).unwrap();
    assert_eq!(view.dst, manager().view(client.id).unwrap().src);
    manager().disconnect(client.id).unwrap();
    server.get(EventKind::Disconnected, 0);
    manager().disconnect(child).unwrap();
    client.get(EventKind::Disconnected, 0);
    for id in [child, client.id, server.id] {
        manager().destroy_id(id).unwrap();
        assert_eq!(manager().destroy_id(id), Err(Errno::ENOENT));
    }
}

#[test]
fn requests_beyond_the_backlog_wait() {
    let (server, port) = listener(1);
    let clients: Vec<Side> = (0..20).map(|n| Side::towards(n, port)).collect();
    for client in &clients {
        manager().connect(client.id, ConnectParams::default()).unwrap();
    }
    for _ in &clients {
        let child = server.get(EventKind::ConnectRequest, 0).child.unwrap();
        manager().reject(child, cm::conn::reason::CONSUMER, b"no".to_vec()).unwrap();
        manager().destroy_id(child).unwrap();
    }
    for client in &clients {
        assert_eq!(&client.get(EventKind::Rejected, 28).event.data[..2], b"no");
        manager().destroy_id(client.id).unwrap();
    }
    manager().destroy_id(server.id).unwrap();
}

#[test]
fn nobody_listens_and_a_listener_that_comes_back() {
    let (server, port) = listener(0);
    manager().destroy_id(server.id).unwrap();
    let client = Side::towards(1, port);
    manager().connect(client.id, ConnectParams::default()).unwrap();
    // This program listens anew while the request is on its way.
    let server = Side::new(4);
    manager().bind(server.id, &std::net::SocketAddr::from(([0, 0, 0, 0], port))).unwrap();
    manager().listen(server.id, 0).unwrap();
    let child = server.get(EventKind::ConnectRequest, 0).child.unwrap();
    // The listener's requests go with it; the ids that the program has got stay.
    manager().destroy_id(server.id).unwrap();
    manager().destroy_id(child).unwrap();
    client.get(EventKind::Rejected, 28);
    let late = Side::towards(1, port);
    manager().connect(late.id, ConnectParams::default()).unwrap();
    late.get(EventKind::Rejected, 8);
    manager().destroy_id(client.id).unwrap();
    manager().destroy_id(late.id).unwrap();
}

#[test]
fn who_has_a_connection_to_a_port_is_patient_with_the_next() {
    let (server, port) = listener(0);
    let client = Side::towards(1, port);
    manager().connect(client.id, ConnectParams::default()).unwrap();
    let child = server.get(EventKind::ConnectRequest, 0).child.unwrap();
    manager().accept(child, ConnectParams::default()).unwrap();
    client.get(EventKind::ConnectResponse, 0);
    manager().established(client.id).unwrap();
    server.get(EventKind::Established, 0);
    manager().destroy_id(server.id).unwrap();
    // The server comes later than a client without an established connection waits.
    let late = Side::towards(1, port);
    manager().connect(late.id, ConnectParams::default()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(600));
    let server = Side::new(4);
    manager().bind(server.id, &std::net::SocketAddr::from(([0, 0, 0, 0], port))).unwrap();
    manager().listen(server.id, 0).unwrap();
    let second = server.get(EventKind::ConnectRequest, 0).child.unwrap();
    for id in [second, child, server.id, client.id, late.id] {
        manager().destroy_id(id).unwrap();
    }
}

#[test]
fn a_request_that_is_withdrawn_cannot_be_accepted() {
    let (server, port) = listener(0);
    let client = Side::towards(1, port);
    manager().connect(client.id, ConnectParams::default()).unwrap();
    let child = server.get(EventKind::ConnectRequest, 0).child.unwrap();
    manager().destroy_id(client.id).unwrap();
    // The message is on its way to the thread.
    let idle = || manager().view(child).unwrap().conn.unwrap().0 == cm::conn::State::Idle;
    while !idle() {
        std::thread::yield_now();
    }
    assert_eq!(manager().accept(child, ConnectParams::default()), Err(Errno::EINVAL));
    manager().destroy_id(child).unwrap();
    manager().destroy_id(server.id).unwrap();
}

#[test]
fn waiting_events_move_with_their_id() {
    let (server, port) = listener(0);
    let client = Side::new(9);
    let dst = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    manager().resolve_addr(client.id, None, &dst).unwrap();
    let other = Channel::new().unwrap();
    assert_eq!(manager().migrate(client.id, &other), Ok(0));
    let got = manager().get_event(&other).unwrap();
    assert_eq!((got.token, got.event.kind), (9, EventKind::AddrResolved));
    assert_eq!(manager().destroy_id(client.id), Ok(1));
    manager().destroy_id(server.id).unwrap();
}

#[test]
fn an_event_goes_back_unless_its_id_is_destroyed() {
    let (server, port) = listener(0);
    let client = Side::new(9);
    let dst = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    manager().resolve_addr(client.id, None, &dst).unwrap();
    let got = client.get(EventKind::AddrResolved, 0);
    assert!(manager().give_back(&client.channel, got));
    let got = client.get(EventKind::AddrResolved, 0);
    assert_eq!(manager().destroy_id(client.id), Ok(1), "so many acknowledgements are waited for");
    assert!(!manager().give_back(&client.channel, got), "the caller owes the one of this event");
    manager().destroy_id(server.id).unwrap();
}

/// A peer dies about when its request is accepted. Either the call says that there is no request any more, or an event
/// says that there is no connection.
#[test]
fn the_one_who_asked_dies_about_when_it_is_accepted() {
    use cm::message::{Body, Half, Message, Service, emit};
    use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

    let (server, port) = listener(0);
    let dst = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let service = Service { port_space: port_space::TCP, qp_type: RC as u8, src: dst, dst };
    let request =
        emit(&Message { from: 5, to: 0, body: Body::Req { service, half: Half::default(), data: Vec::new() } });
    for round in 0..400 {
        // The death comes before the call in every second round, so that the two meet now and then, and else behind it.
        let before = round % 2 == 0;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let reached = cm::names::listeners(port_space::TCP, &dst).into_iter().any(|name| {
            let addr = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
            rustix::net::connect(&socket, &addr).is_ok()
        });
        assert!(reached);
        rustix::net::send(&socket, &request, SendFlags::NOSIGNAL).unwrap();
        let child = server.get(EventKind::ConnectRequest, 0).child.unwrap();
        manager().set_token(child, 1000 + round);
        let mut socket = Some(socket);
        if before {
            socket = None;
        }
        let answer = manager().accept(child, ConnectParams { qpn: 8, ..Default::default() });
        drop(socket);
        match answer {
            Ok(()) => {
                // Without this event the test would wait for ever.
                assert_eq!(server.get(EventKind::Rejected, 28).token, 1000 + round);
            }
            Err(e) => assert_eq!((e, before), (Errno::EINVAL, true)),
        }
        manager().destroy_id(child).unwrap();
    }
    manager().destroy_id(server.id).unwrap();
}

/// Another user holds the names of a listener and of a port's lock.
#[test]
fn names_of_strangers_are_passed_over() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: this test acts as another user, and needs to be root");
    }
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    let (port, address) = (7, "4d7f000001");
    let squat = move |name: &str, listens: bool| {
        let socket = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        let name = format!("softrnic/1/cm/{:04x}/{port:04x}/{name}", port_space::TCP);
        rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
        if listens {
            rustix::net::listen(&socket, 16).unwrap();
        }
        socket
    };
    let take = move || {
        // The change is of this thread alone (the system call knows no others).
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65533)).unwrap();
        [squat("lock", false), squat(&format!("{address}/listen"), true)]
    };
    let _squatters = std::thread::spawn(take).join().unwrap();
    let server = Side::new(1);
    manager().bind(server.id, &std::net::SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    manager().listen(server.id, 0).unwrap();
    let client = Side::towards(2, port);
    manager().connect(client.id, ConnectParams { qpn: 7, ..Default::default() }).unwrap();
    server.get(EventKind::ConnectRequest, 0);
}
