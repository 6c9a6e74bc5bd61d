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
/// The rows of what has the library at one side.
pub const SIDES: [&str; 5] = [SET_50, GET_50, NGINX_1K, NGINX_1M, PGBENCH];
/// The rows of the server's processor time.
pub const USED: [&str; 9] =
    [REDIS_1, REDIS_50, NGINX_1K, NGINX_1M, PGBENCH, FILES[0].0, FILES[1].0, FILES[2].0, FILES[3].0];

/// What nginx sends: the row, the name of the file, and its size.
const PAGES: [(&str, &str, u64); 2] = [(NGINX_1K, "1k", 1000), (NGINX_1M, "1m", 1_000_000)];
/// The folders of the database, and of its copy for a second server.
const DATA: [&str; 2] = ["data", "data-2"];
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
    let words = ["-D", DATA[0], "-A", "trust", "-U", "me", "--no-sync", "--locale=C"];
    let initdb = format!("{sql}/initdb");
    ran(bench.program(Way::Tcp, true, "initdb", &[&[initdb.as_str()][..], &words].concat()))?;
    let port = 20_999;
    let server = Asked::new(port, postgres(bench, Way::Tcp, port, DATA[0])?);
    let port = port.to_string();
    let words = ["pgbench", "-q", "-i", "-h", "127.0.0.1", "-p", &port, "-U", "me", "postgres"];
    ran(bench.program(Way::Tcp, false, "pgbench-init", &words))?;
    shut(server)?;
    ran(bench.program(Way::Tcp, true, "copy", &["cp", "-r", DATA[0], DATA[1]]))?;
    Ok(())
}

/// A server that listens, and where the figures of its clients go.
struct Asked {
    server: Running,
    port: u16,
    rate: fn(&'static str) -> Row,
    used: fn(&'static str) -> Row,
}

impl Asked {
    fn new(port: u16, server: Running) -> Asked {
        Asked { server, port, rate: Row::Rate, used: Row::Used }
    }

    /// Run a client, and note the server's processor time for each of what it counts.
    fn by(
        &self,
        bench: &Bench,
        figures: &mut Figures,
        (row, way): (&'static str, Way),
        words: &[&str],
        count: impl Fn(&str) -> Result<f64, String>,
    ) -> Result<String, String> {
        let before = used(self.server.id());
        let told = ran(bench.program(way, false, words[0], words))?.stdout;
        let each = (used(self.server.id()) - before) / count(&told)?;
        figures.entry(((self.used)(row), way)).or_default().push(each);
        Ok(told)
    }

    fn note(&self, figures: &mut Figures, row: &'static str, way: Way, figure: f64) {
        figures.entry(((self.rate)(row), way)).or_default().push(figure);
    }
}

/// A server for pairs of what has the library at one side.
fn for_sides(asked: Asked) -> Asked {
    Asked { rate: Row::Side, used: Row::SideUsed, ..asked }
}

fn redis_server(bench: &mut Bench, way: Way) -> Result<Asked, String> {
    let port = bench.next_port()?;
    let text = port.to_string();
    let words = ["redis-server", "--port", &text, "--save", "", "--appendonly", "no"];
    Ok(Asked::new(port, serve(bench, way, "redis-server", port, &words)?))
}

/// redis-server and redis-benchmark, with so many connections.
pub fn redis(bench: &mut Bench, figures: &mut Figures, way: Way, connections: usize) -> Result<(), String> {
    let server = redis_server(bench, way)?;
    let requests = match (way, connections) {
        (Way::Moved, 1) => 150_000,
        (Way::Asleep, 1) => 15_000,
        (Way::Moved | Way::Asleep, _) => 300_000,
        (_, 1) => 10_000,
        _ => 50_000,
    };
    ask_redis(bench, figures, &server, way, connections, requests)
}

fn ask_redis(
    bench: &Bench,
    figures: &mut Figures,
    server: &Asked,
    way: Way,
    connections: usize,
    requests: u32,
) -> Result<(), String> {
    let (port, clients, count) = (server.port.to_string(), connections.to_string(), requests.to_string());
    let words = ["redis-benchmark", "-p", &port, "--csv", "-t", "set,get", "-d", "64", "-n", &count, "-c", &clients];
    let (set, get, used) = if connections == 1 { (SET_1, GET_1, REDIS_1) } else { (SET_50, GET_50, REDIS_50) };
    let told = server.by(bench, figures, (used, way), &words, |_| Ok(f64::from(2 * requests)))?;
    for (what, row) in [("SET", set), ("GET", get)] {
        // "SET","123456.78",...
        let line = told.lines().find_map(|line| line.strip_prefix(&format!("\"{what}\",\"")));
        let figure = line.and_then(|line| line.split('"').next()?.parse().ok());
        server.note(figures, row, way, figure.ok_or_else(|| format!("no figure of {what}: {told}"))?);
    }
    Ok(())
}

/// The number behind a word.
fn number_after(text: &str, word: &str) -> Result<f64, String> {
    let found = text.split_once(word).and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    found.ok_or_else(|| format!("no figure behind {word}: {text}"))
}

fn nginx_server(bench: &mut Bench, way: Way) -> Result<Asked, String> {
    let port = bench.next_port()?;
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|name| format!("{name}_temp_path t;"));
    let conf = format!(
        "daemon off; worker_processes 1; error_log stderr error; pid nginx-{port}.pid;\n\
         events {{ worker_connections 200; }}\n\
         http {{ access_log off; sendfile on; keepalive_requests 100000000; {}\n\
         server {{ listen 127.0.0.1:{port}; root files; }} }}\n",
        temporary.concat()
    );
    let name = format!("nginx-{port}.conf");
    fs::write(bench.home.join(&name), conf).map_err(text)?;
    let home = format!("{}/", bench.home.display());
    let server = serve(bench, way, "nginx", port, &["nginx", "-p", &home, "-c", &name, "-e", "stderr"])?;
    Ok(Asked::new(port, server))
}

/// nginx with one worker, and wrk with ten connections that stay.
pub fn nginx(bench: &mut Bench, figures: &mut Figures, way: Way) -> Result<(), String> {
    let server = nginx_server(bench, way)?;
    PAGES.into_iter().try_for_each(|(row, file, _)| ask_nginx(bench, figures, &server, way, (row, file)))
}

fn ask_nginx(
    bench: &Bench,
    figures: &mut Figures,
    server: &Asked,
    way: Way,
    (row, file): (&'static str, &str),
) -> Result<(), String> {
    let url = format!("http://127.0.0.1:{}/{file}", server.port);
    let told = server.by(bench, figures, (row, way), &["wrk", "-t1", "-c10", "-d1s", &url], requests)?;
    server.note(figures, row, way, number_after(&told, "Requests/sec:")?);
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

fn postgres(bench: &Bench, way: Way, port: u16, data: &str) -> Result<Running, String> {
    let program = format!("{}/postgres", postgres_folder()?);
    let port_is = format!("port={port}");
    let mut words = vec![program.as_str(), "-D", data];
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

/// Ends a database. One that is killed has to recover at its next start.
fn shut(mut asked: Asked) -> Result<(), String> {
    let pid = rustix::process::Pid::from_raw(asked.server.id() as i32).ok_or("no process")?;
    rustix::process::kill_process(pid, rustix::process::Signal::INT).map_err(|e| e.to_string())?;
    asked.server.wait(Instant::now() + LIMIT).map_err(text)?;
    Ok(())
}

fn postgres_server(bench: &mut Bench, way: Way, data: &str) -> Result<Asked, String> {
    let port = bench.next_port()?;
    Ok(Asked::new(port, postgres(bench, way, port, data)?))
}

/// PostgreSQL, and pgbench's transactions that only select, by four clients in two threads.
pub fn pgbench(bench: &mut Bench, figures: &mut Figures, way: Way) -> Result<(), String> {
    let server = postgres_server(bench, way, DATA[0])?;
    ask_postgres(bench, figures, &server, way)?;
    shut(server)
}

fn ask_postgres(bench: &Bench, figures: &mut Figures, server: &Asked, way: Way) -> Result<(), String> {
    let port = server.port.to_string();
    let words = ["pgbench", "-S", "-n", "-c", "4", "-j", "2", "-T", "1", "-h", "127.0.0.1", "-p", &port];
    // The processes of the four sessions end, and their time is their parent's then.
    let count = |told: &str| number_after(told, "number of transactions actually processed:");
    let told = server.by(bench, figures, (PGBENCH, way), &[&words[..], &["-U", "me", "postgres"]].concat(), count)?;
    server.note(figures, PGBENCH, way, number_after(&told, "tps =")?);
    Ok(())
}

/// What has the library at one side, beside TCP and TCP once more: one directly behind the other, at two servers that
/// are there for all rounds. A round of redis is short, so there are more of them.
pub fn sides(bench: &mut Bench, figures: &mut Figures, rounds: usize, quick: bool) -> Result<(), String> {
    let ways = [Way::Tcp, Way::ClientOnly, Way::ServerOnly, Way::Again];
    type Ask<'a> = &'a dyn Fn(&mut Figures, &Asked, Way) -> Result<(), String>;
    let mut all = |servers: &[Asked; 2], rounds: usize, ask: Ask<'_>| {
        for round in 0..rounds {
            for way in super::ordered(&ways, round) {
                ask(figures, &servers[usize::from(way == Way::ServerOnly)], way)?;
            }
        }
        Ok::<(), String>(())
    };
    let servers = [redis_server(bench, Way::Tcp)?, redis_server(bench, Way::ServerOnly)?].map(for_sides);
    all(&servers, 2 * rounds, &|figures, server, way| ask_redis(bench, figures, server, way, 50, 20_000))?;
    drop(servers);
    if quick {
        return Ok(());
    }
    let servers = [nginx_server(bench, Way::Tcp)?, nginx_server(bench, Way::ServerOnly)?].map(for_sides);
    for (row, file, _) in PAGES {
        all(&servers, rounds, &|figures, server, way| ask_nginx(bench, figures, server, way, (row, file)))?;
    }
    drop(servers);
    let servers = [postgres_server(bench, Way::Tcp, DATA[0])?, postgres_server(bench, Way::ServerOnly, DATA[1])?];
    let servers = servers.map(for_sides);
    all(&servers, rounds, &|figures, server, way| ask_postgres(bench, figures, server, way))?;
    servers.into_iter().try_for_each(shut)
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
