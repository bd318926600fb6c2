//! Sends and receives Ethernet frames in batches.
//!
//! ```text
//!                ┌─ PacketLink   AF_PACKET: any network card, veth, bridge; the default
//!   Link ────────┼─ UdpLink      the same frames as UDP datagrams, for hosts that have only an IP path
//!                └─ XdpLink      AF_XDP, behind the feature `af-xdp`
//!
//!   send     Frame = head + data + pad, gathered by the kernel from where they lie     32 at a time
//!   receive  frames in memory of the link, valid until the next receive                64 at a time
//! ```
//!
//! A frame is a whole Ethernet frame: addresses, ethertype, data; no checksum. A link does not interpret the data, has no thread, never
//! blocks (its descriptor can be polled), and allocates no memory per frame. It loses frames, as a cable does, and counts them by reason
//! ([`LinkCounters`]). Bytes of one frame never appear in another one.
//!
//! A link that is down is no error. The cable may come back, the interface may be recreated, and its MTU may change: the link continues
//! without intervention ([`LinkState`], [`Link::refresh`]).
//!
//! ```
//! use isthmus_link::{Frame, Link, SendNext, PacketLink, PacketOptions};
//!
//! fn greet(interface: &str) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut link = PacketLink::open(interface, 0x86DF, &PacketOptions::default())?;
//!     let mut head = [0xFF; 14]; // To everybody,
//!     head[6..12].copy_from_slice(&isthmus_link::octets(link.nic())); // from us.
//!     head[12..].copy_from_slice(&0x86DF_u16.to_be_bytes());
//!     let sent = link.send(&[Frame::new(&head, &b"hello"[..], &[0; 41])])?;
//!     assert!(sent.next == SendNext::Ready || sent.accepted == 0);
//!     for n in 0..link.receive()? {
//!         println!("{:02x?}", link.frame(n));
//!     }
//!     Ok(())
//! }
//! # let _ = greet("no such interface").unwrap_err();
//! ```

mod bpf;
pub mod connection_record;
mod counters;
mod edge;
mod frame;
mod incoming;
mod interface;
mod link;
mod memory;
mod outgoing;
mod packet;
pub mod raw;
mod sys;
mod tap;
mod tun_device;
mod udp;
#[cfg(feature = "af-xdp")]
mod xdp;

pub use counters::LinkCounters;
pub use edge::{DATAGRAM_BYTES_MAX, EdgeMessage, EdgeSend, EdgeSocket, SEGMENTS_MAX, datagram_bytes_to};
pub use frame::{Frame, HEADER_BYTES, octets};
pub use interface::{Interface, InterfaceError, interface};
pub use link::{Link, LinkError, LinkKind, LinkState, OpenError, RefusedFrames, SEND_MAX, SendNext, SendOutcome};
pub use packet::{PacketLink, PacketOptions};
pub use tap::{TAP_FRAME_BYTES_MAX, Tap, TapWrite};
pub use tun_device::{
    CreateTapError, NewTap, TAP_HEADER_BYTES, TapOffloads, create_tap, has_tun_driver, set_tap_offloads, tap_interface,
};
pub use udp::{Peer, UDP_PORT, UdpLink, UdpOptions};
#[cfg(feature = "af-xdp")]
pub use xdp::{XdpLink, XdpMode, XdpOptions};
