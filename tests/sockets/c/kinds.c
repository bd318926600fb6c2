/* Kinds of programs: how servers and clients use threads, processes, sets and numbers of descriptors around their connections. */
#include "cases.h"
#include <stdatomic.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

static char buffer[1 << 16];

/* A question is a number, and its answer the next number. The exchanges of a connection that must become a stream come first. */
enum { FIRST_EXCHANGES = 60 };

static void ask(int fd, uint64_t number)
{
    uint64_t answer = 0;
    write_all(fd, &number, sizeof number);
    CHECK(read_all(fd, &answer, sizeof answer) && answer == number + 1);
}

static void ask_all(int fd, int count)
{
    for (int at = 0; at < count; at++)
        ask(fd, (uint64_t)at);
}

/* Answers a question; false at the end of the stream. */
static bool answer(int fd)
{
    uint64_t number;
    if (!read_all(fd, &number, sizeof number))
        return false;
    number++;
    write_all(fd, &number, sizeof number);
    return true;
}

static void answer_to_the_end(int fd)
{
    while (answer(fd))
        continue;
}

static void answer_count(int fd, int count)
{
    for (int at = 0; at < count; at++)
        CHECK(answer(fd));
}

/* The part of a program that only answers on the connection of the case. */
static void answers(int fd)
{
    answer_to_the_end(fd);
}

/* Listens, and tells the other program the port. It calls `told_port` meanwhile. */
static int tell_port(void)
{
    struct sockaddr_in name = address_of("127.0.0.1", 0);
    socklen_t length = sizeof name;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(listener >= 0 && bind(listener, (struct sockaddr *)&name, sizeof name) == 0 && listen(listener, 64) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&name, &length) == 0);
    int port = ntohs(name.sin_port);
    step();
    CHECK(send(CONTROL, &port, sizeof port, MSG_NOSIGNAL) == sizeof port);
    return listener;
}

static int told_port(void)
{
    int port;
    step();
    CHECK(recv(CONTROL, &port, sizeof port, MSG_WAITALL) == sizeof port);
    return port;
}

static int connect_again(int fd, int port)
{
    struct sockaddr_in name = address_of("127.0.0.1", port);
    return connect(fd, (struct sockaddr *)&name, sizeof name);
}

static pthread_t start(void *(*run)(void *), void *with)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, with) == 0);
    return thread;
}

static void *join(pthread_t thread)
{
    void *result;
    CHECK(pthread_join(thread, &result) == 0);
    return result;
}

/* The thread that is about to wait, by its number in the kernel. */
static atomic_int about_to_wait;

static void say_about_to_wait(void)
{
    atomic_store(&about_to_wait, gettid());
}

/* Waits until that thread sleeps. */
static void await_sleeper(void)
{
    char path[64], state = 'R';
    int thread;
    while ((thread = atomic_exchange(&about_to_wait, 0)) == 0)
        pause_between_looks();
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", thread);
    for (; state != 'S'; pause_between_looks()) {
        FILE *file = fopen(path, "r");
        CHECK(file && fscanf(file, "%*d (%*[^)]) %c", &state) == 1);
        fclose(file);
    }
}

/* Accepts connections and answers on each in a thread of its own, as long as the program lives. */
static void *answer_in_thread(void *fd)
{
    answer_to_the_end((int)(intptr_t)fd);
    close((int)(intptr_t)fd);
    return NULL;
}

static void *accept_for_threads(void *listener)
{
    for (;;)
        CHECK(pthread_detach(start(answer_in_thread, (void *)(intptr_t)accepted((int)(intptr_t)listener))) == 0);
    return NULL;
}

/* Answers on every connection, and at last on that of the case. */
static void answers_everywhere(int fd)
{
    start(accept_for_threads, (void *)(intptr_t)tell_port());
    answer_to_the_end(fd);
    wait_for_end();
}

/* A thread waits on a set that is still empty. The data of each member is a pointer to its descriptor. */
static void *serve_set(void *set)
{
    int *last = NULL, answered = 0;
    for (bool first = true;; first = false) {
        struct epoll_event event;
        if (first)
            say_about_to_wait();
        CHECK(epoll_wait((int)(intptr_t)set, &event, 1, -1) == 1);
        if (event.data.ptr != last)
            print_mask("another member", event.events);
        last = event.data.ptr;
        if (!answer(*last))
            return (void *)(intptr_t)answered;
        answered++;
    }
}

static void waits_before_the_first(int fd)
{
    int set = epoll_create1(EPOLL_CLOEXEC), listener = tell_port();
    pthread_t thread = start(serve_set, (void *)(intptr_t)set);
    await_sleeper();
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &fd};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    step();
    int other = accepted(listener);
    event.data.ptr = &other;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, other, &event) == 0);
    printf("answered: %d\n", (int)(intptr_t)join(thread));
    step();
}

static void asks_on_two(int fd)
{
    int port = told_port();
    step();
    ask_all(fd, 30);
    int other = connected("127.0.0.1", port);
    ask_all(other, FIRST_EXCHANGES);
    ask_all(fd, 30);
    ask_all(other, 30);
    SAY(close(other));
    step();
}

/* Two sockets that are members before they have a connection: one waits for room and then for data, the other for both. */
static void adds_before_connecting(int fd)
{
    int port = told_port(), set = epoll_create1(EPOLL_CLOEXEC);
    for (int kind = 0; kind < 2; kind++) {
        uint32_t wanted = kind == 0 ? EPOLLOUT : EPOLLIN | EPOLLOUT | EPOLLET;
        int other = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), error = -1;
        socklen_t length = sizeof error;
        struct epoll_event event = {.events = wanted, .data.ptr = &other};
        CHECK(other >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, other, &event) == 0);
        CHECK(connect_again(other, port) == 0 || errno == EINPROGRESS);
        do
            CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.data.ptr == &other);
        while (event.events & EPOLLHUP || !(event.events & EPOLLOUT));
        CHECK(getsockopt(other, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0);
        print_mask("connected", event.events);
        event.events = EPOLLIN;
        if (kind == 0)
            CHECK(epoll_ctl(set, EPOLL_CTL_MOD, other, &event) == 0);
        for (uint64_t at = 0, got; at < FIRST_EXCHANGES + 30; at++) {
            CHECK(write(other, &at, sizeof at) == sizeof at);
            do
                CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.data.ptr == &other);
            while (!(event.events & EPOLLIN));
            CHECK(read(other, &got, sizeof got) == sizeof got && got == at + 1);
            SAY(read(other, &got, sizeof got));
        }
        SAY(close(other));
    }
    ask_all(fd, 5);
}

/* A set whose first member has gone before the program waits. The next one is no connection. */
static void waits_with_a_gap(int fd)
{
    int set = epoll_create1(EPOLL_CLOEXEC), first = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77};
    CHECK(first >= 0 && listener >= 0 && listen(listener, 1) == 0);
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, first, &event));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event));
    SAY(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, first, NULL));
    for (int at = 0; at < 20; at++) {
        print_epoll("set", set, -1);
        answer_count(fd, 1);
    }
    SAY(close(set));
    step();
}

/* A one-shot member tells nothing until it is armed again, not even the end. */
static void waits_unarmed(int fd)
{
    uint32_t wanted = EPOLLIN | EPOLLONESHOT;
    int set = epoll_set_of(fd, wanted);
    struct epoll_event event = {.events = wanted, .data.u64 = 77};
    print_epoll("armed", set, -1);
    answer_count(fd, 1);
    SAY(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    print_epoll("armed again", set, -1);
    answer_count(fd, 1);
    step();
    await_poll(fd, POLLHUP);
    print_epoll("unarmed", set, 0);
    print_epoll("unarmed", set, 0);
    event.events = EPOLLONESHOT;
    SAY(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    print_epoll("armed for nothing", set, 0);
    print_epoll("unarmed", set, 0);
    event.events = wanted;
    SAY(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    print_epoll("armed", set, 0);
    print_epoll("unarmed", set, 0);
    SAY(recv(fd, buffer, 1, 0));
    step();
}

static void asks_and_resets(int fd)
{
    struct linger reset = {1, 0};
    ask_all(fd, 2);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0);
    step();
    SAY(close(fd));
    step();
}

/* The set keeps a descriptor that was closed, because the socket has another one. Its number is another file's. The peer is killed
 * with a byte unread. */
static void waits_by_a_copy(int fd)
{
    int set = epoll_set_of(fd, EPOLLIN), ends[2];
    struct epoll_event event;
    print_epoll("set", set, -1);
    answer_count(fd, 1);
    int copy = dup(fd);
    CHECK(copy >= 0 && pipe(ends) == 0 && dup2(ends[0], fd) == fd);
    for (int at = 1; at < 20; at++) {
        print_epoll("set", set, -1);
        answer_count(copy, 1);
    }
    SAY(write(copy, "u", 1));
    step();
    do
        CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 77);
    while (!(event.events & EPOLLHUP));
    print_mask("end", event.events);
    SAY(read(copy, buffer, 1));
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, copy, NULL));
    print_epoll("end", set, -1);
    SAY(close(copy));
    print_epoll("closed", set, 0);
}

static void asks_and_dies(int fd)
{
    ask_all(fd, 20);
    step();
    kill(getpid(), SIGKILL);
}

/* Four threads wait on one set, and one of them is kept busy until the others have answered. */
enum { THREADS = 4, CONNECTIONS = 4, TURNS = 30, BUSY = 1 << 20 };

static struct {
    int set, stop, busy[2];
    bool is_edge;
    atomic_int answered, ended;
} pool;

/* Answers what can be read now; false once there is no more to come. */
static bool answer_now(int fd)
{
    uint64_t number;
    for (ssize_t got; (got = recv(fd, &number, sizeof number, MSG_DONTWAIT)) != 0;) {
        char byte;
        if (got < 0) {
            CHECK(errno == EAGAIN);
            return true;
        }
        CHECK(got == sizeof number);
        if (number == BUSY)
            CHECK(read(pool.busy[0], &byte, 1) == 1);
        number++;
        write_all(fd, &number, sizeof number);
        atomic_fetch_add(&pool.answered, 1);
        if (!pool.is_edge)
            return true;
    }
    return false;
}

static void *serve_in_pool(void *unused)
{
    for (struct epoll_event event;;) {
        CHECK(epoll_wait(pool.set, &event, 1, -1) == 1);
        if (event.data.fd == pool.stop)
            return unused;
        if (!answer_now(event.data.fd)) {
            CHECK(epoll_ctl(pool.set, EPOLL_CTL_DEL, event.data.fd, NULL) == 0 || errno == ENOENT);
            atomic_fetch_or(&pool.ended, 1 << (event.data.fd % 31));
            continue;
        }
        event.events = EPOLLIN | EPOLLONESHOT;
        if (!pool.is_edge)
            CHECK(epoll_ctl(pool.set, EPOLL_CTL_MOD, event.data.fd, &event) == 0);
    }
}

/* The thread that removes the member owns it until it adds it again. */
static void *serve_as_owner(void *unused)
{
    for (struct epoll_event event;;) {
        CHECK(epoll_wait(pool.set, &event, 1, -1) == 1);
        if (event.data.fd == pool.stop)
            return unused;
        if (epoll_ctl(pool.set, EPOLL_CTL_DEL, event.data.fd, NULL) != 0) {
            CHECK(errno == ENOENT);
            continue;
        }
        event.events = EPOLLIN;
        if (answer_now(event.data.fd))
            CHECK(epoll_ctl(pool.set, EPOLL_CTL_ADD, event.data.fd, &event) == 0);
        else
            atomic_fetch_or(&pool.ended, 1 << (event.data.fd % 31));
    }
}

static void serve_by_threads(uint32_t how, void *(*serve)(void *))
{
    int listener = tell_port(), ends[2], all = 0;
    pthread_t threads[THREADS];
    CHECK(pipe(ends) == 0 && pipe(pool.busy) == 0);
    pool.set = epoll_create1(EPOLL_CLOEXEC), pool.stop = ends[0], pool.is_edge = how == EPOLLET;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = pool.stop};
    CHECK(epoll_ctl(pool.set, EPOLL_CTL_ADD, pool.stop, &event) == 0);
    for (int at = 0; at < THREADS; at++)
        threads[at] = start(serve, NULL);
    for (int at = 0; at < CONNECTIONS; at++) {
        event.events = EPOLLIN | how, event.data.fd = accepted(listener);
        all |= 1 << (event.data.fd % 31);
        CHECK(epoll_ctl(pool.set, EPOLL_CTL_ADD, event.data.fd, &event) == 0);
    }
    while (atomic_load(&pool.answered) < CONNECTIONS * FIRST_EXCHANGES + (CONNECTIONS - 1) * TURNS)
        pause_between_looks();
    CHECK(write(pool.busy[1], "b", 1) == 1);
    while (atomic_load(&pool.ended) != all)
        pause_between_looks();
    CHECK(write(ends[1], "e", 1) == 1);
    for (int at = 0; at < THREADS; at++)
        join(threads[at]);
    printf("answered: %d\n", atomic_load(&pool.answered));
    step();
}

static void serves_once(int fd)
{
    (void)fd;
    serve_by_threads(EPOLLONESHOT, serve_in_pool);
}

static void serves_edges(int fd)
{
    (void)fd;
    serve_by_threads(EPOLLET, serve_in_pool);
}

static void serves_as_owner(int fd)
{
    (void)fd;
    serve_by_threads(0, serve_as_owner);
}

static void keeps_one_busy(int fd)
{
    int port = told_port(), fds[CONNECTIONS];
    uint64_t number = BUSY;
    (void)fd;
    for (int at = 0; at < CONNECTIONS; at++) {
        fds[at] = connected("127.0.0.1", port);
        ask_all(fds[at], FIRST_EXCHANGES);
    }
    write_all(fds[0], &number, sizeof number);
    for (uint64_t turn = 0; turn < TURNS; turn++) {
        for (int at = 1; at < CONNECTIONS; at++)
            write_all(fds[at], &turn, sizeof turn);
        for (int at = 1; at < CONNECTIONS; at++)
            CHECK(read_all(fds[at], &number, sizeof number) && number == turn + 1);
    }
    CHECK(read_all(fds[0], &number, sizeof number) && number == BUSY + 1);
    for (int at = 0; at < CONNECTIONS; at++)
        SAY(close(fds[at]));
    step();
}

static int poll_of(int fd, int timeout_ms)
{
    struct pollfd polled = {fd, POLLIN, 0};
    return poll(&polled, 1, timeout_ms);
}

static int select_of(int fd, struct timeval *time)
{
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    return select(fd + 1, &readable, NULL, NULL, time);
}

/* One thread writes, and another one waits for room by edges. */
enum { ROOM_BYTES = 16 << 20 };

static struct {
    int set, told[2];
} room;

static void *wait_for_room(void *unused)
{
    for (struct epoll_event event;;) {
        CHECK(epoll_wait(room.set, &event, 1, -1) == 1);
        CHECK(write(room.told[1], event.data.u32 == 0 ? "e" : "r", 1) == 1);
        if (event.data.u32 == 0)
            return unused;
    }
}

static void writes_beside_a_waiter(int fd)
{
    int end[2];
    uint8_t *bytes = malloc(ROOM_BYTES);
    CHECK(bytes && pipe(room.told) == 0 && pipe(end) == 0);
    fill(5, 0, bytes, ROOM_BYTES);
    set_nonblocking(fd, true);
    room.set = epoll_set_of(fd, EPOLLOUT | EPOLLET);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 0};
    CHECK(epoll_ctl(room.set, EPOLL_CTL_ADD, end[0], &event) == 0);
    pthread_t thread = start(wait_for_room, NULL);
    for (size_t done = 0; done < ROOM_BYTES;) {
        ssize_t written = write(fd, bytes + done, ROOM_BYTES - done);
        char byte;
        if (written > 0)
            done += (size_t)written;
        else
            CHECK(errno == EAGAIN && read(room.told[0], &byte, 1) == 1);
    }
    CHECK(write(end[1], "e", 1) == 1);
    join(thread);
    set_nonblocking(fd, false);
    ask_all(fd, 10);
    step();
}

static void reads_for_a_waiter(int fd)
{
    receive_stream(fd, 5, ROOM_BYTES);
    answer_count(fd, 10);
    step();
}

enum { WAITS = 200 };

/* A set is readable, for poll, select and another set, while it has events. Another set may tell that once too often. */
static void waits_for_a_set(int fd)
{
    int set = epoll_set_of(fd, EPOLLIN), outer = epoll_set_of(set, EPOLLIN);
    struct epoll_event event;
    for (int at = 0, ready; at < WAITS; at++) {
        struct timeval now = {0, 0};
        do {
            if (at % 4 == 0)
                CHECK(poll_of(set, -1) == 1);
            else if (at % 4 == 1)
                CHECK(select_of(set, NULL) == 1);
            else if (at % 4 == 2)
                CHECK(epoll_wait(outer, &event, 1, -1) == 1 && event.events == EPOLLIN);
            else
                CHECK(poll_of(outer, -1) == 1);
            ready = epoll_wait(set, &event, 1, 0);
        } while (ready == 0 && at % 4 == 2);
        CHECK(ready == 1 && event.data.u64 == 77);
        print_mask("set", event.events);
        uint64_t number;
        CHECK(read_all(fd, &number, sizeof number));
        SAY(poll_of(set, 0));
        SAY(select_of(set, &now));
        SAY(poll_of(outer, 0));
        print_epoll("outer, read", outer, 0);
        print_epoll("set, read", set, 0);
        number++;
        write_all(fd, &number, sizeof number);
    }
    step();
}

static void asks_for_a_set(int fd)
{
    ask_all(fd, WAITS);
    step();
}

static void asks_twenty(int fd)
{
    ask_all(fd, 20);
    step();
}

/* A server that has a child for each connection. */
enum { CHILDREN = 50, CHILDREN_EXCHANGES = 5 };

static void forks_for_each(int fd)
{
    int listener = tell_port(), failed = 0, status;
    for (int at = 0; at < CHILDREN; at++) {
        int other = accepted(listener);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            close(listener);
            answer_to_the_end(other);
            _exit(0);
        }
        CHECK(close(other) == 0);
    }
    while (wait(&status) > 0)
        failed += status != 0;
    printf("failed: %d\n", failed);
    answer_count(fd, 30);
    step();
}

static void asks_each_child(int fd)
{
    int port = told_port();
    for (int at = 0; at < CHILDREN; at++) {
        int other = connected("127.0.0.1", port);
        ask_all(other, CHILDREN_EXCHANGES);
        CHECK(close(other) == 0);
    }
    ask_all(fd, 30);
    step();
}

/* Threads exchange while the program forks: the child has a connection of its own, of before the fork or after it. */
static atomic_bool is_over;

static void *ask_until_over(void *fd)
{
    while (!atomic_load(&is_over))
        ask((int)(intptr_t)fd, 1);
    return NULL;
}

static void forks_beside_threads(int fd)
{
    int port = told_port(), status = -1;
    pthread_t threads[3];
    for (int at = 0; at < 3; at++) {
        int other = at == 0 ? fd : connected("127.0.0.1", port);
        ask_all(other, FIRST_EXCHANGES);
        threads[at] = start(ask_until_over, (void *)(intptr_t)other);
    }
    for (int at = 0; at < 6; at++) {
        int other = -1;
        if (at % 2) {
            other = connected("127.0.0.1", port);
            ask_all(other, FIRST_EXCHANGES);
        }
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (other < 0)
                other = connected("127.0.0.1", port);
            ask_all(other, FIRST_EXCHANGES);
            _exit(0);
        }
        if (other >= 0)
            CHECK(close(other) == 0);
        CHECK(waitpid(child, &status, 0) == child);
        printf("child: %d\n", status);
    }
    atomic_store(&is_over, true);
    for (int at = 0; at < 3; at++)
        join(threads[at]);
    ask_all(fd, 10);
}

/* A thread waits for data while another closes the descriptor, or puts another file in its place. */
static void *receive_hundred(void *fd)
{
    say_about_to_wait();
    return (void *)(intptr_t)recv((int)(intptr_t)fd, buffer, sizeof buffer, 0);
}

static void closes_beside_a_reader(int fd)
{
    int port = told_port(), other = connected("127.0.0.1", port), ends[2];
    ask_all(other, FIRST_EXCHANGES);
    CHECK(pipe(ends) == 0);
    pthread_t thread = start(receive_hundred, (void *)(intptr_t)other);
    await_sleeper();
    SAY(close(other));
    step();
    printf("received: %ld\n", (long)(intptr_t)join(thread));
    check_stream(buffer, 1, 0, 100);
    thread = start(receive_hundred, (void *)(intptr_t)fd);
    await_sleeper();
    SAY(dup2(ends[0], fd) == fd);
    step();
    printf("received: %ld\n", (long)(intptr_t)join(thread));
    check_stream(buffer, 2, 0, 100);
    CHECK(write(ends[1], "by the pipe", 11) == 11);
    SAY(read(fd, buffer, 100));
    step();
}

static void sends_to_the_reader(int fd)
{
    int other = accepted(tell_port());
    answer_count(other, FIRST_EXCHANGES);
    step();
    send_stream(other, 1, 100);
    SAY(read(other, buffer, 100));
    step();
    send_stream(fd, 2, 100);
    SAY(read(fd, buffer, 100));
    step();
}

/* One socket has three connections, one after the other, the last two while a set has it. */
static void connects_again(int fd)
{
    int port = told_port(), other = connected("127.0.0.1", port), set = -1;
    struct sockaddr nothing = {.sa_family = AF_UNSPEC};
    ask_all(other, FIRST_EXCHANGES);
    for (int at = 0; at < 2; at++) {
        SAY(connect(other, &nothing, sizeof nothing));
        step();
        if (set >= 0)
            print_epoll("not connected", set, -1);
        SAY(write(other, "x", 1));
        SAY(connect_again(other, port));
        if (set < 0)
            set = epoll_set_of(other, EPOLLIN);
        for (uint64_t number = 0, got; number < FIRST_EXCHANGES; number++) {
            struct epoll_event event;
            write_all(other, &number, sizeof number);
            CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.data.u64 == 77 && event.events == EPOLLIN);
            CHECK(read_all(other, &got, sizeof got) && got == number + 1);
        }
        print_epoll("all read", set, 0);
    }
    SAY(close(other));
    ask_all(fd, 10);
    step();
}

static void accepts_again(int fd)
{
    int listener = tell_port();
    for (int at = 0; at < 3; at++) {
        int other = accepted(listener);
        answer_count(other, FIRST_EXCHANGES);
        if (at < 2)
            step();
        SAY(read(other, buffer, 100));
        SAY(close(other));
    }
    answer_count(fd, 10);
    step();
}

/* Closes a descriptor by the system call alone; a new connection has its number then. */
static void replace_unseen(int number, int port)
{
    CHECK(syscall(SYS_close, number) == 0);
    int other = connected("127.0.0.1", port);
    SAY(other == number);
    print_poll(other);
    ask_all(other, FIRST_EXCHANGES);
}

static void closes_unseen(int fd)
{
    int port = told_port(), first = connected("127.0.0.1", port);
    ask_all(first, FIRST_EXCHANGES);
    replace_unseen(first, port);
    replace_unseen(first, port);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(listener >= 0 && listen(listener, 1) == 0);
    replace_unseen(listener, port);
    int set = epoll_set_of(fd, EPOLLIN);
    print_epoll("nothing unread", set, 0);
    replace_unseen(set, port);
    CHECK(syscall(SYS_close, first) == 0);
    set = epoll_set_of(fd, EPOLLOUT);
    SAY(set == first);
    print_epoll("set", set, -1);
    SAY(close(set));
    ask_all(fd, 10);
}

/* Threads that are cancelled while they wait for the connection. */
static void *wait_by_recv(void *fd)
{
    say_about_to_wait();
    recv((int)(intptr_t)fd, buffer, sizeof buffer, 0);
    return NULL;
}

static void *wait_by_poll(void *fd)
{
    say_about_to_wait();
    poll_of((int)(intptr_t)fd, -1);
    return NULL;
}

static void *wait_by_set(void *set)
{
    struct epoll_event event;
    say_about_to_wait();
    epoll_wait((int)(intptr_t)set, &event, 1, -1);
    return NULL;
}

static void *ask_ten(void *fd)
{
    ask_all((int)(intptr_t)fd, 10);
    return fd;
}

static void cancel(const char *name, void *(*run)(void *), int with, int fd)
{
    pthread_t thread = start(run, (void *)(intptr_t)with);
    await_sleeper();
    CHECK(pthread_cancel(thread) == 0);
    printf("%s cancelled: %d\n", name, join(thread) == PTHREAD_CANCELED);
    join(start(ask_ten, (void *)(intptr_t)fd));
    ask_ten((void *)(intptr_t)fd);
}

static void cancels(int fd)
{
    int set = epoll_set_of(fd, EPOLLIN);
    for (int at = 0; at < 3; at++) {
        cancel("recv", wait_by_recv, fd, fd);
        cancel("poll", wait_by_poll, fd, fd);
        cancel("epoll_wait", wait_by_set, set, fd);
    }
    print_epoll("set", set, 0);
}

/* A wait that ends with nothing has taken its time. */
static int64_t now_ns(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void wait_full_times(int set, int fd, int rounds)
{
    static const int times[] = {1, 2, 7, 15};
    for (int at = 0; at < rounds; at++) {
        struct epoll_event event;
        int time = times[at % 4];
        int64_t begin = now_ns();
        int ready = at % 8 < 6 ? epoll_wait(set, &event, 1, time) : poll_of(fd, time);
        CHECK(ready >= 0);
        if (ready == 0 && now_ns() - begin < time * INT64_C(1000000))
            FAIL("%s: nothing after %ld ns of %d ms", at % 8 < 6 ? "epoll" : "poll", (long)(now_ns() - begin), time);
    }
}

static void *return_bytes(void *fd)
{
    for (char byte = 0; byte != 'e';) {
        CHECK(read((int)(intptr_t)fd, &byte, 1) == 1);
        if (atomic_load(&is_over))
            byte = 'e';
        CHECK(write((int)(intptr_t)fd, &byte, 1) == 1);
    }
    return NULL;
}

static void waits_its_time(int fd)
{
    int set = epoll_set_of(fd, EPOLLIN), edge = epoll_set_of(fd, EPOLLIN | EPOLLET);
    wait_full_times(set, fd, 8);
    step();
    pthread_t thread = start(return_bytes, (void *)(intptr_t)fd);
    wait_full_times(set, fd, 32);
    wait_full_times(edge, fd, 32);
    atomic_store(&is_over, true);
    join(thread);
    print_epoll("set", set, 0);
    step();
}

static void sends_bytes(int fd)
{
    step();
    for (char byte = 0; byte != 'e';) {
        CHECK(write(fd, "b", 1) == 1);
        CHECK(read(fd, &byte, 1) == 1);
    }
    step();
}

/* Bytes that are dropped unseen, and vectors with flags but without a position. */
static void drops_bytes(int fd)
{
    struct iovec parts[] = {{buffer, 10}, {buffer + 10, 90}};
    step();
    await_unread(fd, 500);
    memset(buffer, 'z', 100);
    SAY(recv(fd, buffer, 50, MSG_TRUNC));
    SAY(buffer[0] == 'z' && buffer[49] == 'z');
    SAY(recv(fd, NULL, 50, MSG_TRUNC));
    SAY(recv(fd, buffer, 60, 0));
    check_stream(buffer, 1, 100, 60);
    SAY(recv(fd, NULL, 40, MSG_TRUNC | MSG_WAITALL));
    SAY(preadv2(fd, parts, 2, -1, 0));
    check_stream(buffer, 1, 200, 100);
    SAY(preadv2(fd, parts, 2, 0, 0));
    SAY(recv(fd, buffer, 100, 0));
    check_stream(buffer, 1, 300, 100);
    SAY(recv(fd, NULL, 1000, MSG_TRUNC | MSG_DONTWAIT));
    SAY(recv(fd, NULL, 1000, MSG_TRUNC | MSG_DONTWAIT));
    fill(2, 0, (uint8_t *)buffer, 100);
    SAY(pwritev2(fd, parts, 2, 0, 0));
    SAY(pwritev2(fd, parts, 2, -1, 0));
    ask_all(fd, 10);
    step();
}

static void sends_to_drop(int fd)
{
    send_stream(fd, 1, 500);
    step();
    receive_stream(fd, 2, 100);
    answer_count(fd, 10);
    step();
}

/* Both sides send more than their rings hold before they read. */
enum { FIRST_BYTES = 1280 << 10 };

static void sends_before_reading(int fd)
{
    send_stream(fd, 3, FIRST_BYTES);
    receive_stream(fd, 4, FIRST_BYTES);
    ask_all(fd, 10);
    step();
}

static void sends_before_reading_too(int fd)
{
    send_stream(fd, 4, FIRST_BYTES);
    receive_stream(fd, 3, FIRST_BYTES);
    answer_count(fd, 10);
    step();
}

/* Calls by number, and of the C library's own parts. */
static void print_into(int fd, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    SAY(vdprintf(fd, format, list));
    va_end(list);
}

static void uses_other_calls(int fd)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    SAY(syscall(SYS_write, fd, "by number ", 10));
    SAY(write(ends[1], "by pipe ", 8));
    SAY(splice(ends[0], NULL, fd, NULL, 8, 0));
    step(); /* The other end has read, so the next bytes are not beside these. */
    SAY(syscall(SYS_read, fd, buffer, 6));
    SAY(splice(fd, NULL, ends[1], NULL, 6, 0));
    SAY(read(ends[0], buffer + 6, 6));
    SAY(sendfile(ends[1], fd, NULL, 6));
    SAY(read(ends[0], buffer + 12, 6));
    printf("%.18s\n", buffer);
    print_into(fd, "%s by a list", "printed");
    step();
    SAY(syscall(SYS_close, fd));
    step();
}

static void reads_other_calls(int fd)
{
    CHECK(read_all(fd, buffer, 18));
    printf("%.18s\n", buffer);
    write_all(fd, "first second third", 18);
    step();
    CHECK(read_all(fd, buffer, 17));
    printf("%.17s\n", buffer);
    step();
    SAY(recv(fd, buffer, 1, 0));
    step();
}

/* Children that the C library's `fork` does not make use the connection, while the parent has closed it. */
static void makes_other_children(int unused)
{
    (void)unused;
    int listener = tell_port();
    for (int at = 0; at < 4; at++) {
        int own = accepted(listener), status;
        answer_count(own, FIRST_EXCHANGES);
        pid_t child = at % 2 ? (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL) : _Fork();
        CHECK(child >= 0);
        if (child == 0) {
            while (answer(own)) {
            }
            _exit(0);
        }
        CHECK(close(own) == 0);
        CHECK(waitpid(child, &status, 0) == child && status == 0);
    }
    step();
}

static void asks_other_children(int unused)
{
    (void)unused;
    int port = told_port();
    for (int at = 0; at < 4; at++) {
        int own = connected("127.0.0.1", port);
        ask_all(own, FIRST_EXCHANGES + 100);
        CHECK(close(own) == 0);
    }
    step();
}

/* The connection becomes the standard input and output, as for a program that a server of services starts. */
static void uses_standard_files(int fd)
{
    char line[100], expected[100];
    int output = dup(1), wrong = 0;
    CHECK(output >= 0 && dup2(fd, 0) == 0 && dup2(fd, 1) == 1 && close(fd) == 0);
    for (int at = 0; at < 20; at++) {
        printf("line %d\n", at);
        snprintf(expected, sizeof expected, "got line %d\n", at);
        wrong += !fgets(line, sizeof line, stdin) || strcmp(line, expected) != 0;
    }
    fflush(stdout);
    CHECK(dup2(output, 1) == 1);
    printf("wrong: %d\n", wrong);
    SAY(close(0));
    step();
}

static void answers_each_line(int fd)
{
    char line[100] = "got ";
    for (size_t length = 4; read(fd, line + length, 1) == 1;)
        if (line[length++] == '\n') {
            write_all(fd, line, length);
            length = 4;
        }
    SAY(read(fd, line, 1));
    step();
}

/* The program gives a file the low numbers that it does not use. Nothing but the program writes there. */
static void takes_numbers(int fd)
{
    int file = memfd_create("file", 0);
    CHECK(file >= 0);
    for (int number = CONTROL + 1; number < 40; number++)
        CHECK(number == fd || dup2(file, number) == number);
    ask_all(fd, 300);
    pthread_t thread = start(answer_in_thread, (void *)(intptr_t)dup(fd));
    step();
    join(thread);
    SAY(lseek(file, 0, SEEK_END));
}

static void answers_and_asks(int fd)
{
    answer_count(fd, 300);
    step();
    ask_all(fd, 300);
    CHECK(shutdown(fd, SHUT_WR) == 0);
}

/* Commands use the connection, and bytes are unread when they start. */
static void runs_commands(int fd)
{
    char command[100];
    CHECK(fcntl(fd, F_SETFD, 0) == 0);
    step();
    await_unread(fd, 12);
    snprintf(command, sizeof command, "head -c 6 <&%d; echo first >&%d", fd, fd);
    fflush(stdout);
    SAY(system(command));
    step();
    snprintf(command, sizeof command, "echo second >&%d", fd);
    FILE *pipe_of_command = popen(command, "r");
    CHECK(pipe_of_command);
    SAY(pclose(pipe_of_command));
    SAY(read(fd, command, 6));
    step();
}

static void waits_for_commands(int fd)
{
    write_all(fd, "hello\nworld\n", 12);
    step();
    CHECK(read_all(fd, buffer, 6));
    printf("%.6s", buffer);
    step();
    CHECK(read_all(fd, buffer, 7));
    printf("%.7s", buffer);
    step();
}

static const struct test_case cases[] = {
    {"set_waited_on_before", waits_before_the_first, asks_on_two, "waits on a set before it has a member"},
    {"set_before_connect", adds_before_connecting, answers_everywhere, "adds sockets to a set, then connects them"},
    {"set_with_gap", waits_with_a_gap, asks_twenty, "waits on a set of which a member was removed"},
    {"unarmed_end", waits_unarmed, asks_and_resets, "the end comes while an entry with `EPOLLONESHOT` is not armed"},
    {"closed_copy_in_set", waits_by_a_copy, asks_and_dies, "closes a descriptor that a set keeps, and uses a copy"},
    {"set_of_threads_once", serves_once, keeps_one_busy, "four threads wait on a set with `EPOLLONESHOT`, one is busy"},
    {"set_of_threads_edge", serves_edges, keeps_one_busy, "four threads wait on a set with `EPOLLET`, one is busy"},
    {"set_of_owners", serves_as_owner, keeps_one_busy, "four threads wait on a set, and remove and add its members"},
    {"room_by_edges", writes_beside_a_waiter, reads_for_a_waiter, "a thread writes, another one waits for room with `EPOLLET`"},
    {"set_as_descriptor", waits_for_a_set, asks_for_a_set, "`poll`, `select` and another set wait for a set"},
    {"child_for_each", forks_for_each, asks_each_child, "forks for each connection"},
    {"fork_beside_threads", forks_beside_threads, answers_everywhere, "forks while threads exchange bytes"},
    {"close_beside_reader", closes_beside_a_reader, sends_to_the_reader, "`close` and `dup2` beside a thread in `recv`"},
    {"connected_again", connects_again, accepts_again, "`connect` with `AF_UNSPEC`, and again on the same socket"},
    {"closed_unseen", closes_unseen, answers_everywhere, "`syscall(SYS_close)`; a new socket has the number"},
    {"cancelled", cancels, answers, "`pthread_cancel` of threads that wait"},
    {"full_times", waits_its_time, sends_bytes, "time limits of `epoll_wait` and `poll` beside a thread that reads"},
    {"dropped", drops_bytes, sends_to_drop, "`MSG_TRUNC`; `preadv2`, `pwritev2` without a position"},
    {"both_send_first", sends_before_reading, sends_before_reading_too, "both sides send 1.25 MiB before they read"},
    {"other_calls", uses_other_calls, reads_other_calls, "`syscall`, `splice`, `vdprintf`, `sendfile` into a pipe"},
    {"other_children", makes_other_children, asks_other_children, "children by `_Fork` and by `SYS_clone`"},
    {"numbers_taken", takes_numbers, answers_and_asks, "`dup2` onto numbers that the program has not used"},
    {"commands", runs_commands, waits_for_commands, "`system` and `popen` of commands that use the socket"},
    {"standard_files", uses_standard_files, answers_each_line, "the socket as standard input and output"},
};

int main(int count, char **words)
{
    return RUN_CASES(cases);
}
