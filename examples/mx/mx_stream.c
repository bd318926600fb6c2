/*
 * Sends messages one way, as fast as possible. The sender prints bandwidth and rate as the receiver measured them.
 *
 *   mx_stream &              prints: endpoint 0
 *   mx_stream -r 0 -s 1048576 -N 1000
 *
 * The receiver keeps WINDOW receives posted, the sender keeps WINDOW sends under way. Message k carries k in its match
 * information, so that the order is checked; with -v each byte is checked.
 */
#include "mx_example.h"

static const char usage[] =
    "usage: mx_stream [-w] [-b ENDPOINT]                           receives from one client\n"
    "       mx_stream [-w] [-b ENDPOINT] -r ENDPOINT [-d HOST] [-s BYTES] [-N COUNT] [-q WINDOW] [-v]\n"
    "  -r  endpoint number of the receiver       -d  its host [this machine's first board]\n"
    "  -b  own endpoint number [any]             -w  sleep in mx_wait instead of polling with mx_test\n"
    "  -s  size of a message [1048576]           -N  messages [1000]\n"
    "  -q  messages under way at once [16]       -v  check every byte\n";

enum { WINDOW_MAX = 1024, SIZE_MAX_BYTES = 64 << 20 };

/* Match information of the receiver's two messages: ready to receive, all received. */
#define READY UINT64_C(0x7265616479000000)
#define OVER UINT64_C(0x6f76657200000000)

struct plan {
    uint64_t size, count, window, validating;
};

struct side {
    mx_endpoint_t endpoint;
    mx_endpoint_addr_t peer;
    unsigned char *buffers;
    mx_request_t under_way[WINDOW_MAX];
    int sleeping;
};

static unsigned char *buffer_of(const struct side *side, const struct plan *plan, uint64_t message)
{
    return side->buffers + (message % plan->window) * plan->size;
}

static void say(struct side *side, uint64_t what, const void *bytes, size_t length)
{
    mx_request_t request = post_send(side->endpoint, side->peer, what, bytes, length);
    complete(side->endpoint, &request, side->sleeping);
}

static void received(struct side *side, const struct plan *plan, uint64_t message)
{
    mx_status_t status = complete(side->endpoint, &side->under_way[message % plan->window], side->sleeping);
    size_t wrong = plan->size;
    if (status.match_info != message || status.xfer_length != plan->size)
        fail("not the message it should be");
    if (plan->validating)
        wrong = first_wrong(buffer_of(side, plan, message), plan->size, (unsigned)message);
    if (wrong != plan->size) {
        fprintf(stderr, "message %" PRIu64 ": byte %zu is wrong\n", message, wrong);
        exit(FAILED);
    }
}

static void receive_all(struct side *side, const struct plan *plan)
{
    double took_us, begun = 0;
    uint64_t posted = 0;
    for (; posted < plan->window && posted < plan->count; posted++)
        side->under_way[posted] = post_receive(side->endpoint, posted, buffer_of(side, plan, posted), plan->size);
    say(side, READY, NULL, 0);
    for (uint64_t message = 0; message < plan->count; message++) {
        received(side, plan, message);
        if (message == 0)
            begun = now_us();
        if (posted < plan->count) {
            unsigned char *buffer = buffer_of(side, plan, posted);
            side->under_way[posted % plan->window] = post_receive(side->endpoint, posted, buffer, plan->size);
            posted++;
        }
    }
    took_us = now_us() - begun; /* of all but the first */
    say(side, OVER, &took_us, sizeof took_us);
}

static void send_all(struct side *side, const struct plan *plan)
{
    double took_us = 0, messages = (double)(plan->count - 1);
    mx_request_t ready = post_receive(side->endpoint, READY, NULL, 0);
    mx_request_t over = post_receive(side->endpoint, OVER, &took_us, sizeof took_us);
    complete(side->endpoint, &ready, side->sleeping);
    for (uint64_t message = 0; message < plan->count; message++) {
        mx_request_t *request = &side->under_way[message % plan->window];
        unsigned char *buffer = buffer_of(side, plan, message);
        if (message >= plan->window)
            complete(side->endpoint, request, side->sleeping);
        if (plan->validating)
            fill(buffer, plan->size, (unsigned)message);
        *request = post_send(side->endpoint, side->peer, message, buffer, plan->size);
    }
    for (uint64_t message = plan->count > plan->window ? plan->count - plan->window : 0; message < plan->count; message++)
        complete(side->endpoint, &side->under_way[message % plan->window], side->sleeping);
    complete(side->endpoint, &over, side->sleeping);
    printf("# %10s %10s %12s %14s\n", "bytes", "messages", "MB/s", "messages/s");
    printf("%12" PRIu64 " %10" PRIu64 " %12.1f %14.0f\n", plan->size, plan->count,
           took_us > 0 ? messages * (double)plan->size / took_us : 0, took_us > 0 ? messages * 1e6 / took_us : 0);
}

int main(int argc, char **argv)
{
    static struct side side;
    struct plan plan = {1 << 20, 1000, 16, 0};
    struct hello hello = {{0, 0, 0}, {0}};
    const char *host = NULL;
    uint32_t own = MX_ANY_ENDPOINT, remote = MX_ANY_ENDPOINT;
    int option;

    while ((option = getopt(argc, argv, "b:d:r:s:N:q:wvh")) != -1) {
        switch (option) {
        case 'b': own = (uint32_t)number(optarg, 0, 255); break;
        case 'd': host = optarg; break;
        case 'r': remote = (uint32_t)number(optarg, 0, 255); break;
        case 's': plan.size = number(optarg, 0, SIZE_MAX_BYTES); break;
        case 'N': plan.count = number(optarg, 2, UINT32_MAX); break;
        case 'q': plan.window = number(optarg, 1, WINDOW_MAX); break;
        case 'w': side.sleeping = 1; break;
        case 'v': plan.validating = 1; break;
        default: fputs(usage, option == 'h' ? stdout : stderr); return option == 'h' ? 0 : USAGE;
        }
    }
    MX(mx_init());
    side.endpoint = open_endpoint(own);
    if (remote == MX_ANY_ENDPOINT) {
        side.peer = wait_for_client(side.endpoint, &hello);
        memcpy(&plan, hello.words, sizeof plan);
        if (plan.size > SIZE_MAX_BYTES || plan.window == 0 || plan.window > WINDOW_MAX)
            fail("the client asks for too much");
    } else {
        memcpy(hello.words, &plan, sizeof plan);
        side.peer = greet(side.endpoint, host, remote, &hello);
    }
    side.buffers = malloc(plan.window * plan.size + 1);
    if (side.buffers == NULL)
        fail("no memory");
    memset(side.buffers, 0, plan.window * plan.size + 1);
    if (remote == MX_ANY_ENDPOINT)
        receive_all(&side, &plan);
    else
        send_all(&side, &plan);
    MX(mx_close_endpoint(side.endpoint));
    MX(mx_finalize());
    free(side.buffers);
    return 0;
}
