//! Every maximum of the system, and how they depend on one another.

/// Endpoints that one domain may have open.
pub const ENDPOINTS_MAX: u8 = 32;

/// Bytes of a name: a domain's or an endpoint's label.
pub const NAME_BYTES_MAX: usize = 64;

/// Bytes of a cache line on the machines we run on; also the size of a cell.
pub const CACHE_LINE_BYTES: u32 = 64;

/// Processors fetch lines in pairs, so what two sides write lies this far apart.
pub const DESTRUCTIVE_INTERFERENCE_BYTES: u32 = 128;

/// Bytes of a page as channel memory counts them. On machines with larger pages a channel's parts still lie on multiples of it.
pub const PAGE_BYTES: u32 = 4096;

/// Bytes of a ring's cell. Two share a line: where short messages follow each other closely, a line that crosses between two
/// processors carries two of them.
#[cfg(not(loom))]
pub const CELL_BYTES: u32 = CACHE_LINE_BYTES / 2;
/// Of the models: so long that a record takes as few cells as a short ring has room for.
#[cfg(loom)]
pub const CELL_BYTES: u32 = CACHE_LINE_BYTES;

/// Cells of a channel's ring, one direction. 256 cells are two pages: with the head page and the other ring
/// an idle channel costs five pages, 20 KiB.
#[cfg(not(loom))]
pub const RING_CELLS: u32 = 256;
/// Of the models: loom tries every order of every access, so a ring is filled, wrapped and blocked in as few as can be.
#[cfg(loom)]
pub const RING_CELLS: u32 = 8;

/// Cells of a ring that its sender keeps for the last record that it sends there, so that it can say that it leaves whatever the
/// receiver has not taken.
#[cfg(not(loom))]
pub const FINAL_RECORD_CELLS: u32 = 1;
/// Of the models: a short ring has none to spare.
#[cfg(loom)]
pub const FINAL_RECORD_CELLS: u32 = 0;

/// Cells that one record may take.
#[cfg(not(loom))]
pub const RECORD_CELLS_MAX: u32 = 6;
/// Of the models.
#[cfg(loom)]
pub const RECORD_CELLS_MAX: u32 = 4;

/// Message bytes that travel in the record itself, beside its descriptor.
pub const INLINE_BYTES_MAX: usize = 128;

/// Message bytes up to which a message travels through the slab whatever its buffer; above, mapped pages are used where they can be.
pub const SLAB_MESSAGE_BYTES_MAX: u64 = 32 << 10;

/// Bytes of a slab, one direction: smallest, default, and largest.
pub const SLAB_BYTES_MIN: u32 = 64 << 10;
/// See [`SLAB_BYTES_MIN`].
pub const SLAB_BYTES_DEFAULT: u32 = 256 << 10;
/// See [`SLAB_BYTES_MIN`].
pub const SLAB_BYTES_MAX: u32 = 4 << 20;

/// Bytes of one message, an end of the plausible rather than of memory: lengths above are refused before anything is sized by them.
pub const MESSAGE_BYTES_MAX: u64 = 1 << 40;

/// Bits of a receiver's ready map, so channels that one domain may receive on from peers of one owner.
pub const READY_MAP_BITS: u32 = 4096;

/// Ready maps of one receiver: different owners among its peers that may write to it directly. Further peers take the daemon path.
pub const READY_MAPS_MAX: usize = 16;

/// Domains attached to one daemon.
pub const DOMAINS_MAX: usize = 4096;

/// Bytes of one control message.
pub const CONTROL_BYTES_MAX: usize = 16 << 10;

/// File descriptors that travel with one control message.
pub const CONTROL_FDS_MAX: usize = 8;

/// Message bytes that a domain may have under way to one peer on the daemon path: what the daemon holds at most for the pair.
pub const DAEMON_PATH_CREDIT_BYTES: u32 = 64 << 10;

/// Message bytes in one record of the daemon path.
pub const DAEMON_PATH_FRAGMENT_BYTES_MAX: u32 = 8 << 10;

/// What any record costs on the daemon path, beside its message bytes.
pub const DAEMON_PATH_RECORD_COST: u32 = 128;

/// How often a channel is asked for before the daemon path is kept.
pub const CHANNEL_ATTEMPTS_MAX: u32 = 3;

/// Regions of one peer that a receiver keeps mapped.
pub const PEER_REGIONS_MAX: usize = 64;

const _: () = assert!(RING_CELLS.is_power_of_two() && RECORD_CELLS_MAX < RING_CELLS);
const _: () = assert!(
    SLAB_BYTES_MIN.is_power_of_two() && SLAB_BYTES_DEFAULT.is_power_of_two() && SLAB_BYTES_MAX.is_power_of_two()
);
const _: () = assert!(
    DAEMON_PATH_FRAGMENT_BYTES_MAX <= DAEMON_PATH_CREDIT_BYTES && DAEMON_PATH_FRAGMENT_BYTES_MAX <= SLAB_BYTES_MIN
);
const _: () = assert!(READY_MAP_BITS.is_multiple_of(32));
