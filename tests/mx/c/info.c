/* mx_get_info, names, the internals that Open MPI asks for, and what is only there to be linked with. */
#include "mxtest.h"

#include "mx_internals/mx__driver_interface.h"
#include "mx_raw.h"

int mx__regcache_clean(void *ptr, size_t length); /* in no header: callers declare it */

static uint32_t number_of(mx_endpoint_t endpoint, mx_get_info_key_t key)
{
    uint32_t board = 0, value = 0x5a5a5a5a;
    OK(mx_get_info(endpoint, key, &board, sizeof board, &value, sizeof value));
    return value;
}

static void facts(mx_endpoint_t endpoint)
{
    EQUAL(1, number_of(endpoint, MX_NIC_COUNT));
    EQUAL(32, number_of(endpoint, MX_MAX_NATIVE_ENDPOINTS));
    EQUAL(0xffffffff, number_of(endpoint, MX_NATIVE_REQUESTS));
    EQUAL(1, number_of(endpoint, MX_PORT_COUNT));
    EQUAL(128, number_of(endpoint, MX_PIO_SEND_MAX));
    EQUAL(32768, number_of(endpoint, MX_COPY_SEND_MAX));
    EQUAL(MX_NET_ETHER, number_of(endpoint, MX_NET_TYPE));
    CHECK(number_of(endpoint, MX_LINE_SPEED) <= MX_SPEED_OPEN_MX);
    number_of(endpoint, MX_NUMA_NODE);
}

static void numbers(void)
{
    mx_endpoint_t endpoint;
    uint64_t ids[2] = {7, 7}, nic;
    uint32_t value;
    begin();
    facts(NULL);
    endpoint = open_any();
    facts(endpoint);
    OK(mx_board_number_to_nic_id(0, &nic));
    OK(mx_get_info(NULL, MX_NIC_IDS, NULL, 0, ids, sizeof ids));
    EQUAL(nic, ids[0]);
    EQUAL(0, ids[1]); /* a zero ends the list */
    /* With an endpoint no board is needed. */
    OK(mx_get_info(endpoint, MX_PORT_COUNT, NULL, 0, &value, sizeof value));
    OK(mx_get_info(endpoint, MX_LINE_SPEED, NULL, 0, &value, sizeof value));
    end(endpoint);
}

/* Callers give the board's number in one, four or eight bytes. */
static void widths_of_the_board(void)
{
    uint8_t one = 0;
    uint32_t four = 0, value;
    uint64_t eight = 0;
    begin();
    OK(mx_get_info(NULL, MX_NUMA_NODE, &one, sizeof one, &value, sizeof value));
    OK(mx_get_info(NULL, MX_NUMA_NODE, &four, sizeof four, &value, sizeof value)); /* as hwloc asks */
    OK(mx_get_info(NULL, MX_NUMA_NODE, &eight, sizeof eight, &value, sizeof value));
    four = 99;
    eight = 99;
    one = 99;
    GIVES(MX_BOARD_UNKNOWN, mx_get_info(NULL, MX_PORT_COUNT, &four, sizeof four, &value, sizeof value));
    GIVES(MX_BOARD_UNKNOWN, mx_get_info(NULL, MX_PORT_COUNT, &eight, sizeof eight, &value, sizeof value));
    GIVES(MX_BOARD_UNKNOWN, mx_get_info(NULL, MX_PORT_COUNT, &one, sizeof one, &value, sizeof value));
    OK(mx_finalize());
}

static void product_texts(void)
{
    static const mx_get_info_key_t keys[] = {MX_PRODUCT_CODE, MX_PART_NUMBER, MX_SERIAL_NUMBER};
    uint32_t board = 0;
    begin();
    for (int at = 0; at < 3; at++) {
        char text[MX_MAX_STR_LEN], cut[4];
        memset(text, 0x7f, sizeof text);
        memset(cut, 0x7f, sizeof cut);
        OK(mx_get_info(NULL, keys[at], &board, sizeof board, text, sizeof text));
        CHECK(memchr(text, 0, sizeof text) != NULL);
        OK(mx_get_info(NULL, keys[at], &board, sizeof board, cut, 3)); /* cut, and still ended */
        CHECK(memchr(cut, 0, 3) != NULL);
        EQUAL(0x7f, cut[3]);
        CHECK(strncmp(text, cut, strlen(cut)) == 0);
    }
    OK(mx_finalize());
}

static void counters(void)
{
    uint32_t count, board = 0, *values;
    char *labels;
    begin();
    count = number_of(NULL, MX_COUNTERS_COUNT);
    CHECK(count > 0 && count < 10000);
    labels = malloc((size_t)count * MX_MAX_STR_LEN);
    values = malloc((size_t)count * sizeof *values);
    CHECK(labels != NULL && values != NULL);
    memset(labels, 0x7f, (size_t)count * MX_MAX_STR_LEN);
    OK(mx_get_info(NULL, MX_COUNTERS_LABELS, &board, sizeof board, labels, count * MX_MAX_STR_LEN));
    OK(mx_get_info(NULL, MX_COUNTERS_VALUES, &board, sizeof board, values, count * (uint32_t)sizeof *values));
    for (uint32_t at = 0; at < count; at++) {
        const char *label = labels + (size_t)at * MX_MAX_STR_LEN;
        CHECK(label[0] != '\0' && memchr(label, 0, MX_MAX_STR_LEN) != NULL);
    }
    GIVES(MX_BAD_INFO_LENGTH,
          mx_get_info(NULL, MX_COUNTERS_VALUES, &board, sizeof board, values, count * (uint32_t)sizeof *values - 1));
    GIVES(MX_BAD_INFO_LENGTH,
          mx_get_info(NULL, MX_COUNTERS_LABELS, &board, sizeof board, labels, count * MX_MAX_STR_LEN - 1));
    /* With an endpoint and no board: no NULL is followed. */
    {
        mx_endpoint_t endpoint = open_any();
        OK(mx_get_info(endpoint, MX_COUNTERS_LABELS, NULL, 0, labels, count * MX_MAX_STR_LEN));
        end(endpoint);
    }
    free(labels);
    free(values);
}

static void refused_questions(void)
{
    static const mx_get_info_key_t words[] = {MX_NIC_COUNT,    MX_MAX_NATIVE_ENDPOINTS, MX_NATIVE_REQUESTS,
                                              MX_COUNTERS_COUNT, MX_PORT_COUNT,          MX_PIO_SEND_MAX,
                                              MX_COPY_SEND_MAX, MX_NUMA_NODE,            MX_NET_TYPE,
                                              MX_LINE_SPEED};
    uint32_t board = 0;
    uint64_t ids[2];
    begin();
    for (size_t at = 0; at < sizeof words / sizeof *words; at++) {
        unsigned char bytes[5] = {7, 7, 7, 7, 7};
        GIVES(MX_BAD_INFO_LENGTH, mx_get_info(NULL, words[at], &board, sizeof board, bytes, 3));
        is_all(bytes, 5, 7); /* and nothing was written */
        GIVES(MX_BAD_INFO_VAL, mx_get_info(NULL, words[at], &board, sizeof board, NULL, 4));
        OK(mx_get_info(NULL, words[at], &board, sizeof board, bytes, 4));
        EQUAL(7, bytes[4]);
    }
    GIVES(MX_BAD_INFO_LENGTH, mx_get_info(NULL, MX_NIC_IDS, NULL, 0, ids, 15));
    GIVES(MX_BAD_INFO_KEY, mx_get_info(NULL, (mx_get_info_key_t)0, &board, sizeof board, ids, sizeof ids));
    GIVES(MX_BAD_INFO_KEY, mx_get_info(NULL, (mx_get_info_key_t)17, &board, sizeof board, ids, sizeof ids));
    OK(mx_finalize());
}

/* Names: the test names the board `rack:0` in the daemon's settings, with the address 02:00:00:00:00:2a. */
static void names(void)
{
    char name[MX_MAX_HOSTNAME_LEN], unknown[MX_MAX_HOSTNAME_LEN] = "rack:1", bare[MX_MAX_HOSTNAME_LEN] = "rack";
    uint64_t nic, found;
    uint32_t board;
    begin();
    OK(mx_board_number_to_nic_id(0, &nic));
    EQUAL(0x02000000002a, nic); /* first octet in bits 47 to 40 */
    OK(mx_nic_id_to_hostname(nic, name));
    CHECK(strcmp(name, "rack:0") == 0);
    OK(mx_hostname_to_nic_id(name, &found));
    EQUAL(nic, found);
    OK(mx_hostname_to_nic_id(bare, &found)); /* a host alone is its first board */
    EQUAL(nic, found);
    OK(mx_nic_id_to_board_number(nic, &board));
    EQUAL(0, board);
    GIVES(MX_HOST_NOT_FOUND, mx_hostname_to_nic_id(unknown, &found));
    GIVES(MX_HOST_NOT_FOUND, mx_nic_id_to_hostname(nic + 1, name));
    GIVES(MX_BOARD_UNKNOWN, mx_nic_id_to_board_number(nic + 1, &board));
    GIVES(MX_BOARD_UNKNOWN, mx_board_number_to_nic_id(1, &found));
    end(open_any());
}

/* As Open MPI's BTL does it, for what tells networks apart. */
static void mapper(void)
{
    mx_endpt_handle_t handle = MX__INVALID_HANDLE;
    mx_mapper_state_t state, again;
    begin();
    OK(mx_open_board(0, &handle));
    CHECK(handle != MX__INVALID_HANDLE);
    memset(&state, 0, sizeof state);
    memset(&again, 0xff, sizeof again);
    again.board_number = 0;
    again.iport = 0;
    OK(mx__get_mapper_state(handle, &state));
    OK(mx__get_mapper_state(handle, &again));
    EQUAL(0, memcmp(state.mapper_mac, again.mapper_mac, sizeof state.mapper_mac));
    EQUAL(0, state.board_number);
    EQUAL(0, state.iport);
    CHECK(mx_open_board(99, &handle) != MX_SUCCESS);
    CHECK(mx__get_mapper_state(MX__INVALID_HANDLE, &state) != MX_SUCCESS);
    OK(mx_finalize());
}

/* Called from hooks of free(): always 0, before mx_init, with endpoints, after mx_finalize. */
static void regcache(void)
{
    static unsigned char bytes[8192];
    mx_endpoint_t endpoint;
    EQUAL(0, mx__regcache_clean(bytes, sizeof bytes));
    EQUAL(0, mx__regcache_clean(NULL, 0));
    begin();
    endpoint = open_any();
    EQUAL(0, mx__regcache_clean(bytes, sizeof bytes));
    EQUAL(0, mx__regcache_clean(NULL, SIZE_MAX));
    end(endpoint);
    EQUAL(0, mx__regcache_clean(bytes, sizeof bytes));
}

static void matching_callback(void *context, uint64_t match, int length)
{
    (void)context, (void)match, (void)length;
}

/* There to be linked with: an error, never an abort. mx_buffered is built from mx_ibuffered, or refused like the rest. */
static void never_implemented(void)
{
    static unsigned char bytes[8];
    mx_endpoint_t endpoint;
    mx_endpoint_addr_t own;
    mx_request_t request = NULL;
    uint32_t result = 2;
    begin();
    endpoint = open_any();
    own = own_address(endpoint);
    CHECK(mx_iput(endpoint, bytes, 8, own, 0, NULL, &request) != MX_SUCCESS);
    CHECK(mx_iget(endpoint, bytes, 8, own, 0, NULL, &request) != MX_SUCCESS);
    CHECK(mx_register_unexp_callback(endpoint, matching_callback, NULL) != MX_SUCCESS);
    request = give(endpoint, own, 1, bytes, 8);
    if (mx_buffered(endpoint, &request, 1000, &result) == MX_SUCCESS)
        EQUAL(1, result);
    receive_well(endpoint, 1, bytes, 8);
    finish_well(endpoint, request);
    end(endpoint);
}

/* Raw endpoints: no board has one, each call says so, and no handler hears of it. */
static int heard;

static mx_return_t hears(char *message, mx_return_t code)
{
    (void)message;
    heard++;
    return code;
}

static void no_raw_endpoints(void)
{
    mx_raw_endpoint_t raw = NULL;
    mx_raw_status_t event = MX_RAW_NO_EVENT;
    mx_line_speed_t speed;
    unsigned char bytes[64] = {0};
    void *context;
    uint32_t port, length = sizeof bytes;
    char name[MX_MAX_HOSTNAME_LEN] = "host:0";
    mx_set_error_handler(hears);
    OK(mx_init());
    GIVES(MX_NO_DEV, mx_raw_open_endpoint(0, NULL, 0, &raw));
    GIVES(MX_BOARD_UNKNOWN, mx_raw_open_endpoint(99, NULL, 0, &raw));
    GIVES(MX_BAD_PARAM_LIST, mx_raw_open_endpoint(0, NULL, 1, &raw));
    CHECK(raw == NULL);
    EQUAL(MX__INVALID_HANDLE, mx_raw_handle(raw));
    GIVES(MX_BAD_ENDPOINT, mx_raw_close_endpoint(raw));
    GIVES(MX_BAD_ENDPOINT, mx_raw_send(raw, 0, NULL, 0, bytes, sizeof bytes, NULL));
    GIVES(MX_BAD_ENDPOINT, mx_raw_next_event(raw, &port, &context, bytes, &length, 1, &event));
    EQUAL(MX_RAW_NO_EVENT, event);
    GIVES(MX_BAD_ENDPOINT, mx_raw_set_route_begin(raw));
    GIVES(MX_BAD_ENDPOINT, mx_raw_set_route_mag(raw, 1, NULL, 0, 0, 0, MX_HOST_MX, 0));
    GIVES(MX_BAD_ENDPOINT, mx_raw_set_route(raw, 1, NULL, 0, 0, 0, MX_HOST_MX));
    GIVES(MX_BAD_ENDPOINT, mx_raw_set_route_end(raw));
    GIVES(MX_BAD_ENDPOINT, mx_raw_clear_routes(raw, 1, 0));
    GIVES(MX_BAD_ENDPOINT, mx_raw_remove_peer(raw, 1));
    GIVES(MX_BAD_ENDPOINT, mx_raw_set_map_version(raw, 0, 1, 1, 1, 1));
    GIVES(MX_BAD_ENDPOINT, mx_raw_num_ports(raw, &port));
    GIVES(MX_BAD_ENDPOINT, mx_raw_line_speed(raw, &speed));
    GIVES(MX_BAD_ENDPOINT, mx_raw_set_hostname(raw, name));
    GIVES(MX_BAD_ENDPOINT, mx_raw_set_peer_name(raw, 1, name));
    GIVES(MX_BAD_ENDPOINT, mx_raw_set_nic_reply_info(raw, bytes, sizeof bytes));
    EQUAL(0, heard);
    OK(mx_finalize());
}

/* Request timeouts are accepted, of one request and of the endpoint. */
static void request_timeouts(void)
{
    mx_endpoint_t endpoint;
    mx_request_t request;
    begin();
    endpoint = open_any();
    OK(mx_set_request_timeout(endpoint, NULL, 60000));
    request = give(endpoint, own_address(endpoint), 1, NULL, 0);
    OK(mx_set_request_timeout(endpoint, request, 60000));
    receive_well(endpoint, 1, NULL, 0);
    finish_well(endpoint, request);
    end(endpoint);
}

MAIN(TEST(numbers), TEST(widths_of_the_board), TEST(product_texts), TEST(counters), TEST(refused_questions), TEST(names),
     TEST(mapper), TEST(regcache), TEST(never_implemented), TEST(no_raw_endpoints), TEST(request_timeouts))
