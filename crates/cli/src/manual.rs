//! The texts of the help and the man pages beyond the options. Commands and options are declared in `main.rs` and the
//! commands' files, variables in `settings.rs`, the rest here. Help, man pages and completion are made from these.

use std::io::{self, Write};

use clap::CommandFactory as _;
use clap_mangen::Man;
use roff::{Roff, bold, italic, roman};

use crate::{Cli, rules_manual, settings};

/// A section of a page.
pub struct Section {
    /// The command on whose page it is.
    command: &'static str,
    /// Its heading.
    title: &'static str,
    /// Paragraphs, separated by empty lines. Lines that begin with two spaces are shown as they are.
    text: &'static str,
}

/// The sections of the commands' pages, in their order.
const SECTIONS: &[Section] = &[
    Section {
        command: "run",
        title: "Which programs are served",
        text: "Programs that are linked to libibverbs or librdmacm, and programs that open them by name or by path \
with dlopen(3) and look their functions up with dlsym(3) or dlvsym(3); and the programs that these start, directly or \
through shells, interpreters and mpirun, for LD_PRELOAD is inherited. A program that starts others with an empty \
environment (env -i, sudo, a login shell) leaves them without the device.

Not served are programs that ignore LD_PRELOAD: statically linked ones, ones that change their user, group or \
capabilities at the start, and ones made for another architecture. run says so, and what to do. Programs with \
libibverbs itself linked in statically keep using that; run warns. Libraries opened with RTLD_DEEPBIND, and those in \
namespaces of their own (dlmopen), find what they are linked to; for the former set LD_LIBRARY_PATH to the directory \
that softrnic install makes.",
    },
    Section {
        command: "run",
        title: "Sanitizers",
        text: "Programs built with -fsanitize=address, undefined, thread or leak run as they are, and so do those \
            that a shell starts: run puts verify_asan_link_order=0 in front of what ASAN_OPTIONS has, and \
            suppressions=FILE in front of what TSAN_OPTIONS has. FILE silences reports about libsoftrnic.so, whose \
            synchronization ThreadSanitizer does not see. Who has suppressions in TSAN_OPTIONS keeps those only, \
            where the runtime is linked in statically (clang's default): add race:libsoftrnic.so and \
            called_from_lib:libsoftrnic.so to them.",
    },
    Section {
        command: "run",
        title: "Large messages and ptrace_scope",
        text: "Where the kernel permits it, large messages are copied once, directly from one process's memory to the \
            other's (process_vm_readv(2)), or go through shared memory if that is quicker on the machine \
            (SOFTRNIC_SINGLE_COPY). Where /proc/sys/kernel/yama/ptrace_scope is not 0, an ordinary user's processes \
            may not do that, and these messages go through shared memory, with two copies instead of one. Everything \
            works as before; large transfers are slower. softrnic devinfo says which of the two holds. \
            --permit-ptrace permits it where the value is 1, if both programs are run so.",
    },
    Section {
        command: "run",
        title: "Faults",
        text: "--fault \"FAULT:KEY=VALUE,...;FAULT:...;seed=N\" makes the device misbehave: each process that uses it \
counts its own packets and calls, and the same seed and the same sequence of them give the same faults. A packet is \
what the wire carries at once: a message of up to 16 KiB, or a piece of a longer one. By themselves faults look at \
requests (SEND, RDMA, atomics, datagrams) that the process sends; corrupt at all packets with data (and it counts no \
others), slow at all packets, rnr at messages that come.

  drop            the packet is lost
  duplicate       the packet comes twice
  delay           the packet goes out t later; what is sent meanwhile overtakes it
  reorder         the packet goes out behind the next by=1 packets to its process, or after t=1ms
  slow            every packet goes out t later, in order
  corrupt         one bit of the packet's data is flipped, its headers stay
  rnr             a message that comes for a reliable queue pair finds no receive posted
  qp-error        the packet is lost and its queue pair breaks (IBV_EVENT_QP_FATAL)
  link-kill       nothing passes any more between the process and the one that the packet is for
  reset           softiw0: the TCP connection is reset (RST) in place of the FPDU
  stall           softiw0: from the FPDU on, the TCP connection is neither written nor read
  half-close      softiw0: this side's direction of the connection ends (FIN) in place of the FPDU
  errno           a call fails with errno, and does nothing; ibv_post_send is every posting of send
                  requests, by ibv_wr_complete too
  device-fatal    the device breaks: IBV_EVENT_DEVICE_FATAL, all that is posted is flushed, and
                  verbs fail with EIO, but not ibv_query_gid and those that give back, post,
                  poll, arm or get events
  device-removal  as device-fatal, and RDMA_CM_EVENT_DEVICE_REMOVAL for every rdma_cm_id on it
  port-down       IBV_EVENT_PORT_ERR, and nothing passes; at its end IBV_EVENT_PORT_ACTIVE
  gid-change      IBV_EVENT_GID_CHANGE
  addr-change     RDMA_CM_EVENT_ADDR_CHANGE for every rdma_cm_id with an interface's address

When:

  n=N             the n-th packet or call, counted from 1
  every=N         every n-th
  p=P             each with this probability, from 0 to 1
  count=N         with n: so many in a row; else at most so many
  after=T         begins to count that long after the device was made; alone, it makes qp-error,
                  link-kill and what happens to the device, its port and its addresses come by
                  itself

Every fault but slow needs one of these; n, every and p exclude each other. Without n, every, p and count any other \
comes once.

Which, and how:

  op=OP           any, request, response, send, write, read, atomic, flush, datagram, ack or
                  read-response
  side=tx|rx      packets that go (tx), or packets that come (rx)
  qp=QPN          packets of this queue pair of the process
  t=T, by=N       see above; times are numbers with ns, us, ms or s
  for=T           how long rnr, link-kill, port-down and stall last; for ever without it, rnr for
                  one try
  call=NAME       the function: ibv_reg_mr, ibv_post_send, rdma_connect; ibv_create_* for all such
  errno=NAME      what it fails with: ENOMEM, or a number

delay, slow, reorder, rnr, reset, stall and half-close have no side. errno has call and errno only, beside \
those that say when.

corrupt shows a program what bad memory would do to it, for there is no checksum between processes of one host. With \
any fault but errno, peers execute no RDMA by themselves on the process's memory, and with corrupt no data are copied \
directly, so that all pass where faults can reach them. The messages by which rdma_cm makes and ends connections are \
not touched.

With --device iwarp a packet is an FPDU that the process sends, of up to 64 KiB; WRITEs of no bytes do not count. \
reset, stall, half-close, corrupt, delay, slow and qp-error strike; what is late holds up all behind it. The others \
of packets do nothing: TCP would repair them. The CRC finds what corrupt changes (SOFTRNIC_MPA_CRC).",
    },
    Section {
        command: "run",
        title: "Examples of faults",
        text: "  softrnic run --fault 'drop:p=0.01,op=any;seed=42' -- ./program
  softrnic run --fault 'errno:call=ibv_reg_mr,n=3,errno=ENOMEM' -- ./program
  softrnic run --fault 'rnr:n=10,count=5;qp-error:after=1s' -- ./program",
    },
    Section {
        command: "run",
        title: "Captures",
        text: "--pcap FILE shows every packet as RoCEv2 would carry it, or, with --device iwarp, as TCP does: \
messages in packets of the path MTU with \
their sequence numbers, acknowledgements and NAKs as they happened. Wireshark and tshark read the file, at any moment.

A program and those that it starts write to one file. So do programs that are started by other softrnic run commands \
with the same FILE, as long as one of the first still has the device open; a FILE that no process writes to is \
replaced. In what several programs write each packet is once. What passes between a program and one that does not \
write to FILE is there, too.

With FILE a FIFO, or - for the standard output, packets can be looked at while they come; the program's own standard \
output is its standard error then.

All data are looked at and written to the file by the program itself, which makes it slow. Requests that would \
otherwise be executed without the target become packets. When the disk is full the program goes on, and says that its \
packets do not.",
    },
    Section {
        command: "run",
        title: "Examples",
        text: "  softrnic run -- ib_send_lat
  softrnic run -- mpirun -n 4 ./program
  softrnic run --pcap ib.pcapng -- ./program && wireshark ib.pcapng
  softrnic run --pcap - -- ./program | wireshark -k -i -
  softrnic run -- bash",
    },
    Section {
        command: "sock",
        title: "Which connections move",
        text: "\
A connection moves when both of its ends are programs under softrnic sock, of one user and in one network \
namespace, and both have called read, recv or one of their like; it does so at its third message or later, at \
a byte that both know. No byte is added to what the programs send. Its descriptor stays the kernel's socket, \
with its names and options, and when a program ends or is killed the other one learns it from the kernel.

All other connections are plain TCP, and nothing is said about it: a peer without softrnic sock, of another \
user or in a container of its own, too few descriptors or too little memory, more than 4,096 moved connections \
in one process, both ends in one process. softrnic top --sockets shows which, and why. Programs that are statically \
linked, or are not written in C and make system calls by themselves (Go), are such peers.",
    },
    Section {
        command: "sock",
        title: "What moves and what does not",
        text: "  moved     read, readv, recv, recvfrom, recvmsg, write, writev, send, sendto, sendmsg,
            sendmmsg, recvmmsg, sendfile of regular files, splice;
            poll, ppoll, select, pselect, epoll (level, edge, one shot); close, shutdown, dup,
            FIONREAD, SIOCOUTQ, MSG_PEEK, MSG_WAITALL, MSG_DONTWAIT, SO_RCVTIMEO, SO_SNDTIMEO
  back      sendfile of other files, MSG_OOB, other flags, fdopen, dprintf, a copy
            as descriptor 0, 1 or 2, exec and posix_spawn with the descriptor open, SCM_RIGHTS,
            O_ASYNC, SO_RCVLOWAT, TCP_ULP, epoll sets in others or in a poll, EPOLLEXCLUSIVE:
            the connection is TCP again, for good, and the call works there
  never     a connection that was open at a fork before it had moved

A connection that has moved may be used on both sides of a fork.",
    },
    Section {
        command: "sock",
        title: "What a program could notice",
        text: "\
A program that uses a socket by these functions and by system calls of its own (syscall(2), io_uring, aio, \
pidfd_getfd(2)) needs a rule that keeps it with TCP. A buffer at a bad address is SIGSEGV, not EFAULT. After a \
signal whose handler has SA_RESTART a read goes on only if all of the program's handlers have it. \
A process \
that ends without close, while bytes are unread, ends the connection properly where TCP would have reset it. \
Descriptors from half of the limit on are taken by the library: some for each process at the other end of moved \
connections, one or two for each socket that listens, and one that tells of them. Nothing polls: a \
program that waits, sleeps.",
    },
    Section {
        command: "sock",
        title: "Rules",
        text: "\
As libsdp has them; softrnic-sock.conf(5) describes all of it. The first rule that matches decides; if none does, a \
connection moves when it can. server (listen) looks at the local address, client (connect) at the remote one; PROGRAM \
is a pattern of fnmatch(3). both moves a connection when it can; sdp moves it, or there is none: connect(2) fails with \
ECONNREFUSED, and a server resets clients that cannot move before it accepts them. A socket of AF_INET_SDP (27) is one \
of AF_INET for which it is sdp.

  use tcp|sdp|both server|listen|client|connect PROGRAM ADDRESS[/BITS]|*:PORT[-PORT]|*
  log destination stderr|syslog|file NAME min-level 1-9

LIBSDP_CONFIG_FILE names a file as the option --rules does; with SIMPLE_LIBSDP or ALWAYS_USE_SDP set no file is \
read, and it is sdp for every connection.",
    },
    Section {
        command: "sock",
        title: "Examples",
        text: "  softrnic sock -- redis-server
  softrnic sock -- redis-benchmark
  softrnic sock --rules /etc/libsdp.conf -- ./server
  softrnic sock --explain --rules /etc/libsdp.conf --address 127.0.0.1:80 ./server",
    },
    Section {
        command: "doctor",
        title: "What is said",
        text: "First what was found: !! marks what has waited for long or for what cannot come, ! what waits for \
something that may still come; other lines are worth knowing. Then, for every queue pair: its peer, what its queues \
hold, the request at the head of its send queue and what has happened so far, and for softiw0 its TCP connection: \
addresses, CRC, markers, MULPDU, FPDUs and bytes each way, and whether TCP takes them; then the Terminate messages of \
the last connections that ended by an error; then completion queues, shared receive \
queues, the ids of the connection manager, and how many TCP connections are being made.

The program needs to do nothing: a thread of the library answers. It is looked at twice, 200 ms apart, to see what \
moves. Its peers, as far as they are processes of the same user, are asked as well: they know why they do not answer. \
A process that is stopped cannot answer; its peers say that it is stopped. If a thread of the program holds the \
device's lock all the time, that is the answer.

For a process under softrnic sock: how many of its TCP connections are in memory, and why the others are not. With \
--json each process has its pid and its connections; one that has the device open has a verdict, findings and a \
report, too.

kill -USR1 PID makes a program print what is said of the device on its stderr, without what its peers know: while it \
has the device open, and only where the signal would have ended it; SOFTRNIC_SIGNAL=0 forbids that.",
    },
    Section {
        command: "doctor",
        title: "Exit status",
        text: "  0   nothing stands in the way
  1   something waits, or is stuck
  2   neither, but a process could not be asked: there is none, it has neither opened the device
      nor TCP connections under softrnic sock, it does not answer",
    },
    Section {
        command: "doctor",
        title: "Examples",
        text: "  softrnic doctor
  softrnic doctor $(pgrep -x my_program)
  softrnic doctor --json 4711",
    },
    Section {
        command: "top",
        title: "Columns",
        text: "SENDS is how many places of the send queue are in use, RECEIVES how many receives wait for a message. \
            MSG/s OUT counts send requests that completed, MSG/s IN receives that completed; B/s their bytes, and \
            those of RDMA that passed through this process. What a peer writes or reads without this process's \
            processor is counted at the peer. STALLS: RNR NAKs got and given; retries (timeouts and sequence NAKs); \
            times that the ring to the peer was full; messages of UC and UD that were lost for want of a receive; \
            send requests that failed. The line below a process is what softrnic doctor says of it first.",
    },
    Section {
        command: "top",
        title: "Examples",
        text: "  softrnic top
  softrnic top --once
  softrnic top --json --interval 5",
    },
    Section {
        command: "bench",
        title: "Reading it",
        text: "A latency's ratio is the figure over what the machine takes without any device: 1 is the best that \
could be, 2 is twice as long. A bandwidth's ratio is the figure over the kernel's copy from process to process: more \
than 1 is faster. The ratios of two machines can be compared, the figures cannot.

Nothing else should run meanwhile: on a busy machine the rounds lie far apart. Where two processes cannot have a core \
each, both the figures and the limits are those of the system's scheduler.",
    },
    Section {
        command: "bench",
        title: "Examples",
        text: "  softrnic bench
  softrnic bench --only SEND,WRITE --transports RC --sizes all --plot plots
  softrnic bench --lib libibverbs.so.1 --device mlx5_0
  softrnic bench --page performance.md",
    },
    Section {
        command: "install",
        title: "What is installed",
        text: "  bin/softrnic               this program
  lib/libsoftrnic.so         the device
  lib/libsoftrnic-sock.so    what softrnic sock puts into programs
  lib/libexs.so, include/sys/exs.h   extended sockets (exs(7)), on any verbs library
  lib/libhyperclient.so, include/libhyperclient   group operations (hyperclient(7))
  lib/libsoftrnic-ddp.so, include/softrnic/ddp.h   placement on TCP sockets (softrnic-ddp(7))
  lib/libibverbs.so.1        forwards to it
  lib/librdmacm.so.1         forwards to it
  lib/libibverbs.so, lib/librdmacm.so
  include/softrnic           what the device can do beyond verbs.h (compile with -IDIR/include)
  lib/pkgconfig              for programs that are built against the directory
  share/man, share/bash-completion, share/zsh, share/fish

verbs.h and the other header files are not: programs are compiled with those of rdma-core (Debian: libibverbs-dev, \
librdmacm-dev).

Vendors' libraries (libmlx5.so.1, libefa.so.1, ...) are linked to private functions of the libibverbs that they came \
with. The libibverbs.so.1 made here has these names, too, as found in the installed one. So install again after \
rdma-core has been upgraded.",
    },
    Section {
        command: "install",
        title: "Using it",
        text: "  LD_LIBRARY_PATH=DIR/lib program
  PKG_CONFIG_PATH=DIR/lib/pkgconfig make

serve every program that is linked to libibverbs.so.1 and librdmacm.so.1, or loads them by these names or by the \
development names. Programs that look for the device in /sys or /dev as well need DIR/bin/softrnic run.",
    },
    Section {
        command: "install",
        title: "Examples",
        text: "  softrnic install --prefix ~/.local/softrnic
  softrnic install --prefix /opt/softrnic",
    },
];

/// A command's sections.
fn sections(command: &str) -> impl Iterator<Item = &'static Section> {
    SECTIONS.iter().filter(move |section| section.command == command)
}

/// The whole command line, with the sections under the long help of the commands.
pub fn command_line() -> clap::Command {
    Cli::command().mut_subcommands(|sub| {
        let text = help(sub.get_name());
        if text.is_empty() { sub } else { sub.after_long_help(text) }
    })
}

/// The commands of a command that have help.
fn commands(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
}

/// A command's sections, for a terminal.
fn help(command: &str) -> String {
    let sections = sections(command).map(|section| {
        let paragraphs = section.text.split("\n\n").map(|paragraph| match paragraph.starts_with("  ") {
            true => paragraph.to_owned(),
            false => {
                settings::wrap(paragraph, 94).iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
            }
        });
        format!("{}:\n{}", section.title, paragraphs.collect::<Vec<_>>().join("\n\n"))
    });
    sections.collect::<Vec<_>>().join("\n\n")
}

/// A man page: its file name, and its content.
pub struct Page {
    /// The file name, for instance `softrnic-run.1`.
    pub file: String,
    /// The text, for man(1).
    pub text: Vec<u8>,
}

/// All man pages: one for the program, one for each command and each of its own, one for the variables,
/// and one for the file of rules.
pub fn pages() -> io::Result<Vec<Page>> {
    let mut command = command_line();
    command.build();
    let mut pages = vec![page("softrnic", command.clone(), true)?];
    for sub in commands(&command) {
        pages.push(page(sub.get_name(), sub.clone(), false)?);
        for part in commands(sub) {
            pages.push(page(&format!("{}-{}", sub.get_name(), part.get_name()), part.clone(), false)?);
        }
    }
    pages.push(Page { file: "softrnic.7".into(), text: variables()? });
    pages.push(rules_manual::page()?);
    Ok(pages)
}

/// The source that a page names.
pub const SOURCE: &str = concat!("softrnic ", env!("CARGO_PKG_VERSION"));
const MANUAL: &str = "softrnic";

fn page(name: &str, command: clap::Command, main: bool) -> io::Result<Page> {
    let title = if main { name.to_owned() } else { format!("softrnic-{name}") };
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    // The name of the page is one word; the synopsis shows how the command is called.
    let man = Man::new(command.clone()).title(&title).section("1").source(SOURCE).manual(MANUAL);
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    let mut name_section = Roff::new();
    name_section.control("SH", ["NAME"]).text([roman(format!("{title} - {about}"))]);
    name_section.to_writer(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    let mut rest = Roff::new();
    if commands(&command).next().is_some() {
        rest.control("SH", ["COMMANDS"]);
        let before = if main { "softrnic" } else { title.as_str() };
        for sub in commands(&command) {
            let about = sub.get_about().map(ToString::to_string).unwrap_or_default();
            rest.control("TP", []).text([bold(format!("{before}-{}", sub.get_name())), roman("(1)")]);
            rest.text([roman(about)]);
        }
    }
    for section in sections(name) {
        rest.control("SH", [section.title.to_uppercase().as_str()]);
        paragraphs(&mut rest, section.text);
    }
    rest.control("SH", ["ENVIRONMENT"]).text([
        roman("The variables are described in "),
        bold("softrnic"),
        roman("(7)."),
    ]);
    rest.control("SH", ["SEE ALSO"]);
    rest.text([bold("softrnic"), roman("(1), ")]);
    if name == "sock" {
        rest.text([bold(rules_manual::NAME), roman("(5), ")]);
    }
    rest.text([bold("softrnic"), roman("(7), "), bold("ld.so"), roman("(8)")]);
    rest.to_writer(&mut text)?;
    Ok(Page { file: format!("{title}.1"), text })
}

/// Write paragraphs; those that begin with spaces stay as they are.
pub fn paragraphs(page: &mut Roff, text: &str) {
    for (number, paragraph) in text.split("\n\n").enumerate() {
        if number > 0 {
            page.control("PP", []);
        }
        if paragraph.starts_with("  ") {
            page.control("EX", []);
            for line in paragraph.lines() {
                page.text([roman(line)]);
            }
            page.control("EE", []);
        } else {
            page.text([roman(paragraph)]);
        }
    }
}

/// The page of the variables.
fn variables() -> io::Result<Vec<u8>> {
    let mut page = Roff::new();
    page.control("TH", ["softrnic", "7", "", SOURCE, MANUAL]);
    page.control("SH", ["NAME"]).text([roman("softrnic - environment variables of the RDMA NIC in software")]);
    page.control("SH", ["DESCRIPTION"]).text([roman(
        "libsoftrnic.so reads these variables when a program first uses the device, and softrnic(1) hands them on to \
         the programs that it runs. SOFTRNIC_LIB is for softrnic(1) alone.",
    )]);
    page.control("SH", ["ENVIRONMENT"]);
    for setting in settings::SETTINGS {
        page.control("TP", []).text([bold(setting.name), roman("="), italic(setting.values)]);
        page.text([roman(setting.about)]);
    }
    page.control("SH", ["SEE ALSO"]).text([bold("softrnic"), roman("(1), "), bold("softrnic-run"), roman("(1)")]);
    let mut text = Vec::new();
    page.to_writer(&mut text)?;
    text.flush()?;
    Ok(text)
}

#[cfg(test)]
#[path = "manual_tests.rs"]
mod tests;
