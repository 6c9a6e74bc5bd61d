//! The calls of TCP programs, one after the other, by programs in C (`c/descriptors.c`, `c/waits.c`, `c/rare.c`,
//! `c/signals.c`, `c/sleepers.c`, `c/surroundings.c`). Each pair runs with the library in both programs, in one and in
//! none, so that what the programs check is what plain TCP does.

mod pairs;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use pairs::{BOTH, PAIRS, With, finish, library, port};

/// A compiled program, which is gone at the end.
struct Program {
    path: PathBuf,
    alone: Option<PathBuf>,
}

fn compile(name: &str, flags: &[&str], what: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(format!("{name}.c"));
    let program = std::env::temp_dir().join(format!("softrnic-{name}-{what}-{}", std::process::id()));
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(compiler);
    command.args(["-O1", "-Wall", "-Werror", "-pthread"]).args(flags).arg("-o").arg(&program).arg(source);
    assert!(command.status().unwrap().success(), "the compiler");
    program
}

impl Program {
    fn new(name: &str, what: &str) -> Program {
        Program { path: compile(name, &[], what), alone: None }
    }

    /// With a second one that has all of the C library in itself.
    fn with_static(name: &str, what: &str) -> Program {
        let alone = compile(name, &["-static"], &format!("{what}-static"));
        Program { path: compile(name, &[], what), alone: Some(alone) }
    }

    fn start(&self, role: &str, argument: &str, moves: bool, with_library: bool) -> Child {
        self.start_limited(role, argument, if moves { "moves" } else { "stays" }, with_library, "nothing")
    }

    fn start_limited(&self, role: &str, argument: &str, moves: &str, with_library: bool, limit: &str) -> Child {
        let mut command = Command::new(&self.path);
        command.args([role, argument, moves]).env("SOFTRNIC_TEST_LIMIT", limit);
        command.env("SOFTRNIC_TEST_SELF", &self.path);
        if let Some(alone) = &self.alone {
            command.env("SOFTRNIC_TEST_STATIC", alone);
        }
        if with_library {
            command.env("LD_PRELOAD", library());
        }
        command.stdout(Stdio::piped()).spawn().unwrap()
    }

    fn run(&self, server: &str, count: u32, client: &str, with: With) {
        let sides = format!("{client}, server {}, client {}", with.server, with.client);
        let mut one = self.start(server, &count.to_string(), with == BOTH, with.server);
        let mut two = self.start(client, &port(&mut one), with == BOTH, with.client);
        let status = finish(&mut two, &sides);
        assert!(status.success(), "{sides}: {status}");
        let status = finish(&mut one, &format!("the server of {sides}"));
        assert!(status.success(), "the server of {sides}: {status}");
    }

    /// Both have the library, and one or both of them may not do all. `moves`: whether bytes must go by memory, must
    /// not, or either.
    fn limited(&self, server: &str, client: &str, moves: &str) {
        let sides = format!("server without {server}, client without {client}");
        let mut one = self.start_limited("serve", "", moves, true, server);
        let mut two = self.start_limited("talks", &port(&mut one), moves, true, client);
        assert!(finish(&mut two, &sides).success(), "{sides}");
        assert!(finish(&mut one, &sides).success(), "the server of {sides}");
    }

    /// All pairs.
    fn pairs(&self, server: &str, count: u32, client: &str) {
        PAIRS.into_iter().for_each(|with| self.run(server, count, client, with));
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        for path in self.alone.iter().chain([&self.path]) {
            let _ = std::fs::remove_file(path);
        }
    }
}

#[test]
fn a_child_of_vfork_leaves_a_connection_as_it_is_or_hands_it_to_a_program() {
    let program = Program::new("descriptors", "vfork");
    for client in ["vfork-exec", "vfork-closed"] {
        program.pairs("echo", 1, client);
    }
}

#[test]
fn programs_without_the_library_go_on_with_a_connection() {
    let program = Program::with_static("descriptors", "exec");
    for client in ["exec-unset", "exec-static", "exec-self"] {
        program.pairs("echo", 1, client);
    }
}

#[test]
fn programs_are_spawned_with_connections_as_the_actions_say() {
    Program::new("descriptors", "spawn").pairs("many", 3, "spawn-actions");
}

#[test]
fn ranges_of_descriptors_are_closed_and_the_others_go_on() {
    Program::new("descriptors", "ranges").pairs("many", 4, "ranges");
}

#[test]
fn descriptors_of_the_library_are_none_of_the_program() {
    Program::new("descriptors", "numbers").pairs("many", 1, "strange-numbers");
}

#[test]
fn dup3_closes_the_connection_whose_number_it_takes() {
    Program::new("descriptors", "dup3").pairs("many", 2, "dup3-over");
}

#[test]
fn a_descriptor_that_a_process_gets_by_its_own_pidfd_is_a_copy() {
    Program::new("descriptors", "pidfd").pairs("echo", 1, "by-pidfd");
}

#[test]
fn streams_of_stdio_read_and_write_connections() {
    let program = Program::new("descriptors", "stdio");
    program.pairs("hears", 1, "stdio");
    program.pairs("echo", 1, "stdio-pair");
}

#[test]
fn so_rcvlowat_says_what_is_readable_whenever_it_is_set() {
    let program = Program::new("waits", "low-water");
    program.pairs("echo", 1, "low-water");
    program.pairs("echo", 1, "low-water-first");
    program.pairs("low-water-server", 1, "answers");
}

#[test]
fn so_linger_resets_at_once_or_sends_all() {
    let program = Program::new("waits", "linger");
    program.pairs("sees-reset", 1, "linger-none");
    program.pairs("counts", 1, "linger-long");
}

#[test]
fn calls_end_when_their_time_is_over() {
    let program = Program::new("waits", "limits");
    program.pairs("deaf", 1, "time-limits");
    program.pairs("echo", 1, "waits-all");
}

#[test]
fn masks_let_signals_through_while_a_call_waits() {
    Program::new("waits", "masks").pairs("echo", 1, "masks");
}

#[test]
fn sets_in_sets_and_exclusive_ones_tell_of_connections() {
    let program = Program::new("waits", "sets");
    program.pairs("many", 2, "exclusive");
    program.pairs("many", 2, "nested");
    program.pairs("echo", 1, "polled");
}

#[test]
fn threads_that_sleep_in_a_set_before_it_has_connections_are_told_of_these() {
    let program = Program::new("sleepers", "sleepers");
    program.pairs("echo", 1, "moved-before");
    program.pairs("echo", 1, "moved-inside");
    program.pairs("many", 2, "several");
}

#[test]
fn an_edge_that_comes_during_a_look_is_told() {
    Program::new("sleepers", "edges").pairs("echo", 1, "edges");
}

#[test]
fn urgent_data_are_received_at_their_place() {
    Program::new("waits", "urgent").pairs("hears-urgent", 1, "urgent");
}

#[test]
fn reads_go_on_behind_urgent_data() {
    Program::new("rare", "past").pairs("reads-past", 1, "sends-urgent");
}

#[test]
fn calls_go_on_where_malloc_has_no_memory_left() {
    Program::new("rare", "heap").pairs("echo", 1, "no-heap");
}

#[test]
fn looks_with_an_offset_and_signals_for_bytes_are_those_of_tcp() {
    let program = Program::new("rare", "rare");
    program.pairs("echo", 1, "peek-off");
    program.pairs("many", 2, "async");
}

#[test]
fn an_end_does_not_wait_long_for_one_without_the_library() {
    Program::new("waits", "gives-up").pairs("echo", 1, "gives-up");
}

#[test]
fn pointers_to_nothing_are_refused() {
    Program::new("waits", "nowhere").pairs("echo", 1, "nowhere");
}

#[test]
fn calls_go_on_behind_a_signal_or_end_as_the_handler_says() {
    let program = Program::new("signals", "signals");
    program.pairs("echo", 1, "restarts");
    program.pairs("deaf", 1, "sends");
}

/// Limits with which there can be no memory, whoever has them.
const NO_MEMORY: [&str; 6] = ["shared memory", "unix sockets", "memory", "descriptors", "madvise", "ioctl"];
/// Limits of which one at one end may leave the other end to do it.
const HALF: [&str; 9] =
    ["memfd_create", "eventfd2", "ftruncate", "sendmsg", "recvmsg", "bind", "listen", "accept4", "readlink"];

#[test]
fn what_may_not_be_done_leaves_connections_to_tcp_and_nothing_hangs() {
    let program = Program::new("surroundings", "limits");
    program.limited("nothing", "nothing", "moves");
    for limit in NO_MEMORY {
        program.limited(limit, "nothing", "stays");
        program.limited("nothing", limit, "stays");
        program.limited(limit, limit, "stays");
    }
    for limit in HALF {
        program.limited(limit, "nothing", "any");
        program.limited("nothing", limit, "any");
        program.limited(limit, limit, "stays");
    }
    for limit in ["file size", "memory-early", "getsockopt"] {
        program.limited(limit, "nothing", "any");
        program.limited("nothing", limit, "any");
        program.limited(limit, limit, "any");
    }
}

#[test]
fn other_users_and_namespaces_leave_connections_to_tcp() {
    // SAFETY: no pointers.
    if unsafe { libc::geteuid() } != 0 {
        // Only root can become another user, and make all namespaces.
        return;
    }
    let program = Program::new("surroundings", "others");
    for limit in ["user", "user namespace", "network namespace"] {
        program.limited(limit, "nothing", "stays");
        program.limited("nothing", limit, "stays");
    }
    // Files of a mount namespace are others; its user is not.
    for (server, client) in [("mount namespace", "nothing"), ("nothing", "mount namespace"), ("user", "user")] {
        program.limited(server, client, "any");
    }
}
