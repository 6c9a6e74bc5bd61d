//! The process that measures.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exs::protocol::{Kind, MAX_SMALL};
use exs::socket::{Event, EventKind, Exs, Memory, Options, Queue, Socket, WaitMode};
use quanta::Clock;
use rdma::Mr;
use rustix::time::{ClockId, clock_gettime};

use super::super::end::{LARGEST, Room};
use super::{Order, Task, Way, What};
use crate::fixture::{DeviceOptions, PATIENCE, text};
use crate::link::Link;

/// Operations under way where throughput is measured.
pub const DEEP: u64 = 8;
/// Bytes under way.
const IN_FLIGHT: u64 = 4 << 20;
/// Round trips between two looks at the clock that ends the measurement.
const SELDOM: usize = 16;
/// The arithmetic of a look at the pace, in thousands of steps: some tens of microseconds.
const ARITHMETIC: u32 = 20;
/// Round trips before the ones that count.
const WARM_UP: usize = 30;

/// The layout of the memory of either process. Verbs use the same bytes: the time of a copy depends on the pages more
/// than on what asks for it, so two buffers would not compare two ways.
pub fn room() -> Room {
    Room::new(LARGEST, false)
}

/// The place of so many bytes to send.
pub fn source(bytes: usize) -> Range<usize> {
    Room::SOURCE..Room::SOURCE + bytes
}

/// The place of so many bytes of the peer.
pub fn sink(bytes: usize) -> Range<usize> {
    let start = room().sink();
    start..start + bytes
}

/// The result of a measurement.
pub struct Figure {
    /// Microseconds or megabytes a second.
    pub value: f64,
    /// Percent of one core.
    pub cpu: f64,
    /// Percent of the bytes of a stream.
    pub direct: Option<f64>,
}

/// The options of a task's sockets.
pub fn options(task: &Task) -> Options {
    match task.way {
        Way::Immediate | Way::Event => Options { small: MAX_SMALL, ..Options::new(Kind::SeqPacket) },
        Way::Normal | Way::Persistent => Options { small: 0, ..Options::new(Kind::SeqPacket) },
        Way::Stream | Way::Late | Way::Tcp => Options { ring: 1 << 20, ..Options::new(Kind::Stream) },
    }
}

/// How many operations are under way.
pub fn deep(task: &Task) -> u64 {
    (IN_FLIGHT / task.bytes as u64).clamp(2, DEEP)
}

/// The next events; an operation that failed is an error.
pub fn events(queue: &Queue, most: usize) -> Result<Vec<Event>, String> {
    let mut events = Vec::new();
    more(queue, most, &mut events)?;
    Ok(events)
}

/// As [`events`], into an empty list.
pub fn more(queue: &Queue, most: usize, events: &mut Vec<Event>) -> Result<(), String> {
    queue.dequeue_into(events, most, 1, Some(PATIENCE));
    if events.is_empty() {
        return Err(format!("no event within {} s", PATIENCE.as_secs()));
    }
    Ok(())
}

/// Wait for the next event of a kind; those before it are of the other direction.
pub fn await_kind(queue: &Queue, kind: EventKind) -> Result<Event, String> {
    loop {
        for event in events(queue, 1)? {
            if event.kind == kind {
                event.result.map_err(|errno| format!("{kind:?}: {errno:?}"))?;
                return Ok(event);
            }
        }
    }
}

/// This process's end.
pub struct Near {
    exs: Exs,
    memory: Arc<Memory>,
    clock: Clock,
}

impl Near {
    pub fn new(device: &DeviceOptions) -> Result<Near, String> {
        let (library, _) = device.find()?;
        let exs = Exs::new(&library).map_err(|errno| format!("no extended sockets: {errno:?}"))?;
        let memory = exs.memory(room().bytes()).map_err(|errno| format!("no memory: {errno:?}"))?;
        Ok(Near { exs, memory, clock: Clock::new() })
    }

    /// The memory that everything is measured with.
    pub fn memory(&self) -> &Mr {
        self.memory.bytes()
    }

    /// Measure, with the other process.
    pub fn measure(&mut self, task: &Task, link: &mut Link, budget: Duration) -> Result<Figure, String> {
        link.send(&Order::Measure(*task))?;
        let to: SocketAddr = link.receive()?;
        if task.way == Way::Tcp {
            return tcp(task, to, link, budget);
        }
        let queue = self.exs.queue(256).map_err(|errno| format!("{errno:?}"))?;
        let socket = self.exs.connect(to, options(task), &queue, 0).map_err(|errno| format!("{errno:?}"))?;
        await_kind(&queue, EventKind::Connect)?;
        if task.way == Way::Event {
            queue.set_waiting(WaitMode::Notify);
        }
        let () = link.receive()?;
        let (since, used) = (Instant::now(), processor());
        let value = match (task.what, task.way) {
            (What::Latency, Way::Persistent) => self.fetch(task, &socket, &queue, budget)?,
            (What::Throughput, Way::Persistent) => self.fetch_many(task, &socket, &queue, budget)?,
            (What::Latency, _) => self.ping(task, &socket, &queue, budget)?,
            (What::Throughput, _) => self.blast(task, &socket, &queue, budget)?,
        };
        let cpu = (processor() - used).as_secs_f64() / since.elapsed().as_secs_f64() * 100.0;
        let ways = socket.transferred();
        let total = ways.direct + ways.indirect;
        let direct = (total > 0).then(|| ways.direct as f64 / total as f64 * 100.0);
        queue.set_waiting(WaitMode::Adaptive);
        socket.shutdown().map_err(|errno| format!("{errno:?}"))?;
        if task.way != Way::Persistent {
            // All that the peer sends back has come, and its end.
            let () = link.receive()?;
        }
        socket.close(&queue, 1).map_err(|errno| format!("{errno:?}"))?;
        while events(&queue, 1)?.iter().all(|event| event.kind != EventKind::Close) {}
        if task.way == Way::Persistent {
            let () = link.receive()?;
        }
        Ok(Figure { value, cpu, direct })
    }

    /// Microseconds one way.
    fn ping(&self, task: &Task, socket: &Socket, queue: &Arc<Queue>, budget: Duration) -> Result<f64, String> {
        let (memory, bytes) = (&self.memory, task.bytes);
        let receive = || socket.receive(memory, sink(bytes), true, queue, 2).map_err(refused);
        receive()?;
        let (mut times, mut list) = (Vec::new(), Vec::new());
        let began = Instant::now();
        let mut last = self.clock.raw();
        // The system's clock is read seldom: the reading would be a part of what is measured.
        while times.len() < WARM_UP * 2 || times.len() % SELDOM > 0 || began.elapsed() < budget {
            socket.send(memory, source(bytes), queue, 1).map_err(refused)?;
            let mut came = 0;
            while came < 2 {
                more(queue, 2, &mut list)?;
                for event in list.drain(..) {
                    event.result.map_err(refused)?;
                    came += 1;
                    if event.kind == EventKind::Receive {
                        let now = self.clock.raw();
                        times.push(self.clock.delta(last, now));
                        receive()?;
                    }
                }
            }
            last = self.clock.raw();
        }
        Ok(typical(&mut times) / 2.0)
    }

    /// Microseconds for one receive.
    fn fetch(&self, task: &Task, socket: &Socket, queue: &Arc<Queue>, budget: Duration) -> Result<f64, String> {
        let mut times = Vec::new();
        let began = Instant::now();
        let mut last = self.clock.raw();
        while times.len() < WARM_UP * 2 || times.len() % SELDOM > 0 || began.elapsed() < budget {
            socket.receive(&self.memory, source(task.bytes), false, queue, 2).map_err(refused)?;
            await_kind(queue, EventKind::Receive)?;
            let now = self.clock.raw();
            times.push(self.clock.delta(last, now));
            last = now;
        }
        Ok(typical(&mut times))
    }

    /// Megabytes a second by receives of what stays advertised.
    fn fetch_many(&self, task: &Task, socket: &Socket, queue: &Arc<Queue>, budget: Duration) -> Result<f64, String> {
        let post = |_| socket.receive(&self.memory, source(task.bytes), false, queue, 2).map(drop).map_err(refused);
        rate(task, queue, budget, post)
    }

    /// Megabytes a second.
    fn blast(&self, task: &Task, socket: &Socket, queue: &Arc<Queue>, budget: Duration) -> Result<f64, String> {
        rate(task, queue, budget, |n| {
            socket.send(&self.memory, source(task.bytes), queue, n).map(drop).map_err(refused)
        })
    }
}

/// The rate of an operation of which several are under way, in megabytes a second.
fn rate(task: &Task, queue: &Queue, budget: Duration, post: impl Fn(u64) -> Result<(), String>) -> Result<f64, String> {
    let deep = deep(task);
    let (mut posted, mut done, mut first) = (0u64, 0u64, 0u64);
    let mut since = Instant::now();
    let (mut warm, mut list) = (false, Vec::new());
    loop {
        while posted - done < deep {
            post(posted)?;
            posted += 1;
        }
        done += ended(queue, &mut list)?;
        if !warm && done >= 2 * deep {
            (warm, first, since) = (true, done, Instant::now());
        }
        if warm && since.elapsed() >= budget {
            break;
        }
    }
    let rate = (done - first) as f64 * task.bytes as f64 / since.elapsed().as_secs_f64() / 1e6;
    while done < posted {
        done += ended(queue, &mut list)?;
    }
    Ok(rate)
}

/// The time of some arithmetic, in microseconds: longer where others use the core that this processor is a part of.
pub fn pace() -> f64 {
    (0..3).map(|_| limits::work(ARITHMETIC).as_secs_f64() * 1e6).fold(f64::INFINITY, f64::min)
}

/// Take events; how many operations have ended.
fn ended(queue: &Queue, list: &mut Vec<Event>) -> Result<u64, String> {
    more(queue, 16, list)?;
    let count = list.len() as u64;
    for event in list.drain(..) {
        event.result.map_err(refused)?;
    }
    Ok(count)
}

pub fn refused(errno: impl std::fmt::Debug) -> String {
    format!("refused: {errno:?}")
}

fn processor() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default()
}

/// The median without the first ones, in microseconds.
fn typical(times: &mut Vec<Duration>) -> f64 {
    times.drain(..WARM_UP.min(times.len() / 2));
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

/// A TCP socket, moved by write(2) and read(2).
fn tcp(task: &Task, to: SocketAddr, link: &mut Link, budget: Duration) -> Result<Figure, String> {
    let mut stream = TcpStream::connect(to).map_err(text)?;
    stream.set_nodelay(true).map_err(text)?;
    let () = link.receive()?;
    let mut buffer = vec![1; task.bytes];
    let (since, used) = (Instant::now(), processor());
    let mut times = Vec::new();
    let mut count = 0u64;
    while times.len() < WARM_UP * 2 && task.what == What::Latency || since.elapsed() < budget {
        let before = Instant::now();
        stream.write_all(&buffer).map_err(text)?;
        count += 1;
        if task.what == What::Latency {
            stream.read_exact(&mut buffer).map_err(text)?;
            times.push(before.elapsed());
        }
    }
    stream.shutdown(std::net::Shutdown::Write).map_err(text)?;
    // The peer closes when it has everything.
    while stream.read(&mut buffer).map_err(text)? > 0 {}
    let time = since.elapsed().as_secs_f64();
    let value = match task.what {
        What::Latency => typical(&mut times) / 2.0,
        What::Throughput => count as f64 * task.bytes as f64 / time / 1e6,
    };
    let cpu = (processor() - used).as_secs_f64() / time * 100.0;
    let () = link.receive()?;
    Ok(Figure { value, cpu, direct: None })
}
