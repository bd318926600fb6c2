/* A pseudo-random stream over a connection, in one direction or in both at once.
 *
 *   transfer server ADDRESS [OPTIONS]         prints `port N`, accepts one connection
 *   transfer client ADDRESS PORT [OPTIONS]
 *
 *   --bytes N    bytes of each direction (1 GiB)        --seed S     chooses the contents and the sizes of calls
 *   --mode M     blocking, poll, level or edge          --duplex     both directions; otherwise only the client sends
 *   --tick N     prints `at COUNT` after every N bytes received
 *
 * The last lines are `sent COUNT HASH RESULT` and `received COUNT HASH RESULT`, for the directions that the program has. RESULT of
 * a sender is `ok` or an error, that of a receiver is `eof` or an error. Wrong contents end the program with exit code 1.
 */
#include "sockets.h"

enum { CALL_BYTES = 1 << 20, PARTS = 3 };

enum progress { MOVED, FULL, ENDED };

static uint64_t bytes_each = UINT64_C(1) << 30, seed = 1, tick;
static enum mode mode;
static bool duplex;

/* One direction at this end. */
struct direction {
    int fd;
    bool active;
    uint64_t contents; /* the seed of its bytes */
    struct chance sizes;
    struct hash hash;
    uint8_t *bytes, *expected;
    size_t at, length; /* of a sender: the bytes of the present chunk that are sent, and all */
    const char *result;
};

static struct direction direction(int fd, bool active, unsigned from, unsigned salt)
{
    struct direction new = {.fd = fd, .active = active, .contents = mixed(seed, from), .hash = NEW_HASH};
    new.sizes.seed = mixed(seed, 16 + salt);
    new.bytes = malloc(CALL_BYTES), new.expected = malloc(CALL_BYTES);
    CHECK(new.bytes && new.expected);
    return new;
}

/* 1 byte to 1 MiB; each power of two is as likely as the others. */
static size_t chosen_size(struct chance *sizes)
{
    return 1 + chosen(sizes, UINT64_C(1) << chosen(sizes, 21));
}

/* Cuts a buffer into parts, some of them empty. */
static int cut(struct direction *own, uint8_t *bytes, size_t length, struct iovec *parts)
{
    size_t done = 0;
    for (int part = 0; part < PARTS; part++) {
        size_t rest = length - done, size = part == PARTS - 1 ? rest : chosen(&own->sizes, rest + 1);
        parts[part] = (struct iovec){bytes + done, size};
        done += size;
    }
    return PARTS;
}

static ssize_t send_by_any_call(struct direction *own, uint8_t *bytes, size_t length)
{
    struct iovec parts[PARTS];
    struct msghdr message = {.msg_iov = parts};
    switch (chosen(&own->sizes, 5)) {
    case 0: return write(own->fd, bytes, length);
    case 1: return send(own->fd, bytes, length, MSG_NOSIGNAL);
    case 2: return writev(own->fd, parts, cut(own, bytes, length, parts));
    case 3: return sendto(own->fd, bytes, length, MSG_NOSIGNAL, NULL, 0);
    default: message.msg_iovlen = (size_t)cut(own, bytes, length, parts); return sendmsg(own->fd, &message, 0);
    }
}

static ssize_t receive_by_any_call(struct direction *own, uint8_t *bytes, size_t length)
{
    struct iovec parts[PARTS];
    struct msghdr message = {.msg_iov = parts};
    switch (chosen(&own->sizes, 5)) {
    case 0: return read(own->fd, bytes, length);
    case 1: return recv(own->fd, bytes, length, 0);
    case 2: return readv(own->fd, parts, cut(own, bytes, length, parts));
    case 3: return recvfrom(own->fd, bytes, length, 0, NULL, NULL);
    default: message.msg_iovlen = (size_t)cut(own, bytes, length, parts); return recvmsg(own->fd, &message, 0);
    }
}

static enum progress failed(struct direction *own)
{
    if (errno == EINTR)
        return MOVED;
    if (errno == EAGAIN)
        return FULL;
    own->result = strerrorname_np(errno);
    own->active = false;
    return ENDED;
}

/* One call that sends. */
static enum progress send_some(struct direction *own)
{
    if (own->at == own->length) {
        uint64_t rest = bytes_each - own->hash.count;
        if (rest == 0) {
            own->result = shutdown(own->fd, SHUT_WR) == 0 ? "ok" : strerrorname_np(errno);
            own->active = false;
            return ENDED;
        }
        own->at = 0, own->length = chosen_size(&own->sizes);
        own->length = own->length < rest ? own->length : rest;
        fill(own->contents, own->hash.count, own->bytes, own->length);
    }
    ssize_t sent = send_by_any_call(own, own->bytes + own->at, own->length - own->at);
    if (sent < 0)
        return failed(own);
    CHECK(sent > 0 && (size_t)sent <= own->length - own->at);
    hash_bytes(&own->hash, own->bytes + own->at, (size_t)sent);
    own->at += (size_t)sent;
    return MOVED;
}

/* One call that receives. */
static enum progress receive_some(struct direction *own)
{
    size_t size = chosen_size(&own->sizes);
    ssize_t got = receive_by_any_call(own, own->bytes, size);
    if (got < 0)
        return failed(own);
    if (got == 0) {
        own->result = "eof", own->active = false;
        return ENDED;
    }
    CHECK((size_t)got <= size);
    uint64_t before = own->hash.count;
    fill(own->contents, before, own->expected, (size_t)got);
    if (memcmp(own->bytes, own->expected, (size_t)got) != 0) {
        size_t good = 0;
        while (own->bytes[good] == own->expected[good])
            good++;
        FAIL("wrong byte at %llu, in a call at %llu of %zd bytes", (unsigned long long)(before + good),
             (unsigned long long)before, got);
    }
    hash_bytes(&own->hash, own->bytes, (size_t)got);
    if (tick && before / tick != own->hash.count / tick)
        printf("at %llu\n", (unsigned long long)own->hash.count);
    return MOVED;
}

static void *send_all(void *own)
{
    while (((struct direction *)own)->active)
        send_some(own);
    return NULL;
}

static void run_blocking(struct direction *out, struct direction *in)
{
    pthread_t sender;
    CHECK(pthread_create(&sender, NULL, send_all, out) == 0);
    while (in->active)
        receive_some(in);
    CHECK(pthread_join(sender, NULL) == 0);
}

static void run_poll(struct direction *out, struct direction *in)
{
    while (out->active || in->active) {
        short wanted = (short)((out->active ? POLLOUT : 0) | (in->active ? POLLIN : 0));
        struct pollfd polled = {out->fd, wanted, 0};
        CHECK(poll(&polled, 1, -1) == 1);
        bool over = polled.revents & (POLLERR | POLLHUP);
        if (out->active && (over || polled.revents & POLLOUT))
            send_some(out);
        if (in->active && (over || polled.revents & POLLIN))
            receive_some(in);
    }
}

static void run_level(struct direction *out, struct direction *in)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    uint32_t armed = (out->active ? EPOLLOUT : 0) | (in->active ? EPOLLIN : 0);
    struct epoll_event event = {.events = armed};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, out->fd, &event) == 0);
    while (out->active || in->active) {
        uint32_t wanted = (out->active ? EPOLLOUT : 0) | (in->active ? EPOLLIN : 0);
        if (wanted != armed) {
            event.events = armed = wanted;
            CHECK(epoll_ctl(set, EPOLL_CTL_MOD, out->fd, &event) == 0);
        }
        CHECK(epoll_wait(set, &event, 1, -1) == 1);
        bool over = event.events & (EPOLLERR | EPOLLHUP);
        if (out->active && (over || event.events & EPOLLOUT))
            send_some(out);
        if (in->active && (over || event.events & EPOLLIN))
            receive_some(in);
    }
    close(set);
}

/* An event is reported once, so each direction goes on until its call would block. */
static void run_edge(struct direction *out, struct direction *in)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
    bool can_send = true, can_receive = true;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, out->fd, &event) == 0);
    while (out->active || in->active) {
        if (out->active && can_send)
            can_send = send_some(out) != FULL;
        if (in->active && can_receive)
            can_receive = receive_some(in) != FULL;
        if ((out->active && can_send) || (in->active && can_receive) || !(out->active || in->active))
            continue;
        CHECK(epoll_wait(set, &event, 1, -1) == 1);
        bool over = event.events & (EPOLLERR | EPOLLHUP);
        can_send |= over || event.events & EPOLLOUT;
        can_receive |= over || event.events & (EPOLLIN | EPOLLRDHUP);
    }
    close(set);
}

static void report(const char *what, const struct direction *own)
{
    printf("%s %llu %016llx %s\n", what, (unsigned long long)own->hash.count,
           (unsigned long long)hash_end(&own->hash), own->result);
}

static void transfer(int fd, unsigned end)
{
    bool sends = duplex || end == 0;
    /* A program that only sends waits for the other's end, as one that only receives does. */
    struct direction out = direction(fd, sends, end, 2 * end), in = direction(fd, true, 1 - end, 2 * end + 1);
    set_nonblocking(fd, mode != BLOCKING);
    switch (mode) {
    case BLOCKING: run_blocking(&out, &in); break;
    case POLL: run_poll(&out, &in); break;
    case LEVEL: run_level(&out, &in); break;
    case EDGE: run_edge(&out, &in); break;
    }
    if (sends)
        report("sent", &out);
    report("received", &in);
    close(fd);
}

static void read_options(char **words)
{
    for (; *words; words++) {
        if (strcmp(*words, "--duplex") == 0) {
            duplex = true;
            continue;
        }
        const char *option = *words++;
        if (!*words)
            FAIL("%s has no value", option);
        if (strcmp(option, "--bytes") == 0)
            bytes_each = strtoull(*words, NULL, 0);
        else if (strcmp(option, "--seed") == 0)
            seed = strtoull(*words, NULL, 0);
        else if (strcmp(option, "--tick") == 0)
            tick = strtoull(*words, NULL, 0);
        else if (strcmp(option, "--mode") == 0)
            mode = mode_of(*words);
        else
            FAIL("no option %s", option);
    }
}

int main(int count, char **words)
{
    begin();
    if (count >= 3 && strcmp(words[1], "server") == 0) {
        read_options(words + 3);
        int listener = listening(words[2], 1);
        transfer(accepted(listener), 1);
    } else if (count >= 4 && strcmp(words[1], "client") == 0) {
        read_options(words + 4);
        transfer(connected(words[2], atoi(words[3])), 0);
    } else {
        FAIL("usage: transfer server ADDRESS | client ADDRESS PORT [OPTIONS]");
    }
    return 0;
}
