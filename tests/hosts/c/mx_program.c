/*
 * A program of MX that does what it is told: an order a line from its standard input, an answer a line.
 *
 *   open BOARD NUMBER KEY              open NAME NUMBER             opens the endpoint; -1 is any
 *   connect SLOT NAME NUMBER KEY MS    connected                    MS milliseconds at most, 0: for ever
 *   begin NAME NUMBER KEY              begun                        mx_iconnect
 *   state                              pending | over STATUS        the connect that was begun, as it is
 *   end                                over STATUS                  the same, when it is over
 *   disconnect SLOT                    disconnected
 *   run ...                            done MESSAGES BYTES | broken ...   see below
 *   cycle COUNT NAME NUMBER KEY STREAM cycled COUNT                 opens, connects, sends one message, closes, again and again
 *   order COUNT SIZE SYNC SLOT MARK    ordered COUNT                sends long messages to SLOT, and a mark to MARK after each
 *   relay COUNT SLOT                   relayed COUNT                receives marks, and sends each one on to SLOT
 *   trust COUNT SIZE                   trusted COUNT EARLY          receives both; EARLY marks came before the long message was whole
 *   quiet                              quiet | unexpected MATCH     is there a message without a receive?
 *   close                              closed
 *
 * What MX refuses is answered with `refused CODE TEXT`.
 *
 *   run COUNT WINDOW SIZES TICK FLOW...      FLOW is to:SLOT:STREAM or from:STREAM
 *
 * Each flow is COUNT messages of one stream, WINDOW of them at a time. Everything of a message follows from its stream and its
 * number: its length, its bytes, in how many pieces it is sent and received, whether it is sent synchronously. Its match
 * information is both numbers, receives ask for the stream only, and so each message has to come once, in order, and whole.
 * SIZES is `mixed` (0 B to 110 KB, every class), `large` (64 KiB to 4 MiB) or a number of bytes. With TICK, `at N` is said for
 * every TICK messages that came. When a request fails, nothing more is begun, what is begun ends, and the answer is
 * `broken DIRECTION STREAM NUMBER STATUS`, for the first one. The STATUS is 0 if a later message came instead: then its sender
 * has heard why.
 */
#include "../../../examples/mx/mx_example.h"

enum { SLOTS = 64, FLOWS_MAX = 64, PIECES_MAX = 5, GUARD = 16, GUARD_BYTE = 0xEE, LINE_MAX_BYTES = 4096 };

struct flow;

/* A message under way. */
struct entry {
    struct flow *flow;
    mx_request_t request;
    uint64_t number;
    unsigned char *bytes;
    int posted;
};

struct flow {
    int sends;
    mx_endpoint_addr_t to;
    uint64_t stream, begun, over;
    struct entry *entries;
};

struct sizes {
    enum { MIXED, LARGE, FIXED } kind;
    uint64_t fixed;
};

static mx_endpoint_t endpoint;
static int is_open;
static mx_endpoint_addr_t slots[SLOTS];
static mx_request_t connecting;

static uint64_t mixed_bits(uint64_t stream, uint64_t number)
{
    uint64_t x = stream * UINT64_C(0x9e3779b97f4a7c15) ^ (number + 1) * UINT64_C(0xd1b54a32d192ed03);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static size_t length_of(const struct sizes *sizes, uint64_t stream, uint64_t number)
{
    uint64_t bits = mixed_bits(stream, number), chance = bits >> 32;
    if (sizes->kind == FIXED)
        return sizes->fixed;
    if (sizes->kind == LARGE)
        return (64 << 10) + chance % ((4 << 20) - (64 << 10) + 1);
    switch (bits % 16) {
    case 0: return 0;
    case 1: case 2: case 3: case 4: return 1 + chance % 32;                /* tiny */
    case 5: case 6: case 7: case 8: return 33 + chance % 96;               /* small */
    case 9: case 10: case 11: return 129 + chance % (4096 - 128);          /* medium */
    case 12: case 13: return 4097 + chance % (32768 - 4096);               /* medium, in fragments */
    case 14: return 32766 + chance % 6;                                    /* where the two meet */
    default: return 32769 + chance % (110000 - 32768);                     /* announced and fetched */
    }
}

static size_t longest_of(const struct sizes *sizes)
{
    return sizes->kind == FIXED ? sizes->fixed : sizes->kind == LARGE ? 4 << 20 : 110000;
}

static uint64_t word_of(uint64_t stream, uint64_t number, size_t at)
{
    uint64_t x = (stream << 40 ^ number * UINT64_C(0x9e3779b97f4a7c15) ^ at) * UINT64_C(0xbf58476d1ce4e5b9);
    return x ^ x >> 29;
}

static void paint(unsigned char *bytes, size_t length, uint64_t stream, uint64_t number)
{
    for (size_t at = 0; at < length; at += 8) {
        uint64_t word = word_of(stream, number, at);
        memcpy(bytes + at, &word, length - at < 8 ? length - at : 8);
    }
}

/* The first word of a message that is not as painted; the length if all are. */
static size_t wrong_from(const unsigned char *bytes, size_t length, uint64_t stream, uint64_t number)
{
    for (size_t at = 0; at < length; at += 8) {
        uint64_t word = word_of(stream, number, at);
        if (memcmp(bytes + at, &word, length - at < 8 ? length - at : 8) != 0)
            return at;
    }
    return length;
}

static void check(const unsigned char *bytes, size_t length, uint64_t stream, uint64_t number)
{
    size_t wrong = wrong_from(bytes, length, stream, number);
    if (wrong != length) {
        fprintf(stderr, "stream %" PRIu64 " message %" PRIu64 " of %zu bytes: wrong from byte %zu on\n", stream, number,
                length, wrong);
        exit(FAILED);
    }
    for (size_t at = 0; at < GUARD; at++)
        if (bytes[length + at] != GUARD_BYTE)
            fail("a byte behind the message was written");
}

/* Cuts a message, always alike for the same bits. */
static uint32_t cut(mx_segment_t *segments, unsigned char *bytes, size_t length, uint64_t bits)
{
    uint32_t pieces = bits % 4 == 0 ? 1 + (bits >> 2) % PIECES_MAX : 1;
    for (uint32_t at = 0; at < pieces; at++) {
        size_t share = at + 1 == pieces ? length : length * ((bits >> (8 + 3 * at)) % 8) / 8;
        segments[at].segment_ptr = bytes;
        segments[at].segment_length = (uint32_t)share;
        bytes += share;
        length -= share;
    }
    return pieces;
}

static uint64_t match_of(uint64_t stream, uint64_t number)
{
    return stream << 32 | number;
}

static int refused(mx_return_t code)
{
    if (code == MX_SUCCESS)
        return 0;
    printf("refused %d %s\n", (int)code, mx_strerror(code));
    return 1;
}

static void said(mx_return_t code, const char *word)
{
    if (!refused(code))
        printf("%s\n", word);
}

static void post(struct flow *flow, struct entry *entry, const struct sizes *sizes)
{
    mx_segment_t segments[PIECES_MAX];
    uint64_t bits = mixed_bits(flow->stream + (flow->sends ? 77 : 99), flow->begun);
    size_t length = length_of(sizes, flow->stream, flow->begun);
    uint32_t pieces = cut(segments, entry->bytes, length, bits);
    entry->number = flow->begun++;
    entry->posted = 1;
    if (!flow->sends) {
        memset(entry->bytes, GUARD_BYTE, length + GUARD);
        MX(mx_irecv(endpoint, segments, pieces, match_of(flow->stream, 0), ~UINT64_C(0xffffffff), entry,
                    &entry->request));
        return;
    }
    paint(entry->bytes, length, flow->stream, entry->number);
    if (bits >> 60 == 0)
        MX(mx_issend(endpoint, segments, pieces, flow->to, match_of(flow->stream, entry->number), entry,
                     &entry->request));
    else
        MX(mx_isend(endpoint, segments, pieces, flow->to, match_of(flow->stream, entry->number), entry,
                    &entry->request));
}

/* One request is over. Answers whether it ended well. */
static int take(const mx_status_t *status, const struct sizes *sizes)
{
    struct entry *entry = status->context;
    struct flow *flow = entry->flow;
    size_t length = length_of(sizes, flow->stream, entry->number);
    entry->posted = 0;
    if (status->code != MX_STATUS_SUCCESS)
        return 0;
    if (status->match_info > match_of(flow->stream, entry->number))
        return 0;
    if (status->match_info != match_of(flow->stream, entry->number)) {
        fprintf(stderr, "stream %" PRIu64 ": message %" PRIu64 " where %" PRIu64 " should be\n", flow->stream,
                status->match_info & 0xffffffff, entry->number);
        exit(FAILED);
    }
    if (status->xfer_length != length || status->msg_length != length)
        fail("a message of another length");
    if (!flow->sends)
        check(entry->bytes, length, flow->stream, entry->number);
    flow->over++;
    return 1;
}

/* The rest of what was begun, without looking at it: receives that nothing came for are taken back. */
static void wind_up(struct flow *flows, int count, uint64_t window)
{
    for (int at = 0; at < count; at++)
        for (uint64_t of = 0; of < window; of++) {
            struct entry *entry = &flows[at].entries[of];
            mx_status_t status;
            uint32_t done = 0;
            if (!entry->posted)
                continue;
            if (!flows[at].sends)
                MX(mx_cancel(endpoint, &entry->request, &done));
            if (!done)
                MX(mx_wait(endpoint, &entry->request, MX_INFINITE, &status, &done));
        }
}

static void free_flows(struct flow *flows, int count, uint64_t window)
{
    for (int at = 0; at < count; at++) {
        for (uint64_t of = 0; of < window; of++)
            free(flows[at].entries[of].bytes);
        free(flows[at].entries);
    }
}

static void carry(struct flow *flows, int count, uint64_t messages, uint64_t window, const struct sizes *sizes,
                  uint64_t tick)
{
    uint64_t over = 0, came = 0, bytes = 0;
    for (int at = 0; at < count; at++)
        for (uint64_t of = 0; of < window && of < messages; of++)
            post(&flows[at], &flows[at].entries[of], sizes);
    while (over < messages * (uint64_t)count) {
        mx_status_t status;
        uint32_t done = 0;
        struct entry *entry;
        MX(mx_wait_any(endpoint, MX_INFINITE, 0, 0, &status, &done));
        if (!done)
            continue;
        entry = status.context;
        if (!take(&status, sizes)) {
            wind_up(flows, count, window);
            printf("broken %s %" PRIu64 " %" PRIu64 " %d\n", entry->flow->sends ? "to" : "from", entry->flow->stream,
                   entry->number, (int)status.code);
            return;
        }
        over++;
        bytes += status.xfer_length;
        came += !entry->flow->sends;
        if (tick != 0 && !entry->flow->sends && came % tick == 0) {
            printf("at %" PRIu64 "\n", came);
            fflush(stdout);
        }
        if (entry->flow->begun < messages)
            post(entry->flow, entry, sizes);
    }
    printf("done %" PRIu64 " %" PRIu64 "\n", over, bytes);
}

static void run(char *words)
{
    struct flow flows[FLOWS_MAX];
    struct sizes sizes = {MIXED, 0};
    int count = 0;
    uint64_t messages = number(strtok(words, " "), 1, UINT32_MAX), window = number(strtok(NULL, " "), 1, 4096), tick;
    char *word = strtok(NULL, " ");
    if (strcmp(word, "large") == 0)
        sizes.kind = LARGE;
    else if (strcmp(word, "mixed") != 0)
        sizes.kind = FIXED, sizes.fixed = number(word, 0, 1 << 30);
    tick = number(strtok(NULL, " "), 0, UINT32_MAX);
    while ((word = strtok(NULL, " ")) != NULL && count < FLOWS_MAX) {
        struct flow *flow = &flows[count++];
        unsigned slot = 0, stream = 0;
        memset(flow, 0, sizeof *flow);
        flow->sends = sscanf(word, "to:%u:%u", &slot, &stream) == 2;
        if ((!flow->sends && sscanf(word, "from:%u", &stream) != 1) || slot >= SLOTS)
            fail("no such flow");
        flow->to = slots[slot];
        flow->stream = stream;
        flow->entries = calloc(window, sizeof *flow->entries);
        for (uint64_t of = 0; of < window; of++) {
            flow->entries[of].flow = flow;
            flow->entries[of].bytes = malloc(longest_of(&sizes) + GUARD);
            if (flow->entries[of].bytes == NULL)
                fail("no memory");
        }
    }
    carry(flows, count, messages, window, &sizes, tick);
    free_flows(flows, count, window);
}

/* `name` is a board's name, or its address as a number. */
static mx_return_t find(char *name, uint64_t *nic_id)
{
    if (strncmp(name, "0x", 2) != 0)
        return mx_hostname_to_nic_id(name, nic_id);
    *nic_id = strtoull(name, NULL, 16);
    return MX_SUCCESS;
}

static void open_one(const char *words)
{
    char name[MX_MAX_HOSTNAME_LEN];
    long board, wanted;
    unsigned key;
    struct place place;
    if (sscanf(words, "%ld %ld %u", &board, &wanted, &key) != 3)
        fail("open BOARD NUMBER KEY");
    if (refused(mx_open_endpoint((uint32_t)board, (uint32_t)wanted, key, NULL, 0, &endpoint)))
        return;
    is_open = 1;
    place = place_of(endpoint, key);
    MX(mx_nic_id_to_hostname(place.nic_id, name));
    printf("open %s %" PRIu32 "\n", name, place.endpoint);
}

static void connect_one(const char *words)
{
    char name[MX_MAX_HOSTNAME_LEN];
    unsigned slot, remote, key, limit;
    uint64_t nic_id;
    if (sscanf(words, "%u %79s %u %u %u", &slot, name, &remote, &key, &limit) != 5 || slot >= SLOTS)
        fail("connect SLOT NAME NUMBER KEY MS");
    if (!refused(find(name, &nic_id)) && !refused(mx_connect(endpoint, nic_id, remote, key, limit, &slots[slot])))
        printf("connected\n");
}

static void begin(const char *words)
{
    char name[MX_MAX_HOSTNAME_LEN];
    unsigned remote, key;
    uint64_t nic_id;
    if (sscanf(words, "%79s %u %u", name, &remote, &key) != 3)
        fail("begin NAME NUMBER KEY");
    if (!refused(find(name, &nic_id))
        && !refused(mx_iconnect(endpoint, nic_id, remote, key, UINT64_C(1) << 63, NULL, &connecting)))
        printf("begun\n");
}

static void look(int to_the_end)
{
    mx_status_t status;
    uint32_t done = 0;
    if (to_the_end)
        MX(mx_wait(endpoint, &connecting, MX_INFINITE, &status, &done));
    else
        MX(mx_test(endpoint, &connecting, &status, &done));
    if (!done) {
        printf("pending\n");
        return;
    }
    if (status.code == MX_STATUS_SUCCESS)
        slots[0] = status.source;
    printf("over %d\n", (int)status.code);
}

static void cycle(const char *words)
{
    static const struct sizes small = {FIXED, 64};
    char name[MX_MAX_HOSTNAME_LEN];
    unsigned count, remote, key, stream;
    if (sscanf(words, "%u %79s %u %u %u", &count, name, &remote, &key, &stream) != 5)
        fail("cycle COUNT NAME NUMBER KEY STREAM");
    for (unsigned at = 0; at < count; at++) {
        unsigned char bytes[64];
        mx_endpoint_addr_t to;
        mx_segment_t segment = {bytes, sizeof bytes};
        mx_request_t request;
        uint64_t nic_id;
        MX(mx_open_endpoint(MX_ANY_NIC, MX_ANY_ENDPOINT, key, NULL, 0, &endpoint));
        MX(find(name, &nic_id));
        MX(mx_connect(endpoint, nic_id, remote, key, MX_INFINITE, &to));
        paint(bytes, small.fixed, stream, at);
        MX(mx_issend(endpoint, &segment, 1, to, match_of(stream, at), NULL, &request));
        complete(endpoint, &request, 1); /* It was matched: the next one comes after it. */
        MX(mx_close_endpoint(endpoint));
    }
    printf("cycled %u\n", count);
}

/* Long messages and their marks. A mark is sent when the long message of its number is over. */
enum { LONG_STREAM = 1000, MARK_STREAM = 1001 };

static void send_one(mx_endpoint_addr_t to, unsigned char *bytes, size_t length, uint64_t match, int sync)
{
    mx_segment_t segment = {bytes, (uint32_t)length};
    mx_request_t request;
    if (sync)
        MX(mx_issend(endpoint, &segment, 1, to, match, NULL, &request));
    else
        MX(mx_isend(endpoint, &segment, 1, to, match, NULL, &request));
    complete(endpoint, &request, 1);
}

static mx_request_t receive_one(unsigned char *bytes, size_t length, uint64_t match)
{
    mx_segment_t segment = {bytes, (uint32_t)length};
    mx_request_t request;
    MX(mx_irecv(endpoint, &segment, 1, match, ~UINT64_C(0), NULL, &request));
    return request;
}

static void order(const char *words)
{
    unsigned count, size, sync, slot, mark;
    unsigned char *bytes, marked[4] = {0};
    if (sscanf(words, "%u %u %u %u %u", &count, &size, &sync, &slot, &mark) != 5 || slot >= SLOTS || mark >= SLOTS)
        fail("order COUNT SIZE SYNC SLOT MARK");
    bytes = malloc(size);
    for (unsigned at = 0; at < count; at++) {
        paint(bytes, size, LONG_STREAM, at);
        send_one(slots[slot], bytes, size, match_of(LONG_STREAM, at), (int)sync);
        send_one(slots[mark], marked, sizeof marked, match_of(MARK_STREAM, at), 0);
    }
    free(bytes);
    printf("ordered %u\n", count);
}

static void relay(const char *words)
{
    unsigned count, slot;
    unsigned char marked[4];
    if (sscanf(words, "%u %u", &count, &slot) != 2 || slot >= SLOTS)
        fail("relay COUNT SLOT");
    for (unsigned at = 0; at < count; at++) {
        mx_request_t request = receive_one(marked, sizeof marked, match_of(MARK_STREAM, at));
        complete(endpoint, &request, 1);
        send_one(slots[slot], marked, sizeof marked, match_of(MARK_STREAM, at), 0);
    }
    printf("relayed %u\n", count);
}

static void trust(const char *words)
{
    unsigned count, size, early = 0;
    unsigned char *bytes, marked[4];
    if (sscanf(words, "%u %u", &count, &size) != 2)
        fail("trust COUNT SIZE");
    bytes = malloc(size + GUARD);
    for (unsigned at = 0; at < count; at++) {
        mx_request_t whole, mark;
        memset(bytes, GUARD_BYTE, size + GUARD);
        whole = receive_one(bytes, size, match_of(LONG_STREAM, at));
        mark = receive_one(marked, sizeof marked, match_of(MARK_STREAM, at));
        complete(endpoint, &mark, 1);
        early += wrong_from(bytes, size, LONG_STREAM, at) != size;
        complete(endpoint, &whole, 1);
        check(bytes, size, LONG_STREAM, at);
    }
    free(bytes);
    printf("trusted %u %u\n", count, early);
}

static void quiet(void)
{
    mx_status_t status;
    uint32_t there;
    MX(mx_iprobe(endpoint, 0, 0, &status, &there));
    if (there)
        printf("unexpected %#" PRIx64 "\n", status.match_info);
    else
        printf("quiet\n");
}

static void obey(char *line)
{
    char *rest = strchr(line, ' ');
    rest = rest == NULL ? line + strlen(line) : rest + 1;
    if (strncmp(line, "open ", 5) == 0)
        open_one(rest);
    else if (strncmp(line, "connect ", 8) == 0)
        connect_one(rest);
    else if (strncmp(line, "begin ", 6) == 0)
        begin(rest);
    else if (strcmp(line, "state") == 0 || strcmp(line, "end") == 0)
        look(line[0] == 'e');
    else if (strncmp(line, "disconnect ", 11) == 0)
        said(mx_disconnect(endpoint, slots[number(rest, 0, SLOTS - 1)]), "disconnected");
    else if (strncmp(line, "run ", 4) == 0)
        run(rest);
    else if (strncmp(line, "cycle ", 6) == 0)
        cycle(rest);
    else if (strncmp(line, "order ", 6) == 0)
        order(rest);
    else if (strncmp(line, "relay ", 6) == 0)
        relay(rest);
    else if (strncmp(line, "trust ", 6) == 0)
        trust(rest);
    else if (strcmp(line, "quiet") == 0)
        quiet();
    else if (strcmp(line, "close") == 0)
        said(mx_close_endpoint(endpoint), "closed"), is_open = 0;
    else
        fail("no such order");
    fflush(stdout);
}

int main(void)
{
    char line[LINE_MAX_BYTES];
    mx_set_error_handler(MX_ERRORS_RETURN); /* What may fail is answered; what may not ends us in MX(). */
    MX(mx_init());
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        obey(line);
    }
    if (is_open)
        MX(mx_close_endpoint(endpoint));
    MX(mx_finalize());
    return 0;
}
