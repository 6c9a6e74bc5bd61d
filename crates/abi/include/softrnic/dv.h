/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What the device softrnic0 can do beyond <infiniband/verbs.h>.
 *
 * The functions are weak: a program that includes this file links without softrnic, runs on any device, and finds out by
 *
 *	if (softrnic_dv_alloc)
 *
 * whether they are there. Nothing has to be linked to.
 */
#ifndef SOFTRNICDV_H
#define SOFTRNICDV_H

#include <stddef.h>
#include <infiniband/verbs.h>
#include "dv_queues.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Memory for regions that peers reach by plain stores and loads: `length` bytes (at least), zeroed, at the beginning of a page. The
 * program uses it as any other memory, and registers it, or parts of it, with ibv_reg_mr(3). RDMA WRITE and READ by processes of the
 * same user, and atomics, are then executed by the initiator without a system call, and messages of more than 16 KiB that are sent
 * from it are copied once.
 *
 * It is shared memory: a forked child sees what its parent and peers write. Where the system does not permit memory to be shared it is
 * ordinary memory, reached as such. Together with device memory (ibv_alloc_dm(3)) there are 256 MiB for a process.
 *
 * NULL and errno: EINVAL if `context` is NULL or `length` is 0; EOPNOTSUPP if it is another device's; ENOMEM.
 */
__attribute__((weak)) void *softrnic_dv_alloc(struct ibv_context *context, size_t length);

/*
 * Gives back what softrnic_dv_alloc() gave.
 *
 * 0, or an errno: EINVAL if it gave no such address, or that was given back; EBUSY while a region is registered upon it.
 */
__attribute__((weak)) int softrnic_dv_free(struct ibv_context *context, void *addr);

#ifdef __cplusplus
}
#endif

#endif
