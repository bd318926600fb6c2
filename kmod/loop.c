// SPDX-License-Identifier: GPL-2.0
/*
 * The loop device: frames between two guests of one host, through rings in memory that both share (loop_ring.h).
 *
 *   stack ─► loop_xmit() ─► ring ─► peer's loop_poll() ─► its stack, as if the frame had arrived on the lower interface
 *                │ doorbell, if the peer sleeps                │ doorbell, if the sender waits for room or for its frames
 *                └──────────► peer's interrupt: NAPI            └──────────► our interrupt: NAPI frees frames, wakes the queue
 *
 * The sender copies a frame in its own context. A frame is held, and charged to its socket, until the peer has taken it: that makes a sender
 * wait that is faster than its receiver. The peer rings for that only if much is held. Otherwise a timer, or NAPI for another reason, frees
 * what was taken. A peer that takes no frame for a second, or lets one wait for five, is cut off: frames are dropped and the carrier is down
 * until it moves again. So nothing that a frame refers to is held for longer.
 *
 * An interrupt always schedules NAPI, even with an empty ring. NAPI says that it sleeps, looks once more, and only then gives itself up: after
 * that another processor may own the receiving direction.
 *
 * The peer may write anything (loop_ring.h). A violation ends the device: it touches the memory no more, its carrier is down, and the owner is
 * told. It stays visible with its counters until the owner destroys it.
 *
 * Locks: the lock of the transmit queue guards the sending direction and the held frames. NAPI owns the receiving direction.
 */
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/if_arp.h>
#include <linux/if_vlan.h>
#include <linux/module.h>
#include <linux/netdevice.h>
#include <linux/nsproxy.h>
#include <linux/rtnetlink.h>
#include <linux/skbuff.h>
#include <linux/version.h>
#include <linux/virtio_net.h>
#include <net/addrconf.h>
#include <net/net_namespace.h>
#include <net/sch_generic.h>
#include "loop.h"
#include "loop_ring.h"
#include "steer.h"

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 2, 0)
#define timer_delete_sync del_timer_sync
#endif

/* A power of two. Small frames fill these before they fill the ring. */
#define HELD_MAX	1024

/* When the peer is asked to ring for what it has taken. Below that the timer is soon enough: a socket may have as much under way. */
#define ASK_FRAMES	32
#define ASK_BYTES	(512U << 10)

/* The queue takes as much whatever it has learned: a limit of a few frames would have the peer ring for each of them. */
#define QUEUE_BYTES_MIN	(256U << 10)

#define RECLAIM_INTERVAL	msecs_to_jiffies(4)
#define STALL_TIMEOUT		HZ
#define HELD_TIMEOUT		(5 * HZ)

/* A queue that has been stopped for longer than this gets no steered frames. */
#define STOPPED_MAX		msecs_to_jiffies(50)

/* Frames up to this size are copied into one buffer; of others, this many bytes. Headers lie in them. */
#define COPY_MAX	1600
#define HEAD_BYTES	128

/* UDP segmentation has a number in the header of virtio since 6.2. */
#define HAS_USO		(LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0))

struct held {
	struct sk_buff *frame;
	u32 end;		/* the position after its record */
	u32 bytes;		/* of the frame as it was counted */
	unsigned long since;
};

struct loop {
	struct net_device *dev;
	struct net_device __rcu *lower;
	struct notifier_block notifier;
	struct napi_struct napi;
	struct timer_list timer;
	void (*ring)(void *owner);
	void (*ended)(void *owner);
	void *owner;
	bool dead;			/* the memory is not touched any more */
	struct steered steered;		/* set before the device is opened */
	bool routed;			/* the steering expects frames from the peer */
	bool peer_uso;

	/* Under the lock of the transmit queue. */
	struct loop_sender sender;
	struct held held[HELD_MAX];
	u32 held_first, held_end;	/* run freely */
	bool asked;			/* the peer rings when it passes sender.event */
	bool stalled;
	u32 told;			/* our state, as the peer knows it */
	unsigned long moved_at;		/* when the peer took a frame last, or had none to take */

	/* NAPI's. */
	struct loop_receiver receiver ____cacheline_aligned_in_smp;

	u64 interrupts, polls, rings, notifies, stalls, violations, violation, foreign;
};

/* ---- the end ---- */

/* Frees held frames up to a position, or all, and returns their number. Under the lock of the transmit queue. */
static unsigned int free_held(struct loop *loop, u32 taken, bool all, int budget)
{
	unsigned int frames = 0, bytes = 0;

	while (loop->held_first != loop->held_end) {
		struct held *held = &loop->held[loop->held_first % HELD_MAX];

		if (!all && (s32)(taken - held->end) < 0)
			break;
		if (all)
			dev_kfree_skb_any(held->frame);
		else
			napi_consume_skb(held->frame, budget);
		frames++;
		bytes += held->bytes;
		loop->held_first++;
	}
	if (all)
		loop->dev->stats.tx_errors += frames;
	netdev_completed_queue(loop->dev, frames, bytes);
	return frames;
}

/* Ends the device. Later calls do nothing. */
static void loop_end(struct loop *loop)
{
	struct netdev_queue *queue = netdev_get_tx_queue(loop->dev, 0);

	__netif_tx_lock_bh(queue);
	if (loop->dead) {
		__netif_tx_unlock_bh(queue);
		return;
	}
	WRITE_ONCE(loop->dead, true);
	free_held(loop, 0, true, 0);
	loop_store_release(&loop->sender.own->state, LOOP_STATE_GONE);
	loop->ring(loop->owner);
	netif_carrier_off(loop->dev);
	__netif_tx_unlock_bh(queue);
	loop->ended(loop->owner);
}

static void violate(struct loop *loop, enum loop_violation violation)
{
	static const char *const texts[] = {
		[LOOP_BAD_PRODUCED] = "its position as a sender is impossible",
		[LOOP_BAD_TAKEN] = "its position as a receiver is impossible",
		[LOOP_BAD_LENGTH] = "the length of a frame is impossible",
		[LOOP_BAD_OFFLOAD] = "the offload of a frame contradicts itself",
		[LOOP_BAD_GREETING] = "it speaks another version, or has rings of another size",
	};

	loop->violations++;
	loop->violation = violation;
	netdev_err(loop->dev, "the device ends, because its peer broke the protocol: %s\n", texts[violation]);
	loop_end(loop);
}

/* ---- transmit ---- */

/* Whether the peer has something to take, whether we hold the frame still or not. */
static bool is_under_way(const struct loop *loop)
{
	return loop->sender.produced != loop->sender.taken;
}

static bool is_late(const struct loop *loop)
{
	return time_after(jiffies, loop->moved_at + STALL_TIMEOUT) ||
	       (loop->held_first != loop->held_end &&
		time_after(jiffies, loop->held[loop->held_first % HELD_MAX].since + HELD_TIMEOUT));
}

static bool has_room(const struct loop *loop)
{
	return loop_room(&loop->sender) >= LOOP_RECORD_MAX && loop->held_end - loop->held_first < HELD_MAX;
}

/* Asks the peer to ring once it has taken more than these bytes. */
static void ask(struct loop *loop, u32 bytes)
{
	loop->asked = true;
	if (loop_ask(&loop->sender, loop->sender.taken + bytes))
		napi_schedule(&loop->napi);
}

static void ask_if_needed(struct loop *loop, struct netdev_queue *queue)
{
	u32 ahead = loop->sender.produced - loop->sender.taken;

	if (loop->asked || !ahead)
		return;
	/* Late enough for few doorbells, early enough that the queue does not run dry. */
	if (netif_xmit_stopped(queue) || loop->held_end - loop->held_first >= ASK_FRAMES || ahead >= ASK_BYTES)
		ask(loop, ahead / 4 * 3);
}

static void kick(struct loop *loop)
{
	if (loop_must_ring(&loop->sender)) {
		loop->rings++;
		loop->ring(loop->owner);
	}
}

/* The header of the record of a frame. False if it cannot be sent as it is. */
static bool describe(const struct sk_buff *frame, struct loop_record *record)
{
	struct virtio_net_hdr header;

	if (frame->len < LOOP_FRAME_MIN || frame->len > LOOP_FRAME_MAX)
		return false;
	if (virtio_net_hdr_from_skb(frame, &header, true, true, 0))
		return false;
	*record = (struct loop_record){
		.bytes = frame->len,
		.flags = header.flags,
		.gso_type = header.gso_type,
		.hdr_len = (__force u16)header.hdr_len,
		.gso_size = (__force u16)header.gso_size,
		.csum_start = (__force u16)header.csum_start,
		.csum_offset = (__force u16)header.csum_offset,
	};
	/* The receiver holds us to the same rules: what it would refuse is not sent. */
	return !loop_check(record, HAS_USO);
}

static netdev_tx_t loop_xmit(struct sk_buff *frame, struct net_device *dev)
{
	struct netdev_queue *queue = netdev_get_tx_queue(dev, 0);
	struct loop *loop = netdev_priv(dev);
	struct loop_record record;
	unsigned int bytes = frame->len;
	u32 first;
	u8 *at, *rest;

	/* The queue is stopped in time: without room something else is wrong, such as a carrier that is down. */
	if (loop->dead || loop->stalled || !netif_carrier_ok(dev) || !has_room(loop) || !describe(frame, &record))
		goto drop;
	at = loop_place(&loop->sender, &record, &first, &rest);
	if (skb_copy_bits(frame, 0, at, first) || skb_copy_bits(frame, first, rest, record.bytes - first))
		goto drop;
	skb_tx_timestamp(frame);
	/* The frame may be held for long; what it refers to need not be. */
	nf_reset_ct(frame);
	skb_dst_drop(frame);
	skb_ext_reset(frame);
	if (!is_under_way(loop))
		loop->moved_at = jiffies;
	loop_publish(&loop->sender, record.bytes);
	loop->held[loop->held_end++ % HELD_MAX] = (struct held){ frame, loop->sender.produced, bytes, jiffies };
	dev->stats.tx_packets++;
	dev->stats.tx_bytes += bytes;
	/* NAPI wakes it, under the same lock. */
	if (!has_room(loop))
		netif_tx_stop_queue(queue);
	if (__netdev_tx_sent_queue(queue, bytes, netdev_xmit_more()))
		kick(loop);
	ask_if_needed(loop, queue);
	if (!timer_pending(&loop->timer))
		mod_timer(&loop->timer, jiffies + RECLAIM_INTERVAL);
	return NETDEV_TX_OK;

drop:
	dev->stats.tx_dropped++;
	dev_kfree_skb_any(frame);
	/* Frames before this one may have relied on it to ring. */
	if (!loop->dead && !netdev_xmit_more())
		kick(loop);
	return NETDEV_TX_OK;
}

/* The stack makes the segments of UDP if the peer does not accept them, and those of a frame without the partial checksum that records need. */
static netdev_features_t loop_features_check(struct sk_buff *frame, struct net_device *dev, netdev_features_t features)
{
	struct loop *loop = netdev_priv(dev);

	if (skb_is_gso(frame) && (frame->ip_summed != CHECKSUM_PARTIAL ||
				  (skb_shinfo(frame)->gso_type & SKB_GSO_UDP_L4 && !READ_ONCE(loop->peer_uso))))
		features &= ~NETIF_F_GSO_MASK;
	return vlan_features_check(frame, features);
}

/* Frees what the peer has taken. In NAPI. */
static void reclaim(struct loop *loop, int budget)
{
	struct netdev_queue *queue = netdev_get_tx_queue(loop->dev, 0);
	enum loop_violation violation;
	u32 before;

	__netif_tx_lock(queue, smp_processor_id());
	before = loop->sender.taken;
	violation = loop->dead ? LOOP_FINE : loop_reclaim(&loop->sender);
	if (violation || loop->dead) {
		__netif_tx_unlock(queue);
		if (violation)
			violate(loop, violation);
		return;
	}
	if (loop->sender.taken != before) {
		if (loop->asked && (s32)(loop->sender.taken - loop->sender.event) > 0)
			loop->asked = false;
		/* A part of a record is no move, but ends a stall. */
		if (free_held(loop, loop->sender.taken, false, budget) || loop->stalled)
			loop->moved_at = jiffies;
		WRITE_ONCE(loop->stalled, false);
	}
	if (is_under_way(loop) && !loop->stalled && is_late(loop)) {
		/* Their sockets get their room back, and the stack takes another way. The first move of the peer ends this. */
		loop->stalls++;
		WRITE_ONCE(loop->stalled, true);
		free_held(loop, 0, true, budget);
		ask(loop, 0);
	}
	if (netif_tx_queue_stopped(queue) && has_room(loop))
		netif_tx_wake_queue(queue);
	ask_if_needed(loop, queue);
	if (is_under_way(loop) && !loop->stalled && !timer_pending(&loop->timer))
		mod_timer(&loop->timer, jiffies + RECLAIM_INTERVAL);
	__netif_tx_unlock(queue);
}

static void loop_timer(struct timer_list *timer)
{
	struct loop *loop = container_of(timer, struct loop, timer);

	napi_schedule(&loop->napi);
}

/* ---- the states of both sides ---- */

static void tell(struct loop *loop, u32 state)
{
	struct netdev_queue *queue = netdev_get_tx_queue(loop->dev, 0);

	__netif_tx_lock_bh(queue);
	if (!loop->dead) {
		WRITE_ONCE(loop->told, state);
		loop_store_release(&loop->sender.own->state, state);
		loop->ring(loop->owner);
	}
	__netif_tx_unlock_bh(queue);
}

/* Our state while the device is open. */
static u32 open_state(const struct loop *loop)
{
	/* With loop_routed(): what the peer sends from now on is in the table. */
	return !loop->steered.by || smp_load_acquire(&loop->routed) ? LOOP_STATE_UP : LOOP_STATE_DOWN;
}

/* In NAPI. */
static void greet(struct loop *loop)
{
	struct netdev_queue *queue = netdev_get_tx_queue(loop->dev, 0);
	enum loop_violation violation;
	bool uso, up;
	u32 state;

	violation = loop_greet(&loop->sender, &state, &uso);
	if (violation) {
		violate(loop, violation);
		return;
	}
	up = state == LOOP_STATE_UP && !READ_ONCE(loop->stalled);
	if (up == netif_carrier_ok(loop->dev))
		return;
	__netif_tx_lock(queue, smp_processor_id());
	if (loop->dead) {
		/* It ended meanwhile: its carrier stays down. */
	} else if (up) {
		WRITE_ONCE(loop->peer_uso, uso);
		loop->moved_at = jiffies;
		netif_carrier_on(loop->dev);
	} else {
		netif_carrier_off(loop->dev);
		free_held(loop, 0, true, 0);
		if (netif_tx_queue_stopped(queue) && has_room(loop))
			netif_tx_wake_queue(queue);
	}
	__netif_tx_unlock(queue);
}

/* ---- receive ---- */

/* A buffer with a copy of the frame. */
static struct sk_buff *copy_frame(struct loop *loop, u32 bytes)
{
	struct sk_buff *frame;
	u32 at = HEAD_BYTES;
	int error, fragment;

	if (bytes <= COPY_MAX) {
		frame = napi_alloc_skb(&loop->napi, bytes);
		if (frame)
			loop_copy(&loop->receiver, 0, skb_put(frame, bytes), bytes);
		return frame;
	}
	frame = alloc_skb_with_frags(NET_SKB_PAD + NET_IP_ALIGN + HEAD_BYTES, bytes - HEAD_BYTES, PAGE_ALLOC_COSTLY_ORDER, &error,
				     GFP_ATOMIC | __GFP_NOWARN);
	if (!frame)
		return NULL;
	skb_reserve(frame, NET_SKB_PAD + NET_IP_ALIGN);
	loop_copy(&loop->receiver, 0, skb_put(frame, HEAD_BYTES), HEAD_BYTES);
	frame->data_len = bytes - HEAD_BYTES;
	frame->len = bytes;
	for (fragment = 0; fragment < skb_shinfo(frame)->nr_frags; fragment++) {
		skb_frag_t *part = &skb_shinfo(frame)->frags[fragment];

		loop_copy(&loop->receiver, at, skb_frag_address(part), skb_frag_size(part));
		at += skb_frag_size(part);
	}
	return frame;
}

/* Applies the offload. loop_check() has accepted its fields. The kernel looks into the frame itself. */
static bool apply(struct sk_buff *frame, const struct loop_record *record)
{
	struct virtio_net_hdr header = {
		.flags = record->flags,
		.gso_type = record->gso_type,
		.hdr_len = (__force __virtio16)record->hdr_len,
		.gso_size = (__force __virtio16)record->gso_size,
		.csum_start = (__force __virtio16)record->csum_start,
		.csum_offset = (__force __virtio16)record->csum_offset,
	};

	skb_reset_mac_header(frame);
	if (record->flags & LOOP_DATA_VALID)
		frame->ip_summed = CHECKSUM_UNNECESSARY;
	return !virtio_net_hdr_to_skb(frame, &header, true);
}

/*
 * Whether the peer's steering sends such a frame. Others would reach the lower interface past the filters of the host's bridge: frames in the
 * name of another, those for all stations or for others behind a bridge of ours, and those of VLANs.
 */
static bool is_expected(const struct loop *loop, const struct ethhdr *header)
{
	return ether_addr_equal(header->h_dest, loop->dev->dev_addr) && !eth_type_vlan(header->h_proto) &&
	       steering_expects(&loop->steered, header->h_source);
}

/* Hands a frame to the stack: on the lower interface, or on our own. */
static void deliver(struct loop *loop, struct sk_buff *frame)
{
	struct net_device *dev = loop->dev;
	struct net_device *lower;
	unsigned int bytes = frame->len;

	if (loop->steered.by && !is_expected(loop, eth_hdr(frame))) {
		loop->foreign++;
		dev->stats.rx_dropped++;
		kfree_skb(frame);
		return;
	}
	rcu_read_lock();
	lower = rcu_dereference(loop->lower);
	if (!lower) {
		frame->protocol = eth_type_trans(frame, dev);
		napi_gro_receive(&loop->napi, frame);
	} else if (netif_running(lower)) {
		/* Not by GRO, which could keep a frame of the lower interface beyond its end. */
		frame->protocol = eth_type_trans(frame, lower);
		netif_receive_skb(frame);
	} else {
		dev->stats.rx_dropped++;
		kfree_skb(frame);
		bytes = 0;
	}
	rcu_read_unlock();
	if (bytes) {
		dev->stats.rx_packets++;
		dev->stats.rx_bytes += bytes;
	}
}

/* Takes one record. False if there is none. */
static bool receive(struct loop *loop)
{
	struct loop_record record;
	enum loop_violation violation;
	struct sk_buff *frame;

	violation = loop_next(&loop->receiver, &record);
	if (violation) {
		violate(loop, violation);
		return false;
	}
	if (!record.bytes)
		return false;
	frame = copy_frame(loop, record.bytes);
	loop_done(&loop->receiver, record.bytes);
	if (!frame) {
		loop->dev->stats.rx_dropped++;
		return true;
	}
	frame->dev = loop->dev;
	if (!apply(frame, &record)) {
		loop->dev->stats.rx_frame_errors++;
		kfree_skb(frame);
		return true;
	}
	deliver(loop, frame);
	return true;
}

static int loop_poll(struct napi_struct *napi, int budget)
{
	struct loop *loop = container_of(napi, struct loop, napi);
	int done = 0;
	u32 own;

	/* Of netpoll, which may have interrupted one that holds the lock of the queue. */
	if (!budget)
		return 0;
	loop->polls++;
	if (!READ_ONCE(loop->dead))
		reclaim(loop, budget);
	if (!READ_ONCE(loop->dead))
		greet(loop);
	own = open_state(loop);
	if (own != READ_ONCE(loop->told))
		tell(loop, own);
	while (done < budget && !READ_ONCE(loop->dead) && receive(loop))
		done++;
	if (!READ_ONCE(loop->dead) && loop_must_notify(&loop->receiver)) {
		loop->notifies++;
		loop->ring(loop->owner);
	}
	if (done == budget || (!READ_ONCE(loop->dead) && loop_rest(&loop->receiver)))
		return budget;
	/* A doorbell since then has NAPI poll again. */
	napi_complete_done(napi, done);
	return done;
}

void loop_interrupt(struct net_device *dev)
{
	struct loop *loop = netdev_priv(dev);

	loop->interrupts++;
	napi_schedule(&loop->napi);
}

/* ---- the device ---- */

static int loop_open(struct net_device *dev)
{
	struct loop *loop = netdev_priv(dev);

	if (loop->dead)
		return -ENOLINK;
	/* The ring may be full from before: NAPI starts the queue then. */
	if (has_room(loop))
		netif_start_queue(dev);
	loop->moved_at = jiffies;
	tell(loop, open_state(loop));
	napi_enable(&loop->napi);
	/* Looks at both states, and says for the first time that we sleep. */
	local_bh_disable();
	napi_schedule(&loop->napi);
	local_bh_enable();
	return 0;
}

static int loop_stop(struct net_device *dev)
{
	struct loop *loop = netdev_priv(dev);

	/* NAPI first, because it wakes the queue and raises the carrier. The timer last, because sending starts it. */
	napi_disable(&loop->napi);
	netif_tx_disable(dev);
	netif_carrier_off(dev);
	tell(loop, LOOP_STATE_DOWN);
	timer_delete_sync(&loop->timer);
	netif_tx_lock_bh(dev);
	free_held(loop, 0, true, 0);
	loop->asked = false;
	loop->stalled = false;
	netif_tx_unlock_bh(dev);
	return 0;
}

static const struct net_device_ops loop_operations = {
	.ndo_open = loop_open,
	.ndo_stop = loop_stop,
	.ndo_start_xmit = loop_xmit,
	.ndo_features_check = loop_features_check,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
};

static const char counter_names[][ETH_GSTRING_LEN] = {
	"interrupts", "polls", "doorbells_for_frames", "doorbells_for_room", "stalls", "violations", "violation",
	"foreign_frames",
};

static int loop_string_count(struct net_device *dev, int set)
{
	return set == ETH_SS_STATS ? ARRAY_SIZE(counter_names) : -EOPNOTSUPP;
}

static void loop_strings(struct net_device *dev, u32 set, u8 *to)
{
	if (set == ETH_SS_STATS)
		memcpy(to, counter_names, sizeof(counter_names));
}

static void loop_counters(struct net_device *dev, struct ethtool_stats *stats, u64 *to)
{
	struct loop *loop = netdev_priv(dev);
	u64 values[] = {
		loop->interrupts, loop->polls, loop->rings, loop->notifies, loop->stalls, loop->violations, loop->violation,
		loop->foreign,
	};

	BUILD_BUG_ON(ARRAY_SIZE(values) != ARRAY_SIZE(counter_names));
	memcpy(to, values, sizeof(values));
}

static const struct ethtool_ops loop_ethtool = {
	.get_link = ethtool_op_get_link,
	.get_sset_count = loop_string_count,
	.get_strings = loop_strings,
	.get_ethtool_stats = loop_counters,
};

/*
 * The lower interface goes: nothing can arrive on it any more, and the device has no purpose. Nor has it in another namespace, where it ends
 * up when its own one goes. Under the lock of the network.
 */
static int lower_changed(struct notifier_block *notifier, unsigned long event, void *info)
{
	struct loop *loop = container_of(notifier, struct loop, notifier);
	struct net_device *lower = rtnl_dereference(loop->lower), *dev = netdev_notifier_info_to_dev(info);

	if (event != NETDEV_UNREGISTER || (dev != lower && dev != loop->dev))
		return NOTIFY_DONE;
	loop_end(loop);
	if (dev != lower)
		return NOTIFY_DONE;
	/* NAPI may hold a pointer still; the interface stays until readers have finished. */
	RCU_INIT_POINTER(loop->lower, NULL);
	synchronize_net();
	dev_put(lower);
	return NOTIFY_DONE;
}

/* Finds the lower interface, and holds it until lower_changed() sees it go. Under the lock of the network. */
static int find_lower(struct loop *loop, u32 index, u32 mtu)
{
	struct net_device *lower = __dev_get_by_index(dev_net(loop->dev), index);

	if (!lower || lower->type != ARPHRD_ETHER || lower->addr_len != ETH_ALEN)
		return -ENODEV;
	dev_hold(lower);
	rcu_assign_pointer(loop->lower, lower);
	eth_hw_addr_set(loop->dev, lower->dev_addr);
	loop->dev->mtu = mtu ?: min_t(u32, lower->mtu, ETH_MAX_MTU);
	return 0;
}

/*
 * Opens a device of a steering, which uses it without addresses of its own: it gets none of IPv6, which would be made by themselves. Under the
 * lock of the network.
 */
static int open_steered(struct net_device *dev)
{
#if IS_ENABLED(CONFIG_IPV6)
	struct inet6_dev *addresses = __in6_dev_get(dev);

	if (addresses)
		WRITE_ONCE(addresses->cnf.disable_ipv6, 1);
#endif
	return dev_open(dev, NULL);
}

/* Makes the device visible. Under the lock of the network. */
static int begin(struct loop *loop, const struct loop_setup *setup)
{
	int error = setup->lower ? find_lower(loop, setup->lower, setup->mtu) : 0;

	if (!error)
		error = register_netdevice(loop->dev);
	if (error || !setup->lower)
		return error;
	steering_join(&loop->steered, loop->dev, rtnl_dereference(loop->lower));
	if (!loop->steered.by)
		return 0;
	error = open_steered(loop->dev);
	if (error)
		unregister_netdevice(loop->dev);
	return error;
}

static void set_up(struct net_device *dev, u32 mtu)
{
	netdev_features_t features = NETIF_F_SG | NETIF_F_FRAGLIST | NETIF_F_HW_CSUM | NETIF_F_TSO | NETIF_F_TSO6 | NETIF_F_TSO_ECN;

	if (HAS_USO)
		features |= NETIF_F_GSO_UDP_L4;
	dev->netdev_ops = &loop_operations;
	dev->ethtool_ops = &loop_ethtool;
	dev->hw_features = features;
	dev->vlan_features = features;
	dev->features = features | NETIF_F_HIGHDMA | NETIF_F_GSO_ROBUST;
	dev->max_mtu = ETH_MAX_MTU;
	dev->mtu = mtu ?: ETH_DATA_LEN;
	eth_hw_addr_random(dev);
#ifdef CONFIG_BQL
	netdev_get_tx_queue(dev, 0)->dql.min_limit = QUEUE_BYTES_MIN;
#endif
}

struct net_device *loop_create(const struct loop_setup *setup)
{
	u32 size = loop_ring_bytes(setup->bytes);
	struct net_device *dev;
	struct loop *loop;
	int error;

	if (!size || setup->side > 1 || (setup->mtu && (setup->mtu < ETH_MIN_MTU || setup->mtu > ETH_MAX_MTU)))
		return ERR_PTR(-EINVAL);
	dev = alloc_netdev(sizeof(*loop), setup->name, NET_NAME_ENUM, ether_setup);
	if (!dev)
		return ERR_PTR(-ENOMEM);
	dev_net_set(dev, current->nsproxy->net_ns);
	set_up(dev, setup->mtu);
	loop = netdev_priv(dev);
	loop->dev = dev;
	loop->ring = setup->ring;
	loop->ended = setup->ended;
	loop->owner = setup->owner;
	timer_setup(&loop->timer, loop_timer, 0);
	loop_begin(setup->extent, size, setup->side, HAS_USO, &loop->sender, &loop->receiver);
	netif_napi_add(dev, &loop->napi, loop_poll);
	netif_carrier_off(dev);
	loop->notifier.notifier_call = lower_changed;
	error = register_netdevice_notifier(&loop->notifier);
	if (error)
		goto free;
	rtnl_lock();
	error = begin(loop, setup);
	rtnl_unlock();
	if (!error)
		return dev;
	unregister_netdevice_notifier(&loop->notifier);
	steering_leave(&loop->steered);
free:
	free_netdev(dev);
	return ERR_PTR(error);
}

void loop_destroy(struct net_device *dev)
{
	struct loop *loop = netdev_priv(dev);

	loop_end(loop);
	/* To a notifier that is removed, each interface goes: the lower one is given back. */
	unregister_netdevice_notifier(&loop->notifier);
	/* After this nothing sends, and NAPI and the timer do not run. */
	unregister_netdev(dev);
	steering_leave(&loop->steered);
	free_netdev(dev);
}

/* ---- for the steering ---- */

bool loop_is(const struct net_device *dev)
{
	return dev->netdev_ops == &loop_operations;
}

bool loop_is_of(const struct net_device *dev, const struct steering *steering)
{
	return loop_is(dev) && ((const struct loop *)netdev_priv(dev))->steered.by == steering;
}

bool loop_takes(struct net_device *dev, const struct sk_buff *frame)
{
	struct netdev_queue *queue = netdev_get_tx_queue(dev, 0);
	struct loop *loop = netdev_priv(dev);

	if (!netif_running(dev) || !netif_carrier_ok(dev) || READ_ONCE(loop->dead) || frame->len > LOOP_FRAME_MAX)
		return false;
	/* The address of the lower interface may have changed since the peer learned it. */
	if (!ether_addr_equal(eth_hdr(frame)->h_source, dev->dev_addr))
		return false;
	/* Soon after the carrier has come, the stack still drops what the device is to send. */
	if (qdisc_tx_is_noop(dev))
		return false;
	return !netif_xmit_stopped(queue) || time_before(jiffies, READ_ONCE(queue->trans_start) + STOPPED_MAX);
}

void loop_routed(struct net_device *dev, bool routed)
{
	struct loop *loop = netdev_priv(dev);

	smp_store_release(&loop->routed, routed);
	/* It tells the peer. */
	local_bh_disable();
	napi_schedule(&loop->napi);
	local_bh_enable();
}
