//! The work of the targets of both dialects of MXoE on a frame.

use isthmus_mx::wire::{self, Announcement, Dialect, Packet, RAW_FRAME_BYTES_MAX};

/// Checks that a parsed frame is emitted with the same meaning.
pub(crate) fn parse_emit_parse(dialect: Dialect, frame: &[u8]) {
    let Ok((header, packet)) = wire::parse(dialect, frame) else { return };
    let mut buffer = vec![0xee; frame.len().max(RAW_FRAME_BYTES_MAX)];
    let Ok(bytes) = wire::emit(dialect, &header, &packet, &mut buffer) else { panic!("{packet:?} cannot be said") };
    let Ok((header_again, again)) = wire::parse(dialect, &buffer[..bytes]) else { panic!("{packet:?} is refused") };
    assert_eq!(header_again, header);
    match (packet, again) {
        // Nothing says where a raw packet ends: a short one comes back with its padding.
        (Packet::Raw(raw), Packet::Raw(padded)) => {
            assert!(padded.data.starts_with(raw.data));
            if let Ok(announcement) = Announcement::parse(raw.data) {
                assert_eq!(Announcement::parse(&announcement.emit()), Ok(announcement));
            }
        }
        (packet, again) => assert_eq!(again, packet),
    }
}
