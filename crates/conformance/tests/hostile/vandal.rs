//! A real program, whose windows are overwritten from within while it uses them. So the packets that arrive at the
//! victim are nearly right.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use conformance::{Fixture, Wire};

use crate::honest::{Place, Toy};
use conformance::Random;

pub fn run(mut wire: Wire, seed: u64) {
    let mut random = Random::new(seed);
    let fixture = Fixture::open();
    let toy = Toy::new(&fixture);
    let victim: Place = wire.exchange(&toy.place(&fixture));
    toy.up(&victim);
    let _: (Place, Place, (u32, u32)) = wire.hear();
    let () = wire.exchange(&());
    let (over, blows) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| strike(&mut Random::new(seed ^ 0x5555), &over, &blows));
        scope.spawn(|| {
            let () = wire.hear();
            over.store(true, Ordering::Relaxed);
            wire.tell(&blows.load(Ordering::Relaxed));
        });
        while !over.load(Ordering::Relaxed) {
            toy.play(&victim, &mut random);
            toy.revive(&victim);
        }
    });
    // Wait to be killed.
    let _ = wire.try_hear::<()>();
}

/// The windows: where each is mapped, and its length.
fn windows() -> Vec<(u64, u64)> {
    let maps = fs::read_to_string("/proc/self/maps").expect("/proc/self/maps");
    let of_line = |line: &str| {
        let (start, rest) = line.split_once('-')?;
        let (end, name) = rest.split_once(' ')?;
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        name.contains("/memfd:softrnic-window").then_some((start, end - start))
    };
    maps.lines().filter_map(of_line).collect()
}

fn strike(random: &mut Random, over: &AtomicBool, blows: &AtomicU64) {
    // Written through the kernel: a window that goes away meanwhile is an error and no crash of this process.
    let memory = OpenOptions::new().read(true).write(true).open("/proc/self/mem").expect("/proc/self/mem");
    // Some rounds destroy the ring at once, others leave its stamps alone, so that their changes are read.
    let gentle = random.below(3) > 0;
    while !over.load(Ordering::Relaxed) {
        for (start, len) in windows() {
            for _ in 0..200 {
                if strike_once(random, &memory, start, len, gentle).is_ok() {
                    blows.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        thread::yield_now();
    }
}

/// Change something in a window of two halves of one layout: control words in the first page, then slots of 64 bytes
/// that begin with a stamp, then data.
fn strike_once(random: &mut Random, memory: &File, start: u64, len: u64, gentle: bool) -> std::io::Result<()> {
    const SLOTS: u64 = 4096;
    const SLOT: u64 = 64;
    let half = start + random.below(2) * (len / 2);
    let slot = half + SLOTS + random.below(1024) * SLOT;
    let word = random.any().to_le_bytes();
    match random.below(if gentle { 3 } else { 6 }) {
        // A word of a header or of inline data.
        0 => memory.write_all_at(&word, slot + 8 * (1 + random.below(7))),
        // A bit of a header or of inline data.
        1 => {
            let at = slot + 8 + random.below(56);
            let mut byte = [0];
            memory.read_exact_at(&mut byte, at)?;
            memory.write_all_at(&[byte[0] ^ 1 << random.below(8)], at)
        }
        // Data.
        2 => memory.write_all_at(&random.bytes(64), half + SLOTS + 1024 * SLOT + random.below(len / 4)),
        // An earlier packet.
        3 => {
            let mut old = [0; SLOT as usize];
            memory.read_exact_at(&mut old, half + SLOTS + random.below(1024) * SLOT)?;
            memory.write_all_at(&old, slot)
        }
        // Counts and flags.
        4 => memory.write_all_at(&word, half + 8 * random.below(64)),
        // Anything.
        _ => memory.write_all_at(&word, half + 8 * random.below(len / 2 / 8)),
    }
}
