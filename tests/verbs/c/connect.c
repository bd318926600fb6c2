// Uses of librdmacm that its examples do not have, each within one machine: both ends, and sometimes both processes, are here.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define must(condition) ((condition) ? (void)0 : failed(#condition, __LINE__))

static const char *running;

static void failed(const char *condition, int line) {
    printf("%s: line %d: %s: %s\n", running, line, condition, strerror(errno));
    fflush(stdout);
    _exit(1);
}

static struct sockaddr_in loopback(int port) {
    return (struct sockaddr_in){AF_INET, htons(port), {htonl(INADDR_LOOPBACK)}, {0}};
}

static struct rdma_event_channel *channel(void) {
    struct rdma_event_channel *made = rdma_create_event_channel();
    must(made);
    return made;
}

static struct rdma_cm_id *identifier(struct rdma_event_channel *on, enum rdma_port_space space) {
    struct rdma_cm_id *id;
    must(!rdma_create_id(on, &id, NULL, space));
    return id;
}

// Waits for an event of this type, and acknowledges it. Returns the identifier. The status goes to `status`, private data to `data`.
static struct rdma_cm_id *expect_all(struct rdma_event_channel *on, enum rdma_cm_event_type type, int *status, char *data) {
    struct rdma_cm_event *event;
    must(!rdma_get_cm_event(on, &event));
    if (event->event != type)
        printf("%s: %s in place of %s, status %d\n", running, rdma_event_str(event->event), rdma_event_str(type), event->status);
    must(event->event == type);
    if (status)
        *status = event->status;
    else
        must(event->status == 0);
    if (data)
        memcpy(data, event->param.conn.private_data, event->param.conn.private_data_len);
    struct rdma_cm_id *id = event->id;
    must(!rdma_ack_cm_event(event));
    return id;
}

static struct rdma_cm_id *expect(struct rdma_event_channel *on, enum rdma_cm_event_type type) {
    return expect_all(on, type, NULL, NULL);
}

static struct rdma_cm_id *listener(struct rdma_event_channel *on, int *port) {
    struct rdma_cm_id *id = identifier(on, RDMA_PS_TCP);
    struct sockaddr_in address = loopback(0);
    must(!rdma_bind_addr(id, (struct sockaddr *)&address));
    *port = ntohs(rdma_get_src_port(id));
    must(*port != 0 && id->verbs);
    must(!rdma_listen(id, 100));
    return id;
}

static struct rdma_cm_id *resolved(struct rdma_event_channel *on, int port) {
    struct rdma_cm_id *id = identifier(on, RDMA_PS_TCP);
    struct sockaddr_in address = loopback(port);
    must(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000));
    must(expect(on, RDMA_CM_EVENT_ADDR_RESOLVED) == id);
    must(!rdma_resolve_route(id, 1000));
    must(expect(on, RDMA_CM_EVENT_ROUTE_RESOLVED) == id);
    return id;
}

static void make_qp(struct rdma_cm_id *id) {
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
    must(!rdma_create_qp(id, NULL, &init));
}

static struct rdma_conn_param data(const char *text) {
    return (struct rdma_conn_param){.private_data = text, .private_data_len = strlen(text) + 1, .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
}

// Connects two channels. The identifiers go to `active` and `passive`.
static void connect_to(int port, struct rdma_event_channel *server, struct rdma_event_channel *client, struct rdma_cm_id **active, struct rdma_cm_id **passive) {
    char text[64];
    struct rdma_conn_param ask = data("ask"), yes = data("yes");
    *active = resolved(client, port);
    make_qp(*active);
    must(!rdma_connect(*active, &ask));
    *passive = expect_all(server, RDMA_CM_EVENT_CONNECT_REQUEST, NULL, text);
    must(!strcmp(text, "ask"));
    make_qp(*passive);
    must(!rdma_accept(*passive, &yes));
    must(expect_all(client, RDMA_CM_EVENT_ESTABLISHED, NULL, text) == *active && !strcmp(text, "yes"));
    must(expect(server, RDMA_CM_EVENT_ESTABLISHED) == *passive);
}

static void destroy(struct rdma_cm_id *id) {
    if (id->qp)
        rdma_destroy_qp(id);
    must(!rdma_destroy_id(id));
}

static void a_channel_is_watched_before_its_first_command(void) {
    struct rdma_event_channel *on = channel();
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);
    must(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, on->fd, &event));
    must(epoll_wait(set, &event, 1, 0) == 0);
    must(!fcntl(on->fd, F_SETFL, O_NONBLOCK));
    struct rdma_cm_event *got;
    must(rdma_get_cm_event(on, &got) < 0 && errno == EAGAIN);
    struct rdma_cm_id *id = identifier(on, RDMA_PS_TCP);
    struct sockaddr_in address = loopback(1);
    must(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 1000));
    must(epoll_wait(set, &event, 1, -1) == 1);
    expect(on, RDMA_CM_EVENT_ADDR_RESOLVED);
    must(epoll_wait(set, &event, 1, 0) == 0);
    destroy(id);
    close(set);
    rdma_destroy_event_channel(on);
}

static void a_descriptor_of_a_closed_channel_is_a_file(void) {
    for (int commands = 0; commands < 2; commands++) {
        struct rdma_event_channel *on = channel();
        int fd = on->fd;
        if (commands)
            destroy(identifier(on, RDMA_PS_TCP));
        rdma_destroy_event_channel(on);
        int file = memfd_create("bytes", 0);
        must(file >= 0 && (file == fd || dup2(file, fd) == fd));
        // A thread of librdmacm that is late, and then the program.
        const unsigned char ask[16] = {12, 0, 0, 0, 8};
        must(write(fd, ask, sizeof ask) < 0 && errno == EBADF);
        must(write(fd, "bytes", 5) == 5);
        char read_back[6] = "";
        must(pread(fd, read_back, 5, 0) == 5 && !strcmp(read_back, "bytes"));
        close(fd);
        if (file != fd)
            close(file);
    }
}

static void ports_and_addresses_are_those_of_the_program(void) {
    struct rdma_event_channel *on = channel();
    int port;
    struct rdma_cm_id *first = listener(on, &port), *second = identifier(on, RDMA_PS_TCP);
    struct sockaddr_in address = loopback(port), foreign = {AF_INET, 0, {htonl(0x08080808)}, {0}};
    must(rdma_bind_addr(second, (struct sockaddr *)&address) < 0 && errno == EADDRINUSE);
    must(rdma_bind_addr(second, (struct sockaddr *)&foreign) < 0 && errno == EADDRNOTAVAIL);
    destroy(first);
    must(!rdma_bind_addr(second, (struct sockaddr *)&address));
    must(rdma_bind_addr(second, (struct sockaddr *)&address) < 0 && errno == EINVAL);
    // The port of TCP with this number is free.
    int tcp = socket(AF_INET, SOCK_STREAM, 0);
    must(!bind(tcp, (struct sockaddr *)&address, sizeof address));
    close(tcp);
    destroy(second);
    // The space UDP takes its port when it listens.
    struct rdma_cm_id *of_udp = identifier(on, RDMA_PS_UDP);
    must(!rdma_bind_addr(of_udp, (struct sockaddr *)&address));
    must(ntohs(rdma_get_src_port(of_udp)) == port);
    int udp = socket(AF_INET, SOCK_DGRAM, 0);
    must(!bind(udp, (struct sockaddr *)&address, sizeof address));
    must(rdma_listen(of_udp, 1) < 0 && errno == EADDRINUSE);
    close(udp);
    must(!rdma_listen(of_udp, 1));
    destroy(of_udp);
    rdma_destroy_event_channel(on);
}

static void a_rejection_brings_its_data(void) {
    struct rdma_event_channel *server = channel(), *client = channel();
    int port, status;
    char text[64];
    struct rdma_cm_id *listens = listener(server, &port);
    struct rdma_conn_param ask = data("ask");
    for (int by_reject = 0; by_reject < 2; by_reject++) {
        struct rdma_cm_id *active = resolved(client, port);
        make_qp(active);
        must(!rdma_connect(active, &ask));
        struct rdma_cm_id *passive = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
        if (by_reject)
            must(!rdma_reject(passive, "no", 3));
        destroy(passive);
        must(expect_all(client, RDMA_CM_EVENT_REJECTED, &status, text) == active && status == 28);
        must(!by_reject || !strcmp(text, "no"));
        destroy(active);
    }
    destroy(listens);
    rdma_destroy_event_channel(server);
    rdma_destroy_event_channel(client);
}

static void an_identifier_moves_between_channels(void) {
    struct rdma_event_channel *server = channel(), *client = channel(), *other = channel();
    struct rdma_cm_id *active, *passive;
    int port;
    struct rdma_cm_id *listens = listener(server, &port);
    connect_to(port, server, client, &active, &passive);
    must(!rdma_migrate_id(active, other));
    must(!rdma_disconnect(passive));
    must(expect(other, RDMA_CM_EVENT_DISCONNECTED) == active);
    must(expect(server, RDMA_CM_EVENT_DISCONNECTED) == passive);
    destroy(active);
    destroy(passive);
    destroy(listens);
    rdma_destroy_event_channel(other);
    rdma_destroy_event_channel(server);
    rdma_destroy_event_channel(client);
}

static void handler(int signal) {
    (void)signal;
}

static void signals_end_the_wait_for_an_event(void) {
    struct rdma_event_channel *on = channel();
    struct rdma_cm_event *event;
    struct sigaction plain = {.sa_handler = handler}, before;
    must(!sigaction(SIGALRM, &plain, &before));
    destroy(identifier(on, RDMA_PS_TCP));
    struct itimerval soon = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    must(!setitimer(ITIMER_REAL, &soon, NULL));
    must(rdma_get_cm_event(on, &event) < 0 && errno == EINTR);
    must(!setitimer(ITIMER_REAL, &never, NULL) && !sigaction(SIGALRM, &before, NULL));
    rdma_destroy_event_channel(on);
}

static void *wait_for_ever(void *on) {
    struct rdma_cm_event *event;
    rdma_get_cm_event(on, &event);
    return NULL;
}

static void a_waiting_thread_is_cancelled(void) {
    struct rdma_event_channel *on = channel();
    pthread_t thread;
    void *result;
    must(!pthread_create(&thread, NULL, wait_for_ever, on));
    must(!pthread_cancel(thread) && !pthread_join(thread, &result) && result == PTHREAD_CANCELED);
    destroy(identifier(on, RDMA_PS_TCP)); // Nothing is locked.
    rdma_destroy_event_channel(on);
}

static volatile pid_t waiting_thread;

static void *wait_once(void *on) {
    struct rdma_cm_event *event;
    waiting_thread = gettid();
    rdma_get_cm_event(on, &event);
    return NULL;
}

// True if a thread sleeps in this system call.
static int sleeps_in(pid_t thread, long number) {
    char name[64], text[64] = "";
    snprintf(name, sizeof name, "/proc/self/task/%d/syscall", thread);
    int file = open(name, O_RDONLY);
    must(file >= 0 && read(file, text, sizeof text - 1) >= 0);
    close(file);
    return text[0] != 'r' && atol(text) == number;
}

static void a_channel_that_is_closed_under_a_waiting_thread_writes_no_file(void) {
    struct rdma_event_channel *server = channel(), *client = channel();
    int port;
    listener(server, &port);
    struct rdma_cm_id *active = resolved(client, port);
    make_qp(active);
    pthread_t thread;
    must(!pthread_create(&thread, NULL, wait_once, server));
    while (!waiting_thread || !sleeps_in(waiting_thread, SYS_recvfrom))
        sched_yield();
    int file = memfd_create("bytes", 0);
    must(file >= 0 && dup2(file, server->fd) == server->fd);
    struct rdma_conn_param ask = data("ask");
    must(!rdma_connect(active, &ask));
    // The identifiers went with the channel. The thread sleeps on, as in the kernel.
    expect_all(client, RDMA_CM_EVENT_REJECTED, &port, NULL);
    while (!sleeps_in(waiting_thread, SYS_recvfrom))
        sched_yield();
    void *result;
    must(!pthread_cancel(thread) && !pthread_join(thread, &result) && result == PTHREAD_CANCELED);
    must(lseek(file, 0, SEEK_END) == 0);
    close(file);
    destroy(active);
    rdma_destroy_event_channel(server);
    rdma_destroy_event_channel(client);
}

static void a_closed_channel_ends_its_connections(void) {
    struct rdma_event_channel *server = channel(), *client = channel();
    struct rdma_cm_id *active, *passive;
    int port;
    struct rdma_cm_id *listens = listener(server, &port);
    connect_to(port, server, client, &active, &passive);
    rdma_destroy_event_channel(client);
    must(expect(server, RDMA_CM_EVENT_DISCONNECTED) == passive);
    destroy(passive);
    destroy(listens);
    rdma_destroy_event_channel(server);
}

static void a_process_that_is_killed_is_disconnected(void) {
    int ready[2], port;
    must(!pipe(ready));
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        must(read(ready[0], &port, sizeof port) == sizeof port);
        struct rdma_event_channel *client = channel();
        struct rdma_conn_param ask = data("ask");
        struct rdma_cm_id *active = resolved(client, port);
        make_qp(active);
        must(!rdma_connect(active, &ask));
        expect(client, RDMA_CM_EVENT_ESTABLISHED);
        kill(getpid(), SIGKILL);
    }
    struct rdma_event_channel *server = channel();
    struct rdma_cm_id *listens = listener(server, &port);
    must(write(ready[1], &port, sizeof port) == sizeof port);
    struct rdma_conn_param yes = data("yes");
    struct rdma_cm_id *passive = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
    make_qp(passive);
    must(!rdma_accept(passive, &yes));
    must(expect(server, RDMA_CM_EVENT_ESTABLISHED) == passive);
    must(expect(server, RDMA_CM_EVENT_DISCONNECTED) == passive);
    must(waitpid(child, NULL, 0) == child);
    destroy(passive);
    destroy(listens);
    rdma_destroy_event_channel(server);
    close(ready[0]);
    close(ready[1]);
}

static void a_child_of_a_fork_begins_anew(void) {
    struct rdma_event_channel *server = channel();
    int port;
    struct rdma_cm_id *listens = listener(server, &port);
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        struct rdma_event_channel *own = channel();
        must(resolved(own, port));
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0) == child && status == 0);
    struct rdma_event_channel *client = channel();
    struct rdma_cm_id *active, *passive;
    connect_to(port, server, client, &active, &passive);
    destroy(active);
    expect(server, RDMA_CM_EVENT_DISCONNECTED);
    destroy(passive);
    destroy(listens);
    rdma_destroy_event_channel(server);
    rdma_destroy_event_channel(client);
}

static void other_bytes_at_the_port_change_nothing(void) {
    struct rdma_event_channel *server = channel(), *client = channel();
    struct rdma_cm_id *active, *passive;
    int port;
    struct rdma_cm_id *listens = listener(server, &port);
    struct sockaddr_in address = loopback(port);
    int udp = socket(AF_INET, SOCK_DGRAM, 0);
    must(!connect(udp, (struct sockaddr *)&address, sizeof address));
    const char *question = "ICQ1\0\0\0\0abcdefgh";
    for (int len = 0; len <= 16; len++)
        must(send(udp, "ICQ1ICA1ICM1GET / HTTP/1.1", len, 0) == len);
    must(send(udp, question, 16, 0) == 16);
    // One reply to the whole question, and one to the 16 bytes that look like it.
    unsigned char reply[64];
    do
        must(recv(udp, reply, sizeof reply, 0) == 16 && !memcmp(reply, "ICA1", 4));
    while (memcmp(reply + 8, "abcdefgh", 8));
    struct sockaddr_in streams = loopback(reply[6] << 8 | reply[7]);
    int garbage[300];
    for (int at = 0; at < 300; at++) {
        garbage[at] = socket(AF_INET, SOCK_STREAM, 0);
        must(!connect(garbage[at], (struct sockaddr *)&streams, sizeof streams));
        if (at % 3)
            send(garbage[at], at % 3 == 1 ? "ICM1" : "GET / HTTP/1.1\r\n\r\n", 4 * (at % 3), MSG_NOSIGNAL);
    }
    connect_to(port, server, client, &active, &passive);
    for (int at = 0; at < 300; at++)
        close(garbage[at]);
    close(udp);
    destroy(active);
    expect(server, RDMA_CM_EVENT_DISCONNECTED);
    destroy(passive);
    destroy(listens);
    rdma_destroy_event_channel(server);
    rdma_destroy_event_channel(client);
}

// In a process of its own, where no thread closes what an earlier case has used.
static void without_descriptors(void) {
    struct rdma_event_channel *server = channel(), *client = channel();
    struct rdma_cm_id *active, *passive;
    int port, taken[1024], count = 0;
    struct rdma_cm_id *listens = listener(server, &port);
    active = resolved(client, port);
    make_qp(active);
    struct rlimit before, few;
    must(!getrlimit(RLIMIT_NOFILE, &before));
    int next = dup(0);
    must(next >= 0 && !close(next));
    few = (struct rlimit){next + 1, before.rlim_max}; // One for the stream of the client, none for that of the server.
    must(!setrlimit(RLIMIT_NOFILE, &few));
    while (count < 1024 && (taken[count] = dup(0)) >= 0)
        count++;
    must(count > 0);
    close(taken[--count]);
    struct rdma_conn_param ask = data("ask"), yes = data("yes");
    must(!rdma_connect(active, &ask));
    struct pollfd ready = {server->fd, POLLIN, 0};
    must(poll(&ready, 1, 200) == 0);
    must(!setrlimit(RLIMIT_NOFILE, &before));
    passive = expect(server, RDMA_CM_EVENT_CONNECT_REQUEST);
    make_qp(passive);
    must(!rdma_accept(passive, &yes));
    expect(client, RDMA_CM_EVENT_ESTABLISHED);
    while (count > 0)
        close(taken[--count]);
    destroy(active);
    destroy(passive);
    destroy(listens);
    rdma_destroy_event_channel(server);
    rdma_destroy_event_channel(client);
}

static void a_listener_outlives_a_lack_of_descriptors(void) {
    int status;
    pid_t child = fork();
    must(child >= 0);
    if (child == 0) {
        without_descriptors();
        _exit(0);
    }
    must(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    static const struct {
        const char *name;
        void (*run)(void);
    } CASES[] = {
#define CASE(name) {#name, name}
        // First: the children are forked before there is anything.
        CASE(a_listener_outlives_a_lack_of_descriptors),
        CASE(a_process_that_is_killed_is_disconnected),
        CASE(a_channel_is_watched_before_its_first_command),
        CASE(a_descriptor_of_a_closed_channel_is_a_file),
        CASE(ports_and_addresses_are_those_of_the_program),
        CASE(a_rejection_brings_its_data),
        CASE(an_identifier_moves_between_channels),
        CASE(signals_end_the_wait_for_an_event),
        CASE(a_waiting_thread_is_cancelled),
        CASE(a_channel_that_is_closed_under_a_waiting_thread_writes_no_file),
        CASE(a_closed_channel_ends_its_connections),
        CASE(a_child_of_a_fork_begins_anew),
        CASE(other_bytes_at_the_port_change_nothing),
    };
    alarm(300); // Only a hang takes so long.
    for (size_t at = 0; at < sizeof CASES / sizeof *CASES; at++) {
        running = CASES[at].name;
        CASES[at].run();
        printf("%s\n", running);
        fflush(stdout);
    }
    puts("all cases passed");
    return 0;
}
