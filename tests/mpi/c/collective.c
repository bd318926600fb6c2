/*
 * Collective operations over small and large data, and windows: put, get, accumulate, fetch-and-op, compare-and-swap, under
 * every kind of synchronisation.
 *
 *   mpirun -n 2..8 collective [CASE ...]
 */
#include "check.h"

static const int counts[] = { 1, 17, 1000, 10000, 300000 };
#define COUNTS (int)(sizeof counts / sizeof *counts)

static void broadcasts(void)
{
	for (int at = 0; at < COUNTS; at++)
		for (int root = 0; root < size; root++) {
			unsigned char *bytes = calloc(1, counts[at]);
			if (rank == root)
				fill(bytes, counts[at], root + at);
			MPI_Bcast(bytes, counts[at], MPI_BYTE, root, MPI_COMM_WORLD);
			CHECK(is_filled(bytes, counts[at], root + at));
			free(bytes);
		}
}

static void reductions(void)
{
	for (int at = 0; at < COUNTS; at++) {
		int count = counts[at];
		double *mine = malloc(count * sizeof *mine), *sum = malloc(count * sizeof *sum);
		for (int place = 0; place < count; place++)
			mine[place] = rank + place % 7;
		MPI_Allreduce(mine, sum, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		for (int place = 0; place < count; place++)
			CHECK(sum[place] == size * (size - 1) / 2 + size * (place % 7));
		MPI_Reduce(mine, sum, count, MPI_DOUBLE, MPI_MAX, size - 1, MPI_COMM_WORLD);
		for (int place = 0; place < count && rank == size - 1; place++)
			CHECK(sum[place] == size - 1 + place % 7);
		MPI_Scan(mine, sum, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		CHECK(sum[0] == rank * (rank + 1) / 2);
		free(mine);
		free(sum);
	}
}

static void exchanges(void)
{
	for (int at = 0; at < COUNTS; at++) {
		int count = counts[at] / size + 1;
		int *out = malloc(sizeof(int) * count * size), *in = malloc(sizeof(int) * count * size);
		for (int to = 0; to < size; to++)
			for (int place = 0; place < count; place++)
				out[to * count + place] = rank * 10000 + to * 100 + place % 100;
		MPI_Alltoall(out, count, MPI_INT, in, count, MPI_INT, MPI_COMM_WORLD);
		for (int from = 0; from < size; from++)
			for (int place = 0; place < count; place++)
				CHECK(in[from * count + place] == from * 10000 + rank * 100 + place % 100);
		MPI_Allgather(out, count, MPI_INT, in, count, MPI_INT, MPI_COMM_WORLD);
		for (int from = 0; from < size; from++)
			CHECK(in[from * count + count - 1] == from * 10000 + (count - 1) % 100);
		MPI_Scatter(out, count, MPI_INT, in, count, MPI_INT, 0, MPI_COMM_WORLD);
		CHECK(in[0] == rank * 100);
		MPI_Gather(out, count, MPI_INT, in, count, MPI_INT, 0, MPI_COMM_WORLD);
		for (int from = 0; from < size && rank == 0; from++)
			CHECK(in[from * count] == from * 10000);
		free(out);
		free(in);
	}
}

static void nonblocking(void)
{
	enum { TURNS = 50 };
	int in[TURNS], out[TURNS];
	MPI_Request requests[TURNS];
	for (int at = 0; at < TURNS; at++) {
		out[at] = rank + at;
		MPI_Iallreduce(&out[at], &in[at], 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[at]);
	}
	MPI_Waitall(TURNS, requests, MPI_STATUSES_IGNORE);
	for (int at = 0; at < TURNS; at++)
		CHECK(in[at] == size * (size - 1) / 2 + size * at);
	MPI_Ibarrier(MPI_COMM_WORLD, &requests[0]);
	MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
}

static void barriers(void)
{
	for (int turn = 0; turn < 1000; turn++)
		MPI_Barrier(MPI_COMM_WORLD);
}

static const int window_bytes[] = { 8, 100, 5000, 40000, 1 << 20 };

static void put_and_get(void)
{
	int right = (rank + 1) % size, left = (rank + size - 1) % size;
	for (int at = 0; at < 5; at++) {
		int len = window_bytes[at];
		unsigned char *memory, *bytes = malloc(len);
		MPI_Win window;
		MPI_Win_allocate(len, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
		memset(memory, 0, len);
		fill(bytes, len, rank + at);
		MPI_Win_fence(0, window);
		MPI_Put(bytes, len, MPI_BYTE, right, 0, len, MPI_BYTE, window);
		MPI_Win_fence(0, window);
		CHECK(is_filled(memory, len, left + at));
		memset(bytes, 0, len);
		MPI_Win_fence(0, window);
		MPI_Get(bytes, len, MPI_BYTE, right, 0, len, MPI_BYTE, window);
		MPI_Win_fence(0, window);
		CHECK(is_filled(bytes, len, rank + at));
		MPI_Win_free(&window);
		free(bytes);
	}
}

static void accumulate(void)
{
	enum { COUNT = 5000 };
	long *memory;
	static long ones[COUNT];
	MPI_Win window;
	MPI_Win_allocate(COUNT * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
	for (int at = 0; at < COUNT; at++)
		memory[at] = 0, ones[at] = at + 1;
	MPI_Win_fence(0, window);
	for (int to = 0; to < size; to++)
		MPI_Accumulate(ones, COUNT, MPI_LONG, to, 0, COUNT, MPI_LONG, MPI_SUM, window);
	MPI_Win_fence(0, window);
	for (int at = 0; at < COUNT; at++)
		CHECK(memory[at] == (long)size * (at + 1));
	MPI_Win_free(&window);
}

static void locks_and_counters(void)
{
	enum { TURNS = 300 };
	long *memory, one = 1, before;
	static char seen[64 * TURNS];
	MPI_Win window;
	MPI_Win_allocate(2 * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
	MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
	memory[0] = memory[1] = 0;
	MPI_Win_unlock(rank, window);
	MPI_Barrier(MPI_COMM_WORLD);
	memset(seen, 0, sizeof seen);
	MPI_Win_lock_all(0, window);
	for (int turn = 0; turn < TURNS; turn++) {
		MPI_Fetch_and_op(&one, &before, MPI_LONG, 0, 0, MPI_SUM, window);
		MPI_Win_flush(0, window);
		CHECK(before >= 0 && before < (long)TURNS * size && !seen[before]);
		seen[before] = 1;
	}
	MPI_Win_unlock_all(window);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
		CHECK(memory[0] == (long)TURNS * size);
		MPI_Win_unlock(0, window);
	}
	MPI_Win_free(&window);
}

/* Open MPI's osc/rdma goes through a null pointer here (open-mpi/ompi issue 9146), whatever provider it runs on. */
#ifndef OPEN_MPI
/* Each adds one by comparing and swapping until it was the one. */
static void compare_and_swap(void)
{
	long *memory, compared, expected = 0;
	MPI_Win window;
	MPI_Win_allocate(sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
	MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, window);
	memory[0] = 0;
	MPI_Win_unlock(rank, window);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, window);
	for (;;) {
		long next = expected + 1;
		MPI_Compare_and_swap(&next, &expected, &compared, MPI_LONG, 0, 0, window);
		MPI_Win_flush(0, window);
		if (compared == expected)
			break;
		expected = compared;
	}
	MPI_Win_unlock_all(window);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
		CHECK(memory[0] == size);
		MPI_Win_unlock(0, window);
	}
	MPI_Win_free(&window);
}
#endif

static void started_and_completed(void)
{
	int value = rank, *memory, others[64], count = 0;
	MPI_Win window;
	MPI_Group world, group;
	MPI_Win_allocate(size * sizeof(int), sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
	for (int at = 0; at < size; at++) {
		memory[at] = at == rank ? rank : -1;
		if (at != rank)
			others[count++] = at;
	}
	MPI_Comm_group(MPI_COMM_WORLD, &world);
	MPI_Group_incl(world, count, others, &group);
	MPI_Win_post(group, 0, window);
	MPI_Win_start(group, 0, window);
	for (int at = 0; at < count; at++)
		MPI_Put(&value, 1, MPI_INT, others[at], rank, 1, MPI_INT, window);
	MPI_Win_complete(window);
	MPI_Win_wait(window);
	for (int at = 0; at < size; at++)
		CHECK(memory[at] == at);
	MPI_Group_free(&world);
	MPI_Group_free(&group);
	MPI_Win_free(&window);
}

static void windows_of_derived_types(void)
{
	enum { N = 64 };
	static int memory[N][N], out[N][N];
	int right = (rank + 1) % size, left = (rank + size - 1) % size;
	MPI_Datatype column;
	MPI_Win window;
	for (int row = 0; row < N; row++)
		for (int at = 0; at < N; at++)
			memory[row][at] = 0, out[row][at] = rank * 10000 + row * N + at;
	MPI_Type_vector(N, 1, N, MPI_INT, &column);
	MPI_Type_commit(&column);
	MPI_Win_create(memory, sizeof memory, sizeof(int), MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	MPI_Win_fence(0, window);
	for (int at = 0; at < N; at++)
		MPI_Put(&out[0][at], 1, column, right, N - 1 - at, 1, column, window);
	MPI_Win_fence(0, window);
	for (int row = 0; row < N; row++)
		for (int at = 0; at < N; at++)
			CHECK(memory[row][N - 1 - at] == left * 10000 + row * N + at);
	MPI_Win_free(&window);
	MPI_Type_free(&column);
}

static const struct test tests[] = {
	{ "broadcasts", broadcasts },
	{ "reductions", reductions },
	{ "exchanges", exchanges },
	{ "nonblocking", nonblocking },
	{ "barriers", barriers },
	{ "put_and_get", put_and_get },
	{ "accumulate", accumulate },
	{ "locks_and_counters", locks_and_counters },
#ifndef OPEN_MPI
	{ "compare_and_swap", compare_and_swap },
#endif
	{ "started_and_completed", started_and_completed },
	{ "windows_of_derived_types", windows_of_derived_types },
	{ NULL, NULL },
};

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	return run_tests(argc, argv, tests);
}
