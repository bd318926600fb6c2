/*
 * Twelve threads block in one endpoint, three each in mx_wait, mx_wait_any, mx_peek and mx_probe; mx_wakeup frees them
 * all. A wake-up has no effect on later waits.
 *
 *   mx_wakeup -R 10
 */
#include "mx_example.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static const char usage[] = "usage: mx_wakeup [-R ROUNDS] [-t SECONDS]\n"
                            "  -R  how often the threads go to sleep and are woken [10]\n"
                            "  -t  gives up after this time [60]\n";

enum { KINDS = 4, OF_EACH = 3, THREADS = KINDS * OF_EACH };

/* The match information of no message. */
#define NEVER UINT64_C(0x6e65766572)

static mx_endpoint_t endpoint;
static atomic_uint returned;
static const char *const names[KINDS] = {"mx_wait", "mx_wait_any", "mx_peek", "mx_probe"};

static uint32_t block(unsigned kind, uint32_t timeout_ms, mx_request_t *never)
{
    mx_status_t status;
    mx_request_t seen;
    uint32_t result = 2;
    switch (kind) {
    case 0: MX(mx_wait(endpoint, never, timeout_ms, &status, &result)); break;
    case 1: MX(mx_wait_any(endpoint, timeout_ms, NEVER, MX_MATCH_MASK_NONE, &status, &result)); break;
    case 2: MX(mx_peek(endpoint, timeout_ms, &seen, &result)); break;
    default: MX(mx_probe(endpoint, timeout_ms, NEVER, MX_MATCH_MASK_NONE, &status, &result)); break;
    }
    return result;
}

static void *sleeper(void *argument)
{
    unsigned kind = (unsigned)(uintptr_t)argument;
    mx_request_t never = post_receive(endpoint, NEVER, NULL, 0);
    uint32_t cancelled;
    if (block(kind, MX_INFINITE, &never) != 0) {
        fprintf(stderr, "%s found something where nothing is\n", names[kind]);
        exit(FAILED);
    }
    MX(mx_cancel(endpoint, &never, &cancelled));
    if (!cancelled)
        fail("a receive without a message cannot be cancelled");
    atomic_fetch_add(&returned, 1);
    return NULL;
}

static void round_of_sleep(void)
{
    pthread_t threads[THREADS];
    unsigned wakeups = 0;
    atomic_store(&returned, 0);
    for (uintptr_t at = 0; at < THREADS; at++)
        if (pthread_create(&threads[at], NULL, sleeper, (void *)(at % KINDS)) != 0)
            fail("a thread is refused");
    /* Who is not asleep yet misses a wake-up, so we repeat it. */
    while (atomic_load(&returned) < THREADS) {
        MX(mx_wakeup(endpoint));
        wakeups++;
        sched_yield();
    }
    for (int at = 0; at < THREADS; at++)
        pthread_join(threads[at], NULL);
    printf("%d threads woken, by %u calls\n", THREADS, wakeups);
}

/* Without a sleeping thread a wake-up is lost: the next wait takes its whole time. */
static void not_sticky(unsigned kind)
{
    mx_request_t never = post_receive(endpoint, NEVER, NULL, 0);
    uint32_t cancelled;
    double begun;
    MX(mx_wakeup(endpoint));
    begun = now_us();
    if (block(kind, 20, &never) != 0 || now_us() - begun < 19000) {
        fprintf(stderr, "%s: an old wake-up ended it\n", names[kind]);
        exit(FAILED);
    }
    MX(mx_cancel(endpoint, &never, &cancelled));
}

int main(int argc, char **argv)
{
    uint64_t rounds = 10;
    unsigned seconds = 60;
    int option;

    while ((option = getopt(argc, argv, "R:t:h")) != -1) {
        switch (option) {
        case 'R': rounds = number(optarg, 1, UINT32_MAX); break;
        case 't': seconds = (unsigned)number(optarg, 1, UINT32_MAX); break;
        default: fputs(usage, option == 'h' ? stdout : stderr); return option == 'h' ? 0 : USAGE;
        }
    }
    alarm(seconds);
    MX(mx_init());
    endpoint = open_endpoint(MX_ANY_ENDPOINT);
    for (uint64_t round = 0; round < rounds; round++)
        round_of_sleep();
    for (unsigned kind = 0; kind < KINDS; kind++)
        not_sticky(kind);
    MX(mx_close_endpoint(endpoint));
    MX(mx_finalize());
    return 0;
}
