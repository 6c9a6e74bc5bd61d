use super::*;

fn greeting() -> Greeting {
    Greeting {
        instance: core::array::from_fn(|i| i as u8),
        nonce_addr: 0x0102_0304_0506_0708,
        single_copy: true,
        secret: [0xdd; SECRET],
        block: 0xabc,
    }
}

fn welcome() -> Greeting {
    Greeting { secret: [0; SECRET], block: 0, ..greeting() }
}

const ECHO: Message = Message::Echo { secret: [0xdd; SECRET], block: 0xabc };
const NONCE_SEEN: [u8; NONCE] = [0xcc; NONCE];

#[test]
fn bytes_of_each_message() {
    let note = |kind, flags| [&b"softrnic\x06\0\0\0"[..], &[kind, flags, 0, 0]].concat();
    assert_eq!(emit(&Message::Ring), note(4, 0));
    assert_eq!(emit(&Message::Table { export_table: false }), note(5, 0));
    assert_eq!(emit(&Message::Table { export_table: true }), note(5, 2));
    let proof = emit(&Message::Proof(NONCE_SEEN));
    assert_eq!(proof.len(), PROOF_BYTES);
    assert_eq!(proof[..16], note(3, 0));
    assert_eq!(proof[16..], NONCE_SEEN);
    let hello = emit(&Message::Hello(greeting()));
    assert_eq!(hello.len(), GREETING_BYTES);
    assert_eq!(hello[..16], note(1, 1));
    assert_eq!(hello[16..32], greeting().instance);
    assert_eq!(hello[32..40], [8, 7, 6, 5, 4, 3, 2, 1]);
    assert_eq!(hello[40..56], [0xdd; SECRET]);
    assert_eq!(hello[56..], [0xbc, 0x0a, 0, 0, 0, 0, 0, 0]);
    assert_eq!(emit(&Message::Welcome(welcome()))[12], 2);
    assert_eq!(emit(&ECHO), [&note(6, 0)[..], &[0xdd; SECRET], &[0xbc, 0x0a, 0, 0, 0, 0, 0, 0]].concat());
    // A secret in an answer would be none.
    for wrong in [Greeting { secret: [1; SECRET], ..welcome() }, Greeting { block: 1, ..welcome() }] {
        assert_eq!(parse(&emit(&Message::Welcome(wrong))), Err(Malformed));
    }
}

#[test]
fn what_is_written_can_be_read() {
    let refused = Greeting { single_copy: false, ..welcome() };
    for message in [
        Message::Hello(greeting()),
        Message::Hello(Greeting { single_copy: false, ..greeting() }),
        Message::Welcome(welcome()),
        ECHO,
        Message::Welcome(refused),
        Message::Proof(NONCE_SEEN),
        Message::Table { export_table: false },
        Message::Table { export_table: true },
        Message::Ring,
    ] {
        let bytes = emit(&message);
        assert_eq!(parse(&bytes), Ok(message));
        for short in 0..bytes.len() {
            assert_eq!(parse(&bytes[..short]), Err(Malformed));
        }
        assert_eq!(parse(&[&bytes[..], &[0]].concat()), Err(Malformed));
    }
}

#[test]
fn every_bit_of_the_head_counts() {
    for message in [Message::Hello(greeting()), Message::Ring] {
        let good = emit(&message);
        for bit in 0..NOTE_BYTES * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(parse(&bad), Ok(message.clone()), "bit {bit}");
        }
    }
    let mut bad = emit(&Message::Ring);
    for flags in 1..4 {
        bad[13] = flags;
        assert_eq!(parse(&bad), Err(Malformed));
    }
    for message in [Message::Hello(greeting()), Message::Proof(NONCE_SEEN), Message::Table { export_table: true }] {
        let mut bad = emit(&message);
        bad[13] = 3;
        assert_eq!(parse(&bad), Err(Malformed));
    }
}

#[test]
fn names() {
    assert_eq!(block_name(0x0ab), "softrnic/6/qpn/0ab");
    let group = Gid([0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 224, 0, 0, 5]);
    assert_eq!(member_name(&group, 0xffe), "softrnic/6/mc/ff0e0000000000000000ffffe0000005/ffe");
}

#[test]
fn members_of_a_group() {
    let group = Gid([0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 224, 0, 0, 5]);
    let text = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0005 01 21036 @softrnic/6/qpn/0ab
0000000000000000: 00000002 00000000 00000000 0005 01 21037 @softrnic/6/mc/ff0e0000000000000000ffffe0000005/0ab
0000000000000000: 00000002 00000000 00000000 0005 01 21038 @softrnic/6/mc/ff0e0000000000000000ffffe0000005/00c
0000000000000000: 00000002 00000000 00000000 0005 01 21038 @softrnic/6/mc/ff0e0000000000000000ffffe0000005/00c
0000000000000000: 00000002 00000000 00000000 0005 01 21039 @softrnic/6/mc/ff0e0000000000000000ffffe0000006/00d
0000000000000000: 00000002 00000000 00000000 0005 01 21039 @softrnic/6/mc/ff0e0000000000000000ffffe0000005/000
0000000000000000: 00000002 00000000 00000000 0005 01 21039 @softrnic/6/mc/ff0e0000000000000000ffffe0000005/fff
0000000000000000: 00000002 00000000 00000000 0005 01 21039 @softrnic/6/mc/ff0e0000000000000000ffffe0000005/+12
0000000000000000: 00000002 00000000 00000000 0005 01 21039 @softrnic/6/mc/ff0e0000000000000000ffffe0000005/1234
0000000000000000: 00000002 00000000 00000000 0005 01 21039 /softrnic/6/mc/ff0e0000000000000000ffffe0000005/010
0000000000000000: 00000003 00000000 00000000 0001 03 21040
";
    assert_eq!(members(text, &group), [0x00c, 0x0ab]);
    assert!(members("", &group).is_empty());
}
