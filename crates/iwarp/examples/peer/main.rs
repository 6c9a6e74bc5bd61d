//! A small driver of the crate on a TCP socket: it speaks `rping`'s protocol with any other iWARP, as client or server,
//! and provokes errors of the other side.
//!
//! ```text
//! peer connect ADDRESS MODE [OPTIONS]
//! peer listen ADDRESS MODE [OPTIONS]
//! ```
//!
//! It prints the terms of the connection, what happened, and at the end `ok` or `error: ...`.

mod link;
mod memory;
mod rping;
mod wrong;

use std::net::TcpListener;
use std::process::ExitCode;

use iwarp::mpa::start::Revision;
use iwarp::mpa::{ReadyKinds, Role, Wishes};
use iwarp::rdmap::{Config, End};

use link::Link;

const HELP: &str = "peer connect|listen ADDRESS MODE [OPTIONS]

Modes:
  rping            rping's client (connect) or server (listen)
  lie              rping's client, with keys that name no region: this side sends a Terminate message
Options:
  --count N        rounds of rping (10)
  --size N         bytes of its text (64)
  --wrong NAME     in place of rping's second message, provoke this error, and print how the connection ends
  --no-crc         this side does not ask for CRCs
  --markers        this side asks for markers
  --revision 1|2   of MPA (2)
  --ready KINDS    the peer-to-peer model; KINDS are letters of s, w, r
  --emss N         bytes of a TCP segment (1448)
  --private N      bytes of private data (0)";

struct Options {
    count: usize,
    size: usize,
    wrong: Option<String>,
    private: usize,
    wishes: Wishes,
    config: Config,
}

fn options(role: Role, mut words: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut options = Options {
        count: 10,
        size: 64,
        wrong: None,
        private: 0,
        wishes: Wishes::new(role, 1),
        config: Config::new(1448),
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} wants a value"));
        let number = |text: String| text.parse::<usize>().map_err(|e| format!("{text}: {e}"));
        match word.as_str() {
            "--count" => options.count = number(value()?)?,
            "--size" => options.size = number(value()?)?,
            "--emss" => options.config.emss = number(value()?)?,
            "--private" => options.private = number(value()?)?,
            "--wrong" => options.wrong = Some(value()?),
            "--no-crc" => options.wishes.crc = false,
            "--markers" => options.wishes.markers = true,
            "--revision" => {
                options.wishes.revision = if value()? == "1" { Revision::One } else { Revision::Two };
            }
            "--ready" => {
                let kinds = value()?;
                let has = |kind| kinds.contains(kind);
                options.wishes.ready = Some(ReadyKinds { send: has('s'), write: has('w'), read: has('r') });
            }
            _ => return Err(format!("unknown option {word}\n\n{HELP}")),
        }
    }
    Ok(options)
}

/// The end of a connection in words.
fn text(end: &End) -> String {
    match end {
        End::Fault(fault) => format!("fault, {}", fault.reason()),
        End::Terminated(said) => format!("terminated, {said}"),
        End::Closed => "closed".to_owned(),
        End::Torn => "torn".to_owned(),
        End::Timeout => "timeout".to_owned(),
    }
}

fn run() -> Result<(), String> {
    let mut words = std::env::args().skip(1);
    let (Some(how), Some(address), Some(mode)) = (words.next(), words.next(), words.next()) else {
        return Err(HELP.to_owned());
    };
    let role = match how.as_str() {
        "connect" => Role::Initiator,
        "listen" => Role::Responder,
        _ => return Err(HELP.to_owned()),
    };
    let Options { count, size, wrong, private, wishes, config } = options(role, words)?;
    let private: Vec<u8> = (0..private).map(|at| at as u8).collect();
    let mut link = match role {
        Role::Initiator => Link::connect(&address, wishes, &config, &private)?,
        Role::Responder => {
            let listener = TcpListener::bind(&address).map_err(|e| format!("{address}: {e}"))?;
            println!("listening at {}", listener.local_addr().map_err(|e| e.to_string())?);
            Link::accept(&listener, wishes, &config, &private)?
        }
    };
    println!("{:?}", link.stream.agreed());
    println!("private data of {} bytes", link.private_data.len());
    if let Some(wrong) = wrong {
        wrong::provoke(&mut link, &wrong)?;
        println!("end: {}", text(&link.end()?));
        return Ok(());
    }
    match (mode.as_str(), role) {
        ("rping", Role::Initiator) => {
            rping::client(&mut link, count, size, false)?;
            println!("{count} rounds");
            link.close()
        }
        ("rping", Role::Responder) => {
            println!("{} rounds", rping::server(&mut link)?);
            println!("end: {}", text(&link.end()?));
            Ok(())
        }
        ("lie", Role::Initiator) => {
            let said = rping::client(&mut link, 1, size, true);
            println!("{said:?}\nend: {}", text(&link.end()?));
            Ok(())
        }
        _ => Err(HELP.to_owned()),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => {
            println!("ok");
            ExitCode::SUCCESS
        }
        Err(e) => {
            println!("error: {e}");
            ExitCode::FAILURE
        }
    }
}
