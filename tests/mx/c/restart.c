/*
 * The daemon dies and comes back while endpoints are open. The test answers `exchanged` with `again` until messages go by a channel, kills
 * and restarts the daemon when it reads `ready`, and answers with a line when it is there again.
 */
#include "mxtest.h"

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

static void exchange(mx_endpoint_t endpoint, mx_endpoint_addr_t peer, unsigned seed)
{
    static const uint32_t lengths[] = {0, 8, 128, 5000, 32768, 100000};
    unsigned char *out = room(100000), *in = room(100000);
    for (int at = 0; at < 6; at++) {
        mx_request_t receiving = post(endpoint, 1, in, 100000), sending;
        fill(out, lengths[at], seed);
        sending = give(endpoint, peer, 1, out, lengths[at]);
        EQUAL(lengths[at], finish_well(endpoint, receiving).xfer_length);
        is_filled(in, lengths[at], seed);
        finish_well(endpoint, sending);
    }
    free(out);
    free(in);
}

/* The other one claims its endpoint anew as soon as it is at it; until then the new daemon knows of none. */
static mx_endpoint_addr_t connect_soon(mx_endpoint_t endpoint, mx_endpoint_addr_t peer, struct place theirs)
{
    uint64_t begun = now_ms();
    mx_endpoint_addr_t again;
    mx_return_t code;
    while ((code = mx_connect(endpoint, theirs.nic, theirs.id, KEY, 5000, &again)) == MX_CONNECTION_FAILED) {
        CHECK(now_ms() - begun < NOTICE_MS);
        exchange(endpoint, peer, 1);
    }
    GIVES(MX_SUCCESS, code);
    return again;
}

static void survives(struct other other)
{
    mx_endpoint_addr_t peer, again;
    mx_endpoint_t endpoint = join(other, &peer), taken = NULL;
    struct place own = place_of(endpoint), theirs = {0, 0, KEY};
    char word[16];
    unsigned char *bytes = room(100000);

    OK(mx_decompose_endpoint_addr(peer, &theirs.nic, &theirs.id));
    for (unsigned round = 0; round < 2; round++) {
        mx_request_t pending;
        /* What is under way through a daemon ends with it: all is to go by a channel, which the test sees. */
        do {
            exchange(endpoint, peer, round);
            puts("exchanged");
            fflush(stdout);
            CHECK(fgets(word, sizeof word, stdin) != NULL);
        } while (strcmp(word, "again\n") == 0);
        pending = post(endpoint, 2, bytes, 100000); /* stays posted all the while */
        puts("ready");
        fflush(stdout);
        CHECK(fgets(word, sizeof word, stdin) != NULL);
        /* Who knew each other goes on. */
        exchange(endpoint, peer, round + 10);
        send_well(endpoint, peer, 2, "kept", 4);
        EQUAL(4, finish_well(endpoint, pending).xfer_length);
        /* The claims are known to the new daemon: ours is taken, theirs is found, with its key. */
        again = connect_soon(endpoint, peer, theirs);
        GIVES(MX_BUSY, mx_open_endpoint(0, own.id, KEY, NULL, 0, &taken));
        CHECK(same_endpoint(peer, again));
        GIVES(MX_BAD_CONNECTION_KEY, mx_connect(endpoint, theirs.nic, theirs.id, KEY + 1, 5000, &again));
        exchange(endpoint, connect_to(endpoint, theirs), round + 20);
        /* New endpoints open and talk. */
        taken = open_any();
        send_well(taken, connect_to(taken, own), 7, NULL, 0);
        receive_well(endpoint, 7, NULL, 0);
        OK(mx_close_endpoint(taken));
    }
    mark_end(endpoint, peer);
    end(endpoint);
    free(bytes);
}

static void in_between(void)
{
    pair(survives, echoes);
}

MAIN(TEST(in_between))
