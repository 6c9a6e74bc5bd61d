/*
 * Extended sockets (EXS): sockets with registered memory and event queues.
 *
 * docs/exs.md of softrnic says which of this is the Open Group's (ES-API, C050), which is UNH-EXS's, and which is
 * this library's own. Link with -lexs.
 *
 * A call that fails returns -1 and sets errno, and brings no event. A call with a queue returns 0 when its operation
 * has begun, and brings one event. A call with EXS_QHANDLE_INVALID waits, and returns what its event would have said.
 */
#ifndef _SYS_EXS_H
#define _SYS_EXS_H 1

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef int exs_version_t;
#define EXS_VERSION 1

/* An event queue. */
typedef int32_t exs_qhandle_t;
#define EXS_QHANDLE_INVALID ((exs_qhandle_t)-1)

/* Registered memory. */
typedef int32_t exs_mhandle_t;
#define EXS_MHANDLE_INVALID ((exs_mhandle_t)-1)
#define EXS_MHANDLE_UNREGISTERED ((exs_mhandle_t)-2)

/* A number or a pointer of the program, which comes back in the event. */
typedef intptr_t exs_ahandle_t;

/* Types of events. */
#define EXS_EVT_POLL 1
#define EXS_EVT_CONNECT 2
#define EXS_EVT_ACCEPT 3
#define EXS_EVT_SEND 4
#define EXS_EVT_RECV 5
#define EXS_EVT_SENDMSG 6
#define EXS_EVT_RECVMSG 7
#define EXS_EVT_SENDFILE 8
#define EXS_EVT_SENDTIMEOUT 9
#define EXS_EVT_RECVTIMEOUT 10
#define EXS_EVT_SHUTDOWN 11
#define EXS_EVT_CLOSE 12

/* The end of an operation. */
typedef struct exs_event {
	int exs_evt_type;
	int exs_evt_fd;                /* the operation's descriptor; -1 for POLL */
	exs_ahandle_t exs_evt_ahandle;
	int exs_evt_errno;             /* 0: it succeeded */
	int exs_evt_flags;             /* MSG_TRUNC; EXS_EOF */
	size_t exs_evt_length;         /* bytes; POLL: entries with revents */
	int exs_evt_newfd;             /* ACCEPT: the connection; else -1 */
	int exs_evt_reserved;
	void *exs_evt_data;            /* POLL: the exs_fdvec_t; SENDMSG, RECVMSG: the exs_msghdr_t */
} exs_event_t;

/* The most events that one exs_qdequeue gives. */
#define EXS_EVTVEC_MAX 1024

/* exs_evt_flags: the peer will send no more. */
#define EXS_EOF 0x10000000
/* A flag of exs_send: the send stays until it is cancelled, and every receive of the peer reads it anew. */
#define EXS_PERSISTENT 0x20000000

/* Where an accept puts addresses; each pointer may be null. The lengths are in and out, as with accept(2). */
typedef struct exs_acceptaddr {
	struct sockaddr *exs_aa_local;
	socklen_t exs_aa_locallen;
	socklen_t exs_aa_peerlen;
	struct sockaddr *exs_aa_peer;
} exs_acceptaddr_t;

typedef struct exs_iovec {
	void *iov_base;
	size_t iov_len;
	exs_mhandle_t iov_mhandle;
	int iov_reserved;
} exs_iovec_t;

typedef struct exs_msghdr {
	void *msg_name;                /* must be null */
	socklen_t msg_namelen;
	int msg_iovlen;
	exs_iovec_t *msg_iov;
	void *msg_control;             /* must be null */
	size_t msg_controllen;
	int msg_flags;                 /* out, with the event: MSG_TRUNC, EXS_EOF */
	int msg_reserved;
} exs_msghdr_t;

/* header, then length bytes of fd from offset on, then trailer; length 0: up to the end of the file. */
typedef struct exs_xferfile {
	exs_iovec_t *exs_xf_header;
	exs_iovec_t *exs_xf_trailer;
	int exs_xf_headerlen;          /* entries */
	int exs_xf_trailerlen;
	int exs_xf_fd;
	int exs_xf_reserved;
	off_t exs_xf_offset;
	size_t exs_xf_length;
} exs_xferfile_t;

/* As struct pollfd. */
typedef struct exs_pollfd {
	int fd;
	short events;
	short revents;
} exs_pollfd_t;

typedef struct exs_fdvec {
	exs_pollfd_t *exs_fdv_fds;
	int exs_fdv_count;
	int exs_fdv_reserved;
} exs_fdvec_t;

/* The signal of a queue; signo 0: none. */
typedef struct exs_signal {
	int exs_sig_signo;
	int exs_sig_reserved;
	union sigval exs_sig_value;
} exs_signal_t;

/* Attributes of a queue, and the type of exs_qmodify's value. */
#define EXS_QATTR_DEPTH 1              /* const int *: operations that may be pending */
#define EXS_QATTR_SIGNAL 2             /* const exs_signal_t *: sent when the threshold is reached */
#define EXS_QATTR_EVENTS 3             /* const int *: the threshold of the signal and of the descriptor, at first 1 */
#define EXS_QATTR_WAIT 4               /* const int *: EXS_WAIT_... */

#define EXS_WAIT_ADAPTIVE 1            /* look for a short time, then sleep; the default */
#define EXS_WAIT_NOTIFY 2              /* sleep */
#define EXS_WAIT_BUSY_POLL 3           /* look */

/* Commands of exs_fcntl beside F_GETFL, F_SETFL, F_GETFD and F_SETFD; before the socket is connected. */
#define EXS_F_GETSMALL 0x45580001      /* bytes that a send brings in its advertisement, at most */
#define EXS_F_SETSMALL 0x45580002
#define EXS_F_GETCREDITS 0x45580003    /* advertisements that this end holds */
#define EXS_F_SETCREDITS 0x45580004
#define EXS_F_GETTIMEOUT 0x45580005    /* milliseconds after which a peer that does not answer is given up; 0: never */
#define EXS_F_SETTIMEOUT 0x45580006

exs_version_t exs_init(exs_version_t version);

int exs_socket(int domain, int type, int protocol);
int exs_bind(int fd, const struct sockaddr *address, socklen_t len);
int exs_listen(int fd, int backlog);
int exs_accept(int fd, exs_acceptaddr_t *addresses, int flags, exs_qhandle_t queue, exs_ahandle_t ahandle);
int exs_connect(int fd, const struct sockaddr *address, socklen_t len, int flags, exs_qhandle_t queue,
		exs_ahandle_t ahandle);
int exs_shutdown(int fd, int how, exs_qhandle_t queue, exs_ahandle_t ahandle);
int exs_close(int fd, exs_qhandle_t queue, exs_ahandle_t ahandle);

ssize_t exs_send(int fd, const void *buffer, size_t len, int flags, exs_qhandle_t queue, exs_ahandle_t ahandle,
		 exs_mhandle_t memory);
ssize_t exs_recv(int fd, void *buffer, size_t len, int flags, exs_qhandle_t queue, exs_ahandle_t ahandle,
		 exs_mhandle_t memory);
ssize_t exs_sendmsg(int fd, const exs_msghdr_t *message, int flags, exs_qhandle_t queue, exs_ahandle_t ahandle);
ssize_t exs_recvmsg(int fd, exs_msghdr_t *message, int flags, exs_qhandle_t queue, exs_ahandle_t ahandle);
ssize_t exs_sendfile(int fd, const exs_xferfile_t *file, int flags, exs_qhandle_t queue, exs_ahandle_t ahandle);
int exs_poll(exs_fdvec_t *fds, int flags, const struct timeval *timeout, exs_qhandle_t queue,
	     exs_ahandle_t ahandle);
int exs_cancel(int fd, exs_qhandle_t queue, exs_ahandle_t ahandle);

/* One int, or nothing, follows the command. */
int exs_fcntl(int fd, int command, ...);
int exs_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int exs_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int exs_getsockname(int fd, struct sockaddr *address, socklen_t *len);
int exs_getpeername(int fd, struct sockaddr *address, socklen_t *len);

exs_mhandle_t exs_mregister(void *start, size_t len, int flags);
int exs_mderegister(exs_mhandle_t memory);

exs_qhandle_t exs_qcreate(int depth);
int exs_qmodify(exs_qhandle_t queue, int attribute, const void *value);
int exs_qdelete(exs_qhandle_t queue);
int exs_qdequeue(exs_qhandle_t queue, exs_event_t *events, int count, const struct timeval *timeout);
/* A descriptor that is readable while as many events wait as EXS_QATTR_EVENTS says. It belongs to the queue. */
int exs_qfd(exs_qhandle_t queue);

#ifdef __cplusplus
}
#endif

#endif
