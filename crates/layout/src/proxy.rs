//! The proxy protocol between a guest and its host: the layout of the window that both map, and the frames that their daemons exchange.
//!
//! ```text
//! byte 0       head page: magic, version; a word in which the guest calls, one in which the host answers
//! byte 4096    the proxy ring: a channel's memory, the host sends on direction 0
//! above        extents: rings, ready maps and channels of the guest's programs, allocated by the host's daemon
//! ```
//!
//! A guest's daemon has no directory and decides nothing. It passes on what its programs say on its control socket, each message in a
//! *frame* of the proxy ring, and what the host's daemon answers. Where a message carries file descriptors, the frame says instead what
//! they are: a [`ResourceRef`] is an extent of the window, or a vector of the device, for which the guest's daemon has its device make
//! descriptors. Messages between domains never pass the proxy ring.
//!
//! Bytes of the window are handed out again and again. Before they become another extent, the host revokes the old one ([`RevokedExtent`]): then
//! the guest's daemon unmaps them from every program that still maps them, so that programs of a guest never see each other's memory, and
//! replies that the extent is reclaimed.
//!
//! Two guests may have a *pair window* beside their own ones: memory that only these two and the host see, made of extents from
//! its first byte to its last. It is attached to both while they run, and has one number for both ([`WindowId`]). The guest's
//! daemon says which ones it has, and until it has said so the host hands out nothing of them. Where guests can grant pages to one
//! another it is made of grant batches, and not even the host sees it ([`pair_window`]).

use alloc::vec::Vec;

use crate::channel::{ChannelGeometry, SlabSize};
use crate::control::{Field, FieldReader, MalformedControl, Name};
use crate::limits::{CONTROL_BYTES_MAX, CONTROL_FDS_MAX, PAGE_BYTES, SLAB_BYTES_MIN};

/// The content of a frame that is one list.
macro_rules! list_frame {
    ($(#[doc = $doc:literal])* $name:ident of $element:ty, at most $max:ident) => {
        $(#[doc = $doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name(pub $crate::control::List<$element, $max>);

        impl $name {
            /// Takes the first ones of `elements`, as many as the frame may have.
            pub fn clip(mut elements: alloc::vec::Vec<$element>) -> Self {
                elements.truncate($max);
                Self($crate::control::List::new(elements).expect("the list was cut"))
            }

            /// Emits the content of the frame.
            pub fn emit(&self) -> alloc::vec::Vec<u8> {
                let mut out = alloc::vec::Vec::new();
                $crate::control::Field::emit(&self.0, &mut out);
                out
            }

            /// Parses the content of a frame.
            pub fn parse(bytes: &[u8]) -> Result<Self, $crate::control::MalformedControl> {
                let mut from = $crate::control::FieldReader::new(bytes);
                let elements = $crate::control::Field::parse(&mut from)?;
                from.end()?;
                Ok(Self(elements))
            }
        }
    };
}

pub mod addresses;
pub mod grants;
pub mod loops;
pub mod pair_window;

/// The first two words of the head page.
pub const MAGIC: [u32; 2] = [u32::from_le_bytes(*b"ISTH"), u32::from_le_bytes(*b"WNDW")];
/// The version of this layout.
pub const VERSION: u32 = 3;
/// Word of the head page: the first half of [`MAGIC`]; the second follows.
pub const MAGIC_WORD: u32 = 0;
/// Word of the head page: [`VERSION`].
pub const VERSION_WORD: u32 = 2;
/// Word of the head page: with what the guest begins a proxy session, any number but the one that stands in [`SESSION_REPLY_WORD`] and 0.
pub const SESSION_REQUEST_WORD: u32 = 32;
/// Word of the head page: the request that the proxy ring was made ready for. Whatever was sent before is forgotten.
pub const SESSION_REPLY_WORD: u32 = 64;
/// Word of the head page: the host's heartbeat. As long as there is a device, the host's daemon changes it every
/// [`HEARTBEAT_INTERVAL_MS`], to any number but 0, which says that it does not.
pub const HOST_HEARTBEAT_WORD: u32 = 96;
/// Word of the head page: the guest's heartbeat, as the host's.
pub const GUEST_HEARTBEAT_WORD: u32 = 128;

/// Word of the head page: the session request that begins a session in which the host takes [`ProxyFrameKind::Addresses`]. An older daemon
/// does not write it, so the word has another number then.
pub const ADDRESSES_WORD: u32 = 288;

/// Word of the head page: the session request that begins a session in which the host takes [`ProxyFrameKind::LoopInterfaces`]. The host
/// writes it if its configuration names interfaces of the guest.
pub const LOOPS_WORD: u32 = 320;

/// How often daemons change their heartbeat, in milliseconds.
pub const HEARTBEAT_INTERVAL_MS: u32 = 1000;
/// The time in milliseconds without a new heartbeat after which a daemon counts as hanging, or its guest as paused. That ends nothing.
pub const HEARTBEAT_TIMEOUT_MS: u32 = 5 * HEARTBEAT_INTERVAL_MS;

/// Where the proxy ring lies.
pub const PROXY_RING_OFFSET: u64 = PAGE_BYTES as u64;
/// The proxy ring's memory.
pub const PROXY_RING: ChannelGeometry =
    ChannelGeometry { slab: SlabSize::new(2 * SLAB_BYTES_MIN).expect("a slab may be as large") };
/// Where extents begin.
pub const EXTENTS_OFFSET: u64 = (PROXY_RING_OFFSET + PROXY_RING.size().0).next_multiple_of(PAGE_BYTES as u64);
/// The smallest window: room for a domain or two.
pub const WINDOW_BYTES_MIN: u64 = 1 << 20;

/// The vector by which either side is told to look at the proxy ring. Toward the host, vector 1 + w wakes worker w; toward the guest, the
/// vectors from 1 on are shared out among its domains.
pub const PROXY_VECTOR: u16 = 0;

/// Bytes of the longest frame's content.
pub const PROXY_FRAME_BYTES_MAX: usize = CONTROL_BYTES_MAX + 1 + CONTROL_FDS_MAX * ResourceRef::BYTES;

/// Control messages of one connection that a guest's daemon has sent and the host has not acknowledged. Beyond them it lets the program wait.
pub const UNACKED_MAX: u32 = 16;

/// The number of messages of a connection after which the host sends [`ProxyFrameKind::Ack`].
pub const ACK_INTERVAL: u32 = 8;

/// A fragment of a slab is at most a quarter of it.
const _: () = assert!(PROXY_FRAME_BYTES_MAX <= PROXY_RING.slab.bytes() as usize / 4);

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyFrameKind {
    /// A program has connected; the content is an [`ClientConnected`]. To the host alone.
    ClientConnected,
    /// A control message: [`ControlPacket`].
    ControlPacket,
    /// The connection is over. No content.
    Closed,
    /// [`ACK_INTERVAL`] more messages of the connection have been taken. No content. To the guest alone.
    Ack,
    /// The content is a [`RevokedExtent`]; no connection. To the guest alone.
    RevokedExtent,
    /// The content is the [`WindowId`] of a pair window that the guest has now; no connection. To the host alone.
    WindowAttached,
    /// The content is the [`WindowId`] of a pair window that the guest has no longer; no connection. To the host alone.
    WindowDetached,
    /// The content is a [`RevokedExtent`] that was reported to the guest, and that no program there maps any more; no connection. To the host
    /// alone.
    Reclaimed,
    /// The content is a [`grants::GrantRequest`]; no connection. To the guest alone.
    GrantRequest,
    /// The content is a [`grants::GrantReply`]; no connection. To the host alone.
    GrantReply,
    /// The content is a [`pair_window::PairInvite`]: a pair window that the guest is to have with another one; no connection. To the guest alone.
    PairInvite,
    /// The content is a [`pair_window::PairOffer`]; no connection. To the host alone.
    PairOffer,
    /// The content is the [`WindowId`] of a window that [`ProxyFrameKind::PairInvite`] was about, and that is over; no connection. To the guest
    /// alone.
    PairClose,
    /// The content is a [`pair_window::MapRequest`]: a grant batch of another guest's in a pair window; no connection. To the guest alone.
    MapRequest,
    /// The content is a [`pair_window::MapReply`]; no connection. To the host alone.
    MapReply,
    /// The content is an [`addresses::GuestAddresses`]; no connection. To the host alone, if it takes such frames ([`ADDRESSES_WORD`]).
    Addresses,
    /// The content is a [`loops::LoopInterfaces`]; no connection. To the host alone, if it takes such frames ([`LOOPS_WORD`]).
    LoopInterfaces,
    /// The content is a [`loops::LoopRequest`]; no connection. To the host alone.
    LoopRequest,
    /// The content is a [`loops::LoopPeers`]; no connection. To the guest alone, once it has sent [`ProxyFrameKind::LoopInterfaces`].
    LoopPeers,
}

impl ProxyFrameKind {
    /// As the record's kind.
    pub const fn code(self) -> u8 {
        match self {
            Self::ClientConnected => 1,
            Self::ControlPacket => 2,
            Self::Closed => 3,
            Self::Ack => 4,
            Self::RevokedExtent => 5,
            Self::WindowAttached => 6,
            Self::WindowDetached => 7,
            Self::Reclaimed => 8,
            Self::GrantRequest => 16,
            Self::GrantReply => 17,
            Self::PairInvite => 18,
            Self::PairOffer => 19,
            Self::PairClose => 20,
            Self::MapRequest => 21,
            Self::MapReply => 22,
            Self::Addresses => 9,
            Self::LoopInterfaces => 10,
            Self::LoopRequest => 11,
            Self::LoopPeers => 23,
        }
    }

    /// None for what is no frame.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::ClientConnected),
            2 => Some(Self::ControlPacket),
            3 => Some(Self::Closed),
            4 => Some(Self::Ack),
            5 => Some(Self::RevokedExtent),
            6 => Some(Self::WindowAttached),
            7 => Some(Self::WindowDetached),
            8 => Some(Self::Reclaimed),
            16 => Some(Self::GrantRequest),
            17 => Some(Self::GrantReply),
            18 => Some(Self::PairInvite),
            19 => Some(Self::PairOffer),
            20 => Some(Self::PairClose),
            21 => Some(Self::MapRequest),
            22 => Some(Self::MapReply),
            9 => Some(Self::Addresses),
            10 => Some(Self::LoopInterfaces),
            11 => Some(Self::LoopRequest),
            23 => Some(Self::LoopPeers),
            _ => None,
        }
    }
}

/// A program of the guest, as its daemon sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientConnected {
    /// The UID of the program in the guest. The configuration of the host defines the owner of its domains there.
    pub uid: u32,
    /// Its process, in the guest; 0 where that cannot be seen.
    pub pid: u32,
    /// The name of the program.
    pub program: Name,
}

impl ClientConnected {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.uid.emit(&mut out);
        self.pid.emit(&mut out);
        self.program.emit(&mut out);
        out
    }

    /// Takes all of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, MalformedControl> {
        let mut from = FieldReader::new(bytes);
        let connected =
            Self { uid: u32::parse(&mut from)?, pid: u32::parse(&mut from)?, program: Name::parse(&mut from)? };
        from.end()?;
        Ok(connected)
    }
}

/// The host's number among the peers of a guest's device.
pub const HOST: u16 = 0;

/// The guest's own number among the peers of its device.
pub const GUEST: u16 = 1;

/// Names a window of a guest: its number among the peers of the device that shows it, less one. Two guests call their pair window
/// by the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WindowId(pub u16);

impl WindowId {
    /// The guest's own, which it shares with its host alone.
    pub const OWN: Self = Self(0);

    /// Its bytes.
    pub fn emit(self) -> Vec<u8> {
        let mut out = Vec::new();
        self.0.emit(&mut out);
        out
    }

    /// Takes all of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, MalformedControl> {
        let mut from = FieldReader::new(bytes);
        let number = Self(u16::parse(&mut from)?);
        from.end()?;
        Ok(number)
    }
}

/// The reference to a resource, in place of a file descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceRef {
    /// Memory: an extent of a window, in whole pages, to be mapped for reading and writing.
    Extent {
        /// The window.
        window: WindowId,
        /// Its first byte.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
        /// The generation, which distinguishes successive uses of these bytes.
        generation: u32,
    },
    /// Memory as in `Extent`, with private memory of a program. When the extent is revoked, the bytes stay with the program that maps them.
    PrivateExtent {
        /// The window.
        window: WindowId,
        /// Its first byte.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
        /// The generation, which distinguishes successive uses of these bytes.
        generation: u32,
    },
    /// Memory as in `Extent`, to be mapped for reading only.
    ReadOnlyExtent {
        /// The window.
        window: WindowId,
        /// Its first byte.
        offset: u64,
        /// The number of bytes.
        bytes: u64,
        /// The generation, which distinguishes successive uses of these bytes.
        generation: u32,
    },
    /// A doorbell that rings a vector of a peer of the device.
    Doorbell {
        /// The peer: 0 is the host, any other number is a guest.
        peer: u16,
        /// The vector.
        vector: u16,
    },
    /// Where rings of this vector of the guest's own device are heard.
    VectorEvents {
        /// The vector.
        vector: u16,
    },
    /// An end of the event channel that a grant batch of a pair window came with ([`pair_window`]): what is rung there is heard at the other end.
    EventChannel {
        /// The window.
        window: WindowId,
        /// The offset of the grant batch.
        offset: u64,
    },
}

impl ResourceRef {
    /// Bytes of one.
    pub const BYTES: usize = 24;

    const EXTENT: u16 = 1;
    const DOORBELL: u16 = 2;
    const VECTOR_EVENTS: u16 = 3;
    const PRIVATE_EXTENT: u16 = 4;
    const READ_ONLY_EXTENT: u16 = 5;
    const EVENT_CHANNEL: u16 = 6;

    fn emit(self, out: &mut Vec<u8>) {
        let (kind, peer, number, offset, bytes) = match self {
            Self::Extent { window, offset, bytes, generation } => (Self::EXTENT, window.0, generation, offset, bytes),
            Self::PrivateExtent { window, offset, bytes, generation } => {
                (Self::PRIVATE_EXTENT, window.0, generation, offset, bytes)
            }
            Self::ReadOnlyExtent { window, offset, bytes, generation } => {
                (Self::READ_ONLY_EXTENT, window.0, generation, offset, bytes)
            }
            Self::Doorbell { peer, vector } => (Self::DOORBELL, peer, vector.into(), 0, 0),
            Self::VectorEvents { vector } => (Self::VECTOR_EVENTS, 0, vector.into(), 0, 0),
            Self::EventChannel { window, offset } => (Self::EVENT_CHANNEL, window.0, 0, offset, 0),
        };
        [kind, peer].iter().for_each(|half| half.emit(out));
        number.emit(out);
        [offset, bytes].iter().for_each(|number| number.emit(out));
    }

    fn parse(from: &mut FieldReader<'_>) -> Result<Self, MalformedControl> {
        let (kind, peer, number) = (u16::parse(from)?, u16::parse(from)?, u32::parse(from)?);
        let (offset, bytes) = (u64::parse(from)?, u64::parse(from)?);
        let (window, generation) = (WindowId(peer), number);
        match kind {
            Self::EXTENT => return Ok(Self::Extent { window, offset, bytes, generation }),
            Self::PRIVATE_EXTENT => return Ok(Self::PrivateExtent { window, offset, bytes, generation }),
            Self::READ_ONLY_EXTENT => return Ok(Self::ReadOnlyExtent { window, offset, bytes, generation }),
            Self::EVENT_CHANNEL => return Ok(Self::EventChannel { window, offset }),
            _ => {}
        }
        let vector = u16::try_from(number).map_err(|_| MalformedControl::Reserved((number >> 16) as u16))?;
        match kind {
            Self::DOORBELL => Ok(Self::Doorbell { peer, vector }),
            Self::VECTOR_EVENTS => Ok(Self::VectorEvents { vector }),
            other => Err(MalformedControl::Kind(other)),
        }
    }
}

/// An extent that is one no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevokedExtent {
    /// The window.
    pub window: WindowId,
    /// Its first byte.
    pub offset: u64,
    /// Which use of these bytes it was.
    pub generation: u32,
}

impl RevokedExtent {
    /// Its bytes.
    pub fn emit(self) -> Vec<u8> {
        let mut out = Vec::new();
        self.offset.emit(&mut out);
        self.generation.emit(&mut out);
        self.window.0.emit(&mut out);
        out
    }

    /// Takes all of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, MalformedControl> {
        let mut from = FieldReader::new(bytes);
        let (offset, generation) = (u64::parse(&mut from)?, u32::parse(&mut from)?);
        let extent = Self { window: WindowId(u16::parse(&mut from)?), offset, generation };
        from.end()?;
        Ok(extent)
    }
}

/// A control message, with what stands for its file descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlPacket<'a> {
    /// In their order. Only the host passes any.
    pub resources: Vec<ResourceRef>,
    /// The message as it goes over a control socket.
    pub message: &'a [u8],
}

impl<'a> ControlPacket<'a> {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 + self.resources.len() * ResourceRef::BYTES + self.message.len());
        (self.resources.len() as u8).emit(&mut out);
        self.resources.iter().for_each(|resource| resource.emit(&mut out));
        out.extend_from_slice(self.message);
        out
    }

    /// Takes all of `bytes`. What the message says is not looked at.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MalformedControl> {
        let mut from = FieldReader::new(bytes);
        let have = usize::from(u8::parse(&mut from)?);
        if have > CONTROL_FDS_MAX {
            return Err(MalformedControl::List { have, max: CONTROL_FDS_MAX });
        }
        let resources = (0..have).map(|_| ResourceRef::parse(&mut from)).collect::<Result<Vec<_>, _>>()?;
        let message = from.rest();
        if message.len() > CONTROL_BYTES_MAX {
            return Err(MalformedControl::TooLong(message.len()));
        }
        Ok(Self { resources, message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn parse_returns_what_was_emitted() {
        let connected = ClientConnected { uid: 1000, pid: 7, program: Name::new("mx_pingpong").unwrap() };
        assert_eq!(ClientConnected::parse(&connected.emit()), Ok(connected));
        let resources = vec![
            ResourceRef::Extent { window: WindowId(3), offset: EXTENTS_OFFSET, bytes: 4096, generation: 70_000 },
            ResourceRef::PrivateExtent { window: WindowId::OWN, offset: EXTENTS_OFFSET, bytes: 8192, generation: 1 },
            ResourceRef::ReadOnlyExtent { window: WindowId(3), offset: EXTENTS_OFFSET, bytes: 8192, generation: 1 },
            ResourceRef::Doorbell { peer: 0, vector: 2 },
            ResourceRef::VectorEvents { vector: 9 },
            ResourceRef::EventChannel { window: WindowId(3), offset: EXTENTS_OFFSET },
        ];
        let packet = ControlPacket { resources, message: b"hello" };
        assert_eq!(ControlPacket::parse(&packet.emit()), Ok(packet));
        let extent = RevokedExtent { window: WindowId(3), offset: EXTENTS_OFFSET, generation: 70_000 };
        assert_eq!(RevokedExtent::parse(&extent.emit()), Ok(extent));
        assert_eq!(WindowId::parse(&WindowId(0x102).emit()), Ok(WindowId(0x102)));
    }

    #[test]
    fn a_packet_cut_anywhere_is_refused_or_shorter() {
        let resources = vec![ResourceRef::VectorEvents { vector: 1 }; CONTROL_FDS_MAX];
        let whole = ControlPacket { resources, message: b"" }.emit();
        for cut in 0..whole.len() {
            assert!(ControlPacket::parse(&whole[..cut]).is_err(), "{cut}");
        }
        let mut more = whole.clone();
        more[0] = CONTROL_FDS_MAX as u8 + 1;
        assert_eq!(ControlPacket::parse(&more), Err(MalformedControl::List { have: 9, max: 8 }));
        let mut other = whole;
        other[1] = 7;
        assert_eq!(ControlPacket::parse(&other), Err(MalformedControl::Kind(7)));
    }
}
