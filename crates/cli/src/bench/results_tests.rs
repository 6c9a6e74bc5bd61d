//! The JSON file, and the page that describes it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::*;

/// The paths of all values, such as `limits[].microseconds.median`.
fn places(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let place = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                places(field, &place, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| places(item, &format!("{at}[]"), found)),
        // For a value that may be missing, another item has it.
        Value::Null => {}
        _ => {
            found.insert(at.to_owned());
        }
    }
}

#[test]
fn the_json_file_has_every_field_that_is_described_and_no_other() {
    let mut results = sample();
    // This row has the values that the other has not.
    results.process_pairs.push(ProcessPairRow {
        gigabytes_per_second: Some(1.0),
        million_messages_per_second: Some(1.0),
        ..results.process_pairs[0].clone()
    });
    let json = serde_json::to_string_pretty(&results).unwrap();
    assert_eq!(serde_json::from_str::<Results>(&json).unwrap().schema, SCHEMA);
    let mut found = BTreeSet::new();
    places(&serde_json::from_str(&json).unwrap(), "", &mut found);
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/benchmark.md");
    let page = std::fs::read_to_string(page).unwrap();
    let table = page.lines().skip_while(|line| !line.starts_with("| field")).skip(2);
    let described: BTreeSet<String> = table
        .take_while(|line| line.starts_with('|'))
        .filter_map(|line| Some(line.split('`').nth(1)?.to_owned()))
        .flat_map(|place| match place.strip_suffix(".*") {
            // A median and its spread.
            Some(place) => ["median", "low", "high"].map(|part| format!("{place}.{part}")).into(),
            None => vec![place],
        })
        .collect();
    assert_eq!(found.difference(&described).collect::<Vec<_>>(), Vec::<&String>::new(), "not described");
    assert_eq!(described.difference(&found).collect::<Vec<_>>(), Vec::<&String>::new(), "described, but not there");
}

#[test]
fn limits_are_found_for_every_case() {
    let results = sample();
    for operation in Operation::ALL {
        let case = Case::latency(Transport::Rc, operation, 8);
        assert!(results.bound(&case, false).is_some() && results.bound(&case.by_events(), true).is_some(), "{case}");
    }
    for operation in [Operation::Send, Operation::Write, Operation::Read] {
        let case = Case::bandwidth(Transport::Rc, operation, 1 << 20);
        assert!(results.bound(&case, false).is_some() && results.bound(&case.walking(), true).is_some(), "{case}");
    }
    let forbidden = |limit| matches!(limit, Limit::ProcessVmReadv | Limit::ProcessVmWritev);
    let limits = results.limits.iter().filter(|row| !forbidden(row.limit)).cloned().collect();
    let without = Results { limits, ..results };
    let read = without.bound(&Case::latency(Transport::Rc, Operation::Read, 8), false);
    assert_eq!(
        read.map(|bound| bound.name).as_deref(),
        Some("memcpy"),
        "where the kernel forbids copies between processes"
    );
}

#[test]
fn a_summary_compares_what_was_measured() {
    let results = sample();
    let whats: Vec<&str> = results.summary.iter().map(|goal| goal.what.as_str()).collect();
    for wanted in
        ["SEND of 8 B, one way", "SEND of 64 KiB", "SENDs of 8 B in a second", "SEND of 8 B beside 99 idle QPs"]
    {
        assert!(whats.contains(&wanted), "{wanted}: {whats:?}");
    }
    let alone = results.summary.iter().find(|goal| goal.what.contains("poll")).unwrap();
    assert_eq!((alone.ratio, alone.met(), alone.verdict()), (1.0, true, "aim met"));
}
