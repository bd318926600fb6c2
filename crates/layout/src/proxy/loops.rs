//! Loop devices: the interfaces that a guest steers, and the guests that they may reach through a pair window.
//!
//! ```text
//!   guest                                        host
//!     LoopInterfaces: the MACs of my interfaces ──►   chooses the guests of the same network
//!     ◄── LoopPeers: their MACs, and the rings shared with each of them
//!     LoopRequest: a frame for this peer was seen ──►   makes a pair window, and rings in it
//!     ◄── LoopPeers
//! ```

use alloc::string::String;
use alloc::vec::Vec;

use super::{PROXY_FRAME_BYTES_MAX, ResourceRef, WindowId};
use crate::control::codec::Width;
use crate::control::table::{FieldInfo, record};
use crate::control::{Field, FieldReader, List, MalformedControl};
use crate::ids::NicId;

/// The maximum number of interfaces that a guest names.
pub const LOOP_INTERFACES_MAX: usize = 16;
/// The maximum number of guests that one guest may reach.
pub const LOOP_PEERS_MAX: usize = 255;
const _: () = assert!(<List<LoopPeer, LOOP_PEERS_MAX>>::WIDTH.max <= PROXY_FRAME_BYTES_MAX);

/// The bytes of the rings of a pair of loop devices: the words of both sides, and two data areas of 2 MiB.
pub const LOOP_BYTES: u64 = 8192 + 2 * (2 << 20);

/// The MAC address of one station.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mac(NicId);

impl Mac {
    /// Creates the address of one station: neither a group nor zero. None for others.
    pub const fn new(octets: [u8; 6]) -> Option<Self> {
        let nic = NicId::from_octets(octets);
        if octets[0] & 1 != 0 || nic.number() == 0 { None } else { Some(Self(nic)) }
    }

    /// The octets, in the order of a frame.
    pub const fn octets(self) -> [u8; 6] {
        let [_, _, a, b, c, d, e, f] = self.0.number().to_be_bytes();
        [a, b, c, d, e, f]
    }
}

impl core::fmt::Display for Mac {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.0.fmt(out)
    }
}

impl Field for Mac {
    const WIDTH: Width = u64::WIDTH;

    fn describe() -> String {
        "a MAC address in the low 48 bits, the first octet highest".into()
    }

    fn emit(&self, out: &mut Vec<u8>) {
        self.0.number().emit(out);
    }

    fn parse(from: &mut FieldReader<'_>) -> Result<Self, MalformedControl> {
        let [x, y, octets @ ..] = u64::parse(from)?.to_be_bytes();
        let mac = if x == 0 && y == 0 { Self::new(octets) } else { None };
        mac.ok_or(MalformedControl::Reserved(u16::from_be_bytes([x, y])))
    }
}

list_frame! {
    /// The MAC addresses of the interfaces of the guest that are up and that it can steer. They replace those that it stated before.
    LoopInterfaces of Mac, at most LOOP_INTERFACES_MAX
}

list_frame! {
    /// All guests that this one may reach. They replace those of the frame before.
    LoopPeers of LoopPeer, at most LOOP_PEERS_MAX
}

record! {
    /// A guest that this one may reach, and the rings that they share.
    LoopPeer {
        /// The number of the other guest; it is not used again.
        guest: u32,
        /// The MAC address of this guest's interface.
        own: Mac,
        /// The MAC address of the other guest's interface.
        mac: Mac,
        /// The window of the rings; 0: there are none yet.
        window: u16,
        /// The side of this guest: 0 or 1.
        side: u8,
        /// The generation of the extent.
        generation: u32,
        /// The first byte of the extent in the window.
        offset: u64,
        /// The bytes of the extent.
        bytes: u64,
        /// The other guest among the peers of this guest's device.
        peer: u16,
        /// The vector that rings the other guest.
        peer_vector: u16,
        /// The vector of this guest that the other guest rings.
        vector: u16,
    }
}

impl LoopPeer {
    /// The memory of the rings, if there is one.
    pub fn extent(&self) -> Option<ResourceRef> {
        let Self { window, offset, bytes, generation, .. } = *self;
        (window != WindowId::OWN.0).then_some(ResourceRef::Extent {
            window: WindowId(window),
            offset,
            bytes,
            generation,
        })
    }
}

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopRequestKind {
    /// A frame for the peer was seen: the guest asks for rings.
    FrameSeen,
    /// The rings are not used any more: the guest could not make its device, or the device has ended.
    Ended,
    /// No frame has passed for a while: the rings may go.
    Unused,
}

/// A request about a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopRequest {
    /// The request.
    pub kind: LoopRequestKind,
    /// The number of the other guest.
    pub guest: u32,
    /// The window of the rings that have ended or are unused; 0 for [`LoopRequestKind::FrameSeen`].
    pub window: u16,
    /// The generation of their extent; 0 for [`LoopRequestKind::FrameSeen`].
    pub generation: u32,
}

impl LoopRequest {
    /// Emits the content of the frame.
    pub fn emit(self) -> Vec<u8> {
        let kind: u8 = match self.kind {
            LoopRequestKind::FrameSeen => 1,
            LoopRequestKind::Ended => 2,
            LoopRequestKind::Unused => 3,
        };
        let mut out = Vec::new();
        kind.emit(&mut out);
        self.guest.emit(&mut out);
        self.window.emit(&mut out);
        self.generation.emit(&mut out);
        out
    }

    /// Parses the content of a frame.
    pub fn parse(bytes: &[u8]) -> Result<Self, MalformedControl> {
        let mut from = FieldReader::new(bytes);
        let kind = match u8::parse(&mut from)? {
            1 => LoopRequestKind::FrameSeen,
            2 => LoopRequestKind::Ended,
            3 => LoopRequestKind::Unused,
            other => return Err(MalformedControl::Kind(other.into())),
        };
        let (guest, window) = (u32::parse(&mut from)?, u16::parse(&mut from)?);
        let request = Self { kind, guest, window, generation: u32::parse(&mut from)? };
        from.end()?;
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString as _;
    use alloc::vec;

    use super::*;

    fn mac(last: u8) -> Mac {
        Mac::new([2, 0, 0x5e, 0, 0, last]).unwrap()
    }

    #[test]
    fn parse_returns_what_was_emitted_and_refuses_more() {
        let interfaces = LoopInterfaces::clip((0..100).map(mac).collect());
        assert_eq!(interfaces.0.len(), LOOP_INTERFACES_MAX);
        assert_eq!(LoopInterfaces::parse(&interfaces.emit()), Ok(interfaces));
        let peer = LoopPeer {
            guest: 7,
            own: mac(1),
            mac: mac(2),
            window: 3,
            side: 1,
            generation: 70_000,
            offset: 4096,
            bytes: LOOP_BYTES,
            peer: 8,
            peer_vector: 4,
            vector: 5,
        };
        let extent = ResourceRef::Extent { window: WindowId(3), offset: 4096, bytes: LOOP_BYTES, generation: 70_000 };
        assert_eq!(peer.extent(), Some(extent));
        assert_eq!(LoopPeer { window: 0, ..peer.clone() }.extent(), None);
        let peers = LoopPeers::clip(vec![peer; 1000]);
        assert_eq!(peers.0.len(), LOOP_PEERS_MAX);
        let bytes = peers.emit();
        assert_eq!(LoopPeers::parse(&bytes), Ok(peers));
        assert!(LoopPeers::parse(&bytes[..bytes.len() - 1]).is_err());
        for kind in [LoopRequestKind::FrameSeen, LoopRequestKind::Ended, LoopRequestKind::Unused] {
            let request = LoopRequest { kind, guest: 7, window: 3, generation: 9 };
            assert_eq!(LoopRequest::parse(&request.emit()), Ok(request));
        }
        assert_eq!(LoopRequest::parse(&[4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]), Err(MalformedControl::Kind(4)));
    }

    #[test]
    fn only_addresses_of_one_station_are_accepted() {
        assert_eq!(mac(9).to_string(), "02:00:5e:00:00:09");
        assert_eq!((Mac::new([0; 6]), Mac::new([1, 0, 0, 0, 0, 1])), (None, None));
        let parse = |number: u64| Mac::parse(&mut FieldReader::new(&number.to_le_bytes()));
        assert_eq!(parse(0x0200_5e00_0009), Ok(mac(9)));
        assert!(parse(0x0100_5e00_0009).is_err() && parse(0x0001_0200_5e00_0009).is_err() && parse(0).is_err());
    }
}
