//! Whether a connection's other end has been given up by all processes, as the kernel knows it.
//!
//! A FIN is behind all that was sent before it. So an end that does not read does not see it come, while the other
//! end's socket is an orphan already: the kernel has it, and no process.

use std::net::SocketAddr;

use crate::diag;

/// Whether no process has the other end of the connection between these addresses. False as well if the kernel does
/// not say.
pub fn is_orphan(local: SocketAddr, remote: SocketAddr) -> bool {
    // Without a socket of these addresses the kernel names the listener that a SYN would come to.
    diag::socket(remote, local).is_some_and(|there| there.is_none_or(|found| found.inode == 0 || found.listens))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn an_end_is_an_orphan_once_it_is_closed_though_its_fin_is_behind_much() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else { continue };
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (mut far, _) = listener.accept().unwrap();
            let (local, remote) = (near.local_addr().unwrap(), near.peer_addr().unwrap());
            assert!(!is_orphan(local, remote), "{host}");
            far.set_nonblocking(true).unwrap();
            while far.write(&[0; 8192]).is_ok() {}
            assert!(!is_orphan(local, remote), "{host}");
            drop(far);
            assert!(is_orphan(local, remote), "{host}");
        }
    }
}
