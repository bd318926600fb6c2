/* fork in the middle: the child has no part in its parent's endpoints, and the parent does not notice. */
#include "mxtest.h"

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

MAIN(TEST(in_the_middle), TEST(begins_after_finalize))
