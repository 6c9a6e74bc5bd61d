use super::*;
use crate::backing::{Backing, Heap};

type Memory = Pair<Heap>;

fn memory() -> Memory {
    Pair::new(Heap::new(Memory::LEN)).unwrap()
}

#[test]
fn bytes_come_out_as_they_went_in_around_the_end() {
    let memory = memory();
    let (sender, receiver) = (Stream(memory.way(false)), Stream(memory.way(false)));
    sender.switch(7);
    assert_eq!((receiver.mode(), receiver.switched()), (Mode::Ring, 7));
    let data: Vec<u8> = (0..200_000u32).map(|n| (n * 7 % 251) as u8).collect();
    let mut got = vec![0; data.len()];
    for _ in 0..5 {
        assert_eq!(sender.write(&data), Ok(data.len()));
        assert_eq!(receiver.read(&mut got[..10], true), Ok(10));
        assert_eq!(got[..10], data[..10]);
        assert_eq!(receiver.read(&mut got, false), Ok(data.len()));
        assert!(got == data);
    }
    assert_eq!(receiver.read(&mut got, false), Ok(0));
    // The other direction is untouched.
    assert_eq!(Stream(memory.way(true)).readable(), Ok(0));
}

#[test]
fn a_full_ring_takes_what_fits_and_the_sender_is_told_of_room() {
    let memory = memory();
    let stream = Stream(memory.way(true));
    stream.switch(0);
    let data = vec![1; 300 << 10];
    assert_eq!((stream.write(&data), stream.write(&data), stream.room()), (Ok(256 << 10), Ok(0), Ok(0)));
    stream.announce_want();
    assert_eq!(stream.read(&mut [0; 100], false), Ok(100));
    assert!(!stream.must_make_room_known());
    assert_eq!(stream.read(&mut vec![0; 64 << 10], false), Ok(64 << 10));
    assert!(stream.must_make_room_known() && !stream.must_make_room_known());
}

#[test]
fn what_is_taken_back_is_whole_and_in_order() {
    let memory = memory();
    let stream = Stream(memory.way(false));
    stream.switch(0);
    let data: Vec<u8> = (0..100_000u32).map(|n| (n % 253) as u8).collect();
    assert_eq!(stream.write(&data), Ok(data.len()));
    let mut head = vec![0; 1000];
    assert_eq!(stream.read(&mut head, false), Ok(1000));
    stream.start_retracting();
    assert_eq!(stream.read(&mut head, false), Ok(0));
    let mut away: Vec<u8> = Vec::new();
    while !stream
        .take_back(
            &mut [0; 4096],
            || Some(0),
            |bytes| {
                let some = &bytes[..bytes.len().min(3000)];
                away.extend(some);
                some.len()
            },
        )
        .unwrap()
    {}
    assert!(away == data[1000..]);
    assert_eq!(stream.mode(), Mode::After);
}

#[test]
fn what_a_sender_had_taken_when_it_died_is_sent_by_the_next_one() {
    let memory = memory();
    let stream = Stream(memory.way(false));
    stream.switch(0);
    assert_eq!(stream.write(b"abcdef"), Ok(6));
    stream.start_retracting();
    let gone = std::cell::Cell::new(100);
    // It dies when two of the bytes that it has taken are sent.
    let death = std::panic::AssertUnwindSafe(|| {
        stream.take_back(
            &mut [0; 4],
            || Some(gone.get()),
            |_| {
                gone.set(gone.get() + 2);
                std::panic::resume_unwind(Box::new(()))
            },
        )
    });
    assert!(std::panic::catch_unwind(death).is_err());
    assert_eq!(
        (stream.read(&mut [0; 8], false), stream.readable(), stream.room()),
        (Ok(0), Ok(0), Ok((256 << 10) - 2))
    );
    let mut away = Vec::new();
    let next = stream.take_back(
        &mut [0; 8],
        || Some(gone.get()),
        |bytes| {
            away.extend(bytes);
            bytes.len()
        },
    );
    assert_eq!((next, &away[..]), (Ok(true), &b"cdef"[..]));
}

#[test]
fn counts_that_make_no_sense_are_broken() {
    let memory = memory();
    let words = |at: usize, value: u64| {
        let base = memory.way(false).words() as *const Words as *const AtomicU64;
        // SAFETY: both offsets lie in the words, and an atomic may be written through a shared reference.
        unsafe { &*base.byte_add(at) }.store(value, Ordering::Relaxed);
    };
    let stream = Stream(memory.way(false));
    for (tail, head) in [(u64::MAX, 0), (0, 1), ((256 << 10) + 1, 0)] {
        words(0, tail << 2 | 1);
        words(64, head);
        assert_eq!(stream.readable(), Err(Broken));
        assert_eq!(stream.read(&mut [0; 8], false), Err(Broken));
        assert_eq!(stream.write(&[0; 8]), Err(Broken));
        assert_eq!(stream.take_back(&mut [0; 8], || None, <[u8]>::len), Err(Broken));
    }
    words(0, 0);
    words(64, 0);
    assert!(Pair::new(Heap::new(4096)).is_none() && memory.way(false).words().ready.load(Ordering::Relaxed) == 0);
    assert!(!Heap::new(1).is_empty());
}
