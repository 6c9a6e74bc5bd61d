// SENDs of a queue pair to itself, polled and by events, for programs that are built with a sanitizer.
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(x) do { if (!(x)) { fprintf(stderr, "line %d: %s\n", __LINE__, #x); exit(1); } } while (0)

static void connect_to_itself(struct ibv_context *context, struct ibv_qp *qp)
{
    union ibv_gid gid;
    CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
    struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
    CHECK(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    struct ibv_qp_attr rtr = {
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num,
        .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } },
    };
    CHECK(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                       IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    struct ibv_qp_attr rts = {
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
    };
    CHECK(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                       IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

int main(void)
{
    int n;
    struct ibv_device **list = ibv_get_device_list(&n);
    CHECK(list && n > 0);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context);
    ibv_free_device_list(list);
    struct ibv_pd *pd = ibv_alloc_pd(context);
    char *buf = malloc(8192);
    CHECK(pd && buf);
    memset(buf, 7, 8192);
    struct ibv_mr *mr = ibv_reg_mr(pd, buf, 8192, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    CHECK(mr && channel);
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0);
    CHECK(cq);
    struct ibv_qp_init_attr attr = {
        .send_cq = cq, .recv_cq = cq, .cap = { 16, 16, 1, 1, 0 }, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &attr);
    CHECK(qp);
    connect_to_itself(context, qp);
    for (int i = 0; i < 50; i++) {
        struct ibv_sge from = { (uintptr_t)buf, 64, mr->lkey }, to = { (uintptr_t)buf + 4096, 64, mr->lkey };
        struct ibv_recv_wr recv = { .sg_list = &to, .num_sge = 1 }, *bad_recv;
        struct ibv_send_wr send = { .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;
        struct ibv_wc wc;
        int events = i % 2;
        memset(buf, i, 64);
        CHECK(!events || !ibv_req_notify_cq(cq, 0));
        CHECK(!ibv_post_recv(qp, &recv, &bad_recv) && !ibv_post_send(qp, &send, &bad_send));
        if (events) {
            struct ibv_cq *which;
            void *cookie;
            CHECK(!ibv_get_cq_event(channel, &which, &cookie) && which == cq);
            ibv_ack_cq_events(cq, 1);
        }
        for (int done = 0; done < 2;) {
            int got = ibv_poll_cq(cq, 1, &wc);
            CHECK(got >= 0 && (got == 0 || wc.status == IBV_WC_SUCCESS));
            done += got;
        }
        CHECK(buf[4096] == (char)i);
    }
    CHECK(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq));
    CHECK(!ibv_destroy_comp_channel(channel) && !ibv_dealloc_pd(pd) && !ibv_close_device(context));
    free(buf);
    puts("ok");
    return 0;
}
