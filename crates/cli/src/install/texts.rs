//! The texts that are installed: pkg-config files, man pages, completions.

use clap_complete::Shell;

use crate::{ddp_manual, dv_manual, exs_manual, hyperclient_manual, manual};

/// The version of rdma-core's libraries whose functions these have at least; the version of a host's own library is
/// better.
const VERSION: &str = "1.14.44.0";

/// A pkg-config file, which stays valid when its directory is moved.
pub fn pkg_config(name: &str, version: Option<&str>) -> String {
    let link = name.trim_start_matches("lib");
    let needs = if link == "rdmacm" { "Requires: libibverbs\n" } else { "" };
    format!(
        "prefix=${{pcfiledir}}/../..\n\
         libdir=${{prefix}}/lib\n\
         \n\
         Name: {name}\n\
         Description: softrnic's {name}, for use with the header files of rdma-core\n\
         Version: {}\n\
         {needs}\
         Libs: -L${{libdir}} -Wl,-rpath-link,${{libdir}} -l{link}\n\
         Cflags:\n",
        version.unwrap_or(VERSION)
    )
}

/// The pkg-config file of extended sockets.
pub fn exs_pkg_config() -> String {
    own_pkg_config("exs", "extended sockets (ES-API, UNH-EXS) on verbs")
}

/// The pkg-config file of group operations.
pub fn hyperclient_pkg_config() -> String {
    own_pkg_config("hyperclient", "group operations along a chain of replicas (HyperLoop)")
}

/// The pkg-config file of direct data placement.
pub fn ddp_pkg_config() -> String {
    own_pkg_config("softrnic-ddp", "direct data placement on TCP sockets (iWARP without verbs)")
}

/// The pkg-config file of a library with headers of its own.
fn own_pkg_config(name: &str, about: &str) -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\
         \n\
         Name: {name}\n\
         Description: {about}\n\
         Version: {}\n\
         Libs: -L${{libdir}} -l{name}\n\
         Cflags: -I${{includedir}}\n",
        env!("CARGO_PKG_VERSION")
    )
}

/// The paths below the prefix, and the contents of the files.
pub fn pages_and_completions() -> Result<Vec<(String, Vec<u8>)>, String> {
    let pages = manual::pages().map_err(|error| format!("cannot make the man pages: {error}"))?;
    let exs = exs_manual::pages().map_err(|error| format!("cannot make the man pages: {error}"))?;
    let hyperclient = hyperclient_manual::pages().map_err(|error| format!("cannot make the man pages: {error}"))?;
    let ddp = ddp_manual::pages().map_err(|error| format!("cannot make the man pages: {error}"))?;
    let dv = dv_manual::pages().map_err(|error| format!("cannot make the man pages: {error}"))?;
    let mut files: Vec<(String, Vec<u8>)> = pages
        .into_iter()
        .chain(exs)
        .chain(hyperclient)
        .chain(ddp)
        .chain(dv)
        .map(|page| (format!("share/man/man{}/{}", &page.file[page.file.len() - 1..], page.file), page.text))
        .collect();
    for (shell, path) in [
        (Shell::Bash, "share/bash-completion/completions/softrnic"),
        (Shell::Zsh, "share/zsh/site-functions/_softrnic"),
        (Shell::Fish, "share/fish/vendor_completions.d/softrnic.fish"),
    ] {
        files.push((path.to_owned(), completion(shell)));
    }
    Ok(files)
}

fn completion(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut manual::command_line(), "softrnic", &mut text);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completions_have_every_command_and_option() {
        let mut command = manual::command_line();
        command.build();
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let text = String::from_utf8(completion(shell)).unwrap();
            for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
                assert!(text.contains(sub.get_name()), "{shell}: {}", sub.get_name());
                for option in sub.get_arguments().filter_map(|arg| arg.get_long()) {
                    assert!(text.contains(option), "{shell}: {option}");
                }
            }
        }
    }

    #[test]
    fn the_page_of_the_rules_is_installed() {
        let installed = pages_and_completions().unwrap();
        assert!(installed.iter().any(|(path, _)| path == "share/man/man5/softrnic-sock.conf.5"));
    }

    #[test]
    fn pkg_config_files_need_each_other() {
        let text = pkg_config("librdmacm", Some("1.3.44.0"));
        assert!(text.contains("\nVersion: 1.3.44.0\nRequires: libibverbs\n"), "{text}");
        assert!(text.contains("-lrdmacm\n") && !pkg_config("libibverbs", None).contains("Requires"), "{text}");
    }
}
