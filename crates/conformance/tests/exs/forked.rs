//! The child of a fork(2): its calls are refused, and its parent's connection goes on.

use std::sync::Arc;

use conformance::{library, until};
use exs::protocol::Kind;
use exs::socket::{EventKind, Exs, Listener, Memory, Options, Queue, Socket};
use rdma::Errno;
use rustix::process::{Pid, WaitOptions, waitpid};

use super::common::{expect, local};

struct Inherited {
    exs: Exs,
    listener: Arc<Listener>,
    socket: Arc<Socket>,
    queue: Arc<Queue>,
    memory: Arc<Memory>,
}

/// Try every call; the number of the first one that is not refused, or 0.
fn try_all(of: Inherited) -> i32 {
    let Inherited { exs, listener, socket, queue, memory } = of;
    let options = Options::new(Kind::SeqPacket);
    let refused = Some(Errno(libc::EBADF));
    let results = [
        exs.queue(1).err(),
        exs.memory(64).err(),
        exs.bind(local()).err(),
        exs.listen(local(), 1, options).err(),
        exs.connect(local(), options, &queue, 1).err(),
        listener.accept(&queue, 2).err(),
        socket.send(&memory, 0..8, &queue, 3).err(),
        socket.receive(&memory, 0..8, false, &queue, 4).err(),
        socket.shutdown().err(),
        socket.close(&queue, 5).err(),
        queue.take(1, 1, None).err(),
        listener.close().err(),
    ];
    let allowed = results.iter().position(|result| *result != refused);
    // Without the check it would wait for a thread that is not there.
    drop(exs);
    let idle = !socket.cancel(1) && queue.dequeue(1, 1, None).is_empty();
    allowed.map_or(if idle { 0 } else { 50 }, |at| at as i32 + 1)
}

#[test]
fn the_child_of_a_fork_is_refused() {
    let exs = Exs::new(&library()).expect("a device");
    let queue = exs.queue(8).expect("a queue");
    let memory = exs.memory(64).expect("memory");
    let options = Options::new(Kind::SeqPacket);
    let listener = exs.listen(local(), 8, options).expect("an address");
    listener.accept(&queue, 1).expect("a place");
    let peer = exs.connect(listener.local_addr().expect("it is bound"), options, &queue, 2).expect("it begins");
    let (mut socket, mut connected) = (None, false);
    while socket.is_none() || !connected {
        for event in queue.dequeue(1, 1, Some(conformance::PATIENCE)) {
            event.result.expect("a connection");
            connected |= event.kind == EventKind::Connect;
            socket = event.socket.or(socket);
        }
    }
    let socket = socket.expect("an ACCEPT brings one");
    let inherited = Inherited { exs, listener, socket, queue, memory };
    // SAFETY: the child runs Rust code although other threads existed at the fork: glibc makes its allocator whole
    // again, and the library under test says that its functions may be called there, which is what is tested.
    let child = match unsafe { libc::fork() } {
        0 => {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| try_all(inherited))).unwrap_or(99);
            // SAFETY: ends the process without running what the parent has registered.
            unsafe { libc::_exit(code) }
        }
        pid => Pid::from_raw(pid).expect("a process id"),
    };
    let code = until("the child's end", || {
        let (_, status) = waitpid(Some(child), WaitOptions::NOHANG).expect("a child of ours")?;
        Some(status.exit_status().unwrap_or(1000))
    });
    assert_eq!(code, 0, "the call of this number was not refused");
    let Inherited { socket, queue, memory, .. } = &inherited;
    memory.bytes().write(0, b"parent");
    peer.receive(memory, 32..40, false, queue, 6).expect("a receive");
    socket.send(memory, 0..6, queue, 7).expect("a send");
    for _ in 0..2 {
        let event = super::common::one(queue);
        assert_eq!(event.result, Ok(6), "{event:?}");
    }
    let mut bytes = [0; 6];
    memory.bytes().read(32, &mut bytes);
    assert_eq!(bytes, *b"parent");
    socket.close(queue, 8).expect("close");
    expect(queue, EventKind::Close, 8);
}
