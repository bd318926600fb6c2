/* What a program may do wrong, and what it is told. Each mistake leaves a library that works. */
#include "check.h"
#include <sys/wait.h>
#include <unistd.h>

static isth_completion next(isth_domain *domain)
{
    isth_completion done;
    ANSWERS(1, isth_wait(domain, &done, -1));
    return done;
}

/* The domain still does what it is for: a message to itself arrives. */
static void works(isth_domain *domain)
{
    char in[8] = "";
    isth_address own = {0, 0};
    uint32_t at;
    unsigned kinds;

    MUST(domain, isth_domain_id(domain, &own.domain));
    MUST(domain, isth_open(domain, ISTH_ENDPOINT_ANY, NULL, &at));
    own.endpoint = at;
    MUST(domain, isth_receive(domain, at, in, sizeof in, NULL, NULL));
    MUST(domain, isth_send(domain, at, own, 9, "hello", 6, NULL, NULL));
    kinds = next(domain).kind;
    kinds += next(domain).kind;
    CHECK(kinds == ISTH_SENT + ISTH_RECEIVED && strcmp(in, "hello") == 0);
    ANSWERS(0, isth_close(domain, at));
}

static void null_pointers(isth_domain *domain)
{
    isth_address to = {1, 0};
    isth_completion done;
    uint32_t number;
    char byte;

    REFUSED(REQUEST_INVALID, isth_options_init(NULL));
    REFUSED(REQUEST_INVALID, isth_attach(NULL, NULL));
    REFUSED(REQUEST_INVALID, isth_detach(NULL, 0));
    REFUSED(REQUEST_INVALID, isth_domain_id(NULL, &number));
    REFUSED(REQUEST_INVALID, isth_domain_id(domain, NULL));
    REFUSED(REQUEST_INVALID, isth_open(NULL, 0, NULL, &number));
    REFUSED(REQUEST_INVALID, isth_open(domain, 0, NULL, NULL));
    REFUSED(REQUEST_INVALID, isth_close(NULL, 0));
    REFUSED(REQUEST_INVALID, isth_lookup(NULL, "x", &number));
    REFUSED(REQUEST_INVALID, isth_lookup(domain, NULL, &number));
    REFUSED(REQUEST_INVALID, isth_lookup(domain, "x", NULL));
    REFUSED(REQUEST_INVALID, isth_send(NULL, 0, to, 0, &byte, 1, NULL, NULL));
    REFUSED(REQUEST_INVALID, isth_send(domain, 0, to, 0, NULL, 1, NULL, NULL));
    REFUSED(REQUEST_INVALID, isth_receive(NULL, 0, &byte, 1, NULL, NULL));
    REFUSED(REQUEST_INVALID, isth_receive(domain, 0, NULL, 1, NULL, NULL));
    REFUSED(REQUEST_INVALID, isth_cancel(NULL, 1));
    REFUSED(REQUEST_INVALID, isth_poll(NULL, &done));
    REFUSED(REQUEST_INVALID, isth_poll(domain, NULL));
    REFUSED(REQUEST_INVALID, isth_wait(NULL, &done, 0));
    REFUSED(REQUEST_INVALID, isth_wait(domain, NULL, 0));
    REFUSED(REQUEST_INVALID, isth_fd(NULL));
    REFUSED(REQUEST_INVALID, isth_arm(NULL));
    CHECK(isth_domain_name(NULL) == NULL);
    CHECK(strstr(isth_last_error(domain), "completion is null") != NULL);
    works(domain);
}

static void wrong_options(void)
{
    isth_options options;
    isth_domain *domain;

#define WRONG(field, value, reason) \
    do { \
        ANSWERS(0, isth_options_init(&options)); \
        options.field = (value); \
        domain = (isth_domain *)&options; \
        REFUSED(reason, isth_attach(&options, &domain)); \
        CHECK(domain == NULL && isth_last_error(NULL)[0] != 0); \
    } while (0)
    WRONG(flags, 8, REQUEST_INVALID);
    WRONG(reserved0, 1, REQUEST_INVALID);
    WRONG(reserved[3], 1, REQUEST_INVALID);
    WRONG(wait, 4, REQUEST_INVALID);
    WRONG(spin_us, 1001, REQUEST_INVALID);
    CHECK(strstr(isth_last_error(NULL), "1001") != NULL);
    WRONG(name, "a/b", REQUEST_INVALID);
    WRONG(name, "\xff", NAME_INVALID);
    WRONG(name, "misuse", NAME_TAKEN);
    WRONG(socket, "/nowhere/isthmus.sock", DAEMON_UNREACHABLE);
    CHECK(strstr(isth_last_error(NULL), "/nowhere/isthmus.sock") != NULL);
#undef WRONG
}

static void wrong_endpoints(isth_domain *domain)
{
    isth_address to = {0, 0};
    uint32_t at, found;
    char byte = 0;

    MUST(domain, isth_domain_id(domain, &to.domain));
    REFUSED(REQUEST_INVALID, isth_open(domain, 32, NULL, &at));
    REFUSED(NAME_INVALID, isth_open(domain, 5, "a\tb", &at));
    MUST(domain, isth_open(domain, 5, "label", &at));
    REFUSED(ENDPOINT_TAKEN, isth_open(domain, 5, NULL, &at));
    ANSWERS(0, isth_close(domain, 5));
    REFUSED(ENDPOINT_CLOSED, isth_close(domain, 5));
    REFUSED(REQUEST_INVALID, isth_close(domain, 255));
    REFUSED(ENDPOINT_CLOSED, isth_send(domain, 5, to, 0, &byte, 1, NULL, NULL));
    REFUSED(ENDPOINT_CLOSED, isth_receive(domain, 5, &byte, 1, NULL, NULL));
    CHECK(strstr(isth_last_error(domain), "endpoint-closed") != NULL);
    REFUSED(NO_SUCH_DOMAIN, isth_lookup(domain, "absent", &found));
    REFUSED(NAME_INVALID, isth_lookup(domain, "", &found));
    REFUSED(NAME_INVALID, isth_lookup(domain, "\xff", &found));
    works(domain);
}

static void wrong_messages(isth_domain *domain)
{
    isth_address absent = {0x7fffffff, 0}, own = {0, 6}, zero = {0, 0}, outside = {1, 32};
    isth_completion done;
    char in[4] = "";
    uint64_t token;
    uint32_t at;

    MUST(domain, isth_domain_id(domain, &own.domain));
    MUST(domain, isth_open(domain, 6, NULL, &at));
    REFUSED(REQUEST_INVALID, isth_send(domain, 6, zero, 0, "x", 1, NULL, NULL));
    REFUSED(REQUEST_INVALID, isth_send(domain, 6, outside, 0, "x", 1, NULL, NULL));
    REFUSED(MESSAGE_TOO_LONG, isth_send(domain, 6, own, 0, "x", SIZE_MAX, NULL, NULL));
    REFUSED(MESSAGE_TOO_LONG, isth_send(domain, 6, own, 0, "x", ((size_t)1 << 40) + 1, NULL, NULL));
    REFUSED(MESSAGE_TOO_LONG, isth_receive(domain, 6, in, SIZE_MAX, NULL, NULL));

    /* Whether a domain is there is known later. */
    ANSWERS(0, isth_send(domain, 6, absent, 0, "x", 1, &absent, &token));
    done = next(domain);
    CHECK(done.kind == ISTH_FAILED && done.context == &absent && done.token == token);
    CHECK(done.reason == ISTH_REASON_NO_SUCH_DOMAIN);

    /* Of a longer message, the first bytes. */
    ANSWERS(0, isth_send(domain, 6, own, 1, "abcdef", 6, NULL, NULL));
    CHECK(next(domain).kind == ISTH_SENT);
    ANSWERS(0, isth_receive(domain, 6, in, 3, NULL, NULL));
    done = next(domain);
    CHECK(done.kind == ISTH_RECEIVED && done.len == 6 && memcmp(in, "abc", 4) == 0);

    ANSWERS(0, isth_cancel(domain, 0));
    ANSWERS(0, isth_cancel(domain, UINT64_MAX));
    ANSWERS(0, isth_receive(domain, 6, in, 3, in, &token));
    ANSWERS(1, isth_cancel(domain, token));
    ANSWERS(0, isth_cancel(domain, token));
    done = next(domain);
    CHECK(done.kind == ISTH_CANCELLED && done.context == in && done.token == token);
    ANSWERS(0, isth_cancel(domain, token));

    ANSWERS(0, isth_receive(domain, 6, in, 3, &at, NULL));
    ANSWERS(0, isth_close(domain, 6));
    done = next(domain);
    CHECK(done.kind == ISTH_CANCELLED && done.context == &at && done.endpoint == 6);
    ANSWERS(0, isth_wait(domain, &done, 0));
    ANSWERS(0, isth_poll(domain, &done));
    works(domain);
}

/* A child may not use its parent's domain; it may attach anew, and nothing it does disturbs the parent. */
static void child(isth_domain *inherited)
{
    isth_address to = {0, 7};
    isth_completion done;
    isth_domain *domain;
    uint32_t number;
    uint64_t token;

    REFUSED(STILL_ATTACHED, isth_domain_id(inherited, &number));
    REFUSED(STILL_ATTACHED, isth_open(inherited, 1, NULL, &number));
    REFUSED(STILL_ATTACHED, isth_close(inherited, 7));
    REFUSED(STILL_ATTACHED, isth_lookup(inherited, "misuse", &number));
    REFUSED(STILL_ATTACHED, isth_send(inherited, 7, to, 0, "x", 1, NULL, &token));
    REFUSED(STILL_ATTACHED, isth_receive(inherited, 7, &number, 4, NULL, &token));
    REFUSED(STILL_ATTACHED, isth_cancel(inherited, 1));
    REFUSED(STILL_ATTACHED, isth_poll(inherited, &done));
    REFUSED(STILL_ATTACHED, isth_wait(inherited, &done, -1));
    REFUSED(STILL_ATTACHED, isth_fd(inherited));
    REFUSED(STILL_ATTACHED, isth_arm(inherited));
    CHECK(strcmp(isth_domain_name(inherited), "misuse") == 0);
    CHECK(strcmp(isth_last_error(inherited), isth_strerror(ISTH_REASON_STILL_ATTACHED)) == 0);
    ANSWERS(0, isth_detach(inherited, -1));

    domain = attach_as("child");
    MUST(domain, isth_lookup(domain, "misuse", &to.domain));
    MUST(domain, isth_open(domain, 1, NULL, &number));
    MUST(domain, isth_send(domain, 1, to, 42, "child", 6, NULL, NULL));
    CHECK(next(domain).kind == ISTH_SENT);
    ANSWERS(0, isth_detach(domain, 5000));
    exit(0);
}

static void forks(isth_domain *domain)
{
    isth_completion done;
    char in[8] = "";
    uint32_t at;
    int status;
    pid_t pid;

    MUST(domain, isth_open(domain, 7, "parent", &at));
    MUST(domain, isth_receive(domain, 7, in, sizeof in, NULL, NULL));
    fflush(stdout);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0)
        child(domain);
    done = next(domain);
    CHECK(done.kind == ISTH_RECEIVED && done.tag == 42 && strcmp(in, "child") == 0);
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ANSWERS(0, isth_close(domain, 7));
    works(domain);
}

/* Whatever is pending ends with the domain; its buffers may be freed afterwards. */
static void leaves_with_work(void)
{
    isth_domain *domain = attach_as("leaver");
    isth_address to = {0, 0};
    size_t len = (size_t)1 << 20;
    void *in = malloc(len), *out = calloc(1, len);
    uint32_t at;

    MUST(domain, isth_lookup(domain, "misuse", &to.domain));
    MUST(domain, isth_open(domain, 2, NULL, &at));
    for (int i = 0; i < 10; i++)
        MUST(domain, isth_receive(domain, 2, in, len, NULL, NULL));
    to.endpoint = 31; /* Nobody receives there. */
    MUST(domain, isth_send(domain, 2, to, 0, out, len, NULL, NULL));
    ANSWERS(0, isth_detach(domain, 0));
    free(in);
    free(out);
}

int main(void)
{
    isth_domain *domain = attach_as("misuse"), *again;

    CHECK(isth_version() == ISTH_VERSION);
    null_pointers(domain);
    wrong_options();
    wrong_endpoints(domain);
    wrong_messages(domain);
    forks(domain);
    leaves_with_work();
    works(domain);
    ANSWERS(0, isth_detach(domain, 1000));

    /* The name is free again. */
    again = attach_as("misuse");
    works(again);
    ANSWERS(0, isth_detach(again, 1000));
    say("told");
    return 0;
}
