/*
 * A peer killed in the middle: what was under way with it ends with the right status, soon, and the endpoint goes on with
 * others. Three processes: the survivor, its victim, and a third one that notices nothing.
 */
#include "mxtest.h"
#include <pthread.h>
#include <stdatomic.h>

enum { LARGE = 8 << 20, ROUNDS = 4 };

static struct other victim, third;
static mx_endpoint_t endpoint;
static mx_endpoint_addr_t to_victim, to_third;

/* The third one: sends back whatever comes, until told to stop. */
static void echoes(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t mine = join(other, &peer);
    unsigned char *bytes = room(LARGE);
    for (;;) {
        mx_status_t status = finish_well(mine, post_masked(mine, 0, 0, bytes, LARGE));
        if (status.match_info == MARK)
            break;
        finish_well(mine, give(mine, peer, status.match_info, bytes, status.xfer_length));
    }
    end(mine);
    free(bytes);
}

static void begin_with(void (*role)(struct other))
{
    victim = start(role);
    third = start(echoes);
    begin();
    endpoint = open_any();
    to_victim = meet(endpoint, victim);
    to_third = meet(endpoint, third);
}

/* The endpoint still works with another peer, for small and large messages. */
static void goes_on(void)
{
    static const uint32_t lengths[] = {8, 5000, LARGE};
    unsigned char *out = room(LARGE), *in = room(LARGE);
    for (int at = 0; at < 3; at++) {
        mx_request_t receiving = post(endpoint, 0xfeed, in, LARGE), sending;
        fill(out, lengths[at], (unsigned)at);
        sending = give(endpoint, to_third, 0xfeed, out, lengths[at]);
        EQUAL(lengths[at], finish_well(endpoint, receiving).xfer_length);
        finish_well(endpoint, sending);
        is_filled(in, lengths[at], (unsigned)at);
    }
    free(out);
    free(in);
}

static void end_with_third(void)
{
    mark_end(endpoint, to_third);
    ends_well(third);
    end(endpoint);
}

/* Ended with an error that says the other one is no more, and in time. */
static void ended_by_death(mx_request_t request, uint64_t killed)
{
    mx_status_t status = finish(endpoint, request);
    CHECK(now_ms() - killed < NOTICE_MS);
    if (status.code != MX_STATUS_ENDPOINT_CLOSED && status.code != MX_STATUS_ENDPOINT_UNREACHABLE) {
        fprintf(stderr, "a request to the dead ended with %d (%s)\n", (int)status.code, mx_strstatus(status.code));
        exit(1);
    }
    EQUAL(0, status.xfer_length);
}

/* Everything that is done to the dead afterwards. */
static void is_dead_to_us(void)
{
    mx_endpoint_addr_t address;
    mx_request_t request;
    uint64_t nic, begun = now_ms();
    uint32_t id;
    mx_return_t code;
    request = give_sync(endpoint, to_victim, 1, NULL, 0);
    ended_by_death(request, begun);
    OK(mx_decompose_endpoint_addr(to_victim, &nic, &id)); /* its address can still be asked for */
    begun = now_ms();
    do { /* a moment may pass before its endpoint is free */
        code = mx_connect(endpoint, nic, id, KEY, 5000, &address);
        CHECK(now_ms() - begun < NOTICE_MS);
    } while (code == MX_SUCCESS);
    CHECK(code == MX_CONNECTION_FAILED || code == MX_TIMEOUT);
}

/* A stream of eager messages to a peer that is killed while it takes them. */
static void takes_small_ones(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t mine = join(other, &peer);
    unsigned char bytes[5000];
    for (uint64_t count = 0;; count++) {
        finish_well(mine, post_masked(mine, 0, 0, bytes, sizeof bytes));
        if (count == 500)
            tell(other, 'h');
    }
}

static void in_a_stream(void)
{
    static unsigned char bytes[5000];
    mx_request_t any;
    uint64_t killed = 0;
    int failed = 0, heard = 0;
    uint32_t result;
    begin_with(takes_small_ones);
    any = post(endpoint, 0xabc, bytes, 8); /* from any peer: stays */
    for (uint64_t count = 0; !failed; count++) {
        mx_status_t status = finish(endpoint, give(endpoint, to_victim, 1, bytes, count % 2 ? 8 : 5000));
        struct pollfd readable = {victim.fd, POLLIN, 0};
        failed = status.code != MX_STATUS_SUCCESS;
        if (failed)
            CHECK(status.code == MX_STATUS_ENDPOINT_CLOSED || status.code == MX_STATUS_ENDPOINT_UNREACHABLE);
        if (!heard && poll(&readable, 1, 0) == 1) {
            hear(victim, 'h');
            heard = 1;
            killed = now_ms();
            kill_it(victim);
        }
        CHECK(killed == 0 || now_ms() - killed < NOTICE_MS); /* sends cannot go well for ever */
        CHECK(heard || !failed);
    }
    still_pending(endpoint, any);
    is_dead_to_us();
    goes_on();
    OK(mx_cancel(endpoint, &any, &result));
    EQUAL(1, result);
    end_with_third();
}

/* Large sends: one that was never matched, one that is being fetched. */
static void fetches_a_large_one(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t mine = join(other, &peer);
    unsigned char *bytes = room(LARGE);
    await_unexpected(mine, 2);
    post(mine, 1, bytes, LARGE);
    tell(other, 'p');
    for (;;)
        OK(mx_progress(mine));
}

static void in_a_large_send(void)
{
    unsigned char *bytes = room(LARGE);
    for (int round = 0; round < ROUNDS; round++) {
        mx_request_t fetched, unmatched, synchronous;
        mx_status_t status;
        uint64_t killed;
        begin_with(fetches_a_large_one);
        fetched = give(endpoint, to_victim, 1, bytes, LARGE);
        synchronous = give_sync(endpoint, to_victim, 3, bytes, 8);
        unmatched = give(endpoint, to_victim, 2, bytes, LARGE);
        hear_moving(endpoint, victim, 'p');
        killed = now_ms();
        kill_it(victim);
        ended_by_death(unmatched, killed);
        ended_by_death(synchronous, killed);
        status = finish(endpoint, fetched); /* it may have been faster than the kill */
        CHECK(status.code == MX_STATUS_SUCCESS || status.code == MX_STATUS_ENDPOINT_CLOSED ||
              status.code == MX_STATUS_ENDPOINT_UNREACHABLE);
        CHECK(now_ms() - killed < NOTICE_MS);
        is_dead_to_us();
        goes_on();
        end_with_third();
    }
    free(bytes);
}

/* Large messages from a peer that is killed: announced and not matched, matched and under way. */
static void sends_large_ones(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t mine = join(other, &peer);
    unsigned char *bytes = room(LARGE);
    for (uint64_t match = 1; match <= 4; match++)
        give(mine, peer, match, bytes, LARGE);
    give_sync(mine, peer, 5, bytes, 8);
    mark_end(mine, peer);
    for (;;)
        OK(mx_progress(mine));
}

static void in_a_large_receive(void)
{
    unsigned char *bytes[5];
    for (int at = 0; at < 5; at++)
        bytes[at] = room(LARGE);
    for (int round = 0; round < ROUNDS; round++) {
        mx_request_t first, second, late;
        mx_status_t status;
        uint64_t killed;
        uint32_t result;
        begin_with(sends_large_ones);
        first = post(endpoint, 1, bytes[0], LARGE);
        await_end(endpoint); /* all are announced; the first is matched */
        second = post(endpoint, 2, bytes[1], LARGE);
        killed = now_ms();
        kill_it(victim);
        for (int at = 0; at < 2; at++) {
            status = finish(endpoint, at ? second : first); /* whole, or ended by the death */
            CHECK(now_ms() - killed < NOTICE_MS);
            if (status.code == MX_STATUS_SUCCESS)
                EQUAL(LARGE, status.xfer_length);
            else
                CHECK(status.code == MX_STATUS_ENDPOINT_CLOSED || status.code == MX_STATUS_ENDPOINT_UNREACHABLE);
        }
        /* A message that was only announced is gone, now or when a receive takes it: no receive gets it as complete. */
        is_dead_to_us();
        late = post(endpoint, 3, bytes[2], LARGE);
        OK(mx_cancel(endpoint, &late, &result));
        if (result == 0) {
            status = finish(endpoint, late);
            CHECK(status.code == MX_STATUS_SUCCESS || status.code == MX_STATUS_ENDPOINT_CLOSED ||
                  status.code == MX_STATUS_ENDPOINT_UNREACHABLE);
        }
        goes_on();
        end_with_third();
    }
    for (int at = 0; at < 5; at++)
        free(bytes[at]);
}

/* Asleep: threads in mx_wait for a send to the victim, and in mx_wait and mx_probe for anything of others. */
static mx_request_t sending, receiving;
static _Atomic pid_t ids[3];
static _Atomic uint64_t ended_at;

static void *sleeps_for_the_victim(void *unused)
{
    mx_status_t status;
    uint32_t result;
    (void)unused;
    atomic_store(&ids[0], (pid_t)gettid());
    OK(mx_wait(endpoint, &sending, MX_INFINITE, &status, &result));
    EQUAL(1, result);
    CHECK(status.code == MX_STATUS_ENDPOINT_CLOSED || status.code == MX_STATUS_ENDPOINT_UNREACHABLE);
    atomic_store(&ended_at, now_ms());
    return NULL;
}

static void *sleeps_for_others(void *unused)
{
    (void)unused;
    atomic_store(&ids[1], (pid_t)gettid());
    finish_well(endpoint, receiving);
    return NULL;
}

static void *sleeps_in_probe(void *unused)
{
    (void)unused;
    atomic_store(&ids[2], (pid_t)gettid());
    await_unexpected(endpoint, 0xaaa);
    return NULL;
}

/* The same in mx_wait_any and in mx_peek: they return with the request of the dead, whatever it was. */
static void *sleeps_for_anything(void *peeks)
{
    mx_request_t peeked = NULL;
    mx_status_t status;
    uint32_t result;
    atomic_store(&ids[0], (pid_t)gettid());
    if (peeks != NULL) {
        OK(mx_peek(endpoint, MX_INFINITE, &peeked, &result));
        EQUAL(1, result);
        CHECK(peeked == sending);
        OK(mx_test(endpoint, &peeked, &status, &result));
    } else {
        OK(mx_wait_any(endpoint, MX_INFINITE, 0xccc, MX_MATCH_MASK_NONE, &status, &result));
    }
    EQUAL(1, result);
    EQUAL(0xccc, status.match_info);
    CHECK(status.code == MX_STATUS_ENDPOINT_CLOSED || status.code == MX_STATUS_ENDPOINT_UNREACHABLE);
    atomic_store(&ended_at, now_ms());
    return NULL;
}

static void does_nothing(struct other other)
{
    mx_endpoint_addr_t peer;
    join(other, &peer);
    for (;;)
        pause();
}

static void while_asleep(void)
{
    pthread_t threads[3];
    uint64_t killed;
    begin_with(does_nothing);
    memset((void *)ids, 0, sizeof ids);
    sending = give_sync(endpoint, to_victim, 1, NULL, 0);
    receiving = post(endpoint, 0xbbb, NULL, 0);
    CHECK(pthread_create(&threads[0], NULL, sleeps_for_the_victim, NULL) == 0);
    CHECK(pthread_create(&threads[1], NULL, sleeps_for_others, NULL) == 0);
    CHECK(pthread_create(&threads[2], NULL, sleeps_in_probe, NULL) == 0);
    CHECK(await_sleep(ids, 3));
    killed = now_ms();
    kill_it(victim);
    CHECK(pthread_join(threads[0], NULL) == 0);
    CHECK(atomic_load(&ended_at) - killed < NOTICE_MS);
    /* The others slept on; the third one's messages wake them. */
    OK(mx_isend(endpoint, NULL, 0, to_third, 0xbbb, NULL, NULL));
    OK(mx_isend(endpoint, NULL, 0, to_third, 0xaaa, NULL, NULL));
    CHECK(pthread_join(threads[1], NULL) == 0);
    CHECK(pthread_join(threads[2], NULL) == 0);
    receive_well(endpoint, 0xaaa, NULL, 0);
    is_dead_to_us();
    goes_on();
    end_with_third();
}

static void while_asleep_for_anything(void)
{
    static unsigned char bytes[LARGE];
    for (int kind = 0; kind < 4; kind++) {
        pthread_t thread;
        uint64_t killed;
        begin_with(does_nothing);
        memset((void *)ids, 0, sizeof ids);
        sending = kind < 2 ? give_sync(endpoint, to_victim, 0xccc, NULL, 0) : give(endpoint, to_victim, 0xccc, bytes, LARGE);
        CHECK(pthread_create(&thread, NULL, sleeps_for_anything, kind % 2 ? &sending : NULL) == 0);
        CHECK(await_sleep(ids, 1));
        killed = now_ms();
        kill_it(victim);
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(atomic_load(&ended_at) - killed < NOTICE_MS);
        nothing_done(endpoint);
        is_dead_to_us();
        goes_on();
        end_with_third();
    }
}

/* Killed after it had sent small messages that were not received: they are complete and can be received. */
static void leaves_small_ones(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t mine = join(other, &peer);
    unsigned char bytes[20000];
    fill(bytes, sizeof bytes, 1);
    send_well(mine, peer, 1, bytes, 8);
    send_well(mine, peer, 2, bytes, 20000);
    mark_end(mine, peer);
    for (;;)
        pause();
}

static void what_had_arrived_stays(void)
{
    static unsigned char bytes[20000];
    begin_with(leaves_small_ones);
    await_end(endpoint);
    kill_it(victim);
    is_dead_to_us();
    EQUAL(8, receive_well(endpoint, 1, bytes, sizeof bytes).xfer_length);
    is_filled(bytes, 8, 1);
    EQUAL(20000, receive_well(endpoint, 2, bytes, sizeof bytes).xfer_length);
    is_filled(bytes, 20000, 1);
    goes_on();
    end_with_third();
}

/* Its endpoint number is free for the next process, which is reached at the same address. */
static void succeeds(struct other other)
{
    struct place place;
    mx_endpoint_t mine;
    get(other, &place, sizeof place);
    begin();
    OK(mx_open_endpoint(0, place.id, KEY, NULL, 0, &mine));
    tell(other, 'o');
    receive_well(mine, 1, NULL, 0);
    end(mine);
}

static void successor_is_reached(void)
{
    struct other next = start(succeeds);
    struct place place = {0, 0, KEY};
    begin_with(does_nothing);
    OK(mx_decompose_endpoint_addr(to_victim, &place.nic, &place.id));
    kill_it(victim);
    is_dead_to_us();
    put(next, &place, sizeof place);
    hear(next, 'o');
    send_well(endpoint, connect_to(endpoint, place), 1, NULL, 0);
    ended_by_death(give_sync(endpoint, to_victim, 1, NULL, 0), now_ms()); /* the old address is still the old one's */
    ends_well(next);
    goes_on();
    end_with_third();
}

/* Killed at a random moment, with messages of all classes under way in both directions; several times. */
enum { WINDOW = 8, KILLS = 16 };

static uint32_t chance(uint64_t *state, uint32_t below)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (uint32_t)(*state % below);
}

static int is_whole_or_dead(mx_status_t status)
{
    return status.code == MX_STATUS_SUCCESS || status.code == MX_STATUS_ENDPOINT_CLOSED ||
           status.code == MX_STATUS_ENDPOINT_UNREACHABLE;
}

static void killed_after(uint64_t *state, unsigned char *bytes)
{
    static const uint32_t lengths[] = {0, 8, 100, 3000, 32768, 40000, 1 << 20};
    mx_request_t sends[WINDOW], receives[WINDOW];
    uint32_t total = 1 + chance(state, 80), polls = chance(state, 2000), result;
    uint64_t killed;
    begin_with(echoes);
    for (uint32_t at = 0; at < total; at++) {
        uint32_t place = at % WINDOW;
        if (at >= WINDOW) {
            finish_well(endpoint, sends[place]);
            finish_well(endpoint, receives[place]);
        }
        receives[place] = post(endpoint, 0x100 + at, bytes + place * (1 << 20), 1 << 20);
        sends[place] = give(endpoint, to_victim, 0x100 + at, bytes + WINDOW * (1 << 20), lengths[chance(state, 7)]);
    }
    while (polls-- > 0)
        OK(mx_progress(endpoint));
    killed = now_ms();
    kill_it(victim);
    for (uint32_t at = total > WINDOW ? total - WINDOW : 0; at < total; at++) {
        mx_request_t receive = receives[at % WINDOW];
        CHECK(is_whole_or_dead(finish(endpoint, sends[at % WINDOW])));
        OK(mx_cancel(endpoint, &receive, &result)); /* from any peer: it stays, unless a message has begun to fill it */
        if (result == 0)
            CHECK(is_whole_or_dead(finish(endpoint, receive)));
    }
    CHECK(now_ms() - killed < NOTICE_MS);
    nothing_done(endpoint);
    is_dead_to_us();
    goes_on();
    end_with_third();
}

static void at_any_moment(void)
{
    const char *given = getenv("MX_TEST_SEED");
    uint64_t state = given != NULL ? strtoull(given, NULL, 0) : now_ms() << 16 ^ (uint64_t)getpid();
    unsigned char *bytes = room((WINDOW + 1) * (1 << 20));
    for (int kills = 0; kills < KILLS; kills++) {
        fprintf(stderr, "MX_TEST_SEED=%#" PRIx64 "\n", state); /* of this kill */
        killed_after(&state, bytes);
    }
    free(bytes);
}

MAIN(TEST(in_a_stream), TEST(in_a_large_send), TEST(in_a_large_receive), TEST(while_asleep), TEST(while_asleep_for_anything), TEST(what_had_arrived_stays),
     TEST(successor_is_reached), TEST(at_any_moment))
