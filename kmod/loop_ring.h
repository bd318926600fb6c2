/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The two rings of a loop device, in an extent that two guests share; docs/spec/loop.md describes every byte.
 *
 *   extent   ┌ words of side 0 ┬ words of side 1 ┬ data from 0 to 1 ┬ data from 1 to 0 ┐
 *            └ 4096            ┴ 4096            ┴ bytes            ┴ bytes            ┘
 *
 * A record is 16 bytes of header and a frame, padded to a multiple of 16. Positions count bytes and run freely, modulo 2^32. Each word has
 * one writer. So no side needs an atomic operation on memory that the other side can change.
 *
 * The peer may write anything at any time. Each of its words is read once. A value is checked in our own memory before it is used. Our own
 * positions live in our own memory and are never read back. The functions here call nothing of the kernel, so that tests in user space
 * compile the same text with memory of their own.
 */
#ifndef ISTHMUS_LOOP_RING_H
#define ISTHMUS_LOOP_RING_H

#ifdef __KERNEL__
#include <asm/barrier.h>
#include <linux/compiler.h>
#include <linux/string.h>
#include <linux/types.h>
/* virt_: the other side is on another processor even if this kernel has only one. */
#define loop_load(word)			READ_ONCE(*(word))
#define loop_load_acquire(word)		virt_load_acquire(word)
#define loop_store(word, value)		WRITE_ONCE(*(word), value)
#define loop_store_release(word, value)	virt_store_release(word, value)
#define loop_fence()			virt_mb()
#else
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
#ifndef loop_load	/* a test may have memory that lies */
#define loop_load(word)			__atomic_load_n(word, __ATOMIC_RELAXED)
#define loop_load_acquire(word)		__atomic_load_n(word, __ATOMIC_ACQUIRE)
#define loop_store(word, value)		__atomic_store_n(word, value, __ATOMIC_RELAXED)
#define loop_store_release(word, value)	__atomic_store_n(word, value, __ATOMIC_RELEASE)
#define loop_fence()			__atomic_thread_fence(__ATOMIC_SEQ_CST)
#endif
#endif

#define LOOP_VERSION		1
#define LOOP_WORDS_BYTES	4096U
#define LOOP_DATA_OFFSET	8192U
#define LOOP_RING_MIN		(256U << 10)
#define LOOP_RING_MAX		(64U << 20)
#define LOOP_ALIGN		16U

/* An Ethernet header, and the longest packet with segmentation offload, with room for VLAN tags. */
#define LOOP_FRAME_MIN		14U
#define LOOP_FRAME_MAX		(65536U + 32U)
#define LOOP_RECORD_MAX		(LOOP_FRAME_MAX + LOOP_ALIGN)

/* loop_words.state */
#define LOOP_STATE_NONE		0
#define LOOP_STATE_UP		1	/* takes frames */
#define LOOP_STATE_DOWN		2	/* takes no frames for now */
#define LOOP_STATE_GONE		3	/* has ended and does not come back */

/* loop_words.offloads: the frames that this side accepts. */
#define LOOP_OFFLOAD_USO	1	/* UDP segmentation */

/* What one side writes. Words that different events change lie on lines of their own; a processor may fetch two lines at once. */
struct loop_words {
	u32 state;		/* written last, with release */
	u32 version;
	u32 ring_bytes;		/* of each direction */
	u32 offloads;
	u32 reserved0[28];
	u32 produced;		/* as sender: the position after the last record */
	u32 taken_event;	/* as sender: ring when `taken` passes this position */
	u32 reserved1[30];
	u32 taken;		/* as receiver: the position after the last record that was copied */
	u32 produced_event;	/* as receiver: ring when `produced` passes this position */
	u32 reserved2[30];
	u64 heartbeat;		/* for the guest daemon, which maps the extent; the driver ignores it */
};

/* The header of a record: a length, and the fields of a virtio_net_hdr. All of it is little-endian. */
struct loop_record {
	u32 bytes;		/* of the frame */
	u16 reserved;		/* 0 */
	u8 flags;		/* LOOP_NEEDS_CSUM, LOOP_DATA_VALID */
	u8 gso_type;		/* LOOP_GSO_... */
	u16 hdr_len;		/* a hint, which receivers ignore */
	u16 gso_size;
	u16 csum_start;
	u16 csum_offset;
};

#define LOOP_NEEDS_CSUM		1
#define LOOP_DATA_VALID		2
#define LOOP_GSO_NONE		0
#define LOOP_GSO_TCPV4		1
#define LOOP_GSO_TCPV6		4
#define LOOP_GSO_UDP_L4		5
#define LOOP_GSO_ECN		0x80

/* What a peer did wrong. */
enum loop_violation {
	LOOP_FINE,
	LOOP_BAD_PRODUCED,	/* `produced` is more than a ring ahead, or not aligned */
	LOOP_BAD_TAKEN,		/* `taken` is not between what it was and what was produced */
	LOOP_BAD_LENGTH,	/* a frame is too short, too long, or longer than what was produced */
	LOOP_BAD_OFFLOAD,	/* fields of an offload contradict one another, or the frame */
	LOOP_BAD_GREETING,	/* another version or size, or an unknown state */
};

/* One direction, as its sender knows it. */
struct loop_sender {
	struct loop_words *own;
	const struct loop_words *peer;
	u8 *data;
	u32 size;
	u32 produced;
	u32 checked;		/* up to here the wish of the receiver to be rung was checked */
	u32 taken;		/* by the receiver, as far as was checked */
	u32 event;		/* what stands in taken_event */
};

/* One direction, as its receiver knows it. */
struct loop_receiver {
	struct loop_words *own;
	const struct loop_words *peer;
	const u8 *data;
	u32 size;
	u32 produced;		/* by the sender, as far as was checked */
	u32 taken;
	u32 checked;		/* up to here the wish of the sender to be rung was checked */
	bool uso;		/* UDP segmentation is accepted */
};

/* Whether an extent of this size holds two rings; their size. */
static inline u32 loop_ring_bytes(u64 extent_bytes)
{
	u64 size = extent_bytes > LOOP_DATA_OFFSET ? (extent_bytes - LOOP_DATA_OFFSET) / 2 : 0;

	if (size < LOOP_RING_MIN || size > LOOP_RING_MAX || size & (size - 1) || extent_bytes != LOOP_DATA_OFFSET + 2 * size)
		return 0;
	return size;
}

/* Sets both directions up for a side of the extent, and clears the words of that side. `size` is what loop_ring_bytes() said. */
static inline void loop_begin(void *extent, u32 size, u32 side, bool uso, struct loop_sender *sender, struct loop_receiver *receiver)
{
	struct loop_words *own = (struct loop_words *)((u8 *)extent + side * LOOP_WORDS_BYTES);
	struct loop_words *peer = (struct loop_words *)((u8 *)extent + (1 - side) * LOOP_WORDS_BYTES);
	u8 *data = (u8 *)extent + LOOP_DATA_OFFSET;

	*sender = (struct loop_sender){ .own = own, .peer = peer, .data = data + (u64)side * size, .size = size };
	*receiver = (struct loop_receiver){ .own = own, .peer = peer, .data = data + (u64)(1 - side) * size, .size = size, .uso = uso };
	loop_store(&own->produced, 0);
	loop_store(&own->taken_event, 0);
	loop_store(&own->taken, 0);
	loop_store(&own->produced_event, 0);
	loop_store(&own->version, LOOP_VERSION);
	loop_store(&own->ring_bytes, size);
	loop_store(&own->offloads, uso ? LOOP_OFFLOAD_USO : 0);
	loop_store_release(&own->state, LOOP_STATE_DOWN);
}

/* Whether an advance from `before` to `now` passes the position of an event. A wrong event costs a doorbell at most, or a wake-up of the peer's. */
static inline bool loop_passes(u32 event, u32 before, u32 now)
{
	return now - event - 1 < now - before;
}

static inline u32 loop_record_bytes(u32 frame)
{
	return sizeof(struct loop_record) + ((frame + LOOP_ALIGN - 1) & ~(LOOP_ALIGN - 1));
}

/* ---- sender ---- */

static inline u32 loop_room(const struct loop_sender *sender)
{
	return sender->size - (sender->produced - sender->taken);
}

/*
 * Writes the header of a record, and says where the frame goes: `first` bytes at the result, the rest at `rest`. There is room for it.
 * The frame is not seen before loop_publish().
 */
static inline u8 *loop_place(struct loop_sender *sender, const struct loop_record *record, u32 *first, u8 **rest)
{
	u32 at = sender->produced & (sender->size - 1);
	u32 end;

	/* Positions are multiples of 16 and so is the size: a header never wraps. */
	memcpy(sender->data + at, record, sizeof(*record));
	at = (at + sizeof(*record)) & (sender->size - 1);
	end = sender->size - at;
	*first = record->bytes < end ? record->bytes : end;
	*rest = sender->data;
	return sender->data + at;
}

/* A, with B in loop_next(): the record is whole before it is seen. */
static inline void loop_publish(struct loop_sender *sender, u32 frame)
{
	sender->produced += loop_record_bytes(frame);
	loop_store_release(&sender->own->produced, sender->produced);
}

/*
 * Whether the receiver wants to be rung for what was published since the last call. C, with D in loop_rest(): either we see its wish, or it
 * sees what we published.
 */
static inline bool loop_must_ring(struct loop_sender *sender)
{
	u32 before = sender->checked;

	loop_fence();
	sender->checked = sender->produced;
	return loop_passes(loop_load(&sender->peer->produced_event), before, sender->produced);
}

/* Looks how far the receiver is. E, with F in loop_done(): its copies are complete before their place is written to again. */
static inline enum loop_violation loop_reclaim(struct loop_sender *sender)
{
	u32 taken = loop_load_acquire(&sender->peer->taken);

	if (taken - sender->taken > sender->produced - sender->taken || taken % LOOP_ALIGN)
		return LOOP_BAD_TAKEN;
	sender->taken = taken;
	return LOOP_FINE;
}

/*
 * Asks to be rung when the receiver has passed `event`. G, with H in loop_must_notify(): either the receiver sees the wish, or we see that it
 * has passed already. In the second case this says true. The value is not checked, because a wrong one only leads to a look.
 */
static inline bool loop_ask(struct loop_sender *sender, u32 event)
{
	sender->event = event;
	loop_store(&sender->own->taken_event, event);
	loop_fence();
	return loop_load(&sender->peer->taken) - sender->taken > event - sender->taken;
}

/* ---- receiver ---- */

/* Checks the copy of a header against itself. */
static inline enum loop_violation loop_check(const struct loop_record *record, bool uso)
{
	u32 gso = record->gso_type & ~LOOP_GSO_ECN;

	if (record->bytes < LOOP_FRAME_MIN || record->bytes > LOOP_FRAME_MAX)
		return LOOP_BAD_LENGTH;
	if (record->reserved || record->flags & ~(LOOP_NEEDS_CSUM | LOOP_DATA_VALID))
		return LOOP_BAD_OFFLOAD;
	if (record->flags & LOOP_NEEDS_CSUM &&
	    (record->csum_start < LOOP_FRAME_MIN || (u32)record->csum_start + record->csum_offset + 2 > record->bytes))
		return LOOP_BAD_OFFLOAD;
	switch (gso) {
	case LOOP_GSO_NONE:
		return record->gso_type ? LOOP_BAD_OFFLOAD : LOOP_FINE;
	case LOOP_GSO_UDP_L4:
		if (!uso || record->gso_type & LOOP_GSO_ECN)
			return LOOP_BAD_OFFLOAD;
		break;
	case LOOP_GSO_TCPV4:
	case LOOP_GSO_TCPV6:
		break;
	default:
		return LOOP_BAD_OFFLOAD;
	}
	/* Segments need a checksum, and a size. */
	return record->flags & LOOP_NEEDS_CSUM && record->gso_size ? LOOP_FINE : LOOP_BAD_OFFLOAD;
}

/* Copies the header of the next record and checks it. record->bytes is 0 if there is none. */
static inline enum loop_violation loop_next(struct loop_receiver *receiver, struct loop_record *record)
{
	const u64 *header = (const u64 *)(receiver->data + (receiver->taken & (receiver->size - 1)));
	enum loop_violation violation;
	u64 copy[2];
	u32 produced;

	record->bytes = 0;
	if (receiver->produced == receiver->taken) {
		produced = loop_load_acquire(&receiver->peer->produced); /* B, with A */
		if (produced - receiver->taken > receiver->size || produced % LOOP_ALIGN)
			return LOOP_BAD_PRODUCED;
		receiver->produced = produced;
		if (produced == receiver->taken)
			return LOOP_FINE;
	}
	copy[0] = loop_load(&header[0]);
	copy[1] = loop_load(&header[1]);
	memcpy(record, copy, sizeof(*record));
	violation = loop_check(record, receiver->uso);
	if (!violation && loop_record_bytes(record->bytes) > receiver->produced - receiver->taken)
		violation = LOOP_BAD_LENGTH;
	return violation;
}

/* Copies `bytes` bytes of the frame, from `from` on, both within the length that loop_next() has checked. */
static inline void loop_copy(const struct loop_receiver *receiver, u32 from, void *to, u32 bytes)
{
	u32 at = (receiver->taken + (u32)sizeof(struct loop_record) + from) & (receiver->size - 1);
	u32 end = receiver->size - at;
	u32 first = bytes < end ? bytes : end;

	memcpy(to, receiver->data + at, first);
	memcpy((u8 *)to + first, receiver->data, bytes - first);
}

/* F, with E in loop_reclaim(): the frame is copied before its place is free. */
static inline void loop_done(struct loop_receiver *receiver, u32 frame)
{
	receiver->taken += loop_record_bytes(frame);
	loop_store_release(&receiver->own->taken, receiver->taken);
}

/* Whether the sender wants to be rung for what was taken since the last call: H, with G in loop_ask(). */
static inline bool loop_must_notify(struct loop_receiver *receiver)
{
	u32 before = receiver->checked;

	if (before == receiver->taken)
		return false;
	loop_fence();
	receiver->checked = receiver->taken;
	return loop_passes(loop_load(&receiver->peer->taken_event), before, receiver->taken);
}

/*
 * Asks to be rung for the next record. D, with C in loop_must_ring(): says true if one has come meanwhile, for which no doorbell may have been
 * rung.
 */
static inline bool loop_rest(struct loop_receiver *receiver)
{
	loop_store(&receiver->own->produced_event, receiver->taken);
	loop_fence();
	return loop_load(&receiver->peer->produced) != receiver->taken;
}

/* ---- greeting ---- */

/* Reads how the peer is, and what it accepts. */
static inline enum loop_violation loop_greet(const struct loop_sender *sender, u32 *state, bool *uso)
{
	*state = loop_load_acquire(&sender->peer->state);
	*uso = false;
	if (*state == LOOP_STATE_NONE || *state == LOOP_STATE_GONE)
		return LOOP_FINE;
	if (*state > LOOP_STATE_GONE || loop_load(&sender->peer->version) != LOOP_VERSION ||
	    loop_load(&sender->peer->ring_bytes) != sender->size)
		return LOOP_BAD_GREETING;
	*uso = loop_load(&sender->peer->offloads) & LOOP_OFFLOAD_USO;
	return LOOP_FINE;
}

#endif
