use std::cell::RefCell;

use report::facts::{Adapter, Cm, CmId, Cq, Mr, Pd, Port, Qp, QpCounters, Waits};
use verbs::{Gid, LinkLayer, QpState, QpType};
use view::hostaddr::HostGid;
use view::tree::Hardware;

use super::*;
use crate::message::{DONE, attribute, attributes, messages, number};

/// A world of one process, and perhaps a kernel that answers with given datagrams.
#[derive(Default)]
struct Small {
    /// softiw0 is there, too.
    both: bool,
    reports: Vec<Report>,
    kernel: Option<Vec<Vec<u8>>>,
    asked: RefCell<Vec<Vec<u8>>>,
}

impl World for Small {
    fn infos(&self) -> Vec<ViewInfo> {
        let gid = HostGid { gid: Gid::from_ip("192.0.2.2".parse().unwrap()), ifname: "eth0".into(), ifindex: 2 };
        let devices = if self.kernel.is_some() { vec!["mlx5_0".to_owned()] } else { Vec::new() };
        let first = ViewInfo {
            device: report::Device::Roce,
            place: 0,
            guid: 0x00fc_00ff_fe00_0001,
            link_layer: LinkLayer::Ethernet,
            gids: vec![gid],
            interfaces: vec!["eth0".into()],
            hostname: "host".into(),
            cpus: "0".into(),
            hardware: Hardware { devices, ..Hardware::default() },
        };
        let second = ViewInfo { device: report::Device::Iwarp, place: 1, guid: 0x0200_0000_0000_0002, ..first.clone() };
        if self.both { vec![first, second] } else { vec![first] }
    }

    fn reports(&self) -> Vec<Report> {
        self.reports.clone()
    }

    fn kernel(&self, request: &[u8]) -> Option<Vec<Vec<u8>>> {
        self.asked.borrow_mut().push(request.to_vec());
        self.kernel.clone()
    }
}

fn qp(number: u32) -> Qp {
    Qp {
        number,
        qp_type: QpType::Rc,
        state: QpState::Rts,
        pd: Some(4),
        send_cq: None,
        recv_cq: None,
        srq: None,
        peer: None,
        sq: None,
        rq: None,
        waits: Waits::default(),
        counters: QpCounters::default(),
    }
}

fn world(qps: u32) -> Small {
    let port = Port { packets_out: 5, ..Port::default() };
    let adapter = Adapter {
        contexts: 1,
        pds: 1,
        mrs: 1,
        pd_list: vec![Pd { handle: 4, users: 2 }],
        mr_list: vec![Mr { handle: 6, bytes: 4096, pd: 4 }],
        qps: (0..qps).map(|n| qp(100 + n)).collect(),
        cqs: vec![Cq { handle: 3, depth: 16, users: 1, ..Cq::default() }],
        port,
        ..Adapter::default()
    };
    let id = CmId { number: 1, phase: "listen".into(), src: Some("192.0.2.2:7471".into()), ..CmId::default() };
    let cm = Some(Cm { ids: vec![id], ..Cm::default() });
    Small { reports: vec![Report { pid: 77, adapter, cm, ..Report::default() }], ..Small::default() }
}

/// A request, and the answers' messages.
fn ask(world: &Small, command: u16, flags: u16, fill: impl FnOnce(&mut Writer)) -> Vec<(Header, Vec<u8>)> {
    let mut request = Writer::new(Header { kind: NLDEV << 10 | command, flags: REQUEST | flags, seq: 8, port: 0 });
    fill(&mut request);
    let datagrams = answer(&request.finish(), 1234, world);
    assert!(datagrams.iter().all(|one| one.len() <= 4096), "what libmnl's readers have room for");
    let all = datagrams.iter().flat_map(|datagram| messages(datagram));
    all.map(|(header, whole)| (header, whole[HEADER..].to_vec())).collect()
}

fn errno(answers: &[(Header, Vec<u8>)]) -> i32 {
    let (header, body) = answers.last().expect("an answer");
    assert_eq!(header.kind, ERROR);
    -i32::from_ne_bytes(body[..4].try_into().unwrap())
}

fn this(request: &mut Writer) {
    request.u32(attr::DEV_INDEX, 0);
}

#[test]
fn a_dump_lists_the_device_and_ends() {
    let answers = ask(&world(0), cmd::GET, DUMP, |_| {});
    assert_eq!(answers.iter().map(|(header, _)| header.kind).collect::<Vec<_>>(), [NLDEV << 10 | cmd::GET, DONE]);
    assert!(answers.iter().all(|(header, _)| (header.seq, header.port, header.flags) == (8, 1234, MULTI)));
    let body = &answers[0].1;
    assert_eq!(attribute(body, attr::DEV_NAME), Some(&b"softrnic0\0"[..]));
    assert_eq!(attribute(body, attr::DEV_PROTOCOL), Some(&b"roce\0"[..]));
    assert_eq!(attribute(body, attr::NODE_GUID), Some(&0x00fc_00ff_fe00_0001u64.to_ne_bytes()[..]));
}

#[test]
fn a_port_is_up_and_names_its_interface() {
    let answers = ask(&world(0), cmd::PORT_GET, ACK, |request| {
        this(request);
        request.u32(attr::PORT_INDEX, 1);
    });
    let body = &answers[0].1;
    // IB_PORT_ACTIVE, as `enum ib_port_state` of the kernel has it.
    assert_eq!(attribute(body, attr::PORT_STATE), Some(&[4][..]));
    assert_eq!(attribute(body, attr::NDEV_NAME), Some(&b"eth0\0"[..]));
    assert_eq!(errno(&answers), 0, "the acknowledgement");
}

#[test]
fn every_resource_is_shown_with_its_process() {
    let world = world(1);
    for (command, table, entry, id, want) in [
        (cmd::RES_QP_GET, attr::RES_QP, attr::RES_QP_ENTRY, attr::RES_LQPN, 100),
        (cmd::RES_CQ_GET, attr::RES_CQ, attr::RES_CQ_ENTRY, attr::RES_CQN, 3),
        (cmd::RES_MR_GET, attr::RES_MR, attr::RES_MR_ENTRY, attr::RES_MRN, 6),
        (cmd::RES_PD_GET, attr::RES_PD, attr::RES_PD_ENTRY, attr::RES_PDN, 4),
        (cmd::RES_CM_ID_GET, attr::RES_CM_ID, attr::RES_CM_ID_ENTRY, attr::RES_CM_IDN, 1),
        (cmd::RES_CTX_GET, attr::RES_CTX, attr::RES_CTX_ENTRY, attr::RES_CTXN, 0),
    ] {
        let answers = ask(&world, command, DUMP, this);
        let found = attribute(attribute(&answers[0].1, table).unwrap(), entry).unwrap();
        assert_eq!((number(found, id), number(found, attr::RES_PID)), (Some(want), Some(77)), "{command}");
        let one = ask(&world, command, 0, |request| {
            this(request);
            request.u32(id, want);
        });
        assert_eq!((one.len(), number(&one[0].1, attr::RES_PID)), (1, Some(77)), "{command}");
        let none = ask(&world, command, 0, |request| {
            this(request);
            request.u32(id, 4711);
        });
        assert_eq!(errno(&none), Errno::NOENT.raw_os_error());
    }
}

#[test]
fn each_of_two_devices_shows_its_own() {
    let mut world = Small { both: true, ..world(2) };
    world.reports[0].adapter.devices = vec!["softrnic0".into(), "softiw0".into()];
    world.reports[0].adapter.softiw0.qps = vec![101];
    let answers = ask(&world, cmd::GET, DUMP, |_| {});
    let names: Vec<_> = answers.iter().filter_map(|(_, body)| attribute(body, attr::DEV_NAME)).collect();
    assert_eq!(names, [&b"softrnic0\0"[..], b"softiw0\0"]);
    let indices: Vec<_> = answers.iter().filter_map(|(_, body)| number(body, attr::DEV_INDEX)).collect();
    assert_eq!(indices, [0, 1]);
    assert_eq!(attribute(&answers[1].1, attr::DEV_PROTOCOL), Some(&b"iw\0"[..]));
    for guid in [attr::NODE_GUID, attr::SYS_IMAGE_GUID] {
        let guids: Vec<_> = answers.iter().filter_map(|(_, body)| attribute(body, guid)).collect();
        let wanted = [0x00fc_00ff_fe00_0001u64, 0x0200_0000_0000_0002].map(u64::to_ne_bytes);
        assert_eq!(guids, wanted.each_ref().map(<[u8; 8]>::as_slice));
    }
    for (index, qpn) in [(0, 100), (1, 101)] {
        let answers = ask(&world, cmd::RES_QP_GET, DUMP, |request| request.u32(attr::DEV_INDEX, index));
        let table = attribute(&answers[0].1, attr::RES_QP).unwrap();
        let found: Vec<_> = attributes(table).filter_map(|(_, entry)| number(entry, attr::RES_LQPN)).collect();
        assert_eq!(found, [qpn], "device {index}");
    }
    let none = ask(&world, cmd::GET, 0, |request| request.u32(attr::DEV_INDEX, 2));
    assert_eq!(errno(&none), Errno::INVAL.raw_os_error());
}

#[test]
fn a_long_table_comes_in_parts() {
    let answers = ask(&world(300), cmd::RES_QP_GET, DUMP, this);
    assert!(answers.len() > 3);
    let tables = answers.iter().filter_map(|(_, body)| attribute(body, attr::RES_QP));
    assert_eq!(tables.map(|table| attributes(table).count()).sum::<usize>(), 300);
}

#[test]
fn counters_are_those_of_all_processes() {
    let mut world = world(0);
    world.reports.push(world.reports[0].clone());
    let answers = ask(&world, cmd::STAT_GET, 0, |request| {
        this(request);
        request.u32(attr::PORT_INDEX, 1);
    });
    let first = attribute(attribute(&answers[0].1, attr::STAT_HWCOUNTERS).unwrap(), attr::STAT_HWCOUNTER_ENTRY);
    assert!(first.is_some());
    let mut entries = attributes(attribute(&answers[0].1, attr::STAT_HWCOUNTERS).unwrap());
    let sent = entries.find(|(_, entry)| attribute(entry, attr::STAT_HWCOUNTER_ENTRY_NAME) == Some(b"sent_pkts\0"));
    let value = attribute(sent.unwrap().1, attr::STAT_HWCOUNTER_ENTRY_VALUE);
    assert_eq!(value, Some(&10u64.to_ne_bytes()[..]));
}

#[test]
fn what_is_not_known_is_refused_as_the_kernel_does() {
    let world = world(0);
    for (command, flags, device, want) in [
        (77, 0, Some(0), Errno::INVAL),
        (77, DUMP, Some(0), Errno::INVAL),
        (cmd::GET, 0, None, Errno::INVAL),
        (cmd::GET, 0, Some(5), Errno::INVAL),
        (cmd::RES_QP_GET, DUMP, None, Errno::INVAL),
        (cmd::RES_QP_GET, 0, Some(0), Errno::INVAL),
        (cmd::SET, 0, Some(0), Errno::OPNOTSUPP),
        (cmd::GET_CHARDEV, 0, Some(0), Errno::OPNOTSUPP),
        (cmd::PORT_GET, 0, Some(0), Errno::INVAL),
    ] {
        let answers = ask(&world, command, flags, |request| {
            if let Some(index) = device {
                request.u32(attr::DEV_INDEX, index);
            }
        });
        assert_eq!(errno(&answers), want.raw_os_error(), "{command} {flags:#x} {device:?}");
    }
    let other_client = Writer::new(Header { kind: 2 << 10, flags: REQUEST, seq: 1, port: 0 }).finish();
    assert_eq!(answer(&other_client, 1, &world).len(), 1);
    assert!(answer(&[0xff; 64], 1, &world).is_empty(), "no message");
}

#[test]
fn real_adapters_follow_and_keep_their_numbers() {
    let mut world = world(0);
    let header = Header { kind: NLDEV << 10 | cmd::GET, flags: MULTI, seq: 8, port: 99 };
    let mut real = Writer::new(header);
    real.u32(attr::DEV_INDEX, 0);
    real.text(attr::DEV_NAME, "mlx5_0");
    world.kernel = Some(vec![[real.finish(), message::done(header)].concat()]);
    let answers = ask(&world, cmd::GET, DUMP, |_| {});
    let names: Vec<_> = answers.iter().filter_map(|(_, body)| attribute(body, attr::DEV_NAME)).collect();
    assert_eq!(names, [&b"softrnic0\0"[..], b"mlx5_0\0"]);
    assert_eq!(number(&answers[0].1, attr::DEV_INDEX), Some(1));
    assert!(answers.iter().all(|(header, _)| header.port == 1234));
    assert_eq!(answers.iter().filter(|(header, _)| header.kind == DONE).count(), 1);
    // The kernel answers a request about an adapter.
    let asked = world.asked.borrow().len();
    let answers = ask(&world, cmd::RES_QP_GET, DUMP, this);
    assert!(world.asked.borrow().len() > asked);
    assert_eq!(attribute(&answers[0].1, attr::DEV_NAME), Some(&b"mlx5_0\0"[..]));
}
