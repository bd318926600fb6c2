/* A stream of messages that goes through io_uring, past every call of the C library.
 *
 *   uring server ADDRESS [OPTIONS]           prints `port N`; receives, and sends each message back
 *   uring client ADDRESS PORT [OPTIONS]      sends, and checks what comes back
 *
 *   --bytes N    in each direction, in messages of 64 bytes to 8 KiB (1 MiB)
 *   --calls N    of them, the last N by write and read (0)
 *
 * The last line is `bytes N`, or `no io_uring: WHY` where the kernel refuses it. The program then ends when its input ends. A wrong byte
 * ends it with exit code 1. It makes the system calls itself, so that no library is needed.
 */
#include "sockets.h"
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { MESSAGE_MIN = 64, MESSAGE_MAX = 8192, SEED = 77 };

static uint64_t bytes = 1 << 20, calls;

/* A ring with one operation under way at a time. */
static struct {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *results;
} ring;

static void *mapped(size_t length, uint64_t offset)
{
    void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, (off_t)offset);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static void open_ring(void)
{
    struct io_uring_params given = {0};
    ring.fd = (int)syscall(SYS_io_uring_setup, 2, &given);
    if (ring.fd < 0) {
        printf("no io_uring: %s\n", strerror(errno));
        exit(0);
    }
    char *sq = mapped(given.sq_off.array + given.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    char *cq = mapped(given.cq_off.cqes + given.cq_entries * sizeof(struct io_uring_cqe), IORING_OFF_CQ_RING);
    ring.entries = mapped(given.sq_entries * sizeof(struct io_uring_sqe), IORING_OFF_SQES);
    ring.sq_tail = (unsigned *)(sq + given.sq_off.tail), ring.sq_mask = (unsigned *)(sq + given.sq_off.ring_mask);
    ring.sq_array = (unsigned *)(sq + given.sq_off.array);
    ring.cq_head = (unsigned *)(cq + given.cq_off.head), ring.cq_tail = (unsigned *)(cq + given.cq_off.tail);
    ring.cq_mask = (unsigned *)(cq + given.cq_off.ring_mask);
    ring.results = (struct io_uring_cqe *)(cq + given.cq_off.cqes);
}

/* Performs one operation; returns its result. */
static int performed(uint8_t operation, int fd, void *memory, size_t length)
{
    unsigned tail = *ring.sq_tail, slot = tail & *ring.sq_mask;
    ring.entries[slot] = (struct io_uring_sqe){
        .opcode = operation, .fd = fd, .addr = (uint64_t)(uintptr_t)memory, .len = (uint32_t)length};
    ring.sq_array[slot] = slot;
    __atomic_store_n(ring.sq_tail, tail + 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
    unsigned head = *ring.cq_head;
    CHECK(__atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE) == head + 1);
    int result = ring.results[head & *ring.cq_mask].res;
    __atomic_store_n(ring.cq_head, head + 1, __ATOMIC_RELEASE);
    return result;
}

static void move_all(uint8_t operation, int fd, uint8_t *memory, size_t length)
{
    for (size_t done = 0; done < length;) {
        int moved = performed(operation, fd, memory + done, length - done);
        if (moved <= 0)
            FAIL("io_uring operation %u = %d", operation, moved);
        done += (size_t)moved;
    }
}

static void send_message(int fd, uint64_t at, uint8_t *message, size_t length)
{
    if (at >= bytes - calls)
        write_all(fd, message, length);
    else
        move_all(IORING_OP_SEND, fd, message, length);
}

static void receive_message(int fd, uint64_t at, uint8_t *message, size_t length)
{
    if (at >= bytes - calls)
        CHECK(read_all(fd, message, length));
    else
        move_all(IORING_OP_RECV, fd, message, length);
}

/* Both programs choose the same lengths. */
static void exchange(int fd, bool is_client)
{
    struct chance chance = {SEED, 0};
    uint8_t message[MESSAGE_MAX], expected[MESSAGE_MAX];
    for (uint64_t at = 0, length; at < bytes; at += length) {
        length = MESSAGE_MIN + chosen(&chance, MESSAGE_MAX - MESSAGE_MIN + 1);
        length = length < bytes - at ? length : bytes - at;
        fill(SEED, at, expected, length);
        if (is_client) {
            memcpy(message, expected, length);
            send_message(fd, at, message, length);
            memset(message, 0, length);
        }
        receive_message(fd, at, message, length);
        if (memcmp(message, expected, length) != 0)
            FAIL("wrong bytes in the message at %llu", (unsigned long long)at);
        if (!is_client)
            send_message(fd, at, message, length);
    }
}

static void read_options(char **words)
{
    for (; *words; words += 2) {
        CHECK(words[1]);
        if (strcmp(words[0], "--bytes") == 0)
            bytes = strtoull(words[1], NULL, 0);
        else if (strcmp(words[0], "--calls") == 0)
            calls = strtoull(words[1], NULL, 0);
        else
            FAIL("no option %s", words[0]);
    }
    CHECK(calls <= bytes);
}

int main(int count, char **words)
{
    int fd;
    bool is_client = count >= 4 && strcmp(words[1], "client") == 0;
    begin();
    open_ring();
    if (is_client) {
        read_options(words + 4);
        fd = connected(words[2], atoi(words[3]));
    } else if (count >= 3 && strcmp(words[1], "server") == 0) {
        read_options(words + 3);
        fd = accepted(listening(words[2], 1));
    } else {
        FAIL("usage: uring server ADDRESS | client ADDRESS PORT [OPTIONS]");
    }
    exchange(fd, is_client);
    printf("bytes %llu\n", (unsigned long long)bytes);
    CHECK(getchar() == EOF);
    close(fd);
    return 0;
}
