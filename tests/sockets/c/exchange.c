/* Requests of 64 bytes and their replies, over many connections: each is checked for its sequence and contents.
 *
 *   exchange server ADDRESS [OPTIONS]         prints `port N`; serves the connections until all have ended
 *   exchange client ADDRESS PORT [OPTIONS]
 *
 *   --connections C  (50)    --rounds N  of each connection (1000)
 *   --mode M     the server: one epoll set or array of poll for all, or a thread for each connection (blocking);
 *                the client: one request under way on each connection; blocking: connections take turns
 *   --tick N     prints `at COUNT` after every N replies
 *   --late L     a server with an epoll set accepts the last L connections in that set
 *
 * The last line is `connections C rounds TOTAL`. A wrong message ends the program with exit code 1.
 */
#include "sockets.h"

enum { MESSAGE = 64, CONNECTIONS_MAX = 4096, EVENTS = 64 };

static unsigned connections = 50, late;
static int listener = -1;
static uint64_t rounds = 1000, tick, total;
static enum mode mode = LEVEL;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct message {
    uint32_t connection, kind;
    uint64_t sequence;
    uint8_t contents[MESSAGE - 16];
};

enum { REQUEST = 1, REPLY = 2 };

/* One end of a connection. A message may come and go in parts. */
struct connection {
    int fd;
    bool open, is_client;
    uint32_t number; /* the client's; the server learns it from the first request */
    uint64_t sequence;
    struct message in, out;
    size_t received, sent, to_send;
};

static struct connection all[CONNECTIONS_MAX];

static void make(struct message *message, uint32_t connection, uint32_t kind, uint64_t sequence)
{
    message->connection = connection, message->kind = kind, message->sequence = sequence;
    fill(mixed(connection, kind), sequence * MESSAGE, message->contents, sizeof message->contents);
}

static void verify(const struct connection *own, uint32_t kind)
{
    struct message expected;
    make(&expected, own->number, kind, own->sequence);
    if (memcmp(&own->in, &expected, MESSAGE) != 0)
        FAIL("connection %u: kind %u of connection %u, sequence %llu in place of %llu", own->number, own->in.kind,
             own->in.connection, (unsigned long long)own->in.sequence, (unsigned long long)own->sequence);
}

static void count_one(void)
{
    pthread_mutex_lock(&lock);
    total++;
    if (tick && total % tick == 0)
        printf("at %llu\n", (unsigned long long)total);
    pthread_mutex_unlock(&lock);
}

static void stage(struct connection *own, uint32_t kind)
{
    make(&own->out, own->number, kind, own->sequence);
    own->sent = 0, own->to_send = MESSAGE;
}

/* A whole message has come: the server replies, the client sends its next request. False after the last reply. */
static bool answer(struct connection *own)
{
    own->received = 0;
    if (!own->is_client && own->sequence == 0)
        own->number = own->in.connection;
    verify(own, own->is_client ? REPLY : REQUEST);
    if (!own->is_client)
        stage(own, REPLY);
    own->sequence++;
    count_one();
    if (own->is_client && own->sequence < rounds)
        stage(own, REQUEST);
    return !own->is_client || own->sequence < rounds;
}

/* Sends and receives until a call would block; in blocking mode, until one message has come. False at the end. */
static bool advance(struct connection *own)
{
    for (;;) {
        while (own->to_send > own->sent) {
            ssize_t sent = write(own->fd, (uint8_t *)&own->out + own->sent, own->to_send - own->sent);
            if (sent < 0 && errno == EAGAIN)
                return true;
            if (sent <= 0)
                FAIL("connection %u: write = %zd", own->number, sent);
            own->sent += (size_t)sent;
        }
        ssize_t got = read(own->fd, (uint8_t *)&own->in + own->received, MESSAGE - own->received);
        if (got < 0 && errno == EAGAIN)
            return true;
        if (got == 0 && own->received == 0 && !own->is_client)
            return false;
        if (got <= 0)
            FAIL("connection %u: read = %zd in round %llu", own->number, got, (unsigned long long)own->sequence);
        own->received += (size_t)got;
        if (own->received == MESSAGE) {
            if (!answer(own))
                return false;
            if (mode == BLOCKING && own->is_client)
                return true;
        }
    }
}

static void ended(struct connection *own)
{
    close(own->fd);
    own->open = false;
}

static unsigned open_connections(void)
{
    unsigned count = 0;
    for (unsigned at = 0; at < connections; at++)
        count += all[at].open;
    return count;
}

static void *serve_blocking(void *own)
{
    while (advance(own))
        continue;
    ended(own);
    return NULL;
}

/* All connections by threads (server) or in turns (client). */
static void run_blocking(bool is_client)
{
    pthread_t threads[CONNECTIONS_MAX];
    for (uint64_t round = 0; is_client && round < rounds; round++)
        for (unsigned at = 0; at < connections; at++)
            if (!advance(&all[at]))
                ended(&all[at]);
    if (is_client)
        return;
    for (unsigned at = 0; at < connections; at++)
        CHECK(pthread_create(&threads[at], NULL, serve_blocking, &all[at]) == 0);
    for (unsigned at = 0; at < connections; at++)
        CHECK(pthread_join(threads[at], NULL) == 0);
}

static void run_poll(void)
{
    static struct pollfd polled[CONNECTIONS_MAX];
    for (unsigned left = open_connections(); left > 0;) {
        for (unsigned at = 0; at < connections; at++) {
            short out = all[at].to_send > all[at].sent ? POLLOUT : 0;
            polled[at] = (struct pollfd){all[at].open ? all[at].fd : -1, (short)(POLLIN | out), 0};
        }
        CHECK(poll(polled, connections, -1) > 0);
        for (unsigned at = 0; at < connections; at++)
            if (polled[at].revents && !advance(&all[at]))
                ended(&all[at]), left--;
    }
}

static void begin_one(unsigned at, bool is_client)
{
    int one = 1;
    CHECK(setsockopt(all[at].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    all[at].open = true, all[at].is_client = is_client, all[at].number = at;
    if (is_client)
        stage(&all[at], REQUEST);
    set_nonblocking(all[at].fd, mode != BLOCKING);
}

static void run_epoll(void)
{
    struct epoll_event events[EVENTS];
    int set = epoll_create1(EPOLL_CLOEXEC);
    uint32_t edge = mode == EDGE ? EPOLLET | EPOLLOUT : 0;
    for (unsigned at = 0; at < connections; at++) {
        struct epoll_event event = {.events = EPOLLIN | edge, .data.u32 = at};
        CHECK(!all[at].open || epoll_ctl(set, EPOLL_CTL_ADD, all[at].fd, &event) == 0);
    }
    struct epoll_event accepts = {.events = EPOLLIN, .data.u32 = CONNECTIONS_MAX};
    CHECK(late == 0 || epoll_ctl(set, EPOLL_CTL_ADD, listener, &accepts) == 0);
    for (unsigned left = open_connections(); left > 0 || late > 0;) {
        int ready = epoll_wait(set, events, EVENTS, -1);
        CHECK(ready > 0);
        for (int event = 0; event < ready; event++) {
            if (events[event].data.u32 == CONNECTIONS_MAX) {
                unsigned at = connections - late--;
                all[at].fd = accepted(listener), left++;
                begin_one(at, false);
                struct epoll_event added = {.events = EPOLLIN | edge, .data.u32 = at};
                CHECK(epoll_ctl(set, EPOLL_CTL_ADD, all[at].fd, &added) == 0);
                CHECK(late > 0 || epoll_ctl(set, EPOLL_CTL_DEL, listener, NULL) == 0);
                continue;
            }
            struct connection *own = &all[events[event].data.u32];
            if (!advance(own)) {
                ended(own), left--;
                continue;
            }
            /* 64 bytes always fit into the buffer of a socket whose peer waits for them. */
            CHECK(own->to_send == own->sent);
        }
    }
    close(set);
}

static void run(bool is_client)
{
    for (unsigned at = 0; at < connections - late; at++)
        begin_one(at, is_client);
    /* The first requests. A connection may go through all its rounds without a wait. */
    for (unsigned at = 0; is_client && mode != BLOCKING && at < connections; at++)
        if (!advance(&all[at]))
            ended(&all[at]);
    switch (mode) {
    case BLOCKING: run_blocking(is_client); break;
    case POLL: run_poll(); break;
    default: run_epoll(); break;
    }
    printf("connections %u rounds %llu\n", connections, (unsigned long long)total);
}

static void read_options(char **words)
{
    for (; *words; words++) {
        const char *option = *words++;
        if (!*words)
            FAIL("%s has no value", option);
        if (strcmp(option, "--connections") == 0)
            connections = (unsigned)strtoul(*words, NULL, 0);
        else if (strcmp(option, "--rounds") == 0)
            rounds = strtoull(*words, NULL, 0);
        else if (strcmp(option, "--tick") == 0)
            tick = strtoull(*words, NULL, 0);
        else if (strcmp(option, "--late") == 0)
            late = (unsigned)strtoul(*words, NULL, 0);
        else if (strcmp(option, "--mode") == 0)
            mode = mode_of(*words);
        else
            FAIL("no option %s", option);
    }
    CHECK(connections <= CONNECTIONS_MAX && late <= connections);
}

int main(int count, char **words)
{
    begin();
    if (count >= 3 && strcmp(words[1], "server") == 0) {
        read_options(words + 3);
        listener = listening(words[2], CONNECTIONS_MAX);
        for (unsigned at = 0; at < connections - late; at++)
            all[at].fd = accepted(listener);
        run(false);
    } else if (count >= 4 && strcmp(words[1], "client") == 0) {
        read_options(words + 4);
        for (unsigned at = 0; at < connections; at++)
            all[at].fd = connected(words[2], atoi(words[3]));
        run(true);
    } else {
        FAIL("usage: exchange server ADDRESS | client ADDRESS PORT [OPTIONS]");
    }
    return 0;
}
