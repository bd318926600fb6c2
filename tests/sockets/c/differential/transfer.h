/* Moves bytes by every call, and checks each byte against its position. */
#ifndef DIFFERENTIAL_TRANSFER_H
#define DIFFERENTIAL_TRANSFER_H

#include "program.h"

/* The ways an end of a connection waits. */
enum style { BLOCKING, BY_POLL, BY_SELECT, BY_PPOLL, BY_PSELECT, BY_EDGE, BY_LEVEL, BY_ONE_SHOT, BY_EDGE_PWAIT2, STYLES };

/* The calls of an end. TAME leaves out those that put a connection back to TCP. */
enum sending { WRITE, WRITEV, SEND, SENDTO, SENDMSG, SENDMMSG, SENDFILE, SEND_MORE, SEND_DONTWAIT, SEND_NOSIGNAL, TAME_SENDING,
               SPLICE_TO = TAME_SENDING, DPRINTF, VDPRINTF, ALL_SENDING, ANY_TAME = 98, ANY = 99 };
enum receiving { READ, READV, RECV, RECVFROM, RECVMSG, RECVMMSG, RECV_ALL, RECV_DONTWAIT, PEEK_FIRST, TAME_RECEIVING,
                 RECV_TRUNC = TAME_RECEIVING, SPLICE_FROM, ALL_RECEIVING };

enum { BUFFER = 1 << 18 };

static __thread char *buffer, *wanted;
static __thread struct result *own_result; /* of the step under way */

static void make_buffers(void)
{
    if (buffer)
        return;
    buffer = mmap(NULL, 2 * BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    wanted = buffer + BUFFER;
}

__attribute__((format(printf, 1, 2))) static void note(const char *format, ...)
{
    char *to = own_result->note;
    size_t used = strlen(to);
    va_list list;
    va_start(list, format);
    vsnprintf(to + used, NOTE - used, format, list);
    va_end(list);
}

/* Compares received bytes with the pattern; looks near the position for those that came instead. */
static void verify(unsigned direction, uint64_t position, const char *got, size_t length)
{
    while (length > 0) {
        size_t part = length < BUFFER ? length : BUFFER;
        pattern(direction, position, wanted, part);
        if (memcmp(got, wanted, part) != 0) {
            size_t first = 0;
            while (got[first] == wanted[first])
                first++;
            note(" BAD byte %llu of direction %u;", (unsigned long long)(position + first), direction);
            size_t sample = part - first < 8 ? part - first : 8;
            if (sample < 5)
                return;
            uint64_t low = position + first > 200000 ? position + first - 200000 : 0;
            for (uint64_t at = low; at < position + first + 200000; at++) {
                char there[8];
                pattern(direction, at, there, sample);
                if (memcmp(there, got + first, sample) == 0) {
                    note(" bytes of %llu came", (unsigned long long)at);
                    return;
                }
            }
            return;
        }
        position += part, got += part, length -= part;
    }
}

static int to_pipe(int fd[2], const char *bytes, size_t length)
{
    if (pipe2(fd, O_CLOEXEC) != 0)
        return -1;
    return bytes && write(fd[1], bytes, length) != (ssize_t)length ? -1 : 0;
}

__attribute__((format(printf, 2, 3))) static int print_list(int fd, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int printed = vdprintf(fd, format, list);
    va_end(list);
    return printed;
}

/* One call that sends at most `length` bytes of `bytes`. Signals of broken pipes are counted by a handler. */
static ssize_t send_by(int fd, enum sending call, char *bytes, size_t length, struct random *random)
{
    size_t half = length > 1 ? below(random, (uint32_t)length) : 0;
    struct iovec parts[3] = {{bytes, half}, {NULL, 0}, {bytes + half, length - half}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    switch (call) {
    case WRITE:
        return write(fd, bytes, length);
    case WRITEV:
        return writev(fd, parts, 3);
    case SEND:
        return send(fd, bytes, length, 0);
    case SENDTO:
        return sendto(fd, bytes, length, 0, NULL, 0);
    case SENDMSG:
        return sendmsg(fd, &message, chance(random, 30) ? MSG_NOSIGNAL : 0);
    case SENDMMSG: {
        struct mmsghdr all[2] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &parts[2],
            .msg_iovlen = 1}}};
        int count = sendmmsg(fd, all, 2, 0);
        if (count <= 0)
            return count;
        return count == 1 ? all[0].msg_len : all[0].msg_len + all[1].msg_len;
    }
    case SENDFILE: {
        int file = memfd_create("pattern", MFD_CLOEXEC);
        off_t offset = 0;
        ssize_t sent = -1;
        if (write(file, bytes, length) == (ssize_t)length) {
            if (chance(random, 50)) {
                sent = sendfile(fd, file, &offset, length);
                if (sent >= 0 && offset != sent)
                    note(" sendfile: offset %lld", (long long)offset);
            } else {
                lseek(file, 0, SEEK_SET);
                sent = sendfile(fd, file, NULL, length);
            }
        }
        int error = errno;
        close(file);
        errno = error;
        return sent;
    }
    case SEND_MORE:
        if (half > 0) {
            ssize_t sent = send(fd, bytes, half, MSG_MORE);
            if (sent != (ssize_t)half)
                return sent;
            ssize_t rest = send(fd, bytes + half, length - half, 0);
            return rest < 0 ? sent : sent + rest;
        }
        return send(fd, bytes, length, 0);
    case SEND_DONTWAIT:
        return send(fd, bytes, length, MSG_DONTWAIT);
    case SEND_NOSIGNAL:
        return send(fd, bytes, length, MSG_NOSIGNAL);
    case SPLICE_TO: {
        int pipes[2];
        length = length < 16384 ? length : 16384;
        if (to_pipe(pipes, bytes, length) != 0)
            return -1;
        ssize_t sent = splice(pipes[0], NULL, fd, NULL, length, 0);
        int error = errno;
        close(pipes[0]), close(pipes[1]);
        errno = error;
        return sent;
    }
    case DPRINTF:
        length = length < 1024 ? length : 1024;
        return dprintf(fd, "%.*s", (int)length, bytes);
    default:
        length = length < 1024 ? length : 1024;
        return print_list(fd, "%.*s", (int)length, bytes);
    }
}

/* One call that receives at most `length` bytes. Returns -2 for a call that took nothing and has to be followed by another. */
static ssize_t receive_by(int fd, enum receiving call, size_t length, unsigned direction, struct random *random, bool blocking)
{
    uint64_t position = shared->taken[direction];
    size_t half = length > 1 ? below(random, (uint32_t)length) : 0;
    struct iovec parts[3] = {{buffer, half}, {NULL, 0}, {buffer + half, length - half}};
    ssize_t got;
    bool has_bytes = true;
    switch (call) {
    case READ:
        got = read(fd, buffer, length);
        break;
    case READV:
        got = readv(fd, parts, 3);
        break;
    case RECV:
        got = recv(fd, buffer, length, 0);
        break;
    case RECVFROM: {
        struct sockaddr_storage address;
        socklen_t size = sizeof address;
        bool asks = chance(random, 50);
        got = recvfrom(fd, buffer, length, 0, asks ? (struct sockaddr *)&address : NULL, asks ? &size : NULL);
        if (asks && got >= 0 && size != 0)
            note(" recvfrom: an address of %u", size);
        break;
    }
    case RECVMSG: {
        char control[64];
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3, .msg_flags = 0x1234};
        if (chance(random, 40))
            message.msg_control = control, message.msg_controllen = sizeof control;
        got = recvmsg(fd, &message, 0);
        if (got >= 0 && (message.msg_flags != 0 || message.msg_controllen != 0 || message.msg_namelen != 0))
            note(" recvmsg: flags %x control %zu", message.msg_flags, message.msg_controllen);
        break;
    }
    case RECVMMSG: {
        struct mmsghdr all[2] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &parts[2],
            .msg_iovlen = 1}}};
        int first = half == 0; /* a message of no bytes would end the call in one way or another */
        int count = recvmmsg(fd, all + first, (unsigned)(2 - first), MSG_WAITFORONE, NULL);
        if (count <= 0) {
            got = count;
        } else if (first || count == 1) {
            got = all[first].msg_len;
        } else {
            /* The second part begins where the first ends only if the first is full. */
            verify(direction, position, buffer, all[0].msg_len);
            verify(direction, position + all[0].msg_len, buffer + half, all[1].msg_len);
            got = all[0].msg_len + all[1].msg_len;
            has_bytes = false;
        }
        break;
    }
    case RECV_ALL:
        got = recv(fd, buffer, length, MSG_WAITALL);
        if (blocking && got > 0 && got != (ssize_t)length)
            note(" MSG_WAITALL: %zd of %zu", got, length);
        break;
    case RECV_DONTWAIT:
        got = recv(fd, buffer, length, MSG_DONTWAIT);
        break;
    case PEEK_FIRST:
        got = recv(fd, buffer, length, MSG_PEEK | MSG_DONTWAIT);
        if (got <= 0)
            break;
        verify(direction, position, buffer, (size_t)got);
        length = (size_t)got;
        got = recv(fd, buffer, length, 0);
        if (got != (ssize_t)length)
            note(" peeked %zu, then received %zd", length, got);
        break;
    case RECV_TRUNC:
        got = recv(fd, chance(random, 50) ? NULL : buffer, length, MSG_TRUNC);
        has_bytes = false;
        break;
    default: {
        int pipes[2];
        length = length < 16384 ? length : 16384;
        if (to_pipe(pipes, NULL, 0) != 0)
            return -1;
        got = splice(fd, NULL, pipes[1], NULL, length, 0);
        int error = errno;
        if (got > 0 && read(pipes[0], buffer, (size_t)got) != got)
            note(" splice: the pipe has less");
        close(pipes[0]), close(pipes[1]);
        errno = error;
    }
    }
    int error = errno;
    if (got > 0) {
        if (has_bytes)
            verify(direction, position, buffer, (size_t)got);
        shared->taken[direction] += (uint64_t)got;
        shared->bytes += (uint64_t)got;
    }
    errno = error;
    return got;
}

/* Waits until the descriptor may be read or written. `set` belongs to the styles with epoll. */
static int wait_by(enum style style, int fd, int set, short events)
{
    struct pollfd entry = {fd, events, 0};
    struct epoll_event got[4];
    fd_set some;
    FD_ZERO(&some);
    FD_SET(fd, &some);
    fd_set *in = events & POLLIN ? &some : NULL, *out = in ? NULL : &some;
    switch (style) {
    case BLOCKING:
    case BY_POLL:
        return poll(&entry, 1, -1);
    case BY_PPOLL:
        return ppoll(&entry, 1, NULL, NULL);
    case BY_SELECT:
        return select(fd + 1, in, out, NULL, NULL);
    case BY_PSELECT:
        return pselect(fd + 1, in, out, NULL, NULL, NULL);
    case BY_LEVEL:
    case BY_ONE_SHOT: {
        struct epoll_event event = {.events = (events & POLLIN ? EPOLLIN : EPOLLOUT) | (style == BY_ONE_SHOT ? EPOLLONESHOT : 0)};
        if (epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) != 0)
            return -1;
        return epoll_wait(set, got, 4, -1);
    }
    case BY_EDGE_PWAIT2:
        return epoll_pwait2(set, got, 4, NULL, NULL);
    default:
        return epoll_pwait(set, got, 4, -1, NULL);
    }
}

static bool is_edge(enum style style)
{
    return style == BY_EDGE || style == BY_EDGE_PWAIT2;
}

/* One end of a connection as a step uses it. */
struct end {
    int fd, set;
    enum style style;
    unsigned to, from; /* directions */
};

/* Sends `length` bytes, waiting where needed. Returns how many it sent; errno is 0 if all. */
static int64_t send_all(const struct end *end, int64_t length, int call, struct random *random)
{
    int64_t sent = 0;
    bool first_waits = end->style != BLOCKING && !is_edge(end->style) && chance(random, 50);
    while (sent < length) {
        if (first_waits && wait_by(end->style, end->fd, end->set, POLLOUT) < 0 && errno != EINTR)
            return sent;
        enum sending by = (enum sending)(call == ANY ? below(random, ALL_SENDING) : call == ANY_TAME ? below(random,
            TAME_SENDING) : (uint32_t)call);
        size_t part = (size_t)(length - sent < BUFFER ? length - sent : BUFFER);
        if (call >= ANY_TAME && chance(random, 40))
            part = 1 + below(random, part < 5000 ? (uint32_t)part : 5000);
        pattern(end->to, shared->written[end->to], buffer, part);
        ssize_t got = send_by(end->fd, by, buffer, part, random);
        if (got >= 0) {
            sent += got, shared->written[end->to] += (uint64_t)got;
            continue;
        }
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return sent;
        if (wait_by(end->style, end->fd, end->set, POLLOUT) < 0 && errno != EINTR)
            return sent;
    }
    errno = 0;
    return sent;
}

/* Receives `length` bytes, waiting where needed. Returns how many it received; errno is 0 if all or at the end of the stream. */
static int64_t receive_all(const struct end *end, int64_t length, int call, struct random *random)
{
    int64_t received = 0;
    bool first_waits = !is_edge(end->style) && chance(random, end->style == BLOCKING ? 15 : 60);
    while (received < length) {
        if (first_waits && wait_by(end->style, end->fd, end->set, POLLIN) < 0 && errno != EINTR)
            return received;
        enum receiving by = (enum receiving)(call == ANY ? below(random, ALL_RECEIVING) : call == ANY_TAME ? below(random,
            TAME_RECEIVING) : (uint32_t)call);
        size_t part = (size_t)(length - received < BUFFER ? length - received : BUFFER);
        if (chance(random, 40))
            part = 1 + below(random, part < 5000 ? (uint32_t)part : 5000);
        ssize_t got = receive_by(end->fd, by, part, end->from, random, end->style == BLOCKING);
        if (got > 0) {
            received += got;
            continue;
        }
        if (got == 0) {
            errno = 0;
            note(" end");
            return received;
        }
        if (errno == EINTR)
            continue;
        if (errno != EAGAIN)
            return received;
        if (wait_by(end->style, end->fd, end->set, POLLIN) < 0 && errno != EINTR)
            return received;
    }
    errno = 0;
    return received;
}

#endif
