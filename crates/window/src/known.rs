//! What earlier requests found in a peer's export table, for the next ones of their kind.
//!
//! A request is checked against three rows: of the peer's queue pair, of its region, and of the region's place in the
//! arena. As long as none of them is written, what the kind of request may do stays as it was, and only addresses are
//! left to compare. A look at the versions of the rows is a look at the rows: it is made where the rows would be looked
//! at, within the mark of the copy ([`memory::export_table`]).

use memory::PeerTable;
use memory::export_table::{Reader, Seen, VALUES};
use verbs::{QpType, Qpn, RKey};
use wire::{Export, OneSided, OneSidedOp};

/// The place in the arena of `len` bytes at this address, if all of them are there.
pub(crate) fn within([start, bytes, at, ..]: [u64; VALUES], addr: u64, len: u32) -> Option<u64> {
    let offset = addr.checked_sub(start)?;
    let end = offset.checked_add(u64::from(len))?;
    if end <= bytes { at.checked_add(offset) } else { None }
}

/// What is kept for the kinds of requests to one peer. Kinds that fall upon one place take turns.
#[derive(Default)]
pub(crate) struct Known([Option<Allowed>; 4]);

/// WRITEs or READs of one connection to one region.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind {
    reads: bool,
    service: QpType,
    src: Qpn,
    dst: Qpn,
    rkey: RKey,
    mtu: u32,
}

/// What the rows allow to a kind of requests.
struct Allowed {
    kind: Kind,
    rows: [Seen; 3],
    /// The connection's epoch.
    epoch: u64,
    /// The region: the address that requests call its first one, the peer's, and its bytes.
    iova: u64,
    addr: u64,
    length: u64,
    /// The row of its place in the arena.
    place: [u64; VALUES],
}

/// Where a request goes that is allowed.
pub(crate) struct Found {
    /// The connection's epoch.
    pub epoch: u64,
    /// The address in the peer.
    pub addr: u64,
    /// If it lies in the peer's arena: where it is there, and the row that says so.
    pub place: Option<(u64, [u64; VALUES])>,
}

impl Kind {
    /// `None`: nothing is kept for such requests.
    #[inline]
    fn of(request: &OneSided<'_>) -> Option<Kind> {
        let reads = match request.op {
            OneSidedOp::Write => false,
            OneSidedOp::Read => true,
            OneSidedOp::Atomic(_) => return None,
        };
        let OneSided { service, src, dst, rkey, mtu, .. } = *request;
        ((request.before, request.after) == (0, 0)).then_some(Kind { reads, service, src, dst, rkey, mtu })
    }

    #[inline]
    fn index(&self) -> usize {
        // The low bits of a key tell keys with one index apart, those above the lowest byte tell indices apart.
        ((self.rkey.0 ^ self.rkey.0 >> 8 ^ self.dst.get()) % 4) as usize
    }
}

impl Known {
    /// Where a request goes, if it is allowed by what is known. `None`: the rows say.
    #[inline]
    pub fn find(&self, table: &Reader<PeerTable>, request: &OneSided<'_>) -> Option<Found> {
        let kind = Kind::of(request)?;
        let known = self.0[kind.index()].as_ref().filter(|known| known.kind == kind)?;
        let stands = known.rows.iter().all(|&row| table.stands(row));
        let offset = request.addr.checked_sub(known.iova).filter(|_| stands)?;
        let inside = offset.checked_add(request.len.into()).is_some_and(|end| end <= known.length);
        let right = inside && request.epoch.is_none_or(|epoch| epoch == known.epoch);
        let addr = known.addr.wrapping_add(offset);
        let at = within(known.place, addr, request.len).filter(|_| right)?;
        Some(Found { epoch: known.epoch, addr, place: Some((at, known.place)) })
    }

    /// Keeps what the rows say, for requests like this one, which is allowed.
    pub fn keep(
        &mut self,
        request: &OneSided<'_>,
        qp: &Export,
        region: &Export,
        rows: [Seen; 3],
        place: [u64; VALUES],
    ) {
        let Some(kind) = Kind::of(request) else { return };
        let (&Export::Qp { mtu, epoch, .. }, &Export::Region { addr, length, iova, .. }) = (qp, region) else { return };
        // With two sizes of packets it depends on the length whether a request is allowed.
        if mtu == request.mtu {
            self.0[kind.index()] = Some(Allowed { kind, rows, epoch, iova, addr, length, place });
        }
    }
}
