//! The honest pair: one process starts the other, works with it as the test says, and reports how long that took.

use std::time::{Duration, Instant};

use conformance::{Fixture, Footprint, Random, Remote, Wire};
use serde::{Deserialize, Serialize};

use crate::friend::{self, Friend};
use crate::manager::Manager;

/// An order to the pair.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Work for so many milliseconds.
    Work(u64),
    /// Work with a process that did not exist before.
    Anew,
}

/// The report of the pair.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Account {
    /// The number of exchanges; all of them were right, or the process would have ended.
    pub exchanges: usize,
    /// The median of their times, in microseconds.
    pub median: u64,
    /// The longest of them, and its time in microseconds.
    pub worst: (String, u64),
    /// The footprints of both processes.
    pub footprints: [Footprint; 2],
}

/// The process that works.
pub fn run(mut wire: Wire, seed: u64) {
    let mut random = Random::new(seed);
    let fixture = Fixture::open();
    let manager = Manager::new();
    let mut other = Remote::start("remote_side", "friend", &[]);
    let port = other.wire.hear();
    let friend = Friend::new(&fixture, &mut other.wire);
    // Taken after it has been used once.
    friend.exchange(&mut random);
    manager.ask(port);
    wire.tell(&[std::process::id(), other.pid()]);
    while let Some(order) = wire.try_hear::<Order>() {
        let mut book = Book::default();
        match order {
            Order::Work(millis) => {
                let end = Instant::now() + Duration::from_millis(millis);
                while Instant::now() < end || book.exchanges.len() < 3 {
                    book.exchange(&friend, &mut random);
                    let mr =
                        book.time("ibv_reg_mr", || fixture.pd.reg_mr(8192, rdma::Access::LOCAL_WRITE).expect("reg_mr"));
                    book.time("ibv_dereg_mr", || drop(mr));
                    let cq = book.time("ibv_create_cq", || fixture.context.create_cq(16, None, 0).expect("create_cq"));
                    let qp = book.time("ibv_create_qp", || conformance::side::create_qp(&fixture, &cq, 4));
                    book.time("ibv_destroy_qp", || drop(qp));
                    book.time("a request for a connection", || manager.ask(port));
                }
            }
            Order::Anew => {
                let mut another = Remote::start("remote_side", "friend", &[]);
                let port = another.wire.hear();
                let friend = Friend::new(&fixture, &mut another.wire);
                book.exchange(&friend, &mut random);
                book.time("a first request for a connection", || manager.ask(port));
                another.kill();
            }
        }
        wire.tell(&book.close(other.pid()));
    }
}

/// The process that it works with.
pub fn serve(mut wire: Wire) {
    wire.tell(&Manager::new().serve());
    friend::serve(wire);
}

#[derive(Default)]
struct Book {
    exchanges: Vec<u64>,
    worst: (&'static str, u64),
}

impl Book {
    fn time<T>(&mut self, what: &'static str, act: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let done = act();
        let took = began.elapsed().as_micros() as u64;
        if took >= self.worst.1 {
            self.worst = (what, took);
        }
        done
    }

    fn exchange(&mut self, friend: &Friend, random: &mut Random) {
        let began = Instant::now();
        self.time("an exchange", || friend.exchange(random));
        self.exchanges.push(began.elapsed().as_micros() as u64);
    }

    fn close(mut self, other: u32) -> Account {
        self.exchanges.sort_unstable();
        Account {
            exchanges: self.exchanges.len(),
            median: self.exchanges[self.exchanges.len() / 2],
            worst: (self.worst.0.to_owned(), self.worst.1),
            footprints: [Footprint::own(), Footprint::of(other)],
        }
    }
}
