/*
 * Posts receives for three kinds of work without keeping their handles, and waits for each kind by its bits of the match
 * information.
 *
 *   mx_waitany -n 1000
 *
 * A child process sends, the parent receives; they fork before the first call of MX.
 */
#include "mx_example.h"

#include <sys/wait.h>

static const char usage[] = "usage: mx_waitany [-n MESSAGES] [-t SECONDS]\n"
                            "  -n  messages of each kind [1000]\n"
                            "  -t  gives up after this time [60]\n";

enum { KINDS = 3, MESSAGES_MAX = 1 << 20 };

/* The kind stands in the upper byte, the number of the message below. */
#define KIND_MASK (UINT64_C(0xff) << 56)

static uint64_t match_of(uint64_t kind, uint64_t message)
{
    return (kind + 1) << 56 | message;
}

static mx_status_t wait_for(mx_endpoint_t endpoint, uint64_t match, uint64_t mask)
{
    mx_status_t status;
    uint32_t done = 0;
    MX(mx_wait_any(endpoint, MX_INFINITE, match, mask, &status, &done));
    if (!done)
        fail("mx_wait_any without a limit came back with nothing");
    mx_ended_well(&status, "a request ended with");
    return status;
}

/* The receives of one kind, and no others, in the order in which they completed. */
static void take_all_of(mx_endpoint_t endpoint, uint64_t kind, const uint64_t *received, uint64_t messages)
{
    for (uint64_t message = 0; message < messages; message++) {
        mx_status_t status = wait_for(endpoint, match_of(kind, 0), KIND_MASK);
        if (status.match_info != match_of(kind, message))
            fail("a message out of order");
        if (status.context != &received[message] || received[message] != status.match_info)
            fail("a message went to another's receive");
    }
}

static void post_all(mx_endpoint_t endpoint, uint64_t kind, uint64_t *received, uint64_t messages)
{
    for (uint64_t message = 0; message < messages; message++) {
        mx_segment_t segment = {&received[message], sizeof *received};
        mx_request_t forgotten; /* wait_any will hand out its result */
        MX(mx_irecv(endpoint, &segment, 1, match_of(kind, message), MX_MATCH_MASK_NONE, &received[message],
                    &forgotten));
    }
}

/* The parent: everything is posted before the child hears where to send it. */
static void receive_all(int child, uint64_t messages)
{
    uint64_t *received = calloc(KINDS * messages, sizeof *received);
    mx_endpoint_t endpoint;
    struct place place;
    if (received == NULL)
        fail("no memory");
    MX(mx_init());
    endpoint = open_endpoint(MX_ANY_ENDPOINT);
    for (uint64_t kind = 0; kind < KINDS; kind++)
        post_all(endpoint, kind, &received[kind * messages], messages);
    place = place_of(endpoint, EXAMPLE_KEY);
    if (write(child, &place, sizeof place) != sizeof place)
        fail("the sender has gone");
    for (uint64_t kind = KINDS; kind-- > 0;)
        take_all_of(endpoint, kind, &received[kind * messages], messages);
    printf("%" PRIu64 " messages of each of %d kinds\n", messages, KINDS);
    MX(mx_close_endpoint(endpoint));
    MX(mx_finalize());
    free(received);
}

/* The child: sends all kinds in turn, and waits for no send in particular. */
static void send_all(int parent, uint64_t messages)
{
    uint64_t *sent = calloc(KINDS * messages, sizeof *sent);
    mx_endpoint_t endpoint;
    mx_endpoint_addr_t to;
    struct place place;
    if (sent == NULL)
        fail("no memory");
    if (read(parent, &place, sizeof place) != sizeof place)
        fail("the receiver has gone");
    MX(mx_init());
    endpoint = open_endpoint(MX_ANY_ENDPOINT);
    to = connect_to(endpoint, place);
    for (uint64_t message = 0; message < messages; message++)
        for (uint64_t kind = 0; kind < KINDS; kind++) {
            uint64_t *word = &sent[kind * messages + message];
            *word = match_of(kind, message);
            post_send(endpoint, to, *word, word, sizeof *word);
        }
    for (uint64_t message = 0; message < KINDS * messages; message++)
        wait_for(endpoint, 0, 0); /* a mask of nothing takes any request */
    MX(mx_close_endpoint(endpoint));
    MX(mx_finalize());
    free(sent);
}

int main(int argc, char **argv)
{
    uint64_t messages = 1000;
    unsigned seconds = 60;
    int option, status, fds[2];
    pid_t child;

    while ((option = getopt(argc, argv, "n:t:h")) != -1) {
        switch (option) {
        case 'n': messages = number(optarg, 1, MESSAGES_MAX); break;
        case 't': seconds = (unsigned)number(optarg, 1, UINT32_MAX); break;
        default: fputs(usage, option == 'h' ? stdout : stderr); return option == 'h' ? 0 : USAGE;
        }
    }
    if (pipe(fds) != 0 || (child = fork()) < 0)
        fail("a second process is refused");
    alarm(seconds);
    if (child == 0) {
        close(fds[1]);
        send_all(fds[0], messages);
        return 0;
    }
    close(fds[0]);
    receive_all(fds[1], messages);
    return waitpid(child, &status, 0) == child && status == 0 ? 0 : FAILED;
}
