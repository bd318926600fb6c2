//! The platform over one side of a device.
//!
//! ```text
//!  window   0            EXTENTS_OFFSET         middle                   end
//!           │ not ours    │ host allocates       │ guest allocates        │
//! ```
//!
//! Host and guest each allocate in a part of their own, so that neither has to ask the other. Each maps the grants of the other only within
//! the other's part. Both share the memory of the window: the mapping side enforces the access of a grant. Between the daemons the host
//! alone hands out extents (`isthmus_layout::proxy`). This platform is for the exclusive user of a device, such as the suite of all
//! platforms.

use crate::device::Device;
use crate::server::{GUEST, HOST, ServerGuest};
use isthmus_layout::RegionSize;
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_layout::proxy::{EXTENTS_OFFSET, PROXY_VECTOR};
use isthmus_platform::conformance::{ConformancePlatform, WireValue};
use isthmus_platform::{Doorbell, Listen, Platform, PlatformError};
use isthmus_shm::{Access, MapError, Mapping, Payload, SharedMapping};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const PAGE: u64 = PAGE_BYTES as u64;

/// A side of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The host.
    Host,
    /// The guest.
    Guest,
}

/// The operations of a device's side that the platform uses.
pub trait DeviceSide {
    /// Returns the side.
    fn side(&self) -> Side;
    /// Returns the size of the window.
    fn window(&self) -> RegionSize;
    /// Returns the number of vectors of this side.
    fn vectors(&self) -> u16;
    /// Maps whole pages of the window.
    fn map(&self, at: u64, size: RegionSize, access: Access) -> Result<Mapping, PlatformError>;
    /// Returns the doorbell that rings of a vector of this side signal.
    fn listener(&self, vector: u16) -> Result<Doorbell, PlatformError>;
    /// Returns the sender for a vector of the other side.
    fn doorbell_sender(&self, vector: u16) -> Result<Doorbell, PlatformError>;
}

fn no_such(operation: &'static str) -> PlatformError {
    PlatformError::Refused { operation, source: Errno::RANGE }
}

impl DeviceSide for ServerGuest {
    fn side(&self) -> Side {
        Side::Host
    }

    fn window(&self) -> RegionSize {
        self.size
    }

    fn vectors(&self) -> u16 {
        u16::try_from(self.from_guest.len()).unwrap_or(u16::MAX)
    }

    fn map(&self, at: u64, size: RegionSize, access: Access) -> Result<Mapping, PlatformError> {
        Ok(ServerGuest::map(self, at, size, access)?)
    }

    fn listener(&self, vector: u16) -> Result<Doorbell, PlatformError> {
        ServerGuest::listener(self, vector).unwrap_or_else(|| Err(no_such("listening to a vector of the host")))
    }

    fn doorbell_sender(&self, vector: u16) -> Result<Doorbell, PlatformError> {
        ServerGuest::doorbell_sender(self, vector).unwrap_or_else(|| Err(no_such("ringing a vector of the guest")))
    }
}

/// A [`Device`] and its properties.
#[derive(Debug)]
pub struct GuestSide {
    device: Device,
    window: RegionSize,
    vectors: u16,
}

impl GuestSide {
    /// Uses the device that a guest shares with its host. Returns an error for the device of a pair window.
    pub fn new(device: Device) -> Result<Self, PlatformError> {
        let info = device.info()?;
        if info.peer != Some(GUEST) {
            return Err(no_such("opening the device of a pair window, not of the guest's own window"));
        }
        Ok(Self { device, window: info.window, vectors: info.vectors })
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl DeviceSide for GuestSide {
    fn side(&self) -> Side {
        Side::Guest
    }

    fn window(&self) -> RegionSize {
        self.window
    }

    fn vectors(&self) -> u16 {
        self.vectors
    }

    fn map(&self, at: u64, size: RegionSize, access: Access) -> Result<Mapping, PlatformError> {
        let piece = self.device.extent(at, size.0, access)?;
        Ok(Mapping::new(&piece, size, access)?)
    }

    fn listener(&self, vector: u16) -> Result<Doorbell, PlatformError> {
        self.device.listener(vector).map(Doorbell::from)
    }

    fn doorbell_sender(&self, vector: u16) -> Result<Doorbell, PlatformError> {
        self.device.doorbell_sender(HOST, vector).map(Doorbell::from)
    }
}

/// The platform of a guest and its host.
#[derive(Debug)]
pub struct Kvm<H> {
    device_side: H,
    allocator: Arc<Mutex<SideAllocator>>,
}

/// The allocated part of this side's half of the window, and its unused vectors.
#[derive(Debug)]
struct SideAllocator {
    from: u64,
    to: u64,
    taken: BTreeMap<u64, u64>,
    vectors: BTreeSet<u16>,
}

impl SideAllocator {
    fn alloc(&mut self, bytes: u64) -> Option<u64> {
        let mut at = self.from;
        for (&start, &len) in &self.taken {
            if start - at >= bytes {
                break;
            }
            at = start + len;
        }
        if self.to - at < bytes {
            return None;
        }
        self.taken.insert(at, bytes);
        Some(at)
    }
}

fn lock(allocator: &Mutex<SideAllocator>) -> MutexGuard<'_, SideAllocator> {
    allocator.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the bytes of a window in which this side allocates.
fn allocation_range(window: RegionSize, side: Side) -> (u64, u64) {
    let middle = (window.0 / 2).next_multiple_of(PAGE).clamp(EXTENTS_OFFSET, window.0.max(EXTENTS_OFFSET));
    match side {
        Side::Host => (EXTENTS_OFFSET, middle),
        Side::Guest => (middle, window.0.max(middle)),
    }
}

/// A range of the window that the other side granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowRange {
    /// The offset of the first byte.
    pub at: u64,
    /// The number of bytes.
    pub bytes: u64,
    /// The permitted access.
    pub access: Access,
}

impl WindowRange {
    /// Returns true if the range consists of whole pages within these bytes.
    fn is_within(&self, (from, to): (u64, u64)) -> bool {
        let whole = self.at.is_multiple_of(PAGE) && self.bytes.is_multiple_of(PAGE);
        whole && self.at >= from && self.at.checked_add(self.bytes).is_some_and(|end| end <= to)
    }
}

impl WireValue for WindowRange {
    fn emit(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(17);
        bytes.extend(self.at.to_le_bytes());
        bytes.extend(self.bytes.to_le_bytes());
        bytes.push(u8::from(self.access == Access::ReadWrite));
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (at, rest) = bytes.split_first_chunk::<8>()?;
        let (bytes, rest) = rest.split_first_chunk::<8>()?;
        let access = match rest {
            [0] => Access::Read,
            [1] => Access::ReadWrite,
            _ => return None,
        };
        Some(Self { at: u64::from_le_bytes(*at), bytes: u64::from_le_bytes(*bytes), access })
    }
}

/// A vector of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vector(pub u16);

impl WireValue for Vector {
    fn emit(&self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self(u16::from_le_bytes(bytes.try_into().ok()?)))
    }
}

/// Memory of this side in the window.
#[derive(Debug)]
pub struct KvmMemory {
    at: u64,
    bytes: u64,
    allocator: Arc<Mutex<SideAllocator>>,
}

impl Drop for KvmMemory {
    fn drop(&mut self) {
        lock(&self.allocator).taken.remove(&self.at);
    }
}

/// The receiving end of a vector of this side.
#[derive(Debug)]
pub struct KvmListener {
    doorbell: Doorbell,
    _held: ListeningVector,
}

#[derive(Debug)]
struct ListeningVector {
    vector: u16,
    allocator: Arc<Mutex<SideAllocator>>,
}

impl Drop for ListeningVector {
    fn drop(&mut self) {
        lock(&self.allocator).vectors.insert(self.vector);
    }
}

impl Listen for KvmListener {
    fn wait(&self, limit: Duration) -> bool {
        self.doorbell.wait(limit)
    }
}

impl<H: DeviceSide> Kvm<H> {
    /// Creates the platform over a side that has no other user.
    pub fn new(device_side: H) -> Self {
        let (from, to) = allocation_range(device_side.window(), device_side.side());
        let vectors = (PROXY_VECTOR + 1..device_side.vectors()).collect();
        Self {
            device_side,
            allocator: Arc::new(Mutex::new(SideAllocator { from, to, taken: BTreeMap::new(), vectors })),
        }
    }

    /// Returns the side of the device.
    pub fn device_side(&self) -> &H {
        &self.device_side
    }

    fn peer_range(&self) -> (u64, u64) {
        let other = match self.device_side.side() {
            Side::Host => Side::Guest,
            Side::Guest => Side::Host,
        };
        allocation_range(self.device_side.window(), other)
    }
}

impl<H: DeviceSide> Platform for Kvm<H> {
    type Peer = ();
    type Memory = KvmMemory;
    type Grant = WindowRange;
    type DoorbellToken = Vector;
    type DoorbellSender = Doorbell;
    type DoorbellReceiver = KvmListener;

    fn allocate(&self, size: RegionSize, _to: &(), _access: Access) -> Result<KvmMemory, PlatformError> {
        const FULL: PlatformError =
            PlatformError::Refused { operation: "allocating in a guest's window", source: Errno::NOSPC };
        let bytes = size.0.checked_next_multiple_of(PAGE).filter(|&bytes| bytes > 0).ok_or(FULL)?;
        let at = lock(&self.allocator).alloc(bytes).ok_or(FULL)?;
        let memory = KvmMemory { at, bytes, allocator: Arc::clone(&self.allocator) };
        // Clears what earlier users left and what the other side has written since.
        let window = SharedMapping::new(self.device_side.map(at, RegionSize(bytes), Access::ReadWrite)?);
        (0..bytes / PAGE).for_each(|page| window.copy_in(page * PAGE, &[0; PAGE as usize]));
        Ok(memory)
    }

    fn map_own(&self, memory: &KvmMemory) -> Result<Mapping, PlatformError> {
        self.device_side.map(memory.at, RegionSize(memory.bytes), Access::ReadWrite)
    }

    fn grant(&self, memory: &KvmMemory, _to: &(), access: Access) -> Result<WindowRange, PlatformError> {
        Ok(WindowRange { at: memory.at, bytes: memory.bytes, access })
    }

    fn map(&self, grant: WindowRange, size: RegionSize, access: Access) -> Result<Mapping, PlatformError> {
        let refused = |source| PlatformError::Refused { operation: "mapping a place that another side named", source };
        if !grant.is_within(self.peer_range()) {
            return Err(refused(Errno::RANGE));
        }
        if access == Access::ReadWrite && grant.access == Access::Read {
            return Err(refused(Errno::ACCESS));
        }
        if size.0 > grant.bytes || size.0 == 0 {
            return Err(MapError::TooSmall { need: size.0, have: grant.bytes }.into());
        }
        // Maps no more than was granted, in whole pages.
        self.device_side.map(grant.at, RegionSize(size.0.next_multiple_of(PAGE)), access)
    }

    fn doorbell(&self, _for_peer: &()) -> Result<(KvmListener, Vector), PlatformError> {
        let free = lock(&self.allocator).vectors.pop_first();
        let vector = free.ok_or_else(|| no_such("finding a vector without a listener"))?;
        let held = ListeningVector { vector, allocator: Arc::clone(&self.allocator) };
        let doorbell = self.device_side.listener(vector)?;
        doorbell.clear(); // Drops rings that were meant for a previous listener.
        Ok((KvmListener { doorbell, _held: held }, Vector(vector)))
    }

    fn doorbell_sender(&self, doorbell: Vector) -> Result<Doorbell, PlatformError> {
        self.device_side.doorbell_sender(doorbell.0)
    }
}

impl<H: DeviceSide> ConformancePlatform for Kvm<H> {
    fn forged_grants(
        &self,
        memory: &KvmMemory,
        _to: &(),
        size: RegionSize,
        _held: &mut Vec<KvmMemory>,
    ) -> Result<Vec<(&'static str, WindowRange)>, PlatformError> {
        let range = |at, bytes| WindowRange { at, bytes, access: Access::ReadWrite };
        let (end, bytes) = (self.device_side.window().0, memory.bytes);
        Ok(vec![
            ("a place of the side that is let in", range(self.peer_range().0, bytes)),
            ("the page that both sides' daemons keep for themselves", range(0, bytes)),
            ("a place behind the window", range(end, bytes)),
            ("a place that ends behind the window", range(end - PAGE, bytes + PAGE)),
            ("a place that goes round all numbers", range(PAGE.wrapping_neg(), bytes + PAGE)),
            ("a place between pages", range(memory.at + 8, bytes)),
            ("a page too few", range(memory.at, size.0 - PAGE)),
            ("a byte too few", range(memory.at, size.0 - 1)),
        ])
    }
}

#[cfg(test)]
mod tests;
