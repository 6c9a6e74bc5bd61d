//! One process that sends to itself, by events: no thread polls, and no peer rings.

use std::time::{Duration, Instant};

use nic::{CqOpts, Nic};
use verbs::*;

#[test]
fn events_over_the_loopback_link() {
    let nic = Nic::get().unwrap();
    let context = nic.open(report::Device::Roce).unwrap();
    let pd = nic.lock().alloc_pd(context.id).unwrap();
    let memory = Box::leak(vec![0u64; 64].into_boxed_slice());
    let addr = memory.as_ptr() as u64;
    let (_, key, _) = nic.reg_mr(pd, addr, 512, addr, Access::LOCAL_WRITE).unwrap();
    let (cq, _) = nic.lock().create_cq(context.id, 256, 1, CqOpts::default()).unwrap();
    let channel = nic.create_channel().unwrap();
    nic.bind_cq_channel(cq, &channel);
    let init = QpInit {
        pd: Some(pd),
        qp_type: QpType::Uc,
        send_cq: Some(cq),
        recv_cq: Some(cq),
        srq: None,
        xrcd: None,
        cap: QpCap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 0 },
        sq_sig_all: false,
    };
    let (qp, created) = nic.create_qp(context.id, &init, 2).unwrap();
    let mut attr = QpAttr {
        path_mtu: 5,
        dest_qp_num: created.qpn.get(),
        ah: AhAttr { dgid: nic.gids(report::Device::Roce)[0].gid, is_global: true, port_num: 1, ..Default::default() },
        port_num: 1,
        ..Default::default()
    };
    for pair in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts].windows(2) {
        attr.state = pair[1];
        let (mask, _) = state::transition(QpType::Uc, pair[0], pair[1]).unwrap();
        nic.modify_qp(qp, &attr, mask | QpAttrMask::STATE).unwrap();
    }
    let sges = [Sge { addr, length: 8, lkey: LKey(key.0) }];
    // A wait that would hang is ended here, and fails by the time it took: far longer than a busy machine needs.
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_secs(30));
            nic.poll_cq(cq, 0, |_, _| {});
        }
    });
    let mut wc = Completion::default();
    for i in 0..5 {
        nic.post_recv(qp, &RecvWr { wr_id: i, sges: &sges }).unwrap();
        nic.arm_cq(cq, false).unwrap();
        std::thread::sleep(Duration::from_millis(20)); // the NIC thread falls asleep
        let start = Instant::now();
        let wr = SendWr {
            wr_id: i,
            opcode: Opcode::Send,
            flags: SendFlags::empty(),
            imm_or_rkey: 0,
            remote_srqn: 0,
            body: &SendBody::Plain,
            data: SendData::Sges(&sges),
        };
        nic.post_send(qp, &wr).unwrap();
        assert_eq!(nic.get_cq_event(&channel), Ok(1));
        nic.ack_cq_events(cq, 1);
        assert!(start.elapsed() < Duration::from_secs(10), "no thread looked at the loopback link");
        assert_eq!(nic.poll_cq(cq, 4, |_, completion| wc = *completion), 1);
        assert_eq!((wc.status, wc.wr_id), (WcStatus::Success, i));
    }
}

/// `ibv_rereg_mr(3)`. Also where only the rights change, LOCAL_WRITE is not given for memory that is not writable: the
/// library's own stores would fault.
#[test]
fn new_rights_for_read_only_memory() {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let nic = Nic::get().unwrap();
    let context = nic.open(report::Device::Roce).unwrap();
    let pd = nic.lock().alloc_pd(context.id).unwrap();
    // SAFETY: a new mapping, anywhere.
    let page = unsafe { mmap_anonymous(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE) }.unwrap();
    let (mr, _, _) = nic.reg_mr(pd, page as u64, 4096, page as u64, Access::empty()).unwrap();
    assert_eq!(nic.rereg_mr(mr, None, None, Some(Access::LOCAL_WRITE)), Err(Errno::EFAULT));
    assert!(nic.rereg_mr(mr, None, None, Some(Access::REMOTE_READ)).is_ok());
}

/// Registered memory comes into huge pages where the host has some. Memory that is only read, and so may be sparse, is
/// left as it is.
#[test]
fn huge_pages_for_what_is_written() {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    const LEN: u64 = 6 << 20;
    // SAFETY: a new mapping, anywhere.
    let mapping =
        |rights| unsafe { mmap_anonymous(std::ptr::null_mut(), LEN as usize, rights, MapFlags::PRIVATE) }.unwrap();
    let huge_kib = || -> u64 {
        let all = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        all.lines()
            .find_map(|line| line.strip_prefix("AnonHugePages:")?.strip_suffix("kB")?.trim().parse().ok())
            .unwrap()
    };
    let nic = Nic::get().unwrap();
    let context = nic.open(report::Device::Roce).unwrap();
    let pd = nic.lock().alloc_pd(context.id).unwrap();
    let read = mapping(ProtFlags::READ) as u64;
    let before = huge_kib();
    nic.reg_mr(pd, read, LEN, read, Access::REMOTE_READ).unwrap();
    assert_eq!(huge_kib(), before);
    let written = mapping(ProtFlags::READ | ProtFlags::WRITE) as u64;
    nic.reg_mr(pd, written, LEN, written, Access::LOCAL_WRITE).unwrap();
    let gained = huge_kib() - before;
    // Tests whether there are huge pages now: the result is Ok as well where the host wants none.
    let other = mapping(ProtFlags::READ | ProtFlags::WRITE) as u64;
    memory::local::populate(other, LEN, true).unwrap();
    let there_are = memory::huge::collapse(other, LEN).is_ok() && huge_kib() - before > gained;
    assert!(!there_are || gained >= 2048, "{gained} KiB");
}
