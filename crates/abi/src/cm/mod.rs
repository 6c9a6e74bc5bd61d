//! librdmacm: the C ABI of the connection manager (`rdma/rdma_cma.h`).
//!
//! The work is divided as between librdmacm and the kernel. The crate `cm` has the ids' states, the handshakes and the
//! waiting events. This module changes queue pairs, on the thread of the program that calls, and hands out C's
//! structures. It has about one file for each page of the manual.

pub mod address;
pub mod addrinfo;
pub mod attr;
pub mod connect;
pub mod device;
pub mod ep;
pub mod event;
pub mod id;
pub mod multicast;
pub mod option;
pub mod qp;
pub mod rsocket;

mod sockaddr;

use std::sync::OnceLock;

use ::cm::Cm;
use nic::Nic;
use verbs::{Errno, Result};

use crate::entry::last_errno;
use crate::per_nic::PerNic;

/// The connection manager of the present adapter.
fn manager() -> Result<(&'static Nic, &'static Cm)> {
    static CM: PerNic<OnceLock<Cm>> = PerNic::new();
    let nic = Nic::get()?;
    let cm = CM.of(nic);
    let make = || {
        nic.add_facts(|patience| cm.get().map(|cm| cm.facts(patience)).unwrap_or_default());
        nic.on_incident(|incident| {
            if let Some(cm) = cm.get() {
                cm.incident(incident);
            }
        });
        Cm::new(nic)
    };
    Ok((nic, cm.get_or_init(make)))
}

/// A result from a verb's 0 or errno.
fn checked(number: libc::c_int) -> Result<()> {
    if number == 0 { Ok(()) } else { Err(Errno(number)) }
}
