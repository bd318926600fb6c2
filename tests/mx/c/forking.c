/* fork in the middle: the child has no part in its parent's endpoints, and the parent does not notice. */
#include "mxtest.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

static mx_endpoint_t endpoint;
static mx_endpoint_addr_t own;
static mx_request_t pending;

/* Every call in the child fails or does nothing; none crashes, hangs or reaches the parent's peers. */
static void calls_in_the_child(void)
{
    static unsigned char bytes[8];
    mx_segment_t segment = {bytes, 8};
    mx_request_t request = NULL, copy = pending;
    mx_status_t status;
    mx_endpoint_t another;
    mx_endpoint_addr_t address;
    uint32_t result = 0;

    CHECK(mx_isend(endpoint, &segment, 1, own, 1, NULL, &request) != MX_SUCCESS);
    CHECK(mx_irecv(endpoint, &segment, 1, 1, MX_MATCH_MASK_NONE, NULL, &request) != MX_SUCCESS);
    CHECK(mx_test(endpoint, &copy, &status, &result) != MX_SUCCESS || result == 0);
    CHECK(mx_wait(endpoint, &copy, 10, &status, &result) != MX_SUCCESS || result == 0);
    CHECK(mx_connect(endpoint, 1, 0, KEY, 10, &address) != MX_SUCCESS);
    mx_progress(endpoint);
    mx_wakeup(endpoint);
    if (mx_open_endpoint(MX_ANY_NIC, MX_ANY_ENDPOINT, KEY, NULL, 0, &another) == MX_SUCCESS)
        mx_close_endpoint(another);
    mx_close_endpoint(endpoint);
    mx_finalize();
}

static void child_that(int calls, int leaves)
{
    pid_t child;
    int status;
    fflush(stdout);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(PATIENCE);
        if (calls)
            calls_in_the_child();
        if (leaves == 0)
            _exit(0);
        if (leaves == 1)
            exit(0);
        execlp("true", "true", (char *)NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child);
    EQUAL(0, status);
}

/* The peer: sends back what it gets. */
static void echoes(struct other other)
{
    mx_endpoint_addr_t peer;
    mx_endpoint_t mine = join(other, &peer);
    unsigned char *bytes = room(100000);
    for (;;) {
        mx_status_t status = finish_well(mine, post_masked(mine, 0, 0, bytes, 100000));
        if (status.match_info == MARK)
            break;
        finish_well(mine, give(mine, peer, status.match_info, bytes, status.xfer_length));
    }
    end(mine);
    free(bytes);
}

static void forks(struct other other)
{
    mx_endpoint_addr_t peer;
    unsigned char *out = room(100000), *in = room(100000);
    endpoint = join(other, &peer);
    own = own_address(endpoint);
    for (int round = 0; round < 24; round++) {
        uint32_t length = round % 2 ? 100000 : 8;
        mx_request_t sending;
        fill(out, length, (unsigned)round);
        pending = post(endpoint, 5, in, 100000);
        if (round % 3 == 0)
            child_that(round / 3 % 2, round % 3);
        sending = give(endpoint, peer, 5, out, length);
        child_that(round / 6 % 2, round % 3); /* with a send and a receive under way */
        EQUAL(length, finish_well(endpoint, pending).xfer_length);
        is_filled(in, length, (unsigned)round);
        finish_well(endpoint, sending);
        nothing_done(endpoint);
    }
    /* Children that waited at exit for endpoints of the parent would take longer than all of them may. */
    for (int round = 0; round < 3 * PATIENCE; round++)
        child_that(0, 1);
    mark_end(endpoint, peer);
    end(endpoint);
    free(out);
    free(in);
}

static void in_the_middle(void)
{
    pair(forks, echoes);
}

/* A child may begin for itself once the parent has finalised, and when it forked before mx_init (as all others here do). */
static void begins_after_finalize(void)
{
    pid_t child;
    int status;
    begin();
    end(open_any());
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        mx_endpoint_t mine;
        alarm(PATIENCE);
        OK(mx_init());
        mine = open_any();
        self_trip(mine, connect_to(mine, place_of(mine)));
        end(mine);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    EQUAL(0, status);
}

/*
 * A child may begin for itself also if another thread of the parent was about to enter the endpoint that the parent closed. The
 * child does not have that thread, and nothing in the child may wait for it.
 *
 *   main thread    in mx_isend, which faults ────────── goes on, closes, finalises, forks
 *   late thread           waits for the endpoint ─ in a signal handler ──────────────────── goes on
 *   conductor      arranges this order
 */
enum { PAGE = 4096 };

static unsigned char *trap;
static _Atomic pid_t late;
static _Atomic int is_shared, is_trapped, is_open, is_held, may_end;

static void on_fault(int signal)
{
    (void)signal;
    atomic_store(&is_trapped, 1);
    while (!atomic_load(&is_open))
        sched_yield();
}

static void on_hold(int signal)
{
    (void)signal;
    atomic_store(&is_held, 1);
    while (!atomic_load(&may_end))
        sched_yield();
}

static void handle(int signal, void (*handler)(int))
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    CHECK(sigaction(signal, &action, NULL) == 0);
}

static void *enters_late(void *unused)
{
    (void)unused;
    OK(mx_progress(endpoint)); /* from now on the endpoint is shared by two threads */
    atomic_store(&is_shared, 1);
    while (!atomic_load(&is_trapped))
        sched_yield();
    atomic_store(&late, (pid_t)gettid());
    GIVES(MX_BAD_ENDPOINT, mx_wakeup(endpoint));
    return NULL;
}

static void *conducts(void *late_thread)
{
    while (atomic_load(&late) == 0)
        sched_yield();
    CHECK(await_sleep(&late, 1)); /* for the endpoint, which the main thread is in */
    CHECK(pthread_kill(*(pthread_t *)late_thread, SIGUSR1) == 0);
    while (!atomic_load(&is_held))
        sched_yield();
    CHECK(mprotect(trap, PAGE, PROT_READ | PROT_WRITE) == 0);
    atomic_store(&is_open, 1);
    return NULL;
}

static void works_in_a_child(void)
{
    mx_endpoint_t mine;
    mx_request_t request;
    mx_status_t status;
    uint32_t result = 2;
    alarm(PATIENCE);
    OK(mx_init());
    mine = open_any();
    request = post(mine, 1, NULL, 0);
    OK(mx_wait(mine, &request, 10, &status, &result));
    EQUAL(0, result);
    self_trip(mine, own_address(mine));
    end(mine);
    _exit(0);
}

static void begins_while_a_thread_enters(void)
{
    pthread_t late_thread, conductor;
    pid_t child;
    int status;
    handle(SIGSEGV, on_fault);
    handle(SIGUSR1, on_hold);
    trap = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(trap != MAP_FAILED);
    begin();
    endpoint = open_any();
    own = own_address(endpoint);
    CHECK(pthread_create(&late_thread, NULL, enters_late, NULL) == 0);
    CHECK(pthread_create(&conductor, NULL, conducts, &late_thread) == 0);
    while (!atomic_load(&is_shared))
        sched_yield();
    CHECK(mprotect(trap, PAGE, PROT_NONE) == 0);
    give(endpoint, own, 1, trap, 8);
    CHECK(pthread_join(conductor, NULL) == 0);
    end(endpoint);
    child = fork();
    CHECK(child >= 0);
    if (child == 0)
        works_in_a_child();
    CHECK(waitpid(child, &status, 0) == child);
    EQUAL(0, status);
    atomic_store(&may_end, 1);
    CHECK(pthread_join(late_thread, NULL) == 0);
}

MAIN(TEST(in_the_middle), TEST(begins_after_finalize), TEST(begins_while_a_thread_enters))
