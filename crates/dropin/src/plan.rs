//! The exports of a drop-in library, and the target of each.

use std::collections::{BTreeMap, HashMap};

use crate::read::Exports;
use crate::{ENGINE, Library};

/// The beginning of the nodes in which libsoftrnic.so has every function a second time; the name of the public node
/// follows. The public one cannot be forwarded to: looking for it by name and version, the loader would find the
/// drop-in library's own.
const FORWARD: &str = "SOFTRNIC_";

/// The target of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// The function of the same name in this node of libsoftrnic.so.
    Engine(String),
    /// A function that does nothing and returns this.
    Nothing(i32),
    /// A variable of this many bytes, all zero.
    Variable(u64),
}

/// An export.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// Its name.
    pub name: String,
    /// Its version node.
    pub version: String,
    /// As in [`crate::read::Symbol`].
    pub hidden: bool,
    /// The target of the name.
    pub target: Target,
}

/// Longest variable that is copied from a host's library, in bytes; the known ones have one byte.
const MAX_VARIABLE: u64 = 4096;

/// Functions private to rdma-core that return a pointer: NULL is their failure. The others return an errno.
const POINTERS: [&str; 5] = [
    "_verbs_init_and_alloc_context",
    "verbs_open_device",
    "ibv_wr_opcode_str",
    "ibv_dmabuf_heap_alloc",
    "ibv_cmd_create_flow_action",
];

/// The exports of a library. Public functions come from the engine, private ones from the host's library. Each source
/// also adds functions that the other does not have, where that makes sense.
pub fn plan(library: Library, engine: &Exports, host: Option<&Exports>) -> Result<Vec<Export>, String> {
    let mut forwards: BTreeMap<&str, &str> = BTreeMap::new();
    let mut hidden: HashMap<(&str, &str), bool> = HashMap::new();
    for symbol in &engine.symbols {
        hidden.insert((&symbol.name, &symbol.version), symbol.hidden);
    }
    let mut exports = Vec::new();
    for symbol in &engine.symbols {
        let Some(version) = symbol.version.strip_prefix(FORWARD).filter(|node| node.starts_with(library.nodes)) else {
            continue;
        };
        forwards.insert(&symbol.name, &symbol.version);
        let Some(hidden) = hidden.get(&(symbol.name.as_str(), version)) else {
            return Err(format!("{ENGINE} exports {}@{} but no {version}", symbol.name, symbol.version));
        };
        exports.push(Export {
            name: symbol.name.clone(),
            version: version.to_owned(),
            hidden: *hidden,
            target: Target::Engine(symbol.version.clone()),
        });
    }
    for symbol in host.into_iter().flat_map(|host| &host.symbols) {
        let there = exports.iter().any(|e| e.name == symbol.name && e.version == symbol.version);
        if there || !is_private(library, &symbol.version) {
            continue;
        }
        let target = match forwards.get(symbol.name.as_str()) {
            Some(version) => Target::Engine((*version).to_owned()),
            None if symbol.function => Target::Nothing(if returns_pointer(&symbol.name) { 0 } else { ENOSYS }),
            None if symbol.size <= MAX_VARIABLE => Target::Variable(symbol.size),
            None => return Err(format!("the variable {} of {} is too large", symbol.name, library.soname)),
        };
        exports.push(Export {
            name: symbol.name.clone(),
            version: symbol.version.clone(),
            hidden: symbol.hidden,
            target,
        });
    }
    Ok(exports)
}

/// "Function not implemented", the same number on all supported architectures.
const ENOSYS: i32 = 38;

fn is_private(library: Library, node: &str) -> bool {
    node.strip_prefix(library.nodes).is_some_and(|rest| rest.starts_with("PRIVATE"))
}

fn returns_pointer(name: &str) -> bool {
    POINTERS.iter().any(|start| name.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::Symbol;
    use crate::{RDMACM, VERBS};

    fn library(symbols: &[(&str, &str, bool)]) -> Exports {
        let symbols = symbols.iter().map(|(name, version, hidden)| Symbol {
            name: (*name).to_owned(),
            version: (*version).to_owned(),
            hidden: *hidden,
            function: true,
            size: 8,
        });
        Exports { machine: object::elf::EM_X86_64, symbols: symbols.collect() }
    }

    fn shown(exports: &[Export]) -> Vec<String> {
        let mut shown: Vec<String> = exports
            .iter()
            .map(|e| format!("{}{}{} {:?}", e.name, if e.hidden { "@" } else { "@@" }, e.version, e.target))
            .collect();
        shown.sort();
        shown
    }

    #[test]
    fn public_names_lead_to_the_engine_and_private_ones_nowhere() {
        let engine = library(&[
            ("ibv_open_device", "IBVERBS_1.0", true),
            ("ibv_open_device", "SOFTRNIC_IBVERBS_1.0", true),
            ("ibv_open_device", "IBVERBS_1.1", false),
            ("ibv_open_device", "SOFTRNIC_IBVERBS_1.1", true),
            ("ibv_query_gid_type", "IBVERBS_PRIVATE_34", false),
            ("ibv_query_gid_type", "SOFTRNIC_IBVERBS_PRIVATE_34", true),
            ("rdma_bind_addr", "RDMACM_1.0", false),
            ("rdma_bind_addr", "SOFTRNIC_RDMACM_1.0", true),
            ("open", "", false),
        ]);
        let host = library(&[
            ("ibv_open_device", "IBVERBS_1.1", false),
            ("ibv_query_gid_type", "IBVERBS_PRIVATE_65", false),
            ("verbs_register_driver_65", "IBVERBS_PRIVATE_65", false),
            ("verbs_open_device", "IBVERBS_PRIVATE_65", false),
            ("ibv_of_tomorrow", "IBVERBS_1.99", false),
        ]);
        assert_eq!(
            shown(&plan(VERBS, &engine, Some(&host)).unwrap()),
            [
                "ibv_open_device@@IBVERBS_1.1 Engine(\"SOFTRNIC_IBVERBS_1.1\")",
                "ibv_open_device@IBVERBS_1.0 Engine(\"SOFTRNIC_IBVERBS_1.0\")",
                "ibv_query_gid_type@@IBVERBS_PRIVATE_34 Engine(\"SOFTRNIC_IBVERBS_PRIVATE_34\")",
                "ibv_query_gid_type@@IBVERBS_PRIVATE_65 Engine(\"SOFTRNIC_IBVERBS_PRIVATE_34\")",
                "verbs_open_device@@IBVERBS_PRIVATE_65 Nothing(0)",
                "verbs_register_driver_65@@IBVERBS_PRIVATE_65 Nothing(38)",
            ]
        );
        assert_eq!(
            shown(&plan(RDMACM, &engine, None).unwrap()),
            ["rdma_bind_addr@@RDMACM_1.0 Engine(\"SOFTRNIC_RDMACM_1.0\")"]
        );
    }

    #[test]
    fn an_engine_that_is_none_is_refused() {
        let strange = library(&[("ibv_open_device", "SOFTRNIC_IBVERBS_1.1", true)]);
        assert!(plan(VERBS, &strange, None).is_err());
        assert_eq!(plan(VERBS, &library(&[]), None), Ok(Vec::new()));
    }
}
