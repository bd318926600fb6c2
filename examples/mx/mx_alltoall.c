/*
 * N processes with an endpoint each. In each round, every process sends to every process, itself included, and checks
 * every byte that it receives.
 *
 *   mx_alltoall -n 4 -s 100000 -R 10
 *
 * The processes are forked before the first call of MX, because a process may not fork later. They exchange the numbers
 * of their endpoints through a shared page.
 */
#include "mx_example.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

static const char usage[] =
    "usage: mx_alltoall [-n PROCESSES] [-s BYTES] [-R ROUNDS] [-w] [-t SECONDS]\n"
    "  -n  processes [4]                         -s  bytes from each to each [4096]\n"
    "  -R  rounds [10]                           -w  sleep in mx_wait_any instead of polling\n"
    "  -t  gives up after this time [60]\n";

enum { PROCESSES_MAX = 32, SIZE_MAX_BYTES = 16 << 20 };

struct plan {
    uint64_t size, rounds;
    uint32_t processes;
    int sleeping;
};

/* What the processes share. */
struct board {
    pthread_barrier_t barrier;
    struct place places[PROCESSES_MAX];
};

struct self {
    mx_endpoint_t endpoint;
    mx_endpoint_addr_t others[PROCESSES_MAX];
    unsigned char *out, *in; /* a block for each process */
};

/* The match information names sender, receiver and round. */
static uint64_t match_of(uint64_t round, uint64_t from, uint64_t to)
{
    return round << 16 | from << 8 | to;
}

static unsigned seed_of(uint64_t round, uint64_t from, uint64_t to)
{
    return (unsigned)(round * 7 + from * 41 + to * 3);
}

static void look(const struct plan *plan, const unsigned char *block, uint64_t round, uint32_t from, uint32_t own)
{
    size_t wrong = first_wrong(block, plan->size, seed_of(round, from, own));
    if (wrong != plan->size) {
        fprintf(stderr, "round %" PRIu64 ", %u to %u: byte %zu is wrong\n", round, from, own, wrong);
        exit(FAILED);
    }
}

static void exchange(struct self *self, const struct plan *plan, uint64_t round, uint32_t own)
{
    memset(self->in, 0, plan->size * plan->processes);
    for (uint32_t other = 0; other < plan->processes; other++)
        post_receive(self->endpoint, match_of(round, other, own), self->in + other * plan->size, plan->size);
    for (uint32_t other = 0; other < plan->processes; other++) {
        unsigned char *block = self->out + other * plan->size;
        fill(block, plan->size, seed_of(round, own, other));
        post_send(self->endpoint, self->others[other], match_of(round, own, other), block, plan->size);
    }
    /* Nobody kept the requests: each ends under the match information of its message, in whatever order. */
    for (uint32_t open = 2 * plan->processes; open > 0;) {
        mx_status_t status;
        uint32_t done;
        if (plan->sleeping)
            MX(mx_wait_any(self->endpoint, MX_INFINITE, round << 16, ~UINT64_C(0xffff), &status, &done));
        else
            MX(mx_test_any(self->endpoint, round << 16, ~UINT64_C(0xffff), &status, &done));
        if (!done)
            continue;
        mx_ended_well(&status, "a message of the exchange");
        if (status.xfer_length != plan->size)
            fail("a message is shorter than it should be");
        open--;
    }
    for (uint32_t other = 0; other < plan->processes; other++)
        look(plan, self->in + other * plan->size, round, other, own);
}

static void meet(struct self *self, struct board *board, const struct plan *plan, uint32_t own)
{
    board->places[own] = place_of(self->endpoint, EXAMPLE_KEY);
    pthread_barrier_wait(&board->barrier);
    for (uint32_t other = 0; other < plan->processes; other++)
        self->others[other] = connect_to(self->endpoint, board->places[other]);
    pthread_barrier_wait(&board->barrier);
}

static void take_part(struct board *board, const struct plan *plan, uint32_t own)
{
    struct self self;
    double begun;
    self.out = malloc(plan->size * plan->processes + 1);
    self.in = malloc(plan->size * plan->processes + 1);
    if (self.out == NULL || self.in == NULL)
        fail("no memory");
    MX(mx_init());
    self.endpoint = open_endpoint(MX_ANY_ENDPOINT);
    meet(&self, board, plan, own);
    begun = now_us();
    for (uint64_t round = 0; round < plan->rounds; round++)
        exchange(&self, plan, round, own);
    /* Who has all messages may not leave before the others have theirs: a large one is fetched from its sender. */
    pthread_barrier_wait(&board->barrier);
    if (own == 0) {
        double bytes = (double)plan->size * plan->processes * plan->processes * (double)plan->rounds;
        printf("# processes    bytes   rounds         MB/s\n");
        printf("%11u %8" PRIu64 " %8" PRIu64 " %12.1f\n", plan->processes, plan->size, plan->rounds,
               bytes / (now_us() - begun));
        fflush(stdout);
    }
    MX(mx_close_endpoint(self.endpoint));
    MX(mx_finalize());
    free(self.out);
    free(self.in);
}

static struct board *share(uint32_t processes)
{
    struct board *board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attributes;
    if (board == MAP_FAILED)
        fail("no memory to share");
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&board->barrier, &attributes, processes);
    return board;
}

int main(int argc, char **argv)
{
    struct plan plan = {4096, 10, 4, 0};
    unsigned seconds = 60;
    struct board *board;
    int option, status, worst = 0;

    while ((option = getopt(argc, argv, "n:s:R:t:wh")) != -1) {
        switch (option) {
        case 'n': plan.processes = (uint32_t)number(optarg, 1, PROCESSES_MAX); break;
        case 's': plan.size = number(optarg, 0, SIZE_MAX_BYTES); break;
        case 'R': plan.rounds = number(optarg, 1, UINT32_MAX); break;
        case 't': seconds = (unsigned)number(optarg, 1, UINT32_MAX); break;
        case 'w': plan.sleeping = 1; break;
        default: fputs(usage, option == 'h' ? stdout : stderr); return option == 'h' ? 0 : USAGE;
        }
    }
    board = share(plan.processes);
    for (uint32_t own = 0; own < plan.processes; own++) {
        pid_t child = fork();
        if (child < 0)
            fail("fork is refused");
        if (child == 0) {
            alarm(seconds); /* If one of them fails, the others would wait for ever. */
            take_part(board, &plan, own);
            exit(0);
        }
    }
    while (wait(&status) > 0)
        if (status != 0)
            worst = FAILED;
    return worst;
}
