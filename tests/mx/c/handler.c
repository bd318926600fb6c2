/* The handler of unexpected messages, and the control of progression. */
#include "mxtest.h"
#include <pthread.h>
#include <stdatomic.h>

static mx_endpoint_t endpoint;
static mx_endpoint_addr_t peer;

/* What the handler was last called with, and what it is to do. */
static struct {
    int calls;
    mx_endpoint_addr_t source;
    uint64_t match;
    uint32_t length;
    int has_data;
    unsigned char bytes[40000];
    mx_request_t posted;
    unsigned char *into;
    mx_return_t close;
} seen;

enum { POST_EXACT = 1, POST_ANY = 2, FINISH = 4, CLOSE = 8, SEND = 16 };

static int task;

static mx_unexp_handler_action_t handler(void *context, mx_endpoint_addr_t source, uint64_t match, uint32_t length,
                                         void *data)
{
    CHECK(context == &task);
    seen.calls++;
    seen.source = source;
    seen.match = match;
    seen.length = length;
    seen.has_data = data != NULL;
    if (data != NULL && length <= sizeof seen.bytes)
        memcpy(seen.bytes, data, length);
    if (task & POST_EXACT)
        seen.posted = post(endpoint, match, seen.into, 1000000);
    if (task & POST_ANY)
        seen.posted = post_masked(endpoint, 0, 0, seen.into, 1000000);
    if (task & CLOSE)
        seen.close = mx_close_endpoint(endpoint);
    if (task & SEND) { /* works, but nothing moves before we return */
        mx_request_t request = give(endpoint, source, match + 1, NULL, 0);
        OK(mx_forget(endpoint, &request));
        OK(mx_progress(endpoint));
    }
    return task & FINISH ? MX_RECV_FINISHED : MX_RECV_CONTINUE;
}

static void handle(int what)
{
    unsigned char *into = seen.into;
    memset(&seen, 0, sizeof seen);
    seen.into = into;
    task = what;
    OK(mx_register_unexp_handler(endpoint, handler, &task));
}

static void progress_until_called(int calls)
{
    while (seen.calls < calls)
        OK(mx_progress(endpoint));
}

static const uint32_t lengths[] = {0, 8, 32, 33, 128, 129, 4000, 32768, 32769, 500000};

enum { LENGTHS = sizeof lengths / sizeof *lengths, LONGEST = 500000 };

/* The other side: sends message `at` when told `s`, or synchronously when told `y`, until told `e`. */
static void sends_as_told(struct other other)
{
    mx_endpoint_addr_t to;
    mx_endpoint_t from = join(other, &to);
    unsigned char *bytes = room(LONGEST), command;
    uint32_t length;
    fill(bytes, LONGEST, 1);
    for (;;) {
        mx_status_t status;
        get(other, &command, 1);
        if (command == 'e')
            break;
        get(other, &length, sizeof length);
        status = finish(from, command == 's' ? give(from, to, length + 10, bytes, length)
                                             : give_sync(from, to, length + 10, bytes, length));
        put(other, &status, sizeof status);
    }
    end(from);
    free(bytes);
}

static void have_sent(struct other other, char command, uint32_t length)
{
    tell(other, command);
    put(other, &length, sizeof length);
}

static mx_status_t sent(struct other other)
{
    mx_status_t status;
    move_until_readable(endpoint, other);
    get(other, &status, sizeof status);
    return status;
}

static void called_as_it_should(uint32_t length, int sync)
{
    EQUAL(1, seen.calls);
    EQUAL(length + 10, seen.match);
    EQUAL(length, seen.length);
    CHECK(same_endpoint(seen.source, peer));
    if (sync || length > 32768)
        CHECK(!seen.has_data); /* announced, also with nothing in it */
    else if (length <= 128)
        CHECK(seen.has_data); /* all of it is here, also if that is nothing */
    if (seen.has_data)
        is_filled(seen.bytes, length, 1);
}

/* CONTINUE with nothing posted: the message is kept, and a receive posted later gets it. */
static void with_continue(struct other other)
{
    unsigned char *bytes = room(1000000);
    endpoint = join(other, &peer);
    for (int at = 0; at < LENGTHS; at++)
        for (int sync = 0; sync < 2; sync++) {
            handle(0);
            have_sent(other, sync ? 'y' : 's', lengths[at]);
            progress_until_called(1);
            called_as_it_should(lengths[at], sync);
            await_unexpected(endpoint, lengths[at] + 10);
            memset(bytes, 0xee, 1000000);
            EQUAL(lengths[at], receive_well(endpoint, lengths[at] + 10, bytes, 1000000).xfer_length);
            is_filled(bytes, lengths[at], 1);
            EQUAL(1, seen.calls);
            ENDED(MX_STATUS_SUCCESS, sent(other));
        }
    tell(other, 'e');
    end(endpoint);
    free(bytes);
}

static void continued(void)
{
    pair(with_continue, sends_as_told);
}

/* CONTINUE with a receive posted inside: that receive gets it, as MPICH relies on. */
static void with_posts(struct other other)
{
    endpoint = join(other, &peer);
    seen.into = room(1000000);
    for (int at = 0; at < LENGTHS; at++)
        for (int way = 0; way < 4; way++) {
            mx_status_t status;
            uint32_t result;
            memset(seen.into, 0xee, 1000000);
            handle(way & 1 ? POST_EXACT : POST_ANY);
            have_sent(other, way & 2 ? 'y' : 's', lengths[at]);
            progress_until_called(1);
            called_as_it_should(lengths[at], way & 2);
            status = finish_well(endpoint, seen.posted);
            EQUAL(lengths[at], status.xfer_length);
            is_filled(seen.into, lengths[at], 1);
            OK(mx_iprobe(endpoint, 0, 0, &status, &result));
            EQUAL(0, result);
            ENDED(MX_STATUS_SUCCESS, sent(other));
        }
    tell(other, 'e');
    end(endpoint);
    free(seen.into);
}

static void posted_inside(void)
{
    pair(with_posts, sends_as_told);
}

/* FINISHED: it is gone; the sender of a large or synchronous one hears that nothing was taken. */
static void with_finished(struct other other)
{
    endpoint = join(other, &peer);
    for (int at = 0; at < LENGTHS; at++)
        for (int sync = 0; sync < 2; sync++) {
            mx_status_t status;
            uint32_t result;
            handle(FINISH);
            have_sent(other, sync ? 'y' : 's', lengths[at]);
            progress_until_called(1);
            called_as_it_should(lengths[at], sync);
            OK(mx_iprobe(endpoint, 0, 0, &status, &result));
            EQUAL(0, result);
            nothing_done(endpoint);
            status = sent(other);
            EQUAL(lengths[at], status.msg_length);
            if (lengths[at] > 0 && (sync || lengths[at] > 32768)) {
                ENDED(MX_STATUS_TRUNCATED, status);
                EQUAL(0, status.xfer_length);
            } else {
                ENDED(MX_STATUS_SUCCESS, status);
            }
        }
    tell(other, 'e');
    end(endpoint);
}

static void finished(void)
{
    pair(with_finished, sends_as_told);
}

static void of_self_sends(void)
{
    unsigned char *bytes = room(LONGEST);
    begin();
    endpoint = open_any();
    peer = own_address(endpoint);
    fill(bytes, LONGEST, 1);
    seen.into = room(1000000);
    for (int at = 0; at < LENGTHS; at++) {
        mx_request_t request;
        handle(FINISH);
        request = give(endpoint, peer, lengths[at] + 10, bytes, lengths[at]);
        progress_until_called(1);
        EQUAL(1, seen.calls);
        EQUAL(lengths[at], seen.length);
        if (lengths[at] <= 128)
            CHECK(seen.has_data);
        finish_well(endpoint, request); /* consumed: success, unlike a large one of another peer */
        handle(POST_EXACT);
        request = give(endpoint, peer, lengths[at] + 10, bytes, lengths[at]);
        progress_until_called(1);
        finish_well(endpoint, seen.posted);
        finish_well(endpoint, request);
        is_filled(seen.into, lengths[at], 1);
    }
    end(endpoint);
    free(seen.into);
    free(bytes);
}

/* With both shortcuts off an endpoint is to itself as any other one: what was to be taken and is not was truncated. */
static void of_self_sends_the_long_way(void)
{
    unsigned char *bytes = room(LONGEST);
    setenv("MX_DISABLE_SELF", "1", 1);
    setenv("MX_DISABLE_SHMEM", "1", 1);
    begin();
    endpoint = open_any();
    peer = own_address(endpoint);
    fill(bytes, LONGEST, 1);
    for (int at = 0; at < LENGTHS; at++)
        for (int sync = 0; sync < 2; sync++) {
            mx_request_t request;
            mx_status_t status;
            handle(FINISH);
            request = sync ? give_sync(endpoint, peer, lengths[at] + 10, bytes, lengths[at])
                           : give(endpoint, peer, lengths[at] + 10, bytes, lengths[at]);
            progress_until_called(1);
            called_as_it_should(lengths[at], sync);
            status = finish(endpoint, request);
            EQUAL(lengths[at], status.msg_length);
            if (lengths[at] > 0 && (sync || lengths[at] > 32768)) {
                ENDED(MX_STATUS_TRUNCATED, status);
                EQUAL(0, status.xfer_length);
            } else {
                ENDED(MX_STATUS_SUCCESS, status);
            }
        }
    end(endpoint);
    free(bytes);
}

/* Not called for what a posted receive takes, nor when it has been removed; one that replaces it is. */
static mx_unexp_handler_action_t second_handler(void *context, mx_endpoint_addr_t source, uint64_t match,
                                                uint32_t length, void *data)
{
    (void)source, (void)match, (void)length, (void)data;
    ++*(int *)context;
    return MX_RECV_FINISHED;
}

static void when_called(struct other other)
{
    mx_request_t request;
    int second = 0;
    endpoint = join(other, &peer);
    handle(FINISH);
    request = post(endpoint, 18, seen.bytes, 8);
    have_sent(other, 's', 8);
    finish_well(endpoint, request);
    ENDED(MX_STATUS_SUCCESS, sent(other));
    EQUAL(0, seen.calls);
    OK(mx_register_unexp_handler(endpoint, NULL, NULL));
    have_sent(other, 's', 8);
    await_unexpected(endpoint, 18);
    receive_well(endpoint, 18, seen.bytes, 8);
    sent(other);
    EQUAL(0, seen.calls);
    handle(FINISH);
    OK(mx_register_unexp_handler(endpoint, second_handler, &second));
    have_sent(other, 's', 8);
    while (second == 0)
        OK(mx_progress(endpoint));
    sent(other);
    EQUAL(1, second);
    EQUAL(0, seen.calls);
    tell(other, 'e');
    end(endpoint);
}

static void called_when(void)
{
    pair(when_called, sends_as_told);
}

/* Calls from inside: closing is refused, sending works. */
static void calls_inside(struct other other)
{
    endpoint = join(other, &peer);
    handle(CLOSE);
    have_sent(other, 's', 8);
    progress_until_called(1);
    EQUAL(MX_CLOSE_IN_HANDLER, seen.close);
    receive_well(endpoint, 18, seen.bytes, 8);
    sent(other);
    handle(SEND);
    have_sent(other, 's', 8);
    progress_until_called(1);
    EQUAL(1, seen.calls); /* it was not called again from within itself */
    sent(other);
    tell(other, 'a');
    hear_moving(endpoint, other, 'a'); /* the other one has got what the handler sent */
    end(endpoint);
}

static void is_answered_inside(struct other other)
{
    mx_endpoint_addr_t to;
    mx_endpoint_t from = join(other, &to);
    unsigned char bytes[8], command;
    uint32_t length;
    fill(bytes, 8, 1);
    for (int at = 0; at < 2; at++) {
        mx_status_t status;
        get(other, &command, 1);
        get(other, &length, sizeof length);
        status = finish(from, give(from, to, 18, bytes, 8));
        put(other, &status, sizeof status);
    }
    hear(other, 'a');
    receive_well(from, 19, NULL, 0);
    tell(other, 'a');
    end(from);
}

static void inside(void)
{
    pair(calls_inside, is_answered_inside);
}

/* Progression off: what is here already can be used, and nothing else arrives. */
static void without_progression(struct other other)
{
    mx_request_t early, late;
    mx_status_t status;
    uint32_t result;
    endpoint = join(other, &peer);
    early = post(endpoint, 18, seen.bytes, 8);
    late = post(endpoint, 14010, seen.bytes + 8, 14000);
    have_sent(other, 's', 8);
    sent(other);
    {
        mx_request_t peeked; /* it is over, and not consumed yet */
        OK(mx_peek(endpoint, MX_INFINITE, &peeked, &result));
        EQUAL(1, result);
    }
    OK(mx_disable_progression(endpoint));
    OK(mx_disable_progression(endpoint)); /* does not count */
    have_sent(other, 's', 14000);
    ENDED(MX_STATUS_SUCCESS, sent(other)); /* it is on its way, and stays there */
    OK(mx_test(endpoint, &early, &status, &result));
    EQUAL(1, result);
    for (int again = 0; again < 1000; again++)
        still_pending(endpoint, late);
    OK(mx_progress(endpoint));
    still_pending(endpoint, late);
    OK(mx_wait(endpoint, &late, 20, &status, &result));
    EQUAL(0, result);
    OK(mx_wait_any(endpoint, 20, 0, 0, &status, &result));
    EQUAL(0, result);
    OK(mx_cancel(endpoint, &late, &result)); /* nothing has come for it */
    EQUAL(1, result);
    OK(mx_reenable_progression(endpoint));
    EQUAL(14000, receive_well(endpoint, 14010, seen.bytes, 14000).xfer_length);
    tell(other, 'e');
    end(endpoint);
}

static void progression_off(void)
{
    pair(without_progression, sends_as_told);
}

/* mx_disable_progression waits for a handler that runs in another thread. */
static atomic_int in_handler, leave_handler, disabled;

static mx_unexp_handler_action_t lingers(void *context, mx_endpoint_addr_t source, uint64_t match, uint32_t length,
                                         void *data)
{
    (void)context, (void)source, (void)match, (void)length, (void)data;
    atomic_store(&in_handler, 1);
    while (!atomic_load(&leave_handler))
        sched_yield();
    CHECK(!atomic_load(&disabled));
    atomic_store(&in_handler, 0);
    return MX_RECV_FINISHED;
}

static void *disables(void *unused)
{
    (void)unused;
    OK(mx_disable_progression(endpoint));
    atomic_store(&disabled, 1);
    CHECK(!atomic_load(&in_handler));
    OK(mx_reenable_progression(endpoint));
    return NULL;
}

static void *progresses(void *unused)
{
    (void)unused;
    while (!atomic_load(&leave_handler))
        OK(mx_progress(endpoint));
    return NULL;
}

static void disabling_waits(void)
{
    pthread_t threads[2];
    mx_request_t request;
    begin();
    endpoint = open_any();
    OK(mx_register_unexp_handler(endpoint, lingers, NULL));
    CHECK(pthread_create(&threads[0], NULL, progresses, NULL) == 0);
    {
        mx_endpoint_t other = open_any();
        send_well(other, connect_to(other, place_of(endpoint)), 1, NULL, 0);
        while (!atomic_load(&in_handler))
            sched_yield();
        CHECK(pthread_create(&threads[1], NULL, disables, NULL) == 0);
        for (int again = 0; again < 20000; again++) { /* it does not come back while the handler runs */
            CHECK(!atomic_load(&disabled));
            sched_yield();
        }
        /* Other calls work meanwhile; the lock is not held. */
        request = post(endpoint, 2, NULL, 0);
        still_pending(endpoint, request);
        atomic_store(&leave_handler, 1);
        CHECK(pthread_join(threads[1], NULL) == 0);
        CHECK(pthread_join(threads[0], NULL) == 0);
        OK(mx_close_endpoint(other));
    }
    end(endpoint);
}

MAIN(TEST(continued), TEST(posted_inside), TEST(finished), TEST(of_self_sends), TEST(of_self_sends_the_long_way), TEST(called_when), TEST(inside),
     TEST(progression_off), TEST(disabling_waits))
