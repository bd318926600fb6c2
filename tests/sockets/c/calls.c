/* Calls on a connection in which nothing ends: flags, vectors, timeouts, events, copies of the descriptor, other processes. */
#include "cases.h"
#include <linux/sockios.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <sys/wait.h>

static char buffer[1 << 20];

/* Sends `length` bytes at each step. */
static void sends_at_each_step(int fd, size_t length, int steps)
{
    for (int at = 0; at < steps; at++) {
        step();
        send_stream(fd, (uint64_t)at, length);
        step();
    }
}

static void sends_hundred(int fd)
{
    sends_at_each_step(fd, 100, 1);
    step();
}

static void peeks(int fd)
{
    SAY(recv(fd, buffer, 100, MSG_PEEK | MSG_DONTWAIT));
    step();
    step();
    await_unread(fd, 100);
    SAY(recv(fd, buffer, 60, MSG_PEEK));
    SAY(recv(fd, buffer, 1000, MSG_PEEK));
    check_stream(buffer, 0, 0, 100);
    SAY(read(fd, buffer, 30));
    SAY(recv(fd, buffer + 30, 1000, MSG_PEEK));
    check_stream(buffer, 0, 0, 100);
    SAY(read(fd, buffer, 1000));
    SAY(recv(fd, buffer, 100, MSG_PEEK | MSG_DONTWAIT));
    step();
}

static void sends_in_parts(int fd)
{
    uint8_t bytes[5000];
    fill(3, 0, bytes, sizeof bytes);
    for (size_t at = 0; at < sizeof bytes; at += 500)
        write_all(fd, bytes + at, 500);
    SAY(shutdown(fd, SHUT_WR));
    step();
}

static void waits_for_all(int fd)
{
    SAY(recv(fd, buffer, 2900, MSG_WAITALL));
    SAY(recv(fd, buffer + 2900, 2000, MSG_WAITALL));
    SAY(recv(fd, buffer + 4900, 1000, MSG_WAITALL));
    SAY(recv(fd, buffer, 1000, MSG_WAITALL));
    check_stream(buffer, 3, 0, 4900);
    step();
}

static void never_waits(int fd)
{
    SAY(recv(fd, buffer, 100, MSG_DONTWAIT));
    set_nonblocking(fd, true);
    SAY(read(fd, buffer, 100));
    SAY(recv(fd, buffer, 100, MSG_WAITALL));
    print_poll(fd);
    step();
    step();
    await_poll(fd, POLLIN);
    await_unread(fd, 100);
    SAY(read(fd, buffer, 1000));
    SAY(read(fd, buffer, 1000));
    set_nonblocking(fd, false);
    SAY(recv(fd, buffer, 100, MSG_DONTWAIT));
    step();
}

/* Sends until no more is taken, and again when the other has read. The kernel finds room after the first refusals, while it moves
 * bytes to the receiver. */
static void fills(int fd)
{
    uint64_t total = 0;
    set_nonblocking(fd, true);
    for (int refusals = 0; refusals < 20;) {
        size_t part = 1 + total % 100000;
        fill(4, total, (uint8_t *)buffer, part);
        ssize_t sent = refusals % 2 ? send(fd, buffer, part, MSG_DONTWAIT) : write(fd, buffer, part);
        if (sent >= 0) {
            total += (uint64_t)sent, refusals = 0;
            continue;
        }
        CHECK(errno == EAGAIN);
        refusals++;
        pause_between_looks();
    }
    print_poll(fd);
    set_nonblocking(fd, false);
    step();
    CHECK(send(CONTROL, &total, sizeof total, 0) == sizeof total);
    await_poll(fd, POLLOUT);
    step();
    SAY(write(fd, "0123456789", 10));
    step();
}

static void empties(int fd)
{
    uint64_t total, done = 0;
    step();
    CHECK(recv(CONTROL, &total, sizeof total, MSG_WAITALL) == sizeof total);
    while (done < total) {
        ssize_t got = read(fd, buffer, total - done < sizeof buffer ? total - done : sizeof buffer);
        CHECK(got > 0);
        check_stream(buffer, 4, done, (size_t)got);
        done += (uint64_t)got;
    }
    SAY(recv(fd, buffer, 100, MSG_DONTWAIT));
    step();
    SAY(recv(fd, buffer, 10, MSG_WAITALL));
    step();
}

static void sends_sizes(int fd)
{
    static const size_t sizes[] = {1, 1000, 70000};
    int unsent = 1;
    for (int at = 0; at < 3; at++) {
        send_stream(fd, 5, sizes[at]);
        step();
        step();
    }
    for (; unsent; pause_between_looks())
        CHECK(ioctl(fd, SIOCOUTQ, &unsent) == 0);
    printf("unsent: %d\n", unsent);
    step();
}

static void counts_unread(int fd)
{
    static const int sizes[] = {1, 1000, 70000};
    int unread;
    for (int at = 0, total = 0; at < 3; at++) {
        step();
        total += sizes[at];
        await_unread(fd, total);
        SAY(ioctl(fd, FIONREAD, &unread));
        printf("unread: %d\n", unread);
        step();
    }
    SAY(recv(fd, buffer, 71000, MSG_WAITALL));
    SAY(ioctl(fd, FIONREAD, &unread));
    printf("unread: %d\n", unread);
    step();
}

/* Vectors with empty parts, and the fields of a message. */
static void sends_vectors(int fd)
{
    uint8_t bytes[3000];
    fill(6, 0, bytes, sizeof bytes);
    struct iovec parts[] = {{bytes, 0}, {bytes, 1}, {bytes + 1, 999}, {NULL, 0}, {bytes + 1000, 500}};
    struct iovec others[] = {{bytes + 1500, 700}, {bytes + 2200, 0}, {bytes + 2200, 700}};
    struct msghdr message = {.msg_iov = others, .msg_iovlen = 3};
    SAY(writev(fd, parts, 5));
    SAY(sendmsg(fd, &message, MSG_NOSIGNAL));
    SAY(sendto(fd, bytes + 2900, 100, 0, NULL, 0));
    SAY(writev(fd, parts, 1));
    SAY(writev(fd, NULL, 0));
    step();
    step();
}

static void receives_vectors(int fd)
{
    char control[64], name[64];
    struct iovec parts[] = {{buffer, 10}, {buffer, 0}, {buffer + 10, 990}, {buffer + 1000, 200}};
    struct iovec others[] = {{buffer + 1200, 1}, {buffer + 1201, 799}};
    struct msghdr message = {.msg_iov = others, .msg_iovlen = 2, .msg_control = control, .msg_controllen = sizeof control};
    struct sockaddr_storage from;
    socklen_t length = sizeof from;
    message.msg_name = name, message.msg_namelen = sizeof name;
    step();
    await_unread(fd, 3000);
    SAY(readv(fd, parts, 4));
    SAY(recvmsg(fd, &message, 0));
    printf("name %d, control %zu, flags %x\n", (int)message.msg_namelen, message.msg_controllen, message.msg_flags);
    SAY(recvfrom(fd, buffer + 2000, 5000, 0, (struct sockaddr *)&from, &length));
    printf("name %d\n", (int)length);
    check_stream(buffer, 6, 0, 3000);
    step();
}

static void sends_two_vectors(int fd)
{
    struct mmsghdr messages[2] = {0};
    struct iovec parts[2];
    uint8_t bytes[1000];
    fill(7, 0, bytes, sizeof bytes);
    for (int at = 0; at < 2; at++) {
        parts[at] = (struct iovec){bytes + 500 * at, 500};
        messages[at].msg_hdr.msg_iov = &parts[at], messages[at].msg_hdr.msg_iovlen = 1;
    }
    SAY(sendmmsg(fd, messages, 2, 0));
    printf("lengths: %u %u\n", messages[0].msg_len, messages[1].msg_len);
    step();
    step();
}

static void receives_two_vectors(int fd)
{
    struct mmsghdr messages[2] = {0};
    struct iovec parts[2];
    step();
    await_unread(fd, 1000);
    for (int at = 0; at < 2; at++) {
        parts[at] = (struct iovec){buffer + 500 * at, 500};
        messages[at].msg_hdr.msg_iov = &parts[at], messages[at].msg_hdr.msg_iovlen = 1;
    }
    SAY(recvmmsg(fd, messages, 2, 0, NULL));
    printf("lengths: %u %u\n", messages[0].msg_len, messages[1].msg_len);
    check_stream(buffer, 7, 0, 1000);
    step();
}

static void sends_nothing(int fd)
{
    SAY(write(fd, buffer, 0));
    SAY(send(fd, buffer, 0, 0));
    step();
    step();
}

static void receives_nothing(int fd)
{
    step();
    SAY(recv(fd, buffer, 100, MSG_DONTWAIT));
    SAY(recv(fd, buffer, 0, MSG_DONTWAIT));
    step();
}

static void set_timeout(int fd, int option, int milliseconds)
{
    struct timeval time = {.tv_usec = 1000 * milliseconds};
    CHECK(setsockopt(fd, SOL_SOCKET, option, &time, sizeof time) == 0);
}

static void times_out(int fd)
{
    set_timeout(fd, SO_RCVTIMEO, 20);
    SAY(read(fd, buffer, 100));
    SAY(recv(fd, buffer, 100, MSG_WAITALL));
    set_timeout(fd, SO_SNDTIMEO, 20);
    while (write(fd, buffer, sizeof buffer) == sizeof buffer)
        continue;
    while (write(fd, buffer, sizeof buffer) > 0)
        continue;
    printf("write: %s\n", strerrorname_np(errno));
    step();
}

static void sends_part_of_all(int fd)
{
    send_stream(fd, 0, 100);
    step();
    step();
}

static void times_out_within_all(int fd)
{
    set_timeout(fd, SO_RCVTIMEO, 20);
    step();
    await_unread(fd, 100);
    SAY(recv(fd, buffer, 1000, MSG_WAITALL));
    SAY(recv(fd, buffer, 1000, MSG_WAITALL));
    step();
}

static void does_nothing(int fd)
{
    (void)fd;
    step();
}

/* The connection lives as long as one of its descriptors. */
static void goes_through_copies(int fd)
{
    int copy = dup(fd), second, third;
    CHECK(copy >= 0);
    SAY(close(fd));
    send_stream(copy, 1, 5000);
    second = fcntl(copy, F_DUPFD_CLOEXEC, 100), third = dup2(copy, 200);
    CHECK(second >= 100 && third == 200);
    SAY(close(copy));
    receive_stream(second, 2, 50000);
    send_stream(third, 3, 50000);
    SAY(close(second));
    step();
    SAY(dup2(CONTROL, third) == third);
    SAY(close(third));
    step();
}

static void stays_with_copies(int fd)
{
    receive_stream(fd, 1, 5000);
    print_poll(fd);
    send_stream(fd, 2, 50000);
    receive_stream(fd, 3, 50000);
    SAY(recv(fd, buffer, 100, MSG_DONTWAIT));
    step();
    step();
    await_poll(fd, POLLRDHUP);
    SAY(read(fd, buffer, 100));
}

static void ignore(int signal)
{
    (void)signal;
}

/* A timer that goes on until it is stopped: one of its signals comes within the call. */
static void set_timer(bool on)
{
    struct itimerval timer = {{0, on ? 5000 : 0}, {0, on ? 5000 : 0}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void is_interrupted(int fd)
{
    struct sigaction action = {.sa_handler = ignore};
    struct epoll_event event;
    struct pollfd polled = {fd, POLLIN, 0};
    int set = epoll_set_of(fd, EPOLLIN);
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    set_timer(true);
    SAY(read(fd, buffer, 100));
    SAY(recv(fd, buffer, 100, MSG_WAITALL));
    SAY(epoll_wait(set, &event, 1, -1));
    SAY(poll(&polled, 1, -1));
    set_timer(false);
    action.sa_flags = SA_RESTART;
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    step();
    set_timer(true);
    SAY(read(fd, buffer, 100));
    set_timer(false);
    step();
}

/* The data comes after the reader has slept through some signals. */
static void sends_late(int fd)
{
    step();
    for (int at = 0; at < 20; at++)
        pause_between_looks();
    SAY(write(fd, "x", 1));
    step();
}

/* Parent and child write in turns. */
static void forks(int fd)
{
    send_stream(fd, 1, 10000);
    pid_t child = fork();
    if (child == 0) {
        send_stream(fd, 2, 20000);
        receive_stream(fd, 3, 20000);
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    printf("child: %d\n", status);
    send_stream(fd, 4, 10000);
    receive_stream(fd, 5, 10000);
    SAY(close(fd));
    step();
}

static void talks_to_both(int fd)
{
    receive_stream(fd, 1, 10000);
    receive_stream(fd, 2, 20000);
    send_stream(fd, 3, 20000);
    receive_stream(fd, 4, 10000);
    send_stream(fd, 5, 10000);
    SAY(read(fd, buffer, 100));
    step();
}

/* A server that gives its connection to a child and closes its own descriptor. */
static void hands_to_child(int fd)
{
    send_stream(fd, 1, 10000);
    pid_t child = fork();
    if (child == 0) {
        step();
        send_stream(fd, 2, 20000);
        receive_stream(fd, 3, 20000);
        send_stream(fd, 4, 10000);
        receive_stream(fd, 5, 10000);
        _exit(0);
    }
    int status = -1;
    SAY(close(fd));
    CHECK(waitpid(child, &status, 0) == child);
    printf("child: %d\n", status);
    step();
}

static void talks_to_child(int fd)
{
    step();
    talks_to_both(fd);
}

enum { TURNS = 100 };

/* A child that sends to a thread, which began after the fork. */
static void hands_turns_to_child(int fd)
{
    send_stream(fd, 1, 10000);
    pid_t child = fork();
    if (child == 0) {
        step();
        for (int turn = 0; turn < TURNS; turn++) {
            send_stream(fd, turn, 1);
            receive_stream(fd, turn + 1, 1);
        }
        _exit(0);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    printf("child: %d\n", status);
    step();
}

static void *takes_turns(void *fd)
{
    for (int turn = 0; turn < TURNS; turn++) {
        receive_stream((int)(intptr_t)fd, turn, 1);
        send_stream((int)(intptr_t)fd, turn + 1, 1);
    }
    return NULL;
}

static void takes_turns_in_a_thread(int fd)
{
    receive_stream(fd, 1, 10000);
    step();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, takes_turns, (void *)(intptr_t)fd) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    step();
}

/* The shell writes to the descriptor that it inherits. */
static void runs_a_shell(int fd)
{
    send_stream(fd, 1, 10000);
    CHECK(dup2(fd, 1) == 1);
    execl("/bin/sh", "sh", "-c", "read line <&1; echo \"got $line\"", NULL);
    FAIL("exec");
}

/* Sends the line that the shell waits for, and reads its answer and its end. */
static void sends_a_line(int fd)
{
    SAY(write(fd, "a line\n", 7));
    SAY(recv(fd, buffer, 11, MSG_WAITALL));
    printf("%.11s", buffer);
    SAY(read(fd, buffer, 100));
}

static void talks_to_a_shell(int fd)
{
    receive_stream(fd, 1, 10000);
    sends_a_line(fd);
}

/* The shell speaks first, so nothing is unread when it starts. */
static void asks_by_a_shell(int fd)
{
    send_stream(fd, 1, 10000);
    receive_stream(fd, 2, 10000);
    CHECK(dup2(fd, 1) == 1);
    execlp("sh", "sh", "-c", "echo ready; read line <&1; echo \"got $line\"", NULL);
    FAIL("exec");
}

static void answers_a_shell(int fd)
{
    receive_stream(fd, 1, 10000);
    send_stream(fd, 2, 10000);
    SAY(recv(fd, buffer, 6, MSG_WAITALL));
    printf("%.6s", buffer);
    sends_a_line(fd);
}

/* A command of the C library's `posix_spawn` gets the connection as its output. */
static void spawns(int fd)
{
    char *words[] = {"echo", "from a command", NULL};
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = -1;
    send_stream(fd, 1, 10000);
    receive_stream(fd, 2, 10000);
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    SAY(posix_spawn_file_actions_adddup2(&actions, fd, 1));
    SAY(posix_spawnp(&child, "echo", &actions, NULL, words, environ));
    CHECK(waitpid(child, &status, 0) == child);
    printf("command: %d\n", status);
    send_stream(fd, 3, 10000);
    SAY(read(fd, buffer, 100));
}

static void reads_of_a_command(int fd)
{
    receive_stream(fd, 1, 10000);
    send_stream(fd, 2, 10000);
    SAY(recv(fd, buffer, 15, MSG_WAITALL));
    printf("%.15s", buffer);
    receive_stream(fd, 3, 10000);
}

/* Sends a descriptor over a Unix socket. */
static void pass(int to, int fd)
{
    union { struct cmsghdr header; char bytes[CMSG_SPACE(sizeof fd)]; } control = {0};
    struct iovec part = {.iov_base = "d", .iov_len = 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    SAY(sendmsg(to, &message, 0));
}

static int passed(int from)
{
    union { struct cmsghdr header; char bytes[CMSG_SPACE(sizeof(int))]; } control;
    char byte;
    int fd;
    struct iovec part = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    CHECK(recvmsg(from, &message, 0) == 1 && CMSG_FIRSTHDR(&message));
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

/* A process that was there before gets the connection. */
static void passes(int fd)
{
    int ends[2], status = -1;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(fd);
        int got = passed(ends[1]);
        send_stream(got, 3, 100000);
        receive_stream(got, 4, 100000);
        _exit(0);
    }
    send_stream(fd, 1, 10000);
    receive_stream(fd, 2, 10000);
    pass(ends[0], fd);
    SAY(close(fd));
    CHECK(waitpid(child, &status, 0) == child);
    printf("child: %d\n", status);
}

static void talks_to_the_next(int fd)
{
    receive_stream(fd, 1, 10000);
    send_stream(fd, 2, 10000);
    receive_stream(fd, 3, 100000);
    send_stream(fd, 4, 100000);
    SAY(read(fd, buffer, 100));
}

/* Urgent data goes by TCP, and so does what follows it. */
static void sends_urgent_data(int fd)
{
    send_stream(fd, 1, 10000);
    step();
    SAY(send(fd, "!", 1, MSG_OOB));
    SAY(write(fd, "after", 5));
    step();
    SAY(read(fd, buffer, 100));
}

static void receives_urgent_data(int fd)
{
    receive_stream(fd, 1, 10000);
    step();
    step();
    await_poll(fd, POLLPRI);
    SAY(recv(fd, buffer, 1, MSG_OOB));
    SAY(recv(fd, buffer + 1, 5, MSG_WAITALL));
    printf("%.6s\n", buffer);
    SAY(close(fd));
}

static void uses_stdio(int fd)
{
    FILE *file = fdopen(fd, "r+");
    CHECK(file);
    for (int at = 0; at < 1000; at++)
        fprintf(file, "line %d\n", at);
    SAY(fflush(file));
    SAY(fgets(buffer, 100, file) != NULL);
    printf("%s", buffer);
    SAY(fclose(file));
    step();
}

static void answers_lines(int fd)
{
    size_t length = 0;
    for (int at = 0; at < 1000; at++)
        length += (size_t)sprintf(buffer + 20000 + length, "line %d\n", at);
    SAY(recv(fd, buffer, length, MSG_WAITALL));
    CHECK(memcmp(buffer, buffer + 20000, length) == 0);
    SAY(dprintf(fd, "%d lines\n", 1000));
    SAY(read(fd, buffer, 100));
    step();
}

static void sends_a_file(int fd)
{
    int file = memfd_create("file", MFD_CLOEXEC), ends[2];
    off_t at = 1000;
    CHECK(file >= 0 && pipe(ends) == 0);
    send_stream(file, 8, 100000);
    SAY(write(fd, buffer, 1000));
    SAY(sendfile(fd, file, &at, 50000));
    printf("at %ld\n", (long)at);
    SAY(write(fd, buffer, 1000));
    SAY(splice(file, &at, ends[1], NULL, 4096, 0));
    SAY(splice(ends[0], NULL, fd, NULL, 4096, 0));
    SAY(write(fd, buffer, 1000));
    step();
}

static void receives_a_file(int fd)
{
    memset(buffer, 1, 200000);
    SAY(recv(fd, buffer, 1000 + 50000 + 1000 + 4096 + 1000, MSG_WAITALL));
    check_stream(buffer + 1000, 8, 1000, 50000);
    check_stream(buffer + 52000, 8, 51000, 4096);
    step();
}

/* The flag is about the pipe: a socket that blocks is waited for. */
static void splices_early(int fd)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    for (int at = 0; at < 20; at++) {
        CHECK(write(fd, "n", 1) == 1);
        CHECK(splice(fd, NULL, ends[1], NULL, 1, SPLICE_F_NONBLOCK) == 1);
        CHECK(read(ends[0], buffer, 10) == 1);
    }
    step();
}

static void writes_later(int fd)
{
    for (int at = 0; at < 20; at++) {
        CHECK(read_all(fd, buffer, 1));
        pause_between_looks();
        CHECK(write(fd, "x", 1) == 1);
    }
    step();
}

/* Sets that are re-armed, changed and emptied; two sets that have the same descriptor. */
static void sees_each_event(int fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.u64 = 77};
    int once = epoll_set_of(fd, EPOLLIN | EPOLLONESHOT), both = epoll_set_of(fd, EPOLLIN | EPOLLOUT);
    struct epoll_event twice = event;
    SAY(epoll_ctl(once, EPOLL_CTL_ADD, fd, &twice));
    step();
    step();
    await_unread(fd, 100);
    print_epoll("once", once, -1);
    print_epoll("once, again", once, 0);
    print_epoll("both", both, -1);
    SAY(epoll_ctl(once, EPOLL_CTL_MOD, fd, &event));
    print_epoll("once, armed", once, -1);
    SAY(recv(fd, buffer, 100, MSG_WAITALL));
    print_epoll("both, read", both, 0);
    SAY(epoll_ctl(once, EPOLL_CTL_MOD, fd, &event));
    print_epoll("once, armed and read", once, 0);
    event.events = 0;
    SAY(epoll_ctl(both, EPOLL_CTL_MOD, fd, &event));
    step();
    step();
    print_epoll("once, data", once, -1);
    print_epoll("both, without events", both, 0);
    SAY(epoll_ctl(once, EPOLL_CTL_DEL, fd, NULL));
    SAY(epoll_ctl(once, EPOLL_CTL_DEL, fd, NULL));
    print_epoll("once, removed", once, 0);
    step();
}

static void sends_twice(int fd)
{
    sends_at_each_step(fd, 100, 2);
    step();
}

static int change(int set, int operation, int fd, uint32_t wanted)
{
    struct epoll_event event = {.events = wanted, .data.u64 = 77};
    return epoll_ctl(set, operation, fd, &event);
}

static void sends_and_ends(int fd)
{
    sends_at_each_step(fd, 100, 2);
    step();
    SAY(shutdown(fd, SHUT_WR));
    step();
}

/* The program changes its mind about the connection again and again. */
static void changes_a_set(int fd)
{
    int set = epoll_set_of(fd, EPOLLIN);
    print_epoll("idle", set, 0);
    step();
    step();
    print_epoll("data", set, -1);
    SAY(change(set, EPOLL_CTL_MOD, fd, EPOLLOUT));
    print_epoll("room", set, 0);
    SAY(change(set, EPOLL_CTL_MOD, fd, 0));
    print_epoll("no events", set, 0);
    SAY(change(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT));
    print_epoll("both", set, 0);
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    print_epoll("removed", set, 0);
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    SAY(change(set, EPOLL_CTL_MOD, fd, EPOLLIN));
    SAY(change(set, EPOLL_CTL_ADD, fd, EPOLLIN));
    SAY(change(set, EPOLL_CTL_ADD, fd, EPOLLIN));
    print_epoll("added", set, 0);
    SAY(change(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT));
    print_epoll("once", set, 0);
    print_epoll("once, again", set, 0);
    SAY(change(set, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT));
    print_epoll("once, armed", set, 0);
    SAY(read(fd, buffer, 100));
    step();
    step();
    await_unread(fd, 100);
    print_epoll("once, not armed", set, 0);
    SAY(change(set, EPOLL_CTL_MOD, fd, EPOLLIN));
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    int other = epoll_set_of(fd, EPOLLIN);
    print_epoll("other set", other, -1);
    SAY(epoll_ctl(other, EPOLL_CTL_DEL, fd, NULL));
    SAY(change(set, EPOLL_CTL_ADD, fd, EPOLLIN));
    print_epoll("first set", set, -1);
    SAY(read(fd, buffer, 100));
    SAY(change(set, EPOLL_CTL_MOD, fd, EPOLLOUT));
    step();
    await_poll(fd, POLLRDHUP);
    print_epoll("end, room", set, 0);
    SAY(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    print_epoll("end, removed", set, 0);
    SAY(change(set, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLRDHUP));
    print_epoll("end", set, -1);
    step();
}

/* The connection beside a pipe that stays silent. */
static void selects(int fd)
{
    struct timespec now = {0, 0};
    fd_set readable, writable;
    int silent[2];
    CHECK(pipe(silent) == 0);
    int count = (fd > silent[0] ? fd : silent[0]) + 1;
    FD_ZERO(&readable);
    FD_ZERO(&writable);
    FD_SET(fd, &readable);
    FD_SET(silent[0], &readable);
    FD_SET(fd, &writable);
    SAY(pselect(count, &readable, &writable, NULL, &now, NULL));
    printf("readable %d, writable %d\n", !!FD_ISSET(fd, &readable), !!FD_ISSET(fd, &writable));
    step();
    step();
    await_unread(fd, 100);
    FD_SET(fd, &readable);
    FD_SET(silent[0], &readable);
    SAY(select(count, &readable, NULL, NULL, NULL));
    printf("readable %d, silent %d\n", !!FD_ISSET(fd, &readable), !!FD_ISSET(silent[0], &readable));
    struct pollfd polled[] = {{-1, POLLIN, 0}, {silent[0], POLLIN, 0}, {fd, POLLIN, 0}, {silent[1], POLLOUT, 0}};
    SAY(ppoll(polled, 4, NULL, NULL));
    print_mask("ppoll, connection", (unsigned)polled[2].revents);
    print_mask("ppoll, pipe", (unsigned)polled[3].revents);
    step();
}

static const struct test_case cases[] = {
    {"peek", sends_hundred, peeks, "`MSG_PEEK`"},
    {"wait_for_all", sends_in_parts, waits_for_all, "`MSG_WAITALL` over several messages"},
    {"never_wait", sends_hundred, never_waits, "`MSG_DONTWAIT`, `O_NONBLOCK`"},
    {"full", fills, empties, "writes until nothing more fits; events of room"},
    {"unread", sends_sizes, counts_unread, "`FIONREAD` with 1 to 70,000 bytes"},
    {"vectors", sends_vectors, receives_vectors, "`readv`, `writev`, `recvmsg`, `sendmsg`"},
    {"vectors_of_messages", sends_two_vectors, receives_two_vectors, "`recvmmsg`, `sendmmsg`"},
    {"nothing", sends_nothing, receives_nothing, "reads and writes of no bytes"},
    {"timeouts", times_out, does_nothing, "`SO_RCVTIMEO`, `SO_SNDTIMEO`"},
    {"timeout_within_all", sends_part_of_all, times_out_within_all, "a time limit within `MSG_WAITALL`"},
    {"copies", goes_through_copies, stays_with_copies, "`dup`, `dup2`, `F_DUPFD_CLOEXEC`, and closing of copies"},
    {"interrupted", sends_late, is_interrupted, "signals with and without `SA_RESTART`"},
    {"forked", forks, talks_to_both, "parent and child both go on"},
    {"handed_to_child", hands_to_child, talks_to_child, "the child goes on, the parent closes"},
    {"handed_to_child_of_threads", hands_turns_to_child, takes_turns_in_a_thread,
     "the child goes on with a thread that began after the fork"},
    {"inherited_by_a_shell", runs_a_shell, talks_to_a_shell, "exec of a shell that has the socket as input and output"},
    {"asked_by_a_shell", asks_by_a_shell, answers_a_shell, "as before, and the shell speaks first"},
    {"spawned", spawns, reads_of_a_command, "`posix_spawn` with the socket as output"},
    {"passed", passes, talks_to_the_next, "`SCM_RIGHTS`"},
    {"urgent", sends_urgent_data, receives_urgent_data, "`MSG_OOB`"},
    {"stdio", uses_stdio, answers_lines, "`fdopen`, `fprintf`, `dprintf`"},
    {"files", sends_a_file, receives_a_file, "`sendfile` and `splice`"},
    {"spliced_later", splices_early, writes_later, "`splice` with `SPLICE_F_NONBLOCK` before there are bytes"},
    {"sets", sends_twice, sees_each_event, "two epoll sets with one socket, one of them one-shot"},
    {"changing_set", sends_and_ends, changes_a_set, "`EPOLL_CTL_MOD`, `DEL` and `ADD` again and again"},
    {"select", sends_hundred, selects, "`select`, `pselect` and `ppoll` with pipes"},
};

int main(int count, char **words)
{
    return RUN_CASES(cases);
}
