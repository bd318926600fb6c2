//! Any bytes as the content of a frame between a guest's daemon and its host's. The first byte is the frame's kind. What parses says the
//! same again when it is emitted.
#![no_main]

use isthmus_layout::border::lots::{Lot, Wanted};
use isthmus_layout::border::shared::{Lend, Lent, Offer, Share};
use isthmus_layout::border::{FrameKind, Open, Packet, WindowNumber, Withdrawn};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let Some((&code, content)) = input.split_first() else { return };
    match FrameKind::from_code(code) {
        Some(FrameKind::Open) => {
            if let Ok(open) = Open::parse(content) {
                assert_eq!(open.emit(), content);
            }
        }
        Some(FrameKind::Packet) => {
            if let Ok(packet) = Packet::parse(content) {
                assert_eq!(Packet::parse(&packet.emit()), Ok(packet));
            }
        }
        Some(FrameKind::Withdrawn | FrameKind::Away) => {
            if let Ok(withdrawn) = Withdrawn::parse(content) {
                assert_eq!(withdrawn.emit(), content);
            }
        }
        Some(FrameKind::Plugged | FrameKind::Unplugged | FrameKind::Part) => {
            if let Ok(window) = WindowNumber::parse(content) {
                assert_eq!(window.emit(), content);
            }
        }
        Some(FrameKind::Wanted) => {
            if let Ok(wanted) = Wanted::parse(content) {
                assert_eq!(wanted.emit(), content);
            }
        }
        Some(FrameKind::Lot) => {
            if let Ok(lot) = Lot::parse(content) {
                assert_eq!(lot.emit(), content);
            }
        }
        Some(FrameKind::Share) => {
            if let Ok(share) = Share::parse(content) {
                assert_eq!(share.emit(), content);
            }
        }
        Some(FrameKind::Offer) => {
            if let Ok(offer) = Offer::parse(content) {
                assert_eq!(offer.emit(), content);
            }
        }
        Some(FrameKind::Lend) => {
            if let Ok(lend) = Lend::parse(content) {
                assert_eq!(lend.emit(), content);
            }
        }
        Some(FrameKind::Lent) => {
            if let Ok(lent) = Lent::parse(content) {
                assert_eq!(lent.emit(), content);
            }
        }
        Some(FrameKind::Closed | FrameKind::Taken) | None => {}
    }
});
