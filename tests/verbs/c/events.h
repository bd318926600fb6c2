// Cases of completion channels: threads that sleep in ibv_get_cq_event(), in ways that stock programs do not.
#pragma once

#include "verbs.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <sys/syscall.h>

// Gives an end a channel for its received messages.
static struct ibv_comp_channel *add_channel(struct end *end) {
    struct ibv_comp_channel *channel = ibv_create_comp_channel(end->context);
    must(channel, "%s", strerror(errno));
    must(!ibv_destroy_cq(end->received.cq));
    end->received.cq = ibv_create_cq(end->context, KEPT, NULL, channel, 0);
    must(end->received.cq && !ibv_req_notify_cq(end->received.cq, 0));
    return channel;
}

static void open_with_channel(struct ibv_comp_channel **channel) {
    static const struct options options = {.kind = IBV_QPT_RC, .rnr_retry = 7, .retry = 7};
    open_end(&a);
    open_end(&b);
    *channel = add_channel(&b);
    connect_both(&options);
}

static void close_with_channel(struct ibv_comp_channel *channel) {
    close_both();
    must(!ibv_destroy_comp_channel(channel));
}

// Sleeps until there is an event of a queue, and asks for the next one.
static void sleep_for(struct ibv_comp_channel *channel, struct ibv_cq *expected) {
    struct ibv_cq *cq = NULL;
    void *context;
    must(!ibv_get_cq_event(channel, &cq, &context), "%s", strerror(errno));
    must(cq == expected, "an event of another queue");
    ibv_ack_cq_events(cq, 1);
    must(!ibv_req_notify_cq(cq, 0));
}

static void take_one(struct ibv_cq *cq, uint64_t id) {
    struct ibv_wc found;
    must(ibv_poll_cq(cq, 1, &found) == 1 && found.status == IBV_WC_SUCCESS && found.wr_id == id, "no message after an event");
}

// Waits for a send request of `a` without a call on `b`.
static void finish_send(uint64_t id) {
    while (!a.sent.count) poll_queue(&a.sent);
    struct ibv_wc found = a.sent.kept[a.sent.first];
    a.sent.first = (a.sent.first + 1) % KEPT, a.sent.count--;
    must(found.wr_id == id && found.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(found.status));
}

static pthread_t start(void *(*run)(void *), void *argument) {
    pthread_t thread;
    must(!pthread_create(&thread, NULL, run, argument));
    return thread;
}

static void *join(pthread_t thread) {
    void *result;
    must(!pthread_join(thread, &result));
    return result;
}

enum { EVENTS = 200 };

// A thread that receives messages by events.
struct receiver {
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    atomic_uint received, allowed;
};

static void *receive_by_events(void *argument) {
    struct receiver *own = argument;
    for (unsigned id = 0; id < EVENTS; id++) {
        sleep_for(own->channel, own->cq);
        take_one(own->cq, id);
        atomic_store(&own->received, id + 1);
        while (atomic_load(&own->allowed) <= id) {} // It computes, and makes no call.
    }
    return NULL;
}

// A thread that has its event computes: the peer still reaches memory that only the owner's process can reach.
static void computes_after_an_event(void) {
    struct ibv_comp_channel *channel;
    open_with_channel(&channel);
    const int rights = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE;
    struct ibv_qp_attr attr = {.qp_access_flags = rights};
    must(!ibv_modify_qp(b.qp, &attr, IBV_QP_ACCESS_FLAGS));
    unsigned char *memory = malloc(2000);
    struct ibv_mr *target = ibv_reg_mr(b.pd, memory + 1, 1000, rights);
    must(target);
    struct receiver receiver = {.channel = channel, .cq = b.received.cq};
    for (unsigned id = 0; id < DEPTH; id++) post_receive(&b, id, MEMORY / 2, 100);
    pthread_t thread = start(receive_by_events, &receiver);
    for (unsigned id = 0; id < EVENTS; id++) {
        post_send(&a, id, 0, 100);
        finish_send(id);
        while (atomic_load(&receiver.received) <= id) poll_queue(&a.sent);
        if (id % 8 == 0) {
            memset(a.memory, (int)id, 1000);
            struct ibv_sge list = range(&a, 0, 1000);
            struct ibv_send_wr *bad, request = {.wr_id = id, .sg_list = &list, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
                .wr.rdma = {.remote_addr = (uintptr_t)memory + 1, .rkey = target->rkey}};
            must(!ibv_post_send(a.qp, &request, &bad));
            finish_send(id);
            must(!memcmp(memory + 1, a.memory, 1000));
        }
        if (id + DEPTH < EVENTS) post_receive(&b, id + DEPTH, MEMORY / 2, 100);
        atomic_store(&receiver.allowed, id + 1);
    }
    join(thread);
    must(!ibv_dereg_mr(target));
    free(memory);
    close_with_channel(channel);
}

// Two threads of one device sleep on channels of their own. The order of the messages changes.
static void two_channels(void) {
    static const struct options options = {.kind = IBV_QPT_RC, .rnr_retry = 7, .retry = 7};
    struct receiver receivers[2] = {{0}, {0}};
    struct ibv_qp *from[2], *to[2];
    open_end(&a);
    open_end(&b);
    must(!ibv_destroy_cq(b.received.cq));
    for (int at = 0; at < 2; at++) {
        receivers[at].channel = ibv_create_comp_channel(b.context);
        must(receivers[at].channel);
        b.received.cq = ibv_create_cq(b.context, KEPT, NULL, receivers[at].channel, 0);
        receivers[at].cq = b.received.cq;
        atomic_init(&receivers[at].allowed, EVENTS);
        must(!ibv_req_notify_cq(b.received.cq, 0));
        from[at] = make_qp(&a, &options);
        b.qp = to[at] = make_qp(&b, &options);
        connect_qp(&a, from[at], to[at]->qp_num, &options);
        connect_qp(&b, to[at], from[at]->qp_num, &options);
        for (unsigned id = 0; id < DEPTH; id++) post_receive(&b, id, MEMORY / 2, 100);
    }
    pthread_t threads[2] = {start(receive_by_events, &receivers[0]), start(receive_by_events, &receivers[1])};
    for (unsigned count = 0, sent[2] = {0}; count < 2 * EVENTS; count++) {
        int at = sent[0] == EVENTS || (sent[1] < EVENTS && (count / 7 + count / 50) % 2);
        struct ibv_sge sge = range(&a, 0, 100);
        must(!post_list(from[at], count, &sge, 1, 0));
        sent[at]++;
        while (atomic_load(&receivers[at].received) < sent[at]) poll_queue(&a.sent);
        b.qp = to[at];
        if (sent[at] + DEPTH <= EVENTS) post_receive(&b, sent[at] + DEPTH - 1, MEMORY / 2, 100);
        finish_send(count);
    }
    for (int at = 0; at < 2; at++) {
        join(threads[at]);
        must(!ibv_destroy_qp(from[at]) && !ibv_destroy_qp(to[at]));
        if (at == 0) must(!ibv_destroy_cq(receivers[0].cq));
    }
    a.qp = b.qp = NULL;
    b.received.cq = receivers[1].cq;
    close_both();
    must(!ibv_destroy_comp_channel(receivers[0].channel) && !ibv_destroy_comp_channel(receivers[1].channel));
}

static atomic_uint handled;

static void count_signal(int signal) {
    (void)signal;
    atomic_fetch_add(&handled, 1);
}

static void handle(int signal, void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    must(!sigaction(signal, &action, NULL));
}

struct sleeper {
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    int error;
    atomic_int thread;
    atomic_bool done;
};

static void *sleep_once(void *argument) {
    struct sleeper *own = argument;
    void *context;
    atomic_store(&own->thread, gettid());
    own->error = ibv_get_cq_event(own->channel, &own->cq, &context) ? errno : 0;
    if (!own->error) ibv_ack_cq_events(own->cq, 1);
    atomic_store(&own->done, true);
    return NULL;
}

static pthread_t start_sleeper(struct sleeper *sleeper, struct ibv_comp_channel *channel, void *(*run)(void *)) {
    memset(sleeper, 0, sizeof *sleeper);
    sleeper->channel = channel;
    pthread_t thread = start(run, sleeper);
    while (!atomic_load(&sleeper->thread)) {}
    return thread;
}

// Waits until a thread sleeps on descriptors: in the call of the kernel for one of them or for several.
static void wait_until_asleep(struct sleeper *sleeper) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", atomic_load(&sleeper->thread));
    for (bool asleep = false; !asleep && !atomic_load(&sleeper->done);) {
        FILE *file = fopen(path, "r");
        if (!file) continue; // The thread has ended.
        long call, fd; // Otherwise it is "running".
        int found = fscanf(file, "%ld %li", &call, &fd);
        asleep = found == 2 && (call == SYS_ppoll || (call == SYS_read && fd == sleeper->channel->fd));
        fclose(file);
    }
}

// A message gets through to a thread that begins to sleep, and to one that polls afterwards.
static void message_arrives(struct ibv_comp_channel *channel, unsigned id) {
    struct sleeper sleeper;
    pthread_t thread = start_sleeper(&sleeper, channel, sleep_once);
    post_receive(&b, id, MEMORY / 2, 100);
    post_send(&a, id, 0, 100);
    finish_send(id);
    join(thread);
    must(!sleeper.error && sleeper.cq == b.received.cq, "%s", strerror(sleeper.error));
    must(!ibv_req_notify_cq(b.received.cq, 0));
    take_one(b.received.cq, id);
}

// Sends the message for which a thread sleeps, and takes its completion when the thread has ended.
static void end_by_a_message(unsigned round, pthread_t thread, const struct sleeper *sleeper) {
    post_receive(&b, round, MEMORY / 2, 100);
    post_send(&a, round, 0, 100);
    finish_send(round);
    join(thread);
    must(!sleeper->error);
    must(!ibv_req_notify_cq(b.received.cq, 0));
    take_one(b.received.cq, round);
}

// Signals of both kinds while a thread sleeps. The read of libibverbs does what is expected here.
static void signals_while_asleep(void) {
    struct ibv_comp_channel *channel;
    struct sleeper sleeper;
    open_with_channel(&channel);
    message_arrives(channel, 0);
    for (unsigned round = 1; round <= 20; round++) {
        handle(SIGUSR1, count_signal, SA_RESTART);
        pthread_t thread = start_sleeper(&sleeper, channel, sleep_once);
        for (unsigned count = atomic_load(&handled), sent = 0; sent < 20; sent++) {
            must(!pthread_kill(thread, SIGUSR1));
            while (atomic_load(&handled) <= count + sent) {}
        }
        must(!atomic_load(&sleeper.done), "interrupted in spite of SA_RESTART: %s", strerror(sleeper.error));
        end_by_a_message(round, thread, &sleeper);

        handle(SIGUSR1, count_signal, 0);
        thread = start_sleeper(&sleeper, channel, sleep_once);
        while (!atomic_load(&sleeper.done)) { // A signal may come while the thread is awake.
            wait_until_asleep(&sleeper);
            pthread_kill(thread, SIGUSR1);
        }
        join(thread);
        must(sleeper.error == EINTR, "%s", strerror(sleeper.error));
    }
    message_arrives(channel, 99);
    close_with_channel(channel);
}

// Threads that are cancelled while they sleep: one that serves, and one that sleeps beside it. The device is served all the same.
static void cancelled_while_asleep(void) {
    struct ibv_comp_channel *channel;
    struct sleeper sleepers[2];
    open_with_channel(&channel);
    for (unsigned round = 0; round < 40; round++) {
        pthread_t threads[2];
        unsigned count = 1 + round % 2;
        for (unsigned at = 0; at < count; at++) threads[at] = start_sleeper(&sleepers[at], channel, sleep_once);
        for (unsigned at = 0; at < count; at++) {
            must(!pthread_cancel(threads[at]));
            must(join(threads[at]) == PTHREAD_CANCELED, "not cancelled");
        }
        post_receive(&b, round, MEMORY / 2, 100);
        post_send(&a, round, 0, 100);
        finish_send(round); // Without a call of b.
        sleep_for(channel, b.received.cq);
        take_one(b.received.cq, round);
    }
    close_with_channel(channel);
}

static sigjmp_buf before_sleep;

static void jump(int signal) {
    count_signal(signal);
    siglongjmp(before_sleep, 1);
}

static void *sleep_jump_and_sleep(void *argument) {
    struct sleeper *own = argument;
    sigsetjmp(before_sleep, 1);
    return sleep_once(own);
}

// A handler leaves the sleep by a jump, and the thread sleeps again.
static void jump_out_of_the_sleep(void) {
    struct ibv_comp_channel *channel;
    struct sleeper sleeper;
    open_with_channel(&channel);
    handle(SIGUSR1, jump, 0);
    for (unsigned round = 0; round < 20; round++) {
        pthread_t thread = start_sleeper(&sleeper, channel, sleep_jump_and_sleep);
        wait_until_asleep(&sleeper);
        must(!pthread_kill(thread, SIGUSR1));
        while (atomic_load(&handled) <= round) {}
        end_by_a_message(round, thread, &sleeper);
    }
    close_with_channel(channel);
}

// A channel that does not block, and a program that polls the descriptor.
static void channel_that_does_not_block(void) {
    struct ibv_comp_channel *channel;
    open_with_channel(&channel);
    must(!fcntl(channel->fd, F_SETFL, O_NONBLOCK));
    for (unsigned round = 0; round < 20; round++) {
        struct ibv_cq *cq;
        void *context;
        must(ibv_get_cq_event(channel, &cq, &context) == -1 && errno == EAGAIN, "%s", strerror(errno));
        post_receive(&b, round, MEMORY / 2, 100);
        post_send(&a, round, 0, 100);
        struct pollfd ready = {.fd = channel->fd, .events = POLLIN};
        must(poll(&ready, 1, -1) == 1 && ready.revents == POLLIN);
        sleep_for(channel, b.received.cq);
        take_one(b.received.cq, round);
        finish_send(round);
    }
    must(!fcntl(channel->fd, F_SETFL, 0));
    message_arrives(channel, 99);
    close_with_channel(channel);
}

static int count_descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    must(folder, "%s", strerror(errno));
    int count = 0;
    while (readdir(folder)) count++;
    must(!closedir(folder));
    return count;
}

// A destroyed channel leaves no descriptor behind, also where other files get the numbers of the program's ends. One that a queue uses stays.
static void channels_come_and_go(void) {
    struct ibv_comp_channel *channel;
    open_with_channel(&channel);
    const int before = count_descriptors();
    for (int round = 0; round < 100; round++) {
        struct ibv_comp_channel *other = ibv_create_comp_channel(b.context);
        must(other, "%s", strerror(errno));
        must(ibv_destroy_comp_channel(channel) == EBUSY, "the channel has a queue");
        must(!ibv_destroy_comp_channel(other));
        const int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
        must(file >= 0 && !close(file));
    }
    // The two devices may have got a channel of their own meanwhile.
    must(count_descriptors() < before + 50, "%d descriptors, %d before", count_descriptors(), before);
    message_arrives(channel, 1);
    close_with_channel(channel);
}
