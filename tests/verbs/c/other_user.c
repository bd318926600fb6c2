// A peer that knows an address and keys of a victim (`victim.c`): `other_user NUMBER ADDRESS KEY READABLE allowed|forbidden`.
//
// It prints the number of its queue pair, begins when it has read a line, prints "over", and ends when its input ends.
#include "verbs.h"

enum { PAGE = 4096, READABLE = 24 * PAGE, REGION = 16 * PAGE };

static const struct options RC = {.kind = IBV_QPT_RC, .rnr_retry = 7, .retry = 7};
static uint32_t victim;

// Makes a request, and expects its status. After a failure the queue pair is connected again.
static void attempt(enum ibv_wr_opcode opcode, uint64_t address, uint32_t key, unsigned length, enum ibv_wc_status status) {
    struct ibv_sge list = range(&a, 0, length);
    struct ibv_send_wr *bad, request = {.wr_id = address, .sg_list = &list, .num_sge = 1, .opcode = opcode};
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        request.wr.atomic.remote_addr = address, request.wr.atomic.rkey = key, request.wr.atomic.compare_add = 1;
    } else {
        request.wr.rdma.remote_addr = address, request.wr.rdma.rkey = key;
    }
    must(!ibv_post_send(a.qp, &request, &bad));
    expect(&a.sent, address, status);
    if (status == IBV_WC_SUCCESS) return;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
    must(!ibv_modify_qp(a.qp, &attr, IBV_QP_STATE));
    begin_qp(a.qp, &RC);
    connect_qp(&a, a.qp, victim, &RC);
}

// The rights are those of the regions.
static void access_as_allowed(uint64_t address, uint32_t key, uint32_t readable) {
    const enum ibv_wc_status ok = IBV_WC_SUCCESS, refused = IBV_WC_REM_ACCESS_ERR;
    for (unsigned length = 1; length <= REGION; length = length * 3 + 5) {
        const unsigned at = REGION - length;
        memset(a.memory, (int)length, length);
        attempt(IBV_WR_RDMA_WRITE, address + at, key, length, ok);
        memset(a.memory, 0, length);
        attempt(IBV_WR_RDMA_READ, address + at, key, length, ok);
        for (unsigned byte = 0; byte < length; byte++) must(a.memory[byte] == (unsigned char)length, "byte %u of %u", byte, length);
    }
    attempt(IBV_WR_ATOMIC_FETCH_AND_ADD, address + 64, key, 8, ok);
    attempt(IBV_WR_RDMA_READ, address + READABLE, readable, REGION, ok);
    attempt(IBV_WR_RDMA_WRITE, address + REGION - 8, key, 16, refused);
    attempt(IBV_WR_RDMA_WRITE, address - 8, key, 16, refused);
    attempt(IBV_WR_RDMA_READ, address + REGION, key, 8, refused);
    attempt(IBV_WR_RDMA_WRITE, address + READABLE, readable, 8, refused);
    attempt(IBV_WR_ATOMIC_FETCH_AND_ADD, address + READABLE, readable, 8, refused);
    attempt(IBV_WR_RDMA_WRITE, address + READABLE, key, 8, refused);
    attempt(IBV_WR_RDMA_WRITE, address, key ^ 4, 8, refused);
    attempt(IBV_WR_RDMA_WRITE, address, key, 8, ok);
}

static void access_in_vain(uint64_t address, uint32_t key, uint32_t readable) {
    attempt(IBV_WR_RDMA_WRITE, address, key, 8, IBV_WC_RETRY_EXC_ERR);
    attempt(IBV_WR_RDMA_READ, address + READABLE, readable, 8, IBV_WC_RETRY_EXC_ERR);
    attempt(IBV_WR_ATOMIC_FETCH_AND_ADD, address, key, 8, IBV_WC_RETRY_EXC_ERR);
}

int main(int count, char **words) {
    must(count == 6, "usage: other_user NUMBER ADDRESS KEY READABLE allowed|forbidden");
    alarm(100); // Only a hang takes so long.
    victim = (uint32_t)strtoul(words[1], NULL, 10);
    const uint64_t address = strtoull(words[2], NULL, 10);
    const uint32_t key = (uint32_t)strtoul(words[3], NULL, 10), readable = (uint32_t)strtoul(words[4], NULL, 10);
    open_end(&a);
    a.qp = make_qp(&a, &RC);
    printf("%u\n", a.qp->qp_num);
    fflush(stdout);
    must(getchar() == '\n');
    connect_qp(&a, a.qp, victim, &RC);
    (strcmp(words[5], "allowed") ? access_in_vain : access_as_allowed)(address, key, readable);
    puts("over");
    fflush(stdout);
    must(getchar() == EOF);
    close_end(&a);
    puts("done");
    return 0;
}
