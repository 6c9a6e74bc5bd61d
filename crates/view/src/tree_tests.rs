use super::*;

pub(crate) fn info() -> ViewInfo {
    let gid = |ip: &str, ifname: &str, ifindex| HostGid {
        gid: Gid::from_ip(ip.parse().unwrap()),
        ifname: ifname.into(),
        ifindex,
    };
    ViewInfo {
        device: Device::Roce,
        place: 0,
        guid: 0x00fc_00ff_fe00_0001,
        link_layer: LinkLayer::Ethernet,
        gids: vec![gid("192.0.2.2", "eth0", 2), gid("fe80::1", "eth0", 2), gid("fe80::2", "eth1", 3)],
        interfaces: vec!["eth0".into(), "eth1".into()],
        hostname: "host".into(),
        cpus: "0-3,8".into(),
        hardware: Hardware::default(),
    }
}

fn text(entries: &[Entry], path: &str) -> String {
    match entries.iter().find(|entry| entry.path == path).map(|entry| &entry.kind) {
        Some(Kind::File(text)) => text.clone(),
        other => panic!("{path}: {other:?}"),
    }
}

#[test]
fn parents_come_first_and_names_are_unique() {
    let entries = entries(&[info()]);
    for (i, entry) in entries.iter().enumerate() {
        assert!(entries[..i].iter().all(|other| other.path != entry.path), "{} twice", entry.path);
        if let Some((parent, _)) = entry.path.rsplit_once('/') {
            let found = entries[..i].iter().find(|other| other.path == parent);
            assert_eq!(found.map(|dir| &dir.kind), Some(&Kind::Dir), "parent of {}", entry.path);
        }
    }
}

#[test]
fn files_say_what_sysfs_says() {
    let entries = entries(&[info()]);
    let text = |path: &str| text(&entries, &format!("class/infiniband/softrnic0/{path}"));
    assert_eq!(text("node_type"), "1: CA\n");
    assert_eq!(text("node_guid"), "00fc:00ff:fe00:0001\n");
    assert_eq!(text("node_desc"), "host softrnic0\n");
    assert_eq!(text("ports/1/gids/0"), "0000:0000:0000:0000:0000:ffff:c000:0202\n");
    assert_eq!(text("ports/1/gid_attrs/types/2"), "RoCE v2\n");
    assert_eq!(text("ports/1/gid_attrs/ndevs/2"), "eth1\n");
    assert_eq!(text("ports/1/gids/15"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
    assert_eq!(text("ports/1/pkeys/0"), "0xffff\n");
    assert_eq!(text("device/local_cpus"), "10f\n");
    assert_eq!(text("device/numa_node"), "-1\n");
}

#[test]
fn a_port_of_infiniband_has_a_lid_and_no_interface_behind_its_gid() {
    let mut info = info();
    info.link_layer = LinkLayer::InfiniBand { lid: 0x3b7 };
    info.gids = vec![HostGid { gid: Gid([0xfe; 16]), ifname: String::new(), ifindex: 0 }];
    let entries = entries(std::slice::from_ref(&info));
    let text = |path: &str| text(&entries, &format!("class/infiniband/softrnic0/ports/1/{path}"));
    assert_eq!(text("link_layer"), "InfiniBand\n");
    assert_eq!(text("lid"), "0x3b7\n");
    assert_eq!(text("sm_lid"), "0x1\n");
    assert_eq!(text("gid_attrs/types/0"), "IB/RoCE v1\n");
    let found = |end: &str| entries.iter().find(|entry| entry.path.ends_with(end)).map(|entry| &entry.kind);
    assert_eq!(found("gid_attrs/ndevs/0"), Some(&Kind::Link(UNREADABLE.into())));
    assert!(found("device/net/eth0").is_some(), "the interfaces that the device serves");
}

/// Linux has a file for each index of the table, and EINVAL from reading that of an empty entry.
#[test]
fn attributes_of_empty_gids_are_there_and_cannot_be_read() {
    let info = info();
    let entries = entries(std::slice::from_ref(&info));
    for dir in ["types", "ndevs"] {
        for n in 0..hostaddr::table_len(info.gids.len()) {
            let path = format!("class/infiniband/softrnic0/ports/1/gid_attrs/{dir}/{n}");
            let kind = entries.iter().find(|entry| entry.path == path).map(|entry| &entry.kind);
            match (n < info.gids.len(), kind) {
                (true, Some(Kind::File(_))) => {}
                (false, Some(Kind::Link(target))) => {
                    let error = std::fs::read(target).expect_err(&path);
                    assert_eq!(error.raw_os_error(), Some(io::Errno::INVAL.raw_os_error()), "{path}");
                }
                (_, other) => panic!("{path}: {other:?}"),
            }
        }
    }
}

#[test]
fn hardware_is_listed_beside_and_keeps_its_numbers() {
    let mut info = info();
    let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    info.hardware = Hardware {
        devices: strings(&["mlx5_0"]),
        verbs: strings(&["abi_version", "uverbs0", "uverbs1"]),
        mad: strings(&["abi_version", "umad0"]),
        nodes: strings(&["rdma_cm", "uverbs0", "uverbs1"]),
    };
    assert_eq!(info.uverbs_index(), 2);
    let entries = entries(std::slice::from_ref(&info));
    let link = |path: &str, target: &str| {
        assert!(entries.contains(&Entry { path: path.into(), kind: Kind::Link(target.into()) }), "{path}");
    };
    link("class/infiniband/mlx5_0", "/sys/class/infiniband/mlx5_0");
    link("class/infiniband_verbs/uverbs1", "/sys/class/infiniband_verbs/uverbs1");
    link("class/infiniband_mad/umad0", "/sys/class/infiniband_mad/umad0");
    link("dev/infiniband/rdma_cm", "/dev/infiniband/rdma_cm");
    assert_eq!(text(&entries, "class/infiniband_verbs/uverbs2/dev"), "231:194\n");
    link("dev/infiniband/uverbs2", "/dev/null");
}

#[test]
fn two_devices_have_two_trees_and_two_numbers() {
    let first = info();
    let gids = vec![HostGid { gid: Gid([2; 16]), ifname: String::new(), ifindex: 0 }];
    let second = ViewInfo { device: Device::Iwarp, place: 1, gids, ..first.clone() };
    let entries = entries(&[first, second]);
    assert_eq!(text(&entries, "class/infiniband/softrnic0/node_type"), "1: CA\n");
    assert_eq!(text(&entries, "class/infiniband/softiw0/node_type"), "4: RNIC\n");
    assert_eq!(text(&entries, "class/infiniband_verbs/uverbs0/ibdev"), "softrnic0\n");
    assert_eq!(text(&entries, "class/infiniband_verbs/uverbs1/ibdev"), "softiw0\n");
    assert_eq!(text(&entries, "class/infiniband_verbs/uverbs1/dev"), "231:193\n");
    let count = |path: &str| entries.iter().filter(|entry| entry.path == path).count();
    for path in ["dev/infiniband/uverbs0", "dev/infiniband/uverbs1", "dev/infiniband/rdma_cm", "class"] {
        assert_eq!(count(path), 1, "{path}");
    }
}

#[test]
fn each_device_of_this_host_has_its_own_guid() {
    let infos = ViewInfo::of(Devices::All, LinkLayer::Ethernet, false);
    let found: Vec<_> = infos.iter().map(|info| (info.device, info.guid)).collect();
    assert_eq!(found, [Device::Roce, Device::Iwarp].map(|device| (device, crate::hostaddr::guid_of(device))));
}

#[test]
fn equal_content_has_an_equal_name() {
    let mut other = info();
    other.gids.pop();
    assert_eq!(content_hash(&entries(&[info()])), content_hash(&entries(&[info()])));
    assert_ne!(content_hash(&entries(&[info()])), content_hash(&entries(&[other])));
}

#[test]
fn masks_have_groups_of_32() {
    assert_eq!(cpu_mask("0"), "1");
    assert_eq!(cpu_mask("0-31"), "ffffffff");
    assert_eq!(cpu_mask("0,32-33,64"), "1,00000003,00000001");
    assert_eq!(cpu_mask("junk"), "0");
}
