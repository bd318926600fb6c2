//! The records of a capture: frames with their time and place, and statistics about dropped frames.

use isthmus_layout::NicId;

/// The maximum number of bytes kept of a frame, which is Wireshark's limit.
pub const SNAP_BYTES_MAX: u32 = 262_144;

/// The maximum number of bytes of an interface's name, and of its description.
pub const TEXT_BYTES_MAX: usize = 255;

/// The direction of a frame, as seen by the capturing side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaptureDirection {
    /// The direction is unknown.
    Unknown,
    /// The frame arrived.
    Received,
    /// The frame was sent.
    Sent,
}

/// The index of an interface in a capture, starting at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceIndex(pub u16);

/// A place where frames are captured: a link of a board, or a domain. Its frames begin with an Ethernet header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PcapInterface {
    name: String,
    description: String,
    nic: Option<NicId>,
    snap_bytes: u32,
}

impl PcapInterface {
    /// Creates an interface without an address and with the maximum frame size. At most [`TEXT_BYTES_MAX`] bytes of each text are kept, and
    /// control characters become `?`.
    pub fn new(name: &str, description: &str) -> Self {
        Self { name: single_line(name), description: single_line(description), nic: None, snap_bytes: SNAP_BYTES_MAX }
    }

    /// Sets the address of the interface's board.
    #[must_use]
    pub fn with_nic(self, nic: NicId) -> Self {
        Self { nic: Some(nic), ..self }
    }

    /// Limits the bytes kept of each frame; the limit is at most [`SNAP_BYTES_MAX`].
    #[must_use]
    pub fn with_snap_bytes(self, snap_bytes: u32) -> Self {
        Self { snap_bytes: snap_bytes.min(SNAP_BYTES_MAX), ..self }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the description.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns the address of the interface's board.
    pub fn nic(&self) -> Option<NicId> {
        self.nic
    }

    /// Returns the maximum number of bytes kept of a frame.
    pub fn snap_bytes(&self) -> u32 {
        self.snap_bytes
    }
}

/// Returns the text as one line, cut to the limit.
fn single_line(text: &str) -> String {
    let mut kept = String::new();
    for char in text.chars().map(|char| if char.is_control() { '?' } else { char }) {
        if kept.len() + char.len_utf8() > TEXT_BYTES_MAX {
            break;
        }
        kept.push(char);
    }
    kept
}

/// A frame, or its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedFrame<'a> {
    /// Nanoseconds since 1970, UTC.
    pub time_ns: u64,
    /// The interface on which the frame was seen.
    pub interface: InterfaceIndex,
    /// The direction of the frame.
    pub direction: CaptureDirection,
    /// The original length. A number below the length of `bytes` counts as that length.
    pub original_bytes: u32,
    /// The kept bytes, from the Ethernet header on.
    pub bytes: &'a [u8],
}

/// The numbers of seen and dropped frames of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceStatistics {
    /// The interface.
    pub interface: InterfaceIndex,
    /// The number of frames seen, including dropped ones.
    pub seen: u64,
    /// The number of frames dropped because the reader was too slow.
    pub dropped: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_one_line_and_fit() {
        let interface = PcapInterface::new("wire\n0\0", &"ü".repeat(300));
        assert_eq!(interface.name(), "wire?0?");
        assert_eq!((interface.description().len(), interface.description().chars().count()), (254, 127));
        assert_eq!(PcapInterface::new("", &"a".repeat(256)).description().len(), TEXT_BYTES_MAX);
    }

    #[test]
    fn no_interface_keeps_more_than_can_be_read() {
        assert_eq!(PcapInterface::new("", "").with_snap_bytes(u32::MAX).snap_bytes(), SNAP_BYTES_MAX);
        assert_eq!(PcapInterface::new("", "").with_snap_bytes(96).snap_bytes(), 96);
    }
}
