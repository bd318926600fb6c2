/*
 * `bereft send NAME` sends to `bereft hold NAME`, which takes nothing and is killed. The sender learns of that from its own
 * question first and waits then: the message must fail, and not be waited for in vain.
 */
#include "check.h"

static int hold(const char *name)
{
    isth_domain *domain = attach_as(name);
    isth_completion done;
    uint32_t at;

    MUST(domain, isth_open(domain, 0, NULL, &at));
    say("ready");
    ANSWERS(1, isth_wait(domain, &done, -1));
    return 1;
}

static int send(const char *name)
{
    size_t len = (size_t)1 << 20;
    void *data = calloc(1, len);
    isth_domain *domain = attach_as(NULL);
    isth_address to = {0, 0};
    isth_completion done;
    uint32_t at;
    int answer;

    MUST(domain, isth_open(domain, ISTH_ENDPOINT_ANY, NULL, &at));
    MUST(domain, isth_lookup(domain, name, &to.domain));
    MUST(domain, isth_send(domain, at, to, 0, data, len, data, NULL));
    ANSWERS(0, isth_poll(domain, &done));
    say("sent");
    CHECK(getchar() == 'k');
    do
        answer = isth_lookup(domain, name, &to.domain);
    while (answer == 0);
    CHECK(answer == -ISTH_REASON_NO_SUCH_DOMAIN);
    ANSWERS(1, isth_wait(domain, &done, 20000));
    CHECK(done.kind == ISTH_FAILED && done.context == data && done.reason == ISTH_REASON_PEER_CONNECTION_LOST);
    ANSWERS(0, isth_detach(domain, 1000));
    free(data);
    say("bereft");
    return 0;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    return strcmp(argv[1], "hold") == 0 ? hold(argv[2]) : send(argv[2]);
}
