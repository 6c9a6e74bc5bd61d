// A ping-pong of 8 bytes between two queue pairs of one process, as often as the argument says. The cost of one message
// in instructions, for its program and the device, is the difference between two runs.
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MUST(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno));                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static struct ibv_cq *sends[2], *receives[2];
static struct ibv_qp *qps[2];

static void make(struct ibv_context *context, struct ibv_pd *pd, int i) {
    MUST(sends[i] = ibv_create_cq(context, 64, NULL, NULL, 0));
    MUST(receives[i] = ibv_create_cq(context, 64, NULL, NULL, 0));
    struct ibv_qp_init_attr init = {
        .send_cq = sends[i],
        .recv_cq = receives[i],
        .cap = {.max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64},
        .qp_type = IBV_QPT_RC,
        .sq_sig_all = 1,
    };
    MUST(qps[i] = ibv_create_qp(pd, &init));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    MUST(!ibv_modify_qp(qps[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
}

static void connect_to(int i, uint32_t qpn, const union ibv_gid *gid) {
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = qpn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .hop_limit = 1}},
    };
    MUST(!ibv_modify_qp(qps[i], &rtr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                            IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    MUST(!ibv_modify_qp(qps[i], &rts,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                            IBV_QP_MAX_QP_RD_ATOMIC));
}

static void poll(struct ibv_cq *cq, uint64_t number) {
    struct ibv_wc wc;
    int n;
    while ((n = ibv_poll_cq(cq, 1, &wc)) == 0) {
    }
    MUST(n == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == number);
}

int main(int argc, char **argv) {
    MUST(argc == 2);
    uint64_t messages = strtoull(argv[1], NULL, 10);
    struct ibv_device **devices = ibv_get_device_list(NULL);
    MUST(devices && devices[0]);
    struct ibv_context *context = ibv_open_device(devices[0]);
    MUST(context);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    MUST(pd);
    static char memory[2][64];
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE);
    MUST(mr);
    union ibv_gid gid;
    MUST(!ibv_query_gid(context, 1, 0, &gid));
    for (int i = 0; i < 2; i++) {
        make(context, pd, i);
    }
    for (int i = 0; i < 2; i++) {
        connect_to(i, qps[!i]->qp_num, &gid);
    }
    for (uint64_t number = 0; number < messages; number++) {
        int from = number & 1, to = !from;
        struct ibv_sge source = {(uintptr_t)memory[from], 8, mr->lkey}, sink = {(uintptr_t)memory[to], 8, mr->lkey};
        struct ibv_recv_wr receive = {.wr_id = number, .sg_list = &sink, .num_sge = 1}, *bad_receive;
        struct ibv_send_wr send = {.wr_id = number, .sg_list = &source, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
        memcpy(memory[from], &number, 8);
        MUST(!ibv_post_recv(qps[to], &receive, &bad_receive));
        MUST(!ibv_post_send(qps[from], &send, &bad_send));
        poll(receives[to], number);
        poll(sends[from], number);
        MUST(!memcmp(memory[to], &number, 8));
    }
    return 0;
}
