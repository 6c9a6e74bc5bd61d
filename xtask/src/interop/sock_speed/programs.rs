//! Figures of programs: redis, nginx, PostgreSQL and Apache, each with a client of its own.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use crate::run::{Program, Running};

use super::{Bench, Figures, LIMIT, Row, Way, ran, wait_for};
use crate::interop::sandbox::give;

pub const SET_1: &str = "redis SET, 1 connection";
pub const GET_1: &str = "redis GET, 1 connection";
pub const SET_50: &str = "redis SET, 50 connections";
pub const GET_50: &str = "redis GET, 50 connections";
pub const NGINX_1K: &str = "nginx and wrk, 1 KB";
pub const NGINX_1M: &str = "nginx and wrk, 1 MB";
pub const PGBENCH: &str = "pgbench -S";
pub const REDIS_1: &str = "redis, 1 connection";
pub const REDIS_50: &str = "redis, 50 connections";

/// The rows of requests a second, in the page's order.
pub const RATES: [&str; 7] = [SET_1, GET_1, SET_50, GET_50, NGINX_1K, NGINX_1M, PGBENCH];
/// The files that wget gets from Apache: a name, the size, and how many times in one turn.
pub const FILES: [(&str, u64, usize); 4] = [
    ("Apache and wget, 64 KB", 64 << 10, 200),
    ("Apache and wget, 1 MB", 1 << 20, 100),
    ("Apache and wget, 64 MB", 64 << 20, 6),
    ("Apache and wget, 1 GB", 1 << 30, 1),
];
/// The rows of the server's processor time.
pub const USED: [&str; 9] =
    [REDIS_1, REDIS_50, NGINX_1K, NGINX_1M, PGBENCH, FILES[0].0, FILES[1].0, FILES[2].0, FILES[3].0];

/// What nginx sends: the row, the name of the file, and its size.
const PAGES: [(&str, &str, u64); 2] = [(NGINX_1K, "1k", 1000), (NGINX_1M, "1m", 1_000_000)];
/// A tick of the clock in proc(5) is a hundredth of a second on Linux.
const TICK: f64 = 1e7;

/// A process as proc(5) shows it: its parent, and the ticks that its children had used when they ended.
fn parent_and_ended(pid: u32) -> Option<(u32, f64)> {
    let told = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = told.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((number(1)? as u32, number(13)? + number(14)?))
}

/// Nanoseconds that a process, its threads, and all its descendants have run, also those that have ended.
fn used(server: u32) -> f64 {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let known: BTreeMap<u32, (u32, f64)> = pids.filter_map(|pid| Some((pid, parent_and_ended(pid)?))).collect();
    let is_of_server = |pid: u32| {
        let mut at = Some(pid);
        // A chain of parents is not longer than that.
        (0..10).any(|_| {
            let found = at == Some(server);
            at = at.and_then(|pid| Some(known.get(&pid)?.0));
            found
        })
    };
    let mut total = 0.0;
    for (pid, (_, ended)) in &known {
        if is_of_server(*pid) {
            let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            let told = threads.filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok());
            let ran = told.filter_map(|told| told.split_whitespace().next()?.parse::<f64>().ok());
            total += ran.sum::<f64>() + ended * TICK;
        }
    }
    total
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}

/// Starts a server, and waits until it listens.
fn serve(bench: &Bench, way: Way, log: &str, port: u16, words: &[&str]) -> Result<Running, String> {
    let mut server = bench.program(way, true, log, words).spawn().map_err(text)?;
    wait_for(port, &mut server)?;
    Ok(server)
}

/// Make what the servers serve: files, and a database.
///
/// # Errors
/// The file, or the program that does not run.
pub fn prepare(bench: &Bench) -> Result<(), String> {
    let folder = bench.home.join("files");
    fs::create_dir_all(&folder).map_err(text)?;
    let pages = PAGES.map(|(_, name, size)| (name.to_owned(), size));
    let files = FILES.map(|(_, size, _)| (size.to_string(), size));
    for (name, size) in pages.into_iter().chain(files) {
        let path = folder.join(name);
        let mut file = fs::File::create(&path).map_err(text)?;
        let piece: Vec<u8> = (0..size.min(1 << 20)).map(|n| (n % 251) as u8).collect();
        for _ in 0..size.div_ceil(1 << 20) {
            std::io::Write::write_all(&mut file, &piece).map_err(text)?;
        }
        give(&path)?;
    }
    let sql = postgres_folder()?;
    let words = ["-D", "data", "-A", "trust", "-U", "me", "--no-sync", "--locale=C"];
    let initdb = format!("{sql}/initdb");
    ran(bench.program(Way::Tcp, true, "initdb", &[&[initdb.as_str()][..], &words].concat()))?;
    let port = 20_999;
    let _server = postgres(bench, Way::Tcp, port)?;
    let port = port.to_string();
    let words = ["pgbench", "-q", "-i", "-h", "127.0.0.1", "-p", &port, "-U", "me", "postgres"];
    ran(bench.program(Way::Tcp, false, "pgbench-init", &words))?;
    Ok(())
}

/// redis-server and redis-benchmark, with so many connections.
pub fn redis(bench: &mut Bench, figures: &mut Figures, way: Way, connections: usize) -> Result<(), String> {
    let port = bench.next_port()?;
    let text = port.to_string();
    let words = ["redis-server", "--port", &text, "--save", "", "--appendonly", "no"];
    let server = serve(bench, way, "redis-server", port, &words)?;
    let requests = match (way, connections) {
        (Way::Moved, 1) => 150_000,
        (Way::Asleep, 1) => 15_000,
        (Way::Moved | Way::Asleep, _) => 300_000,
        (_, 1) => 10_000,
        _ => 50_000,
    };
    let (clients, count) = (connections.to_string(), requests.to_string());
    let words = ["redis-benchmark", "-p", &text, "--csv", "-t", "set,get", "-d", "64", "-n", &count, "-c", &clients];
    let before = used(server.id());
    let done = ran(bench.program(way, false, "redis-benchmark", &words))?;
    let each = (used(server.id()) - before) / f64::from(2 * requests);
    let (set, get, used) = if connections == 1 { (SET_1, GET_1, REDIS_1) } else { (SET_50, GET_50, REDIS_50) };
    figures.entry((Row::Used(used), way)).or_default().push(each);
    for (what, row) in [("SET", set), ("GET", get)] {
        // "SET","123456.78",...
        let line = done.stdout.lines().find_map(|line| line.strip_prefix(&format!("\"{what}\",\"")));
        let figure = line.and_then(|line| line.split('"').next()?.parse().ok());
        let figure = figure.ok_or_else(|| format!("no figure of {what}: {}", done.stdout))?;
        figures.entry((Row::Rate(row), way)).or_default().push(figure);
    }
    Ok(())
}

/// The number behind a word.
fn number_after(text: &str, word: &str) -> Result<f64, String> {
    let found = text.split_once(word).and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    found.ok_or_else(|| format!("no figure behind {word}: {text}"))
}

/// nginx with one worker, and wrk with ten connections that stay.
pub fn nginx(bench: &mut Bench, figures: &mut Figures, way: Way) -> Result<(), String> {
    let port = bench.next_port()?;
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|name| format!("{name}_temp_path t;"));
    let conf = format!(
        "daemon off; worker_processes 1; error_log stderr error; pid nginx.pid; events {{ worker_connections 200; }}\n\
         http {{ access_log off; sendfile on; keepalive_requests 100000000; {}\n\
         server {{ listen 127.0.0.1:{port}; root files; }} }}\n",
        temporary.concat()
    );
    fs::write(bench.home.join("nginx.conf"), conf).map_err(text)?;
    let home = format!("{}/", bench.home.display());
    let server = serve(bench, way, "nginx", port, &["nginx", "-p", &home, "-c", "nginx.conf", "-e", "stderr"])?;
    for (row, file, _) in PAGES {
        let url = format!("http://127.0.0.1:{port}/{file}");
        let before = used(server.id());
        let done = ran(bench.program(way, false, "wrk", &["wrk", "-t1", "-c10", "-d1s", &url]))?;
        let each = (used(server.id()) - before) / requests(&done.stdout)?;
        figures.entry((Row::Used(row), way)).or_default().push(each);
        figures.entry((Row::Rate(row), way)).or_default().push(number_after(&done.stdout, "Requests/sec:")?);
    }
    Ok(())
}

/// wrk's count: `  123 requests in 1.00s, ...`.
fn requests(told: &str) -> Result<f64, String> {
    let line = told.lines().find(|line| line.contains(" requests in "));
    let count = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    match count {
        Some(count) if count > 0.0 && !told.contains("Socket errors") && !told.contains("Non-2xx") => Ok(count),
        _ => Err(format!("wrk: {told}")),
    }
}

/// The folder of PostgreSQL's own programs.
fn postgres_folder() -> Result<String, String> {
    let all = fs::read_dir("/usr/lib/postgresql").map_err(|e| format!("PostgreSQL: {e}"))?;
    let newest = all.flatten().map(|entry| entry.path().join("bin")).max().ok_or("PostgreSQL is not there")?;
    Ok(newest.display().to_string())
}

fn postgres(bench: &Bench, way: Way, port: u16) -> Result<Running, String> {
    let program = format!("{}/postgres", postgres_folder()?);
    let port_is = format!("port={port}");
    let mut words = vec![program.as_str(), "-D", "data"];
    let settings = [
        port_is.as_str(),
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "fsync=off",
        "shared_buffers=64MB",
        "autovacuum=off",
    ];
    settings.iter().for_each(|setting| words.extend(["-c", setting]));
    let mut server = bench.program(way, true, "postgres", &words).spawn().map_err(text)?;
    let (port, until) = (port.to_string(), Instant::now() + LIMIT);
    loop {
        // It listens before it is ready.
        let asked = Program::new("pg_isready", crate::logs().join("sock-speed/pg_isready"));
        let done = asked.args(["-q", "-h", "127.0.0.1", "-p", &port]).run(LIMIT).map_err(text)?;
        if done.ok() {
            return Ok(server);
        }
        if server.ended().map_err(text)? || Instant::now() > until {
            return Err("PostgreSQL is not ready".to_owned());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// PostgreSQL, and pgbench's transactions that only select, by four clients in two threads.
pub fn pgbench(bench: &mut Bench, figures: &mut Figures, way: Way) -> Result<(), String> {
    let port = bench.next_port()?;
    let server = postgres(bench, way, port)?;
    let text_of_port = port.to_string();
    let words = ["pgbench", "-S", "-n", "-c", "4", "-j", "2", "-T", "1", "-h", "127.0.0.1", "-p", &text_of_port];
    let before = used(server.id());
    let done = ran(bench.program(way, false, "pgbench", &[&words[..], &["-U", "me", "postgres"]].concat()))?;
    let count = number_after(&done.stdout, "number of transactions actually processed:")?;
    // The processes of the four sessions end, and their time is their parent's then.
    let each = (used(server.id()) - before) / count;
    figures.entry((Row::Used(PGBENCH), way)).or_default().push(each);
    figures.entry((Row::Rate(PGBENCH), way)).or_default().push(number_after(&done.stdout, "tps =")?);
    // A database that is killed has to recover at its next start.
    let pid = rustix::process::Pid::from_raw(server.id() as i32).ok_or("no process")?;
    rustix::process::kill_process(pid, rustix::process::Signal::INT).map_err(|e| e.to_string())?;
    let mut server = server;
    server.wait(Instant::now() + LIMIT).map_err(text)?;
    Ok(())
}

/// Apache, and wget, which gets each file several times in one process.
pub fn apache(bench: &mut Bench, figures: &mut Figures, way: Way) -> Result<(), String> {
    let (port, home) = (bench.next_port()?, bench.home.display().to_string());
    let modules = ["mpm_prefork", "authz_core"]
        .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"));
    let conf = format!(
        "ServerRoot \"{home}\"\nServerName localhost\nListen 127.0.0.1:{port}\nPidFile apache.pid\n\
         DocumentRoot \"{home}/files\"\nErrorLog \"{home}/error.log\"\nLogLevel error\nEnableSendfile On\n\
         KeepAlive On\nMaxKeepAliveRequests 0\n{}Mutex file:{home}\nStartServers 2\n",
        modules.concat()
    );
    fs::write(bench.home.join("apache.conf"), conf).map_err(text)?;
    let words = ["apache2", "-d", &home, "-f", "apache.conf", "-DFOREGROUND"];
    let server = serve(bench, way, "apache", port, &words)?;
    for (row, size, times) in FILES {
        let url = format!("http://127.0.0.1:{port}/{size}");
        let mut words = vec!["wget", "-q", "-O", "/dev/null"];
        words.extend(vec![url.as_str(); times]);
        let (before, began) = (used(server.id()), Instant::now());
        ran(bench.program(way, false, "wget", &words))?;
        let took = began.elapsed().as_secs_f64() * 1e3 / times as f64;
        figures.entry((Row::Took(row), way)).or_default().push(took);
        let each = (used(server.id()) - before) / times as f64;
        figures.entry((Row::Used(row), way)).or_default().push(each);
    }
    Ok(())
}
