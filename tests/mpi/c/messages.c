/*
 * Messages between ranks, as programs of MPI know them: each length that takes another way, each kind of send, order, tags,
 * wildcards, probes, truncation, cancellation, derived datatypes, communicators, threads' worth of requests at once.
 *
 *   mpirun -n 2..8 messages [CASE ...]
 */
#include "check.h"

static const int lengths[] = { 0, 1, 7, 8, 40, 100, 112, 113, 120, 128, 129, 1000, 4096, 4097, 16384, 32767, 32768, 32769,
			       65536, 100001, 1 << 20, (3 << 20) + 17, 4 << 20 };
#define LENGTHS (int)(sizeof lengths / sizeof *lengths)

static int partner(void)
{
	int other = rank ^ 1;
	return other < size ? other : MPI_PROC_NULL;
}

static void ring_of_lengths(void)
{
	int right = (rank + 1) % size, left = (rank + size - 1) % size;
	for (int at = 0; at < LENGTHS; at++) {
		int len = lengths[at];
		unsigned char *out = malloc(len + 1), *in = calloc(1, len + 1);
		for (int turn = 0; turn < 3; turn++) {
			MPI_Status status;
			int count;
			fill(out, len, rank * 100 + at + turn);
			in[len] = 99;
			MPI_Sendrecv(out, len, MPI_BYTE, right, at, in, len, MPI_BYTE, left, at, MPI_COMM_WORLD, &status);
			MPI_Get_count(&status, MPI_BYTE, &count);
			CHECK(count == len && status.MPI_SOURCE == left && status.MPI_TAG == at);
			CHECK(is_filled(in, len, left * 100 + at + turn) && in[len] == 99);
		}
		free(out);
		free(in);
	}
}

static void unexpected_lengths(void)
{
	int other = partner();
	unsigned char *out[LENGTHS], *in = malloc(4 << 20);
	MPI_Request requests[LENGTHS];
	for (int at = 0; at < LENGTHS; at++) {
		out[at] = malloc(lengths[at] + 1);
		fill(out[at], lengths[at], rank + at);
		MPI_Isend(out[at], lengths[at], MPI_BYTE, other, at, MPI_COMM_WORLD, &requests[at]);
	}
	/* The last first: everything before it is there, or announced, and unexpected. */
	for (int at = LENGTHS - 1; at >= 0 && other != MPI_PROC_NULL; at--) {
		MPI_Recv(in, lengths[at], MPI_BYTE, other, at, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		CHECK(is_filled(in, lengths[at], other + at));
	}
	MPI_Waitall(LENGTHS, requests, MPI_STATUSES_IGNORE);
	for (int at = 0; at < LENGTHS; at++)
		free(out[at]);
	free(in);
}

static void order_across_lengths(void)
{
	enum { MESSAGES = 400 };
	int other = partner();
	MPI_Request requests[MESSAGES];
	int *out[MESSAGES], *in = malloc(200000);
	if (other == MPI_PROC_NULL)
		return;
	for (int at = 0; at < MESSAGES; at++) {
		int words = 1 + lengths[at * 7 % 19] / 4;
		out[at] = malloc(4 * words);
		for (int word = 0; word < words; word++)
			out[at][word] = at;
		MPI_Isend(out[at], words, MPI_INT, other, 5, MPI_COMM_WORLD, &requests[at]);
	}
	for (int at = 0; at < MESSAGES; at++) {
		MPI_Status status;
		int words;
		MPI_Recv(in, 50000, MPI_INT, at % 2 ? MPI_ANY_SOURCE : other, at % 3 ? MPI_ANY_TAG : 5, MPI_COMM_WORLD, &status);
		MPI_Get_count(&status, MPI_INT, &words);
		CHECK(words == 1 + lengths[at * 7 % 19] / 4 && in[0] == at && in[words - 1] == at);
	}
	MPI_Waitall(MESSAGES, requests, MPI_STATUSES_IGNORE);
	for (int at = 0; at < MESSAGES; at++)
		free(out[at]);
	free(in);
}

static void kinds_of_sends(void)
{
	int other = partner();
	if (other == MPI_PROC_NULL)
		return;
	for (int at = 0; at < LENGTHS; at++) {
		int len = lengths[at];
		unsigned char *out = malloc(len + 1), *in = malloc(len + 1), *attached = malloc(len + MPI_BSEND_OVERHEAD + 64);
		MPI_Request request, synchronous;
		void *detached;
		int bytes;
		fill(out, len, at);
		/* Synchronous: not over before it is received. */
		MPI_Irecv(in, len, MPI_BYTE, other, 1, MPI_COMM_WORLD, &request);
		MPI_Issend(out, len, MPI_BYTE, other, 1, MPI_COMM_WORLD, &synchronous);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		MPI_Wait(&synchronous, MPI_STATUS_IGNORE);
		CHECK(is_filled(in, len, at));
		/* Ready: the receive is posted. */
		memset(in, 0, len);
		MPI_Irecv(in, len, MPI_BYTE, other, 2, MPI_COMM_WORLD, &request);
		MPI_Sendrecv(NULL, 0, MPI_BYTE, other, 3, NULL, 0, MPI_BYTE, other, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Rsend(out, len, MPI_BYTE, other, 2, MPI_COMM_WORLD);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		CHECK(is_filled(in, len, at));
		/* Buffered: ours again at once. */
		memset(in, 0, len);
		MPI_Buffer_attach(attached, len + MPI_BSEND_OVERHEAD + 64);
		MPI_Bsend(out, len, MPI_BYTE, other, 4, MPI_COMM_WORLD);
		memset(out, 0, len);
		MPI_Recv(in, len, MPI_BYTE, other, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		CHECK(is_filled(in, len, at));
		MPI_Buffer_detach(&detached, &bytes);
		free(out);
		free(in);
		free(attached);
	}
}

static void synchronous_waits(void)
{
	int other = partner(), flag, one = 1, got = 0;
	MPI_Request request;
	if (other == MPI_PROC_NULL)
		return;
	if (rank < other) {
		MPI_Issend(&one, 1, MPI_INT, other, 1, MPI_COMM_WORLD, &request);
		/* The other one answers before it receives: so far the send cannot be over. */
		MPI_Recv(&got, 1, MPI_INT, other, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
		CHECK(!flag);
		MPI_Send(&one, 1, MPI_INT, other, 3, MPI_COMM_WORLD);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
	} else {
		MPI_Send(&one, 1, MPI_INT, other, 2, MPI_COMM_WORLD);
		MPI_Recv(&got, 1, MPI_INT, other, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Recv(&got, 1, MPI_INT, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	}
}

static void wildcards(void)
{
	if (rank == 0) {
		int seen[64] = { 0 };
		for (int at = 0; at < 3 * (size - 1); at++) {
			int value;
			MPI_Status status;
			MPI_Recv(&value, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
			CHECK(value == status.MPI_SOURCE * 10 + status.MPI_TAG);
			CHECK(status.MPI_TAG == seen[status.MPI_SOURCE]++);
		}
	} else {
		for (int tag = 0; tag < 3; tag++) {
			int value = rank * 10 + tag;
			MPI_Send(&value, 1, MPI_INT, 0, tag, MPI_COMM_WORLD);
		}
	}
}

static void tags_up_to_the_highest(void)
{
	int other = partner(), flag, *upper, value = rank, got = -1;
	MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &upper, &flag);
	CHECK(flag && *upper >= 32767);
	MPI_Sendrecv(&value, 1, MPI_INT, other, *upper, &got, 1, MPI_INT, other, *upper, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	CHECK(other == MPI_PROC_NULL || got == other);
}

static void probes(void)
{
	int other = partner();
	if (other == MPI_PROC_NULL)
		return;
	for (int at = 0; at < LENGTHS; at++) {
		int len = lengths[at], flag = 0, count;
		unsigned char *out = malloc(len + 1), *in = malloc(len + 1);
		MPI_Request request;
		MPI_Status status;
		MPI_Message message;
		fill(out, len, rank + at);
		MPI_Isend(out, len, MPI_BYTE, other, at, MPI_COMM_WORLD, &request);
		if (at % 3 == 0) {
			MPI_Probe(other, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
		} else {
			while (!flag)
				MPI_Iprobe(MPI_ANY_SOURCE, at, MPI_COMM_WORLD, &flag, &status);
		}
		MPI_Get_count(&status, MPI_BYTE, &count);
		CHECK(count == len && status.MPI_TAG == at && status.MPI_SOURCE == other);
		if (at % 2) {
			MPI_Mprobe(other, at, MPI_COMM_WORLD, &message, &status);
			MPI_Get_count(&status, MPI_BYTE, &count);
			CHECK(count == len);
			/* It is ours now: no other receive finds it. */
			MPI_Iprobe(other, at, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
			CHECK(!flag);
			MPI_Mrecv(in, len, MPI_BYTE, &message, &status);
		} else {
			MPI_Recv(in, len, MPI_BYTE, other, at, MPI_COMM_WORLD, &status);
		}
		CHECK(is_filled(in, len, other + at));
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		free(out);
		free(in);
	}
}

static void truncation(void)
{
	int other = partner();
	MPI_Errhandler before;
	if (other == MPI_PROC_NULL)
		return;
	MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	for (int at = 1; at < LENGTHS; at++) {
		int len = lengths[at], class, code;
		unsigned char *out = malloc(len), *in = malloc(len + 1);
		MPI_Request request;
		fill(out, len, at);
		in[len / 2] = 99;
		MPI_Isend(out, len, MPI_BYTE, other, at, MPI_COMM_WORLD, &request);
		code = MPI_Recv(in, len / 2, MPI_BYTE, other, at, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Error_class(code, &class);
		CHECK(class == MPI_ERR_TRUNCATE && in[len / 2] == 99);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		/* And the next one is whole. */
		MPI_Sendrecv(out, len, MPI_BYTE, other, 0, in, len, MPI_BYTE, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		CHECK(is_filled(in, len, at));
		free(out);
		free(in);
	}
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, before);
}

static void cancellation(void)
{
	int other = partner(), cancelled, value = rank, got = -1;
	MPI_Request request;
	MPI_Status status;
	MPI_Irecv(&got, 1, MPI_INT, MPI_ANY_SOURCE, 7, MPI_COMM_WORLD, &request);
	MPI_Cancel(&request);
	MPI_Wait(&request, &status);
	MPI_Test_cancelled(&status, &cancelled);
	CHECK(cancelled);
	MPI_Barrier(MPI_COMM_WORLD);
	/* What is sent now goes to the next receive, not to the one that was cancelled. */
	MPI_Sendrecv(&value, 1, MPI_INT, other, 7, &got, 1, MPI_INT, other, 7, MPI_COMM_WORLD, &status);
	CHECK(other == MPI_PROC_NULL || got == other);
}

static void derived_datatypes(void)
{
	enum { ROWS = 300, COLUMNS = 50 };
	int other = partner();
	static int out[ROWS][COLUMNS], in[ROWS][COLUMNS];
	MPI_Datatype column, resized, record;
	struct { char letter; double number; short words[3]; } mine = { 'a' + rank, rank + 0.5, { 1, 2, 3 } }, theirs = { 0 };
	int counts[] = { 1, 1, 3 };
	MPI_Aint places[] = { (char *)&mine.letter - (char *)&mine, (char *)&mine.number - (char *)&mine,
			      (char *)&mine.words - (char *)&mine };
	MPI_Datatype types[] = { MPI_CHAR, MPI_DOUBLE, MPI_SHORT };
	if (other == MPI_PROC_NULL)
		return;
	for (int row = 0; row < ROWS; row++)
		for (int at = 0; at < COLUMNS; at++)
			out[row][at] = rank * 1000000 + row * COLUMNS + at, in[row][at] = -1;
	MPI_Type_vector(ROWS, 1, COLUMNS, MPI_INT, &column);
	MPI_Type_create_resized(column, 0, sizeof(int), &resized);
	MPI_Type_commit(&resized);
	/* Columns there, rows here: the transposed half of the matrix. */
	MPI_Sendrecv(out, COLUMNS / 2, resized, other, 1, in, ROWS * (COLUMNS / 2), MPI_INT, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	for (int at = 0; at < ROWS * (COLUMNS / 2); at++)
		CHECK((&in[0][0])[at] == other * 1000000 + at % ROWS * COLUMNS + at / ROWS);
	MPI_Type_create_struct(3, counts, places, types, &record);
	MPI_Type_commit(&record);
	MPI_Sendrecv(&mine, 1, record, other, 2, &theirs, 1, record, other, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	CHECK(theirs.letter == 'a' + other && theirs.number == other + 0.5 && theirs.words[2] == 3);
	MPI_Type_free(&column);
	MPI_Type_free(&resized);
	MPI_Type_free(&record);
}

static void communicators(void)
{
	MPI_Comm half, copy, reversed;
	int half_rank, half_size, value, got = -1;
	MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
	MPI_Comm_rank(half, &half_rank);
	MPI_Comm_size(half, &half_size);
	value = rank;
	MPI_Sendrecv(&value, 1, MPI_INT, (half_rank + 1) % half_size, 1, &got, 1, MPI_INT, (half_rank + half_size - 1) % half_size, 1, half,
		     MPI_STATUS_IGNORE);
	CHECK(got % 2 == rank % 2);
	/* The same tag in two communicators is two messages. */
	MPI_Comm_dup(MPI_COMM_WORLD, &copy);
	if (partner() != MPI_PROC_NULL) {
		int first = 1, second = 2, a = 0, b = 0;
		MPI_Request requests[2];
		MPI_Isend(&first, 1, MPI_INT, partner(), 1, MPI_COMM_WORLD, &requests[0]);
		MPI_Isend(&second, 1, MPI_INT, partner(), 1, copy, &requests[1]);
		MPI_Recv(&b, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, copy, MPI_STATUS_IGNORE);
		MPI_Recv(&a, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		CHECK(a == 1 && b == 2);
		MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
	}
	MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &reversed);
	MPI_Comm_rank(reversed, &half_rank);
	CHECK(half_rank == size - 1 - rank);
	MPI_Comm_free(&half);
	MPI_Comm_free(&copy);
	MPI_Comm_free(&reversed);
}

static void to_oneself(void)
{
	for (int at = 0; at < LENGTHS; at++) {
		int len = lengths[at];
		unsigned char *out = malloc(len + 1), *in = calloc(1, len + 1);
		MPI_Request requests[2];
		fill(out, len, at);
		MPI_Isend(out, len, MPI_BYTE, rank, 1, MPI_COMM_WORLD, &requests[0]);
		MPI_Irecv(in, len, MPI_BYTE, rank, 1, MPI_COMM_WORLD, &requests[1]);
		MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
		CHECK(is_filled(in, len, at));
		free(out);
		free(in);
	}
}

static void persistent(void)
{
	int other = partner(), out = 0, in = -1;
	MPI_Request requests[2];
	MPI_Send_init(&out, 1, MPI_INT, other, 1, MPI_COMM_WORLD, &requests[0]);
	MPI_Recv_init(&in, 1, MPI_INT, other, 1, MPI_COMM_WORLD, &requests[1]);
	for (int turn = 0; turn < 100; turn++) {
		out = rank * 1000 + turn;
		MPI_Startall(2, requests);
		MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
		CHECK(other == MPI_PROC_NULL || in == other * 1000 + turn);
	}
	MPI_Request_free(&requests[0]);
	MPI_Request_free(&requests[1]);
}

/* Buffers that are freed and allocated again between sends: what was remembered of their pages must not be believed. */
static void buffers_come_and_go(void)
{
	int other = partner();
	if (other == MPI_PROC_NULL)
		return;
	for (int turn = 0; turn < 200; turn++) {
		int len = (1 << 20) + turn * 4096 % 65536 + turn;
		unsigned char *out = malloc(len), *in = malloc(len);
		for (int again = 0; again < 3; again++) {
			fill(out, 4096, turn + again);
			fill(out + len - 4096, 4096, turn - again);
			MPI_Sendrecv(out, len, MPI_BYTE, other, 1, in, len, MPI_BYTE, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			CHECK(is_filled(in, 4096, turn + again) && is_filled(in + len - 4096, 4096, turn - again));
		}
		free(out);
		free(in);
	}
}

static void many_at_once(void)
{
	enum { MANY = 3000 };
	int other = partner();
	static int out[MANY], in[MANY];
	static MPI_Request requests[2 * MANY];
	for (int at = 0; at < MANY; at++) {
		in[at] = -1, out[at] = rank * MANY + at;
		MPI_Irecv(&in[at], 1, MPI_INT, other, MANY - at, MPI_COMM_WORLD, &requests[at]);
	}
	for (int at = 0; at < MANY; at++)
		MPI_Isend(&out[at], 1, MPI_INT, other, at + 1, MPI_COMM_WORLD, &requests[MANY + at]);
	MPI_Waitall(2 * MANY, requests, MPI_STATUSES_IGNORE);
	for (int at = 0; at < MANY && other != MPI_PROC_NULL; at++)
		CHECK(in[at] == other * MANY + MANY - at - 1);
}

/* Long sends both ways before any receive: more than any queue has places for. */
static void long_sends_both_ways(void)
{
	enum { SENDS = 3000, BYTES = 40000 };
	int other = partner();
	MPI_Request *requests = malloc(SENDS * sizeof *requests);
	unsigned char *out = malloc(BYTES), *in = malloc(BYTES);
	fill(out, BYTES, rank);
	for (int at = 0; at < SENDS; at++)
		MPI_Isend(out, BYTES, MPI_BYTE, other, at, MPI_COMM_WORLD, &requests[at]);
	for (int at = 0; at < SENDS && other != MPI_PROC_NULL; at++) {
		MPI_Recv(in, BYTES, MPI_BYTE, other, at, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		CHECK(at % 100 || is_filled(in, BYTES, other));
	}
	MPI_Waitall(SENDS, requests, MPI_STATUSES_IGNORE);
	free(requests);
	free(out);
	free(in);
}

static const struct test tests[] = {
	{ "ring_of_lengths", ring_of_lengths },
	{ "unexpected_lengths", unexpected_lengths },
	{ "order_across_lengths", order_across_lengths },
	{ "kinds_of_sends", kinds_of_sends },
	{ "synchronous_waits", synchronous_waits },
	{ "wildcards", wildcards },
	{ "tags_up_to_the_highest", tags_up_to_the_highest },
	{ "probes", probes },
	{ "truncation", truncation },
	{ "cancellation", cancellation },
	{ "derived_datatypes", derived_datatypes },
	{ "communicators", communicators },
	{ "to_oneself", to_oneself },
	{ "persistent", persistent },
	{ "buffers_come_and_go", buffers_come_and_go },
	{ "many_at_once", many_at_once },
	{ "long_sends_both_ways", long_sends_both_ways },
	{ NULL, NULL },
};

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	return run_tests(argc, argv, tests);
}
