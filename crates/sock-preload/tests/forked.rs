//! A server that forks after it has accepted a connection.

mod pairs;

use std::net::TcpStream;

use pairs::{BOTH, PAIRS, ROLE, accept, echo, finish, ping, port, start};

#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    match words[0] {
        "leaves" => serve_by_child(false),
        "keeps" => serve_by_child(true),
        "ping" => {
            ping(TcpStream::connect(("127.0.0.1", words[1].parse().unwrap())).unwrap(), words.contains(&"moves"));
        }
        other => panic!("{other}"),
    }
}

/// A child answers; the parent closes its copy of the connection, or keeps it until the child has ended.
fn serve_by_child(keeps: bool) {
    let stream = accept();
    // SAFETY: the child moves bytes, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        echo(stream);
        // SAFETY: it ends this process.
        unsafe { libc::_exit(0) };
    }
    let kept = keeps.then_some(stream);
    let mut status = 0;
    // SAFETY: a live local.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    drop(kept);
}

fn pair(server: &str, moves: bool) {
    for with in PAIRS {
        let mut one = start(server, "", with.server);
        let what = if moves && with == BOTH { "moves" } else { "stays" };
        let mut two = start("ping", &format!("{} {what}", port(&mut one)), with.client);
        let sides = format!("{server}, server {}, client {}", with.server, with.client);
        assert!(finish(&mut two, &sides).success(), "{sides}");
        assert!(finish(&mut one, &sides).success(), "{sides}");
    }
}

#[test]
fn a_connection_that_is_left_to_a_child_moves() {
    pair("leaves", true);
}

#[test]
fn a_connection_that_two_processes_have_stays_with_tcp() {
    pair("keeps", false);
}
