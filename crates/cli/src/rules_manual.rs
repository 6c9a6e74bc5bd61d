//! The man page of the file of rules: softrnic-sock.conf(5).

use std::io;

use roff::{Roff, bold, roman};

use crate::manual::{Page, SOURCE, paragraphs};

/// The page's name, without its section.
pub const NAME: &str = "softrnic-sock.conf";

const SECTIONS: &[(&str, &str)] = &[
    (
        "DESCRIPTION",
        "\
The file says which TCP connections of which programs may move onto shared memory. Its grammar is that of libsdp, so \
that a libsdp.conf can be used as it is. It has any name: the option --rules of softrnic-sock(1) gives it, or the \
variable LIBSDP_CONFIG_FILE. Without both no file is read, and every connection moves that can.

A process reads the file once, before its program begins. A program that it starts reads the file anew.",
    ),
    (
        "GRAMMAR",
        "  statement   use FAMILY ROLE PROGRAM ADDRESS:PORTS
              log [destination stderr|syslog|file NAME] [min-level LEVEL]
  FAMILY      tcp | sdp | both
  ROLE        server | listen | client | connect
  PROGRAM     a pattern of fnmatch(3)
  ADDRESS     * | A.B.C.D[/BITS] | [IPV6][/BITS]
  PORTS       * | FIRST[-LAST]

A line has one statement, or none. Blanks and tabs separate words, and may stand around the colon. # begins a comment, \
up to the line's end. Upper and lower case differ.",
    ),
    (
        "RULES",
        "\
tcp: the connection stays with TCP. both: it moves if it can, and is TCP otherwise. sdp: it moves, or there is none.

A client whose rule is sdp gets ECONNREFUSED from connect(2), whether it waits or not, unless a program of the same \
user listens at that address of this machine with the library and a rule that is not tcp. A server whose rule is \
sdp gets no connection of a client that has no library, another user or the rule tcp: such a connection is reset \
before accept(2) returns, and accept goes on, or returns EAGAIN. poll(2) may have told of it. The first calls of a \
connection go by TCP in any case, and so does what needs TCP later, as softrnic-sock(1) lists it: sdp decides \
whether there is a connection.

server and listen are one role: connections that the program accepts. ADDRESS and PORTS are then those of the \
program's own end. client and connect are the other role: connections that the program makes. ADDRESS and PORTS are \
then those of the end that it connects to.

PROGRAM is compared with the program's name without its directory (program_invocation_short_name). A keyword or a \
number is no PROGRAM.

BITS is how many of the first bits of ADDRESS count: 0 to 32, or to 128 with IPv6; all of them without it. A \
connection of a socket of IPv6 between addresses of IPv4 (::ffff:A.B.C.D) is matched as one of IPv4. PORTS has its \
first and its last port, 0 to 65535.",
    ),
    (
        "WHICH RULE DECIDES",
        "\
Each role has a list of its own, in the file's order. The first rule of the role that matches the program, the address \
and the port decides, and no later one is looked at. If none matches it is both. A file without any rule means sdp for \
every connection, also those to other machines, which are refused then. softrnic sock --explain says which rule \
decides for a program and an address.",
    ),
    (
        "LOG",
        "\
Statements of log set where messages go, and which: those of LEVEL and above. Without any, errors go to standard \
error. A later statement changes what it names, and the last one counts for the whole file; what stands behind an \
error does not count.

  9   errors of the file
  8   warnings about it
  7   for each connection, that it moved, or stayed with TCP before it moved, and why; or that it was refused
  4   for each connection, which rule matched
  3   for each connection, that no rule matched

Other levels have no messages. softrnic sock checks the file before the program starts, and prints its warnings \
whatever the level.

stderr: descriptor 2, as long as it is the file that it was when the program began. A connection gets nothing, and so \
does a pipe that is full or has no reader.

syslog: the socket /dev/log, with the facility user.

file NAME: for root, /var/log and the part of NAME behind its last slash. For other users, the file log in a directory \
that is made: NAME.UID if NAME has a slash, relative to the directory in which the program begins, and /tmp/NAME.UID \
otherwise. The directory must belong to the user, have the mode 0700 and be no symbolic link. The file is opened for \
each message, with the rights that the process has then.

A message that cannot be written is lost; the program does not wait for it, and gets no signal.",
    ),
    (
        "ERRORS",
        "\
The first error ends the reading. The message has the line, the column in bytes, what was expected and what was found. \
The rules before it hold. softrnic sock --explain shows the error and all warnings.",
    ),
    (
        "DIFFERENCES FROM LIBSDP",
        "\
A mask covers the rule's own address, too: 192.168.1.5/24 means 192.168.1.0/24. It matches nothing with libsdp, which \
compares the whole address of the rule with the masked one of the connection. There is a warning for such a rule.

Addresses of IPv6 are known, in brackets. There is a warning, because libsdp takes them for an error.

The last line may lack its end. There is a warning, because libsdp takes that for an error.

There is no file that is read by default.",
    ),
    (
        "ENVIRONMENT",
        "  LIBSDP_CONFIG_FILE   the file
  SIMPLE_LIBSDP        set to anything: no file is read, and it is sdp for every connection
  ALWAYS_USE_SDP       means that, too",
    ),
    (
        "EXAMPLES",
        "\
HTTPS stays with TCP, whoever connects; other connections of nginx move within one network:

  use tcp  server nginx   *:443
  use both server nginx   10.0.0.0/8:*
  use tcp  server nginx   *:*

Clients whose name begins with redis- move to one port of this machine, and no other client moves anywhere:

  use both client redis-* 127.0.0.1:6379
  use both client redis-* [::1]:6379
  use tcp  client *       *:*

A range of ports:

  use tcp connect * 192.168.1.0/24:8000-8099",
    ),
];

/// The page.
pub fn page() -> io::Result<Page> {
    let mut page = Roff::new();
    page.control("TH", [NAME, "5", "", SOURCE, "softrnic"]);
    page.control("SH", ["NAME"]).text([roman(format!("{NAME} - rules that say which TCP connections may move"))]);
    for (title, text) in SECTIONS {
        page.control("SH", [*title]);
        paragraphs(&mut page, text);
    }
    page.control("SH", ["SEE ALSO"]).text([bold("softrnic-sock"), roman("(1), "), bold("fnmatch"), roman("(3)")]);
    let mut text = Vec::new();
    page.to_writer(&mut text)?;
    Ok(Page { file: format!("{NAME}.5"), text })
}

#[cfg(test)]
mod tests {
    use ::sock::rules::{Family, Role, Rules};

    use super::*;

    fn section(title: &str) -> &'static str {
        SECTIONS.iter().find(|section| section.0 == title).unwrap_or_else(|| panic!("{title}")).1
    }

    /// The lines of the examples that are shown as they are.
    fn examples() -> String {
        section("EXAMPLES").lines().filter_map(|line| line.strip_prefix("  ")).map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn the_examples_are_read_and_decide_as_the_page_says() {
        let parsed = Rules::parse(&examples());
        assert_eq!(parsed.error, None);
        assert!(parsed.warnings.iter().all(|warning| warning.what.contains("IPv6")), "{:?}", parsed.warnings);
        let decide = |role, program: &str, at: &str| parsed.rules.decide(role, program, at.parse().unwrap()).family;
        assert_eq!(decide(Role::Server, "nginx", "10.1.2.3:443"), Family::Tcp);
        assert_eq!(decide(Role::Server, "nginx", "10.1.2.3:80"), Family::Both);
        assert_eq!(decide(Role::Server, "nginx", "11.1.2.3:80"), Family::Tcp);
        assert_eq!(decide(Role::Client, "redis-cli", "[::1]:6379"), Family::Both);
        assert_eq!(decide(Role::Client, "redis", "127.0.0.1:6379"), Family::Tcp);
    }

    #[test]
    fn every_word_of_the_grammar_is_on_the_page_and_taken() {
        let grammar = section("GRAMMAR");
        let words = |line: &str| -> Vec<String> {
            let line = grammar.lines().find(|text| text.trim_start().starts_with(line)).unwrap();
            line.split(['|', ' ']).filter(|w| !w.is_empty()).skip(1).map(str::to_owned).collect()
        };
        for family in words("FAMILY") {
            for role in words("ROLE") {
                for address in ["*", "1.2.3.4", "1.2.3.4/32", "[::1]", "[::]/0"] {
                    for ports in ["*", "1", "1-2"] {
                        let text = format!("use {family} {role} x* {address}:{ports}\n");
                        assert_eq!(Rules::parse(&text).error, None, "{text}");
                    }
                }
            }
        }
        assert_eq!((words("FAMILY").len(), words("ROLE").len()), (3, 4));
        for text in ["log destination stderr", "log destination syslog min-level 1", "log destination file x"] {
            assert_eq!(Rules::parse(&format!("{text}\n")).error, None, "{text}");
            assert!(text.split(' ').filter(|word| word.len() > 1).all(|word| grammar.contains(word)), "{text}");
        }
    }

    #[test]
    fn what_differs_from_libsdp_is_warned_of() {
        for text in ["use tcp client x 192.168.1.5/24:*\n", "use tcp client x [::1]:*\n", "use tcp client x *:*"] {
            let parsed = Rules::parse(text);
            assert_eq!((parsed.error, parsed.warnings.len()), (None, 1), "{text}");
        }
    }
}
