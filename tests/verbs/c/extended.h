// The cases of the extended interfaces: requests that are built call by call, and completions that are read value by value.
#pragma once

#include "verbs.h"

enum { OPERATIONS = 0x7F, SMALL = 8 }; // IBV_QP_EX_WITH_RDMA_WRITE to IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD.

static struct ibv_qp_ex *begin(struct end *end) {
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(end->qp);
    must(qp);
    ibv_wr_start(qp);
    return qp;
}

static void build_send(struct ibv_qp_ex *qp, uint64_t id, unsigned at, unsigned length) {
    struct ibv_sge sge = range(&a, at, length);
    qp->wr_id = id;
    qp->wr_flags = 0;
    ibv_wr_send(qp);
    ibv_wr_set_sge(qp, sge.lkey, sge.addr, sge.length);
}

static void extended_sends(void) {
    const struct options options = {.kind = IBV_QPT_RC, .rnr_retry = 7, .retry = 7, .operations = OPERATIONS};
    open_both(&options);
    for (unsigned id = 0; id < 4; id++) post_receive(&b, id, id * 4096, 4096);
    for (unsigned at = 0; at < 200; at++) a.memory[at] = (unsigned char)(at + 1);
    struct ibv_qp_ex *qp = begin(&a);
    build_send(qp, 0, 0, 100);
    struct ibv_sge list[] = {range(&a, 0, 10), range(&a, 100, 50)};
    qp->wr_id = 1;
    ibv_wr_send_imm(qp, htobe32(77));
    ibv_wr_set_sge_list(qp, 2, list);
    unsigned char bytes[SMALL] = "inline!";
    struct ibv_data_buf buffers[] = {{bytes, 3}, {bytes + 3, SMALL - 3}};
    qp->wr_id = 2;
    ibv_wr_send(qp);
    ibv_wr_set_inline_data_list(qp, 2, buffers);
    qp->wr_id = 3;
    ibv_wr_send(qp); // Without bytes.
    memset(bytes, 0, SMALL);
    expect_nothing();
    must(!ibv_wr_complete(qp));
    const unsigned lengths[] = {100, 60, SMALL, 0};
    for (unsigned id = 0; id < 4; id++) {
        struct ibv_wc got = expect(&b.received, id, IBV_WC_SUCCESS);
        must(got.byte_len == lengths[id] && !(got.wc_flags & IBV_WC_WITH_IMM) == (id != 1), "%u bytes", got.byte_len);
        must(id != 1 || be32toh(got.imm_data) == 77);
        expect(&a.sent, id, IBV_WC_SUCCESS);
    }
    must(!memcmp(b.memory, a.memory, 100) && !memcmp(b.memory + 4096, a.memory, 10));
    must(!memcmp(b.memory + 4106, a.memory + 100, 50) && !strcmp((char *)b.memory + 8192, "inline!"));
    close_both();
}

// A refused request, whichever it is, refuses those before it and after it.
static void extended_posts_are_whole(void) {
    const struct options options = {.kind = IBV_QPT_RC, .rnr_retry = 7, .retry = 7, .operations = OPERATIONS};
    open_both(&options);
    post_receive(&b, 1, 0, 10);
    struct ibv_qp_ex *qp = begin(&a);
    build_send(qp, 1, 0, 10);
    ibv_wr_abort(qp);
    qp = begin(&a);
    build_send(qp, 1, 0, 10);
    build_send(qp, 2, 0, 10);
    ibv_wr_set_inline_data(qp, a.memory, a.inline_max + 1);
    build_send(qp, 3, 0, 10);
    must(ibv_wr_complete(qp) == EINVAL, "more inline bytes than allowed");
    qp = begin(&a);
    build_send(qp, 1, 0, 10);
    ibv_wr_atomic_fetch_add(qp, 1, 4, 1);
    must(ibv_wr_complete(qp) == EINVAL, "an address that is no multiple of 8");
    qp = begin(&a);
    for (unsigned id = 0; id <= a.sends_max; id++) build_send(qp, id, 0, 10);
    must(ibv_wr_complete(qp) == ENOMEM, "more requests than the queue has room for");
    expect_nothing();
    post_send(&a, 2, 0, 10);
    expect(&b.received, 1, IBV_WC_SUCCESS);
    expect(&a.sent, 2, IBV_WC_SUCCESS);
    // Nobody receives yet, so the queue fills.
    for (unsigned id = 0; id + 1 < a.sends_max; id++) post_send(&a, id, 0, 10);
    for (unsigned count = 2; count > 0; count--) {
        qp = begin(&a);
        for (unsigned at = 0; at < count; at++) build_send(qp, a.sends_max - 1 + at, 0, 10);
        must(ibv_wr_complete(qp) == (count > 1 ? ENOMEM : 0), "%u requests where one has room", count);
    }
    for (unsigned id = 0; id < a.sends_max; id++) {
        post_receive(&b, id, 0, 10);
        expect(&b.received, id, IBV_WC_SUCCESS);
        expect(&a.sent, id, IBV_WC_SUCCESS);
    }
    expect_nothing();
    close_both();
}

static void extended_datagrams(void) {
    const struct options options = {.kind = IBV_QPT_UD, .operations = IBV_QP_EX_WITH_SEND};
    open_both(&options);
    struct ibv_ah_attr address = address_of(&b);
    struct ibv_ah *ah = ibv_create_ah(a.pd, &address);
    must(ah, "%s", strerror(errno));
    struct ibv_qp_ex *qp = begin(&a);
    build_send(qp, 1, 0, 10);
    must(ibv_wr_complete(qp) == EINVAL, "a datagram without an address");
    post_receive(&b, 2, 0, 100);
    qp = begin(&a);
    build_send(qp, 3, 0, 10);
    ibv_wr_set_ud_addr(qp, ah, b.qp->qp_num, QKEY);
    must(!ibv_wr_complete(qp));
    must(expect(&b.received, 2, IBV_WC_SUCCESS).byte_len == 50);
    expect(&a.sent, 3, IBV_WC_SUCCESS);
    must(!ibv_destroy_ah(ah));
    close_both();
}

// Writes, reads and atomic operations, whose completions are read value by value.
static void extended_completions(void) {
    struct options options = {.kind = IBV_QPT_RC, .rnr_retry = 7, .retry = 7, .operations = OPERATIONS};
    open_end(&a);
    open_end(&b);
    struct ibv_cq_init_attr_ex init = {.cqe = DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
    must(!ibv_create_cq_ex(a.context, &init) && errno == EOPNOTSUPP, "time stamps");
    init.wc_flags = IBV_WC_STANDARD_FLAGS;
    struct ibv_cq_ex *cq = ibv_create_cq_ex(a.context, &init);
    must(cq, "%s", strerror(errno));
    struct ibv_poll_cq_attr none = {0};
    must(ibv_start_poll(cq, &none) == ENOENT);
    struct ibv_cq *plain = a.sent.cq;
    a.sent.cq = ibv_cq_ex_to_cq(cq);
    connect_both(&options);
    a.sent.cq = plain; // So that only this case takes completions of the other.
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    struct ibv_qp_attr attr = {.qp_access_flags = access};
    must(!ibv_modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS));
    uint64_t *numbers = aligned_alloc(4096, 4096);
    struct ibv_mr *mr = ibv_reg_mr(b.pd, numbers, 4096, access);
    must(mr);
    numbers[0] = 5;
    numbers[1] = 9;
    const uint64_t remote = (uintptr_t)numbers;
    struct ibv_sge to[] = {range(&a, 0, 8), range(&a, 8, 8), range(&a, 16, 8)};
    struct ibv_qp_ex *qp = begin(&a);
    qp->wr_flags = 0;
    qp->wr_id = 0;
    ibv_wr_atomic_cmp_swp(qp, mr->rkey, remote, 5, 6);
    ibv_wr_set_sge(qp, to[0].lkey, to[0].addr, 8);
    qp->wr_id = 1;
    ibv_wr_atomic_fetch_add(qp, mr->rkey, remote, 1);
    ibv_wr_set_sge(qp, to[1].lkey, to[1].addr, 8);
    qp->wr_id = 2;
    ibv_wr_rdma_read(qp, mr->rkey, remote + 8);
    ibv_wr_set_sge(qp, to[2].lkey, to[2].addr, 8);
    qp->wr_id = 3;
    ibv_wr_rdma_write(qp, mr->rkey, remote + 16);
    ibv_wr_set_inline_data(qp, "written", SMALL);
    must(!ibv_wr_complete(qp));
    const enum ibv_wc_opcode opcodes[] = {IBV_WC_COMP_SWAP, IBV_WC_FETCH_ADD, IBV_WC_RDMA_READ, IBV_WC_RDMA_WRITE};
    for (unsigned id = 0; id < 4;) {
        poll_all();
        if (ibv_start_poll(cq, &none)) continue;
        do {
            must(cq->wr_id == id && cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(cq) == opcodes[id], "request %u", id);
            must(ibv_wc_read_qp_num(cq) == a.qp->qp_num && !ibv_wc_read_wc_flags(cq) && !ibv_wc_read_vendor_err(cq));
            must(id > 2 || ibv_wc_read_byte_len(cq) == 8);
            id++;
        } while (id < 4 && !ibv_next_poll(cq));
        ibv_end_poll(cq);
    }
    must(ibv_start_poll(cq, &none) == ENOENT);
    const uint64_t expected[] = {5, 6, 9};
    must(!memcmp(a.memory, expected, sizeof expected) && numbers[0] == 7 && !strcmp((char *)&numbers[2], "written"));
    must(!ibv_dereg_mr(mr) && !ibv_destroy_qp(a.qp));
    a.qp = NULL;
    must(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
    free(numbers);
    close_both();
}
