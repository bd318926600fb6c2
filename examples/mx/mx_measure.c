/*
 * One exact measurement between two processes. `isthmus-bench` runs this program for its rows of MX.
 *
 *   mx_measure &                         prints: endpoint 0
 *   mx_measure -r 0 -s 8 -t 300          ping-pong for 300 ms; prints `half_rtt_ns 123.4` and more of that kind
 *   mx_measure -r 0 -k stream -s 1048576 -B cold
 *
 * Work goes in steps. The client sends the size of the next step, the server replies when it is ready, both do the step,
 * and the client reads its clock. The bytes of the first step are compared. The next steps double until the speed is known
 * and caches are warm. The steps that count fill the time. A ping-pong's value is the median over batches.
 */
#include "mx_example.h"

static const char usage[] =
    "usage: mx_measure [-w]                                         serves one client\n"
    "       mx_measure [-w] -r ENDPOINT [-d HOST] [-k KIND] [-s BYTES] [-B BUFFERS] [-t MS]\n"
    "  -r  endpoint number of the server         -d  its host [this machine's first board]\n"
    "  -w  wait in mx_wait instead of polling with mx_test\n"
    "  -k  pingpong or stream [pingpong]         -s  size of a message [8]\n"
    "  -B  a stream's memory: warm (a few buffers again and again), rewritten (the same, written before each send),\n"
    "      cold (each message from and into memory never used before) [warm]\n"
    "  -t  milliseconds of the part that counts [300]\n";

enum { SIZE_MAX_BYTES = 64 << 20, BATCHES = 40, SINGLES_MAX = 20000 };
enum { SLOTS_MIN = 4, SLOTS_MAX = 64, WARM_BYTES = 4 << 20, WARM_BYTES_MAX = 16 << 20 };
enum { COLD_BYTES = 128 << 20, FRESH_BYTES = 64 << 20 };
enum kind { PINGPONG, STREAM };
enum buffers { WARM, REWRITTEN, COLD };
enum purpose { CHECK, WARMING, MEASURED };

/* Match information of all that is said. */
#define PAYLOAD UINT64_C(0x7061796c6f616400)
#define STEP UINT64_C(0x7374657000000000)
#define READY UINT64_C(0x7265616479000000)
#define OVER UINT64_C(0x6f76657200000000)

/* What the client tells the server, in the words of its first message. */
struct plan {
    uint64_t kind, size, buffers;
};

/* What comes next; a count of 0 ends the work. */
struct step {
    uint64_t count, purpose;
};

struct side {
    mx_endpoint_t endpoint;
    mx_endpoint_addr_t peer;
    struct plan plan;
    int sleeping;
    uint64_t messages; /* of the steps that count */
    double elapsed_ns, cpu_ns;
};

/* The memory that the messages of a step lie in: message n in slot n % slots, its request in place n % window. */
struct pool {
    unsigned char *bytes;
    uint64_t slots, messages;
    mx_request_t under_way[SLOTS_MAX];
};

static double now_ns(void)
{
    return now_us() * 1e3;
}

/* Time on a processor, of this process so far. */
static double cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void say(struct side *side, uint64_t match, const void *bytes, size_t length)
{
    mx_request_t request = post_send(side->endpoint, side->peer, match, bytes, length);
    complete(side->endpoint, &request, side->sleeping);
}

static void hear(struct side *side, uint64_t match, void *bytes, size_t length)
{
    mx_request_t request = post_receive(side->endpoint, match, bytes, length);
    if (complete(side->endpoint, &request, side->sleeping).xfer_length != length)
        fail("a message is not as long as it should be");
}

/* The client's side of what comes next: on return the server is about to begin. */
static void announce(struct side *side, uint64_t count, enum purpose purpose)
{
    struct step step = {count, purpose};
    say(side, STEP, &step, sizeof step);
    if (count > 0)
        hear(side, READY, NULL, 0);
}

static int next_step(struct side *side, struct step *step)
{
    hear(side, STEP, step, sizeof *step);
    return step->count > 0;
}

static uint64_t within(uint64_t value, uint64_t least, uint64_t most)
{
    return value < least ? least : value > most ? most : value;
}

/* As many as fit into some MiB, but a few even of the longest. */
static uint64_t warm_slots(const struct plan *plan)
{
    uint64_t size = plan->size ? plan->size : 1;
    return within(within(WARM_BYTES / size, SLOTS_MIN, SLOTS_MAX), 1, within(WARM_BYTES_MAX / size, 1, SLOTS_MAX));
}

/* So many messages fit into one step. */
static uint64_t messages_max(const struct plan *plan)
{
    uint64_t most = within(COLD_BYTES / (plan->size ? plan->size : 1), 1, UINT64_MAX);
    return plan->buffers == COLD ? most : UINT64_MAX;
}

static void *room(size_t bytes)
{
    void *memory = malloc(bytes + 1);
    if (memory == NULL)
        fail("no memory");
    return memory;
}

static struct pool pool_make(const struct plan *plan, uint64_t messages)
{
    struct pool pool = {NULL, warm_slots(plan), messages, {0}};
    size_t used, least = 0;
    if (plan->buffers == COLD) {
        pool.slots = messages;
        least = FRESH_BYTES; /* what malloc takes from the kernel each time */
    }
    used = pool.slots * plan->size;
    pool.bytes = room(used > least ? used : least);
    memset(pool.bytes, 0xff, used); /* page faults are taken here */
    return pool;
}

static unsigned char *slot(const struct pool *pool, const struct plan *plan, uint64_t number)
{
    return pool->bytes + number * plan->size;
}

/* The next of so many numbers from 0 on: a remainder would take as long as a short message does. */
static uint64_t following(uint64_t number, uint64_t count)
{
    return number + 1 == count ? 0 : number + 1;
}

/* How many may be under way at once. */
static uint64_t window(const struct pool *pool, const struct plan *plan)
{
    return within(warm_slots(plan), 1, pool->slots);
}

/* Messages one way, until the server has said that it has them all. */
static void stream_out(struct side *side, struct pool *pool, enum purpose purpose)
{
    const struct plan *plan = &side->plan;
    uint64_t limit = window(pool, plan), place = 0, next = 0;
    for (uint64_t message = 0; message < pool->messages; message++) {
        unsigned char *bytes = slot(pool, plan, next);
        if (message >= limit)
            complete(side->endpoint, &pool->under_way[place], side->sleeping);
        if (purpose == CHECK)
            fill(bytes, plan->size, (unsigned)message);
        else if (plan->buffers == REWRITTEN)
            memset(bytes, (int)message, plan->size);
        pool->under_way[place] = post_send(side->endpoint, side->peer, PAYLOAD, bytes, plan->size);
        place = following(place, limit);
        next = following(next, pool->slots);
    }
    if (pool->messages < limit)
        place = 0;
    for (uint64_t rest = within(limit, 0, pool->messages); rest > 0; rest--) {
        complete(side->endpoint, &pool->under_way[place], side->sleeping);
        place = following(place, limit);
    }
    hear(side, OVER, NULL, 0);
}

static void look(const struct side *side, const struct pool *pool, uint64_t message)
{
    size_t size = side->plan.size;
    size_t wrong = first_wrong(slot(pool, &side->plan, message % pool->slots), size, (unsigned)message);
    if (wrong != size) {
        fprintf(stderr, "message %" PRIu64 ": byte %zu is wrong\n", message, wrong);
        exit(FAILED);
    }
}

static void stream_in(struct side *side, struct pool *pool, enum purpose purpose)
{
    const struct plan *plan = &side->plan;
    uint64_t limit = window(pool, plan), place = 0, next, posted = 0;
    for (; posted < limit && posted < pool->messages; posted++)
        pool->under_way[posted] = post_receive(side->endpoint, PAYLOAD, slot(pool, plan, posted), plan->size);
    next = posted % pool->slots;
    say(side, READY, NULL, 0);
    for (uint64_t message = 0; message < pool->messages; message++) {
        mx_status_t status = complete(side->endpoint, &pool->under_way[place], side->sleeping);
        if (status.xfer_length != plan->size)
            fail("a message is not as long as it should be");
        if (purpose == CHECK)
            look(side, pool, message);
        if (posted < pool->messages) {
            unsigned char *bytes = slot(pool, plan, next);
            pool->under_way[place] = post_receive(side->endpoint, PAYLOAD, bytes, plan->size);
            next = following(next, pool->slots);
            posted++;
        }
        place = following(place, limit);
    }
    say(side, OVER, NULL, 0);
}

static double stream_step(struct side *side, uint64_t count, enum purpose purpose)
{
    struct pool pool = pool_make(&side->plan, count);
    double cpu, begun, took;
    announce(side, count, purpose);
    cpu = cpu_ns();
    begun = now_ns();
    stream_out(side, &pool, purpose);
    took = now_ns() - begun;
    if (purpose == MEASURED) {
        side->cpu_ns += cpu_ns() - cpu;
        side->elapsed_ns += took;
        side->messages += count;
    }
    free(pool.bytes);
    return took;
}

/* One there and back. The receive is posted while the message travels. */
static void round_trip(struct side *side, unsigned char *out, unsigned char *in)
{
    size_t size = side->plan.size;
    mx_request_t sending = post_send(side->endpoint, side->peer, PAYLOAD, out, size);
    mx_request_t receiving = post_receive(side->endpoint, PAYLOAD, in, size);
    complete(side->endpoint, &sending, side->sleeping);
    complete(side->endpoint, &receiving, side->sleeping);
}

/* The other side of it: two buffers in turn, as one may still be on its way back. */
static void answer(struct side *side, uint64_t rounds)
{
    unsigned char *both[2] = {room(side->plan.size), room(side->plan.size)};
    mx_request_t receiving = post_receive(side->endpoint, PAYLOAD, both[0], side->plan.size), sending;
    say(side, READY, NULL, 0);
    for (uint64_t round = 0; round < rounds; round++) {
        complete(side->endpoint, &receiving, side->sleeping);
        sending = post_send(side->endpoint, side->peer, PAYLOAD, both[round % 2], side->plan.size);
        if (round + 1 < rounds)
            receiving = post_receive(side->endpoint, PAYLOAD, both[(round + 1) % 2], side->plan.size);
        complete(side->endpoint, &sending, side->sleeping);
    }
    free(both[0]);
    free(both[1]);
}

static double rounds_ns(struct side *side, unsigned char *out, unsigned char *in, uint64_t rounds)
{
    double begun = now_ns();
    for (uint64_t round = 0; round < rounds; round++)
        round_trip(side, out, in);
    return now_ns() - begun;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* How many of so many nanoseconds each fit into a share of the time. */
static uint64_t fits(double budget_ns, double share, double each_ns)
{
    double count = budget_ns * share / each_ns;
    return count < 1 ? 1 : (uint64_t)count;
}

static void ping(struct side *side, double budget_ns)
{
    size_t size = side->plan.size;
    unsigned char *out = room(size), *in = room(size);
    double *trips = room(SINGLES_MAX * sizeof *trips), halves[BATCHES], took, cpu;
    uint64_t count = 1, batch, singles;
    fill(out, size, 1);
    memset(in, 0, size);
    announce(side, 1, CHECK);
    round_trip(side, out, in);
    if (first_wrong(in, size, 1) != size)
        fail("what came back is not what was sent");
    for (;; count *= 2) {
        announce(side, count, WARMING);
        took = rounds_ns(side, out, in, count);
        if (took >= budget_ns / 20)
            break;
    }
    batch = fits(budget_ns, 0.6 / (BATCHES + 1), took / (double)count);
    singles = within(fits(budget_ns, 0.3, took / (double)count), 1, SINGLES_MAX);
    side->messages = 2 * ((BATCHES + 1) * batch + singles);
    announce(side, side->messages / 2, MEASURED);
    cpu = cpu_ns();
    rounds_ns(side, out, in, batch); /* not counted: the other side has just been woken */
    for (int number = 0; number < BATCHES; number++)
        halves[number] = rounds_ns(side, out, in, batch) / (double)(2 * batch);
    for (uint64_t single = 0; single < singles; single++)
        trips[single] = rounds_ns(side, out, in, 1);
    side->cpu_ns = cpu_ns() - cpu;
    qsort(halves, BATCHES, sizeof halves[0], ascending);
    printf("half_rtt_ns %.2f\ntrips_ns", (halves[BATCHES / 2 - 1] + halves[BATCHES / 2]) / 2);
    for (uint64_t single = 0; single < singles; single++)
        printf(" %.0f", trips[single]);
    printf("\n");
    free(trips);
    free(out);
    free(in);
}

static void stream(struct side *side, double budget_ns)
{
    uint64_t most = messages_max(&side->plan), count = 1;
    double took, begun;
    stream_step(side, within(5, 1, most), CHECK);
    for (;; count = within(2 * count, 1, most)) {
        took = stream_step(side, count, WARMING);
        if (took >= budget_ns / 10 || count == most)
            break;
    }
    count = within(fits(budget_ns, 1, took / (double)count), 1, most);
    begun = now_ns();
    /* Making fresh buffers takes time as well, and is not what the time is for; but it must end. */
    while (side->elapsed_ns < budget_ns * 0.8 && now_ns() - begun < budget_ns * 4)
        stream_step(side, count, MEASURED);
    printf("elapsed_ns %.0f\n", side->elapsed_ns);
}

static void lead(struct side *side, double budget_ns)
{
    if (side->plan.kind == PINGPONG)
        ping(side, budget_ns);
    else
        stream(side, budget_ns);
    announce(side, 0, MEASURED);
}

static void follow(struct side *side)
{
    struct step step;
    while (next_step(side, &step)) {
        double cpu = cpu_ns();
        if (side->plan.kind == PINGPONG) {
            answer(side, step.count);
        } else {
            struct pool pool;
            if (step.count > messages_max(&side->plan))
                fail("the client asks for too much");
            pool = pool_make(&side->plan, step.count);
            cpu = cpu_ns();
            stream_in(side, &pool, (enum purpose)step.purpose);
            free(pool.bytes);
        }
        if (step.purpose == MEASURED) {
            side->cpu_ns += cpu_ns() - cpu;
            side->messages += side->plan.kind == PINGPONG ? 2 * step.count : step.count;
        }
    }
}

/* Which of some words it is. */
static uint64_t word(const char *text, const char *const *words, uint64_t count)
{
    for (uint64_t at = 0; at < count; at++)
        if (strcmp(text, words[at]) == 0)
            return at;
    fprintf(stderr, "%s: not one of the words that may stand here\n", text);
    exit(USAGE);
}

int main(int argc, char **argv)
{
    static const char *const kinds[] = {"pingpong", "stream"}, *const memories[] = {"warm", "rewritten", "cold"};
    struct side side = {.plan = {PINGPONG, 8, WARM}};
    struct hello hello = {{0, 0, 0}, {0}};
    const char *host = NULL;
    uint32_t remote = MX_ANY_ENDPOINT;
    uint64_t ms = 300;
    int option;

    while ((option = getopt(argc, argv, "d:r:k:s:B:t:wh")) != -1) {
        switch (option) {
        case 'd': host = optarg; break;
        case 'r': remote = (uint32_t)number(optarg, 0, 255); break;
        case 'k': side.plan.kind = word(optarg, kinds, 2); break;
        case 's': side.plan.size = number(optarg, 0, SIZE_MAX_BYTES); break;
        case 'B': side.plan.buffers = word(optarg, memories, 3); break;
        case 't': ms = number(optarg, 1, 60000); break;
        case 'w': side.sleeping = 1; break;
        default: fputs(usage, option == 'h' ? stdout : stderr); return option == 'h' ? 0 : USAGE;
        }
    }
    MX(mx_init());
    side.endpoint = open_endpoint(MX_ANY_ENDPOINT);
    if (remote == MX_ANY_ENDPOINT) {
        side.peer = wait_for_client(side.endpoint, &hello);
        memcpy(&side.plan, hello.words, sizeof side.plan);
        if (side.plan.kind > STREAM || side.plan.size > SIZE_MAX_BYTES || side.plan.buffers > COLD)
            fail("the client asks for too much");
        follow(&side);
    } else {
        memcpy(hello.words, &side.plan, sizeof side.plan);
        side.peer = greet(side.endpoint, host, remote, &hello);
        lead(&side, (double)ms * 1e6);
    }
    printf("messages %" PRIu64 "\ncpu_ns %.0f\n", side.messages, side.cpu_ns);
    MX(mx_close_endpoint(side.endpoint));
    MX(mx_finalize());
    return 0;
}
