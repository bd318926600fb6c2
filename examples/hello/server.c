/*
 * Replies to each line that a client sends. The client is client.c or client.rs.
 *
 *   cc -o server server.c -listhmus
 *   ./server [NAME]
 *
 * The server attaches under NAME ("hello" by default) and runs until it is interrupted with Ctrl-C.
 */
#include <isthmus.h>
#include <stdio.h>
#include <stdlib.h>

/* The number of the server's endpoint. The clients use the same number. */
#define SERVER_ENDPOINT 0
#define LINE_BYTES_MAX 256

/* Ends the program with a message if a call of the library failed. `me` is null before the program is attached. */
static void check(const isth_domain *me, int32_t result, const char *call)
{
    if (result >= 0)
        return;
    fprintf(stderr, "server: %s: %s\n", call, isth_last_error(me));
    exit(1);
}

/* Waits until the pending operation is over. Returns 1 if it succeeded. */
static int wait_for(isth_domain *me, isth_completion *done, const char *operation)
{
    check(me, isth_wait(me, done, -1), "isth_wait");
    if (done->kind != ISTH_FAILED)
        return 1;
    fprintf(stderr, "server: %s: %s\n", operation, isth_strerror((int32_t)done->reason));
    return 0;
}

int main(int argc, char **argv)
{
    char line[LINE_BYTES_MAX], reply[LINE_BYTES_MAX + 64];
    isth_options options;
    isth_domain *me;
    isth_completion done;
    uint32_t endpoint;

    check(NULL, isth_options_init(&options), "isth_options_init");
    options.name = argc > 1 ? argv[1] : "hello";
    check(NULL, isth_attach(&options, &me), "isth_attach");
    check(me, isth_open(me, SERVER_ENDPOINT, "hello", &endpoint), "isth_open");
    printf("%s is ready\n", isth_domain_name(me));
    fflush(stdout);

    for (;;) {
        check(me, isth_receive(me, endpoint, line, sizeof line, NULL, NULL), "isth_receive");
        if (!wait_for(me, &done, "receive"))
            continue;
        /* `len` is the length of the whole message. The buffer holds its first bytes if it was longer. */
        int len = (int)(done.len < sizeof line ? done.len : sizeof line);
        printf("d%u: %.*s\n", done.from.domain, len, line);
        fflush(stdout);
        int reply_len = snprintf(reply, sizeof reply, "hello, d%u, you said: %.*s", done.from.domain, len, line);
        check(me, isth_send(me, endpoint, done.from, 0, reply, (size_t)reply_len, NULL, NULL), "isth_send");
        /* The bytes of `reply` may not change before the send is over. It fails if the client is gone. */
        wait_for(me, &done, "send");
    }
}
