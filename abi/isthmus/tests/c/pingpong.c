/*
 * Two domains: `pingpong serve NAME` sends back what it gets, `pingpong talk NAME` sends messages of many lengths and
 * looks at every byte that comes back.
 */
#include "check.h"

static int serve(const char *name)
{
    isth_domain *domain = attach_as(name);
    unsigned char *buffer = malloc(ROOM);
    isth_completion done;
    uint32_t at;

    CHECK(strcmp(isth_domain_name(domain), name) == 0);
    MUST(domain, isth_open(domain, ISTH_ENDPOINT_ANY, "echo", &at));
    CHECK(at == 0);
    MUST(domain, isth_receive(domain, at, buffer, ROOM, NULL, NULL));
    say("ready");
    for (;;) {
        ANSWERS(1, isth_wait(domain, &done, -1));
        if (done.kind == ISTH_SENT) {
            MUST(domain, isth_receive(domain, at, buffer, ROOM, NULL, NULL));
            continue;
        }
        CHECK(done.kind == ISTH_RECEIVED && done.endpoint == at);
        if (done.tag == STOP)
            break;
        MUST(domain, isth_send(domain, at, done.from, done.tag, buffer, done.len, NULL, NULL));
    }
    ANSWERS(0, isth_detach(domain, 5000));
    free(buffer);
    say("served");
    return 0;
}

static void round_trip(isth_domain *domain, isth_address to, size_t len, uint64_t tag)
{
    unsigned char *out = malloc(len + 1), *in = malloc(len + 1);
    uint64_t sending, receiving;
    int sent = 0, received = 0;

    fill(out, len, (unsigned)tag);
    memset(in, 0, len + 1);
    MUST(domain, isth_receive(domain, 3, in, len + 1, in, &receiving));
    MUST(domain, isth_send(domain, 3, to, tag, out, len, out, &sending));
    CHECK(sending != 0 && receiving != 0 && sending != receiving);
    while (!sent || !received) {
        isth_completion done;
        ANSWERS(1, isth_wait(domain, &done, -1));
        CHECK(done.endpoint == 3 && done.reason == 0 && done.reserved0 == 0 && done.reserved == 0);
        if (done.kind == ISTH_SENT) {
            CHECK(done.context == out && done.token == sending && !sent);
            sent = 1;
        } else {
            CHECK(done.kind == ISTH_RECEIVED && done.context == in && done.token == receiving && !received);
            CHECK(done.len == len && done.tag == tag);
            CHECK(done.from.domain == to.domain && done.from.endpoint == to.endpoint);
            received = 1;
        }
    }
    CHECK(memcmp(in, out, len) == 0 && in[len] == 0);
    free(out);
    free(in);
}

static int talk(const char *name)
{
    static const size_t lengths[] = {0,    1,     8,         128,           129,          4096,
                                     5001, 32768, 32769, (size_t)1 << 20, ((size_t)4 << 20) + 3};
    isth_domain *domain = attach_as(NULL);
    isth_address to = {0, 0};
    uint32_t at, own;
    isth_completion done;

    MUST(domain, isth_domain_id(domain, &own));
    MUST(domain, isth_lookup(domain, name, &to.domain));
    CHECK(own != 0 && to.domain != 0 && own != to.domain);
    MUST(domain, isth_open(domain, 3, NULL, &at));
    CHECK(at == 3);
    for (int again = 0; again < 20; again++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            round_trip(domain, to, lengths[i], (uint64_t)again << 32 | i);
    MUST(domain, isth_send(domain, at, to, STOP, NULL, 0, NULL, NULL));
    ANSWERS(1, isth_wait(domain, &done, -1));
    /* Through the daemon a message is sent when its receiver says so, and this one makes the receiver leave. */
    CHECK(done.kind == ISTH_SENT || done.reason == ISTH_REASON_PEER_DETACHED);
    ANSWERS(0, isth_detach(domain, 5000));
    say("talked");
    return 0;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    return strcmp(argv[1], "serve") == 0 ? serve(argv[2]) : talk(argv[2]);
}
