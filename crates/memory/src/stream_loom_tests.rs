//! The stream under loom: two receivers, and a sender that takes bytes back.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU8, Ordering};
use loom::thread;

use super::*;

/// A ring of four bytes. Copies are not atomic as a whole, and may be overtaken.
struct Model {
    words: Words,
    bytes: [AtomicU8; 4],
}

impl StreamMemory for Arc<Model> {
    const ROOM: u64 = 4;
    fn words(&self) -> &Words {
        &self.words
    }
    fn load(&self, at: usize, to: &mut [u8]) {
        to.iter_mut().enumerate().for_each(|(i, b)| *b = self.bytes[at + i].load(Ordering::Relaxed));
    }
    fn store(&self, at: usize, from: &[u8]) {
        from.iter().enumerate().for_each(|(i, b)| self.bytes[at + i].store(*b, Ordering::Relaxed));
    }
}

fn stream() -> (Stream<Arc<Model>>, Stream<Arc<Model>>) {
    let model = Arc::new(Model { words: Words::default(), bytes: Default::default() });
    (Stream(Arc::clone(&model)), Stream(model))
}

fn bounded(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(test);
}

#[test]
fn loom_receivers_share_the_bytes() {
    bounded(|| {
        let (sender, receiver) = stream();
        sender.switch(0);
        assert_eq!(sender.write(&[1, 2]), Ok(2));
        let other = thread::spawn(move || {
            let mut got = [0; 2];
            let n = receiver.read(&mut got[..1], false).unwrap();
            got[..n].to_vec()
        });
        let mut mine = [0; 3];
        let n = sender.read(&mut mine[..1], false).unwrap();
        // Room that was freed is written over while the other one may still copy.
        assert_eq!(sender.write(&[3, 4, 5]), Ok(3));
        let theirs = other.join().unwrap();
        let mut all = [&mine[..n], &theirs].concat();
        let mut rest = [0; 4];
        let n = sender.read(&mut rest, false).unwrap();
        all.extend(&rest[..n]);
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3, 4, 5]);
    });
}

#[test]
fn loom_nothing_is_read_behind_what_was_taken_back() {
    bounded(|| {
        let (sender, receiver) = stream();
        sender.switch(0);
        assert_eq!(sender.write(&[1, 2, 3]), Ok(3));
        let reader = thread::spawn(move || {
            let mut got = [0; 1];
            let n = receiver.read(&mut got, false).unwrap();
            got[..n].to_vec()
        });
        let mut away: Vec<u8> = Vec::new();
        sender.start_retracting();
        // One byte goes, then there is no room the other way.
        let whole = sender.take_back(
            &mut [0; 4],
            || Some(0),
            |bytes| {
                away.extend(bytes.first());
                1
            },
        );
        let read = reader.join().unwrap();
        assert!(read.is_empty() || read == [1], "{read:?}");
        if whole == Ok(false) {
            assert_eq!(
                sender.take_back(
                    &mut [0; 4],
                    || Some(0),
                    |bytes| {
                        away.extend(bytes);
                        bytes.len()
                    }
                ),
                Ok(true)
            );
        }
        assert_eq!([read, away].concat(), [1, 2, 3]);
    });
}

#[test]
fn loom_a_receiver_that_sleeps_is_rung_for() {
    bounded(|| {
        let (sender, receiver) = stream();
        let side = Arc::new(crate::link::Side::default());
        let own = Arc::clone(&side);
        sender.switch(0);
        let sleeper = thread::spawn(move || {
            receiver.add_bells(1);
            own.announce(0);
            receiver.readable().unwrap() > 0
        });
        assert_eq!(sender.write(&[1]), Ok(1));
        let mut rung = false;
        side.tell(0, sender.bells(), |_| rung = true);
        assert!(sleeper.join().unwrap() || rung);
    });
}

#[test]
fn loom_a_sender_that_waits_for_room_is_rung_for() {
    bounded(|| {
        let (sender, receiver) = stream();
        sender.switch(0);
        assert_eq!(sender.write(&[1, 2, 3, 4]), Ok(4));
        let reader = thread::spawn(move || {
            assert_eq!(receiver.read(&mut [0; 4], false), Ok(4));
            receiver.must_make_room_known()
        });
        sender.announce_want();
        let room = sender.room().unwrap();
        assert!(reader.join().unwrap() || room > 0);
    });
}
