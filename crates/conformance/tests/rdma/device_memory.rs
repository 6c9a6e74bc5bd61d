//! Device memory.

use conformance::Fixture;
use rdma::{Access, Data, Errno, RecvWr, SendOp, SendWr};

use crate::pair::Pair;

const LEN: usize = 4096;
/// The place in the memory where the region begins.
const PART: usize = 64;

#[test]
fn device_memory_is_written_by_peers_and_added_to() {
    let pair = Pair::new();
    let context = &pair.fixture.context;
    assert!(context.max_dm_size().expect("ibv_query_device_ex") >= LEN as u64);
    let dm = context.alloc_dm(LEN, 6).expect("ibv_alloc_dm");
    dm.write(0, &[0; LEN]).expect("ibv_memcpy_to_dm");
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    let region = pair.fixture.pd.reg_dm_mr(&dm, PART, LEN - PART, access).expect("ibv_reg_dm_mr");
    let host = pair.fixture.pd.reg_mr(64, Access::LOCAL_WRITE).expect("ibv_reg_mr");
    host.write(0, b"from afar.......");

    let (rkey, first) = (region.rkey(), Data::Sges(&[host.sge(0, 16)]));
    pair.from.post_send(&SendWr::new(1, SendOp::Write { addr: 8, rkey }, first)).expect("ibv_post_send");
    let word = Data::Sges(&[host.sge(16, 8)]);
    for add in [40, 2] {
        let op = SendOp::FetchAdd { addr: 32, rkey, add };
        pair.from.post_send(&SendWr::new(2, op, word)).expect("ibv_post_send");
    }
    pair.done(3);
    assert_eq!(host.word(16).load(std::sync::atomic::Ordering::Relaxed), 40, "what was there before the second");
    let mut seen = [0; 16];
    dm.read(PART + 8, &mut seen).expect("ibv_memcpy_from_dm");
    assert_eq!(&seen, b"from afar.......", "address 0 of the region is byte {PART} of the memory");
    dm.read(PART + 32, &mut seen).expect("ibv_memcpy_from_dm");
    assert_eq!(seen[..8], 42u64.to_ne_bytes());

    // The message goes from device memory, into device memory.
    dm.write(PART + 256, b"sent").expect("ibv_memcpy_to_dm");
    pair.to.post_recv(&RecvWr { wr_id: 3, sges: &[region.sge(512, 4)] }).expect("ibv_post_recv");
    let data = Data::Sges(&[region.sge(256, 4)]);
    pair.from.post_send(&SendWr::new(4, SendOp::Send, data)).expect("ibv_post_send");
    pair.done(2);
    dm.read(PART + 512, &mut seen[..4]).expect("ibv_memcpy_from_dm");
    assert_eq!(&seen[..4], b"sent");
}

#[test]
fn a_region_keeps_its_device_memory() {
    let pair = Pair::new();
    let dm = pair.fixture.context.alloc_dm(LEN, 0).expect("ibv_alloc_dm");
    dm.write(0, b"kept").expect("ibv_memcpy_to_dm");
    let region = pair.fixture.pd.reg_dm_mr(&dm, 0, LEN, Access::REMOTE_READ).expect("ibv_reg_dm_mr");
    drop(dm);
    let host = pair.fixture.pd.reg_mr(64, Access::LOCAL_WRITE).expect("ibv_reg_mr");
    let op = SendOp::Read { addr: 0, rkey: region.rkey() };
    pair.from.post_send(&SendWr::new(1, op, Data::Sges(&[host.sge(0, 4)]))).expect("ibv_post_send");
    pair.done(1);
    let mut seen = [0; 4];
    host.read(0, &mut seen);
    assert_eq!(&seen, b"kept");
}

#[test]
fn parts_that_are_not_inside_are_refused() {
    let fixture = Fixture::open();
    let dm = fixture.context.alloc_dm(LEN, 0).expect("ibv_alloc_dm");
    let mut bytes = [0; 8];
    for offset in [LEN - 4, LEN, usize::MAX - 3] {
        let errors = [
            dm.write(offset, &bytes).expect_err("beyond the end"),
            dm.read(offset, &mut bytes).expect_err("beyond the end"),
            fixture.pd.reg_dm_mr(&dm, offset, 8, Access::LOCAL_WRITE).map(drop).expect_err("beyond the end"),
        ];
        assert!(errors.iter().all(|error| error.errno == Errno::EINVAL), "{errors:?}");
    }
    let region = fixture.pd.reg_dm_mr(&dm, 0, 64, Access::LOCAL_WRITE).expect("ibv_reg_dm_mr");
    assert!(std::panic::catch_unwind(|| region.sge(60, 8)).is_err());

    let other = Fixture::open();
    let error = other.pd.reg_dm_mr(&dm, 0, 8, Access::LOCAL_WRITE).map(drop).expect_err("another's memory");
    assert_eq!(error.errno, Errno::EINVAL);
    let error = fixture.context.alloc_dm(usize::MAX, 0).map(drop).expect_err("more than there is");
    assert_eq!(error.errno, Errno::ENOMEM);
}
