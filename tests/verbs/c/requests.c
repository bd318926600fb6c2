// Requests that stock programs do not make, between two open devices of one process: `requests CASE`; `--list` prints the cases.
#include "events.h"
#include "extended.h"
#include "verbs.h"

#include <sys/mman.h>
#include <sys/prctl.h>

static const struct options RC = {.kind = IBV_QPT_RC, .rnr_retry = 7, .retry = 7};
static const struct options UC = {.kind = IBV_QPT_UC};
static const struct options UD = {.kind = IBV_QPT_UD};

static void two_devices(void) {
    open_both(&RC);
    must(a.context != b.context && a.qp->qp_num != b.qp->qp_num);
    for (unsigned length = 1; length <= 1 << 20; length = length * 3 + 1) {
        exchange(&a, &b, length);
        exchange(&b, &a, length);
    }
    close_both();
    open_both(&RC);
    exchange(&a, &b, 100);
    close_both();
}

static void empty_messages(void) {
    open_both(&RC);
    for (int ranges = 0; ranges < 2; ranges++) {
        struct ibv_sge none = range(&a, 0, 0), room = range(&b, 0, 8);
        post_receive_list(&b, 1, &room, ranges);
        must(!post_list(a.qp, 2, &none, ranges, 0));
        must(expect(&b.received, 1, IBV_WC_SUCCESS).byte_len == 0);
        expect(&a.sent, 2, IBV_WC_SUCCESS);
    }
    exchange(&a, &b, 10);
    close_both();
}

// Ranges of other lengths on both sides.
static void lists(void) {
    open_both(&RC);
    struct ibv_sge from[LIST], to[LIST];
    unsigned total = 0, at = 0;
    for (unsigned i = 0; i < LIST; i++) {
        from[i] = range(&a, i * 8192, i * 37 + 1);
        for (unsigned byte = 0; byte < from[i].length; byte++) a.memory[i * 8192 + byte] = (unsigned char)(total + byte);
        total += from[i].length;
        to[i] = range(&b, i * 4096, (LIST - i) * 41 + 1);
    }
    post_receive_list(&b, 1, to, LIST);
    must(!post_list(a.qp, 2, from, LIST, 0));
    must(expect(&b.received, 1, IBV_WC_SUCCESS).byte_len == total);
    expect(&a.sent, 2, IBV_WC_SUCCESS);
    for (unsigned i = 0; at < total; i++) {
        for (unsigned byte = 0; byte < to[i].length && at < total; byte++, at++) {
            must(b.memory[i * 4096 + byte] == (unsigned char)at, "byte %u", at);
        }
    }
    struct ibv_sge many[LIST + 1] = {0};
    must(post_list(a.qp, 3, many, LIST + 1, 0), "a list longer than asked for");
    close_both();
}

static void immediate(void) {
    open_both(&RC);
    for (unsigned length = 0; length <= 100000; length += 50000) {
        struct ibv_sge sge = range(&a, 0, length);
        struct ibv_send_wr *bad, request = {
            .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htobe32(0xCAFE0000 + length)};
        post_receive(&b, 1, 0, 100000);
        must(!ibv_post_send(a.qp, &request, &bad));
        struct ibv_wc got = expect(&b.received, 1, IBV_WC_SUCCESS);
        must(got.wc_flags & IBV_WC_WITH_IMM && be32toh(got.imm_data) == 0xCAFE0000 + length && got.byte_len == length);
        expect(&a.sent, 2, IBV_WC_SUCCESS);
    }
    post_receive(&b, 1, 0, 8);
    post_send(&a, 2, 0, 8);
    must(!(expect(&b.received, 1, IBV_WC_SUCCESS).wc_flags & IBV_WC_WITH_IMM));
    close_both();
}

// Inline bytes are the program's again when the call returns, and need no region.
static void inline_bytes(void) {
    open_both(&RC);
    const unsigned length = a.inline_max;
    must(length >= 128, "%u inline bytes", length);
    unsigned char *bytes = malloc(length + 1);
    struct ibv_sge sge = {.addr = (uintptr_t)bytes, .length = length};
    for (unsigned round = 0; round < 8; round++) {
        post_receive(&b, round, round * 4096, length);
        memset(bytes, (int)round + 1, length);
        must(!post_list(a.qp, round, &sge, 1, IBV_SEND_INLINE));
        memset(bytes, 0xFF, length);
    }
    for (unsigned round = 0; round < 8; round++) {
        expect(&b.received, round, IBV_WC_SUCCESS);
        expect(&a.sent, round, IBV_WC_SUCCESS);
        for (unsigned at = 0; at < length; at++) must(b.memory[round * 4096 + at] == round + 1);
    }
    sge.length = length + 1;
    must(post_list(a.qp, 9, &sge, 1, IBV_SEND_INLINE), "more inline bytes than allowed");
    free(bytes);
    close_both();
}

static void receiver_never_ready(void) {
    struct options few = RC;
    few.rnr_retry = 1;
    open_both(&few);
    post_send(&a, 1, 0, 100);
    post_send(&a, 2, 0, 100);
    expect(&a.sent, 1, IBV_WC_RNR_RETRY_EXC_ERR);
    expect(&a.sent, 2, IBV_WC_WR_FLUSH_ERR);
    must(state_of(a.qp) == IBV_QPS_ERR);
    close_both();
}

// The program sleeps while its requests are refused: the thread of the device sends them again, until no attempt is left.
static void sleeper_is_refused(void) {
    struct options few = RC;
    few.rnr_retry = 6;
    open_end(&a);
    open_end(&b);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(a.context);
    must(channel && !ibv_destroy_cq(a.sent.cq), "%s", strerror(errno));
    a.sent.cq = ibv_create_cq(a.context, KEPT, NULL, channel, 0);
    must(a.sent.cq, "%s", strerror(errno));
    for (int round = 0; round < 40; round++) {
        connect_both(&few);
        must(!ibv_req_notify_cq(a.sent.cq, 0));
        post_send(&a, 1, 0, 100);
        struct ibv_cq *cq;
        void *context;
        must(!ibv_get_cq_event(channel, &cq, &context) && cq == a.sent.cq, "%s", strerror(errno));
        ibv_ack_cq_events(cq, 1);
        expect(&a.sent, 1, IBV_WC_RNR_RETRY_EXC_ERR);
        must(!ibv_destroy_qp(a.qp) && !ibv_destroy_qp(b.qp));
    }
    a.qp = b.qp = NULL;
    must(!ibv_destroy_cq(a.sent.cq) && !ibv_destroy_comp_channel(channel));
    a.sent.cq = ibv_create_cq(a.context, 1, NULL, NULL, 0);
    close_both();
}

// The program sleeps before a queue pair that was never connected flushes its requests.
static void sleeper_is_flushed(void) {
    open_end(&a);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(a.context);
    must(channel && !ibv_destroy_cq(a.received.cq), "%s", strerror(errno));
    a.received.cq = ibv_create_cq(a.context, KEPT, NULL, channel, 0);
    must(a.received.cq, "%s", strerror(errno));
    for (int late = 0; late < 2; late++) {
        a.qp = make_qp(&a, &RC);
        must(!ibv_req_notify_cq(a.received.cq, 0));
        if (!late) post_receive(&a, 1, 0, 100);
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
        must(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE));
        if (late) post_receive(&a, 1, 0, 100);
        struct ibv_cq *cq;
        void *context;
        must(!ibv_get_cq_event(channel, &cq, &context) && cq == a.received.cq, "%s", strerror(errno));
        ibv_ack_cq_events(cq, 1);
        expect(&a.received, 1, IBV_WC_WR_FLUSH_ERR);
        must(!ibv_destroy_qp(a.qp));
        a.qp = NULL;
    }
    must(!ibv_destroy_cq(a.received.cq) && !ibv_destroy_comp_channel(channel));
    a.received.cq = ibv_create_cq(a.context, 1, NULL, NULL, 0);
    close_end(&a);
}

static void receiver_ready_later(void) {
    open_both(&RC);
    for (unsigned length = 16; length <= 1 << 20; length <<= 8) {
        memset(a.memory, 0x5A, length);
        post_send(&a, 1, 0, length);
        expect_nothing();
        post_receive(&b, 2, MEMORY / 2, length);
        must(expect(&b.received, 2, IBV_WC_SUCCESS).byte_len == length);
        expect(&a.sent, 1, IBV_WC_SUCCESS);
        must(!memcmp(a.memory, b.memory + MEMORY / 2, length));
    }
    close_both();
}

static void message_too_long(void) {
    open_both(&RC);
    memset(b.memory, 7, 200);
    post_receive(&b, 1, 0, 99);
    post_receive(&b, 2, 0, 99);
    post_send(&a, 3, 0, 100);
    expect(&b.received, 1, IBV_WC_LOC_LEN_ERR);
    expect(&b.received, 2, IBV_WC_WR_FLUSH_ERR);
    expect(&a.sent, 3, IBV_WC_REM_INV_REQ_ERR);
    must(b.memory[99] == 7, "a byte behind the buffer");
    close_both();
}

static void foreign_memory(void) {
    open_both(&RC);
    post_receive(&b, 1, 0, 100);
    struct ibv_sge sge = range(&a, 0, 100);
    sge.lkey ^= 0x55;
    must(!post_list(a.qp, 2, &sge, 1, 0));
    expect(&a.sent, 2, IBV_WC_LOC_PROT_ERR);
    must(state_of(a.qp) == IBV_QPS_ERR);
    close_both();
}

static void memory_behind_the_region(void) {
    open_both(&RC);
    post_receive(&b, 1, 0, 100);
    struct ibv_sge sge = range(&a, MEMORY - 99, 100);
    must(!post_list(a.qp, 2, &sge, 1, 0));
    expect(&a.sent, 2, IBV_WC_LOC_PROT_ERR);
    close_both();
}

static void flush_in_order(void) {
    open_both(&RC);
    for (unsigned id = 0; id < 10; id++) post_receive(&a, 100 + id, 0, 10);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    must(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE));
    for (unsigned id = 0; id < 10; id++) {
        post_send(&a, 200 + id, 0, 10);
        post_receive(&a, 110 + id, 0, 10);
    }
    for (unsigned id = 0; id < 20; id++) expect(&a.received, 100 + id, IBV_WC_WR_FLUSH_ERR);
    for (unsigned id = 0; id < 10; id++) expect(&a.sent, 200 + id, IBV_WC_WR_FLUSH_ERR);
    attr.qp_state = IBV_QPS_RESET;
    must(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) && state_of(a.qp) == IBV_QPS_RESET);
    must(try_send(&a, 1, 0, 10, 0), "a request in state RESET");
    close_both();
}

// The event comes when the requests that are under way are over. Later ones wait.
static void drained_queue(void) {
    open_both(&RC);
    for (int busy = 0; busy < 2; busy++) {
        if (busy) post_receive(&b, 1, 0, 100), post_send(&a, 2, 0, 100);
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1};
        must(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
        post_send(&a, 3, 0, 100);
        struct ibv_async_event event;
        must(!ibv_get_async_event(a.context, &event), "%s", strerror(errno));
        must(event.event_type == IBV_EVENT_SQ_DRAINED && event.element.qp == a.qp, "%s", ibv_event_type_str(event.event_type));
        ibv_ack_async_event(&event);
        if (busy) expect(&a.sent, 2, IBV_WC_SUCCESS), expect(&b.received, 1, IBV_WC_SUCCESS);
        post_receive(&b, 4, 0, 100);
        expect_nothing();
        attr.qp_state = IBV_QPS_RTS;
        must(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE));
        expect(&a.sent, 3, IBV_WC_SUCCESS);
        expect(&b.received, 4, IBV_WC_SUCCESS);
    }
    close_both();
}

static void unsignaled(void) {
    struct options options = RC;
    options.unsignaled = true;
    open_both(&options);
    for (unsigned id = 0; id < 60; id++) {
        post_receive(&b, id, 0, 10);
        must(!try_send(&a, id, 0, 10, id % 20 == 19 ? IBV_SEND_SIGNALED : 0));
    }
    for (unsigned id = 0; id < 60; id++) expect(&b.received, id, IBV_WC_SUCCESS);
    for (unsigned id = 19; id < 60; id += 20) expect(&a.sent, id, IBV_WC_SUCCESS);
    expect_nothing();
    close_both();
}

static void full_queues(void) {
    open_both(&RC);
    unsigned posted = 0;
    while (!try_send(&a, posted, 0, 10, 0)) must(++posted <= 100000, "a queue without end");
    must(posted >= DEPTH, "%u requests", posted);
    for (unsigned id = 0; id < posted; id++) {
        if (id < DEPTH) post_receive(&b, id, 0, 10);
        else {
            expect(&b.received, id - DEPTH, IBV_WC_SUCCESS);
            post_receive(&b, id, 0, 10);
        }
    }
    for (unsigned id = 0; id < posted; id++) expect(&a.sent, id, IBV_WC_SUCCESS);
    close_both();
}

static void unreliable(void) {
    open_both(&UC);
    post_send(&a, 1, 0, 10); // Nobody receives it.
    expect(&a.sent, 1, IBV_WC_SUCCESS);
    // It may still be on its way through the daemon, which is behind it after some messages of the other direction.
    for (int times = 0; times < 8; times++) exchange(&b, &a, 1);
    expect_nothing();
    exchange(&a, &b, 70000);
    exchange(&b, &a, 1);
    close_both();
}

static int send_datagram(struct ibv_ah *ah, uint64_t id, unsigned length, uint32_t qkey) {
    struct ibv_sge sge = range(&a, 0, length);
    struct ibv_send_wr *bad, request = {
        .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
        .wr.ud = {.ah = ah, .remote_qpn = b.qp->qp_num, .remote_qkey = qkey}};
    return ibv_post_send(a.qp, &request, &bad);
}

static void datagrams(void) {
    enum { GRH = 40 };
    open_both(&UD);
    struct ibv_ah_attr address = address_of(&b);
    struct ibv_ah *ah = ibv_create_ah(a.pd, &address);
    must(ah, "%s", strerror(errno));
    for (unsigned length = 0; length <= 4096; length += 1024) {
        for (unsigned at = 0; at < length; at++) a.memory[at] = (unsigned char)(at * 13 + length);
        post_receive(&b, 1, 0, 4096 + GRH);
        must(!send_datagram(ah, 2, length, QKEY));
        struct ibv_wc got = expect(&b.received, 1, IBV_WC_SUCCESS);
        must(got.byte_len == length + GRH && got.src_qp == a.qp->qp_num && got.wc_flags & IBV_WC_GRH, "%u bytes", got.byte_len);
        must(!memcmp(a.memory, b.memory + GRH, length));
        expect(&a.sent, 2, IBV_WC_SUCCESS);
    }
    post_receive(&b, 3, 0, 4096 + GRH);
    must(!send_datagram(ah, 4, 10, QKEY + 1)); // Of another group: it is dropped.
    expect(&a.sent, 4, IBV_WC_SUCCESS);
    expect_nothing();
    must(!send_datagram(ah, 5, 10, QKEY));
    expect(&a.sent, 5, IBV_WC_SUCCESS);
    expect(&b.received, 3, IBV_WC_SUCCESS);
    must(!ibv_destroy_ah(ah));
    close_both();
}

// Destroys everything while requests of all kinds are under way, and begins again beside it.
static void destroy_with_work_outstanding(void) {
    for (unsigned length = 8; length <= 1 << 20; length <<= 6) {
        open_both(&RC);
        for (unsigned id = 0; id < 8; id++) {
            post_receive(&a, id, 0, length);
            if (id % 2) post_receive(&b, id, 0, length);
            post_send(&a, id, 0, length);
            post_send(&b, id, 0, length);
        }
        poll_all();
        must(!ibv_destroy_qp(a.qp));
        a.qp = NULL;
        poll_all();
        must(!ibv_destroy_qp(b.qp));
        for (struct end *end = &a; end; end = end == &a ? &b : NULL) end->sent.count = end->received.count = 0;
        connect_both(&RC);
        exchange(&a, &b, 5000);
        exchange(&b, &a, 5000);
        close_both();
    }
}

static void shared_receive_queue(void) {
    open_end(&a);
    open_end(&b);
    struct ibv_srq_init_attr init = {.attr = {.max_wr = DEPTH, .max_sge = 1}};
    struct options options = RC;
    struct ibv_srq *srq = ibv_create_srq(b.pd, &init);
    must(srq, "%s", strerror(errno));
    struct ibv_qp *from[4], *to[4];
    for (int at = 0; at < 4; at++) {
        options.srq = NULL;
        from[at] = make_qp(&a, &options);
        options.srq = srq;
        to[at] = make_qp(&b, &options);
        connect_qp(&a, from[at], to[at]->qp_num, &options);
        connect_qp(&b, to[at], from[at]->qp_num, &options);
    }
    for (unsigned id = 0; id < 64; id++) {
        struct ibv_sge sge = range(&b, id * 4096, 4096), bytes = range(&a, id * 4096, 64);
        struct ibv_recv_wr *bad, request = {.wr_id = id, .sg_list = &sge, .num_sge = 1};
        must(!ibv_post_srq_recv(srq, &request, &bad));
        memset(a.memory + id * 4096, (int)id, 64);
        must(!post_list(from[id % 4], id, &bytes, 1, 0));
    }
    unsigned of[4] = {0};
    for (unsigned count = 0; count < 64; count++) {
        struct ibv_wc got = next(&b.received);
        must(got.status == IBV_WC_SUCCESS && got.byte_len == 64);
        int at = 0;
        while (at < 4 && to[at]->qp_num != got.qp_num) at++;
        must(at < 4 && b.memory[got.wr_id * 4096] % 4 == at, "a message of another queue pair");
        of[at]++;
    }
    for (int at = 0; at < 4; at++) must(of[at] == 16 && !ibv_destroy_qp(from[at]) && !ibv_destroy_qp(to[at]));
    must(!ibv_destroy_srq(srq));
    close_both();
}

// A child that does not use the device, and the parent's registrations afterwards.
static void fork_in_the_middle(void) {
    must(!ibv_fork_init());
    open_both(&RC);
    for (int round = 0; round < 5; round++) {
        exchange(&a, &b, 100000);
        post_receive(&b, 1, 0, 64);
        pid_t child = fork();
        if (!child) {
            // The regions are no memory of the child's; everything else is.
            unsigned char *own = malloc(1 << 20);
            memset(own, 0xFF, 1 << 20);
            _exit(own[100] == 0xFF ? 0 : 1);
        }
        int status;
        must(waitpid(child, &status, 0) == child && status == 0, "the child has died: %d", status);
        must(system("true") == 0);
        memset(a.memory, round, 64);
        post_send(&a, 2, 0, 64);
        expect(&b.received, 1, IBV_WC_SUCCESS);
        expect(&a.sent, 2, IBV_WC_SUCCESS);
        must(b.memory[63] == round);
    }
    close_both();
}

// The process of the peer is killed, with requests under way or without.
static void killed_peer(void) {
    for (int busy = 0; busy < 2; busy++) {
        int up[2], down[2];
        must(!pipe(up) && !pipe(down));
        pid_t child = fork();
        struct end *own = &a;
        open_end(own);
        own->qp = make_qp(own, &RC);
        uint32_t number = own->qp->qp_num, peer;
        must(write(child ? down[1] : up[1], &number, sizeof number) == sizeof number);
        must(read(child ? up[0] : down[0], &peer, sizeof peer) == sizeof peer);
        connect_qp(own, own->qp, peer, &RC);
        if (!child) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            post_receive(own, 1, 0, 100);
            must(write(up[1], &number, sizeof number) == sizeof number);
            expect(&own->received, 1, IBV_WC_SUCCESS);
            must(write(up[1], &number, sizeof number) == sizeof number);
            for (;;) poll_all();
        }
        must(read(up[0], &peer, sizeof peer) == sizeof peer);
        post_send(own, 1, 0, 100);
        expect(&own->sent, 1, IBV_WC_SUCCESS);
        must(read(up[0], &peer, sizeof peer) == sizeof peer);
        if (busy) post_send(own, 2, 0, 1 << 20);
        must(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
        if (!busy) post_send(own, 2, 0, 100);
        expect(&own->sent, 2, IBV_WC_RETRY_EXC_ERR);
        must(state_of(own->qp) == IBV_QPS_ERR);
        post_send(own, 3, 0, 100);
        expect(&own->sent, 3, IBV_WC_WR_FLUSH_ERR);
        close_end(own);
        close(up[0]), close(up[1]), close(down[0]), close(down[1]);
    }
}

// Nobody has the number.
static void absent_peer(void) {
    open_end(&a);
    a.qp = make_qp(&a, &RC);
    connect_qp(&a, a.qp, a.qp->qp_num ^ 0x800000, &RC);
    post_send(&a, 1, 0, 100);
    expect(&a.sent, 1, IBV_WC_RETRY_EXC_ERR);
    close_end(&a);
}

// For a daemon whose policy forbids that the two exchange messages.
static void forbidden_pair(void) {
    open_both(&RC);
    post_receive(&b, 1, 0, 100);
    post_send(&a, 2, 0, 100);
    expect(&a.sent, 2, IBV_WC_RETRY_EXC_ERR);
    must(!b.received.count);
    close_both();
}

// A receiver that has its completion makes no further call: the sender's request completes all the same.
static void receiver_polls_no_more(void) {
    open_both(&RC);
    post_receive(&b, 1, 0, 100);
    post_send(&a, 2, 0, 100);
    while (!b.received.count) {
        poll_queue(&a.sent);
        poll_queue(&b.received);
    }
    while (!a.sent.count) poll_queue(&a.sent);
    expect(&a.sent, 2, IBV_WC_SUCCESS);
    expect(&b.received, 1, IBV_WC_SUCCESS);
    close_both();
}

static void request_one_sided(enum ibv_wr_opcode opcode, unsigned length, struct ibv_mr *target, uint64_t add) {
    struct ibv_sge list = range(&a, 0, length);
    struct ibv_send_wr request = {.wr_id = 1, .sg_list = &list, .num_sge = 1, .opcode = opcode}, *refused;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        request.wr.atomic.remote_addr = (uintptr_t)target->addr;
        request.wr.atomic.rkey = target->rkey;
        request.wr.atomic.compare_add = add;
    } else {
        request.wr.rdma.remote_addr = (uintptr_t)target->addr;
        request.wr.rdma.rkey = target->rkey;
    }
    must(!ibv_post_send(a.qp, &request, &refused));
}

static void post_one_sided(enum ibv_wr_opcode opcode, unsigned length, struct ibv_mr *target, uint64_t add) {
    request_one_sided(opcode, length, target, add);
    expect(&a.sent, 1, IBV_WC_SUCCESS);
}

// The target makes no call: its memory is whole pages, which peers access themselves, or shares its page with other data.
static void silent_target(void) {
    open_both(&RC);
    const int rights = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    struct ibv_qp_attr attr = {.qp_access_flags = rights};
    must(!ibv_modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS));
    void *memory[] = {aligned_alloc(4096, 1 << 16), malloc(2000)};
    for (int at = 0; at < 2; at++) {
        struct ibv_mr *target = ibv_reg_mr(b.pd, memory[at], 2000, IBV_ACCESS_LOCAL_WRITE | rights);
        must(target);
        volatile unsigned char *seen = memory[at];
        for (unsigned round = 1; round <= 100; round++) {
            unsigned length = (unsigned[]){8, 100, 1999}[round % 3];
            for (unsigned i = 0; i < length; i++) a.memory[i] = (unsigned char)(round + i);
            post_one_sided(IBV_WR_RDMA_WRITE, length, target, 0);
            while (seen[length - 1] != (unsigned char)(round + length - 1)) {}
            must(!memcmp(memory[at], a.memory, length));
            memset(a.memory, 0, length);
            post_one_sided(IBV_WR_RDMA_READ, length, target, 0);
            must(!memcmp(memory[at], a.memory, length));
            uint64_t before, after, fetched;
            memcpy(&before, memory[at], 8);
            post_one_sided(IBV_WR_ATOMIC_FETCH_AND_ADD, 8, target, round);
            memcpy(&after, memory[at], 8), memcpy(&fetched, a.memory, 8);
            must(fetched == before && after == before + round);
        }
        must(!ibv_dereg_mr(target));
        free(memory[at]);
    }
    close_both();
}

// Memory moves as well right after the thread of the device has started.
static void memory_beside_a_new_thread(void) {
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    for (int round = 0; round < 20; round++) {
        open_end(&a);
        open_end(&b);
        int moved[2];
        for (int connected = 0; connected < 2; connected++) {
            if (connected) connect_both(&RC);
            unsigned char *memory = aligned_alloc(4096, 1 << 20);
            struct ibv_mr *mr = ibv_reg_mr(a.pd, memory, 1 << 20, access);
            must(mr, "%s", strerror(errno));
            moved[connected] = is_shared(memory);
            must(!ibv_dereg_mr(mr));
            free(memory);
        }
        must(moved[0] == moved[1], "memory moves before a connection only");
        close_both();
    }
}

// Registers memory that may not be accessed, or of which a part is not there: the error of a kernel, and no signal.
static void memory_that_cannot_be_accessed(void) {
    enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC, SIZE = 4 * 4096 };
    open_both(&RC);
    unsigned char *pages[4];
    const int rights[4] = {PROT_READ, PROT_NONE, PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE};
    for (int at = 0; at < 4; at++) pages[at] = mmap(NULL, SIZE, rights[at], MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(!munmap(pages[2], SIZE) && !munmap(pages[3] + 4096, 4096));
    void *const refused[] = {pages[0], pages[1], pages[2], pages[3], NULL, (void *)0xffff800000000000};
    for (unsigned at = 0; at < sizeof refused / sizeof *refused; at++) {
        errno = 0;
        must(!ibv_reg_mr(a.pd, refused[at], SIZE, ALL) && errno == EFAULT, "%u: %s", at, strerror(errno));
    }
    struct ibv_mr *mr = ibv_reg_mr(a.pd, pages[0], SIZE, IBV_ACCESS_REMOTE_READ);
    must(mr, "memory that is only read: %s", strerror(errno));
    const int changes = IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS;
    must(ibv_rereg_mr(mr, changes, NULL, pages[1], SIZE, ALL) && errno == EFAULT);
    must(!ibv_dereg_mr(mr));
    exchange(&a, &b, 1000);
    close_both();
}

// Memory that was unmapped while it was registered, and that stays with its owner, who executes requests of peers: an error, and no signal.
static void memory_unmapped_while_registered(void) {
    enum { SIZE = 1 << 20 };
    const enum ibv_wr_opcode opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};
    const unsigned lengths[] = {8, 8, 8, SIZE, SIZE};
    open_end(&a);
    open_end(&b);
    for (int round = 0; round < 5; round++) {
        connect_both(&RC);
        const int rights = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        struct ibv_qp_attr attr = {.qp_access_flags = rights};
        must(!ibv_modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS));
        void *memory = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        must(memory != MAP_FAILED);
        struct ibv_mr *target = ibv_reg_mr(b.pd, memory, SIZE, IBV_ACCESS_LOCAL_WRITE | rights);
        must(target, "%s", strerror(errno));
        post_one_sided(opcodes[round % 3], lengths[round], target, 1);
        must(!munmap((char *)memory + (lengths[round] == 8 ? 0 : SIZE / 2), 4096));
        request_one_sided(opcodes[round % 3], lengths[round], target, 1);
        expect(&a.sent, 1, IBV_WC_REM_ACCESS_ERR);
        must(state_of(a.qp) == IBV_QPS_ERR);
        must(!ibv_dereg_mr(target) && !munmap(memory, SIZE));
        must(!ibv_destroy_qp(a.qp) && !ibv_destroy_qp(b.qp));
    }
    connect_both(&RC);
    exchange(&a, &b, 1000);
    close_both();
}

// A thread that sleeps for an event performs writes of the peer meanwhile, and a handler leaves it by a jump. Its device goes on.
static void jump_while_it_serves(void) {
    struct ibv_comp_channel *channel;
    struct sleeper sleeper;
    open_with_channel(&channel);
    struct ibv_qp_attr attr = {.qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    must(!ibv_modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS));
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct ibv_mr *target = ibv_reg_mr(b.pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    must(target, "%s", strerror(errno));
    handle(SIGUSR1, jump, 0);
    for (unsigned round = 0; round < 100; round++) {
        pthread_t thread = start_sleeper(&sleeper, channel, sleep_jump_and_sleep);
        wait_until_asleep(&sleeper);
        request_one_sided(IBV_WR_RDMA_WRITE, 8, target, 0);
        for (unsigned spins = round * 20; spins > 0; spins--) atomic_load(&handled);
        must(!pthread_kill(thread, SIGUSR1));
        while (atomic_load(&handled) <= round) {}
        finish_send(1);
        end_by_a_message(round, thread, &sleeper);
    }
    must(!ibv_dereg_mr(target) && !munmap(memory, 4096));
    close_with_channel(channel);
}

// Writes that this process would perform itself have the limits of all others.
static void limits_of_writes(void) {
    open_both(&RC);
    struct ibv_qp_attr attr = {.qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    must(!ibv_modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS));
    void *memory = aligned_alloc(4096, 1 << 16);
    struct ibv_mr *target = ibv_reg_mr(b.pd, memory, 1 << 16, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    must(target, "%s", strerror(errno));
    struct ibv_sge sge = range(&a, 0, a.inline_max + 1);
    struct ibv_send_wr *bad, request = {.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_INLINE};
    request.wr.rdma.remote_addr = (uintptr_t)memory, request.wr.rdma.rkey = target->rkey;
    for (int round = 0; round < 20; round++) {
        sge.length = a.inline_max + 1;
        must(ibv_post_send(a.qp, &request, &bad) == EINVAL && bad == &request, "round %d: more inline bytes than there is room for", round);
        sge.length = a.inline_max;
        must(!ibv_post_send(a.qp, &request, &bad));
        expect(&a.sent, 1, IBV_WC_SUCCESS);
    }
    must(!ibv_dereg_mr(target));
    free(memory);
    close_both();
}

#define CASE(name) {#name, name}
static const struct {
    const char *name;
    void (*run)(void);
} CASES[] = {
    CASE(two_devices), CASE(empty_messages), CASE(lists), CASE(immediate), CASE(inline_bytes), CASE(receiver_never_ready),
    CASE(sleeper_is_refused), CASE(sleeper_is_flushed), CASE(receiver_ready_later), CASE(message_too_long), CASE(foreign_memory),
    CASE(memory_behind_the_region), CASE(flush_in_order), CASE(drained_queue), CASE(unsignaled),
    CASE(full_queues), CASE(unreliable), CASE(datagrams), CASE(destroy_with_work_outstanding),
    CASE(shared_receive_queue), CASE(fork_in_the_middle), CASE(killed_peer), CASE(absent_peer),
    CASE(receiver_polls_no_more), CASE(silent_target), CASE(memory_beside_a_new_thread), CASE(memory_that_cannot_be_accessed),
    CASE(memory_unmapped_while_registered), CASE(limits_of_writes), CASE(jump_while_it_serves), CASE(extended_sends),
    CASE(extended_posts_are_whole), CASE(extended_datagrams), CASE(extended_completions),
    CASE(computes_after_an_event), CASE(two_channels), CASE(signals_while_asleep), CASE(cancelled_while_asleep),
    CASE(jump_out_of_the_sleep), CASE(channel_that_does_not_block), CASE(channels_come_and_go), CASE(forbidden_pair),
};

int main(int count, char **words) {
    must(count == 2, "usage: requests CASE | --list");
    alarm(100); // Only a hang takes so long.
    for (unsigned at = 0; at < sizeof CASES / sizeof *CASES; at++) {
        if (!strcmp(words[1], "--list")) {
            puts(CASES[at].name);
        } else if (!strcmp(words[1], CASES[at].name)) {
            CASES[at].run();
            puts("done");
            return 0;
        }
    }
    return strcmp(words[1], "--list") != 0;
}
