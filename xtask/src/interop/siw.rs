//! Linux's siw, in a virtual machine without hardware acceleration: the crate `iwarp`, driven by its example `peer`, as
//! client and as server of `rping`, and Terminate messages in both directions.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::siw_device;
use crate::report::{Outcome, Suite};
use crate::run::{Finished, Program, Running, find};
use crate::{Options, logs, root, target_dir};

/// The tools without which there is no guest, and the packages that have them.
const TOOLS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("make", "make"),
    ("gcc-12", "gcc-12"),
];

/// The port of siw's `rping` in the guest.
pub const RPING: u16 = 7174;

/// The port of perftest in the guest.
pub const PERFTEST: u16 = 18515;

/// The port of the guest's shell.
const SHELL: u16 = 9000;

/// The limit of a download of 220 MB.
const FETCH: Duration = Duration::from_secs(300);

/// The limit of a build of a quarter of a minute, which may have to share the processors.
const BUILD: Duration = Duration::from_secs(400);

/// The guest boots in four seconds of a processor's time.
const BOOT: Duration = Duration::from_secs(200);

/// The limit of a case of half a second.
const LIMIT: Duration = Duration::from_secs(180);

/// An error that `peer` provokes, and what siw's Terminate message says about it.
const WRONG: &[(&str, &str)] = &[
    ("write-stag", "tagged: invalid STag (1 1 0)"),
    ("read-stag", "READ or invalidation: invalid STag (0 1 0)"),
    // siw's number for a message that is too long.
    ("send-long", "untagged: no buffer (1 2 2)"),
    ("crc", "wrong CRC (2 0 2)"),
    ("ddp-version", "untagged: invalid version of DDP (1 2 6)"),
    ("rdmap-version", "invalid version of RDMAP (0 2 5)"),
    ("opcode", "unexpected opcode (0 2 6)"),
    ("queue", "untagged: invalid queue (1 2 1)"),
    ("message", "untagged: message number out of range (1 2 3)"),
    ("offset", "untagged: invalid offset (1 2 4)"),
];

/// The terms of connections with `rping`'s server in the guest: options of `peer`, and bytes of the text.
const CLIENT: &[(&str, usize)] = &[
    ("", 64),
    ("--no-crc", 64),
    ("", 65535),
    ("--no-crc", 65535),
    ("--emss 9000", 65535),
    ("--emss 536", 4001),
    ("--ready wr", 4001),
    ("--ready r", 64),
    ("--private 251", 64),
];

/// The terms of connections with `rping`'s client in the guest.
const SERVER: &[(&str, usize)] = &[
    ("", 64),
    ("--no-crc", 64),
    ("", 65535),
    ("--no-crc", 65535),
    ("--emss 9000", 65535),
    ("--ready wr", 64),
    ("--private 200", 64),
];

fn folder() -> PathBuf {
    target_dir().join("interop/siw")
}

fn script(log: &str, fetch: bool, limit: Duration) -> Result<(), String> {
    let done = Program::new("bash", logs().join("siw").join(log))
        .args([root().join("interop/siw/build.sh"), folder()])
        .args(fetch.then_some("fetch"))
        .run(limit)
        .map_err(|e| e.to_string())?;
    if done.ok() {
        Ok(())
    } else {
        Err(format!("interop/siw/build.sh: {}; see {}", done.verdict(), done.log.display()))
    }
}

/// Install the tools, and download the kernel's packages, while there is a network.
///
/// # Errors
/// What could not be had: the suite is skipped then.
pub fn fetch() -> Result<(), String> {
    let missing = missing();
    if !missing.is_empty() && rustix::process::geteuid().is_root() && find("apt-get").is_some() {
        let done = Program::new("apt-get", logs().join("siw/install"))
            .args(["install", "--no-install-recommends", "-q", "-y"])
            .args(&missing)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .run(FETCH);
        if !done.is_ok_and(|done| done.ok()) {
            return Err(format!("could not be installed: {}", missing.join(", ")));
        }
    }
    script("fetch", true, FETCH)
}

fn missing() -> Vec<&'static str> {
    TOOLS.iter().filter(|(tool, _)| find(tool).is_none()).map(|(_, package)| *package).collect()
}

/// Run the suite.
pub fn siw(suite: &mut Suite, options: &Options) {
    let missing = missing();
    let has_kernel = || folder().join("unpacked").exists() || fetch().is_ok();
    if !missing.is_empty() || !has_kernel() {
        let why = match missing.as_slice() {
            [] => "the packages of a kernel could not be downloaded".to_owned(),
            missing => format!("not installed: {}", missing.join(", ")),
        };
        println!("  SKIPPED siw: {why}: nothing here has been tried with another iWARP");
        return suite.skip("Linux's siw in a virtual machine", why);
    }
    if let Err(why) = prepare() {
        return suite.fail("preparation", why);
    }
    // A kernel that does not come up in an emulated machine says nothing about this project.
    match Guest::boot().or_else(|_| Guest::boot()) {
        Ok(mut guest) => {
            cases(suite, options, &mut guest);
            siw_device::cases(suite, options, &guest);
        }
        Err(why) => suite.fail("the guest boots", why),
    }
}

fn prepare() -> Result<(), String> {
    script("build", false, BUILD)?;
    let done = Program::new(env!("CARGO"), logs().join("siw/peer"))
        .args(["build", "--release", "--package", "softrnic-iwarp", "--example", "peer"])
        .dir(root())
        .run(BUILD)
        .map_err(|e| e.to_string())?;
    if done.ok() { Ok(()) } else { Err(format!("the example `peer`: {}", done.verdict())) }
}

fn cases(suite: &mut Suite, options: &Options, guest: &mut Guest) {
    let mut case = |name: String, run: &mut dyn FnMut(&mut Guest, &Path) -> Result<(), String>| {
        if options.wants(&name) {
            let log = logs().join("siw").join(name.replace([' ', ','], "_"));
            let outcome = run(guest, &log).map_or_else(Outcome::Failed, |()| Outcome::Passed);
            suite.push(name, outcome, Some(log));
        }
    };
    for (terms, size) in CLIENT {
        case(format!("client, {size} bytes {terms}"), &mut |guest, log| {
            let terms = format!("{terms} --size {size} --count 10");
            let (peer, siw) = guest.server("rping", &terms, *size, log)?;
            wants(&peer.stdout, "10 rounds")?;
            wants(&peer.stdout, &format!("crc: {}", !terms.contains("--no-crc")))?;
            wants(&siw, "server ping data: rdma-ping-9")
        });
    }
    for (terms, size) in SERVER {
        case(format!("server, {size} bytes {terms}"), &mut |guest, log| {
            let (peer, siw) = guest.client(terms, *size, log)?;
            wants(&peer.stdout, "10 rounds")?;
            wants(&peer.stdout, &format!("crc: {}", !terms.contains("--no-crc")))?;
            // rping has compared the text with what came back.
            wants(&siw, "ping data: rdma-ping-9")?;
            wants(&siw, "client DISCONNECT EVENT")
        });
    }
    for (wrong, said) in WRONG {
        case(format!("siw is told wrong things, {wrong}"), &mut |guest, log| {
            let (peer, _) = guest.server("rping", &format!("--wrong {wrong}"), 64, log)?;
            wants(&peer.stdout, &format!("end: terminated, {said}"))
        });
    }
    // With revision 1 siw gives its own program no READ.
    case("revision 1, and a WRITE to a region that is not there".to_owned(), &mut |guest, log| {
        let (peer, _) = guest.server("rping", "--revision 1 --wrong write-stag", 64, log)?;
        wants(&peer.stdout, "end: terminated, tagged: invalid STag (1 1 0)")
    });
    case("siw reads where it may not".to_owned(), &mut |guest, log| {
        let (peer, siw) = guest.server("lie", "", 64, log)?;
        wants(&peer.stdout, "end: fault, READ or invalidation: invalid STag (0 1 0)")?;
        wants(&siw, "DISCONNECT EVENT")?;
        wants(&siw, "wait for RDMA_READ_COMPLETE state 10")
    });
    case("siw has no markers".to_owned(), &mut |guest, log| {
        let (peer, _) = guest.server("rping", "--markers", 64, log)?;
        wants(&peer.stdout, "error: rejected")
    });
}

pub fn wants(text: &str, part: &str) -> Result<(), String> {
    let last = || text.lines().rev().take(3).collect::<Vec<_>>().join(" / ");
    if text.contains(part) { Ok(()) } else { Err(format!("no `{part}` in: {}", last())) }
}

/// The virtual machine. Dropping it ends it.
pub struct Guest {
    machine: Running,
    /// This host's address for its ports: the guest's network is a process without rights of its own.
    pub address: Ipv4Addr,
}

impl Guest {
    /// This host's loopback in the guest's network.
    pub const HOST: &str = "10.0.2.2";

    fn boot() -> Result<Guest, String> {
        let console = logs().join("siw/console.txt");
        let _ = fs::remove_file(&console);
        // Each address of 127.0.0.0/8 is this host's. Below 32768 no other program gets a port by chance.
        let id = std::process::id();
        let [_, _, third, fourth] = id.to_be_bytes();
        let address = Ipv4Addr::new(127, 88, third, fourth);
        let ports = [SHELL, RPING, PERFTEST].map(|port| format!("hostfwd=tcp:{address}:{port}-:{port}")).join(",");
        let machine = Program::new("setpriv", logs().join("siw/qemu"))
            .args(["--pdeathsig", "KILL", "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-smp", "1"])
            .args(["-m", "512", "-display", "none", "-monitor", "none", "-no-reboot", "-kernel"])
            .args([&folder().join("vmlinuz"), Path::new("-initrd"), &folder().join("initrd.gz")])
            // On a busy host the guest's check of its timer fails, and the kernel takes it for broken.
            .args(["-append", "console=ttyS0 quiet mitigations=off no_timer_check tsc=reliable panic=-1", "-nic"])
            .args([format!("user,model=e1000,{ports}"), "-serial".to_owned(), format!("file:{}", console.display())])
            .spawn()
            .map_err(|e| e.to_string())?;
        let mut guest = Guest { machine, address };
        let started = Instant::now();
        loop {
            let said = fs::read(&console).unwrap_or_default();
            if String::from_utf8_lossy(&said).contains("guest: kernel") {
                return Ok(guest);
            }
            let ended = guest.machine.ended().map_err(|e| e.to_string())?;
            if ended || started.elapsed() > BOOT {
                return Err(format!("{}; see {}", if ended { "qemu ended" } else { "it hangs" }, console.display()));
            }
            sleep(Duration::from_millis(50));
        }
    }

    /// A shell in the guest that has been given these lines.
    fn shell(&self, lines: &str) -> io::Result<TcpStream> {
        Guest::shell_at(self.address, lines)
    }

    fn shell_at(address: Ipv4Addr, lines: &str) -> io::Result<TcpStream> {
        let mut shell = TcpStream::connect((address, SHELL))?;
        shell.set_read_timeout(Some(LIMIT))?;
        shell.write_all(lines.as_bytes())?;
        Ok(shell)
    }

    fn peer(words: &[&str], terms: &str, log: &Path) -> Result<Running, String> {
        Program::new("setpriv", log)
            .args(["--pdeathsig", "KILL"])
            .args([target_dir().join("release/examples/peer")])
            .args(words)
            .args(terms.split_whitespace())
            .spawn()
            .map_err(|e| e.to_string())
    }

    /// Run `peer` as the client of an `rping` in the guest. What both said.
    fn server(&mut self, mode: &str, terms: &str, size: usize, log: &Path) -> Result<(Finished, String), String> {
        let address = format!("{}:{RPING}", self.address);
        let line = format!("rping -s -p {RPING} -v -S {size}");
        self.serve(&line, RPING, log, || Guest::peer(&["connect", &address, mode], terms, log))
    }

    /// Run a client of this host when a server in the guest listens. What both said.
    pub fn serve(
        &self,
        line: &str,
        port: u16,
        log: &Path,
        client: impl FnOnce() -> Result<Running, String>,
    ) -> Result<(Finished, String), String> {
        let listens = listens(port);
        // What comes before siw listens would be refused, what comes to the server of the last case would be lost.
        let lines = format!(
            "{listens}\
             while listens; do usleep 20000; done\n\
             timeout 150 {line} > /tmp/said 2>&1 &\n\
             until listens; do usleep 20000; done\n\
             echo listening\nread word\n[ $word = wait ] || kill $!\nwait $!\ncat /tmp/said\nexit\n"
        );
        let mut shell = BufReader::new(self.shell(&lines).map_err(|e| format!("the guest's shell: {e}"))?);
        let mut said = String::new();
        shell.read_line(&mut said).map_err(|e| format!("the guest's server does not listen: {e}"))?;
        let mut peer = client()?;
        peer.wait(Instant::now() + LIMIT).map_err(|e| e.to_string())?;
        let peer = peer.finish().map_err(|e| e.to_string())?;
        // Without a connection the server waits for one.
        let word = if peer.ok() { "wait\n" } else { "kill\n" };
        let ended = shell.get_mut().write_all(word.as_bytes()).and_then(|()| shell.read_to_string(&mut said));
        let _ = fs::write(crate::run::with(log, "guest"), &said);
        ended.map_err(|e| format!("the guest's server does not end: {e}; peer: {}", peer.verdict()))?;
        Ok((peer, said))
    }

    /// A function that waits until something in the guest listens at the port; false: there is no guest any more.
    pub fn waits(&self, port: u16) -> impl Fn() -> bool + Send + Sync + 'static {
        let address = self.address;
        move || {
            let lines = format!("{}until listens; do usleep 20000; done\necho listening\nexit\n", listens(port));
            let mut said = String::new();
            let shell = Guest::shell_at(address, &lines);
            shell.and_then(|mut shell| shell.read_to_string(&mut said)).is_ok() && said.contains("listening")
        }
    }

    /// Run a program in the guest. What it said.
    fn run(&self, line: &str, log: &Path) -> Result<String, String> {
        let mut shell =
            self.shell(&format!("timeout 150 {line} 2>&1\nexit\n")).map_err(|e| format!("the guest's shell: {e}"))?;
        let mut said = String::new();
        let ended = shell.read_to_string(&mut said);
        let _ = fs::write(crate::run::with(log, "guest"), &said);
        ended.map_err(|e| format!("the guest's program does not end: {e}"))?;
        Ok(said)
    }

    /// Run a program in the guest as the client of a server of this host. What both said.
    pub fn visit(
        &self,
        line: &str,
        port: u16,
        log: &Path,
        server: impl FnOnce() -> Result<Running, String>,
    ) -> Result<(Finished, String), String> {
        let mut server = server()?;
        let started = Instant::now();
        while !super::pair::listens(port) {
            if server.ended().map_err(|e| e.to_string())? || started.elapsed() > LIMIT {
                let server = server.finish().map_err(|e| e.to_string())?;
                return Err(format!("the server does not listen: {}", server.verdict()));
            }
            sleep(Duration::from_millis(5));
        }
        let said = self.run(line, log)?;
        server.wait(Instant::now() + LIMIT).map_err(|e| e.to_string())?;
        Ok((server.finish().map_err(|e| e.to_string())?, said))
    }

    /// Run an `rping` in the guest as the client of `peer`. What both said.
    fn client(&mut self, terms: &str, size: usize, log: &Path) -> Result<(Finished, String), String> {
        let mut peer = Guest::peer(&["listen", "127.0.0.1:0", "rping"], terms, log)?;
        let out = crate::run::with(log, "out");
        let port = loop {
            let text = fs::read_to_string(&out).unwrap_or_default();
            let line = text.lines().find(|_| text.contains('\n'));
            if let Some(port) = line.and_then(|line| line.rsplit_once(':')).map(|(_, port)| port.to_owned()) {
                break port;
            }
            if peer.ended().map_err(|e| e.to_string())? {
                return Err(format!("peer does not listen: {text}"));
            }
            sleep(Duration::from_millis(5));
        };
        let host = Guest::HOST;
        let said = self.run(&format!("rping -c -a {host} -p {port} -V -v -S {size} -C 10"), log)?;
        peer.wait(Instant::now() + LIMIT).map_err(|e| e.to_string())?;
        Ok((peer.finish().map_err(|e| e.to_string())?, said))
    }
}

/// A function of the guest's shell that says whether something listens at the port.
fn listens(port: u16) -> String {
    format!("listens() {{ grep -q ':{port:04X} 00000000:0000 0A' /proc/net/tcp; }}\n")
}

impl Drop for Guest {
    fn drop(&mut self) {
        if let Ok(shell) = self.shell("poweroff -f\n") {
            let _ = shell.shutdown(Shutdown::Write);
        }
    }
}
