/*
 * Loop devices in a guest: makes one, reads its counters, sends through it, and attacks the device of the other guest.
 *
 *   loop make BELLS PAIR SIDE PEER [INTERFACE [MTU]]   makes a device, prints its index as an endpoint, and says when it has ended
 *   loop refused BELLS PAIR                            makes requests that are refused
 *   loop counter DEVICE NAME                           prints a counter of the device
 *   loop echo PORT                                     returns datagrams
 *   loop udp ADDRESS PORT BYTES COUNT                  sends datagrams to an echo, several under way, and compares what returns
 *   loop flood ADDRESS PORT BYTES COUNT                sends datagrams as fast as they go
 *   loop count PORT IDLE_MS                            counts datagrams until none has come for this time
 *   loop attack BELLS PAIR SIDE PEER KIND              behaves as a device, then breaks its rules
 *   loop tag DEVICE VLAN                               sends a frame with a VLAN tag
 *   loop tagged DEVICE                                 prints the tag of the next such frame
 *
 * BELLS is the node of the device with doorbells, PAIR that of the memory. The peer listens to vector 0.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
#include "isthmus.h"
#include "loop_ring.h"

#define RING (4U << 20)
#define EXTENT (LOOP_DATA_OFFSET + 2 * RING)

static int checked(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(1);
    }
    return result;
}

static int extent_of(const char *node) {
    struct isthmus_piece piece = {.abi = ISTHMUS_ABI, .access = ISTHMUS_READ_WRITE, .bytes = EXTENT};
    checked(ioctl(checked(open(node, O_RDWR | O_CLOEXEC), node), ISTHMUS_PIECE, &piece), "PIECE");
    return piece.descriptor;
}

static int make(char **argument) {
    int bells = checked(open(argument[0], O_RDWR | O_CLOEXEC), argument[0]);
    struct isthmus_ringer ringer = {.abi = ISTHMUS_ABI, .peer = atoi(argument[3])};
    checked(ioctl(bells, ISTHMUS_RINGER, &ringer), "RINGER");
    struct isthmus_loop loop = {.abi = ISTHMUS_ABI, .side = atoi(argument[2]), .piece = extent_of(argument[1]), .ringer = ringer.descriptor};
    if (argument[4]) {
        loop.lower = if_nametoindex(argument[4]);
        loop.mtu = argument[5] ? atoi(argument[5]) : 0;
    }
    checked(ioctl(bells, ISTHMUS_LOOP, &loop), "LOOP");
    printf("endpoint %d\n", loop.index);
    fflush(stdout);
    struct pollfd ended = {.fd = loop.descriptor};
    poll(&ended, 1, -1);
    printf("ended\n");
    fflush(stdout);
    pause(); /* The device stays with its counters until this process ends. */
    return 0;
}

/* Makes a request, which must fail with this error. */
static void refused(int bells, struct isthmus_loop asked, int error) {
    static unsigned number;
    number++;
    if (ioctl(bells, ISTHMUS_LOOP, &asked) == 0 || errno != error) {
        printf("request %u: %s\n", number, strerror(errno));
        exit(1);
    }
}

static int refuse(char **argument) {
    int bells = checked(open(argument[0], O_RDWR | O_CLOEXEC), argument[0]);
    struct isthmus_ringer ringer = {.abi = ISTHMUS_ABI, .peer = 7};
    struct isthmus_piece small = {.abi = ISTHMUS_ABI, .access = ISTHMUS_READ_WRITE, .bytes = 4096};
    struct isthmus_piece reading = {.abi = ISTHMUS_ABI, .access = ISTHMUS_READ, .bytes = EXTENT};
    int pair = checked(open(argument[1], O_RDWR | O_CLOEXEC), argument[1]);
    checked(ioctl(bells, ISTHMUS_RINGER, &ringer), "RINGER");
    checked(ioctl(pair, ISTHMUS_PIECE, &small), "PIECE");
    checked(ioctl(pair, ISTHMUS_PIECE, &reading), "PIECE");
    struct isthmus_loop good = {.abi = ISTHMUS_ABI, .piece = extent_of(argument[1]), .ringer = ringer.descriptor}, bad;
    bad = good, bad.abi++, refused(bells, bad, EINVAL);
    bad = good, bad.reserved = 1, refused(bells, bad, EINVAL);
    bad = good, bad.side = 2, refused(bells, bad, EINVAL);
    bad = good, bad.vector = 99, refused(bells, bad, EINVAL);
    bad = good, bad.mtu = 67, refused(bells, bad, EINVAL);
    bad = good, bad.mtu = 65536, refused(bells, bad, EINVAL);
    bad = good, bad.lower = 9999, refused(bells, bad, ENODEV);
    bad = good, bad.piece = -1, refused(bells, bad, EINVAL);
    bad = good, bad.piece = bells, refused(bells, bad, EINVAL);
    bad = good, bad.piece = small.descriptor, refused(bells, bad, EINVAL);
    bad = good, bad.piece = reading.descriptor, refused(bells, bad, EINVAL);
    bad = good, bad.ringer = good.piece, refused(bells, bad, EINVAL);
    refused(pair, good, EINVAL); /* has no vectors */
    checked(ioctl(bells, ISTHMUS_LOOP, &good), "LOOP");
    struct isthmus_listen listen = {.abi = ISTHMUS_ABI, .descriptor = checked(eventfd(0, 0), "eventfd")};
    if (ioctl(bells, ISTHMUS_LISTEN, &listen) == 0 || errno != EBUSY)
        return 1;
    struct isthmus_withdraw withdraw = {.abi = ISTHMUS_ABI, .descriptor = good.piece};
    checked(ioctl(pair, ISTHMUS_WITHDRAW, &withdraw), "WITHDRAW");
    struct pollfd ended = {.fd = good.descriptor};
    if (poll(&ended, 1, 0) != 1 || ended.revents != POLLHUP)
        return 1;
    checked(ioctl(bells, ISTHMUS_LISTEN, &listen), "LISTEN");
    listen.vector = 1;
    checked(ioctl(bells, ISTHMUS_LISTEN, &listen), "LISTEN");
    bad = good, bad.vector = 1, refused(bells, bad, ENODEV);
    bad.piece = extent_of(argument[1]), refused(bells, bad, EBUSY);
    return 0;
}

static int counter(char **argument) {
    struct { struct ethtool_sset_info head; __u32 count; } set = {.head = {.cmd = ETHTOOL_GSSET_INFO, .sset_mask = 1 << ETH_SS_STATS}};
    struct { struct ethtool_stats head; __u64 values[64]; } stats = {.head = {.cmd = ETHTOOL_GSTATS}};
    struct { struct ethtool_gstrings head; char names[64][ETH_GSTRING_LEN]; } strings = {.head = {.cmd = ETHTOOL_GSTRINGS, .string_set = ETH_SS_STATS}};
    struct ifreq request = {0};
    int through = socket(AF_INET, SOCK_DGRAM, 0);

    strncpy(request.ifr_name, argument[0], IFNAMSIZ - 1);
    request.ifr_data = (void *)&set;
    checked(ioctl(through, SIOCETHTOOL, &request), "number of counters");
    strings.head.len = stats.head.n_stats = set.count < 64 ? set.count : 64;
    request.ifr_data = (void *)&strings;
    checked(ioctl(through, SIOCETHTOOL, &request), "names of counters");
    request.ifr_data = (void *)&stats;
    checked(ioctl(through, SIOCETHTOOL, &request), "counters");
    for (unsigned at = 0; at < strings.head.len; at++)
        if (strcmp(strings.names[at], argument[1]) == 0)
            printf("%llu\n", (unsigned long long)stats.values[at]);
    return 0;
}

static struct sockaddr_in place(const char *address, const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    if (address)
        inet_pton(AF_INET, address, &to.sin_addr);
    return to;
}

static int bound(const char *port) {
    struct sockaddr_in own = place(NULL, port);
    int through = socket(AF_INET, SOCK_DGRAM, 0), bytes = 4 << 20;
    setsockopt(through, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
    checked(bind(through, (void *)&own, sizeof own), "bind");
    printf("endpoint %s\n", port);
    fflush(stdout);
    return through;
}

static char message[65536], copy[65536];

static __attribute__((noreturn)) int echo(char **argument) {
    int through = bound(argument[0]);
    for (;;) {
        struct sockaddr_in from;
        socklen_t length = sizeof from;
        ssize_t bytes = recvfrom(through, message, sizeof message, 0, (void *)&from, &length);
        if (bytes >= 0)
            sendto(through, message, bytes, 0, (void *)&from, length);
    }
}

static void fill(char *to, unsigned bytes, unsigned number) {
    unsigned state = number * 2654435761U + 1;
    for (unsigned at = 0; at < bytes; at++) {
        state = state * 1664525U + 1013904223U;
        to[at] = state >> 24;
    }
    memcpy(to, &number, bytes < 4 ? bytes : 4);
}

static int udp(char **argument) {
    struct sockaddr_in to = place(argument[0], argument[1]);
    unsigned bytes = atoi(argument[2]), count = atoi(argument[3]), window = bytes > 8192 ? 2 : 8, sent = 0;
    int through = socket(AF_INET, SOCK_DGRAM, 0), space = 4 << 20;
    setsockopt(through, SOL_SOCKET, SO_RCVBUFFORCE, &space, sizeof space);
    checked(connect(through, (void *)&to, sizeof to), "connect");
    for (unsigned got = 0; got < count; got++) {
        for (; sent < count && sent < got + window; sent++) {
            fill(message, bytes, sent);
            checked(send(through, message, bytes, 0), "send");
        }
        struct pollfd ready = {.fd = through, .events = POLLIN};
        if (poll(&ready, 1, 20000) != 1) {
            printf("datagram %u is lost\n", got);
            return 1;
        }
        ssize_t returned = recv(through, copy, sizeof copy, 0);
        fill(message, bytes, got);
        if (returned != (ssize_t)bytes || memcmp(message, copy, bytes)) {
            printf("datagram %u differs: %zd bytes\n", got, returned);
            return 1;
        }
    }
    printf("%u datagrams of %u bytes are the same\n", count, bytes);
    return 0;
}

static int flood(char **argument) {
    struct sockaddr_in to = place(argument[0], argument[1]);
    unsigned bytes = atoi(argument[2]), count = atoi(argument[3]), refused = 0;
    int through = socket(AF_INET, SOCK_DGRAM, 0);
    /* Without a connection, which fails while the device is down. */
    for (unsigned sent = 0; sent < count; sent++)
        refused += sendto(through, message, bytes, 0, (void *)&to, sizeof to) < 0;
    printf("refused %u\n", refused);
    return 0;
}

static int count(char **argument) {
    struct pollfd ready = {.fd = bound(argument[0]), .events = POLLIN};
    unsigned long long got = 0;
    while (poll(&ready, 1, got ? atoi(argument[1]) : -1) == 1)
        got += recv(ready.fd, copy, sizeof copy, 0) >= 0;
    printf("received %llu\n", got);
    return 0;
}

/* ---- the attacker ---- */

static struct loop_sender sender;
static struct loop_receiver receiver;
static int bells_file;
static unsigned peer_number;

static void ring(void) {
    struct isthmus_ring asked = {.abi = ISTHMUS_ABI, .peer = peer_number};
    checked(ioctl(bells_file, ISTHMUS_RING, &asked), "RING");
}

static void record(struct loop_record header) {
    u32 first;
    u8 *rest;
    loop_place(&sender, &header, &first, &rest);
    loop_publish(&sender, 64);
}

static int attack(char **argument) {
    const char *kind = argument[4];
    int piece = extent_of(argument[1]);
    bells_file = checked(open(argument[0], O_RDWR | O_CLOEXEC), argument[0]);
    peer_number = atoi(argument[3]);
    void *extent = mmap(NULL, EXTENT, PROT_READ | PROT_WRITE, MAP_SHARED, piece, 0);
    if (extent == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    loop_begin(extent, RING, atoi(argument[2]), true, &sender, &receiver);
    if (strcmp(kind, "nothing") == 0)
        return 0; /* The words are those of a device that has just been made. */
    if (strcmp(kind, "version") == 0)
        sender.own->version = 77;
    else if (strcmp(kind, "size") == 0)
        sender.own->ring_bytes = RING * 2;
    loop_store_release(&sender.own->state, LOOP_STATE_UP);
    ring();
    struct loop_record good = {.bytes = 60}, bad = good;
    if (strcmp(kind, "produced") == 0)
        loop_store_release(&sender.own->produced, 0x7ffffff0);
    else if (strcmp(kind, "unaligned") == 0)
        loop_store_release(&sender.own->produced, 17);
    else if (strcmp(kind, "taken") == 0)
        loop_store_release(&sender.own->taken, 4096);
    else if (strcmp(kind, "short") == 0)
        bad.bytes = 3, record(bad);
    else if (strcmp(kind, "long") == 0)
        bad.bytes = 0xffffffff, record(bad);
    else if (strcmp(kind, "beyond") == 0)
        bad.bytes = 4096, record(bad);
    else if (strcmp(kind, "checksum") == 0)
        bad.flags = LOOP_NEEDS_CSUM, bad.csum_start = 58, bad.csum_offset = 2, record(bad);
    else if (strcmp(kind, "segments") == 0)
        bad.gso_type = LOOP_GSO_TCPV4, record(bad);
    else if (strcmp(kind, "fragments") == 0)
        bad.gso_type = 3, bad.flags = LOOP_NEEDS_CSUM, bad.csum_start = 34, bad.gso_size = 8, record(bad);
    else if (strcmp(kind, "noise") == 0) {
        /* Frames that the device accepts and the stack has to refuse, then noise everywhere. */
        u32 state = 1;
        for (unsigned round = 0; round < 2000; round++) {
            bad = (struct loop_record){.bytes = 60, .flags = LOOP_NEEDS_CSUM, .csum_start = 14 + round % 32, .csum_offset = round % 12};
            bad.gso_type = (u8[]){0, LOOP_GSO_TCPV4, LOOP_GSO_TCPV6, LOOP_GSO_TCPV4 | LOOP_GSO_ECN}[round % 4];
            bad.gso_size = bad.gso_type ? 1 + round % 100 : 0;
            u8 *at = sender.data + (sender.produced & (RING - 1)) + sizeof bad;
            for (unsigned byte = 0; byte < 60; byte++)
                at[byte] = (state = state * 1664525U + 1013904223U) >> 24;
            memset(at, 0xff, 6);
            at[12] = round % 3 == 2 ? 0x86 : 0x08, at[13] = round % 3 == 2 ? 0xdd : 0;
            at[14] = round % 3 == 2 ? 0x60 : 0x45;
            record(bad);
            if (round % 16 == 0)
                ring();
        }
        for (unsigned round = 0; round < 200000; round++) {
            state = state * 1664525U + 1013904223U;
            ((volatile u32 *)sender.own)[state >> 8 & 1023] = state;
            ((volatile u8 *)sender.data)[state & (RING - 1)] = state >> 16;
            if (round % 64 == 0)
                ring();
        }
    }
    ring();
    return 0;
}

/* ---- VLAN tags ---- */

static int raw(const char *device) {
    struct sockaddr_ll own = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = if_nametoindex(device)};
    int through = checked(socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL)), "socket"), one = 1;
    setsockopt(through, SOL_PACKET, PACKET_AUXDATA, &one, sizeof one);
    checked(bind(through, (void *)&own, sizeof own), device);
    return through;
}

static int tag(char **argument) {
    unsigned char frame[64] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 0x81, 0, 0, 0, 0x88, 0xb5};
    frame[14] = atoi(argument[1]) >> 8;
    frame[15] = atoi(argument[1]);
    checked(send(raw(argument[0]), frame, sizeof frame, 0), "send");
    return 0;
}

static int tagged(char **argument) {
    int through = raw(argument[0]);
    printf("endpoint 0\n");
    fflush(stdout);
    for (;;) {
        char control[256];
        struct iovec part = {message, sizeof message};
        struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        checked(recvmsg(through, &header, 0), "recvmsg");
        for (struct cmsghdr *at = CMSG_FIRSTHDR(&header); at; at = CMSG_NXTHDR(&header, at)) {
            struct tpacket_auxdata *aux = (void *)CMSG_DATA(at);
            if (at->cmsg_type == PACKET_AUXDATA && aux->tp_status & TP_STATUS_VLAN_VALID) {
                printf("tag %u\n", aux->tp_vlan_tci);
                return 0;
            }
        }
    }
}

int main(int count_, char **argument) {
    static const struct { const char *name; int arguments; int (*run)(char **); } commands[] = {
        {"make", 4, make}, {"refused", 2, refuse}, {"counter", 2, counter}, {"echo", 1, echo}, {"udp", 4, udp}, {"flood", 4, flood},
        {"count", 2, count}, {"attack", 5, attack}, {"tag", 2, tag}, {"tagged", 1, tagged},
    };
    for (unsigned at = 0; count_ > 1 && at < sizeof commands / sizeof *commands; at++)
        if (strcmp(argument[1], commands[at].name) == 0 && count_ - 2 >= commands[at].arguments)
            return commands[at].run(argument + 2);
    fprintf(stderr, "see the source\n");
    return 2;
}
