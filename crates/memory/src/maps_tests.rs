use super::*;

fn parsed(line: &str) -> Mapping {
    Mapping::parse(line.as_bytes()).unwrap()
}

#[test]
fn lines() {
    let m = parsed("7f0000001000-7f0000003000 rw-s 00005000 103:0a 4711                      /dev/shm/a b (deleted)");
    assert_eq!((m.start, m.end, m.offset), (0x7f00_0000_1000, 0x7f00_0000_3000, 0x5000));
    assert_eq!((m.device, m.inode, m.name), ((0x103, 10), 4711, Name::Other));
    assert!(m.read && m.write && !m.execute && m.shared);
    let m = parsed("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]");
    assert!(!m.read && !m.write && m.execute && !m.shared && m.name == Name::Other && m.end == 0xffff_ffff_ff60_1000);
    for (name, kind) in [
        ("", Name::None),
        ("   [heap]", Name::Heap),
        ("   [anon:mine]", Name::None),
        ("   [anon:[stack]]", Name::None),
        ("   [stack]", Name::Other),
        ("   [anon_shmem:x]", Name::Other),
        ("   /SYSV00000000 (deleted)", Name::Other),
        ("   [heap] ", Name::Other),
    ] {
        assert_eq!(parsed(&format!("1000-2000 rw-p 00000000 00:00 0 {name}")).name, kind, "{name:?}");
    }
    for bad in ["", "1000", "1000-2000", "1000-2000 rw-p", "1000-2000 rwp 0 00:00 0", "1000-x rw-p 0 00:00 0", "\u{e4}"]
    {
        assert!(Mapping::parse(bad.as_bytes()).is_none(), "{bad:?}");
    }
}

#[test]
fn flags() {
    for (lines, usual) in [
        (&["VmFlags: rd wr mr mw me ac "][..], true),
        (&["VmFlags: rd wr mr mw me nr sd hg", "ProtectionKey:         0"], true),
        (&["ProtectionKey:         0", "VmFlags: rd wr mr mw me ac "], true),
        (&["ProtectionKey:         1", "VmFlags: rd wr mr mw me ac "], false),
        (&["VmFlags: rd wr mr mw me ac ", "ProtectionKey:         1"], false),
        (&["VmFlags: rd wr mr mw me lo ac "], false),
        (&["VmFlags: rd wr mr mw me gd ac "], false),
        (&["VmFlags: rd wr mr mw me ac dc ??"], false),
        (&["Rss:         0 kB"], false),
    ] {
        let mut m = parsed("1000-2000 rw-p 00000000 00:00 0");
        lines.iter().for_each(|line| m.add(line.as_bytes()));
        assert_eq!(m.usual, usual, "{lines:?}");
    }
}

#[test]
fn both_lists_are_read_whole() {
    // The mappings of other threads may come and go. These stay.
    let places = [both_lists_are_read_whole as fn() as usize as u64, USUAL[0].as_ptr().addr() as u64];
    for detail in [Detail::Places, Detail::All] {
        let (mut found, mut last, mut usual) = (0, 0, 0);
        each(detail, |m| {
            assert!(m.start >= last && m.end > m.start);
            last = m.end;
            found += places.iter().filter(|place| (m.start..m.end).contains(place)).count();
            usual += usize::from(m.usual);
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(found, places.len());
        assert_eq!(usual > 0, matches!(detail, Detail::All));
    }
}

#[test]
fn long_lines_are_cut() {
    let (rx, tx) = rustix::pipe::pipe().unwrap();
    let text = format!("a\n\n{}\n{}\nlast\n", "b".repeat(LINE), "c".repeat(5000));
    rustix::io::write(&tx, text.as_bytes()).unwrap();
    drop(tx);
    let mut lines = Lines { file: rx, buffer: [0; 2048], left: 0..0, line: [0; LINE] };
    let mut seen = Vec::new();
    while let Some(line) = lines.next().unwrap() {
        seen.push(String::from_utf8(line.to_vec()).unwrap());
    }
    assert_eq!(seen, ["a", "", &"b".repeat(LINE), &"c".repeat(LINE), "last"]);
}
