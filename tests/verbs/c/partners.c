// A program whose partners are killed one after the other, each at a random moment: `partners SEED KILLS [STAGE]`.
//
//   launcher ── a fork from before a device was opened: it starts a partner, and kills it after a random time
//   partner  ── a device of its own, in one stage of its work, until it is killed
//   survivor ── one device for all partners, and a queue pair for each: its requests fail in their order, with the standard's statuses
//
// It prints "survived" when all partners are dead, and ends when its input ends.
#include "verbs.h"

#include <sys/socket.h>

enum stage {
    OPENING, REGISTERED, CONNECTED, SENDS, WRITES, READS, ATOMICS, SERVED, WAITING, SLEEPING, EVENTS, REGISTERING, UNRELIABLE, VISITING,
    STAGES
};

static const char *const NAMES[] = {"opening", "registered", "connected", "sends", "writes", "reads", "atomics", "served", "waiting",
                                    "sleeping", "events", "registering", "unreliable", "visiting"};

enum { WINDOW = 12, HALF = MEMORY / 2, LENGTH_MAX = 100000, TARGET = 1 << 18, STAYS = 2000, MOMENT_US = 5000 };
enum { RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

// What partners tell the survivor, the survivor its partners, and the survivor the launcher. A partner may die before it has read all.
struct message {
    uint32_t round, number, rkey, value;
    uint64_t address;
};

static int to_partner[2], to_launcher[2]; // The first ends are the survivor's.
static uint64_t seed;
static unsigned round_number;
static enum stage stage;

static unsigned chance(unsigned below) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (unsigned)((seed >> 16) % below);
}

static void tell(int socket, struct message message) {
    message.round = round_number;
    must(write(socket, &message, sizeof message) == sizeof message, "%s", strerror(errno));
}

// Returns the next message of this round.
static struct message hear(int socket) {
    struct message message;
    do {
        must(read(socket, &message, sizeof message) == sizeof message, "%s", strerror(errno));
    } while (message.round != round_number);
    return message;
}

static unsigned char pattern(unsigned at) {
    return (unsigned char)(at * 7 + at / 251);
}

static struct ibv_comp_channel *open_with_channel(struct end *end) {
    open_end(end);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(end->context);
    must(channel, "%s", strerror(errno));
    struct queue *queues[] = {&end->sent, &end->received};
    for (int at = 0; at < 2; at++) {
        must(!ibv_destroy_cq(queues[at]->cq));
        queues[at]->cq = ibv_create_cq(end->context, KEPT, NULL, channel, 0);
        must(queues[at]->cq, "%s", strerror(errno));
    }
    return channel;
}

// Sleeps until a queue has a completion.
static void sleep_on(struct ibv_comp_channel *channel, struct queue *queue) {
    must(!ibv_req_notify_cq(queue->cq, 0));
    poll_queue(queue);
    if (queue->count) return;
    struct ibv_cq *cq;
    void *context;
    must(!ibv_get_cq_event(channel, &cq, &context), "%s", strerror(errno));
    ibv_ack_cq_events(cq, 1);
    poll_queue(queue);
}

static struct ibv_srq *make_srq(void) {
    struct ibv_srq_init_attr init = {.attr = {.max_wr = DEPTH, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(a.pd, &init);
    must(srq, "%s", strerror(errno));
    return srq;
}

static void post_room(struct ibv_srq *srq, uint64_t id) {
    struct ibv_sge sge = range(&a, HALF + (unsigned)(id % WINDOW) * LENGTH_MAX, LENGTH_MAX);
    struct ibv_recv_wr *bad, request = {.wr_id = id, .sg_list = &sge, .num_sge = 1};
    must(!(srq ? ibv_post_srq_recv(srq, &request, &bad) : ibv_post_recv(a.qp, &request, &bad)));
}

// Requests: those that were posted, and those that are over. Their numbers are their wr_id.
static uint64_t posted, over;

static void post_one(const struct message *target) {
    const bool one_sided = (stage >= WRITES && stage <= SERVED) || stage == REGISTERING || stage == VISITING;
    unsigned length = 1 + chance(chance(4) ? 1000 : LENGTH_MAX - 1);
    if (!one_sided || !target) {
        post_send(&a, posted++, 0, length);
        return;
    }
    const enum ibv_wr_opcode all[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD};
    enum ibv_wr_opcode opcode = all[stage == WRITES ? 0 : stage == READS ? 1 : stage == ATOMICS ? 2 : chance(3)];
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) length = 8;
    if (length > target->value) length = target->value;
    const unsigned at = chance((target->value - length) / 8 + 1) * 8;
    // Writes bring the bytes that are there, and atomic operations add nothing: reads can be checked.
    struct ibv_sge list = range(&a, opcode == IBV_WR_RDMA_WRITE ? at : HALF + (unsigned)(posted % WINDOW) * LENGTH_MAX, length);
    struct ibv_send_wr request = {.wr_id = posted, .sg_list = &list, .num_sge = 1, .opcode = opcode}, *refused;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        request.wr.atomic.remote_addr = target->address + at, request.wr.atomic.rkey = target->rkey;
    } else {
        request.wr.rdma.remote_addr = target->address + at, request.wr.rdma.rkey = target->rkey;
    }
    request.wr_id |= (uint64_t)at << 32;
    must(!ibv_post_send(a.qp, &request, &refused));
    posted++;
}

// --- the partner -------------------------------------------------------------------------------------------------------------------

// Receives for ever, and replies to each fourth message.
static void receive_forever(struct ibv_comp_channel *channel, struct ibv_srq *srq) {
    uint64_t id = 0, replies = 0;
    while (id < WINDOW) post_room(srq, id++);
    if (srq) {
        struct ibv_srq_attr limit = {.srq_limit = WINDOW};
        must(!ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT)); // Its event stays where it is.
    }
    tell(to_partner[1], (struct message){0});
    for (;;) {
        if (channel) sleep_on(channel, &a.received);
        struct ibv_wc got = next(&a.received);
        must(got.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(got.status));
        post_room(srq, id++);
        if (got.wr_id % 4 == 0) post_send(&a, replies++, 0, 100 + chance(1000));
        while (a.sent.count) must(next(&a.sent).status == IBV_WC_SUCCESS);
    }
}

// Registers memory that moves, and deregisters it, while peers write other memory.
static void register_forever(void) {
    for (unsigned char *memory = aligned_alloc(4096, HALF);;) {
        memset(memory, 5, HALF);
        struct ibv_mr *mr = ibv_reg_mr(a.pd, memory, HALF, RIGHTS);
        must(mr, "%s", strerror(errno));
        must(memory[chance(HALF)] == 5 && !ibv_dereg_mr(mr) && memory[chance(HALF)] == 5);
        poll_all();
    }
}

// Accesses the memory of the survivor.
static void visit_forever(const struct message *target) {
    for (unsigned at = 0; at < TARGET; at++) a.memory[at] = pattern(at);
    tell(to_partner[1], (struct message){0});
    for (;; over++) {
        while (posted - over < WINDOW) post_one(target);
        must(next(&a.sent).status == IBV_WC_SUCCESS);
    }
}

static void be_partner(void) {
    if (stage == OPENING) {
        for (tell(to_partner[1], (struct message){0});; close_end(&a)) open_end(&a);
    }
    struct options options = {.kind = stage == UNRELIABLE ? IBV_QPT_UC : IBV_QPT_RC, .rnr_retry = 7, .retry = 7};
    struct ibv_comp_channel *channel = open_with_channel(&a);
    options.srq = stage == EVENTS ? make_srq() : NULL;
    a.qp = make_qp(&a, &options);
    unsigned length = stage == SERVED ? STAYS : TARGET;
    unsigned char *memory = stage == SERVED ? malloc(STAYS) : aligned_alloc(4096, TARGET);
    for (unsigned at = 0; at < length; at++) memory[at] = pattern(at);
    struct ibv_mr *target = ibv_reg_mr(a.pd, memory, length, RIGHTS);
    must(target, "%s", strerror(errno));
    tell(to_partner[1], (struct message){.number = a.qp->qp_num, .rkey = target->rkey, .value = length, .address = (uintptr_t)memory});
    if (stage == REGISTERED) pause();
    struct message survivor = hear(to_partner[1]);
    connect_qp(&a, a.qp, survivor.number, &options);
    struct ibv_qp_attr attr = {.qp_access_flags = RIGHTS};
    must(!ibv_modify_qp(a.qp, &attr, IBV_QP_ACCESS_FLAGS));
    if (stage == SENDS || stage == WAITING || stage == EVENTS || stage == UNRELIABLE) {
        receive_forever(stage == WAITING ? channel : NULL, options.srq);
    }
    if (stage == VISITING) visit_forever(&survivor);
    tell(to_partner[1], (struct message){0});
    if (stage == REGISTERING) register_forever();
    if (chance(2)) pause(); // Its thread serves.
    for (;;) poll_all();
}

// --- the launcher ------------------------------------------------------------------------------------------------------------------

// Starts a partner for each first message, and kills it some time after the second one. It says so before and after.
static void launch(void) {
    struct message order;
    while (read(to_launcher[1], &order, sizeof order) == sizeof order) {
        round_number = order.round, stage = order.number, seed = (uint64_t)order.value << 20 | 1;
        pid_t partner = fork();
        must(partner >= 0, "%s", strerror(errno));
        if (!partner) be_partner();
        order = hear(to_launcher[1]);
        usleep(order.value); // A random moment.
        tell(to_launcher[1], order);
        int status;
        must(!kill(partner, SIGKILL) && waitpid(partner, &status, 0) == partner);
        must(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the partner has ended: %#x", status);
        tell(to_launcher[1], order);
    }
    exit(0);
}

// --- the survivor ------------------------------------------------------------------------------------------------------------------

// Takes the next completion of a request that has succeeded or failed, and checks what it has read.
static enum ibv_wc_status take_one(void) {
    struct ibv_wc got = next(&a.sent);
    must((uint32_t)got.wr_id == (uint32_t)over, "request %lu instead of %lu", got.wr_id & 0xFFFFFFFF, over);
    if (got.status == IBV_WC_SUCCESS && (got.opcode == IBV_WC_RDMA_READ || got.opcode == IBV_WC_FETCH_ADD)) {
        const unsigned char *bytes = a.memory + HALF + (unsigned)(over % WINDOW) * LENGTH_MAX;
        for (unsigned at = 0; at < got.byte_len; at++) must(bytes[at] == pattern((unsigned)(got.wr_id >> 32) + at), "byte %u", at);
    }
    over++;
    return got.status;
}

// The first failure has this status, the requests behind it are flushed, and the queue pair is in error.
static void expect_failure(enum ibv_wc_status first) {
    must(first == IBV_WC_RETRY_EXC_ERR, "%s", ibv_wc_status_str(first));
    must(state_of(a.qp) == IBV_QPS_ERR);
    for (int more = 0; more < 2; more++) post_send(&a, posted++, 0, 10);
    while (over < posted) {
        enum ibv_wc_status status = take_one();
        must(status == IBV_WC_WR_FLUSH_ERR, "%s", ibv_wc_status_str(status));
    }
}

static void take_received(uint64_t *received) {
    poll_all();
    while (a.received.count && a.received.kept[a.received.first].status == IBV_WC_SUCCESS) {
        expect(&a.received, (*received)++, IBV_WC_SUCCESS);
        post_room(a.qp->srq, *received + WINDOW - 1);
    }
}

// Works until requests fail. Returns the status of the first one.
static enum ibv_wc_status work(const struct message *target, uint64_t *received) {
    for (;;) {
        while (posted - over < WINDOW) post_one(target);
        take_received(received);
        while (a.sent.count) {
            enum ibv_wc_status status = take_one();
            if (status != IBV_WC_SUCCESS) return status;
        }
    }
}

// The event of a queue pair with a shared receive queue that is in error.
static void expect_last_event(void) {
    struct ibv_async_event event;
    must(!ibv_get_async_event(a.context, &event), "%s", strerror(errno));
    must(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == a.qp, "%s", ibv_event_type_str(event.event_type));
    ibv_ack_async_event(&event);
}

// Messages of an unreliable connection to a partner that is dead are lost, and succeed.
static void work_unreliably(uint64_t *received) {
    struct message none;
    for (int left = 2, more = WINDOW; left > 0 || more > 0; more -= left == 0) {
        while (posted - over < WINDOW) post_one(NULL);
        take_received(received);
        must(take_one() == IBV_WC_SUCCESS);
        if (left) left -= recv(to_launcher[0], &none, sizeof none, MSG_DONTWAIT) == sizeof none;
    }
    while (over < posted) must(take_one() == IBV_WC_SUCCESS);
    must(state_of(a.qp) == IBV_QPS_RTS && !ibv_destroy_qp(a.qp));
    a.qp = NULL;
    a.received.count = 0;
}

static void kill_soon(void) {
    tell(to_launcher[0], (struct message){.value = chance(MOMENT_US)});
}

// The connection has ended. What was received has completed, the other receive requests are flushed, all in their order.
static void end_round(uint64_t received, struct ibv_srq *srq) {
    const uint64_t end = received + WINDOW;
    bool flushed = false;
    if (srq) expect_last_event();
    for (int times = 0; times < 2000; times++) poll_all();
    for (; a.received.count || (!srq && received < end); received++) {
        struct ibv_wc got = next(&a.received);
        must(got.wr_id == received, "request %lu instead of %lu", got.wr_id, received);
        must(got.status == IBV_WC_WR_FLUSH_ERR || (got.status == IBV_WC_SUCCESS && !flushed), "%s", ibv_wc_status_str(got.status));
        flushed = got.status != IBV_WC_SUCCESS;
    }
    must(!a.sent.count && received <= end, "more completions than requests");
    must(!ibv_destroy_qp(a.qp) && (!srq || !ibv_destroy_srq(srq)));
    a.qp = NULL;
}

// Memory of the survivor that partners access.
static unsigned char *visited;

static struct ibv_mr *open_to_visitor(struct message *told) {
    for (unsigned at = 0; at < TARGET; at++) visited[at] = pattern(at);
    struct ibv_mr *mr = ibv_reg_mr(a.pd, visited, TARGET, RIGHTS);
    must(mr, "%s", strerror(errno));
    static int first = -1; // What was possible for the first partner is so for all.
    const int moved = is_shared(visited);
    if (first < 0) first = moved;
    must(moved == first, "the memory has not moved");
    told->rkey = mr->rkey, told->value = TARGET, told->address = (uintptr_t)visited;
    return mr;
}

// The visitor was killed in the middle of an access.
static void close_to_visitor(struct ibv_mr *mr) {
    must(!ibv_dereg_mr(mr) && !is_shared(visited));
    for (unsigned at = 0; at < TARGET; at++) must(visited[at] == pattern(at), "byte %u", at);
}

static void survive(struct ibv_comp_channel *channel) {
    struct message partner = hear(to_partner[0]);
    if (stage == OPENING) {
        kill_soon();
        hear(to_launcher[0]), hear(to_launcher[0]);
        return;
    }
    struct options options = {.kind = stage == UNRELIABLE ? IBV_QPT_UC : IBV_QPT_RC, .rnr_retry = 7, .retry = chance(8) ? chance(2) : 7};
    struct ibv_srq *srq = options.srq = stage == EVENTS ? make_srq() : NULL;
    a.qp = make_qp(&a, &options);
    connect_qp(&a, a.qp, partner.number, &options);
    posted = over = 0;
    uint64_t received = 0;
    for (unsigned id = 0; id < WINDOW; id++) post_room(srq, id);
    struct ibv_qp_attr attr = {.qp_access_flags = RIGHTS};
    must(!ibv_modify_qp(a.qp, &attr, IBV_QP_ACCESS_FLAGS));
    struct message told = {.number = a.qp->qp_num};
    struct ibv_mr *mr = stage == VISITING ? open_to_visitor(&told) : NULL;
    if (stage != REGISTERED) {
        tell(to_partner[0], told);
        hear(to_partner[0]);
    }
    kill_soon();
    if (stage == UNRELIABLE) {
        work_unreliably(&received);
        return;
    }
    const bool is_over = stage == CONNECTED || stage == VISITING;
    if (is_over) hear(to_launcher[0]), hear(to_launcher[0]);
    enum ibv_wc_status status;
    if (stage == REGISTERED || stage == SLEEPING || is_over) {
        for (unsigned count = 0; count < 3; count++) post_one(NULL);
        if (stage == SLEEPING) sleep_on(channel, &a.sent);
        status = take_one();
    } else {
        status = work(&partner, &received);
    }
    struct message none;
    // Said before the kill, so it is here by now. A partner that is not connected may not be waited for so long.
    const int flags = stage == REGISTERED ? 0 : MSG_DONTWAIT;
    const bool was_killed = is_over || recv(to_launcher[0], &none, sizeof none, flags) == sizeof none;
    must(was_killed, "%s before the kill", ibv_wc_status_str(status));
    expect_failure(status);
    end_round(received, srq);
    if (mr) close_to_visitor(mr);
    if (!is_over) hear(to_launcher[0]);
}

int main(int count, char **words) {
    must(count == 3 || count == 4, "usage: partners SEED KILLS [STAGE]");
    seed = strtoull(words[1], NULL, 0) | 1;
    must(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, to_partner) && !socketpair(AF_UNIX, SOCK_SEQPACKET, 0, to_launcher));
    pid_t launcher = fork();
    must(launcher >= 0);
    if (!launcher) {
        close(to_launcher[0]);
        launch();
    }
    close(to_launcher[1]);
    struct ibv_comp_channel *channel = open_with_channel(&a);
    for (unsigned at = 0; at < HALF; at++) a.memory[at] = pattern(at);
    visited = aligned_alloc(4096, TARGET);
    const unsigned kills = (unsigned)atoi(words[2]), first = chance(STAGES);
    for (round_number = 1; round_number <= kills; round_number++) {
        stage = count == 4 ? (unsigned)atoi(words[3]) : (first + round_number) % STAGES;
        fprintf(stderr, "round %u: %s\n", round_number, NAMES[stage]);
        alarm(100); // Only a hang takes so long.
        tell(to_launcher[0], (struct message){.number = stage, .value = chance(1 << 30)});
        survive(channel);
    }
    puts("survived");
    fflush(stdout);
    while (read(0, &(char){0}, 1) > 0) {}
    struct ibv_cq *cqs[] = {a.sent.cq, a.received.cq};
    close(to_launcher[0]);
    must(waitpid(launcher, NULL, 0) == launcher && cqs[0] != cqs[1]);
    must(!ibv_dereg_mr(a.mr) && !ibv_destroy_cq(cqs[0]) && !ibv_destroy_cq(cqs[1]) && !ibv_destroy_comp_channel(channel));
    must(!ibv_dealloc_pd(a.pd) && !ibv_close_device(a.context));
    puts("done");
    return 0;
}
