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

/*
 * For a region whose memory may go while it is registered (munmap(2), a file that is cut off), of a program whose handler of SIGSEGV and
 * SIGBUS calls softrnic_dv_fault(). An access to memory that is gone, or that has not the right, ends the request as with
 * IBV_ACCESS_ON_DEMAND: IBV_WC_LOC_PROT_ERR, or IBV_WC_REM_OP_ERR for a peer. Copies of up to 16 KiB are made without a system call for
 * that: they fault, and fail. So are those of all ON_DEMAND regions of the process from then on. Longer copies go through the kernel, and
 * so do all of the library's own threads, and of a thread that blocks one of the two signals when it makes its first such copy. A thread
 * that blocks them later is ended by such a fault, with its process. Atomics take system calls, and are not safe from an munmap(2) at the
 * same moment. Peers reach the region as before, also where it lies in memory that they map: what the program unmaps stays there for
 * them, as with an adapter.
 *
 * To be called before the region is used. It lasts until ibv_dereg_mr(3) or ibv_rereg_mr(3). A program that replaces its handler later
 * gets the faults itself, those of ON_DEMAND regions, too.
 *
 * 0, or an errno: EINVAL if `mr` is NULL, or has no memory (ibv_alloc_null_mr(3)); EOPNOTSUPP if it is another device's, or on other
 * processors than x86-64.
 */
__attribute__((weak)) int softrnic_dv_catch_faults(struct ibv_mr *mr);

/*
 * To be called by a handler with SA_SIGINFO, with its third argument, for a fault (si_code > 0, and not BUS_MCEERR_AO), before anything
 * else. 1: a copy of the library has faulted; it fails when the handler returns, which is all that is left to be done. 0: the fault is
 * not the library's, or `context` is NULL. Async-signal-safe; it changes nothing but `context`, and not errno.
 */
__attribute__((weak)) int softrnic_dv_fault(void *context);

#ifdef __cplusplus
}
#endif

#endif
