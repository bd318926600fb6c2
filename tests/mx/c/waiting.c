/* Waiting: for ever, for some time, by many threads, and being woken. */
#include "mxtest.h"
#include <pthread.h>
#include <stdatomic.h>

enum { KINDS = 4, THREADS = 12 };

/* Match information of no message; from BASE on one number for each thread. */
#define NEVER UINT64_C(0x4e00)
#define BASE UINT64_C(0x1000)

static mx_endpoint_t endpoint;
static _Atomic pid_t ids[THREADS + 1];
static atomic_int returned;

/* Blocks in one of the calls; the answer is the result. Thread `at` waits for match information BASE + at. */
static uint32_t block(unsigned kind, uint64_t match, uint32_t timeout_ms, mx_request_t *request, mx_status_t *status)
{
    mx_request_t peeked = NULL;
    uint32_t result = 2;
    switch (kind) {
    case 0: OK(mx_wait(endpoint, request, timeout_ms, status, &result)); break;
    case 1: OK(mx_wait_any(endpoint, timeout_ms, match, MX_MATCH_MASK_NONE, status, &result)); break;
    case 2: OK(mx_probe(endpoint, timeout_ms, match, MX_MATCH_MASK_NONE, status, &result)); break;
    default: OK(mx_peek(endpoint, timeout_ms, &peeked, &result)); break;
    }
    return result;
}

/* A timeout ends each call with result 0, after its time; nothing is touched. */
static void timeouts(void)
{
    begin();
    endpoint = open_any();
    for (unsigned kind = 0; kind < KINDS; kind++)
        for (uint32_t timeout = 1; timeout <= 30; timeout += 29) {
            mx_request_t never = post(endpoint, NEVER, NULL, 0), same = never;
            mx_status_t status, before;
            uint64_t begun = now_ms();
            uint32_t result;
            memset(&before, 0x5a, sizeof before);
            status = before;
            EQUAL(0, block(kind, NEVER, timeout, &same, &status));
            CHECK(now_ms() - begun + 1 >= timeout);
            CHECK(same == never);
            CHECK(memcmp(&status, &before, sizeof status) == 0);
            OK(mx_cancel(endpoint, &never, &result));
            EQUAL(1, result);
        }
    end(endpoint);
}

/* A timeout of 0, MX_INFINITE, has no end: the thread sleeps until there is something. */
static void *waits_for_ever(void *argument)
{
    unsigned kind = (unsigned)(uintptr_t)argument;
    mx_request_t request = NULL;
    mx_status_t status;
    if (kind != 2)
        request = post(endpoint, BASE, NULL, 0);
    atomic_store(&ids[0], (pid_t)gettid());
    EQUAL(1, block(kind, BASE, 0, &request, &status));
    atomic_store(&returned, 1);
    return NULL;
}

static void infinite_is_zero(void)
{
    mx_endpoint_t other;
    mx_endpoint_addr_t to;
    EQUAL(0, MX_INFINITE);
    begin();
    endpoint = open_any();
    other = open_any();
    to = connect_to(other, place_of(endpoint));
    for (uintptr_t kind = 0; kind < KINDS; kind++) {
        pthread_t thread;
        mx_status_t status;
        uint32_t result;
        atomic_store(&ids[0], 0);
        atomic_store(&returned, 0);
        CHECK(pthread_create(&thread, NULL, waits_for_ever, (void *)kind) == 0);
        CHECK(await_sleep(ids, 1));
        CHECK(!atomic_load(&returned));
        send_well(other, to, BASE, NULL, 0);
        CHECK(pthread_join(thread, NULL) == 0);
        if (kind == 2)
            receive_well(endpoint, BASE, NULL, 0);
        if (kind == 3) {
            OK(mx_test_any(endpoint, BASE, MX_MATCH_MASK_NONE, &status, &result));
            EQUAL(1, result);
        }
    }
    OK(mx_close_endpoint(other));
    end(endpoint);
}

/* Twelve threads sleep in four calls; one mx_wakeup has them all return with nothing. */
static void *is_woken(void *argument)
{
    uintptr_t at = (uintptr_t)argument;
    mx_request_t request = post(endpoint, NEVER, NULL, 0);
    mx_status_t status;
    uint32_t result;
    atomic_store(&ids[at], (pid_t)gettid());
    EQUAL(0, block((unsigned)at % KINDS, NEVER, MX_INFINITE, &request, &status));
    OK(mx_cancel(endpoint, &request, &result));
    EQUAL(1, result);
    return NULL;
}

static void one_wakeup_for_all(void)
{
    begin();
    endpoint = open_any();
    for (int round = 0; round < 20; round++) {
        pthread_t threads[THREADS];
        memset((void *)ids, 0, sizeof ids);
        for (uintptr_t at = 0; at < THREADS; at++)
            CHECK(pthread_create(&threads[at], NULL, is_woken, (void *)at) == 0);
        CHECK(await_sleep(ids, THREADS));
        OK(mx_wakeup(endpoint));
        for (int at = 0; at < THREADS; at++)
            CHECK(pthread_join(threads[at], NULL) == 0);
    }
    end(endpoint);
}

/* A signal does not end a wait, unless OMX_WAITINTR says so: then as a timeout does. */
static atomic_int signals;

static void count_signal(int signal)
{
    (void)signal;
    atomic_fetch_add(&signals, 1);
}

static void *is_signalled(void *argument)
{
    int ends = argument != NULL;
    mx_status_t status;
    uint32_t result = 2;
    atomic_store(&ids[0], (pid_t)gettid());
    OK(mx_wait_any(endpoint, MX_INFINITE, BASE, MX_MATCH_MASK_NONE, &status, &result));
    EQUAL(ends ? 0 : 1, result);
    atomic_store(&returned, 1);
    return NULL;
}

static void signalled(int ends)
{
    struct sigaction action;
    mx_request_t request;
    pthread_t thread;
    uint32_t result;
    memset(&action, 0, sizeof action);
    action.sa_handler = count_signal;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    begin();
    endpoint = open_any();
    request = post(endpoint, BASE, NULL, 0);
    CHECK(pthread_create(&thread, NULL, is_signalled, ends ? &signals : NULL) == 0);
    for (int sent = 1; sent <= 3 && !atomic_load(&returned); sent++) {
        if (!await_sleep(ids, 1))
            break;
        CHECK(pthread_kill(thread, SIGUSR1) == 0);
        while (atomic_load(&signals) < sent)
            sched_yield();
        while (ends && !atomic_load(&returned))
            sched_yield();
    }
    if (ends) {
        OK(mx_cancel(endpoint, &request, &result));
        EQUAL(1, result);
    } else {
        CHECK(await_sleep(ids, 1));
        OK(mx_isend(endpoint, NULL, 0, own_address(endpoint), BASE, NULL, NULL));
    }
    CHECK(pthread_join(thread, NULL) == 0);
    end(endpoint);
}

static void signals_end_no_wait(void)
{
    signalled(0);
}

static void signals_end_waits_where_told_to(void)
{
    setenv("OMX_WAITINTR", "1", 1);
    signalled(1);
}

/* A wake-up without a sleeping thread has no later effect. */
static void not_sticky(void)
{
    begin();
    endpoint = open_any();
    for (unsigned kind = 0; kind < KINDS; kind++) {
        mx_request_t never = post(endpoint, NEVER, NULL, 0);
        mx_status_t status;
        uint64_t begun;
        uint32_t result;
        OK(mx_wakeup(endpoint));
        begun = now_ms();
        EQUAL(0, block(kind, NEVER, 30, &never, &status));
        CHECK(now_ms() - begun + 1 >= 30);
        OK(mx_cancel(endpoint, &never, &result));
    }
    end(endpoint);
}

/*
 * Twelve threads sleep for something of their own each, in wait, wait_any and probe; messages come one after the other, in
 * an order that is not theirs, and each wakes its own thread, whichever of them polls.
 */
static atomic_int served;

static void *waits_for_its_own(void *argument)
{
    uintptr_t at = (uintptr_t)argument;
    unsigned kind = (unsigned)at % 3;
    mx_request_t request = NULL;
    mx_status_t status;
    if (kind != 2)
        request = post(endpoint, BASE + at, NULL, 0);
    atomic_store(&ids[at], (pid_t)gettid());
    EQUAL(1, block(kind, BASE + at, MX_INFINITE, &request, &status));
    EQUAL(BASE + at, status.match_info);
    if (kind == 2)
        receive_well(endpoint, BASE + at, NULL, 0);
    atomic_fetch_add(&served, 1);
    return NULL;
}

static void wakes_each_for_its_own(mx_endpoint_t from, mx_endpoint_addr_t to, int one_by_one)
{
    pthread_t threads[THREADS];
    memset((void *)ids, 0, sizeof ids);
    atomic_store(&served, 0);
    for (uintptr_t at = 0; at < THREADS; at++)
        CHECK(pthread_create(&threads[at], NULL, waits_for_its_own, (void *)at) == 0);
    CHECK(await_sleep(ids, THREADS));
    for (int count = 0; count < THREADS; count++) {
        OK(mx_isend(from, NULL, 0, to, BASE + (uint64_t)(count * 5 + 3) % THREADS, NULL, NULL));
        while (one_by_one && atomic_load(&served) <= count) {
            OK(mx_progress(from));
            sched_yield();
        }
    }
    for (int at = 0; at < THREADS; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
}

static void events_wake_the_right_one(void)
{
    mx_endpoint_t other;
    mx_endpoint_addr_t to;
    begin();
    endpoint = open_any();
    other = open_any();
    to = connect_to(other, place_of(endpoint));
    for (int round = 0; round < 20; round++)
        wakes_each_for_its_own(other, to, round % 2);
    OK(mx_close_endpoint(other));
    end(endpoint);
}

/* The same where the event is made by a call of another thread: a send to oneself. */
static void self_sends_wake(void)
{
    begin();
    endpoint = open_any();
    for (int round = 0; round < 20; round++)
        wakes_each_for_its_own(endpoint, own_address(endpoint), round % 2);
    end(endpoint);
}

/* A thread that only polls takes what others sleep for; they must see it all the same. */
static atomic_int stop_polling;

static void *polls(void *unused)
{
    (void)unused;
    while (!atomic_load(&stop_polling))
        OK(mx_progress(endpoint));
    return NULL;
}

static void woken_by_anothers_progress(void)
{
    mx_endpoint_t other;
    mx_endpoint_addr_t to;
    pthread_t poller;
    begin();
    endpoint = open_any();
    other = open_any();
    to = connect_to(other, place_of(endpoint));
    CHECK(pthread_create(&poller, NULL, polls, NULL) == 0);
    for (int round = 0; round < 5; round++) {
        pthread_t thread;
        atomic_store(&ids[0], 0);
        CHECK(pthread_create(&thread, NULL, waits_for_ever, (void *)(uintptr_t)(round % 3)) == 0);
        while (atomic_load(&ids[0]) == 0)
            sched_yield();
        send_well(other, to, BASE, NULL, 0);
        CHECK(pthread_join(thread, NULL) == 0);
        if (round % 3 == 2)
            receive_well(endpoint, BASE, NULL, 0);
    }
    atomic_store(&stop_polling, 1);
    CHECK(pthread_join(poller, NULL) == 0);
    OK(mx_close_endpoint(other));
    end(endpoint);
}

/* Two threads on one endpoint, each with its own conversation, in two ways of waiting; two more on the other side. */
enum { ROUNDS = 500 };

static mx_endpoint_addr_t partner;

static mx_status_t over(mx_request_t request, int sleeping)
{
    mx_status_t status;
    uint32_t done = 0;
    while (!done) {
        if (sleeping)
            OK(mx_wait(endpoint, &request, MX_INFINITE, &status, &done));
        else
            OK(mx_test(endpoint, &request, &status, &done));
    }
    return status;
}

static void converse(uint64_t own_match, int first, int sleeping)
{
    unsigned char *out = room(70000), *in = room(70000);
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t length = round % 100 == 99 ? 70000 : round % 10 == 9 ? 5000 : 8;
        mx_request_t receiving = post(endpoint, own_match, in, 70000), sending = NULL;
        mx_status_t status;
        fill(out, length, (unsigned)round + (unsigned)own_match);
        if (first)
            sending = give(endpoint, partner, own_match, out, length);
        status = over(receiving, sleeping);
        if (!first)
            sending = give(endpoint, partner, own_match, out, length);
        ENDED(MX_STATUS_SUCCESS, status);
        EQUAL(length, status.xfer_length);
        is_filled(in, length, (unsigned)round + (unsigned)own_match);
        finish_well(endpoint, sending);
    }
    free(out);
    free(in);
}

static void *converses(void *argument)
{
    uintptr_t what = (uintptr_t)argument;
    converse(what & 1 ? 0x111 : 0x222, (what & 2) != 0, (what & 4) != 0);
    return NULL;
}

static void two_threads_here(struct other other, uintptr_t first)
{
    pthread_t threads[2];
    endpoint = join(other, &partner);
    for (int sleeping = 0; sleeping < 2; sleeping++) {
        for (uintptr_t at = 0; at < 2; at++) {
            uintptr_t what = at | first | (sleeping ? 4u : at ? 4u : 0u); /* one polls and one sleeps; both sleep */
            CHECK(pthread_create(&threads[at], NULL, converses, (void *)what) == 0);
        }
        for (int at = 0; at < 2; at++)
            CHECK(pthread_join(threads[at], NULL) == 0);
    }
    meet_at(other, 'z');
    nothing_done(endpoint);
    end(endpoint);
}

static void begins(struct other other)
{
    two_threads_here(other, 2);
}

static void answers(struct other other)
{
    two_threads_here(other, 0);
}

static void two_threads(void)
{
    pair(begins, answers);
}

/* Endpoints of one process in a thread each: nothing of one waits for the other. */
static void *talks_to_itself(void *unused)
{
    mx_endpoint_t mine = open_any();
    mx_endpoint_addr_t own = own_address(mine);
    (void)unused;
    for (uint64_t match = 0; match < 2000; match++) {
        mx_request_t request = give(mine, own, match, &match, sizeof match);
        uint64_t got = ~match;
        receive_well(mine, match, &got, sizeof got);
        EQUAL(match, got);
        finish_well(mine, request);
    }
    OK(mx_close_endpoint(mine));
    return NULL;
}

static void endpoint_for_each_thread(void)
{
    pthread_t threads[8];
    begin();
    for (int at = 0; at < 8; at++)
        CHECK(pthread_create(&threads[at], NULL, talks_to_itself, NULL) == 0);
    for (int at = 0; at < 8; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
    OK(mx_finalize());
}

/* Two programs on one processor that only poll: the waiting one lets the other run, long before its time on the processor is over. */
enum { TURNS = 200, LOOKS_MAX = 5000 };

static void on_one_processor(void)
{
    cpu_set_t all, one;
    int first = 0;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    while (!CPU_ISSET(first, &all))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
}

/* So many looks until it was over. */
static uint64_t looks_until_over(mx_endpoint_t mine, mx_request_t request)
{
    mx_status_t status;
    uint32_t done = 0;
    uint64_t looks = 0;
    for (; !done; looks++)
        OK(mx_test(mine, &request, &status, &done));
    ENDED(MX_STATUS_SUCCESS, status);
    return looks;
}

static void only_polls(struct other other)
{
    mx_endpoint_addr_t to;
    mx_endpoint_t mine;
    uint64_t looks = 0;
    on_one_processor();
    mine = join(other, &to);
    for (uint64_t turn = 0; turn < TURNS; turn++) {
        mx_request_t receive = post(mine, BASE + turn, NULL, 0);
        finish_well(mine, give(mine, to, BASE + turn, NULL, 0));
        looks += looks_until_over(mine, receive);
    }
    if (looks >= (uint64_t)TURNS * LOOKS_MAX)
        fprintf(stderr, "%" PRIu64 " looks\n", looks);
    CHECK(looks < (uint64_t)TURNS * LOOKS_MAX);
    mark_end(mine, to);
    await_end(mine);
    end(mine);
}

static void polling_lets_others_run(void)
{
    pair(only_polls, only_polls);
}

MAIN(TEST(timeouts), TEST(infinite_is_zero), TEST(one_wakeup_for_all), TEST(not_sticky), TEST(signals_end_no_wait), TEST(signals_end_waits_where_told_to),
     TEST(events_wake_the_right_one),
     TEST(self_sends_wake), TEST(woken_by_anothers_progress), TEST(two_threads), TEST(endpoint_for_each_thread), TEST(polling_lets_others_run))
