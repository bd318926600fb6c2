//! The platform over one half of a device.
//!
//! ```text
//!  window   0            PIECES_AT              middle                   end
//!           │ not ours    │ host allocates       │ guest allocates        │
//! ```
//!
//! Host and guest each allocate in a part of their own, so that neither has to ask the other, and map what the other granted only where
//! that one allocates. The window is one memory for both: what a grant may do is kept by who maps it. Between the daemons proper the host
//! alone hands out places (`isthmus_layout::border`); this is for whoever has a device to himself, as the suite of all platforms has.

use crate::device::Device;
use crate::server::{GUEST, Guest, HOST};
use isthmus_layout::RegionSize;
use isthmus_layout::border::{CROSSING_VECTOR, PIECES_AT};
use isthmus_layout::limits::PAGE_BYTES;
use isthmus_platform::conformance::{Conform, Portable};
use isthmus_platform::{Doorbell, Listen, Platform, PlatformError};
use isthmus_shm::{Access, MapError, Mapping, Payload, Window};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const PAGE: u64 = PAGE_BYTES as u64;

/// Which side of a device somebody is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The host.
    Host,
    /// The guest.
    Guest,
}

/// A half of a device: what the platform does with it.
pub trait Half {
    /// Which it is.
    fn end(&self) -> End;
    /// Bytes of the window.
    fn window(&self) -> RegionSize;
    /// Vectors of our own.
    fn vectors(&self) -> u16;
    /// Maps whole pages of the window.
    fn map(&self, at: u64, size: RegionSize, access: Access) -> Result<Mapping, PlatformError>;
    /// Where rings of a vector of our own are heard.
    fn listener(&self, vector: u16) -> Result<Doorbell, PlatformError>;
    /// What rings a vector of the other side.
    fn ringer(&self, vector: u16) -> Result<Doorbell, PlatformError>;
}

fn no_such(operation: &'static str) -> PlatformError {
    PlatformError::Refused { operation, source: Errno::RANGE }
}

impl Half for Guest {
    fn end(&self) -> End {
        End::Host
    }

    fn window(&self) -> RegionSize {
        self.size
    }

    fn vectors(&self) -> u16 {
        u16::try_from(self.inward.len()).unwrap_or(u16::MAX)
    }

    fn map(&self, at: u64, size: RegionSize, access: Access) -> Result<Mapping, PlatformError> {
        Ok(Guest::map(self, at, size, access)?)
    }

    fn listener(&self, vector: u16) -> Result<Doorbell, PlatformError> {
        Guest::listener(self, vector).unwrap_or_else(|| Err(no_such("listening to a vector of the host")))
    }

    fn ringer(&self, vector: u16) -> Result<Doorbell, PlatformError> {
        Guest::ringer(self, vector).unwrap_or_else(|| Err(no_such("ringing a vector of the guest")))
    }
}

/// A [`Device`] that was asked what it is.
#[derive(Debug)]
pub struct DeviceHalf {
    device: Device,
    window: RegionSize,
    vectors: u16,
}

impl DeviceHalf {
    /// The device of a guest, whose host is its only other peer. Refused where it is another's.
    pub fn new(device: Device) -> Result<Self, PlatformError> {
        let info = device.info()?;
        if info.peer != Some(GUEST) {
            return Err(no_such("taking a device whose number among its peers is not a guest's"));
        }
        Ok(Self { device, window: info.window, vectors: info.vectors })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Half for DeviceHalf {
    fn end(&self) -> End {
        End::Guest
    }

    fn window(&self) -> RegionSize {
        self.window
    }

    fn vectors(&self) -> u16 {
        self.vectors
    }

    fn map(&self, at: u64, size: RegionSize, access: Access) -> Result<Mapping, PlatformError> {
        let piece = self.device.piece(at, size.0, access)?;
        Ok(Mapping::new(&piece, size, access)?)
    }

    fn listener(&self, vector: u16) -> Result<Doorbell, PlatformError> {
        self.device.listener(vector).map(Doorbell::from)
    }

    fn ringer(&self, vector: u16) -> Result<Doorbell, PlatformError> {
        self.device.ringer(HOST, vector).map(Doorbell::from)
    }
}

/// The platform of a guest and its host.
#[derive(Debug)]
pub struct Kvm<H> {
    half: H,
    ground: Arc<Mutex<Ground>>,
}

/// What we have given away of our part of the window, and of our vectors.
#[derive(Debug)]
struct Ground {
    from: u64,
    to: u64,
    taken: BTreeMap<u64, u64>,
    vectors: BTreeSet<u16>,
}

impl Ground {
    fn take(&mut self, bytes: u64) -> Option<u64> {
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

fn ours(ground: &Mutex<Ground>) -> MutexGuard<'_, Ground> {
    ground.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes of a window where this side allocates.
fn part(window: RegionSize, end: End) -> (u64, u64) {
    let middle = (window.0 / 2).next_multiple_of(PAGE).clamp(PIECES_AT, window.0.max(PIECES_AT));
    match end {
        End::Host => (PIECES_AT, middle),
        End::Guest => (middle, window.0.max(middle)),
    }
}

/// A place in the window that another side granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its first byte.
    pub at: u64,
    /// How many.
    pub bytes: u64,
    /// For what.
    pub access: Access,
}

impl Place {
    /// Whether it is whole pages within these bytes.
    fn is_within(&self, (from, to): (u64, u64)) -> bool {
        let whole = self.at.is_multiple_of(PAGE) && self.bytes.is_multiple_of(PAGE);
        whole && self.at >= from && self.at.checked_add(self.bytes).is_some_and(|end| end <= to)
    }
}

impl Portable for Place {
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

impl Portable for Vector {
    fn emit(&self) -> Vec<u8> {
        self.0.to_le_bytes().to_vec()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self(u16::from_le_bytes(bytes.try_into().ok()?)))
    }
}

/// Memory of ours in the window.
#[derive(Debug)]
pub struct KvmMemory {
    at: u64,
    bytes: u64,
    ground: Arc<Mutex<Ground>>,
}

impl Drop for KvmMemory {
    fn drop(&mut self) {
        ours(&self.ground).taken.remove(&self.at);
    }
}

/// Where a vector of ours is heard.
#[derive(Debug)]
pub struct KvmListener {
    bell: Doorbell,
    _held: HeldVector,
}

#[derive(Debug)]
struct HeldVector {
    vector: u16,
    ground: Arc<Mutex<Ground>>,
}

impl Drop for HeldVector {
    fn drop(&mut self) {
        ours(&self.ground).vectors.insert(self.vector);
    }
}

impl Listen for KvmListener {
    fn wait(&self, limit: Duration) -> bool {
        self.bell.wait(limit)
    }
}

impl<H: Half> Kvm<H> {
    /// Over a half that nobody else uses.
    pub fn new(half: H) -> Self {
        let (from, to) = part(half.window(), half.end());
        let vectors = (CROSSING_VECTOR + 1..half.vectors()).collect();
        Self { half, ground: Arc::new(Mutex::new(Ground { from, to, taken: BTreeMap::new(), vectors })) }
    }

    /// The half.
    pub fn half(&self) -> &H {
        &self.half
    }

    fn other_part(&self) -> (u64, u64) {
        let other = match self.half.end() {
            End::Host => End::Guest,
            End::Guest => End::Host,
        };
        part(self.half.window(), other)
    }
}

impl<H: Half> Platform for Kvm<H> {
    type Peer = ();
    type Memory = KvmMemory;
    type Grant = Place;
    type Bell = Vector;
    type Ringer = Doorbell;
    type Listener = KvmListener;

    fn allocate(&self, size: RegionSize, _to: &(), _access: Access) -> Result<KvmMemory, PlatformError> {
        const FULL: PlatformError =
            PlatformError::Refused { operation: "allocating in a guest's window", source: Errno::NOSPC };
        let bytes = size.0.checked_next_multiple_of(PAGE).filter(|&bytes| bytes > 0).ok_or(FULL)?;
        let at = ours(&self.ground).take(bytes).ok_or(FULL)?;
        let memory = KvmMemory { at, bytes, ground: Arc::clone(&self.ground) };
        // What was there before, and whatever the other side has written since.
        let window = Window::new(self.half.map(at, RegionSize(bytes), Access::ReadWrite)?);
        (0..bytes / PAGE).for_each(|page| window.copy_in(page * PAGE, &[0; PAGE as usize]));
        Ok(memory)
    }

    fn map_own(&self, memory: &KvmMemory) -> Result<Mapping, PlatformError> {
        self.half.map(memory.at, RegionSize(memory.bytes), Access::ReadWrite)
    }

    fn grant(&self, memory: &KvmMemory, _to: &(), access: Access) -> Result<Place, PlatformError> {
        Ok(Place { at: memory.at, bytes: memory.bytes, access })
    }

    fn map(&self, grant: Place, size: RegionSize, access: Access) -> Result<Mapping, PlatformError> {
        let refused = |source| PlatformError::Refused { operation: "mapping a place that another side named", source };
        if !grant.is_within(self.other_part()) {
            return Err(refused(Errno::RANGE));
        }
        if access == Access::ReadWrite && grant.access == Access::Read {
            return Err(refused(Errno::ACCESS));
        }
        if size.0 > grant.bytes || size.0 == 0 {
            return Err(MapError::TooSmall { need: size.0, have: grant.bytes }.into());
        }
        // No more than was granted, in whole pages.
        self.half.map(grant.at, RegionSize(size.0.next_multiple_of(PAGE)), access)
    }

    fn doorbell(&self, _for_peer: &()) -> Result<(KvmListener, Vector), PlatformError> {
        let free = ours(&self.ground).vectors.pop_first();
        let vector = free.ok_or_else(|| no_such("finding a vector that nobody listens to"))?;
        let held = HeldVector { vector, ground: Arc::clone(&self.ground) };
        let bell = self.half.listener(vector)?;
        bell.clear(); // Rings that were meant for whoever listened before.
        Ok((KvmListener { bell, _held: held }, Vector(vector)))
    }

    fn ringer(&self, bell: Vector) -> Result<Doorbell, PlatformError> {
        self.half.ringer(bell.0)
    }
}

impl<H: Half> Conform for Kvm<H> {
    fn forgeries(
        &self,
        memory: &KvmMemory,
        _to: &(),
        size: RegionSize,
        _held: &mut Vec<KvmMemory>,
    ) -> Result<Vec<(&'static str, Place)>, PlatformError> {
        let place = |at, bytes| Place { at, bytes, access: Access::ReadWrite };
        let (end, bytes) = (self.half.window().0, memory.bytes);
        Ok(vec![
            ("a place of the side that is let in", place(self.other_part().0, bytes)),
            ("the page that both sides' daemons keep for themselves", place(0, bytes)),
            ("a place behind the window", place(end, bytes)),
            ("a place that ends behind the window", place(end - PAGE, bytes + PAGE)),
            ("a place that goes round all numbers", place(PAGE.wrapping_neg(), bytes + PAGE)),
            ("a place between pages", place(memory.at + 8, bytes)),
            ("a page too few", place(memory.at, size.0 - PAGE)),
            ("a byte too few", place(memory.at, size.0 - 1)),
        ])
    }
}

#[cfg(test)]
mod tests;
