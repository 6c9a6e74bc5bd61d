//! `softrnic run`: start a program with the library preloaded.

use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;
use report::settings::variable;
use report::{Devices, Settings};
use rustix::process::{getegid, geteuid};
use taps::pcap::Prepared;

use crate::elf::{self, Elf, Program};
use crate::{follow, locate};

/// The exit statuses of env(1) and timeout(1).
const REFUSED: u8 = 125;
const CANNOT_RUN: u8 = 126;
const NOT_FOUND: u8 = 127;

/// Options of the command.
#[derive(Args)]
pub struct Options {
    /// Move all data through shared memory, never directly from process to process
    #[arg(long)]
    no_single_copy: bool,
    /// Move the memory that the program registers, where it is, into memory that its peers map too: RDMA WRITE, READ,
    /// atomics and large messages then need no system call (see docs/migrate.md for what a program could notice)
    #[arg(long, conflicts_with = "no_single_copy")]
    migrate: bool,
    /// Let any process of this user copy from and to the program's memory, where /proc/sys/kernel/yama/ptrace_scope is
    /// 1: large messages then take one copy instead of two. Both programs need it
    #[arg(long)]
    permit_ptrace: bool,
    /// What the device tells on stderr beyond what keeps it from peers: nothing at all (off), or which request failed
    /// and which rule it broke (error)
    #[arg(long, value_name = "LEVEL", value_parser = ["off", "error"])]
    log: Option<String>,
    /// Faults to be met by the program: for instance "drop:n=100;delay:t=5ms,p=0.1;seed=42"
    ///
    /// What there is, and how to say when, is described below. Every fault that happens is told on stderr, of slow
    /// packets the first and their number, and at the end what has not happened. Without seed=N a seed is chosen, and
    /// told.
    #[arg(long, value_name = "SPEC", value_parser = faults)]
    fault: Option<String>,
    /// The library, instead of the libsoftrnic.so beside this program
    #[arg(long, value_name = "PATH")]
    lib: Option<PathBuf>,
    /// What the device's port is: Ethernet (RoCE), or InfiniBand, with a LID and addresses without a GRH. Programs that
    /// talk to each other need the same
    #[arg(long, value_name = "LAYER", value_parser = ["ethernet", "infiniband"])]
    link_layer: Option<String>,
    /// The device: softrnic0 (roce), whose peers are processes of this host; softiw0 (iwarp), whose connections are
    /// TCP connections, also to other hosts; or both (all): librdmacm takes softiw0 for peers on other hosts. Programs
    /// that talk to each other need a device in common
    #[arg(long, value_name = "DEVICE", value_parser = ["roce", "iwarp", "all"], conflicts_with = "link_layer")]
    device: Option<String>,
    /// Keep the host's RDMA adapters visible beside softrnic0; librdmacm's functions use softrnic0 only
    #[arg(long)]
    with_hardware: bool,
    /// Write every packet to FILE, for Wireshark (pcapng); -: to the standard output, and the program's own to its
    /// standard error
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Of each packet keep no more than so many bytes; 0: all
    #[arg(long, value_name = "BYTES", requires = "pcap")]
    snaplen: Option<u32>,
    /// The program, and what it gets on its command line
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM ARGS")]
    command: Vec<OsString>,
}

/// A refusal: the exit status and the message.
pub struct Refusal(u8, String);

impl Refusal {
    /// What became of exec(2).
    pub fn cannot_run(program: &Path, error: &std::io::Error) -> Self {
        let status = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { CANNOT_RUN };
        Refusal(status, format!("cannot run {}: {error}", program.display()))
    }

    /// Says it.
    pub fn tell(&self) -> ExitCode {
        eprintln!("softrnic: {}", self.1);
        ExitCode::from(self.0)
    }
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Refusal(REFUSED, message)
    }
}

/// Replace this process by the program.
pub fn run(options: &Options) -> ExitCode {
    let Err(refusal) = start(options);
    refusal.tell()
}

fn start(options: &Options) -> Result<std::convert::Infallible, Refusal> {
    let library = locate::library(options.lib.as_deref())?;
    let (name, args) = options.command.split_first().expect("clap demands one");
    let program = find(name)?;
    check(&program, &library)?;
    let mut command = Command::new(&program);
    command.arg0(name).args(args).env("LD_PRELOAD", preload(&library)?);
    if options.no_single_copy {
        command.env(variable::SINGLE_COPY, "0");
    }
    if options.migrate {
        command.env(variable::MIGRATE, "1");
    }
    if options.permit_ptrace {
        command.env(variable::PERMIT_PTRACE, "1");
    }
    if let Some(spec) = &options.fault {
        command.env(variable::FAULT, spec);
    }
    if let Some(level) = &options.log {
        command.env(variable::LOG, level);
    }
    if let Some(layer) = &options.link_layer {
        command.env(variable::LINK_LAYER, layer);
    }
    if let Some(device) = &options.device {
        command.env(variable::DEVICE, device);
    }
    match view(options) {
        Ok(view) => {
            for (name, value) in sanitizers(&view, |name| std::env::var_os(name)) {
                command.env(name, value);
            }
            command.env(variable::VIEW, view);
        }
        // Verbs need no files: only programs that look into /sys themselves, and sanitizers' suppressions, miss
        // something.
        Err(error) => eprintln!(
            "softrnic: warning: {error}. Programs that look into /sys/class/infiniband themselves will not see \
             softrnic0 there; set TMPDIR to a directory that can be written"
        ),
    }
    if options.with_hardware {
        command.env(variable::WITH_HARDWARE, "1");
    }
    if let Some(file) = &options.pcap {
        command.env(variable::PCAP, capture(file)?);
        if file == Path::new("-") {
            let stderr = std::io::stderr().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
            command.stdout(stderr);
        }
    }
    if let Some(bytes) = options.snaplen {
        command.env(variable::PCAP_SNAPLEN, bytes.to_string());
    }
    let error = command.exec();
    Err(Refusal::cannot_run(&program, &error))
}

/// A valid fault specification, with a seed that all processes have in common.
fn faults(text: &str) -> Result<String, taps::fault::ParseError> {
    let spec: taps::fault::spec::Spec = text.parse()?;
    Ok(match spec.seed {
        Some(_) => text.to_owned(),
        None => format!("{};seed={}", text.trim_end().trim_end_matches(';'), rand()),
    })
}

/// A seed of few digits, because a user is to type it.
pub fn rand() -> u32 {
    let mut bytes = [0u8; 4];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(4) => u32::from_ne_bytes(bytes),
        _ => std::process::id(),
    }
}

/// The options of sanitizers with which programs run beside the library. They are added to the user's own: in front of
/// these where the user's have precedence, for the last one wins. The library sets them as well. A runtime that is
/// linked in statically, or a program with options of its own, reads only these variables.
fn sanitizers(view: &Path, set: impl Fn(&str) -> Option<OsString>) -> Vec<(&'static str, OsString)> {
    let add = |name: &'static str, option: OsString| {
        let before = set(name).filter(|before| !before.is_empty());
        let value = match before {
            Some(before) => [option.as_os_str(), OsStr::new(":"), &before].into_iter().collect(),
            None => option,
        };
        (name, value)
    };
    let suppressions = [OsStr::new("suppressions="), view.join(view::TSAN_FILE).as_os_str()].into_iter().collect();
    vec![
        add("ASAN_OPTIONS", view::ASAN_OPTION.to_string_lossy().into_owned().into()),
        add("TSAN_OPTIONS", suppressions),
    ]
}

/// Make the files that the program finds in /sys and /dev.
fn view(options: &Options) -> Result<PathBuf, String> {
    let settings = Settings::of_process();
    let link_layer = match options.link_layer.as_deref() {
        Some(report::settings::INFINIBAND) => view::port::infiniband(),
        Some(_) => verbs::LinkLayer::Ethernet,
        None => view::port::link_layer(settings),
    };
    let devices = match options.device.as_deref() {
        Some(text) => Devices::of_text(Some(text)),
        None => settings.devices,
    };
    let infos = view::tree::ViewInfo::of(devices, link_layer, options.with_hardware || settings.with_hardware);
    view::place::make(&infos, settings).map_err(|error| {
        format!(
            "cannot make the files for /sys/class/infiniband in XDG_RUNTIME_DIR, TMPDIR, /tmp, /dev/shm or \
            /var/tmp: {error}"
        )
    })
}

/// Make the capture file; the result is the name that is valid in every directory. A pipe gets a copy of the file.
fn capture(file: &Path) -> Result<PathBuf, String> {
    if file == Path::new("-") {
        return follow::start(None);
    }
    let refuse = |error: std::io::Error| format!("cannot write packets to {}: {error}", file.display());
    match taps::pcap::prepare(file).map_err(refuse)? {
        Prepared::Empty | Prepared::InUse => std::path::absolute(file).map_err(refuse),
        Prepared::Stream => follow::start(Some(file)),
    }
}

/// LD_PRELOAD with the library in front of what is there already.
pub fn preload(library: &Path) -> Result<OsString, String> {
    let bytes = library.as_os_str().as_encoded_bytes();
    if bytes.iter().any(|byte| b" \t\n:".contains(byte)) {
        return Err(format!(
            "LD_PRELOAD cannot hold the path {}: it has a space or a colon. Copy the library elsewhere and name it \
             with --lib PATH",
            library.display()
        ));
    }
    let mut value = library.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        let others: Vec<&OsStr> = split(&others).filter(|other| *other != library.as_os_str()).collect();
        for other in others {
            value.push(":");
            value.push(other);
        }
    }
    Ok(value)
}

/// The entries of an LD_PRELOAD.
fn split(list: &OsStr) -> impl Iterator<Item = &OsStr> {
    use std::os::unix::ffi::OsStrExt;
    list.as_bytes().split(|byte| b" :".contains(byte)).filter(|part| !part.is_empty()).map(OsStr::from_bytes)
}

/// Find the program as execvp(3) does, so that the errors can name more.
pub fn find(name: &OsStr) -> Result<PathBuf, Refusal> {
    if name.as_encoded_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match path.metadata() {
            Ok(meta) if meta.is_dir() => Err(Refusal(CANNOT_RUN, format!("{} is a directory", path.display()))),
            Ok(_) if !executable(&path) => {
                Err(Refusal(CANNOT_RUN, format!("{0} is not executable (chmod +x {0})", path.display())))
            }
            Ok(_) => Ok(path),
            Err(error) => Err(Refusal(NOT_FOUND, format!("{}: {error}", path.display()))),
        };
    }
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&search).map(|dir| dir.join(name)).find(|path| path.is_file() && executable(path)).ok_or_else(
        || {
            let name = name.display();
            Refusal(NOT_FOUND, format!("there is no program {name} in PATH; for one in this directory write ./{name}"))
        },
    )
}

fn executable(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Refuse programs in which the library could have no effect; without a message the device would look broken.
fn check(program: &Path, library: &Path) -> Result<(), Refusal> {
    let mut file = program.to_owned();
    // Scripts may be nested; the kernel follows four levels.
    for _ in 0..4 {
        match elf::inspect(&file) {
            // The kernel ignores a script's setuid bit.
            Ok(Program::Script(interpreter)) => file = PathBuf::from(interpreter),
            Ok(Program::Elf(found)) => return privileged(&file).and_then(|()| fits(program, &file, &found, library)),
            // The kernel reports the error, or knows more formats; unreadable programs can be run.
            Ok(Program::Other) | Err(_) => return privileged(&file),
        }
    }
    Ok(())
}

/// Refuse a program file that is not for this machine, or loads no libraries. `file` is the program, or the interpreter
/// of a script.
fn fits(program: &Path, file: &Path, found: &Elf, library: &Path) -> Result<(), Refusal> {
    let name = match program == file {
        true => file.display().to_string(),
        false => format!("{}, the interpreter of {},", file.display(), program.display()),
    };
    if let Ok(Program::Elf(ours)) = elf::inspect(library)
        && ours.target != found.target
    {
        let message = format!(
            "{name} was built for {}, and {} for {}; build softrnic for that target and name its library with --lib \
             PATH",
            found.target,
            library.display(),
            ours.target
        );
        return Err(Refusal(REFUSED, message));
    }
    if found.is_for_musl() {
        let message = format!(
            "{name} is linked to the C library musl, and {} to glibc: one process cannot hold both. Run a program \
             that was built for glibc",
            library.display()
        );
        return Err(Refusal(REFUSED, message));
    }
    if !found.is_dynamic() {
        let what = match (program == file, elf::contains_libibverbs(file)) {
            (false, _) => "Run the script with another interpreter, one that is dynamically linked",
            (true, true) => {
                "It has its own copy of libibverbs, which nothing can replace. Link it again dynamically, with \
                 -libverbs instead of libibverbs.a and without -static"
            }
            (true, false) => "Link it dynamically, against libibverbs, without -static",
        };
        let message =
            format!("{name} is statically linked: it loads no libraries, so it cannot be given a device. {what}");
        return Err(Refusal(REFUSED, message));
    }
    let linked = found.needed.iter().any(|name| name.starts_with("libibverbs.so"));
    if !linked && elf::contains_libibverbs(file) {
        eprintln!(
            "softrnic: warning: {name} has its own copy of libibverbs linked in, which cannot be replaced: it will \
             not see softrnic0. Link it with -libverbs instead of libibverbs.a"
        );
    }
    Ok(())
}

/// Refuse programs that change their privileges at the start: they ignore LD_PRELOAD (ld.so(8), secure-execution mode).
fn privileged(file: &Path) -> Result<(), Refusal> {
    const SETUID: u32 = 0o4000;
    const SETGID: u32 = 0o2010; // without group execution the bit means something else
    let Ok(meta) = file.metadata() else { return Ok(()) };
    let changes_user = meta.mode() & SETUID != 0 && meta.uid() != geteuid().as_raw();
    let changes_group = meta.mode() & SETGID == SETGID && meta.gid() != getegid().as_raw();
    let has_capabilities = !geteuid().is_root() && {
        let mut value = [0u8; 64];
        rustix::fs::getxattr(file, "security.capability", &mut value[..]).is_ok_and(|len| len > 0)
    };
    let why = match (changes_user, changes_group, has_capabilities) {
        (true, _, _) => "is setuid",
        (_, true, _) => "is setgid",
        (_, _, true) => "has file capabilities",
        _ => return Ok(()),
    };
    let name = file.display();
    let message = format!(
        "{name} {why}, so the system ignores LD_PRELOAD for it. Run a copy without that (cp {name} . makes one), or \
         run softrnic as the user that it changes to"
    );
    Err(Refusal(REFUSED, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preload_lists_split_at_spaces_and_colons() {
        let parts: Vec<&OsStr> = split(OsStr::new("a.so: b.so  c.so:")).collect();
        assert_eq!(parts, ["a.so", "b.so", "c.so"]);
    }

    #[test]
    fn faults_are_checked_and_get_a_seed() {
        assert_eq!(faults("drop:n=3;seed=7").as_deref(), Ok("drop:n=3;seed=7"));
        let chosen = faults("drop:n=3; ").expect("a specification");
        assert!(chosen.starts_with("drop:n=3;seed="), "{chosen}");
        assert!(chosen.parse::<taps::fault::spec::Spec>().is_ok_and(|spec| spec.seed.is_some()), "{chosen}");
        assert!(faults("drop:m=3").is_err_and(|error| error.to_string().contains("character 6")));
    }

    #[test]
    fn paths_that_ld_preload_cannot_hold_are_refused() {
        assert!(preload(Path::new("/a dir/lib.so")).is_err());
        assert!(preload(Path::new("/a:b/lib.so")).is_err());
        assert!(preload(Path::new("/a/lib.so")).is_ok());
    }

    #[test]
    fn options_of_sanitizers_are_added_to_the_users() {
        let user = |name: &str| (name == "ASAN_OPTIONS").then(|| "detect_leaks=0".into());
        let set = sanitizers(Path::new("/view"), user);
        let asan = OsString::from("verify_asan_link_order=0:detect_leaks=0");
        assert_eq!(set, [("ASAN_OPTIONS", asan), ("TSAN_OPTIONS", "suppressions=/view/tsan.supp".into())]);
    }

    #[test]
    fn programs_are_found_in_path() {
        assert!(find(OsStr::new("sh")).is_ok());
        assert!(matches!(find(OsStr::new("no-such-program-here")), Err(Refusal(NOT_FOUND, _))));
        assert!(matches!(find(OsStr::new("/")), Err(Refusal(CANNOT_RUN, _))));
        assert!(matches!(find(OsStr::new("/no/such")), Err(Refusal(NOT_FOUND, _))));
    }
}
