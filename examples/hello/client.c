/*
 * Sends a line to the server (server.c or server.rs) and prints the reply.
 *
 *   cc -o client client.c -listhmus
 *   ./client [SERVER [TEXT [SECONDS]]]
 *
 * The client waits up to SECONDS (10 by default) for the server to start, and as long for its reply.
 */
#include <isthmus.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number of the server's endpoint, as in server.c. */
#define SERVER_ENDPOINT 0
#define REPLY_BYTES_MAX 512
/* The pause between two attempts to find the server. */
#define RETRY_MS 100

static void fail(const char *what, const char *reason)
{
    fprintf(stderr, "client: %s: %s\n", what, reason);
    exit(1);
}

/* Ends the program if a call of the library failed. `me` is null before the program is attached. */
static void check(const isth_domain *me, int32_t result, const char *what)
{
    if (result < 0)
        fail(what, isth_last_error(me));
}

/* Returns the number of the domain called `name`, as soon as there is one. */
static uint32_t find(isth_domain *me, const char *name, int timeout_ms)
{
    int pauses = timeout_ms / RETRY_MS;
    isth_completion none;
    uint32_t found = 0;
    int32_t result;

    while ((result = isth_lookup(me, name, &found)) == -ISTH_REASON_NO_SUCH_DOMAIN && pauses > 0) {
        if (pauses-- == timeout_ms / RETRY_MS) {
            printf("waiting for %s\n", name);
            fflush(stdout);
        }
        check(me, isth_wait(me, &none, RETRY_MS), "isth_wait"); /* No operation is pending: waits for the whole time. */
    }
    check(me, result, name);
    return found;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "hello", *text = argc > 2 ? argv[2] : "good morning";
    int timeout_ms = 1000 * (argc > 3 ? atoi(argv[3]) : 10);
    char reply[REPLY_BYTES_MAX];
    isth_address server = {0, SERVER_ENDPOINT};
    isth_domain *me;
    isth_completion done;
    uint32_t endpoint;

    check(NULL, isth_attach(NULL, &me), "isth_attach");
    check(me, isth_open(me, ISTH_ENDPOINT_ANY, "hello", &endpoint), "isth_open");
    server.domain = find(me, name, timeout_ms);

    /* Both calls return at once. A completion says when an operation is over. */
    check(me, isth_receive(me, endpoint, reply, sizeof reply, NULL, NULL), "isth_receive");
    check(me, isth_send(me, endpoint, server, 0, text, strlen(text), NULL, NULL), "isth_send");
    do {
        int32_t count = isth_wait(me, &done, timeout_ms);
        check(me, count, "isth_wait");
        if (count == 0)
            fail(name, "no reply in time");
        if (done.kind == ISTH_FAILED)
            fail(name, isth_strerror((int32_t)done.reason));
    } while (done.kind != ISTH_RECEIVED);

    printf("%s: %.*s\n", name, (int)(done.len < sizeof reply ? done.len : sizeof reply), reply);
    check(NULL, isth_detach(me, timeout_ms), "isth_detach");
    return 0;
}
