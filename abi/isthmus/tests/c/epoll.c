/*
 * An echo in a program's own event loop, beside another descriptor: `epoll NAME` ends when its standard input does.
 */
#include "check.h"
#include <sys/epoll.h>
#include <unistd.h>

static unsigned char *buffer;
static isth_domain *domain;
static unsigned long wakes, echoed;

static void take(void)
{
    isth_completion done;
    int found;

    while ((found = isth_poll(domain, &done)) == 1) {
        if (done.kind == ISTH_SENT) {
            MUST(domain, isth_receive(domain, 0, buffer, ROOM, NULL, NULL));
            continue;
        }
        CHECK(done.kind == ISTH_RECEIVED);
        if (done.tag == STOP) { /* Another talker may come. */
            MUST(domain, isth_receive(domain, 0, buffer, ROOM, NULL, NULL));
            continue;
        }
        MUST(domain, isth_send(domain, 0, done.from, done.tag, buffer, done.len, NULL, NULL));
        echoed++;
    }
    MUST(domain, found);
}

int main(int argc, char **argv)
{
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(EPOLL_CLOEXEC), armed;
    uint32_t at;

    CHECK(argc == 2);
    domain = attach_as(argv[1]);
    buffer = malloc(ROOM);
    MUST(domain, isth_open(domain, 0, "epoll", &at));
    MUST(domain, isth_receive(domain, 0, buffer, ROOM, NULL, NULL));
    event.data.fd = isth_fd(domain);
    CHECK(event.data.fd >= 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, event.data.fd, &event) == 0);
    event.data.fd = STDIN_FILENO;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, STDIN_FILENO, &event) == 0);
    say("ready");
    for (;;) {
        do {
            take();
            armed = isth_arm(domain);
            MUST(domain, armed);
        } while (!armed);
        CHECK(epoll_wait(set, &event, 1, -1) == 1);
        wakes++;
        if (event.data.fd == STDIN_FILENO)
            break;
    }
    CHECK(isth_fd(domain) >= 0);
    ANSWERS(0, isth_detach(domain, 1000));
    free(buffer);
    printf("echoed %lu\n", echoed);
    CHECK(wakes > 0);
    return 0;
}
