/*
 * MX: messages with matching, between the processes, containers and guests of one machine and beyond it.
 *
 *   mx_init();
 *   mx_open_endpoint(MX_ANY_NIC, MX_ANY_ENDPOINT, key, NULL, 0, &me);    where messages leave and arrive
 *   mx_hostname_to_nic_id("host:0", &nic);                               find a peer ...
 *   mx_connect(me, nic, endpoint, key, MX_INFINITE, &them);
 *   mx_irecv(me, &segment, 1, match, MX_MATCH_MASK_NONE, ctx, &request); post receives ...
 *   mx_isend(me, &segment, 1, them, match, ctx, &request);
 *   mx_wait(me, &request, MX_INFINITE, &status, &done);                  ... and take completions
 *   mx_close_endpoint(me);
 *   mx_finalize();
 *
 * This is the interface of MX 1.2, level 0x301: programs and libraries that were built for it run unchanged. What is
 * written below of a call is what this library does. Nothing happens outside of the calls, but for copied sends of a program
 * that makes no more calls: a thread delivers them, and exit() waits for that. There is no signal handler.
 *
 * Unless something else is said, a call answers MX_SUCCESS, or hands its error to the error handler and answers what that
 * returns; the handler that is there at first prints the error and ends the process (see mx_set_error_handler).
 *
 * Link with -lmyriexpress.
 */
#ifndef MYRIEXPRESS_H
#define MYRIEXPRESS_H

/* For programs that include nothing else: the fixed widths, and the macros that print them. */
#include <inttypes.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The level of this interface: 1.2 is level 3, of the first revision. */
#define MX_API 0x301

/* What this header has that earlier ones had not. */
#define MX_HAS_NET_TYPE 1

/* A timeout, in milliseconds, that means: for ever. There is no timeout of no time. */
#define MX_INFINITE 0

/* For mx_open_endpoint: the first board with a free endpoint, the lowest free endpoint. */
#define MX_ANY_NIC 0xffffffffU
#define MX_ANY_ENDPOINT 0xffffffffU

/* A mask without wildcards. */
#define MX_MATCH_MASK_NONE (~(uint64_t)0)

#define MX_MAX_SEGMENTS 256
#define MX_MAX_STR_LEN 128     /* of a counter's label, a product's name */
#define MX_MAX_HOSTNAME_LEN 80 /* with the zero byte */
#define MX_SIZEOF_ADDR 16
#define MX_CONTEXT_ID_BITS_MAX 16

/* The upper and the lower half of 64 bits, for printing. */
#define MX_U32(x) ((uint32_t)((uint64_t)(x) >> 32))
#define MX_L32(x) ((uint32_t)((uint64_t)(x) & 0xffffffffU))

/* What calls answer. */
typedef enum mx_return_code {
    MX_SUCCESS = 0,
    MX_BAD_BAD_BAD = 1,
    MX_FAILURE = 2,
    MX_ALREADY_INITIALIZED = 3,
    MX_NOT_INITIALIZED = 4,
    MX_NO_DEV = 5,
    MX_NO_DRIVER = 6,
    MX_NO_PERM = 7,
    MX_BOARD_UNKNOWN = 8,
    MX_BAD_ENDPOINT = 9,
    MX_BAD_SEG_LIST = 10,
    MX_BAD_SEG_MEM = 11,
    MX_BAD_SEG_CNT = 12,
    MX_BAD_REQUEST = 13,
    MX_BAD_MATCH_MASK = 14,
    MX_NO_RESOURCES = 15,
    MX_BAD_ADDR_LIST = 16,
    MX_BAD_ADDR_COUNT = 17,
    MX_BAD_ROOT = 18,
    MX_NOT_COMPLETED = 19,
    MX_BUSY = 20,
    MX_BAD_INFO_KEY = 21,
    MX_BAD_INFO_VAL = 22,
    MX_BAD_NIC = 23,
    MX_BAD_PARAM_LIST = 24,
    MX_BAD_PARAM_NAME = 25,
    MX_BAD_PARAM_VAL = 26,
    MX_BAD_HOSTNAME_ARGS = 27,
    MX_HOST_NOT_FOUND = 28,
    MX_REQUEST_PENDING = 29,
    MX_TIMEOUT = 30,
    MX_NO_MATCH = 31,
    MX_BAD_ENDPOINT_ID = 32,
    MX_CONNECTION_FAILED = 33,
    MX_BAD_CONNECTION_KEY = 34,
    MX_BAD_INFO_LENGTH = 35,
    MX_NIC_NOT_FOUND = 36,
    MX_BAD_KERNEL_VERSION = 37,
    MX_BAD_LIB_VERSION = 38,
    MX_NIC_DEAD = 39,
    MX_CANCEL_NOT_SUPPORTED = 40,
    MX_CLOSE_IN_HANDLER = 41,
    MX_BAD_MATCHING_FOR_CONTEXT_ID_MASK = 42,
    MX_NOT_SUPPORTED_WITH_CONTEXT_ID = 43
} mx_return_t;

/* How a request ended. These are not the numbers of mx_return_t. */
typedef enum mx_status_code {
    MX_STATUS_SUCCESS = 0,
    MX_STATUS_PENDING = 1,
    MX_STATUS_BUFFERED = 2,
    MX_STATUS_REJECTED = 3,
    MX_STATUS_TIMEOUT = 4,
    MX_STATUS_TRUNCATED = 5, /* fewer bytes were moved than the message has */
    MX_STATUS_CANCELLED = 6,
    MX_STATUS_ENDPOINT_UNKNOWN = 7,
    MX_STATUS_ENDPOINT_CLOSED = 8,
    MX_STATUS_ENDPOINT_UNREACHABLE = 9,
    MX_STATUS_BAD_SESSION = 10,
    MX_STATUS_BAD_KEY = 11,
    MX_STATUS_BAD_ENDPOINT = 12,
    MX_STATUS_BAD_RDMAWIN = 13,
    MX_STATUS_ABORTED = 14,
    MX_STATUS_EVENTQ_FULL = 15,
    MX_STATUS_NO_RESOURCES = 16
} mx_status_code_t;

/* A text for a code; for every number, and never NULL. */
const char *mx_strerror(mx_return_t code);
const char *mx_strstatus(mx_status_code_t code);

/* An endpoint, and something that was started on it: numbers, whatever they look like. */
typedef struct mx_endpoint *mx_endpoint_t;
typedef union mx_request *mx_request_t;

/*
 * The address of an endpoint, as the endpoint knows it that connected to it or got a message from it; it is of no use to
 * others. Valid until mx_disconnect() or until that endpoint is closed.
 */
typedef struct {
    uint64_t stuff[2];
} mx_endpoint_addr_t;

/* Bytes of a message lie in up to MX_MAX_SEGMENTS pieces. */
typedef void *mx_segment_ptr_t;

typedef struct {
    mx_segment_ptr_t segment_ptr;
    uint32_t segment_length;
} mx_segment_t;

typedef struct mx_status {
    mx_status_code_t code;
    mx_endpoint_addr_t source; /* of a receive the sender, of a send the destination, of an mx_iconnect the new address */
    uint64_t match_info;
    uint32_t msg_length;
    uint32_t xfer_length;
    void *context; /* what was given with the request */
} mx_status_t;

/*
 * Errors. The handler gets a text and the code; what it returns is what the call returns. MX_ERRORS_ARE_FATAL, the handler at
 * first, prints the error and ends the process; MX_ERRORS_RETURN returns the code. With MX_ERRORS_ARE_FATAL=0 in the
 * environment the second is the one at first.
 *
 * The handler also hears of a request that ended with an error, from the call that finds it over. The code is then none of the
 * above but 80 + the mx_status_code_t, for which mx_strerror() has a text; and the call answers MX_SUCCESS, whatever the
 * handler returns.
 */
typedef mx_return_t (*mx_error_handler_t)(char *message, mx_return_t code);
extern const mx_error_handler_t MX_ERRORS_ARE_FATAL;
extern const mx_error_handler_t MX_ERRORS_RETURN;

/* Sets the handler of the process, at any time, and returns the one before it. */
mx_error_handler_t mx_set_error_handler(mx_error_handler_t handler);

/* First of all calls but mx_set_error_handler(), and the last one. A process may begin again. */
#define mx_init() mx__init_api(MX_API)
mx_return_t mx__init_api(int api);
mx_return_t mx_finalize(void);

/* Parameters of an endpoint. */
typedef enum mx_param_key {
    MX_PARAM_ERROR_HANDLER = 0,   /* of this endpoint, before that of the process */
    MX_PARAM_UNEXP_QUEUE_MAX = 1, /* accepted; the queue grows as it has to */
    MX_PARAM_CONTEXT_ID = 2       /* bits of the match information that receives never mask: at most 16, from 'shift' on */
} mx_param_key_t;

typedef struct {
    mx_param_key_t key;
    union {
        mx_error_handler_t error_handler;
        uint32_t unexp_queue_max;
        struct {
            uint8_t bits;
            uint8_t shift;
        } context_id;
    } val;
} mx_param_t;

/*
 * Opens an endpoint of a board. With both MX_ANY_NIC and MX_ANY_ENDPOINT the lowest number that is free on any board. Who
 * connects to it has to know 'key'.
 */
mx_return_t mx_open_endpoint(uint32_t board_number, uint32_t endpoint_id, uint32_t key, mx_param_t *params,
                             uint32_t params_count, mx_endpoint_t *endpoint);

/*
 * Closes it. Waits, for ISTHMUS_LINGER_S seconds (30) at most, until receivers that live have taken the sends that are over;
 * mx_finalize() and exit() do so for endpoints that are open. Requests that are pending vanish. Not to be called by the handler
 * of unexpected messages.
 */
mx_return_t mx_close_endpoint(mx_endpoint_t endpoint);

/* Has every thread that is blocked on the endpoint return, with nothing found. */
mx_return_t mx_wakeup(mx_endpoint_t endpoint);

/* Between the two nothing happens on the endpoint: calls use what is there already. They do not nest. */
mx_return_t mx_disable_progression(mx_endpoint_t endpoint);
mx_return_t mx_reenable_progression(mx_endpoint_t endpoint);

/*
 * Starts a send. Up to 32 KiB are copied at once, or as soon as there is room; longer messages, and those of mx_issend(),
 * end when the receiver has taken them. 'request' may be NULL if the program does not need the result.
 */
mx_return_t mx_isend(mx_endpoint_t endpoint, mx_segment_t *segments, uint32_t segments_count,
                     mx_endpoint_addr_t destination, uint64_t match_info, void *context, mx_request_t *request);
mx_return_t mx_issend(mx_endpoint_t endpoint, mx_segment_t *segments, uint32_t segments_count,
                      mx_endpoint_addr_t destination, uint64_t match_info, void *context, mx_request_t *request);

/* Posts a receive for the oldest message with (its match information & match_mask) == match_info. */
mx_return_t mx_irecv(mx_endpoint_t endpoint, mx_segment_t *segments, uint32_t segments_count, uint64_t match_info,
                     uint64_t match_mask, void *context, mx_request_t *request);

/* Takes a receive or an mx_iconnect() back: result 1 if nothing had come for it. Sends cannot be cancelled. */
mx_return_t mx_cancel(mx_endpoint_t endpoint, mx_request_t *request, uint32_t *result);

/* Is it over? Then result is 1, 'status' says how, and the request is no more. */
mx_return_t mx_test(mx_endpoint_t endpoint, mx_request_t *request, mx_status_t *status, uint32_t *result);
mx_return_t mx_wait(mx_endpoint_t endpoint, mx_request_t *request, uint32_t timeout_ms, mx_status_t *status,
                    uint32_t *result);

/* The same for the oldest completed request with match information that fits. */
mx_return_t mx_test_any(mx_endpoint_t endpoint, uint64_t match_info, uint64_t match_mask, mx_status_t *status,
                        uint32_t *result);
mx_return_t mx_wait_any(mx_endpoint_t endpoint, uint32_t timeout_ms, uint64_t match_info, uint64_t match_mask,
                        mx_status_t *status, uint32_t *result);

/* The request that was over first. It stays until mx_test() takes it. */
mx_return_t mx_ipeek(mx_endpoint_t endpoint, mx_request_t *request, uint32_t *result);
mx_return_t mx_peek(mx_endpoint_t endpoint, uint32_t timeout_ms, mx_request_t *request, uint32_t *result);

/* The oldest message that no receive has taken and that fits. It stays. */
mx_return_t mx_iprobe(mx_endpoint_t endpoint, uint64_t match_info, uint64_t match_mask, mx_status_t *status,
                      uint32_t *result);
mx_return_t mx_probe(mx_endpoint_t endpoint, uint32_t timeout_ms, uint64_t match_info, uint64_t match_mask,
                     mx_status_t *status, uint32_t *result);

/* May the memory of this send be used again? */
mx_return_t mx_ibuffered(mx_endpoint_t endpoint, mx_request_t *request, uint32_t *result);
mx_return_t mx_buffered(mx_endpoint_t endpoint, mx_request_t *request, uint32_t timeout_ms, uint32_t *result);

/* What was given with a request. */
mx_return_t mx_context(mx_request_t *request, void **context);

/* Facts about boards. 'endpoint' may be NULL; the board's number is then in 'in_val'. */
typedef enum mx_get_info_key {
    MX_NIC_COUNT = 1,            /* uint32_t */
    MX_NIC_IDS = 2,              /* uint64_t each, and a zero */
    MX_MAX_NATIVE_ENDPOINTS = 3, /* uint32_t */
    MX_NATIVE_REQUESTS = 4,      /* uint32_t */
    MX_COUNTERS_COUNT = 5,       /* uint32_t; board */
    MX_COUNTERS_LABELS = 6,      /* MX_MAX_STR_LEN characters each; board */
    MX_COUNTERS_VALUES = 7,      /* uint32_t each; board */
    MX_PRODUCT_CODE = 8,         /* text; board */
    MX_PART_NUMBER = 9,          /* text; board */
    MX_SERIAL_NUMBER = 10,       /* text; board */
    MX_PORT_COUNT = 11,          /* uint32_t; board */
    MX_PIO_SEND_MAX = 12,        /* uint32_t */
    MX_COPY_SEND_MAX = 13,       /* uint32_t */
    MX_NUMA_NODE = 14,           /* uint32_t; board */
    MX_NET_TYPE = 15,            /* uint32_t, of mx_net_type_t; board */
    MX_LINE_SPEED = 16           /* uint32_t, of mx_line_speed_t; board */
} mx_get_info_key_t;

typedef enum mx_line_speed {
    MX_SPEED_2G = 0,
    MX_SPEED_10G = 1,
    MX_SPEED_OPEN_MX = 2
} mx_line_speed_t;

typedef enum mx_net_type {
    MX_NET_MYRI = 0,
    MX_NET_ETHER = 1
} mx_net_type_t;

mx_return_t mx_get_info(mx_endpoint_t endpoint, mx_get_info_key_t key, void *in_val, uint32_t in_len, void *out_val,
                        uint32_t out_len);

/* Names. A board is called "host:number"; its nic_id is its Ethernet address, first octet in bits 47 to 40. */
mx_return_t mx_hostname_to_nic_id(char *hostname, uint64_t *nic_id);
mx_return_t mx_board_number_to_nic_id(uint32_t board_number, uint64_t *nic_id);
mx_return_t mx_nic_id_to_board_number(uint64_t nic_id, uint32_t *board_number);
mx_return_t mx_nic_id_to_hostname(uint64_t nic_id, char *hostname);

/* Returns the address of a peer's endpoint. Connecting again is allowed, and finds the same. */
mx_return_t mx_connect(mx_endpoint_t endpoint, uint64_t nic_id, uint32_t endpoint_id, uint32_t key,
                       uint32_t timeout_ms, mx_endpoint_addr_t *address);
mx_return_t mx_decompose_endpoint_addr(mx_endpoint_addr_t address, uint64_t *nic_id, uint32_t *endpoint_id);
mx_return_t mx_get_endpoint_addr(mx_endpoint_t endpoint, mx_endpoint_addr_t *address);

/* There to be linked with; they answer an error. Use mx_register_unexp_handler() of mx_extensions.h for the first. */
typedef void (*mx_matching_callback_t)(void *context, uint64_t match_info, int length);
mx_return_t mx_register_unexp_callback(mx_endpoint_t endpoint, mx_matching_callback_t callback, void *context);
mx_return_t mx_iput(mx_endpoint_t endpoint, void *local, uint32_t length, mx_endpoint_addr_t destination,
                    uint64_t remote, void *context, mx_request_t *request);
mx_return_t mx_iget(mx_endpoint_t endpoint, void *local, uint32_t length, mx_endpoint_addr_t destination,
                    uint64_t remote, void *context, mx_request_t *request);

#ifdef __cplusplus
}
#endif

#endif /* MYRIEXPRESS_H */
