/*
 * What hurts: very many messages, very long ones, many ranks, threads, children, other allocators, a rank that dies.
 *
 *   mpirun -n 2..64 stress CASE
 */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* 100,000 unexpected messages of 1 KiB, received from the last to the first sixteenth. */
static void hundred_thousand_unexpected(void)
{
	enum { MANY = 100000, BYTES = 1024, GROUPS = 16 };
	unsigned char bytes[BYTES];
	if (rank == 1) {
		for (int at = 0; at < MANY; at++) {
			fill(bytes, BYTES, at);
			MPI_Send(bytes, BYTES, MPI_BYTE, 0, at % GROUPS, MPI_COMM_WORLD);
		}
		MPI_Send(NULL, 0, MPI_BYTE, 0, 99, MPI_COMM_WORLD);
	} else if (rank == 0) {
		MPI_Recv(NULL, 0, MPI_BYTE, 1, 99, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int group = GROUPS - 1; group >= 0; group--)
			for (int at = group; at < MANY; at += GROUPS) {
				MPI_Recv(bytes, BYTES, MPI_BYTE, 1, group, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				CHECK(is_filled(bytes, BYTES, at));
			}
	}
}

/* One message of 3 GiB, twice: the first time its pages are private, the second time they may be shared. */
static void three_gigabytes(void)
{
	size_t len = 3ul << 30;
	unsigned char *bytes;
	MPI_Datatype megabyte;
	if (rank > 1)
		return;
	bytes = malloc(len);
	CHECK(bytes);
	MPI_Type_contiguous(1 << 20, MPI_BYTE, &megabyte);
	MPI_Type_commit(&megabyte);
	for (int turn = 0; turn < 2; turn++) {
		if (rank == 0) {
			for (size_t at = 0; at < len; at += 4096)
				bytes[at] = pattern(turn, at), bytes[at + 4095] = pattern(turn, at + 1);
			MPI_Send(bytes, 3 << 10, megabyte, 1, 1, MPI_COMM_WORLD);
			MPI_Recv(NULL, 0, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		} else {
			memset(bytes, 0, len);
			MPI_Recv(bytes, 3 << 10, megabyte, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			for (size_t at = 0; at < len; at += 4096)
				CHECK(bytes[at] == pattern(turn, at) && bytes[at + 4095] == pattern(turn, at + 1));
			MPI_Send(NULL, 0, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
		}
	}
	MPI_Type_free(&megabyte);
	free(bytes);
}

/* Children in the middle of transfers: by fork, system and popen; they write what they have of their parent's memory. */
static void children(void)
{
	enum { BYTES = 300000 };
	int other = rank ^ 1;
	unsigned char *out = malloc(BYTES), *in = malloc(BYTES);
	if (other >= size)
		other = MPI_PROC_NULL;
	for (int turn = 0; turn < 30; turn++) {
		MPI_Request requests[2];
		int status = 0;
		fill(out, BYTES, rank + turn);
		memset(in, 0, BYTES);
		MPI_Irecv(in, BYTES, MPI_BYTE, other, turn, MPI_COMM_WORLD, &requests[0]);
		MPI_Isend(out, BYTES, MPI_BYTE, other, turn, MPI_COMM_WORLD, &requests[1]);
		if (turn % 3 == 0) {
			pid_t child = fork();
			if (child == 0) {
				int right = is_filled(out, BYTES, rank + turn);
				memset(out, 7, BYTES);
				memset(in, 7, BYTES);
				_exit(right ? 42 : 1);
			}
			CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 42);
		} else if (turn % 3 == 1) {
			CHECK(system("exit 0") == 0);
		} else {
			FILE *pipe = popen("echo said", "r");
			char line[16] = "";
			CHECK(pipe && fgets(line, sizeof line, pipe) && !strcmp(line, "said\n"));
			pclose(pipe);
		}
		MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
		CHECK(other == MPI_PROC_NULL || is_filled(in, BYTES, other + turn));
		CHECK(is_filled(out, BYTES, rank + turn));
	}
	free(out);
	free(in);
}

/* Each to each, many times, with more processes than processors. */
static void crowd(void)
{
	int *out = malloc(size * sizeof(int)), *in = malloc(size * sizeof(int)), sum;
	for (int turn = 0; turn < 20; turn++) {
		for (int to = 0; to < size; to++)
			out[to] = rank * 1000 + to + turn;
		MPI_Alltoall(out, 1, MPI_INT, in, 1, MPI_INT, MPI_COMM_WORLD);
		for (int from = 0; from < size; from++)
			CHECK(in[from] == from * 1000 + rank + turn);
		MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
		CHECK(sum == size * (size - 1) / 2);
	}
	free(out);
	free(in);
}

enum { THREADS = 4, THREAD_TURNS = 300 };

static void *thread(void *number)
{
	int own = (int)(intptr_t)number, right = (rank + 1) % size, left = (rank + size - 1) % size;
	unsigned char *out = malloc(100000), *in = malloc(100000);
	for (int turn = 0; turn < THREAD_TURNS; turn++) {
		int len = turn % 10 == 0 ? 100000 : turn % 3 == 0 ? 5000 : 8;
		fill(out, len, rank * 1000 + own * 100 + turn);
		MPI_Sendrecv(out, len, MPI_BYTE, right, own, in, len, MPI_BYTE, left, own, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		CHECK(is_filled(in, len, left * 1000 + own * 100 + turn));
	}
	free(out);
	free(in);
	return NULL;
}

static void threads(void)
{
	pthread_t all[THREADS];
	int provided;
	MPI_Query_thread(&provided);
	CHECK(provided == MPI_THREAD_MULTIPLE);
	for (intptr_t at = 0; at < THREADS; at++)
		CHECK(pthread_create(&all[at], NULL, thread, (void *)at) == 0);
	for (int at = 0; at < THREADS; at++)
		pthread_join(all[at], NULL);
}

/* The last rank is killed; the others wait for a message from it, and must not wait for ever. */
static void killed(void)
{
	int value = 0;
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == size - 1)
		raise(SIGKILL);
	MPI_Recv(&value, 1, MPI_INT, size - 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	CHECK(!"a message from the dead");
}

/* Rank 1 computes for some seconds before it has anything to do with the others. */
static void late(void)
{
	int value = rank, sum;
	if (rank == 1)
		sleep(3);
	MPI_Allreduce(&value, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	CHECK(sum == size * (size - 1) / 2);
}

static char state_of(pid_t pid)
{
	char name[64], state = 0;
	snprintf(name, sizeof name, "/proc/%d/stat", (int)pid);
	FILE *stat = fopen(name, "r");
	CHECK(stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1);
	fclose(stat);
	return state;
}

/* Rank 1 is stopped, and rank 0 reads and writes its window all the same. */
static void stopped(void)
{
	enum { BYTES = 1 << 20, TRIES = 1000 };
	unsigned char *memory = aligned_alloc(4096, BYTES), *mine = malloc(BYTES);
	MPI_Win window;
	pid_t pid = getpid();
	fill(memory, BYTES, rank);
	MPI_Win_create(memory, BYTES, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	MPI_Bcast(&pid, sizeof pid, MPI_BYTE, 1, MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
		/* The way to the other one is made while it runs, and not before it is needed. */
		for (int over = 0, attempt = 0; !over; attempt++) {
			MPI_Request request;
			CHECK(attempt < TRIES && !kill(pid, SIGSTOP));
			while (state_of(pid) != 'T')
				;
			MPI_Rget(mine, BYTES, MPI_BYTE, 1, 0, BYTES, MPI_BYTE, window, &request);
			for (int turn = 0; turn < 10000 && !over; turn++)
				MPI_Test(&request, &over, MPI_STATUS_IGNORE);
			if (!over) {
				kill(pid, SIGCONT);
				MPI_Wait(&request, MPI_STATUS_IGNORE);
			}
		}
		CHECK(is_filled(mine, BYTES, 1));
		fill(mine, BYTES, 7);
		MPI_Put(mine, BYTES, MPI_BYTE, 1, 0, BYTES, MPI_BYTE, window);
		MPI_Win_flush(1, window);
		memset(mine, 0, BYTES);
		MPI_Get(mine, BYTES, MPI_BYTE, 1, 0, BYTES, MPI_BYTE, window);
		MPI_Win_flush(1, window);
		CHECK(is_filled(mine, BYTES, 7) && state_of(pid) == 'T');
		CHECK(!kill(pid, SIGCONT));
		MPI_Win_unlock_all(window);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	CHECK(rank != 1 || is_filled(memory, BYTES, 7));
	MPI_Win_free(&window);
	free(memory);
	free(mine);
}

/* What only one allocator has: null where another one is at work. */
extern __attribute__((weak)) int mallctl(const char *, void *, size_t *, void *, size_t);
extern __attribute__((weak)) void MallocExtension_ReleaseFreeMemory(void);

/* The arena of all arenas is purged. */
static void purge_jemalloc(void)
{
	CHECK(mallctl("arena.4096.purge", NULL, NULL, NULL, 0) == 0);
}

/* Memory of an allocator, in one of the ways to ask for it. What is to be zeroes is. */
static unsigned char *allocated(size_t len, int turn)
{
	unsigned char *bytes = turn % 3 == 0 ? calloc(1, len) : turn % 3 == 1 ? malloc(len) : aligned_alloc(4096, (len + 4095) & ~4095ul);
	CHECK(bytes);
	for (size_t at = 0; turn % 3 == 0 && at < len; at++)
		CHECK(bytes[at] == 0);
	return bytes;
}

/* Buffers are sent from and received into until they are worth being shared, grow, are written into by the other one, and go back to the
 * allocator, which hands them out again, after it has given some of them back to the system. */
static void allocated_again(void (*give_back)(void))
{
	enum { TURNS = 45, USES = 3, SIZES = 5 };
	static const size_t sizes[SIZES] = { 70000, 1 << 20, 300000, 5000, 1500000 };
	int other = rank ^ 1, again = 0;
	uintptr_t starts[TURNS], ends[TURNS];
	if (other >= size)
		other = MPI_PROC_NULL;
	for (int turn = 0; turn < TURNS; turn++) {
		size_t len = sizes[turn % SIZES], more = len + len / 2;
		unsigned char *out = allocated(len, turn), *in = allocated(more, turn + 1);
		starts[turn] = (uintptr_t)out;
		ends[turn] = starts[turn] + len;
		/* Allocators may move a buffer within its pages at random, so its first byte says little. */
		for (int before = 0; before < turn; before++) {
			if (starts[before] < ends[turn] && starts[turn] < ends[before]) {
				again++;
				break;
			}
		}
		for (int use = 0; use < USES; use++) {
			fill(out, len, rank * 1000 + turn + use);
			MPI_Sendrecv(out, len, MPI_BYTE, other, use, in, len, MPI_BYTE, other, use, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			CHECK(other == MPI_PROC_NULL || is_filled(in, len, other * 1000 + turn + use));
		}
		out = realloc(out, more);
		CHECK(out && is_filled(out, len, rank * 1000 + turn + USES - 1));
		fill(out, more, rank + turn);
		MPI_Sendrecv(out, more, MPI_BYTE, other, USES, in, more, MPI_BYTE, other, USES, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		CHECK(other == MPI_PROC_NULL || is_filled(in, more, other + turn));
		if (turn % 4 == 0) {
			MPI_Win window;
			MPI_Win_create(in, more, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
			MPI_Win_fence(0, window);
			MPI_Put(out, more, MPI_BYTE, other, 0, more, MPI_BYTE, window);
			MPI_Win_fence(0, window);
			CHECK(other == MPI_PROC_NULL || is_filled(in, more, other + turn));
			MPI_Win_free(&window);
		}
		free(out);
		free(in);
		if (turn % 8 == 7)
			give_back();
	}
	CHECK(again > 0);
}

static void jemalloc(void)
{
	CHECK(mallctl);
	allocated_again(purge_jemalloc);
}

static void tcmalloc(void)
{
	CHECK(MallocExtension_ReleaseFreeMemory);
	allocated_again(MallocExtension_ReleaseFreeMemory);
}

static const struct test tests[] = {
	{ "hundred_thousand_unexpected", hundred_thousand_unexpected },
	{ "three_gigabytes", three_gigabytes },
	{ "children", children },
	{ "crowd", crowd },
	{ "threads", threads },
	{ "killed", killed },
	{ "late", late },
	{ "stopped", stopped },
	{ "jemalloc", jemalloc },
	{ "tcmalloc", tcmalloc },
	{ NULL, NULL },
};

int main(int argc, char **argv)
{
	int provided, wanted = argc > 1 && !strcmp(argv[1], "threads") ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
	MPI_Init_thread(&argc, &argv, wanted, &provided);
	return run_tests(argc, argv, tests);
}
