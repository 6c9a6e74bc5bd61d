//! A relay before a port that is not always listened at.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use super::pair::copy;

/// A relay that passes on each connection as soon as the target listens. perftest with `-R` needs it: its server
/// listens a second time, for the connection that is measured, after it has told the client to connect, and a client
/// that comes before that is refused and does not survive its own second attempt.
pub struct Gate {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Gate {
    /// A relay at a port that the system chooses, if `port` is 0. `listens` says whether a connection to `target` would
    /// be accepted now, or waits until it would.
    pub fn new(
        ip: IpAddr,
        port: u16,
        target: SocketAddr,
        listens: impl Fn() -> bool + Send + Sync + 'static,
    ) -> io::Result<Gate> {
        let listener = TcpListener::bind((ip, port))?;
        let address = listener.local_addr()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, listens) = (Arc::clone(&is_over), Arc::new(listens));
        let thread = thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let (over, listens) = (Arc::clone(&over), Arc::clone(&listens));
                thread::spawn(move || pass(client, target, &over, &*listens));
            }
        });
        Ok(Gate { address, is_over, thread: Some(thread) })
    }

    /// The relay's port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // This wakes the thread.
        if TcpStream::connect(self.address).is_ok() {
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }
}

fn pass(client: TcpStream, target: SocketAddr, is_over: &AtomicBool, listens: &(impl Fn() -> bool + ?Sized)) {
    while !listens() {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        sleep(Duration::from_millis(2));
    }
    let Ok(server) = TcpStream::connect(target) else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (Ok(from_client), Ok(to_server)) = (client.try_clone(), server.try_clone()) else {
        return;
    };
    let forward = thread::spawn(move || copy(from_client, to_server));
    copy(server, client);
    let _ = forward.join();
}
