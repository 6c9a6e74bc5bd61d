//! Plain TCP, as a measure for iWARP over it: `tcp serve ADDRESS:PORT`, then `tcp stream ADDRESS:PORT COUNT BYTES`
//! prints the MiB/s of a stream of so many writes of so many bytes, and `tcp pingpong ADDRESS:PORT COUNT BYTES` the
//! microseconds that so many bytes take one way, the median of so many rounds of two ends that never sleep. The server
//! ends with its first client.

use std::env;
use std::hint::spin_loop;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::Instant;

/// Bytes that the server reads of a stream at most, and bytes of a message at most.
const BLOCK: usize = 1 << 20;
const LONGEST: u64 = 64 << 20;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<usize>().map_err(|_| io::Error::other(format!("no number: {word}")));
    let run = || match *words.as_slice() {
        ["serve", address] => serve(address),
        ["stream", address, count, bytes] => stream(address, number(count)?, number(bytes)?),
        ["pingpong", address, count, bytes] => pingpong(address, number(count)?, number(bytes)?),
        _ => Err(io::Error::other("tcp serve ADDRESS:PORT | tcp stream|pingpong ADDRESS:PORT COUNT BYTES")),
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves one client. Its first byte says which of the two it is, the next eight how long the stream or a message is.
fn serve(address: &str) -> io::Result<()> {
    let (mut socket, _) = TcpListener::bind(address)?.accept()?;
    socket.set_nodelay(true)?;
    let mut which = [0];
    socket.read_exact(&mut which)?;
    let mut length = [0; 8];
    socket.read_exact(&mut length)?;
    let mut left = u64::from_le_bytes(length);
    if which == *b"s" {
        let mut block = vec![0; BLOCK];
        while left > 0 {
            match socket.read(&mut block)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                count => left = left.saturating_sub(count as u64),
            }
        }
        return socket.write_all(&[1]);
    }
    socket.set_nonblocking(true)?;
    let mut ping = vec![0; left.min(LONGEST) as usize];
    while busy_read(&mut socket, &mut ping)? {
        busy_write(&mut socket, &ping)?;
    }
    Ok(())
}

fn stream(address: &str, count: usize, bytes: usize) -> io::Result<()> {
    let mut socket = TcpStream::connect(address)?;
    let (block, all) = (vec![7; bytes], count as u64 * bytes as u64);
    socket.write_all(b"s")?;
    socket.write_all(&all.to_le_bytes())?;
    let begun = Instant::now();
    for _ in 0..count {
        socket.write_all(&block)?;
    }
    socket.read_exact(&mut [0])?;
    println!("{:.2} MiB/s", all as f64 / f64::from(1 << 20) / begun.elapsed().as_secs_f64());
    Ok(())
}

fn pingpong(address: &str, count: usize, bytes: usize) -> io::Result<()> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.write_all(b"p")?;
    socket.write_all(&(bytes as u64).to_le_bytes())?;
    socket.set_nonblocking(true)?;
    let mut ping = vec![3; bytes];
    let mut took = Vec::new();
    for _ in 0..count {
        let begun = Instant::now();
        busy_write(&mut socket, &ping)?;
        if !busy_read(&mut socket, &mut ping)? {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    println!("{:.3} us", took.get(took.len() / 2).map_or(0.0, |median| median.as_secs_f64() * 1e6 / 2.0));
    Ok(())
}

/// Writes the whole buffer without sleeping.
fn busy_write(socket: &mut TcpStream, mut buffer: &[u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        match socket.write(buffer) {
            Ok(count) => buffer = buffer.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => spin_loop(),
            Err(error) => return Err(error),
        }
    }
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
