/*
 * Large messages whose buffers lie in a guest's window: sent again and again, from memory with which everything happens that may happen
 * to a program's memory. Each message's bytes are looked at by its receiver.
 *
 *   regions                        serves one client; prints `endpoint N`
 *   regions -r ENDPOINT            sends; prints `homes N` where the buffer is in use, and what cannot be done with such memory
 *   regions -r ENDPOINT on         sends until somebody ends it
 *   regions -r ENDPOINT price      says what a send's call takes, by size: `price BYTES COLD MISS HIT` in ns, for a buffer that is new, one
 *                                  that is moved into the window by that call, and one that is there
 *   regions -r ENDPOINT hold       says `holds` when its buffer is in use, and looks at it again when /tmp/go is there
 */
#define _GNU_SOURCE
#include "../../../examples/mx/mx_example.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define MIB ((size_t)1 << 20)
#define MOST (4 * MIB)
#define OVER UINT64_C(0x6f766572)

/* So often a buffer is sent at least: at first it is new, then moved, then sent from where it is; and at most, until it is moved: a
 * program that has lost buffers has to show that it uses others again. */
enum { USES = 8, USES_MOST = 100 };

static mx_endpoint_t endpoint;
static mx_endpoint_addr_t peer;
static unsigned seeds;

/* Byte `at` is 31 at + 7 (at / 4096) + 101 seed. 31 by 223 is 1, so each row of 256 is a part of one table. */
enum { ROW = 256 };

static const unsigned char *row_at(size_t at, unsigned seed)
{
    static unsigned char table[2 * ROW];
    if (table[1] == 0)
        for (unsigned place = 0; place < 2 * ROW; place++)
            table[place] = (unsigned char)(place * 31);
    return table + (at / 4096 * 7 + seed * 101) * 223 % ROW;
}

static size_t row_length(size_t at, size_t length)
{
    return length - at < ROW ? length - at : ROW;
}

static void paint(unsigned char *bytes, size_t length, unsigned seed)
{
    for (size_t at = 0; at < length; at += ROW)
        memcpy(bytes + at, row_at(at, seed), row_length(at, length));
}

static void check(const unsigned char *bytes, size_t length, unsigned seed, const char *what)
{
    for (size_t at = 0; at < length; at += ROW) {
        if (memcmp(bytes + at, row_at(at, seed), row_length(at, length)) != 0) {
            fprintf(stderr, "%s: row %zu of %zu bytes is wrong\n", what, at, length);
            exit(FAILED);
        }
    }
}

static mx_status_t receive(void *bytes, size_t length)
{
    mx_segment_t segment = {bytes, (uint32_t)length};
    mx_request_t request;
    mx_status_t status;
    uint32_t result;
    MX(mx_irecv(endpoint, &segment, 1, 0, 0, NULL, &request));
    MX(mx_wait(endpoint, &request, MX_INFINITE, &status, &result));
    mx_ended_well(&status, "receiving");
    return status;
}

static void give(const void *bytes, size_t length, uint64_t match)
{
    mx_segment_t segment = {(void *)(uintptr_t)bytes, (uint32_t)length};
    mx_request_t request;
    mx_status_t status;
    uint32_t result;
    MX(mx_issend(endpoint, &segment, 1, peer, match, NULL, &request));
    MX(mx_wait(endpoint, &request, MX_INFINITE, &status, &result));
    mx_ended_well(&status, "sending");
}

/* Sends what was painted with this seed, and hears that it came so. */
static void pass(const unsigned char *bytes, size_t length, unsigned seed)
{
    uint64_t heard = 0;
    give(bytes, length, (uint64_t)seed << 32 | length);
    receive(&heard, sizeof heard);
    if (heard != ((uint64_t)seed << 32 | length))
        fail("the server has heard something else");
    check(bytes, length, seed, "after it was sent");
}

/* How many mappings of this program are pages of a window. */
static unsigned homes(void)
{
    unsigned count = 0;
    char line[4400];
    FILE *maps = fopen("/proc/self/maps", "r");
    if (maps == NULL)
        fail("no /proc/self/maps");
    while (fgets(line, sizeof line, maps) != NULL)
        count += strstr(line, "rw-s") != NULL && strstr(line, "/isthmus-home") != NULL;
    fclose(maps);
    return count;
}

/* A buffer that is used until it is where it will be. */
static void use(unsigned char *bytes, size_t length)
{
    for (int time = 0; time < USES || (time < USES_MOST && homes() == 0); time++) {
        paint(bytes, length, ++seeds);
        pass(bytes, length, seeds);
    }
}

static unsigned char *fresh(void *at, size_t length)
{
    /* Nobody has had memory there before: a buffer is not made to wait for what became of another one. */
    static uintptr_t next = (uintptr_t)1 << 40;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    void *place = at != NULL ? at : (void *)(next += 2 * MOST);
    void *bytes = mmap(place, length, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (bytes == MAP_FAILED)
        fail("no memory");
    return bytes;
}

static void sizes(void)
{
    static const size_t lengths[] = {65536, 65537, 100000, 262144, MIB, MIB + 12345, 3 * MIB};
    for (size_t at = 0; at < sizeof lengths / sizeof *lengths; at++) {
        unsigned char *all = malloc(lengths[at] + 777);
        use(all, lengths[at]);
        use(all + 777, lengths[at]);
        printf("size %zu homes %u\n", lengths[at], homes());
        free(all);
    }
}

static void replaced(void)
{
    unsigned char *bytes = fresh(NULL, MIB);
    use(bytes, MIB);
    munmap(bytes, MIB);
    fresh(bytes, MIB);
    use(bytes, MIB);
    fresh(bytes + MIB / 2, MIB / 4); /* zeroes in the middle */
    use(bytes, MIB);
    munmap(bytes, MIB);
}

static void forked(void)
{
    unsigned char *bytes = fresh(NULL, MIB);
    for (int round = 0; round < 3; round++) {
        int status, line[2];
        unsigned before;
        pid_t child;
        char word;
        use(bytes, MIB);
        before = seeds;
        if (pipe(line) != 0)
            fail("no pipe");
        fflush(stdout);
        child = fork();
        if (child == 0) {
            if (read(line[0], &word, 1) != 1)
                _exit(2);
            check(bytes, MIB, before, "what a child has of before the fork");
            memset(bytes, 0, MIB);
            _exit(0);
        }
        paint(bytes, MIB, ++seeds);
        if (child < 0 || write(line[1], "x", 1) != 1 || waitpid(child, &status, 0) != child || status != 0)
            fail("the child has seen something else");
        pass(bytes, MIB, seeds);
        close(line[0]);
        close(line[1]);
    }
    munmap(bytes, MIB);
}

static void moved(void)
{
    unsigned char *bytes = fresh(NULL, MIB), *place = fresh(NULL, MIB);
    use(bytes, MIB);
    if (mremap(bytes, MIB, MIB, MREMAP_MAYMOVE | MREMAP_FIXED, place) != place)
        fail("mremap");
    check(place, MIB, seeds, "moved");
    pass(place, MIB, seeds);
    fresh(bytes, MIB);
    use(bytes, MIB);
    use(place, MIB);
    munmap(bytes, MIB);
    munmap(place, MIB);
}

static void protected(void)
{
    unsigned char *bytes = fresh(NULL, MIB);
    use(bytes, MIB);
    if (mprotect(bytes, MIB, PROT_READ) != 0)
        fail("mprotect");
    pass(bytes, MIB, seeds);
    if (mprotect(bytes, MIB, PROT_READ | PROT_WRITE) != 0)
        fail("mprotect");
    use(bytes, MIB);
    munmap(bytes, MIB);
}

/* What the kernel does with such memory by itself. */
static void by_the_kernel(void)
{
    unsigned char *bytes = fresh(NULL, MIB), *copy = fresh(NULL, MIB);
    struct iovec here = {bytes, MIB}, there = {copy, MIB};
    int file = memfd_create("copy", 0);
    use(bytes, MIB);
    printf("homes %u\n", homes());
    if (write(file, bytes, MIB) != (ssize_t)MIB || pread(file, copy, MIB, 0) != (ssize_t)MIB)
        fail("write from the buffer");
    check(copy, MIB, seeds, "written");
    paint(copy, MIB, ++seeds);
    if (pwrite(file, copy, MIB, 0) != (ssize_t)MIB || pread(file, bytes, MIB, 0) != (ssize_t)MIB)
        fail("read into the buffer");
    pass(bytes, MIB, seeds);
    printf("process_vm_readv %s\n", process_vm_readv(getpid(), &there, 1, &here, 1, 0) < 0 ? strerror(errno) : "well");
    printf("DONTNEED %s\n", madvise(bytes, MIB, MADV_DONTNEED) < 0 ? strerror(errno) : "well");
    close(file);
    munmap(copy, MIB);
    munmap(bytes, MIB);
}

/* More buffers than there is room for, in turn. */
static void many(void)
{
    unsigned char *all[10];
    for (int at = 0; at < 10; at++)
        all[at] = fresh(NULL, 2 * MIB);
    for (int time = 0; time < USES; time++) {
        for (int at = 0; at < 10; at++) {
            paint(all[at], 2 * MIB, ++seeds);
            pass(all[at], 2 * MIB, seeds);
        }
    }
    for (int at = 0; at < 10; at++)
        munmap(all[at], 2 * MIB);
}

static void serve(void)
{
    unsigned char *bytes = malloc(MOST);
    for (;;) {
        mx_status_t status = receive(bytes, MOST);
        uint64_t match = status.match_info;
        if (match == OVER)
            break;
        if (status.xfer_length != (uint32_t)match)
            fail("a message of another length");
        check(bytes, status.xfer_length, (unsigned)(match >> 32), "received");
        memset(bytes, 0xee, status.xfer_length);
        give(&match, sizeof match, 1);
    }
    free(bytes);
}

/* So many buffers of each size have their price told, and each so often once it is in the window. */
enum { SORTS = 5, BUFFERS = 6, HITS = 12, TRIES = 200 };

static int by_size(const void *one, const void *other)
{
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_size);
    return count > 0 ? values[count / 2] : 0;
}

/* What the call takes in which a send begins, in ns; the message is over then. */
static double call(const unsigned char *bytes, size_t length, unsigned seed)
{
    mx_segment_t segment = {(void *)(uintptr_t)bytes, (uint32_t)length};
    uint64_t heard = 0;
    mx_request_t request;
    mx_status_t status;
    uint32_t result;
    double begun = now_us(), took;
    MX(mx_issend(endpoint, &segment, 1, peer, (uint64_t)seed << 32 | length, NULL, &request));
    took = now_us() - begun;
    MX(mx_wait(endpoint, &request, MX_INFINITE, &status, &result));
    mx_ended_well(&status, "sending");
    receive(&heard, sizeof heard);
    return took * 1e3;
}

static void prices(void)
{
    for (int sort = 0; sort < SORTS; sort++) {
        size_t length = (size_t)65536 << sort;
        double cold[BUFFERS], miss[BUFFERS], hit[BUFFERS * HITS];
        int moved = 0, hits = 0;
        for (int at = 0; at < BUFFERS; at++) {
            unsigned char *bytes = fresh(NULL, length);
            unsigned before = homes();
            int is_moved = 0, left = HITS;
            for (int time = 0; time < TRIES && left > 0; time++) {
                double took;
                paint(bytes, length, ++seeds);
                took = call(bytes, length, seeds);
                if (time == 0)
                    cold[at] = took;
                if (is_moved) {
                    hit[hits++] = took;
                    left--;
                } else if (homes() > before) {
                    is_moved = 1;
                    miss[moved++] = took;
                }
            }
        }
        printf("price %zu %.0f %.0f %.0f\n", length, median(cold, BUFFERS), median(miss, moved), median(hit, hits));
    }
}

static int linger(int holding)
{
    unsigned char *bytes = fresh(NULL, MIB);
    do
        use(bytes, MIB);
    while (!holding || homes() == 0); /* its channel may take a moment */
    printf("homes %u\nholds\n", homes());
    fflush(stdout);
    while (access("/tmp/go", F_OK) != 0)
        usleep(20000);
    check(bytes, MIB, seeds, "what was in the window");
    paint(bytes, MIB, ++seeds);
    if (fork() == 0) {
        memset(bytes, 0, MIB);
        _exit(0);
    }
    if (wait(NULL) < 0)
        fail("no child");
    check(bytes, MIB, seeds, "after a fork");
    puts("all is well");
    return 0;
}

int main(int argc, char **argv)
{
    struct hello hello = {{0, 0, 0}, {0}};
    MX(mx_init());
    endpoint = open_endpoint(MX_ANY_ENDPOINT);
    if (argc < 3) {
        peer = wait_for_client(endpoint, &hello);
        serve();
    } else {
        peer = greet(endpoint, NULL, (uint32_t)number(argv[2], 0, 255), &hello);
        if (argc > 3 && strcmp(argv[3], "price") == 0) {
            prices();
            give(&hello, 8, OVER);
            return 0;
        }
        if (argc > 3)
            return linger(strcmp(argv[3], "hold") == 0);
        sizes();
        replaced();
        forked();
        moved();
        protected();
        by_the_kernel();
        many();
        give(&hello, 8, OVER);
        puts("all is well");
    }
    MX(mx_close_endpoint(endpoint));
    MX(mx_finalize());
    return 0;
}
