//! Every maximum of the system, and how they depend on one another.

/// The maximum number of open endpoints of one domain.
pub const ENDPOINTS_MAX: u8 = 32;

/// The maximum length in bytes of a name: of a domain, or of an endpoint's label.
pub const NAME_BYTES_MAX: usize = 64;

/// The number of bytes of a cache line on the supported machines.
pub const CACHE_LINE_BYTES: u32 = 64;

/// The distance in bytes between words that two sides write. Processors fetch cache lines in pairs.
pub const DESTRUCTIVE_INTERFERENCE_BYTES: u32 = 128;

/// The number of bytes of a page in channel memory. On machines with larger pages, the parts of a channel still begin at multiples of it.
pub const PAGE_BYTES: u32 = 4096;

/// The number of bytes of a ring's cell. Two cells share a cache line, so that one transfer between two processors carries two short
/// messages.
#[cfg(not(loom))]
pub const CELL_BYTES: u32 = CACHE_LINE_BYTES / 2;
/// The number of bytes of a cell in the models, where rings are short and a record has to take few cells.
#[cfg(loom)]
pub const CELL_BYTES: u32 = CACHE_LINE_BYTES;

/// The number of cells of a ring, one direction of a channel. 256 cells are two pages. With the head page and the other ring, an idle
/// channel takes five pages, 20 KiB.
#[cfg(not(loom))]
pub const RING_CELLS: u32 = 256;
/// The number of cells of a ring in the models. loom tries every order of every access, so a ring has to fill and wrap after few of them.
#[cfg(loom)]
pub const RING_CELLS: u32 = 8;

/// The number of cells of a ring that the sender reserves for its last record, so that it can send this record even if the receiver has
/// taken nothing.
#[cfg(not(loom))]
pub const FINAL_RECORD_CELLS: u32 = 1;
/// The number of reserved cells in the models. A short ring cannot spare one.
#[cfg(loom)]
pub const FINAL_RECORD_CELLS: u32 = 0;

/// The maximum number of cells of one record.
#[cfg(not(loom))]
pub const RECORD_CELLS_MAX: u32 = 6;
/// The maximum number of cells of one record in the models.
#[cfg(loom)]
pub const RECORD_CELLS_MAX: u32 = 4;

/// The maximum number of message bytes in the record itself, beside its descriptor.
pub const INLINE_BYTES_MAX: usize = 128;

/// The number of message bytes up to which a message always travels through the slab. Longer messages use mapped pages if possible.
pub const SLAB_MESSAGE_BYTES_MAX: u64 = 32 << 10;

/// The minimum size of a slab in bytes; a channel has one slab for each direction.
pub const SLAB_BYTES_MIN: u32 = 64 << 10;
/// The default size of a slab in bytes.
pub const SLAB_BYTES_DEFAULT: u32 = 256 << 10;
/// The maximum size of a slab in bytes.
pub const SLAB_BYTES_MAX: u32 = 4 << 20;

/// The maximum number of bytes of one message, as a plausibility check. A larger length is refused before anything is allocated for it.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 40;

/// The number of bits of a ready map. It limits the channels on which one domain receives from peers of one owner.
pub const READY_MAP_BITS: u32 = 4096;

/// The maximum number of ready maps of one receiver, one for each owner among its peers. Messages of further peers take the daemon path.
pub const READY_MAPS_MAX: usize = 16;

/// The maximum number of domains that are attached to one daemon.
pub const DOMAINS_MAX: usize = 4096;

/// The maximum number of bytes of one control message.
pub const CONTROL_BYTES_MAX: usize = 16 << 10;

/// The maximum number of file descriptors of one control message.
pub const CONTROL_FDS_MAX: usize = 8;

/// The maximum number of message bytes in flight from a domain to one peer on the daemon path. The daemon holds no more for the pair.
pub const DAEMON_PATH_CREDIT_BYTES: u32 = 64 << 10;

/// The maximum number of message bytes in one record of the daemon path.
pub const DAEMON_PATH_FRAGMENT_BYTES_MAX: u32 = 8 << 10;

/// The cost of a record on the daemon path in bytes of credit, in addition to its message bytes.
pub const DAEMON_PATH_RECORD_COST: u32 = 128;

/// The maximum number of requests for a channel. After them, messages stay on the daemon path.
pub const CHANNEL_ATTEMPTS_MAX: u32 = 3;

/// The maximum number of regions of one peer that a receiver keeps mapped.
pub const PEER_REGIONS_MAX: usize = 64;

const _: () = assert!(RING_CELLS.is_power_of_two() && RECORD_CELLS_MAX < RING_CELLS);
const _: () = assert!(
    SLAB_BYTES_MIN.is_power_of_two() && SLAB_BYTES_DEFAULT.is_power_of_two() && SLAB_BYTES_MAX.is_power_of_two()
);
const _: () = assert!(
    DAEMON_PATH_FRAGMENT_BYTES_MAX <= DAEMON_PATH_CREDIT_BYTES && DAEMON_PATH_FRAGMENT_BYTES_MAX <= SLAB_BYTES_MIN
);
const _: () = assert!(READY_MAP_BITS.is_multiple_of(32));

/// Maximum number of TAP interfaces of a host, in all its overlay networks together.
pub const TAP_INTERFACES_MAX: usize = 256;
