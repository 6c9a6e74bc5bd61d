//! A process answers although one of its threads holds the device's lock and does not release it.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;

use nic::Nic;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags, SocketType,
};

/// Ask this process for its report.
fn ask() -> report::Report {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let name = report::socket_name(std::process::id());
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    let limit = Timespec { tv_sec: 30, tv_nsec: 0 };
    assert_eq!(poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&limit)), Ok(1), "no answer");
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut byte)];
    rustix::net::recvmsg(&socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let Some(RecvAncillaryMessage::ScmRights(mut fds)) = control.drain().next() else { panic!("no descriptor") };
    let file = std::fs::File::from(fds.next().unwrap());
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(file.write_at(b"x", 0).is_err(), "others read the same memory");
    report::decode(&bytes).unwrap()
}

#[test]
fn a_lock_that_is_held_is_the_answer() {
    let nic = Nic::get().unwrap();
    let _context = nic.open(report::Device::Roce).unwrap();
    let well = ask();
    assert_eq!((well.pid, well.locked, well.adapter.contexts), (std::process::id(), None, 1));
    let guard = nic.lock();
    // A process that asks right after another may get the other's answer.
    let stuck = (0..100).find_map(|_| ask().locked).expect("the lock is held");
    assert!(stuck.contains("holds the device's lock"), "{stuck}");
    drop(guard);
    assert!((0..100).any(|_| ask().locked.is_none()));
}
