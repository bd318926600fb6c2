/*
 * Replies to each line that a client sends, by MX. The client is mx_client.c.
 *
 *   cc -o mx_server mx_server.c -lmyriexpress
 *   ./mx_server
 *
 * The server prints the name of its board and runs until it is interrupted with Ctrl-C.
 */
#include <myriexpress.h>
#include <stdio.h>
#include <stdlib.h>

/* The clients use the same numbers. */
#define SERVER_ENDPOINT 7
#define KEY 0x68656c6c
#define LINE 1  /* match information of a client's message */
#define REPLY 2 /* match information of the server's message */
#define LINE_BYTES_MAX 256

static void check(mx_return_t code, const char *call)
{
    if (code == MX_SUCCESS)
        return;
    fprintf(stderr, "mx_server: %s: %s\n", call, mx_strerror(code));
    exit(1);
}

/* Waits until the request is over. Returns 1 if it succeeded; a message that is too long counts as received. */
static int wait_for(mx_endpoint_t me, mx_request_t *request, mx_status_t *status, const char *operation)
{
    uint32_t done = 0;

    while (!done)
        check(mx_wait(me, request, MX_INFINITE, status, &done), "mx_wait");
    if (status->code == MX_STATUS_SUCCESS || status->code == MX_STATUS_TRUNCATED)
        return 1;
    fprintf(stderr, "mx_server: %s: %s\n", operation, mx_strstatus(status->code));
    return 0;
}

int main(void)
{
    char board[MX_MAX_HOSTNAME_LEN], line[LINE_BYTES_MAX], reply[LINE_BYTES_MAX + 64];
    mx_endpoint_t me;
    mx_endpoint_addr_t own;
    uint64_t nic;
    uint32_t endpoint;

    mx_set_error_handler(MX_ERRORS_RETURN); /* Without this, an error ends the program. */
    check(mx_init(), "mx_init");
    check(mx_open_endpoint(MX_ANY_NIC, SERVER_ENDPOINT, KEY, NULL, 0, &me), "mx_open_endpoint");
    check(mx_get_endpoint_addr(me, &own), "mx_get_endpoint_addr");
    check(mx_decompose_endpoint_addr(own, &nic, &endpoint), "mx_decompose_endpoint_addr");
    check(mx_nic_id_to_hostname(nic, board), "mx_nic_id_to_hostname");
    printf("%s is ready\n", board);
    fflush(stdout);

    for (;;) {
        mx_segment_t into = {line, sizeof line}, from = {reply, 0};
        mx_request_t request;
        mx_status_t status;

        check(mx_irecv(me, &into, 1, LINE, MX_MATCH_MASK_NONE, NULL, &request), "mx_irecv");
        if (!wait_for(me, &request, &status, "receive"))
            continue;
        printf("%.*s\n", (int)status.xfer_length, line);
        fflush(stdout);
        from.segment_length = (uint32_t)snprintf(reply, sizeof reply, "you said: %.*s", (int)status.xfer_length, line);
        check(mx_isend(me, &from, 1, status.source, REPLY, NULL, &request), "mx_isend");
        /* The bytes of `reply` may not change before the send is over. It fails if the client is gone. */
        wait_for(me, &request, &status, "send");
    }
}
