/*
 * The common parts of the MX examples: checks that report what failed, the connection of client and server, a clock,
 * bytes that depend on their position.
 *
 * A program with `-d HOST -r ENDPOINT` is the client; without, it serves, prints `endpoint N` and waits. The client's
 * first message (`struct hello`) names the client and its plan, and the server connects back.
 */
#ifndef MX_EXAMPLE_H
#define MX_EXAMPLE_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "myriexpress.h"
#include "mx_extensions.h"

/* Exit codes: 0 done, 1 failed, 2 used wrongly. */
#define FAILED 1
#define USAGE 2

/* The key of these examples: other programs do not connect by mistake. */
#define EXAMPLE_KEY 0x6d786578u

/* Match information of the first message. */
#define HELLO UINT64_C(0x68656c6c6f)

/* Ends the program if a call of MX fails. */
#define MX(call) mx_must((call), #call, __FILE__, __LINE__)

static inline void mx_must(mx_return_t code, const char *call, const char *file, int line)
{
    if (code == MX_SUCCESS)
        return;
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, call, mx_strerror(code));
    exit(FAILED);
}

/* Ends the program if a request failed. */
static inline void mx_ended_well(const mx_status_t *status, const char *what)
{
    if (status->code == MX_STATUS_SUCCESS)
        return;
    fprintf(stderr, "%s: %s\n", what, mx_strstatus(status->code));
    exit(FAILED);
}

static inline void fail(const char *text)
{
    fprintf(stderr, "%s\n", text);
    exit(FAILED);
}

/* The next argument of an option as a number from `least` to `most`. */
static inline uint64_t number(const char *text, uint64_t least, uint64_t most)
{
    char *end;
    uint64_t value = strtoull(text, &end, 0);
    if (*text == '\0' || *text == '-' || *end != '\0' || value < least || value > most) {
        fprintf(stderr, "%s: not a number from %" PRIu64 " to %" PRIu64 "\n", text, least, most);
        exit(USAGE);
    }
    return value;
}

/* The address of an endpoint, as needed to connect to it. */
struct place {
    uint64_t nic_id;
    uint32_t endpoint;
    uint32_t key;
};

/* The first message of a client. */
struct hello {
    struct place client;
    uint64_t words[6]; /* for the program */
};

static inline struct place place_of(mx_endpoint_t endpoint, uint32_t key)
{
    struct place place = {0, 0, key};
    mx_endpoint_addr_t own;
    MX(mx_get_endpoint_addr(endpoint, &own));
    MX(mx_decompose_endpoint_addr(own, &place.nic_id, &place.endpoint));
    return place;
}

/* `host` is a name like `host:0`, or NULL for this machine's first board. */
static inline uint64_t nic_of(const char *host)
{
    char name[MX_MAX_HOSTNAME_LEN];
    uint64_t nic_id;
    if (host == NULL) {
        MX(mx_board_number_to_nic_id(0, &nic_id));
        return nic_id;
    }
    snprintf(name, sizeof name, "%s", host);
    MX(mx_hostname_to_nic_id(name, &nic_id));
    return nic_id;
}

static inline mx_endpoint_addr_t connect_to(mx_endpoint_t endpoint, struct place place)
{
    mx_endpoint_addr_t address;
    MX(mx_connect(endpoint, place.nic_id, place.endpoint, place.key, MX_INFINITE, &address));
    return address;
}

/* Opens an endpoint; `number_wanted` may be MX_ANY_ENDPOINT. */
static inline mx_endpoint_t open_endpoint(uint32_t number_wanted)
{
    mx_endpoint_t endpoint;
    MX(mx_open_endpoint(MX_ANY_NIC, number_wanted, EXAMPLE_KEY, NULL, 0, &endpoint));
    return endpoint;
}

/* Waits for a request by sleeping in the library, or by polling. */
static inline mx_status_t complete(mx_endpoint_t endpoint, mx_request_t *request, int sleeping)
{
    mx_status_t status;
    uint32_t done = 0;
    while (!done) {
        if (sleeping)
            MX(mx_wait(endpoint, request, MX_INFINITE, &status, &done));
        else
            MX(mx_test(endpoint, request, &status, &done));
    }
    mx_ended_well(&status, "a request ended with");
    return status;
}

static inline mx_request_t post_send(mx_endpoint_t endpoint, mx_endpoint_addr_t to, uint64_t match, const void *bytes,
                                     size_t length)
{
    mx_segment_t segment;
    mx_request_t request;
    segment.segment_ptr = (void *)(uintptr_t)bytes;
    segment.segment_length = (uint32_t)length;
    MX(mx_isend(endpoint, &segment, 1, to, match, NULL, &request));
    return request;
}

static inline mx_request_t post_receive(mx_endpoint_t endpoint, uint64_t match, void *bytes, size_t length)
{
    mx_segment_t segment;
    mx_request_t request;
    segment.segment_ptr = bytes;
    segment.segment_length = (uint32_t)length;
    MX(mx_irecv(endpoint, &segment, 1, match, MX_MATCH_MASK_NONE, NULL, &request));
    return request;
}

/* The server's part of the connection: waits for a client, connects back. */
static inline mx_endpoint_addr_t wait_for_client(mx_endpoint_t endpoint, struct hello *hello)
{
    mx_request_t request = post_receive(endpoint, HELLO, hello, sizeof *hello);
    mx_status_t status;
    printf("endpoint %" PRIu32 "\n", place_of(endpoint, EXAMPLE_KEY).endpoint);
    fflush(stdout);
    status = complete(endpoint, &request, 1);
    if (status.xfer_length != sizeof *hello)
        fail("the first message is malformed");
    return connect_to(endpoint, hello->client);
}

/* The client's part: connects, sends its address. The caller has filled in the `words` of `hello`. */
static inline mx_endpoint_addr_t greet(mx_endpoint_t endpoint, const char *host, uint32_t remote, struct hello *hello)
{
    struct place server = {0, remote, EXAMPLE_KEY};
    mx_endpoint_addr_t address;
    mx_request_t request;
    server.nic_id = nic_of(host);
    address = connect_to(endpoint, server);
    hello->client = place_of(endpoint, EXAMPLE_KEY);
    request = post_send(endpoint, address, HELLO, hello, sizeof *hello);
    complete(endpoint, &request, 1);
    return address;
}

static inline double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* Bytes that depend on their position: a wrong offset or seed is detected. */
static inline unsigned char mark(size_t at, unsigned seed)
{
    return (unsigned char)(at * 31 + (at >> 8) * 7 + (at >> 16) + seed);
}

static inline void fill(unsigned char *bytes, size_t length, unsigned seed)
{
    for (size_t at = 0; at < length; at++)
        bytes[at] = mark(at, seed);
}

/* Returns the position of the first byte that is not as `fill` left it, or `length`. */
static inline size_t first_wrong(const unsigned char *bytes, size_t length, unsigned seed)
{
    size_t at = 0;
    while (at < length && bytes[at] == mark(at, seed))
        at++;
    return at;
}

#endif
