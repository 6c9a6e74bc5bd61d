//! Address vectors: which ones a port takes, and where they lead.

use verbs::{AhAttr, Gid, LinkLayer};
use wire::Env;

use crate::Engine;

impl<P: Env> Engine<P> {
    /// True if the port takes this address vector (IBTA vol. 1, 11.2.2.1). On Ethernet a vector always has a GRH (annex
    /// A17.4.3), and a destination. Linux finds the MAC address of the destination when the vector is given, and the
    /// GID of zeros has none (`ib_resolve_unicast_gid_dmac`).
    pub(crate) fn takes_path(&self, path: &AhAttr) -> bool {
        let has_source = usize::from(path.sgid_index) < self.gids.len().max(1);
        match self.link_layer {
            LinkLayer::Ethernet => path.is_global && has_source && path.dgid != Gid::ZERO,
            LinkLayer::InfiniBand { .. } => !path.is_global || has_source,
        }
    }

    /// A GID of the port or group that an address vector leads to. On InfiniBand the LID leads (vol. 1, 7.7), and the
    /// only LID that leads to a port is that of this host. `None`: the vector leads nowhere, and packets to it are
    /// lost.
    pub(crate) fn destination(&self, path: &AhAttr) -> Option<Gid> {
        let LinkLayer::InfiniBand { lid } = self.link_layer else { return Some(path.dgid) };
        // 10.5.2: datagrams to a group have a GRH
        let group = path.is_global && path.dgid.is_multicast();
        let leads = if group { LinkLayer::MULTICAST_LIDS.contains(&path.dlid) } else { path.dlid == lid };
        let own = || self.gids.first().copied().unwrap_or_default();
        leads.then(|| if path.is_global { path.dgid } else { own() })
    }
}
