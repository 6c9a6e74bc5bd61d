//! Reports as text.

use std::fmt::Write as _;

use serde::Serialize;

use crate::facts::{Armed, Cq, Qp, Report, Sq};
use crate::rules::{Finding, Severity, duration, qp_name};

/// The name of a type, state or operation, as in verbs.h.
pub fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => "?".into(),
    }
}

/// `ConnectRequest` as `CONNECT_REQUEST`.
pub fn screaming(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.push(c.to_ascii_uppercase());
    }
    out
}

/// A text of another process without what a terminal could obey.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A number of bytes as text.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{n} B"),
        _ if value < 10.0 => format!("{value:.1} {}", UNITS[unit]),
        _ => format!("{value:.0} {}", UNITS[unit]),
    }
}

fn plural(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// The result of all findings, in one line.
pub fn verdict(findings: &[Finding]) -> &'static str {
    match findings.iter().map(|finding| finding.severity).max() {
        Some(Severity::Stuck) => "stuck",
        Some(Severity::Waits) => "waiting",
        Some(Severity::Note) | None => "nothing stands in the way",
    }
}

/// The first line about a process.
pub fn summary(report: &Report) -> String {
    let a = &report.adapter;
    let mut text = format!("process {} ({})", report.pid, clean(&report.program));
    if report.locked.is_none() {
        let _ = write!(
            text,
            ": {}, {}, {}, {} ({})",
            plural(a.qps.len() as u64, "QP"),
            plural(a.cqs.len() as u64, "CQ"),
            plural(u64::from(a.pds), "PD"),
            plural(u64::from(a.mrs), "MR"),
            bytes(a.mr_bytes)
        );
        for (n, what) in [(a.srqs.len() as u32, "SRQ"), (a.mws, "MW"), (a.ahs, "AH"), (a.xrcds, "XRCD")] {
            if n > 0 {
                let _ = write!(text, ", {}", plural(u64::from(n), what));
            }
        }
    }
    text
}

/// The whole report.
pub fn render(report: &Report, findings: &[Finding]) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{}", summary(report));
    let _ = writeln!(out, "{}", verdict(findings));
    for finding in findings {
        let mark = match finding.severity {
            Severity::Stuck => "!!",
            Severity::Waits => "! ",
            Severity::Note => "  ",
        };
        let _ = writeln!(out, "{mark} {}: {}", finding.object, clean(&finding.text));
    }
    for qp in &report.adapter.qps {
        render_qp(&mut out, report, qp);
    }
    for cq in &report.adapter.cqs {
        let _ = writeln!(out, "{}", cq_line(cq));
    }
    for srq in &report.adapter.srqs {
        let _ = writeln!(
            out,
            "SRQ {}: {} of {} receives posted, {} in all; {}",
            srq.handle,
            srq.posted,
            srq.depth,
            srq.total,
            plural(u64::from(srq.users), "QP")
        );
    }
    report.adapter.ended.iter().for_each(|ended| ended.render(&mut out, report.now_ns));
    for id in report.cm.iter().flat_map(|cm| &cm.ids) {
        let _ = write!(out, "cm_id {}: {}", id.number, clean(&id.phase));
        if let Some(state) = &id.handshake {
            let _ = write!(out, ", {}", word(state));
        }
        for (word, address) in [("at", &id.src), ("to", &id.dst)] {
            if let Some(address) = address {
                let _ = write!(out, " {word} {}", clean(address));
            }
        }
        let _ = writeln!(out, "{}", id.pid.map(|pid| format!(" (process {pid})")).unwrap_or_default());
    }
    report.cm.iter().for_each(|cm| cm.starting.render(&mut out));
    if let Some(why) = report.cm.as_ref().and_then(|cm| cm.locked.as_ref()) {
        let _ = writeln!(out, "connection manager: {}", clean(why));
    }
    out
}

fn render_qp(out: &mut String, report: &Report, qp: &Qp) {
    let _ = write!(out, "{} {} {}", qp_name(qp), word(&qp.qp_type), word(&qp.state));
    if let Some(peer) = &qp.peer {
        let _ = write!(out, " -> QP {:#08x} at {}", peer.qpn, clean(&peer.gid));
        let link = peer.link.and_then(|id| report.adapter.links.iter().find(|link| link.id == id));
        match link {
            Some(link) if link.loopback => out.push_str(" (this process)"),
            Some(link) => {
                let _ = write!(out, " (process {})", link.pid);
            }
            None => out.push_str(" (no link)"),
        }
    }
    out.push('\n');
    if let Some(stream) = report.adapter.streams.iter().find(|stream| stream.qpn == qp.number) {
        stream.render(out);
    }
    if let Some(sq) = &qp.sq {
        let _ = writeln!(out, "   {}", sq_line(sq, qp.send_cq));
    }
    match (&qp.rq, qp.srq) {
        (_, Some(srq)) => {
            let _ = writeln!(out, "   receives: from SRQ {srq}");
        }
        (Some(rq), None) => {
            let _ = writeln!(
                out,
                "   receives: {} of {} posted, {} unpolled, {} in all{}",
                rq.posted,
                rq.depth,
                rq.held.saturating_sub(rq.posted),
                rq.total,
                qp.recv_cq.map(|cq| format!("; to CQ {cq}")).unwrap_or_default()
            );
        }
        (None, None) => {}
    }
    let c = &qp.counters;
    let _ = write!(
        out,
        "   so far: sent {} ({}), received {} ({})",
        c.sent,
        bytes(c.sent_bytes),
        c.received,
        bytes(c.received_bytes)
    );
    for (n, what) in [
        (c.rnr_naks_in, "RNR NAKs got"),
        (c.rnr_naks_out, "RNR NAKs given"),
        (c.timeouts, "timeouts"),
        (c.seq_naks_in, "sequence NAKs got"),
        (c.seq_naks_out, "sequence NAKs given"),
        (c.duplicates, "duplicates"),
        (c.send_errors, "failed"),
        (c.dropped, "dropped for want of a receive"),
        (c.too_long, "dropped, longer than the receive"),
        (c.wrong_qkey, "dropped with a wrong Q_Key"),
        (c.no_room, "not sent for want of room"),
    ] {
        if n > 0 {
            let _ = write!(out, ", {n} {what}");
        }
    }
    out.push('\n');
}

fn sq_line(sq: &Sq, cq: Option<u32>) -> String {
    let mut text = format!("sends: {} of {} places in use", sq.held, sq.depth);
    if sq.held > 0 {
        let finished = sq.held.saturating_sub(sq.executing + sq.waiting);
        let _ = write!(
            text,
            " ({} executing, {} waiting, {finished} finished; {} unsignaled)",
            sq.executing,
            sq.waiting,
            sq.held.saturating_sub(sq.held_signaled)
        );
    }
    if let Some(cq) = cq {
        let _ = write!(text, "; to CQ {cq}");
    }
    if let Some(head) = &sq.head {
        let opcode = head.opcode.as_ref().map_or_else(|| "no request".into(), word);
        let _ = write!(text, "\n   head: {opcode} of {} bytes, wr_id {:#x}", head.len, head.wr_id);
        match head.age_ns {
            Some(age) => {
                let _ = write!(text, ", executing since {}", duration(age));
                if head.moved > 0 && head.moved < head.len {
                    let _ = write!(text, ", {} moved", bytes(u64::from(head.moved)));
                }
            }
            None => text.push_str(", not begun"),
        }
    }
    text
}

fn cq_line(cq: &Cq) -> String {
    let mut text = format!("CQ {}: {} of {} completions inside, {} in all", cq.handle, cq.inside, cq.depth, cq.pushed);
    text += match cq.armed {
        Armed::No => "",
        Armed::Solicited => "; armed for solicited only",
        Armed::Any => "; armed",
    };
    if let Some(channel) = &cq.channel {
        let _ = write!(text, "; channel: descriptor {}", channel.fd);
        if channel.unread > 0 {
            let _ = write!(text, ", {} unread", plural(u64::from(channel.unread), "event"));
        }
        if channel.waiters > 0 {
            let _ = write!(text, ", {} waiting", plural(u64::from(channel.waiters), "thread"));
        }
    }
    text
}
