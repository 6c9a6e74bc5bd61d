use std::sync::Arc;

use super::*;

const ROWS: usize = 32;

struct Words(Vec<AtomicU64>);

impl TableMemory for Arc<Words> {
    const ROWS: usize = ROWS;
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0[index]
    }
}

fn export_table() -> (Writer<Arc<Words>>, Reader<Arc<Words>>) {
    let words = Arc::new(Words((0..ROWS * ROW).map(|_| AtomicU64::new(0)).collect()));
    (Writer::new(words.clone()), Reader::new(words))
}

#[test]
fn what_is_shown_is_found_until_it_is_taken_back() {
    let (mut w, r) = export_table();
    assert_eq!(r.find(7), None);
    assert!(w.publish(7, &[1, 2, 3, 4, 5, 6]));
    assert_eq!(r.find(7), Some([1, 2, 3, 4, 5, 6]));
    assert!(w.publish(7, &[6, 5, 4, 3, 2, 1]));
    assert_eq!(r.find(7), Some([6, 5, 4, 3, 2, 1]));
    assert!(w.retract(7));
    assert!(!w.retract(7));
    assert_eq!(r.find(7), None);
}

/// A row stands until it is written again, be it with the same values or for another tag.
#[test]
fn what_was_found_stands_until_the_row_is_written() {
    let (mut w, r) = export_table();
    assert!(w.publish(7, &[1; VALUES]));
    let seen = |r: &Reader<_>| r.find_seen(7).map(|(seen, _)| seen).expect("it is shown");
    let first = seen(&r);
    assert!(r.stands(first) && r.stands(seen(&r)));
    assert!(w.publish(7, &[1; VALUES]));
    assert!(!r.stands(first) && r.stands(seen(&r)));
    let second = seen(&r);
    assert!(w.retract(7));
    assert!(!r.stands(second));
    // Whatever takes the place.
    assert!((8..100).filter(|&tag| w.publish(tag, &[1; VALUES])).count() == ROWS);
    assert!(!r.stands(first) && !r.stands(second));
}

#[test]
fn a_full_table_exports_what_it_can() {
    let (mut w, r) = export_table();
    let exported: Vec<u64> = (1..=200).filter(|&tag| w.publish(tag, &[tag; VALUES])).collect();
    assert!(exported.len() > ROWS / 2 && exported.len() <= ROWS, "{}", exported.len());
    for tag in 1..=200 {
        assert_eq!(r.find(tag), exported.contains(&tag).then_some([tag; VALUES]), "{tag}");
    }
    // A row behind one that was taken back is still found, and shown again in its own place, not twice.
    for &tag in exported.iter().step_by(2) {
        assert!(w.retract(tag));
    }
    for &tag in exported.iter().skip(1).step_by(2) {
        assert_eq!(r.find(tag), Some([tag; VALUES]));
        assert!(w.publish(tag, &[0; VALUES]));
        assert!(w.retract(tag));
        assert_eq!(r.find(tag), None);
    }
}

/// A reader never sees a row that is half of one and half of another.
#[test]
fn rows_do_not_tear() {
    let (mut w, r) = export_table();
    let rounds = if cfg!(miri) { 200 } else { 200_000 };
    std::thread::scope(|s| {
        s.spawn(move || {
            for i in 1..rounds {
                w.publish(3, &[i; VALUES]);
                if i % 3 == 0 {
                    w.retract(3);
                }
            }
            w.publish(3, &[rounds; VALUES]);
        });
        loop {
            if let Some(row) = r.find(3) {
                assert!(row.iter().all(|v| *v == row[0]), "{row:?}");
                if row[0] == rounds {
                    break;
                }
            }
            std::thread::yield_now();
        }
    });
}
