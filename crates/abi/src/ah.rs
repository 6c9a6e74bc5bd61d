//! Address handles and multicast.

use core::cell::UnsafeCell;

use libc::c_int;
use sys::{ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_grh, ibv_pd, ibv_qp, ibv_wc};
use verbs::{AhId, Errno, Gid, Result};

use crate::attr;
use crate::context::{Context, alive};
use crate::entry::{Handled, Zeroed, argument, looked_up, minus_one, number, output, pointer};
use crate::pd::Pd;
use crate::qp::Qp;
use crate::query::check_port;

/// An address handle.
#[repr(C)]
pub struct Ah {
    c: UnsafeCell<ibv_ah>,
    /// The engine's id.
    pub id: AhId,
    /// The context in which it was made. The program may write the one in the C structure.
    home: *mut ibv_context,
}

impl Handled for Ah {
    fn is_itself(&self) -> bool {
        // SAFETY: our structure; the field is the program's to write, between its calls.
        unsafe { (*self.c.get()).handle == self.id.index }
    }

    fn is_at_home(&self) -> bool {
        // SAFETY: our structure; contexts outlive their objects, and one that the program has put there is live
        // (ibv_close_device(3)).
        unsafe { Context::of(self.home).is_ok_and(|home| home.shares((*self.c.get()).context)) }
    }
}

fn create(pd: *mut ibv_pd, c_attr: &ibv_ah_attr) -> Result<*mut ibv_ah> {
    // SAFETY: live or NULL (man page).
    let domain = unsafe { Pd::of(pd) }?;
    let context = domain.context()?;
    let id = context.nic()?.lock().create_ah(domain.id, &attr::ah(c_attr))?;
    domain.hold();
    let c = UnsafeCell::new(ibv_ah { context: context.c(), pd, handle: id.index });
    Ok(Box::into_raw(Box::new(Ah { c, id, home: context.c() })).cast())
}

/// `ibv_create_ah(3)`.
pub unsafe extern "C" fn ibv_create_ah(pd: *mut ibv_pd, c_attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    // SAFETY: the caller's structure or NULL.
    pointer(|| create(pd, unsafe { argument(c_attr) }?))
}

/// `ibv_destroy_ah(3)`.
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { looked_up::<Ah, _>(ah) }?;
        // SAFETY: fields that no thread writes; a context outlives its objects (ibv_close_device(3)).
        let (context, pd) = unsafe { ((*this.c.get()).context, (*this.c.get()).pd) };
        // SAFETY: as above.
        unsafe { Context::of(context) }?.nic()?.lock().destroy_ah(this.id)?;
        // SAFETY: held since creation; the handle was made by Box::into_raw and is not used afterwards (man page).
        unsafe {
            Pd::release(pd);
            drop(Box::from_raw(ah.cast::<Ah>()));
        }
        Ok(())
    })
}

/// The source, the destination and the other members of a received datagram's network header.
struct Header {
    source: Gid,
    destination: Gid,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
}

/// The 40 bytes in front of a datagram's data: a GRH, which is an IPv6 header; or, for RoCE v2 over IPv4, an IPv4
/// header in the last 20 of them (IBTA annex A17.4.5.2).
fn header(bytes: &[u8; 40]) -> Result<Header> {
    let gid = |at: usize| {
        let mut gid = Gid::ZERO;
        gid.0.copy_from_slice(&bytes[at..at + 16]);
        gid
    };
    let v4 = |at: usize| {
        Gid::from_ip(std::net::Ipv4Addr::new(bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]).into())
    };
    if bytes[0] >> 4 == 6 {
        let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        return Ok(Header {
            source: gid(8),
            destination: gid(24),
            flow_label: word & 0xf_ffff,
            hop_limit: bytes[7],
            traffic_class: (word >> 20) as u8,
        });
    }
    if bytes[20] == 0x45 {
        return Ok(Header {
            source: v4(32),
            destination: v4(36),
            flow_label: 0,
            hop_limit: bytes[28],
            traffic_class: bytes[21],
        });
    }
    Err(Errno::EINVAL)
}

/// # Safety
/// `grh` is NULL or 40 bytes.
unsafe fn answer(context: &Context, port: u8, wc: &ibv_wc, grh: *const ibv_grh) -> Result<ibv_ah_attr> {
    let nic = context.nic()?;
    check_port(port.into())?;
    let mut out = ibv_ah_attr::zeroed();
    (out.dlid, out.sl, out.src_path_bits, out.port_num) = (wc.slid, wc.sl, wc.dlid_path_bits, port);
    if wc.wc_flags & sys::IBV_WC_GRH == 0 {
        // Without a GRH there is no address on Ethernet.
        return if nic.link_layer(context.kind()).is_infiniband() { Ok(out) } else { Err(Errno::EINVAL) };
    }
    // SAFETY: the caller's promise.
    let header = header(unsafe { argument(grh.cast::<[u8; 40]>()) }?)?;
    let to_us = nic.gids(context.kind()).iter().position(|g| g.gid == header.destination);
    let index = match to_us {
        Some(index) => index,
        // The datagram went to a group: the answer comes from the table's first entry of the same family.
        None if header.destination.is_multicast() => {
            let v4 = header.source.ipv4().is_some();
            nic.gids(context.kind()).iter().position(|g| g.gid.ipv4().is_some() == v4).unwrap_or(0)
        }
        None => return Err(Errno::EINVAL),
    };
    out.grh.dgid = ibv_gid { raw: header.source.0 };
    out.grh.flow_label = header.flow_label;
    out.grh.sgid_index = index as u8;
    out.grh.hop_limit = if header.hop_limit == 0 { 64 } else { header.hop_limit };
    out.grh.traffic_class = header.traffic_class;
    out.is_global = 1;
    Ok(out)
}

/// `ibv_init_ah_from_wc(3)`.
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    out: *mut ibv_ah_attr,
) -> c_int {
    minus_one(|| {
        // SAFETY: live or NULL (man page); the structures are the caller's or NULL.
        unsafe { *output(out)? = answer(Context::of(context)?, port, argument(wc)?, grh)? };
        Ok(0)
    })
}

/// `ibv_create_ah_from_wc(3)`.
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    pointer(|| {
        // SAFETY: live or NULL (man page); the structures are the caller's or NULL.
        let c_attr = unsafe { answer(Pd::of(pd)?.context()?, port, argument(wc)?, grh) }?;
        create(pd, &c_attr)
    })
}

/// `ibv_attach_mcast(3)`.
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, group: *const ibv_gid, _lid: u16) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { Qp::named(qp) }?;
        // SAFETY: the caller's structure or NULL.
        let group = attr::gid(unsafe { argument(group) }?);
        alive(this.nic)?.lock().attach_mcast(this.id, &group)
    })
}

/// `ibv_detach_mcast(3)`.
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, group: *const ibv_gid, _lid: u16) -> c_int {
    number(|| {
        // SAFETY: live or NULL (man page).
        let this = unsafe { Qp::named(qp) }?;
        // SAFETY: the caller's structure or NULL.
        let group = attr::gid(unsafe { argument(group) }?);
        alive(this.nic)?.lock().detach_mcast(this.id, &group)
    })
}
