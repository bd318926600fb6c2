/* Signal handlers, and addresses that cannot be reached, around the calls of a connection. */
#include "cases.h"
#include <limits.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <sys/resource.h>
#include <sys/select.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* Programs use such functions. */

enum { HANDLED = 300 };

static atomic_int handled;
static int shared_fd;

static pthread_t start(void *(*run)(void *), void *with)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, with) == 0);
    return thread;
}

static void await_handled(int count)
{
    while (atomic_load(&handled) < count)
        pause_between_looks();
}

static void set_handler(int signal, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    CHECK(sigaction(signal, &action, NULL) == 0);
}

/* A question is a number below 100; what a handler writes is 100. */
static void answer_numbers(int fd)
{
    int by_handlers = 0;
    for (uint64_t number; read_all(fd, &number, sizeof number);) {
        if (number == 100) {
            by_handlers++;
            continue;
        }
        write_all(fd, &number, sizeof number);
    }
    printf("%d by handlers\n", by_handlers);
}

static void writes_a_number(int signal)
{
    (void)signal;
    uint64_t number = 100;
    int before = errno;
    CHECK(write(shared_fd, &number, sizeof number) == sizeof number);
    errno = before;
    atomic_fetch_add(&handled, 1);
}

static void *sends_signals(void *thread)
{
    for (int at = 0; at < HANDLED; at++) {
        CHECK(pthread_kill(*(pthread_t *)thread, SIGUSR1) == 0);
        await_handled(at + 1);
    }
    return NULL;
}

/* A handler writes on the connection, wherever its thread is. */
static void writes_in_handlers(int fd)
{
    pthread_t self = pthread_self();
    shared_fd = fd;
    set_handler(SIGUSR1, writes_a_number, SA_RESTART);
    pthread_t thread = start(sends_signals, &self);
    for (uint64_t at = 0; atomic_load(&handled) < HANDLED; at++) {
        uint64_t number = at % 100, answer;
        CHECK(write(fd, &number, sizeof number) == sizeof number);
        CHECK(read(fd, &answer, sizeof answer) == sizeof answer && answer == number);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    printf("%d handled\n", atomic_load(&handled));
}

/* A handler reads what it has written, and waits for that. */
static void exchanges_a_byte(int signal)
{
    (void)signal;
    char byte = 'h';
    CHECK(write(shared_fd, &byte, 1) == 1 && read(shared_fd, &byte, 1) == 1 && byte == 'h');
    atomic_fetch_add(&handled, 1);
}

static void exchanges_in_handlers(int fd)
{
    shared_fd = fd;
    set_handler(SIGUSR1, exchanges_a_byte, 0);
    for (int at = 0; at < HANDLED; at++) {
        char byte = 'm';
        CHECK(write(fd, &byte, 1) == 1 && read(fd, &byte, 1) == 1 && byte == 'm');
        CHECK(raise(SIGUSR1) == 0);
    }
    printf("%d handled\n", atomic_load(&handled));
}

static void returns_bytes(int fd)
{
    char byte;
    while (read_all(fd, &byte, 1))
        write_all(fd, &byte, 1);
}

static void counts(int signal)
{
    (void)signal;
    atomic_fetch_add(&handled, 1);
}

static atomic_bool has_returned;

static void *interrupts(void *thread)
{
    while (!atomic_load(&has_returned)) {
        CHECK(pthread_kill(*(pthread_t *)thread, SIGUSR1) == 0);
        pause_between_looks();
    }
    return NULL;
}

/* Signals arrive until the call returns. */
#define INTERRUPTED(call)                                                                                              \
    do {                                                                                                               \
        pthread_t self = pthread_self();                                                                               \
        atomic_store(&has_returned, false);                                                                            \
        pthread_t other = start(interrupts, &self);                                                                    \
        long result = (errno = 0, (long)(call));                                                                       \
        int code = errno;                                                                                              \
        atomic_store(&has_returned, true);                                                                             \
        CHECK(pthread_join(other, NULL) == 0);                                                                         \
        errno = code;                                                                                                  \
        say(#call, result);                                                                                            \
    } while (0)

static void *asks_after_some(void *fd)
{
    int before = atomic_load(&handled);
    await_handled(before + 20);
    write_all(*(int *)fd, "a", 1);
    return NULL;
}

static void is_interrupted(int fd)
{
    char bytes[100];
    struct pollfd polled = {fd, POLLIN, 0};
    struct epoll_event event;
    int set = epoll_set_of(fd, EPOLLIN);
    struct timeval second = {1000, 0};
    fd_set members;
    FD_ZERO(&members);
    FD_SET(fd, &members);

    set_handler(SIGUSR1, counts, 0);
    INTERRUPTED(read(fd, bytes, sizeof bytes));
    INTERRUPTED(recv(fd, bytes, sizeof bytes, MSG_WAITALL));
    set_handler(SIGUSR1, counts, SA_RESTART);
    INTERRUPTED(poll(&polled, 1, -1));
    INTERRUPTED(select(fd + 1, &members, NULL, NULL, NULL));
    INTERRUPTED(epoll_wait(set, &event, 1, -1));
    INTERRUPTED(epoll_wait(set, &event, 1, 100000));
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second) == 0);
    INTERRUPTED(read(fd, bytes, sizeof bytes));
    second.tv_sec = 0;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second) == 0);

    /* The peer answers after twenty signals. */
    pthread_t asking = start(asks_after_some, &fd);
    INTERRUPTED(read(fd, bytes, sizeof bytes));
    CHECK(pthread_join(asking, NULL) == 0);

    /* Handlers that the kernel resets, and those of other functions. */
    int before = atomic_load(&handled);
    struct sigaction found;
    set_handler(SIGUSR1, counts, (int)SA_RESETHAND);
    raise(SIGUSR1);
    CHECK(sigaction(SIGUSR1, NULL, &found) == 0);
    SAY(found.sa_handler == SIG_DFL);
    SAY(sigset(SIGUSR1, counts) == SIG_DFL);
    SAY(sigset(SIGUSR1, SIG_HOLD) == counts);
    raise(SIGUSR1);
    SAY(atomic_load(&handled) - before);
    SAY(sigset(SIGUSR1, counts) == SIG_HOLD);
    SAY(atomic_load(&handled) - before);
    SAY(signal(SIGUSR1, counts) == counts);
    CHECK(sigaction(SIGUSR1, NULL, &found) == 0);
    SAY(found.sa_handler == counts);
    SAY((found.sa_flags & (SA_RESTART | SA_SIGINFO | (int)SA_RESETHAND)) == SA_RESTART);
    SAY(siginterrupt(SIGUSR1, 1));
    INTERRUPTED(read(fd, bytes, sizeof bytes));
    SAY(signal(SIGUSR1, SIG_IGN) == counts);
    SAY(signal(SIGUSR1, SIG_DFL) == SIG_IGN);
    SAY(signal(SIGKILL, counts) == SIG_ERR && errno == EINVAL);
    SAY(signal(1000, counts) == SIG_ERR && errno == EINVAL);
}

static sigjmp_buf back;
static void *faulted_at;

static void returns_from_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    faulted_at = info->si_addr;
    siglongjmp(back, info->si_code);
}

/* Buffers, vectors and arrays that cannot be reached, or not written. */
static void uses_bad_memory(int fd)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK(mprotect(memory + page, page, PROT_NONE) == 0 && mprotect(memory + 2 * page, page, PROT_READ) == 0);
    char *half = memory + page - 50, *none = memory + page, *constant = memory + 2 * page, good[100];
    struct iovec vector[] = {{none, 10}, {good, 10}};
    struct msghdr message = {.msg_iov = (struct iovec *)none, .msg_iovlen = 2};
    int set = epoll_set_of(fd, EPOLLIN);
    volatile int many = INT_MAX;

    for (int with_handler = 0; with_handler < 2; with_handler++) {
        if (with_handler) {
            struct sigaction action = {.sa_sigaction = returns_from_fault, .sa_flags = SA_SIGINFO};
            CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
        }
        step();
        await_unread(fd, 100);
        SAY(recv(fd, NULL, 100, 0));
        SAY(read(fd, none, 100));
        SAY(read(fd, half, 100));
        SAY(recv(fd, constant, 100, MSG_PEEK));
        SAY(recv(fd, (char *)-4096, 100, 0));
        SAY(readv(fd, vector, 2));
        SAY(readv(fd, (struct iovec *)none, 2));
        SAY(recvmsg(fd, &message, 0));
        SAY(recvmsg(fd, (struct msghdr *)none, 0));
        SAY(poll((struct pollfd *)none, 1, 0));
        SAY(select(fd + 1, (fd_set *)none, NULL, NULL, NULL));
        SAY(epoll_wait(set, (struct epoll_event *)none, 1, -1));
        SAY(epoll_wait(set, (struct epoll_event *)constant, 1, -1));
        SAY(epoll_pwait2(set, (struct epoll_event *)good, 1, (struct timespec *)none, NULL));
        SAY(epoll_wait(set, (struct epoll_event *)good, many, 0));
        SAY(epoll_ctl(set, EPOLL_CTL_MOD, fd, (struct epoll_event *)none));
        SAY(send(fd, NULL, 100, 0));
        SAY(write(fd, none, 100));
        SAY(write(fd, half, 100));
        SAY(writev(fd, vector, 2));
        SAY(writev(fd, (struct iovec *)none, 2));
        SAY(sendmsg(fd, (struct msghdr *)none, 0));
        SAY(sendto(fd, good, 1, 0, (struct sockaddr *)none, 16));
        SAY(recvmmsg(fd, NULL, 1, MSG_DONTWAIT, (struct timespec *)none));
        SAY(epoll_pwait(set, (struct epoll_event *)good, 1, 0, (sigset_t *)none));
        SAY(connect(fd, (struct sockaddr *)none, sizeof(struct sockaddr_in)));
        SAY(recv(fd, good, 100, 0));
        check_stream(good, 5, 0, 100);
    }
    int code = sigsetjmp(back, 1);
    if (code == 0)
        *(volatile char *)none = 1;
    SAY(code == SEGV_ACCERR && faulted_at == none);
    code = sigsetjmp(back, 1);
    if (code == 0)
        raise(SIGSEGV);
    SAY(code == SI_TKILL);
    send_stream(fd, 6, 100);
}

static void sends_good_memory(int fd)
{
    for (int at = 0; at < 2; at++) {
        send_stream(fd, 5, 100);
        step();
    }
    receive_stream(fd, 6, 100);
}

/* A handler closes the descriptor that its own thread reads. */
static void closes_shared(int signal)
{
    (void)signal;
    close(shared_fd);
}

static void is_closed_in_handler(int fd)
{
    char byte;
    shared_fd = fd;
    set_handler(SIGUSR1, closes_shared, SA_RESTART);
    INTERRUPTED(read(fd, &byte, 1));
    step();
}

static void sees_the_end(int fd)
{
    char byte;
    SAY(read(fd, &byte, 1));
    step();
}

/* A handler that jumps out of a call which waits. The next call goes on. */
static void jumps_out(int signal)
{
    (void)signal;
    siglongjmp(back, 1);
}

static void jumps_out_of_calls(int fd)
{
    char byte;
    struct pollfd polled = {fd, POLLIN, 0};
    set_handler(SIGALRM, jumps_out, 0);
    for (int at = 0; at < 6; at++) {
        struct itimerval soon = {{0, 0}, {0, 20000}};
        if (sigsetjmp(back, 1) == 0) {
            CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
            if (at % 2)
                poll(&polled, 1, -1);
            else
                CHECK(read(fd, &byte, 1) < 0);
            FAIL("not interrupted");
        }
        for (int more = 0; more < 50; more++)
            CHECK(write(fd, "j", 1) == 1 && read(fd, &byte, 1) == 1 && byte == 'j');
    }
    printf("jumped\n");
}

/* An event that the program does not ask for ends no wait before its time. */
static void polls_past_an_end(int fd)
{
    struct pollfd polled = {fd, POLLPRI, 0};
    struct timespec before, after;
    step();
    clock_gettime(CLOCK_MONOTONIC, &before);
    SAY(poll(&polled, 1, 300));
    clock_gettime(CLOCK_MONOTONIC, &after);
    SAY((after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000 >= 299);
    step();
}

static void ends_its_sending(int fd)
{
    CHECK(shutdown(fd, SHUT_WR) == 0);
    step();
    step();
}

/* The socket becomes the standard input with bytes unread, while the peer waits for something else. */
enum { LEFT_UNREAD = 60000 };

static void leaves_unread(int fd)
{
    step();
    await_unread(fd, LEFT_UNREAD);
    SAY(dup2(fd, 0));
    receive_stream(0, 7, LEFT_UNREAD);
    send_stream(0, 8, 100);
    step();
    receive_stream(0, 9, 100);
}

static void is_elsewhere(int fd)
{
    send_stream(fd, 7, LEFT_UNREAD);
    step();
    step();
    receive_stream(fd, 8, 100);
    send_stream(fd, 9, 100);
}

/* As before, while the peer has a handler of its own for the library's signal, and computes. */
static void is_busy(int fd)
{
    char byte;
    set_handler(SIGURG, counts, 0);
    send_stream(fd, 7, LEFT_UNREAD);
    step();
    CHECK(send(CONTROL, "s", 1, MSG_NOSIGNAL) == 1);
    while (recv(CONTROL, &byte, 1, MSG_DONTWAIT) != 1)
        continue;
    receive_stream(fd, 8, 100);
    send_stream(fd, 9, 100);
    printf("%d handled\n", atomic_load(&handled));
}

/* A handler writes on a small stack of its own. */
static void writes_on_a_small_stack(int fd)
{
    stack_t small = {.ss_sp = malloc(8192), .ss_size = 8192};
    CHECK(small.ss_sp && sigaltstack(&small, NULL) == 0);
    shared_fd = fd;
    set_handler(SIGUSR1, writes_a_number, SA_ONSTACK);
    for (int at = 0; at < 100; at++)
        CHECK(raise(SIGUSR1) == 0);
    printf("%d handled\n", atomic_load(&handled));
}

/* A number beyond `FD_SETSIZE`, which `select` takes in a larger set. */
static void selects_a_high_number(int fd)
{
    enum { HIGH = 2000 };
    unsigned long members[64] = {0};
    struct rlimit limit;
    char byte;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0 && dup2(fd, HIGH) == HIGH);
    for (int at = 0; at < 3; at++) {
        CHECK(write(fd, "b", 1) == 1);
        members[HIGH / 64] = 1UL << HIGH % 64;
        SAY(select(HIGH + 1, (fd_set *)members, NULL, NULL, NULL));
        SAY(members[HIGH / 64] == 1UL << HIGH % 64);
        SAY(read(HIGH, &byte, 1));
    }
}

/* The program lowers its limit of descriptors below those that it has, and waits for bytes. */
static void has_no_descriptors_left(int fd)
{
    struct rlimit none = {0, 0};
    char byte;
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    SAY(write(fd, "b", 1));
    SAY(read(fd, &byte, 1));
    SAY(poll(&(struct pollfd){fd, POLLIN, 0}, 1, 0));
}

static const struct test_case cases[] = {
    {"handler_writes", writes_in_handlers, answer_numbers, "a signal handler writes beside reads and writes"},
    {"handler_exchanges", exchanges_in_handlers, returns_bytes, "a signal handler writes, and reads the answer"},
    {"interrupted_waits", is_interrupted, returns_bytes, "signals with and without `SA_RESTART` in each call that waits"},
    {"bad_memory", uses_bad_memory, sends_good_memory, "buffers, vectors and arrays that cannot be reached"},
    {"small_stack", writes_on_a_small_stack, answer_numbers, "a signal handler writes on a stack of 8 KiB"},
    {"high_number", selects_a_high_number, returns_bytes, "`select` of a descriptor beyond `FD_SETSIZE`"},
    {"no_descriptors_left", has_no_descriptors_left, returns_bytes, "`RLIMIT_NOFILE` of 0 while the socket is open"},
    {"closed_in_handler", is_closed_in_handler, sees_the_end, "a signal handler closes the descriptor that its thread reads"},
    {"jumped_out", jumps_out_of_calls, returns_bytes, "a signal handler leaves a waiting call by `siglongjmp`"},
    {"polled_past_end", polls_past_an_end, ends_its_sending, "waits in `poll` for urgent bytes, and the peer ends its sending"},
    {"left_unread", leaves_unread, is_elsewhere, "standard input with bytes unread, and the peer waits for something else"},
    {"left_unread_beside", leaves_unread, is_busy, "the same, and the peer computes"},
};

int main(int count, char **words)
{
    return RUN_CASES(cases);
}
