//! Numbers that name objects on the wire. Each has its own type, so that one cannot be taken for another.

use core::fmt;

/// A 24-bit queue pair number (IBTA vol. 1, 3.5.10). 0 and 1 are the management queue pairs and never given out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Qpn(u32);

impl Qpn {
    /// The destination number of multicast packets (IBTA vol. 1, 10.5.2).
    pub const MULTICAST: Qpn = Qpn(0xff_ffff);

    /// A number from the low 24 bits.
    pub const fn new(raw: u32) -> Self {
        Qpn(raw & 0xff_ffff)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qpn({:#08x})", self.0)
    }
}

/// A 24-bit packet sequence number; arithmetic wraps (IBTA vol. 1, 9.7.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Psn(u32);

impl Psn {
    /// A number from the low 24 bits.
    pub const fn new(raw: u32) -> Self {
        Psn(raw & 0xff_ffff)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// This number plus `n`, modulo 2^24.
    #[must_use]
    pub const fn plus(self, n: u32) -> Self {
        Psn::new(self.0.wrapping_add(n))
    }

    /// The signed distance from `other` to this number, in -2^23 .. 2^23: positive when this one is newer.
    pub const fn since(self, other: Psn) -> i32 {
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }
}

/// The local key of a region, which names it in a scatter/gather entry.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct LKey(pub u32);

/// The remote key of a region or window, which names it in an RDMA or atomic request. The low 8 bits belong to the
/// consumer (IBTA vol. 1, 10.6.3.4).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct RKey(pub u32);

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[allow(clippy::derived_hash_with_manual_eq)] // the implementation below agrees with the derived one
        #[derive(Clone, Copy, Eq, Hash, Debug)]
        pub struct $name {
            /// The place in the engine's table.
            pub index: u32,
            /// The number of times that place was reused: a stale handle never finds a younger object.
            pub generation: u32,
        }
        // Both members are compared as one number, with one comparison: those of an `Option`, too.
        impl PartialEq for $name {
            #[inline(always)]
            fn eq(&self, other: &Self) -> bool {
                let whole = |h: &Self| u64::from(h.generation) << 32 | u64::from(h.index);
                whole(self) == whole(other)
            }
        }
        impl From<(u32, u32)> for $name {
            fn from((index, generation): (u32, u32)) -> Self { $name { index, generation } }
        }
        impl From<$name> for (u32, u32) {
            fn from(h: $name) -> Self { (h.index, h.generation) }
        }
    )*};
}

handles! {
    /// An open context.
    CtxId;
    /// A protection domain.
    PdId;
    /// A memory region.
    MrId;
    /// A memory window.
    MwId;
    /// A completion queue.
    CqId;
    /// A queue pair.
    QpId;
    /// A shared receive queue.
    SrqId;
    /// An address handle.
    AhId;
    /// An XRC domain.
    XrcdId;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_24_bits() {
        assert_eq!(Qpn::new(0xff12_3456).get(), 0x12_3456);
        assert_eq!(Psn::new(u32::MAX).get(), 0xff_ffff);
        assert_eq!(Qpn::new(u32::MAX), Qpn::MULTICAST);
    }

    /// Comparisons hold over the wrap, for distances of less than half of the numbers (9.7.2).
    #[test]
    fn sequence_numbers_wrap() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(last.plus(u32::MAX), Psn::new(0xff_fffe));
        assert_eq!(last.plus(1).since(last), 1);
        assert_eq!(last.since(last.plus(1)), -1);
        for start in [0, 1, 0x7f_ffff, 0x80_0000, 0xff_fff0, 0xff_ffff].map(Psn::new) {
            for step in [0, 1, 100, 0x40_0000, 0x7f_ffff] {
                assert_eq!(start.plus(step).since(start), step as i32);
                assert_eq!(start.since(start.plus(step)), -(step as i32));
            }
            assert_eq!(start.plus(0x80_0000).since(start), -0x80_0000);
        }
    }

    #[test]
    fn handles_survive_packing() {
        let handle = QpId { index: 7, generation: u32::MAX };
        assert_eq!(QpId::from(<(u32, u32)>::from(handle)), handle);
        assert_ne!(handle, QpId { generation: 0, ..handle });
    }
}
