//! The man pages of `softrnic/dv_queues.h`. Synopsis and structures are the header's own.

use std::io;

use roff::{Roff, bold, roman};

use crate::manual::{Page, SOURCE, paragraphs};

/// The header.
pub const HEADER: &str = include_str!("../../abi/include/softrnic/dv_queues.h");

/// The functions; the page has the name of the first one, and the others' pages are links to it.
const NAMES: &[&str] = &[
    "softrnic_dv_create_qp",
    "softrnic_dv_create_cq",
    "softrnic_dv_cq_count",
    "softrnic_dv_post_task",
    "softrnic_dv_enable",
    "softrnic_dv_query_queue",
    "softrnic_dv_reg_queue",
    "ibv_hyperloop_get_wqe_buffer",
];

const TEXT: &str = "\
softrnic_dv_create_qp makes a queue pair of the service RC that takes tasks, with managed queues as asked for. A \
managed send queue executes a request only when it has been enabled, a managed receive queue gives a receive to a \
message only when it has been enabled. Their requests lie in an array of entries of 64 bytes and more. A peer, or a \
receive's scatter/gather list, may patch an entry until it is executed. An entry is copied once and checked then: \
against patchable and opcodes, and as any request is. A cyclic queue is filled once and runs in a circle: enabling may \
go on for ever. Other requests are posted by ibv_post_send(3) and ibv_post_recv(3).

softrnic_dv_create_cq makes a completion queue whose count WAITs may wait for. With IGNORE_OVERRUN it need not be \
polled. softrnic_dv_cq_count gives its count: all completions that it ever had.

softrnic_dv_post_task posts a task to a send queue. NOP does nothing. WAIT holds back what is behind it until the \
completion queue has the count. SEND_EN and RECV_EN enable the requests of a queue below a count; a RECV_EN for the \
queue pair that executes it has no effect. A task completes if IBV_SEND_SIGNALED is set, with IBV_WC_DRIVER1.

Counts are absolute in entries, have 64 bits, and begin at 0. A count that is posted without \
SOFTRNIC_DV_TASK_ABSOLUTE begins at the place that the last one with SOFTRNIC_DV_TASK_LAST has left behind, for each \
completion queue and each queue. The one with LAST moves that place on to the greatest count since then. An ENABLE of \
0 enables all that is posted. step is added to the count of an entry of a cyclic queue when it has been executed.

softrnic_dv_enable enables requests at once. softrnic_dv_query_queue gives the array of a queue and its counts. \
softrnic_dv_reg_queue registers the array, for its keys. ibv_hyperloop_get_wqe_buffer gives the array of a send queue, \
to be registered by ibv_reg_mr(3).

A queue that begins many entries without a wait, and without a message from outside, rests up to 640 us.";

/// Errnos, and when they come.
const ERRORS: &[(&str, &str)] = &[
    ("EBUSY", "ibv_destroy_qp(3) while a region lies upon the entries, ibv_destroy_cq(3) while a WAIT waits for it"),
    (
        "EINVAL",
        "a flag or size that is none; a queue pair or completion queue that was not made for it; an ENABLE beyond what \
         is posted to a queue that is not a full circle; a step without a circle",
    ),
    ("ENOMEM", "the queue is full; as ibv_create_qp(3)"),
    ("EOPNOTSUPP", "the object is another device's"),
    ("IBV_WC_LOC_QP_OP_ERR", "status of a request whose entry breaks a rule, or whose task names no such object"),
    ("IBV_WC_LOC_PROT_ERR", "status of a receive whose entry breaks a rule"),
];

/// The declaration of a function.
fn declaration(name: &str) -> Option<&'static str> {
    let at = HEADER.find(&format!("{name}("))?;
    let start = HEADER[..at].rfind("\n__attribute__((weak)) ")? + "\n__attribute__((weak)) ".len();
    let end = at + HEADER[at..].find(';')?;
    Some(&HEADER[start..=end])
}

/// All pages.
pub fn pages() -> io::Result<Vec<Page>> {
    let [first, others @ ..] = NAMES else { return Ok(Vec::new()) };
    let mut made = vec![Page { file: format!("{first}.3"), text: functions(first)? }];
    for other in others {
        made.push(Page { file: format!("{other}.3"), text: format!(".so man3/{first}.3\n").into_bytes() });
    }
    Ok(made)
}

fn functions(first: &str) -> io::Result<Vec<u8>> {
    let mut text = Roff::new();
    text.control("TH", [first, "3", "", SOURCE, "softrnic"]);
    text.control("SH", ["NAME"]).text([roman(format!("{} - queues that run by themselves", NAMES.join(", ")))]);
    text.control("SH", ["SYNOPSIS"]).control("EX", []);
    text.text([bold("#include <softrnic/dv.h>")]).text([roman("")]);
    for name in NAMES {
        for line in declaration(name).unwrap_or_default().lines() {
            text.text([bold(line.trim_start().to_owned())]);
        }
    }
    text.control("EE", []);
    text.control("SH", ["DESCRIPTION"]);
    paragraphs(&mut text, TEXT);
    text.control("PP", []).text([roman("The header has the structures, and the layout of an entry.")]);
    text.control("SH", ["ERRORS"]);
    for (errno, when) in ERRORS {
        text.control("TP", []).text([bold(*errno)]).text([roman(*when)]);
    }
    text.control("SH", ["SEE ALSO"]).text([
        bold("ibv_create_qp"),
        roman("(3), "),
        bold("softrnic-doctor"),
        roman("(1)"),
    ]);
    let mut made = Vec::new();
    text.to_writer(&mut made)?;
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_a_page() {
        let declared: Vec<&str> = HEADER
            .match_indices("__attribute__((weak))")
            .filter_map(|(at, _)| HEADER[at + 22..].split_once('(').map(|(head, _)| head))
            .filter_map(|head| head.rsplit([' ', '*']).next())
            .collect();
        assert_eq!(declared.len(), NAMES.len());
        assert!(declared.iter().all(|name| NAMES.contains(name)), "{declared:?}");
        for name in NAMES {
            let text = declaration(name).unwrap();
            assert!(text.contains(name) && text.ends_with(");") && !text.contains("attribute"), "{text}");
        }
        assert_eq!(pages().unwrap().len(), NAMES.len());
    }

    #[test]
    fn every_name_in_capitals_is_in_the_header() {
        for name in TEXT.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|w| w.starts_with("SOFTRNIC_"))
        {
            assert!(HEADER.contains(name), "{name}");
        }
    }
}
