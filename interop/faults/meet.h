#ifndef MEET_H
#define MEET_H

#include <stdbool.h>

#include <infiniband/verbs.h>

/* Print which call failed and how, and end the process. */
void die(const char *what) __attribute__((noreturn));

#define NEED(call) \
	({ \
		__typeof__(call) got_ = (call); \
		if (!got_) \
			die(#call); \
		got_; \
	})
#define ZERO(call) \
	do { \
		int ret_ = (call); \
		if (ret_) { \
			errno = ret_ > 0 ? ret_ : errno; \
			die(#call); \
		} \
	} while (0)

struct ibv_context *open_device(void);
bool readable(int fd, int ms);
const char *event_name(enum ibv_event_type type);

/* `meet near cm` */
void connections(void);

#endif
