//! Processes that end, fork or are stopped.

use super::*;

#[test]
fn death_is_noticed_and_the_block_can_be_found_again() {
    let mut other = Other::start("echo");
    let peer = Qpn::new(other.hear_number() as u32);
    let mut node = Node::new();
    let link = node.resolve(peer);
    exchange(&mut node, peer, &[8; 100]);
    other.process.kill().unwrap();
    node.until("death", |node| node.dead == [link]);
    let lost = node.env.send(link, &packet(peer, node.qpn, 0, 0), Payload::default());
    assert_eq!(lost, Err(SendError::Down));
    assert!(node.env.taken(link, 1 << 40));
    assert_eq!(node.env.resolve(&LOCALHOST, peer), None);
    assert_eq!(node.env.links(), [LinkId::LOOPBACK]);
}

#[test]
fn what_the_dead_had_sent_still_arrives() {
    let mut other = Other::start("brief");
    other.hear();
    let mut node = Node::new();
    other.tell(&node.qpn.get().to_string());
    other.process.wait().unwrap();
    let mut got = 0;
    let deadline = Instant::now() + Duration::from_secs(10);
    while node.dead.is_empty() {
        node.round(|env, _, packet, rx| {
            assert_eq!((packet.imm, payload(env, rx)), (got, pattern(got, 100)));
            got += 1;
        });
        assert!(Instant::now() < deadline);
    }
    assert_eq!(got, 500);
}

#[test]
fn kill_at_any_moment() {
    let mut node = Node::new();
    for round in 0..30u32 {
        let mut other = Other::start(if round % 2 == 0 { "echo" } else { "sleeper" });
        let peer = Qpn::new(other.hear_number() as u32);
        let link = node.resolve(peer);
        let (from, start) = (node.qpn, Instant::now());
        let mut n = 0;
        let mut killed = false;
        while !node.dead.contains(&link) {
            let len = n as usize * 7 % 16384;
            let bytes = pattern(n, len);
            if node.env.send(link, &packet(peer, from, n, len), Payload { prefix: &bytes, spans: &[] }).is_ok() {
                n += 1;
            }
            node.round(|env, _, packet, rx| {
                assert_eq!(payload(env, rx).len(), packet.len as usize);
            });
            if !killed && start.elapsed() > Duration::from_micros(u64::from(round) * 137) {
                other.process.kill().unwrap();
                killed = true;
            }
            assert!(start.elapsed() < Duration::from_secs(20));
        }
        node.dead.clear();
    }
}

#[test]
fn after_fork_nothing_stays_open() {
    let mut other = Other::start("forked");
    other.hear();
    assert_eq!((other.hear(), other.hear()), ("true".to_owned(), "true".to_owned()));
}

#[test]
fn who_is_stopped_is_not_waiting_for_its_turn() {
    let mut other = Other::start("lazy");
    let peer = Qpn::new(other.hear_number() as u32);
    let mut node = Node::new();
    let link = node.resolve(peer);
    assert!(node.env.lives(link));
    let pid = rustix::process::Pid::from_child(&other.process);
    let stop = |signal| rustix::process::kill_process(pid, signal).unwrap();
    stop(rustix::process::Signal::STOP);
    node.until("stop", |node| !node.env.lives(link));
    stop(rustix::process::Signal::CONT);
    node.until("going on", |node| node.env.lives(link));
    other.process.kill().unwrap();
    node.until("death", |node| !node.env.lives(link));
}
