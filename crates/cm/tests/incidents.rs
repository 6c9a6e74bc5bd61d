//! The events of ids when the device is removed. The test is alone in its process, because that concerns all ids.

use std::cell::Cell;
use std::net::SocketAddr;

use cm::manager::port_space;
use cm::{Channel, Cm, ConnectParams, EventKind, IdKey};
use nic::DeviceFault;
use verbs::Errno;

const RC: u32 = 2;

/// The number of events that wait for an id. They are dropped.
fn waiting(cm: &Cm, id: IdKey) -> u32 {
    let count = Cell::new(0);
    cm.drop_events(id, |_| {
        count.set(count.get() + 1);
        true
    });
    count.get()
}

#[test]
fn a_device_is_taken_away() {
    static CM: std::sync::OnceLock<Cm> = std::sync::OnceLock::new();
    let cm = CM.get_or_init(|| Cm::new(nic::Nic::get().expect("an adapter")));
    let new = |token| {
        let channel = Channel::new().unwrap();
        let id = cm.create_id(&channel, token, port_space::TCP.into(), RC).unwrap();
        (channel, id)
    };
    let (server_channel, server) = new(1);
    cm.listen(server, 0).unwrap();
    let port = cm.view(server).unwrap().src.unwrap().port();
    let (_idle_channel, idle) = new(2);
    let route = |token| {
        let (channel, id) = new(token);
        cm.resolve_addr(id, None, &SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
        assert_eq!(cm.get_event(&channel).unwrap().event.kind, EventKind::AddrResolved);
        (channel, id)
    };
    let (resolved_channel, resolved) = route(3);
    let (client_channel, client) = route(4);
    cm.resolve_route(client).unwrap();
    assert_eq!(cm.get_event(&client_channel).unwrap().event.kind, EventKind::RouteResolved);
    cm.connect(client, ConnectParams::default()).unwrap();
    // The first request has come when a second one has been got.
    let (_probe_channel, probe) = route(5);
    cm.resolve_route(probe).unwrap();
    cm.connect(probe, ConnectParams::default()).unwrap();
    let first = cm.get_event(&server_channel).unwrap();
    assert_eq!(first.event.kind, EventKind::ConnectRequest);
    let child = first.child.unwrap();
    cm.set_token(child, 6);

    // Addresses of loopback are on no interface that could fail over.
    cm.incident(DeviceFault::AddrChange);
    cm.incident(DeviceFault::Removal);
    cm.incident(DeviceFault::Removal);

    for (channel, id, token) in [(&resolved_channel, resolved, 3), (&client_channel, client, 4)] {
        let got = cm.get_event(channel).unwrap();
        assert_eq!((got.token, got.event.kind, got.event.status), (token, EventKind::DeviceRemoval, 0));
        assert_eq!(waiting(cm, id), 0, "once");
    }
    assert_eq!(cm.resolve_route(resolved), Err(Errno::ENXIO));
    assert_eq!(cm.connect(client, ConnectParams::default()), Err(Errno::ENXIO));
    assert_eq!(cm.disconnect(client), Err(Errno::ENXIO));
    assert_eq!(cm.accept(child, ConnectParams::default()), Err(Errno::ENXIO));
    assert_eq!(waiting(cm, child), 1, "an id that the program has got by a request hears of it, too");
    // The ids without a device stay as they were.
    assert_eq!(waiting(cm, idle), 0);
    assert!(cm.bind(idle, &SocketAddr::from(([0, 0, 0, 0], 0))).is_ok());
    for id in [resolved, client, probe, child, idle, server] {
        cm.destroy_id(id).unwrap();
    }
}
