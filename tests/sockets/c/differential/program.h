/* The program of a seed: its steps, their results, and the memory that all processes of a run share. */
#ifndef DIFFERENTIAL_PROGRAM_H
#define DIFFERENTIAL_PROGRAM_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    STEPS = 700,     /* of one program */
    PROCESSES = 12,  /* that take steps, over the whole program */
    THREADS = 6,     /* of each */
    SLOTS = 96,      /* names of descriptors; each process maps them to numbers */
    CONNECTIONS = 48,
    LISTENERS = 4,
    LIST = 10,
    NOTE = 112,
    FD_MEMORY = 900, /* the shared memory */
    FD_PASS_IN = 901,
    FD_PASS_OUT = 902,
};

#define OPERATIONS(X) \
    X(THREAD) X(SOCKET) X(LISTEN) X(CONNECT) X(ACCEPT) X(W) X(R) X(RALL) X(END) X(PINGPONG) X(POLL) X(SET) X(CTL) \
    X(SETWAIT) X(DRAIN) X(SERVE) X(EVENTFD) X(KICK) X(DUP) X(CLOSE) X(SHUT) X(FORK) X(EXEC) X(SENDFD) X(RECVFD) \
    X(ACTION) X(CANCEL) X(OPTION) X(FIONREAD) X(SOERROR) X(NONBLOCK) X(BAD) X(NOTHING) X(UNSPEC) X(EXIT) X(FILL) X(ONE) \
    X(CLIENTS) X(SERVER) X(COUNT) X(STDIO) X(EDGEWRITE) X(REFUSED) X(EXPECT) \
    X(JOIN) X(SIGNAL) X(KILL) X(DEAD)

#define X(name) OP_##name,
enum operation { OPERATIONS(X) OP_END_OF_LIST };
#undef X
#define X(name) #name,
static const char *const OPERATION_NAMES[] = {OPERATIONS(X)};
#undef X

/* SYNC: the next step starts when the step is complete. FREE: the next step starts at once. BLOCK: the next step starts when the
 * thread sleeps in the step or has completed it. DIES: the step ends its process. */
enum mode { SYNC, FREE, BLOCK, DIES };

struct step {
    uint8_t process, thread, op, mode;
    int16_t slot, other; /* descriptors */
    int32_t x, y, z;
    int64_t n;
    uint32_t random;
    int32_t list[LIST];
};

struct result {
    _Atomic uint32_t state; /* 0: not begun, 1: begun, 2: complete */
    int32_t error;
    int64_t value;
    char note[NOTE];
};

struct actor {
    _Atomic uint32_t command; /* a number of commands; the futex of the thread */
    uint32_t step;
    _Atomic int32_t pid, tid;
};

/* The state of a run that the supervisor reads. */
enum verdict { RAN, HUNG, DIED };

struct memory {
    uint64_t seed;
    uint32_t kind, steps, initial; /* processes at the beginning */
    uint32_t verdict, at; /* the step that did not end */
    uint32_t deadline;    /* in ms */
    uint32_t verbose;
    uint32_t address;     /* of all sockets, in host order */
    _Atomic uint32_t completions; /* the futex of the conductor */
    _Atomic uint32_t handled;     /* calls of handlers */
    _Atomic uint64_t counters[16];
    _Atomic uint64_t written[2 * CONNECTIONS], taken[2 * CONNECTIONS];
    _Atomic uint64_t bytes;
    uint16_t port[LISTENERS];
    struct actor actors[PROCESSES][THREADS];
    int32_t fd[PROCESSES][SLOTS];
    int16_t end[PROCESSES][SLOTS]; /* 2 * connection + side of a slot, or -1 */
    struct step step[STEPS];
    struct result result[STEPS];
};

static struct memory *shared;

/* --- random numbers, and bytes by position --- */

static inline uint64_t mixed_bits(uint64_t x)
{
    x ^= x >> 30, x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27, x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

struct random {
    uint64_t state;
};

static uint64_t next_random(struct random *random)
{
    random->state += 0x9e3779b97f4a7c15u;
    return mixed_bits(random->state);
}

/* Less than `bound`. */
static uint32_t below(struct random *random, uint32_t bound)
{
    return (uint32_t)((next_random(random) >> 20) % bound);
}

static uint32_t between(struct random *random, uint32_t low, uint32_t high)
{
    return low + below(random, high - low + 1);
}

static bool chance(struct random *random, uint32_t percent)
{
    return below(random, 100) < percent;
}

/* Text without NUL, '%' and with a few ends of lines, so that stdio carries it. */
static char alphabet[256];

static void make_alphabet(void)
{
    for (int index = 0; index < 256; index++)
        alphabet[index] = (char)('0' + index % 75);
    alphabet[255] = '\n';
}

/* The bytes of direction `direction` at `position`. */
static void pattern(unsigned direction, uint64_t position, char *to, size_t length)
{
    uint64_t key = mixed_bits(shared->seed * 1000003 + direction);
    size_t at = 0;
    while (at < length) {
        uint64_t bits = mixed_bits(key + (position >> 3) * 0x9e3779b97f4a7c15u);
        unsigned byte = position & 7;
        if (byte == 0 && length - at >= 8) {
            for (; byte < 8; byte++)
                to[at++] = alphabet[(bits >> (8 * byte)) & 255];
            position += 8;
        } else {
            to[at++] = alphabet[(bits >> (8 * byte)) & 255];
            position++;
        }
    }
}

static uint64_t now_us(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_nsec / 1000;
}

static void nap(unsigned us)
{
    struct timespec time = {0, (long)us * 1000};
    syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &time, NULL);
}

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *limit)
{
    return syscall(SYS_futex, word, operation, value, limit, NULL, 0);
}

#endif
