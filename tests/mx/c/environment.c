/* Variables that are about messages: read when the first endpoint of the process is opened; an OMX_ name wins. */
#include "mxtest.h"

static void any_endpoint(void)
{
    mx_endpoint_t endpoint, other;
    setenv("OMX_ANY_ENDPOINT", "7", 1);
    begin();
    endpoint = open_any();
    EQUAL(7, place_of(endpoint).id);
    GIVES(MX_BUSY, mx_open_endpoint(MX_ANY_NIC, MX_ANY_ENDPOINT, KEY, NULL, 0, &other));
    OK(mx_open_endpoint(MX_ANY_NIC, 3, KEY, NULL, 0, &other)); /* who names a number gets that */
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

/* Whether a send of so many bytes is over before anybody receives it. */
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

MAIN(TEST(any_endpoint), TEST(rendezvous_threshold), TEST(mx_names_ignored), TEST(read_when_the_first_opens),
     TEST(numbers_as_atoi))
