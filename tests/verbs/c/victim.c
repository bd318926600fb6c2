// A program with a good partner and a hostile one: `victim`, or `victim quiet`, with one queue pair that makes no requests.
//
//   good    ── another process, which returns each message. Its connection goes on, whatever the hostile peer does
//   hostile ── the peer of some queue pairs: it may access one region. All other memory stays as it is
//
// It prints the numbers of its queue pairs and the region, reads the number of the hostile peer, and works until its input ends. Unless it
// is quiet, it prints a line after each exchange with the good partner: then the queue pairs of the hostile peer are connected. At the end it
// prints how many bytes the hostile peer has changed and how often it was refused, and "done".
#include "verbs.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

enum { PAGE = 4096, PAGES = 96, OPEN = 16, READABLE = 40, ROOM = 64, REGION = 16, HOSTILE = 8, RECEIVES = 4, EXCHANGES_AFTER = 100 };
enum { RIGHTS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };

static const struct options RC = {.kind = IBV_QPT_RC, .rnr_retry = 7, .retry = 7};
static const struct options HOSTILE_RC = {.kind = IBV_QPT_RC, .rnr_retry = 1, .retry = 1};
static const struct options UC = {.kind = IBV_QPT_UC};
static const struct options UD = {.kind = IBV_QPT_UD};

// The pages: some are registered for peers, some only to be read by them, some for the program alone; those between are not.
static unsigned char *pages;
static struct ibv_mr *open_region, *readable, *room;
static struct ibv_qp *hostile[HOSTILE];
static struct queue completions_of_hostile;
static uint32_t hostile_number;
static unsigned hostile_count = HOSTILE;
static unsigned long refused_keys, refused_requests;

static const struct options *options_of(unsigned at) {
    return at < 4 ? &HOSTILE_RC : at < 6 ? &UC : &UD;
}

static unsigned char pattern(unsigned at) {
    return (unsigned char)(at * 7 + at / 251);
}

static void check_pages(void) {
    for (unsigned at = 0; at < PAGES * PAGE; at++) {
        const unsigned page = at / PAGE;
        const bool may_change = (page >= OPEN && page < OPEN + REGION) || (page >= ROOM && page < ROOM + REGION);
        must(may_change || pages[at] == pattern(at), "byte %u of page %u", at % PAGE, page);
    }
}

static struct ibv_mr *register_pages(unsigned first, int access) {
    struct ibv_mr *mr = ibv_reg_mr(a.pd, pages + first * PAGE, REGION * PAGE, access);
    must(mr, "%s", strerror(errno));
    return mr;
}

// --- the good partner --------------------------------------------------------------------------------------------------------------

static void connect_to(int socket) {
    uint32_t number = a.qp->qp_num;
    must(write(socket, &number, sizeof number) == sizeof number && read(socket, &number, sizeof number) == sizeof number);
    connect_qp(&a, a.qp, number, &RC);
    must(write(socket, &number, sizeof number) == sizeof number && read(socket, &number, sizeof number) == sizeof number);
}

static void be_good(int socket) {
    open_end(&a);
    a.qp = make_qp(&a, &RC);
    connect_to(socket);
    post_receive(&a, 0, 0, MEMORY / 2);
    for (;;) {
        struct ibv_wc got = expect(&a.received, 0, IBV_WC_SUCCESS);
        post_receive(&a, 0, 0, MEMORY / 2);
        post_send(&a, 1, 0, got.byte_len);
        expect(&a.sent, 1, IBV_WC_SUCCESS);
    }
}

static void exchange_with_good(unsigned count) {
    const unsigned length = 1 + count * 997 % (count % 16 ? 2000 : 200000);
    for (unsigned at = 0; at < length; at++) a.memory[at] = (unsigned char)(at * 31 + count);
    memset(a.memory + MEMORY / 2, 0, length);
    post_receive(&a, count, MEMORY / 2, length);
    post_send(&a, count, 0, length);
    expect(&a.sent, count, IBV_WC_SUCCESS);
    must(expect(&a.received, count, IBV_WC_SUCCESS).byte_len == length);
    must(!memcmp(a.memory, a.memory + MEMORY / 2, length), "message %u came back with other bytes", count);
}

// --- the hostile peer --------------------------------------------------------------------------------------------------------------

// Posts a receive request, if the queue has room for it.
static void post_room(struct ibv_qp *qp) {
    struct ibv_sge sge = {.addr = (uintptr_t)(pages + ROOM * PAGE), .length = REGION * PAGE, .lkey = room->lkey};
    struct ibv_recv_wr *bad, request = {.sg_list = &sge, .num_sge = 1};
    int error = ibv_post_recv(qp, &request, &bad);
    must(!error || error == ENOMEM, "%s", strerror(error));
}

// Connects a queue pair, unless a packet has ended it already.
static void connect_hostile(unsigned at) {
    struct ibv_qp_attr attr = {.qp_access_flags = RIGHTS};
    int error = try_connect_qp(&a, hostile[at], hostile_number, options_of(at));
    if (!error && options_of(at) != &UD) error = ibv_modify_qp(hostile[at], &attr, IBV_QP_ACCESS_FLAGS);
    must(!error || state_of(hostile[at]) == IBV_QPS_ERR, "%s", strerror(error));
    for (unsigned count = 0; count < RECEIVES; count++) post_room(hostile[at]);
}

// What is left of the queue pairs of the hostile peer begins again. Now and then three of them have a request.
static void renew_hostile(unsigned count) {
    do {
        completions_of_hostile.count = 0;
        poll_queue(&completions_of_hostile);
    } while (completions_of_hostile.count);
    for (unsigned at = 0; at < hostile_count; at++) {
        enum ibv_qp_state state = state_of(hostile[at]);
        if (state == IBV_QPS_RTS) {
            struct ibv_sge list = {.addr = (uintptr_t)(pages + ROOM * PAGE), .length = 1 + count % 3000, .lkey = room->lkey};
            struct ibv_send_wr *bad, request = {.sg_list = &list, .num_sge = 1, .opcode = (enum ibv_wr_opcode[]){
                IBV_WR_SEND, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE}[count % 3]};
            request.wr.rdma.remote_addr = (uintptr_t)pages;
            request.wr.rdma.rkey = count;
            if (at < 3 && hostile_count > 1 && (count + at) % 8 == 0) ibv_post_send(hostile[at], &request, &bad); // The queue may be full.
            post_room(hostile[at]);
            continue;
        }
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RESET};
        must(!ibv_modify_qp(hostile[at], &attr, IBV_QP_STATE));
        begin_qp(hostile[at], options_of(at));
        connect_hostile(at);
    }
}

static void count_events(void) {
    struct ibv_async_event event;
    while (!ibv_get_async_event(a.context, &event)) {
        refused_keys += event.event_type == IBV_EVENT_QP_ACCESS_ERR;
        refused_requests += event.event_type == IBV_EVENT_QP_REQ_ERR;
        must(event.event_type != IBV_EVENT_CQ_ERR && event.element.qp != a.qp, "%s", ibv_event_type_str(event.event_type));
        ibv_ack_async_event(&event);
    }
}

static void open_to_hostile(void) {
    pages = aligned_alloc(PAGE, PAGES * PAGE);
    must(pages);
    for (unsigned at = 0; at < PAGES * PAGE; at++) pages[at] = pattern(at);
    open_region = register_pages(OPEN, RIGHTS);
    readable = register_pages(READABLE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
    room = register_pages(ROOM, IBV_ACCESS_LOCAL_WRITE);
    struct end own = a; // The queue pairs of the hostile peer have a completion queue of their own.
    completions_of_hostile.cq = a.sent.cq = a.received.cq = ibv_create_cq(a.context, 1 << 17, NULL, NULL, 0);
    must(a.sent.cq);
    for (unsigned at = 0; at < hostile_count; at++) hostile[at] = make_qp(&a, options_of(at));
    a.sent.cq = own.sent.cq, a.received.cq = own.received.cq;
    for (unsigned at = 0; at < hostile_count; at++) printf("%u ", hostile[at]->qp_num);
    printf("%lu %u %u\n", (uintptr_t)(pages + OPEN * PAGE), open_region->rkey, readable->rkey);
    fflush(stdout);
    must(scanf("%u", &hostile_number) == 1);
    for (unsigned at = 0; at < hostile_count; at++) connect_hostile(at);
    int fd = a.context->async_fd;
    must(!fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK));
    puts("ready");
    fflush(stdout);
}

int main(int words, char **word) {
    must(words == 1 || !strcmp(word[1], "quiet"), "usage: victim [quiet]");
    if (words > 1) hostile_count = 1;
    int sockets[2];
    must(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets));
    pid_t good = fork();
    must(good >= 0);
    if (!good) be_good(sockets[0]);
    open_end(&a);
    a.qp = make_qp(&a, &RC);
    connect_to(sockets[1]);
    open_to_hostile();
    struct pollfd input = {.fd = 0, .events = POLLIN};
    unsigned count = 0, left = EXCHANGES_AFTER;
    for (; left > 0; count++) {
        alarm(100); // Only a hang takes so long.
        exchange_with_good(count);
        renew_hostile(count);
        count_events();
        if (count % 64 == 0) check_pages();
        if (hostile_count > 1) puts("exchanged");
        fflush(stdout);
        left -= poll(&input, 1, 0) > 0;
    }
    check_pages();
    int status;
    must(waitpid(good, &status, WNOHANG) == 0, "the good partner has ended: %#x", status);
    must(!kill(good, SIGKILL) && waitpid(good, &status, 0) == good);
    for (unsigned at = 0; at < hostile_count; at++) must(!ibv_destroy_qp(hostile[at]));
    must(!ibv_destroy_cq(completions_of_hostile.cq) && !ibv_dereg_mr(open_region) && !ibv_dereg_mr(readable) && !ibv_dereg_mr(room));
    check_pages();
    close_end(&a);
    unsigned changed = 0;
    for (unsigned at = OPEN * PAGE; at < (OPEN + REGION) * PAGE; at++) changed += pages[at] != pattern(at);
    printf("exchanges %u changed %u keys %lu requests %lu\ndone\n", count, changed, refused_keys, refused_requests);
    return 0;
}
