/*
 * Sends one message there and back, for one size after the other. Prints the time of half a round trip and the bandwidth.
 *
 *   mx_pingpong &            prints: endpoint 0
 *   mx_pingpong -d host:0 -r 0
 */
#include "mx_example.h"

static const char usage[] =
    "usage: mx_pingpong [-w] [-b ENDPOINT]                         serves one client\n"
    "       mx_pingpong [-w] [-b ENDPOINT] -r ENDPOINT [-d HOST] [-n COUNT] [-W COUNT] [-S BYTES] [-E BYTES] [-v]\n"
    "  -r  endpoint number of the server         -d  its host [this machine's first board]\n"
    "  -b  own endpoint number [any]             -w  sleep in mx_wait instead of polling with mx_test\n"
    "  -n  round trips of each size [1000]       -W  round trips before the clock starts [100]\n"
    "  -S  first size [0]                        -E  last size [4194304]; in between they double\n"
    "  -v  check every byte that comes back\n";

enum { SIZE_MAX_BYTES = 64 << 20 };

/* The plan that the client sends in its first message. */
struct plan {
    uint64_t first, last, rounds, warm_up;
};

struct side {
    mx_endpoint_t endpoint;
    mx_endpoint_addr_t peer;
    unsigned char *out, *in;
    int sleeping, validating;
};

static size_t next_size(size_t size)
{
    return size == 0 ? 1 : 2 * size;
}

/* One message back for each that comes. The receive of the next is posted before the answer to this one leaves. */
static void serve(struct side *side, const struct plan *plan)
{
    for (size_t size = plan->first; size <= plan->last; size = next_size(size)) {
        mx_request_t receiving = post_receive(side->endpoint, size, side->in, size), sending;
        for (uint64_t round = 0, rounds = plan->warm_up + plan->rounds; round < rounds; round++) {
            complete(side->endpoint, &receiving, side->sleeping);
            sending = post_send(side->endpoint, side->peer, size, side->in, size);
            complete(side->endpoint, &sending, side->sleeping);
            if (round + 1 < rounds)
                receiving = post_receive(side->endpoint, size, side->in, size);
        }
    }
}

static void round_trip(struct side *side, size_t size)
{
    mx_request_t receiving = post_receive(side->endpoint, size, side->in, size);
    mx_request_t sending = post_send(side->endpoint, side->peer, size, side->out, size);
    complete(side->endpoint, &sending, side->sleeping);
    complete(side->endpoint, &receiving, side->sleeping);
}

static void look(struct side *side, size_t size, unsigned seed)
{
    fill(side->out, size, seed);
    memset(side->in, ~mark(0, seed), size);
    round_trip(side, size);
    if (first_wrong(side->in, size, seed) != size) {
        fprintf(stderr, "%zu bytes: byte %zu is wrong\n", size, first_wrong(side->in, size, seed));
        exit(FAILED);
    }
}

static void talk(struct side *side, const struct plan *plan)
{
    printf("# %10s %14s %12s\n", "bytes", "half trip us", "MB/s");
    for (size_t size = plan->first; size <= plan->last; size = next_size(size)) {
        double begun, half;
        for (uint64_t round = 0; round < plan->warm_up; round++) {
            if (side->validating)
                look(side, size, (unsigned)round);
            else
                round_trip(side, size);
        }
        begun = now_us();
        for (uint64_t round = 0; round < plan->rounds; round++)
            round_trip(side, size);
        half = (now_us() - begun) / (double)plan->rounds / 2;
        printf("%12zu %14.3f %12.1f\n", size, half, half > 0 ? (double)size / half : 0);
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    struct plan plan = {0, 4 << 20, 1000, 100};
    struct side side = {0};
    struct hello hello = {{0, 0, 0}, {0}};
    const char *host = NULL;
    uint32_t own = MX_ANY_ENDPOINT, remote = MX_ANY_ENDPOINT;
    int option;

    while ((option = getopt(argc, argv, "b:d:r:n:W:S:E:wvh")) != -1) {
        switch (option) {
        case 'b': own = (uint32_t)number(optarg, 0, 255); break;
        case 'd': host = optarg; break;
        case 'r': remote = (uint32_t)number(optarg, 0, 255); break;
        case 'n': plan.rounds = number(optarg, 1, UINT32_MAX); break;
        case 'W': plan.warm_up = number(optarg, 0, UINT32_MAX); break;
        case 'S': plan.first = number(optarg, 0, SIZE_MAX_BYTES); break;
        case 'E': plan.last = number(optarg, 0, SIZE_MAX_BYTES); break;
        case 'w': side.sleeping = 1; break;
        case 'v': side.validating = 1; break;
        default: fputs(usage, option == 'h' ? stdout : stderr); return option == 'h' ? 0 : USAGE;
        }
    }
    MX(mx_init());
    side.endpoint = open_endpoint(own);
    if (remote == MX_ANY_ENDPOINT) {
        side.peer = wait_for_client(side.endpoint, &hello);
        memcpy(&plan, hello.words, sizeof plan);
        if (plan.last > SIZE_MAX_BYTES || plan.first > plan.last)
            fail("the client asks for too much");
    } else {
        memcpy(hello.words, &plan, sizeof plan);
        side.peer = greet(side.endpoint, host, remote, &hello);
    }
    side.out = malloc(plan.last + 1);
    side.in = malloc(plan.last + 1);
    if (side.out == NULL || side.in == NULL)
        fail("no memory");
    fill(side.out, plan.last, 0);
    memset(side.in, 0, plan.last + 1);
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
