//! Packets there and back, of random sizes, small data and READs mixed, with cancels, while the program looks for
//! events, waits for them, or does something else.

use std::collections::VecDeque;
use std::time::Duration;

use conformance::Random;
use exs::protocol::Kind;
use exs::socket::{Event, EventKind, WaitMode};
use rdma::Errno;

use super::common::{Talk, some};

const PIECE: usize = 64 << 10;
const DEEP: usize = 8;
/// Bytes that go within the message.
const SMALL: u32 = 256;

struct Soak {
    talk: Talk,
    random: Random,
    /// What was sent and has not come back, in order, with the handle of its send.
    under_way: VecDeque<(u64, Vec<u8>)>,
    sends: VecDeque<u64>,
    receives: VecDeque<u64>,
    sent: usize,
    got: usize,
    cancelled: [usize; 2],
}

fn place(handle: u64) -> usize {
    handle as usize * PIECE
}

impl Soak {
    fn send(&mut self, handle: u64) {
        let most = [u64::from(SMALL), 3000, PIECE as u64][self.random.below(3) as usize];
        let len = self.random.below(most + 1) as usize;
        let data: Vec<u8> = std::iter::repeat_with(|| self.random.next().to_ne_bytes()).flatten().take(len).collect();
        let Talk { memory, socket, queue, .. } = &self.talk;
        memory.bytes().write(place(handle), &data);
        let op = socket.send(memory, place(handle)..place(handle) + len, queue, handle).expect("a send");
        self.under_way.push_back((handle, data));
        self.sent += 1;
        if self.random.below(20) == 0 {
            socket.cancel(op);
        }
    }

    fn receive(&mut self, handle: u64) {
        let Talk { memory, socket, queue, .. } = &self.talk;
        let op = socket.receive(memory, place(handle)..place(handle) + PIECE, false, queue, handle).expect("a receive");
        if self.random.below(20) == 0 {
            socket.cancel(op);
        }
    }

    fn take(&mut self, event: &Event) {
        let handle = event.handle;
        let send = event.kind == EventKind::Send;
        (if send { &mut self.sends } else { &mut self.receives }).push_back(handle);
        if event.result == Err(Errno(libc::ECANCELED)) {
            self.cancelled[usize::from(send)] += 1;
            if send {
                let at = self.under_way.iter().rposition(|(of, _)| *of == handle).expect("it was sent");
                self.under_way.remove(at);
                self.sent -= 1;
            }
            return;
        }
        let len = event.result.unwrap_or_else(|errno| panic!("{errno:?}")) as usize;
        if send {
            // The buffer is the program's.
            self.talk.memory.bytes().write(place(handle), &[0xee; PIECE]);
            return;
        }
        let (_, data) = self.under_way.pop_front().expect("a packet was sent");
        let mut came = vec![0; len];
        self.talk.memory.bytes().read(place(handle), &mut came);
        assert!(!event.truncated && came == data, "packet {} differs", self.got);
        self.got += 1;
    }
}

fn soak(total: usize, seed: u64) {
    let mut soak = Soak {
        talk: Talk::new("echo", Kind::SeqPacket, SMALL),
        random: Random::new(seed),
        under_way: VecDeque::new(),
        sends: (0..DEEP as u64).collect(),
        receives: (DEEP as u64..2 * DEEP as u64).collect(),
        sent: 0,
        got: 0,
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
        // Long enough for an end to look at notices, and to stop.
        if soak.random.below(300) == 0 {
            let modes = [WaitMode::Adaptive, WaitMode::Notify, WaitMode::BusyPoll];
            soak.talk.queue.set_waiting(modes[soak.random.below(3) as usize]);
        }
        if soak.random.below(500) == 0 {
            std::thread::sleep(Duration::from_micros(soak.random.below(4000)));
        }
        for event in some(&soak.talk.queue, 16) {
            soak.take(&event);
        }
    }
    assert!(soak.cancelled.iter().all(|count| *count > 0), "{:?}", soak.cancelled);
    println!("{} packets, {:?} cancelled", soak.got, soak.cancelled);
    soak.talk.queue.set_waiting(WaitMode::Adaptive);
    soak.talk.finish_with(2 * DEEP - soak.sends.len() - soak.receives.len());
    assert!(soak.talk.remote.ended_well(), "the other process failed");
}

#[test]
fn packets_of_all_sizes_keep_their_bytes_and_order() {
    soak(6_000, 1);
}

#[test]
#[ignore = "the full length: 10^6 packets"]
fn a_million_packets_keep_their_bytes_and_order() {
    soak(1_000_000, 2);
}
