// SPDX-License-Identifier: GPL-2.0
/*
 * Steering: what an interface is to send to certain addresses takes a loop device (loop.c) while one works, and the interface otherwise.
 *
 *   stack ─► egress hook of eth0 ─┬─ destination in the table, its device works ──► loop device ─► peer guest
 *                                 └─ any other frame ─────────────────────────────► eth0
 *
 * The owner writes the table, and reads the addresses for which a device is wanted. The hook decides for each frame by what the kernel
 * knows: carrier and queue of the device. So a frame takes the interface as soon as the peer is gone, whatever the owner does. The steering
 * ends with its descriptor, and a killed owner leaves nothing behind.
 *
 * The peer of a loop device may write any source address into a frame. A device of a steering delivers those alone that are routed to it,
 * and says that it takes frames only while there are some (loop_routed()). So nothing is sent that would be dropped.
 *
 * Only frames from the interface's own address and without a VLAN tag are steered, because the peer expects no others: those of a bridge's
 * other ports are left alone.
 *
 * Lifetimes: the interface is held until it goes or the steering ends. Then the hook is removed, and readers of RCU have finished before
 * interface and steering are given back. Loop devices count their steering. `dev` and the list of steerings are under the lock of the
 * network, and `lock` is taken within it. Nothing is copied from or to programs under `lock`.
 */
#include <linux/etherdevice.h>
#include <linux/hash.h>
#include <linux/if_arp.h>
#include <linux/if_vlan.h>
#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/netfilter.h>
#include <linux/rtnetlink.h>
#include <linux/skbuff.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/wait.h>
#include <net/dst_metadata.h>
#include <net/xfrm.h>
#include "isthmus.h"
#include "loop.h"
#include "steer.h"

enum want {
	NOT_WANTED,
	WANTED,		/* a frame had no device */
	SAID,		/* the owner has read it */
};

struct slot {
	u64 address;		/* 0: free */
	u32 device;
	int want;		/* enum want */
};

/* A hash table, at most half full: a search meets a free slot. */
struct routes {
	struct rcu_head rcu;
	atomic_t unread;	/* slots that are WANTED */
	unsigned int bits;
	struct slot slots[];
};

struct steering {
	struct kref users;		/* the descriptor, and loop devices */
	struct list_head link;
	struct net_device *dev;		/* NULL: it has ended */
	struct nf_hook_ops hook;
	struct notifier_block notifier;
	struct mutex lock;
	struct routes __rcu *routes;	/* written under `lock`; NULL: it has ended */
	struct list_head devices;	/* under `lock` */
	wait_queue_head_t changed;
};

static LIST_HEAD(steerings);

/* Set while the hook hands a frame on: it does not steer the same frame twice. Softirqs are disabled in it. */
static DEFINE_PER_CPU(bool, steering_now);

/* ---- tables ---- */

static struct slot *slot_of(struct routes *routes, u64 address)
{
	u32 at = hash_64(address, routes->bits);

	while (routes->slots[at].address && routes->slots[at].address != address)
		at = (at + 1) & ((1U << routes->bits) - 1);
	return &routes->slots[at];
}

static struct slot *find_route(struct routes *routes, const u8 *address)
{
	struct slot *slot = routes ? slot_of(routes, ether_addr_to_u64(address)) : NULL;

	return slot && slot->address ? slot : NULL;
}

static struct routes *routes_new(const struct isthmus_route *asked, unsigned int count)
{
	unsigned int bits = order_base_2(max(count, 1U)) + 1, at;
	struct routes *routes = kzalloc(struct_size(routes, slots, 1U << bits), GFP_KERNEL_ACCOUNT);

	if (!routes)
		return ERR_PTR(-ENOMEM);
	routes->bits = bits;
	for (at = 0; at < count; at++) {
		u64 address = ether_addr_to_u64(asked[at].mac);
		struct slot *slot = slot_of(routes, address);

		if (!is_valid_ether_addr(asked[at].mac) || asked[at].reserved || slot->address) {
			kfree(routes);
			return ERR_PTR(-EINVAL);
		}
		slot->address = address;
		slot->device = asked[at].device;
	}
	return routes;
}

static bool leads_to(const struct routes *routes, u32 device)
{
	u32 at;

	for (at = 0; routes && at < 1U << routes->bits; at++)
		if (routes->slots[at].address && routes->slots[at].device == device)
			return true;
	return false;
}

/* Puts a table in the place of another, or none for ever. */
static int replace(struct steering *steering, struct routes *routes)
{
	struct steered *steered;
	struct routes *before;

	mutex_lock(&steering->lock);
	before = rcu_dereference_protected(steering->routes, lockdep_is_held(&steering->lock));
	if (!before) {
		mutex_unlock(&steering->lock);
		return -ENODEV;
	}
	rcu_assign_pointer(steering->routes, routes);
	list_for_each_entry(steered, &steering->devices, link)
		loop_routed(steered->dev, leads_to(routes, steered->dev->ifindex));
	mutex_unlock(&steering->lock);
	kfree_rcu(before, rcu);
	return 0;
}

/* ---- frames ---- */

/* Wakes the owner for an address, once for each table. */
static void want(struct steering *steering, struct routes *routes, struct slot *slot)
{
	if (READ_ONCE(slot->want) != NOT_WANTED || cmpxchg(&slot->want, NOT_WANTED, WANTED) != NOT_WANTED)
		return;
	atomic_inc(&routes->unread);
	wake_up_interruptible_poll(&steering->changed, EPOLLIN | EPOLLRDNORM);
}

/* In the section of RCU of dev_queue_xmit(), without softirqs. */
static unsigned int steer(void *private, struct sk_buff *frame, const struct nf_hook_state *state)
{
	struct steering *steering = private;
	struct routes *routes = rcu_dereference(steering->routes);
	struct net_device *dev;
	struct slot *slot;

	if (skb_headlen(frame) < ETH_HLEN || !ether_addr_equal(eth_hdr(frame)->h_source, state->out->dev_addr))
		return NF_ACCEPT;
	/* A station of another VLAN may have the address, and what is left to the card to encrypt must not leave as it is. */
	if (skb_vlan_tag_present(frame) || eth_type_vlan(eth_hdr(frame)->h_proto) || skb_metadata_dst(frame) || xfrm_offload(frame))
		return NF_ACCEPT;
	slot = find_route(routes, eth_hdr(frame)->h_dest);
	if (!slot)
		return NF_ACCEPT;
	dev = slot->device ? dev_get_by_index_rcu(state->net, slot->device) : NULL;
	if (!dev || !loop_is_of(dev, steering)) {
		want(steering, routes, slot);
		return NF_ACCEPT;
	}
	/* Loop devices are not steered, but an administrator's own rules may lead from one to here. */
	if (!loop_takes(dev, frame) || __this_cpu_read(steering_now))
		return NF_ACCEPT;
	frame->dev = dev;
	skb_clear_tstamp(frame);
	__this_cpu_write(steering_now, true);
	dev_queue_xmit(frame);
	__this_cpu_write(steering_now, false);
	return NF_STOLEN;
}

bool steering_expects(const struct steered *steered, const u8 *address)
{
	const struct slot *slot;
	bool expected;

	rcu_read_lock();
	slot = find_route(rcu_dereference(steered->by->routes), address);
	expected = slot && slot->device == steered->dev->ifindex;
	rcu_read_unlock();
	return expected;
}

/* ---- begin and end ---- */

/* Under the lock of the network. */
static struct steering *steering_of(const struct net_device *dev)
{
	struct steering *steering;

	list_for_each_entry(steering, &steerings, link)
		if (steering->dev == dev)
			return steering;
	return NULL;
}

/* Last among the hooks, so that the rules of an administrator apply first. Under the lock of the network. */
static int attach(struct steering *steering, struct net *net, u32 interface)
{
	struct net_device *dev = __dev_get_by_index(net, interface);
	int error;

	if (!dev)
		return -ENODEV;
	if (dev->type != ARPHRD_ETHER || dev->addr_len != ETH_ALEN || loop_is(dev))
		return -EINVAL;
	if (steering_of(dev))
		return -EBUSY;
	steering->hook = (struct nf_hook_ops){
		.hook = steer,
		.dev = dev,
		.priv = steering,
		.pf = NFPROTO_NETDEV,
		.hooknum = NF_NETDEV_EGRESS,
		.priority = INT_MAX,
	};
	error = nf_register_net_hook(net, &steering->hook);
	if (error)
		return error;
	dev_hold(dev);
	steering->dev = dev;
	list_add(&steering->link, &steerings);
	return 0;
}

/* Under the lock of the network. Later calls do nothing. */
static void detach(struct steering *steering)
{
	struct net_device *dev = steering->dev;

	if (!dev)
		return;
	list_del(&steering->link);
	steering->dev = NULL;
	replace(steering, NULL);
	nf_unregister_net_hook(dev_net(dev), &steering->hook);
	/* A frame may be in the hook still. */
	synchronize_net();
	dev_put(dev);
	wake_up_interruptible_poll(&steering->changed, EPOLLHUP);
}

/* The interface goes, or leaves its namespace. Under the lock of the network. */
static int interface_changed(struct notifier_block *notifier, unsigned long event, void *info)
{
	struct steering *steering = container_of(notifier, struct steering, notifier);

	if (event == NETDEV_UNREGISTER && netdev_notifier_info_to_dev(info) == steering->dev)
		detach(steering);
	return NOTIFY_DONE;
}

static void steering_free(struct kref *users)
{
	struct steering *steering = container_of(users, struct steering, users);

	kfree(rcu_access_pointer(steering->routes));
	kfree(steering);
}

struct steering *steering_start(struct net *net, u32 interface)
{
	struct steering *steering = kzalloc(sizeof(*steering), GFP_KERNEL_ACCOUNT);
	struct routes *routes;
	int error;

	if (!steering)
		return ERR_PTR(-ENOMEM);
	kref_init(&steering->users);
	mutex_init(&steering->lock);
	INIT_LIST_HEAD(&steering->devices);
	init_waitqueue_head(&steering->changed);
	routes = routes_new(NULL, 0);
	error = PTR_ERR_OR_ZERO(routes);
	if (error)
		goto free;
	RCU_INIT_POINTER(steering->routes, routes);
	steering->notifier.notifier_call = interface_changed;
	error = register_netdevice_notifier(&steering->notifier);
	if (error)
		goto free;
	rtnl_lock();
	error = attach(steering, net, interface);
	rtnl_unlock();
	if (!error)
		return steering;
	unregister_netdevice_notifier(&steering->notifier);
free:
	kref_put(&steering->users, steering_free);
	return ERR_PTR(error);
}

void steering_stop(struct steering *steering)
{
	rtnl_lock();
	detach(steering);
	rtnl_unlock();
	unregister_netdevice_notifier(&steering->notifier);
	kref_put(&steering->users, steering_free);
}

/* ---- loop devices ---- */

void steering_join(struct steered *steered, struct net_device *dev, struct net_device *lower)
{
	struct steering *steering = steering_of(lower);
	struct routes *routes;

	if (!steering)
		return;
	kref_get(&steering->users);
	steered->by = steering;
	steered->dev = dev;
	mutex_lock(&steering->lock);
	routes = rcu_dereference_protected(steering->routes, lockdep_is_held(&steering->lock));
	list_add(&steered->link, &steering->devices);
	loop_routed(dev, leads_to(routes, dev->ifindex));
	mutex_unlock(&steering->lock);
}

void steering_leave(struct steered *steered)
{
	if (!steered->by)
		return;
	mutex_lock(&steered->by->lock);
	list_del(&steered->link);
	mutex_unlock(&steered->by->lock);
	kref_put(&steered->by->users, steering_free);
}

/* ---- the owner's descriptor ---- */

ssize_t steering_write(struct steering *steering, const char __user *from, size_t bytes)
{
	struct isthmus_route *asked;
	struct routes *routes;
	int error;

	if (bytes % sizeof(*asked) || bytes > ISTHMUS_ROUTES_MAX * sizeof(*asked))
		return -EINVAL;
	asked = memdup_user(from, bytes);
	if (IS_ERR(asked))
		return PTR_ERR(asked);
	routes = routes_new(asked, bytes / sizeof(*asked));
	kfree(asked);
	if (IS_ERR(routes))
		return PTR_ERR(routes);
	error = replace(steering, routes);
	if (error) {
		kfree(routes);
		return error;
	}
	return bytes;
}

/* Takes addresses that no call has taken yet, up to `max`. */
static unsigned int take(struct steering *steering, u8 (*to)[8], unsigned int max)
{
	struct routes *routes;
	unsigned int count = 0;
	u32 at;

	mutex_lock(&steering->lock);
	routes = rcu_dereference_protected(steering->routes, lockdep_is_held(&steering->lock));
	for (at = 0; routes && count < max && at < 1U << routes->bits; at++) {
		struct slot *slot = &routes->slots[at];

		if (READ_ONCE(slot->want) != WANTED)
			continue;
		WRITE_ONCE(slot->want, SAID);
		atomic_dec(&routes->unread);
		u64_to_ether_addr(slot->address, to[count++]);
	}
	mutex_unlock(&steering->lock);
	return count;
}

/* What poll() says. */
static __poll_t events(struct steering *steering)
{
	struct routes *routes;
	__poll_t said = EPOLLHUP;

	rcu_read_lock();
	routes = rcu_dereference(steering->routes);
	if (routes)
		said = atomic_read(&routes->unread) > 0 ? EPOLLIN | EPOLLRDNORM : 0;
	rcu_read_unlock();
	return said;
}

ssize_t steering_read(struct steering *steering, char __user *to, size_t bytes, bool wait)
{
	unsigned int max = min_t(size_t, bytes / 8, ISTHMUS_ROUTES_MAX), count;
	u8 (*taken)[8];
	ssize_t result;

	if (!max)
		return -EINVAL;
	taken = kcalloc(max, sizeof(*taken), GFP_KERNEL);
	if (!taken)
		return -ENOMEM;
	for (;;) {
		count = take(steering, taken, max);
		result = count * sizeof(*taken);
		/* The end of the steering is the end of the file. */
		if (count || events(steering) & EPOLLHUP)
			break;
		result = wait ? wait_event_interruptible(steering->changed, events(steering)) : -EAGAIN;
		if (result)
			break;
	}
	if (result > 0 && copy_to_user(to, taken, result))
		result = -EFAULT;
	kfree(taken);
	return result;
}

__poll_t steering_poll(struct steering *steering, struct file *file, poll_table *table)
{
	poll_wait(file, &steering->changed, table);
	return events(steering);
}
