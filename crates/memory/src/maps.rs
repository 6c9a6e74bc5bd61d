//! What this process has mapped, as `/proc/self/maps` and `/proc/self/smaps` tell (proc_pid_maps(5),
//! proc_pid_smaps(5)).
//!
//! Read without allocation and without locks: a forked child may read it, and so may a thread that has just made part
//! of the heap unwritable.

use core::ffi::CStr;
use core::ops::ControlFlow;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use verbs::Errno;

/// The detail that is asked for.
#[derive(Clone, Copy)]
pub(crate) enum Detail {
    /// Cheap: [`Mapping::usual`] is always false.
    Places,
    /// Everything. The kernel looks at every page of what lies below the last mapping that is seen.
    All,
}

/// One line of the list.
pub(crate) struct Mapping {
    /// First byte.
    pub(crate) start: u64,
    /// One after the last byte.
    pub(crate) end: u64,
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) execute: bool,
    /// MAP_SHARED.
    pub(crate) shared: bool,
    /// Of the first byte in its file.
    pub(crate) offset: u64,
    /// Major and minor number of the file's device.
    pub(crate) device: (u32, u32),
    /// Of the file; 0 if there is none.
    pub(crate) inode: u64,
    pub(crate) name: Name,
    /// What the name says, as far as lines are kept.
    label: Label,
    /// No property is set that a new mapping would not have: not locked, no stack, inherited by children, no protection
    /// key and so on.
    pub(crate) usual: bool,
    /// It has a protection key (pkeys(7)).
    keyed: bool,
}

/// The kind of name at the end of the line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Name {
    /// Nothing, or what the program wrote there itself (`[anon:...]`, PR_SET_VMA_ANON_NAME).
    None,
    /// The memory of brk(2).
    Heap,
    /// A file, or one of the kernel's special mappings.
    Other,
}

/// The bytes of a name.
struct Label {
    bytes: [u8; LINE],
    len: usize,
}

impl Label {
    fn of(name: &[u8]) -> Self {
        let len = name.len().min(LINE);
        let mut bytes = [0; LINE];
        bytes[..len].copy_from_slice(&name[..len]);
        Label { bytes, len }
    }
}

/// Flags of `VmFlags` that say nothing that a new mapping would not fulfil as well: permissions and what mprotect may
/// make of them, accounting, soft-dirty, advice on huge pages, MAP_NORESERVE.
const USUAL: [&[u8]; 10] = [b"rd", b"wr", b"mr", b"mw", b"me", b"ac", b"sd", b"hg", b"nh", b"nr"];

/// Shows `see` every mapping, by ascending address, until it has seen enough.
///
/// # Errors
/// The kernel's errno if the list cannot be read (`/proc` is not mounted); `EIO` if it is not understood.
pub(crate) fn each(detail: Detail, mut see: impl FnMut(&Mapping) -> ControlFlow<()>) -> Result<(), Errno> {
    let mut lines = Lines::open(match detail {
        Detail::Places => c"/proc/self/maps",
        Detail::All => c"/proc/self/smaps",
    })?;
    let mut current: Option<Mapping> = None;
    while let Some(line) = lines.next()? {
        // In smaps lines of the form `Key: value` follow each that is as in maps; their keys are capitalised.
        if line.first().is_some_and(u8::is_ascii_uppercase) {
            if let Some(mapping) = &mut current {
                mapping.add(line);
            }
            continue;
        }
        let next = Mapping::parse(line).ok_or(Errno::EIO)?;
        if let Some(whole) = current.replace(next)
            && see(&whole).is_break()
        {
            return Ok(());
        }
    }
    if let Some(last) = current {
        let _ = see(&last);
    }
    Ok(())
}

impl Mapping {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut rest = line;
        let mut field = || {
            let end = rest.iter().position(|b| *b == b' ').unwrap_or(rest.len());
            let (field, after) = rest.split_at(end);
            rest = after.trim_ascii_start();
            core::str::from_utf8(field).ok()
        };
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = field()?.split_once('-')?;
        let &[read, write, execute, shared] = field()?.as_bytes() else {
            return None;
        };
        let offset = hex(field()?)?;
        let (major, minor) = field()?.split_once(':')?;
        let inode = field()?.parse().ok()?;
        Some(Mapping {
            start: hex(start)?,
            end: hex(end)?,
            read: read == b'r',
            write: write == b'w',
            execute: execute == b'x',
            shared: shared == b's',
            offset,
            device: (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?),
            inode,
            label: Label::of(rest),
            name: match rest {
                b"" => Name::None,
                b"[heap]" => Name::Heap,
                name if name.starts_with(b"[anon:") => Name::None,
                _ => Name::Other,
            },
            usual: false,
            keyed: false,
        })
    }

    /// What stands at the end of the line, as far as lines are kept: cut off after 256 bytes of the whole.
    pub(crate) fn label(&self) -> &[u8] {
        self.label.bytes.get(..self.label.len).unwrap_or_default()
    }

    /// Takes in a further line of smaps.
    fn add(&mut self, line: &[u8]) {
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            let known = flags.split(|b| *b == b' ').all(|flag| flag.is_empty() || USUAL.contains(&flag));
            self.usual = known && !self.keyed;
        } else if let Some(key) = line.strip_prefix(b"ProtectionKey:") {
            // Before VmFlags or after it, as the kernel's version has it.
            self.keyed = key.trim_ascii() != b"0";
            self.usual &= !self.keyed;
        }
    }
}

/// A file's lines, each cut off after [`LINE`] bytes.
struct Lines {
    file: OwnedFd,
    buffer: [u8; 2048],
    /// What of the buffer has been read, and not been looked at.
    left: core::ops::Range<usize>,
    line: [u8; LINE],
}

/// Longer than what stands before a name, and than any list of flags.
const LINE: usize = 256;

impl Lines {
    fn open(path: &CStr) -> Result<Self, Errno> {
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(errno)?;
        Ok(Lines { file, buffer: [0; 2048], left: 0..0, line: [0; LINE] })
    }

    /// The next line, without its end; `None` after the last.
    fn next(&mut self) -> Result<Option<&[u8]>, Errno> {
        let mut len = 0;
        loop {
            if self.left.is_empty() {
                match rustix::io::read(&self.file, &mut self.buffer) {
                    Ok(0) => return Ok(None),
                    Ok(n) => self.left = 0..n,
                    Err(rustix::io::Errno::INTR) => continue,
                    Err(error) => return Err(errno(error)),
                }
            }
            let chunk = &self.buffer[self.left.clone()];
            let end = chunk.iter().position(|b| *b == b'\n');
            let part = &chunk[..end.unwrap_or(chunk.len())];
            let kept = part.len().min(LINE - len);
            self.line[len..len + kept].copy_from_slice(&part[..kept]);
            len += kept;
            self.left.start += part.len() + usize::from(end.is_some());
            if end.is_some() {
                return Ok(Some(&self.line[..len]));
            }
        }
    }
}

fn errno(e: rustix::io::Errno) -> Errno {
    Errno(e.raw_os_error())
}

#[cfg(all(test, not(loom), not(miri)))]
#[path = "maps_tests.rs"]
mod tests;
