//! Names of abstract unix sockets that any process of the network namespace can take first.
//!
//! Each name has a few variants. A process that wants to hold it takes the first that is free, if the others are not
//! held by processes of its own user; a process that looks for the holder passes over those of other users. So a
//! stranger that holds a name, or all names of a kind, keeps no process from anything, unless it holds all variants.

use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use verbs::Errno;

use crate::fds::peer_credentials;
use crate::received_fds::close_connection;

/// Variants of a name.
pub const VARIANTS: u32 = 4;

/// The name, and after it the name with a suffix.
fn variant(name: &str, n: u32) -> String {
    if n == 0 { name.to_owned() } else { format!("{name}.{n}") }
}

/// The name that a variant is one of.
pub fn base(variant: &str) -> &str {
    match variant.rsplit_once('.') {
        Some((name, n)) if n.parse::<u32>().is_ok_and(|n| (1..VARIANTS).contains(&n)) => name,
        _ => variant,
    }
}

fn errno(e: rustix::io::Errno) -> Errno {
    Errno(e.raw_os_error())
}

fn seqpacket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(errno)
}

fn address(name: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(errno)
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Connects to the process that listens at a variant.
fn visit(name: &str, n: u32) -> Result<(OwnedFd, u32, u32), Errno> {
    let socket = seqpacket()?;
    rustix::net::connect(&socket, &address(&variant(name, n))?).map_err(errno)?;
    let (pid, uid) = peer_credentials(&socket)?;
    Ok((socket, pid, uid))
}

/// True if a process of this user listens at a variant.
fn is_ours(name: &str, n: u32) -> Result<bool, Errno> {
    match visit(name, n) {
        Ok((socket, _, uid)) => {
            close_connection(socket);
            Ok(uid == own_user())
        }
        // The name is free, or its holder does not listen, or has no room. Such a holder is not a process of this
        // library: those listen at once and have room.
        Err(Errno::ECONNREFUSED | Errno::EAGAIN) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Claims a name, and listens there. Strangers that hold it are passed over only if `over_strangers` is set.
///
/// # Errors
/// EADDRINUSE: it is held by a process of this user, or by strangers; else the kernel's errno.
pub fn claim(name: &str, backlog: i32, over_strangers: bool) -> Result<OwnedFd, Errno> {
    for n in 0..if over_strangers { VARIANTS } else { 1 } {
        let socket = seqpacket()?;
        match rustix::net::bind(&socket, &address(&variant(name, n))?) {
            Ok(()) => {}
            Err(rustix::io::Errno::ADDRINUSE) if over_strangers && !is_ours(name, n)? => continue,
            Err(e) => return Err(errno(e)),
        }
        rustix::net::listen(&socket, backlog).map_err(errno)?;
        // Of two that claim variants at the same time, at least one sees the other, since both listen before they look.
        for other in (0..VARIANTS).filter(|other| *other != n) {
            if is_ours(name, other)? {
                return Err(Errno::EADDRINUSE);
            }
        }
        return Ok(socket);
    }
    Err(Errno::EADDRINUSE)
}

/// Connects to the holder of a name; gives its process and its user. One of this user is preferred; one of another user
/// is taken only with `any_user`.
///
/// # Errors
/// ECONNREFUSED: no process listens there. EACCES: only strangers do. EAGAIN: too many connections wait there. Else the
/// kernel's errno.
pub fn seek(name: &str, any_user: bool) -> Result<(OwnedFd, u32, u32), Errno> {
    let (mut why, mut stranger) = (Errno::ECONNREFUSED, None::<(OwnedFd, u32, u32)>);
    for n in 0..VARIANTS {
        match visit(name, n) {
            Ok(found) if found.2 == own_user() => {
                if let Some((socket, ..)) = stranger {
                    close_connection(socket);
                }
                return Ok(found);
            }
            Ok(found) if any_user && stranger.is_none() => stranger = Some(found),
            Ok((socket, ..)) => {
                close_connection(socket);
                why = Errno::EACCES;
            }
            Err(Errno::ECONNREFUSED) => {}
            Err(Errno::EAGAIN) => why = Errno::EAGAIN,
            Err(e) => return stranger.ok_or(e),
        }
    }
    stranger.ok_or(why)
}

/// True if a process holds a variant of the name.
pub fn is_held(name: &str) -> bool {
    let taken = |n| -> Result<bool, Errno> {
        let bound = rustix::net::bind(seqpacket()?, &address(&variant(name, n))?);
        Ok(bound == Err(rustix::io::Errno::ADDRINUSE))
    };
    (0..VARIANTS).any(|n| taken(n) == Ok(true))
}

#[cfg(all(test, not(loom), not(miri)))]
mod tests {
    use super::*;

    fn name(what: &str) -> String {
        format!("softrnic-test/{}/{what}", std::process::id())
    }

    /// Takes a name as another user would.
    fn squat(name: &str, variants: u32, backlog: Option<i32>) -> Vec<OwnedFd> {
        let names: Vec<String> = (0..variants).map(|n| variant(name, n)).collect();
        let take = move || {
            // Of this thread alone (the system call knows no others).
            rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65533)).unwrap();
            names
                .iter()
                .map(|name| {
                    let socket = seqpacket().unwrap();
                    rustix::net::bind(&socket, &address(name).unwrap()).unwrap();
                    if let Some(backlog) = backlog {
                        rustix::net::listen(&socket, backlog).unwrap();
                    }
                    socket
                })
                .collect()
        };
        std::thread::spawn(take).join().unwrap()
    }

    #[test]
    fn one_of_a_user_holds_a_name() {
        let name = name("one");
        let held = claim(&name, 16, true).unwrap();
        assert_eq!(claim(&name, 16, true).err(), Some(Errno::EADDRINUSE));
        assert_eq!(seek(&name, false).unwrap().2, own_user());
        assert!(is_held(&name));
        drop(held);
        assert_eq!(seek(&name, false).err(), Some(Errno::ECONNREFUSED));
        assert!(!is_held(&name));
        assert_eq!((base("a/b.3"), base("a/b.4"), base("a/b.0"), base("a.1/b")), ("a/b", "a/b.4", "a/b.0", "a.1/b"));
    }

    #[test]
    fn strangers_are_passed_over() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: this test acts as another user, and needs to be root");
        }
        // Whether they listen or not, and have room or not.
        for (n, backlog) in [None, Some(0), Some(16)].into_iter().enumerate() {
            let name = name(&format!("squatted{n}"));
            let squatters = squat(&name, 2, backlog);
            let waits = (backlog == Some(0)).then(|| [visit(&name, 0), visit(&name, 0)]);
            assert_eq!(claim(&name, 16, false).err(), Some(Errno::EADDRINUSE));
            if backlog == Some(16) {
                assert_eq!(seek(&name, false).err(), Some(Errno::EACCES));
                assert_eq!(seek(&name, true).unwrap().2, 65533);
            }
            let held = claim(&name, 16, true).unwrap();
            for any_user in [false, true] {
                assert_eq!(seek(&name, any_user).unwrap().2, own_user());
            }
            // The squatter goes: the name itself is free, and still held by one of this user.
            drop((squatters, waits));
            assert_eq!(claim(&name, 16, false).err(), Some(Errno::EADDRINUSE));
            drop(held);
            claim(&name, 16, false).unwrap();
        }
        let name = name("all");
        let _squatters = squat(&name, VARIANTS, Some(16));
        assert_eq!(claim(&name, 16, true).err(), Some(Errno::EADDRINUSE));
    }
}
