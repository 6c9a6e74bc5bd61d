//! The time for which a window is bound (IBTA vol. 1, 10.6.7.2.2, 10.6.7.2.3).

use conformance::{Fixture, Joined};
use rdma::{Access, Bind, Data, Mr, Mw, MwKind, QpState, QpType, SendFlags, SendOp, SendWr, Status};

use crate::pair::{End, pair, region};

const OK: Status = Status::SUCCESS;
const LEN: usize = 64;

fn binding<'a>(mw: &'a Mw, mr: &'a Mr) -> Bind<'a> {
    let rkey = mw.rkey() & !0xff | mw.rkey().wrapping_add(1) & 0xff;
    Bind { mw, rkey, mr, offset: 0, len: LEN as u64, access: Access::REMOTE_WRITE }
}

fn run(end: &End, op: SendOp<'_>, data: Data<'_>) -> Status {
    end.qp.post_send(&SendWr::new(1, op, data)).expect("ibv_post_send");
    end.completions(1)[0].1
}

/// A window of type 2 is free again when its queue pair is reset or destroyed.
#[test]
fn a_window_of_type_two_goes_with_its_queue_pair() {
    let fixture = Fixture::open();
    let mr = region(&fixture, LEN);
    for destroy in [false, true] {
        let mw = fixture.pd.alloc_mw(MwKind::Type2).expect("ibv_alloc_mw");
        let (a, _a) = pair(&fixture, QpType::Rc, &Joined::default());
        let (b, _b) = pair(&fixture, QpType::Rc, &Joined::default());
        assert_eq!(run(&a, SendOp::BindMw(binding(&mw, &mr)), Data::Sges(&[])), OK);
        match destroy {
            true => drop(a),
            false => a.qp.set_state(QpState::Reset).expect("to RESET"),
        }
        assert_eq!(run(&b, SendOp::BindMw(binding(&mw, &mr)), Data::Sges(&[])), OK, "destroyed: {destroy}");
    }
}

/// A window of type 1 belongs to its domain.
#[test]
fn a_window_of_type_one_stays_bound_without_its_queue_pair() {
    let fixture = Fixture::open();
    let (mr, source) = (region(&fixture, LEN), region(&fixture, LEN));
    let mw = fixture.pd.alloc_mw(MwKind::Type1).expect("ibv_alloc_mw");
    let (a, _a) = pair(&fixture, QpType::Rc, &Joined::default());
    a.qp.bind_mw(1, SendFlags::SIGNALED, &binding(&mw, &mr)).expect("ibv_bind_mw");
    assert_eq!(a.completions(1), [(1, OK)]);
    drop(a);
    source.write(0, &[0xa5; LEN]);
    let (b, _b) = pair(&fixture, QpType::Rc, &Joined::default());
    let list = [source.sge(0, LEN)];
    assert_eq!(run(&b, SendOp::Write { addr: mr.addr(), rkey: mw.rkey() }, Data::Sges(&list)), OK);
    let mut found = [0; LEN];
    mr.read(0, &mut found);
    assert_eq!(found, [0xa5; LEN]);
}

/// A window does not begin where its region does: by address, or counted from its first byte.
#[test]
fn addresses_of_a_window() {
    let fixture = Fixture::open();
    let (mr, source) = (region(&fixture, 4 * LEN), region(&fixture, LEN));
    source.write(0, &[0xa5; LEN]);
    for (at, zero_based) in [(LEN, false), (2 * LEN, true)] {
        let mw = fixture.pd.alloc_mw(MwKind::Type2).expect("ibv_alloc_mw");
        let (a, b) = pair(&fixture, QpType::Rc, &Joined::default());
        let mut access = Access::REMOTE_WRITE;
        access.set(Access::ZERO_BASED, zero_based);
        let bind = Bind { offset: at as u64, access, ..binding(&mw, &mr) };
        assert_eq!(run(&b, SendOp::BindMw(bind), Data::Sges(&[])), OK);
        let addr = if zero_based { 0 } else { mr.addr() + at as u64 };
        let list = [source.sge(0, LEN)];
        assert_eq!(run(&a, SendOp::Write { addr, rkey: bind.rkey }, Data::Sges(&list)), OK);
        let mut found = [0; 4 * LEN];
        mr.read(0, &mut found);
        let mut wanted = [0; 4 * LEN];
        wanted[LEN..at + LEN].fill(0xa5);
        assert!(found == wanted, "zero-based: {zero_based}");
    }
}

/// The address in the request is aligned, wherever the memory lies (9.4.5).
#[test]
fn an_atomic_is_aligned_by_its_address() {
    let fixture = Fixture::open();
    let (mr, result) = (region(&fixture, LEN + 4), region(&fixture, 8));
    // The first is aligned in memory only, the second by its address only: there is no such word for this processor.
    for addr in [4, 8] {
        let mw = fixture.pd.alloc_mw(MwKind::Type2).expect("ibv_alloc_mw");
        let (a, b) = pair(&fixture, QpType::Rc, &Joined::default());
        let access = Access::REMOTE_ATOMIC | Access::ZERO_BASED;
        let bind = Bind { offset: 4, access, ..binding(&mw, &mr) };
        assert_eq!(run(&b, SendOp::BindMw(bind), Data::Sges(&[])), OK);
        let list = [result.sge(0, 8)];
        let op = SendOp::FetchAdd { addr, rkey: bind.rkey, add: 1 };
        assert_eq!(run(&a, op, Data::Sges(&list)), Status::REMOTE_INVALID_REQUEST, "address {addr}");
        b.reaches(QpState::Err);
    }
}

/// Of a new key only the low 8 bits are the program's; the others stay the window's (11.4.1.1). The post puts the whole
/// key into `mw->rkey`.
#[test]
fn of_a_new_key_only_the_low_byte_counts() {
    let fixture = Fixture::open();
    let mr = region(&fixture, LEN);
    let mw = fixture.pd.alloc_mw(MwKind::Type2).expect("ibv_alloc_mw");
    let (a, b) = pair(&fixture, QpType::Rc, &Joined::default());
    let (old, list) = (mw.rkey(), [mr.sge(0, LEN)]);
    assert_eq!(run(&a, SendOp::BindMw(Bind { rkey: 0x12_3456, ..binding(&mw, &mr) }), Data::Sges(&[])), OK);
    assert_eq!(mw.rkey(), old & !0xff | 0x56);
    assert_eq!(run(&b, SendOp::Write { addr: mr.addr(), rkey: mw.rkey() }, Data::Sges(&list)), OK);
    assert_eq!(run(&a, SendOp::LocalInv(mw.rkey()), Data::Sges(&[])), OK);
    // A request that is not posted leaves the key as it is.
    let bind = Bind { rkey: 1, ..binding(&mw, &mr) };
    assert!(a.qp.post_send(&SendWr::new(1, SendOp::BindMw(bind), Data::Inline(&[&[0]]))).is_err());
    assert_eq!(mw.rkey(), old & !0xff | 0x56);
}

/// A bind may be executed before the request that was posted in front of it is acknowledged (10.8.3.3, 10.3.1.7). If
/// that request fails, the bind is flushed nevertheless: nothing completes with success behind a failure.
#[test]
fn a_bind_behind_a_failure_is_flushed() {
    let fixture = Fixture::open();
    let mr = region(&fixture, LEN);
    let mw = fixture.pd.alloc_mw(MwKind::Type2).expect("ibv_alloc_mw");
    let (a, _b) = pair(&fixture, QpType::Rc, &Joined::default());
    let list = [mr.sge(0, LEN)];
    let wrs = [
        SendWr::new(1, SendOp::Write { addr: mr.addr(), rkey: mr.rkey() ^ 1 }, Data::Sges(&list)),
        SendWr::new(2, SendOp::BindMw(binding(&mw, &mr)), Data::Sges(&[])),
        SendWr::new(3, SendOp::Write { addr: mr.addr(), rkey: mr.rkey() }, Data::Sges(&list)),
    ];
    a.qp.post_sends(&wrs).expect("ibv_post_send");
    let wanted = [(1, Status::REMOTE_ACCESS), (2, Status::FLUSHED), (3, Status::FLUSHED)];
    assert_eq!(a.completions(3), wanted);
}
