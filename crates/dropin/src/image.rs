//! The ELF file that a linker would make of a list of jumps.

use std::collections::BTreeMap;

use object::build::elf::{
    Builder, Dynamic, DynamicRelocation, DynamicSymbolId, Section, SectionData, SectionId, VersionData, VersionDef,
    VersionId, VersionNeed,
};
use object::{Endianness, elf};

use crate::code::{Code, STEP};
use crate::plan::{Export, Target};
use crate::{ENGINE, Library};

/// The alignment of segments. Each begins on a page of its own, on kernels with pages of up to 64 KiB.
const PAGE: u64 = 0x1_0000;
/// Bytes of an `Elf64_Phdr`.
const PROGRAM_HEADER: u64 = 56;
/// Bytes of an `Elf64_Ehdr`.
const FILE_HEADER: u64 = 64;
/// PT_LOAD of tables, code, relocated data and variables; PT_DYNAMIC, PT_GNU_RELRO, PT_GNU_STACK.
const SEGMENTS: u64 = 7;
/// Bytes of an `Elf64_Sym`.
const SYMBOL: u64 = 24;
/// Bytes of an `Elf64_Rela`.
const RELOCATION: u64 = 24;
/// Bytes of a pointer.
const SLOT: u64 = 8;

/// The parts of the file that are filled in after their places are known.
struct Parts {
    relocations: SectionId,
    code: SectionId,
    dynamic: SectionId,
    slots: SectionId,
    variables: SectionId,
}

/// Make the file.
///
/// # Errors
/// There is no code for this machine, or the file would be too large.
pub fn image(library: Library, machine: elf::Machine, exports: &[Export]) -> Result<Vec<u8>, String> {
    let code = Code::of(machine).ok_or_else(|| format!("there is no code for machine {}", machine.0))?;
    let mut file = Builder::new(Endianness::Little, true);
    file.header.e_type = elf::ET_DYN;
    file.header.e_machine = machine;
    file.header.e_phoff = FILE_HEADER;
    file.version_base = Some(library.soname.as_bytes().into());
    file.gnu_hash_bloom_shift = 6;
    file.gnu_hash_bloom_count = 16;
    file.gnu_hash_bucket_count = 64;

    let defined = define_versions(&mut file, exports);
    let needed = need_versions(&mut file, exports);
    let parts = add_sections(&mut file, library, exports, &needed);
    let imports = import(&mut file, &needed);
    let symbols: Vec<DynamicSymbolId> = exports
        .iter()
        .map(|export| {
            let symbol = file.dynamic_symbols.add();
            symbol.name = export.name.as_bytes().to_vec().into();
            symbol.version = defined[export.version.as_str()];
            symbol.version_hidden = export.hidden;
            let (section, kind, size) = match export.target {
                Target::Variable(size) => (parts.variables, elf::STT_OBJECT, size),
                _ => (parts.code, elf::STT_FUNC, STEP),
            };
            symbol.section = Some(section);
            // The section replaces this when written; until then it tells definitions from references.
            symbol.st_shndx = elf::SHN_ABS;
            symbol.st_size = size;
            symbol.set_st_info(elf::STB_GLOBAL, kind);
            symbol.id()
        })
        .collect();
    // Once for the sizes of the tables, so that everything has its place; then again, with the places in them.
    fill(&mut file, library, &parts, code, exports, &imports, &symbols);
    lay_out(&mut file);
    fill(&mut file, library, &parts, code, exports, &imports, &symbols);
    let mut bytes = Vec::new();
    file.write(&mut bytes).map_err(|error| format!("cannot make {}: {error}", library.soname))?;
    Ok(bytes)
}

/// The version nodes that the library defines.
fn define_versions<'a>(file: &mut Builder<'a>, exports: &'a [Export]) -> BTreeMap<&'a str, VersionId> {
    let mut nodes: BTreeMap<&str, VersionId> = BTreeMap::new();
    for export in exports {
        nodes.entry(&export.version).or_insert_with(|| {
            let names = vec![export.version.as_bytes().into()];
            file.versions.add(VersionData::Def(VersionDef { names, flags: elf::VersionFlags(0) }))
        });
    }
    nodes
}

/// The functions of the engine that the library needs, by name and node.
type Needed<'a> = BTreeMap<(&'a str, &'a str), VersionId>;

fn need_versions<'a>(file: &mut Builder<'a>, exports: &'a [Export]) -> Needed<'a> {
    let engine = file.version_files.add(ENGINE.as_bytes().into());
    let mut nodes: BTreeMap<&str, VersionId> = BTreeMap::new();
    let mut needed = Needed::new();
    for export in exports {
        let Target::Engine(node) = &export.target else { continue };
        let version = *nodes.entry(node).or_insert_with(|| {
            let name = node.as_bytes().into();
            file.versions.add(VersionData::Need(VersionNeed { file: engine, name, flags: elf::VersionFlags(0) }))
        });
        needed.insert((&export.name, node), version);
    }
    needed
}

/// The undefined symbols, and the pointer that each fills.
fn import<'a>(file: &mut Builder<'a>, needed: &Needed<'a>) -> BTreeMap<(&'a str, &'a str), (DynamicSymbolId, u64)> {
    let numbered = needed.iter().zip(0..);
    numbered
        .map(|((key, version), index)| {
            let symbol = file.dynamic_symbols.add();
            symbol.name = key.0.as_bytes().into();
            symbol.version = *version;
            symbol.set_st_info(elf::STB_GLOBAL, elf::STT_FUNC);
            (*key, (symbol.id(), index))
        })
        .collect()
}

fn add_sections<'a>(file: &mut Builder<'a>, library: Library, exports: &[Export], needed: &Needed<'_>) -> Parts {
    use elf::{SHF_ALLOC, SHF_EXECINSTR, SHF_WRITE};
    let strings = section(file, ".dynstr", elf::SHT_STRTAB, SHF_ALLOC, 1, 0, SectionData::DynamicString);
    let symbols = section(file, ".dynsym", elf::SHT_DYNSYM, SHF_ALLOC, 8, SYMBOL, SectionData::DynamicSymbol);
    link(file, symbols, strings);
    for (name, kind, align, data, to) in [
        (".gnu.hash", elf::SHT_GNU_HASH, 8, SectionData::GnuHash, symbols),
        (".gnu.version", elf::SHT_GNU_VERSYM, 2, SectionData::GnuVersym, symbols),
        (".gnu.version_d", elf::SHT_GNU_VERDEF, 8, SectionData::GnuVerdef, strings),
        (".gnu.version_r", elf::SHT_GNU_VERNEED, 8, SectionData::GnuVerneed, strings),
    ] {
        let entry = if kind == elf::SHT_GNU_VERSYM { 2 } else { 0 };
        let id = section(file, name, kind, SHF_ALLOC, align, entry, data);
        link(file, id, to);
    }
    let none = SectionData::DynamicRelocation(Vec::new());
    let relocations = section(file, ".rela.dyn", elf::SHT_RELA, SHF_ALLOC, 8, RELOCATION, none);
    link(file, relocations, symbols);
    let empty = || SectionData::Data(Vec::new().into());
    let code = section(file, ".text", elf::SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, STEP, 0, empty());
    let entries = SectionData::Dynamic(dynamic(library, file.sections.get(relocations)));
    let table = section(file, ".dynamic", elf::SHT_DYNAMIC, SHF_ALLOC | SHF_WRITE, 8, 16, entries);
    link(file, table, strings);
    let pointers = SectionData::Data(vec![0; needed.len() * SLOT as usize].into());
    let slots = section(file, ".got", elf::SHT_PROGBITS, SHF_ALLOC | SHF_WRITE, 8, SLOT, pointers);
    let room = exports.iter().map(variable_room).sum();
    let zeros = SectionData::UninitializedData(room);
    let variables = section(file, ".bss", elf::SHT_NOBITS, SHF_ALLOC | SHF_WRITE, 16, 0, zeros);
    section(file, ".shstrtab", elf::SHT_STRTAB, elf::SectionFlags(0), 1, 0, SectionData::SectionString);
    Parts { relocations, code, dynamic: table, slots, variables }
}

/// The number of bytes of an export's variable.
fn variable_room(export: &Export) -> u64 {
    if let Target::Variable(size) = export.target { size.next_multiple_of(16) } else { 0 }
}

fn section<'a>(
    file: &mut Builder<'a>,
    name: &'a str,
    kind: elf::SectionType,
    flags: elf::SectionFlags,
    align: u64,
    entry: u64,
    data: SectionData<'a>,
) -> SectionId {
    let section: &mut Section = file.sections.add();
    section.name = name.as_bytes().into();
    section.sh_type = kind;
    section.sh_flags = flags;
    section.sh_addralign = align;
    section.sh_entsize = entry;
    section.data = data;
    section.id()
}

fn link(file: &mut Builder, from: SectionId, to: SectionId) {
    file.sections.get_mut(from).sh_link_section = Some(to);
}

/// The table that the loader reads first.
fn dynamic<'a>(library: Library, relocations: &Section) -> Vec<Dynamic<'a>> {
    let text = |tag, val: &'static str| Dynamic::String { tag, val: val.as_bytes().into() };
    let auto = |tag| Dynamic::Auto { tag };
    vec![
        text(elf::DT_NEEDED, ENGINE),
        text(elf::DT_SONAME, library.soname),
        text(elf::DT_RUNPATH, "$ORIGIN"),
        auto(elf::DT_GNU_HASH),
        auto(elf::DT_STRTAB),
        auto(elf::DT_STRSZ),
        auto(elf::DT_SYMTAB),
        Dynamic::Integer { tag: elf::DT_SYMENT, val: SYMBOL },
        auto(elf::DT_VERSYM),
        auto(elf::DT_VERDEF),
        auto(elf::DT_VERDEFNUM),
        auto(elf::DT_VERNEED),
        auto(elf::DT_VERNEEDNUM),
        Dynamic::Integer { tag: elf::DT_RELA, val: relocations.sh_addr },
        Dynamic::Integer { tag: elf::DT_RELASZ, val: relocations.sh_size },
        Dynamic::Integer { tag: elf::DT_RELAENT, val: RELOCATION },
    ]
}

/// Give every section its place: tables, code, data that are constant once relocated, and variables, each in a segment.
fn lay_out(file: &mut Builder) {
    file.set_section_sizes();
    let ids: Vec<(SectionId, elf::ProgramFlags, bool)> = file
        .sections
        .iter()
        .filter(|s| s.is_alloc())
        .map(|s| (s.id(), s.p_flags(), s.sh_type == elf::SHT_NOBITS))
        .collect();
    let mut current: Option<(object::build::elf::SegmentId, elf::ProgramFlags, bool)> = None;
    for (id, flags, variable) in ids {
        let segment = match current {
            Some((segment, same, bss)) if same == flags && bss == variable => file.segments.get_mut(segment),
            _ => {
                let first = current.is_none();
                let segment = file.segments.add_load_segment(flags, PAGE);
                if first {
                    // The headers lie in the first one.
                    segment.p_filesz = FILE_HEADER + SEGMENTS * PROGRAM_HEADER;
                    segment.p_memsz = segment.p_filesz;
                }
                current = Some((segment.id(), flags, variable));
                segment
            }
        };
        segment.append_section(file.sections.get_mut(id));
    }
    let dynamic = file.sections.iter().find(|s| s.sh_type == elf::SHT_DYNAMIC).map(Section::id);
    if let Some(id) = dynamic {
        let segment = file.segments.add();
        segment.p_type = elf::PT_DYNAMIC;
        segment.p_flags = elf::PF_R | elf::PF_W;
        segment.p_align = 8;
        segment.append_section(file.sections.get_mut(id));
    }
    // The pointers are read-only as soon as they are filled in.
    let constant = file.segments.iter().find(|s| s.is_load() && dynamic.is_some_and(|id| s.sections.contains(&id)));
    let constant = constant.map(|s| (s.p_offset, s.p_vaddr, s.p_filesz));
    if let Some((offset, address, size)) = constant {
        let segment = file.segments.add();
        segment.p_type = elf::PT_GNU_RELRO;
        segment.p_flags = elf::PF_R;
        segment.p_align = 1;
        (segment.p_offset, segment.p_vaddr, segment.p_paddr) = (offset, address, address);
        segment.p_filesz = size;
        // The loader protects whole pages, so no other data lie in the last one.
        segment.p_memsz = (address + size).next_multiple_of(PAGE) - address;
    }
    let stack = file.segments.add();
    stack.p_type = elf::PT_GNU_STACK;
    stack.p_flags = elf::PF_R | elf::PF_W;
    stack.p_align = 16;
    debug_assert_eq!(file.segments.count() as u64, SEGMENTS);
}

/// Write code, relocations and the symbols' addresses, for the places that the sections have.
fn fill(
    file: &mut Builder,
    library: Library,
    parts: &Parts,
    code: Code,
    exports: &[Export],
    imports: &BTreeMap<(&str, &str), (DynamicSymbolId, u64)>,
    symbols: &[DynamicSymbolId],
) {
    let text = file.sections.get(parts.code).sh_addr;
    let slots = file.sections.get(parts.slots).sh_addr;
    let mut variable = file.sections.get(parts.variables).sh_addr;
    let mut instructions = Vec::new();
    for (export, symbol) in exports.iter().zip(symbols) {
        let at = text + instructions.len() as u64;
        let symbol = file.dynamic_symbols.get_mut(*symbol);
        symbol.st_value = at;
        match &export.target {
            Target::Engine(node) => {
                let (_, slot) = imports[&(export.name.as_str(), node.as_str())];
                instructions.extend(code.jump(at, slots + slot * SLOT));
            }
            Target::Nothing(value) => instructions.extend(code.constant(*value)),
            Target::Variable(_) => {
                symbol.st_value = variable;
                variable += variable_room(export);
            }
        }
    }
    file.sections.get_mut(parts.code).data = SectionData::Data(instructions.into());
    let relocations = imports.values().map(|(symbol, slot)| DynamicRelocation {
        r_offset: slots + slot * SLOT,
        symbol: Some(*symbol),
        r_type: code.relocation(),
        r_addend: 0,
    });
    file.sections.get_mut(parts.relocations).data = SectionData::DynamicRelocation(relocations.collect());
    let entries = dynamic(library, file.sections.get(parts.relocations));
    file.sections.get_mut(parts.dynamic).data = SectionData::Dynamic(entries);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::read;
    use crate::{RDMACM, VERBS};

    fn export(name: &str, version: &str, hidden: bool, target: Target) -> Export {
        Export { name: name.into(), version: version.into(), hidden, target }
    }

    #[test]
    fn what_is_written_can_be_read() {
        let exports = [
            export("ibv_open_device", "IBVERBS_1.0", true, Target::Engine("SOFTRNIC_IBVERBS_1.0".into())),
            export("ibv_open_device", "IBVERBS_1.1", false, Target::Engine("SOFTRNIC_IBVERBS_1.1".into())),
            export("verbs_set_ops", "IBVERBS_PRIVATE_34", false, Target::Nothing(38)),
            export("verbs_flag", "IBVERBS_PRIVATE_34", false, Target::Variable(3)),
        ];
        for machine in [elf::EM_X86_64, elf::EM_AARCH64] {
            let found = read(&image(VERBS, machine, &exports).unwrap()).unwrap();
            assert_eq!(found.machine, machine);
            let mut names: Vec<_> = found
                .symbols
                .iter()
                .map(|s| (s.name.as_str(), s.version.as_str(), s.hidden, s.function, s.size))
                .collect();
            names.sort_unstable();
            assert_eq!(
                names,
                [
                    ("ibv_open_device", "IBVERBS_1.0", true, true, 16),
                    ("ibv_open_device", "IBVERBS_1.1", false, true, 16),
                    ("verbs_flag", "IBVERBS_PRIVATE_34", false, false, 3),
                    ("verbs_set_ops", "IBVERBS_PRIVATE_34", false, true, 16),
                ]
            );
        }
    }

    /// Each jump's pointer is the one that its function's relocation fills.
    #[test]
    fn jumps_lead_through_their_own_pointers() {
        let exports: Vec<Export> = (0..40)
            .map(|i| export(&format!("rdma_{i}"), "RDMACM_1.0", false, Target::Engine("SOFTRNIC_RDMACM_1.0".into())))
            .collect();
        let bytes = image(RDMACM, elf::EM_X86_64, &exports).unwrap();
        let file = Builder::read(&bytes[..]).unwrap();
        let by_name = |name: &[u8], defined: bool| {
            file.dynamic_symbols.iter().find(|s| s.name.as_slice() == name && s.section.is_some() == defined).unwrap()
        };
        let relocations = file.sections.iter().find_map(|s| match &s.data {
            SectionData::DynamicRelocation(relocations) => Some(relocations),
            _ => None,
        });
        let text = file.sections.iter().find(|s| s.name.as_slice() == b".text").unwrap();
        let SectionData::Data(code) = &text.data else { panic!() };
        for export in &exports {
            let (from, to) = (by_name(export.name.as_bytes(), true), by_name(export.name.as_bytes(), false));
            let slot = relocations.unwrap().iter().find(|r| r.symbol == Some(to.id())).unwrap().r_offset;
            let at = (from.st_value - text.sh_addr) as usize;
            let distance = i32::from_le_bytes(code[at + 6..at + 10].try_into().unwrap());
            assert_eq!(from.st_value.wrapping_add(10).wrapping_add_signed(distance.into()), slot, "{}", export.name);
        }
    }
}
