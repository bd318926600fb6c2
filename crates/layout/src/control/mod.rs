//! The messages between a library and its daemon, over a Unix socket that keeps message boundaries (`SOCK_SEQPACKET`).
//!
//! ```text
//!   library                                        daemon
//!     │  Hello ──────────────────────────────────►   │   versions, nothing else
//!     │  ◄───────────────────────────── HelloReply   │
//!     │  Attach ─────────────────────────────────►   │
//!     │  ◄──────────────────────────────── Welcome   │   domain ring, ready maps, doorbells (file descriptors)
//!     │  RequestChannel ─────────────────────────►   │ ── ChannelOffer ──► listener
//!     │  ◄─────────────────────────── ChannelOffer   │ ◄─ AcceptChannel ──
//!     │  ◄──────────────────────────── ChannelOpen   │
//! ```
//!
//! One packet is one message: a header of eight bytes (kind, reserved, serial), then the fields of its kind, all little-endian.
//! A reply has the serial of its request. A message that is no reply and expects none has the serial zero. Each kind of message carries a
//! certain number of file descriptors.
//!
//! ```
//! use isthmus_layout::control::{Lookup, MalformedControl, Name, RequestSerial, ToDaemon};
//!
//! let serial = RequestSerial::new(1);
//! let packet = ToDaemon::from(Lookup { name: Name::new("web").unwrap() }).emit(serial);
//! assert_eq!(packet, [7, 0, 0, 0, 1, 0, 0, 0, 3, 0, b'w', b'e', b'b']);
//! assert!(ToDaemon::parse(&packet, 0).is_ok());
//! assert_eq!(ToDaemon::parse(&packet, 1), Err(MalformedControl::Descriptors { kind: 7, have: 1, want: 0 }));
//! ```

use alloc::vec::Vec;
use core::num::NonZeroU32;

pub(crate) mod codec;
mod messages;
mod name;
pub(crate) mod table;
mod values;
pub mod version;

#[cfg(test)]
mod tests;

pub use codec::{BoundedBytes, Field, FieldReader, List, MalformedControl, Width};
pub use messages::*;
pub use name::{InvalidText, Name, TEXT_BYTES_MAX, Text, printable};
pub use table::{FieldInfo, MessageInfo, OptionalDescriptors};
pub use values::{Magic, Owner, ReadyMapIndex, Ticket, Topic};
pub use version::{Version, VersionRange, VersionRefused};

/// The number of bytes before the fields of a message.
pub const HEADER_BYTES: usize = 8;

/// The number that ties a reply to its request. Each side of a connection numbers its own requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestSerial(NonZeroU32);

impl RequestSerial {
    /// Returns the serial with this number. None for zero, which messages without a request or a reply have.
    pub const fn new(number: u32) -> Option<Self> {
        match NonZeroU32::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// Returns the number, as in the header.
    pub const fn number(self) -> u32 {
        self.0.get()
    }

    /// Returns the next serial, which is never zero.
    #[must_use]
    pub const fn next(self) -> Self {
        match self.0.checked_add(1) {
            Some(next) => Self(next),
            None => Self(NonZeroU32::MIN),
        }
    }
}

/// The first eight bytes of each message.
struct Header {
    kind: u16,
    serial: Option<RequestSerial>,
}

impl Header {
    fn emit(&self, out: &mut Vec<u8>) {
        self.kind.emit(out);
        0_u16.emit(out);
        self.serial.map_or(0, RequestSerial::number).emit(out);
    }

    fn parse(from: &mut FieldReader<'_>) -> Result<Self, MalformedControl> {
        let kind = u16::parse(from)?;
        match u16::parse(from)? {
            0 => Ok(Self { kind, serial: RequestSerial::new(u32::parse(from)?) }),
            reserved => Err(MalformedControl::Reserved(reserved)),
        }
    }
}

/// Returns the serial of a packet that does not parse, so that its refusal can name the request.
pub fn serial_of(packet: &[u8]) -> Option<RequestSerial> {
    Header::parse(&mut FieldReader::new(packet)).ok()?.serial
}
