/*
 * Sends messages of every length at every alignment, whole and in segments, and receives them back. Checks that they are
 * unchanged, and that the guard bytes on both sides of each receive buffer are untouched.
 *
 *   mx_loop &                prints: endpoint 0
 *   mx_loop -r 0
 *
 * Lengths: all from 0 to 300, then those around each length at which MX changes its method (4096, 32768, ...).
 */
#include "mx_example.h"

static const char usage[] =
    "usage: mx_loop [-b ENDPOINT]                                  sends back what comes\n"
    "       mx_loop [-b ENDPOINT] -r ENDPOINT [-d HOST] [-E BYTES] [-a ALIGNMENTS] [-g SEGMENTS] [-y]\n"
    "  -r  endpoint number of the server         -d  its host [this machine's first board]\n"
    "  -b  own endpoint number [any]             -E  longest message [1048579]\n"
    "  -a  alignments, from 0 bytes up [8]       -g  segments of a divided message [7]; 1: never divided\n"
    "  -y  synchronous sends too (mx_issend)\n";

enum { GUARD = 64, ALIGNMENTS_MAX = 64, SIZE_MAX_BYTES = 64 << 20, GUARD_BYTE = 0xa5 };

/* Around these, lengths from three less to three more are tried. */
static const size_t edges[] = {512, 1024, 1500, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 1048576, 4194304};

#define LOOP UINT64_C(0x6c6f6f70)
#define STOP UINT64_C(0x73746f70)

struct plan {
    uint64_t longest, alignments, segments, synchronous;
};

struct side {
    mx_endpoint_t endpoint;
    mx_endpoint_addr_t peer;
    unsigned char *out, *in;
    uint64_t trips;
};

/* Cuts `length` bytes into `count` segments of different lengths, some of them empty. */
static void cut(mx_segment_t *segments, uint32_t count, unsigned char *bytes, size_t length, unsigned seed)
{
    for (uint32_t at = 0; at < count; at++) {
        size_t share = at + 1 == count ? length : length * ((seed + at * 5) % 8) / 8;
        segments[at].segment_ptr = share == 0 ? NULL : bytes;
        segments[at].segment_length = (uint32_t)share;
        bytes += share;
        length -= share;
    }
}

static void check_guards(const unsigned char *message, size_t length)
{
    for (size_t at = 0; at < GUARD; at++)
        if (message[-1 - (ptrdiff_t)at] != GUARD_BYTE || message[length + at] != GUARD_BYTE) {
            fprintf(stderr, "%zu bytes: a byte outside of the message was written\n", length);
            exit(FAILED);
        }
}

/* Sends `length` bytes, gets them back. `seed` varies bytes, alignment of the way back and the cuts. */
static void trip(struct side *side, const struct plan *plan, size_t length, size_t alignment, uint32_t pieces, int sync)
{
    unsigned seed = (unsigned)(side->trips++ * 13);
    unsigned char *out = side->out + GUARD + alignment;
    unsigned char *in = side->in + GUARD + (alignment * 5 + seed) % plan->alignments;
    mx_segment_t sent[MX_MAX_SEGMENTS], received[MX_MAX_SEGMENTS];
    mx_request_t sending, receiving;
    mx_status_t status;

    fill(out, length, seed);
    memset(in - GUARD, GUARD_BYTE, length + 2 * GUARD);
    cut(sent, pieces, out, length, seed);
    cut(received, pieces, in, length, seed + 3);
    MX(mx_irecv(side->endpoint, received, pieces, LOOP, MX_MATCH_MASK_NONE, in, &receiving));
    if (sync)
        MX(mx_issend(side->endpoint, sent, pieces, side->peer, LOOP, out, &sending));
    else
        MX(mx_isend(side->endpoint, sent, pieces, side->peer, LOOP, out, &sending));
    status = complete(side->endpoint, &sending, 1);
    if (status.xfer_length != length || status.context != out || status.match_info != LOOP)
        fail("the status of a send is wrong");
    status = complete(side->endpoint, &receiving, 1);
    if (status.xfer_length != length || status.msg_length != length || status.context != in || status.match_info != LOOP)
        fail("the status of a receive is wrong");
    if (first_wrong(in, length, seed) != length) {
        fprintf(stderr, "%zu bytes at %zu in %u pieces: byte %zu is wrong\n", length, alignment, pieces,
                first_wrong(in, length, seed));
        exit(FAILED);
    }
    check_guards(in, length);
}

static void every_way(struct side *side, const struct plan *plan, size_t length)
{
    for (size_t alignment = 0; alignment < plan->alignments; alignment++)
        for (int sync = 0; sync <= (int)plan->synchronous; sync++) {
            trip(side, plan, length, alignment, 1, sync);
            if (plan->segments > 1)
                trip(side, plan, length, alignment, (uint32_t)plan->segments, sync);
        }
}

static void talk(struct side *side, const struct plan *plan)
{
    mx_request_t stop;
    for (size_t length = 0; length <= 300 && length <= plan->longest; length++)
        every_way(side, plan, length);
    for (size_t edge = 0; edge < sizeof edges / sizeof *edges; edge++)
        for (size_t length = edges[edge] - 3; length <= edges[edge] + 3 && length <= plan->longest; length++)
            every_way(side, plan, length);
    stop = post_send(side->endpoint, side->peer, STOP, NULL, 0);
    complete(side->endpoint, &stop, 1);
    printf("%" PRIu64 " round trips\n", side->trips);
}

/* Sends back whatever comes, with the alignment and pieces changing too. */
static void serve(struct side *side, const struct plan *plan)
{
    for (;;) {
        unsigned char *bytes = side->in + GUARD + side->trips * 3 % plan->alignments;
        uint32_t pieces = side->trips % 2 == 0 ? 1 : (uint32_t)plan->segments;
        mx_segment_t segments[MX_MAX_SEGMENTS];
        mx_request_t request;
        mx_status_t status;

        cut(segments, pieces, bytes, plan->longest, (unsigned)side->trips++);
        MX(mx_irecv(side->endpoint, segments, pieces, 0, 0, NULL, &request));
        status = complete(side->endpoint, &request, 1);
        if (status.match_info == STOP)
            return;
        cut(segments, pieces, bytes, status.xfer_length, (unsigned)side->trips);
        MX(mx_isend(side->endpoint, segments, pieces, side->peer, status.match_info, NULL, &request));
        complete(side->endpoint, &request, 1);
    }
}

int main(int argc, char **argv)
{
    struct plan plan = {1048579, 8, 7, 0};
    struct side side = {0};
    struct hello hello = {{0, 0, 0}, {0}};
    const char *host = NULL;
    uint32_t own = MX_ANY_ENDPOINT, remote = MX_ANY_ENDPOINT;
    int option;

    while ((option = getopt(argc, argv, "b:d:r:E:a:g:yh")) != -1) {
        switch (option) {
        case 'b': own = (uint32_t)number(optarg, 0, 255); break;
        case 'd': host = optarg; break;
        case 'r': remote = (uint32_t)number(optarg, 0, 255); break;
        case 'E': plan.longest = number(optarg, 0, SIZE_MAX_BYTES); break;
        case 'a': plan.alignments = number(optarg, 1, ALIGNMENTS_MAX); break;
        case 'g': plan.segments = number(optarg, 1, MX_MAX_SEGMENTS); break;
        case 'y': plan.synchronous = 1; break;
        default: fputs(usage, option == 'h' ? stdout : stderr); return option == 'h' ? 0 : USAGE;
        }
    }
    MX(mx_init());
    side.endpoint = open_endpoint(own);
    if (remote == MX_ANY_ENDPOINT) {
        side.peer = wait_for_client(side.endpoint, &hello);
        memcpy(&plan, hello.words, sizeof plan);
        if (plan.longest > SIZE_MAX_BYTES || plan.alignments - 1 >= ALIGNMENTS_MAX || plan.segments - 1 >= MX_MAX_SEGMENTS)
            fail("the client asks for too much");
    } else {
        memcpy(hello.words, &plan, sizeof plan);
        side.peer = greet(side.endpoint, host, remote, &hello);
    }
    side.out = malloc(plan.longest + 2 * GUARD + ALIGNMENTS_MAX);
    side.in = malloc(plan.longest + 2 * GUARD + ALIGNMENTS_MAX);
    if (side.out == NULL || side.in == NULL)
        fail("no memory");
    if (remote == MX_ANY_ENDPOINT)
        serve(&side, &plan);
    else
        talk(&side, &plan);
    MX(mx_close_endpoint(side.endpoint));
    MX(mx_finalize());
    free(side.out);
    free(side.in);
    return 0;
}
