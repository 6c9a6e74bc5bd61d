use std::os::unix::ffi::OsStringExt;

use super::*;

/// The settings of an environment of these variables.
fn with(pairs: &[(&str, &str)]) -> Settings {
    Settings::from_lookup(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
}

#[test]
fn nothing_is_asked_for_by_an_empty_environment() {
    let expected = Settings {
        log: LogLevel::Obstacles,
        any_user: false,
        single_copy: None,
        single_copy_above: None,
        migrate: false,
        signal: true,
        fault: None,
        infiniband: false,
        devices: Devices::Roce,
        mpa_crc: true,
        mpa_fpdu: None,
        tcp_timeout: None,
        pcap: None,
        pcap_snaplen: Ok(0),
        permit_ptrace: false,
        view: None,
        with_hardware: false,
        runtime_dir: None,
        temporary_dir: None,
        sysfs: None,
    };
    assert_eq!(Settings::default(), expected);
    // What is no text, and what makes no sense, is as if it were not there.
    let bytes = Settings::from_lookup(|name| (name.contains("LOG")).then(|| OsString::from_vec(vec![0xff])));
    assert_eq!(bytes, expected);
    let garbled = [
        ("SOFTRNIC_PEERS", "all"),
        ("SOFTRNIC_SINGLE_COPY", "x"),
        ("SOFTRNIC_SINGLE_COPY_ABOVE", "many"),
        ("SOFTRNIC_MIGRATE", "yes"),
        ("SOFTRNIC_SIGNAL", "no"),
        ("SOFTRNIC_FAULT", ""),
        ("SOFTRNIC_LINK_LAYER", "token ring"),
        ("SOFTRNIC_DEVICE", "all of them"),
        ("SOFTRNIC_MPA_CRC", "no"),
        ("SOFTRNIC_MPA_FPDU", "135"),
        ("SOFTRNIC_TCP_TIMEOUT", "0"),
        ("SOFTRNIC_PCAP", ""),
        ("SOFTRNIC_PERMIT_PTRACE", "0"),
        ("SOFTRNIC_WITH_HARDWARE", ""),
        ("XDG_RUNTIME_DIR", "here"),
        ("TMPDIR", "tmp"),
        ("SYSFS_PATH", ""),
    ];
    assert_eq!(with(&garbled), expected);
}

#[test]
fn each_variable_has_its_field() {
    for (value, level) in [
        ("", LogLevel::Obstacles),
        ("0", LogLevel::Off),
        ("off", LogLevel::Off),
        ("error", LogLevel::Errors),
        ("1", LogLevel::Errors),
    ] {
        assert_eq!(with(&[("SOFTRNIC_LOG", value)]).log, level, "{value:?}");
    }
    let is = |name, value, expected: fn(&mut Settings)| {
        let mut settings = Settings::default();
        expected(&mut settings);
        assert_eq!(with(&[(name, value)]), settings, "{name}={value}");
    };
    is("SOFTRNIC_PEERS", "any", |s| s.any_user = true);
    is("SOFTRNIC_SINGLE_COPY", "0", |s| s.single_copy = Some(false));
    is("SOFTRNIC_SINGLE_COPY", "1", |s| s.single_copy = Some(true));
    is("SOFTRNIC_SINGLE_COPY_ABOVE", " 4096 ", |s| s.single_copy_above = Some(4096));
    is("SOFTRNIC_MIGRATE", "1", |s| s.migrate = true);
    is("SOFTRNIC_SIGNAL", "0", |s| s.signal = false);
    is("SOFTRNIC_FAULT", "drop:n=1", |s| s.fault = Some("drop:n=1".into()));
    is("SOFTRNIC_LINK_LAYER", "infiniband", |s| s.infiniband = true);
    is("SOFTRNIC_DEVICE", "iwarp", |s| s.devices = Devices::Iwarp);
    is("SOFTRNIC_DEVICE", "all", |s| s.devices = Devices::All);
    is("SOFTRNIC_MPA_CRC", "0", |s| s.mpa_crc = false);
    is("SOFTRNIC_MPA_FPDU", "1448", |s| s.mpa_fpdu = Some(1448));
    is("SOFTRNIC_MPA_FPDU", "70000", |s| s.mpa_fpdu = None);
    is("SOFTRNIC_TCP_TIMEOUT", "30", |s| s.tcp_timeout = Some(30));
    is("SOFTRNIC_TCP_TIMEOUT", "86401", |s| s.tcp_timeout = None);
    is("SOFTRNIC_PCAP", "a file", |s| s.pcap = Some("a file".into()));
    is("SOFTRNIC_PCAP_SNAPLEN", "96", |s| s.pcap_snaplen = Ok(96));
    is("SOFTRNIC_PCAP_SNAPLEN", "x", |s| {
        s.pcap_snaplen = Err("SOFTRNIC_PCAP_SNAPLEN=x is not a number of bytes".into());
    });
    is("SOFTRNIC_PERMIT_PTRACE", "1", |s| s.permit_ptrace = true);
    is("SOFTRNIC_VIEW", "/v", |s| s.view = Some("/v".into()));
    is("SOFTRNIC_WITH_HARDWARE", "1", |s| s.with_hardware = true);
    is("XDG_RUNTIME_DIR", "/r", |s| s.runtime_dir = Some("/r".into()));
    is("TMPDIR", "/t", |s| s.temporary_dir = Some("/t".into()));
    is("SYSFS_PATH", "/s/", |s| s.sysfs = Some("/s/".into()));
}
