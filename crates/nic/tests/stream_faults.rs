//! What faults of TCP connections do to queue pairs of iWARP: completions, events, and other connections.

mod stream_side;

use std::time::{Duration, Instant};

use stream_side::{ALL, LONG, Side, nic};
use verbs::*;

/// Of each two SENDs of the process the first is struck, in this order.
const FAULTS: Option<&str> = Some(
    "corrupt:n=1,op=send;corrupt:n=3,op=send;reset:n=5,op=send;half-close:n=7,op=send;\
     stall:n=9,op=send,for=300ms;delay:n=11,op=send,t=300ms;qp-error:n=13,op=send;stall:n=15,op=send;seed=7",
);

const LEN: usize = 100;

/// The kind and the outcome of one fault.
struct Row {
    what: &'static str,
    crc: bool,
    /// The peer's receive.
    received: Received,
    /// The connection ends: receives of the side that has the fault are flushed.
    ends: bool,
    event: Option<EventKind>,
}

#[derive(PartialEq)]
enum Received {
    Wrong,
    Late,
    Flushed,
    /// Whether it comes before the end is a matter of time.
    Either,
    Never,
}

const ROWS: &[Row] = &[
    // The peer sends a Terminate message, and has the event; RFC 5044, section 8.
    Row {
        what: "corrupt with CRC",
        crc: true,
        received: Received::Flushed,
        ends: true,
        event: Some(EventKind::QpFatal),
    },
    Row { what: "corrupt without CRC", crc: false, received: Received::Wrong, ends: false, event: None },
    Row { what: "reset", crc: true, received: Received::Flushed, ends: true, event: None },
    Row { what: "half-close", crc: true, received: Received::Flushed, ends: true, event: None },
    Row { what: "stall for a while", crc: true, received: Received::Late, ends: false, event: None },
    Row { what: "delay", crc: false, received: Received::Late, ends: false, event: None },
    Row { what: "qp-error", crc: true, received: Received::Either, ends: true, event: Some(EventKind::QpFatal) },
    Row { what: "stall for ever", crc: true, received: Received::Never, ends: false, event: None },
];

#[test]
fn each_fault_has_its_completions_and_events() {
    let side = Side::new();
    let memory = Box::leak(Box::new([[0u8; LEN]; 4]));
    let sge = |at: usize| {
        let addr = memory[at].as_ptr().expose_provenance() as u64;
        let (_, lkey, _) = nic().reg_mr(side.pd, addr, LEN as u64, addr, ALL).unwrap();
        Sge { addr, length: LEN as u32, lkey }
    };
    let [source, target, spare, beside] = [sge(0), sge(1), sge(2), sge(3)];
    // SAFETY: the array lives for ever, and only this thread uses it between messages.
    let bytes =
        |sge: &Sge| unsafe { std::ptr::with_exposed_provenance::<[u8; LEN]>(sge.addr as usize).read_volatile() };
    let all: Vec<[[QpId; 2]; 2]> = ROWS.iter().map(|row| [side.pair(row.crc), side.pair(true)]).collect();
    for (row, [[one, other], [third, fourth]]) in ROWS.iter().zip(all) {
        let what = row.what;
        // SAFETY: as above.
        unsafe { std::ptr::with_exposed_provenance_mut::<[u8; LEN]>(target.addr as usize).write_volatile([9; LEN]) };
        side.recv(other, 1, target);
        side.recv(one, 3, spare);
        let begun = Instant::now();
        side.send(one, 2, source);
        let received = row.received != Received::Never;
        let done = side.completions(1 + usize::from(received) + usize::from(row.ends));
        // RFC 5040, section 5.5: TCP would have it, so it is done, whatever becomes of it.
        assert!(done.contains(&(2, WcStatus::Success)), "{what}: {done:?}");
        assert_eq!(done.contains(&(3, WcStatus::WrFlushErr)), row.ends, "{what}: {done:?}");
        let got = done.iter().find(|(wr_id, _)| *wr_id == 1).map(|(_, status)| *status);
        match row.received {
            Received::Wrong | Received::Late => assert_eq!(got, Some(WcStatus::Success), "{what}"),
            Received::Flushed => assert_eq!(got, Some(WcStatus::WrFlushErr), "{what}"),
            Received::Either => assert!(got.is_some(), "{what}"),
            Received::Never => assert_eq!(got, None, "{what}"),
        }
        if row.received == Received::Late {
            assert!(begun.elapsed() >= Duration::from_millis(300), "{what}: {:?}", begun.elapsed());
            assert_eq!(bytes(&target), [0; LEN], "{what}");
        }
        if row.received == Received::Wrong {
            let differ: u32 = bytes(&target).iter().map(|byte| byte.count_ones()).sum();
            assert_eq!(differ, 1, "{what}: one bit");
        }
        let mut event = None;
        while event.is_none() && row.event.is_some() && begun.elapsed() < LONG {
            nic().poll_cq(side.cq, 1, |_, _| ());
            event = nic().take_async_event(side.context).map(|(kind, target)| {
                nic().ack_async_event(target);
                kind
            });
        }
        assert_eq!(event, row.event, "{what}");
        let named = |said: &Option<report::streams::Terminate>| said.as_ref().map(|t| (t.layer, t.etype, t.code));
        let ended = nic().report().adapter.ended;
        let told =
            |sent: bool| ended.iter().any(|e| named(if sent { &e.sent } else { &e.received }) == Some((2, 0, 2)));
        assert!(told(true) && told(false), "behind {what}: {ended:?}");
        // Another connection carries on.
        side.recv(fourth, 4, beside);
        side.send(third, 5, source);
        assert_eq!(side.completions(2), [(4, WcStatus::Success), (5, WcStatus::Success)], "behind {what}");
        assert!(nic().take_async_event(side.context).is_none(), "behind {what}");
    }
}
