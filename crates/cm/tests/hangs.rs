//! Reports say what ids wait for, and the rules know what it means.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cm::manager::port_space;
use cm::{Channel, Cm, ConnectParams, EventKind, IdKey};
use report::{Report, Situation, rules};

fn manager() -> &'static Cm {
    static CM: std::sync::OnceLock<Cm> = std::sync::OnceLock::new();
    CM.get_or_init(|| Cm::new(nic::Nic::get().expect("an adapter")))
}

fn id() -> (Arc<Channel>, IdKey) {
    let channel = Channel::new().unwrap();
    let id = manager().create_id(&channel, 0, port_space::TCP.into(), 2).unwrap();
    (channel, id)
}

/// A client that has asked for a connection to a port of this process.
fn connect(port: u16) -> (Arc<Channel>, IdKey) {
    let (channel, id) = id();
    manager().resolve_addr(id, None, &std::net::SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    assert_eq!(manager().get_event(&channel).unwrap().event.kind, EventKind::AddrResolved);
    manager().resolve_route(id).unwrap();
    assert_eq!(manager().get_event(&channel).unwrap().event.kind, EventKind::RouteResolved);
    manager().connect(id, ConnectParams { qpn: 7, ..Default::default() }).unwrap();
    (channel, id)
}

/// Wait until the report has a sentence about an id.
fn must_say(id: IdKey, sentence: &str) {
    let start = Instant::now();
    loop {
        let report =
            Report { pid: std::process::id(), cm: Some(manager().facts(Duration::from_secs(1))), ..Report::default() };
        let others = BTreeMap::new();
        let found = rules::findings(&Situation { report: &report, others: &others, before: None });
        let name = format!("cm_id {}", id.0);
        if found.iter().any(|finding| finding.object == name && finding.text.contains(sentence)) {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{name}: not said: {sentence}\n{found:#?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn ids_say_what_they_wait_for() {
    let (channel, listener) = id();
    manager().listen(listener, 1).unwrap();
    let port = manager().view(listener).unwrap().src.unwrap().port();
    let first = connect(port);
    must_say(listener, "and the program has not got it (rdma_get_cm_event(3)): CONNECT_REQUEST");
    let second = connect(port);
    must_say(listener, "its backlog is full: one request waits for room");
    must_say(second.1, "no answer; the listener's backlog is full: one CONNECT_REQUEST event that process");
    let child = manager().get_event(&channel).unwrap().child.unwrap();
    must_say(child, "was got, and neither accepted nor rejected");
    must_say(first.1, "has got the request, and neither accepted nor rejected it");
    manager().accept(child, ConnectParams { qpn: 8, ..Default::default() }).unwrap();
    must_say(first.1, "and the program has not got it (rdma_get_cm_event(3)): CONNECT_RESPONSE");
    must_say(child, "and the peer 127.0.0.1:");
    manager().get_event(&first.0).unwrap();
    must_say(first.1, "CONNECT_RESPONSE was got");
    manager().established(first.1).unwrap();
    assert_eq!(manager().get_event(&channel).unwrap().event.kind, EventKind::ConnectRequest);
    manager().disconnect(first.1).unwrap();
    must_say(child, "has disconnected: rdma_disconnect is due");
    must_say(first.1, "DISCONNECT sent ");
    // No id listens at the port that this one asks for.
    let (_, closed) = id();
    manager().listen(closed, 1).unwrap();
    let port = manager().view(closed).unwrap().src.unwrap().port();
    manager().destroy_id(closed).unwrap();
    let lost = connect(port);
    must_say(lost.1, &format!("no program listens at 127.0.0.1:{port}"));
}
