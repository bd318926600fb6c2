/* Edges of single calls: what is counted, what is refused, and what another thread or a signal does to a call that waits. */
#include "cases.h"
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

static char buffer[1 << 16];

/* More than the rings of a stream hold, and less than TCP takes. */
enum { RINGS = (1 << 20) + (1 << 16), SENT = RINGS + 20000 };

/* Reads bytes of the stream `salt` that lie at this position. */
static void read_part(int fd, uint64_t salt, size_t at, size_t length)
{
    while (length > 0) {
        size_t part = length < sizeof buffer ? length : sizeof buffer;
        CHECK(read_all(fd, buffer, part));
        check_stream(buffer, salt, at, part);
        at += part, length -= part;
    }
}

static void print_unread(int fd, int wanted)
{
    int unread = -1;
    await_unread(fd, wanted);
    SAY(ioctl(fd, FIONREAD, &unread));
    printf("unread: %d\n", unread);
}

/* The last bytes of the first part are on TCP when the second part is sent. */
static void counts_behind_others(int fd)
{
    size_t at = RINGS + 1000;
    step();
    read_part(fd, 1, 0, at);
    print_unread(fd, (int)(SENT - at));
    step();
    step();
    print_unread(fd, (int)(SENT - at) + 50000);
    read_part(fd, 1, at, SENT - at - 500);
    print_unread(fd, 50500);
    read_part(fd, 1, SENT - 500, 500);
    print_unread(fd, 50000);
    read_part(fd, 2, 0, 20000);
    print_unread(fd, 30000);
    read_part(fd, 2, 20000, 30000);
    print_unread(fd, 0);
    step();
}

static void sends_two_parts(int fd)
{
    send_stream(fd, 1, SENT);
    step();
    step();
    send_stream(fd, 2, 50000);
    step();
    step();
}

/* Reads at each edge as many bytes as the kernel says, as nginx does. It takes a read of all of them as a sign that the next ones cause
 * an edge. */
static void reads_what_is_counted(int fd)
{
    enum { TOTAL = 16 << 20 };
    int set = epoll_set_of(fd, EPOLLIN | EPOLLET);
    set_nonblocking(fd, true);
    struct hash hash = NEW_HASH;
    struct epoll_event event;
    step();
    while (hash.count < TOTAL) {
        CHECK(epoll_wait(set, &event, 1, -1) == 1);
        for (int counted = 0; hash.count < TOTAL;) {
            int want = counted > 0 && counted < 5000 ? counted : 5000;
            ssize_t got = read(fd, buffer, (size_t)want);
            if (got < 0) {
                CHECK(errno == EAGAIN);
                break;
            }
            hash_bytes(&hash, (uint8_t *)buffer, (size_t)got);
            if (counted > 0 && (counted -= (int)got) <= 0)
                break;
            if (counted == 0 && got == want)
                CHECK(ioctl(fd, FIONREAD, &counted) == 0);
            if (got < want || counted == 0)
                break;
        }
    }
    printf("hash: %016lx\n", (unsigned long)hash_end(&hash));
    step();
}

static void sends_much(int fd)
{
    step();
    send_stream(fd, 3, 16 << 20);
    step();
}

/* A thread that writes more than its connection takes, and what became of its call. */
enum { MUCH = 32 << 20 };
static struct {
    atomic_int thread;
    int fd, error;
    long result;
} writer;

static void *write_much(void *bytes)
{
    atomic_store(&writer.thread, gettid());
    writer.result = write(writer.fd, bytes, MUCH);
    writer.error = errno;
    return NULL;
}

/* Waits until the writer waits in a call of the kernel that sends. */
static void await_writer(void)
{
    char path[64];
    long call = -1;
    int thread;
    while ((thread = atomic_load(&writer.thread)) == 0)
        pause_between_looks();
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", thread);
    for (; call != SYS_write && call != SYS_sendmsg; pause_between_looks()) {
        FILE *file = fopen(path, "r");
        CHECK(file);
        if (fscanf(file, "%ld", &call) != 1)
            call = -1;
        fclose(file);
    }
}

static void ignore_signal(int number)
{
    (void)number;
}

/* Does something beside the writer, says how its call ended, and tells the other program how many bytes it has sent. */
static void beside_writer(int fd, void (*act)(int fd, pthread_t thread), bool closes)
{
    pthread_t thread;
    uint8_t *bytes = malloc(MUCH);
    CHECK(bytes);
    fill(5, 0, bytes, MUCH);
    writer.fd = fd;
    CHECK(pthread_create(&thread, NULL, write_much, bytes) == 0);
    await_writer();
    act(fd, thread);
    CHECK(pthread_join(thread, NULL) == 0);
    if (writer.result < 0)
        printf("write: %s\n", strerrorname_np(writer.error));
    else
        printf("write: %s\n", writer.result == 0 ? "nothing" : writer.result < MUCH ? "a part" : "all");
    free(bytes);
    if (closes)
        CHECK(close(fd) == 0);
    CHECK(send(CONTROL, &writer.result, sizeof writer.result, MSG_NOSIGNAL) == sizeof writer.result);
    wait_for_end();
}

/* Reads as many bytes as the writer has sent, and what comes then. */
static void reads_after_writer(int fd)
{
    long sent;
    CHECK(recv(CONTROL, &sent, sizeof sent, MSG_WAITALL) == sizeof sent && sent > 0);
    read_part(fd, 5, 0, (size_t)sent);
    SAY(read(fd, buffer, sizeof buffer));
}

/* As Java closes a socket: another file takes the number, and a signal ends the call. */
static void replace_and_signal(int fd, pthread_t thread)
{
    int ends[2];
    struct sigaction action = {.sa_handler = ignore_signal};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && close(ends[1]) == 0);
    SAY(dup2(ends[0], fd) == fd);
    CHECK(pthread_kill(thread, SIGUSR1) == 0);
}

static void closes_beside_writer(int fd)
{
    beside_writer(fd, replace_and_signal, true);
}

static void shut_all(int fd, pthread_t thread)
{
    (void)thread;
    SAY(shutdown(fd, SHUT_RDWR));
}

static void shuts_beside_writer(int fd)
{
    beside_writer(fd, shut_all, true);
}

static void shut_sending(int fd, pthread_t thread)
{
    (void)thread;
    SAY(shutdown(fd, SHUT_WR));
}

static void shuts_sending_beside_writer(int fd)
{
    beside_writer(fd, shut_sending, true);
}

/* A call that waits keeps the connection, so it sends all bytes. */
static void close_and_let_read(int fd, pthread_t thread)
{
    (void)thread;
    SAY(close(fd));
    step();
}

static void only_closes_beside_writer(int fd)
{
    beside_writer(fd, close_and_let_read, false);
}

static void reads_all_of_writer(int fd)
{
    step();
    read_part(fd, 5, 0, MUCH);
    SAY(read(fd, buffer, sizeof buffer));
    long sent;
    CHECK(recv(CONTROL, &sent, sizeof sent, MSG_WAITALL) == sizeof sent && sent == MUCH);
}

/* The time limit of a call holds for all of it. */
static void limits_a_write(int fd)
{
    struct timeval time = {.tv_usec = 200000};
    uint8_t *bytes = malloc(MUCH);
    CHECK(bytes);
    fill(5, 0, bytes, MUCH);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time) == 0);
    long sent = write(fd, bytes, MUCH);
    printf("write: %s\n", sent > 0 && sent < MUCH ? "a part" : "something else");
    free(bytes);
    CHECK(close(fd) == 0);
    CHECK(send(CONTROL, &sent, sizeof sent, MSG_NOSIGNAL) == sizeof sent);
    wait_for_end();
}

/* Calls with numbers that the kernel refuses, and with none. The other program gets only what was sent. */
static void gives_odd_numbers(int fd)
{
    static struct iovec vector[1025];
    struct msghdr message = {.msg_iov = vector, .msg_iovlen = 1025};
    volatile int negative = -1; /* The compiler must not see these numbers. */
    char *volatile bytes = buffer;
    volatile size_t half = (size_t)1 << 63, beyond = (size_t)1 << 60;
    for (int at = 0; at < 1025; at++)
        vector[at] = (struct iovec){buffer, 1};
    SAY(writev(fd, NULL, 0));
    SAY(readv(fd, NULL, 0));
    SAY(writev(fd, vector, 0));
    SAY(readv(fd, vector, 0));
    SAY(writev(fd, vector, negative));
    SAY(readv(fd, vector, negative));
    SAY(writev(fd, vector, 1025));
    SAY(readv(fd, vector, 1025));
    SAY(pwritev2(fd, vector, 1025, -1, 0));
    SAY(preadv2(fd, vector, 1025, -1, 0));
    SAY(pwritev2(fd, vector, negative, -1, 0));
    SAY(preadv2(fd, vector, negative, -1, 0));
    SAY(pwritev2(fd, NULL, 0, -1, 0));
    SAY(preadv2(fd, NULL, 0, -1, 0));
    SAY(sendmsg(fd, &message, MSG_DONTWAIT));
    SAY(recvmsg(fd, &message, MSG_DONTWAIT));
    vector[1].iov_len = half;
    SAY(writev(fd, vector, 2));
    SAY(readv(fd, vector, 2));
    message.msg_iovlen = 2;
    SAY(sendmsg(fd, &message, MSG_DONTWAIT));
    SAY(recvmsg(fd, &message, MSG_DONTWAIT));
    vector[0].iov_len = vector[1].iov_len = SIZE_MAX >> 1;
    SAY(writev(fd, vector, 2));
    SAY(readv(fd, vector, 2));
    vector[0].iov_len = 1, vector[1].iov_len = beyond;
    SAY(writev(fd, vector, 2));
    SAY(readv(fd, vector, 2));
    SAY(sendmsg(fd, &message, MSG_DONTWAIT));
    SAY(recvmsg(fd, &message, MSG_DONTWAIT));
    SAY(write(fd, bytes, half));
    SAY(read(fd, bytes, half));
    SAY(write(fd, bytes, beyond));
    SAY(read(fd, bytes, beyond));
    SAY(write(fd, bytes, half + half - 1));
    SAY(read(fd, bytes, half + half - 1));
    step();
    await_unread(fd, 3000);
    SAY(recv(fd, bytes, half, 0)); /* The kernel takes no more than 2 GiB of a length. */
    send_stream(fd, 7, 100);
    step();
}

static void sends_between(int fd)
{
    step();
    send_stream(fd, 6, 3000);
    receive_stream(fd, 7, 100);
    step();
}

/* `sendfile` and `splice` without a file, or without a pipe. */
static void copies_from_others(int fd)
{
    int ends[2], file = memfd_create("edges", MFD_CLOEXEC);
    off_t at = 0;
    step();
    await_unread(fd, 3000);
    CHECK(pipe(ends) == 0 && file >= 0 && write(ends[1], "by the pipe", 11) == 11);
    SAY(sendfile(fd, fd, NULL, 100));
    SAY(sendfile(file, fd, NULL, 100));
    SAY(sendfile(fd, ends[0], NULL, 100));
    SAY(sendfile(fd, ends[0], &at, 100));
    SAY(sendfile(fd, fd, &at, 100));
    SAY(sendfile(fd, file, NULL, 100));
    SAY(sendfile(fd, -1, NULL, 100));
    SAY(splice(fd, NULL, file, NULL, 100, 0));
    SAY(splice(fd, NULL, fd, NULL, 100, 0));
    SAY(splice(file, NULL, fd, NULL, 100, 0));
    SAY(splice(fd, &at, ends[1], NULL, 100, 0));
    SAY(sendfile(ends[1], fd, NULL, 1000));
    CHECK(read(ends[0], buffer, 11) == 11 && memcmp(buffer, "by the pipe", 11) == 0);
    CHECK(read(ends[0], buffer, 1000) == 1000);
    check_stream(buffer, 6, 0, 1000);
    read_part(fd, 6, 1000, 2000);
    send_stream(fd, 7, 100);
    step();
}

/* A message with this many bytes, and the control message behind them: the bytes that are left. */
static void print_left(int fd, size_t length, size_t control_length, int flags)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int)) + 32];
    } control;
    struct iovec part = {buffer, length};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control_length ? &control : NULL};
    message.msg_controllen = control_length;
    memset(&control, 0, sizeof control);
    SAY(recvmsg(fd, &message, flags));
    printf("control bytes: %zu, flags: %x\n", message.msg_controllen, (unsigned)message.msg_flags);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header) {
        int left = -1;
        memcpy(&left, CMSG_DATA(header), sizeof left);
        printf("%d %d %zu: %d left\n", header->cmsg_level, header->cmsg_type, (size_t)header->cmsg_len, left);
    }
}

/* The option, as gRPC sets it. */
static void asks_what_is_left(int fd)
{
    int one = 1, zero = 0, two = 2;
    size_t whole = CMSG_SPACE(sizeof(int));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_INQ, &one, sizeof one));
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_INQ, &two, sizeof two));
    step();
    await_unread(fd, 3000);
    print_left(fd, 1000, whole, 0);
    print_left(fd, 100, whole + 32, MSG_PEEK);
    print_left(fd, 100, 0, 0);
    print_left(fd, 100, sizeof(struct cmsghdr) - 1, 0);
    print_left(fd, 100, CMSG_LEN(sizeof(int)), 0);
    print_left(fd, 100, CMSG_LEN(2), 0);
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_INQ, &zero, sizeof zero));
    print_left(fd, 100, whole, 0);
    SAY(setsockopt(fd, IPPROTO_TCP, TCP_INQ, &one, sizeof one));
    print_left(fd, 1500, whole, 0);
    print_left(fd, 100, whole, MSG_DONTWAIT);
    SAY(recv(fd, buffer, 100, MSG_DONTWAIT));
    step();
    await_poll(fd, POLLRDHUP);
    print_left(fd, 40, whole, 0);
    print_left(fd, 60, whole, 0);
    print_left(fd, 100, whole, 0);
    step();
}

static void leaves_some(int fd)
{
    step();
    send_stream(fd, 6, 3000);
    step();
    send_stream(fd, 7, 100);
    SAY(shutdown(fd, SHUT_WR));
    step();
}

static const struct test_case cases[] = {
    {"unread_behind_others", counts_behind_others, sends_two_parts, "`FIONREAD` with bytes on both paths"},
    {"reads_what_is_counted", reads_what_is_counted, sends_much, "reads at each edge as many bytes as `FIONREAD` says"},
    {"close_beside_writer", closes_beside_writer, reads_after_writer, "`dup2` and a signal beside a thread in `write`"},
    {"shutdown_beside_writer", shuts_beside_writer, reads_after_writer, "`shutdown` beside a thread in `write`"},
    {"end_beside_writer", shuts_sending_beside_writer, reads_after_writer, "`shutdown(SHUT_WR)` beside a thread in `write`"},
    {"only_close_beside_writer", only_closes_beside_writer, reads_all_of_writer, "`close` beside a thread in `write`"},
    {"limited_write", limits_a_write, reads_after_writer, "`SO_SNDTIMEO` within a long `write`"},
    {"odd_numbers", gives_odd_numbers, sends_between, "counts and lengths that the kernel refuses"},
    {"odd_files", copies_from_others, sends_between, "`sendfile` and `splice` without a file or a pipe"},
    {"what_is_left", asks_what_is_left, leaves_some, "`TCP_INQ`"},
};

/* Some programs, such as nginx, clear their environment before they open a socket. */
int main(int count, char **words)
{
    CHECK(clearenv() == 0);
    return RUN_CASES(cases);
}
