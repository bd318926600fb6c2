/* An endpoint that sends to itself. With MX_DISABLE_SELF=1 all of it holds as well, but for what `self_path` guards. */
#include "mxtest.h"

static const uint32_t lengths[] = {0, 1, 32, 128, 129, 32768, 32769, 300000};

enum { LENGTHS = sizeof lengths / sizeof *lengths, LONGEST = 300000 };

static mx_endpoint_t endpoint;
static mx_endpoint_addr_t own;
static unsigned char *out, *in;

static int self_path(void)
{
    const char *off = getenv("OMX_DISABLE_SELF"); /* wins, if it is set */
    if (off == NULL)
        off = getenv("MX_DISABLE_SELF");
    return off == NULL || atoi(off) == 0;
}

static void open_it(void)
{
    begin();
    endpoint = open_any();
    own = own_address(endpoint);
    out = room(LONGEST);
    in = room(LONGEST);
    fill(out, LONGEST, 1);
}

static void close_it(void)
{
    nothing_done(endpoint);
    end(endpoint);
    free(out);
    free(in);
}

static void of_each_length(void)
{
    open_it();
    for (int at = 0; at < LENGTHS; at++)
        for (int way = 0; way < 4; way++) { /* posted before or after, isend or issend */
            mx_request_t receiving = NULL, sending;
            mx_status_t status;
            memset(in, 0xee, LONGEST);
            if (way & 1)
                receiving = post(endpoint, 7, in, LONGEST);
            sending = way & 2 ? give(endpoint, own, 7, out, lengths[at]) : give_sync(endpoint, own, 7, out, lengths[at]);
            if (!(way & 1)) {
                EQUAL(lengths[at], await_unexpected(endpoint, 7).msg_length);
                receiving = post(endpoint, 7, in, LONGEST);
            }
            status = finish_well(endpoint, receiving);
            EQUAL(lengths[at], status.msg_length);
            EQUAL(lengths[at], status.xfer_length);
            EQUAL(7, status.match_info);
            CHECK(same_endpoint(own, status.source));
            CHECK(status.context == in);
            status = finish_well(endpoint, sending);
            EQUAL(lengths[at], status.xfer_length);
            CHECK(same_endpoint(own, status.source));
            CHECK(status.context == out);
            is_filled(in, lengths[at], 1);
            is_all(in + lengths[at], LONGEST - lengths[at], 0xee);
        }
    close_it();
}

/* Over when it was matched, not before; and may be overwritten at once where it says so. */
static void pending_until_matched(void)
{
    open_it();
    for (int at = 0; at < LENGTHS; at++) {
        mx_request_t sending = give_sync(endpoint, own, 1, out, lengths[at]);
        await_unexpected(endpoint, 1);
        for (int again = 0; again < 100; again++)
            still_pending(endpoint, sending);
        receive_well(endpoint, 1, in, LONGEST);
        finish_well(endpoint, sending);
        if (self_path()) {
            uint32_t result = 2;
            sending = give(endpoint, own, 2, out, lengths[at]);
            still_pending(endpoint, sending);
            OK(mx_ibuffered(endpoint, &sending, &result));
            EQUAL(1, result);
            memset(out, 0xaa, lengths[at]);
            receive_well(endpoint, 2, in, LONGEST);
            is_filled(in, lengths[at], 1);
            finish_well(endpoint, sending);
            fill(out, LONGEST, 1);
        }
    }
    close_it();
}

/* The sender hears of it for every length. */
static void truncated(void)
{
    open_it();
    for (int at = 1; at < LENGTHS; at++)
        for (int before = 0; before < 2; before++)
            for (uint32_t space = 0; space < lengths[at] && space < 2; space++) {
                mx_request_t receiving = NULL, sending;
                mx_status_t status;
                memset(in, 0xee, LONGEST);
                if (before)
                    receiving = post(endpoint, 1, in, space);
                sending = give(endpoint, own, 1, out, lengths[at]);
                if (!before) {
                    await_unexpected(endpoint, 1);
                    receiving = post(endpoint, 1, in, space);
                }
                status = finish(endpoint, receiving);
                ENDED(MX_STATUS_TRUNCATED, status);
                EQUAL(lengths[at], status.msg_length);
                EQUAL(space, status.xfer_length);
                is_all(in + space, LONGEST - space, 0xee);
                status = finish(endpoint, sending);
                if (self_path() || lengths[at] > 32768) {
                    ENDED(MX_STATUS_TRUNCATED, status);
                    EQUAL(space, status.xfer_length);
                }
            }
    close_it();
}

static void in_segments(void)
{
    open_it();
    for (int at = 0; at < LENGTHS; at++) {
        uint32_t half = lengths[at] / 2, third = lengths[at] / 3;
        mx_segment_t sent[2] = {{out, half}, {out + half, lengths[at] - half}};
        mx_segment_t posted[3] = {{in, third}, {NULL, 0}, {in + third, lengths[at] - third}};
        mx_request_t sending, receiving;
        memset(in, 0xee, LONGEST);
        OK(mx_isend(endpoint, sent, 2, own, 1, NULL, &sending));
        OK(mx_irecv(endpoint, posted, 3, 1, MX_MATCH_MASK_NONE, NULL, &receiving));
        EQUAL(lengths[at], finish_well(endpoint, receiving).xfer_length);
        finish_well(endpoint, sending);
        is_filled(in, lengths[at], 1);
        is_all(in + lengths[at], LONGEST - lengths[at], 0xee);
    }
    close_it();
}

/* Messages to oneself and of others keep one order in the queue of the unexpected. */
static void among_others(void)
{
    mx_endpoint_t other;
    mx_endpoint_addr_t to;
    uint64_t got;
    open_it();
    other = open_any();
    to = connect_to(other, place_of(endpoint));
    for (uint64_t value = 0; value < 6; value++) {
        mx_request_t request;
        uint64_t match = 0x10 + value;
        if (value % 2) {
            send_well(other, to, match, &value, sizeof value);
        } else {
            mx_segment_t segment = {&value, sizeof value};
            OK(mx_isend(endpoint, &segment, 1, own, match, NULL, &request));
            OK(mx_forget(endpoint, &request));
        }
        await_unexpected(endpoint, match);
    }
    for (uint64_t value = 0; value < 6; value++) {
        mx_status_t status = finish_well(endpoint, post_masked(endpoint, 0x10, 0xf0, &got, sizeof got));
        EQUAL(0x10 + value, status.match_info);
        EQUAL(value, got);
        CHECK(same_endpoint(status.source, value % 2 ? own_address(other) : own));
    }
    OK(mx_close_endpoint(other));
    close_it();
}

MAIN(TEST(of_each_length), TEST(pending_until_matched), TEST(truncated), TEST(in_segments), TEST(among_others))
