/*
 * What the test programs share. A program holds several cases; `PROGRAM CASE` runs one, `PROGRAM --list` names them.
 *
 * A case that needs several processes forks them before the first call of MX: `start` runs a role in a child, and parent
 * and child talk through a socket (`tell`, `hear`). Nothing waits for time to pass; SIGALRM ends a process that hangs.
 */
#ifndef MXTEST_H
#define MXTEST_H

#define _GNU_SOURCE

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "myriexpress.h"
#include "mx_extensions.h"

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

/* Two numbers that must be equal; shows both. */
#define EQUAL(expected, value) equal((uint64_t)(expected), (uint64_t)(value), #value, __FILE__, __LINE__)

static inline void equal(uint64_t expected, uint64_t value, const char *what, const char *file, int line)
{
    if (value == expected)
        return;
    fprintf(stderr, "%s:%d: %s is %" PRIu64 " (%#" PRIx64 ") instead of %" PRIu64 " (%#" PRIx64 ")\n", file, line, what,
            value, value, expected, expected);
    exit(1);
}

/* A call that must answer this. */
#define GIVES(expected, call) gives((expected), (call), #call, __FILE__, __LINE__)
#define OK(call) GIVES(MX_SUCCESS, call)

static inline void gives(mx_return_t expected, mx_return_t code, const char *call, const char *file, int line)
{
    if (code == expected)
        return;
    fprintf(stderr, "%s:%d: %s answers %d (%s) instead of %d (%s)\n", file, line, call, (int)code, mx_strerror(code),
            (int)expected, mx_strerror(expected));
    exit(1);
}

/* A status with this code. */
#define ENDED(expected, status) ended((expected), (status), __FILE__, __LINE__)

static inline void ended(mx_status_code_t expected, mx_status_t status, const char *file, int line)
{
    if (status.code == expected)
        return;
    fprintf(stderr, "%s:%d: a request ended with %d (%s) instead of %d (%s)\n", file, line, (int)status.code,
            mx_strstatus(status.code), (int)expected, mx_strstatus(expected));
    exit(1);
}

/* How long a program may take, in seconds; a bound on hangs. */
enum { PATIENCE = 60 };

#define KEY 0x1234abcdu

/* Cases. */

struct test {
    const char *name;
    void (*run)(void);
};

#define TEST(name) {#name, name}

static int run_tests(int argc, char **argv, const struct test *tests, size_t count)
{
    CHECK(argc == 2);
    alarm(PATIENCE);
    for (size_t at = 0; at < count; at++) {
        if (strcmp(argv[1], "--list") == 0)
            puts(tests[at].name);
        if (strcmp(argv[1], tests[at].name) == 0) {
            tests[at].run();
            puts("done");
            return 0;
        }
    }
    return strcmp(argv[1], "--list") == 0 ? 0 : 2;
}

#define MAIN(...) \
    int main(int argc, char **argv) \
    { \
        static const struct test tests[] = {__VA_ARGS__}; \
        return run_tests(argc, argv, tests, sizeof tests / sizeof *tests); \
    }

/* Processes. */

struct other {
    int fd;
    pid_t pid;
};

static inline void put(struct other other, const void *bytes, size_t length)
{
    CHECK(write(other.fd, bytes, length) == (ssize_t)length);
}

static inline void get(struct other other, void *bytes, size_t length)
{
    for (size_t have = 0; have < length;) {
        ssize_t more = read(other.fd, (char *)bytes + have, length - have);
        if (more < 0 && errno == EINTR)
            continue;
        CHECK(more > 0); /* 0: the other one has gone; it has said why */
        have += (size_t)more;
    }
}

static inline void tell(struct other other, char word)
{
    put(other, &word, 1);
}

static inline void hear(struct other other, char word)
{
    char heard;
    get(other, &heard, 1);
    EQUAL(word, heard);
}

/* Both say where they are, and go on when the other is there too. */
static inline void meet_at(struct other other, char word)
{
    tell(other, word);
    hear(other, word);
}

/* Children that have to succeed. One that fails ends us too, because its peers would wait for its messages for ever. */
static volatile pid_t children[8];
static volatile sig_atomic_t children_count;

static inline void child_ended(int signal)
{
    static const char text[] = "a process of this case has failed\n";
    int kept = errno;
    (void)signal;
    for (int at = 0; at < children_count; at++) {
        siginfo_t info;
        info.si_pid = 0;
        if (children[at] == 0 || waitid(P_PID, (id_t)children[at], &info, WEXITED | WNOHANG | WNOWAIT) != 0)
            continue;
        if (info.si_pid != 0 && (info.si_code != CLD_EXITED || info.si_status != 0))
            _exit(write(2, text, sizeof text - 1) > 0 ? 1 : 3);
    }
    errno = kept;
}

/* From now on its end is no failure of the case, or is waited for elsewhere. */
static inline void let_go(pid_t child)
{
    for (int at = 0; at < children_count; at++)
        if (children[at] == child)
            children[at] = 0;
}

static inline void look_after(pid_t child)
{
    struct sigaction action;
    int at = 0;
    while (at < children_count && children[at] != 0)
        at++;
    CHECK(at < 8);
    children[at] = child;
    if (at == children_count)
        children_count = at + 1;
    memset(&action, 0, sizeof action);
    action.sa_handler = child_ended;
    action.sa_flags = SA_RESTART | SA_NOCLDSTOP;
    CHECK(sigaction(SIGCHLD, &action, NULL) == 0);
    child_ended(SIGCHLD);
}

/* Runs `role` in a child, which ends with it. */
static inline struct other start(void (*role)(struct other parent))
{
    struct other child, parent;
    int fds[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    parent.pid = getpid();
    child.pid = fork();
    CHECK(child.pid >= 0);
    if (child.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(PATIENCE);
        children_count = 0;
        close(fds[0]);
        parent.fd = fds[1];
        role(parent);
        exit(0);
    }
    close(fds[1]);
    child.fd = fds[0];
    look_after(child.pid);
    return child;
}

/* Waits for its end, which must be a good one. */
static inline void ends_well(struct other child)
{
    int status;
    CHECK(waitpid(child.pid, &status, 0) == child.pid);
    let_go(child.pid);
    EQUAL(0, status);
    close(child.fd);
}

static inline void kill_it(struct other child)
{
    int status;
    let_go(child.pid);
    CHECK(kill(child.pid, SIGKILL) == 0);
    CHECK(waitpid(child.pid, &status, 0) == child.pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    close(child.fd);
}

/* Runs a role in a child and one here, and waits for both. */
static inline void pair(void (*here)(struct other), void (*there)(struct other))
{
    struct other child = start(there);
    here(child);
    ends_well(child);
}

/* Endpoints. */

/* Errors come back, as most cases want it. */
static inline void begin(void)
{
    mx_set_error_handler(MX_ERRORS_RETURN);
    OK(mx_init());
}

static inline mx_endpoint_t open_any(void)
{
    mx_endpoint_t endpoint;
    OK(mx_open_endpoint(MX_ANY_NIC, MX_ANY_ENDPOINT, KEY, NULL, 0, &endpoint));
    return endpoint;
}

static inline void end(mx_endpoint_t endpoint)
{
    OK(mx_close_endpoint(endpoint));
    OK(mx_finalize());
}

struct place {
    uint64_t nic;
    uint32_t id, key;
};

static inline struct place place_of(mx_endpoint_t endpoint)
{
    struct place place = {0, 0, KEY};
    mx_endpoint_addr_t own;
    OK(mx_get_endpoint_addr(endpoint, &own));
    OK(mx_decompose_endpoint_addr(own, &place.nic, &place.id));
    return place;
}

static inline mx_endpoint_addr_t connect_to(mx_endpoint_t endpoint, struct place place)
{
    mx_endpoint_addr_t address;
    OK(mx_connect(endpoint, place.nic, place.id, place.key, MX_INFINITE, &address));
    return address;
}

static inline mx_endpoint_addr_t own_address(mx_endpoint_t endpoint)
{
    mx_endpoint_addr_t own;
    OK(mx_get_endpoint_addr(endpoint, &own));
    return own;
}

/* Tells the other process where we are, and connects to where it is. */
static inline mx_endpoint_addr_t meet(mx_endpoint_t endpoint, struct other other)
{
    struct place own = place_of(endpoint), theirs;
    mx_endpoint_addr_t address;
    put(other, &own, sizeof own);
    get(other, &theirs, sizeof theirs);
    address = connect_to(endpoint, theirs);
    meet_at(other, 'C');
    return address;
}

/* All of it: an endpoint, and the other's address. */
static inline mx_endpoint_t join(struct other other, mx_endpoint_addr_t *peer)
{
    mx_endpoint_t endpoint;
    begin();
    endpoint = open_any();
    *peer = meet(endpoint, other);
    return endpoint;
}

/* Waits until the socket is readable, and makes progress on the endpoint meanwhile, because the peer may wait for that. */
static inline void move_until_readable(mx_endpoint_t endpoint, struct other other)
{
    struct pollfd readable = {other.fd, POLLIN, 0};
    while (poll(&readable, 1, 0) == 0) {
        OK(mx_progress(endpoint));
        sched_yield();
    }
}

static inline void hear_moving(mx_endpoint_t endpoint, struct other other, char word)
{
    move_until_readable(endpoint, other);
    hear(other, word);
}

static inline int same_endpoint(mx_endpoint_addr_t one, mx_endpoint_addr_t two)
{
    uint64_t nics[2];
    uint32_t ids[2];
    OK(mx_decompose_endpoint_addr(one, &nics[0], &ids[0]));
    OK(mx_decompose_endpoint_addr(two, &nics[1], &ids[1]));
    return nics[0] == nics[1] && ids[0] == ids[1];
}

/* Requests. */

static inline mx_request_t post_masked(mx_endpoint_t endpoint, uint64_t match, uint64_t mask, void *bytes, size_t length)
{
    mx_segment_t segment;
    mx_request_t request;
    segment.segment_ptr = bytes;
    segment.segment_length = (uint32_t)length;
    OK(mx_irecv(endpoint, &segment, 1, match, mask, bytes, &request));
    return request;
}

static inline mx_request_t post(mx_endpoint_t endpoint, uint64_t match, void *bytes, size_t length)
{
    return post_masked(endpoint, match, MX_MATCH_MASK_NONE, bytes, length);
}

static inline mx_request_t give(mx_endpoint_t endpoint, mx_endpoint_addr_t to, uint64_t match, const void *bytes,
                                size_t length)
{
    mx_segment_t segment;
    mx_request_t request;
    segment.segment_ptr = (void *)(uintptr_t)bytes;
    segment.segment_length = (uint32_t)length;
    OK(mx_isend(endpoint, &segment, 1, to, match, (void *)(uintptr_t)bytes, &request));
    return request;
}

static inline mx_request_t give_sync(mx_endpoint_t endpoint, mx_endpoint_addr_t to, uint64_t match, const void *bytes,
                                     size_t length)
{
    mx_segment_t segment;
    mx_request_t request;
    segment.segment_ptr = (void *)(uintptr_t)bytes;
    segment.segment_length = (uint32_t)length;
    OK(mx_issend(endpoint, &segment, 1, to, match, (void *)(uintptr_t)bytes, &request));
    return request;
}

/* Waits for its end, whatever that is. */
static inline mx_status_t finish(mx_endpoint_t endpoint, mx_request_t request)
{
    mx_status_t status;
    uint32_t done = 2;
    OK(mx_wait(endpoint, &request, MX_INFINITE, &status, &done));
    EQUAL(1, done);
    CHECK(request == NULL);
    return status;
}

static inline mx_status_t finish_well(mx_endpoint_t endpoint, mx_request_t request)
{
    mx_status_t status = finish(endpoint, request);
    ENDED(MX_STATUS_SUCCESS, status);
    return status;
}

/* Not over: the call succeeds, and touches neither request nor status. */
static inline void still_pending(mx_endpoint_t endpoint, mx_request_t request)
{
    mx_status_t status, before;
    mx_request_t same = request;
    uint32_t done = 2;
    memset(&before, 0x5a, sizeof before);
    status = before;
    OK(mx_test(endpoint, &same, &status, &done));
    EQUAL(0, done);
    CHECK(same == request);
    CHECK(memcmp(&status, &before, sizeof status) == 0);
}

static inline void nothing_done(mx_endpoint_t endpoint)
{
    mx_status_t status;
    mx_request_t request;
    uint32_t result = 2;
    OK(mx_test_any(endpoint, 0, 0, &status, &result));
    EQUAL(0, result);
    result = 2;
    OK(mx_ipeek(endpoint, &request, &result));
    EQUAL(0, result);
}

/* Waits until a message that no receive took is here. */
static inline mx_status_t await_unexpected(mx_endpoint_t endpoint, uint64_t match)
{
    mx_status_t status;
    uint32_t result = 0;
    while (!result)
        OK(mx_probe(endpoint, MX_INFINITE, match, MX_MATCH_MASK_NONE, &status, &result));
    EQUAL(match, status.match_info);
    return status;
}

static inline void send_well(mx_endpoint_t endpoint, mx_endpoint_addr_t to, uint64_t match, const void *bytes, size_t length)
{
    finish_well(endpoint, give(endpoint, to, match, bytes, length));
}

static inline mx_status_t receive_well(mx_endpoint_t endpoint, uint64_t match, void *bytes, size_t length)
{
    return finish_well(endpoint, post(endpoint, match, bytes, length));
}

/* To oneself and back: such a send is over when it was matched. */
static inline void self_trip(mx_endpoint_t endpoint, mx_endpoint_addr_t own)
{
    mx_request_t sending = give(endpoint, own, 0x5e1f, NULL, 0);
    receive_well(endpoint, 0x5e1f, NULL, 0);
    finish_well(endpoint, sending);
}

/* A message that says: all before it has arrived. */
#define MARK UINT64_C(0x6d61726b)

static inline void mark_end(mx_endpoint_t endpoint, mx_endpoint_addr_t to)
{
    send_well(endpoint, to, MARK, NULL, 0);
}

static inline void await_end(mx_endpoint_t endpoint)
{
    receive_well(endpoint, MARK, NULL, 0);
}

/* Bytes. */

static inline void fill(unsigned char *bytes, size_t length, unsigned seed)
{
    for (size_t at = 0; at < length; at++)
        bytes[at] = (unsigned char)(at * 31 + (at >> 8) * 7 + (at >> 16) + seed);
}

static inline void is_filled(const unsigned char *bytes, size_t length, unsigned seed)
{
    for (size_t at = 0; at < length; at++)
        if (bytes[at] != (unsigned char)(at * 31 + (at >> 8) * 7 + (at >> 16) + seed)) {
            fprintf(stderr, "byte %zu of %zu is wrong\n", at, length);
            exit(1);
        }
}

static inline void is_all(const unsigned char *bytes, size_t length, unsigned char byte)
{
    for (size_t at = 0; at < length; at++)
        if (bytes[at] != byte) {
            fprintf(stderr, "byte %zu of %zu was written\n", at, length);
            exit(1);
        }
}

static inline unsigned char *room(size_t length)
{
    unsigned char *bytes = malloc(length + 1);
    CHECK(bytes != NULL);
    memset(bytes, 0xee, length + 1);
    return bytes;
}

static inline uint64_t now_ms(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* How soon a peer's death must be noticed: the two seconds promised, twice, as other tests run beside this one. */
enum { NOTICE_MS = 4000 };

/* Sleep. */

/* How often a thread of this process has gone to sleep, if it sleeps now; -1 if it does not, -2 if it is no more. */
static inline long asleep(pid_t thread)
{
    char path[64], line[128], state = '?';
    long switches = -1;
    FILE *file;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", (int)thread);
    file = fopen(path, "r");
    if (file == NULL)
        return -2;
    while (fgets(line, sizeof line, file) != NULL) {
        sscanf(line, "State: %c", &state);
        sscanf(line, "voluntary_ctxt_switches: %ld", &switches);
    }
    fclose(file);
    return state == 'S' ? switches : -1;
}

/*
 * Waits until all these threads sleep at once: none has woken between two looks at all of them. A thread id of 0 has not
 * begun. False if one has ended instead.
 */
static inline int await_sleep(const _Atomic pid_t *threads, size_t count)
{
    long before[64];
    CHECK(count <= 64);
    for (;;) {
        size_t same = 0;
        for (size_t at = 0; at < count; at++)
            if ((before[at] = threads[at] == 0 ? -1 : asleep(threads[at])) == -2)
                return 0;
        for (size_t at = 0; at < count && before[at] >= 0; at++)
            same += asleep(threads[at]) == before[at];
        if (same == count)
            return 1;
        sched_yield();
    }
}

#endif
