//! A sandbox from which an ordinary user can run the device: a folder under the temporary directory with the program
//! and its library, because a checkout may lie where only its owner can read it.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::run::{Program, find};
use crate::{logs, target_dir};

use super::pair::Around;

/// The number of the user `nobody`, which owns nothing.
const NOBODY: u32 = 65534;

/// The command that runs another one where /dev/shm has no room at all.
const FULL_SHM: &[&str] = &[
    "unshare",
    "--user",
    "--map-root-user",
    "--mount",
    "sh",
    "-c",
    "mount -t tmpfs -o size=4k none /dev/shm && head -c 4096 /dev/zero >/dev/shm/full && exec \"$@\"",
    "sh",
];

/// The command that runs another one in other user and process namespaces.
const NAMESPACES: &[&str] = &["unshare", "--user", "--map-root-user", "--pid", "--fork"];

#[derive(Debug)]
pub struct Sandbox {
    dir: PathBuf,
    /// The command that runs another one as the ordinary user, and ends it when this process ends.
    prefix: Vec<String>,
    settings: Vec<(String, String)>,
    logs: PathBuf,
    clock: OnceLock<Result<PathBuf, String>>,
}

impl Sandbox {
    /// Make the folder. `settings` are environment variables for every program; `name` is the folder of the logs.
    pub fn new(name: &str, settings: &[(&str, &str)]) -> Result<Self, String> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("softrnic-interop-{}-{number}", std::process::id()));
        let root = rustix::process::geteuid().is_root();
        let sandbox = Self {
            dir,
            prefix: as_user(),
            settings: settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            logs: logs().join(name),
            clock: OnceLock::new(),
        };
        sandbox.fill(root)?;
        Ok(sandbox)
    }

    fn fill(&self, root: bool) -> Result<(), String> {
        let release = target_dir().join("release");
        if find("setpriv").is_none() {
            return Err("setpriv is missing (package util-linux)".to_owned());
        }
        for folder in [&self.dir, &self.home()] {
            fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
            allow(folder)?;
        }
        for file in ["softrnic", "libsoftrnic.so"] {
            copy(&release.join(file), &self.dir.join(file))
                .map_err(|e| format!("{e} (cargo build --release makes it)"))?;
        }
        for (built, name) in [
            ("libsoftrnic_exs.so", "libexs.so"),
            ("libsoftrnic_hyperclient.so", "libhyperclient.so"),
            ("libsoftrnic_ddp.so", "libsoftrnic-ddp.so"),
        ] {
            copy(&release.join(built), &self.dir.join(name))
                .map_err(|e| format!("{e} (cargo build --release makes it)"))?;
        }
        copy(&crate::root().join("interop/forbid.py"), &self.dir.join("forbid.py"))?;
        if root {
            // ibv_xsrq_pingpong's file, under a fixed name. If root made it, no other user can open it.
            let _ = fs::remove_file("/tmp/xrc_domain");
        }
        give(&self.home())
    }

    /// The command that runs another one as the ordinary user.
    pub fn user(&self) -> &[String] {
        &self.prefix
    }

    /// A library to preload into perftest, which then measures the processor's clock in a tenth of the time
    /// (`interop/quick-clock`). It is compiled when it is wanted first.
    pub fn quick_clock(&self) -> io::Result<&Path> {
        let made = self.clock.get_or_init(|| {
            let library = self.dir.join("quick-clock.so");
            let done = Program::new("gcc", self.logs.join("quick-clock.gcc"))
                .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-shared", "-fPIC", "-o"])
                .args([&library, &crate::root().join("interop/quick-clock/clock.c")])
                .run(Duration::from_secs(60))
                .map_err(|e| e.to_string())?;
            if !done.ok() {
                return Err(format!("interop/quick-clock does not compile: {}", done.verdict()));
            }
            allow(&library)?;
            Ok(library)
        });
        made.as_deref().map_err(|why| io::Error::other(why.clone()))
    }

    /// The folder where the user may write.
    pub fn home(&self) -> PathBuf {
        self.dir.join("home")
    }

    /// A folder that the user can read, for files that a suite brings along.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// `softrnic run -- PROGRAM ARGS`.
    pub fn program<S: AsRef<OsStr>>(&self, log: &str, program: &str, args: &[S]) -> Program {
        self.program_in(Around::Plain, log, program, args)
    }

    /// `softrnic run -- PROGRAM ARGS`, in surroundings that forbid something.
    pub fn program_in<S: AsRef<OsStr>>(&self, around: Around, log: &str, program: &str, args: &[S]) -> Program {
        self.program_with(around, &[], log, program, args)
    }

    /// `softrnic run OPTIONS -- PROGRAM ARGS`, in surroundings that forbid something.
    pub fn program_with<S: AsRef<OsStr>>(
        &self,
        around: Around,
        options: &[&str],
        log: &str,
        program: &str,
        args: &[S],
    ) -> Program {
        let forbid = self.dir.join("forbid.py").display().to_string();
        let wrapper = match around {
            Around::Plain => vec![],
            Around::Namespaces => NAMESPACES.to_vec(),
            Around::FullShm => FULL_SHM.to_vec(),
            Around::NoProcessVm => vec!["/usr/bin/python3", &forbid],
            Around::Directory => {
                return self.alone(log, program, args).env("LD_LIBRARY_PATH", self.installed().join("lib"));
            }
        };
        self.command(&wrapper, log)
            .args([self.dir.join("softrnic")])
            .args(["run"])
            .args(options)
            .args(["--", program])
            .args(args)
    }

    /// The folder where [`Sandbox::install`] installs.
    pub fn installed(&self) -> PathBuf {
        self.home().join("installed")
    }

    /// `softrnic install`, for [`Around::Directory`].
    pub fn install(&self, log: &str) -> Program {
        self.softrnic(log, &["install", "--prefix", &self.installed().display().to_string()])
    }

    /// True if the user may make the namespaces of [`Around::Namespaces`].
    pub fn may_have_namespaces(&self) -> bool {
        self.may_be(NAMESPACES)
    }

    /// True if the user may have the file system that [`Around::FullShm`] needs.
    pub fn may_fill_shm(&self) -> bool {
        self.may_be(FULL_SHM)
    }

    fn may_be(&self, wrapper: &[&str]) -> bool {
        let program = self.command(wrapper, "namespaces").args(["true"]);
        program.run(Duration::from_secs(20)).is_ok_and(|done| done.ok())
    }

    /// `softrnic ARGS`.
    pub fn softrnic(&self, log: &str, args: &[&str]) -> Program {
        self.command(&[], log).args([self.dir.join("softrnic")]).args(args)
    }

    /// `PROGRAM ARGS`, as the same user, without the device.
    pub fn alone<S: AsRef<OsStr>>(&self, log: &str, program: &str, args: &[S]) -> Program {
        self.command(&[], log).args([program]).args(args)
    }

    /// `softrnic run OPTIONS -- LINE` as the user, by a command that runs it elsewhere.
    pub fn elsewhere(&self, words: &[String], log: &str, options: &[&str], line: &str) -> Program {
        let made = Program::new(&words[0], self.logs.join(log)).args(&words[1..]).args(&self.prefix);
        let made = made.args([self.dir.join("softrnic")]).args(["run"]).args(options).args(["--"]);
        self.surround(made).args(line.split_whitespace())
    }

    fn command(&self, wrapper: &[&str], log: &str) -> Program {
        let made = Program::new(&self.prefix[0], self.logs.join(log)).args(&self.prefix[1..]).args(wrapper);
        self.surround(made)
    }

    /// Sets what a program of the user finds around it.
    fn surround(&self, made: Program) -> Program {
        let mut made = made
            .env("HOME", self.home())
            .env("TMPDIR", self.home())
            // This is cargo's, for its own children: a user's programs do not have it.
            .without("LD_LIBRARY_PATH")
            .dir(self.home());
        for (key, value) in &self.settings {
            made = made.env(key, value);
        }
        made
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// The command that runs another one as the ordinary user, and ends it when this process ends.
pub fn as_user() -> Vec<String> {
    let mut prefix = vec!["setpriv".to_owned(), "--pdeathsig".into(), "KILL".into()];
    if rustix::process::geteuid().is_root() {
        let user = NOBODY.to_string();
        prefix.extend(["--reuid", &user, "--regid", &user, "--clear-groups"].map(str::to_owned));
    }
    prefix
}

/// Copy a file, readable for everyone.
pub fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::copy(from, to).map_err(|e| format!("{}: {e}", from.display()))?;
    allow(to)
}

/// Make the ordinary user its owner.
pub fn give(path: &Path) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    chown(path, Some(NOBODY), Some(NOBODY)).map_err(|e| format!("{}: {e}", path.display()))
}

/// Make a file readable for everyone, whatever the umask is.
pub fn allow(path: &Path) -> Result<(), String> {
    fs::set_permissions(path, Permissions::from_mode(0o755)).map_err(|e| format!("{}: {e}", path.display()))
}
