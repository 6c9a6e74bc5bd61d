//! Standard output, whose reader may go away: `softrnic devinfo | head`.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Prints a line, as `println!` does, but ends the program quietly when nobody reads.
macro_rules! say {
    ($($part:tt)*) => { $crate::out::line(format_args!($($part)*)) };
}
pub(crate) use say;

/// What [`say!`] calls.
pub fn line(text: Arguments<'_>) {
    // One write for a line, so that what two processes print does not mix.
    let line = format!("{text}\n");
    let mut out = std::io::stdout().lock();
    match out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => {}
        // As if SIGPIPE had ended it.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(141),
        Err(error) => {
            eprintln!("softrnic: cannot print: {error}");
            std::process::exit(1);
        }
    }
}
