//! The contents of a received datagram (IBTA vol. 1, 9.8.3, 11.4.2.1; RoCEv2: annex A17.4.5.2; `ibv_poll_cq(3)`).

use conformance::{Fixture, Joined, collect};
use rdma::{Data, QpType, SendOp, SendWr, Status, WcFlags};

use crate::pair::{End, QKEY, region, way};

const GRH: usize = 40;

#[test]
fn data_come_behind_forty_bytes_of_grh() {
    let fixture = Fixture::open();
    let (a, b) = (End::new(&fixture, QpType::Ud, None), End::new(&fixture, QpType::Ud, None));
    a.up(&fixture, &Joined::default(), 0);
    b.up(&fixture, &Joined::default(), 0);
    let ah = way(&fixture, &fixture.pd);
    let (here, there) = (region(&fixture, 4096), region(&fixture, 4096 + GRH));
    for len in [0, 1, 64, 4096] {
        let bytes: Vec<u8> = (0..len).map(|i| i as u8 ^ 0x5a).collect();
        here.write(0, &bytes);
        there.write(0, &[0; 4096 + GRH]);
        // The list is cut in the middle of the GRH.
        b.recv(100, &[there.sge(0, 17), there.sge(17, GRH + len - 17)]);
        let list = [here.sge(0, len)];
        let mut wr = SendWr::new(1, SendOp::SendImm(0x0102_0304), Data::Sges(&list));
        wr.to = Some((&ah, b.qp.number(), QKEY));
        a.qp.post_send(&wr).expect("ibv_post_send");
        assert_eq!(a.completions(1), [(1, Status::SUCCESS)]);
        let wc = collect(&b.cq, 1)[0];
        assert_eq!((wc.wr_id(), wc.status()), (100, Status::SUCCESS));
        assert_eq!(wc.byte_len() as usize, GRH + len);
        assert_eq!((wc.src_qp(), wc.qp_num()), (a.qp.number(), b.qp.number()));
        assert!(wc.flags().contains(WcFlags::GRH | WcFlags::WITH_IMM), "{:?}", wc.flags());
        assert_eq!(wc.imm(), Some(0x0102_0304));
        let mut found = vec![0; GRH + len];
        there.read(0, &mut found);
        assert!(found[GRH..] == bytes[..], "{len} bytes");
        // An IPv6 header, or the IPv4 header in the latter 20 bytes; either names both addresses.
        match fixture.gid.0[..12] {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff] => {
                assert_eq!((found[20], found[29]), (0x45, 17), "{found:?}");
                assert_eq!((&found[32..36], &found[36..40]), (&fixture.gid.0[12..], &fixture.gid.0[12..]));
            }
            _ => {
                assert_eq!(found[0] >> 4, 6);
                assert_eq!((&found[8..24], &found[24..40]), (&fixture.gid.0[..], &fixture.gid.0[..]));
            }
        }
    }
}
