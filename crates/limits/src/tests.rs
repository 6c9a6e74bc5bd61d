//! Tests that each measurement does its turns and moves the bytes that it should. None tests how long that takes.

use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use super::*;
use copy::Walk;

#[test]
fn a_line_goes_to_and_fro() {
    let (near, fd) = Shared::create(line::BYTES).unwrap();
    let remote = Shared::open(&fd, line::BYTES).unwrap();
    line::reset(&near);
    std::thread::scope(|scope| {
        scope.spawn(|| line::remote(&remote, 100).unwrap());
        assert!(line::near(&near, 100).unwrap() > Duration::ZERO);
    });
    assert_eq!(near.word(1).load(Ordering::SeqCst), 100);
}

/// Bytes of which no two neighbours are equal, so that a shifted copy is seen.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i % 251) as u8 + 1).collect()
}

/// A chain whose client's bytes are the pattern, and its descriptor; the size is no multiple of a line.
fn chain_of(replicas: usize, len: usize) -> (Shared, std::os::fd::OwnedFd) {
    let (shared, fd) = Shared::create(chain::bytes(replicas, len)).unwrap();
    rustix::io::pwrite(&fd, &pattern(len), 2 * Shared::LINE as u64).unwrap();
    (shared, fd)
}

/// The bytes of each replica.
fn replicas_of(fd: &std::os::fd::OwnedFd, replicas: usize, len: usize) -> Vec<Vec<u8>> {
    let one = |hop: usize| {
        let mut bytes = vec![0; len];
        let at = 2 * Shared::LINE + hop * len.next_multiple_of(Shared::LINE);
        assert_eq!(rustix::io::pread(fd, &mut bytes, at as u64).unwrap(), len);
        bytes
    };
    (1..=replicas).map(one).collect()
}

#[test]
fn a_chain_that_spins_copies_to_every_replica() {
    const LEN: usize = 1000;
    let (near, fd) = chain_of(3, LEN);
    let remote = Shared::open(&fd, chain::bytes(3, LEN)).unwrap();
    // The other side ends when nothing is asked for any more, so no thread waits for it.
    std::thread::spawn(move || chain::answer(&remote, 3, LEN));
    for n in 1..=10 {
        chain::ask(&near, LEN, n).unwrap();
    }
    assert_eq!(replicas_of(&fd, 3, LEN), vec![pattern(LEN); 3]);
}

#[test]
fn a_chain_that_sleeps_copies_hop_by_hop() {
    use rustix::event::{EventfdFlags, eventfd};
    const LEN: usize = 65;
    let (near, fd) = chain_of(2, LEN);
    let bells: Vec<_> = (0..2).map(|_| chain::sleeping_bell().unwrap()).collect();
    let last = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
    for (hop, after) in [(0, &bells[1]), (1, &last)] {
        let remote = Shared::open(&fd, chain::bytes(2, LEN)).unwrap();
        let (before, after) = (bells[hop].try_clone().unwrap(), after.try_clone().unwrap());
        std::thread::spawn(move || chain::relay(&remote, hop, LEN, before, after));
    }
    for _ in 0..10 {
        chain::ring(&bells[0]).unwrap();
        chain::heard(&last).unwrap();
    }
    assert_eq!(replicas_of(&fd, 2, LEN), vec![pattern(LEN); 2]);
    // One hop alone touches no other replica.
    rustix::io::pwrite(&fd, &[0; 2], 2 * Shared::LINE as u64).unwrap();
    chain::copy(&near, 0, LEN);
    let found = replicas_of(&fd, 2, LEN);
    assert_eq!((&found[0][..2], &found[1]), (&[0; 2][..], &pattern(LEN)));
}

/// What was granted is what the system says afterwards; what was refused changed nothing.
#[test]
fn the_scheduler_is_asked() {
    // A thread of its own: the others keep their priority.
    std::thread::spawn(|| {
        // SAFETY: the call has no pointers.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let nice = rustix::process::getpriority_process(None).unwrap();
        match sched::slice(3000, nice) {
            Ok(()) => assert_eq!(rustix::process::getpriority_process(None).unwrap(), nice),
            Err(error) => assert!(matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EPERM)), "{error}"),
        }
        let before = policy();
        match sched::fifo(1) {
            Ok(()) => assert_eq!(policy(), libc::SCHED_FIFO),
            Err(error) => assert_eq!((error.raw_os_error(), policy()), (Some(libc::EPERM), before)),
        }
        assert!(sched::fifo(1000).is_err());
    })
    .join()
    .unwrap();
}

#[test]
fn work_takes_time() {
    assert!(work(1000) > Duration::ZERO);
}

#[test]
fn memory_that_may_shrink_is_refused() {
    let fd = rustix::fs::memfd_create(c"test", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, 1 << 16).unwrap();
    assert!(Shared::open(&fd, line::BYTES).is_err());
    rustix::fs::fcntl_add_seals(&fd, rustix::fs::SealFlags::SHRINK).unwrap();
    assert!(Shared::open(&fd, line::BYTES).is_ok());
    assert!(Shared::open(&fd, 1 << 17).is_err());
}

#[test]
fn bells_wake() {
    let (a, b) = (wake::bell().unwrap(), wake::bell().unwrap());
    let near = wake::Bells::new(a.try_clone().unwrap(), b.try_clone().unwrap()).unwrap();
    let remote = wake::Bells::new(b, a).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| remote.remote(100).unwrap());
        assert!(near.near(100).unwrap() > Duration::ZERO);
    });
}

#[test]
fn streams_carry_whole_messages() {
    let (mut near, mut remote) = UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || stream::remote(&mut remote, &mut vec![0; 1 << 20], 3).unwrap());
        let mut data: Vec<u8> = (0..1 << 20).map(|i| i as u8).collect();
        let sent = data.clone();
        stream::near(&mut near, &mut data, 3).unwrap();
        assert!(data == sent);
    });
}

#[test]
fn memcpy_walks() {
    let (from, to, back) =
        (Buffer::new(1 << 16).unwrap(), Buffer::new(1 << 16).unwrap(), Buffer::new(1 << 16).unwrap());
    let walk = Walk { size: 1 << 12, span: 1 << 16 };
    assert_eq!(walk.bytes(), 1 << 16);
    copy::memcpy(&from, &to, walk, 5, 40);
    from.copy_to(&back, 0, 1 << 16);
    assert!(system_call(10) > Duration::ZERO);
}

/// A child's memory is reached by the address of a page that both have had since before the fork.
#[test]
fn copies_reach_another_process() {
    let child = Command::new("sleep").arg("20").stdin(Stdio::null()).spawn().unwrap();
    let pid = child.id();
    struct Kill(std::process::Child);
    impl Drop for Kill {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let _child = Kill(child);
    let buffer = Buffer::new(4096).unwrap();
    // Once it runs another program, its stack is somewhere in its own map.
    let stack = (0..100).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
        let line = maps.lines().find(|_| maps.contains("sleep")).and(maps.lines().find(|l| l.ends_with("[stack]")))?;
        u64::from_str_radix(line.split('-').next()?, 16).ok()
    });
    let remote = Remote::new(pid, Place { addr: stack.expect("a stack"), len: 4096 }).unwrap();
    let walk = Walk { size: 8, span: 8 };
    match copy::read(&buffer, &remote, walk, 0, 10) {
        Ok(_) => copy::write(buffer.place(), &remote, walk, 0, 10).map(drop).unwrap(),
        // A container may forbid it.
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}"),
    }
    assert!(remote.read(&buffer, 4090, 8).is_err());
    assert!(remote.write(buffer.place(), 4090, 8).is_err());
    assert!(Remote::new(std::process::id(), Place { addr: 4096, len: 8 }).is_err());
}
