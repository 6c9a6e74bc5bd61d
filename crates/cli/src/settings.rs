//! The environment variables: one list, from which the help is made.

use std::fmt::Write;

use report::settings::variable;

/// A variable.
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// The values that it may be set to.
    pub values: &'static str,
    /// Its effect.
    pub about: &'static str,
}

/// All variables.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: variable::MIGRATE,
        values: "0, 1",
        about: "1: registered memory moves, where it is, into memory that peers map too, and back when it is \
            deregistered; RDMA WRITE, READ, atomics and large messages then need no system call. 0 (the default): it \
            stays what it is. The option --migrate of run sets it to 1.",
    },
    Setting {
        name: variable::DEVICE,
        values: "roce, iwarp, all",
        about: "roce (the default): the device is softrnic0, whose peers are processes of this host. iwarp: it is \
            softiw0, whose connections are TCP connections, also to other hosts, and to the iWARP devices of others. \
            all: both; librdmacm takes softiw0 for peers on other hosts. The option --device of run sets it.",
    },
    Setting {
        name: variable::FAULT,
        values: "SPEC",
        about: "Faults to be met: drop:n=100;delay:t=5ms,p=0.1;seed=42. softrnic-run(1) describes them. The option \
            --fault of run sets it, and checks it first.",
    },
    Setting {
        name: "SOFTRNIC_LIB",
        values: "PATH",
        about: "The verbs library to use, instead of the libsoftrnic.so beside the program; the option --lib is \
                stronger.",
    },
    Setting {
        name: variable::LINK_LAYER,
        values: "ethernet, infiniband",
        about: "ethernet (the default): the port is a RoCE port, whose GIDs are the host's IP addresses. infiniband: \
            it has a LID, and address vectors need no GRH. Programs that talk to each other need the same. The option \
            --link-layer of run sets it.",
    },
    Setting {
        name: variable::LOG,
        values: "off, error",
        about: "By default the device tells on stderr, once for each kind, what keeps the program from its peers: \
            another user, another network namespace, no descriptors, ptrace forbidden, a peer without the library. \
            off: nothing. error: also which request failed and which rule it broke, and if large messages cannot go \
            by single copy. The option --log of run sets it.",
    },
    Setting {
        name: variable::MPA_CRC,
        values: "0, 1",
        about: "0: softiw0 does not ask for CRCs in the messages of iWARP; they are used all the same if the peer \
            asks. 1 (the default): it asks.",
    },
    Setting {
        name: variable::MPA_FPDU,
        values: "BYTES",
        about: "The longest FPDU that softiw0 sends, 136 to 65535 bytes; by default the longest that there are. 1448 \
            is one TCP segment of Ethernet, as adapters and Linux's siw send them.",
    },
    Setting {
        name: variable::PCAP,
        values: "FILE",
        about: "Every packet is written to this pcapng file, as RoCEv2 would carry it; what is in it stays. The \
            option --pcap of run sets it.",
    },
    Setting {
        name: variable::PCAP_SNAPLEN,
        values: "BYTES",
        about: "Of each packet so many bytes are kept; 0 and no value: all. The option --snaplen of run sets it.",
    },
    Setting {
        name: variable::PEERS,
        values: "user, any",
        about: "Whose processes may connect to this one: those of the same user (the default), or anybody's.",
    },
    Setting {
        name: variable::PERMIT_PTRACE,
        values: "0, 1",
        about: "1: any process of the same user may copy from and to this one's memory, where \
            /proc/sys/kernel/yama/ptrace_scope is 1. Both processes need it. The option --permit-ptrace of run sets \
            it.",
    },
    Setting {
        name: variable::SIGNAL,
        values: "0, 1",
        about: "1 (the default): while a program has the device open and no disposition of its own for SIGUSR1, which \
            would end it, the signal makes the device print on stderr what it waits for, as doctor does. 0: the \
            signal is left alone.",
    },
    Setting {
        name: variable::SINGLE_COPY,
        values: "0, 1",
        about: "1: large messages go directly from process to process, where the kernel permits it. 0: all data go \
            through shared memory; the option --no-single-copy of run sets it to 0. By default whichever is quicker: \
            they go by single copy, but not where the kernel takes more than four times as long as a plain copy \
            (tried when the first peer is met), unless a side sleeps and there is little room; and from 128 KiB on \
            both ways are tried while data flow, and the faster is taken. A message that goes by single copy needs \
            nothing more of its sender. Of what goes through shared memory 256 KiB fit in at a time: if the sender \
            then neither polls nor posts, the rest follows up to a millisecond later.",
    },
    Setting {
        name: variable::SINGLE_COPY_ABOVE,
        values: "BYTES",
        about: "Messages longer than this go by single copy, whatever is quicker; 16384 with SOFTRNIC_SINGLE_COPY=1.",
    },
    Setting {
        name: "SOFTRNIC_SOCK_SPIN",
        values: "MICROSECONDS",
        about: "For programs under softrnic sock: how long one that waits for a moved connection looks at the memory \
            before it sleeps, where its last waits were short; at most 50. 0: never.",
    },
    Setting {
        name: variable::TCP_TIMEOUT,
        values: "SECONDS",
        about: "A connection of softiw0 ends when its peer has acknowledged nothing for so long, 1 to 86400 s, whether \
            data wait or not. So does one whose peer takes nothing for so long, since its program is stopped, while \
            data wait for it (TCP_USER_TIMEOUT). By default TCP's own times hold (tcp(7), tcp_retries2: about a \
            quarter of an hour), and an idle connection stays, as with Linux's siw.",
    },
    Setting {
        name: variable::VIEW,
        values: "DIRECTORY",
        about: "What programs see instead of /sys/class/infiniband and /dev/infiniband; run sets it. Without it the \
                first process that looks there makes the directory.",
    },
    Setting {
        name: variable::WITH_HARDWARE,
        values: "0, 1",
        about: "1: programs see the host's RDMA adapters beside softrnic0. Their libibverbs has to be in the process \
            as well, so this needs run or LD_PRELOAD: with LD_LIBRARY_PATH alone there is no adapter. The option \
            --with-hardware of run sets it.",
    },
];

/// The paragraph under the help.
pub fn help() -> String {
    let mut text = String::from("Environment variables:\n");
    for setting in SETTINGS {
        let _ = writeln!(text, "  {}={}", setting.name, setting.values);
        for line in wrap(setting.about, 84) {
            let _ = writeln!(text, "      {line}");
        }
    }
    text.push_str("\n`softrnic help COMMAND` shows the options of a command.");
    text
}

/// Lines of at most `width` bytes.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("one at least");
        if !line.is_empty() && line.len() + 1 + word.len() > width {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}
