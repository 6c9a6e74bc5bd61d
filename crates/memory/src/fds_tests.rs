use super::*;

fn eventfd() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap()
}

#[test]
fn the_set_knows_what_is_open() {
    let set = FdSet::new();
    let (a, b) = (eventfd(), eventfd());
    let numbers = [a.as_raw_fd(), b.as_raw_fd()];
    let has = |fd: RawFd| set.words[fd as usize / 64].load(Ordering::Relaxed) >> (fd % 64) & 1 == 1;
    let (a, b) = (TrackedFd::new(a, &set), TrackedFd::new(b, &set));
    assert!(numbers.iter().all(|fd| has(*fd)));
    drop(a);
    assert!(!has(numbers[0]) && has(numbers[1]));
    drop(b);
    assert!(set.words.iter().all(|w| w.load(Ordering::Relaxed) == 0));
    assert!(!set.set(-1, true) && !set.set(LIMIT as RawFd, true));
}

#[test]
fn who_is_at_the_other_end() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let flags = SocketFlags::CLOEXEC;
    let (a, _b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    assert_eq!(peer_credentials(&a), Ok((std::process::id(), rustix::process::geteuid().as_raw())));
    assert!(peer_credentials(eventfd()).is_err());
}
