//! The size of a guest's window and the number of its doorbells.

use isthmus_layout::RegionSize;
use isthmus_layout::proxy::WINDOW_BYTES_MIN;

/// The maximum number of vectors that the driver supports (`kmod/window.c`).
pub const VECTORS_MAX: u16 = 64;

/// The minimum number of vectors: one for the proxy ring and one for everything else.
pub const VECTORS_MIN: u16 = 2;

/// The reason why a layout is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceLayoutError {
    /// The size of the window is not a power of two, or too small.
    #[error("a window has a power of two bytes, {WINDOW_BYTES_MIN} at least, not {}", .0.0)]
    Window(RegionSize),
    /// The number of vectors is too small or too large.
    #[error("a device has {VECTORS_MIN} to {VECTORS_MAX} vectors, not {0}")]
    Vectors(u16),
}

/// The window and the vectors that each guest of a server receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLayout {
    window: RegionSize,
    host_vectors: u16,
    guest_vectors: u16,
}

impl DeviceLayout {
    /// Creates a layout with a window of `window` bytes, `host_vectors` vectors toward the host and `guest_vectors` toward the guest.
    /// QEMU's device needs the larger of both numbers (`vectors=`).
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

    /// Returns the size of the window.
    pub fn window(&self) -> RegionSize {
        self.window
    }

    /// Returns the number of vectors by which the guest rings the host.
    pub fn host_vectors(&self) -> u16 {
        self.host_vectors
    }

    /// Returns the number of vectors by which the host rings the guest.
    pub fn guest_vectors(&self) -> u16 {
        self.guest_vectors
    }

    /// Returns the number of vectors of QEMU's device (`vectors=`).
    pub fn device_vectors(&self) -> u16 {
        self.host_vectors.max(self.guest_vectors)
    }
}
