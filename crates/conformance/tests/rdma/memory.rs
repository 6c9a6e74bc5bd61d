//! Regions over memory of the caller.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use conformance::Fixture;
use rdma::{Access, Bind, Data, Errno, Mr, MwKind, RecvWr, SendFlags, SendOp, SendWr};

use crate::pair::Pair;

const LEN: usize = 3 * 4096;
/// The start of the region; neither it nor the end is aligned.
const OFFSET: usize = 5;

struct Buffer {
    mr: Arc<Mr>,
    bytes: Box<[UnsafeCell<u8>]>,
}

impl Buffer {
    fn new(fixture: &Fixture, access: Access) -> Buffer {
        let bytes: Box<[UnsafeCell<u8>]> = (0..LEN + 2 * OFFSET).map(|_| UnsafeCell::new(0xee)).collect();
        let start = NonNull::from(&bytes[OFFSET..OFFSET + LEN]).cast();
        // SAFETY: each test ends the region before it frees the cells, which are initialised.
        let mr = unsafe { fixture.pd.reg_mr_caller(start, LEN, access) }.expect("ibv_reg_mr");
        Buffer { mr, bytes }
    }

    /// End the region and return the bytes.
    fn end(self) -> Vec<u8> {
        Mr::deregister(self.mr).map_err(|(_, error)| error).expect("ibv_dereg_mr");
        self.bytes.into_iter().map(UnsafeCell::into_inner).collect()
    }
}

#[test]
fn memory_of_the_caller_is_sent_from_and_received_into() {
    let pair = Pair::new();
    let (from, to) = (Buffer::new(&pair.fixture, Access::LOCAL_WRITE), Buffer::new(&pair.fixture, Access::LOCAL_WRITE));
    let text: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    from.mr.write(0, &text);
    pair.to.post_recv(&RecvWr { wr_id: 1, sges: &[to.mr.sge(0, LEN)] }).expect("ibv_post_recv");
    let data = Data::Sges(&[from.mr.sge(0, LEN)]);
    pair.from.post_send(&SendWr::new(2, SendOp::Send, data)).expect("ibv_post_send");
    pair.done(2);
    let got = to.end();
    assert_eq!(&got[OFFSET..OFFSET + LEN], text, "the bytes lie in the caller's memory");
    assert!(got[..OFFSET].iter().chain(&got[OFFSET + LEN..]).all(|byte| *byte == 0xee), "nothing is beside the region");
    assert_eq!(&from.end()[OFFSET..OFFSET + LEN], text);
}

#[test]
fn memory_that_is_read_only_is_sent_from_and_never_written() {
    static TEXT: &[u8] = b"a constant of the program, in pages without the right to write";
    let pair = Pair::new();
    // SAFETY: a constant lives for ever; without LOCAL_WRITE it is only read.
    let mr = unsafe { pair.fixture.pd.reg_mr_caller(NonNull::from(TEXT).cast(), TEXT.len(), Access::empty()) }
        .expect("ibv_reg_mr");
    for write in [|mr: &Mr| mr.write(0, b"x"), |mr: &Mr| mr.store(0, 1), |mr: &Mr| mr.word(0).store(1, Relaxed)] {
        assert!(catch_unwind(AssertUnwindSafe(|| write(&mr))).is_err(), "writing must panic");
    }
    let mut seen = vec![0; TEXT.len()];
    mr.read(0, &mut seen);
    assert_eq!(seen, TEXT);
    let to = pair.fixture.pd.reg_mr(4096, Access::LOCAL_WRITE).expect("ibv_reg_mr");
    pair.to.post_recv(&RecvWr { wr_id: 1, sges: &[to.sge(0, 4096)] }).expect("ibv_post_recv");
    let data = Data::Sges(&[mr.sge(0, TEXT.len())]);
    pair.from.post_send(&SendWr::new(2, SendOp::Send, data)).expect("ibv_post_send");
    pair.done(2);
    to.read(0, &mut seen);
    assert_eq!(seen, TEXT);
}

#[test]
fn a_region_in_use_is_not_deregistered_and_comes_back() {
    let pair = Pair::new();
    let access = Access::LOCAL_WRITE | Access::MW_BIND;
    let Buffer { mr, bytes } = Buffer::new(&pair.fixture, access);

    let other = mr.clone();
    let (mr, error) = Mr::deregister(mr).expect_err("it has two holders");
    assert_eq!(error.errno, Errno(libc::EBUSY));
    drop(other);

    let mw = pair.fixture.pd.alloc_mw(MwKind::Type1).expect("ibv_alloc_mw");
    let bind = Bind { mw: &mw, rkey: 0, mr: &mr, offset: 0, len: 64, access: Access::REMOTE_WRITE };
    pair.from.bind_mw(1, SendFlags::SIGNALED, &bind).expect("ibv_bind_mw");
    pair.done(1);
    let (mr, error) = Mr::deregister(mr).expect_err("a window is bound to it");
    assert_eq!((error.call, error.errno), ("ibv_dereg_mr", Errno(libc::EBUSY)));
    let (key, start) = (mr.lkey(), mr.addr());
    assert!(key != 0 && start == bytes[OFFSET].get() as u64, "the region is as it was");
    mr.write(0, b"still there");
    drop(mw);
    assert_eq!(&Buffer { mr, bytes }.end()[OFFSET..][..11], b"still there");
}

#[test]
fn memory_of_the_caller_is_not_registered_again_without_its_promise() {
    let fixture = Fixture::open();
    let buffer = Buffer::new(&fixture, Access::LOCAL_WRITE);
    let error =
        fixture.pd.reg_mr_again(&buffer.mr, Access::LOCAL_WRITE).map(drop).expect_err("the promise is the first's");
    assert_eq!(error.errno, Errno::EINVAL);
    buffer.end();
}

#[test]
fn an_entry_is_not_cut_to_32_bits() {
    let fixture = Fixture::open();
    let len = (1 << 32) + 64;
    // The memory was never touched, so the pages are not there; on-demand paging or not, registering may be refused for
    // want of memory.
    let Ok(start) = (
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        unsafe {
            use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::NORESERVE)
        }
    ) else {
        return;
    };
    let start = NonNull::new(start).expect("not at address 0").cast();
    // SAFETY: the mapping is never removed, and only read.
    if let Ok(mr) = unsafe { fixture.pd.reg_mr_caller(start, len, Access::empty()) } {
        assert!(catch_unwind(AssertUnwindSafe(|| mr.sge(0, len))).is_err(), "64 bytes instead of 4 GiB");
        assert_eq!(mr.sge(64, u32::MAX as usize).length(), u32::MAX);
    }
}

/// Memory that peers map: as any other, as long as the device has some.
#[test]
fn memory_that_peers_map_comes_and_goes() {
    let pair = Pair::new();
    let (pd, access) = (&pair.fixture.pd, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let to = pd.reg_mr_mapped(LEN, access).expect("memory");
    assert!(to.is_mapped() && !pd.reg_mr(LEN, access).expect("memory").is_mapped());
    assert_eq!(to.load(LEN - 1), 0, "it is zeroed");
    let from = pd.reg_mr(LEN, Access::LOCAL_WRITE).expect("memory");
    from.write(0, &[7; LEN]);
    let op = SendOp::Write { addr: to.addr(), rkey: to.rkey() };
    pair.from
        .post_send(&SendWr { flags: SendFlags::SIGNALED, ..SendWr::new(1, op, Data::Sges(&[from.sge(0, LEN)])) })
        .expect("a WRITE");
    pair.done(1);
    assert_eq!(to.load(LEN - 1), 7);
    // There are 256 MiB (softrnic/dv.h).
    for _ in 0..3 {
        let most = pd.reg_mr_mapped(150 << 20, access).expect("memory");
        assert!(most.is_mapped(), "what was dropped is given back");
        let rest = pd.reg_mr_mapped(150 << 20, access).expect("memory");
        assert!(!rest.is_mapped(), "ordinary memory is left");
    }
}

#[test]
fn bytes_are_copied_in_every_length_from_and_to_any_place() {
    let fixture = Fixture::open();
    let (from, to) = (Buffer::new(&fixture, Access::LOCAL_WRITE), Buffer::new(&fixture, Access::LOCAL_WRITE));
    let text: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8).collect();
    from.mr.write(0, &text);
    let mut seen = vec![0; LEN];
    for len in (0..=40).chain(250..260) {
        for (at, to_at) in [(0, 0), (3, 8), (7, 1)] {
            to.mr.write(0, &vec![0xee; LEN]);
            from.mr.copy_to(at, &to.mr, to_at, len);
            to.mr.read(0, &mut seen);
            assert_eq!(&seen[to_at..to_at + len], &text[at..at + len], "{len} bytes from {at} to {to_at}");
            let beside = seen[..to_at].iter().chain(&seen[to_at + len..]);
            assert!(beside.into_iter().all(|byte| *byte == 0xee), "{len} bytes from {at} to {to_at} reach beyond");
            let mut part = vec![0; len];
            from.mr.read(at, &mut part);
            assert_eq!(part, text[at..at + len], "{len} bytes at {at}");
        }
    }
    assert_eq!(from.mr.read_array::<0>(LEN), [0; 0]);
    assert_eq!(from.mr.read_array::<13>(7), text[7..20]);
    assert_eq!(from.mr.read_array::<32>(LEN - 32), text[LEN - 32..]);
    let beyond = [
        catch_unwind(AssertUnwindSafe(|| assert_ne!(from.mr.read_array::<32>(LEN - 31), [0; 32]))),
        catch_unwind(AssertUnwindSafe(|| from.mr.copy_to(LEN - 7, &to.mr, 0, 8))),
        catch_unwind(AssertUnwindSafe(|| from.mr.copy_to(0, &to.mr, usize::MAX, 8))),
    ];
    assert!(beyond.iter().all(Result::is_err), "a copy beyond the region must panic");
    from.end();
    to.end();
}
