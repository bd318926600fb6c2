//! Any bytes as the content of a frame between a guest's daemon and its host's. The first byte is the frame's kind. What parses says the
//! same again when it is emitted.
#![no_main]

use isthmus_layout::proxy::addresses::GuestAddresses;
use isthmus_layout::proxy::loops::{LoopInterfaces, LoopPeers, LoopRequest};
use isthmus_layout::proxy::grants::{GrantReply, GrantRequest};
use isthmus_layout::proxy::pair_window::{MapReply, MapRequest, PairInvite, PairOffer};
use isthmus_layout::proxy::{ClientConnected, ControlPacket, ProxyFrameKind, RevokedExtent, WindowId};
use libfuzzer_sys::fuzz_target;

/// Checks that content of this kind that parses is emitted byte for byte as it came.
macro_rules! again {
    ($kind:ident, $content:expr) => {
        if let Ok(parsed) = $kind::parse($content) {
            assert_eq!(parsed.emit(), $content);
        }
    };
}

fuzz_target!(|input: &[u8]| {
    let Some((&code, content)) = input.split_first() else { return };
    match ProxyFrameKind::from_code(code) {
        Some(ProxyFrameKind::ClientConnected) => again!(ClientConnected, content),
        Some(ProxyFrameKind::ControlPacket) => {
            if let Ok(packet) = ControlPacket::parse(content) {
                assert_eq!(ControlPacket::parse(&packet.emit()), Ok(packet));
            }
        }
        Some(ProxyFrameKind::RevokedExtent | ProxyFrameKind::Reclaimed) => again!(RevokedExtent, content),
        Some(ProxyFrameKind::WindowAttached | ProxyFrameKind::WindowDetached | ProxyFrameKind::PairClose) => {
            again!(WindowId, content)
        }
        Some(ProxyFrameKind::GrantRequest) => again!(GrantRequest, content),
        Some(ProxyFrameKind::GrantReply) => again!(GrantReply, content),
        Some(ProxyFrameKind::PairInvite) => again!(PairInvite, content),
        Some(ProxyFrameKind::PairOffer) => again!(PairOffer, content),
        Some(ProxyFrameKind::MapRequest) => again!(MapRequest, content),
        Some(ProxyFrameKind::MapReply) => again!(MapReply, content),
        Some(ProxyFrameKind::Addresses) => again!(GuestAddresses, content),
        Some(ProxyFrameKind::LoopInterfaces) => again!(LoopInterfaces, content),
        Some(ProxyFrameKind::LoopRequest) => again!(LoopRequest, content),
        Some(ProxyFrameKind::LoopPeers) => again!(LoopPeers, content),
        Some(ProxyFrameKind::Closed | ProxyFrameKind::Ack) | None => {}
    }
});
