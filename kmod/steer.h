/* SPDX-License-Identifier: GPL-2.0 */
/* Steering of an interface's frames to loop devices (steer.c). */
#ifndef ISTHMUS_STEER_H
#define ISTHMUS_STEER_H

#include <linux/list.h>
#include <linux/netdevice.h>
#include <linux/poll.h>

struct steering;

/* A loop device's part in the steering of its lower interface. */
struct steered {
	struct steering *by;		/* NULL: of none */
	struct list_head link;
	struct net_device *dev;
};

#ifdef CONFIG_NETFILTER_EGRESS

/* ---- for the owner ---- */

/* Steers an interface of this namespace, by a table without routes. */
struct steering *steering_start(struct net *net, u32 interface);

/* Ends it. No frame is in the hook when this returns. It sleeps, and takes the lock of the network. */
void steering_stop(struct steering *steering);

/* What the operations of its file do. */
ssize_t steering_write(struct steering *steering, const char __user *from, size_t bytes);
ssize_t steering_read(struct steering *steering, char __user *to, size_t bytes, bool wait);
__poll_t steering_poll(struct steering *steering, struct file *file, poll_table *table);

/* ---- for loop devices ---- */

/*
 * Has a device join the steering of its lower interface, if there is one. It is registered, and has not been opened. Under the lock of the
 * network.
 */
void steering_join(struct steered *steered, struct net_device *dev, struct net_device *lower);

/* Leaves it. The device neither sends nor receives any more. */
void steering_leave(struct steered *steered);

/* Whether frames from this address may come by this device. */
bool steering_expects(const struct steered *steered, const u8 *address);

#else

static inline struct steering *steering_start(struct net *net, u32 interface)
{
	return ERR_PTR(-EOPNOTSUPP);
}

static inline void steering_stop(struct steering *steering)
{
}

static inline ssize_t steering_write(struct steering *steering, const char __user *from, size_t bytes)
{
	return -ENODEV;
}

static inline ssize_t steering_read(struct steering *steering, char __user *to, size_t bytes, bool wait)
{
	return -ENODEV;
}

static inline __poll_t steering_poll(struct steering *steering, struct file *file, poll_table *table)
{
	return EPOLLHUP;
}

static inline void steering_join(struct steered *steered, struct net_device *dev, struct net_device *lower)
{
}

static inline void steering_leave(struct steered *steered)
{
}

static inline bool steering_expects(const struct steered *steered, const u8 *address)
{
	return true;
}

#endif

#endif
