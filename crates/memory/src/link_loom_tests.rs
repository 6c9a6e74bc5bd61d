//! A side of a link under loom.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32 as Word, AtomicU64 as Ready};
use loom::thread;

use super::*;

fn bounded(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(test);
}

/// Takes the news and looks at the connection, as a thread that waits in a set does.
fn look(side: &Side, ready: &Ready, data: &Word) -> u32 {
    side.take(|connection| {
        ready.fetch_or(1 << connection, Ordering::AcqRel);
    });
    if ready.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    ready.fetch_and(0, Ordering::AcqRel);
    fence(Ordering::SeqCst);
    data.load(Ordering::Relaxed)
}

#[test]
fn loom_a_thread_that_sleeps_after_a_look_is_rung_for() {
    bounded(|| {
        let side = Arc::new(Side::default());
        let teller = Arc::clone(&side);
        let told = thread::spawn(move || {
            let mut rung = false;
            teller.tell(3, 1, |_| rung = true);
            rung
        });
        side.announce(0);
        let news = side.has_news();
        assert!(told.join().unwrap() || news);
    });
}

#[test]
fn loom_data_written_before_the_news_are_seen_by_whoever_takes_them() {
    bounded(|| {
        let side = Arc::new(Side::default());
        let data = Arc::new(Word::new(0));
        let (teller, written) = (Arc::clone(&side), Arc::clone(&data));
        let told = thread::spawn(move || {
            for value in 1..=2 {
                written.store(value, Ordering::Relaxed);
                fence(Ordering::SeqCst);
                teller.tell(3, 0, |_| ());
            }
        });
        let ready = Ready::new(0);
        let first = look(&side, &ready, &data);
        told.join().unwrap();
        // What the first look has not seen has left a bit behind.
        assert!(first == 2 || look(&side, &ready, &data) == 2);
    });
}

#[test]
fn loom_two_threads_that_take_news_miss_none() {
    bounded(|| {
        let side = Arc::new(Side::default());
        let (data, ready) = (Arc::new(Word::new(0)), Arc::new(Ready::new(0)));
        side.tell(3, 0, |_| ());
        let mine = (Arc::clone(&side), Arc::clone(&ready), Arc::clone(&data));
        let other = thread::spawn(move || look(&mine.0, &mine.1, &mine.2));
        let teller = (Arc::clone(&side), Arc::clone(&data));
        let told = thread::spawn(move || {
            teller.1.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            teller.0.tell(3, 0, |_| ());
        });
        let first = look(&side, &ready, &data);
        let second = other.join().unwrap();
        told.join().unwrap();
        assert!(first == 1 || second == 1 || look(&side, &ready, &data) == 1);
    });
}
