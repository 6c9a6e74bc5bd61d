//! The part of an ELF header that decides whether a program can be given a library: gABI, chapters 4 and 5.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// The kind of a program file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Program {
    /// An ELF program.
    Elf(Elf),
    /// A script, with its interpreter.
    Script(String),
    /// Neither; the kernel or the shell may know it.
    Other,
}

/// An ELF file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Elf {
    /// The machine that it was made for.
    pub target: Target,
    /// The dynamic linker that starts it and loads its libraries. A static program has none.
    pub interpreter: Option<String>,
    /// The libraries that it names (`DT_NEEDED`).
    pub needed: Vec<String>,
}

impl Elf {
    /// True if libraries are loaded with it.
    pub fn is_dynamic(&self) -> bool {
        self.interpreter.is_some()
    }

    /// True if its C library is musl, whose dynamic linker is called `ld-musl-ARCHITECTURE.so.1`.
    pub fn is_for_musl(&self) -> bool {
        self.interpreter
            .as_ref()
            .is_some_and(|path| path.rsplit('/').next().is_some_and(|name| name.starts_with("ld-musl-")))
    }
}

/// The machine that a file was made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// 1: 32 bits; 2: 64 bits.
    pub class: u8,
    /// 1: little-endian; 2: big-endian.
    pub data: u8,
    /// `e_machine`.
    pub machine: u16,
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let machine = match self.machine {
            3 => "x86".into(),
            40 => "ARM".into(),
            62 => "x86-64".into(),
            183 => "AArch64".into(),
            243 => "RISC-V".into(),
            other => format!("machine {other}"),
        };
        write!(f, "{machine}, {} bits", if self.class == 1 { 32 } else { 64 })
    }
}

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const PT_INTERP: u64 = 3;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;

/// The longest dynamic section and string table that are read, in bytes.
const TABLE: u64 = 1 << 20;

/// Find the kind of a file.
pub fn inspect(path: &Path) -> io::Result<Program> {
    let mut file = File::open(path)?;
    let mut start = Vec::new();
    file.by_ref().take(4096).read_to_end(&mut start)?;
    if let Some(line) = start.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        return Ok(line.split_whitespace().next().map_or(Program::Other, |word| Program::Script(word.to_owned())));
    }
    Ok(parse(&start, &mut file)?.map_or(Program::Other, Program::Elf))
}

/// The numbers of a header, in its byte order.
struct Header<'a> {
    bytes: &'a [u8],
    little: bool,
}

impl Header<'_> {
    fn number(&self, at: usize, len: usize) -> Option<u64> {
        let bytes = self.bytes.get(at..at + len)?;
        let fold = |sum: u64, byte: &u8| (sum << 8) | u64::from(*byte);
        Some(if self.little { bytes.iter().rev().fold(0, fold) } else { bytes.iter().fold(0, fold) })
    }
}

fn parse(start: &[u8], file: &mut File) -> io::Result<Option<Elf>> {
    if start.len() < 52 || !start.starts_with(b"\x7fELF") {
        return Ok(None);
    }
    let (class, data) = (start[4], start[5]);
    let header = Header { bytes: start, little: data == 1 };
    let wide = class == 2;
    // Offsets in Elf32_Ehdr and Elf64_Ehdr: e_phoff, e_phentsize, e_phnum.
    let fields = match wide {
        false => (header.number(28, 4), header.number(42, 2), header.number(44, 2)),
        true => (header.number(32, 8), header.number(54, 2), header.number(56, 2)),
    };
    let (Some(machine), (Some(table), Some(size), Some(count))) = (header.number(18, 2), fields) else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(table))?;
    file.take(size * count).read_to_end(&mut bytes)?;
    let segments = Header { bytes: &bytes, little: header.little };
    let segments: Vec<Segment> = (0..count).filter_map(|i| segment(&segments, i.checked_mul(size)?, wide)).collect();
    // A static position-independent program has PT_DYNAMIC but no interpreter. The dynamic linker itself, which can be
    // run as a program, looks alike: nothing is lost by taking it for static.
    let interpreter = segments.iter().find(|segment| segment.kind == PT_INTERP);
    let interpreter = interpreter.map(|segment| {
        let bytes = read(file, segment.offset, segment.size).unwrap_or_default();
        String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
    });
    let needed = needed(file, &segments, header.little, wide).unwrap_or_default();
    Ok(Some(Elf { target: Target { class, data, machine: machine as u16 }, interpreter, needed }))
}

/// A program header.
struct Segment {
    kind: u64,
    offset: u64,
    address: u64,
    size: u64,
}

/// A program header. Offsets in Elf32_Phdr and Elf64_Phdr: p_type, p_offset, p_vaddr, p_filesz.
fn segment(table: &Header, at: u64, wide: bool) -> Option<Segment> {
    let at = usize::try_from(at).ok()?;
    let [kind, offset, address, size] = match wide {
        false => [(0, 4), (4, 4), (8, 4), (16, 4)],
        true => [(0, 4), (8, 8), (16, 8), (32, 8)],
    }
    .map(|(field, len)| table.number(at + field, len));
    // Only a table that is cut off lacks fields behind the type.
    let (offset, address, size) = (offset.unwrap_or(0), address.unwrap_or(0), size.unwrap_or(0));
    Some(Segment { kind: kind?, offset, address, size })
}

/// A piece of the file; a piece that lies beyond its end or is too long is left out.
fn read(file: &mut File, offset: u64, len: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(offset)).ok()?;
    file.take(len.min(TABLE)).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The names of the libraries in the dynamic section.
fn needed(file: &mut File, segments: &[Segment], little: bool, wide: bool) -> Option<Vec<String>> {
    let table = segments.iter().find(|segment| segment.kind == PT_DYNAMIC)?;
    let bytes = read(file, table.offset, table.size)?;
    let table = Header { bytes: &bytes, little };
    let word = if wide { 8 } else { 4 };
    let entries = || {
        (0..bytes.len() / (2 * word))
            .map_while(|i| Some((table.number(2 * i * word, word)?, table.number((2 * i + 1) * word, word)?)))
    };
    let strings = entries().find(|(tag, _)| *tag == DT_STRTAB)?.1;
    let home =
        segments.iter().find(|s| s.kind == PT_LOAD && strings.checked_sub(s.address).is_some_and(|at| at < s.size))?;
    let strings = read(file, home.offset.checked_add(strings - home.address)?, home.size - (strings - home.address))?;
    let name = |at: u64| {
        let text = strings.get(usize::try_from(at).ok()?..)?.split(|byte| *byte == 0).next()?;
        Some(String::from_utf8_lossy(text).into_owned())
    };
    Some(entries().filter(|(tag, _)| *tag == DT_NEEDED).filter_map(|(_, at)| name(at)).collect())
}

/// The number of bytes of a program that are searched for libibverbs.
const SEARCH: u64 = 64 << 20;

/// The text of one of libibverbs's messages. It is put together here, so that this program does not contain it.
fn message() -> String {
    "LIBIBVERBS".to_lowercase() + ": Warning: couldn't allocate driver for"
}

/// True if a program has libibverbs itself in it.
pub fn contains_libibverbs(path: &Path) -> bool {
    let wanted = message();
    let Ok(file) = File::open(path) else { return false };
    let mut file = file.take(SEARCH);
    let mut buf = vec![0; 1 << 16];
    let mut kept = 0;
    loop {
        let Ok(got) = file.read(&mut buf[kept..]) else { return false };
        let len = kept + got;
        if got == 0 {
            return false;
        }
        // The search is for the rarest of its letters; most files have few of them.
        let found = |at: usize| buf[..len].get(at..at + wanted.len()) == Some(wanted.as_bytes());
        if buf[..len].iter().enumerate().any(|(at, byte)| *byte == b'l' && found(at)) {
            return true;
        }
        kept = len.min(wanted.len() - 1);
        buf.copy_within(len - kept..len, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inspect_bytes(bytes: &[u8]) -> Program {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let n = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("softrnic-elf-{}-{n}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let found = inspect(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        found
    }

    #[test]
    fn this_program_is_dynamic() {
        let Program::Elf(elf) = inspect(&std::env::current_exe().unwrap()).unwrap() else { panic!() };
        assert!(elf.is_dynamic() && !elf.is_for_musl());
        assert_eq!(elf.target.class, 2);
        assert!(elf.needed.iter().any(|name| name == "libc.so.6"), "{:?}", elf.needed);
    }

    #[test]
    fn a_program_with_libibverbs_in_it_is_found() {
        let marker = message();
        for lead in [0, 1, (1 << 16) - 20, 1 << 17] {
            let path = std::env::temp_dir().join(format!("softrnic-elf-{}-carries-{lead}", std::process::id()));
            std::fs::write(&path, [vec![b'l'; lead], marker.clone().into_bytes(), vec![0]].concat()).unwrap();
            assert!(contains_libibverbs(&path), "{lead}");
            std::fs::remove_file(&path).unwrap();
        }
        assert!(!contains_libibverbs(&std::env::current_exe().unwrap()));
        assert!(!contains_libibverbs(Path::new("/no/such/file")));
    }

    #[test]
    fn scripts_name_their_interpreter() {
        assert_eq!(inspect_bytes(b"#! /bin/sh -e\nexit"), Program::Script("/bin/sh".into()));
        assert_eq!(inspect_bytes(b"#!\n"), Program::Other);
        assert_eq!(inspect_bytes(b"text"), Program::Other);
        assert_eq!(inspect_bytes(b""), Program::Other);
    }

    #[test]
    fn a_program_without_interpreter_is_static() {
        // Elf64_Ehdr, little-endian, AArch64, one program header (PT_LOAD) behind it.
        let mut elf = vec![0u8; 64 + 56];
        elf[..6].copy_from_slice(b"\x7fELF\x02\x01");
        elf[18] = 183;
        elf[32] = 64;
        elf[54] = 56;
        elf[56] = 1;
        elf[64] = 1;
        let target = Target { class: 2, data: 1, machine: 183 };
        assert_eq!(inspect_bytes(&elf), Program::Elf(Elf { target, interpreter: None, needed: Vec::new() }));
        elf[64] = 3;
        // The name of the interpreter lies behind the headers: at 120, 30 bytes long.
        elf[64 + 8] = 120;
        elf[64 + 32] = 30;
        elf.extend(b"/lib/ld-musl-aarch64.so.1\0");
        let Program::Elf(musl) = inspect_bytes(&elf) else { panic!() };
        assert_eq!(musl.interpreter.as_deref(), Some("/lib/ld-musl-aarch64.so.1"));
        assert!(musl.is_for_musl());
        elf.truncate(120);
        // A table that reaches beyond the end of the file is cut off there.
        elf[56] = 200;
        let Program::Elf(found) = inspect_bytes(&elf) else { panic!() };
        assert!(found.is_dynamic() && !found.is_for_musl());
        assert_eq!(found.target.to_string(), "AArch64, 64 bits");
    }
}
