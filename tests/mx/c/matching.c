/* Which receive gets which message, and which completion a call shows. */
#include "mxtest.h"

/* Two endpoints of this process, the first connected to the second. */
static mx_endpoint_t sender, receiver;
static mx_endpoint_addr_t to;

static void both(mx_param_t *params, uint32_t count)
{
    begin();
    sender = open_any();
    OK(mx_open_endpoint(MX_ANY_NIC, MX_ANY_ENDPOINT, KEY, params, count, &receiver));
    to = connect_to(sender, place_of(receiver));
}

static void end_both(void)
{
    OK(mx_close_endpoint(sender));
    end(receiver);
}

/* Sends a word that is not to be waited for. */
static void word(uint64_t match, uint64_t value)
{
    static uint64_t kept[1 << 17];
    static uint32_t next;
    uint64_t *place = &kept[next++ % (1 << 17)];
    *place = value;
    send_well(sender, to, match, place, sizeof *place);
}

static uint64_t taken(mx_request_t request, uint64_t *bytes)
{
    EQUAL(8, finish_well(receiver, request).xfer_length);
    return *bytes;
}

static void posting_order(void)
{
    uint64_t got[4] = {0, 0, 0, 0};
    mx_request_t requests[4];
    both(NULL, 0);
    requests[0] = post_masked(receiver, 0x10, 0xf0, &got[0], 8); /* anything of 0x1_ */
    requests[1] = post(receiver, 0x12, &got[1], 8);
    requests[2] = post_masked(receiver, 0, 0, &got[2], 8); /* anything */
    requests[3] = post(receiver, 0x12, &got[3], 8);
    word(0x12, 1); /* to the first, though the second is exact */
    word(0x12, 2);
    word(0x12, 3); /* to the wildcard, which is older than the other exact one */
    word(0x12, 4);
    for (uint64_t at = 0; at < 4; at++)
        EQUAL(at + 1, taken(requests[at], &got[at]));
    end_both();
}

static void unexpected_order(void)
{
    uint64_t got;
    mx_status_t status;
    uint32_t result;
    both(NULL, 0);
    word(0x11, 1);
    word(0x22, 2);
    word(0x12, 3);
    word(0x22, 4);
    word(MARK, 0);
    await_unexpected(receiver, MARK);
    OK(mx_iprobe(receiver, 0x02, 0x0f, &status, &result));
    EQUAL(1, result);
    EQUAL(0x22, status.match_info); /* the oldest of those that fit */
    EQUAL(8, status.msg_length);
    EQUAL(8, status.xfer_length);
    CHECK(same_endpoint(own_address(sender), status.source));
    EQUAL(2, taken(post_masked(receiver, 0x02, 0x0f, &got, 8), &got));
    EQUAL(3, taken(post(receiver, 0x12, &got, 8), &got));
    EQUAL(1, taken(post_masked(receiver, 0, 0, &got, 8), &got));
    EQUAL(4, taken(post_masked(receiver, 0, 0, &got, 8), &got));
    OK(mx_iprobe(receiver, 0x02, 0x0f, &status, &result));
    EQUAL(0, result);
    end_both();
}

/* Messages of one sender are matched in the order they were sent in, whatever class each is of. */
static const uint32_t mixed[] = {100000, 8, 5000, 0, 1000000, 32768, 128, 32769, 1, 0, 300000, 64};

enum { MIXED = sizeof mixed / sizeof *mixed };

static void sends_mixed(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes[MIXED];
    mx_request_t requests[MIXED];
    for (int round = 0; round < 2; round++) {
        hear(other, 'g');
        for (int at = 0; at < MIXED; at++) {
            bytes[at] = room(mixed[at]);
            fill(bytes[at], mixed[at], (unsigned)at);
            requests[at] = at % 3 ? give(endpoint, peer, 1, bytes[at], mixed[at])
                                  : give_sync(endpoint, peer, 1, bytes[at], mixed[at]);
        }
        if (round == 1)
            mark_end(endpoint, peer);
        for (int at = 0; at < MIXED; at++) {
            EQUAL(mixed[at], finish_well(endpoint, requests[at]).xfer_length);
            free(bytes[at]);
        }
    }
    end(endpoint);
}

static void receives_mixed(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes[MIXED];
    mx_request_t requests[MIXED];
    for (int round = 0; round < 2; round++) {
        if (round == 1) { /* all of them unexpected */
            tell(other, 'g');
            await_unexpected(endpoint, MARK);
        }
        for (int at = 0; at < MIXED; at++) {
            bytes[at] = room(1000000);
            requests[at] = post(endpoint, 1, bytes[at], 1000000);
        }
        if (round == 0)
            tell(other, 'g');
        for (int at = 0; at < MIXED; at++) {
            EQUAL(mixed[at], finish_well(endpoint, requests[at]).xfer_length);
            is_filled(bytes[at], mixed[at], (unsigned)at);
            free(bytes[at]);
        }
    }
    end(endpoint);
}

static void order_across_classes(void)
{
    pair(receives_mixed, sends_mixed);
}

enum { MANY = 100000 };

static void sends_many(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    for (uint64_t match = 1; match <= MANY; match++)
        send_well(endpoint, peer, match, &match, sizeof match);
    send_well(endpoint, peer, UINT64_MAX, NULL, 0);
    await_end(endpoint);
    end(endpoint);
}

static void takes_many(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    uint64_t got = 0, last = 0;
    receive_well(endpoint, UINT64_MAX, NULL, 0); /* all others are here, and none was received */
    for (uint64_t match = MANY; match > MANY / 2; match--) { /* newest first, by their exact match */
        EQUAL(match, receive_well(endpoint, match, &got, sizeof got).match_info);
        EQUAL(match, got);
    }
    for (uint64_t rest = MANY / 2; rest > 0; rest--) { /* and anything: oldest first */
        mx_status_t status = finish_well(endpoint, post_masked(endpoint, 0, 0, &got, sizeof got));
        EQUAL(++last, status.match_info);
        EQUAL(last, got);
    }
    mark_end(endpoint, peer);
    end(endpoint);
}

static void hundred_thousand_unexpected(void)
{
    pair(takes_many, sends_many);
}

/* A mask must cover all bits of what it is compared with. */
static void bad_masks(void)
{
    mx_status_t status;
    mx_request_t request = NULL;
    uint32_t result;
    both(NULL, 0);
    GIVES(MX_BAD_MATCH_MASK, mx_irecv(receiver, NULL, 0, 3, 2, NULL, &request));
    GIVES(MX_BAD_MATCH_MASK, mx_test_any(receiver, 3, 2, &status, &result));
    GIVES(MX_BAD_MATCH_MASK, mx_wait_any(receiver, 1, 3, 2, &status, &result));
    GIVES(MX_BAD_MATCH_MASK, mx_iprobe(receiver, UINT64_C(1) << 63, ~(UINT64_C(1) << 63), &status, &result));
    GIVES(MX_BAD_MATCH_MASK, mx_probe(receiver, 1, 3, 2, &status, &result));
    end_both();
}

/* test_any and wait_any: oldest completion first, of sends and receives alike. */
static void any_of_the_done(void)
{
    static uint64_t got[4];
    mx_request_t peeked, again;
    mx_status_t status;
    uint32_t result;
    both(NULL, 0);
    for (uint64_t at = 0; at < 3; at++)
        post(receiver, 0x100 + at, &got[at], 8);
    word(0x102, 2); /* completion order, not posting order */
    word(0x100, 0);
    word(0x101, 1);
    word(MARK, 0);
    await_unexpected(receiver, MARK);
    OK(mx_ipeek(receiver, &peeked, &result));
    EQUAL(1, result);
    OK(mx_peek(receiver, MX_INFINITE, &again, &result));
    EQUAL(1, result);
    CHECK(peeked == again);
    OK(mx_test_any(receiver, 0x200, 0xf00, &status, &result));
    EQUAL(0, result);
    OK(mx_test_any(receiver, 0x101, MX_MATCH_MASK_NONE, &status, &result));
    EQUAL(1, result);
    EQUAL(0x101, status.match_info);
    CHECK(status.context == &got[1]);
    OK(mx_wait_any(receiver, MX_INFINITE, 0x100, 0xf00, &status, &result));
    EQUAL(1, result);
    EQUAL(0x102, status.match_info);
    /* What was peeked at is gone now; the next one is shown. */
    OK(mx_ipeek(receiver, &peeked, &result));
    EQUAL(1, result);
    OK(mx_test(receiver, &peeked, &status, &result));
    EQUAL(1, result);
    EQUAL(0x100, status.match_info);
    CHECK(peeked == NULL);
    nothing_done(receiver);
    /* Sends too, under the match information they were given. */
    post(receiver, 5, &got[0], 8);
    again = give(receiver, own_address(receiver), 6, &got[3], 8);
    send_well(sender, to, 5, &got[2], 8);
    post(receiver, 6, &got[1], 8);
    for (int ends = 0; ends < 3; ends++) {
        OK(mx_wait_any(receiver, MX_INFINITE, 4, ~UINT64_C(3), &status, &result));
        EQUAL(1, result);
        ENDED(MX_STATUS_SUCCESS, status);
    }
    nothing_done(receiver);
    end_both();
}

/* Open MPI's MTL calls it fatal if mx_ipeek says there is one, and mx_test that it is not over. */
static void sends_for_peeks(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(100000);
    for (int at = 0; at < 300; at++)
        finish_well(endpoint, give(endpoint, peer, (uint64_t)at, bytes, at % 3 ? 100u : 100000u));
    end(endpoint);
    free(bytes);
}

static void peeks(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(300 * 100000);
    mx_request_t request;
    mx_status_t status;
    uint32_t result;
    for (int at = 0; at < 300; at++)
        post(endpoint, (uint64_t)at, bytes + at * 100000, 100000);
    for (int at = 0; at < 300;) {
        OK(mx_ipeek(endpoint, &request, &result));
        if (result == 0)
            continue;
        OK(mx_test(endpoint, &request, &status, &result));
        EQUAL(1, result);
        ENDED(MX_STATUS_SUCCESS, status);
        at++;
    }
    nothing_done(endpoint);
    end(endpoint);
    free(bytes);
}

static void peeked_is_over(void)
{
    pair(peeks, sends_for_peeks);
}

/* Cancelling is exact. */
static void sends_for_cancels(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(100000);
    mx_request_t large;
    hear(other, 'a');
    send_well(endpoint, peer, 1, bytes, 8);
    hear(other, 'b');
    send_well(endpoint, peer, 2, bytes, 8);
    mark_end(endpoint, peer);
    hear(other, 'c');
    large = give(endpoint, peer, 3, bytes, 100000);
    mark_end(endpoint, peer);
    finish_well(endpoint, large);
    end(endpoint);
    free(bytes);
}

static void cancels(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *first = room(8), *second = room(8), *large = room(100000);
    mx_request_t request, sending;
    uint32_t result = 2;

    /* Not matched: it is taken back, nothing of it shows, and the message goes to the next. */
    request = post(endpoint, 1, first, 8);
    OK(mx_cancel(endpoint, &request, &result));
    EQUAL(1, result);
    CHECK(request == NULL);
    nothing_done(endpoint);
    tell(other, 'a');
    receive_well(endpoint, 1, second, 8);
    is_all(first, 8, 0xee);
    nothing_done(endpoint);
    /* Matched: it stays and completes. */
    request = post(endpoint, 2, first, 8);
    tell(other, 'b');
    await_end(endpoint);
    result = 2;
    OK(mx_cancel(endpoint, &request, &result));
    EQUAL(0, result);
    CHECK(request != NULL);
    finish_well(endpoint, request);
    /* Matched, and not over yet: just as well. */
    request = post(endpoint, 3, large, 100000);
    tell(other, 'c');
    await_end(endpoint);
    OK(mx_cancel(endpoint, &request, &result));
    EQUAL(0, result);
    EQUAL(100000, finish_well(endpoint, request).xfer_length);
    /* Sends cannot be cancelled. */
    sending = give_sync(endpoint, own_address(endpoint), 4, first, 8);
    GIVES(MX_BAD_REQUEST, mx_cancel(endpoint, &sending, &result));
    receive_well(endpoint, 4, second, 8);
    finish_well(endpoint, sending);
    end(endpoint);
    free(first), free(second), free(large);
}

static void cancelling(void)
{
    pair(cancels, sends_for_cancels);
}

/* One of many posted receives is cancelled; the others keep their order. */
static void cancelled_among_others(void)
{
    uint64_t got[6] = {0, 0, 0, 0, 0, 0};
    mx_request_t requests[6];
    uint32_t result;
    both(NULL, 0);
    for (int at = 0; at < 6; at++)
        requests[at] = at % 2 ? post(receiver, 1, &got[at], 8) : post_masked(receiver, 0, 0, &got[at], 8);
    for (int at = 0; at < 6; at += 3) {
        OK(mx_cancel(receiver, &requests[at], &result));
        EQUAL(1, result);
    }
    for (uint64_t value = 1; value <= 4; value++)
        word(1, value);
    EQUAL(1, taken(requests[1], &got[1]));
    EQUAL(2, taken(requests[2], &got[2]));
    EQUAL(3, taken(requests[4], &got[4]));
    EQUAL(4, taken(requests[5], &got[5]));
    end_both();
}

/* Context ids: receives that say less than a whole context are refused; searches that do look in all of them. */
static void contexts(uint8_t bits, uint8_t shift)
{
    uint64_t field = ((UINT64_C(1) << bits) - 1) << shift, one = UINT64_C(1) << shift, got[4];
    uint64_t outside = shift >= 8 ? 0x40 : UINT64_C(0x40) << 50; /* a bit that is no context's */
    mx_request_t request = NULL, requests[4];
    mx_status_t status;
    mx_param_t param;
    uint32_t result;

    memset(&param, 0, sizeof param);
    param.key = MX_PARAM_CONTEXT_ID;
    param.val.context_id.bits = bits;
    param.val.context_id.shift = shift;
    both(&param, 1);
    GIVES(MX_BAD_MATCHING_FOR_CONTEXT_ID_MASK, mx_irecv(receiver, NULL, 0, 0, 0, NULL, &request));
    GIVES(MX_BAD_MATCHING_FOR_CONTEXT_ID_MASK, mx_irecv(receiver, NULL, 0, 0, ~one, NULL, &request));
    /* Two contexts, the same bits otherwise. */
    requests[0] = post_masked(receiver, one, field, &got[0], 8);
    requests[1] = post_masked(receiver, 0, field, &got[1], 8);
    word(outside, 1);
    word(one | outside, 2);
    EQUAL(2, taken(requests[0], &got[0]));
    EQUAL(1, taken(requests[1], &got[1]));
    /* Unexpected ones of the two, oldest first across contexts. */
    word(one | outside, 3);
    word(outside, 4);
    word(field | outside, 5);
    word(MARK & ~field, 0);
    await_unexpected(receiver, MARK & ~field);
    OK(mx_iprobe(receiver, outside, ~field, &status, &result));
    EQUAL(1, result);
    EQUAL(one | outside, status.match_info);
    OK(mx_iprobe(receiver, 0, 0, &status, &result));
    EQUAL(1, result);
    EQUAL(one | outside, status.match_info);
    OK(mx_iprobe(receiver, 0, field, &status, &result));
    EQUAL(1, result);
    EQUAL(outside, status.match_info);
    EQUAL(4, taken(post_masked(receiver, 0, field, &got[0], 8), &got[0]));
    EQUAL(3, taken(post_masked(receiver, one, field, &got[0], 8), &got[0]));
    EQUAL(5, taken(post_masked(receiver, field, field, &got[0], 8), &got[0]));
    EQUAL(0, taken(post(receiver, MARK & ~field, &got[0], 8), &got[0]));
    /* Completions of several contexts: a mask without the field takes any, one with part of it any that fits. */
    requests[0] = post_masked(receiver, field, field, &got[0], 8);
    requests[1] = post_masked(receiver, 0, field, &got[1], 8);
    word(field, 6);
    word(0, 7);
    word(MARK & ~field, 0);
    await_unexpected(receiver, MARK & ~field);
    OK(mx_test_any(receiver, one, one, &status, &result));
    EQUAL(1, result);
    EQUAL(field, status.match_info);
    OK(mx_wait_any(receiver, MX_INFINITE, 0, 0, &status, &result));
    EQUAL(1, result);
    EQUAL(0, status.match_info);
    nothing_done(receiver);
    end_both();
}

static void context_ids(void)
{
    contexts(1, 63); /* as MPICH has it */
    contexts(16, 48);
    contexts(16, 16);
    contexts(3, 0);
}

/* OMX_CTXIDS sets what an endpoint has without a parameter. */
static void context_ids_by_variable(void)
{
    mx_endpoint_t endpoint;
    mx_request_t request = NULL;
    setenv("OMX_CTXIDS", "4,60", 1);
    begin();
    endpoint = open_any();
    GIVES(MX_BAD_MATCHING_FOR_CONTEXT_ID_MASK, mx_irecv(endpoint, NULL, 0, 0, 0, NULL, &request));
    request = post_masked(endpoint, 0, UINT64_C(0xf) << 60, NULL, 0);
    send_well(endpoint, own_address(endpoint), 1, NULL, 0); /* over at once: it is waited for */
    finish_well(endpoint, request);
    end(endpoint);
}

MAIN(TEST(posting_order), TEST(unexpected_order), TEST(order_across_classes), TEST(hundred_thousand_unexpected),
     TEST(bad_masks), TEST(any_of_the_done), TEST(peeked_is_over), TEST(cancelling), TEST(cancelled_among_others),
     TEST(context_ids), TEST(context_ids_by_variable))
