/* Cases of two programs on one connection, which print what each call returned: the kernel's transcript is the reference.
 *
 *   PROGRAM --list                                  the cases, each with a tab and what it does
 *   PROGRAM acceptor CASE [swapped]                 prints `port N` first
 *   PROGRAM connector CASE PORT [swapped]           begins the case when it reads a line
 *
 * The connector runs the first part of the case, the acceptor the second; `swapped` exchanges the parts. Descriptor 3 is a Unix
 * socket between both, by which they wait for each other. Transcripts have no addresses, times or numbers of descriptors.
 */
#ifndef CASES_H
#define CASES_H

#include "sockets.h"

enum { CONTROL = 3, WARM_BYTES = 8192, WARM_ROUNDS = 20, LAST_ROUNDS = 4 };

struct test_case {
    const char *name;
    void (*first)(int fd), (*second)(int fd);
    const char *what; /* For the page of users, of the first part. */
};

/* Prints a call and its result. */
#define SAY(call) say(#call, (errno = 0, (long)(call)))

static inline void say(const char *call, long result)
{
    if (result < 0)
        printf("%s = %ld %s\n", call, result, strerrorname_np(errno));
    else
        printf("%s = %ld\n", call, result);
}

/* Waits until the other program has come to its next `step`; false if it has ended. */
static inline bool step(void)
{
    char byte = 's';
    ssize_t got;
    if (send(CONTROL, &byte, 1, MSG_NOSIGNAL) != 1)
        return false;
    do
        got = recv(CONTROL, &byte, 1, 0);
    while (got < 0 && errno == EINTR);
    return got == 1;
}

/* Waits until the other program has ended. Its connection may end later. */
static inline void wait_for_end(void)
{
    while (step())
        continue;
}

/* Lets others run between two looks at something that has no event. */
static inline void pause_between_looks(void)
{
    poll(NULL, 0, 1);
}

/* Waits until this number of bytes can be read. */
static inline void await_unread(int fd, int wanted)
{
    for (int unread = 0; unread < wanted; pause_between_looks())
        CHECK(ioctl(fd, FIONREAD, &unread) == 0);
}

static inline void print_mask(const char *call, unsigned mask)
{
    static const struct {
        unsigned bit;
        const char *name;
    } names[] = {{POLLIN, "IN"}, {POLLPRI, "PRI"}, {POLLOUT, "OUT"}, {POLLERR, "ERR"}, {POLLHUP, "HUP"}, {POLLRDHUP, "RDHUP"}};
    const char *between = "";
    printf("%s = ", call);
    for (unsigned at = 0; at < sizeof names / sizeof *names; at++)
        if (mask & names[at].bit)
            printf("%s%s", between, names[at].name), between = "|";
    printf("%s\n", *between ? "" : "none");
}

/* Prints what poll reports now. */
static inline unsigned print_poll(int fd)
{
    struct pollfd polled = {fd, POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0};
    CHECK(poll(&polled, 1, 0) >= 0);
    print_mask("poll", (unsigned)polled.revents);
    return (unsigned)polled.revents;
}

/* Waits until poll reports all these bits, and prints all that it reports. */
static inline void await_poll(int fd, short bits)
{
    for (short seen = 0; (seen & bits) != bits;) {
        struct pollfd polled = {fd, bits, 0};
        CHECK(poll(&polled, 1, -1) == 1);
        seen = polled.revents;
        if ((seen & bits) != bits)
            pause_between_looks();
    }
    print_poll(fd);
}

/* Prints the event that an epoll set reports; waits for it. */
static inline void print_epoll(const char *name, int set, int timeout_ms)
{
    struct epoll_event events[4];
    int ready = epoll_wait(set, events, 4, timeout_ms);
    CHECK(ready >= 0);
    if (ready == 0)
        printf("%s = nothing\n", name);
    for (int at = 0; at < ready; at++) {
        CHECK(events[at].data.u64 == 77);
        print_mask(name, events[at].events);
    }
}

static inline int epoll_set_of(int fd, uint32_t wanted)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = wanted, .data.u64 = 77};
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    return set;
}

/* Writes the bytes of the stream `salt`, all of them. */
static inline void send_stream(int fd, uint64_t salt, size_t length)
{
    uint8_t *bytes = malloc(length);
    CHECK(bytes);
    fill(salt, 0, bytes, length);
    write_all(fd, bytes, length);
    free(bytes);
}

/* Fails unless these bytes belong at this position of the stream `salt`. */
static inline void check_stream(const void *bytes, uint64_t salt, size_t at, size_t length)
{
    uint8_t *expected = malloc(length + 1);
    CHECK(expected);
    fill(salt, at, expected, length);
    if (memcmp(bytes, expected, length) != 0)
        FAIL("wrong contents between %zu and %zu", at, at + length);
    free(expected);
}

/* Reads the bytes of the stream `salt`. */
static inline void receive_stream(int fd, uint64_t salt, size_t length)
{
    uint8_t *bytes = malloc(length);
    CHECK(bytes && read_all(fd, bytes, length));
    check_stream(bytes, salt, 0, length);
    free(bytes);
}

/* True once there is a line at standard input. */
static inline bool is_told_to_go_on(void)
{
    struct pollfd polled = {STDIN_FILENO, POLLIN, 0};
    CHECK(poll(&polled, 1, 0) >= 0);
    return polled.revents != 0;
}

/* Exchanges more than a library needs to see before it acts, and goes on until the connector has a line at standard input; then some
 * more, so that both ends have seen what the other did. No message is under way when it returns. */
static inline void warm_up(int fd, bool is_connector)
{
    static char bytes[WARM_BYTES];
    for (int left = WARM_ROUNDS; left > 0;) {
        if (is_connector) {
            left -= left > LAST_ROUNDS || is_told_to_go_on();
            bytes[0] = (char)left;
            write_all(fd, bytes, sizeof bytes);
            CHECK(read_all(fd, bytes, sizeof bytes));
        } else {
            CHECK(read_all(fd, bytes, sizeof bytes));
            left = bytes[0];
            write_all(fd, bytes, sizeof bytes);
        }
    }
}

static inline int run_cases(const struct test_case *cases, size_t count, int words_count, char **words)
{
    begin();
    if (words_count >= 2 && strcmp(words[1], "--list") == 0) {
        for (size_t at = 0; at < count; at++)
            printf("%s\t%s\n", cases[at].name, cases[at].what);
        return 0;
    }
    CHECK(words_count >= 3);
    bool is_connector = strcmp(words[1], "connector") == 0, swapped = strcmp(words[words_count - 1], "swapped") == 0;
    const struct test_case *found = NULL;
    for (size_t at = 0; at < count; at++)
        if (strcmp(cases[at].name, words[2]) == 0)
            found = &cases[at];
    CHECK(found);
    int listener = is_connector ? -1 : listening("127.0.0.1", 1);
    int fd = is_connector ? connected("127.0.0.1", atoi(words[3])) : accepted(listener);
    int one = 1;
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    warm_up(fd, is_connector);
    CHECK(step());
    (is_connector != swapped ? found->first : found->second)(fd);
    printf("done\n");
    return 0;
}

#define RUN_CASES(cases) run_cases(cases, sizeof(cases) / sizeof *(cases), count, words)

#endif
