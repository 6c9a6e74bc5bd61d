use super::*;

const PERIOD: Nanos = 100_000;
const ONE: QpId = QpId { index: 1, generation: 1 };
const OTHER: QpId = QpId { index: 2, generation: 1 };

struct Queue {
    done: Completions,
    id: CqId,
}

impl Queue {
    fn new() -> Queue {
        let mut done = Completions::new();
        let id = done.create(CtxId { index: 0, generation: 0 }, 8, 0, CqOpts::default()).unwrap();
        Queue { done, id }
    }

    fn push(&mut self, qp: QpId, solicited: bool, now: Nanos) {
        assert!(self.done.push(self.id, Cqe { qp, ..Cqe::default() }, solicited, now));
    }

    fn arm(&mut self, solicited_only: bool) -> usize {
        assert!(self.done.arm(self.id, solicited_only));
        self.events()
    }

    fn poll(&mut self) {
        self.done.look(self.id).unwrap().drop_front(1);
    }

    /// Events since this was asked last.
    fn events(&mut self) -> usize {
        std::mem::take(&mut self.done.notices).len()
    }
}

#[test]
fn what_no_event_has_covered_gives_one_when_it_is_asked_for() {
    let mut q = Queue::new();
    assert_eq!(q.arm(false), 0);
    q.push(ONE, false, 1);
    assert_eq!(q.events(), 1);
    assert_eq!(q.arm(false), 0, "an event has covered it, though nobody has polled");
    q.push(ONE, false, 2);
    assert_eq!(q.events(), 1);
    q.push(ONE, false, 3);
    q.push(ONE, false, 4);
    assert_eq!((q.events(), q.arm(false)), (0, 1), "two came that no event has covered");
    assert_eq!(q.arm(false), 0);
    (0..4).for_each(|_| q.poll());
    q.push(ONE, false, 5);
    assert_eq!(q.events(), 1, "it was armed still");
    q.push(ONE, false, 6);
    (0..2).for_each(|_| q.poll());
    assert_eq!(q.arm(false), 0, "all were polled");
}

#[test]
fn only_a_solicited_one_is_an_event_for_who_asks_for_those() {
    let mut q = Queue::new();
    q.push(ONE, false, 1);
    assert_eq!(q.arm(true), 0);
    assert_eq!(q.arm(false), 1, "more is asked for");
    q.push(ONE, true, 2);
    q.push(ONE, false, 3);
    assert_eq!(q.arm(true), 1);
    assert_eq!(q.arm(true), 0);
    (0..3).for_each(|_| q.poll());
    q.push(ONE, true, 4);
    assert_eq!(q.events(), 1);
    let failed = Cqe { wc: Completion { status: WcStatus::LocLenErr, ..Completion::default() }, ..Cqe::default() };
    assert!(q.done.push(q.id, failed, false, 5));
    assert_eq!(q.arm(true), 1, "11.4.2.2: an error counts as solicited");
    q.push(ONE, true, 6);
    (0..3).for_each(|_| q.poll());
    q.push(ONE, false, 7);
    assert_eq!(q.arm(true), 0, "the solicited one was polled");
}

/// `ibv_modify_cq(3)`: what waits when an event is asked for counts, and the time runs from the first of them.
#[test]
fn a_moderated_event_keeps_its_time() {
    let mut q = Queue::new();
    assert!(q.done.moderate(q.id, 3, (PERIOD / 1000) as u16));
    assert_eq!(q.arm(false), 0);
    q.push(ONE, false, 1000);
    assert_eq!((q.arm(false), q.done.fire_due(2000)), (0, Some(1000 + PERIOD)), "asked for anew");
    assert_eq!((q.done.fire_due(1000 + PERIOD), q.events()), (None, 1));
    q.push(ONE, false, PERIOD + 2000);
    assert_eq!(q.arm(false), 0);
    q.push(ONE, false, PERIOD + 3000);
    assert_eq!((q.events(), q.done.fire_due(0)), (0, Some(2 * PERIOD + 2000)));
    q.push(ONE, false, PERIOD + 4000);
    assert_eq!(q.events(), 1, "the third");
    (0..3).for_each(|n| q.push(ONE, false, 2 * PERIOD + n));
    assert_eq!(q.arm(false), 1);
}

/// Completions of a queue pair that is destroyed are covered by nothing, and cover nothing.
#[test]
fn what_is_taken_out_leaves_the_rest_as_it_was() {
    for covered in [false, true] {
        let mut q = Queue::new();
        q.push(OTHER, false, 1);
        q.push(ONE, false, 2);
        assert_eq!(q.arm(false), 1);
        q.push(OTHER, true, 3);
        if !covered {
            q.push(ONE, false, 4);
        }
        q.done.forget(q.id, OTHER);
        assert_eq!(q.arm(false), usize::from(!covered));
    }
}

#[test]
fn what_a_full_queue_has_lost_is_no_event() {
    let mut q = Queue::new();
    q.done.cqs.get_mut(q.id).unwrap().opts.ignore_overrun = true;
    (0..30).for_each(|n| q.push(ONE, n == 0, n));
    assert_eq!(q.arm(true), 0, "the solicited one is gone");
    assert_eq!(q.arm(false), 1);
}
