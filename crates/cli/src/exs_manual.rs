//! The man pages of `sys/exs.h`. The synopsis of each function is the header's own.

use std::io;

use crate::c_manual::{Functions, Library};
use crate::manual::Page;

/// The header.
pub const HEADER: &str = include_str!("../../exs-abi/include/sys/exs.h");

const QUEUED: &str = "With a queue the call returns 0 when the operation has begun, and the operation has one event. \
With EXS_QHANDLE_INVALID the call waits for the end of the operation.";

#[rustfmt::skip]
const PAGES: &[Functions] = &[
    Functions {
        names: &["exs_init"],
        about: "begin to use extended sockets",
        text: "\
It returns the version that the library has: EXS_VERSION of its header, if that was asked for. No other function \
needs it to be called before.",
        errors: &[("EINVAL", "the number is no version")],
    },
    Functions {
        names: &["exs_socket", "exs_bind", "exs_listen", "exs_accept", "exs_connect", "exs_shutdown", "exs_close"],
        about: "make connections of extended sockets, and end them",
        text: "\
exs_socket makes a descriptor of AF_INET or AF_INET6 and of SOCK_SEQPACKET or SOCK_STREAM. The kernel's calls \
for sockets refuse it with EBADF; exs_close closes it. exs_bind and exs_listen are as their namesakes.

exs_accept brings a connection: in exs_evt_newfd of its ACCEPT event, or as the result. Several may be posted. \
addresses may be null. exs_connect has a CONNECT event. exs_shutdown with SHUT_WR sends the end of the data \
behind what is pending; after SHUT_RD receives find the end.

exs_close ends pending operations with ECANCELED, each with its event; CLOSE comes behind them. The number is \
free when that event is taken.

All of them but exs_socket take descriptors of socket(2) as well.",
        errors: &[
            ("EADDRINUSE, EADDRNOTAVAIL", "as bind(2)"),
            ("EAFNOSUPPORT, EPROTOTYPE, EPROTONOSUPPORT", "no such socket, or an address of another family"),
            ("EAGAIN", "the queue has no place; without a queue: nothing waits (O_NONBLOCK, MSG_DONTWAIT)"),
            ("EBADF", "no descriptor of a socket, one that is being closed, or the child of a fork(2)"),
            ("ECONNREFUSED", "nothing listens there; or no EXS of this version, or the other type of socket"),
            ("EINVAL", "no such queue; a bad length, flag or number; the socket has an address, or does not listen"),
            ("EISCONN, EALREADY, ENOTCONN, EOPNOTSUPP", "it is connected, is being connected, is not, listens"),
            ("ENOSYS, ENODEV", "there is no verbs library, or it has no device"),
        ],
    },
    Functions {
        names: &["exs_send", "exs_recv", "exs_sendmsg", "exs_recvmsg", "exs_sendfile", "exs_cancel"],
        about: "transfer data over extended sockets",
        text: "\
The buffer belongs to the operation until its event. It lies in registered memory (exs_mregister(3)), or is \
EXS_MHANDLE_UNREGISTERED: then up to 16 KiB are copied, and more are registered for the time of the transfer. \
Several pieces of a message are copied. A send ends when the peer has received all of it; that of a stream when the \
bytes are in the peer's memory, and that of small data when the device has taken them, as with send(2).

Flags of a receive: MSG_WAITALL (a stream: all bytes, or the end of the peer's data). MSG_DONTWAIT counts \
without a queue. MSG_NOSIGNAL and MSG_EOR change nothing. A receive has EXS_EOF in exs_evt_flags at the end of \
the peer's data, and MSG_TRUNC if a packet was longer than the buffer.

exs_sendfile sends a header, a part of a regular file, and a trailer.

A send with EXS_PERSISTENT (SOCK_SEQPACKET) stays until it is cancelled: each receive of the peer reads it anew.

exs_cancel asks for the end of the operations that were begun with this descriptor (-1: polls), queue and \
handle. It returns how many will end for it. Each has its event: with ECANCELED, or as if nothing had been asked \
if it was too late.

SO_SNDTIMEO and SO_RCVTIMEO (exs_setsockopt(3)) bound operations: SENDTIMEOUT or RECVTIMEOUT with ETIMEDOUT \
comes in place of the event, and a call that waits is EAGAIN.",
        errors: &[
            ("EAGAIN", "the queue has no place, or too many transfers of the socket are pending"),
            ("EBADF, ENOTCONN, EPIPE", "as send(2)"),
            ("ECONNRESET", "the peer is gone; also in the event"),
            ("EFAULT", "the buffer is not there; in the event: registered memory was unmapped (a reset)"),
            ("EINVAL", "no such queue or handle; the buffer is not inside its handle; 0 bytes on a stream"),
            ("EMSGSIZE", "more than 2^31 bytes, or than 1024 pieces"),
            ("EOPNOTSUPP", "a flag that is not supported: MSG_OOB, EXS_PERSISTENT of a stream, \
             MSG_PEEK with MSG_WAITALL or of a packet that is not within its advertisement"),
            ("EPROTO", "in the event: the peer broke the protocol"),
        ],
    },
    Functions {
        names: &["exs_poll"],
        about: "wait for sockets to be ready",
        text: "\
The list may have descriptors of exs_socket(3) and of the kernel. revents are as those of poll(2). The POLL \
event has the list in exs_evt_data, and the number of descriptors that are ready in exs_evt_length; 0 if the \
time was over. The list belongs to the operation until then.",
        errors: &[
            ("EFAULT", "a null pointer"),
            ("EINVAL", "flags are not 0; a bad time; more than 4096 entries"),
        ],
    },
    Functions {
        names: &["exs_mregister", "exs_mderegister"],
        about: "register memory for transfers",
        text: "\
flags are 0. Memory that can only be read is registered for sends. It must stay mapped until it is deregistered.

The first call installs handlers of SIGSEGV and SIGBUS, by which the library finds out that memory was unmapped. They \
hand every other fault to the handler that was there before. A handler that is installed later should do so, too.",
        errors: &[
            ("EBUSY", "an operation uses it"),
            ("EFAULT", "the memory is not there"),
            ("EINVAL", "no byte, a flag, no such handle"),
            ("ENOMEM", "as ibv_reg_mr(3)"),
        ],
    },
    Functions {
        names: &["exs_qcreate", "exs_qmodify", "exs_qdelete", "exs_qdequeue", "exs_qfd"],
        about: "event queues of extended sockets",
        text: "\
A queue has depth places. An operation takes one when it begins, and gives it back when its event is taken; so \
no event is lost.

exs_qdequeue takes at most count events, and waits for one. If count is negative it waits for as many as -count, \
and takes no more. At the end of the time (null: there is none) it takes what is there, 0 included. A count of 0 \
does nothing.

Attributes: EXS_QATTR_DEPTH; EXS_QATTR_WAIT, how a thread waits: EXS_WAIT_ADAPTIVE looks at the wire for 150 us \
(up to 2.5 ms where that saves short sleeps) and then sleeps, EXS_WAIT_NOTIFY sleeps, EXS_WAIT_BUSY_POLL looks all \
the time, and signals do not end its wait. EXS_QATTR_SIGNAL, a signal when EXS_QATTR_EVENTS events are there, and \
again when some were taken and as many are left. exs_qfd returns a descriptor that is readable while as many are \
there; it belongs to the queue, and is for poll(2) and its like only.",
        errors: &[
            ("EAGAIN", "too many queues"),
            ("EBUSY", "operations are pending or events wait; a depth of fewer places than are in use"),
            ("EINTR", "a signal came before there were enough events; none is taken"),
            ("EINVAL", "no such queue or attribute; a bad value or time; a threshold that is more than the depth"),
        ],
    },
    Functions {
        names: &["exs_fcntl", "exs_getsockopt", "exs_setsockopt", "exs_getsockname", "exs_getpeername"],
        about: "options of extended sockets",
        text: "\
Commands: F_GETFL, F_SETFL (O_NONBLOCK), F_GETFD, F_SETFD, and before the socket connects or listens \
EXS_F_SETSMALL (bytes that go within an advertisement, at most 65536; the smaller number of both ends counts) \
and EXS_F_SETCREDITS (advertisements that this end holds, 1 to 1024), with EXS_F_GETSMALL and EXS_F_GETCREDITS.

EXS_F_SETTIMEOUT and EXS_F_GETTIMEOUT: the time in milliseconds, 60000 at first, after which a peer whose process \
does not answer is given up, and a connect that nobody accepts; operations end with ETIMEDOUT. 0 means never. A \
listener gives it to its connections, and it can be changed at any time but while the socket listens.

Options of SOL_SOCKET: SO_RCVTIMEO, SO_SNDTIMEO; to be read SO_TYPE, SO_DOMAIN, SO_PROTOCOL, SO_ERROR, \
SO_ACCEPTCONN. SO_REUSEADDR, SO_KEEPALIVE and SO_LINGER are taken, and mean nothing.

With descriptors of socket(2) they are the kernel's own calls.",
        errors: &[
            ("EINVAL", "a command or value that is none"),
            ("EISCONN", "it is too late for EXS_F_SETSMALL, EXS_F_SETCREDITS, or EXS_F_SETTIMEOUT of a listener"),
            ("ENOPROTOOPT, EDOM", "as setsockopt(2)"),
            ("ENOTCONN", "the socket has no peer"),
        ],
    },
];

const DESCRIPTION: &str = "\
libexs.so has extended sockets: the Open Group's ES-API with the additions of UNH-EXS. An operation on a socket \
begins at once and ends later, with an event in a queue. Data go straight from registered memory to registered \
memory. It uses the verbs library that the process has, or else the libibverbs.so.1 and librdmacm.so.1 that the \
loader finds. Descriptors of socket(2) are taken too, over TCP.

A send is advertised to the peer, which reads it when it has posted a receive. Little data go within the \
advertisement.

Events have their type in exs_evt_type: EXS_EVT_CONNECT, ACCEPT, SEND, RECV, SENDMSG, RECVMSG, SENDFILE, POLL, \
SHUTDOWN, CLOSE, and SENDTIMEOUT or RECVTIMEOUT for an operation whose time was over. exs_evt_errno is 0 if the \
operation succeeded. Events of one direction of a socket come in order.

The child of a fork(2) has no extended sockets: its calls are EBADF. An exec closes them.";

const LIBRARY: Library = Library {
    header: HEADER,
    include: "sys/exs.h",
    link: "Link with -lexs (exs.pc).",
    manual: "extended sockets",
    failed: "A call that fails returns -1, sets errno, and has no event.",
    overview: ("exs", "sockets with registered memory and event queues, on verbs", DESCRIPTION),
    beside: ("rdma_cm", "7"),
    pages: PAGES,
    common: Some(("exs_ahandle_t", QUEUED)),
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
        assert_eq!(LIBRARY.declared("exs_"), described);
        assert_eq!(described.len(), 27);
        assert!(
            LIBRARY
                .declaration("exs_accept")
                .is_some_and(|text| text.starts_with("int exs_accept(") && text.ends_with(");"))
        );
    }

    #[test]
    fn every_name_in_capitals_is_in_the_header() {
        let all = pages().unwrap().into_iter().map(|page| String::from_utf8(page.text).unwrap()).collect::<String>();
        for name in all.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("EXS_"))
        {
            assert!(HEADER.contains(name), "{name}");
        }
    }
}
