//! What is captured: a frame, when and where; and what could not be captured.

use isthmus_layout::NicId;

/// Bytes of a frame that are kept at most; Wireshark reads no longer ones.
pub const SNAP_BYTES_MAX: u32 = 262_144;

/// Bytes of an interface's name, and of its description.
pub const TEXT_BYTES_MAX: usize = 255;

/// Which way a frame went, seen from who captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CaptureDirection {
    /// Nobody knows.
    Unknown,
    /// It arrived.
    Received,
    /// It left.
    Sent,
}

/// Which of a capture's interfaces: the first one has number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InterfaceIndex(pub u16);

/// Where frames are seen: a link of a board, or a domain. Its frames begin with an Ethernet header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PcapInterface {
    name: String,
    description: String,
    nic: Option<NicId>,
    snap_bytes: u32,
}

impl PcapInterface {
    /// Without an address, and with frames as long as they are. Of both texts [`TEXT_BYTES_MAX`] bytes are kept, and what is no
    /// character to be shown becomes `?`.
    pub fn new(name: &str, description: &str) -> Self {
        Self { name: single_line(name), description: single_line(description), nic: None, snap_bytes: SNAP_BYTES_MAX }
    }

    /// With the address of its board.
    #[must_use]
    pub fn with_nic(self, nic: NicId) -> Self {
        Self { nic: Some(nic), ..self }
    }

    /// With so many bytes of each frame at most; never more than [`SNAP_BYTES_MAX`].
    #[must_use]
    pub fn with_snap_bytes(self, snap_bytes: u32) -> Self {
        Self { snap_bytes: snap_bytes.min(SNAP_BYTES_MAX), ..self }
    }

    /// As people call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The address of its board.
    pub fn nic(&self) -> Option<NicId> {
        self.nic
    }

    /// Bytes of a frame that are kept at most.
    pub fn snap_bytes(&self) -> u32 {
        self.snap_bytes
    }
}

/// One line of text that fits.
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
    /// Where it was seen.
    pub interface: InterfaceIndex,
    /// Which way it went.
    pub direction: CaptureDirection,
    /// Bytes that it had. A number below those that are here counts as that many.
    pub original_bytes: u32,
    /// As many of them as were kept, from the Ethernet header on.
    pub bytes: &'a [u8],
}

/// How much of an interface's traffic was captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceStatistics {
    /// Which one.
    pub interface: InterfaceIndex,
    /// Frames that were seen, those that were dropped included.
    pub seen: u64,
    /// Frames that are missing because whoever watches was too slow.
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
