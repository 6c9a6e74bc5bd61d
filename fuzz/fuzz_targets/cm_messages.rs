//! Anything on the socket between two connection managers, and anything in `/proc/net/unix`.
#![no_main]

use cm::{message, names};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Ok(said) = message::parse(input) {
        // A message that was parsed can be emitted again, and means the same.
        let again = message::emit(&said);
        assert_eq!(message::parse(&again).as_ref(), Ok(&said));
    }
    let text = String::from_utf8_lossy(input);
    for port_space in [0x0106, 0x0111] {
        assert!(names::claims(&text, port_space).count() <= text.lines().count());
    }
});
