//! The link layer of the port (`ibv_port_attr.link_layer`).

/// The packets that the port would send: RoCE's, inside of Ethernet frames, or InfiniBand's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LinkLayer {
    /// Ports are found by GIDs, which are IP addresses; every address vector has a GRH (IBTA annex A17).
    #[default]
    Ethernet,
    /// Ports are found by LIDs; a GRH is only for other subnets and for groups (IBTA vol. 1, 7.7, 8.3).
    InfiniBand {
        /// The port's own LID: 1 to 0xbfff. LMC is 0, so it has no other.
        lid: u16,
    },
}

impl LinkLayer {
    /// LIDs of multicast groups (IBTA vol. 1, 4.1.3).
    pub const MULTICAST_LIDS: core::ops::RangeInclusive<u16> = 0xc000..=0xfffe;

    /// The port's LID; 0, which is none, on Ethernet.
    pub const fn lid(self) -> u16 {
        match self {
            LinkLayer::Ethernet => 0,
            LinkLayer::InfiniBand { lid } => lid,
        }
    }

    /// True for InfiniBand.
    pub const fn is_infiniband(self) -> bool {
        matches!(self, LinkLayer::InfiniBand { .. })
    }
}
