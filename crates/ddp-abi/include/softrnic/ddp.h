/*
 * Direct data placement from C: messages on a TCP socket whose bytes go to where a buffer says. Link with
 * -lsoftrnic-ddp. The peer may be any iWARP (RFC 5040, 5041, 5044).
 *
 * docs/ddp.md of softrnic says what the calls do. Functions that return int return -1 for an error, others NULL; errno
 * says which error it was, and ddp_error in words. Names that librdmacm has for itself begin with softrnic_.
 */
#ifndef _SOFTRNIC_DDP_H
#define _SOFTRNIC_DDP_H 1

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A connection. Calls of several threads on one socket wait for each other. */
struct ddp_socket;

/* Flags of a connection's terms: no CRCs unless the peer asks for them; markers in what this side receives. */
#define DDP_NO_CRC 1
#define DDP_MARKERS 2

/* The terms that a side asks for. A number that is 0 stands for its default. */
struct ddp_options {
	uint32_t flags;
	uint32_t reads;   /* READs outstanding in each direction: 1 to 255, default 1 */
	uint32_t segment; /* bytes of a TCP segment, to which messages are fitted: 512 to 65535, default 1448 */
	uint32_t timeout; /* milliseconds that a call waits for the peer, default 60000 */
};

/* A place at the peer, or at this side: a registration, and an offset in its buffer. */
struct ddp_address {
	uint32_t tag;
	uint64_t offset;
};

/* What has come. */
#define DDP_MESSAGE 1 /* an untagged message, in the buffer that was posted first */
#define DDP_TAGGED 2  /* the tagged messages to a registration that were sent before this id */

struct ddp_indication {
	int type;
	int solicited;   /* of a message: its sender wants an event */
	void *buffer;    /* of a message: where it is; the buffer is posted no longer */
	size_t length;   /* of a message */
	uint64_t id;     /* of a notice */
	uint32_t tag;    /* of a notice: the registration; of a message: the one that it has ended, or 0 */
	uint32_t reserved;
};

/* Bytes of a message that fit into one segment. Longer messages take more segments. */
struct ddp_msizes {
	size_t untagged;
	size_t tagged;
};

/* Modes of a registration: the peer may read; the peer may write, and READs of this side may bring their data. */
#define DDP_READ 1
#define DDP_WRITE 2

/* Listen at "HOST:PORT"; port 0 is any. Returns a descriptor, as socket(2) and listen(2) would. */
int ddp_listen(const char *host_port);

/* Accept a connection from a TCP socket that listens. options may be NULL. */
struct ddp_socket *ddp_accept(int listener, const struct ddp_options *options);

/* Connect to "HOST:PORT". options may be NULL. */
struct ddp_socket *ddp_connect(const char *host_port, const struct ddp_options *options);

/* Close a connection: what was sent arrives. Its registrations and posted buffers are the program's again. */
int ddp_close(struct ddp_socket *socket);

/* Send an untagged message: the peer's next posted buffer takes it. */
int ddp_send(struct ddp_socket *socket, const void *message, size_t length);
int softrnic_rdma_send(struct ddp_socket *socket, const void *message, size_t length);

/* Send a tagged message: its bytes are placed there. The peer's program gets *notify as an id, or nothing if NULL. */
int ddp_send_ddp(struct ddp_socket *socket, const void *message, size_t length, const struct ddp_address *to,
		 const uint64_t *notify);
int softrnic_rdma_write(struct ddp_socket *socket, const void *message, size_t length, const struct ddp_address *to,
			const uint64_t *notify);

/* Read bytes of the peer into a registration of this side, and wait for them (RFC 5040's RDMA Read). */
int softrnic_rdma_read(struct ddp_socket *socket, const struct ddp_address *from, size_t length,
		       const struct ddp_address *to);

/* Post a buffer for one message of the peer. It may be posted on several sockets: one message takes it from all. */
int ddp_post_recv(struct ddp_socket *socket, void *buffer, size_t length);
int softrnic_rdma_post_recv(struct ddp_socket *socket, void *buffer, size_t length);

/* Wait for the next message or notice. Returns 1, or 0 when the peer has closed the connection. */
int ddp_recv(struct ddp_socket *socket, struct ddp_indication *came);
int softrnic_rdma_recv(struct ddp_socket *socket, struct ddp_indication *came);

/* Register a buffer: the peer may write there by the tag. The second function takes a mode. */
int ddp_register(struct ddp_socket *socket, void *buffer, size_t length, uint32_t *tag);
int softrnic_rdma_register(struct ddp_socket *socket, void *buffer, size_t length, int mode, uint32_t *tag);

/* End a registration. A message of the peer to this tag then ends the connection. */
int ddp_deregister(struct ddp_socket *socket, uint32_t tag);
int softrnic_rdma_deregister(struct ddp_socket *socket, uint32_t tag);

/* The sizes of messages of one segment. */
int ddp_max_msizes(struct ddp_socket *socket, struct ddp_msizes *sizes);
int softrnic_rdma_max_msizes(struct ddp_socket *socket, struct ddp_msizes *sizes);

/* Why the last call of this thread that failed did; the text stays until another one fails. */
const char *ddp_error(void);

#ifdef __cplusplus
}
#endif

#endif
