// What can be known at the call is refused there, with the errno of docs/exs.md, and brings no event.
#include "common.h"

const struct part PARTS[] = {{"echo", echo_packets}, {NULL, NULL}};

// As in src/ctypes.rs.
_Static_assert(sizeof(exs_event_t) == 48 && offsetof(exs_event_t, exs_evt_length) == 24, "");
_Static_assert(offsetof(exs_event_t, exs_evt_data) == 40 && offsetof(exs_event_t, exs_evt_newfd) == 32, "");
_Static_assert(offsetof(exs_event_t, exs_evt_ahandle) == 8, "");
_Static_assert(sizeof(exs_acceptaddr_t) == 24 && offsetof(exs_acceptaddr_t, exs_aa_peer) == 16, "");
_Static_assert(sizeof(exs_iovec_t) == 24 && offsetof(exs_iovec_t, iov_mhandle) == 16, "");
_Static_assert(sizeof(exs_msghdr_t) == 48 && offsetof(exs_msghdr_t, msg_iov) == 16, "");
_Static_assert(offsetof(exs_msghdr_t, msg_flags) == 40, "");
_Static_assert(sizeof(exs_xferfile_t) == 48 && offsetof(exs_xferfile_t, exs_xf_fd) == 24, "");
_Static_assert(offsetof(exs_xferfile_t, exs_xf_offset) == 32 && offsetof(exs_xferfile_t, exs_xf_length) == 40, "");
_Static_assert(sizeof(exs_pollfd_t) == 8 && sizeof(exs_fdvec_t) == 16 && sizeof(exs_signal_t) == 16, "");

static char bytes[4096];

static void without_a_socket(exs_qhandle_t queue, exs_mhandle_t handle)
{
	struct sockaddr_in address = at_port(1);
	struct sockaddr *to = (struct sockaddr *)&address;
	exs_msghdr_t message = {0};
	exs_xferfile_t file = {0};
	socklen_t len = sizeof address;
	int plain = open("/dev/null", O_RDWR), value = 0;
	const int bad[] = {-1, -100, 1 << 20, INT32_MAX};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		int fd = bad[i];
		REFUSED(exs_bind(fd, to, sizeof address), EBADF);
		REFUSED(exs_listen(fd, 1), EBADF);
		REFUSED(exs_accept(fd, NULL, 0, queue, 0), EBADF);
		REFUSED(exs_connect(fd, to, sizeof address, 0, queue, 0), EBADF);
		REFUSED(exs_shutdown(fd, SHUT_WR, queue, 0), EBADF);
		REFUSED(exs_close(fd, queue, 0), EBADF);
		REFUSED(exs_send(fd, bytes, 1, 0, queue, 0, handle), EBADF);
		REFUSED(exs_recv(fd, bytes, 1, 0, queue, 0, handle), EBADF);
		REFUSED(exs_sendmsg(fd, &message, 0, queue, 0), EBADF);
		REFUSED(exs_recvmsg(fd, &message, 0, queue, 0), EBADF);
		REFUSED(exs_sendfile(fd, &file, 0, queue, 0), EBADF);
		if (fd != -1)
			REFUSED(exs_cancel(fd, queue, 0), EBADF);
		REFUSED(exs_fcntl(fd, F_GETFL), EBADF);
		REFUSED(exs_fcntl(fd, EXS_F_GETSMALL), EBADF);
		REFUSED(exs_getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len), EBADF);
		REFUSED(exs_setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value), EBADF);
		REFUSED(exs_getsockname(fd, to, &len), EBADF);
		REFUSED(exs_getpeername(fd, to, &len), EBADF);
	}
	REFUSED(exs_send(plain, bytes, 1, 0, queue, 0, handle), ENOTSOCK);
	REFUSED(exs_accept(plain, NULL, 0, queue, 0), ENOTSOCK);
	REFUSED(exs_close(plain, queue, 0), ENOTSOCK);
	close(plain);
	no_event(queue);
}

static void sockets(exs_qhandle_t queue, exs_mhandle_t handle)
{
	struct sockaddr_in address = at_port(0);
	struct sockaddr *at = (struct sockaddr *)&address;
	struct timeval time = {.tv_sec = 1, .tv_usec = 1000000};
	socklen_t len = sizeof address;
	exs_xferfile_t file = {.exs_xf_fd = -1};
	int value;
	REFUSED(exs_socket(AF_UNIX, SOCK_STREAM, 0), EAFNOSUPPORT);
	REFUSED(exs_socket(AF_INET, SOCK_DGRAM, 0), EPROTOTYPE);
	REFUSED(exs_socket(AF_INET, SOCK_STREAM, 99), EPROTONOSUPPORT);
	int fd = exs_socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
	CHECK(fd >= 0);
	// It is a real descriptor, and the kernel's calls for sockets refuse it.
	EQUALS(fcntl(fd, F_GETFD), FD_CLOEXEC);
	REFUSED(send(fd, bytes, 1, 0), EBADF);
	REFUSED(read(fd, bytes, 1), EBADF);

	REFUSED(exs_bind(fd, NULL, sizeof address), EFAULT);
	REFUSED(exs_bind(fd, at, 1), EINVAL);
	REFUSED(exs_bind(fd, at, sizeof address - 1), EINVAL);
	address.sin_family = AF_INET6;
	REFUSED(exs_bind(fd, at, sizeof address), EAFNOSUPPORT);
	address.sin_family = AF_INET;
	REFUSED(exs_accept(fd, NULL, 0, queue, 0), EINVAL);
	REFUSED(exs_connect(fd, at, sizeof address, 1, queue, 0), EINVAL);
	REFUSED(exs_connect(fd, NULL, sizeof address, 0, queue, 0), EFAULT);
	REFUSED(exs_connect(fd, at, sizeof address, 0, queue + 1000, 0), EINVAL);
	REFUSED(exs_shutdown(fd, 7, queue, 0), EINVAL);
	REFUSED(exs_shutdown(fd, SHUT_WR, queue, 0), ENOTCONN);
	REFUSED(exs_send(fd, bytes, 1, 0, queue, 0, handle), ENOTCONN);
	REFUSED(exs_recv(fd, bytes, 1, 0, queue, 0, handle), ENOTCONN);
	REFUSED(exs_send(fd, bytes, 1, MSG_OOB, queue, 0, handle), EOPNOTSUPP);
	REFUSED(exs_recv(fd, bytes, 1, MSG_OOB, queue, 0, handle), EOPNOTSUPP);
	REFUSED(exs_sendmsg(fd, NULL, 0, queue, 0), EFAULT);
	REFUSED(exs_recvmsg(fd, NULL, 0, queue, 0), EFAULT);
	REFUSED(exs_sendfile(fd, NULL, 0, queue, 0), EFAULT);
	REFUSED(exs_sendfile(fd, &file, 0, queue, 0), EBADF);
	REFUSED(exs_sendfile(fd, &file, MSG_WAITALL, queue, 0), EOPNOTSUPP);
	REFUSED(exs_getpeername(fd, at, &len), ENOTCONN);
	REFUSED(exs_getsockname(fd, NULL, &len), EFAULT);
	REFUSED(exs_getsockname(fd, at, NULL), EFAULT);
	EQUALS(exs_cancel(fd, queue, 0), 0);
	REFUSED(exs_cancel(fd, queue + 1000, 0), EINVAL);

	EQUALS(exs_fcntl(fd, F_GETFL), O_RDWR | O_NONBLOCK);
	EQUALS(exs_fcntl(fd, F_SETFL, 0), 0);
	EQUALS(exs_fcntl(fd, F_GETFL), O_RDWR);
	EQUALS(exs_fcntl(fd, F_GETFD), FD_CLOEXEC);
	EQUALS(exs_fcntl(fd, F_SETFD, 0), 0);
	EQUALS(exs_fcntl(fd, F_GETFD), 0);
	REFUSED(exs_fcntl(fd, 12345), EINVAL);
	EQUALS(exs_fcntl(fd, EXS_F_SETSMALL, 1000), 0);
	EQUALS(exs_fcntl(fd, EXS_F_GETSMALL), 1000);
	REFUSED(exs_fcntl(fd, EXS_F_SETSMALL, -1), EINVAL);
	REFUSED(exs_fcntl(fd, EXS_F_SETSMALL, 65537), EINVAL);
	EQUALS(exs_fcntl(fd, EXS_F_SETCREDITS, 5), 0);
	EQUALS(exs_fcntl(fd, EXS_F_GETCREDITS), 5);
	REFUSED(exs_fcntl(fd, EXS_F_SETCREDITS, 0), EINVAL);
	REFUSED(exs_fcntl(fd, EXS_F_SETCREDITS, 1025), EINVAL);

	len = sizeof value;
	EQUALS(exs_getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len), 0);
	EQUALS(value, SOCK_STREAM);
	EQUALS(exs_getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &value, &len), 0);
	EQUALS(value, AF_INET);
	EQUALS(exs_getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &value, &len), 0);
	EQUALS(value, 0);
	EQUALS(exs_getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &len), 0);
	EQUALS(value, 0);
	EQUALS(exs_getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &len), 0);
	EQUALS(value, 0);
	REFUSED(exs_getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, &len), ENOPROTOOPT);
	REFUSED(exs_getsockopt(fd, IPPROTO_TCP, 1, &value, &len), ENOPROTOOPT);
	REFUSED(exs_getsockopt(fd, SOL_SOCKET, SO_TYPE, NULL, &len), EFAULT);
	REFUSED(exs_getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, NULL), EFAULT);
	value = 1;
	EQUALS(exs_setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &value, sizeof value), 0);
	REFUSED(exs_setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, sizeof value), ENOPROTOOPT);
	REFUSED(exs_setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &value, sizeof value), EINVAL);
	REFUSED(exs_setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, NULL, sizeof time), EFAULT);
	REFUSED(exs_setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time), EDOM);
	time.tv_usec = 5000;
	EQUALS(exs_setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time), 0);
	time.tv_sec = 0;
	len = sizeof time;
	EQUALS(exs_getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, &len), 0);
	CHECK(time.tv_sec == 1 && time.tv_usec == 5000 && len == sizeof time);

	address.sin_addr.s_addr = inet_addr("192.0.2.1");
	REFUSED(exs_bind(fd, at, sizeof address), EADDRNOTAVAIL);
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	EQUALS(exs_bind(fd, at, sizeof address), 0);
	CHECK(port_of(fd) != 0);
	REFUSED(exs_bind(fd, at, sizeof address), EINVAL);
	int other = exs_socket(AF_INET, SOCK_STREAM, 0);
	address.sin_port = htons(port_of(fd));
	REFUSED(exs_bind(other, at, sizeof address), EADDRINUSE);
	EQUALS(exs_listen(fd, 1), 0);
	EQUALS(exs_getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, (len = sizeof value, &len)), 0);
	EQUALS(value, 1);
	REFUSED(exs_listen(fd, 1), EINVAL);
	REFUSED(exs_connect(fd, at, sizeof address, 0, queue, 0), EOPNOTSUPP);
	REFUSED(exs_accept(fd, NULL, MSG_OOB, queue, 0), EINVAL);
	REFUSED(exs_accept(fd, NULL, MSG_DONTWAIT, SYNC), EAGAIN);
	REFUSED(exs_fcntl(fd, EXS_F_SETSMALL, 1), EISCONN);
	REFUSED(exs_send(fd, bytes, 1, 0, queue, 0, handle), ENOTCONN);
	closed(fd);
	closed(other);
	REFUSED(exs_close(fd, queue, 0), EBADF);
	no_event(queue);
}

static void memory(void)
{
	REFUSED(exs_mregister(bytes, 0, 0), EINVAL);
	REFUSED(exs_mregister(bytes, sizeof bytes, 1), EINVAL);
	REFUSED(exs_mregister(bytes, SIZE_MAX, 0), EINVAL);
	REFUSED(exs_mregister((void *)-4096L, 8192, 0), EINVAL);
	REFUSED(exs_mregister(NULL, 1, 0), EFAULT);
	char *gone = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(gone != MAP_FAILED);
	munmap(gone, 8192);
	REFUSED(exs_mregister(gone, 8192, 0), EFAULT);
	REFUSED(exs_mderegister(EXS_MHANDLE_INVALID), EINVAL);
	REFUSED(exs_mderegister(EXS_MHANDLE_UNREGISTERED), EINVAL);
	REFUSED(exs_mderegister(12345), EINVAL);
	exs_mhandle_t handle = exs_mregister(bytes, 10, 0);
	CHECK(handle != EXS_MHANDLE_INVALID);
	EQUALS(exs_mderegister(handle), 0);
	REFUSED(exs_mderegister(handle), EINVAL);
	// A stale handle stays one.
	exs_mhandle_t later = exs_mregister(bytes, 10, 0);
	CHECK(later != handle);
	REFUSED(exs_mderegister(handle), EINVAL);
	EQUALS(exs_mderegister(later), 0);
}

static void queues(exs_qhandle_t queue)
{
	exs_event_t event;
	struct timeval negative = {.tv_sec = -1}, odd = {.tv_usec = 1000000}, none = {0};
	exs_signal_t signal = {.exs_sig_signo = 10000};
	int zero = 0, three = 3, many = 100000;
	EQUALS(exs_init(EXS_VERSION), EXS_VERSION);
	EQUALS(exs_init(EXS_VERSION + 1), EXS_VERSION);
	REFUSED(exs_init(0), EINVAL);
	REFUSED(exs_qcreate(0), EINVAL);
	REFUSED(exs_qcreate(-1), EINVAL);
	REFUSED(exs_qdelete(EXS_QHANDLE_INVALID), EINVAL);
	REFUSED(exs_qdelete(queue + 1000), EINVAL);
	REFUSED(exs_qfd(queue + 1000), EINVAL);
	REFUSED(exs_qdequeue(queue + 1000, &event, 1, &none), EINVAL);
	REFUSED(exs_qdequeue(queue, NULL, 1, &none), EFAULT);
	REFUSED(exs_qdequeue(queue, &event, 1, &negative), EINVAL);
	REFUSED(exs_qdequeue(queue, &event, 1, &odd), EINVAL);
	REFUSED(exs_qdequeue(queue, &event, -(EXS_EVTVEC_MAX + 1), &none), EINVAL);
	REFUSED(exs_qdequeue(queue, &event, -17, &none), EINVAL);
	REFUSED(exs_qdequeue(queue, &event, INT32_MIN, &none), EINVAL);
	EQUALS(exs_qdequeue(queue, NULL, 0, NULL), 0);
	REFUSED(exs_qmodify(queue, 99, &three), EINVAL);
	REFUSED(exs_qmodify(queue + 1000, EXS_QATTR_DEPTH, &three), EINVAL);
	REFUSED(exs_qmodify(queue, EXS_QATTR_DEPTH, NULL), EFAULT);
	REFUSED(exs_qmodify(queue, EXS_QATTR_DEPTH, &zero), EINVAL);
	REFUSED(exs_qmodify(queue, EXS_QATTR_WAIT, &zero), EINVAL);
	REFUSED(exs_qmodify(queue, EXS_QATTR_EVENTS, &zero), EINVAL);
	REFUSED(exs_qmodify(queue, EXS_QATTR_EVENTS, &many), EINVAL);
	REFUSED(exs_qmodify(queue, EXS_QATTR_SIGNAL, &signal), EINVAL);
	REFUSED(exs_poll(NULL, 0, NULL, queue, 0), EFAULT);
	exs_fdvec_t list = {.exs_fdv_count = -1};
	REFUSED(exs_poll(&list, 0, NULL, queue, 0), EINVAL);
	list.exs_fdv_count = 1;
	REFUSED(exs_poll(&list, 0, NULL, queue, 0), EFAULT);
	REFUSED(exs_poll(&list, 1, NULL, queue, 0), EINVAL);
}

// Of a connection.
static void transfers(exs_qhandle_t queue, exs_mhandle_t handle)
{
	int from = listener(SOCK_SEQPACKET);
	struct peer *peer = start("echo", port_of(from));
	int fd = accepted(from);
	struct sockaddr_in address = at_port(1);
	exs_iovec_t piece = {bytes, sizeof bytes, handle, 0};
	exs_msghdr_t message = {.msg_iov = &piece, .msg_iovlen = 1025};
	exs_mhandle_t stale = exs_mregister(bytes, 10, 0);
	EQUALS(exs_mderegister(stale), 0);

	REFUSED(exs_connect(fd, (struct sockaddr *)&address, sizeof address, 0, queue, 0), EISCONN);
	REFUSED(exs_listen(fd, 1), EINVAL);
	REFUSED(exs_fcntl(fd, EXS_F_SETCREDITS, 3), EISCONN);
	REFUSED(exs_send(fd, bytes, sizeof bytes + 1, 0, queue, 0, handle), EINVAL);
	REFUSED(exs_send(fd, before(bytes), 2, 0, queue, 0, handle), EINVAL);
	REFUSED(exs_recv(fd, bytes + sizeof bytes - 1, 2, 0, queue, 0, handle), EINVAL);
	REFUSED(exs_send(fd, bytes, SIZE_MAX, 0, queue, 0, handle), EINVAL);
	REFUSED(exs_recv(fd, bytes, (size_t)SSIZE_MAX + 1, 0, queue, 0, LOOSE), EINVAL);
	REFUSED(exs_send(fd, bytes, (size_t)3 << 30, 0, queue, 0, LOOSE), EMSGSIZE);
	REFUSED(exs_send(fd, bytes, 1, 0, queue, 0, EXS_MHANDLE_INVALID), EINVAL);
	REFUSED(exs_send(fd, bytes, 1, 0, queue, 0, stale), EINVAL);
	REFUSED(exs_recv(fd, bytes, 1, 0, queue, 0, stale), EINVAL);
	REFUSED(exs_send(fd, NULL, 1, 0, queue, 0, LOOSE), EFAULT);
	REFUSED(exs_send(fd, (void *)64, 1, 0, queue, 0, LOOSE), EFAULT);
	REFUSED(exs_send(fd, (void *)64, 1 << 20, 0, queue, 0, LOOSE), EFAULT);
	REFUSED(exs_send(fd, bytes, 1, 1 << 20, queue, 0, handle), EOPNOTSUPP);
	REFUSED(exs_send(fd, bytes, 1, 0, queue + 1000, 0, handle), EINVAL);
	REFUSED(exs_sendmsg(fd, &message, 0, queue, 0), EMSGSIZE);
	message.msg_iovlen = -1;
	REFUSED(exs_sendmsg(fd, &message, 0, queue, 0), EINVAL);
	message.msg_iovlen = 1;
	message.msg_name = &address;
	message.msg_namelen = sizeof address;
	REFUSED(exs_sendmsg(fd, &message, 0, queue, 0), EISCONN);
	message.msg_name = NULL;
	message.msg_control = bytes;
	message.msg_controllen = 16;
	REFUSED(exs_sendmsg(fd, &message, 0, queue, 0), EOPNOTSUPP);
	message.msg_control = NULL;
	message.msg_iov = NULL;
	REFUSED(exs_recvmsg(fd, &message, 0, queue, 0), EFAULT);
	REFUSED(exs_recv(fd, bytes, 1, MSG_DONTWAIT, SYNC, handle), EAGAIN);
	no_event(queue);
	EQUALS(exs_shutdown(fd, SHUT_WR, queue, 5), 0);
	EVENT(queue, EXS_EVT_SHUTDOWN, 5, 0);
	REFUSED(exs_send(fd, bytes, 1, 0, queue, 0, handle), EPIPE);
	finish(peer);
	closed(fd);
	REFUSED(exs_send(fd, bytes, 1, 0, queue, 0, handle), EBADF);
	closed(from);
}

void test(void)
{
	exs_qhandle_t queue = queue_of(16);
	exs_mhandle_t handle = exs_mregister(bytes, sizeof bytes, 0);
	CHECK(handle != EXS_MHANDLE_INVALID);
	without_a_socket(queue, handle);
	sockets(queue, handle);
	memory();
	queues(queue);
	transfers(queue, handle);
	no_event(queue);
	EQUALS(exs_mderegister(handle), 0);
	EQUALS(exs_qdelete(queue), 0);
	REFUSED(exs_qdelete(queue), EINVAL);
}
