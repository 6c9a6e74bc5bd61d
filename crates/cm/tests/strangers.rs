//! Visitors of a listener of softiw0 that send no request, half of one, or a wrong one (RFC 5044, section 7.1): each is
//! closed, at once or in time, without a word. A visitor with a right request gets its answer meanwhile.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cm::manager::port_space;
use cm::{Channel, Cm, EventKind};
use verbs::Errno;

/// How long the test waits for what has to come.
const LONG: Duration = Duration::from_secs(40);
/// Visitors that send nothing.
const SILENT: usize = 200;
/// Queue pairs of type RC.
const RC: u32 = 2;

fn manager() -> &'static Cm {
    static CM: OnceLock<Cm> = OnceLock::new();
    CM.get_or_init(|| {
        // SAFETY: all that reads variables here does so by the standard library, which has a lock for that.
        unsafe { std::env::set_var("SOFTRNIC_DEVICE", "iwarp") };
        Cm::new(nic::Nic::get().expect("an adapter"))
    })
}

/// A frame of MPA's start, of revision 1 unless it says something else, without private data.
fn frame(key: &str, flags: u8, revision: u8, length: u16) -> Vec<u8> {
    let mut bytes = key.as_bytes().to_vec();
    bytes.extend([flags, revision]);
    bytes.extend(length.to_be_bytes());
    bytes
}

const REQUEST: &str = "MPA ID Req Frame";
const REPLY: &str = "MPA ID Rep Frame";

fn visit(port: u16, bytes: &[u8]) -> TcpStream {
    let mut visitor = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).unwrap();
    visitor.set_read_timeout(Some(LONG)).unwrap();
    visitor.write_all(bytes).unwrap();
    visitor
}

/// The bytes until the end of the connection, be it FIN or RST.
fn rest(visitor: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match visitor.read_to_end(&mut bytes) {
        Ok(_) => bytes,
        Err(e) if e.kind() == ErrorKind::ConnectionReset => bytes,
        Err(e) => panic!("the connection does not end: {e}"),
    }
}

#[test]
fn visitors_that_do_not_ask_as_is_right() {
    let channel = Channel::new().unwrap();
    // Another program's TCP connection may have the port that the manager chooses.
    let id = (0..50).find_map(|_| {
        let id = manager().create_id(&channel, 1, port_space::TCP.into(), RC).unwrap();
        match manager().listen(id, 4) {
            Ok(()) => Some(id),
            Err(Errno::EADDRINUSE) => manager().destroy_id(id).map(|_| None).unwrap(),
            Err(errno) => panic!("{errno:?}"),
        }
    });
    let id = id.expect("a free port");
    let port = manager().view(id).unwrap().src.unwrap().port();
    // A right request, which is refused: the program has got the request, and the reply says R.
    let honest = |with: u8| {
        let mut request = frame(REQUEST, 0x40, 1, 1);
        request.push(with);
        let mut visitor = visit(port, &request);
        let got = manager().get_event(&channel).unwrap();
        assert_eq!((got.event.kind, &got.event.data[..1]), (EventKind::ConnectRequest, &[with][..]));
        let child = got.child.unwrap();
        manager().reject(child, 0, b"no".to_vec()).unwrap();
        manager().destroy_id(child).unwrap();
        let reply = rest(&mut visitor);
        assert!(reply.starts_with(REPLY.as_bytes()) && reply[16] & 0x20 != 0, "{reply:02x?}");
        assert!(reply.ends_with(b"no"));
    };
    honest(1);

    let silent: Vec<TcpStream> = (0..SILENT).map(|_| visit(port, b"")).collect();
    let half: Vec<TcpStream> = (1..20).map(|cut| visit(port, &frame(REQUEST, 0x40, 1, 0)[..cut])).collect();
    let mut promised = frame(REQUEST, 0x40, 1, 512);
    promised.resize(100, 0);
    let less = visit(port, &promised);
    let begun = Instant::now();
    honest(2);

    // RFC 5044, section 7.1.2; RFC 6581, section 9.1: closed, and nothing is sent.
    let mut extra = frame(REQUEST, 0x40, 1, 0);
    extra.push(0);
    let mut short = frame(REQUEST, 0x10, 2, 2);
    short.extend([0, 1]);
    let wrong = [
        ("another key", frame("MPA ID Req frame", 0x40, 1, 0)),
        ("text of another protocol", b"GET / HTTP/1.1\r\nHost: here\r\n\r\n".to_vec()),
        ("a reply", frame(REPLY, 0x40, 1, 0)),
        ("revision 0", frame(REQUEST, 0x40, 0, 0)),
        ("revision 3", frame(REQUEST, 0x40, 3, 0)),
        ("too much private data", frame(REQUEST, 0x40, 1, 513)),
        ("all bits of the length", frame(REQUEST, 0x40, 1, u16::MAX)),
        ("enhanced data that are cut off", short),
        ("a byte behind the request", extra),
    ];
    for (what, bytes) in wrong {
        let said = rest(&mut visit(port, &bytes));
        assert!(said.is_empty(), "{what}: {said:02x?}");
    }
    honest(3);

    for mut visitor in silent.into_iter().chain(half).chain([less]) {
        assert!(rest(&mut visitor).is_empty());
    }
    // All of them at the same time, not one behind the other.
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
    honest(4);
    manager().destroy_id(id).unwrap();
}

/// The facts that `rdma resource show` and the reports have of ids.
#[test]
fn an_id_without_a_device_counts_as_the_first_device_s() {
    let channel = Channel::new().unwrap();
    let id = manager().create_id(&channel, 2, port_space::TCP.into(), RC).unwrap();
    let facts = manager().facts(LONG);
    assert!(facts.locked.is_none(), "{facts:?}");
    // The other test's ids may be there, too.
    let fresh: Vec<_> = facts.ids.iter().filter(|id| id.phase == "idle" && id.src.is_none()).collect();
    assert!(!fresh.is_empty() && fresh.iter().all(|id| id.iwarp), "softiw0 is alone: {fresh:?}");
    manager().destroy_id(id).unwrap();
}
