/*
 * The rings of kmod/loop_ring.h in user space: two threads that exchange frames of random sizes, and with LIAR memory that gives another value
 * for each read. The sanitizers of the compiler watch both.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LIAR
static uint64_t noise(void) {
    static _Thread_local uint64_t state = 88172645463325252ULL;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

/* Sometimes what is there, sometimes near it, sometimes anything: checks are passed and failed. */
static uint64_t lie(uint64_t truth) {
    switch (noise() % 8) {
    case 0: return noise();
    case 1: return truth + noise() % 4096 * 16;
    case 2: return noise() % 70000;
    default: return truth;
    }
}
#define loop_load(word) ((__typeof__(*(word)))lie(*(word)))
#define loop_load_acquire(word) loop_load(word)
#define loop_store(word, value) (*(word) = (value))
#define loop_store_release(word, value) loop_store(word, value)
#define loop_fence() ((void)0)
#endif
#include "loop_ring.h"

#define SIZE LOOP_RING_MIN
#define CHECK(condition) ((condition) ? (void)0 : (fprintf(stderr, "line %d: %s\n", __LINE__, #condition), abort()))

static void *extent;
static u8 zero[LOOP_FRAME_MAX];

/* Sends one frame, if there is room. */
static bool offer(struct loop_sender *sender, const struct loop_record *record, const u8 *frame) {
    u32 first;
    u8 *at, *rest;
    if (loop_room(sender) < loop_record_bytes(record->bytes))
        return false;
    at = loop_place(sender, record, &first, &rest);
    memcpy(at, frame, first);
    memcpy(rest, frame + first, record->bytes - first);
    loop_publish(sender, record->bytes);
    return true;
}

#ifdef LIAR
int main(void) {
    unsigned seen[LOOP_BAD_GREETING + 1] = {0}, frames = 0;
    extent = malloc(LOOP_DATA_OFFSET + 2 * SIZE); /* as long as it is said to be: the sanitizer sees what lies beyond */
    for (unsigned life = 0; life < 20000; life++) {
        struct loop_sender sender;
        struct loop_receiver receiver;
        enum loop_violation violation = LOOP_FINE;
        for (u32 at = 0; at < LOOP_DATA_OFFSET / 8; at++)
            ((u64 *)extent)[at] = 0;
        for (u32 at = 0; at < 4096; at++)
            ((u32 *)extent)[noise() % (LOOP_DATA_OFFSET / 4 + SIZE / 2)] = noise() % 4 ? noise() % 2000 : noise();
        loop_begin(extent, SIZE, life & 1, life & 2, &sender, &receiver);
        for (unsigned step = 0; step < 40 && !violation; step++) {
            struct loop_record record, own = {.bytes = 14 + noise() % 9000};
            u32 state;
            bool uso;
            violation = loop_next(&receiver, &record);
            if (!violation && record.bytes) {
                /* Exactly as large as the length that was checked. */
                u8 *copy = malloc(record.bytes);
                u32 part = noise() % record.bytes;
                CHECK(!loop_check(&record, receiver.uso));
                loop_copy(&receiver, 0, copy, part);
                loop_copy(&receiver, part, copy + part, record.bytes - part);
                free(copy);
                loop_done(&receiver, record.bytes);
                CHECK(receiver.produced - receiver.taken <= SIZE);
                frames++;
            }
            (void)loop_must_notify(&receiver);
            (void)loop_rest(&receiver);
            (void)offer(&sender, &own, zero);
            (void)loop_must_ring(&sender);
            (void)loop_ask(&sender, sender.taken + (sender.produced - sender.taken) / 2);
            if (!violation)
                violation = loop_reclaim(&sender);
            CHECK(loop_room(&sender) <= SIZE);
            if (!violation && noise() % 16 == 0)
                violation = loop_greet(&sender, &state, &uso);
        }
        seen[violation]++;
    }
    printf("frames %u, fine %u, violations %u %u %u %u %u\n", frames, seen[0], seen[1], seen[2], seen[3], seen[4], seen[5]);
    for (unsigned at = 1; at <= LOOP_BAD_GREETING; at++)
        CHECK(seen[at]);
    CHECK(frames > 1000);
    return 0;
}
#else
#define FRAMES 200000U

static unsigned bell[2]; /* of each side */

static void ring(unsigned side) { __atomic_fetch_add(&bell[side], 1, __ATOMIC_SEQ_CST); }

static void sleep_until_rung(unsigned side, unsigned *heard) {
    unsigned rung;
    while ((rung = __atomic_load_n(&bell[side], __ATOMIC_SEQ_CST)) == *heard)
        sched_yield();
    *heard = rung;
}

static u32 length_of(u32 number) { return 14 + (number * 2654435761U >> 8) % (number % 64 ? 3000 : LOOP_FRAME_MAX - 14); }

/* Sends numbered frames; waits by doorbells alone, so a lost one is a hang. */
static void *send_frames(void *none) {
    struct loop_sender sender;
    struct loop_receiver unused;
    static u8 frame[LOOP_FRAME_MAX];
    unsigned heard = 0, rings = 0;
    (void)none;
    loop_begin(extent, SIZE, 0, false, &sender, &unused);
    for (u32 number = 0; number < FRAMES; number++) {
        struct loop_record record = {.bytes = length_of(number)};
        memset(frame, number, record.bytes);
        memcpy(frame, &number, 4);
        while (!offer(&sender, &record, frame)) {
            CHECK(!loop_reclaim(&sender));
            if (loop_room(&sender) >= loop_record_bytes(record.bytes))
                continue;
            if (!loop_ask(&sender, sender.taken + (sender.produced - sender.taken) / 4 * 3))
                sleep_until_rung(0, &heard);
        }
        if (loop_must_ring(&sender)) {
            ring(1);
            rings++;
        }
    }
    printf("frames %u, doorbells %u\n", FRAMES, rings);
    return NULL;
}

static void *take_frames(void *none) {
    struct loop_sender unused;
    struct loop_receiver receiver;
    static u8 frame[LOOP_FRAME_MAX];
    unsigned heard = 0;
    (void)none;
    loop_begin(extent, SIZE, 1, false, &unused, &receiver);
    for (u32 number = 0; number < FRAMES;) {
        struct loop_record record;
        CHECK(!loop_next(&receiver, &record));
        if (record.bytes) {
            u32 said;
            loop_copy(&receiver, 0, frame, record.bytes);
            loop_done(&receiver, record.bytes);
            memcpy(&said, frame, 4);
            CHECK(said == number && record.bytes == length_of(number));
            for (u32 at = 4; at < record.bytes; at++)
                CHECK(frame[at] == (u8)number);
            number++;
            if (number % 16)
                continue;
        }
        if (loop_must_notify(&receiver))
            ring(0);
        if (!record.bytes && !loop_rest(&receiver))
            sleep_until_rung(1, &heard);
    }
    if (loop_must_notify(&receiver))
        ring(0);
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    extent = calloc(1, LOOP_DATA_OFFSET + 2 * SIZE);
    CHECK(loop_ring_bytes(LOOP_DATA_OFFSET + 2 * SIZE) == SIZE && !loop_ring_bytes(LOOP_DATA_OFFSET + 2 * SIZE + 4096));
    CHECK(!loop_ring_bytes(0) && !loop_ring_bytes(LOOP_DATA_OFFSET + LOOP_RING_MIN) && !loop_ring_bytes(1ULL << 40));
    pthread_create(&threads[0], NULL, send_frames, NULL);
    pthread_create(&threads[1], NULL, take_frames, NULL);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    (void)zero;
    return 0;
}
#endif
