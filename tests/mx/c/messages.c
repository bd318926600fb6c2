/* What happens to one message: lengths, truncation, segments, statuses, when a send is over. */
#include "mxtest.h"
#include <sys/resource.h>

/* Longest of tiny, small, medium; shortest and a longer one of large. */
static const uint32_t lengths[] = {0, 1, 32, 33, 128, 129, 4096, 4097, 32768, 32769, 1000000};

enum { LENGTHS = sizeof lengths / sizeof *lengths, LONGEST = 1000000, EAGER_MAX = 32768 };

/* A message of each class into room for ten bytes, for as many as it has, and for none. */
static void sends_too_much(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(LONGEST);
    fill(bytes, LONGEST, 1);
    for (int at = 0; at < LENGTHS; at++)
        for (uint32_t space = 0; space <= 10; space += 10)
            for (int late = 0; late < 2; late++) {
                int cut = space < lengths[at];
                mx_status_t status;
                hear(other, 'p');
                status = finish(endpoint, give(endpoint, peer, 1, bytes, lengths[at]));
                EQUAL(lengths[at], status.msg_length);
                if (lengths[at] > EAGER_MAX) { /* it hears what was taken */
                    ENDED(MX_STATUS_TRUNCATED, status);
                    EQUAL(space, status.xfer_length);
                } else { /* it was over before */
                    ENDED(MX_STATUS_SUCCESS, status);
                    EQUAL(lengths[at], status.xfer_length);
                }
                hear(other, 'p');
                status = finish(endpoint, give_sync(endpoint, peer, 1, bytes, lengths[at]));
                ENDED(cut ? MX_STATUS_TRUNCATED : MX_STATUS_SUCCESS, status);
                EQUAL(cut ? space : lengths[at], status.xfer_length);
                EQUAL(lengths[at], status.msg_length);
            }
    end(endpoint);
    free(bytes);
}

static void receives_a_part(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char bytes[100];
    for (int at = 0; at < LENGTHS; at++)
        for (uint32_t space = 0; space <= 10; space += 10)
            for (int late = 0; late < 2; late++)
                for (int sync = 0; sync < 2; sync++) {
                    uint32_t took = space < lengths[at] ? space : lengths[at];
                    mx_request_t request = NULL;
                    mx_status_t status;
                    memset(bytes, 0xee, sizeof bytes);
                    if (!late)
                        request = post(endpoint, 1, bytes, space);
                    tell(other, 'p');
                    if (late) {
                        EQUAL(lengths[at], await_unexpected(endpoint, 1).msg_length);
                        request = post(endpoint, 1, bytes, space);
                    }
                    status = finish(endpoint, request);
                    ENDED(took < lengths[at] ? MX_STATUS_TRUNCATED : MX_STATUS_SUCCESS, status);
                    EQUAL(lengths[at], status.msg_length);
                    EQUAL(took, status.xfer_length);
                    is_filled(bytes, took, 1);
                    is_all(bytes + took, sizeof bytes - took, 0xee);
                }
    end(endpoint);
}

static void truncation(void)
{
    pair(receives_a_part, sends_too_much);
}

/* Of a receive that is cut in the middle of a segment of several. */
static void sends_five_thousand(struct other other)
{
    static const uint32_t sizes[] = {100, 5000, 100000};
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(LONGEST);
    fill(bytes, LONGEST, 2);
    for (int at = 0; at < 3; at++)
        finish(endpoint, give(endpoint, peer, 1, bytes, sizes[at]));
    await_end(endpoint);
    end(endpoint);
    free(bytes);
}

static void receives_in_pieces_too_small(struct other other)
{
    static const uint32_t sizes[] = {100, 5000, 100000};
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    for (int at = 0; at < 3; at++) {
        unsigned char one[40], two[40];
        mx_segment_t segments[3] = {{one, 30}, {NULL, 0}, {two, 20}};
        mx_request_t request;
        mx_status_t status;
        memset(one, 0xee, sizeof one);
        memset(two, 0xee, sizeof two);
        OK(mx_irecv(endpoint, segments, 3, 1, MX_MATCH_MASK_NONE, NULL, &request));
        memset(segments, 0xff, sizeof segments); /* the list was ours only during the call */
        status = finish(endpoint, request);
        ENDED(MX_STATUS_TRUNCATED, status);
        EQUAL(sizes[at], status.msg_length);
        EQUAL(50, status.xfer_length);
        is_filled(one, 30, 2);
        is_all(one + 30, 10, 0xee);
        for (int byte = 0; byte < 20; byte++)
            EQUAL((unsigned char)((byte + 30) * 31 + 2), two[byte]);
        is_all(two + 20, 20, 0xee);
    }
    mark_end(endpoint, peer);
    end(endpoint);
}

static void truncation_in_segments(void)
{
    pair(receives_in_pieces_too_small, sends_five_thousand);
}

/* Statuses of both sides, for sends of each class. */
static void sends_each_length(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(LONGEST);
    fill(bytes, LONGEST, 3);
    for (int at = 0; at < LENGTHS; at++) {
        uint64_t match = 0xfedcba9876543210 + (uint64_t)at;
        mx_status_t status = finish_well(endpoint, give(endpoint, peer, match, bytes, lengths[at]));
        CHECK(same_endpoint(peer, status.source));
        EQUAL(match, status.match_info);
        EQUAL(lengths[at], status.msg_length);
        EQUAL(lengths[at], status.xfer_length);
        CHECK(status.context == bytes);
    }
    await_end(endpoint);
    end(endpoint);
    free(bytes);
}

static void receives_each_length(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(LONGEST);
    for (int at = 0; at < LENGTHS; at++) {
        uint64_t match = 0xfedcba9876543210 + (uint64_t)at;
        mx_request_t request = post(endpoint, match, bytes, LONGEST);
        mx_status_t status;
        void *context;
        OK(mx_context(&request, &context));
        CHECK(context == bytes);
        status = finish_well(endpoint, request);
        CHECK(same_endpoint(peer, status.source));
        EQUAL(match, status.match_info);
        EQUAL(lengths[at], status.msg_length);
        EQUAL(lengths[at], status.xfer_length);
        CHECK(status.context == bytes);
        is_filled(bytes, lengths[at], 3);
        is_all(bytes + lengths[at], LONGEST + 1 - lengths[at], 0xee);
        memset(bytes, 0xee, LONGEST);
    }
    mark_end(endpoint, peer);
    end(endpoint);
    free(bytes);
}

static void statuses(void)
{
    pair(receives_each_length, sends_each_length);
}

/* Many messages without a pause, most of them short: what follows a message in its channel is taken with it, whatever it is. */
enum { BURST = 900, AT_ONCE = 48, BURST_LONGEST = 40000 };

static uint32_t burst_length(int message)
{
    if (message % 97 == 96)
        return BURST_LONGEST;
    if (message % 50 == 49)
        return 5000;
    return message % 13 == 5 ? 0 : message % 13 == 7 ? 128 : 8 + (uint32_t)message % 5;
}

static void sends_a_burst(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    static unsigned char *bytes[BURST];
    static mx_request_t requests[BURST];
    for (int at = 0; at < BURST; at++) {
        bytes[at] = room(burst_length(at));
        fill(bytes[at], burst_length(at), (unsigned)at);
    }
    hear(other, 'g');
    for (int at = 0; at < BURST; at++)
        requests[at] = give(endpoint, peer, 7, bytes[at], burst_length(at));
    for (int at = 0; at < BURST; at++) {
        finish_well(endpoint, requests[at]);
        free(bytes[at]);
    }
    await_end(endpoint);
    end(endpoint);
}

/* Each third receive has two segments. */
static mx_request_t post_for_burst(mx_endpoint_t endpoint, int message, unsigned char *bytes)
{
    mx_segment_t segments[2] = {{bytes, 3}, {bytes + 3, BURST_LONGEST - 3}};
    mx_request_t request;
    if (message % 3 != 2)
        return post(endpoint, 7, bytes, BURST_LONGEST);
    OK(mx_irecv(endpoint, segments, 2, 7, MX_MATCH_MASK_NONE, bytes, &request));
    return request;
}

static void receives_a_burst(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes[AT_ONCE];
    mx_request_t requests[AT_ONCE];
    for (int at = 0; at < AT_ONCE; at++) {
        bytes[at] = room(BURST_LONGEST);
        requests[at] = post_for_burst(endpoint, at, bytes[at]);
    }
    tell(other, 'g');
    for (int at = 0; at < BURST; at++) {
        int place = at % AT_ONCE;
        uint32_t length = burst_length(at);
        mx_status_t status = finish_well(endpoint, requests[place]);
        CHECK(same_endpoint(peer, status.source));
        EQUAL(length, status.msg_length);
        EQUAL(length, status.xfer_length);
        CHECK(status.context == bytes[place]);
        is_filled(bytes[place], length, (unsigned)at);
        is_all(bytes[place] + length, BURST_LONGEST + 1 - length, 0xee);
        memset(bytes[place], 0xee, BURST_LONGEST);
        if (at + AT_ONCE < BURST)
            requests[place] = post_for_burst(endpoint, at + AT_ONCE, bytes[place]);
    }
    mark_end(endpoint, peer);
    end(endpoint);
    for (int at = 0; at < AT_ONCE; at++)
        free(bytes[at]);
}

static void bursts(void)
{
    pair(receives_a_burst, sends_a_burst);
}

/* Segments: as many as there may be, of unequal lengths and none, cut otherwise at the other end. */
static uint32_t cut(mx_segment_t *segments, uint32_t count, unsigned char *bytes, uint32_t length, uint32_t step)
{
    uint32_t done = 0;
    for (uint32_t at = 0; at < count; at++) {
        uint32_t share = at % 7 == 3 ? 0 : length / count + at % step;
        if (share > length - done || at + 1 == count)
            share = length - done;
        segments[at].segment_ptr = at % 2 == 1 && share == 0 ? NULL : bytes + done;
        segments[at].segment_length = share;
        done += share;
    }
    return count;
}

static const uint32_t cut_counts[] = {2, 3, 17, 255, 256};

static void sends_in_pieces(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(LONGEST);
    mx_segment_t segments[256];
    mx_request_t request;
    fill(bytes, LONGEST, 4);
    for (int at = 0; at < LENGTHS; at++)
        for (int count = 0; count < 5; count++) {
            uint32_t pieces = cut(segments, cut_counts[count], bytes, lengths[at], 5);
            if (count % 2)
                OK(mx_issend(endpoint, segments, pieces, peer, 1, NULL, &request));
            else
                OK(mx_isend(endpoint, segments, pieces, peer, 1, NULL, &request));
            memset(segments, 0xff, sizeof segments);
            EQUAL(lengths[at], finish_well(endpoint, request).xfer_length);
        }
    await_end(endpoint);
    end(endpoint);
    free(bytes);
}

static void receives_in_other_pieces(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(LONGEST);
    mx_segment_t segments[256];
    mx_request_t request;
    for (int at = 0; at < LENGTHS; at++)
        for (int count = 0; count < 5; count++) {
            uint32_t pieces = cut(segments, cut_counts[4 - count], bytes, lengths[at], 3);
            mx_status_t status;
            memset(bytes, 0xee, LONGEST);
            if ((at + count) % 2)
                await_unexpected(endpoint, 1);
            OK(mx_irecv(endpoint, segments, pieces, 1, MX_MATCH_MASK_NONE, NULL, &request));
            status = finish_well(endpoint, request);
            EQUAL(lengths[at], status.xfer_length);
            is_filled(bytes, lengths[at], 4);
            is_all(bytes + lengths[at], LONGEST - lengths[at], 0xee);
        }
    mark_end(endpoint, peer);
    end(endpoint);
    free(bytes);
}

static void segments_up_to_256(void)
{
    pair(receives_in_other_pieces, sends_in_pieces);
}

/* Nothing at all, said in each way it can be said. */
static void segments_of_nothing(void)
{
    mx_segment_t none[3] = {{NULL, 0}, {NULL, 0}, {NULL, 0}};
    mx_endpoint_t endpoint, other;
    mx_endpoint_addr_t to;
    begin();
    endpoint = open_any();
    other = open_any();
    to = connect_to(endpoint, place_of(other));
    for (uint32_t sent = 0; sent <= 3; sent++)
        for (uint32_t posted = 0; posted <= 3; posted++) {
            mx_request_t sending, receiving;
            mx_status_t status;
            OK(mx_irecv(other, posted ? none : NULL, posted, 1, MX_MATCH_MASK_NONE, NULL, &receiving));
            OK(mx_isend(endpoint, sent ? none : NULL, sent, to, 1, NULL, &sending));
            EQUAL(0, finish_well(endpoint, sending).xfer_length);
            status = finish_well(other, receiving);
            EQUAL(0, status.msg_length);
            EQUAL(0, status.xfer_length);
        }
    OK(mx_close_endpoint(other));
    end(endpoint);
}

static void too_many_segments(void)
{
    static mx_segment_t segments[257];
    static unsigned char bytes[257];
    mx_endpoint_t endpoint;
    mx_endpoint_addr_t own;
    mx_request_t request = NULL;
    begin();
    endpoint = open_any();
    own = own_address(endpoint);
    for (int at = 0; at < 257; at++) {
        segments[at].segment_ptr = &bytes[at];
        segments[at].segment_length = 1;
    }
    GIVES(MX_BAD_SEG_CNT, mx_isend(endpoint, segments, 257, own, 1, NULL, &request));
    GIVES(MX_BAD_SEG_CNT, mx_issend(endpoint, segments, 257, own, 1, NULL, &request));
    GIVES(MX_BAD_SEG_CNT, mx_irecv(endpoint, segments, 257, 1, MX_MATCH_MASK_NONE, NULL, &request));
    GIVES(MX_BAD_SEG_CNT, mx_irecv(endpoint, segments, 0xffffffff, 1, MX_MATCH_MASK_NONE, NULL, &request));
    OK(mx_irecv(endpoint, segments, 256, 1, MX_MATCH_MASK_NONE, NULL, &request));
    send_well(endpoint, own, 1, bytes, 256);
    EQUAL(256, finish_well(endpoint, request).xfer_length);
    nothing_done(endpoint);
    end(endpoint);
}

/* When is a send over? */

static void sends_and_asks(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(LONGEST);
    static const uint32_t sizes[] = {0, 8, 1000, 40000, 1000000};
    fill(bytes, LONGEST, 5);
    /* Eager messages without a posted receive. */
    for (int at = 0; at < 3; at++)
        send_well(endpoint, peer, (uint64_t)at, bytes, sizes[at]);
    tell(other, 'e');
    /* Synchronous and large ones: not before they were matched, though the other side has seen them. */
    for (int at = 0; at < 5; at++) {
        mx_request_t request = at < 3 ? give_sync(endpoint, peer, 9, bytes, sizes[at])
                                      : give(endpoint, peer, 9, bytes, sizes[at]);
        hear_moving(endpoint, other, 's');
        for (int again = 0; again < 1000; again++)
            still_pending(endpoint, request);
        tell(other, 'r');
        EQUAL(sizes[at], finish_well(endpoint, request).xfer_length);
        hear(other, 'd');
    }
    end(endpoint);
    free(bytes);
}

static void receives_when_told(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(LONGEST);
    hear(other, 'e');
    for (uint64_t match = 0; match < 3; match++)
        receive_well(endpoint, match, bytes, LONGEST);
    for (int at = 0; at < 5; at++) {
        mx_status_t status = await_unexpected(endpoint, 9);
        tell(other, 's');
        hear(other, 'r');
        EQUAL(status.msg_length, receive_well(endpoint, 9, bytes, LONGEST).xfer_length);
        is_filled(bytes, status.msg_length, 5);
        tell(other, 'd');
    }
    end(endpoint);
    free(bytes);
}

static void synchronous_sends(void)
{
    pair(sends_and_asks, receives_when_told);
}

/* What a send has handed over is on its way: it arrives though the sender never calls again. */
static void sends_and_leaves_off(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(5000);
    for (uint32_t round = 0; round < 100; round++) {
        uint32_t length = round % 4 == 3 ? 5000 : 8;
        fill(bytes, length, round);
        send_well(endpoint, peer, round, bytes, length);
        hear(other, 'r');
    }
    end(endpoint);
    free(bytes);
}

static void receives_from_the_silent(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(5000);
    for (uint32_t round = 0; round < 100; round++) {
        uint32_t length = round % 4 == 3 ? 5000 : 8;
        EQUAL(length, receive_well(endpoint, round, bytes, 5000).xfer_length);
        is_filled(bytes, length, round);
        tell(other, 'r');
    }
    end(endpoint);
    free(bytes);
}

static void sent_without_further_calls(void)
{
    pair(receives_from_the_silent, sends_and_leaves_off);
}

/* The same for more messages than there is room for. All sends are over before the receiver makes its first call. */
enum { AHEAD = 100, AHEAD_LENGTH = 32768 };

static void sends_ahead(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(AHEAD_LENGTH);
    for (uint32_t at = 0; at < AHEAD; at++) {
        fill(bytes, AHEAD_LENGTH, at);
        send_well(endpoint, peer, at, bytes, AHEAD_LENGTH);
    }
    meet_at(other, 's');
    hear(other, 'r');
    end(endpoint);
    free(bytes);
}

static void receives_late(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(AHEAD_LENGTH);
    meet_at(other, 's');
    for (uint32_t at = 0; at < AHEAD; at++) {
        EQUAL(AHEAD_LENGTH, receive_well(endpoint, at, bytes, AHEAD_LENGTH).xfer_length);
        is_filled(bytes, AHEAD_LENGTH, at);
    }
    tell(other, 'r');
    end(endpoint);
    free(bytes);
}

static void sent_ahead_without_further_calls(void)
{
    pair(receives_late, sends_ahead);
}

/* mx_ibuffered, and what may be done with the memory after it said 1. */
static void sends_and_overwrites(struct other other)
{
    static const uint32_t sizes[] = {0, 32, 128, 129, 5000, 32768};
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(LONGEST);
    mx_request_t request;
    uint32_t result;
    for (int at = 0; at < 6; at++) {
        fill(bytes, sizes[at], (unsigned)at);
        request = give(endpoint, peer, (uint64_t)at, bytes, sizes[at]);
        result = 2;
        OK(mx_ibuffered(endpoint, &request, &result));
        EQUAL(1, result);
        memset(bytes, 0xaa, sizes[at]);
        OK(mx_forget(endpoint, &request));
        CHECK(request == NULL);
    }
    nothing_done(endpoint); /* forgotten */
    request = give(endpoint, peer, 50, bytes, LONGEST);
    OK(mx_ibuffered(endpoint, &request, &result));
    EQUAL(0, result);
    tell(other, 'g');
    finish_well(endpoint, request);
    request = post(endpoint, 60, bytes, 8);
    GIVES(MX_BAD_REQUEST, mx_ibuffered(endpoint, &request, &result));
    OK(mx_cancel(endpoint, &request, &result));
    EQUAL(1, result);
    end(endpoint);
    free(bytes);
}

static void receives_what_was_sent(struct other other)
{
    static const uint32_t sizes[] = {0, 32, 128, 129, 5000, 32768};
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(LONGEST);
    hear(other, 'g');
    for (int at = 0; at < 6; at++) {
        EQUAL(sizes[at], receive_well(endpoint, (uint64_t)at, bytes, LONGEST).xfer_length);
        is_filled(bytes, sizes[at], (unsigned)at);
    }
    receive_well(endpoint, 50, bytes, LONGEST);
    end(endpoint);
    free(bytes);
}

static void buffered(void)
{
    pair(sends_and_overwrites, receives_what_was_sent);
}

/* Forgotten requests do their work and never show. */
static void sends_unseen(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(LONGEST);
    mx_segment_t small = {bytes, 8};
    mx_request_t request;
    fill(bytes, LONGEST, 6);
    hear(other, 'g');
    OK(mx_isend(endpoint, &small, 1, peer, 1, NULL, NULL));
    finish_well(endpoint, give(endpoint, peer, 2, bytes, LONGEST)); /* seen here, forgotten there */
    finish_well(endpoint, give_sync(endpoint, peer, 3, bytes, 8));
    OK(mx_issend(endpoint, &small, 1, peer, 6, NULL, NULL));
    request = give(endpoint, peer, 4, bytes, LONGEST);
    OK(mx_forget(endpoint, &request)); /* while it is pending */
    CHECK(request == NULL);
    request = give(endpoint, peer, 5, bytes, 8);
    {
        uint32_t result = 0;
        mx_request_t peeked;
        OK(mx_peek(endpoint, MX_INFINITE, &peeked, &result));
        EQUAL(1, result);
        CHECK(peeked == request);
    }
    OK(mx_forget(endpoint, &request)); /* when it is over */
    await_end(endpoint);
    nothing_done(endpoint);
    end(endpoint);
    free(bytes);
}

static void receives_unseen(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(LONGEST), *later = room(LONGEST), first[8], third[8], last[8];
    mx_segment_t segment = {first, 8};
    mx_request_t request;
    memset(third, 0, sizeof third);
    OK(mx_irecv(endpoint, &segment, 1, 1, MX_MATCH_MASK_NONE, NULL, NULL));
    request = post(endpoint, 2, bytes, LONGEST);
    OK(mx_forget(endpoint, &request));
    CHECK(request == NULL);
    request = post(endpoint, 3, third, 8);
    OK(mx_forget(endpoint, &request));
    tell(other, 'g');
    receive_well(endpoint, 5, last, 8);
    receive_well(endpoint, 4, later, LONGEST);
    receive_well(endpoint, 6, last, 8);
    is_filled(first, 8, 6);
    is_filled(bytes, LONGEST, 6);
    is_filled(third, 8, 6);
    nothing_done(endpoint);
    mark_end(endpoint, peer);
    end(endpoint);
    free(bytes);
    free(later);
}

static void forgotten(void)
{
    pair(receives_unseen, sends_unseen);
}

/* Handles that are no requests, and arguments that are none. */
/*
 * Memory is exhausted: what has to be copied in one piece is refused, or its request ends saying so; the endpoint goes on. Segments may
 * lie over one another, so a long message needs no long memory here.
 */
enum { PIECES = 24, PIECE_LONG = 4 << 20 };

static void segments_of_one(mx_segment_t segments[PIECES], unsigned char *bytes)
{
    for (int at = 0; at < PIECES; at++)
        segments[at] = (mx_segment_t){bytes, PIECE_LONG};
}

static void may_take_no_more_than(size_t more)
{
    unsigned long pages;
    struct rlimit limit;
    FILE *sizes = fopen("/proc/self/statm", "r");
    CHECK(sizes != NULL && fscanf(sizes, "%lu", &pages) == 1);
    fclose(sizes);
    CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
    limit.rlim_cur = pages * (unsigned long)sysconf(_SC_PAGESIZE) + more;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
}

static void has_little_memory(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(PIECE_LONG);
    mx_segment_t segments[PIECES];
    mx_request_t request = NULL;
    mx_status_t status;
    EQUAL(8, receive_well(endpoint, 1, bytes, 8).xfer_length);
    segments_of_one(segments, bytes);
    may_take_no_more_than(32 << 20);
    GIVES(MX_NO_RESOURCES, mx_isend(endpoint, segments, PIECES, peer, 2, NULL, &request));
    GIVES(MX_NO_RESOURCES, mx_isend(endpoint, segments, PIECES, own_address(endpoint), 2, NULL, &request));
    nothing_done(endpoint);
    OK(mx_irecv(endpoint, segments, PIECES, 3, MX_MATCH_MASK_NONE, NULL, &request));
    tell(other, 'p');
    status = finish(endpoint, request);
    ENDED(MX_STATUS_NO_RESOURCES, status);
    EQUAL(0, status.xfer_length);
    EQUAL((uint64_t)PIECES * PIECE_LONG, status.msg_length);
    /* A short message needs little, whatever room there is for it; and so it goes on. */
    OK(mx_irecv(endpoint, segments, PIECES, 4, MX_MATCH_MASK_NONE, NULL, &request));
    EQUAL(5000, finish_well(endpoint, request).xfer_length);
    is_filled(bytes, 5000, 4);
    send_well(endpoint, peer, 5, bytes, 5000);
    end(endpoint);
    free(bytes);
}

static void sends_more_than_that(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(PIECE_LONG);
    mx_segment_t segments[PIECES];
    mx_request_t request;
    segments_of_one(segments, bytes);
    send_well(endpoint, peer, 1, bytes, 8);
    hear(other, 'p');
    OK(mx_isend(endpoint, segments, PIECES, peer, 3, NULL, &request));
    EQUAL(0, finish(endpoint, request).xfer_length);
    fill(bytes, 5000, 4);
    send_well(endpoint, peer, 4, bytes, 5000);
    EQUAL(5000, receive_well(endpoint, 5, bytes, 5000).xfer_length);
    end(endpoint);
    free(bytes);
}

static void memory_exhausted(void)
{
    pair(has_little_memory, sends_more_than_that);
}

static void bad_arguments(void)
{
    mx_endpoint_t endpoint;
    mx_request_t request, stale;
    mx_status_t status;
    uint32_t result;
    begin();
    endpoint = open_any();
    request = NULL;
    GIVES(MX_BAD_REQUEST, mx_test(endpoint, &request, &status, &result));
    GIVES(MX_BAD_REQUEST, mx_wait(endpoint, &request, 1, &status, &result));
    GIVES(MX_BAD_REQUEST, mx_cancel(endpoint, &request, &result));
    GIVES(MX_BAD_REQUEST, mx_forget(endpoint, &request));
    stale = request = give(endpoint, own_address(endpoint), 1, NULL, 0);
    receive_well(endpoint, 1, NULL, 0);
    finish_well(endpoint, request);
    request = stale; /* consumed: its handle is worth nothing */
    GIVES(MX_BAD_REQUEST, mx_test(endpoint, &request, &status, &result));
    GIVES(MX_BAD_REQUEST, mx_forget(endpoint, &request));
    end(endpoint);
}

/* mx_set_request_timeout: sends that the receiver does not take in time. */
static mx_status_t ends_in_time(mx_endpoint_t endpoint, mx_request_t request)
{
    mx_status_t status;
    uint32_t result;
    OK(mx_wait(endpoint, &request, MX_INFINITE, &status, &result));
    EQUAL(1, result);
    CHECK(request == NULL);
    return status;
}

static void sets_timeouts(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *bytes = room(LONGEST);
    mx_request_t request, receive = post(endpoint, 77, bytes, 8);
    mx_status_t status;
    uint32_t result;
    uint64_t begun = now_ms();
    request = give_sync(endpoint, peer, 1, bytes, 8);
    OK(mx_set_request_timeout(endpoint, request, 100));
    status = ends_in_time(endpoint, request);
    ENDED(MX_STATUS_TIMEOUT, status);
    EQUAL(0, status.xfer_length);
    EQUAL(1, status.match_info);
    CHECK(now_ms() - begun >= 100);
    OK(mx_set_request_timeout(endpoint, receive, 1)); /* a receive waits for ever */
    OK(mx_set_request_timeout(endpoint, NULL, 100));
    ENDED(MX_STATUS_TIMEOUT, ends_in_time(endpoint, give(endpoint, peer, 2, bytes, LONGEST)));
    memset(bytes, 0xaa, LONGEST); /* ours again */
    ENDED(MX_STATUS_TIMEOUT, ends_in_time(endpoint, give_sync(endpoint, own_address(endpoint), 4, bytes, 8)));
    OK(mx_set_request_timeout(endpoint, NULL, MX_INFINITE));
    request = give_sync(endpoint, peer, 3, bytes, 8);
    OK(mx_wait(endpoint, &request, 500, &status, &result));
    EQUAL(0, result);
    still_pending(endpoint, receive);
    tell(other, 'e');
    finish_well(endpoint, request);
    OK(mx_cancel(endpoint, &receive, &result));
    EQUAL(1, result);
    end(endpoint);
    free(bytes);
}

static void receives_the_last(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char bytes[8];
    hear(other, 'e');
    receive_well(endpoint, 3, bytes, sizeof bytes);
    end(endpoint);
}

static void request_timeouts(void)
{
    pair(sets_timeouts, receives_the_last);
}

MAIN(TEST(truncation), TEST(truncation_in_segments), TEST(statuses), TEST(bursts), TEST(segments_up_to_256), TEST(segments_of_nothing),
     TEST(too_many_segments), TEST(synchronous_sends),
     TEST(sent_without_further_calls), TEST(sent_ahead_without_further_calls),
     TEST(buffered), TEST(forgotten), TEST(memory_exhausted), TEST(bad_arguments), TEST(request_timeouts))
