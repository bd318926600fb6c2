/*
 * Half a round trip between the two ranks of an MPI job: the median over batches.
 *
 *   mpirun -n 2 mpi_pingpong BYTES MS CPU CPU         prints: half_rtt_ns 123.4
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { BATCHES = 40, PATIENCE_S = 120 };

static int rank, size;
static char *out, *in;

/* Seconds that so many round trips take; both ranks call it with the same number. */
static double rounds(int count)
{
    double begun;
    MPI_Barrier(MPI_COMM_WORLD);
    begun = MPI_Wtime();
    for (int round = 0; round < count; round++) {
        if (rank == 0) {
            MPI_Send(out, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
            MPI_Recv(in, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(in, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(out, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD);
        }
    }
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

int main(int argc, char **argv)
{
    double halves[BATCHES], budget, took = 0;
    int count = 1, batch;
    cpu_set_t cpus;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(PATIENCE_S);
    MPI_Init(&argc, &argv);
    if (argc != 5)
        MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    size = atoi(argv[1]);
    budget = atof(argv[2]) / 1e3;
    CPU_ZERO(&cpus);
    CPU_SET(atoi(argv[3 + rank]), &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus) != 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    out = calloc(1, size + 1);
    in = calloc(1, size + 1);
    for (; agreed(took < budget / 20); count *= 2)
        took = rounds(count);
    batch = agreed(rank == 0 ? (int)(budget / BATCHES / (took / (count / 2))) + 1 : 0);
    for (int number = -1; number < BATCHES; number++)
        halves[number < 0 ? 0 : number] = rounds(batch) * 1e9 / (2.0 * batch);
    qsort(halves, BATCHES, sizeof halves[0], ascending);
    if (rank == 0)
        printf("half_rtt_ns %.2f\n", (halves[BATCHES / 2 - 1] + halves[BATCHES / 2]) / 2);
    MPI_Finalize();
    return 0;
}
