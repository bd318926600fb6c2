/* Performs steps: the threads of the processes of a program. */
#ifndef DIFFERENTIAL_PERFORM_H
#define DIFFERENTIAL_PERFORM_H

#include "transfer.h"

static __thread unsigned own_process, own_thread;
static pthread_t thread_ids[THREADS];
static FILE *inputs[SLOTS], *outputs[SLOTS];
static _Atomic int broken_pipes;
static void *actor_main(void *);

/* What the handler of SIGUSR1 does. */
static _Atomic int handler_fd, handler_direction;
static _Atomic unsigned handler_length;

static void on_broken_pipe(int number)
{
    (void)number;
    broken_pipes++;
}

static void on_signal(int number)
{
    (void)number;
    int error = errno;
    unsigned length = atomic_exchange(&handler_length, 0);
    if (length > 0) {
        char bytes[64];
        unsigned direction = (unsigned)handler_direction;
        pattern(direction, shared->written[direction], bytes, length);
        if (write(handler_fd, bytes, length) == (ssize_t)length)
            shared->written[direction] += length;
    }
    shared->handled++;
    errno = error;
}

static int number_of(int slot)
{
    return slot < 0 ? -1 : shared->fd[own_process][slot];
}

static void set_slot(int slot, int fd, int end)
{
    shared->fd[own_process][slot] = fd;
    shared->end[own_process][slot] = (int16_t)end;
}

static struct end end_of(int slot, const struct step *step)
{
    int end = shared->end[own_process][slot];
    return (struct end){.fd = number_of(slot), .set = number_of(step->other), .style = (enum style)step->z,
                        .to = (unsigned)end, .from = (unsigned)end ^ 1};
}

static struct sockaddr_in address_of(int listener)
{
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(shared->address),
                                .sin_port = listener < 0 ? 0 : htons(shared->port[listener])};
}

/* Without it, small writes wait for a late acknowledgement of the one before. */
static void never_delay(int fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* Finishes a connect that is under way. */
static int64_t connected(int fd, enum style style, int set, int got)
{
    if (got == 0)
        return 0;
    if (errno != EINPROGRESS)
        return -1;
    enum style by = style == BLOCKING || style == BY_LEVEL || style == BY_ONE_SHOT ? BY_POLL : style;
    struct pollfd entry = {fd, POLLOUT, 0};
    do {
        if (wait_by(by, fd, set, POLLOUT) < 0 && errno != EINTR)
            return -1;
    } while (poll(&entry, 1, 0) == 0);
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        return -1;
    errno = error;
    return error ? -1 : 0;
}

/* The process of a child starts here as an actor of its own. */
static void become(unsigned process)
{
    own_process = process, own_thread = 0;
    actor_main(NULL);
    _exit(0);
}

static long fork_by(int way)
{
    if (way == 1)
        return _Fork();
    if (way == 2)
        return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    return fork();
}

static void set_blocking(int fd, bool blocking, bool by_ioctl)
{
    int value = !blocking;
    if (by_ioctl)
        ioctl(fd, FIONBIO, &value);
    else
        fcntl(fd, F_SETFL, blocking ? fcntl(fd, F_GETFL) & ~O_NONBLOCK : fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static int64_t step_poll(const struct step *step)
{
    struct end end = end_of(step->slot, step);
    int expected = step->y, interest = step->list[0], seen = 0;
    uint64_t begin = now_us();
    for (;;) {
        int limit = (int)step->n, got = 0;
        struct timespec time = {limit / 1000, limit % 1000 * 1000000}, *pointer = limit < 0 ? NULL : &time;
        struct timeval value = {limit / 1000, limit % 1000 * 1000};
        if (step->x <= 1) {
            struct pollfd entries[2] = {{end.fd, (short)interest, 0}, {-1, POLLIN, 0}};
            got = step->x ? ppoll(entries, 2, pointer, NULL) : poll(entries, 2, limit);
            seen = entries[0].revents;
        } else if (step->x <= 3) {
            fd_set in, out, except;
            FD_ZERO(&in);
            FD_ZERO(&out);
            FD_ZERO(&except);
            if (interest & POLLIN)
                FD_SET(end.fd, &in);
            if (interest & POLLOUT)
                FD_SET(end.fd, &out);
            FD_SET(end.fd, &except);
            got = step->x == 2 ? select(end.fd + 1, &in, &out, &except, limit < 0 ? NULL : &value)
                               : pselect(end.fd + 1, &in, &out, &except, pointer, NULL);
            seen = got < 0 ? 0 : (FD_ISSET(end.fd, &in) ? POLLIN : 0) | (FD_ISSET(end.fd, &out) ? POLLOUT
                : 0) | (FD_ISSET(end.fd, &except) ? POLLPRI : 0);
            expected &= POLLIN | POLLOUT;
        } else {
            /* A set of its own for this one wait. */
            int set = epoll_create1(EPOLL_CLOEXEC);
            struct epoll_event event = {.events = (uint32_t)interest}, all[2];
            epoll_ctl(set, EPOLL_CTL_ADD, end.fd, &event);
            got = step->x == 4 ? epoll_wait(set, all, 2, limit) : epoll_pwait2(set, all, 2, pointer, NULL);
            seen = got == 1 ? (int)all[0].events : 0;
            close(set);
        }
        if (got < 0)
            return -1;
        if (expected == 0 && limit > 0 && got == 0 && now_us() - begin < (uint64_t)limit * 1000)
            note(" too early");
        if ((seen & expected) == expected || now_us() - begin > 3000000)
            return seen;
        nap(200);
    }
}

static bool same_set(const int32_t *list, int slot)
{
    for (int at = 0; at < LIST && list[at] >= 0; at++)
        if (list[at] == slot)
            return true;
    return false;
}

/* Waits on a set until each entry (slot, events) of the list was seen; a list without entries expects nothing within the limit.
 * z: tells only of slots of the list. */
static int64_t step_setwait(const struct step *step)
{
    int set = number_of(step->slot), limit = (int)step->n;
    uint32_t seen[SLOTS] = {0};
    uint64_t begin = now_us();
    for (bool complete = false; !complete;) {
        struct epoll_event all[8];
        struct timespec time = {limit / 1000, limit % 1000 * 1000000};
        int most = step->y > 0 ? step->y : 8;
        int got = step->x == 0   ? epoll_wait(set, all, most, limit)
                  : step->x == 1 ? epoll_pwait(set, all, most, limit, NULL)
                                 : epoll_pwait2(set, all, most, limit < 0 ? NULL : &time, NULL);
        if (got < 0)
            return -1;
        for (int index = 0; index < got; index++)
            seen[all[index].data.u32 % SLOTS] |= all[index].events;
        complete = true;
        for (int at = 0; at + 1 < LIST && step->list[at] >= 0; at += 2)
            complete = complete && (seen[step->list[at]] & (uint32_t)step->list[at + 1]) == (uint32_t)step->list[at + 1];
        if (!complete && now_us() - begin > 3000000)
            complete = true;
        else if (!complete)
            nap(100);
    }
    int count = 0;
    for (int slot = 0; slot < SLOTS; slot++)
        if (seen[slot] && (!step->z || same_set(step->list, slot))) {
            note(" %d:%x", slot, seen[slot]);
            count++;
        }
    return count;
}

/* Reads what is there. x: 0 until EAGAIN, 1 until a call returns less than asked for. */
static int64_t drain(int fd, unsigned from, int rule, size_t size, struct random *random, bool *ended)
{
    int64_t total = 0;
    for (;;) {
        ssize_t got = chance(random, 50) ? receive_by(fd, RECV_DONTWAIT, size, from, random, false)
                                         : (set_blocking(fd, false, false), receive_by(fd, (enum receiving)below(random,
                                             RECVMMSG), size, from, random, false));
        if (got == 0) {
            *ended = true;
            return total;
        }
        if (got < 0) {
            if (errno != EAGAIN)
                note(" drain: error %d", errno);
            return total;
        }
        total += got;
        if (rule == 1 && got < (ssize_t)size)
            return total;
    }
}

/* Waits for edges and drains, until `n` bytes have come altogether. */
static int64_t step_drain(const struct step *step)
{
    struct random random = {step->random};
    int set = number_of(step->slot);
    int64_t total = 0;
    while (total < step->n) {
        struct epoll_event all[4];
        int got = epoll_wait(set, all, 4, -1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        for (int index = 0; index < got; index++) {
            int slot = (int)all[index].data.u32, end = shared->end[own_process][slot];
            if (!same_set(step->list, slot) || !(all[index].events & ~(uint32_t)EPOLLOUT))
                continue;
            bool ended = false;
            total += drain(number_of(slot), (unsigned)end ^ 1, step->x, (size_t)step->y, &random, &ended);
            if (ended)
                note(" end of %d", slot);
            if (step->z) {
                struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT | (step->z == 2 ? EPOLLET : 0),
                    .data.u32 = (uint32_t)slot};
                epoll_ctl(set, EPOLL_CTL_MOD, number_of(slot), &event);
            }
        }
    }
    return total;
}

/* Writes until EAGAIN or a short count, waits for the edge of output in the set, and so on. */
static int64_t step_edgewrite(const struct step *step)
{
    struct random random = {step->random};
    struct end end = end_of(step->slot, step);
    int64_t sent = 0;
    while (sent < step->n) {
        size_t part = (size_t)(step->n - sent < step->y ? step->n - sent : step->y);
        pattern(end.to, shared->written[end.to], buffer, part);
        ssize_t got = send_by(end.fd, (enum sending)below(&random, SENDMMSG), buffer, part, &random);
        if (got > 0)
            sent += got, shared->written[end.to] += (uint64_t)got;
        else if (errno != EAGAIN)
            return -1;
        if (sent == step->n)
            break;
        if (got < 0 || (step->x == 1 && got < (ssize_t)part)) {
            struct epoll_event all[4];
            if (epoll_wait(end.set, all, 4, -1) < 0 && errno != EINTR)
                return -1;
        }
    }
    return sent;
}

static _Atomic uint32_t slot_locks[SLOTS];

/* One of several threads that serve a set: drains, answers with as many bytes, and begins again. The thread that completes `n` bytes
 * wakes the others by a descriptor in the set. */
static int64_t step_serve(const struct step *step)
{
    struct random random = {step->random};
    int set = number_of(step->slot), stop = step->other;
    for (;;) {
        struct epoll_event all[4];
        int got = epoll_wait(set, all, step->list[0], -1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        for (int index = 0; index < got; index++) {
            int slot = (int)all[index].data.u32;
            if (slot == stop)
                return 0;
            unsigned to = (unsigned)shared->end[own_process][slot];
            while (atomic_exchange(&slot_locks[slot], 1))
                sched_yield();
            bool ended = false;
            int64_t came = drain(number_of(slot), to ^ 1, step->x, (size_t)step->list[1], &random, &ended);
            if (step->y && came > 0) {
                struct end end = {number_of(slot), -1, BY_POLL, to, to ^ 1};
                if (send_all(&end, came, ANY_TAME, &random) != came)
                    note(" answer: error %d", errno);
            }
            atomic_store(&slot_locks[slot], 0);
            if (step->z) {
                struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT | (step->z == 2 ? EPOLLET : 0),
                    .data.u32 = (uint32_t)slot};
                epoll_ctl(set, EPOLL_CTL_MOD, number_of(slot), &event);
            }
            if (came > 0 && atomic_fetch_add(&shared->counters[step->list[2]],
                (uint64_t)came) + (uint64_t)came == (uint64_t)step->n) {
                uint64_t one = 1;
                if (write(number_of(stop), &one, 8) != 8)
                    return -1;
            }
        }
    }
}

/* --- short connections in numbers: all carry the same bytes in a direction, from position 0 --- */

enum burst { SEND_AND_CLOSE, ASK_ONCE, GET_ONLY, SEND_AND_SHUT, ASK_OFTEN, BURSTS };
enum { BURST_UP = 1000, BURST_DOWN = 1001 };

static bool burst_send(int fd, unsigned direction, int64_t position, int64_t length)
{
    char bytes[20000];
    while (length > 0) {
        size_t part = length < 20000 ? (size_t)length : 20000;
        pattern(direction, (uint64_t)position, bytes, part);
        ssize_t sent = write(fd, bytes, part);
        if (sent < 0 && errno == EAGAIN) {
            struct pollfd entry = {fd, POLLOUT, 0};
            poll(&entry, 1, -1);
            continue;
        }
        if (sent <= 0)
            return false;
        position += sent, length -= sent;
    }
    return true;
}

/* Receives at most `length` bytes (or until the end, if negative), and returns how many; -1 on an error. */
static int64_t burst_receive(int fd, unsigned direction, int64_t position, int64_t length)
{
    char bytes[4096];
    int64_t total = 0;
    while (length < 0 || total < length) {
        ssize_t got = read(fd, bytes, length < 0 || length - total > 4096 ? 4096 : (size_t)(length - total));
        if (got < 0 && errno == EAGAIN) {
            struct pollfd entry = {fd, POLLIN, 0};
            poll(&entry, 1, -1);
            continue;
        }
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        verify(direction, (uint64_t)(position + total), bytes, (size_t)got);
        shared->bytes += (uint64_t)got;
        total += got;
    }
    return total;
}

static bool serve_one(int fd, const struct step *step)
{
    int64_t up = step->list[1], down = step->list[2];
    bool good = true;
    switch (step->list[0]) {
    case SEND_AND_CLOSE:
        good = burst_receive(fd, BURST_UP, 0, -1) == up;
        break;
    case ASK_ONCE:
        good = burst_receive(fd, BURST_UP, 0, up) == up && burst_send(fd, BURST_DOWN, 0, down);
        break;
    case GET_ONLY:
        good = burst_send(fd, BURST_DOWN, 0, down);
        break;
    case SEND_AND_SHUT:
        good = burst_receive(fd, BURST_UP, 0, -1) == up && burst_send(fd, BURST_DOWN, 0, down);
        break;
    default:
        for (int round = 0; round < step->list[3] && good; round++)
            good = burst_receive(fd, BURST_UP, round * up, up) == up && burst_send(fd, BURST_DOWN, round * down, down);
        good = good && burst_receive(fd, BURST_UP, step->list[3] * up, -1) == 0;
    }
    close(fd);
    return good;
}

/* x: how many connections; y: non-blocking. */
static int64_t step_clients(const struct step *step)
{
    int64_t up = step->list[1], down = step->list[2];
    int good = 0;
    for (int number = 0; number < step->x; number++) {
        struct sockaddr_in address = address_of(step->list[4]);
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | (step->y ? SOCK_NONBLOCK : 0), 0);
        int got = connect(fd, (struct sockaddr *)&address, sizeof address);
        bool well = connected(fd, BY_POLL, -1, got) == 0;
        if (!well)
            note(" connect: %d", errno);
        switch (step->list[0]) {
        case SEND_AND_CLOSE:
            well = well && burst_send(fd, BURST_UP, 0, up);
            break;
        case ASK_ONCE:
            well = well && burst_send(fd, BURST_UP, 0, up) && burst_receive(fd, BURST_DOWN, 0, -1) == down;
            break;
        case GET_ONLY:
            well = well && burst_receive(fd, BURST_DOWN, 0, -1) == down;
            break;
        case SEND_AND_SHUT:
            well = well && burst_send(fd, BURST_UP, 0, up) && shutdown(fd, SHUT_WR) == 0 && burst_receive(fd, BURST_DOWN, 0,
                -1) == down;
            break;
        default:
            for (int round = 0; round < step->list[3] && well; round++)
                well = burst_send(fd, BURST_UP, round * up, up) && burst_receive(fd, BURST_DOWN, round * down, down) == down;
        }
        good += well;
        close(fd);
    }
    return good;
}

struct one_served {
    int fd;
    const struct step *step;
    struct result *result;
};

static void *serve_thread(void *argument)
{
    struct one_served *one = argument;
    own_result = one->result;
    make_buffers();
    bool good = serve_one(one->fd, one->step);
    munmap(buffer, 2 * BUFFER);
    return (void *)(intptr_t)good;
}

/* A connection of the server with an epoll set. */
struct served {
    int fd;
    int64_t received, rounds;
    bool replied;
};

static bool served_ends(struct served *one, const struct step *step, uint32_t events, bool *good)
{
    int64_t up = step->list[1], down = step->list[2];
    char bytes[4096];
    if (step->list[0] == GET_ONLY) {
        *good = burst_send(one->fd, BURST_DOWN, 0, down);
        return true;
    }
    for (;;) {
        ssize_t got = read(one->fd, bytes, sizeof bytes);
        if (got < 0 && errno == EAGAIN)
            return false;
        if (got < 0)
            return true;
        if (got == 0) {
            *good = one->received == up * (step->list[0] == ASK_OFTEN ? step->list[3] : 1);
            if (step->list[0] == SEND_AND_SHUT)
                *good = *good && burst_send(one->fd, BURST_DOWN, 0, down);
            return true;
        }
        verify(BURST_UP, (uint64_t)one->received, bytes, (size_t)got);
        one->received += got;
        if (step->list[0] == ASK_ONCE && one->received == up) {
            *good = burst_send(one->fd, BURST_DOWN, 0, down);
            return true;
        }
        if (step->list[0] == ASK_OFTEN && one->received == up * (one->rounds + 1)) {
            burst_send(one->fd, BURST_DOWN, one->rounds * down, down);
            one->rounds++;
        }
        if (step->z == 1 && got < (ssize_t)sizeof bytes && !(events & EPOLLRDHUP))
            return false;
    }
}

/* x: how many connections. y: 0 epoll by level, 1 by edge, 2 to 4 a child for each by fork, _Fork, clone; 5 a thread for each; 6 one after another. */
static int64_t step_server(const struct step *step)
{
    int listener = number_of(step->slot), good = 0;
    if (step->y >= 2) {
        set_blocking(listener, true, false);
        pthread_t threads[64];
        struct one_served ones[64];
        for (int number = 0; number < step->x; number++) {
            int fd = accept4(listener, NULL, NULL, 0);
            if (fd < 0)
                return -1;
            if (step->y == 6) {
                good += serve_one(fd, step);
            } else if (step->y == 5) {
                ones[number % 64] = (struct one_served){fd, step, own_result};
                pthread_create(&threads[number % 64], NULL, serve_thread, &ones[number % 64]);
            } else {
                long child = fork_by(step->y - 2);
                if (child == 0) {
                    close(listener);
                    _exit(serve_one(fd, step) ? 0 : 1);
                }
                close(fd);
            }
        }
        for (int number = 0; number < step->x && step->y != 6; number++) {
            int status = 1;
            if (step->y == 5) {
                void *well;
                pthread_join(threads[number % 64], &well);
                good += (int)(intptr_t)well;
            } else {
                while (waitpid(-1, &status, 0) < 0 && errno == EINTR)
                    ;
                good += status == 0;
            }
        }
        return good;
    }
    set_blocking(listener, false, true);
    int set = epoll_create1(EPOLL_CLOEXEC), ended = 0;
    struct epoll_event event = {.events = EPOLLIN | (step->y ? EPOLLET : 0), .data.u32 = UINT32_MAX};
    epoll_ctl(set, EPOLL_CTL_ADD, listener, &event);
    static struct served all[128];
    for (int index = 0; index < 128; index++)
        all[index] = (struct served){.fd = -1};
    while (ended < step->x) {
        struct epoll_event got[8];
        int count = epoll_wait(set, got, 8, -1);
        for (int index = 0; index < count; index++) {
            if (got[index].data.u32 != UINT32_MAX) {
                struct served *one = &all[got[index].data.u32];
                bool well = false;
                if (one->fd >= 0 && served_ends(one, step, got[index].events, &well)) {
                    close(one->fd);
                    one->fd = -1, good += well, ended++;
                }
                continue;
            }
            int fd;
            while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
                uint32_t free = 0;
                while (all[free].fd >= 0)
                    free++;
                all[free] = (struct served){.fd = fd};
                /* Edges tell of output from the beginning, so that GET_ONLY gets an event. */
                event = (struct epoll_event){.events = EPOLLIN | EPOLLRDHUP | (step->list[0] == GET_ONLY ? EPOLLOUT
                    : 0) | (step->y ? EPOLLET : 0), .data.u32 = free};
                epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
            }
        }
    }
    close(set);
    return good;
}

/* --- single calls --- */

static int lines_of(const char *path)
{
    char bytes[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC), lines = 0;
    for (ssize_t got; (got = read(fd, bytes, sizeof bytes)) > 0;)
        for (ssize_t at = 0; at < got; at++)
            lines += bytes[at] == '\n';
    close(fd);
    return lines;
}

static int open_descriptors(void)
{
    struct { uint64_t ino; int64_t off; unsigned short length; unsigned char type; char name[]; } *entry;
    char bytes[8192];
    int fd = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC), count = 0;
    for (long got; (got = syscall(SYS_getdents64, fd, bytes, sizeof bytes)) > 0;)
        for (long at = 0; at < got; at += entry->length)
            entry = (void *)(bytes + at), count++;
    close(fd);
    return count;
}

/* x: 0 notes the counts of descriptors and mappings; 1 compares them: growth of `n` or more is told. */
static int64_t step_count(const struct step *step)
{
    static int descriptors, mappings;
    if (step->x == 0) {
        descriptors = open_descriptors(), mappings = lines_of("/proc/self/maps");
        return 0;
    }
    uint64_t begin = now_us();
    int more_descriptors, more_mappings;
    for (;;) {
        more_descriptors = open_descriptors() - descriptors, more_mappings = lines_of("/proc/self/maps") - mappings;
        if ((more_descriptors < step->n && more_mappings < step->n) || now_us() - begin > 1500000)
            break;
        nap(2000);
    }
    if (more_descriptors >= step->n)
        note(" %d descriptors more", more_descriptors);
    if (more_mappings >= step->n)
        note(" %d mappings more", more_mappings);
    return 0;
}

/* Bad arguments. The connection has `n` bytes to receive and room to send. */
static int64_t step_bad(const struct step *step)
{
    int fd = number_of(step->slot), end = shared->end[own_process][step->slot];
    char *volatile address_8 = (char *)(intptr_t)8, *bad = address_8, small[16] = "";
    char *volatile hidden = small; /* The compiler does not know the sizes and counts, and does not warn. */
    volatile int many = 1025, negative = -1;
    struct iovec vector = {bad, 10}, huge[2] = {{small, SSIZE_MAX}, {small, SSIZE_MAX}};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1};
    struct epoll_event event = {.events = EPOLLIN};
    int set = -1;
    ssize_t got;
    switch (step->x) {
    case 0: return recv(fd, bad, 10, MSG_DONTWAIT);
    case 1: return read(fd, bad, step->n ? 10 : 0);
    case 2: return write(fd, bad, 10);
    case 3: return send(fd, bad, 10, MSG_NOSIGNAL);
    case 4: return writev(fd, (struct iovec *)bad, 1);
    case 5: return readv(fd, (struct iovec *)bad, 1);
    case 6: return writev(fd, &vector, many);
    case 7: return readv(fd, &vector, negative);
    case 8: return writev(fd, huge, 2);
    case 9: return sendmsg(fd, (struct msghdr *)bad, 0);
    case 10: return recvmsg(fd, (struct msghdr *)bad, MSG_DONTWAIT);
    case 11: return sendmsg(fd, &message, 0);
    case 12: return recvmsg(fd, &message, MSG_DONTWAIT);
    case 13: return recv(fd, hidden, 10, MSG_OOB);
    case 14: return poll((struct pollfd *)bad, 1, 0);
    case 15: return epoll_ctl(fd, EPOLL_CTL_ADD, fd, &event);
    case 16: return ioctl(fd, FIONREAD, bad);
    case 17: {
        socklen_t size = 4;
        return getsockopt(fd, SOL_SOCKET, SO_ERROR, bad, &size);
    }
    case 18: /* drops bytes */
        got = recv(fd, NULL, step->n < 100 ? (size_t)step->n : 100, MSG_TRUNC | MSG_DONTWAIT);
        if (got > 0)
            shared->taken[end ^ 1] += (uint64_t)got;
        return got;
    case 19: return (set = epoll_create1(EPOLL_CLOEXEC), got = epoll_wait(set, &event, 0, 0), close(set), got);
    case 20: return (set = epoll_create1(EPOLL_CLOEXEC), got = epoll_ctl(set, EPOLL_CTL_MOD, fd, &event), close(set), got);
    case 21: return (set = epoll_create1(EPOLL_CLOEXEC), epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), got = epoll_ctl(set,
        EPOLL_CTL_ADD, fd, &event), close(set), got);
    case 22: return (set = epoll_create1(EPOLL_CLOEXEC), got = epoll_ctl(set, EPOLL_CTL_ADD, fd, (struct epoll_event *)bad),
        close(set), got);
    case 23: return shutdown(fd, 7);
    case 24: return dup2(fd, negative);
    case 25: return dup3(fd, fd, 0);
    case 26: return listen(fd, 1);
    case 27: {
        struct sockaddr_in address = address_of(-1);
        return connect(fd, (struct sockaddr *)&address, sizeof address);
    }
    case 28: return accept(fd, NULL, NULL);
    case 29: return lseek(fd, 0, SEEK_CUR);
    case 30: return pread(fd, hidden, 1, 0);
    case 31: return pwrite(fd, hidden, 1, 0);
    case 32: /* sendto with an address: TCP ignores it */ {
        struct sockaddr_in address = address_of(-1);
        pattern((unsigned)end, shared->written[end], small, 5);
        got = sendto(fd, small, 5, 0, (struct sockaddr *)&address, sizeof address);
        if (got > 0)
            shared->written[end] += (uint64_t)got;
        return got;
    }
    case 33: return recvmmsg(fd, (struct mmsghdr *)bad, 1, MSG_DONTWAIT, NULL);
    case 34: return sendmmsg(fd, (struct mmsghdr *)bad, 1, 0);
    case 35: return sendfile(fd, fd, NULL, 10);
    case 36: return recvfrom(fd, bad, 10, MSG_DONTWAIT | MSG_PEEK, NULL, NULL);
    case 37: /* a second part that cannot be read; the count depends on the kernel */ {
        struct iovec two[2] = {{small, 7}, {bad, 9}};
        pattern((unsigned)end, shared->written[end], small, 7);
        got = writev(fd, two, 2);
        if (got > 0)
            shared->written[end] += (uint64_t)got;
        if (got == 7 || (got < 0 && errno == EFAULT))
            errno = 0, got = 7;
        return got;
    }
    case 38: /* a second part that cannot be written */ {
        struct iovec two[2] = {{small, 7}, {bad, 9}};
        set_blocking(fd, false, false);
        got = readv(fd, two, 2);
        int error = errno;
        if (step->z == BLOCKING)
            set_blocking(fd, true, false);
        if (got > 0) {
            verify((unsigned)end ^ 1, shared->taken[end ^ 1], small, (size_t)got);
            shared->taken[end ^ 1] += (uint64_t)got;
        }
        if ((got > 0 && got <= 7) || (got < 0 && error == EFAULT))
            error = 0, got = 7;
        errno = error;
        return got;
    }
    default: return fcntl(fd, F_SETFD, FD_CLOEXEC) + (int)fcntl(fd, 12345, 0);
    }
}
enum { BAD_CALLS = 40 };

/* Calls of no bytes, on a connection that is open both ways. */
static int64_t step_nothing(const struct step *step)
{
    int fd = number_of(step->slot);
    char byte[4];
    struct iovec none = {NULL, 0};
    struct msghdr message = {.msg_iov = &none, .msg_iovlen = 1};
    char *volatile null = NULL;
    switch (step->x) {
    case 0: return read(fd, byte, 0);
    case 1: return recv(fd, null, 0, 0);
    case 2: return write(fd, null, 0);
    case 3: return send(fd, null, 0, 0);
    case 4: return readv(fd, &none, 1);
    case 5: return writev(fd, &none, 1);
    case 6: return recvmsg(fd, &message, 0);
    case 7: return sendmsg(fd, &message, 0);
    case 8: return writev(fd, null ? &none : NULL, 0);
    case 9: return read(fd, null, 0);
    case 10: return recv(fd, byte, 0, MSG_PEEK);
    case 11: return sendto(fd, null, 0, 0, NULL, 0);
    default: return sendmmsg(fd, NULL, 0, 0);
    }
}
enum { NOTHING_CALLS = 13 };

/* One blocking call, which a signal may interrupt, or which goes on while another thread closes the number. */
static int64_t step_one(const struct step *step)
{
    struct random random = {step->random};
    struct end end = end_of(step->slot, step);
    size_t length = (size_t)step->n;
    struct pollfd entry = {end.fd, POLLIN, 0};
    struct epoll_event event;
    fd_set in;
    FD_ZERO(&in);
    switch (step->x) {
    case 0: return receive_by(end.fd, READ, length, end.from, &random, true);
    case 1: return receive_by(end.fd, RECV, length, end.from, &random, true);
    case 2: return receive_by(end.fd, READV, length, end.from, &random, true);
    case 3: return receive_by(end.fd, RECVMSG, length, end.from, &random, true);
    case 4: return receive_by(end.fd, RECV_ALL, length, end.from, &random, false);
    case 5: return poll(&entry, 1, -1);
    case 6: return ppoll(&entry, 1, NULL, NULL);
    case 7:
        FD_SET(end.fd, &in);
        return select(end.fd + 1, &in, NULL, NULL, NULL);
    case 8:
        FD_SET(end.fd, &in);
        return pselect(end.fd + 1, &in, NULL, NULL, NULL, NULL);
    case 9: return epoll_wait(end.set, &event, 1, -1);
    case 10: return epoll_pwait(end.set, &event, 1, -1, NULL);
    case 11: return accept(end.fd, NULL, NULL);
    default: { /* write, until it blocks */
        size_t total = (size_t)step->n;
        pattern(end.to, shared->written[end.to], buffer, BUFFER);
        (void)total;
        ssize_t sent;
        while ((sent = write(end.fd, buffer, BUFFER)) > 0) {
            shared->written[end.to] += (uint64_t)sent;
            pattern(end.to, shared->written[end.to], buffer, BUFFER);
        }
        return sent;
    }
    }
}

/* Gives the number back to no file of note; it stays taken, so that no socket gets it. */
static void clear_number(int number)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, number);
    close(null);
}

static FILE *stream_of(int slot, bool writes)
{
    FILE **all = writes ? outputs : inputs;
    if (!all[slot])
        all[slot] = fdopen(number_of(slot), writes ? "w" : "r");
    return all[slot];
}

/* x: 0 fprintf, 1 fwrite, 2 fputs, 3 printf on descriptor 1, 4 fgets, 5 fread, 6 fgetc, 7 fgets on descriptor 0. */
static int64_t step_stdio(const struct step *step)
{
    int end = shared->end[own_process][step->slot];
    size_t length = (size_t)step->n, done = 0;
    unsigned to = (unsigned)end, from = (unsigned)end ^ 1;
    if (step->x < 4) {
        FILE *file = stdout;
        clearerr(stdout);
        if (step->x == 3)
            dup2(number_of(step->slot), 1);
        else
            file = stream_of(step->slot, true);
        pattern(to, shared->written[to], buffer, length);
        buffer[length] = 0;
        if (step->x == 1)
            done = fwrite(buffer, 1, length, file);
        else if (step->x == 2)
            done = fputs(buffer, file) >= 0 ? length : 0;
        else
            done = (size_t)(step->x == 3 ? printf("%s", buffer) : fprintf(file, "%s", buffer));
        if (fflush(file) != 0)
            return -1;
        if (step->x == 3)
            clear_number(1);
        shared->written[to] += done;
        return (int64_t)done;
    }
    FILE *file = stdin;
    if (step->x == 7) {
        dup2(number_of(step->slot), 0);
        setvbuf(stdin, NULL, _IONBF, 0); /* The rest stays in the socket. */
        clearerr(stdin);
    } else {
        file = stream_of(step->slot, false);
    }
    while (done < length) {
        size_t part = 1;
        if (step->x == 5) {
            part = fread(buffer + done, 1, length - done, file);
        } else if (step->x == 6) {
            int byte = fgetc(file);
            part = byte != EOF;
            buffer[done] = (char)byte;
        } else {
            part = fgets(buffer + done, (int)(length - done + 1), file) ? strlen(buffer + done) : 0;
        }
        if (part == 0)
            break;
        done += part;
    }
    verify(from, shared->taken[from], buffer, done);
    shared->taken[from] += done;
    shared->bytes += done;
    if (step->x == 7)
        clear_number(0);
    return (int64_t)done;
}

static int64_t send_descriptor(int fd)
{
    char byte = 'x', control[CMSG_SPACE(sizeof(int))] = "";
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    return sendmsg(FD_PASS_IN, &message, 0);
}

static int receive_descriptor(void)
{
    char byte, control[CMSG_SPACE(sizeof(int))] = "";
    struct iovec vector = {&byte, 1};
    struct msghdr message = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(FD_PASS_OUT, &message, 0) != 1)
        return -1;
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
    return fd;
}

static char *own_path(void)
{
    static char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return path;
}

static int64_t step_exec(const struct step *step)
{
    for (int slot = 0; slot < SLOTS; slot++)
        if (shared->fd[own_process][slot] >= 0)
            fcntl(shared->fd[own_process][slot], F_SETFD, same_set(step->list, slot) ? 0 : FD_CLOEXEC);
    char process[12], *words[] = {own_path(), "actor", process, NULL};
    snprintf(process, sizeof process, "%u", own_process);
    if (step->x == 1)
        unsetenv("LD_PRELOAD"); /* The next program lacks the library. */
    return execv(words[0], words);
}

static int64_t perform_operation(const struct step *step)
{
    struct random random = {step->random};
    struct end end = step->slot >= 0 ? end_of(step->slot, step) : (struct end){.fd = -1};
    struct sockaddr_in address;
    int fd, error;
    int64_t got, value;
    switch (step->op) {
    case OP_THREAD:
        return pthread_create(&thread_ids[step->x], NULL, actor_main,
            (void *)(intptr_t)(own_process * THREADS + (unsigned)step->x));
    case OP_SOCKET:
        fd = socket(AF_INET, SOCK_STREAM | (step->x ? SOCK_NONBLOCK : 0) | (step->y ? SOCK_CLOEXEC : 0), 0);
        set_slot(step->slot, fd, -1);
        never_delay(fd);
        return fd >= 0 ? 0 : -1;
    case OP_LISTEN: {
        socklen_t size = sizeof address;
        int one = 1;
        address = address_of(-1);
        fd = socket(AF_INET, SOCK_STREAM | (step->y ? SOCK_NONBLOCK : 0), 0);
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        set_slot(step->slot, fd, -1);
        if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 64) != 0 || getsockname(fd,
            (struct sockaddr *)&address, &size) != 0)
            return -1;
        shared->port[step->x] = ntohs(address.sin_port);
        return 0;
    }
    case OP_CONNECT:
        address = address_of(step->x);
        if (step->y >= 0)
            set_slot(step->slot, end.fd, step->y);
        got = connect(end.fd, (struct sockaddr *)&address, sizeof address);
        return connected(end.fd, (enum style)step->z, end.set, (int)got);
    case OP_REFUSED: /* a port at which nothing listens */
        address = address_of(-1);
        fd = socket(AF_INET, SOCK_STREAM | (step->y ? SOCK_NONBLOCK : 0), 0);
        bind(fd, (struct sockaddr *)&address, sizeof address);
        socklen_t size = sizeof address;
        getsockname(fd, (struct sockaddr *)&address, &size);
        int other = socket(AF_INET, SOCK_STREAM | (step->y ? SOCK_NONBLOCK : 0), 0);
        got = connect(other, (struct sockaddr *)&address, sizeof address);
        got = connected(other, BY_POLL, -1, (int)got);
        error = errno;
        close(fd), close(other);
        errno = error;
        return got;
    case OP_ACCEPT: {
        struct pollfd entry = {end.fd, POLLIN, 0};
        while ((fd = step->x < 0 ? accept(end.fd, NULL, NULL) : accept4(end.fd, NULL, NULL, step->x)) < 0 && errno == EAGAIN)
            poll(&entry, 1, -1);
        set_slot(step->other, fd, step->y);
        never_delay(fd);
        return fd >= 0 ? 0 : -1;
    }
    case OP_W:
        broken_pipes = 0;
        got = send_all(&end, step->n, step->x, &random);
        if (broken_pipes) {
            error = errno;
            note(" SIGPIPE");
            errno = error;
        }
        return got;
    case OP_R:
        return receive_all(&end, step->n, step->x, &random);
    case OP_RALL: /* all that was written */
        value = (int64_t)(shared->written[end.from] - shared->taken[end.from]);
        got = receive_all(&end, value, step->x, &random);
        if (got == value)
            return 0;
        error = errno;
        note(" %lld of %lld", (long long)got, (long long)value);
        errno = error;
        return -1;
    case OP_END: /* the end of a stream or an error */
        do {
            if (end.style != BLOCKING && !is_edge(end.style))
                wait_by(end.style, end.fd, end.set, POLLIN);
            got = receive_by(end.fd, (enum receiving)step->x, 64, end.from, &random, false);
            if (got < 0 && errno == EAGAIN)
                wait_by(end.style, end.fd, end.set, POLLIN);
        } while (got < 0 && (errno == EAGAIN || errno == EINTR));
        return got;
    case OP_EXPECT: /* one call that is not to wait */
        return receive_by(end.fd, RECV_DONTWAIT, 100, end.from, &random, false);
    case OP_PINGPONG:
        for (int round = 0; round < step->x; round++) {
            if (step->y && send_all(&end, step->n, ANY_TAME, &random) != step->n)
                return -1;
            if (receive_all(&end, step->n, ANY_TAME, &random) != step->n)
                return -1;
            if (!step->y && send_all(&end, step->n, ANY_TAME, &random) != step->n)
                return -1;
        }
        return step->x;
    case OP_POLL:
        return step_poll(step);
    case OP_SET:
        set_slot(step->slot, epoll_create1(step->x ? EPOLL_CLOEXEC : 0), -1);
        return number_of(step->slot) >= 0 ? 0 : -1;
    case OP_CTL: {
        struct epoll_event event = {.events = (uint32_t)step->y, .data.u32 = (uint32_t)step->other};
        return epoll_ctl(end.fd, step->x, number_of(step->other), &event);
    }
    case OP_SETWAIT:
        return step_setwait(step);
    case OP_DRAIN:
        return step_drain(step);
    case OP_EDGEWRITE:
        return step_edgewrite(step);
    case OP_SERVE:
        return step_serve(step);
    case OP_EVENTFD:
        set_slot(step->slot, eventfd(0, EFD_NONBLOCK), -1);
        return 0;
    case OP_KICK:
        value = 1;
        return step->x ? read(end.fd, &value, 8) : write(end.fd, &value, 8);
    case OP_DUP: /* x: way; y: closes the old one */
        set_slot(step->other, step->x == 0   ? dup(end.fd)
                              : step->x == 1 ? fcntl(end.fd, F_DUPFD, 3)
                              : step->x == 2 ? fcntl(end.fd, F_DUPFD_CLOEXEC, 3)
                              : step->x == 3 ? dup2(end.fd, step->n ? (int)step->n : number_of(step->other))
                                             : dup3(end.fd, step->n ? (int)step->n : number_of(step->other), O_CLOEXEC),
                 shared->end[own_process][step->slot]);
        return number_of(step->other) >= 0 ? 0 : -1;
    case OP_CLOSE:
        shared->fd[own_process][step->slot] = -1;
        if (inputs[step->slot] || outputs[step->slot]) {
            FILE *file = inputs[step->slot] ? inputs[step->slot] : outputs[step->slot];
            inputs[step->slot] = outputs[step->slot] = NULL;
            return fclose(file);
        }
        return step->x == 1 ? syscall(SYS_close, end.fd) : step->x == 2 ? close_range((unsigned)end.fd, (unsigned)end.fd, 0)
            : close(end.fd);
    case OP_SHUT:
        return shutdown(end.fd, step->x);
    case OP_FORK: {
        memcpy(shared->fd[step->x], shared->fd[own_process], sizeof shared->fd[0]);
        memcpy(shared->end[step->x], shared->end[own_process], sizeof shared->end[0]);
        long child = fork_by(step->y);
        if (child == 0)
            become((unsigned)step->x);
        return child > 0 ? 0 : -1;
    }
    case OP_EXEC:
        return step_exec(step);
    case OP_SENDFD:
        return send_descriptor(end.fd);
    case OP_RECVFD:
        set_slot(step->slot, receive_descriptor(), step->y);
        return number_of(step->slot) >= 0 ? 0 : -1;
    case OP_ACTION: {
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = step->x ? SA_RESTART : 0};
        handler_fd = step->slot >= 0 ? end.fd : -1;
        handler_direction = step->slot >= 0 ? (int)end.to : 0;
        handler_length = step->slot >= 0 ? (unsigned)step->n : 0;
        return sigaction(SIGUSR1, &action, NULL);
    }
    case OP_CANCEL: {
        void *returned = NULL;
        if (pthread_cancel(thread_ids[step->x]) != 0 || pthread_join(thread_ids[step->x], &returned) != 0)
            return -1;
        return returned == PTHREAD_CANCELED;
    }
    case OP_OPTION: {
        struct timeval time = {step->n / 1000, step->n % 1000 * 1000};
        struct linger linger = {1, 0};
        int one = 1;
        if (step->x == 0 || step->x == 1)
            return setsockopt(end.fd, SOL_SOCKET, step->x ? SO_SNDTIMEO : SO_RCVTIMEO, &time, sizeof time);
        if (step->x == 2)
            return setsockopt(end.fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger);
        return setsockopt(end.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    case OP_FIONREAD: {
        int there = -1;
        uint64_t begin = now_us();
        do {
            if (ioctl(end.fd, FIONREAD, &there) != 0)
                return -1;
        } while (there < step->n && now_us() - begin < 2000000 && (nap(100), true));
        return there;
    }
    case OP_SOERROR: {
        socklen_t length = sizeof error;
        if (getsockopt(end.fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0)
            return -1;
        return error;
    }
    case OP_NONBLOCK:
        set_blocking(end.fd, !step->x, step->y);
        return (fcntl(end.fd, F_GETFL) & O_NONBLOCK) != 0;
    case OP_BAD:
        return step_bad(step);
    case OP_NOTHING:
        return step_nothing(step);
    case OP_UNSPEC: {
        struct sockaddr none = {.sa_family = AF_UNSPEC};
        return connect(end.fd, &none, sizeof none);
    }
    case OP_EXIT:
        if (step->x)
            exit(0);
        _exit(0);
    case OP_FILL: { /* sends until nothing fits, or a limit of time passes */
        ssize_t sent;
        do {
            pattern(end.to, shared->written[end.to], buffer, 65536);
            sent = send(end.fd, buffer, 65536, step->x ? MSG_DONTWAIT : 0);
            if (sent > 0)
                shared->written[end.to] += (uint64_t)sent;
        } while (sent > 0);
        return sent;
    }
    case OP_ONE:
        return step_one(step);
    case OP_CLIENTS:
        return step_clients(step);
    case OP_SERVER:
        return step_server(step);
    case OP_COUNT:
        return step_count(step);
    case OP_STDIO:
        return step_stdio(step);
    default:
        return -1;
    }
}

static void complete(struct result *result)
{
    result->state = 2;
    shared->completions++;
    futex(&shared->completions, FUTEX_WAKE, 10, NULL);
}

/* Performs the steps that the conductor gives to this thread. */
static void *actor_main(void *argument)
{
    if (argument)
        own_process = (unsigned)((intptr_t)argument / THREADS), own_thread = (unsigned)((intptr_t)argument % THREADS);
    make_buffers();
    struct actor *own = &shared->actors[own_process][own_thread];
    uint32_t done = own->command;
    own->pid = (int32_t)syscall(SYS_getpid);
    own->tid = (int32_t)syscall(SYS_gettid);
    shared->completions++;
    futex(&shared->completions, FUTEX_WAKE, 10, NULL);
    for (;;) {
        while (own->command == done)
            futex(&own->command, FUTEX_WAIT, done, NULL);
        done++;
        const struct step *step = &shared->step[own->step];
        own_result = &shared->result[own->step];
        own_result->state = 1;
        errno = 0;
        int64_t value = perform_operation(step);
        int error = errno;
        /* The result belongs to the conductor once it is complete. */
        own_result->value = value;
        own_result->error = value < 0 || ((step->op == OP_W || step->op == OP_R || step->op == OP_RALL) && value != step->n)
            ? error : 0;
        complete(own_result);
    }
    return NULL;
}

static void begin_actor(void)
{
    struct sigaction action = {.sa_handler = on_broken_pipe, .sa_flags = SA_RESTART};
    sigaction(SIGPIPE, &action, NULL);
    actor_main(NULL);
}

/* An actor after exec. */
static int actor_after_exec(unsigned process)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, FD_MEMORY, 0);
    if (shared == MAP_FAILED)
        return 1;
    own_process = process;
    begin_actor();
    return 0;
}

#endif
