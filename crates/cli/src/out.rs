//! Standard output, whose reader may go away: `softrnic devinfo | head`.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// Print a line, as `println!` does, but end the program quietly when no process reads.
macro_rules! say {
    ($($part:tt)*) => { $crate::out::line(format_args!($($part)*)) };
}
pub(crate) use say;

/// Print a line, for [`say!`].
pub fn line(text: Arguments<'_>) {
    // One write for a line, so that the lines of two processes do not mix.
    let line = format!("{text}\n");
    let mut out = std::io::stdout().lock();
    match out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => {}
        // The exit status that SIGPIPE would have given.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(141),
        Err(error) => {
            eprintln!("softrnic: cannot print: {error}");
            std::process::exit(1);
        }
    }
}
