//! What `softrnic doctor` and `softrnic top` show of a connection of softiw0 that is busy.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::report::{Outcome, Suite};
use crate::run::Running;
use crate::{Options, logs};

use super::iwarp::wants;
use super::net::{Ip, Net, wait_for_line};
use super::sandbox::Sandbox;

const LIMIT: Duration = Duration::from_secs(60);
/// The port of the case, which no other suite uses.
const PORT: u16 = 7501;
const NAME: &str = "shown: doctor and top, text and JSON";

/// Run the case. `program` is that of `interop/iwarp-ends`.
pub fn shown(suite: &mut Suite, options: &Options, sandbox: &Sandbox, net: &Net, program: &str) {
    if options.wants(NAME) {
        let outcome = case(sandbox, net, program);
        suite.push(NAME, outcome.map_or_else(Outcome::Failed, |()| Outcome::Passed), None);
    }
}

fn case(sandbox: &Sandbox, net: &Net, program: &str) -> Result<(), String> {
    let address = net.address(0, Ip::V4);
    let start = |host: usize, how: &str| -> Result<Running, String> {
        let line = format!("{program} {how} {address} {PORT} busy");
        let made = sandbox.elsewhere(&net.words(host), &format!("shown.{how}"), &["--device", "iwarp"], &line);
        made.spawn().map_err(|e| e.to_string())
    };
    let mut server = start(0, "listen")?;
    let begun = Instant::now();
    while !net.listens(0, PORT) {
        if server.ended().map_err(|e| e.to_string())? || begun.elapsed() > LIMIT {
            return Err("the server does not listen".to_owned());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut client = start(1, "connect")?;
    wait_for_line(&mut client, &logs().join("iwarp/shown.connect"), "busy")?;
    let (pid, peer) = (client.id().to_string(), format!("{address}:{PORT}"));
    let softrnic = sandbox.dir().join("softrnic").display().to_string();
    let ask = |log: &str, words: &[&str]| {
        let command: Vec<String> = sandbox
            .user()
            .iter()
            .cloned()
            .chain([softrnic.clone()])
            .chain(words.iter().map(|w| (*w).to_owned()))
            .collect();
        let done = net.inside(1, log, &command).run(LIMIT).map_err(|e| e.to_string())?;
        if done.ok() { Ok(done.stdout) } else { Err(format!("{}: {}", words.join(" "), done.verdict())) }
    };
    let text = ask("doctor", &["doctor", &pid])?;
    for part in [&format!("-> {peer}: CRC on, markers none, MULPDU "), "FPDUs: ", " wait for TCP", "RC RTS"] {
        wants(&text, part)?;
    }
    let json = ask("doctor-json", &["doctor", "--json", &pid])?;
    let facts: Value = serde_json::from_str(&json).map_err(|e| e.to_string())?;
    let stream = &facts[0]["report"]["adapter"]["streams"][0];
    let number = |key: &str| stream[key].as_u64().unwrap_or_default();
    let local = stream["local"].as_str().unwrap_or_default();
    let is_right = stream["peer"] == peer.as_str()
        && local.starts_with(net.address(1, Ip::V4))
        && stream["crc"] == true
        && number("mulpdu") >= 128
        && number("fpdus_out") >= 20
        // The WRITEs of the program have 4,096 bytes each.
        && number("bytes_out") > 4096 * 20;
    if !is_right {
        return Err(format!("doctor --json: {stream}"));
    }
    let text = ask("top", &["top", "--once", &pid])?;
    wants(&text, "softiw0: 1 context, 1 QP")?;
    wants(&text, &format!("> {peer}"))?;
    let json = ask("top-json", &["top", "--once", "--json", &pid])?;
    let line = json.lines().next().unwrap_or_default();
    serde_json::from_str::<Value>(line).map_err(|e| format!("top --json: {e}"))?;
    wants(&json, &peer)?;
    client.stop().and_then(|_| server.stop()).map(|_| ()).map_err(|e| e.to_string())
}
