/*
 * What ranks of an MPI job do to each other, timed: the median over batches, which rank 0 prints as `ns 123.4`.
 *
 *   mpirun -n N program WHAT BYTES MS
 *
 *   half_rtt              two ranks: half a round trip
 *   bandwidth             two ranks: one message of a stream, WINDOW of them under way, each with a buffer of its own on both sides
 *   oversubscribed        2, 4, 8 … ranks: one turn, in which each sends BYTES to each, all add up a number, and all wait for each other
 *   oversubscribed_tcp    the same over blocking TCP sockets of the program's own, one for each pair of ranks
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <mpi.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BATCHES = 24, PATIENCE_S = 120, WINDOW = 64, PAGE = 4096, RANKS_MAX = 64 };

static int rank, ranks, size;
static char *out, *in;
static int sockets[RANKS_MAX];

static void expect(int holds)
{
    if (!holds)
        MPI_Abort(MPI_COMM_WORLD, 1);
}

static void half_rtt(void)
{
    if (rank == 0) {
        MPI_Send(out, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
        MPI_Recv(in, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(in, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(out, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
    }
}

static void bandwidth(void)
{
    MPI_Request requests[WINDOW];
    for (int at = 0; at < WINDOW; at++) {
        if (rank == 0)
            MPI_Isend(out + (size_t)at * size, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[at]);
        else
            MPI_Irecv(in + (size_t)at * size, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[at]);
    }
    MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
    if (rank == 0)
        MPI_Recv(in, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(in, 1, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
}

static void oversubscribed(void)
{
    long own = rank, all = 0;
    MPI_Alltoall(out, size, MPI_BYTE, in, size, MPI_BYTE, MPI_COMM_WORLD);
    MPI_Allreduce(&own, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    expect(all == (long)ranks * (ranks - 1) / 2);
}

static void put(int peer, const void *bytes, size_t count)
{
    expect(send(sockets[peer], bytes, count, 0) == (ssize_t)count);
}

static void get(int peer, void *bytes, size_t count)
{
    expect(recv(sockets[peer], bytes, count, MSG_WAITALL) == (ssize_t)count);
}

/* A number of each with that of the rank that differs in one bit, bit by bit: a sum, and a barrier. */
static long fold(long own)
{
    for (int bit = 1; bit < ranks; bit *= 2) {
        long other = 0;
        put(rank ^ bit, &own, sizeof own);
        get(rank ^ bit, &other, sizeof other);
        own += other;
    }
    return own;
}

static void oversubscribed_tcp(void)
{
    memcpy(in + (size_t)rank * size, out + (size_t)rank * size, size);
    for (int step = 1; step < ranks; step++)
        put((rank + step) % ranks, out + (size_t)((rank + step) % ranks) * size, size);
    for (int step = 1; step < ranks; step++)
        get((rank + ranks - step) % ranks, in + (size_t)((rank + ranks - step) % ranks) * size, size);
    expect(fold(rank) == (long)ranks * (ranks - 1) / 2);
    fold(0);
}

/* A socket to each other rank: connected to those before, accepted from those behind. What lies in one holds all of a turn. */
static void connect_all(void)
{
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in all[RANKS_MAX];
    socklen_t length = sizeof own;
    int listener = socket(AF_INET, SOCK_STREAM, 0), yes = 1, peer;
    expect(ranks <= RANKS_MAX && (ranks & (ranks - 1)) == 0);
    expect(listener >= 0 && bind(listener, (struct sockaddr *)&own, sizeof own) == 0 && listen(listener, ranks) == 0);
    expect(getsockname(listener, (struct sockaddr *)&own, &length) == 0);
    MPI_Allgather(&own, sizeof own, MPI_BYTE, all, sizeof own, MPI_BYTE, MPI_COMM_WORLD);
    for (peer = 0; peer < rank; peer++) {
        sockets[peer] = socket(AF_INET, SOCK_STREAM, 0);
        expect(connect(sockets[peer], (struct sockaddr *)&all[peer], sizeof all[peer]) == 0);
        put(peer, &rank, sizeof rank);
    }
    for (int left = ranks - 1 - rank; left > 0; left--) {
        int one = accept(listener, NULL, NULL);
        expect(one >= 0 && recv(one, &peer, sizeof peer, MSG_WAITALL) == sizeof peer && peer > rank && peer < ranks);
        sockets[peer] = one;
    }
    for (peer = 0; peer < ranks; peer++)
        expect(peer == rank || setsockopt(sockets[peer], IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) == 0);
    close(listener);
}

static const struct work {
    const char *name;
    void (*turn)(void);
    void (*begin)(void);
    int buffers; /* none: as many as there are ranks */
    double parts; /* that a turn has of what is told */
} works[] = {
    {"half_rtt", half_rtt, NULL, 1, 2},
    {"bandwidth", bandwidth, NULL, WINDOW, WINDOW},
    {"oversubscribed", oversubscribed, NULL, 0, 1},
    {"oversubscribed_tcp", oversubscribed_tcp, connect_all, 0, 1},
};

/* Seconds that so many turns take; all ranks call it with the same number. */
static double turns(const struct work *work, int count)
{
    double begun;
    MPI_Barrier(MPI_COMM_WORLD);
    begun = MPI_Wtime();
    for (int turn = 0; turn < count; turn++)
        work->turn();
    return MPI_Wtime() - begun;
}

static int agreed(int number)
{
    MPI_Bcast(&number, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return number;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Where C libraries put large buffers: on pages of their own. */
static char *buffer(int buffers)
{
    size_t bytes = (size_t)size * buffers + 1;
    char *memory = aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
    expect(memory != NULL);
    memset(memory, 1, bytes);
    return memory;
}

int main(int argc, char **argv)
{
    double took[BATCHES], budget, first = 0;
    const struct work *work = NULL;
    int count = 1, batch;

    alarm(PATIENCE_S);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (size_t at = 0; argc == 4 && at < sizeof works / sizeof works[0]; at++)
        if (strcmp(argv[1], works[at].name) == 0)
            work = &works[at];
    if (work == NULL)
        MPI_Abort(MPI_COMM_WORLD, 2);
    size = atoi(argv[2]);
    budget = atof(argv[3]) / 1e3;
    out = buffer(work->buffers > 0 ? work->buffers : ranks);
    in = buffer(work->buffers > 0 ? work->buffers : ranks);
    if (work->begin != NULL)
        work->begin();
    for (; agreed(first < budget / 20); count *= 2)
        first = turns(work, count);
    batch = agreed(rank == 0 ? (int)(budget / BATCHES / (first / (count / 2))) + 1 : 0);
    for (int number = -1; number < BATCHES; number++)
        took[number < 0 ? 0 : number] = turns(work, batch) * 1e9 / (work->parts * batch);
    qsort(took, BATCHES, sizeof took[0], ascending);
    if (rank == 0)
        printf("ns %.2f\n", (took[BATCHES / 2 - 1] + took[BATCHES / 2]) / 2);
    MPI_Finalize();
    return 0;
}
