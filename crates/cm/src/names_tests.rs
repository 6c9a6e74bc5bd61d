use super::*;

fn claim(addr: &str, only: bool, reuse: bool) -> Claim {
    Claim { addr: addr.parse().unwrap(), only, reuse }
}

#[test]
fn conflicts_are_those_of_linux() {
    let v4 = |addr| claim(addr, true, false);
    let v6 = |addr| claim(addr, false, false);
    let cases = [
        (v4("10.0.0.1:1"), v4("10.0.0.1:1"), Err(Errno::EADDRINUSE)),
        (v4("10.0.0.1:1"), v4("10.0.0.2:1"), Ok(())),
        (v4("0.0.0.0:1"), v4("10.0.0.2:1"), Err(Errno::EADDRNOTAVAIL)),
        (v4("10.0.0.1:1"), v4("0.0.0.0:1"), Err(Errno::EADDRNOTAVAIL)),
        (v4("10.0.0.1:1"), v4("127.0.0.1:1"), Err(Errno::EADDRNOTAVAIL)),
        (v4("127.0.0.1:1"), v4("127.0.0.1:1"), Err(Errno::EADDRNOTAVAIL)),
        (v4("127.0.0.1:1"), v6("[::1]:1"), Err(Errno::EADDRNOTAVAIL)),
        (v4("0.0.0.0:1"), v6("[::]:1"), Err(Errno::EADDRNOTAVAIL)),
        (v4("0.0.0.0:1"), claim("[::]:1", true, false), Ok(())),
        (v4("10.0.0.1:1"), v6("[fd00::1]:1"), Ok(())),
        (v4("10.0.0.1:1"), v6("[::]:1"), Err(Errno::EADDRNOTAVAIL)),
        (v6("[fe80::1%2]:1"), v6("[fe80::1%3]:1"), Ok(())),
        (v6("[fe80::1%2]:1"), v6("[fe80::1%2]:1"), Err(Errno::EADDRINUSE)),
        (claim("0.0.0.0:1", true, true), claim("0.0.0.0:1", true, true), Ok(())),
        (claim("0.0.0.0:1", true, true), v4("0.0.0.0:1"), Err(Errno::EADDRNOTAVAIL)),
    ];
    for (new, old, expected) in cases {
        assert_eq!(check(&new, &old), expected, "{new:?} beside {old:?}");
    }
}

#[test]
fn listeners_hear() {
    let cases = [
        ("0.0.0.0:1", true, "127.0.0.1:1", true),
        ("0.0.0.0:1", true, "[::1]:1", false),
        ("[::]:1", false, "127.0.0.1:1", true),
        ("[::]:1", true, "127.0.0.1:1", false),
        ("[::]:1", true, "[::1]:1", true),
        ("127.0.0.1:1", true, "127.0.0.1:1", true),
        ("127.0.0.1:1", true, "127.0.0.2:1", false),
    ];
    for (listener, only, dst, expected) in cases {
        assert_eq!(hears(&listener.parse().unwrap(), only, &dst.parse().unwrap()), expected, "{listener} {dst}");
    }
}

#[test]
fn names_are_read_back() {
    let one = claim("127.0.0.1:7174", true, true);
    let two = claim("[fe80::1%3]:7174", false, false);
    let text = format!(
        "Num       RefCount Protocol Flags    Type St Inode Path\n\
         00: 00000002 00000000 00010000 0005 01 1 @{}\n\
         00: 00000002 00000000 00010000 0005 01 1 @{}\n\
         00: 00000002 00000000 00010000 0005 01 1 @{}\n\
         00: 00000002 00000000 00010000 0005 01 1 @{}\n\
         00: 00000003 00000000 00000000 0005 03 1 @{}\n\
         00: 00000002 00000000 00010000 0005 01 1 /run/else\n\
         00: 00000002 00000000 00010000 0005 01 1\n",
        bound(0x106, &one, 5, 6),
        listener(0x106, &two.addr, false),
        bound(0x111, &one, 5, 6),
        block(0x106, 0x400),
        listener(0x106, &one.addr, true),
    );
    assert_eq!(claims(&text, 0x106).collect::<Vec<_>>(), [one.clone(), two]);
    assert_eq!(claims(&text, 0x111).collect::<Vec<_>>(), [one]);
}

#[test]
fn the_most_specific_listener_comes_first() {
    let dst = "10.0.0.1:7174".parse().unwrap();
    let names = listeners(0x106, &dst);
    assert_eq!(names[0], "softrnic/1/cm/0106/1c06/4o0a000001/listen");
    assert_eq!(names[2], "softrnic/1/cm/0106/1c06/4o00000000/listen");
}
