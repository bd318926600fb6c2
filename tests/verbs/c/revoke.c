// Rights that end while a peer writes: `revoke SEED ROUNDS`.
//
//   owner  ── registers memory, and ends or reduces the rights while the writer is at work. When the call has returned, the memory is its own
//   writer ── another process, which writes without end, in each round on another connection: the first failure is REM_ACCESS_ERR
//
// It prints "done".
#include "verbs.h"

#include <sys/mman.h>
#include <sys/socket.h>

enum { WINDOW = 8, LENGTH = 1 << 18, STAYS = 2000, MOMENT = 400 };
enum { RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
enum memory { WHOLE_PAGES, PART_OF_A_PAGE, SHARED_MAPPING, MEMORIES };
enum revocation { DEREGISTER, LESS_RIGHTS, OTHER_DOMAIN, REVOCATIONS };

struct message {
    uint32_t number, rkey, length, atomic, status;
    uint64_t address;
};

static const struct options RC = {.kind = IBV_QPT_RC, .rnr_retry = 7, .retry = 7};
static uint64_t seed;
static int to_peer;

static unsigned chance(unsigned below) {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (unsigned)((seed >> 16) % below);
}

static void tell(struct message message) {
    must(write(to_peer, &message, sizeof message) == sizeof message, "%s", strerror(errno));
}

static bool hear(struct message *message) {
    ssize_t got = read(to_peer, message, sizeof *message);
    must(!got || got == sizeof *message, "%s", strerror(errno));
    return got;
}

// --- the writer --------------------------------------------------------------------------------------------------------------------

// Writes the whole range or a part of it, with bytes that are never zero, or adds to its first number.
static void post_one(const struct message *target, uint64_t id) {
    const unsigned slot = (unsigned)(id % WINDOW) * LENGTH, whole = target->length;
    const unsigned length = target->atomic ? 8 : id == 0 || chance(2) ? whole : 1 + chance(whole);
    const unsigned at = target->atomic || length == whole ? 0 : chance(whole - length + 1);
    struct ibv_sge list = range(&a, slot, length);
    struct ibv_send_wr request = {.wr_id = id, .sg_list = &list, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *refused;
    if (target->atomic) {
        request.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
        request.wr.atomic.remote_addr = target->address, request.wr.atomic.rkey = target->rkey, request.wr.atomic.compare_add = 1;
    } else {
        memset(a.memory + slot, (int)(id % 255) + 1, length);
        request.wr.rdma.remote_addr = target->address + at, request.wr.rdma.rkey = target->rkey;
    }
    must(!ibv_post_send(a.qp, &request, &refused));
}

static void write_forever(const struct message *target) {
    uint64_t posted = 0, over = 0;
    struct ibv_wc got;
    do {
        while (posted - over < WINDOW) post_one(target, posted++);
        got = next(&a.sent);
        must(got.wr_id == over++);
    } while (got.status == IBV_WC_SUCCESS);
    // An atomic operation of which the owner's end is unknown is not repeated.
    must(got.status == IBV_WC_REM_ACCESS_ERR || (target->atomic && got.status == IBV_WC_REM_OP_ERR), "%s", ibv_wc_status_str(got.status));
    must(state_of(a.qp) == IBV_QPS_ERR);
    while (over < posted) expect(&a.sent, over++, IBV_WC_WR_FLUSH_ERR);
    tell((struct message){.status = got.status});
}

static void be_writer(void) {
    open_end(&a);
    for (struct message target; hear(&target);) {
        alarm(100); // Only a hang takes so long.
        a.qp = make_qp(&a, &RC);
        tell((struct message){.number = a.qp->qp_num});
        connect_qp(&a, a.qp, target.number, &RC);
        struct message ready;
        must(hear(&ready));
        write_forever(&target);
        must(!ibv_destroy_qp(a.qp));
        a.qp = NULL;
    }
    close_end(&a);
    exit(0);
}

// --- the owner ---------------------------------------------------------------------------------------------------------------------

static unsigned char *make_memory(enum memory kind) {
    switch (kind) {
        case WHOLE_PAGES: return aligned_alloc(4096, LENGTH);
        case PART_OF_A_PAGE: return malloc(STAYS);
        default: return mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    }
}

static void free_memory(enum memory kind, unsigned char *memory) {
    if (kind != SHARED_MAPPING) free(memory);
    else must(!munmap(memory, LENGTH));
}

static void end_rights(struct ibv_mr **mr, enum revocation how, struct ibv_pd *other) {
    switch (how) {
        case DEREGISTER:
            must(!ibv_dereg_mr(*mr));
            *mr = NULL;
            return;
        case LESS_RIGHTS:
            must(!ibv_rereg_mr(*mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
            return;
        default: must(!ibv_rereg_mr(*mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0));
    }
}

static void expect_access_event(void) {
    struct ibv_async_event event;
    must(!ibv_get_async_event(a.context, &event), "%s", strerror(errno));
    must(event.event_type == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == a.qp, "%s", ibv_event_type_str(event.event_type));
    ibv_ack_async_event(&event);
}

static void own(enum memory kind, enum revocation how, bool atomic, struct ibv_pd *other) {
    const unsigned length = kind == PART_OF_A_PAGE ? STAYS : LENGTH;
    unsigned char *memory = make_memory(kind);
    must(memory && memory != MAP_FAILED);
    memset(memory, 0, length);
    struct ibv_mr *mr = ibv_reg_mr(a.pd, memory, length, RIGHTS);
    must(mr, "%s", strerror(errno));
    a.qp = make_qp(&a, &RC);
    tell((struct message){
        .number = a.qp->qp_num, .rkey = mr->rkey, .length = length, .atomic = atomic, .address = (uintptr_t)memory});
    struct message writer;
    must(hear(&writer));
    connect_qp(&a, a.qp, writer.number, &RC);
    struct ibv_qp_attr attr = {.qp_access_flags = RIGHTS};
    must(!ibv_modify_qp(a.qp, &attr, IBV_QP_ACCESS_FLAGS));
    tell((struct message){0});
    volatile unsigned char *first = memory, *last = memory + (atomic ? 0 : length - 1);
    while (!*first || !*last) {}
    for (unsigned count = chance(MOMENT); count > 0; count--) poll_all();
    end_rights(&mr, how, other);
    memset(memory, 0, length);
    struct message report;
    must(hear(&report));
    for (int times = 0; times < 20; times++) poll_all();
    for (unsigned at = 0; at < length; at++) must(!memory[at], "byte %u was written after its rights had ended", at);
    if (report.status == IBV_WC_REM_ACCESS_ERR) expect_access_event();
    must(state_of(a.qp) == IBV_QPS_ERR && !ibv_destroy_qp(a.qp));
    a.qp = NULL;
    must(!mr || !ibv_dereg_mr(mr));
    free_memory(kind, memory);
}

int main(int count, char **words) {
    must(count == 3, "usage: revoke SEED ROUNDS");
    seed = strtoull(words[1], NULL, 0) | 1;
    int sockets[2];
    must(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets));
    pid_t child = fork();
    must(child >= 0);
    to_peer = sockets[child ? 0 : 1];
    close(sockets[child ? 1 : 0]);
    if (!child) be_writer();
    open_end(&a);
    struct ibv_pd *other = ibv_alloc_pd(a.context);
    must(other);
    const unsigned rounds = (unsigned)atoi(words[2]);
    for (unsigned round = 0; round < rounds; round++) {
        enum memory kind = round % MEMORIES;
        enum revocation how = round / MEMORIES % REVOCATIONS;
        const bool atomic = !chance(4);
        fprintf(stderr, "round %u: memory %u, revocation %u, %s\n", round, kind, how, atomic ? "atomic" : "writes");
        alarm(100); // Only a hang takes so long.
        own(kind, how, atomic, other);
    }
    close(to_peer);
    int status;
    must(waitpid(child, &status, 0) == child && status == 0, "the writer has failed: %#x", status);
    must(!ibv_dealloc_pd(other));
    close_end(&a);
    puts("done");
    return 0;
}
