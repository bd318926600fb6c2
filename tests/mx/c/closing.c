/*
 * Sends that were over, to a receiver that makes no call for a while: they arrive although the sender closes its endpoint or
 * exits meanwhile. The sender waits for that, for a bounded time, and no longer than the receiver lives.
 */
#include "mxtest.h"

enum { SENDS = 400, BYTES = 8000, QUIET_MS = 1500 };

/* Connects, and sends more than there is room for. All sends are over, and the receiver has made no call meanwhile. */
static mx_endpoint_t sends_all(struct other other)
{
    static unsigned char bytes[BYTES];
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    for (unsigned at = 0; at < SENDS; at++) {
        fill(bytes, BYTES, at);
        send_well(endpoint, peer, at, bytes, BYTES);
    }
    tell(other, 's');
    return endpoint;
}

static void closes(struct other other)
{
    OK(mx_close_endpoint(sends_all(other)));
    OK(mx_finalize());
}

static void finalizes(struct other other)
{
    sends_all(other);
    OK(mx_finalize());
}

static void exits(struct other other)
{
    sends_all(other);
    exit(0);
}

/* True if the sender ends within a time that is far longer than a wait that ignores the receiver would take. */
static int ends_early(struct other sender)
{
    struct pollfd ended = {sender.fd, POLLIN, 0};
    return poll(&ended, 1, QUIET_MS) != 0;
}

static mx_status_t receive_soon(mx_endpoint_t endpoint, unsigned at, unsigned char *bytes, uint32_t *result)
{
    mx_status_t status;
    mx_request_t request = post(endpoint, at, bytes, BYTES);
    OK(mx_wait(endpoint, &request, NOTICE_MS, &status, result));
    return status;
}

static void receives_all(mx_endpoint_t endpoint)
{
    static unsigned char bytes[BYTES];
    for (unsigned at = 0; at < SENDS; at++) {
        uint32_t result;
        mx_status_t status = receive_soon(endpoint, at, bytes, &result);
        if (!result) {
            fprintf(stderr, "%u of %u messages arrived\n", at, (unsigned)SENDS);
            exit(1);
        }
        ENDED(MX_STATUS_SUCCESS, status);
        EQUAL(BYTES, status.xfer_length);
        is_filled(bytes, BYTES, at);
    }
}

static void all_arrive(void (*sender_role)(struct other))
{
    struct other sender = start(sender_role);
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(sender, &peer);
    hear(sender, 's');
    ends_early(sender);
    receives_all(endpoint);
    ends_well(sender);
    end(endpoint);
}

static void at_close(void)
{
    all_arrive(closes);
}

static void at_finalize(void)
{
    all_arrive(finalizes);
}

static void at_exit(void)
{
    all_arrive(exits);
}

/* A receiver that is gone is not waited for: it is killed, or it closes its endpoint, while the sender waits. */
static void receives_nothing(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    hear(other, 'c');
    end(endpoint);
}

static void ends_with(void (*way)(struct other receiver))
{
    struct other receiver = start(receives_nothing);
    uint64_t begun;
    static unsigned char bytes[BYTES];
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(receiver, &peer);
    for (unsigned at = 0; at < SENDS; at++)
        send_well(endpoint, peer, at, bytes, BYTES);
    way(receiver);
    begun = now_ms();
    end(endpoint);
    CHECK(now_ms() - begun < NOTICE_MS);
}

static void closes_its_own(struct other receiver)
{
    tell(receiver, 'c');
    ends_well(receiver);
}

static void receiver_was_killed(void)
{
    ends_with(kill_it);
}

static void receiver_has_closed(void)
{
    ends_with(closes_its_own);
}

static void nothing_outstanding(void)
{
    uint64_t begun = now_ms();
    begin();
    end(open_any());
    CHECK(now_ms() - begun < NOTICE_MS);
}

/* Two endpoints of one thread: the one that closes has the other one take its messages. */
static void to_another_endpoint_of_the_process(void)
{
    static unsigned char bytes[BYTES];
    mx_endpoint_t from, to;
    mx_endpoint_addr_t peer;
    uint64_t begun;
    begin();
    from = open_any();
    to = open_any();
    peer = connect_to(from, place_of(to));
    for (unsigned at = 0; at < SENDS; at++) {
        fill(bytes, BYTES, at);
        send_well(from, peer, at, bytes, BYTES);
    }
    begun = now_ms();
    OK(mx_close_endpoint(from));
    CHECK(now_ms() - begun < NOTICE_MS);
    receives_all(to);
    end(to);
}

/* Short lives, several at once: each sends some messages, by the daemon first, and exits while they are on their way. */
enum { SENDERS = 120, AT_ONCE = 4, OF_EACH = 12 };

static void lives_shortly(struct place place, unsigned number)
{
    static unsigned char bytes[BYTES];
    mx_endpoint_t endpoint;
    mx_endpoint_addr_t peer;
    begin();
    endpoint = open_any();
    peer = connect_to(endpoint, place);
    for (unsigned at = 0; at < OF_EACH; at++) {
        fill(bytes, BYTES, number + at);
        send_well(endpoint, peer, number, bytes, BYTES);
    }
    exit(0);
}

static void forks_senders(struct other receiver)
{
    struct place place;
    get(receiver, &place, sizeof place);
    for (unsigned number = 0; number < SENDERS; number += AT_ONCE) {
        for (unsigned one = 0; one < AT_ONCE; one++) {
            pid_t child = fork();
            CHECK(child >= 0);
            if (child == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                lives_shortly(place, number + one);
            }
        }
        for (unsigned one = 0; one < AT_ONCE; one++) {
            int status;
            CHECK(wait(&status) > 0);
            EQUAL(0, status);
        }
    }
}

static void many_that_exit(void)
{
    static unsigned char bytes[BYTES];
    struct other senders = start(forks_senders);
    mx_endpoint_t endpoint;
    struct place place;
    begin();
    endpoint = open_any();
    place = place_of(endpoint);
    put(senders, &place, sizeof place);
    for (unsigned number = 0; number < SENDERS; number++)
        for (unsigned at = 0; at < OF_EACH; at++) {
            receive_well(endpoint, number, bytes, BYTES);
            is_filled(bytes, BYTES, number + at);
        }
    ends_well(senders);
    end(endpoint);
}

/* With ISTHMUS_LINGER_S=1: the sender gives up, and says so. What the receiver gets then are the first messages. */
static void given_up(void)
{
    static unsigned char bytes[BYTES];
    struct other sender = start(closes);
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(sender, &peer);
    unsigned at = 0;
    uint32_t result;
    hear(sender, 's');
    ends_well(sender);
    for (;; at++) {
        mx_status_t status = receive_soon(endpoint, at, bytes, &result);
        if (!result)
            break; /* no message stands for it, so the receive waits on */
        if (status.code != MX_STATUS_SUCCESS) {
            CHECK(status.code == MX_STATUS_ABORTED || status.code == MX_STATUS_ENDPOINT_UNREACHABLE);
            break; /* it had begun to arrive */
        }
        is_filled(bytes, BYTES, at);
    }
    CHECK(at > 0 && at < SENDS);
    end(endpoint);
}

/* Likewise for a program that exits. */
static void given_up_at_exit(void)
{
    struct other sender = start(exits);
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(sender, &peer);
    hear(sender, 's');
    ends_well(sender);
    end(endpoint);
}

/* Likewise for a signal handler that exits: it may interrupt any code of the library. */
static void leaves(int signal)
{
    (void)signal;
    exit(0);
}

static void exits_in_a_handler(struct other other)
{
    static unsigned char bytes[BYTES];
    struct itimerval soon = {{0, 0}, {0, 20000}};
    mx_endpoint_t endpoint = sends_all(other);
    mx_request_t never = post(endpoint, 1, bytes, BYTES);
    mx_status_t status;
    uint32_t result;
    CHECK(signal(SIGALRM, leaves) != SIG_ERR);
    CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    for (;;)
        OK(mx_test(endpoint, &never, &status, &result));
}

static void given_up_in_a_handler(void)
{
    for (int round = 0; round < 8; round++) {
        struct other sender = start(exits_in_a_handler);
        mx_endpoint_addr_t peer;
        mx_endpoint_t endpoint = join(sender, &peer);
        hear(sender, 's');
        ends_well(sender);
        end(endpoint);
    }
}

MAIN(TEST(at_close), TEST(at_finalize), TEST(at_exit), TEST(receiver_was_killed), TEST(receiver_has_closed),
     TEST(many_that_exit), TEST(nothing_outstanding), TEST(to_another_endpoint_of_the_process), TEST(given_up), TEST(given_up_at_exit),
     TEST(given_up_in_a_handler))
