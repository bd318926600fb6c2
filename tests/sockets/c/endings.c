/* How connections end: FIN, RST, death, and what each call of the other end returns from then on. */
#include "cases.h"
#include <sys/wait.h>
#include <sys/select.h>

static char buffer[1 << 20];

/* The end of a stream without an error: what follows it for a program that goes on. */
static void after_fin(int fd)
{
    await_poll(fd, POLLRDHUP);
    SAY(read(fd, buffer, 100));
    SAY(read(fd, buffer, 100));
    SAY(recv(fd, buffer, 100, MSG_PEEK));
}

/* The first write to a program that is gone is accepted, and answered with a reset. */
static void after_close(int fd)
{
    after_fin(fd);
    SAY(write(fd, "x", 1));
    await_poll(fd, POLLHUP | POLLERR);
    SAY(write(fd, "x", 1));
    SAY(write(fd, "x", 1));
    SAY(read(fd, buffer, 100));
    print_poll(fd);
    SAY(close(fd));
}

static void after_reset(int fd)
{
    await_poll(fd, POLLHUP);
    SAY(read(fd, buffer, 100));
    SAY(read(fd, buffer, 100));
    print_poll(fd);
    SAY(write(fd, "x", 1));
    SAY(shutdown(fd, SHUT_WR));
    SAY(close(fd));
}

static void closes(int fd)
{
    SAY(close(fd));
    step();
}

static void sends_and_closes(int fd)
{
    send_stream(fd, 1, 5000);
    closes(fd);
}

/* Sends after the peer's close, and reads nothing. */
static void only_sends(int fd)
{
    step();
    for (int at = 0; at < 3; at++) {
        SAY(send(fd, "x", 1, MSG_NOSIGNAL));
        pause_between_looks();
    }
}

static void reads_and_sees_close(int fd)
{
    step();
    await_poll(fd, POLLRDHUP);
    SAY(read(fd, buffer, 2000));
    SAY(read(fd, buffer + 2000, 2000));
    SAY(read(fd, buffer + 4000, 2000));
    check_stream(buffer, 1, 0, 5000);
    after_close(fd);
}

static void sees_close(int fd)
{
    step();
    after_close(fd);
}

/* Unread data at close is a reset. */
static void closes_with_unread(int fd)
{
    await_unread(fd, 1000);
    closes(fd);
}

static void sends_and_sees_reset(int fd)
{
    send_stream(fd, 2, 1000);
    step();
    after_reset(fd);
}

static void sends_and_closes_with_unread(int fd)
{
    send_stream(fd, 1, 5000);
    await_unread(fd, 1000);
    closes(fd);
}

static void reads_and_sees_reset(int fd)
{
    send_stream(fd, 2, 1000);
    step();
    await_poll(fd, POLLHUP);
    SAY(read(fd, buffer, sizeof buffer));
    check_stream(buffer, 1, 0, 5000);
    after_reset(fd);
}

/* One direction ends, the other goes on. */
static void half_closes(int fd)
{
    send_stream(fd, 1, 3000);
    SAY(shutdown(fd, SHUT_WR));
    SAY(shutdown(fd, SHUT_WR));
    SAY(write(fd, "x", 1));
    print_poll(fd);
    step();
    receive_stream(fd, 2, 300000);
    step();
    after_fin(fd);
    SAY(write(fd, "x", 1));
    SAY(close(fd));
}

static void goes_on(int fd)
{
    receive_stream(fd, 1, 3000);
    after_fin(fd);
    step();
    send_stream(fd, 2, 300000);
    SAY(close(fd));
    step();
}

/* The end of the stream comes behind the data, in pieces as they are asked for. */
static void sends_and_half_closes(int fd)
{
    send_stream(fd, 1, 3000);
    SAY(shutdown(fd, SHUT_WR));
    step();
    SAY(close(fd));
}

static void reads_after_fin(int fd)
{
    int unread = 0;
    await_poll(fd, POLLRDHUP);
    await_unread(fd, 3000);
    for (int at = 0; at < 4; at++) {
        SAY(ioctl(fd, FIONREAD, &unread));
        printf("unread: %d\n", unread);
        SAY(read(fd, buffer, 1000));
        print_poll(fd);
    }
    SAY(recv(fd, buffer, 100, MSG_DONTWAIT));
    SAY(recv(fd, buffer, 100, MSG_WAITALL));
    step();
}

/* A program that shuts down its receiving still gets what arrives. */
static void shuts_reading_down(int fd)
{
    SAY(shutdown(fd, SHUT_RD));
    print_poll(fd);
    SAY(read(fd, buffer, 100));
    step();
    step();
    await_unread(fd, 10);
    SAY(read(fd, buffer, 100));
    SAY(read(fd, buffer, 100));
    SAY(write(fd, "0123456789", 10));
    step();
    SAY(close(fd));
}

static void writes_all_the_same(int fd)
{
    step();
    print_poll(fd);
    SAY(write(fd, "0123456789", 10));
    step();
    SAY(recv(fd, buffer, 10, MSG_WAITALL));
    step();
    after_fin(fd);
}

static void shuts_both_down(int fd)
{
    send_stream(fd, 1, 5000);
    SAY(shutdown(fd, SHUT_RDWR));
    SAY(write(fd, "x", 1));
    SAY(read(fd, buffer, 100));
    print_poll(fd);
    step();
    step();
    SAY(close(fd));
}

static void reads_and_closes(int fd)
{
    step();
    receive_stream(fd, 1, 5000);
    after_fin(fd);
    SAY(close(fd));
    step();
}

static void resets_now(int fd)
{
    struct linger now = {1, 0};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now) == 0);
    closes(fd);
}

static void sees_reset(int fd)
{
    step();
    after_reset(fd);
}

static void sends_and_resets(int fd)
{
    send_stream(fd, 1, 5000);
    step();
    resets_now(fd);
}

static void has_data_and_sees_reset(int fd)
{
    await_unread(fd, 5000);
    step();
    step();
    await_poll(fd, POLLHUP);
    SAY(read(fd, buffer, sizeof buffer));
    after_reset(fd);
}

/* The error of a connection is reported once, by whichever call asks first. */
static void asks_for_the_error(int fd)
{
    step();
    await_poll(fd, POLLHUP);
    for (int at = 0; at < 2; at++) {
        int error = 0;
        socklen_t length = sizeof error;
        SAY(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length));
        printf("error: %s\n", error ? strerrorname_np(error) : "none");
    }
    SAY(read(fd, buffer, 100));
    SAY(write(fd, "x", 1));
}

/* A child had the connection, too, so the library cannot make the reset itself. */
static void closes_after_fork(int fd)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    closes_with_unread(fd);
}

static void sends_and_asks_for_the_error(int fd)
{
    send_stream(fd, 2, 1000);
    asks_for_the_error(fd);
}

static volatile sig_atomic_t pipes;

static void count_sigpipe(int signal)
{
    (void)signal;
    pipes++;
}

static void counts_sigpipe(int fd)
{
    signal(SIGPIPE, count_sigpipe);
    step();
    await_poll(fd, POLLRDHUP);
    SAY(write(fd, "x", 1));
    await_poll(fd, POLLHUP);
    SAY(write(fd, "x", 1));
    printf("signals: %d\n", pipes);
    SAY(send(fd, "x", 1, MSG_NOSIGNAL));
    printf("signals: %d\n", pipes);
    SAY(send(fd, "x", 1, 0));
    printf("signals: %d\n", pipes);
}

/* Events of data, of the end of the stream and of a reset, each after the one before was seen. */
static void sends_then_ends(int fd)
{
    step();
    SAY(write(fd, "0123456789", 10));
    step();
    step();
    SAY(shutdown(fd, SHUT_WR));
    step();
    step();
    resets_now(fd);
}

static void sees_events(int fd, uint32_t level, uint32_t edge)
{
    int by_level = epoll_set_of(fd, level), by_edge = epoll_set_of(fd, edge | EPOLLET);
    print_epoll("level, idle", by_level, 0);
    print_epoll("edge, idle", by_edge, 0);
    print_epoll("edge, idle again", by_edge, 0);
    step();
    step();
    await_unread(fd, 10);
    print_epoll("level, data", by_level, -1);
    print_epoll("level, data again", by_level, 0);
    print_epoll("edge, data", by_edge, -1);
    print_epoll("edge, data again", by_edge, 0);
    SAY(recv(fd, buffer, 10, MSG_WAITALL));
    print_epoll("level, read", by_level, 0);
    step();
    step();
    await_poll(fd, POLLRDHUP);
    print_epoll("level, end", by_level, -1);
    print_epoll("edge, end", by_edge, -1);
    print_epoll("edge, end again", by_edge, 0);
    SAY(read(fd, buffer, 100));
    step();
    step();
    await_poll(fd, POLLHUP);
    print_epoll("level, reset", by_level, -1);
    print_epoll("edge, reset", by_edge, -1);
    print_epoll("edge, reset again", by_edge, 0);
    SAY(read(fd, buffer, 100));
    SAY(close(fd));
    print_epoll("level, closed", by_level, 0);
    print_epoll("edge, closed", by_edge, 0);
}

static void sees_events_of_input(int fd)
{
    sees_events(fd, EPOLLIN, EPOLLIN);
}

static void sees_events_with_rdhup(int fd)
{
    sees_events(fd, EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLRDHUP);
}

static void sees_events_of_rdhup(int fd)
{
    sees_events(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, EPOLLIN | EPOLLRDHUP);
}

/* Death is a close, or a reset if there was unread data. */
static void dies(int fd)
{
    (void)fd;
    raise(SIGKILL);
}

static void dies_with_unread(int fd)
{
    await_unread(fd, 1000);
    dies(fd);
}

static void dies_after_sending(int fd)
{
    send_stream(fd, 1, 5000);
    dies(fd);
}

static void exits(int fd)
{
    (void)fd;
    exit(0);
}

static void becomes_another_program(int fd)
{
    send_stream(fd, 1, 5000);
    execl("/bin/true", "true", NULL);
    FAIL("exec");
}

static void sees_death(int fd)
{
    wait_for_end();
    after_close(fd);
}

static void reads_and_sees_death(int fd)
{
    wait_for_end();
    reads_and_sees_close(fd);
}

static void sends_and_sees_death(int fd)
{
    send_stream(fd, 2, 1000);
    wait_for_end();
    after_reset(fd);
}

/* Calls that wait when the end comes. */
static void waits_in_read(int fd)
{
    SAY(read(fd, buffer, 100));
    SAY(read(fd, buffer, 100));
}

static void waits_in_epoll(int fd)
{
    int set = epoll_set_of(fd, EPOLLIN);
    print_epoll("epoll", set, -1);
    SAY(read(fd, buffer, 100));
}

static void waits_in_select(int fd)
{
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    SAY(select(fd + 1, &readable, NULL, NULL, NULL));
    SAY(read(fd, buffer, 100));
}

static void dies_when_full(int fd)
{
    await_unread(fd, 1000);
    dies(fd);
}

/* The number of bytes that go before the end differs; the errors do not. */
static void waits_in_write(int fd)
{
    while (write(fd, buffer, sizeof buffer) > 0)
        continue;
    printf("write: %s\n", strerrorname_np(errno));
    SAY(write(fd, buffer, sizeof buffer));
}

static void dies_when_told(int fd)
{
    await_unread(fd, 1000);
    step();
    dies(fd);
}

/* The connection is full, and stays so for a while, before the peer dies. */
static void goes_on_sending(int fd)
{
    CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    while (write(fd, buffer, sizeof buffer) > 0)
        continue;
    wait_for_end();
    for (int left = 50; left > 0; left--)
        pause_between_looks();
    while (write(fd, buffer, sizeof buffer) > 0 || errno == EAGAIN)
        pause_between_looks();
    printf("write: %s\n", strerrorname_np(errno));
    SAY(write(fd, buffer, sizeof buffer));
}

/* Reads everything, and dies. */
static void reads_and_dies(int fd)
{
    receive_stream(fd, 1, 100000);
    step();
    dies(fd);
}

static void reads_and_exits(int fd)
{
    receive_stream(fd, 1, 100000);
    step();
    exits(fd);
}

/* Learns only by its writes that the peer has ended. Their pauses are longer than a way through the kernel. */
static void writes_after_the_end(int fd)
{
    send_stream(fd, 1, 100000);
    wait_for_end();
    for (int left = 50; left > 0; left--)
        pause_between_looks();
    for (int at = 0; at < 4; at++) {
        SAY(send(fd, "x", 1, MSG_NOSIGNAL));
        pause_between_looks();
    }
}

/* This end shows no FIN by events, because it reads nothing more. */
static void writes_after_the_end_unread(int fd)
{
    SAY(shutdown(fd, SHUT_RD));
    writes_after_the_end(fd);
}

/* One thread has the reset, the others have the broken pipe. */
static void *writes_in_thread(void *fd)
{
    while (send((int)(intptr_t)fd, buffer, sizeof buffer, MSG_NOSIGNAL) > 0)
        continue;
    return (void *)(intptr_t)errno;
}

static void waits_in_four_writes(int fd)
{
    pthread_t writers[4];
    int resets = 0, broken = 0;
    for (int at = 0; at < 4; at++)
        CHECK(pthread_create(&writers[at], NULL, writes_in_thread, (void *)(intptr_t)fd) == 0);
    for (int at = 0; at < 4; at++) {
        void *code;
        CHECK(pthread_join(writers[at], &code) == 0);
        resets += (intptr_t)code == ECONNRESET;
        broken += (intptr_t)code == EPIPE;
    }
    printf("%d ECONNRESET, %d EPIPE\n", resets, broken);
}

static void *reads_in_thread(void *fd)
{
    SAY(read((int)(intptr_t)fd, buffer, 100));
    return NULL;
}

/* A program ends its own wait in another thread. */
static void ends_own_wait(int fd)
{
    pthread_t reader;
    CHECK(pthread_create(&reader, NULL, reads_in_thread, (void *)(intptr_t)fd) == 0);
    CHECK(shutdown(fd, SHUT_RD) == 0);
    CHECK(pthread_join(reader, NULL) == 0);
    step();
}

/* A program that keeps connections looks in this way whether one has ended. It has waited for nothing since the peer did that. */
static void looks_without_waiting(int fd)
{
    step();
    pause_between_looks();
    SAY(recv(fd, buffer, 100, MSG_PEEK | MSG_DONTWAIT));
    SAY(recv(fd, buffer, 100, MSG_DONTWAIT));
    SAY(fcntl(fd, F_SETFL, O_NONBLOCK));
    SAY(read(fd, buffer, 100));
}

static void does_nothing(int fd)
{
    (void)fd;
    step();
}

static const struct test_case cases[] = {
    {"closed", closes, sees_close, "closes the connection"},
    {"closed_before_a_sender", closes, only_sends, "closes, and the peer only sends"},
    {"closed_after_data", sends_and_closes, reads_and_sees_close, "sends, then closes"},
    {"closed_with_unread", closes_with_unread, sends_and_sees_reset, "closes with bytes unread: the peer gets a reset"},
    {"closed_with_unread_after_data", sends_and_closes_with_unread, reads_and_sees_reset, "the same after sending"},
    {"closed_while_idle", closes, looks_without_waiting, "closes, and the peer reads once without waiting"},
    {"reset_while_idle", resets_now, looks_without_waiting, "a reset, and the peer reads once without waiting"},
    {"half_closed", half_closes, goes_on, "`shutdown(SHUT_WR)`; the other direction goes on"},
    {"read_after_fin", sends_and_half_closes, reads_after_fin, "reads again and again after the end"},
    {"reading_shut_down", shuts_reading_down, writes_all_the_same, "`shutdown(SHUT_RD)`, and the peer writes"},
    {"both_shut_down", shuts_both_down, reads_and_closes, "`shutdown(SHUT_RDWR)`"},
    {"reset", resets_now, sees_reset, "`SO_LINGER` of 0: a reset"},
    {"reset_with_data", sends_and_resets, has_data_and_sees_reset, "a reset behind bytes that the peer has not read"},
    {"error_of_the_socket", resets_now, asks_for_the_error, "`SO_ERROR` after a reset"},
    {"error_after_fork", closes_after_fork, sends_and_asks_for_the_error, "a fork, then a close with bytes unread; `SO_ERROR`"},
    {"sigpipe", closes, counts_sigpipe, "`SIGPIPE`, `EPIPE` and `MSG_NOSIGNAL`"},
    {"events_of_input", sends_then_ends, sees_events_of_input, "epoll by level and by edge: data, end, reset"},
    {"events_with_rdhup", sends_then_ends, sees_events_with_rdhup, "the same with `EPOLLRDHUP`"},
    {"events_of_output", sends_then_ends, sees_events_of_rdhup, "the same with `EPOLLOUT`, in two sets"},
    {"killed", dies, sees_death, "is killed"},
    {"killed_with_unread", dies_with_unread, sends_and_sees_death, "is killed with bytes unread"},
    {"killed_after_data", dies_after_sending, reads_and_sees_death, "sends, then is killed"},
    {"exited", exits, sees_death, "exits without `close`"},
    {"became_another_program", becomes_another_program, reads_and_sees_death, "calls exec, which closes the socket"},
    {"killed_before_a_reader", dies, waits_in_read, "is killed while the peer waits in `read`"},
    {"closed_before_a_reader", closes, waits_in_read, "closes while the peer waits in `read`"},
    {"killed_before_a_set", dies, waits_in_epoll, "is killed while the peer waits in `epoll_wait`"},
    {"killed_before_a_select", dies, waits_in_select, "is killed while the peer waits in `select`"},
    {"killed_before_a_writer", dies_when_full, waits_in_write, "is killed while the peer waits in `write`"},
    {"killed_before_a_full_sender", dies_when_told, goes_on_sending, "is killed after the peer's `write` found no more room"},
    {"killed_before_writes", reads_and_dies, writes_after_the_end, "is killed, and the peer only writes"},
    {"exited_before_writes", reads_and_exits, writes_after_the_end, "exits, and the peer only writes"},
    {"killed_before_writes_alone", reads_and_dies, writes_after_the_end_unread, "is killed, and the peer has shut its receiving down"},
    {"killed_before_writers", dies_when_full, waits_in_four_writes, "is killed while four threads of the peer wait in `send`"},
    {"own_wait_ended", ends_own_wait, does_nothing, "shuts receiving while another of its threads reads"},
};

int main(int count, char **words)
{
    return RUN_CASES(cases);
}
