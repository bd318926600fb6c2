/* What the programs of this folder share: they end the whole job with a line that says what was wrong. */
#ifndef CHECK_H
#define CHECK_H

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "rank %d: %s:%d: not so: %s\n", rank, __FILE__, __LINE__, #what); \
			fflush(stderr); \
			MPI_Abort(MPI_COMM_WORLD, 3); \
		} \
	} while (0)

/* Bytes that depend on a seed and on their place, so that nothing lost, doubled or moved passes for right. */
static unsigned char pattern(uint64_t seed, uint64_t at)
{
	uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15ull + at * 0xbf58476d1ce4e5b9ull;
	return (unsigned char)(x >> 56 ^ x >> 24 ^ at);
}

static void fill(void *place, size_t len, uint64_t seed)
{
	unsigned char *bytes = place;
	for (size_t at = 0; at < len; at++)
		bytes[at] = pattern(seed, at);
}

static int is_filled(const void *place, size_t len, uint64_t seed)
{
	const unsigned char *bytes = place;
	for (size_t at = 0; at < len; at++)
		if (bytes[at] != pattern(seed, at))
			return 0;
	return 1;
}

struct test {
	const char *name;
	void (*run)(void);
};

/* Runs the tests that were named, or all; each begins and ends for all ranks together. */
static int run_tests(int argc, char **argv, const struct test *tests)
{
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	int ran = 0;
	for (const struct test *test = tests; test->name; test++) {
		int wanted = argc == 1;
		for (int at = 1; at < argc; at++)
			wanted |= !strcmp(argv[at], test->name);
		if (!wanted)
			continue;
		MPI_Barrier(MPI_COMM_WORLD);
		double begun = MPI_Wtime();
		test->run();
		MPI_Barrier(MPI_COMM_WORLD);
		if (rank == 0) {
			printf("ok %s %.3f s\n", test->name, MPI_Wtime() - begun);
			fflush(stdout);
		}
		ran++;
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("done %d\n", ran);
	MPI_Finalize();
	return ran == 0;
}

#endif
