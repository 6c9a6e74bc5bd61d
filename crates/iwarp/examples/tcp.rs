//! Plain TCP, as a measure for iWARP over it: `tcp serve ADDRESS:PORT`, then `tcp stream ADDRESS:PORT COUNT` prints
//! the MiB/s of a stream of so many MiB, and `tcp pingpong ADDRESS:PORT COUNT` the microseconds that 8 bytes take one
//! way, the median of so many rounds of two ends that never sleep. The server ends with its first client.

use std::env;
use std::hint::spin_loop;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Instant;

/// Bytes of a write of the stream.
const BLOCK: usize = 1 << 20;

/// Bytes of a ping.
const PING: usize = 8;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match *words.as_slice() {
        ["serve", address] => serve(address),
        ["stream", address, count] => stream(address, count.parse().unwrap_or(1000)),
        ["pingpong", address, count] => pingpong(address, count.parse().unwrap_or(10_000)),
        _ => Err(io::Error::other("tcp serve ADDRESS:PORT | tcp stream|pingpong ADDRESS:PORT COUNT")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves one client. Its first byte says which of the two it is.
fn serve(address: &str) -> io::Result<()> {
    let (mut socket, _) = TcpListener::bind(address)?.accept()?;
    socket.set_nodelay(true)?;
    let mut which = [0];
    socket.read_exact(&mut which)?;
    if which == *b"s" {
        let mut block = vec![0; BLOCK];
        let mut left = [0; 8];
        socket.read_exact(&mut left)?;
        let mut left = u64::from_le_bytes(left);
        while left > 0 {
            match socket.read(&mut block)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => left = left.saturating_sub(count as u64),
            }
        }
        return socket.write_all(&[1]);
    }
    socket.set_nonblocking(true)?;
    let mut ping = [0; PING];
    while busy_read(&mut socket, &mut ping)? {
        socket.write_all(&ping)?;
    }
    Ok(())
}

fn stream(address: &str, count: u64) -> io::Result<()> {
    let mut socket = TcpStream::connect(address)?;
    let block = vec![7; BLOCK];
    socket.write_all(b"s")?;
    socket.write_all(&(count * BLOCK as u64).to_le_bytes())?;
    let begun = Instant::now();
    for _ in 0..count {
        socket.write_all(&block)?;
    }
    socket.read_exact(&mut [0])?;
    println!("{:.2} MiB/s", count as f64 / begun.elapsed().as_secs_f64());
    Ok(())
}

fn pingpong(address: &str, count: usize) -> io::Result<()> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.write_all(b"p")?;
    socket.set_nonblocking(true)?;
    let mut ping = [3; PING];
    let mut took = Vec::with_capacity(count);
    for _ in 0..count {
        let begun = Instant::now();
        socket.write_all(&ping)?;
        if !busy_read(&mut socket, &mut ping)? {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    println!("{:.3} us", took.get(count / 2).map_or(0.0, |median| median.as_secs_f64() * 1e6 / 2.0));
    Ok(())
}

/// Reads without sleeping until the buffer is full. False: the peer has closed.
fn busy_read(socket: &mut TcpStream, buffer: &mut [u8]) -> io::Result<bool> {
    let mut have = 0;
    while have < buffer.len() {
        match socket.read(&mut buffer[have..]) {
            Ok(0) => return Ok(false),
            Ok(count) => have += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
