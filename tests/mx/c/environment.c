/* Variables that are about messages: read when the first endpoint of the process is opened; an OMX_ name wins. */
#include "mxtest.h"
#include <sys/resource.h>

static void any_endpoint(void)
{
    mx_endpoint_t endpoint, other;
    setenv("OMX_ANY_ENDPOINT", "7", 1);
    begin();
    endpoint = open_any();
    EQUAL(7, place_of(endpoint).id);
    GIVES(MX_BUSY, mx_open_endpoint(MX_ANY_NIC, MX_ANY_ENDPOINT, KEY, NULL, 0, &other));
    OK(mx_open_endpoint(MX_ANY_NIC, 3, KEY, NULL, 0, &other)); /* a requested number is given */
    EQUAL(3, place_of(other).id);
    OK(mx_close_endpoint(other));
    end(endpoint);
}

static void over(mx_endpoint_t endpoint, mx_request_t *request)
{
    mx_status_t status;
    uint32_t done = 0;
    if (*request != NULL)
        OK(mx_test(endpoint, request, &status, &done));
    if (done)
        ENDED(MX_STATUS_SUCCESS, status);
}

/* Whether a send of `length` bytes is over before it is received. */
static int is_eager(mx_endpoint_t from, mx_endpoint_t at, mx_endpoint_addr_t to, uint32_t length)
{
    static unsigned char out[40000], in[40000];
    mx_request_t request = give(from, to, 1, out, length), receiving;
    uint32_t buffered = 2;
    OK(mx_ibuffered(from, &request, &buffered));
    await_unexpected(at, 1);
    receiving = post(at, 1, in, sizeof in);
    while (request != NULL || receiving != NULL) { /* one thread for both endpoints */
        over(from, &request);
        over(at, &receiving);
    }
    return (int)buffered;
}

static void thresholds(uint32_t eager_max)
{
    mx_endpoint_t from, at;
    mx_endpoint_addr_t to;
    begin();
    from = open_any();
    at = open_any();
    to = connect_to(from, place_of(at));
    EQUAL(1, is_eager(from, at, to, 128));
    EQUAL(1, is_eager(from, at, to, eager_max));
    EQUAL(0, is_eager(from, at, to, eager_max + 1));
    OK(mx_close_endpoint(at));
    end(from);
}

static void rendezvous_threshold(void)
{
    setenv("OMX_RNDV_THRESHOLD", "1000", 1);
    thresholds(1000);
}

static void shared_rendezvous_threshold(void)
{
    setenv("OMX_SHARED_RNDV_THRESHOLD", "4096", 1);
    setenv("OMX_RNDV_THRESHOLD", "20000", 1); /* there is one path: the lower of the two counts */
    thresholds(4096);
}

/* MX_DISABLE_SELF: a send to oneself is over when it is copied, as any other, and not when it is matched. */
static void self_sends(int over_at_once)
{
    static const uint32_t lengths[] = {0, 8, 32768};
    static unsigned char out[32768], in[32768];
    mx_endpoint_t endpoint;
    begin();
    endpoint = open_any();
    for (int at = 0; at < 3; at++) {
        mx_request_t request;
        fill(out, lengths[at], 1);
        request = give(endpoint, own_address(endpoint), 1, out, lengths[at]);
        if (over_at_once)
            finish_well(endpoint, request);
        else
            still_pending(endpoint, request);
        EQUAL(lengths[at], receive_well(endpoint, 1, in, sizeof in).xfer_length);
        is_filled(in, lengths[at], 1);
        if (!over_at_once)
            finish_well(endpoint, request);
    }
    end(endpoint);
}

static void self_the_short_way(void)
{
    setenv("MX_DISABLE_SELF", "1", 1);
    setenv("OMX_DISABLE_SELF", "0", 1);
    self_sends(0);
}

static void self_the_long_way(void)
{
    setenv("MX_DISABLE_SELF", "1", 1);
    self_sends(1);
}

/* Large messages from one buffer, which is used again: one thread for both ends. */
enum { LARGE = 1 << 20 };

static void move_large_ones(void)
{
    mx_endpoint_t from, at;
    mx_endpoint_addr_t to;
    unsigned char *out = room(LARGE), *in = room(LARGE);
    from = open_any();
    at = open_any();
    to = connect_to(from, place_of(at));
    for (unsigned round = 0; round < 64; round++) {
        mx_request_t sending, receiving = post(at, 1, in, LARGE);
        fill(out, LARGE, round);
        sending = give(from, to, 1, out, LARGE);
        while (sending != NULL || receiving != NULL) {
            over(from, &sending);
            over(at, &receiving);
        }
        is_filled(in, LARGE, round);
    }
    if (getenv("MX_TEST_MOVED") != NULL) {
        char line[512];
        int moved = 0;
        FILE *maps = fopen("/proc/self/maps", "r");
        CHECK(maps != NULL);
        while (fgets(line, sizeof line, maps) != NULL)
            moved |= strstr(line, "isthmus-migrated") != NULL;
        fclose(maps);
        EQUAL(atoi(getenv("MX_TEST_MOVED")), moved);
    }
    OK(mx_close_endpoint(at));
    OK(mx_close_endpoint(from));
    free(out);
    free(in);
}

static void large_ones(void)
{
    begin();
    move_large_ones();
    OK(mx_finalize());
}

/* MX_ZOMBIE_SEND: so many sends are over for the program though there is no room for their bytes yet. */
static void counts_early_ends(struct other other)
{
    static unsigned char bytes[1000];
    mx_endpoint_t from, at;
    mx_endpoint_addr_t to;
    char limit[16];
    uint32_t count = 0, done = 1;
    get(other, limit, sizeof limit);
    setenv("MX_ZOMBIE_SEND", limit, 1);
    setenv("MX_DISABLE_SHMEM", "1", 1); /* one path from the beginning, of one length */
    begin();
    from = open_any();
    at = open_any();
    to = connect_to(from, place_of(at));
    while (done) { /* they are not received */
        mx_request_t request = give(from, to, 1, bytes, sizeof bytes);
        mx_status_t status;
        OK(mx_test(from, &request, &status, &done));
        count += done;
        CHECK(count < 100000);
    }
    put(other, &count, sizeof count);
    OK(mx_close_endpoint(at));
    end(from);
}

static void early_ends(void)
{
    static const char limits[][16] = {"0", "100", "512"};
    uint32_t counts[3];
    for (int at = 0; at < 3; at++) {
        struct other child = start(counts_early_ends);
        put(child, limits[at], sizeof limits[at]);
        get(child, &counts[at], sizeof counts[at]);
        ends_well(child);
    }
    EQUAL(100, counts[1] - counts[0]);
    EQUAL(512, counts[2] - counts[0]);
}

/* OMX_WAITSPIN: a waiting thread keeps its processor. */
static long sleeps_in_waits(void)
{
    struct rusage before, after;
    mx_endpoint_t endpoint;
    mx_request_t never;
    mx_status_t status;
    uint32_t result;
    begin();
    endpoint = open_any();
    never = post(endpoint, 1, NULL, 0);
    OK(mx_wait(endpoint, &never, 1, &status, &result));
    CHECK(getrusage(RUSAGE_THREAD, &before) == 0);
    for (int times = 0; times < 3; times++) {
        OK(mx_wait(endpoint, &never, 30, &status, &result));
        EQUAL(0, result);
    }
    CHECK(getrusage(RUSAGE_THREAD, &after) == 0);
    OK(mx_cancel(endpoint, &never, &result));
    end(endpoint);
    return after.ru_nvcsw - before.ru_nvcsw;
}

static void waits_sleep(void)
{
    CHECK(sleeps_in_waits() >= 3);
}

static void waits_spin(void)
{
    setenv("OMX_WAITSPIN", "1", 1);
    EQUAL(0, sleeps_in_waits());
}

/* OMX_PROCESS_BINDING: the processor for each endpoint number, or one for all. */
static int one_processor_of(const cpu_set_t *set, int nth)
{
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, set) && nth-- == 0)
            return cpu;
    return one_processor_of(set, 0);
}

static void is_bound_to(int cpu)
{
    cpu_set_t now;
    CHECK(sched_getaffinity(0, sizeof now, &now) == 0);
    EQUAL(1, CPU_COUNT(&now));
    CHECK(CPU_ISSET(cpu, &now));
}

static void bound(int for_all)
{
    cpu_set_t may;
    char value[64];
    mx_endpoint_t first, second;
    int one, other;
    CHECK(sched_getaffinity(0, sizeof may, &may) == 0);
    one = one_processor_of(&may, 0);
    other = one_processor_of(&may, 1);
    snprintf(value, sizeof value, for_all ? "all:%d" : "%d,%d", other, one);
    setenv("OMX_PROCESS_BINDING", value, 1);
    begin();
    OK(mx_open_endpoint(0, 0, KEY, NULL, 0, &first));
    is_bound_to(other);
    OK(mx_open_endpoint(0, 1, KEY, NULL, 0, &second));
    is_bound_to(for_all ? other : one);
    OK(mx_close_endpoint(second));
    end(first);
}

static void bound_all(void)
{
    bound(1);
}

static void bound_by_endpoint(void)
{
    bound(0);
}

static void bound_to_nothing(void)
{
    cpu_set_t before, after;
    CHECK(sched_getaffinity(0, sizeof before, &before) == 0);
    setenv("OMX_PROCESS_BINDING", "all:99999", 1); /* no such processor: where it runs is as it was */
    begin();
    end(open_any());
    CHECK(sched_getaffinity(0, sizeof after, &after) == 0);
    CHECK(CPU_EQUAL(&before, &after));
}

/* OMX_IGNORE_MX_ENV: of the variables called MX_ none counts. */
static void mx_names_ignored(void)
{
    mx_endpoint_t endpoint;
    mx_request_t request;
    setenv("OMX_IGNORE_MX_ENV", "1", 1);
    setenv("MX_DISABLE_SELF", "1", 1);
    begin();
    endpoint = open_any();
    request = give(endpoint, own_address(endpoint), 1, NULL, 0);
    still_pending(endpoint, request); /* a send to oneself by the short way waits for its match */
    receive_well(endpoint, 1, NULL, 0);
    finish_well(endpoint, request);
    end(endpoint);
}

static void read_when_the_first_opens(void)
{
    mx_endpoint_t first, second;
    begin();
    setenv("OMX_ANY_ENDPOINT", "9", 1); /* after mx_init: in time */
    first = open_any();
    EQUAL(9, place_of(first).id);
    setenv("OMX_ANY_ENDPOINT", "11", 1); /* too late */
    GIVES(MX_BUSY, mx_open_endpoint(MX_ANY_NIC, MX_ANY_ENDPOINT, KEY, NULL, 0, &second));
    end(first);
}

/* As atoi has it: a number up to what is none, and text is nothing. */
static void numbers_as_atoi(void)
{
    setenv("OMX_RNDV_THRESHOLD", " 2000 bytes", 1);
    thresholds(2000);
}

MAIN(TEST(any_endpoint), TEST(rendezvous_threshold), TEST(shared_rendezvous_threshold), TEST(self_the_short_way), TEST(self_the_long_way),
     TEST(large_ones), TEST(early_ends), TEST(waits_sleep), TEST(waits_spin), TEST(bound_all), TEST(bound_by_endpoint),
     TEST(bound_to_nothing), TEST(mx_names_ignored), TEST(read_when_the_first_opens), TEST(numbers_as_atoi))
