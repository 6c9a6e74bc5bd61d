//! The exports of a library.

use object::build::elf::{Builder, VersionData};
use object::elf;

/// A symbol that a library defines for others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Symbol {
    /// Its name.
    pub name: String,
    /// Its version node; empty if it has none.
    pub version: String,
    /// True for an old version, which only programs linked long ago and dlvsym(3) find: `name@VERSION`.
    pub hidden: bool,
    /// True for a function; the others are variables.
    pub function: bool,
    /// The size, in bytes.
    pub size: u64,
}

/// The part of a library that others see.
#[derive(Debug)]
pub struct Exports {
    /// `e_machine`.
    pub machine: elf::Machine,
    /// The symbols that it defines.
    pub symbols: Vec<Symbol>,
}

/// Read a library's dynamic symbols.
///
/// # Errors
/// The end of a sentence: why the file is no library, or none that can be used.
pub fn read(file: &[u8]) -> Result<Exports, String> {
    let parsed = Builder::read(file).map_err(|error| format!("is not an ELF library: {error}"))?;
    if !parsed.is_64 || parsed.header.e_type != elf::ET_DYN {
        return Err("is not a 64-bit shared library".into());
    }
    let mut symbols = Vec::new();
    for symbol in &parsed.dynamic_symbols {
        if symbol.section.is_none() {
            continue;
        }
        let version = match symbol.version.is_special() {
            true => "",
            false => match &parsed.versions.get(symbol.version).data {
                VersionData::Def(def) => def.names.first().map_or("", text),
                VersionData::Need(_) => "",
            },
        };
        symbols.push(Symbol {
            name: text(&symbol.name).to_owned(),
            version: version.to_owned(),
            hidden: symbol.version_hidden,
            function: symbol.st_type() == elf::STT_FUNC,
            size: symbol.st_size,
        });
    }
    Ok(Exports { machine: parsed.header.e_machine, symbols })
}

/// A name as text. One that is not UTF-8 matches no known name.
fn text<'a>(bytes: &'a object::build::ByteString<'_>) -> &'a str {
    std::str::from_utf8(bytes.as_slice()).unwrap_or("")
}
