//! Incidents of the device for the ids: the device is removed, or an address moves to other hardware.

use nic::DeviceFault;

use crate::channel::Queued;
use crate::conn::{reason, sidr};
use crate::event::{Event, EventKind};
use crate::ids::{IdKey, State};
use crate::manager::Cm;
use crate::names::is_wildcard;

impl Cm {
    /// Handle an incident of the device for all ids.
    pub fn incident(&self, incident: DeviceFault) {
        self.lock().incident(incident);
    }
}

impl State {
    fn incident(&mut self, incident: DeviceFault) {
        let on_it = self.ids.iter().filter(|(_, id)| id.device.is_some() && !id.removed);
        let mut ids: Vec<IdKey> = on_it.map(|(key, _)| *key).collect();
        // Keys are given out in ascending order, so this is the order in which the ids were made.
        ids.sort_unstable();
        match incident {
            DeviceFault::Removal => ids.into_iter().for_each(|id| self.take_device(id)),
            DeviceFault::AddrChange => {
                // `cma_netdev_change` of Linux: ids that are bound to the interface, which those of loopback are not.
                for id in ids {
                    if self
                        .ids
                        .get(&id)
                        .and_then(|entry| entry.src)
                        .is_some_and(|src| !is_wildcard(&src) && !src.ip().is_loopback())
                    {
                        self.tell(id, Event::new(EventKind::AddrChange));
                    }
                }
            }
            DeviceFault::Fatal | DeviceFault::PortDown | DeviceFault::GidChange => {}
        }
    }

    /// Remove the device from an id, as `cma_remove_one` of Linux and its user-mode half do. The id is closed, so the
    /// peer gets the end of the connection, and the port is free. The program gets DEVICE_REMOVAL, and every call on
    /// the id but its destruction fails with ENXIO.
    fn take_device(&mut self, id: IdKey) {
        self.with_conn(id, |conn, _, out| conn.destroy(out));
        self.leave_mpa(id);
        let Some(entry) = self.ids.get_mut(&id) else { return };
        entry.removed = true;
        (entry.retry.next, entry.kept) = (None, None);
        let (port, listener, space) = (entry.port.take(), entry.listener.take(), entry.port_space);
        let connection = entry.link.take().map(|link| (link, entry.peer));
        let channel = entry.channel.clone();
        if let Some(port) = port {
            self.release_port(space, &port);
        }
        if let Some(connection) = connection {
            self.by_peer.remove(&connection);
        }
        if let Some(listener) = listener {
            self.unwatch(&listener.socket);
            if let Some(tcp) = &listener.tcp {
                self.unwatch(tcp);
            }
            self.forget_requests(id);
            for (link, message) in listener.parked {
                self.refuse(link, &message, reason::INVALID_SERVICE_ID, sidr::UNSUPPORTED);
            }
            crate::socket::close_listener(listener.socket, self.fds());
        }
        self.mind(id);
        // An id whose request the program has not got yet gets the event, too: the request comes first.
        channel.push(Queued { id, child: None, event: Event::new(EventKind::DeviceRemoval) });
    }
}
