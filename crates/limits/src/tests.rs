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
