/* Initialisation, and the opening and closing of endpoints. */
#include "mxtest.h"

static void bad_api(void)
{
    mx_set_error_handler(MX_ERRORS_RETURN);
    GIVES(MX_BAD_LIB_VERSION, mx__init_api(0));
    GIVES(MX_BAD_LIB_VERSION, mx__init_api(0x201));
    GIVES(MX_BAD_LIB_VERSION, mx__init_api(0x401));
    OK(mx__init_api(0x300)); /* what Open MPI of 2005 was built for */
    OK(mx_finalize());
    OK(mx__init_api(0x3ff));
    OK(mx_finalize());
}

static void init_twice(void)
{
    begin();
    GIVES(MX_ALREADY_INITIALIZED, mx_init());
    end(open_any());
    for (int again = 0; again < 3; again++) {
        OK(mx_init());
        end(open_any());
    }
}

/* A name of a host, a handle and an address that are worth nothing; only the missing mx_init() counts. */
static void before_init(void)
{
    mx_endpoint_t endpoint = NULL;
    mx_endpoint_addr_t address = {{0, 0}};
    mx_request_t request = NULL;
    mx_status_t status;
    uint64_t nic;
    uint32_t value;
    char name[MX_MAX_HOSTNAME_LEN] = "host:0";
    mx_return_t code;

    mx_set_error_handler(MX_ERRORS_RETURN);
    GIVES(MX_NOT_INITIALIZED, mx_open_endpoint(MX_ANY_NIC, MX_ANY_ENDPOINT, KEY, NULL, 0, &endpoint));
    GIVES(MX_NOT_INITIALIZED, mx_close_endpoint(endpoint));
    GIVES(MX_NOT_INITIALIZED, mx_isend(endpoint, NULL, 0, address, 0, NULL, &request));
    GIVES(MX_NOT_INITIALIZED, mx_irecv(endpoint, NULL, 0, 0, 0, NULL, &request));
    GIVES(MX_NOT_INITIALIZED, mx_test(endpoint, &request, &status, &value));
    GIVES(MX_NOT_INITIALIZED, mx_wait_any(endpoint, 1, 0, 0, &status, &value));
    GIVES(MX_NOT_INITIALIZED, mx_connect(endpoint, 1, 1, KEY, 1, &address));
    GIVES(MX_NOT_INITIALIZED, mx_get_info(NULL, MX_NIC_COUNT, NULL, 0, &value, sizeof value));
    GIVES(MX_NOT_INITIALIZED, mx_hostname_to_nic_id(name, &nic));
    GIVES(MX_NOT_INITIALIZED, mx_board_number_to_nic_id(0, &nic));
    GIVES(MX_NOT_INITIALIZED, mx_nic_id_to_board_number(1, &value));
    GIVES(MX_NOT_INITIALIZED, mx_nic_id_to_hostname(1, name));
    GIVES(MX_NOT_INITIALIZED, mx_progress(endpoint));
    code = mx_finalize(); /* checked or not: both are known */
    CHECK(code == MX_SUCCESS || code == MX_NOT_INITIALIZED);
    OK(mx_init());
    end(open_any());
    GIVES(MX_NOT_INITIALIZED, mx_board_number_to_nic_id(0, &nic));
}

/* The peer of a process that finalises without closing, with everything pending. */
static void outlives_a_finalize(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer);
    unsigned char *big = room(100000);
    mx_request_t receiving = post(endpoint, 77, big, 100000);
    mx_status_t status;
    uint32_t result;
    uint64_t begun;

    mark_end(endpoint, peer);
    hear(other, 'F');
    /* It had announced a message; that can no longer be had, and whatever is sent to it ends soon. */
    begun = now_ms();
    status = finish(endpoint, give_sync(endpoint, peer, 1, NULL, 0));
    CHECK(status.code == MX_STATUS_ENDPOINT_CLOSED || status.code == MX_STATUS_ENDPOINT_UNREACHABLE);
    CHECK(now_ms() - begun < NOTICE_MS);
    OK(mx_cancel(endpoint, &receiving, &result)); /* never matched, or matched and ended */
    if (result == 0)
        CHECK(finish(endpoint, receiving).code != MX_STATUS_SUCCESS);
    tell(other, 'G');
    end(endpoint);
    free(big);
}

static void finalizes_with_all_pending(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t endpoint = join(other, &peer), second = open_any(), again;
    unsigned char *big = room(100000);
    struct place place = place_of(endpoint);
    mx_request_t request;

    await_end(endpoint);
    post(endpoint, 5, big, 100);
    post_masked(second, 0, 0, big, 100);
    give_sync(endpoint, peer, 9, big, 0);
    give(endpoint, peer, 9, big, 100000);
    OK(mx_iconnect(endpoint, place_of(second).nic, place_of(second).id, KEY, 3, NULL, &request));
    OK(mx_finalize());
    tell(other, 'F');
    GIVES(MX_NOT_INITIALIZED, mx_test(endpoint, &request, NULL, NULL));
    OK(mx_init());
    /* The number is free again: finalising closed what was open. */
    OK(mx_open_endpoint(0, place.id, KEY, NULL, 0, &again));
    hear(other, 'G');
    end(again);
    free(big);
}

static void finalize_pending(void)
{
    pair(outlives_a_finalize, finalizes_with_all_pending);
}

static void endpoint_numbers(void)
{
    mx_endpoint_t all[32], more = NULL;
    begin();
    GIVES(MX_BOARD_UNKNOWN, mx_open_endpoint(99, 0, KEY, NULL, 0, &more));
    GIVES(MX_BAD_ENDPOINT, mx_open_endpoint(0, 32, KEY, NULL, 0, &more));
    GIVES(MX_BAD_ENDPOINT, mx_open_endpoint(0, MX_ANY_ENDPOINT - 1, KEY, NULL, 0, &more));
    OK(mx_open_endpoint(0, 5, KEY, NULL, 0, &all[5]));
    GIVES(MX_BUSY, mx_open_endpoint(0, 5, KEY, NULL, 0, &more));
    GIVES(MX_BUSY, mx_open_endpoint(MX_ANY_NIC, 5, KEY, NULL, 0, &more));
    for (uint32_t at = 0; at < 32; at++)
        if (at != 5) {
            OK(mx_open_endpoint(at % 2 ? 0 : MX_ANY_NIC, MX_ANY_ENDPOINT, KEY, NULL, 0, &all[at]));
            EQUAL(at, place_of(all[at]).id); /* the lowest free one */
        }
    GIVES(MX_BUSY, mx_open_endpoint(MX_ANY_NIC, MX_ANY_ENDPOINT, KEY, NULL, 0, &more));
    GIVES(MX_BUSY, mx_open_endpoint(0, MX_ANY_ENDPOINT, KEY, NULL, 0, &more));
    OK(mx_close_endpoint(all[17]));
    all[17] = open_any();
    EQUAL(17, place_of(all[17]).id);
    for (int at = 0; at < 32; at++)
        OK(mx_close_endpoint(all[at]));
    OK(mx_finalize());
}

static mx_return_t handler_of_mine(char *message, mx_return_t code)
{
    (void)message;
    return code;
}

static void parameters(void)
{
    mx_param_t params[3];
    mx_endpoint_t endpoint;
    memset(params, 0, sizeof params);
    begin();
    GIVES(MX_BAD_PARAM_LIST, mx_open_endpoint(0, 0, KEY, NULL, 1, &endpoint));
    params[0].key = (mx_param_key_t)17;
    GIVES(MX_BAD_PARAM_NAME, mx_open_endpoint(0, 0, KEY, params, 1, &endpoint));
    params[0].key = MX_PARAM_CONTEXT_ID;
    params[0].val.context_id.bits = 17;
    GIVES(MX_BAD_PARAM_VAL, mx_open_endpoint(0, 0, KEY, params, 1, &endpoint));
    params[0].val.context_id.bits = 2;
    params[0].val.context_id.shift = 63;
    GIVES(MX_BAD_PARAM_VAL, mx_open_endpoint(0, 0, KEY, params, 1, &endpoint));
    params[0].val.context_id.bits = 16;
    params[0].val.context_id.shift = 48;
    params[1].key = MX_PARAM_UNEXP_QUEUE_MAX;
    params[1].val.unexp_queue_max = 1 << 20;
    params[2].key = MX_PARAM_ERROR_HANDLER;
    params[2].val.error_handler = handler_of_mine;
    OK(mx_open_endpoint(0, 0, KEY, params, 3, &endpoint)); /* and no refused call above kept the number */
    end(endpoint);
}

static void all_refuse(mx_endpoint_t gone)
{
    mx_endpoint_addr_t address = {{0, 0}};
    mx_request_t request = NULL;
    mx_status_t status;
    uint32_t value;

    GIVES(MX_BAD_ENDPOINT, mx_close_endpoint(gone));
    GIVES(MX_BAD_ENDPOINT, mx_wakeup(gone));
    GIVES(MX_BAD_ENDPOINT, mx_progress(gone));
    GIVES(MX_BAD_ENDPOINT, mx_disable_progression(gone));
    GIVES(MX_BAD_ENDPOINT, mx_reenable_progression(gone));
    GIVES(MX_BAD_ENDPOINT, mx_isend(gone, NULL, 0, address, 0, NULL, &request));
    GIVES(MX_BAD_ENDPOINT, mx_issend(gone, NULL, 0, address, 0, NULL, &request));
    GIVES(MX_BAD_ENDPOINT, mx_irecv(gone, NULL, 0, 0, 0, NULL, &request));
    GIVES(MX_BAD_ENDPOINT, mx_test(gone, &request, &status, &value));
    GIVES(MX_BAD_ENDPOINT, mx_wait(gone, &request, 1, &status, &value));
    GIVES(MX_BAD_ENDPOINT, mx_test_any(gone, 0, 0, &status, &value));
    GIVES(MX_BAD_ENDPOINT, mx_wait_any(gone, 1, 0, 0, &status, &value));
    GIVES(MX_BAD_ENDPOINT, mx_iprobe(gone, 0, 0, &status, &value));
    GIVES(MX_BAD_ENDPOINT, mx_probe(gone, 1, 0, 0, &status, &value));
    GIVES(MX_BAD_ENDPOINT, mx_ipeek(gone, &request, &value));
    GIVES(MX_BAD_ENDPOINT, mx_peek(gone, 1, &request, &value));
    GIVES(MX_BAD_ENDPOINT, mx_cancel(gone, &request, &value));
    GIVES(MX_BAD_ENDPOINT, mx_connect(gone, 1, 1, KEY, 1, &address));
    GIVES(MX_BAD_ENDPOINT, mx_iconnect(gone, 1, 1, KEY, 1, NULL, &request));
    GIVES(MX_BAD_ENDPOINT, mx_disconnect(gone, address));
    GIVES(MX_BAD_ENDPOINT, mx_forget(gone, &request));
    GIVES(MX_BAD_ENDPOINT, mx_get_endpoint_addr(gone, &address));
    GIVES(MX_BAD_ENDPOINT, mx_register_unexp_handler(gone, NULL, NULL));
    GIVES(MX_BAD_ENDPOINT, mx_set_request_timeout(gone, NULL, 100));
}

/* A handle that is no open endpoint is told as such, even when another endpoint has its place. */
static void closed_handles(void)
{
    mx_endpoint_t gone, next;
    begin();
    gone = open_any();
    OK(mx_close_endpoint(gone));
    all_refuse(gone);
    all_refuse(NULL);
    next = open_any();
    EQUAL(0, place_of(next).id);
    if (next != gone) /* the same value again would be a good handle */
        all_refuse(gone);
    end(next);
}

static uint32_t session_of(mx_endpoint_t endpoint)
{
    uint32_t id, session;
    uint64_t nic;
    OK(mx_decompose_endpoint_addr2(own_address(endpoint), &nic, &id, &session));
    EQUAL(place_of(endpoint).nic, nic);
    EQUAL(place_of(endpoint).id, id);
    return session;
}

static void sessions(void)
{
    uint32_t seen[8];
    begin();
    for (int at = 0; at < 8; at++) {
        mx_endpoint_t endpoint = open_any();
        seen[at] = session_of(endpoint);
        EQUAL(seen[at], session_of(endpoint));
        for (int before = 0; before < at; before++)
            CHECK(seen[before] != seen[at]);
        OK(mx_close_endpoint(endpoint));
    }
    OK(mx_finalize());
}

/* With two boards: endpoint number in the outer loop, board in the inner one. */
static void two_boards(void)
{
    mx_endpoint_t all[64];
    uint64_t nics[3], found;
    uint32_t count, board;
    begin();
    OK(mx_get_info(NULL, MX_NIC_COUNT, NULL, 0, &count, sizeof count));
    EQUAL(2, count);
    OK(mx_get_info(NULL, MX_NIC_IDS, NULL, 0, nics, sizeof nics));
    CHECK(nics[0] != nics[1] && nics[0] != 0 && nics[1] != 0);
    EQUAL(0, nics[2]);
    for (uint32_t at = 0; at < 64; at++) {
        all[at] = open_any();
        EQUAL(at / 2, place_of(all[at]).id);
        OK(mx_nic_id_to_board_number(place_of(all[at]).nic, &board));
        EQUAL(at % 2, board);
        OK(mx_board_number_to_nic_id(board, &found));
        EQUAL(nics[board], found);
    }
    /* Endpoints of two boards talk to each other. */
    send_well(all[0], connect_to(all[0], place_of(all[63])), 1, NULL, 0);
    CHECK(same_endpoint(receive_well(all[63], 1, NULL, 0).source, own_address(all[0])));
    for (int at = 0; at < 64; at++)
        OK(mx_close_endpoint(all[at]));
    OK(mx_finalize());
}

MAIN(TEST(bad_api), TEST(init_twice), TEST(before_init), TEST(finalize_pending), TEST(endpoint_numbers), TEST(parameters),
     TEST(closed_handles), TEST(sessions), TEST(two_boards))
