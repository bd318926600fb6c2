/* SPDX-License-Identifier: (GPL-2.0 WITH Linux-syscall-note) OR MIT */
/*
 * What a guest's isthmusd and the driver of its ivshmem device say to one another; docs/spec/device.md tells it in words.
 *
 * Every structure has a fixed size, the same for 32 and 64 bits, begins with the version of this interface, and is refused (EINVAL)
 * when that is another one or a reserved field is not zero.
 */
#ifndef ISTHMUS_H
#define ISTHMUS_H

#include <linux/ioctl.h>
#include <linux/types.h>

/* The version of this interface. */
#define ISTHMUS_ABI		1

/* statfs() answers this type for a piece, and for nothing that is not this driver's. */
#define ISTHMUS_MAGIC		0x49535448

/* isthmus_info.peer: the device has no number (yet). */
#define ISTHMUS_NO_PEER		0xffffffffU

/* How memory is cached, as a page table entry says. */
#define ISTHMUS_MEMORY_UNKNOWN	0
#define ISTHMUS_MEMORY_WB	1	/* write-back: as ordinary memory */
#define ISTHMUS_MEMORY_WT	2	/* write-through */
#define ISTHMUS_MEMORY_WP	3	/* write-protect */
#define ISTHMUS_MEMORY_WC	4	/* write-combining */
#define ISTHMUS_MEMORY_UC_MINUS	5	/* uncached, unless a register of the processor says write-combining */
#define ISTHMUS_MEMORY_UC	6	/* uncached */

/* isthmus_info.flags: memory_type was read from an entry of a program's mapping, not only from the kernel's own. */
#define ISTHMUS_INFO_MAPPED	1

struct isthmus_info {
	__u32 abi;		/* answered: ISTHMUS_ABI */
	__u32 driver;		/* the driver's version: major << 16 | minor */
	__u64 window_bytes;
	__u32 peer;		/* our number among the device's peers, or ISTHMUS_NO_PEER */
	__u32 vectors;		/* which LISTEN takes: 0 to vectors - 1; 0: no interrupts */
	__u32 memory_type;	/* ISTHMUS_MEMORY_... */
	__u32 flags;		/* ISTHMUS_INFO_... */
	__u64 window_address;	/* where the window lies in the guest's physical memory */
	__u64 reserved[3];	/* answered: 0 */
};

#define ISTHMUS_READ		1
#define ISTHMUS_READ_WRITE	3
/* To read and write, and a private extent: whatever becomes of window and device, its bytes stay, in pages of its own. */
#define ISTHMUS_HOME		7

struct isthmus_piece {
	__u32 abi;
	__u32 access;		/* ISTHMUS_READ, ISTHMUS_READ_WRITE or ISTHMUS_HOME */
	__u64 offset;		/* of the window; whole pages */
	__u64 bytes;		/* whole pages, at least one */
	__s32 descriptor;	/* answered */
	__u32 reserved;
};

struct isthmus_withdraw {
	__u32 abi;
	__s32 descriptor;	/* of a piece of this device */
};

struct isthmus_listen {
	__u32 abi;
	__u32 vector;
	__s32 descriptor;	/* an eventfd; -1: stop listening */
	__u32 reserved;
};

struct isthmus_ringer {
	__u32 abi;
	__u32 peer;		/* up to 65535 */
	__u32 vector;		/* up to 65535 */
	__s32 descriptor;	/* answered */
};

struct isthmus_ring {
	__u32 abi;
	__u32 peer;
	__u32 vector;
	__u32 reserved;
};

/* A network device over two rings in a piece (docs/spec/loop.md). Closing the descriptor ends it; it polls as hung up once it has ended. */
struct isthmus_loop {
	__u32 abi;
	__u32 side;		/* 0 or 1: the words and the data of the extent that are ours */
	__s32 piece;		/* a piece to read and write, of any device: the extent */
	__s32 ringer;		/* of any device: rings the peer's vector */
	__u32 vector;		/* of this device, without a listener; other loop devices may have it too */
	__u32 lower;		/* the index of the interface on which frames arrive; 0: on the loop device */
	__u32 mtu;		/* 0: that of the lower interface, or 1500 */
	__u32 reserved;
	__s32 index;		/* answered: of the network device */
	__s32 descriptor;	/* answered */
};

/*
 * Steers what an interface sends (docs/spec/loop.md). Closing the descriptor ends it; it polls as hung up once the interface is gone. A write
 * of routes replaces all of them. A read gives addresses to which there was something to send but no device, once for each write: eight bytes
 * each, of which the last two are zero.
 */
struct isthmus_steer {
	__u32 abi;
	__u32 interface;	/* the index of an Ethernet interface without a steering */
	__u32 reserved;
	__s32 descriptor;	/* answered */
};

struct isthmus_route {
	__u8 mac[6];		/* a unicast address; each once */
	__u16 reserved;
	__u32 device;		/* the index of a loop device; 0: none yet */
};

#define ISTHMUS_ROUTES_MAX	256

/* isthmus_extent.flags: the piece was revoked or settled, or its device is gone: what is mapped shows other, private pages. */
#define ISTHMUS_EXTENT_GONE	1

struct isthmus_extent {
	__u32 abi;		/* answered: ISTHMUS_ABI */
	__u32 access;
	__u64 bytes;		/* which can be mapped, from 0; never less */
	__u32 memory_type;	/* of what was mapped last, or ISTHMUS_MEMORY_UNKNOWN */
	__u32 flags;		/* ISTHMUS_EXTENT_... */
	__u64 reserved;		/* answered: 0 */
};

struct isthmus_shows {
	__u32 abi;
	__u32 shows;		/* answered: 1 or 0 */
	__u64 address;		/* of the calling process; whole pages */
	__u64 bytes;		/* whole pages */
	__u64 offset;		/* of the piece; whole pages */
};

/* To /dev/isthmusN. */
#define ISTHMUS_INFO		_IOR(0xb1, 0x40, struct isthmus_info)
#define ISTHMUS_PIECE		_IOWR(0xb1, 0x41, struct isthmus_piece)
#define ISTHMUS_WITHDRAW	_IOW(0xb1, 0x42, struct isthmus_withdraw)
#define ISTHMUS_LISTEN		_IOW(0xb1, 0x43, struct isthmus_listen)
#define ISTHMUS_RINGER		_IOWR(0xb1, 0x44, struct isthmus_ringer)
#define ISTHMUS_RING		_IOW(0xb1, 0x45, struct isthmus_ring)
#define ISTHMUS_LOOP		_IOWR(0xb1, 0x46, struct isthmus_loop)
#define ISTHMUS_STEER		_IOWR(0xb1, 0x47, struct isthmus_steer)

/* To a piece. */
#define ISTHMUS_EXTENT		_IOR(0xb1, 0x48, struct isthmus_extent)
#define ISTHMUS_SHOWS		_IOWR(0xb1, 0x49, struct isthmus_shows)
#define ISTHMUS_SETTLE		_IO(0xb1, 0x4a)

#endif
