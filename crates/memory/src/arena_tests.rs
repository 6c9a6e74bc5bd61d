use super::*;

fn span(bytes: &[u8]) -> Span {
    Span { addr: bytes.as_ptr().expose_provenance() as u64, len: bytes.len() as u32, guarded: false }
}

fn both() -> (Arena, Peer) {
    let arena = Arena::create(&FdSet::new()).unwrap();
    let fd = arena.file().unwrap().try_clone_to_owned().unwrap();
    let mut peer = Peer::new(arena.name().0, arena.name().1).unwrap();
    peer.map_file(&fd, 0, 4 << 20).unwrap();
    (arena, peer)
}

#[test]
fn places_are_used_again_and_join() {
    let mut arena = Arena::create(&FdSet::new()).unwrap();
    let places: Vec<u64> = (0..4).map(|_| arena.allocate(5000).unwrap()).collect();
    assert_eq!(places, [0, 8192, 16384, 24576]);
    for at in [places[2], places[0], places[1], places[3]] {
        arena.release(at, 5000, false);
    }
    assert_eq!(arena.free, [(0, BYTES)]);
    assert_eq!(arena.allocate(BYTES + 1), None);
    assert_eq!(arena.allocate(u64::MAX), None);
    assert_eq!(arena.allocate(BYTES), Some(0));
    assert_eq!(arena.allocate(1), None);
}

#[test]
fn what_is_given_back_is_forgotten() {
    let (mut arena, peer) = both();
    let at = arena.allocate(1 << 20).unwrap();
    let mapped = arena.map(at, 1 << 20).unwrap();
    let data = vec![7u8; 1 << 20];
    peer.write(at, 1 << 20, &[span(&data)]).unwrap();
    let blocks = || rustix::fs::fstat(arena.file().unwrap()).unwrap().st_blocks;
    assert!(blocks() >= 2048);
    drop(mapped);
    arena.release(at, 1 << 20, false);
    assert_eq!(rustix::fs::fstat(arena.file().unwrap()).unwrap().st_blocks, 0);
    let mut back = vec![1u8; 16];
    peer.read(at, 16, &[span(&back)]).unwrap();
    assert_eq!(std::hint::black_box(&mut back), &[0; 16]);
}

/// Copies of every length and alignment up to some words, and of lists of pieces.
#[test]
fn bytes_arrive_where_they_should() {
    let (mut arena, peer) = both();
    let at = arena.allocate(4096).unwrap();
    let mapped = arena.map(at, 4096).unwrap();
    let source: Vec<u8> = (0..200).map(|i| i as u8 + 1).collect();
    for offset in 0..17u64 {
        for len in 0..80usize {
            for cut in [0, len / 3, len] {
                let zero = vec![0u8; 256];
                peer.write(at, 256, &[span(&zero)]).unwrap();
                let pieces = [span(&source[..cut]), span(&source[cut..len])];
                peer.write(at + 64 + offset, len as u32, &pieces).unwrap();
                let mut seen = [0u8; 256];
                local::load(mapped.addr(), false, &mut seen).unwrap();
                let from = 64 + offset as usize;
                assert_eq!(seen[from..from + len], source[..len], "{len} bytes at {offset}, cut at {cut}");
                assert!(seen[..from].iter().chain(&seen[from + len..]).all(|b| *b == 0), "{len} at {offset}");
                let back = vec![0u8; len];
                peer.read(at + 64 + offset, len as u32, &[span(&back[..cut]), span(&back[cut..])]).unwrap();
                assert_eq!(std::hint::black_box(&back)[..], source[..len]);
            }
        }
    }
}

/// A program that waits for the last word of a message finds all of it.
#[test]
fn the_last_word_comes_last() {
    let (mut arena, peer) = both();
    let at = arena.allocate(4096).unwrap();
    let mapped = arena.map(at, 4096).unwrap();
    let word = |i: u64| {
        // SAFETY: within the mapping and aligned; all access to it in this test is by atomics or by `Peer`.
        unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut((mapped.addr() + 8 * i) as usize)) }
    };
    const WORDS: u64 = 200;
    const TURNS: u64 = 2000;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 1..=TURNS {
                let data: Vec<u8> = (0..WORDS).flat_map(|_| turn.to_ne_bytes()).collect();
                peer.write(at, data.len() as u32, &[span(&data)]).unwrap();
                while word(WORDS).load(Ordering::Acquire) != turn {
                    std::hint::spin_loop();
                }
            }
        });
        for turn in 1..=TURNS {
            while word(WORDS - 1).load(Ordering::Acquire) != turn {
                std::hint::spin_loop();
            }
            assert!((0..WORDS).all(|i| word(i).load(Ordering::Relaxed) == turn));
            word(WORDS).store(turn, Ordering::Release);
        }
    });
}

#[test]
fn what_is_outside_is_not_touched() {
    let (arena, mut peer) = both();
    let bytes = [0u8; 16];
    for at in [(4 << 20) - 15, 4 << 20, BYTES - 15, BYTES, u64::MAX - 3, u64::MAX] {
        assert_eq!(peer.write(at, 16, &[span(&bytes)]), Err(Fault));
        assert_eq!(peer.read(at, 16, &[span(&bytes)]), Err(Fault));
        assert_eq!(peer.atomic(at & !7, AtomicOp::FetchAdd(1)).is_ok(), at < 4 << 20, "{at}");
    }
    assert_eq!(peer.write(0, 17, &[span(&bytes)]), Err(Fault), "more than there is to write");
    assert_eq!(peer.atomic(4, AtomicOp::FetchAdd(1)), Err(Fault));
    let fd = arena.file().unwrap().try_clone_to_owned().unwrap();
    for (at, len) in [(0, 0), (BYTES - 1, 2), (BYTES, 1), (u64::MAX, 1), (1, u64::MAX)] {
        assert_eq!(peer.map_file(&fd, at, len), Err(Errno::EPROTO), "{len} bytes at {at}");
    }
    assert_eq!(peer.map_file(&fd, BYTES - 1, 1), Ok(()));
    assert_eq!(peer.write(BYTES - 16, 16, &[span(&bytes)]), Ok(()));
}

#[test]
fn pieces_come_and_go() {
    let (arena, mut peer) = both();
    let fd = arena.file().unwrap().try_clone_to_owned().unwrap();
    for i in 0..3 * PIECES as u64 {
        let at = (8 << 20) + i * 8192 + 100;
        peer.map_file(&fd, at, 4000).unwrap();
        assert!(peer.pieces.len() <= PIECES);
        assert_eq!(peer.write(at, 8, &[span(&i.to_ne_bytes())]), Ok(()));
        let back = [0u8; 8];
        assert_eq!(peer.read(at, 8, &[span(&back)]), Ok(()));
        assert_eq!(u64::from_ne_bytes(std::hint::black_box(back)), i);
    }
}

#[test]
fn a_place_with_a_late_writer_is_not_given_out() {
    let mut arena = Arena::create(&FdSet::new()).unwrap();
    let (a, b) = (arena.allocate(4096).unwrap(), arena.allocate(4096).unwrap());
    arena.reserve(a, 4096).unwrap();
    assert!(rustix::fs::fstat(arena.file().unwrap()).unwrap().st_blocks >= 8);
    arena.release(a, 4096, true);
    assert_eq!(rustix::fs::fstat(arena.file().unwrap()).unwrap().st_blocks, 0);
    arena.release(b, 4096, false);
    assert_eq!((arena.allocate(4096), arena.allocate(4096)), (Some(b), Some(b + 4096)));
}

#[test]
fn atomics_of_both_sides_are_one() {
    let (mut arena, peer) = both();
    let at = arena.allocate(8).unwrap();
    let mapped = arena.map(at, 8).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..10_000).for_each(|_| assert!(peer.atomic(at, AtomicOp::FetchAdd(1)).is_ok())));
        (0..10_000).for_each(|_| assert!(local::atomic(mapped.addr(), false, AtomicOp::FetchAdd(1)).is_ok()));
    });
    assert_eq!(peer.atomic(at, AtomicOp::CompareSwap(20_000, 5)), Ok(20_000));
    assert_eq!(peer.atomic(at, AtomicOp::Write(6)), Ok(5));
}

#[test]
fn only_an_arena_is_taken() {
    let arena = Arena::create(&FdSet::new()).unwrap();
    let (number, inode) = arena.name();
    let us = rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()).unwrap();
    let take = |number, inode| Peer::new(number, inode)?.attach(&us, 0, 4096);
    assert_eq!(take(number, inode), Ok(()));
    assert_eq!(take(number, inode + 1), Err(Errno::EPROTO));
    assert!(take(u64::MAX, inode).is_err());
    let (_window, fd) = backing::Memfd::create(8192).unwrap();
    let inode = rustix::fs::fstat(&fd).unwrap().st_ino;
    assert_eq!(take(fd.as_raw_fd() as u64, inode), Err(Errno::EPROTO));
}
