//! A stream there and back, with many operations outstanding, random sizes, MSG_WAITALL, and cancels.

use std::collections::VecDeque;

use conformance::Random;
use exs::protocol::Kind;
use exs::socket::{Event, EventKind};
use rdma::Errno;

use super::common::{Talk, some};

const PIECE: usize = 64 << 10;
const DEEP: usize = 8;

#[derive(Clone, Copy, Default)]
struct Receive {
    len: usize,
    wait_all: bool,
}

struct Soak {
    talk: Talk,
    random: Random,
    total: usize,
    /// All operations have the longest size, and none is cancelled.
    long: bool,
    /// Bytes of sends that were not cancelled.
    sent: usize,
    got: usize,
    /// What was sent and has not come back, in order, with the handle of its send.
    under_way: VecDeque<(u64, Vec<u8>)>,
    sends: VecDeque<u64>,
    receives: VecDeque<u64>,
    posted: [Receive; 2 * DEEP],
    cancelled: [u64; 2],
}

fn place(handle: u64) -> usize {
    handle as usize * PIECE
}

impl Soak {
    fn send(&mut self, handle: u64) {
        let most = if self.random.coin() { 300 } else { PIECE as u64 };
        let len = if self.long { PIECE } else { 1 + self.random.below(most) as usize }.min(self.total - self.sent);
        let data: Vec<u8> = std::iter::repeat_with(|| self.random.next().to_ne_bytes()).flatten().take(len).collect();
        let Talk { memory, socket, queue, .. } = &self.talk;
        memory.bytes().write(place(handle), &data);
        let op = socket.send(memory, place(handle)..place(handle) + len, queue, handle).expect("a send");
        self.under_way.push_back((handle, data));
        self.sent += len;
        if !self.long && self.random.below(20) == 0 {
            socket.cancel(op);
        }
    }

    fn receive(&mut self, handle: u64) {
        let len = if self.long { PIECE } else { 1 + self.random.below(PIECE as u64) as usize };
        // The last bytes would not fill one that waits for all.
        let wait_all = !self.long && self.random.below(4) == 0 && self.got + 3 * DEEP * PIECE < self.total;
        let Talk { memory, socket, queue, .. } = &self.talk;
        self.posted[handle as usize] = Receive { len, wait_all };
        let part = place(handle)..place(handle) + len;
        let op = socket.receive(memory, part, wait_all, queue, handle).expect("a receive");
        if !self.long && self.random.below(20) == 0 {
            socket.cancel(op);
        }
    }

    fn take(&mut self, event: &Event) {
        let handle = event.handle;
        let send = event.kind == EventKind::Send;
        if send {
            self.sends.push_back(handle);
        } else {
            self.receives.push_back(handle);
        }
        if event.result == Err(Errno(libc::ECANCELED)) {
            self.cancelled[usize::from(send)] += 1;
            if send {
                // Nothing of it has left, and what has its handle is the newest.
                let at = self.under_way.iter().rposition(|(of, _)| *of == handle).expect("it was sent");
                self.sent -= self.under_way.remove(at).expect("it is there").1.len();
            }
            return;
        }
        let len = event.result.unwrap_or_else(|errno| panic!("{errno:?}")) as usize;
        if send {
            // The buffer is the program's.
            self.talk.memory.bytes().write(place(handle), &[0xee; PIECE]);
            return;
        }
        let Receive { len: posted, wait_all } = self.posted[handle as usize];
        assert!(len > 0 && len <= posted && (!wait_all || len == posted), "{event:?}");
        let mut piece = vec![0; len];
        self.talk.memory.bytes().read(place(handle), &mut piece);
        self.got += len;
        let mut rest = &piece[..];
        while !rest.is_empty() {
            let (_, front) = self.under_way.front_mut().expect("bytes were sent");
            let (now, later) = rest.split_at(rest.len().min(front.len()));
            assert!(front[..now.len()] == *now, "the bytes differ");
            front.drain(..now.len());
            if front.is_empty() {
                self.under_way.pop_front();
            }
            rest = later;
        }
    }
}

fn soak(total: usize, long: bool) {
    let talk = Talk::new("echo", Kind::Stream, 256);
    let mut soak = Soak {
        talk,
        random: Random::new(2),
        total,
        long,
        sent: 0,
        got: 0,
        under_way: VecDeque::new(),
        sends: (0..DEEP as u64).collect(),
        receives: (DEEP as u64..2 * DEEP as u64).collect(),
        posted: [Receive::default(); 2 * DEEP],
        cancelled: [0; 2],
    };
    while soak.got < total {
        while soak.sent < total
            && let Some(handle) = soak.sends.pop_front()
        {
            soak.send(handle);
        }
        while let Some(handle) = soak.receives.pop_front() {
            soak.receive(handle);
        }
        for event in some(&soak.talk.queue, 16) {
            soak.take(&event);
        }
    }
    let ways = soak.talk.socket.transferred();
    assert!(ways.direct > 0 && (ways.indirect > 0 || long), "{ways:?}");
    assert!(soak.cancelled.iter().all(|count| (*count > 0) != long), "{:?}", soak.cancelled);
    println!("{ways:?}, {:?} cancelled", soak.cancelled);
    soak.talk.finish_with(2 * DEEP - soak.sends.len() - soak.receives.len());
}

#[test]
fn a_stream_with_many_operations_outstanding_keeps_its_bytes() {
    soak(16 << 20, false);
}

#[test]
fn a_stream_of_long_operations_keeps_its_bytes() {
    soak(64 << 20, true);
}

#[test]
#[ignore = "the full length: 10^8 bytes"]
fn a_stream_of_1e8_bytes_keeps_them() {
    soak(100_000_000, false);
}
