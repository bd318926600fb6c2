/*
 * Measures the cost of matching: a ping-pong on empty queues, and one behind thousands of posted receives and thousands
 * of unexpected messages on both sides. The two alternate, some milliseconds each, so that both see the same machine.
 *
 *   mx_match &               prints: endpoint 0
 *   mx_match -r 0 -n 10000   prints: exact_empty_ns, exact_full_ns, masked_empty_ns, masked_full_ns; half round trips, medians
 *
 * The receives of the ping-pong name their messages exactly; in the masked ones they leave the lower 48 bits of the match
 * information open. Every message is checked: one that went to the wrong receive ends the program.
 */
#include "mx_example.h"

static const char usage[] =
    "usage: mx_match                                                serves one client\n"
    "       mx_match -r ENDPOINT [-d HOST] [-n COUNT] [-t MS]\n"
    "  -r  endpoint number of the server         -d  its host [this machine's first board]\n"
    "  -n  receives posted, and messages unexpected, on each side [10000]\n"
    "  -t  milliseconds in all, about [300]\n";

enum { COUNT_MAX = 200000, TURNS_MAX = 1000, BATCH_ROUNDS = 500, WINDOW = 64 };

/* Match information: a class above, a number below. */
#define CLASS_MASK UINT64_C(0xffff000000000000)
#define PING UINT64_C(0x0001000000000000)       /* the ping-pong; answered with the same number */
#define POSTED UINT64_C(0x0002000000000000)     /* what the many receives wait for */
#define UNEXPECTED UINT64_C(0x0003000000000000) /* messages without a receive until the end of a turn */
#define WORD UINT64_C(0x0004000000000000)       /* the two sides to each other */

/* What both sides do next, at the client's word. */
enum deed { EXACT, MASKED, FILL, DRAIN, END };

struct side {
    mx_endpoint_t endpoint;
    mx_endpoint_addr_t peer;
    uint64_t count;
    mx_request_t *posted; /* the many receives */
    uint64_t *values;     /* what they receive */
};

static void expect(const mx_status_t *status, uint64_t match, const uint64_t *value)
{
    if (status->match_info == match && status->xfer_length == sizeof *value && *value == match)
        return;
    fprintf(stderr, "message %" PRIx64 " (%" PRIu32 " bytes, %" PRIx64 ") came for %" PRIx64 "\n", status->match_info,
            status->xfer_length, *value, match);
    exit(FAILED);
}

static void receive(struct side *side, uint64_t match, uint64_t mask)
{
    uint64_t value = 0;
    mx_segment_t segment = {&value, sizeof value};
    mx_request_t request;
    mx_status_t status;
    MX(mx_irecv(side->endpoint, &segment, 1, match & mask, mask, NULL, &request));
    status = complete(side->endpoint, &request, 0);
    expect(&status, match, &value);
}

static void send_one(struct side *side, uint64_t match)
{
    mx_request_t request = post_send(side->endpoint, side->peer, match, &match, sizeof match);
    complete(side->endpoint, &request, 0);
}

/* Tells the other side that we are where it is to be, and waits for the same. */
static void meet(struct side *side)
{
    send_one(side, WORD);
    receive(side, WORD, MX_MATCH_MASK_NONE);
}

/* Messages of a class, the number of each in it, some under way at once. */
static void send_many(struct side *side, uint64_t class)
{
    uint64_t values[WINDOW];
    mx_request_t under_way[WINDOW];
    for (uint64_t at = 0; at < side->count + WINDOW; at++) {
        if (at >= WINDOW && at - WINDOW < side->count)
            complete(side->endpoint, &under_way[at % WINDOW], 0);
        if (at < side->count) {
            values[at % WINDOW] = class | at;
            under_way[at % WINDOW] =
                post_send(side->endpoint, side->peer, class | at, &values[at % WINDOW], sizeof values[0]);
        }
    }
}

/* So many receives that nothing comes for, and so many messages that nothing waits for. */
static void fill_up(struct side *side)
{
    for (uint64_t at = 0; at < side->count; at++) {
        side->values[at] = 0;
        side->posted[at] = post_receive(side->endpoint, POSTED | at, &side->values[at], sizeof side->values[at]);
    }
    send_many(side, UNEXPECTED);
    meet(side); /* what was sent before lies here now */
}

/* Each message to its receive, each receive its message; the last ones first, as what was first would be found anyway. */
static void drain(struct side *side)
{
    for (uint64_t at = side->count; at-- > 0;)
        receive(side, UNEXPECTED | at, MX_MATCH_MASK_NONE);
    send_many(side, POSTED);
    for (uint64_t at = 0; at < side->count; at++) {
        mx_status_t status = complete(side->endpoint, &side->posted[at], 0);
        expect(&status, POSTED | at, &side->values[at]);
    }
    meet(side);
}

/* Half a round trip of the client's, in nanoseconds. */
static double play(struct side *side, int serves, uint64_t mask)
{
    double begun;
    meet(side);
    begun = now_us();
    for (uint64_t round = 0; round < BATCH_ROUNDS; round++) {
        if (serves)
            receive(side, PING | round, mask);
        send_one(side, PING | round);
        if (!serves)
            receive(side, PING | round, mask);
    }
    return (now_us() - begun) * 1e3 / (2 * BATCH_ROUNDS);
}

static double act(struct side *side, int serves, enum deed deed)
{
    switch (deed) {
    case EXACT: return play(side, serves, MX_MATCH_MASK_NONE);
    case MASKED: return play(side, serves, CLASS_MASK);
    case FILL: fill_up(side); return 0;
    case DRAIN: drain(side); return 0;
    case END: return 0;
    }
    fail("the client says something unknown");
    return 0;
}

static double order(struct side *side, enum deed deed)
{
    uint64_t said = deed;
    mx_request_t request = post_send(side->endpoint, side->peer, WORD | 1, &said, sizeof said);
    complete(side->endpoint, &request, 0);
    return act(side, 0, deed);
}

static void obey(struct side *side)
{
    uint64_t said = END;
    do {
        mx_request_t request = post_receive(side->endpoint, WORD | 1, &said, sizeof said);
        complete(side->endpoint, &request, 0);
        act(side, 1, (enum deed)said);
    } while (said != END);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

static void lead(struct side *side, double budget_us)
{
    static double exact_empty[TURNS_MAX], exact_full[TURNS_MAX], masked_empty[TURNS_MAX], masked_full[TURNS_MAX];
    double begun = now_us();
    int turns = 0;
    order(side, EXACT); /* not counted: until everything is warm */
    while (turns < TURNS_MAX && (turns < 3 || now_us() - begun < budget_us)) {
        exact_empty[turns] = order(side, EXACT);
        masked_empty[turns] = order(side, MASKED);
        order(side, FILL);
        exact_full[turns] = order(side, EXACT);
        masked_full[turns] = order(side, MASKED);
        order(side, DRAIN);
        turns++;
    }
    order(side, END);
    printf("exact_empty_ns %.2f\nexact_full_ns %.2f\n", median(exact_empty, turns), median(exact_full, turns));
    printf("masked_empty_ns %.2f\nmasked_full_ns %.2f\n", median(masked_empty, turns), median(masked_full, turns));
    printf("turns %d\n", turns);
}

int main(int argc, char **argv)
{
    struct side side = {.count = 10000};
    struct hello hello = {{0, 0, 0}, {0}};
    const char *host = NULL;
    uint32_t remote = MX_ANY_ENDPOINT;
    uint64_t ms = 300;
    int option;

    while ((option = getopt(argc, argv, "d:r:n:t:h")) != -1) {
        switch (option) {
        case 'd': host = optarg; break;
        case 'r': remote = (uint32_t)number(optarg, 0, 255); break;
        case 'n': side.count = number(optarg, 0, COUNT_MAX); break;
        case 't': ms = number(optarg, 1, 60000); break;
        default: fputs(usage, option == 'h' ? stdout : stderr); return option == 'h' ? 0 : USAGE;
        }
    }
    MX(mx_init());
    side.endpoint = open_endpoint(MX_ANY_ENDPOINT);
    if (remote == MX_ANY_ENDPOINT) {
        side.peer = wait_for_client(side.endpoint, &hello);
        side.count = hello.words[0];
        if (side.count > COUNT_MAX)
            fail("the client asks for too much");
    } else {
        hello.words[0] = side.count;
        side.peer = greet(side.endpoint, host, remote, &hello);
    }
    side.posted = calloc(side.count + 1, sizeof *side.posted);
    side.values = calloc(side.count + 1, sizeof *side.values);
    if (side.posted == NULL || side.values == NULL)
        fail("no memory");
    if (remote == MX_ANY_ENDPOINT)
        obey(&side);
    else
        lead(&side, (double)ms * 1e3);
    MX(mx_close_endpoint(side.endpoint));
    MX(mx_finalize());
    free(side.posted);
    free(side.values);
    return 0;
}
