// Two open devices in one process, with what every case needs: queue pairs, requests, completions.
//
//   struct end a ── context, protection domain, completion queues, memory ──┐
//   struct end b ── the same, of a second context of the device ────────────┴─ connect_both(kind), send_to, receive, next
//
// Requests progress only while completions are polled. So next() polls the queues of all ends, and keeps what it finds for later calls.
#pragma once
#pragma GCC diagnostic ignored "-Wunused-function" // A program uses what it needs.

#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define must(condition, ...)                                                             \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "%s:%d: %s:", __FILE__, __LINE__, #condition);              \
            fprintf(stderr, " " __VA_ARGS__);                                            \
            fputc('\n', stderr);                                                         \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

enum { MEMORY = 4 << 20, DEPTH = 128, LIST = 32, KEPT = 4096, QKEY = 0x11111111, PORT = 1 };

// A completion queue, and the completions that were polled and not taken yet.
struct queue {
    struct ibv_cq *cq;
    struct ibv_wc kept[KEPT];
    unsigned first, count;
};

struct end {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_mr *mr;
    struct ibv_qp *qp;
    struct queue sent, received;
    unsigned inline_max, sends_max;
    unsigned char *memory;
};

// What a case may change before it connects.
struct options {
    enum ibv_qp_type kind;
    unsigned char rnr_retry;
    unsigned char retry;
    bool unsignaled; // Requests complete only if they ask for it.
    struct ibv_srq *srq;
    uint64_t operations; // Those of the extended interface.
};

static struct end a, b;

static void open_end(struct end *end) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    must(list && list[0], "no device");
    end->context = ibv_open_device(list[0]);
    must(end->context, "%s", strerror(errno));
    ibv_free_device_list(list);
    end->pd = ibv_alloc_pd(end->context);
    end->sent.cq = ibv_create_cq(end->context, KEPT, NULL, NULL, 0);
    end->received.cq = ibv_create_cq(end->context, KEPT, NULL, NULL, 0);
    must(end->pd && end->sent.cq && end->received.cq, "%s", strerror(errno));
    end->memory = aligned_alloc(4096, MEMORY);
    memset(end->memory, 0, MEMORY);
    end->mr = ibv_reg_mr(end->pd, end->memory, MEMORY, IBV_ACCESS_LOCAL_WRITE);
    must(end->mr, "%s", strerror(errno));
}

static void close_end(struct end *end) {
    must(!end->qp || !ibv_destroy_qp(end->qp));
    must(!ibv_dereg_mr(end->mr));
    must(!ibv_destroy_cq(end->sent.cq) && !ibv_destroy_cq(end->received.cq));
    must(!ibv_dealloc_pd(end->pd));
    must(!ibv_close_device(end->context));
    free(end->memory);
    memset(end, 0, sizeof *end);
}

static void begin_qp(struct ibv_qp *qp, const struct options *options) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qkey = QKEY};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    mask |= options->kind == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    must(!ibv_modify_qp(qp, &attr, mask));
}

static struct ibv_qp *make_qp(struct end *end, const struct options *options) {
    struct ibv_qp_init_attr_ex init = {
        .send_cq = end->sent.cq,
        .recv_cq = end->received.cq,
        .srq = options->srq,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = LIST, .max_recv_sge = LIST, .max_inline_data = 128},
        .qp_type = options->kind,
        .sq_sig_all = !options->unsignaled,
        .comp_mask = IBV_QP_INIT_ATTR_PD | (options->operations ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
        .pd = end->pd,
        .send_ops_flags = options->operations,
    };
    struct ibv_qp *qp = ibv_create_qp_ex(end->context, &init);
    must(qp, "%s", strerror(errno));
    end->inline_max = init.cap.max_inline_data;
    end->sends_max = init.cap.max_send_wr;
    begin_qp(qp, options);
    return qp;
}

static union ibv_gid gid_of(struct end *end) {
    union ibv_gid gid;
    must(!ibv_query_gid(end->context, PORT, 0, &gid));
    return gid;
}

static struct ibv_ah_attr address_of(struct end *end) {
    struct ibv_ah_attr address = {.is_global = 1, .port_num = PORT, .grh = {.dgid = gid_of(end), .hop_limit = 1}};
    return address;
}

// Moves a queue pair to the state in which it sends, towards the number of a peer. A packet of the peer may end it meanwhile.
static int try_connect_qp(struct end *end, struct ibv_qp *qp, uint32_t peer, const struct options *options) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .ah_attr = address_of(end), // Both are on one host.
    };
    const bool ud = options->kind == IBV_QPT_UD, rc = options->kind == IBV_QPT_RC;
    int mask = IBV_QP_STATE;
    if (!ud) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (rc) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    int error = ibv_modify_qp(qp, &attr, mask);
    if (error) return error;
    struct ibv_qp_attr send = {
        .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = options->retry, .rnr_retry = options->rnr_retry, .max_rd_atomic = 1};
    mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (rc) mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    return ibv_modify_qp(qp, &send, mask);
}

static void connect_qp(struct end *end, struct ibv_qp *qp, uint32_t peer, const struct options *options) {
    int error = try_connect_qp(end, qp, peer, options);
    must(!error, "%s", strerror(error));
}

static void connect_both(const struct options *options) {
    a.qp = make_qp(&a, options);
    b.qp = make_qp(&b, options);
    connect_qp(&a, a.qp, b.qp->qp_num, options);
    connect_qp(&b, b.qp, a.qp->qp_num, options);
}

static void open_both(const struct options *options) {
    open_end(&a);
    open_end(&b);
    connect_both(options);
}

static void close_both(void) {
    close_end(&a);
    close_end(&b);
}

static struct ibv_sge range(struct end *end, unsigned at, unsigned length) {
    struct ibv_sge sge = {.addr = (uintptr_t)(end->memory + at), .length = length, .lkey = end->mr->lkey};
    return sge;
}

static int post_list(struct ibv_qp *qp, uint64_t id, struct ibv_sge *list, int count, unsigned flags) {
    struct ibv_send_wr *bad, request = {.wr_id = id, .sg_list = list, .num_sge = count, .opcode = IBV_WR_SEND, .send_flags = flags};
    return ibv_post_send(qp, &request, &bad);
}

static int try_send(struct end *end, uint64_t id, unsigned at, unsigned length, unsigned flags) {
    struct ibv_sge sge = range(end, at, length);
    return post_list(end->qp, id, &sge, 1, flags);
}

static void post_send(struct end *end, uint64_t id, unsigned at, unsigned length) {
    int error = try_send(end, id, at, length, 0);
    must(!error, "%s", strerror(error));
}

static void post_receive_list(struct end *end, uint64_t id, struct ibv_sge *list, int count) {
    struct ibv_recv_wr *bad, request = {.wr_id = id, .sg_list = list, .num_sge = count};
    int error = ibv_post_recv(end->qp, &request, &bad);
    must(!error, "%s", strerror(error));
}

static void post_receive(struct end *end, uint64_t id, unsigned at, unsigned length) {
    struct ibv_sge sge = range(end, at, length);
    post_receive_list(end, id, &sge, 1);
}

static void poll_queue(struct queue *queue) {
    if (!queue->cq) return;
    struct ibv_wc polled[16];
    int count = ibv_poll_cq(queue->cq, 16, polled);
    must(count >= 0);
    for (int at = 0; at < count; at++) {
        must(queue->count < KEPT, "the case takes no completions");
        queue->kept[(queue->first + queue->count++) % KEPT] = polled[at];
    }
}

static void poll_all(void) {
    struct queue *all[] = {&a.sent, &a.received, &b.sent, &b.received};
    for (int at = 0; at < 4; at++) poll_queue(all[at]);
}

// Waits for the next completion of a queue. The alarm of main() ends a wait for one that never comes.
static struct ibv_wc next(struct queue *queue) {
    while (!queue->count) poll_all();
    struct ibv_wc found = queue->kept[queue->first];
    queue->first = (queue->first + 1) % KEPT;
    queue->count--;
    return found;
}

static struct ibv_wc expect(struct queue *queue, uint64_t id, enum ibv_wc_status status) {
    struct ibv_wc found = next(queue);
    must(found.wr_id == id && found.status == status, "request %lu: %s, expected request %lu: %s", found.wr_id,
         ibv_wc_status_str(found.status), id, ibv_wc_status_str(status));
    return found;
}

static void expect_nothing(void) {
    for (int times = 0; times < 2000; times++) poll_all();
    must(!a.sent.count && !a.received.count && !b.sent.count && !b.received.count, "a completion that should not be");
}

// Returns whether other processes can map this memory.
static int is_shared(const void *memory) {
    FILE *maps = fopen("/proc/self/maps", "r");
    must(maps, "%s", strerror(errno));
    char line[512];
    int shared = -1;
    while (shared < 0 && fgets(line, sizeof line, maps)) {
        unsigned long first, end;
        char access[5];
        must(sscanf(line, "%lx-%lx %4s", &first, &end, access) == 3);
        if ((uintptr_t)memory >= first && (uintptr_t)memory < end) shared = access[3] == 's';
    }
    must(!fclose(maps) && shared >= 0);
    return shared;
}

// Sends from one end to the other, and checks the bytes.
static void exchange(struct end *from, struct end *to, unsigned length) {
    static unsigned char salt = 1;
    salt += 7;
    for (unsigned at = 0; at < length; at++) from->memory[at] = (unsigned char)(at * 31 + salt);
    memset(to->memory + MEMORY / 2, 0, length + 1);
    post_receive(to, 1000, MEMORY / 2, length);
    post_send(from, 2000, 0, length);
    struct ibv_wc got = expect(&to->received, 1000, IBV_WC_SUCCESS);
    must(got.byte_len == length && got.opcode == IBV_WC_RECV && got.qp_num == to->qp->qp_num, "%u bytes", got.byte_len);
    struct ibv_wc sent = expect(&from->sent, 2000, IBV_WC_SUCCESS);
    must(sent.opcode == IBV_WC_SEND && sent.qp_num == from->qp->qp_num);
    must(!memcmp(from->memory, to->memory + MEMORY / 2, length), "other bytes than were sent");
    must(to->memory[MEMORY / 2 + length] == 0, "a byte behind the message");
}

static enum ibv_qp_state state_of(struct ibv_qp *qp) {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    must(!ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
    return attr.qp_state;
}
