/* SPDX-License-Identifier: GPL-2.0 */
/* The loop device: a network device over two rings in memory that a peer shares (loop.c). Its owner provides the memory and the doorbells. */
#ifndef ISTHMUS_LOOP_H
#define ISTHMUS_LOOP_H

#include <linux/netdevice.h>

struct steering;

struct loop_setup {
	void *extent;			/* stays mapped until loop_destroy() returns */
	u64 bytes;
	u32 side;
	u32 mtu;			/* 0: that of the lower interface, or 1500 */
	u32 lower;			/* the interface on which frames arrive, or 0 for the device's own */
	const char *name;		/* may contain %d */
	void (*ring)(void *owner);	/* rings the peer, from any context */
	void (*ended)(void *owner);	/* called once from a softirq or under the lock of the network: the device works no more */
	void *owner;
};

/* Makes the device. Its interrupt may come from now on. One with a steered lower interface runs when this returns. */
struct net_device *loop_create(const struct loop_setup *setup);

/* The peer has rung. From an interrupt, or with softirqs disabled, until loop_destroy() is called. */
void loop_interrupt(struct net_device *dev);

/* Ends the device. Memory and doorbells are no longer used when this returns. It sleeps, and takes the lock of the network. */
void loop_destroy(struct net_device *dev);

/* ---- for the steering (steer.c) ---- */

/* Whether this is a loop device; one of this steering. */
bool loop_is(const struct net_device *dev);
bool loop_is_of(const struct net_device *dev, const struct steering *steering);

/* Whether a loop device would send this frame, which has no VLAN tag, soon. Under RCU. */
bool loop_takes(struct net_device *dev, const struct sk_buff *frame);

/* Whether frames of the peer are expected: only then does the device say that it takes any. */
void loop_routed(struct net_device *dev, bool routed);

#endif
