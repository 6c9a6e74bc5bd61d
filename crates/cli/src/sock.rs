//! `softrnic sock`: start a program whose TCP connections may move onto shared memory.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use ::sock::rules::{Family, Role, Rules};
use clap::Args;

use crate::elf::{self, Program};
use crate::out::say;
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
    /// Run nothing, but print which rules are about PROGRAM, as a server and as a client
    #[arg(long)]
    explain: bool,
    /// With --explain: print which rule decides for this address, a server's own or that a client connects to
    #[arg(long, value_name = "ADDRESS:PORT", requires = "explain")]
    address: Option<SocketAddr>,
    /// The library, instead of the libsoftrnic-sock.so beside this program
    #[arg(long, value_name = "PATH")]
    lib: Option<PathBuf>,
    /// The program, and what it gets on its command line
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM ARGS")]
    command: Vec<OsString>,
}

/// Replaces this process by the program, or explains the rules.
pub fn run(options: &Options) -> ExitCode {
    if options.explain {
        return match explain(options) {
            Ok(text) => {
                say!("{}", text.trim_end());
                ExitCode::SUCCESS
            }
            Err(message) => {
                eprintln!("softrnic: {message}");
                ExitCode::FAILURE
            }
        };
    }
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

fn explain(options: &Options) -> Result<String, String> {
    let program = options.command.first().and_then(|name| Path::new(name).file_name());
    let program = program.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let named = std::env::var_os(RULES_VARIABLE).filter(|file| !file.is_empty()).map(PathBuf::from);
    let Some(file) = options.rules.clone().or(named) else {
        return Ok(format!("no file of rules: every connection of {program} that can move does"));
    };
    let text = std::fs::read_to_string(&file)
        .map_err(|error| format!("cannot read the rules in {}: {error}", file.display()))?;
    let parsed = Rules::parse(&text);
    for complaint in parsed.warnings.iter().chain(&parsed.error) {
        eprintln!("softrnic: {}: {complaint}", file.display());
    }
    Ok(explanation(&text, &parsed.rules, &program, options.address))
}

/// What the rules say about a program, role by role: those with its name in their order, or, for an address, the one
/// that decides.
fn explanation(text: &str, rules: &Rules, program: &str, address: Option<SocketAddr>) -> String {
    let line = |number: usize| text.lines().nth(number - 1).unwrap_or_default().trim();
    let mut out = String::new();
    for (role, name) in [(Role::Server, "server"), (Role::Client, "client")] {
        if let Some(address) = address {
            let decision = rules.decide(role, program, address);
            let why = decision.line.map_or("no rule matches".to_owned(), |n| format!("line {n}: {}", line(n)));
            let _ = writeln!(out, "{program} as a {name}, {address}: {}; {why}", effect(decision.family));
            continue;
        }
        let _ = writeln!(out, "{program} as a {name}, the first that matches:");
        for rule in rules.of(role).iter().filter(|rule| rule.names(program)) {
            let _ = writeln!(out, "  {}; line {}: {}", effect(rule.family()), rule.line, line(rule.line));
        }
        let _ = writeln!(out, "  {}; no rule matches", effect(rules.unmatched()));
    }
    out
}

fn effect(family: Family) -> &'static str {
    match family {
        Family::Tcp => "TCP",
        Family::Sdp => "memory, else refused",
        Family::Both => "memory if it can, else TCP",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# comment\nuse tcp server nginx *:443\nuse both server ngin? *:*\nuse sdp client x *:*\n";

    #[test]
    fn an_explanation_names_the_rules_of_a_program_in_their_order() {
        let told = explanation(TEXT, &Rules::parse(TEXT).rules, "nginx", None);
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines[1], "  TCP; line 2: use tcp server nginx *:443");
        assert_eq!(lines[2], "  memory if it can, else TCP; line 3: use both server ngin? *:*");
        assert_eq!(lines[4..], ["nginx as a client, the first that matches:", lines[3]]);
        assert!(lines[3].ends_with("no rule matches"), "{told}");
        let told = explanation(TEXT, &Rules::parse(TEXT).rules, "x", None);
        assert!(told.contains("\n  memory, else refused; line 4: use sdp client x *:*\n"), "{told}");
        // No rules at all.
        let told = explanation("", &Rules::default(), "x", None);
        assert_eq!(told.matches("  memory, else refused; no rule matches\n").count(), 2, "{told}");
    }

    #[test]
    fn an_explanation_names_the_rule_that_decides_for_an_address() {
        let rules = Rules::parse(TEXT).rules;
        let told = |at: &str| explanation(TEXT, &rules, "nginx", Some(at.parse().unwrap()));
        assert!(told("10.0.0.1:443").starts_with("nginx as a server, 10.0.0.1:443: TCP; line 2: "));
        assert!(told("[::1]:80").contains("[::1]:80: memory if it can, else TCP; line 3: "));
        assert!(
            told("[::1]:80").ends_with("nginx as a client, [::1]:80: memory if it can, else TCP; no rule matches\n")
        );
    }
}
