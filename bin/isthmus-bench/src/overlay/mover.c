/* The floor of overlay networks: the smallest program that moves frames between a TAP and a UDP socket. One thread, no routes, no counters.
 *
 *   mover NAMESPACE INTERFACE OWN OTHER PORT DATAGRAM whole|vxlan
 *
 * It makes INTERFACE in the network namespace of a file, and says "ready". `whole` carries each frame with its virtio-net header in one
 * message of datagrams that have at most DATAGRAM bytes. `vxlan` cuts TCP over IPv4 into segments and merges them again, and trusts the
 * outer checksum.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { VNET = 12, ETH = 14, VXLAN = 8, FRAME = VNET + ETH + 4 + 65535, BATCH = 64, SEGMENTS = 64, MESSAGE = 65507, PARTS = 1024 };

struct chunk { uint32_t message, total, offset; };

static int tap, sock, datagram_bytes;
static struct sockaddr_in other;
static const uint8_t vxlan[VXLAN] = { 8, 0, 0, 0, 0, 0, 45, 0 };

static void fail(const char *what) { perror(what); exit(1); }

static void open_tap(const char *namespace, const char *name, unsigned offloads)
{
    int there = open(namespace, O_RDONLY), here = open("/proc/self/ns/net", O_RDONLY), size = VNET;
    struct ifreq request = { 0 };
    if (there < 0 || here < 0 || setns(there, CLONE_NEWNET)) fail(namespace);
    if ((tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK)) < 0) fail("/dev/net/tun");
    snprintf(request.ifr_name, IFNAMSIZ, "%s", name);
    request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
    if (ioctl(tap, TUNSETIFF, &request) || ioctl(tap, TUNSETVNETHDRSZ, &size) || ioctl(tap, TUNSETOFFLOAD, offloads)) fail(name);
    if (setns(here, CLONE_NEWNET)) fail("setns");
}

static void open_socket(const char *own, const char *to, int port)
{
    int on = 1, receive = 16 << 20, send = 4 << 20;
    struct sockaddr_in bound = { .sin_family = AF_INET, .sin_port = htons(port) };
    other = bound;
    if (!inet_aton(own, &bound.sin_addr) || !inet_aton(to, &other.sin_addr)) fail("addresses");
    if ((sock = socket(AF_INET, SOCK_DGRAM, 0)) < 0 || bind(sock, (void *)&bound, sizeof bound)) fail("socket");
    if (setsockopt(sock, SOL_UDP, UDP_GRO, &on, sizeof on)) fail("UDP_GRO");
    setsockopt(sock, SOL_SOCKET, SO_RCVBUFFORCE, &receive, sizeof receive);
    setsockopt(sock, SOL_SOCKET, SO_SNDBUFFORCE, &send, sizeof send);
}

/* Sends datagrams of `bytes`, of which each has `parts` parts; the last may be shorter. */
static void send_all(struct iovec *iov, int parts, int count, int bytes)
{
    int most = MESSAGE / bytes < SEGMENTS ? MESSAGE / bytes : SEGMENTS;
    for (int at = 0; at < count; at += most) {
        int n = count - at < most ? count - at : most;
        char control[CMSG_SPACE(2)] = { 0 };
        struct msghdr m = { &other, sizeof other, iov + at * parts, n * parts, 0, 0, 0 };
        if (n > 1) {
            m.msg_control = control, m.msg_controllen = sizeof control;
            struct cmsghdr *c = CMSG_FIRSTHDR(&m);
            c->cmsg_level = SOL_UDP, c->cmsg_type = UDP_SEGMENT, c->cmsg_len = CMSG_LEN(2);
            *(uint16_t *)CMSG_DATA(c) = bytes;
        }
        if (sendmsg(sock, &m, 0) < 0 && errno != EINVAL && errno != EMSGSIZE && errno != ECONNREFUSED) fail("sendmsg");
    }
}

static void send_whole(uint8_t *frame, int len)
{
    static uint32_t message;
    struct chunk head[SEGMENTS * 2];
    struct iovec iov[SEGMENTS * 4];
    int data = datagram_bytes - (int)sizeof *head, count = 0;
    if (data * SEGMENTS * 2 < len) return;
    message++;
    for (int at = 0; at < len; at += data, count++) {
        head[count] = (struct chunk) { message, len, at };
        iov[2 * count] = (struct iovec) { head + count, sizeof *head };
        iov[2 * count + 1] = (struct iovec) { frame + at, len - at < data ? len - at : data };
    }
    send_all(iov, 2, count, datagram_bytes);
}

static uint64_t sum(uint64_t from, const uint8_t *at, int len)
{
    for (uint32_t word; len >= 4; at += 4, len -= 4) memcpy(&word, at, 4), from += word;
    uint8_t rest[4] = { 0 };
    uint32_t word;
    memcpy(rest, at, len), memcpy(&word, rest, 4);
    return from + word;
}

static uint16_t fold(uint64_t s) { while (s >> 16) s = (s & 0xffff) + (s >> 16); return s; }
static void put(uint8_t *at, uint16_t value) { memcpy(at, &value, 2); }
static uint32_t get(const uint8_t *at) { uint32_t value; memcpy(&value, at, 4); return ntohl(value); }
static uint64_t pseudo(const uint8_t *ip, int tcp_len) { return sum(htons(6) + htons(tcp_len), ip + 12, 8); }

static void send_vxlan(uint8_t *buffer, int len)
{
    struct virtio_net_hdr *v = (void *)buffer;
    uint8_t *frame = buffer + VNET, *ip = frame + ETH, *tcp = ip + 20;
    static uint8_t heads[SEGMENTS * 2][VXLAN + ETH + 20 + 60];
    struct iovec iov[SEGMENTS * 4];
    len -= VNET;
    if (v->gso_type == VIRTIO_NET_HDR_GSO_NONE) {
        if (v->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM)
            put(frame + v->csum_start + v->csum_offset, ~fold(sum(0, frame + v->csum_start, len - v->csum_start)));
        iov[0] = (struct iovec) { (void *)vxlan, VXLAN }, iov[1] = (struct iovec) { frame, len };
        return send_all(iov, 2, 1, VXLAN + len);
    }
    int tcp_head = tcp[12] / 16 * 4, head = ETH + 20 + tcp_head, size = v->gso_size, data = len - head, count = 0;
    if (ip[0] != 0x45 || (data + size - 1) / size > SEGMENTS * 2) return;
    for (int at = 0; at < data; at += size, count++) {
        int part = data - at < size ? data - at : size, is_last = at + part == data;
        uint8_t *h = heads[count] + VXLAN, *i = h + ETH, *t = i + 20;
        uint32_t seq = htonl(get(tcp + 4) + at);
        memcpy(heads[count], vxlan, VXLAN), memcpy(h, frame, head), memcpy(t + 4, &seq, 4);
        put(i + 2, htons(20 + tcp_head + part)), put(i + 4, htons(ntohs(*(uint16_t *)(ip + 4)) + count)), put(i + 10, 0);
        put(i + 10, ~fold(sum(0, i, 20)));
        if (!is_last) t[13] &= ~9; /* FIN, PSH */
        put(t + 16, 0);
        /* Data at an odd place cannot be: headers have whole words. */
        put(t + 16, ~fold(sum(sum(pseudo(i, tcp_head + part), t, tcp_head), frame + head + at, part)));
        iov[2 * count] = (struct iovec) { heads[count], VXLAN + head };
        iov[2 * count + 1] = (struct iovec) { frame + head + at, part };
    }
    send_all(iov, 2, count, VXLAN + head + size);
}

/* The frame that is being put together. */
static struct { uint32_t message, total, have; int count; struct iovec iov[PARTS]; uint8_t kept[FRAME]; } now;

static void receive_whole(uint8_t *at, int len)
{
    struct chunk c;
    if (len < (int)sizeof c) return;
    memcpy(&c, at, sizeof c);
    if (c.offset == 0) now.message = c.message, now.total = c.total, now.have = 0, now.count = 0;
    if (now.message != c.message || now.have != c.offset || now.count == PARTS) return;
    now.iov[now.count++] = (struct iovec) { at + sizeof c, len - sizeof c };
    now.have += len - sizeof c;
    if (now.have == now.total && writev(tap, now.iov, now.count) < 0 && errno != EINVAL && errno != EIO) fail("writev");
    if (now.have >= now.total) now.total = now.have = now.count = 0;
}

/* Keeps the beginning of a message whose end did not come yet, because its buffers are used again. */
static void keep(void)
{
    uint32_t at = 0;
    if (!now.count || now.have > FRAME) { now.count = now.total = now.have = 0; return; }
    for (int i = 0; i < now.count; at += now.iov[i++].iov_len)
        if (now.iov[i].iov_base != now.kept + at) memcpy(now.kept + at, now.iov[i].iov_base, now.iov[i].iov_len);
    now.iov[0] = (struct iovec) { now.kept, at }, now.count = 1;
}

/* Segments of one flow, one behind the other. iov[0] is the virtio-net header. `size` is 0 if nothing may follow, `head` if it is not TCP. */
static struct { uint8_t *frame; int head, size, bytes, count; struct iovec iov[SEGMENTS + 2]; struct virtio_net_hdr_mrg_rxbuf v; } run;

static void flush(void)
{
    if (!run.frame) return;
    memset(&run.v, 0, sizeof run.v);
    if (run.head) { /* A veth leaves the checksums of a single segment undone, too. */
        uint8_t *ip = run.frame + ETH, is_one = run.count == 2;
        put(ip + 2, htons(run.head - ETH + run.bytes)), put(ip + 10, 0), put(ip + 10, ~fold(sum(0, ip, 20)));
        put(ip + 36, fold(pseudo(ip, run.head - ETH - 20 + run.bytes)));
        run.v.hdr.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM, run.v.hdr.csum_start = ETH + 20, run.v.hdr.csum_offset = 16;
        run.v.hdr.gso_type = is_one ? VIRTIO_NET_HDR_GSO_NONE : VIRTIO_NET_HDR_GSO_TCPV4;
        run.v.hdr.hdr_len = is_one ? 0 : run.head, run.v.hdr.gso_size = is_one ? 0 : run.size;
    }
    run.iov[0] = (struct iovec) { &run.v, VNET };
    if (writev(tap, run.iov, run.count) < 0 && errno != EINVAL && errno != EIO) fail("writev");
    run.frame = 0;
}

static void receive_vxlan(uint8_t *at, int len)
{
    uint8_t *frame = at + VXLAN, *ip = frame + ETH, *tcp = ip + 20;
    if ((len -= VXLAN) < ETH) return;
    int is_tcp = len >= ETH + 40 && ip[-2] == 8 && ip[-1] == 0 && ip[0] == 0x45 && ip[9] == 6;
    int head = is_tcp ? ETH + 20 + tcp[12] / 16 * 4 : 0, data = is_tcp ? ETH + ntohs(*(uint16_t *)(ip + 2)) - head : 0;
    if (is_tcp && (data < 0 || head + data > len)) return;
    int may_merge = is_tcp && data > 0 && (tcp[13] & ~8) == 16; /* ACK, PSH */
    if (run.frame && may_merge && run.size && head == run.head && data <= run.size && run.bytes % run.size == 0
        && run.count < SEGMENTS + 2 && head - ETH + run.bytes + data <= 65535 && !memcmp(run.frame + ETH + 12, ip + 12, 12)
        && get(run.frame + ETH + 24) + run.bytes == get(tcp + 4) && !memcmp(run.frame + ETH + 28, tcp + 8, 4)
        && !memcmp(run.frame + ETH + 40, tcp + 20, head - ETH - 40)) {
        run.iov[run.count++] = (struct iovec) { frame + head, data };
        run.bytes += data, run.frame[ETH + 33] |= tcp[13] & 8;
        return;
    }
    flush();
    run.frame = frame, run.head = head, run.size = may_merge ? data : 0, run.bytes = data, run.count = 2;
    run.iov[1] = (struct iovec) { frame, is_tcp ? head + data : len };
}

static void receive(int is_whole)
{
    static uint8_t buffers[BATCH][65536];
    static char controls[BATCH][CMSG_SPACE(4)];
    static struct iovec iov[BATCH];
    static struct mmsghdr m[BATCH];
    for (int i = 0; i < BATCH; i++) {
        iov[i] = (struct iovec) { buffers[i], sizeof buffers[i] };
        m[i].msg_hdr = (struct msghdr) { 0, 0, iov + i, 1, controls[i], sizeof controls[i], 0 };
    }
    int count = recvmmsg(sock, m, BATCH, MSG_DONTWAIT, 0);
    for (int i = 0; i < count; i++) {
        int left = m[i].msg_len, size = left;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&m[i].msg_hdr); c; c = CMSG_NXTHDR(&m[i].msg_hdr, c))
            if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) memcpy(&size, CMSG_DATA(c), 4);
        for (uint8_t *at = buffers[i]; left > 0; at += size, left -= size)
            (is_whole ? receive_whole : receive_vxlan)(at, left < size ? left : size);
    }
    if (is_whole) keep(); else flush();
}

int main(int count, char **words)
{
    static uint8_t frame[FRAME];
    if (count != 8) return 2;
    int is_whole = !strcmp(words[7], "whole");
    datagram_bytes = atoi(words[6]);
    open_tap(words[1], words[2], TUN_F_CSUM | TUN_F_TSO4 | (is_whole ? TUN_F_TSO6 | TUN_F_TSO_ECN : 0));
    open_socket(words[3], words[4], atoi(words[5]));
    puts("ready"), fflush(stdout);
    for (;;) {
        struct pollfd fds[2] = { { tap, POLLIN, 0 }, { sock, POLLIN, 0 } };
        if (poll(fds, 2, -1) < 0) fail("poll");
        if (fds[0].revents & POLLERR) return 0;
        for (int i = 0, len; fds[0].revents && i < 32 && (len = read(tap, frame, sizeof frame)) > VNET; i++)
            (is_whole ? send_whole : send_vxlan)(frame, len);
        if (fds[1].revents) receive(is_whole);
    }
}
