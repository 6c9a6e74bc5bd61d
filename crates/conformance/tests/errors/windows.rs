//! Binding windows wrongly: IBV_WC_MW_BIND_ERR, and the queue pair goes to ERR (IBTA vol. 1, 10.6.6.2, 10.6.7.2, 11.6.2).

use conformance::{Bed, Joint};
use rdma::{Access, Bind, Data, MwKind, QpState, QpType, SendOp, SendWr, Status};

use crate::pair::{End, pair, region};

fn fails(a: &End, op: SendOp<'_>, what: &str) {
    let wrs = [SendWr::new(1, op, Data::Sges(&[])), SendWr::new(2, SendOp::Send, Data::Sges(&[]))];
    a.recv(200, &[]);
    a.qp.post_sends(&wrs).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    let wanted = [(1, Status(rdma::sys::IBV_WC_MW_BIND_ERR)), (2, Status::FLUSHED), (200, Status::FLUSHED)];
    assert_eq!(a.completions(3), wanted, "{what}");
    assert_eq!(a.state(), QpState::Err, "{what}");
}

#[test]
fn bad_binds() {
    let bed = Bed::open();
    let whole = region(&bed, 4096);
    let unbindable = bed.pd.reg_mr(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("ibv_reg_mr");
    let readonly = bed.pd.reg_mr(4096, Access::REMOTE_READ | Access::MW_BIND).expect("ibv_reg_mr");
    let other = bed.context.alloc_pd().expect("ibv_alloc_pd");
    let foreign = other.reg_mr(4096, Access::LOCAL_WRITE | Access::MW_BIND).expect("ibv_reg_mr");
    let write = Access::REMOTE_WRITE;
    let cases = [
        ("one byte too long", &whole, 0, 4097, write),
        ("one byte too far", &whole, 4096, 1, write),
        ("no bytes", &whole, 0, 0, write),
        ("a region without MW_BIND", &unbindable, 0, 8, write),
        ("write on a region without LOCAL_WRITE", &readonly, 0, 8, write),
        ("a region of another domain", &foreign, 0, 8, write),
    ];
    for (what, mr, offset, len, access) in cases {
        let (a, _b) = pair(&bed, QpType::Rc, &Joint::default());
        let mw = bed.pd.alloc_mw(MwKind::Type2).expect("ibv_alloc_mw");
        fails(&a, SendOp::BindMw(Bind { mw: &mw, rkey: mw.rkey(), mr, offset, len, access }), what);
    }
    let (a, _b) = pair(&bed, QpType::Rc, &Joint::default());
    let mw = bed.pd.alloc_mw(MwKind::Type2).expect("ibv_alloc_mw");
    let bind = Bind { mw: &mw, rkey: mw.rkey() ^ 0x100, mr: &whole, offset: 0, len: 8, access: write };
    fails(&a, SendOp::BindMw(bind), "another window's key");
    let (a, _b) = pair(&bed, QpType::Rc, &Joint::default());
    let mw = other.alloc_mw(MwKind::Type2).expect("ibv_alloc_mw");
    let bind = Bind { mw: &mw, rkey: mw.rkey(), mr: &whole, offset: 0, len: 8, access: write };
    fails(&a, SendOp::BindMw(bind), "a window of another domain");
    let (a, _b) = pair(&bed, QpType::Rc, &Joint::default());
    let mw = bed.pd.alloc_mw(MwKind::Type2).expect("ibv_alloc_mw");
    let bind = Bind { mw: &mw, rkey: mw.rkey(), mr: &whole, offset: 0, len: 8, access: write };
    a.qp.post_send(&SendWr::new(0, SendOp::BindMw(bind), Data::Sges(&[]))).expect("ibv_post_send");
    assert_eq!(a.completions(1), [(0, Status::SUCCESS)]);
    fails(&a, SendOp::BindMw(bind), "a window that is bound");
}

#[test]
fn bad_invalidations() {
    let bed = Bed::open();
    let mr = region(&bed, 64);
    let mw = bed.pd.alloc_mw(MwKind::Type2).expect("ibv_alloc_mw");
    for (what, key) in [("a window that is not bound", mw.rkey()), ("a region", mr.rkey()), ("nothing", 0)] {
        let (a, _b) = pair(&bed, QpType::Rc, &Joint::default());
        fails(&a, SendOp::LocalInv(key), what);
    }
}
