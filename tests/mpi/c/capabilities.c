/*
 * The section "CAPABILITIES" of fi_getinfo(3), and the attributes "caps" of fi_endpoint(3), sentence by sentence; and programs that
 * ask for no more than they need.
 *
 *   capabilities CASE | --list
 */
#define _GNU_SOURCE
#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what) \
	do { \
		if (!(what)) { \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
			exit(1); \
		} \
	} while (0)
#define OK(call) CHECK((call) >= 0)
#define CONTEXT(number) ((void *)(uintptr_t)(number))

#define MESSAGES (FI_SEND | FI_RECV)
#define MEMORY (FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define MODIFIERS (MESSAGES | MEMORY)
#define COMM (FI_LOCAL_COMM | FI_REMOTE_COMM)
#define PRIMARIES (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_DIRECTED_RECV)
#define UNSUPPORTED_PRIMARIES (FI_MULTICAST | FI_NAMED_RX_CTX | FI_VARIABLE_MSG | FI_HMEM | FI_COLLECTIVE)
#define SECONDARIES (FI_MULTI_RECV | FI_SOURCE | FI_RMA_EVENT | COMM)
#define SUPPORTED (PRIMARIES | MODIFIERS | SECONDARIES)
/* The bits that apply to one side only. */
#define TX_ONLY (FI_SEND | FI_READ | FI_WRITE)
#define RX_ONLY (FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_DIRECTED_RECV | FI_MULTI_RECV | FI_SOURCE | FI_RMA_EVENT)

/* What hints with these capabilities get, or null. */
static struct fi_info *ask(uint64_t caps, uint64_t tx, uint64_t rx)
{
	struct fi_info *hints = fi_allocinfo(), *info = NULL;
	int code;
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = caps;
	hints->tx_attr->caps = tx;
	hints->rx_attr->caps = rx;
	hints->fabric_attr->prov_name = strdup("isthmus");
	code = fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &info);
	CHECK(code == (info ? 0 : -FI_ENODATA));
	fi_freeinfo(hints);
	return info;
}

static struct { uint64_t all, tx, rx; } got;

static int granted(uint64_t caps, uint64_t tx, uint64_t rx)
{
	struct fi_info *info = ask(caps, tx, rx);
	if (!info)
		return 0;
	got.all = info->caps;
	got.tx = info->tx_attr->caps;
	got.rx = info->rx_attr->caps;
	fi_freeinfo(info);
	return 1;
}

/* "If capabilities in the hint parameter are set to 0, the underlying provider will return the set of capabilities which are
 * supported." */
static void zero_means_everything_supported(void)
{
	struct fi_info *info = NULL;
	CHECK(granted(0, 0, 0) && got.all == SUPPORTED);
	CHECK(!(got.tx & RX_ONLY) && !(got.rx & TX_ONLY) && ((got.tx | got.rx) & ~COMM) == (SUPPORTED & ~COMM));
	OK(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, NULL, &info));
	CHECK(info->caps == SUPPORTED);
	fi_freeinfo(info);
}

/* "Primary capabilities must explicitly be requested by an application, and a provider must enable support for only those primary
 * capabilities which were selected." */
static void primaries_are_those_selected(void)
{
	const uint64_t each[] = { FI_MSG, FI_TAGGED, FI_RMA, FI_ATOMIC, FI_DIRECTED_RECV };
	for (unsigned set = 1; set < 1u << 5; set++) {
		uint64_t caps = 0;
		for (unsigned at = 0; at < 5; at++)
			caps |= set >> at & 1 ? each[at] : 0;
		CHECK(granted(caps, 0, 0) && (got.all & (PRIMARIES | UNSUPPORTED_PRIMARIES)) == caps);
		CHECK(((got.tx | got.rx) & PRIMARIES) == caps && !(got.tx & FI_DIRECTED_RECV));
	}
	for (int bit = 0; bit < 64; bit++)
		if (UNSUPPORTED_PRIMARIES >> bit & 1)
			CHECK(!granted(FI_MSG | 1ull << bit, 0, 0));
}

/* "If no modifiers are specified for an applicable capability, all relevant modifiers are assumed." */
static void modifiers_default_to_all(void)
{
	CHECK(granted(FI_MSG, 0, 0) && (got.all & MODIFIERS) == MESSAGES);
	CHECK(granted(FI_TAGGED, 0, 0) && (got.all & MODIFIERS) == MESSAGES);
	CHECK(granted(FI_RMA, 0, 0) && (got.all & MODIFIERS) == MEMORY);
	CHECK(granted(FI_ATOMIC, 0, 0) && (got.all & MODIFIERS) == MEMORY);
	CHECK(granted(FI_MSG | FI_RMA | FI_RECV, 0, 0) && (got.all & MODIFIERS) == (MEMORY | FI_RECV));
	CHECK(granted(FI_MSG | FI_RMA | FI_READ, 0, 0) && (got.all & MODIFIERS) == (MESSAGES | FI_READ));
}

/* "Primary modifiers are used to limit a primary capability, such as restricting an endpoint to being send-only." */
static void modifiers_limit(void)
{
	for (int bit = 0; bit < 64; bit++) {
		uint64_t modifier = 1ull << bit, all = modifier & MESSAGES ? FI_MSG | FI_TAGGED : FI_RMA | FI_ATOMIC;
		if (!(modifier & MODIFIERS))
			continue;
		CHECK(granted(all | modifier, 0, 0) && (got.all & MODIFIERS) == modifier);
		CHECK((got.tx & MODIFIERS) == (modifier & TX_ONLY) && (got.rx & MODIFIERS) == (modifier & RX_ONLY));
	}
}

/* "This flag requires that FI_RMA and/or FI_ATOMIC be set." (FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE) */
static void modifiers_of_memory_require_memory(void)
{
	for (int bit = 0; bit < 64; bit++)
		if (MEMORY >> bit & 1) {
			CHECK(!granted(FI_MSG | FI_TAGGED | 1ull << bit, 0, 0));
			CHECK(granted(FI_RMA | 1ull << bit, 0, 0) && granted(FI_ATOMIC | 1ull << bit, 0, 0));
		}
}

/* "If requested, a provider must support the capability or fail the fi_getinfo request (FI_ENODATA)." */
static void secondaries_are_supported_or_refused(void)
{
	const uint64_t refused[] = { FI_SHARED_AV, FI_TRIGGER, FI_FENCE, FI_SOURCE_ERR, FI_RMA_PMEM, FI_AV_USER_ID };
	for (int bit = 0; bit < 64; bit++)
		if (SECONDARIES >> bit & 1)
			CHECK(granted(FI_MSG | FI_RMA | 1ull << bit, 0, 0) && got.all >> bit & 1);
	for (size_t at = 0; at < sizeof refused / sizeof *refused; at++)
		CHECK(!granted(FI_MSG | FI_RMA | FI_SOURCE | refused[at], 0, 0));
}

/* "A provider may optionally report non-selected secondary capabilities if doing so would not compromise performance or security."
 * "Applications may use this feature to request a minimal set of requirements, then check the returned capabilities." */
static void secondaries_are_reported(void)
{
	CHECK(granted(FI_MSG, 0, 0) && (got.all & SECONDARIES) == (SECONDARIES & ~FI_RMA_EVENT));
	CHECK(granted(FI_RMA, 0, 0) && (got.all & SECONDARIES) == SECONDARIES);
	/* What was returned can be requested. */
	CHECK(granted(FI_TAGGED | FI_RMA | FI_READ, 0, 0));
	uint64_t all = got.all, tx = got.tx, rx = got.rx;
	CHECK(granted(all, tx, rx) && got.all == all && got.tx == tx && got.rx == rx);
}

/* "This flag requires that FI_REMOTE_READ and/or FI_REMOTE_WRITE be enabled on the endpoint." (FI_RMA_EVENT) */
static void rma_events_require_remote_access(void)
{
	CHECK(!granted(FI_MSG | FI_RMA_EVENT, 0, 0) && !granted(FI_RMA | FI_READ | FI_WRITE | FI_RMA_EVENT, 0, 0));
	CHECK(granted(FI_RMA | FI_READ, 0, 0) && !(got.all & FI_RMA_EVENT));
	CHECK(granted(FI_RMA | FI_REMOTE_READ | FI_RMA_EVENT, 0, 0) && got.all & got.rx & FI_RMA_EVENT);
	CHECK(granted(FI_ATOMIC | FI_REMOTE_WRITE | FI_RMA_EVENT, 0, 0) && got.all & got.rx & FI_RMA_EVENT);
}

/* "If neither FI_LOCAL_COMM or FI_REMOTE_COMM are specified, then the provider will indicate support for the configuration that
 * minimally affects performance." It has one: both. */
static void communication_is_local_and_remote(void)
{
	CHECK(granted(FI_MSG, 0, 0) && (got.all & COMM) == COMM);
	CHECK(granted(FI_MSG | FI_LOCAL_COMM, 0, 0) && (got.all & COMM) == COMM);
	CHECK(granted(FI_MSG | FI_REMOTE_COMM, 0, 0) && (got.all & COMM) == COMM);
}

/* "The capabilities must be a subset of those requested of the associated endpoint." */
static void sides_are_subsets_of_the_endpoint(void)
{
	CHECK(!granted(FI_MSG, FI_TAGGED, 0) && !granted(FI_MSG, 0, FI_TAGGED) && !granted(FI_TAGGED, 0, FI_DIRECTED_RECV));
	CHECK(!granted(FI_MSG | FI_RECV, FI_MSG | FI_SEND, 0) && !granted(FI_RMA | FI_READ, FI_RMA | FI_WRITE, 0));
	CHECK(granted(FI_MSG | FI_TAGGED, FI_MSG, FI_TAGGED) && got.all & FI_MSG && got.all & FI_TAGGED);
	CHECK((got.tx & PRIMARIES) == FI_MSG && got.tx & FI_SEND);
	CHECK((got.rx & PRIMARIES) == FI_TAGGED && got.rx & FI_RECV);
	CHECK(granted(FI_RMA, FI_RMA | FI_READ, 0) && (got.tx & MODIFIERS) == FI_READ);
	CHECK(granted(0, FI_MSG | FI_SEND, FI_MSG) && got.all == SUPPORTED && got.tx == (FI_MSG | FI_SEND));
	CHECK(!(got.rx & FI_DIRECTED_RECV) && !(got.rx & FI_TAGGED));
}

/* "If the caps field is 0 on input to fi_getinfo(3), the applicable capability bits from the fi_info structure will be used." "The
 * following capabilities apply to the transmit attributes: ..." Bits that do not apply are left out. */
static void sides_take_what_applies(void)
{
	uint64_t caps = FI_MSG | FI_RMA | FI_DIRECTED_RECV | FI_SOURCE | FI_SEND | FI_RECV | FI_READ | FI_REMOTE_WRITE;
	CHECK(granted(caps, 0, 0) && got.tx == (FI_MSG | FI_RMA | FI_SEND | FI_READ));
	CHECK((got.rx & ~SECONDARIES) == (FI_MSG | FI_RMA | FI_DIRECTED_RECV | FI_RECV | FI_REMOTE_WRITE));
	uint64_t tx = got.tx, rx = got.rx;
	CHECK(granted(caps, caps, caps) && got.tx == tx && (got.rx & ~SECONDARIES) == (rx & ~SECONDARIES));
}

struct end {
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep[4];
	struct fid_cq *cq[4];
	struct fid_av *av;
	char name[4][64];
	size_t count, name_len;
};

static void open_ends(struct end *end, size_t count, uint64_t caps, uint64_t rx)
{
	struct fi_info *info = ask(caps, 0, rx);
	struct fi_cq_attr cq = { .format = FI_CQ_FORMAT_TAGGED };
	struct fi_av_attr av = { .type = FI_AV_TABLE };
	CHECK(info);
	OK(fi_fabric(info->fabric_attr, &end->fabric, NULL));
	OK(fi_domain(end->fabric, info, &end->domain, NULL));
	OK(fi_av_open(end->domain, &av, &end->av, NULL));
	end->count = count;
	for (size_t at = 0; at < count; at++) {
		OK(fi_endpoint(end->domain, info, &end->ep[at], NULL));
		OK(fi_cq_open(end->domain, &cq, &end->cq[at], NULL));
		OK(fi_ep_bind(end->ep[at], &end->av->fid, 0));
		OK(fi_ep_bind(end->ep[at], &end->cq[at]->fid, FI_TRANSMIT | FI_RECV));
		OK(fi_enable(end->ep[at]));
		end->name_len = sizeof end->name[at];
		OK(fi_getname(&end->ep[at]->fid, end->name[at], &end->name_len));
	}
	fi_freeinfo(info);
}

static void close_ends(struct end *end)
{
	for (size_t at = 0; at < end->count; at++) {
		OK(fi_close(&end->ep[at]->fid));
		OK(fi_close(&end->cq[at]->fid));
	}
	OK(fi_close(&end->av->fid));
	OK(fi_close(&end->domain->fid));
	OK(fi_close(&end->fabric->fid));
}

/* All endpoints of a process in its address vector, by their numbers. */
static void know_each_other(struct end *end)
{
	for (size_t at = 0; at < end->count; at++) {
		fi_addr_t number = 99;
		CHECK(fi_av_insert(end->av, end->name[at], 1, &number, 0, NULL) == 1 && number == at);
	}
}

/* The next completion of the kind, wherever the others are. */
static struct fi_cq_tagged_entry next(struct end *end, size_t at, uint64_t kind)
{
	struct fi_cq_tagged_entry entry;
	for (size_t turn = at;; turn++) {
		ssize_t read = fi_cq_read(end->cq[at], &entry, 1);
		CHECK(read == 1 || read == -FI_EAGAIN);
		if (read == 1 && entry.flags & kind)
			return entry;
		/* Progress of the others; their completions are left. */
		fi_cq_read(end->cq[turn % end->count], &entry, 0);
	}
}

static char words[4][64], took[4][64];

/* "If this capability is not set, then the src_addr parameter for msg and tagged receive operations is ignored."
 * (FI_DIRECTED_RECV) Programs then pass 0, which is another endpoint. */
static void source_address_is_ignored(void)
{
	struct end end;
	open_ends(&end, 3, FI_MSG | FI_TAGGED, 0);
	know_each_other(&end);
	OK(fi_recv(end.ep[1], took[1], 64, NULL, 0, CONTEXT(1)));
	OK(fi_inject(end.ep[2], "plain", 6, 1));
	CHECK(next(&end, 1, FI_RECV).op_context == CONTEXT(1) && !strcmp(took[1], "plain"));
	OK(fi_trecv(end.ep[1], took[1], 64, NULL, 0, 7, 0, CONTEXT(2)));
	OK(fi_tinject(end.ep[2], "tagged", 7, 1, 7));
	CHECK(next(&end, 1, FI_RECV).op_context == CONTEXT(2) && !strcmp(took[1], "tagged"));
	/* Not a number of the vector at all. */
	OK(fi_recv(end.ep[1], took[1], 64, NULL, 1234, CONTEXT(3)));
	OK(fi_inject(end.ep[0], "any", 4, 1));
	CHECK(next(&end, 1, FI_RECV).op_context == CONTEXT(3) && !strcmp(took[1], "any"));
	close_ends(&end);
	/* The receive side without it, though the endpoint was to have it. */
	open_ends(&end, 3, FI_MSG | FI_DIRECTED_RECV, FI_MSG);
	know_each_other(&end);
	OK(fi_recv(end.ep[1], took[1], 64, NULL, 0, CONTEXT(4)));
	OK(fi_inject(end.ep[2], "side", 5, 1));
	CHECK(next(&end, 1, FI_RECV).op_context == CONTEXT(4) && !strcmp(took[1], "side"));
	close_ends(&end);
}

/* "Requests that the communication endpoint use the source address of an incoming message when matching it with a receive buffer." */
static void source_address_is_matched_on_request(void)
{
	struct end end;
	open_ends(&end, 3, FI_MSG | FI_DIRECTED_RECV, 0);
	know_each_other(&end);
	OK(fi_recv(end.ep[1], took[0], 64, NULL, 0, CONTEXT(10)));
	OK(fi_recv(end.ep[1], took[2], 64, NULL, 2, CONTEXT(12)));
	OK(fi_inject(end.ep[2], "from 2", 7, 1));
	CHECK(next(&end, 1, FI_RECV).op_context == CONTEXT(12) && !strcmp(took[2], "from 2"));
	OK(fi_inject(end.ep[0], "from 0", 7, 1));
	CHECK(next(&end, 1, FI_RECV).op_context == CONTEXT(10) && !strcmp(took[0], "from 0"));
	close_ends(&end);
}

/* Which calls the endpoints take: a bit for each kind. */
static unsigned taken_calls(uint64_t caps)
{
	struct end end;
	uint64_t one = 1, old = 0;
	ssize_t codes[8];
	unsigned taken = 0;
	open_ends(&end, 2, caps, 0);
	know_each_other(&end);
	codes[0] = fi_recv(end.ep[0], took[0], 64, NULL, FI_ADDR_UNSPEC, CONTEXT(1));
	codes[1] = fi_trecv(end.ep[0], took[1], 64, NULL, FI_ADDR_UNSPEC, 1, 0, CONTEXT(2));
	codes[2] = fi_send(end.ep[0], words[0], 8, NULL, 1, CONTEXT(3));
	codes[3] = fi_tsend(end.ep[0], words[0], 8, NULL, 1, 1, CONTEXT(4));
	codes[4] = fi_read(end.ep[0], words[2], 8, NULL, 1, 0, 1, CONTEXT(5));
	codes[5] = fi_write(end.ep[0], words[3], 8, NULL, 1, 0, 1, CONTEXT(6));
	codes[6] = fi_fetch_atomic(end.ep[0], &one, 1, NULL, &old, NULL, 1, 0, 1, FI_UINT64, FI_SUM, CONTEXT(7));
	codes[7] = fi_atomic(end.ep[0], &one, 1, NULL, 1, 0, 1, FI_UINT64, FI_SUM, CONTEXT(8));
	for (unsigned at = 0; at < 8; at++) {
		CHECK(codes[at] == 0 || codes[at] == -FI_ENOSYS);
		taken |= (codes[at] == 0) << at;
	}
	close_ends(&end);
	return taken;
}

/* "A provider must enable support for only those primary capabilities which were selected." */
static void calls_not_selected_are_refused(void)
{
	enum { RECV = 1, TRECV = 2, SEND = 4, TSEND = 8, READ = 16, WRITE = 32, FETCH = 64, ATOMIC = 128 };
	CHECK(taken_calls(0) == 255);
	CHECK(taken_calls(FI_MSG) == (RECV | SEND) && taken_calls(FI_MSG | FI_RECV) == RECV);
	CHECK(taken_calls(FI_TAGGED) == (TRECV | TSEND) && taken_calls(FI_TAGGED | FI_SEND) == TSEND);
	CHECK(taken_calls(FI_RMA) == (READ | WRITE) && taken_calls(FI_RMA | FI_READ) == READ);
	CHECK(taken_calls(FI_RMA | FI_WRITE) == WRITE && taken_calls(FI_RMA | FI_REMOTE_READ) == 0);
	CHECK(taken_calls(FI_ATOMIC) == (FETCH | ATOMIC) && taken_calls(FI_ATOMIC | FI_WRITE) == ATOMIC);
	CHECK(taken_calls(FI_ATOMIC | FI_READ) == FETCH);
}

/* Each endpoint of one domain to each, itself included; receives pass 0 as source. */
static void endpoints_of_one_process(void)
{
	struct end end;
	open_ends(&end, 4, FI_TAGGED, 0);
	know_each_other(&end);
	for (size_t to = 0; to < 4; to++)
		for (size_t from = 0; from < 4; from++) {
			sprintf(words[from], "%zu to %zu", from, to);
			OK(fi_trecv(end.ep[to], took[to], 64, NULL, 0, from, 0, CONTEXT(1 + from)));
			OK(fi_tsend(end.ep[from], words[from], 64, NULL, to, from, CONTEXT(9)));
			CHECK(next(&end, to, FI_RECV).op_context == CONTEXT(1 + from) && !strcmp(took[to], words[from]));
			if (from != to)
				CHECK(next(&end, from, FI_SEND).op_context == CONTEXT(9));
		}
	close_ends(&end);
}

#define CLIENTS 3
#define REQUESTS 50

/* A client knows the server only, by number 0. */
static void client(const char *server, size_t len, int id)
{
	struct end end;
	fi_addr_t to;
	open_ends(&end, 1, FI_MSG, 0);
	CHECK(fi_av_insert(end.av, server, 1, &to, 0, NULL) == 1 && len == end.name_len);
	memcpy(words[0], end.name[0], len);
	for (int turn = 0; turn < REQUESTS; turn++) {
		OK(fi_recv(end.ep[0], took[0], 64, NULL, 0, CONTEXT(1)));
		words[0][len] = (char)id;
		words[0][len + 1] = (char)turn;
		OK(fi_send(end.ep[0], words[0], len + 2, NULL, to, CONTEXT(2)));
		CHECK(next(&end, 0, FI_RECV).op_context == CONTEXT(1) && took[0][0] == id && took[0][1] == turn);
	}
	close_ends(&end);
}

/* The server takes requests of any client, and passes 0 as source, as servers do; it learns names from requests. */
static void clients_of_one_server(void)
{
	int name[CLIENTS][2], status;
	struct end end;
	size_t len;
	for (int id = 0; id < CLIENTS; id++) {
		CHECK(!pipe(name[id]));
		if (fork() == 0) {
			char server[64];
			ssize_t got_len = read(name[id][0], server, sizeof server);
			CHECK(got_len > 0);
			client(server, (size_t)got_len, id);
			exit(0);
		}
	}
	open_ends(&end, 1, FI_MSG, 0);
	len = end.name_len;
	for (int id = 0; id < CLIENTS; id++)
		CHECK(write(name[id][1], end.name[0], len) == (ssize_t)len);
	for (int request = 0; request < CLIENTS * REQUESTS; request++) {
		fi_addr_t to;
		OK(fi_recv(end.ep[0], took[0], 64, NULL, 0, CONTEXT(1)));
		CHECK(next(&end, 0, FI_RECV).len == len + 2);
		CHECK(fi_av_insert(end.av, took[0], 1, &to, 0, NULL) == 1);
		OK(fi_inject(end.ep[0], took[0] + len, 2, to));
	}
	/* The last replies may still be on their way. */
	for (int left = CLIENTS; left > 0;) {
		struct fi_cq_tagged_entry none;
		pid_t pid = waitpid(-1, &status, WNOHANG);
		CHECK(pid >= 0 && (pid == 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0)));
		left -= pid > 0;
		fi_cq_read(end.cq[0], &none, 0);
	}
	close_ends(&end);
}

/* Programs that were written for an early libfabric name the mode that needs nothing, or none at all. */
static void early_registration_modes(void)
{
	const struct { uint32_t version; int asked, granted; } modes[] = {
		{ FI_VERSION(1, 0), FI_MR_UNSPEC, FI_MR_SCALABLE },   { FI_VERSION(1, 0), FI_MR_SCALABLE, FI_MR_SCALABLE },
		{ FI_VERSION(1, 4), FI_MR_UNSPEC, FI_MR_SCALABLE },   { FI_VERSION(1, 4), FI_MR_SCALABLE, FI_MR_SCALABLE },
		{ FI_VERSION(1, 5), FI_MR_UNSPEC, 0 },                { FI_VERSION(1, 5), FI_MR_SCALABLE, FI_MR_SCALABLE },
		{ FI_VERSION(1, 17), FI_MR_UNSPEC, 0 },               { FI_VERSION(1, 17), FI_MR_SCALABLE, FI_MR_SCALABLE },
	};
	for (size_t at = 0; at < sizeof modes / sizeof *modes; at++) {
		struct fi_info *hints = fi_allocinfo(), *info = NULL;
		struct fid_fabric *fabric;
		struct fid_domain *domain;
		struct fid_mr *region;
		char bytes[64];
		hints->ep_attr->type = FI_EP_RDM;
		hints->caps = FI_MSG | FI_RMA;
		hints->mode = ~(uint64_t)0;
		hints->fabric_attr->prov_name = strdup("isthmus");
		hints->domain_attr->mr_mode = modes[at].asked;
		int code = fi_getinfo(modes[at].version, NULL, NULL, 0, hints, &info);
		if (code != 0 || info->domain_attr->mr_mode != modes[at].granted) {
			fprintf(stderr, "API %u.%u with mode %d: code %d, mode %d\n", FI_MAJOR(modes[at].version),
				FI_MINOR(modes[at].version), modes[at].asked, code, info ? info->domain_attr->mr_mode : -1);
			exit(1);
		}
		/* Keys are the program's, and registration needs nothing else. */
		OK(fi_fabric(info->fabric_attr, &fabric, NULL));
		OK(fi_domain(fabric, info, &domain, NULL));
		OK(fi_mr_reg(domain, bytes, sizeof bytes, FI_REMOTE_READ, 0, 77, 0, &region, NULL));
		CHECK(fi_mr_key(region) == 77);
		OK(fi_close(&region->fid));
		OK(fi_close(&domain->fid));
		OK(fi_close(&fabric->fid));
		fi_freeinfo(info);
		fi_freeinfo(hints);
	}
}

#define CASES(DO) \
	DO(zero_means_everything_supported) DO(primaries_are_those_selected) DO(modifiers_default_to_all) DO(modifiers_limit) \
	DO(modifiers_of_memory_require_memory) DO(secondaries_are_supported_or_refused) DO(secondaries_are_reported) \
	DO(rma_events_require_remote_access) DO(communication_is_local_and_remote) DO(sides_are_subsets_of_the_endpoint) \
	DO(sides_take_what_applies) DO(source_address_is_ignored) DO(source_address_is_matched_on_request) \
	DO(calls_not_selected_are_refused) DO(endpoints_of_one_process) DO(clients_of_one_server) \
	DO(early_registration_modes)

int main(int argc, char **argv)
{
	const struct { const char *name; void (*run)(void); } cases[] = {
#define CASE(name) { #name, name },
		CASES(CASE)
	};
	if (argc != 2)
		return 2;
	alarm(60);
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
