//! The transport headers of a packet in their sequence: the base transport header and those that its opcode says follow
//! (IBTA vol. 1, 9.2, table 35).

use core::fmt;

use crate::opcode::Extension;
use crate::{Error, Result, aeth, atomic_ack_eth, atomic_eth, bth, deth, feth, ieth, imm_dt, reth, xrceth};

/// Bytes of the longest sequence: an atomic request of XRC.
pub const MAX_LEN: usize = bth::LEN + xrceth::LEN + atomic_eth::LEN;

/// All transport headers of a packet. Those that the opcode does not have are `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the headers'
pub struct Repr {
    pub bth: bth::Repr,
    pub xrceth: Option<xrceth::Repr>,
    pub deth: Option<deth::Repr>,
    pub feth: Option<feth::Repr>,
    pub reth: Option<reth::Repr>,
    pub atomic_eth: Option<atomic_eth::Repr>,
    pub aeth: Option<aeth::Repr>,
    pub atomic_ack_eth: Option<atomic_ack_eth::Repr>,
    pub imm_dt: Option<imm_dt::Repr>,
    pub ieth: Option<ieth::Repr>,
}

/// Emitted headers.
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    room: [u8; MAX_LEN],
    len: usize,
}

impl Bytes {
    fn push(&mut self, header: &[u8]) -> Result<()> {
        let end = self.len + header.len();
        self.room.get_mut(self.len..end).ok_or(Error::Length)?.copy_from_slice(header);
        self.len = end;
        Ok(())
    }
}

impl core::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.room.get(..self.len).unwrap_or_default()
    }
}

impl Repr {
    /// A packet with nothing but a base transport header.
    pub const fn new(bth: bth::Repr) -> Repr {
        Repr {
            bth,
            xrceth: None,
            deth: None,
            feth: None,
            reth: None,
            atomic_eth: None,
            aeth: None,
            atomic_ack_eth: None,
            imm_dt: None,
            ieth: None,
        }
    }

    /// Parses the headers at the start of these bytes. Gives their fields, and the bytes behind them: payload and
    /// padding.
    ///
    /// # Errors
    /// Those of the headers.
    pub fn read(bytes: &[u8]) -> Result<(Repr, &[u8])> {
        let (bth, rest) = bth::Repr::read(bytes)?;
        let (mut repr, mut rest) = (Repr::new(bth), rest);
        for extension in bth.opcode.extensions() {
            rest = match extension {
                Extension::Xrceth => take(xrceth::Repr::read(rest)?, &mut repr.xrceth),
                Extension::Deth => take(deth::Repr::read(rest)?, &mut repr.deth),
                Extension::Feth => take(feth::Repr::read(rest)?, &mut repr.feth),
                Extension::Reth => take(reth::Repr::read(rest)?, &mut repr.reth),
                Extension::AtomicEth => take(atomic_eth::Repr::read(rest)?, &mut repr.atomic_eth),
                Extension::Aeth => take(aeth::Repr::read(rest)?, &mut repr.aeth),
                Extension::AtomicAckEth => take(atomic_ack_eth::Repr::read(rest)?, &mut repr.atomic_ack_eth),
                Extension::ImmDt => take(imm_dt::Repr::read(rest)?, &mut repr.imm_dt),
                Extension::Ieth => take(ieth::Repr::read(rest)?, &mut repr.ieth),
            };
        }
        Ok((repr, rest))
    }

    /// The bytes. Headers that the opcode does not have are left out.
    ///
    /// # Errors
    /// [`Error::Value`] if a header that the opcode has is `None`.
    pub fn emit(&self) -> Result<Bytes> {
        let mut out = Bytes { room: [0; MAX_LEN], len: 0 };
        out.push(&self.bth.emit())?;
        for extension in self.bth.opcode.extensions() {
            match extension {
                Extension::Xrceth => out.push(&self.xrceth.ok_or(Error::Value("XRCETH"))?.emit()),
                Extension::Deth => out.push(&self.deth.ok_or(Error::Value("DETH"))?.emit()),
                Extension::Feth => out.push(&self.feth.ok_or(Error::Value("FETH"))?.emit()),
                Extension::Reth => out.push(&self.reth.ok_or(Error::Value("RETH"))?.emit()),
                Extension::AtomicEth => out.push(&self.atomic_eth.ok_or(Error::Value("AtomicETH"))?.emit()),
                Extension::Aeth => out.push(&self.aeth.ok_or(Error::Value("AETH"))?.emit()),
                Extension::AtomicAckEth => out.push(&self.atomic_ack_eth.ok_or(Error::Value("AtomicAckETH"))?.emit()),
                Extension::ImmDt => out.push(&self.imm_dt.ok_or(Error::Value("ImmDt"))?.emit()),
                Extension::Ieth => out.push(&self.ieth.ok_or(Error::Value("IETH"))?.emit()),
            }?;
        }
        Ok(out)
    }
}

/// Keeps a header, and hands on what follows it.
fn take<'a, T>((header, rest): (T, &'a [u8]), to: &mut Option<T>) -> &'a [u8] {
    *to = Some(header);
    rest
}

impl fmt::Display for Repr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn more(f: &mut fmt::Formatter<'_>, header: &Option<impl fmt::Display>) -> fmt::Result {
            header.as_ref().map_or(Ok(()), |header| write!(f, " {header}"))
        }
        write!(f, "{}", self.bth)?;
        more(f, &self.xrceth)?;
        more(f, &self.deth)?;
        more(f, &self.feth)?;
        more(f, &self.reth)?;
        more(f, &self.atomic_eth)?;
        more(f, &self.aeth)?;
        more(f, &self.atomic_ack_eth)?;
        more(f, &self.imm_dt)?;
        more(f, &self.ieth)
    }
}

#[cfg(test)]
mod tests {
    use verbs::{Psn, Qpn, RKey};

    use super::*;
    use crate::header::hex;
    use crate::opcode::{Opcode, Operation, Service};

    fn bth(service: Service, operation: Operation) -> Repr {
        Repr::new(bth::Repr {
            opcode: Opcode::Transport(service, operation),
            solicited: false,
            migrated: true,
            pad: 0,
            pkey: 0xffff,
            fecn: false,
            becn: false,
            dest: Qpn::new(0x0a0b0c),
            ack_req: false,
            psn: Psn::new(0x123456),
        })
    }

    #[track_caller]
    fn both(repr: &Repr, text: &str) {
        let bytes = hex(text);
        assert_eq!(repr.emit().as_deref(), Ok(&bytes[..]));
        assert_eq!(Repr::read(&bytes), Ok((*repr, &[][..])));
    }

    #[test]
    fn literal_bytes() {
        both(&bth(Service::Rc, Operation::SendFirst), "00 40 ffff 000a0b0c 00123456");
        let reth = Some(reth::Repr { remote_addr: 0x1122_3344_5566_7788, rkey: RKey(0x99aa_bbcc), dma_len: 4 });
        let imm_dt = Some(imm_dt::Repr { data: [1, 2, 3, 4] });
        let write = Repr { reth, imm_dt, ..bth(Service::Rc, Operation::WriteOnlyImm) };
        both(&write, "0b 40 ffff 000a0b0c 00123456 1122334455667788 99aabbcc 00000004 01020304");
        let xrceth = Some(xrceth::Repr { srqn: 0x77 });
        let write = Repr { xrceth, reth, ..bth(Service::Xrc, Operation::WriteFirst) };
        both(&write, "a6 40 ffff 000a0b0c 00123456 00000077 1122334455667788 99aabbcc 00000004");
        let aeth = Some(aeth::Repr { syndrome: 0x1f, msn: 7 });
        let atomic_ack_eth = Some(atomic_ack_eth::Repr { original: 9 });
        let ack = Repr { aeth, atomic_ack_eth, ..bth(Service::Rc, Operation::AtomicAcknowledge) };
        both(&ack, "12 40 ffff 000a0b0c 00123456 1f000007 0000000000000009");
        let deth = Some(deth::Repr { qkey: 0x1111_1111, source: Qpn::new(0x55) });
        both(&Repr { deth, ..bth(Service::Ud, Operation::SendOnly) }, "64 40 ffff 000a0b0c 00123456 11111111 00000055");
        assert_eq!(
            std::format!("{ack}"),
            "Rc AtomicAcknowledge dest=0xa0b0c psn=0x123456 pad=0 M ACK msn=0x7 original=0x9"
        );
    }

    #[test]
    fn what_the_opcode_has_must_be_there() {
        assert!(matches!(bth(Service::Rc, Operation::WriteOnly).emit(), Err(Error::Value("RETH"))));
        let bytes = hex("06 40 ffff 000a0b0c 00123456 1122334455667788 99aabbcc 000000");
        assert_eq!(Repr::read(&bytes), Err(Error::Truncated));
    }
}
