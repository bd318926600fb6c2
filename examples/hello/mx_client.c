/*
 * Sends a line to the server (mx_server.c) by MX and prints the reply.
 *
 *   cc -o mx_client mx_client.c -lmyriexpress
 *   ./mx_client [BOARD [TEXT [SECONDS]]]
 *
 * BOARD is the name that the server prints; "" (the default) is the first board of this host. The server has to run
 * already. The client waits up to SECONDS (10 by default) for the connection, and as long for the reply.
 */
#include <myriexpress.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As in mx_server.c. */
#define SERVER_ENDPOINT 7
#define KEY 0x68656c6c
#define LINE 1
#define REPLY 2
#define REPLY_BYTES_MAX 512

static void fail(const char *what, const char *reason)
{
    fprintf(stderr, "mx_client: %s: %s\n", what, reason);
    exit(1);
}

static void check(mx_return_t code, const char *call)
{
    if (code != MX_SUCCESS)
        fail(call, mx_strerror(code));
}

/* Waits until the request succeeded. */
static uint32_t wait_for(mx_endpoint_t me, mx_request_t *request, uint32_t timeout_ms, const char *operation)
{
    mx_status_t status;
    uint32_t done = 0;

    check(mx_wait(me, request, timeout_ms, &status, &done), "mx_wait");
    if (!done)
        fail(operation, "not over in time");
    if (status.code != MX_STATUS_SUCCESS)
        fail(operation, mx_strstatus(status.code));
    return status.xfer_length;
}

int main(int argc, char **argv)
{
    char *board = argc > 1 ? argv[1] : "", *text = argc > 2 ? argv[2] : "good morning", reply[REPLY_BYTES_MAX];
    uint32_t len, timeout_ms = 1000 * (uint32_t)(argc > 3 ? atoi(argv[3]) : 10);
    mx_segment_t from = {text, (uint32_t)strlen(text)}, into = {reply, sizeof reply};
    mx_endpoint_t me;
    mx_endpoint_addr_t server;
    mx_request_t sent, received;
    uint64_t nic;

    mx_set_error_handler(MX_ERRORS_RETURN); /* Without this, an error ends the program. */
    check(mx_init(), "mx_init");
    check(mx_open_endpoint(MX_ANY_NIC, MX_ANY_ENDPOINT, KEY, NULL, 0, &me), "mx_open_endpoint");
    check(*board ? mx_hostname_to_nic_id(board, &nic) : mx_board_number_to_nic_id(0, &nic), "the board");
    check(mx_connect(me, nic, SERVER_ENDPOINT, KEY, timeout_ms, &server), "mx_connect");

    check(mx_irecv(me, &into, 1, REPLY, MX_MATCH_MASK_NONE, NULL, &received), "mx_irecv");
    check(mx_isend(me, &from, 1, server, LINE, NULL, &sent), "mx_isend");
    wait_for(me, &sent, timeout_ms, "send");
    len = wait_for(me, &received, timeout_ms, "reply");
    printf("%.*s\n", (int)len, reply);

    check(mx_close_endpoint(me), "mx_close_endpoint");
    check(mx_finalize(), "mx_finalize");
    return 0;
}
