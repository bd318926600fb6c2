// SPDX-License-Identifier: GPL-2.0
/*
 * The ivshmem device of a guest, for its isthmusd: a window of memory that it shares with its host, and doorbells.
 *
 *   /dev/isthmusN (root's) ── INFO, RING
 *        ├─ PIECE ───► a descriptor that maps [0, bytes) of one piece (an extent of the window) and nothing else; may be passed to programs
 *        ├─ RINGER ──► a descriptor that rings one vector of one peer when it is written to (a doorbell); may be passed to programs
 *        ├─ LISTEN ──► an eventfd is signalled when a vector of ours is rung
 *        ├─ LOOP ────► a network device over the rings in a piece (loop.c), until its descriptor is closed
 *        └─ STEER ───► has frames of an interface take loop devices (steer.c), until its descriptor is closed
 *
 * Who may have which piece is decided in user space. Here pieces are kept apart. A process that maps a piece notices of an unplug
 * only that the memory is not shared any more: missing pages are then filled with a page of the piece's own, so no process gets SIGBUS.
 * A home (a private extent) is a piece in which a program has its own memory. It has pages to settle on: when the window is revoked, or
 * its program asks for that, its bytes are copied there, and no process that maps it sees a difference.
 *
 * Lifetimes: a device is counted by its PCI function, its open nodes, its pieces and its ringers. Its registers are used under
 * `alive`, held for reading; remove() clears `present` with it held for writing. Pages are put into programs' tables by faults only,
 * under `alive`, too: a mapping that is not yet known to the piece's address space when remove() unmaps it has no pages yet.
 * Under `alive` nothing is copied from or to programs, for that could wait for a fault which waits for us.
 *
 * A loop device uses up to three functions: one has its memory, one rings, one has its vector. It is made and ended under `loops_lock`. A
 * function that goes says so first (`present`) and then ends the loop devices that use it, before its memory and registers go. So does a
 * piece that is withdrawn. The lock of the network is taken within `loops_lock`, never the other way round.
 */
#include <linux/eventfd.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/idr.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/kref.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/nsproxy.h>
#include <linux/pci.h>
#include <linux/poll.h>
#include <linux/pseudo_fs.h>
#include <linux/rwsem.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/wait.h>
#include <net/net_namespace.h>
#include "isthmus.h"
#include "loop.h"
#include "steer.h"

#define DRIVER_VERSION	(1 << 16 | 3)

#define BAR_REGISTERS	0
#define BAR_WINDOW	2

/* Registers (QEMU, docs/specs/ivshmem-spec). */
#define IV_POSITION	8
#define DOORBELL	12
#define REGISTER_BYTES	16

/* Each takes an interrupt of a processor. */
#define VECTORS_MAX	64

/* Pages that one fault maps at most, around the one that was touched. */
#define AROUND		128UL

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 8, 0)
#define signal(ctx) eventfd_signal(ctx)
#else
#define signal(ctx) eventfd_signal(ctx, 1)
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
#define vm_flags_set(vma, flags) ((vma)->vm_flags |= (flags))
#define vm_flags_clear(vma, flags) ((vma)->vm_flags &= ~(flags))
#endif

struct vector {
	spinlock_t lock;
	struct eventfd_ctx *listener;
	struct file *owner;		/* the open node that said LISTEN */
	unsigned int claims;		/* of loop devices, also of those that are being made */
	struct list_head loops;
	char name[40];
};

struct device_state {
	struct kref users;
	struct rw_semaphore alive;
	bool present;			/* the function is there: under alive */
	struct pci_dev *pci;
	void __iomem *registers;
	void *window;			/* our own mapping, which holds the memory type for all others; read for homes alone */
	phys_addr_t address;
	u64 bytes;
	unsigned int kernel_type;	/* of our own mapping */
	unsigned int seen_type;		/* of a program's, once there was one */
	struct mutex pieces_lock;
	struct list_head pieces;
	wait_queue_head_t gone;
	struct miscdevice node;
	int number;
	char name[24];
	unsigned int vector_count;
	struct vector vectors[VECTORS_MAX];
};

struct piece {
	struct device_state *state;
	struct list_head link;
	struct inode *inode;
	u64 first;			/* page of the window */
	u64 pages;
	unsigned int access;
	unsigned int seen_type;
	bool withdrawn;			/* under the state's alive */
	struct page *instead;		/* what is seen when the window is gone */
	struct page **own;		/* of a home: what it settles on, as many as it has */
	bool settled;			/* it shows them from now on: under the state's alive */
	struct file *owner;		/* of a home: the open node that made it. Never looked into */
};

struct ringer {
	struct device_state *state;
	u32 value;			/* of the doorbell register */
};

struct loop_file {
	struct list_head link;
	struct device_state *state;	/* of the vector */
	struct file *piece, *ringer;
	struct vector *vector;
	struct list_head on_vector;
	struct net_device *dev;		/* until it is ended: under loops_lock */
	bool ended;
	wait_queue_head_t gone;
};

static DEFINE_IDA(numbers);

static void state_free(struct kref *users)
{
	struct device_state *state = container_of(users, struct device_state, users);

	pci_dev_put(state->pci);
	kfree(state);
}

static void state_put(struct device_state *state)
{
	kref_put(&state->users, state_free);
}

/* ---- memory types ---- */

/* The type that a last-level page table entry of this size gives, in the order in which Linux fills the page attribute table. */
static unsigned int type_of(u64 entry, bool huge)
{
#ifdef CONFIG_X86
	static const unsigned char types[8] = {
		ISTHMUS_MEMORY_WB, ISTHMUS_MEMORY_WC, ISTHMUS_MEMORY_UC_MINUS, ISTHMUS_MEMORY_UC,
		ISTHMUS_MEMORY_WB, ISTHMUS_MEMORY_WP, ISTHMUS_MEMORY_UC_MINUS, ISTHMUS_MEMORY_WT,
	};
	u64 pat = huge ? _PAGE_PAT_LARGE : _PAGE_PAT;

	return types[(entry & pat ? 4 : 0) | (entry & _PAGE_PCD ? 2 : 0) | (entry & _PAGE_PWT ? 1 : 0)];
#else
	return ISTHMUS_MEMORY_UNKNOWN;
#endif
}

static unsigned int type_of_kernel(void *address)
{
#ifdef CONFIG_X86
	unsigned int level = PG_LEVEL_NONE;
	pte_t *entry = lookup_address((unsigned long)address, &level);

	if (entry && pte_present(*entry))
		return type_of(pte_val(*entry), level != PG_LEVEL_4K);
#endif
	return ISTHMUS_MEMORY_UNKNOWN;
}

/* Of a page that a fault of this mapping has just put in. */
static unsigned int type_of_mapping(struct vm_area_struct *vma, unsigned long address)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
	struct follow_pfnmap_args args = { .vma = vma, .address = address };
	unsigned int type;

	if (follow_pfnmap_start(&args))
		return ISTHMUS_MEMORY_UNKNOWN;
	type = type_of(pgprot_val(args.pgprot), false);
	follow_pfnmap_end(&args);
	return type;
#else
	spinlock_t *lock;
	unsigned int type;
	pte_t *entry;

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0)
	if (follow_pte(vma, address, &entry, &lock))
#else
	if (follow_pte(vma->vm_mm, address, &entry, &lock))
#endif
		return ISTHMUS_MEMORY_UNKNOWN;
	type = type_of(pte_val(*entry), false);
	pte_unmap_unlock(entry, lock);
	return type;
#endif
}

/* ---- a file system without names, for descriptors that outlive the node ---- */

static struct vfsmount *nameless_mount;
static int nameless_users;

static int nameless_init(struct fs_context *context)
{
	return init_pseudo(context, ISTHMUS_MAGIC) ? 0 : -ENOMEM;
}

static struct file_system_type nameless_type = {
	.name = "isthmus",
	.owner = THIS_MODULE,
	.init_fs_context = nameless_init,
	.kill_sb = kill_anon_super,
};

/* A file of ours, of its own inode; its release() says simple_release_fs(). On error nothing is held. */
static struct file *file_new(const char *name, int flags, const struct file_operations *operations, u64 bytes,
			     void *private)
{
	struct inode *inode;
	struct file *file;
	int error;

	if (!try_module_get(THIS_MODULE))	/* given back when the file is closed, as that of any open node */
		return ERR_PTR(-ENODEV);
	error = simple_pin_fs(&nameless_type, &nameless_mount, &nameless_users);
	if (error)
		goto put_module;
	inode = alloc_anon_inode(nameless_mount->mnt_sb);
	if (IS_ERR(inode)) {
		error = PTR_ERR(inode);
		goto release_fs;
	}
	/* For fstat(); it is no regular file, so its size cannot change. */
	i_size_write(inode, bytes);
	file = alloc_file_pseudo(inode, nameless_mount, name, flags, operations);
	if (IS_ERR(file)) {
		error = PTR_ERR(file);
		iput(inode);
		goto release_fs;
	}
	file->private_data = private;
	return file;

release_fs:
	simple_release_fs(&nameless_mount, &nameless_users);
put_module:
	module_put(THIS_MODULE);
	return ERR_PTR(error);
}

/* ---- pieces ---- */

/* What a piece shows at one of its pages. Under the state's alive. */
static unsigned long piece_pfn(struct piece *piece, unsigned long page)
{
	if (piece->settled)
		return page_to_pfn(piece->own[page]);
	if (!piece->state->present || piece->withdrawn)
		return page_to_pfn(piece->instead);
	return PHYS_PFN(piece->state->address) + piece->first + page;
}

/* A private mapping of what is settled behaves as one of a file that is never written: pages are copied where they are written. */
static vm_fault_t private_fault(struct vm_fault *fault, struct piece *piece)
{
	struct page *page;

	if (fault->pgoff < piece->pages) {
		page = piece->own[fault->pgoff];
		get_page(page);
	} else {
		page = alloc_page(GFP_HIGHUSER_MOVABLE | __GFP_ZERO);	/* mremap() has enlarged the mapping */
		if (!page)
			return VM_FAULT_OOM;
	}
	fault->page = page;
	return 0;
}

static vm_fault_t piece_fault(struct vm_fault *fault)
{
	struct vm_area_struct *vma = fault->vma;
	struct piece *piece = vma->vm_file->private_data;
	struct device_state *state = piece->state;
	unsigned long begin, end, page;
	vm_fault_t result = VM_FAULT_SIGBUS;

	if (!(vma->vm_flags & VM_MAYSHARE))
		return private_fault(fault, piece);
	/* mmap() has looked already. */
	if (fault->pgoff >= piece->pages)
		return VM_FAULT_SIGBUS;
	down_read(&state->alive);
	if (!state->present || piece->withdrawn || piece->settled) {
		result = vmf_insert_pfn(vma, fault->address, piece_pfn(piece, fault->pgoff));
		goto out;
	}
	/* Those around it as well, as far as piece and mapping go. */
	begin = max(fault->pgoff & ~(AROUND - 1), vma->vm_pgoff);
	end = min3((fault->pgoff | (AROUND - 1)) + 1, vma->vm_pgoff + vma_pages(vma), (unsigned long)piece->pages);
	for (page = begin; page < end; page++) {
		unsigned long address = vma->vm_start + ((page - vma->vm_pgoff) << PAGE_SHIFT);
		vm_fault_t one = vmf_insert_pfn(vma, address, piece_pfn(piece, page));

		if (page == fault->pgoff)
			result = one;
	}
	if (result == VM_FAULT_NOPAGE && READ_ONCE(piece->seen_type) == ISTHMUS_MEMORY_UNKNOWN) {
		unsigned int type = type_of_mapping(vma, fault->address & PAGE_MASK);

		WRITE_ONCE(piece->seen_type, type);
		WRITE_ONCE(state->seen_type, type);
	}
out:
	up_read(&state->alive);
	return result;
}

static const struct vm_operations_struct piece_vm_operations = {
	.fault = piece_fault,
};

static int piece_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct piece *piece = file->private_data;
	unsigned long pages = vma_pages(vma);
	bool settled;

	down_read(&piece->state->alive);
	settled = piece->settled;
	up_read(&piece->state->alive);
	/* A private mapping of a device's memory would be a copy, made page by page, of what changes meanwhile. */
	if (!(vma->vm_flags & VM_MAYSHARE) && !settled)
		return -EINVAL;
	if (vma->vm_pgoff >= piece->pages || pages > piece->pages - vma->vm_pgoff)
		return -EINVAL;
	/* The descriptor was opened for reading only, so this was seen to already; it stays true if a process changes that. */
	if (piece->access == ISTHMUS_READ) {
		if (vma->vm_flags & VM_WRITE)
			return -EACCES;
		vm_flags_clear(vma, VM_MAYWRITE);
	}
	if (vma->vm_flags & VM_EXEC)
		return -EACCES;
	vm_flags_clear(vma, VM_MAYEXEC);
	/* VM_DONTEXPAND: mremap() neither enlarges nor doubles it. A private mapping is memory as any other. */
	if (vma->vm_flags & VM_MAYSHARE)
		vm_flags_set(vma, VM_PFNMAP | VM_IO | VM_DONTEXPAND | VM_DONTDUMP);
	vma->vm_ops = &piece_vm_operations;
	return 0;
}

static void piece_unmap(struct piece *piece)
{
	/* Not what was copied from it for a private mapping: that is a program's own. */
	unmap_mapping_range(piece->inode->i_mapping, 0, 0, 0);
}

/*
 * Copies what a home shows onto its own pages, which it shows from now on. No process can have a page in its tables, or put one there, while
 * it is copied, so no write is lost. With the state's alive held for writing.
 */
static void piece_settle(struct piece *piece)
{
	u64 page;

	if (!piece->own || piece->settled || piece->withdrawn || !piece->state->present)
		return;
	piece_unmap(piece);
	for (page = 0; page < piece->pages; page++)
		memcpy(page_address(piece->own[page]), piece->state->window + ((piece->first + page) << PAGE_SHIFT), PAGE_SIZE);
	piece->settled = true;
}

static long settle(struct piece *piece)
{
	if (!piece->own)
		return -EINVAL;
	down_write(&piece->state->alive);
	piece_settle(piece);
	up_write(&piece->state->alive);
	return 0;
}

/* Whether these addresses show the piece, from this page of it on, shared, and may be read. Under the lock of the address space. */
static bool file_shows(struct file *file, unsigned long address, unsigned long end, unsigned long page)
{
	struct vm_area_struct *vma;

	while (address < end) {
		vma = find_vma(current->mm, address);
		if (!vma || vma->vm_start > address || vma->vm_file != file)
			return false;
		if ((vma->vm_flags & (VM_SHARED | VM_READ)) != (VM_SHARED | VM_READ))
			return false;
		if (vma->vm_pgoff + ((address - vma->vm_start) >> PAGE_SHIFT) != page)
			return false;
		page += (vma->vm_end - address) >> PAGE_SHIFT;
		address = vma->vm_end;
	}
	return true;
}

static long shows(struct file *file, struct isthmus_shows __user *argument)
{
	struct piece *piece = file->private_data;
	struct isthmus_shows asked;
	bool shared;

	if (copy_from_user(&asked, argument, sizeof(asked)))
		return -EFAULT;
	if (asked.abi != ISTHMUS_ABI)
		return -EINVAL;
	if (!PAGE_ALIGNED(asked.address) || !PAGE_ALIGNED(asked.bytes) || !PAGE_ALIGNED(asked.offset))
		return -EINVAL;
	if (asked.address > TASK_SIZE || asked.bytes > TASK_SIZE - asked.address)
		return -EINVAL;
	down_read(&piece->state->alive);
	shared = piece->state->present && !piece->withdrawn && !piece->settled;
	up_read(&piece->state->alive);
	if (shared) {
		mmap_read_lock(current->mm);
		shared = file_shows(file, asked.address, asked.address + asked.bytes, asked.offset >> PAGE_SHIFT);
		mmap_read_unlock(current->mm);
	}
	return put_user(shared ? 1U : 0U, &argument->shows);
}

static long piece_extent(struct piece *piece, void __user *argument)
{
	struct isthmus_extent extent = {
		.abi = ISTHMUS_ABI,
		.access = piece->access,
		.bytes = piece->pages << PAGE_SHIFT,
	};

	down_read(&piece->state->alive);
	extent.memory_type = READ_ONCE(piece->seen_type);
	if (!piece->state->present || piece->withdrawn || piece->settled)
		extent.flags = ISTHMUS_EXTENT_GONE;
	up_read(&piece->state->alive);
	return copy_to_user(argument, &extent, sizeof(extent)) ? -EFAULT : 0;
}

static long piece_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	switch (command) {
	case ISTHMUS_EXTENT:
		return piece_extent(file->private_data, (void __user *)argument);
	case ISTHMUS_SHOWS:
		return shows(file, (void __user *)argument);
	case ISTHMUS_SETTLE:
		return settle(file->private_data);
	default:
		return -ENOTTY;
	}
}

/* The pages that a home settles on, taken beforehand: when they are needed is no time to be refused. */
static int home_fill(struct piece *piece)
{
	u64 page;

	piece->own = kvcalloc(piece->pages, sizeof(*piece->own), GFP_KERNEL_ACCOUNT);
	if (!piece->own)
		return -ENOMEM;
	for (page = 0; page < piece->pages; page++) {
		piece->own[page] = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
		if (!piece->own[page])
			return -ENOMEM;
	}
	return 0;
}

static void piece_free(struct piece *piece)
{
	u64 page;

	/* A process with a private mapping keeps its pages. */
	for (page = 0; piece->own && page < piece->pages && piece->own[page]; page++)
		put_page(piece->own[page]);
	kvfree(piece->own);
	__free_page(piece->instead);
	state_put(piece->state);
	kfree(piece);
}

static int piece_release(struct inode *inode, struct file *file)
{
	struct piece *piece = file->private_data;

	mutex_lock(&piece->state->pieces_lock);
	list_del(&piece->link);
	mutex_unlock(&piece->state->pieces_lock);
	piece_free(piece);
	simple_release_fs(&nameless_mount, &nameless_users);
	return 0;
}

static const struct file_operations piece_operations = {
	.owner = THIS_MODULE,
	.mmap = piece_mmap,
	.unlocked_ioctl = piece_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.release = piece_release,
	.llseek = noop_llseek,
};

static struct file *piece_new(struct device_state *state, struct file *owner, const struct isthmus_piece *asked)
{
	int flags = asked->access == ISTHMUS_READ ? O_RDONLY : O_RDWR;
	bool home = asked->access == ISTHMUS_HOME;
	struct piece *piece;
	struct file *file;

	if (asked->access != ISTHMUS_READ && asked->access != ISTHMUS_READ_WRITE && !home)
		return ERR_PTR(-EINVAL);
	if (!asked->bytes || !PAGE_ALIGNED(asked->bytes) || !PAGE_ALIGNED(asked->offset))
		return ERR_PTR(-EINVAL);
	if (asked->offset >= state->bytes || asked->bytes > state->bytes - asked->offset)
		return ERR_PTR(-ERANGE);
	piece = kzalloc(sizeof(*piece), GFP_KERNEL_ACCOUNT);
	if (!piece)
		return ERR_PTR(-ENOMEM);
	piece->instead = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!piece->instead) {
		kfree(piece);
		return ERR_PTR(-ENOMEM);
	}
	piece->first = asked->offset >> PAGE_SHIFT;
	piece->pages = asked->bytes >> PAGE_SHIFT;
	piece->access = asked->access;
	piece->state = state;
	piece->owner = owner;
	kref_get(&state->users);
	if (home && home_fill(piece)) {
		piece_free(piece);
		return ERR_PTR(-ENOMEM);
	}
	file = file_new(home ? "isthmus-home" : "isthmus-piece", flags, &piece_operations, asked->bytes, piece);
	if (IS_ERR(file)) {
		piece_free(piece);
		return file;
	}
	piece->inode = file_inode(file);
	/* From here on remove() finds it; until it is mapped there is nothing to find. */
	mutex_lock(&state->pieces_lock);
	list_add(&piece->link, &state->pieces);
	mutex_unlock(&state->pieces_lock);
	return file;
}

/* ---- doorbells ---- */

static int state_ring(struct device_state *state, u32 value)
{
	int error = -ENODEV;

	down_read(&state->alive);
	if (state->present) {
		/* What we wrote into the window is seen before the bell is heard: writel() orders it. */
		writel(value, state->registers + DOORBELL);
		error = 0;
	}
	up_read(&state->alive);
	return error;
}

static ssize_t ringer_write(struct file *file, const char __user *from, size_t bytes, loff_t *at)
{
	struct ringer *ringer = file->private_data;
	int error = state_ring(ringer->state, ringer->value);

	return error ? error : bytes;
}

static int ringer_release(struct inode *inode, struct file *file)
{
	struct ringer *ringer = file->private_data;

	state_put(ringer->state);
	kfree(ringer);
	simple_release_fs(&nameless_mount, &nameless_users);
	return 0;
}

static const struct file_operations ringer_operations = {
	.owner = THIS_MODULE,
	.write = ringer_write,
	.release = ringer_release,
	.llseek = noop_llseek,
};

static struct file *ringer_new(struct device_state *state, const struct isthmus_ringer *asked)
{
	struct ringer *ringer;
	struct file *file;

	if (asked->peer > U16_MAX || asked->vector > U16_MAX)
		return ERR_PTR(-EINVAL);
	ringer = kzalloc(sizeof(*ringer), GFP_KERNEL_ACCOUNT);
	if (!ringer)
		return ERR_PTR(-ENOMEM);
	ringer->value = asked->peer << 16 | asked->vector;
	ringer->state = state;
	kref_get(&state->users);
	file = file_new("isthmus-ringer", O_WRONLY, &ringer_operations, 0, ringer);
	if (IS_ERR(file)) {
		state_put(state);
		kfree(ringer);
	}
	return file;
}

static void vector_signal(struct vector *vector)
{
	unsigned long flags;

	spin_lock_irqsave(&vector->lock, flags);
	if (vector->listener)
		signal(vector->listener);
	spin_unlock_irqrestore(&vector->lock, flags);
}

static irqreturn_t vector_interrupt(int irq, void *data)
{
	struct vector *vector = data;
	struct loop_file *loop;
	unsigned long flags;

	spin_lock_irqsave(&vector->lock, flags);
	list_for_each_entry(loop, &vector->loops, on_vector)
		loop_interrupt(loop->dev);
	spin_unlock_irqrestore(&vector->lock, flags);
	vector_signal(vector);
	return IRQ_HANDLED;
}

/* Keeps a vector without a listener for loop devices. */
static int vector_claim(struct vector *vector)
{
	int error = 0;

	spin_lock_irq(&vector->lock);
	if (vector->listener)
		error = -EBUSY;
	else
		vector->claims++;
	spin_unlock_irq(&vector->lock);
	return error;
}

/* Has a loop device hear a claimed vector. */
static void vector_add(struct vector *vector, struct loop_file *loop)
{
	spin_lock_irq(&vector->lock);
	list_add(&loop->on_vector, &vector->loops);
	spin_unlock_irq(&vector->lock);
}

/* Gives a claim up, with the loop device that has it, if there is one. No interrupt of the vector reaches it when this returns. */
static void vector_unclaim(struct vector *vector, struct loop_file *loop)
{
	spin_lock_irq(&vector->lock);
	if (loop)
		list_del(&loop->on_vector);
	vector->claims--;
	spin_unlock_irq(&vector->lock);
}

/* Has `listener` (NULL for none) listen for `owner`. */
static int vector_listen(struct vector *vector, struct eventfd_ctx *listener, struct file *owner)
{
	struct eventfd_ctx *before = listener;
	int error = -EBUSY;

	spin_lock_irq(&vector->lock);
	if (!vector->claims && (!vector->listener || vector->owner == owner)) {
		before = vector->listener;
		vector->listener = listener;
		vector->owner = listener ? owner : NULL;
		error = 0;
	}
	spin_unlock_irq(&vector->lock);
	if (before)
		eventfd_ctx_put(before);
	return error;
}

/* ---- loop devices ---- */

static DEFINE_MUTEX(loops_lock);
static LIST_HEAD(loops);

static struct piece *loop_piece(const struct loop_file *loop)
{
	return loop->piece->private_data;
}

/* The function of the ringer is there as long as the device is. */
static void loop_ring(void *owner)
{
	struct loop_file *loop = owner;
	struct ringer *ringer = loop->ringer->private_data;

	writel(ringer->value, ringer->state->registers + DOORBELL);
}

static void loop_ended(void *owner)
{
	struct loop_file *loop = owner;

	WRITE_ONCE(loop->ended, true);
	wake_up_all(&loop->gone);
}

/* Under loops_lock. */
static void loop_finish(struct loop_file *loop)
{
	if (!loop->dev)
		return;
	list_del(&loop->link);
	vector_unclaim(loop->vector, loop);
	loop_destroy(loop->dev);
	loop->dev = NULL;
	loop_ended(loop);
}

/* Ends those that use a function, or a piece. */
static void loops_finish(const struct device_state *state, const struct piece *piece)
{
	struct loop_file *loop, *next;

	mutex_lock(&loops_lock);
	list_for_each_entry_safe(loop, next, &loops, link) {
		struct ringer *ringer = loop->ringer->private_data;

		if (loop_piece(loop) == piece || loop->state == state || loop_piece(loop)->state == state || ringer->state == state)
			loop_finish(loop);
	}
	mutex_unlock(&loops_lock);
}

static int loop_release(struct inode *inode, struct file *file)
{
	struct loop_file *loop = file->private_data;

	mutex_lock(&loops_lock);
	loop_finish(loop);
	mutex_unlock(&loops_lock);
	fput(loop->piece);
	fput(loop->ringer);
	state_put(loop->state);
	kfree(loop);
	simple_release_fs(&nameless_mount, &nameless_users);
	return 0;
}

static __poll_t loop_file_poll(struct file *file, poll_table *table)
{
	struct loop_file *loop = file->private_data;

	poll_wait(file, &loop->gone, table);
	return READ_ONCE(loop->ended) ? EPOLLHUP : 0;
}

static const struct file_operations loop_operations = {
	.owner = THIS_MODULE,
	.poll = loop_file_poll,
	.release = loop_release,
	.llseek = noop_llseek,
};

static int loop_start(struct loop_file *loop, const struct isthmus_loop *asked)
{
	struct ringer *ringer = loop->ringer->private_data;
	struct piece *piece = loop_piece(loop);
	struct loop_setup setup = {
		.extent = piece->state->window + (piece->first << PAGE_SHIFT),
		.bytes = piece->pages << PAGE_SHIFT,
		.side = asked->side,
		.mtu = asked->mtu,
		.lower = asked->lower,
		.name = "loop%d",
		.ring = loop_ring,
		.ended = loop_ended,
		.owner = loop,
	};
	struct net_device *dev;
	int error = -ENODEV;

	mutex_lock(&loops_lock);
	if (!READ_ONCE(loop->state->present) || !READ_ONCE(piece->state->present) || !READ_ONCE(ringer->state->present) ||
	    READ_ONCE(piece->withdrawn))
		goto out;
	/* First, because a network device is seen, and may be used, as soon as it is made. */
	error = vector_claim(loop->vector);
	if (error)
		goto out;
	dev = loop_create(&setup);
	error = PTR_ERR_OR_ZERO(dev);
	if (error) {
		vector_unclaim(loop->vector, NULL);
		goto out;
	}
	loop->dev = dev;
	list_add(&loop->link, &loops);
	vector_add(loop->vector, loop);
	/* A process may have opened it before it had its vector. */
	local_bh_disable();
	loop_interrupt(dev);
	local_bh_enable();
	error = dev->ifindex;
out:
	mutex_unlock(&loops_lock);
	return error;
}

/* Takes the file by its number if it has these operations. */
static struct file *file_of(int descriptor, const struct file_operations *operations)
{
	struct file *file = fget(descriptor);

	if (file && file->f_op != operations) {
		fput(file);
		file = NULL;
	}
	return file;
}

/* A file for a loop device that is not made yet. */
static struct file *loop_new(struct device_state *state, const struct isthmus_loop *asked)
{
	struct loop_file *loop = kzalloc(sizeof(*loop), GFP_KERNEL_ACCOUNT);
	struct file *file;

	if (!loop)
		return ERR_PTR(-ENOMEM);
	init_waitqueue_head(&loop->gone);
	loop->vector = &state->vectors[asked->vector];
	loop->state = state;
	kref_get(&state->users);
	loop->piece = file_of(asked->piece, &piece_operations);
	loop->ringer = file_of(asked->ringer, &ringer_operations);
	file = ERR_PTR(-EINVAL);
	if (loop->piece && loop->ringer && loop_piece(loop)->access == ISTHMUS_READ_WRITE)
		file = file_new("isthmus-loop", O_RDONLY, &loop_operations, 0, loop);
	if (IS_ERR(file)) {
		if (loop->piece)
			fput(loop->piece);
		if (loop->ringer)
			fput(loop->ringer);
		state_put(state);
		kfree(loop);
	}
	return file;
}

/* ---- steering ---- */

static ssize_t steering_file_read(struct file *file, char __user *to, size_t bytes, loff_t *at)
{
	return steering_read(file->private_data, to, bytes, !(file->f_flags & O_NONBLOCK));
}

static ssize_t steering_file_write(struct file *file, const char __user *from, size_t bytes, loff_t *at)
{
	return steering_write(file->private_data, from, bytes);
}

static __poll_t steering_file_poll(struct file *file, poll_table *table)
{
	return steering_poll(file->private_data, file, table);
}

static int steering_release(struct inode *inode, struct file *file)
{
	steering_stop(file->private_data);
	simple_release_fs(&nameless_mount, &nameless_users);
	return 0;
}

static const struct file_operations steering_operations = {
	.owner = THIS_MODULE,
	.read = steering_file_read,
	.write = steering_file_write,
	.poll = steering_file_poll,
	.release = steering_release,
	.llseek = noop_llseek,
};

/* ---- the node ---- */

static int node_open(struct inode *inode, struct file *file)
{
	struct device_state *state = container_of(file->private_data, struct device_state, node);

	/* misc_open() and misc_deregister() exclude one another, so the function still holds it. */
	kref_get(&state->users);
	file->private_data = state;
	return 0;
}

static int node_release(struct inode *inode, struct file *file)
{
	struct device_state *state = file->private_data;
	struct piece *piece;
	unsigned int at;

	for (at = 0; at < state->vector_count; at++)
		vector_listen(&state->vectors[at], NULL, file);
	/* Its pieces are no longer accounted for, and their bytes may be reused: no home is left among them. */
	mutex_lock(&state->pieces_lock);
	down_write(&state->alive);
	list_for_each_entry(piece, &state->pieces, link)
		if (piece->owner == file)
			piece_settle(piece);
	up_write(&state->alive);
	mutex_unlock(&state->pieces_lock);
	state_put(state);
	return 0;
}

static __poll_t node_poll(struct file *file, poll_table *table)
{
	struct device_state *state = file->private_data;

	poll_wait(file, &state->gone, table);
	return READ_ONCE(state->present) ? 0 : EPOLLHUP;
}

static long node_info(struct device_state *state, void __user *argument)
{
	struct isthmus_info info = {
		.abi = ISTHMUS_ABI,
		.driver = DRIVER_VERSION,
		.window_bytes = state->bytes,
		.vectors = state->vector_count,
		.memory_type = READ_ONCE(state->seen_type),
		.window_address = state->address,
	};
	bool present;

	if (info.memory_type == ISTHMUS_MEMORY_UNKNOWN)
		info.memory_type = state->kernel_type;
	else
		info.flags = ISTHMUS_INFO_MAPPED;
	down_read(&state->alive);
	present = state->present;
	if (present)
		info.peer = readl(state->registers + IV_POSITION);
	up_read(&state->alive);
	if (!present)
		return -ENODEV;
	return copy_to_user(argument, &info, sizeof(info)) ? -EFAULT : 0;
}

/* Hands a file to the caller by the number in `descriptor`, which is a field of what the caller asked with. */
static long file_answer(struct file *file, s32 __user *descriptor)
{
	int number;

	if (IS_ERR(file))
		return PTR_ERR(file);
	number = get_unused_fd_flags(O_CLOEXEC);
	if (number >= 0 && put_user(number, descriptor)) {
		put_unused_fd(number);
		number = -EFAULT;
	}
	if (number < 0) {
		fput(file);
		return number;
	}
	fd_install(number, file);
	return 0;
}

static long node_piece(struct device_state *state, struct file *owner, struct isthmus_piece __user *argument)
{
	struct isthmus_piece asked;

	if (copy_from_user(&asked, argument, sizeof(asked)))
		return -EFAULT;
	if (asked.abi != ISTHMUS_ABI || asked.reserved)
		return -EINVAL;
	return file_answer(piece_new(state, owner, &asked), &argument->descriptor);
}

static long node_withdraw(struct device_state *state, void __user *argument)
{
	struct isthmus_withdraw asked;
	struct piece *piece;
	struct file *file;
	long error = 0;

	if (copy_from_user(&asked, argument, sizeof(asked)))
		return -EFAULT;
	if (asked.abi != ISTHMUS_ABI)
		return -EINVAL;
	file = fget(asked.descriptor);
	if (!file)
		return -EBADF;
	piece = file->f_op == &piece_operations ? file->private_data : NULL;
	if (piece && piece->state == state) {
		down_write(&state->alive);
		piece_settle(piece);
		piece->withdrawn = true;
		up_write(&state->alive);
		loops_finish(NULL, piece);
		piece_unmap(piece);
	} else {
		error = -EINVAL;
	}
	fput(file);
	return error;
}

static long node_listen(struct device_state *state, struct file *owner, void __user *argument)
{
	struct eventfd_ctx *listener = NULL;
	struct isthmus_listen asked;

	if (copy_from_user(&asked, argument, sizeof(asked)))
		return -EFAULT;
	if (asked.abi != ISTHMUS_ABI || asked.reserved || asked.vector >= state->vector_count)
		return -EINVAL;
	if (asked.descriptor >= 0) {
		listener = eventfd_ctx_fdget(asked.descriptor);
		if (IS_ERR(listener))
			return PTR_ERR(listener);
	}
	return vector_listen(&state->vectors[asked.vector], listener, owner);
}

static long node_ringer(struct device_state *state, struct isthmus_ringer __user *argument)
{
	struct isthmus_ringer asked;

	if (copy_from_user(&asked, argument, sizeof(asked)))
		return -EFAULT;
	if (asked.abi != ISTHMUS_ABI)
		return -EINVAL;
	return file_answer(ringer_new(state, &asked), &argument->descriptor);
}

static long node_loop(struct device_state *state, struct isthmus_loop __user *argument)
{
	struct isthmus_loop asked;
	struct file *file;
	int index;

	if (copy_from_user(&asked, argument, sizeof(asked)))
		return -EFAULT;
	if (asked.abi != ISTHMUS_ABI || asked.reserved || asked.vector >= state->vector_count)
		return -EINVAL;
	if (!ns_capable(current->nsproxy->net_ns->user_ns, CAP_NET_ADMIN))
		return -EPERM;
	file = loop_new(state, &asked);
	if (IS_ERR(file))
		return PTR_ERR(file);
	index = loop_start(file->private_data, &asked);
	if (index < 0 || put_user(index, &argument->index)) {
		fput(file);
		return index < 0 ? index : -EFAULT;
	}
	return file_answer(file, &argument->descriptor);
}

static long node_steer(struct isthmus_steer __user *argument)
{
	struct net *net = current->nsproxy->net_ns;
	struct steering *steering;
	struct isthmus_steer asked;
	struct file *file;

	if (copy_from_user(&asked, argument, sizeof(asked)))
		return -EFAULT;
	if (asked.abi != ISTHMUS_ABI || asked.reserved)
		return -EINVAL;
	if (!ns_capable(net->user_ns, CAP_NET_ADMIN))
		return -EPERM;
	steering = steering_start(net, asked.interface);
	if (IS_ERR(steering))
		return PTR_ERR(steering);
	file = file_new("isthmus-steering", O_RDWR, &steering_operations, 0, steering);
	if (IS_ERR(file))
		steering_stop(steering);
	return file_answer(file, &argument->descriptor);
}

static long node_ring(struct device_state *state, void __user *argument)
{
	struct isthmus_ring asked;

	if (copy_from_user(&asked, argument, sizeof(asked)))
		return -EFAULT;
	if (asked.abi != ISTHMUS_ABI || asked.reserved || asked.peer > U16_MAX || asked.vector > U16_MAX)
		return -EINVAL;
	return state_ring(state, asked.peer << 16 | asked.vector);
}

static long node_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct device_state *state = file->private_data;
	void __user *from = (void __user *)argument;

	if (!READ_ONCE(state->present))
		return -ENODEV;
	switch (command) {
	case ISTHMUS_INFO:
		return node_info(state, from);
	case ISTHMUS_PIECE:
		return node_piece(state, file, from);
	case ISTHMUS_WITHDRAW:
		return node_withdraw(state, from);
	case ISTHMUS_LISTEN:
		return node_listen(state, file, from);
	case ISTHMUS_RINGER:
		return node_ringer(state, from);
	case ISTHMUS_RING:
		return node_ring(state, from);
	case ISTHMUS_LOOP:
		return node_loop(state, from);
	case ISTHMUS_STEER:
		return node_steer(from);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations node_operations = {
	.owner = THIS_MODULE,
	.open = node_open,
	.release = node_release,
	.unlocked_ioctl = node_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.poll = node_poll,
	.llseek = noop_llseek,
};

/* ---- the function ---- */

static void free_vectors(struct device_state *state, unsigned int count)
{
	while (count--)
		free_irq(pci_irq_vector(state->pci, count), &state->vectors[count]);
	pci_free_irq_vectors(state->pci);
}

static int request_vectors(struct device_state *state)
{
	int at, error, count = 0;

	/* An ivshmem device without doorbells has none: then there is nothing to listen to. */
	if (state->pci->msix_cap)
		count = pci_alloc_irq_vectors(state->pci, 1, VECTORS_MAX, PCI_IRQ_MSIX);
	if (count < 0)
		return count;
	for (at = 0; at < count; at++) {
		struct vector *vector = &state->vectors[at];

		spin_lock_init(&vector->lock);
		INIT_LIST_HEAD(&vector->loops);
		snprintf(vector->name, sizeof(vector->name), "%s-%d", state->name, at);
		error = request_irq(pci_irq_vector(state->pci, at), vector_interrupt, 0, vector->name, vector);
		if (error) {
			free_vectors(state, at);
			return error;
		}
	}
	state->vector_count = count;
	return 0;
}

static int map_window(struct device_state *state)
{
	struct pci_dev *pci = state->pci;

	state->address = pci_resource_start(pci, BAR_WINDOW);
	state->bytes = pci_resource_len(pci, BAR_WINDOW);
	if (!state->address || !state->bytes || !PAGE_ALIGNED(state->address) || !PAGE_ALIGNED(state->bytes)) {
		dev_err(&pci->dev, "the window has no place in memory; a root port needs pref64-reserve for it\n");
		return -ENODEV;
	}
	if (pci_resource_len(pci, BAR_REGISTERS) < REGISTER_BYTES)
		return -ENODEV;
	state->registers = pci_iomap(pci, BAR_REGISTERS, 0);
	if (!state->registers)
		return -ENOMEM;
	state->window = memremap(state->address, state->bytes, MEMREMAP_WB);
	if (!state->window) {
		pci_iounmap(pci, state->registers);
		return -ENOMEM;
	}
	state->kernel_type = type_of_kernel(state->window);
	return 0;
}

static void unmap_window(struct device_state *state)
{
	memunmap(state->window);
	pci_iounmap(state->pci, state->registers);
}

static int register_node(struct device_state *state)
{
	state->node = (struct miscdevice) {
		.minor = MISC_DYNAMIC_MINOR,
		.name = state->name,
		.fops = &node_operations,
		.parent = &state->pci->dev,
		.mode = 0600,
	};
	return misc_register(&state->node);
}

static int isthmus_probe(struct pci_dev *pci, const struct pci_device_id *id)
{
	struct device_state *state = kzalloc(sizeof(*state), GFP_KERNEL);
	int error;

	if (!state)
		return -ENOMEM;
	kref_init(&state->users);
	init_rwsem(&state->alive);
	mutex_init(&state->pieces_lock);
	INIT_LIST_HEAD(&state->pieces);
	init_waitqueue_head(&state->gone);
	state->pci = pci_dev_get(pci);
	state->number = ida_alloc(&numbers, GFP_KERNEL);
	if (state->number < 0) {
		error = state->number;
		goto put_state;
	}
	snprintf(state->name, sizeof(state->name), "isthmus%d", state->number);
	error = pci_enable_device_mem(pci);
	if (error)
		goto free_number;
	error = pci_request_regions(pci, "isthmus");
	if (error)
		goto disable;
	error = map_window(state);
	if (error)
		goto release_regions;
	pci_set_master(pci);
	error = request_vectors(state);
	if (error)
		goto unmap;
	state->present = true;
	pci_set_drvdata(pci, state);
	error = register_node(state);
	if (error)
		goto vectors;
	dev_info(&pci->dev, "%s: a window of %llu MiB at %pa, %u vectors\n", state->name, state->bytes >> 20, &state->address,
		 state->vector_count);
	return 0;

vectors:
	free_vectors(state, state->vector_count);
unmap:
	unmap_window(state);
release_regions:
	pci_release_regions(pci);
disable:
	pci_disable_device(pci);
free_number:
	ida_free(&numbers, state->number);
put_state:
	state_put(state);
	return error;
}

static void isthmus_remove(struct pci_dev *pci)
{
	struct device_state *state = pci_get_drvdata(pci);
	struct piece *piece;
	unsigned int at;

	misc_deregister(&state->node);
	/* No process uses the registers or can put pages into tables from now on. The memory is still there: homes are emptied. */
	mutex_lock(&state->pieces_lock);
	down_write(&state->alive);
	list_for_each_entry(piece, &state->pieces, link)
		piece_settle(piece);
	WRITE_ONCE(state->present, false);
	up_write(&state->alive);
	list_for_each_entry(piece, &state->pieces, link)
		piece_unmap(piece);
	mutex_unlock(&state->pieces_lock);
	loops_finish(state, NULL);
	wake_up_all(&state->gone);
	free_vectors(state, state->vector_count);
	/* Wakes every sleeper, so that it checks the state. */
	for (at = 0; at < state->vector_count; at++)
		vector_signal(&state->vectors[at]);
	unmap_window(state);
	pci_release_regions(pci);
	pci_disable_device(pci);
	ida_free(&numbers, state->number);
	state_put(state);
}

static const struct pci_device_id isthmus_ids[] = {
	{ PCI_DEVICE(0x1af4, 0x1110) },
	{ }
};
MODULE_DEVICE_TABLE(pci, isthmus_ids);

static struct pci_driver isthmus_driver = {
	.name = "isthmus",
	.id_table = isthmus_ids,
	.probe = isthmus_probe,
	.remove = isthmus_remove,
};
module_pci_driver(isthmus_driver);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("The ivshmem device's window and doorbells for isthmusd");
MODULE_VERSION("1.3");
