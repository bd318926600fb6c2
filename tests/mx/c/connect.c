/* Connecting, disconnecting, and what addresses are good for. */
#include "mxtest.h"
#include <pthread.h>
#include <stdatomic.h>

static int handler_calls;

static mx_return_t counting(char *message, mx_return_t code)
{
    CHECK(message != NULL);
    handler_calls++;
    return code;
}

static mx_status_t iconnect(mx_endpoint_t endpoint, struct place place)
{
    static int context;
    mx_request_t request;
    mx_status_t status;
    void *found;
    OK(mx_iconnect(endpoint, place.nic, place.id, place.key, 0xc0ffee, &context, &request));
    CHECK(request != NULL);
    OK(mx_context(&request, &found));
    CHECK(found == &context);
    status = finish(endpoint, request);
    EQUAL(0xc0ffee, status.match_info);
    CHECK(status.context == &context);
    return status;
}

/* The target of the refusals below: an endpoint with a key. */
static void is_there(struct other other)
{
    mx_endpoint_t endpoint, second;
    struct place places[2];
    begin();
    endpoint = open_any();
    second = open_any();
    places[0] = place_of(endpoint);
    places[1] = place_of(second);
    put(other, places, sizeof places);
    hear(other, 'c');
    OK(mx_close_endpoint(second));
    tell(other, 'C');
    hear(other, 'e');
    /* Nothing of the refused came through; then the one that was accepted. */
    nothing_done(endpoint);
    receive_well(endpoint, 1, NULL, 0);
    end(endpoint);
}

static void is_refused(struct other other)
{
    struct place places[2], wrong;
    mx_endpoint_t endpoint;
    mx_endpoint_addr_t address;
    begin();
    mx_set_error_handler(counting);
    endpoint = open_any();
    get(other, places, sizeof places);
    wrong = places[0];
    wrong.key = KEY + 1;
    GIVES(MX_BAD_CONNECTION_KEY, mx_connect(endpoint, wrong.nic, wrong.id, wrong.key, 5000, &address));
    EQUAL(1, handler_calls);
    ENDED(MX_STATUS_BAD_KEY, iconnect(endpoint, wrong));
    wrong.key = KEY;
    wrong.id = 200;
    GIVES(MX_BAD_ENDPOINT_ID, mx_connect(endpoint, wrong.nic, wrong.id, wrong.key, 5000, &address));
    ENDED(MX_STATUS_BAD_ENDPOINT, iconnect(endpoint, wrong));
    wrong.id = 31;
    GIVES(MX_CONNECTION_FAILED, mx_connect(endpoint, wrong.nic, wrong.id, wrong.key, 5000, &address));
    ENDED(MX_STATUS_ENDPOINT_CLOSED, iconnect(endpoint, wrong));
    handler_calls = 0;
    GIVES(MX_NIC_NOT_FOUND, mx_connect(endpoint, 0x020000000001, 0, KEY, 5000, &address));
    EQUAL(1, handler_calls);
    mx_set_error_handler(MX_ERRORS_RETURN);
    tell(other, 'c');
    hear(other, 'C');
    GIVES(MX_CONNECTION_FAILED, mx_connect(endpoint, places[1].nic, places[1].id, KEY, 5000, &address));
    address = connect_to(endpoint, places[0]);
    send_well(endpoint, address, 1, NULL, 0);
    tell(other, 'e');
    end(endpoint);
}

static void refusals(void)
{
    pair(is_refused, is_there);
}

static void iconnects(struct other other)
{
    mx_endpoint_t endpoint;
    struct place theirs;
    mx_status_t status;
    mx_request_t request, seen;
    uint32_t result;

    begin();
    endpoint = open_any();
    get(other, &theirs, sizeof theirs);
    status = iconnect(endpoint, theirs);
    ENDED(MX_STATUS_SUCCESS, status);
    /* The address works, and another one of the same endpoint is as good. */
    send_well(endpoint, status.source, 1, NULL, 0);
    CHECK(same_endpoint(status.source, connect_to(endpoint, theirs)));
    /* It takes part in test_any, wait_any and peek like any request. */
    OK(mx_iconnect(endpoint, theirs.nic, theirs.id, KEY, 7, NULL, &request));
    OK(mx_peek(endpoint, MX_INFINITE, &seen, &result));
    EQUAL(1, result);
    CHECK(seen == request);
    OK(mx_test_any(endpoint, 8, MX_MATCH_MASK_NONE, &status, &result));
    EQUAL(0, result);
    OK(mx_wait_any(endpoint, MX_INFINITE, 7, MX_MATCH_MASK_NONE, &status, &result));
    EQUAL(1, result);
    ENDED(MX_STATUS_SUCCESS, status);
    send_well(endpoint, status.source, 2, NULL, 0);
    /* To oneself, by the same call. */
    status = iconnect(endpoint, place_of(endpoint));
    ENDED(MX_STATUS_SUCCESS, status);
    CHECK(same_endpoint(status.source, own_address(endpoint)));
    send_well(endpoint, connect_to(endpoint, theirs), 3, NULL, 0);
    /* Cancelled: either it was answered, and ends as any, or it was not, and never shows. */
    OK(mx_iconnect(endpoint, theirs.nic, theirs.id, KEY, 9, NULL, &request));
    OK(mx_cancel(endpoint, &request, &result));
    if (result == 0)
        finish_well(endpoint, request);
    else
        CHECK(request == NULL);
    nothing_done(endpoint);
    /* A pointer of NULL: forgotten at once. */
    OK(mx_iconnect(endpoint, theirs.nic, theirs.id, KEY, 9, NULL, NULL));
    send_well(endpoint, connect_to(endpoint, theirs), 4, NULL, 0);
    nothing_done(endpoint);
    GIVES(MX_BAD_REQUEST, (OK(mx_iconnect(endpoint, theirs.nic, theirs.id, KEY, 9, NULL, &request)),
                           mx_ibuffered(endpoint, &request, &result)));
    end(endpoint);
}

static void is_connected_to(struct other other)
{
    struct place own;
    mx_endpoint_t endpoint;
    begin();
    endpoint = open_any();
    own = place_of(endpoint);
    put(other, &own, sizeof own);
    for (uint64_t match = 1; match <= 4; match++)
        receive_well(endpoint, match, NULL, 0);
    end(endpoint);
}

static void as_a_request(void)
{
    pair(iconnects, is_connected_to);
}

static void to_oneself(void)
{
    mx_endpoint_t endpoint;
    mx_endpoint_addr_t address;
    struct place wrong;
    begin();
    endpoint = open_any();
    address = connect_to(endpoint, place_of(endpoint));
    CHECK(same_endpoint(address, own_address(endpoint)));
    self_trip(endpoint, address);
    wrong = place_of(endpoint);
    wrong.id = 40;
    GIVES(MX_BAD_ENDPOINT_ID, mx_connect(endpoint, wrong.nic, wrong.id, KEY, 1000, &address));
    end(endpoint);
}

/* Contexts of addresses. */

static void *context_of(mx_endpoint_addr_t address)
{
    void *context = &context;
    OK(mx_get_endpoint_addr_context(address, &context));
    return context;
}

static mx_endpoint_addr_t seen_by_handler;
static void *context_in_handler;

static mx_unexp_handler_action_t looks(void *context, mx_endpoint_addr_t source, uint64_t match, uint32_t length,
                                       void *data)
{
    (void)context, (void)match, (void)length, (void)data;
    seen_by_handler = source;
    context_in_handler = context_of(source);
    return MX_RECV_CONTINUE;
}

static void is_known_by_context(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    for (uint64_t match = 1; match <= 2; match++) {
        hear(other, 'g');
        send_well(endpoint, peer, match, NULL, 0);
    }
    hear(other, 'r'); /* from this side too, as programs do */
    peer = meet(endpoint, other);
    send_well(endpoint, peer, 3, NULL, 0);
    hear(other, 'e');
    end(endpoint);
}

static void knows_by_context(struct other other)
{
    static int mine, second;
    mx_endpoint_addr_t peer, again, bytes;
    mx_endpoint_t endpoint = join(other, &peer);
    mx_status_t status;

    CHECK(context_of(peer) == NULL); /* PVFS2 relies on it */
    CHECK(context_of(own_address(endpoint)) == NULL);
    OK(mx_register_unexp_handler(endpoint, looks, NULL));
    tell(other, 'g');
    status = await_unexpected(endpoint, 1);
    CHECK(context_in_handler == NULL && context_of(status.source) == NULL);
    OK(mx_set_endpoint_addr_context(seen_by_handler, &mine));
    CHECK(context_of(peer) == &mine && context_of(status.source) == &mine);
    memcpy(&bytes, &peer, sizeof bytes); /* sixteen bytes that may be copied in any way */
    CHECK(context_of(bytes) == &mine);
    OK(mx_set_endpoint_addr_context(bytes, &second));
    CHECK(context_of(status.source) == &second && context_of(seen_by_handler) == &second);
    tell(other, 'g');
    await_unexpected(endpoint, 2);
    CHECK(context_in_handler == &second);
    receive_well(endpoint, 1, NULL, 0);
    status = receive_well(endpoint, 2, NULL, 0);
    CHECK(context_of(status.source) == &second);
    /* Connecting again keeps it; so does the status of a send. */
    {
        uint64_t nic;
        uint32_t id;
        OK(mx_decompose_endpoint_addr(peer, &nic, &id));
        OK(mx_connect(endpoint, nic, id, KEY, MX_INFINITE, &again));
        CHECK(context_of(again) == &second);
        status = finish_well(endpoint, give(endpoint, peer, 99, NULL, 0));
        CHECK(context_of(status.source) == &second);
        CHECK(context_of(own_address(endpoint)) == NULL); /* another endpoint, another value */
        /* mx_disconnect loses it. */
        OK(mx_disconnect(endpoint, again));
        tell(other, 'r');
        CHECK(context_of(meet(endpoint, other)) == NULL);
    }
    await_unexpected(endpoint, 3);
    CHECK(context_in_handler == NULL);
    tell(other, 'e');
    end(endpoint);
}

static void contexts_of_addresses(void)
{
    pair(knows_by_context, is_known_by_context);
}

/* mx_disconnect. */

static void is_disconnected(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(200000);
    send_well(endpoint, peer, 1, NULL, 0);
    mark_end(endpoint, peer);
    hear(other, 'd');
    meet_at(other, 'D');
    peer = meet(endpoint, other);
    send_well(endpoint, peer, 2, NULL, 0);
    /* What was announced before the disconnect may still be fetched: then it is what was sent. */
    receive_well(endpoint, 11, bytes, 200000);
    is_filled(bytes, 200000, 5);
    send_well(endpoint, peer, 4, NULL, 0);
    receive_well(endpoint, 3, NULL, 0);
    end(endpoint);
    free(bytes);
}

static void disconnects(struct other other)
{
    mx_endpoint_addr_t peer, old;
    mx_endpoint_t endpoint = join(other, &peer);
    mx_request_t large, synchronous, receiving, after = NULL;
    unsigned char *bytes = room(200000);
    mx_status_t status;
    uint32_t result;

    await_end(endpoint);
    await_unexpected(endpoint, 1);
    receiving = post(endpoint, 2, NULL, 0);
    fill(bytes, 200000, 5);
    large = give(endpoint, peer, 11, bytes, 200000);
    synchronous = give_sync(endpoint, peer, 12, NULL, 0);
    still_pending(endpoint, large);
    still_pending(endpoint, synchronous);
    OK(mx_disconnect(endpoint, peer));
    ENDED(MX_STATUS_ENDPOINT_UNREACHABLE, finish(endpoint, large));
    ENDED(MX_STATUS_ENDPOINT_UNREACHABLE, finish(endpoint, synchronous));
    /* The request is over, so the memory is the program's again. */
    memset(bytes, 0, 200000);
    /* Its unreceived messages are gone; a receive was never its own. */
    OK(mx_iprobe(endpoint, 1, MX_MATCH_MASK_NONE, &status, &result));
    EQUAL(0, result);
    still_pending(endpoint, receiving);
    /* The old address is none: a send to it is refused or ends with an error. */
    old = peer;
    if (mx_isend(endpoint, NULL, 0, old, 13, NULL, &after) == MX_SUCCESS)
        CHECK(finish(endpoint, after).code != MX_STATUS_SUCCESS);
    tell(other, 'd');
    meet_at(other, 'D');
    peer = meet(endpoint, other);
    finish_well(endpoint, receiving);
    receive_well(endpoint, 4, NULL, 0);
    send_well(endpoint, peer, 3, NULL, 0);
    end(endpoint);
    free(bytes);
}

static void disconnecting(void)
{
    pair(disconnects, is_disconnected);
}

/* A peer that closes its endpoint and opens the same number again is a new peer. */
static void opens_again(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    struct place place = place_of(endpoint);
    OK(mx_close_endpoint(endpoint));
    OK(mx_open_endpoint(0, place.id, KEY, NULL, 0, &endpoint));
    tell(other, 'o');
    hear(other, 's');
    peer = meet(endpoint, other);
    receive_well(endpoint, 2, NULL, 0);
    nothing_done(endpoint);
    {
        mx_status_t status;
        uint32_t result;
        OK(mx_iprobe(endpoint, 0, 0, &status, &result));
        EQUAL(0, result); /* nothing of what was meant for its former self */
    }
    end(endpoint);
}

static void is_told_apart(struct other other)
{
    mx_endpoint_addr_t peer, again;
    mx_endpoint_t endpoint = join(other, &peer);
    uint32_t id[2], session[2];
    uint64_t nic;
    mx_status_t status;
    hear(other, 'o');
    status = finish(endpoint, give_sync(endpoint, peer, 1, NULL, 0));
    CHECK(status.code == MX_STATUS_ENDPOINT_CLOSED || status.code == MX_STATUS_ENDPOINT_UNREACHABLE ||
          status.code == MX_STATUS_BAD_SESSION);
    tell(other, 's');
    again = meet(endpoint, other);
    OK(mx_decompose_endpoint_addr2(peer, &nic, &id[0], &session[0]));
    OK(mx_decompose_endpoint_addr2(again, &nic, &id[1], &session[1]));
    EQUAL(id[0], id[1]);
    CHECK(session[0] != session[1]);
    send_well(endpoint, again, 2, NULL, 0);
    end(endpoint);
}

static void reopened(void)
{
    pair(is_told_apart, opens_again);
}

/* Each connects to the other at the same time, over and over, with several endpoints. */
static void connects_across(struct other other)
{
    mx_endpoint_t endpoints[4];
    struct place own[4], theirs[4];
    begin();
    for (int at = 0; at < 4; at++)
        own[at] = place_of(endpoints[at] = open_any());
    put(other, own, sizeof own);
    get(other, theirs, sizeof theirs);
    for (int round = 0; round < 5; round++)
        for (int at = 0; at < 4; at++)
            for (int to = 0; to < 4; to++)
                connect_to(endpoints[at], theirs[to]);
    meet_at(other, 'x');
    for (int at = 0; at < 4; at++)
        OK(mx_close_endpoint(endpoints[at]));
    OK(mx_finalize());
}

static void at_the_same_time(void)
{
    pair(connects_across, connects_across);
}

/*
 * With a daemon that does not answer: the time runs out, or mx_wakeup ends it. The test stops the daemon when it reads
 * `ready`, and has it go on when it reads `thaw`.
 */
static mx_endpoint_t frozen_endpoint;
static struct place frozen_target;
static atomic_int returned;

static void *connects_for_ever(void *unused)
{
    mx_endpoint_addr_t address;
    (void)unused;
    GIVES(MX_TIMEOUT, mx_connect(frozen_endpoint, frozen_target.nic, frozen_target.id, KEY, MX_INFINITE, &address));
    atomic_store(&returned, 1);
    return NULL;
}

static void silent_daemon(void)
{
    mx_endpoint_t second;
    mx_endpoint_addr_t address;
    pthread_t thread;
    char word[16];
    uint64_t begun;

    begin();
    frozen_endpoint = open_any();
    second = open_any();
    frozen_target = place_of(second);
    puts("ready");
    fflush(stdout);
    CHECK(fgets(word, sizeof word, stdin) != NULL);
    begun = now_ms();
    GIVES(MX_TIMEOUT, mx_connect(frozen_endpoint, frozen_target.nic, frozen_target.id, KEY, 50, &address));
    CHECK(now_ms() - begun >= 49);
    CHECK(pthread_create(&thread, NULL, connects_for_ever, NULL) == 0);
    while (!atomic_load(&returned)) { /* a thread that is not blocked yet misses it */
        OK(mx_wakeup(frozen_endpoint));
        sched_yield();
    }
    CHECK(pthread_join(thread, NULL) == 0);
    puts("thaw");
    fflush(stdout);
    CHECK(fgets(word, sizeof word, stdin) != NULL);
    send_well(frozen_endpoint, connect_to(frozen_endpoint, frozen_target), 1, NULL, 0);
    receive_well(second, 1, NULL, 0);
    OK(mx_close_endpoint(second));
    end(frozen_endpoint);
}

/* The board of this address is known and never answers. */
static void unanswered(void)
{
    const uint64_t silent_nic = UINT64_C(0x02000000000b);
    mx_endpoint_t endpoint;
    mx_status_t status;
    begin();
    endpoint = open_any();
    for (int by_default = 0; by_default < 2; by_default++) {
        mx_request_t request;
        if (by_default)
            OK(mx_set_request_timeout(endpoint, NULL, 100));
        OK(mx_iconnect(endpoint, silent_nic, 1, KEY, 5, &status, &request));
        if (!by_default)
            OK(mx_set_request_timeout(endpoint, request, 100));
        status = finish(endpoint, request);
        ENDED(MX_STATUS_TIMEOUT, status);
        EQUAL(5, status.match_info);
        CHECK(status.context == &status);
    }
    end(endpoint);
}

MAIN(TEST(refusals), TEST(as_a_request), TEST(to_oneself), TEST(contexts_of_addresses), TEST(disconnecting), TEST(reopened),
     TEST(at_the_same_time), TEST(silent_daemon), TEST(unanswered))
