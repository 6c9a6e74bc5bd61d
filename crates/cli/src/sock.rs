//! `softrnic sock`: start a program whose TCP connections may move onto shared memory.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ::sock::rules::Rules;
use clap::Args;

use crate::elf::{self, Program};
use crate::{locate, run};

/// libsdp's variable, which the library reads.
const RULES_VARIABLE: &str = "LIBSDP_CONFIG_FILE";

/// Options of the command.
#[derive(Args)]
pub struct Options {
    /// Which connections may move: a file in libsdp's grammar, described below. Without it, and without
    /// LIBSDP_CONFIG_FILE, all that can
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// The library, instead of the libsoftrnic-sock.so beside this program
    #[arg(long, value_name = "PATH")]
    lib: Option<PathBuf>,
    /// The program, and what it gets on its command line
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM ARGS")]
    command: Vec<OsString>,
}

/// Replaces this process by the program.
pub fn run(options: &Options) -> ExitCode {
    let Err(refusal) = start(options);
    refusal.tell()
}

fn start(options: &Options) -> Result<std::convert::Infallible, run::Refusal> {
    let library = locate::sock_library(options.lib.as_deref())?;
    let (name, args) = options.command.split_first().expect("clap demands one");
    let program = run::find(name)?;
    if let Ok(Program::Elf(found)) = elf::inspect(&program)
        && !found.is_dynamic()
    {
        eprintln!("softrnic: warning: {} is statically linked: its connections stay with TCP", program.display());
    }
    let mut command = Command::new(&program);
    command.arg0(name).args(args).env("LD_PRELOAD", run::preload(&library)?);
    if let Some(file) = &options.rules {
        command.env(RULES_VARIABLE, rules(file)?);
    }
    let error = command.exec();
    Err(run::Refusal::cannot_run(&program, &error))
}

/// Looks the file through, and gives the name that holds in every directory.
fn rules(file: &Path) -> Result<PathBuf, String> {
    let refuse = |error: std::io::Error| format!("cannot read the rules in {}: {error}", file.display());
    let text = std::fs::read_to_string(file).map_err(refuse)?;
    let parsed = Rules::parse(&text);
    for warning in &parsed.warnings {
        eprintln!("softrnic: warning: {}: {warning}", file.display());
    }
    // The program will say so itself, and go by the rules before it, as with libsdp.
    std::path::absolute(file).map_err(refuse)
}
