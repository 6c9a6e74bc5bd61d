//! Anything on the rendezvous socket, and anything in `/proc/net/unix` (any process may add names there).
#![no_main]

use libfuzzer_sys::fuzz_target;
use verbs::Gid;
use window::rendezvous;

fuzz_target!(|input: &[u8]| {
    if let Ok(message) = rendezvous::parse(input) {
        // Each message has one encoding.
        assert_eq!(rendezvous::emit(&message), input);
    }
    let group = Gid([0xff; 16]);
    for block in rendezvous::members(&String::from_utf8_lossy(input), &group) {
        assert!(rendezvous::BLOCKS.contains(&block));
    }
});
