/*
 * Steering in a guest: gives orders to its holder (guest_steering, crates/platform-kvm), and sends what tests compare.
 *
 *   steer order WORD…                           gives the holder an order, and prints its reply
 *   steer switch MS MAC N                       has routes with a device, and without, in turn
 *   steer refused BELLS INTERFACE               makes requests that are refused
 *   steer pour ADDRESS PORT MIB                 sends a stream
 *   steer drain PORT                            receives a stream, compares it, and prints its length
 *   steer forge DEVICE TO FROM TYPE             sends a frame with these addresses and this type
 *
 * BELLS is the node of a device of the driver.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/ether.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include "isthmus.h"

static int checked(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(1);
    }
    return result;
}

/* ---- orders ---- */

static const struct sockaddr_un place_of_orders = {.sun_family = AF_UNIX, .sun_path = "/tmp/steering"};

static int holder(void) {
    int to = checked(socket(AF_UNIX, SOCK_STREAM, 0), "socket");
    checked(connect(to, (void *)&place_of_orders, sizeof place_of_orders), "connect");
    return to;
}

/* Gives an order, which ends with the end of its line, and prints the reply if there is one. */
static void give(int to, const char *order) {
    static char reply[4096];
    size_t bytes = 0;
    checked(send(to, order, strlen(order), 0), "send");
    while (bytes == 0 || reply[bytes - 1] != '\n') {
        int more = checked(recv(to, reply + bytes, sizeof reply - bytes, 0), "recv");
        if (more == 0)
            exit(1);
        bytes += more;
    }
    if (bytes > 1)
        fwrite(reply, 1, bytes, stdout);
}

static int order(char **argument) {
    char words[512] = "";
    for (; *argument; argument++)
        snprintf(words + strlen(words), sizeof words - strlen(words), "%s%c", *argument, argument[1] ? ' ' : '\n');
    give(holder(), words);
    return 0;
}

static __attribute__((noreturn)) int switch_routes(char **argument) {
    char with[64], without[64];
    int to = holder();
    snprintf(with, sizeof with, "routes %s=%s\n", argument[1], argument[2]);
    snprintf(without, sizeof without, "routes %s=0\n", argument[1]);
    for (unsigned round = 0;; round++) {
        give(to, round % 2 ? with : without);
        usleep(atoi(argument[0]) * 1000);
    }
}

/* ---- what is refused ---- */

static int bells, steering;

static int steer(unsigned index, int *descriptor) {
    struct isthmus_steer asked = {.abi = ISTHMUS_ABI, .interface = index, .descriptor = -1};
    int result = ioctl(bells, ISTHMUS_STEER, &asked);
    *descriptor = asked.descriptor;
    return result;
}

static void must_fail(int result, int error, const char *what) {
    if (result >= 0 || errno != error) {
        printf("%s: %d, %s\n", what, result, strerror(errno));
        exit(1);
    }
}

static void bad_table(struct isthmus_route one, struct isthmus_route other, const char *what) {
    struct isthmus_route table[2] = {one, other};
    must_fail(write(steering, table, sizeof table), EINVAL, what);
}

static int refuse(char **argument) {
    struct isthmus_route good = {.mac = {2, 0, 0, 0, 0, 1}}, also = {.mac = {2, 0, 0, 0, 0, 2}}, bad, many[ISTHMUS_ROUTES_MAX + 1] = {0};
    unsigned index = if_nametoindex(argument[1]);
    struct isthmus_steer asked = {.abi = ISTHMUS_ABI + 1, .interface = index};
    int second, status;
    bells = checked(open(argument[0], O_RDWR | O_CLOEXEC), argument[0]);
    must_fail(ioctl(bells, ISTHMUS_STEER, &asked), EINVAL, "version");
    asked = (struct isthmus_steer){.abi = ISTHMUS_ABI, .interface = index, .reserved = 1};
    must_fail(ioctl(bells, ISTHMUS_STEER, &asked), EINVAL, "reserved");
    must_fail(steer(9999, &second), ENODEV, "no interface");
    must_fail(steer(if_nametoindex("lo"), &second), EINVAL, "no Ethernet");
    if (fork() == 0) {
        checked(setuid(65534), "setuid");
        must_fail(steer(index, &second), EPERM, "no capability");
        exit(0);
    }
    wait(&status);
    if (status)
        return 1;
    checked(steer(index, &steering), "STEER");
    must_fail(steer(index, &second), EBUSY, "steered already");
    checked(write(steering, &good, sizeof good), "one route");
    bad = also, bad.mac[0] = 3, bad_table(good, bad, "multicast");
    bad = also, memset(bad.mac, 0, 6), bad_table(good, bad, "zero");
    bad = also, bad.reserved = 1, bad_table(good, bad, "reserved");
    bad_table(good, good, "twice");
    must_fail(write(steering, many, sizeof good + 1), EINVAL, "a part of a route");
    for (unsigned at = 0; at <= ISTHMUS_ROUTES_MAX; at++)
        many[at] = (struct isthmus_route){.mac = {2, 1, 0, 0, at >> 8, at}};
    must_fail(write(steering, many, sizeof many), EINVAL, "too many");
    checked(write(steering, many, sizeof many - sizeof *many), "as many as there may be");
    checked(write(steering, many, 0), "none");
    must_fail(read(steering, many, 7), EINVAL, "a part of an address");
    close(steering);
    checked(steer(index, &steering), "STEER again");
    return 0;
}

/* ---- streams ---- */

static uint64_t words[8192];

static uint64_t next_word(uint64_t *state) {
    *state = *state * 6364136223846793005U + 1442695040888963407U;
    return *state;
}

static struct sockaddr_in place(const char *address, const char *port) {
    return (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(port)), .sin_addr.s_addr = inet_addr(address)};
}

static int pour(char **argument) {
    struct sockaddr_in to = place(argument[0], argument[1]);
    int through = socket(AF_INET, SOCK_STREAM, 0);
    uint64_t state = 1;
    checked(connect(through, (void *)&to, sizeof to), "connect");
    for (size_t left = atoi(argument[2]) * (1048576 / sizeof words); left; left--) {
        for (unsigned at = 0; at < sizeof words / sizeof *words; at++)
            words[at] = next_word(&state);
        for (size_t sent = 0; sent < sizeof words;)
            sent += checked(send(through, (char *)words + sent, sizeof words - sent, 0), "send");
    }
    return 0;
}

static int drain(char **argument) {
    struct sockaddr_in own = place("0.0.0.0", argument[0]);
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    uint64_t state = 1, chunks = 0;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    checked(bind(listener, (void *)&own, sizeof own), "bind");
    checked(listen(listener, 1), "listen");
    printf("endpoint %s\n", argument[0]);
    fflush(stdout);
    int from = checked(accept(listener, NULL, NULL), "accept");
    for (; checked(recv(from, words, sizeof words, MSG_WAITALL), "recv") == sizeof words; chunks++)
        for (unsigned at = 0; at < sizeof words / sizeof *words; at++)
            if (words[at] != next_word(&state)) {
                printf("chunk %llu differs\n", (unsigned long long)chunks);
                return 1;
            }
    printf("%llu MiB are the same\n", (unsigned long long)(chunks * sizeof words >> 20));
    return 0;
}

static int forge(char **argument) {
    struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = if_nametoindex(argument[0]), .sll_halen = 6};
    unsigned long type = strtoul(argument[3], NULL, 16);
    unsigned char frame[64] = {[12] = type >> 8, [13] = type};
    memcpy(frame, ether_aton(argument[1]), 6);
    memcpy(frame + 6, ether_aton(argument[2]), 6);
    int through = checked(socket(AF_PACKET, SOCK_RAW, 0), "socket");
    checked(sendto(through, frame, sizeof frame, 0, (void *)&to, sizeof to), "send");
    return 0;
}

int main(int count, char **argument) {
    static const struct { const char *name; int arguments; int (*run)(char **); } commands[] = {
        {"order", 1, order}, {"switch", 3, switch_routes}, {"refused", 2, refuse}, {"pour", 3, pour}, {"drain", 1, drain},
        {"forge", 4, forge},
    };
    for (unsigned at = 0; count > 1 && at < sizeof commands / sizeof *commands; at++)
        if (strcmp(argument[1], commands[at].name) == 0 && count - 2 >= commands[at].arguments)
            return commands[at].run(argument + 2);
    fprintf(stderr, "see the source\n");
    return 2;
}
