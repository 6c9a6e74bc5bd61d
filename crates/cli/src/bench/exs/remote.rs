//! The process that answers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Instant;

use exs::socket::{EventKind, Exs, Memory, Queue, Socket, WaitMode};

use super::super::end::End;
use super::super::{answer, pin};
use super::work::{await_kind, deep, events, more, options, pace, refused, room, sink as place, source};
use super::{Hello, Order, Task, Way, What};
use crate::fixture::{DeviceOptions, text};
use crate::link::Link;

/// Carry out tasks until their end.
pub fn serve(link: &mut Link, device: &DeviceOptions) -> Result<(), String> {
    let Hello { core, verbs } = link.receive()?;
    if let Some(core) = core {
        pin::pin(core);
    }
    let (library, _) = device.find()?;
    let exs = Exs::new(&library).map_err(refused)?;
    let memory = exs.memory(room().bytes()).map_err(refused)?;
    let open = |link: &mut Link| {
        End::open(device, room(), Some(memory.bytes()), |ours| {
            let theirs = link.receive()?;
            link.send(&ours)?;
            Ok(theirs)
        })
    };
    let mut end = verbs.then(|| open(link)).transpose()?;
    link.send(&())?;
    loop {
        match (link.receive_at_last()?, &mut end) {
            (Order::End, _) => return Ok(()),
            (Order::Verbs, Some(end)) => answer::serve(end, link)?,
            (Order::Verbs, None) => return Err("no queue pairs".into()),
            (Order::Copy(bytes), _) => {
                let (mr, start) = (memory.bytes(), Instant::now());
                mr.copy_to(place(bytes).start, mr, source(bytes).start, bytes);
                link.send(&start.elapsed())?;
            }
            (Order::Pace, _) => link.send(&pace())?,
            (Order::Pin(core), _) => {
                pin::pin_all(core);
                link.send(&())?;
            }
            (Order::Measure(task), _) => {
                match task.way {
                    Way::Tcp => tcp(&task, link)?,
                    _ => one(&exs, &memory, &task, link)?,
                }
                link.send(&())?;
            }
        }
    }
}

fn one(exs: &Exs, memory: &Arc<Memory>, task: &Task, link: &mut Link) -> Result<(), String> {
    let at = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = exs.listen(at, 8, options(task)).map_err(refused)?;
    let queue = exs.queue(256).map_err(refused)?;
    listener.accept(&queue, 0).map_err(refused)?;
    link.send(&listener.local_addr().ok_or("no address")?)?;
    let socket = await_kind(&queue, EventKind::Accept)?.socket.ok_or("no connection")?;
    if task.way == Way::Event {
        queue.set_waiting(WaitMode::Notify);
    }
    match (task.what, task.way) {
        (_, Way::Persistent) => {
            socket.send_persistent(memory, place(task.bytes), &queue, 1).map_err(refused)?;
            link.send(&())?;
            // It ends with the connection.
            events(&queue, 1)?;
        }
        (What::Latency, _) => echo(memory, task, &socket, &queue, link)?,
        (What::Throughput, _) => sink(memory, task, &socket, &queue, link)?,
    }
    socket.close(&queue, 1000).map_err(refused)?;
    while events(&queue, 1)?.iter().all(|event| event.kind != EventKind::Close) {}
    Ok(())
}

/// Send back all that comes.
fn echo(memory: &Arc<Memory>, task: &Task, socket: &Socket, queue: &Arc<Queue>, link: &mut Link) -> Result<(), String> {
    let receive = || socket.receive(memory, place(task.bytes), true, queue, 2).map_err(refused);
    receive()?;
    link.send(&())?;
    let mut list = Vec::new();
    loop {
        more(queue, 2, &mut list)?;
        for event in list.drain(..) {
            if event.kind != EventKind::Receive {
                continue;
            }
            if event.end {
                return Ok(());
            }
            event.result.map_err(refused)?;
            socket.send(memory, source(task.bytes), queue, 1).map_err(refused)?;
            receive()?;
        }
    }
}

/// Take all that comes.
fn sink(memory: &Arc<Memory>, task: &Task, socket: &Socket, queue: &Arc<Queue>, link: &mut Link) -> Result<(), String> {
    let late = task.way == Way::Late;
    let receive = |handle| socket.receive(memory, place(task.bytes), true, queue, handle).map_err(refused);
    let ahead = if late { 0 } else { 2 * deep(task) };
    (0..ahead).try_for_each(|handle| receive(handle).map(drop))?;
    link.send(&())?;
    let mut list = Vec::new();
    loop {
        if late {
            // A receive is posted when data are there, so the sender finds none.
            while !socket.ready().readable {
                queue.dequeue(1, 0, None);
            }
            receive(0)?;
        }
        more(queue, 16, &mut list)?;
        for event in list.drain(..) {
            if event.end {
                return Ok(());
            }
            event.result.map_err(refused)?;
            if !late {
                receive(event.handle)?;
            }
        }
    }
}

fn tcp(task: &Task, link: &mut Link) -> Result<(), String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(text)?;
    link.send(&listener.local_addr().map_err(text)?)?;
    let (mut stream, _) = listener.accept().map_err(text)?;
    stream.set_nodelay(true).map_err(text)?;
    link.send(&())?;
    let mut buffer = vec![0; task.bytes];
    match task.what {
        What::Latency => {
            while stream.read_exact(&mut buffer).is_ok() {
                stream.write_all(&buffer).map_err(text)?;
            }
        }
        What::Throughput => while stream.read(&mut buffer).map_err(text)? > 0 {},
    }
    Ok(())
}
