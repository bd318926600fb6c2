/* Common parts of the programs: sockets, the pseudo-random stream, and its hash. Each program bounds its own run with `alarm`. */
#ifndef SOCKETS_H
#define SOCKETS_H

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { HANG_SECONDS = 900 };

/* Ends the program: a rule of the test, and not of TCP, was broken. */
#define FAIL(...)                                                                                                      \
    do {                                                                                                               \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                                \
        fprintf(stderr, __VA_ARGS__);                                                                                  \
        fprintf(stderr, " (errno: %s)\n", strerrorname_np(errno));                                                     \
        exit(1);                                                                                                       \
    } while (0)

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            FAIL("not so: %s", #condition);                                                                            \
    } while (0)

/* How a program waits for its sockets. */
enum mode { BLOCKING, POLL, LEVEL, EDGE };

static inline enum mode mode_of(const char *name)
{
    static const char *const names[] = {"blocking", "poll", "level", "edge"};
    for (unsigned mode = 0; mode < 4; mode++)
        if (strcmp(name, names[mode]) == 0)
            return mode;
    FAIL("no mode %s", name);
}

static inline void begin(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    alarm(HANG_SECONDS);
}

/* SplitMix64: the number at a place of the sequence of a seed. */
static inline uint64_t mixed(uint64_t seed, uint64_t at)
{
    uint64_t z = seed + (at + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* A sequence of choices. */
struct chance {
    uint64_t seed, at;
};

static inline uint64_t chosen(struct chance *chance, uint64_t below)
{
    return mixed(chance->seed, chance->at++) % below;
}

/* Writes the bytes of the stream of a seed that begin at a position. */
static inline void fill(uint64_t seed, uint64_t position, uint8_t *bytes, size_t length)
{
    size_t done = 0;
    while (done < length) {
        uint64_t word = mixed(seed, (position + done) / 8);
        size_t skipped = (position + done) % 8, part = 8 - skipped;
        part = part < length - done ? part : length - done;
        if (part == 8)
            memcpy(bytes + done, &word, 8);
        else
            memcpy(bytes + done, (uint8_t *)&word + skipped, part);
        done += part;
    }
}

/* FNV-1a over words of 64 bits, however the bytes come. */
struct hash {
    uint64_t value, word, count;
};

#define NEW_HASH ((struct hash){UINT64_C(0xcbf29ce484222325), 0, 0})

static inline void hash_word(struct hash *hash, uint64_t word)
{
    hash->value = (hash->value ^ word) * UINT64_C(0x100000001b3);
}

static inline void hash_bytes(struct hash *hash, const uint8_t *bytes, size_t length)
{
    size_t done = 0;
    while (done < length) {
        size_t filled = hash->count % 8;
        if (filled == 0 && length - done >= 8) {
            uint64_t word;
            memcpy(&word, bytes + done, 8);
            hash_word(hash, word);
            done += 8, hash->count += 8;
            continue;
        }
        ((uint8_t *)&hash->word)[filled] = bytes[done++];
        if (++hash->count % 8 == 0)
            hash_word(hash, hash->word);
    }
}

static inline uint64_t hash_end(const struct hash *hash)
{
    struct hash last = *hash;
    size_t filled = last.count % 8;
    memset((uint8_t *)&last.word + filled, 0, 8 - filled);
    hash_word(&last, last.word);
    hash_word(&last, last.count);
    return last.value;
}

static inline struct sockaddr_in address_of(const char *address, int port)
{
    struct sockaddr_in result = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    if (inet_pton(AF_INET, address, &result.sin_addr) != 1)
        FAIL("no address: %s", address);
    return result;
}

/* Listens on a port that the kernel chooses, and prints it. */
static inline int listening(const char *address, int backlog)
{
    struct sockaddr_in name = address_of(address, 0);
    socklen_t length = sizeof name;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(fd, (struct sockaddr *)&name, sizeof name) == 0);
    CHECK(listen(fd, backlog) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&name, &length) == 0);
    printf("port %d\n", ntohs(name.sin_port));
    return fd;
}

static inline int accepted(int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

static inline int connected(const char *address, int port)
{
    struct sockaddr_in name = address_of(address, port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK(connect(fd, (struct sockaddr *)&name, sizeof name) == 0);
    return fd;
}

static inline void set_nonblocking(int fd, bool on)
{
    int flags = fcntl(fd, F_GETFL);
    CHECK(flags >= 0);
    CHECK(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) == 0);
}

/* Writes all bytes to a blocking socket. */
static inline void write_all(int fd, const void *bytes, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t written = write(fd, (const char *)bytes + done, length - done);
        if (written <= 0)
            FAIL("write = %zd", written);
        done += (size_t)written;
    }
}

/* Reads this number of bytes from a blocking socket; false at the end of the stream, if that is before the first byte. */
static inline bool read_all(int fd, void *bytes, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t got = read(fd, (char *)bytes + done, length - done);
        if (got == 0 && done == 0)
            return false;
        if (got <= 0)
            FAIL("read = %zd after %zu bytes", got, done);
        done += (size_t)got;
    }
    return true;
}

#endif
