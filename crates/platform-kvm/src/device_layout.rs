//! How large a guest's window is, and how many doorbells there are.

use isthmus_layout::RegionSize;
use isthmus_layout::proxy::WINDOW_BYTES_MIN;

/// Vectors that the driver takes at most (`kmod/isthmus.c`).
pub const VECTORS_MAX: u16 = 64;

/// The smallest number of vectors: the proxy ring's, and one for all else.
pub const VECTORS_MIN: u16 = 2;

/// Why a guest cannot be given that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceLayoutError {
    /// A device's memory has a power of two bytes.
    #[error("a window has a power of two bytes, {WINDOW_BYTES_MIN} at least, not {}", .0.0)]
    Window(RegionSize),
    /// Too many vectors, or too few.
    #[error("a device has {VECTORS_MIN} to {VECTORS_MAX} vectors, not {0}")]
    Vectors(u16),
}

/// What each guest of a server gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLayout {
    window: RegionSize,
    host_vectors: u16,
    guest_vectors: u16,
}

impl DeviceLayout {
    /// A window of so many bytes, and so many vectors toward the host and toward the guest. QEMU's device has to have as many as the
    /// larger of both (`vectors=`).
    pub fn new(window: RegionSize, host_vectors: u16, guest_vectors: u16) -> Result<Self, DeviceLayoutError> {
        if window.0 < WINDOW_BYTES_MIN || !window.0.is_power_of_two() {
            return Err(DeviceLayoutError::Window(window));
        }
        let wrong =
            [host_vectors, guest_vectors].into_iter().find(|count| !(VECTORS_MIN..=VECTORS_MAX).contains(count));
        match wrong {
            Some(count) => Err(DeviceLayoutError::Vectors(count)),
            None => Ok(Self { window, host_vectors, guest_vectors }),
        }
    }

    /// Bytes of the window.
    pub fn window(&self) -> RegionSize {
        self.window
    }

    /// Vectors by which the guest rings the host.
    pub fn host_vectors(&self) -> u16 {
        self.host_vectors
    }

    /// Vectors by which the host rings the guest.
    pub fn guest_vectors(&self) -> u16 {
        self.guest_vectors
    }

    /// What QEMU's device is told (`vectors=`).
    pub fn device_vectors(&self) -> u16 {
        self.host_vectors.max(self.guest_vectors)
    }
}
