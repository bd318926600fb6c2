/* The ways in which Open MPI and MPICH call MX. */
#include "mxtest.h"

/* Few, as both sides poll all the time, on a machine that may have fewer processors. */
enum { ROUNDS = 120 };

/*
 * Open MPI's MTL: context id << 48 | source << 32 | tag, receives with wildcards for source or tag, completion by mx_ipeek
 * and mx_test only.
 */
struct mtl_request {
    mx_request_t handle;
    int over;
    mx_status_t status;
};

static void mtl_progress(mx_endpoint_t endpoint)
{
    for (;;) {
        struct mtl_request *request;
        mx_request_t handle;
        uint32_t result;
        OK(mx_ipeek(endpoint, &handle, &result));
        if (result == 0)
            return;
        {
            void *context;
            OK(mx_context(&handle, &context));
            request = context;
        }
        OK(mx_test(endpoint, &handle, &request->status, &result));
        EQUAL(1, result); /* they abort otherwise */
        request->over = 1;
    }
}

static void mtl_wait(mx_endpoint_t endpoint, struct mtl_request *request)
{
    while (!request->over)
        mtl_progress(endpoint);
    ENDED(MX_STATUS_SUCCESS, request->status);
}

static uint64_t mtl_match(uint64_t context, uint64_t source, uint64_t tag)
{
    return context << 48 | source << 32 | tag;
}

#define ANY_SOURCE (~(UINT64_C(0xffff) << 32))
#define ANY_TAG (~UINT64_C(0x7fffffff))

static void mtl_receive(mx_endpoint_t endpoint, struct mtl_request *request, uint64_t match, uint64_t mask, void *bytes,
                        uint32_t length)
{
    mx_segment_t segment = {bytes, length};
    request->over = 0;
    OK(mx_irecv(endpoint, &segment, 1, match, mask, request, &request->handle));
}

static void mtl_send(mx_endpoint_t endpoint, mx_endpoint_addr_t to, struct mtl_request *request, uint64_t match,
                     void *bytes, uint32_t length, int synchronous)
{
    mx_segment_t segment = {bytes, length};
    request->over = 0;
    if (synchronous)
        OK(mx_issend(endpoint, &segment, 1, to, match, request, &request->handle));
    else
        OK(mx_isend(endpoint, &segment, 1, to, match, request, &request->handle));
}

/* Both ranks do the same: everything to the other, with receives of every kind of wildcard. */
static void mtl_rank(struct other other, uint64_t rank)
{
    enum { LENGTH = 40000 };
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint;
    unsigned char *out = room(LENGTH), *in = room(LENGTH);
    setenv("MX_RCACHE", "2", 1); /* as it does where it has memory hooks */
    endpoint = join(other, &peer);
    fill(out, LENGTH, (unsigned)rank);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint32_t length = round % 3 == 0 ? 8 : round % 3 == 1 ? 3000 : LENGTH;
        static const uint64_t masks[] = {MX_MATCH_MASK_NONE, ANY_SOURCE, ANY_TAG, ANY_SOURCE & ANY_TAG};
        uint64_t mask = masks[round % 4];
        struct mtl_request sending, receiving;
        mtl_receive(endpoint, &receiving, mtl_match(1, 1 - rank, round) & mask, mask, in, LENGTH);
        mtl_send(endpoint, peer, &sending, mtl_match(1, rank, round), out, length, round % 5 == 0);
        mtl_wait(endpoint, &receiving);
        mtl_wait(endpoint, &sending);
        EQUAL(length, receiving.status.xfer_length);
        EQUAL(mtl_match(1, 1 - rank, round), receiving.status.match_info);
        is_filled(in, length, (unsigned)(1 - rank));
    }
    /* MPI_Iprobe and MPI_Cancel. */
    {
        struct mtl_request sending, receiving;
        mx_status_t status;
        uint32_t result = 0;
        mtl_send(endpoint, peer, &sending, mtl_match(2, rank, 5), out, 100, 0);
        while (result == 0)
            OK(mx_iprobe(endpoint, mtl_match(2, 0, 0), ANY_SOURCE & ANY_TAG, &status, &result));
        EQUAL(100, status.xfer_length);
        EQUAL(mtl_match(2, 1 - rank, 5), status.match_info);
        mtl_receive(endpoint, &receiving, status.match_info, MX_MATCH_MASK_NONE, in, LENGTH);
        mtl_wait(endpoint, &receiving);
        mtl_wait(endpoint, &sending);
        mtl_receive(endpoint, &receiving, mtl_match(3, 0, 0), ANY_SOURCE & ANY_TAG, in, LENGTH);
        OK(mx_cancel(endpoint, &receiving.handle, &result));
        EQUAL(1, result);
    }
    meet_at(other, 'z');
    mtl_progress(endpoint);
    end(endpoint);
    free(out);
    free(in);
}

static void mtl_zero(struct other other)
{
    mtl_rank(other, 0);
}

static void mtl_one(struct other other)
{
    mtl_rank(other, 1);
}

static void open_mpi_mtl(void)
{
    pair(mtl_zero, mtl_one);
}

/*
 * Open MPI's BTL: fragments are sent, and where mx_ibuffered says 1 forgotten and used again at once; receives match the
 * low byte; completions without context are ignored; a put matches 64 bits of a pointer.
 */
enum { FRAGMENT = 4096, FRAGMENTS = 2000, POSTED = 16 };

static void btl_sends(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *fragment = room(FRAGMENT), *put_from = room(1 << 20);
    mx_request_t request;
    mx_status_t status;
    uint32_t result;
    uint64_t pointer;
    for (unsigned at = 0; at < FRAGMENTS; at++) {
        mx_segment_t segment = {fragment, at % 10 == 9 ? FRAGMENT : 64};
        fill(fragment, FRAGMENT, at);
        OK(mx_isend(endpoint, &segment, 1, peer, (uint64_t)at << 8 | 1, NULL, &request));
        OK(mx_ibuffered(endpoint, &request, &result));
        if (result) {
            OK(mx_forget(endpoint, &request));
            memset(fragment, 0xcc, FRAGMENT);
        } else {
            finish_well(endpoint, request);
        }
        OK(mx_ipeek(endpoint, &request, &result)); /* progress; what was forgotten is not seen */
        EQUAL(0, result);
    }
    move_until_readable(endpoint, other); /* what was forgotten may still be on its way out */
    get(other, &pointer, sizeof pointer);
    fill(put_from, 1 << 20, 9);
    request = give(endpoint, peer, pointer, put_from, 1 << 20);
    finish_well(endpoint, request);
    OK(mx_test_any(endpoint, 0, 0, &status, &result));
    EQUAL(0, result);
    end(endpoint);
    free(fragment);
    free(put_from);
}

static void btl_receives(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *buffers[POSTED], *into = room(1 << 20);
    mx_request_t request;
    mx_status_t status;
    uint32_t result;
    uint64_t pointer;
    for (int at = 0; at < POSTED; at++)
        post_masked(endpoint, 1, 0xff, buffers[at] = room(FRAGMENT), FRAGMENT);
    for (unsigned at = 0; at < FRAGMENTS;) {
        OK(mx_ipeek(endpoint, &request, &result));
        if (result == 0)
            continue;
        OK(mx_test(endpoint, &request, &status, &result));
        EQUAL(1, result);
        ENDED(MX_STATUS_SUCCESS, status);
        EQUAL((uint64_t)at << 8 | 1, status.match_info);
        is_filled(status.context, status.xfer_length, at);
        post_masked(endpoint, 1, 0xff, status.context, FRAGMENT);
        at++;
    }
    pointer = (uint64_t)(uintptr_t)into << 8; /* so that the low byte is no fragment's */
    request = post(endpoint, pointer, into, 1 << 20);
    put(other, &pointer, sizeof pointer);
    EQUAL(1 << 20, finish_well(endpoint, request).xfer_length);
    is_filled(into, 1 << 20, 9);
    end(endpoint);
    for (int at = 0; at < POSTED; at++)
        free(buffers[at]);
    free(into);
}

static void open_mpi_btl(void)
{
    pair(btl_receives, btl_sends);
}

/*
 * MPICH's nemesis: one context bit at 63; an unexpected handler that knows peers by their address context and posts a
 * receive for exactly what came, with CONTINUE; everything is taken with mx_test_any on bit 63.
 */
#define NEMESIS UINT64_C(0x8000000000000000)

static mx_endpoint_t nemesis;
static unsigned char cell[70000];
static unsigned early, known;

static mx_unexp_handler_action_t posts_a_cell(void *context, mx_endpoint_addr_t source, uint64_t match, uint32_t length,
                                              void *data)
{
    void *channel;
    (void)context, (void)data;
    OK(mx_get_endpoint_addr_context(source, &channel));
    if (channel == NULL)
        early++;
    else
        known++;
    if ((match & NEMESIS) == 0)
        return MX_RECV_CONTINUE;
    CHECK(length <= sizeof cell);
    post(nemesis, match, cell, length);
    return MX_RECV_CONTINUE;
}

static void nemesis_rank(struct other other)
{
    static unsigned char out[70000];
    static int channel;
    mx_endpoint_addr_t peer;
    mx_param_t param;
    mx_status_t status;
    mx_request_t request;
    struct place own, theirs;
    uint32_t result, copy_max;

    memset(&param, 0, sizeof param);
    param.key = MX_PARAM_CONTEXT_ID;
    param.val.context_id.bits = 1;
    param.val.context_id.shift = 63;
    putenv("MX_DISABLE_SHARED=0");
    begin();
    OK(mx_open_endpoint(MX_ANY_NIC, MX_ANY_ENDPOINT, KEY, &param, 1, &nemesis));
    OK(mx_get_info(nemesis, MX_COPY_SEND_MAX, NULL, 0, &copy_max, sizeof copy_max));
    EQUAL(32768, copy_max);
    OK(mx_register_unexp_handler(nemesis, posts_a_cell, NULL));
    own = place_of(nemesis);
    put(other, &own, sizeof own);
    get(other, &theirs, sizeof theirs);
    OK(mx_iconnect(nemesis, theirs.nic, theirs.id, KEY, 1, NULL, &request));
    do
        OK(mx_test(nemesis, &request, &status, &result));
    while (result == 0);
    ENDED(MX_STATUS_SUCCESS, status);
    peer = status.source;
    OK(mx_set_endpoint_addr_context(peer, &channel));
    meet_at(other, 'C');
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint32_t length = round % 10 == 9 ? 70000 : round % 2 ? 16 : 4000;
        int received = 0, sent = 0;
        fill(out, length, round);
        memset(cell, 0, sizeof cell);
        if (round % 7 == 0)
            request = give_sync(nemesis, peer, NEMESIS | round, out, length);
        else
            request = give(nemesis, peer, NEMESIS | round, out, length);
        while (!received || !sent) {
            OK(mx_test_any(nemesis, NEMESIS, NEMESIS, &status, &result));
            if (result == 0)
                continue;
            ENDED(MX_STATUS_SUCCESS, status);
            EQUAL(NEMESIS | round, status.match_info);
            EQUAL(length, status.xfer_length);
            if (status.context == cell) {
                is_filled(cell, length, round);
                received = 1;
            } else {
                CHECK(status.context == out);
                sent = 1;
            }
        }
        meet_at(other, 'n'); /* one cell only: the next may overwrite it */
    }
    EQUAL(ROUNDS, early + known);
    /* Messages of the other context are received directly; probing looks at them alone. */
    send_well(nemesis, peer, 5, out, 100);
    await_unexpected(nemesis, 5);
    OK(mx_iprobe(nemesis, NEMESIS, NEMESIS, &status, &result));
    EQUAL(0, result);
    finish_well(nemesis, post_masked(nemesis, 0, NEMESIS, cell, sizeof cell));
    /* An exact cancel of a receive from any source; mx_cancel of a send is refused. */
    request = post_masked(nemesis, 0, NEMESIS, cell, sizeof cell);
    OK(mx_cancel(nemesis, &request, &result));
    EQUAL(1, result);
    OK(mx_disable_progression(nemesis));
    OK(mx_reenable_progression(nemesis));
    meet_at(other, 'z');
    end(nemesis);
}

static void mpich_nemesis(void)
{
    pair(nemesis_rank, nemesis_rank);
}

MAIN(TEST(open_mpi_mtl), TEST(open_mpi_btl), TEST(mpich_nemesis))
