//! Any bytes as the content of a frame between a guest's daemon and its host's. The first byte is the frame's kind. What parses says the
//! same again when it is emitted.
#![no_main]

use isthmus_layout::border::lots::{Lot, Wanted};
use isthmus_layout::border::shared::{Lend, Lent, Offer, Share};
use isthmus_layout::border::{FrameKind, Open, Packet, WindowNumber, Withdrawn};
use libfuzzer_sys::fuzz_target;

/// What parses as this kind's content is emitted byte for byte as it came.
macro_rules! again {
    ($kind:ident, $content:expr) => {
        if let Ok(parsed) = $kind::parse($content) {
            assert_eq!(parsed.emit(), $content);
        }
    };
}

fuzz_target!(|input: &[u8]| {
    let Some((&code, content)) = input.split_first() else { return };
    match FrameKind::from_code(code) {
        Some(FrameKind::Open) => again!(Open, content),
        Some(FrameKind::Packet) => {
            if let Ok(packet) = Packet::parse(content) {
                assert_eq!(Packet::parse(&packet.emit()), Ok(packet));
            }
        }
        Some(FrameKind::Withdrawn | FrameKind::Away) => again!(Withdrawn, content),
        Some(FrameKind::Plugged | FrameKind::Unplugged | FrameKind::Part) => again!(WindowNumber, content),
        Some(FrameKind::Wanted) => again!(Wanted, content),
        Some(FrameKind::Lot) => again!(Lot, content),
        Some(FrameKind::Share) => again!(Share, content),
        Some(FrameKind::Offer) => again!(Offer, content),
        Some(FrameKind::Lend) => again!(Lend, content),
        Some(FrameKind::Lent) => again!(Lent, content),
        Some(FrameKind::Closed | FrameKind::Taken) | None => {}
    }
});
