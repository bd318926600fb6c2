// What perftest does not measure: registration, many queue pairs, and two sides that add to one word.
//
//   program register BYTES MS    the first registration of memory, and the next one of the same memory
//   program remap BYTES MS       the same pages copied into a file that takes their place, without verbs
//   program pong QPS             replies to each message of its first queue pair
//   program ping QPS MS          sends them, and measures half a round trip
//   program idle QPS             sleeps in ibv_get_cq_event, with an armed completion queue for each
//   program own QPS              has a word, and queue pairs to which others connect; sleeps
//   program add MS               adds 1 to that word, one request at a time
//   program write MS             writes it, one request at a time
//
// Sides that connect print `ADDRESS KEY QP…`, the place of their word and the numbers of their queue pairs. They read such a line of the other
// side, and print `connected PID`. `ping`, `add` and `write` then begin at a line of input, and `own` prints its word at one.
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define must(condition)                                                                            \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, strerror(errno));    \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

// `DEPTH` requests of each queue pair. `ROUNDS` between two looks at the clock.
enum { PORT = 1, DEPTH = 4, ROUNDS = 100, SAMPLES_MAX = 1 << 20, MESSAGE = 2, PAGE = 4096, CHUNK = 256 << 10 };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *sent;
static struct ibv_cq **received; // One for each queue pair that sleeps, and one for all others.
static struct ibv_mr *mr;
static struct ibv_qp **qps;
static uint64_t *word; // In a page of its own.
static int count;

// Of the other side.
static uint64_t remote_address;
static uint32_t remote_key;

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int of) {
    must(of > 0);
    qsort(values, of, sizeof *values, by_size);
    return values[of / 2];
}

static void wait_for_line(void) {
    char line[16];
    if (!fgets(line, sizeof line, stdin)) exit(0);
}

static void open_device(bool with_channel) {
    struct ibv_device **list = ibv_get_device_list(NULL);
    must(list && list[0]);
    must(context = ibv_open_device(list[0]));
    must(pd = ibv_alloc_pd(context));
    if (with_channel) must(channel = ibv_create_comp_channel(context));
}

static void make_queue_pairs(int of, bool with_channel) {
    open_device(with_channel);
    count = of;
    must(sent = ibv_create_cq(context, DEPTH, NULL, NULL, 0));
    must(received = calloc(of, sizeof *received));
    must(word = aligned_alloc(PAGE, PAGE));
    memset(word, 0, PAGE);
    must(mr = ibv_reg_mr(pd, word, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC));
    must(qps = calloc(of, sizeof *qps));
    struct ibv_qp_init_attr init = {
        .send_cq = sent,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = MESSAGE},
        .qp_type = IBV_QPT_RC,
    };
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = PORT, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC};
    for (int at = 0; at < of; at++) {
        bool is_new = !at || with_channel;
        must(received[at] = is_new ? ibv_create_cq(context, DEPTH, NULL, channel, 0) : received[0]);
        init.recv_cq = received[at];
        must(qps[at] = ibv_create_qp(pd, &init));
        must(!ibv_modify_qp(qps[at], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    }
}

static void post_receive(void) {
    struct ibv_sge sge = {.addr = (uintptr_t)(word + 8), .length = MESSAGE, .lkey = mr->lkey};
    struct ibv_recv_wr *bad, request = {.sg_list = &sge, .num_sge = 1};
    must(!ibv_post_recv(qps[0], &request, &bad));
}

static void post_send(void) {
    struct ibv_sge sge = {.addr = (uintptr_t)(word + 16), .length = MESSAGE};
    struct ibv_send_wr *bad, request = {
        .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED};
    must(!ibv_post_send(qps[0], &request, &bad));
}

static void await(struct ibv_cq *cq) {
    struct ibv_wc done;
    int polled;
    while (!(polled = ibv_poll_cq(cq, 1, &done))) {}
    must(polled == 1 && done.status == IBV_WC_SUCCESS);
}

static void connect_one(struct ibv_qp *qp, uint32_t peer) {
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_4096,
        .dest_qp_num = peer,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = PORT, .grh = {.hop_limit = 1}},
    };
    must(!ibv_query_gid(context, PORT, 0, &attr.ah_attr.grh.dgid)); // Both are on one host.
    must(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
                                       | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    struct ibv_qp_attr send = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
    must(!ibv_modify_qp(qp, &send, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY
                                       | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void connect_all(void) {
    printf("%llu %u", (unsigned long long)(uintptr_t)word, mr->rkey);
    for (int at = 0; at < count; at++) printf(" %u", qps[at]->qp_num);
    puts("");
    fflush(stdout);
    unsigned long long address;
    must(scanf("%llu %u", &address, &remote_key) == 2);
    remote_address = address;
    for (int at = 0; at < count; at++) {
        unsigned peer;
        must(scanf("%u", &peer) == 1);
        connect_one(qps[at], peer);
    }
    getchar(); // The end of the line.
    printf("connected %d\n", getpid());
    fflush(stdout);
}

static void pong(void) {
    for (;;) {
        await(received[0]);
        post_receive();
        post_send();
        await(sent);
    }
}

static void ping(double ms) {
    static double halves[SAMPLES_MAX];
    int taken = 0;
    wait_for_line();
    for (double end = now_ns() + ms * 1e6; taken < SAMPLES_MAX && (taken < 10 || now_ns() < end); taken++) {
        double start = now_ns();
        for (int round = 0; round < ROUNDS; round++) {
            post_receive();
            post_send();
            await(received[0]);
            await(sent);
        }
        halves[taken] = (now_ns() - start) / (2 * ROUNDS);
    }
    printf("half_rtt_ns %.2f\n", median(halves, taken));
}

static void arm_all(void) {
    for (int at = 0; at < count; at++) must(!ibv_req_notify_cq(received[at], 0));
}

static void idle(void) {
    struct ibv_cq *cq;
    void *unused;
    must(!ibv_get_cq_event(channel, &cq, &unused));
}

static void own(void) {
    wait_for_line();
    printf("word %llu\n", (unsigned long long)*(volatile uint64_t *)word);
}

static void request(enum ibv_wr_opcode opcode) {
    struct ibv_sge sge = {.addr = (uintptr_t)(word + 8), .length = 8, .lkey = mr->lkey};
    struct ibv_send_wr *bad, wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
    if (opcode == IBV_WR_RDMA_WRITE) {
        wr.wr.rdma.remote_addr = remote_address;
        wr.wr.rdma.rkey = remote_key;
    } else {
        wr.wr.atomic.remote_addr = remote_address;
        wr.wr.atomic.rkey = remote_key;
        wr.wr.atomic.compare_add = 1;
    }
    must(!ibv_post_send(qps[0], &wr, &bad));
    await(sent);
}

// Each request is timed; `batch` of them, where they take less than the clock.
static void repeat(enum ibv_wr_opcode opcode, int batch, double ms) {
    static double took[SAMPLES_MAX];
    double sum = 0;
    int taken = 0;
    wait_for_line();
    for (double end = now_ns() + ms * 1e6; taken < SAMPLES_MAX && (taken < 10 || now_ns() < end); taken++) {
        double start = now_ns();
        for (int done = 0; done < batch; done++) request(opcode);
        took[taken] = (now_ns() - start) / batch;
        sum += took[taken];
    }
    printf("requests %d\nmean_ns %.2f\nmedian_ns %.2f\n", taken * batch, sum / taken, median(took, taken));
}

static void *fresh(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(memory != MAP_FAILED);
    memset(memory, 1, bytes);
    return memory;
}

static double register_once(void *memory, size_t bytes) {
    double start = now_ns();
    struct ibv_mr *region = ibv_reg_mr(pd, memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    double took = now_ns() - start;
    must(region && !ibv_dereg_mr(region));
    return took;
}

static void measure_registration(size_t bytes, double ms) {
    static double first[SAMPLES_MAX], again[SAMPLES_MAX];
    int taken = 0;
    open_device(false);
    for (double end = now_ns() + ms * 1e6; taken < SAMPLES_MAX && (taken < 5 || now_ns() < end); taken++) {
        void *memory = fresh(bytes);
        first[taken] = register_once(memory, bytes);
        again[taken] = register_once(memory, bytes);
        must(!munmap(memory, bytes));
    }
    printf("first_ns %.0f\nagain_ns %.0f\n", median(first, taken), median(again, taken));
}

// Many regions, all of which stay. Prints the median of the first ten, and that of ten at the end of the memory that peers reach or at the
// end of all, of which the slower one counts.
static void measure_many_registrations(size_t bytes, double ms) {
    enum { MANY = 10000, DIRECT = 1000, AROUND = 10 };
    static double first[SAMPLES_MAX], nth[SAMPLES_MAX], took[MANY];
    static struct ibv_mr *regions[MANY];
    static void *memory[MANY];
    int taken = 0;
    open_device(false);
    for (double end = now_ns() + ms * 1e6; taken < SAMPLES_MAX && (taken < 3 || now_ns() < end); taken++) {
        for (int at = 0; at < MANY; at++) {
            memory[at] = fresh(bytes);
            double start = now_ns();
            regions[at] = ibv_reg_mr(pd, memory[at], bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
            took[at] = now_ns() - start;
            must(regions[at] != NULL);
        }
        for (int at = 0; at < MANY; at++) must(!ibv_dereg_mr(regions[at]) && !munmap(memory[at], bytes));
        first[taken] = median(took, AROUND);
        double direct = median(took + DIRECT - AROUND, AROUND), last = median(took + MANY - AROUND, AROUND);
        nth[taken] = direct > last ? direct : last;
    }
    printf("first_ns %.0f\nnth_ns %.0f\n", median(first, taken), median(nth, taken));
}

// In chunks, as a program would do it that does not want the pages twice.
static void remap(char *memory, size_t bytes, int file, off_t start) {
    for (size_t at = 0; at < bytes; at += CHUNK) {
        size_t part = bytes - at < CHUNK ? bytes - at : CHUNK;
        off_t offset = start + (off_t)at;
        must(pwrite(file, memory + at, part, offset) == (ssize_t)part);
        int flags = MAP_SHARED | MAP_FIXED | MAP_POPULATE;
        must(mmap(memory + at, part, PROT_READ | PROT_WRITE, flags, file, offset) != MAP_FAILED);
    }
}

static void measure_remap(size_t bytes, double ms) {
    static double took[SAMPLES_MAX];
    int taken = 0, file = memfd_create("remap", MFD_CLOEXEC);
    must(file >= 0 && !ftruncate(file, (off_t)1 << 62));
    for (double end = now_ns() + ms * 1e6; taken < SAMPLES_MAX && (taken < 5 || now_ns() < end); taken++) {
        char *memory = fresh(bytes);
        off_t start = (off_t)bytes * taken;
        double begin = now_ns();
        remap(memory, bytes, file, start);
        took[taken] = now_ns() - begin;
        must(!munmap(memory, bytes));
        must(!fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, start, (off_t)bytes));
    }
    printf("remap_ns %.0f\n", median(took, taken));
}

// The roles that have queue pairs.
static void run_connected(const char *role, double number, double ms) {
    bool pings = !strcmp(role, "ping"), pongs = !strcmp(role, "pong"), idles = !strcmp(role, "idle");
    bool owns = !strcmp(role, "own"), adds = !strcmp(role, "add"), writes = !strcmp(role, "write");
    if (!pings && !pongs && !idles && !owns && !adds && !writes) {
        fprintf(stderr, "there is no role %s\n", role);
        exit(2);
    }
    make_queue_pairs(adds || writes ? 1 : (int)number, idles);
    if (pongs) post_receive();
    if (idles) arm_all();
    connect_all();
    if (pings) ping(ms);
    if (pongs) pong();
    if (idles) idle();
    if (owns) own();
    if (adds) repeat(IBV_WR_ATOMIC_FETCH_AND_ADD, ROUNDS, number);
    if (writes) repeat(IBV_WR_RDMA_WRITE, 1, number);
}

int main(int of, char **words) {
    const char *role = of > 1 ? words[1] : "";
    double number = of > 2 ? atof(words[2]) : 0, ms = of > 3 ? atof(words[3]) : 0;
    if (!strcmp(role, "register")) measure_registration((size_t)number, ms);
    else if (!strcmp(role, "register_many")) measure_many_registrations((size_t)number, ms);
    else if (!strcmp(role, "remap")) measure_remap((size_t)number, ms);
    else run_connected(role, number, ms);
    return 0;
}
