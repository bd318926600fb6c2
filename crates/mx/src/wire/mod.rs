//! MX over Ethernet: every packet that boards of two hosts exchange, as values and as bytes, without I/O or state.
//!
//! ```text
//!   frame  0 ─────────────── 14 ──────── 16 ───────────────────── 24 .. 60 ──────────────┐
//!          │ Ethernet header │ peer index │ body: type, fields    │ data    │ zeros to 60 │
//!          └──── Header ─────┴────────────┴──── Packet ───────────┴─────────┴─────────────┘
//!                  parse ──►  (Header, Packet<&[u8]>)      the data stays where it lies in the frame
//!                  ◄── emit_head  (Header, Packet<D>)      the data is appended by whoever has it
//! ```
//!
//! Two dialects exist, and a network speaks one of them ([`Dialect`]); only MEDIUM and PULL differ. All fields are big-endian.
//! Receivers ignore padding, bytes behind the data, `src_generation`, `checksum` and reserved fields, and senders set them to
//! zero. A frame that [`parse`] refuses is dropped without a reply, and counted under [`Malformed::reason`]. [`parse`] checks
//! that values fit their fields. The engines check sessions, sequence numbers, endpoints and regions.
//!
//! The tables of offsets are in `docs/spec/mxoe.md`. Section numbers in this module are those of the specification that the
//! page names.
//!
//! ```
//! use isthmus_layout::NicId;
//! use isthmus_mx::wire::{self, Dialect, Header, HostQuery, Packet, PeerIndex};
//!
//! let (a, b) = (NicId::from_octets([0, 0x1b, 0x21, 0xaa, 0, 1]), NicId::from_octets([0, 0x1b, 0x21, 0xbb, 0, 2]));
//! let header = Header { dst: b, src: a, peer_index: None };
//! let query: Packet<&[u8]> = Packet::HostQuery(HostQuery { src_dst_peer_index: PeerIndex::new(1), magic: 0x1305_2008 });
//!
//! let mut frame = [0; 60];
//! let bytes = wire::emit(Dialect::Mx, &header, &query, &mut frame)?;
//! assert_eq!(bytes, wire::FRAME_BYTES_MIN);
//! assert_eq!(wire::parse(Dialect::Mx, &frame)?, (header, query));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod connect;
mod dialect;
mod fields;
mod header;
mod host;
mod ids;
mod malformed;
mod message;
mod packet;
mod pull;
mod seqnum;

pub use connect::{ConnectReply, ConnectRequest, ConnectStatus, Liback, Nack, NackLib};
pub use dialect::{Dialect, Sizes};
pub use header::{BROADCAST, ETHERTYPE, FRAME_BYTES_MIN, HEADER_BYTES, Header};
pub use host::{Announcement, BoardName, HostQuery, HostReply, RAW_FRAME_BYTES_MAX, Raw};
pub use ids::{EndpointNumber, PeerIndex, PullHandle, SessionId};
pub use malformed::{EmitError, Malformed};
pub use message::{Eager, MX_FRAGMENT_BYTES_MAX, Medium, MessageHead, Notify, Rndv, SMALL_BYTES_MAX, TINY_BYTES_MAX};
pub use packet::{FrameParts, HEAD_BYTES_MAX, Packet, PacketData, PacketType, emit, emit_head, parse};
pub use pull::{NackMcp, Pull, PullReply};
pub use seqnum::{SeqNum, SesNum};
