//! The man pages of `softrnic/ddp.h`. The synopsis of each function is the header's own.

use std::io;

use crate::c_manual::{Functions, Library};
use crate::manual::Page;

/// The header.
pub const HEADER: &str = include_str!("../../ddp-abi/include/softrnic/ddp.h");

const ENDED: (&str, &str) = (
    "ECONNRESET, EPIPE, EPROTO, EREMOTEIO, ETIMEDOUT",
    "the connection has ended: inside of a message, by the peer, by an error that this side has found or one that the \
     peer has told, or the peer did nothing for the time of the terms",
);
const SOCKET: (&str, &str) = ("EBADF", "the process is the child of a fork(2)");

#[rustfmt::skip]
const PAGES: &[Functions] = &[
    Functions {
        names: &["ddp_connect", "ddp_listen", "ddp_accept", "ddp_close"],
        about: "begin and end a connection",
        text: "\
ddp_connect connects to a peer, ddp_accept takes the next connection of a TCP socket that listens: that of ddp_listen, \
or the program's own. The descriptor of ddp_listen is the program's: getsockname(2) gives its port, close(2) closes it.

options is NULL, or the terms that this side asks for. CRCs are used if either side asks. flags: DDP_NO_CRC, this side \
does not ask for CRCs; DDP_MARKERS, the peer puts markers into what it sends. reads is the number of READs outstanding \
at a time, segment the bytes of a TCP segment, timeout the milliseconds that a call waits for the peer; 0 stands for \
1, 1448 and 60000.

ddp_close closes a connection: what was sent arrives. A call of another thread on the socket ends first.",
        errors: &[
            ("EBADF, ENOTSOCK", "the listener is no socket"),
            ("ECONNREFUSED", "nothing listens there, or the peer has refused"),
            ("EFAULT", "the address is null"),
            ("EINVAL", "no such socket; an address that is none; a flag or a number that is none"),
            ("EPROTO", "the peer does not speak the protocol, or has closed at once"),
            ("ETIMEDOUT", "the peer said nothing"),
            ("others", "as of socket(2), bind(2), connect(2), accept(2)"),
        ],
    },
    Functions {
        names: &["ddp_send", "softrnic_rdma_send"],
        about: "send an untagged message",
        text: "\
The peer's next posted buffer takes the message. The call returns when TCP has it. If the peer has no posted buffer, \
or one that is too short, the connection ends (RFC 5041, section 7.1).

The two names are one function.",
        errors: &[
            ("EFAULT", "the message is null, and has bytes"), ("EINVAL", "no such socket"),
            ("EMSGSIZE", "4 GiB or more"), ("ENOTCONN", "the peer has to send first (a peer of MPA revision 1)"),
            SOCKET, ENDED,
        ],
    },
    Functions {
        names: &["ddp_send_ddp", "softrnic_rdma_write"],
        about: "send a tagged message",
        text: "\
The bytes are placed at an address that the peer has registered. If notify is not NULL, the peer's ddp_recv(3) gives \
DDP_TAGGED with this id when all bytes are in place. The id is in the offset of a tagged message of no bytes.

The call returns when TCP has the message. An address that is none, or bytes outside of it, end the connection: the \
next call says so.

The two names are one function.",
        errors: &[
            ("EFAULT", "the address is null; the message is null, and has bytes"), ("EINVAL", "no such socket"),
            ("EMSGSIZE", "4 GiB or more"), ("ENOTCONN", "the peer has to send first"), SOCKET, ENDED,
        ],
    },
    Functions {
        names: &["softrnic_rdma_read"],
        about: "read bytes of the peer",
        text: "\
The bytes go to an address of this side that was registered with DDP_WRITE. The call returns when they are there. What \
comes meanwhile is kept for ddp_recv(3).

This is the RDMA Read of RFC 5040: the peer's library answers when its program waits in any call of this interface. \
Where the source is to send by itself, the sink registers a buffer and the source writes (ddp_send_ddp(3)).",
        errors: &[
            ("EFAULT", "an address is null"),
            ("EINVAL", "no such socket; no such registration of this side, or bytes outside of it"),
            ("EMSGSIZE", "4 GiB or more"), ("EOPNOTSUPP", "the terms of the connection permit no READ"), SOCKET, ENDED,
        ],
    },
    Functions {
        names: &["ddp_post_recv", "softrnic_rdma_post_recv"],
        about: "post a buffer for one message",
        text: "\
Messages take the buffers of a socket in the order in which they were posted. A buffer may be posted on several \
sockets: the first message that takes it, on any of them, takes it from all. A buffer is known by its address.

The memory must stay until ddp_recv(3) has given the buffer back, or all sockets that have it are closed.

The two names are one function.",
        errors: &[
            ("EBUSY", "the buffer has a message that ddp_recv has not given, or is posted with another length"),
            ("EFAULT", "the buffer is null"), ("EINVAL", "no such socket; a buffer that ends beyond the address space"),
            SOCKET,
        ],
    },
    Functions {
        names: &["ddp_recv", "softrnic_rdma_recv"],
        about: "wait for a message or a notice",
        text: "\
The function returns 1 and an indication, or 0 when the peer has closed the connection. DDP_MESSAGE: a message of \
length bytes is in buffer, which is posted no longer; tag is the registration that the message has ended, or 0. \
DDP_TAGGED: the tagged messages to the registration tag that were sent before the id are in place.

Untagged messages and notices come in the order in which they were sent. At most 16,384 wait for the program: a peer \
that sends more ends the connection.

The two names are one function.",
        errors: &[("EFAULT", "the indication is null"), ("EINVAL", "no such socket"), SOCKET, ENDED],
    },
    Functions {
        names: &["ddp_register", "ddp_deregister", "softrnic_rdma_register", "softrnic_rdma_deregister"],
        about: "register a buffer for the peer",
        text: "\
The peer may use the buffer by its tag, on this socket only, from offset 0 on. ddp_register lets it write. mode has \
DDP_READ (the peer may read) and DDP_WRITE (it may write, and READs of this side may bring their data). A buffer may \
be registered many times, on many sockets; parts may overlap.

The memory must stay until the registration or the connection ends. A message of the peer to a tag that has ended ends \
the connection.",
        errors: &[
            ("EFAULT", "the place of the tag is null; the buffer is null, and has bytes"),
            ("EINVAL", "no such socket, or no such tag; a mode that is none; a buffer beyond the address space"),
            SOCKET,
        ],
    },
    Functions {
        names: &["ddp_max_msizes", "softrnic_rdma_max_msizes", "ddp_error"],
        about: "sizes of messages of one segment; why a call has failed",
        text: "\
ddp_max_msizes gives the bytes of the longest untagged and tagged message that is one segment. Longer messages take \
more.

ddp_error returns why the last call of this thread that failed did. The text stays until another call of the thread \
fails.",
        errors: &[("EFAULT", "the place of the sizes is null"), ("EINVAL", "no such socket"), SOCKET],
    },
];

const DESCRIPTION: &str = "\
libsoftrnic-ddp.so places the bytes of messages on TCP sockets where a buffer says, without verbs, with no device: \
it speaks MPA, DDP and RDMAP (RFC 5044, 5041, 5040), so the peer may be any iWARP. The calls are those of the DDP and \
RDMA programming interfaces for direct data placement over TCP; names that librdmacm has for itself begin with \
softrnic_.

No thread runs. A socket answers the peer's READs and takes its messages in the calls of its program that wait, so a \
program that only serves waits in ddp_recv(3). Calls of several threads on one socket wait for each other.

A process that was forked from one that has used the library has no sockets: its calls are EBADF.";

const LIBRARY: Library = Library {
    header: HEADER,
    include: "softrnic/ddp.h",
    link: "Link with -lsoftrnic-ddp (softrnic-ddp.pc).",
    manual: "direct data placement",
    failed: "A call that fails returns -1 or a null pointer, and sets errno. ddp_error(3) says why.",
    overview: ("softrnic-ddp", "direct data placement on TCP sockets", DESCRIPTION),
    beside: ("softrnic-install", "1"),
    pages: PAGES,
    common: None,
};

/// All pages.
pub fn pages() -> io::Result<Vec<Page>> {
    LIBRARY.all_pages()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_a_page() {
        let described = LIBRARY.described();
        let mut declared = LIBRARY.declared("ddp_");
        declared.extend(LIBRARY.declared("softrnic_rdma_"));
        assert_eq!(declared, described);
        assert_eq!(described.len(), 20);
        for name in described {
            let text = LIBRARY.declaration(name).unwrap();
            assert!(text.contains(&format!("{name}(")) && text.ends_with(");") && !text.contains("*/"), "{text}");
        }
    }
}
