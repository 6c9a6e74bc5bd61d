use super::*;

fn span(bytes: &mut [u8]) -> Span {
    Span { addr: bytes.as_mut_ptr().expose_provenance() as u64, len: bytes.len() as u32, guarded: false }
}

// The process itself stands for the peer: the kernel's part is the same.

#[test]
fn lists_of_any_shape() {
    let mut source: Vec<u8> = (0..300_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    let expected = source.clone();
    for (cut_local, cut_remote) in [(1000, 1), (1, 997), (300_000, 300_000), (64, 65), (4096, 333)] {
        for pushes in [false, true] {
            let mut target = vec![0u8; 300_000];
            let limit = 3000 * cut_local.min(cut_remote);
            let len = limit.min(300_000);
            let remote: Vec<Span> = source[..len].chunks_mut(cut_remote).map(span).collect();
            let local: Vec<Span> = target[..len].chunks_mut(cut_local).map(span).collect();
            let me = std::process::id();
            if pushes {
                push(me, &remote, &local).unwrap();
            } else {
                pull(me, &remote, &local).unwrap();
            }
            assert!(target[..len] == expected[..len]);
            assert!(target[len..].iter().all(|b| *b == 0));
        }
    }
}

#[test]
fn the_bad_side_is_named() {
    let me = std::process::id();
    let mut bytes = [0u8; 64];
    let good = [span(&mut bytes)];
    for addr in [0, 4096, u64::MAX - 63] {
        let bad = [Span { addr, len: 64, guarded: false }];
        assert_eq!(pull(me, &bad, &good), Err(SingleCopyError::Remote));
        assert_eq!(pull(me, &good, &bad), Err(SingleCopyError::Local));
        assert_eq!(push(me, &bad, &good), Err(SingleCopyError::Local));
        assert_eq!(push(me, &good, &bad), Err(SingleCopyError::Remote));
        assert_eq!(pull(me, &[good[0], bad[0]], &[good[0], good[0]]), Err(SingleCopyError::Remote));
        assert_eq!(pull(me, &[good[0], good[0]], &[good[0], bad[0]]), Err(SingleCopyError::Local));
    }
    assert_eq!(pull(0x3fff_ffff, &good, &good), Err(SingleCopyError::Denied));
    assert_eq!(pull(u32::MAX, &good, &good), Err(SingleCopyError::Denied));
    assert_eq!(pull(me, &[], &good), Ok(()));
}

#[test]
fn the_pipe_does_what_the_call_does() {
    let mut source: Vec<u8> = (0..10_000u32).map(|i| (i >> 2) as u8).collect();
    let mut target = vec![0; 10_000];
    let (from, to) = (span(&mut source), span(&mut target));
    through_pipe(from.addr, to.addr, 10_000).unwrap();
    assert!(source == target);
    assert_eq!(through_pipe(4096, to.addr, 8), Err(Fault));
    assert_eq!(through_pipe(from.addr, 4096, 8), Err(Fault));
    assert_eq!(through_pipe(from.addr, to.addr, 0), Ok(()));
}
