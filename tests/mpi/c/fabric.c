/*
 * Calls of libfabric that no MPI makes, or with results that no MPI shows: two endpoints in one process, and where one has to wait or to
 * die, two processes.
 *
 *   fabric CASE | --list
 *   fabric talk       one of two processes: prints its name and reads the name of the other
 *   fabric asked WHY  memory is registered so that it has to be asked for, and is; then it waits to be told to go on
 */
#define _GNU_SOURCE
#include <linux/capability.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
			exit(1); \
		} \
	} while (0)
#define OK(call) \
	do { \
		long code_ = (call); \
		if (code_ < 0) { \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, fi_strerror((int)-code_)); \
			exit(1); \
		} \
	} while (0)

struct end {
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_cntr *done;
	struct fid_av *av;
	fi_addr_t other;
	char name[64];
	size_t name_len;
};

static uint64_t cq_flags = 0;
static enum fi_wait_obj wait_obj = FI_WAIT_NONE;

static void open_end(struct end *end)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED, .wait_obj = wait_obj };
	struct fi_av_attr av = { .type = FI_AV_TABLE };
	struct fi_cntr_attr cntr = { .events = FI_CNTR_EVENTS_COMP };
	memset(end, 0, sizeof *end);
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_MULTI_RECV | FI_DIRECTED_RECV | FI_SOURCE;
	hints->fabric_attr->prov_name = strdup("isthmus");
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info));
	CHECK(!strcmp(info->fabric_attr->prov_name, "isthmus"));
	info->tx_attr->op_flags = FI_COMPLETION;
	info->rx_attr->op_flags = FI_COMPLETION;
	OK(fi_fabric(info->fabric_attr, &end->fabric, NULL));
	OK(fi_domain(end->fabric, info, &end->domain, NULL));
	OK(fi_endpoint(end->domain, info, &end->ep, NULL));
	OK(fi_cq_open(end->domain, &cq, &end->cq, NULL));
	OK(fi_av_open(end->domain, &av, &end->av, NULL));
	OK(fi_cntr_open(end->domain, &cntr, &end->done, NULL));
	OK(fi_ep_bind(end->ep, &end->av->fid, 0));
	OK(fi_ep_bind(end->ep, &end->cq->fid, FI_TRANSMIT | FI_RECV | cq_flags));
	OK(fi_ep_bind(end->ep, &end->done->fid, FI_READ | FI_WRITE));
	OK(fi_enable(end->ep));
	end->name_len = sizeof end->name;
	OK(fi_getname(&end->ep->fid, end->name, &end->name_len));
	fi_freeinfo(info);
	fi_freeinfo(hints);
}

static void close_end(struct end *end)
{
	OK(fi_close(&end->ep->fid));
	OK(fi_close(&end->cq->fid));
	OK(fi_close(&end->done->fid));
	OK(fi_close(&end->av->fid));
	OK(fi_close(&end->domain->fid));
	OK(fi_close(&end->fabric->fid));
}

static struct end a, b;

static void open_both(void)
{
	open_end(&a);
	open_end(&b);
	CHECK(fi_av_insert(a.av, b.name, 1, &a.other, 0, NULL) == 1);
	CHECK(fi_av_insert(b.av, a.name, 1, &b.other, 0, NULL) == 1);
}

static void close_both(void)
{
	close_end(&a);
	close_end(&b);
}

static void turn_both(void)
{
	struct fi_cq_tagged_entry none;
	if (a.cq)
		fi_cq_read(a.cq, &none, 0);
	if (b.cq)
		fi_cq_read(b.cq, &none, 0);
}

/* The next completion of one, while the other goes on too. */
static struct fi_cq_tagged_entry next_from(struct end *end, fi_addr_t *source)
{
	struct fi_cq_tagged_entry entry;
	for (;;) {
		ssize_t read = fi_cq_readfrom(end->cq, &entry, 1, source);
		if (read == 1)
			return entry;
		CHECK(read == -FI_EAGAIN);
		turn_both();
	}
}

static struct fi_cq_tagged_entry next(struct end *end)
{
	fi_addr_t source;
	return next_from(end, &source);
}

static struct fi_cq_err_entry next_error(struct end *end)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error;
	memset(&error, 0, sizeof error);
	for (;;) {
		ssize_t read = fi_cq_read(end->cq, &entry, 1);
		CHECK(read == -FI_EAGAIN || read == -FI_EAVAIL);
		if (read == -FI_EAVAIL) {
			CHECK(fi_cq_readerr(end->cq, &error, 0) == 1);
			return error;
		}
		turn_both();
	}
}

static int nothing_comes(struct end *end)
{
	struct fi_cq_tagged_entry entry;
	for (int turn = 0; turn < 1000; turn++) {
		turn_both();
		if (fi_cq_read(end->cq, &entry, 1) != -FI_EAGAIN)
			return 0;
	}
	return 1;
}

static char here[8 << 20], there[8 << 20];

static void fill(char *bytes, size_t len, int seed)
{
	for (size_t at = 0; at < len; at++)
		bytes[at] = (char)(at * 31 + at / 251 + seed);
}

static int is_filled(const char *bytes, size_t len, int seed)
{
	for (size_t at = 0; at < len; at++)
		if (bytes[at] != (char)(at * 31 + at / 251 + seed))
			return 0;
	return 1;
}

static const size_t lengths[] = { 0, 1, 8, 88, 89, 96, 104, 112, 113, 120, 128, 129, 4096, 32768, 32769, 1 << 20, (5 << 20) + 3 };
#define LENGTHS (sizeof lengths / sizeof *lengths)
#define CONTEXT(number) ((void *)(uintptr_t)(number))

static void names(void)
{
	char looked[64], text[128];
	size_t len = 4, text_len = sizeof text;
	fi_addr_t again[2];
	char two[128];
	open_both();
	CHECK(fi_getname(&a.ep->fid, looked, &len) == -FI_ETOOSMALL && len == a.name_len);
	len = sizeof looked;
	OK(fi_av_lookup(a.av, a.other, looked, &len));
	CHECK(len == b.name_len && !memcmp(looked, b.name, len) && memcmp(looked, a.name, len));
	CHECK(fi_av_straddr(a.av, b.name, text, &text_len) == text && !strncmp(text, "isthmus://", 10));
	/* Another two: one that there is already, one that is none. */
	memcpy(two, b.name, b.name_len);
	memset(two + b.name_len, 0x55, b.name_len);
	CHECK(fi_av_insert(a.av, two, 2, again, 0, NULL) == 1 && again[1] == FI_ADDR_NOTAVAIL);
	/* Either number is good to send to and to receive from. */
	OK(fi_trecv(a.ep, here, 8, NULL, again[0], 1, 0, CONTEXT(1)));
	OK(fi_tinject(b.ep, there, 8, b.other, 1));
	CHECK(next(&a).op_context == CONTEXT(1));
	OK(fi_trecv(b.ep, there, 8, NULL, FI_ADDR_UNSPEC, 1, 0, CONTEXT(2)));
	OK(fi_tinject(a.ep, here, 8, again[0], 1));
	CHECK(next(&b).op_context == CONTEXT(2));
	OK(fi_av_remove(a.av, &a.other, 1, 0));
	CHECK(fi_tinject(a.ep, here, 8, a.other, 1) == -FI_EINVAL);
	CHECK(fi_tinject(a.ep, here, 8, 77, 1) == -FI_EINVAL);
	close_both();
}

static void tagged_and_plain(void)
{
	open_both();
	for (size_t at = 0; at < LENGTHS; at++)
		for (int posted = 0; posted < 2; posted++) {
			size_t len = lengths[at];
			struct fi_cq_tagged_entry entry;
			fi_addr_t source = 99;
			fill(here, len, (int)at);
			memset(there, 0, len);
			if (posted) {
				OK(fi_recv(b.ep, there, len, NULL, FI_ADDR_UNSPEC, CONTEXT(2)));
				OK(fi_send(a.ep, here, len, NULL, a.other, CONTEXT(1)));
			} else {
				OK(fi_tsend(a.ep, here, len, NULL, a.other, 0xf00dull << 40, CONTEXT(1)));
				for (int turn = 0; turn < 50; turn++)
					turn_both();
				/* A plain receive is none for a tagged message. */
				OK(fi_trecv(b.ep, there, len, NULL, b.other, 0xffull, ~0xfull, CONTEXT(3)));
				OK(fi_trecv(b.ep, there, len, NULL, b.other, 0xf00dull << 40 | 5, 0xf, CONTEXT(2)));
			}
			entry = next_from(&b, &source);
			if (!posted) {
				OK(fi_cancel(&b.ep->fid, CONTEXT(3)));
				CHECK(next_error(&b).err == FI_ECANCELED);
			}
			CHECK(entry.op_context == CONTEXT(2) && entry.len == len && source == b.other);
			CHECK(entry.flags & FI_RECV && (posted ? entry.flags & FI_MSG : entry.flags & FI_TAGGED));
			CHECK(posted || entry.tag == 0xf00dull << 40);
			CHECK(is_filled(there, len, (int)at));
			entry = next(&a);
			CHECK(entry.op_context == CONTEXT(1) && entry.flags & FI_SEND);
		}
	close_both();
}

static void cq_data(void)
{
	const uint64_t all[] = { 0, 1, 0xffffffff, (1ull << 56) - 1, 1ull << 56, ~0ull };
	open_both();
	for (size_t at = 0; at < LENGTHS; at++)
		for (int number = 0; number < 6; number++) {
			struct fi_cq_tagged_entry entry;
			OK(fi_trecv(b.ep, there, lengths[at], NULL, b.other, 7, 0, CONTEXT(2)));
			OK(fi_tsenddata(a.ep, here, lengths[at], NULL, all[number], a.other, 7, CONTEXT(1)));
			entry = next(&b);
			CHECK(entry.flags & FI_REMOTE_CQ_DATA && entry.data == all[number] && entry.len == lengths[at]);
			next(&a);
		}
	OK(fi_trecv(b.ep, there, 8, NULL, b.other, 7, 0, CONTEXT(2)));
	OK(fi_tsend(a.ep, here, 8, NULL, a.other, 7, CONTEXT(1)));
	CHECK(!(next(&b).flags & FI_REMOTE_CQ_DATA));
	close_both();
}

static struct fi_msg_tagged look(uint64_t tag, void *context, struct iovec *iov, size_t count)
{
	struct fi_msg_tagged msg = { .addr = FI_ADDR_UNSPEC, .tag = tag, .context = context, .msg_iov = iov, .iov_count = count };
	return msg;
}

static void peek_claim_discard(void)
{
	open_both();
	for (size_t at = 0; at < LENGTHS; at++) {
		size_t len = lengths[at];
		struct iovec iov = { there, len };
		struct fi_msg_tagged msg = look(5, CONTEXT(9), NULL, 0);
		struct fi_cq_tagged_entry entry;
		struct fi_cq_err_entry error;
		OK(fi_trecvmsg(b.ep, &msg, FI_PEEK | FI_COMPLETION));
		error = next_error(&b);
		CHECK(error.err == FI_ENOMSG && error.op_context == CONTEXT(9));
		fill(here, len, (int)at);
		for (int message = 0; message < 3; message++)
			OK(fi_tsenddata(a.ep, here, len, NULL, message, a.other, 5, CONTEXT(1)));
		OK(fi_tinject(a.ep, here, 1, a.other, 6));
		/* The last one is here, so all are. */
		msg = look(6, CONTEXT(9), NULL, 0);
		do {
			ssize_t read;
			OK(fi_trecvmsg(b.ep, &msg, FI_PEEK | FI_COMPLETION));
			while ((read = fi_cq_read(b.cq, &entry, 1)) == -FI_EAGAIN)
				turn_both();
			if (read == 1)
				break;
			CHECK(read == -FI_EAVAIL && fi_cq_readerr(b.cq, &error, 0) == 1 && error.err == FI_ENOMSG);
			turn_both(); /* An endpoint that is never asked sends nothing that had to wait. */
		} while (1);
		OK(fi_trecv(b.ep, there, 1, NULL, FI_ADDR_UNSPEC, 6, 0, CONTEXT(8)));
		CHECK(next(&b).op_context == CONTEXT(8));
		/* The first is claimed, the second received, the third thrown away, the first received. */
		msg = look(5, CONTEXT(10), NULL, 0);
		OK(fi_trecvmsg(b.ep, &msg, FI_PEEK | FI_CLAIM | FI_COMPLETION));
		entry = next(&b);
		CHECK(entry.op_context == CONTEXT(10) && entry.len == len && entry.data == 0 && entry.tag == 5);
		OK(fi_trecv(b.ep, there, len, NULL, FI_ADDR_UNSPEC, 5, 0, CONTEXT(11)));
		entry = next(&b);
		CHECK(entry.op_context == CONTEXT(11) && entry.data == 1 && is_filled(there, len, (int)at));
		msg = look(5, CONTEXT(12), NULL, 0);
		OK(fi_trecvmsg(b.ep, &msg, FI_PEEK | FI_DISCARD | FI_COMPLETION));
		entry = next(&b);
		CHECK(entry.op_context == CONTEXT(12) && entry.data == 2);
		memset(there, 0, len);
		msg = look(5, CONTEXT(10), &iov, 1);
		OK(fi_trecvmsg(b.ep, &msg, FI_CLAIM | FI_COMPLETION));
		entry = next(&b);
		CHECK(entry.op_context == CONTEXT(10) && entry.data == 0 && is_filled(there, len, (int)at));
		/* Claimed and thrown away. */
		OK(fi_tsend(a.ep, here, len, NULL, a.other, 5, CONTEXT(1)));
		msg = look(5, CONTEXT(13), NULL, 0);
		for (;;) {
			ssize_t read;
			OK(fi_trecvmsg(b.ep, &msg, FI_PEEK | FI_CLAIM | FI_COMPLETION));
			while ((read = fi_cq_read(b.cq, &entry, 1)) == -FI_EAGAIN)
				turn_both();
			if (read == 1)
				break;
			CHECK(fi_cq_readerr(b.cq, &error, 0) == 1);
			turn_both();
		}
		OK(fi_trecvmsg(b.ep, &msg, FI_CLAIM | FI_DISCARD | FI_COMPLETION));
		CHECK(next(&b).op_context == CONTEXT(13));
		/* All four sends are over. */
		for (int message = 0; message < 4; message++)
			next(&a);
	}
	close_both();
}

static void multi_recv(void)
{
	const size_t sizes[] = { 10, 3000, 40000, 0, 200, 60000, 1 };
	size_t min = 4096, got, got_len = sizeof got;
	struct iovec iov = { there, 107000 };
	struct fi_msg msg = { .msg_iov = &iov, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = CONTEXT(5) };
	int released = 0;
	open_both();
	OK(fi_setopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &min, sizeof min));
	OK(fi_getopt(&b.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &got, &got_len));
	CHECK(got == min && got_len == sizeof got);
	/* Two are there before the buffer. */
	for (int at = 0; at < 2; at++) {
		fill(here, sizes[at], at);
		OK(fi_send(a.ep, here, sizes[at], NULL, a.other, CONTEXT(1)));
		next(&a);
		for (int turn = 0; turn < 50; turn++)
			turn_both();
	}
	OK(fi_recvmsg(b.ep, &msg, FI_MULTI_RECV | FI_COMPLETION));
	for (int at = 0; at < 7; at++) {
		struct fi_cq_tagged_entry entry;
		if (at >= 2) {
			fill(here, sizes[at], at);
			OK(fi_send(a.ep, here, sizes[at], NULL, a.other, CONTEXT(1)));
			if (at == 6) /* Less than 4096 bytes are left: it waits for another buffer. */
				break;
		}
		entry = next(&b);
		CHECK(entry.op_context == CONTEXT(5) && entry.len == sizes[at]);
		CHECK((char *)entry.buf >= there && (char *)entry.buf + entry.len <= there + iov.iov_len);
		CHECK(is_filled(entry.buf, entry.len, at));
		released += !!(entry.flags & FI_MULTI_RECV);
		CHECK(released == (at == 5));
		if (at >= 2)
			next(&a);
	}
	CHECK(nothing_comes(&b));
	OK(fi_recv(b.ep, there, 10, NULL, FI_ADDR_UNSPEC, CONTEXT(6)));
	CHECK(next(&b).op_context == CONTEXT(6));
	close_both();
}

static void truncated(void)
{
	open_both();
	for (size_t at = 1; at < LENGTHS; at++)
		for (int posted = 0; posted < 2; posted++) {
			size_t len = lengths[at], room = len / 2;
			struct fi_cq_err_entry error;
			fill(here, len, (int)at);
			there[room] = 77;
			if (posted)
				OK(fi_trecv(b.ep, there, room, NULL, b.other, 1, 0, CONTEXT(2)));
			OK(fi_tsend(a.ep, here, len, NULL, a.other, 1, CONTEXT(1)));
			if (!posted) {
				for (int turn = 0; turn < 50; turn++)
					turn_both();
				OK(fi_trecv(b.ep, there, room, NULL, b.other, 1, 0, CONTEXT(2)));
			}
			error = next_error(&b);
			CHECK(error.err == FI_ETRUNC && error.op_context == CONTEXT(2) && error.olen == len - room);
			CHECK(there[room] == 77 && is_filled(there, room, (int)at));
			CHECK(next(&a).op_context == CONTEXT(1));
		}
	close_both();
}

static void cancelled(void)
{
	struct fi_cq_err_entry error;
	open_both();
	OK(fi_recv(b.ep, there, 8, NULL, FI_ADDR_UNSPEC, CONTEXT(1)));
	OK(fi_trecv(b.ep, there, 8, NULL, FI_ADDR_UNSPEC, 1, 0, CONTEXT(2)));
	CHECK(fi_cancel(&b.ep->fid, CONTEXT(3)) == -FI_ENOENT);
	OK(fi_cancel(&b.ep->fid, CONTEXT(2)));
	error = next_error(&b);
	CHECK(error.err == FI_ECANCELED && error.op_context == CONTEXT(2) && error.flags & FI_RECV);
	OK(fi_inject(a.ep, here, 8, a.other));
	CHECK(next(&b).op_context == CONTEXT(1));
	close_both();
}

static void selective(void)
{
	struct iovec iov = { here, 8 };
	struct fi_msg_tagged msg = { .msg_iov = &iov, .iov_count = 1, .tag = 1, .context = CONTEXT(4) };
	cq_flags = FI_SELECTIVE_COMPLETION;
	open_both();
	msg.addr = a.other;
	for (int message = 0; message < 3; message++)
		OK(fi_trecv(b.ep, there, 8, NULL, b.other, 1, 0, CONTEXT(2)));
	OK(fi_tsendmsg(a.ep, &msg, 0));
	OK(fi_tinject(a.ep, here, 8, a.other, 1));
	CHECK(nothing_comes(&a));
	OK(fi_tsendmsg(a.ep, &msg, FI_COMPLETION));
	CHECK(next(&a).op_context == CONTEXT(4));
	for (int message = 0; message < 3; message++)
		next(&b);
	CHECK(nothing_comes(&a) && nothing_comes(&b));
	close_both();
}

static void inject_is_ours(void)
{
	open_both();
	for (int message = 0; message < 2000; message++) {
		size_t len = message * 7 % 4097;
		fill(here, len, message);
		for (;;) {
			ssize_t code = fi_tinjectdata(a.ep, here, len, message, a.other, 1);
			if (code != -FI_EAGAIN) {
				OK(code);
				break;
			}
			turn_both();
		}
		memset(here, 0, len);
	}
	for (int message = 0; message < 2000; message++) {
		size_t len = message * 7 % 4097;
		OK(fi_trecv(b.ep, there, len, NULL, b.other, 1, 0, CONTEXT(2)));
		CHECK(next(&b).data == (uint64_t)message && is_filled(there, len, message));
	}
	CHECK(fi_tinject(a.ep, here, 4097, a.other, 1) == -FI_EMSGSIZE);
	CHECK(nothing_comes(&a));
	close_both();
}

/* A send with FI_DELIVERY_COMPLETE is over when it is there, one with FI_MATCH_COMPLETE when it has a receive. */
static void acknowledged(void)
{
	open_both();
	for (size_t at = 0; at < LENGTHS; at++) {
		struct iovec iov = { here, lengths[at] };
		struct fi_msg_tagged msg = { .msg_iov = &iov, .iov_count = 1, .addr = a.other, .tag = 1, .context = CONTEXT(4) };
		fill(here, lengths[at], (int)at);
		OK(fi_tsendmsg(a.ep, &msg, FI_COMPLETION | FI_MATCH_COMPLETE));
		CHECK(nothing_comes(&a));
		OK(fi_trecv(b.ep, there, lengths[at], NULL, b.other, 1, 0, CONTEXT(2)));
		CHECK(next(&a).op_context == CONTEXT(4));
		next(&b);
		CHECK(is_filled(there, lengths[at], (int)at));
		OK(fi_tsendmsg(a.ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		if (lengths[at] <= 32768)
			CHECK(next(&a).op_context == CONTEXT(4)); /* It is there, though it was not received. */
		memset(there, 0, lengths[at]);
		OK(fi_trecv(b.ep, there, lengths[at], NULL, b.other, 1, 0, CONTEXT(2)));
		if (lengths[at] > 32768)
			CHECK(next(&a).op_context == CONTEXT(4));
		next(&b);
		CHECK(is_filled(there, lengths[at], (int)at));
	}
	close_both();
}

static char memory[8 << 20];

static struct fid_mr *registered(uint64_t key, uint64_t access)
{
	struct fid_mr *mr;
	OK(fi_mr_reg(b.domain, memory, sizeof memory, access, 0, key, 0, &mr, NULL));
	CHECK(fi_mr_key(mr) == key);
	return mr;
}

static void writes(void)
{
	struct fid_mr *mr;
	open_both();
	mr = registered(0xabcdef0123456789ull, FI_REMOTE_WRITE);
	for (size_t at = 0; at < LENGTHS; at++) {
		size_t len = lengths[at];
		struct fi_cq_tagged_entry entry;
		fill(here, len, (int)at);
		memset(memory, 0, len + 20);
		OK(fi_write(a.ep, here, len, NULL, a.other, 10, 0xabcdef0123456789ull, CONTEXT(1)));
		entry = next(&a);
		CHECK(entry.op_context == CONTEXT(1) && entry.flags & FI_RMA && entry.flags & FI_WRITE);
		CHECK(is_filled(memory + 10, len, (int)at) && !memory[9] && !memory[len + 10]);
		/* With data, the other one hears of it. */
		OK(fi_writedata(a.ep, here, len, NULL, 77 + at, a.other, 5, 0xabcdef0123456789ull, CONTEXT(2)));
		entry = next(&b);
		CHECK(entry.flags & FI_REMOTE_WRITE && entry.flags & FI_REMOTE_CQ_DATA && entry.data == 77 + at && entry.len == len);
		CHECK(is_filled(memory + 5, len, (int)at));
		CHECK(next(&a).op_context == CONTEXT(2));
	}
	OK(fi_inject_write(a.ep, "injected", 8, a.other, 0, 0xabcdef0123456789ull));
	while (memcmp(memory, "injected", 8))
		turn_both();
	CHECK(nothing_comes(&a));
	OK(fi_close(&mr->fid));
	close_both();
}

static void reads(void)
{
	struct fid_mr *mr;
	open_both();
	mr = registered(1, FI_REMOTE_READ);
	for (size_t at = 0; at < LENGTHS; at++) {
		size_t len = lengths[at];
		struct fi_cq_tagged_entry entry;
		fill(memory + 3, len, (int)at);
		memset(here, 0, len);
		OK(fi_read(a.ep, here, len, NULL, a.other, 3, 1, CONTEXT(1)));
		entry = next(&a);
		CHECK(entry.op_context == CONTEXT(1) && entry.flags & FI_RMA && entry.flags & FI_READ);
		CHECK(is_filled(here, len, (int)at));
	}
	OK(fi_close(&mr->fid));
	close_both();
}

static void counters(void)
{
	struct fid_mr *mr;
	open_both();
	mr = registered(1, FI_REMOTE_READ | FI_REMOTE_WRITE);
	for (int turn = 0; turn < 100; turn++)
		OK(fi_write(a.ep, here, 100, NULL, a.other, 0, 1, CONTEXT(1)));
	for (int turn = 0; turn < 100; turn++)
		OK(fi_read(a.ep, here, 100, NULL, a.other, 0, 1, CONTEXT(1)));
	while (fi_cntr_read(a.done) < 200)
		turn_both();
	CHECK(fi_cntr_read(a.done) == 200 && fi_cntr_readerr(a.done) == 0);
	OK(fi_cntr_wait(a.done, 200, 1000));
	CHECK(fi_cntr_wait(a.done, 201, 10) == -FI_ETIMEDOUT);
	OK(fi_cntr_add(a.done, 5));
	CHECK(fi_cntr_read(a.done) == 205);
	OK(fi_cntr_set(a.done, 1));
	CHECK(fi_cntr_read(a.done) == 1);
	OK(fi_close(&mr->fid));
	close_both();
}

static void atomics(void)
{
	struct fid_mr *mr;
	int64_t *place = (int64_t *)memory, one[600], result[600], compared = 7, fresh = 99;
	double *numbers = (double *)(memory + 4096), half = 0.5;
	size_t count;
	struct fi_atomic_attr attr;
	open_both();
	mr = registered(1, FI_REMOTE_READ | FI_REMOTE_WRITE);
	OK(fi_atomicvalid(a.ep, FI_INT64, FI_SUM, &count));
	CHECK(count >= 512);
	CHECK(fi_atomicvalid(a.ep, FI_DOUBLE, FI_BAND, &count) == -FI_EOPNOTSUPP);
	OK(fi_query_atomic(a.domain, FI_INT32, FI_CSWAP, &attr, FI_COMPARE_ATOMIC));
	CHECK(attr.size == 4 && attr.count >= 1);
	for (int at = 0; at < 512; at++)
		place[at] = at, one[at] = 1;
	/* Of one element, and of as many as there may be. */
	OK(fi_atomic(a.ep, one, 1, NULL, a.other, 0, 1, FI_INT64, FI_SUM, CONTEXT(1)));
	CHECK(next(&a).flags & FI_ATOMIC);
	OK(fi_atomic(a.ep, one, 512, NULL, a.other, 0, 1, FI_INT64, FI_SUM, CONTEXT(1)));
	next(&a);
	CHECK(place[0] == 2 && place[1] == 2 && place[511] == 512);
	OK(fi_fetch_atomic(a.ep, one, 512, NULL, result, NULL, a.other, 0, 1, FI_INT64, FI_PROD, CONTEXT(2)));
	CHECK(next(&a).op_context == CONTEXT(2) && result[511] == 512 && place[511] == 512);
	OK(fi_fetch_atomic(a.ep, NULL, 2, NULL, result, NULL, a.other, 8, 1, FI_INT64, FI_ATOMIC_READ, CONTEXT(3)));
	next(&a);
	CHECK(result[0] == 2 && result[1] == 3);
	place[3] = 7;
	OK(fi_compare_atomic(a.ep, &fresh, 1, NULL, &compared, NULL, result, NULL, a.other, 24, 1, FI_INT64, FI_CSWAP, CONTEXT(4)));
	next(&a);
	CHECK(result[0] == 7 && place[3] == 99);
	OK(fi_compare_atomic(a.ep, &compared, 1, NULL, &compared, NULL, result, NULL, a.other, 24, 1, FI_INT64, FI_CSWAP, CONTEXT(4)));
	next(&a);
	CHECK(result[0] == 99 && place[3] == 99);
	numbers[0] = 1.25;
	OK(fi_inject_atomic(a.ep, &half, 1, a.other, 4096, 1, FI_DOUBLE, FI_SUM));
	while (numbers[0] != 1.75)
		turn_both();
	OK(fi_close(&mr->fid));
	close_both();
}

static void refused_requests(void)
{
	struct fid_mr *mr, *twice;
	struct fi_cq_err_entry error;
	int64_t one = 1;
	open_both();
	mr = registered(1, FI_REMOTE_READ);
	CHECK(fi_mr_reg(b.domain, memory, 8, FI_REMOTE_READ, 0, 1, 0, &twice, NULL) == -FI_ENOKEY);
	const size_t sizes[] = { 8, 10000, 1 << 20 };
	for (int at = 0; at < 3; at++) {
		OK(fi_write(a.ep, here, sizes[at], NULL, a.other, 0, 1, CONTEXT(1)));
		error = next_error(&a);
		CHECK(error.err == FI_EACCES && error.op_context == CONTEXT(1));
		OK(fi_read(a.ep, here, sizes[at], NULL, a.other, 0, 2, CONTEXT(2)));
		error = next_error(&a);
		CHECK(error.err == FI_EKEYREJECTED && error.op_context == CONTEXT(2));
		OK(fi_read(a.ep, here, sizes[at], NULL, a.other, sizeof memory - sizes[at] + 1, 1, CONTEXT(3)));
		CHECK(next_error(&a).err == FI_EACCES);
		OK(fi_read(a.ep, here, sizes[at], NULL, a.other, ~0ull, 1, CONTEXT(3)));
		CHECK(next_error(&a).err == FI_EACCES);
	}
	OK(fi_atomic(a.ep, &one, 1, NULL, a.other, 0, 1, FI_INT64, FI_SUM, CONTEXT(4)));
	CHECK(next_error(&a).err == FI_EACCES);
	/* What is closed is gone. */
	OK(fi_close(&mr->fid));
	OK(fi_read(a.ep, here, 8, NULL, a.other, 0, 1, CONTEXT(5)));
	CHECK(next_error(&a).err == FI_EKEYREJECTED);
	close_both();
}

static int said(int fd)
{
	char byte;
	return read(fd, &byte, 1) == 1;
}

/* Opens `a` here and `b` in a child, which runs `child` and ends. */
static pid_t with_child(void (*child)(int fd), int *fd)
{
	int pair[2];
	pid_t pid;
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		close(pair[0]);
		open_end(&b);
		CHECK(write(pair[1], b.name, b.name_len) == (ssize_t)b.name_len);
		b.name_len = read(pair[1], a.name, b.name_len);
		CHECK(fi_av_insert(b.av, a.name, 1, &b.other, 0, NULL) == 1);
		child(pair[1]);
		close_end(&b);
		exit(0);
	}
	close(pair[1]);
	open_end(&a);
	CHECK(read(pair[0], b.name, a.name_len) == (ssize_t)a.name_len);
	CHECK(write(pair[0], a.name, a.name_len) == (ssize_t)a.name_len);
	CHECK(fi_av_insert(a.av, b.name, 1, &a.other, 0, NULL) == 1);
	*fd = pair[0];
	return pid;
}

static void ended_well(pid_t pid)
{
	int status;
	CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void sends_when_told(int fd)
{
	for (int turn = 0; turn < 20; turn++) {
		struct fi_cq_tagged_entry entry;
		CHECK(said(fd));
		OK(fi_tsend(b.ep, here, turn % 2 ? 8 : 100000, NULL, b.other, 1, CONTEXT(1)));
		while (fi_cq_sread(b.cq, &entry, 1, NULL, 1000) == -FI_EAGAIN)
			;
	}
}

static void waiting(void)
{
	int fd;
	pid_t pid;
	struct fi_cq_tagged_entry entry;
	wait_obj = FI_WAIT_UNSPEC;
	pid = with_child(sends_when_told, &fd);
	CHECK(fi_cq_sread(a.cq, &entry, 1, NULL, 20) == -FI_EAGAIN);
	OK(fi_cq_signal(a.cq));
	CHECK(fi_cq_sread(a.cq, &entry, 1, NULL, -1) == -FI_EAGAIN);
	for (int turn = 0; turn < 20; turn++) {
		OK(fi_trecv(a.ep, there, 100000, NULL, a.other, 1, 0, CONTEXT(2)));
		CHECK(write(fd, "x", 1) == 1);
		CHECK(fi_cq_sread(a.cq, &entry, 1, NULL, -1) == 1 && entry.op_context == CONTEXT(2));
	}
	ended_well(pid);
	close_end(&a);
}

static void wait_descriptor(void)
{
	int fd, wait_fd;
	pid_t pid;
	struct fi_cq_tagged_entry entry;
	struct fid *fids[1];
	wait_obj = FI_WAIT_FD;
	pid = with_child(sends_when_told, &fd);
	OK(fi_control(&a.cq->fid, FI_GETWAIT, &wait_fd));
	fids[0] = &a.cq->fid;
	for (int turn = 0; turn < 20; turn++) {
		ssize_t read;
		OK(fi_trecv(a.ep, there, 100000, NULL, a.other, 1, 0, CONTEXT(2)));
		CHECK(write(fd, "x", 1) == 1);
		while ((read = fi_cq_read(a.cq, &entry, 1)) == -FI_EAGAIN) {
			struct pollfd poll_fd = { .fd = wait_fd, .events = POLLIN };
			int code = fi_trywait(a.fabric, fids, 1);
			CHECK(code == 0 || code == -FI_EAGAIN);
			/* Nothing but the descriptor would ever end this. */
			if (code == 0)
				CHECK(poll(&poll_fd, 1, -1) == 1);
		}
		CHECK(read == 1 && entry.op_context == CONTEXT(2));
	}
	ended_well(pid);
	close_end(&a);
}

static void waits_to_die(int fd)
{
	CHECK(write(fd, "x", 1) == 1);
	for (;;) {
		struct fi_cq_tagged_entry none;
		fi_cq_read(b.cq, &none, 1);
	}
}

/* Who waits for one that is killed hears of it. */
static void gone_peer(void)
{
	int fd, status;
	struct fi_cq_err_entry error;
	struct fi_cq_tagged_entry entry;
	pid_t pid = with_child(waits_to_die, &fd);
	CHECK(said(fd));
	/* It has a channel with us, and does not receive. */
	OK(fi_tsend(a.ep, here, 8, NULL, a.other, 1, CONTEXT(1)));
	while (fi_cq_read(a.cq, &entry, 1) == -FI_EAGAIN)
		;
	OK(fi_trecv(a.ep, there, 8, NULL, a.other, 1, 0, CONTEXT(2)));
	OK(fi_trecv(a.ep, there, 8, NULL, FI_ADDR_UNSPEC, 2, 0, CONTEXT(4)));
	OK(fi_tsend(a.ep, here, 1 << 20, NULL, a.other, 1, CONTEXT(3)));
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
	for (int errors = 0, seen = 0; errors < 2; errors++) {
		ssize_t read;
		memset(&error, 0, sizeof error);
		while ((read = fi_cq_read(a.cq, &entry, 1)) == -FI_EAGAIN)
			;
		CHECK(read == -FI_EAVAIL && fi_cq_readerr(a.cq, &error, 0) == 1);
		CHECK(error.op_context == CONTEXT(2) || error.op_context == CONTEXT(3));
		CHECK(error.err != 0 && !(seen & 1 << (uintptr_t)error.op_context));
		seen |= 1 << (uintptr_t)error.op_context;
	}
	/* So does a receive that is posted now. */
	OK(fi_trecv(a.ep, there, 8, NULL, a.other, 1, 0, CONTEXT(2)));
	error = next_error(&a);
	CHECK(error.op_context == CONTEXT(2) && error.err == FI_ECONNABORTED);
	/* The receive from any source is still there. */
	OK(fi_cancel(&a.ep->fid, CONTEXT(4)));
	close_end(&a);
}

static void many_pieces(void)
{
	struct fid_mr *mr;
	open_both();
	mr = registered(1, FI_REMOTE_READ | FI_REMOTE_WRITE);
	for (size_t at = 0; at < LENGTHS; at++) {
		size_t len = lengths[at], part = len / 3;
		struct iovec out[3] = { { here, part }, { here + part, part }, { here + 2 * part, len - 2 * part } };
		struct iovec in[2] = { { there, len / 2 }, { there + len / 2, len - len / 2 } };
		fill(here, len, (int)at);
		memset(there, 0, len);
		for (int posted = 0; posted < 2; posted++) {
			if (posted)
				OK(fi_trecvv(b.ep, in, NULL, 2, b.other, 1, 0, CONTEXT(2)));
			OK(fi_tsendv(a.ep, out, NULL, 3, a.other, 1, CONTEXT(1)));
			if (!posted) {
				for (int turn = 0; turn < 50; turn++)
					turn_both();
				OK(fi_trecvv(b.ep, in, NULL, 2, b.other, 1, 0, CONTEXT(2)));
			}
			CHECK(next(&b).len == len && is_filled(there, len, (int)at));
			next(&a);
			memset(there, 0, len);
		}
		OK(fi_writev(a.ep, out, NULL, 3, a.other, 0, 1, CONTEXT(3)));
		next(&a);
		CHECK(is_filled(memory, len, (int)at));
		OK(fi_readv(a.ep, in, NULL, 2, a.other, 0, 1, CONTEXT(4)));
		next(&a);
		CHECK(is_filled(there, len, (int)at));
	}
	OK(fi_close(&mr->fid));
	close_both();
}

/* Memory that begins in the middle of a page and ends in the middle of one. */
#define EDGE 100
#define BODY (1 << 20)
#define SHARED (BODY + 2 * EDGE)
#define KEY 5

static char *apart(void)
{
	char *pages = aligned_alloc(4096, BODY + 4 * 4096);
	CHECK(pages);
	memset(pages, 0, BODY + 4 * 4096);
	return pages + 4096 - EDGE;
}

static struct fid_mr *shared(char *start, uint64_t access, uint64_t key)
{
	struct fid_mr *mr;
	OK(fi_mr_reg(b.domain, start, SHARED, access, 0, key, 0, &mr, NULL));
	return mr;
}

/* Whether the next completion comes without the other process. It is given time enough to be lost if it did not. */
static int comes_alone(struct fi_cq_tagged_entry *entry)
{
	for (int turn = 0; turn < 100000; turn++) {
		ssize_t read = fi_cq_read(a.cq, entry, 1);
		CHECK(read == 1 || read == -FI_EAGAIN);
		if (read == 1)
			return 1;
	}
	return 0;
}

static void stop(pid_t pid)
{
	int status;
	CHECK(!kill(pid, SIGSTOP));
	CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
}

/* Serves until it is told of something. */
static void serve(int fd)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
	struct fi_cq_tagged_entry none;
	while (poll(&poll_fd, 1, 0) == 0)
		CHECK(fi_cq_read(b.cq, &none, 1) == -FI_EAGAIN);
	CHECK(said(fd));
}

static void is_stopped(int fd)
{
	char *start = apart();
	int64_t *number = (int64_t *)(start + EDGE + 4096);
	struct fid_mr *mr = shared(start, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY), *closed = shared(start, FI_REMOTE_READ, KEY + 1);
	fill(start, SHARED, 1);
	*number = 40;
	CHECK(write(fd, "x", 1) == 1);
	serve(fd);
	/* Written while nothing ran here; what lies beside it was not. */
	CHECK(is_filled(start + EDGE + 8192, BODY - 8192, 2) && *number == 42);
	CHECK(is_filled(start, EDGE, 1) && !start[-1] && !start[SHARED]);
	OK(fi_close(&closed->fid));
	OK(fi_close(&mr->fid));
	CHECK(write(fd, "x", 1) == 1);
	serve(fd);
	CHECK(is_filled(start + EDGE + 8192, BODY - 8192, 2) && *number == 42);
}

/* Registered memory is read and written while its owner is stopped, and nothing but that. */
static void stopped_peer(void)
{
	int fd;
	pid_t pid = with_child(is_stopped, &fd);
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry error = { 0 };
	struct iovec iov = { here, BODY - 8192 };
	struct fi_rma_iov rma = { EDGE + 8192, BODY - 8192, KEY };
	struct fi_msg_rma msg = { .msg_iov = &iov, .iov_count = 1, .rma_iov = &rma, .rma_iov_count = 1, .addr = a.other, .context = CONTEXT(3) };
	int64_t one = 1, before = 0;
	CHECK(said(fd));
	/* The channel, and the way around it, are made while it runs. */
	for (;;) {
		OK(fi_read(a.ep, there, 8, NULL, a.other, EDGE, KEY, CONTEXT(1)));
		next(&a);
		stop(pid);
		OK(fi_read(a.ep, there, BODY, NULL, a.other, EDGE, KEY, CONTEXT(2)));
		if (comes_alone(&entry))
			break;
		CHECK(!kill(pid, SIGCONT));
		next(&a);
	}
	fill(here, SHARED, 1);
	CHECK(entry.op_context == CONTEXT(2) && entry.flags & FI_RMA && entry.flags & FI_READ);
	CHECK(!memcmp(there, here + EDGE, 4096) && !memcmp(there + 8192, here + EDGE + 8192, BODY - 8192));
	fill(here, BODY, 2);
	OK(fi_writemsg(a.ep, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE));
	CHECK(comes_alone(&entry) && entry.op_context == CONTEXT(3) && entry.flags & FI_WRITE);
	for (int turn = 0; turn < 2; turn++) {
		OK(fi_fetch_atomic(a.ep, &one, 1, NULL, &before, NULL, a.other, EDGE + 4096, KEY, FI_INT64, FI_SUM, CONTEXT(4)));
		CHECK(comes_alone(&entry) && entry.flags & FI_ATOMIC && before == 40 + turn);
	}
	OK(fi_inject_write(a.ep, here, 64, a.other, EDGE + 8192, KEY));
	memset(there, 0, BODY);
	OK(fi_read(a.ep, there, BODY - 8192, NULL, a.other, EDGE + 8192, KEY, CONTEXT(5)));
	CHECK(comes_alone(&entry) && is_filled(there, BODY - 8192, 2));
	/* What shares its page with something else is the owner's to give; so is what lies outside to refuse. */
	OK(fi_read(a.ep, there, SHARED, NULL, a.other, 0, KEY, CONTEXT(6)));
	OK(fi_write(a.ep, here, 8, NULL, a.other, SHARED - 7, KEY, CONTEXT(7)));
	CHECK(!comes_alone(&entry));
	CHECK(!kill(pid, SIGCONT));
	for (int over = 0; over < 2; over++) {
		ssize_t read;
		while ((read = fi_cq_read(a.cq, &entry, 1)) == -FI_EAGAIN)
			;
		if (read == -FI_EAVAIL)
			CHECK(fi_cq_readerr(a.cq, &error, 0) == 1 && error.op_context == CONTEXT(7) && error.err == FI_EACCES);
		else
			CHECK(read == 1 && entry.op_context == CONTEXT(6));
	}
	fill(here, SHARED, 1);
	CHECK(!memcmp(there, here, EDGE) && !memcmp(there + SHARED - EDGE, here + SHARED - EDGE, EDGE));
	OK(fi_write(a.ep, here, 8, NULL, a.other, EDGE, KEY + 1, CONTEXT(8)));
	error = next_error(&a);
	CHECK(error.op_context == CONTEXT(8) && error.err == FI_EACCES);
	CHECK(write(fd, "x", 1) == 1 && said(fd));
	/* Closed. */
	for (int turn = 0; turn < 3; turn++) {
		OK(fi_write(a.ep, here, BODY, NULL, a.other, EDGE, KEY, CONTEXT(9)));
		CHECK(next_error(&a).err == FI_EKEYREJECTED);
		OK(fi_read(a.ep, here, 8, NULL, a.other, EDGE, KEY, CONTEXT(9)));
		CHECK(next_error(&a).err == FI_EKEYREJECTED);
	}
	CHECK(write(fd, "x", 1) == 1);
	ended_well(pid);
	close_end(&a);
}

#define ROUNDS 3000

static void sees_what_was_written(int fd)
{
	char *start = apart();
	struct fid_mr *mr = shared(start, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
	CHECK(write(fd, "x", 1) == 1);
	for (int64_t round = 1; round <= ROUNDS; round++) {
		int64_t told, edge, body;
		OK(fi_trecv(b.ep, &told, 8, NULL, b.other, 1, 0, CONTEXT(2)));
		next(&b);
		memcpy(&edge, start, 8);
		memcpy(&body, start + EDGE + 64, 8);
		CHECK(told == round && edge >= round && body >= round);
		memcpy(&edge, start + EDGE + 40000, 8);
		CHECK(edge >= round);
	}
	CHECK(write(fd, "x", 1) == 1);
	serve(fd);
	OK(fi_close(&mr->fid));
}

/* A message comes after the writes before it, whether its sender made them himself or had to ask. */
static void writes_before_messages(void)
{
	int fd;
	pid_t pid = with_child(sees_what_was_written, &fd);
	CHECK(said(fd));
	for (int64_t round = 1; round <= ROUNDS; round++) {
		memcpy(here + 10000, &round, 8);
		OK(fi_inject_write(a.ep, &round, 8, a.other, EDGE + 64, KEY));
		OK(fi_write(a.ep, here, 20000, NULL, a.other, EDGE + 30000, KEY, CONTEXT(1)));
		OK(fi_inject_write(a.ep, &round, 8, a.other, 0, KEY));
		if (round % 3 == 0) {
			memcpy(there + 10000, &round, 8);
			OK(fi_write(a.ep, there, 20000, NULL, a.other, EDGE + 30000, KEY, CONTEXT(2)));
			next(&a);
		}
		OK(fi_tinject(a.ep, &round, 8, a.other, 1));
		next(&a);
	}
	CHECK(said(fd) && write(fd, "x", 1) == 1);
	ended_well(pid);
	close_end(&a);
}

#define ADDED 20000
#define ASKED (ADDED / 40)

static void adds_too(int fd)
{
	char *start = apart();
	struct fid_mr *mr = shared(start, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
	struct fi_cq_tagged_entry none;
	int64_t one = 1;
	double half = 0.5;
	fi_addr_t self;
	CHECK(fi_av_insert(b.av, b.name, 1, &self, 0, NULL) == 1);
	CHECK(write(fd, "x", 1) == 1);
	for (int turn = 0; turn < ADDED; turn++) {
		OK(fi_inject_atomic(b.ep, &one, 1, self, EDGE, KEY, FI_INT64, FI_SUM));
		OK(fi_inject_atomic(b.ep, &half, 1, self, EDGE + 8, KEY, FI_DOUBLE, FI_SUM));
		if (turn % 40 == 0)
			OK(fi_inject_atomic(b.ep, &one, 1, self, EDGE - 4, KEY, FI_INT32, FI_SUM));
		fi_cq_read(b.cq, &none, 1);
	}
	serve(fd);
	CHECK(*(int64_t *)(start + EDGE) == 2 * ADDED && *(double *)(start + EDGE + 8) == ADDED);
	CHECK(*(int32_t *)(start + EDGE - 4) == 2 * ASKED);
	OK(fi_close(&mr->fid));
}

/* Atomic operations of the memory's owner and of others are atomic to each other, be they served or not. */
static void atomics_of_two(void)
{
	int fd;
	pid_t pid = with_child(adds_too, &fd);
	int64_t one = 1;
	double half = 0.5;
	CHECK(said(fd));
	for (int turn = 0; turn < ADDED; turn++) {
		OK(fi_atomic(a.ep, &one, 1, NULL, a.other, EDGE, KEY, FI_INT64, FI_SUM, CONTEXT(1)));
		next(&a);
		OK(fi_atomic(a.ep, &half, 1, NULL, a.other, EDGE + 8, KEY, FI_DOUBLE, FI_SUM, CONTEXT(1)));
		next(&a);
		/* These four bytes are in the first page, which is asked for. */
		if (turn % 40 == 0) {
			OK(fi_atomic(a.ep, &one, 1, NULL, a.other, EDGE - 4, KEY, FI_INT32, FI_SUM, CONTEXT(1)));
			next(&a);
		}
	}
	CHECK(write(fd, "x", 1) == 1);
	ended_well(pid);
	close_end(&a);
}

static void closes_and_opens(int fd)
{
	char *start = apart();
	for (int turn = 0; turn < 200; turn++) {
		struct fid_mr *mr = shared(start, FI_REMOTE_READ | FI_REMOTE_WRITE, KEY);
		struct fi_cq_tagged_entry none;
		if (turn == 0)
			CHECK(write(fd, "x", 1) == 1);
		for (int look = 0; look < 50; look++)
			fi_cq_read(b.cq, &none, 1);
		OK(fi_close(&mr->fid));
		/* It is ours alone. */
		memset(start, turn, SHARED);
		for (int look = 0; look < 20; look++)
			fi_cq_read(b.cq, &none, 1);
		for (size_t at = 0; at < SHARED; at++)
			CHECK(start[at] == (char)turn);
	}
	CHECK(write(fd, "x", 1) == 1);
	serve(fd);
}

/* What is closed is not written any more, however much is being written just then. */
static void closed_meanwhile(void)
{
	int fd;
	pid_t pid = with_child(closes_and_opens, &fd);
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };
	CHECK(said(fd));
	fill(here, BODY, 3);
	while (poll(&poll_fd, 1, 0) == 0) {
		struct fi_cq_tagged_entry entry;
		struct fi_cq_err_entry error = { 0 };
		ssize_t read;
		OK(fi_write(a.ep, here, 30000, NULL, a.other, EDGE + 5000, KEY, CONTEXT(1)));
		while ((read = fi_cq_read(a.cq, &entry, 1)) == -FI_EAGAIN)
			;
		if (read != 1)
			CHECK(read == -FI_EAVAIL && fi_cq_readerr(a.cq, &error, 0) == 1 && error.err == FI_EKEYREJECTED);
	}
	CHECK(said(fd) && write(fd, "x", 1) == 1);
	ended_well(pid);
	close_end(&a);
}

/* Messages both ways with the process of the name on standard input. */
static void talk(void)
{
	char hex[200];
	printf("name ");
	open_end(&a);
	for (size_t at = 0; at < a.name_len; at++)
		printf("%02x", (unsigned char)a.name[at]);
	printf("\n");
	fflush(stdout);
	CHECK(fgets(hex, sizeof hex, stdin) && strlen(hex) >= 2 * a.name_len);
	for (size_t at = 0; at < a.name_len; at++) {
		unsigned byte;
		CHECK(sscanf(hex + 2 * at, "%2x", &byte) == 1);
		there[at] = (char)byte;
	}
	CHECK(fi_av_insert(a.av, there, 1, &a.other, 0, NULL) == 1);
	for (int turn = 0; turn < 3; turn++)
		for (size_t at = 0; at < LENGTHS; at++) {
			size_t len = lengths[at];
			int over = 0;
			fill(here, len, (int)at + turn);
			memset(there, 0, len);
			OK(fi_trecv(a.ep, there, len, NULL, a.other, at, 0, CONTEXT(2)));
			OK(fi_tsend(a.ep, here, len, NULL, a.other, at, CONTEXT(1)));
			while (over < 2) {
				struct fi_cq_tagged_entry entry;
				ssize_t read = fi_cq_read(a.cq, &entry, 1);
				CHECK(read == 1 || read == -FI_EAGAIN);
				over += read == 1;
			}
			CHECK(is_filled(there, len, (int)at + turn));
		}
	/* The other one may still be waiting for our last message to be taken. */
	printf("talked\n");
	fflush(stdout);
	CHECK(fgets(hex, sizeof hex, stdin));
	close_end(&a);
}

static void *sleeps(void *nothing)
{
	for (;;)
		pause();
	return nothing;
}

/* Other threads cannot be made to wait any more: not without a capability that is given up here. */
static void have_threads(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2];
	pthread_t thread;
	CHECK(!syscall(SYS_capget, &head, caps));
	caps[0].effective &= ~(1u << CAP_SYS_PTRACE);
	CHECK(!syscall(SYS_capset, &head, caps));
	CHECK(!pthread_create(&thread, NULL, sleeps, NULL));
}

/* What is registered at `start` is read, and so asked for, until there is a channel and more. */
static void ask(size_t offset)
{
	for (int turn = 0; turn < 200; turn++) {
		OK(fi_read(a.ep, here, 8, NULL, a.other, offset, KEY, CONTEXT(1)));
		CHECK(next(&a).op_context == CONTEXT(1));
	}
	printf("asked\n");
	fflush(stdout);
	CHECK(fgets(here, sizeof here, stdin));
}

static void asked(const char *why)
{
	uint64_t access = FI_REMOTE_READ | (strcmp(why, "read-only") ? FI_REMOTE_WRITE : 0);
	size_t offset = strcmp(why, "edge") ? EDGE : 0;
	struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP };
	struct fid_cntr *counter;
	struct fid_mr *mr;
	if (!strcmp(why, "threads"))
		have_threads();
	open_both();
	OK(fi_cntr_open(b.domain, &attr, &counter, NULL));
	mr = shared(apart(), access, KEY);
	if (!strcmp(why, "counted"))
		OK(fi_mr_bind(mr, &counter->fid, FI_REMOTE_WRITE));
	if (!strcmp(why, "forked")) {
		pid_t pid = fork();
		if (pid == 0)
			_exit(0);
		ended_well(pid);
	}
	ask(offset);
	OK(fi_close(&mr->fid));
	OK(fi_close(&counter->fid));
	close_both();
}

/* Injected messages are over at once: they arrive although the sender closes while the receiver makes no call. */
static void injected_before_close(void)
{
	enum { MESSAGES = 400, BYTES = 4096, QUIET_MS = 3000 };
	static unsigned char bytes[BYTES];
	int fds[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	pid_t sender = fork();
	CHECK(sender >= 0);
	int fd = fds[sender == 0];
	close(fds[sender != 0]);
	open_end(&a);
	CHECK(write(fd, a.name, sizeof a.name) == sizeof a.name);
	CHECK(read(fd, b.name, sizeof b.name) == sizeof b.name);
	CHECK(fi_av_insert(a.av, b.name, 1, &a.other, 0, NULL) == 1);
	if (sender == 0) {
		for (int at = 0; at < MESSAGES; at++) {
			memset(bytes, at & 0xff, BYTES);
			OK(fi_tinject(a.ep, bytes, BYTES, a.other, (uint64_t)at));
		}
		CHECK(write(fd, "s", 1) == 1);
		close_end(&a);
		exit(0);
	}
	struct pollfd ended = { fd, POLLIN, 0 };
	int status;
	CHECK(read(fd, bytes, 1) == 1 && bytes[0] == 's');
	poll(&ended, 1, QUIET_MS); /* until the sender ends, which it may not before it has delivered */
	for (int at = 0; at < MESSAGES; at++) {
		struct fi_cq_tagged_entry entry;
		ssize_t got = 0;
		OK(fi_trecv(a.ep, bytes, BYTES, NULL, FI_ADDR_UNSPEC, (uint64_t)at, 0, NULL));
		while ((got = fi_cq_read(a.cq, &entry, 1)) == -FI_EAGAIN) {
		}
		CHECK(got == 1 && entry.len == BYTES && bytes[0] == (at & 0xff) && bytes[BYTES - 1] == (at & 0xff));
	}
	CHECK(waitpid(sender, &status, 0) == sender && status == 0);
	close_end(&a);
}

#define CASES(DO) \
	DO(names) DO(tagged_and_plain) DO(cq_data) DO(peek_claim_discard) DO(multi_recv) DO(truncated) DO(cancelled) DO(selective) \
	DO(inject_is_ours) DO(acknowledged) DO(writes) DO(reads) DO(counters) DO(atomics) DO(refused_requests) DO(waiting) \
	DO(wait_descriptor) DO(gone_peer) DO(many_pieces) DO(stopped_peer) DO(writes_before_messages) DO(atomics_of_two) \
	DO(closed_meanwhile) DO(injected_before_close)

int main(int argc, char **argv)
{
	const struct { const char *name; void (*run)(void); } cases[] = {
#define CASE(name) { #name, name },
		CASES(CASE)
	};
	if (argc == 3 && !strcmp(argv[1], "asked")) {
		alarm(240);
		asked(argv[2]);
		puts("done");
		return 0;
	}
	if (argc != 2)
		return 2;
	alarm(240);
	if (!strcmp(argv[1], "talk")) {
		talk();
		puts("done");
		return 0;
	}
	for (size_t at = 0; at < sizeof cases / sizeof *cases; at++) {
		if (!strcmp(argv[1], "--list"))
			puts(cases[at].name);
		if (strcmp(argv[1], cases[at].name))
			continue;
		cases[at].run();
		puts("done");
		return 0;
	}
	return strcmp(argv[1], "--list") ? 2 : 0;
}
