//! The border between a guest and its host: how the window that both see is divided, and what their daemons say in it.
//!
//! ```text
//! byte 0       head page: magic, version; a word in which the guest calls, one in which the host answers
//! byte 4096    the crossing: a channel's memory, the host sends on direction 0
//! byte PIECES  pieces: rings, boards and channels of the guest's programs, handed out by the host's daemon
//! ```
//!
//! A guest's daemon has no directory and decides nothing. It passes on what its programs say on its control socket, each message in a
//! *frame* of the crossing, and what the host's daemon answers. Where a message carries file descriptors, the frame says instead what
//! they are: a [`Handed`] is a piece of the window, or a vector of the device, for which the guest's daemon has its device make
//! descriptors. Messages between domains never pass the crossing.
//!
//! Bytes of the window are handed out again and again. Before they become another piece, the host says that they are [`Withdrawn`]: then
//! the guest's daemon takes them away from whoever still maps them, so that programs of a guest see each other's memory never, and
//! answers that they are away.
//!
//! Two guests may have a *common window* beside their own ones: memory that these two see and nobody else but the host, of pieces from
//! its first byte to its last. It is plugged into both while they run, and has one number for both ([`WindowNumber`]). The guest's
//! daemon says which ones it has, and until it has said so the host hands out nothing of them. Where guests can grant pages to one
//! another it is made of lots, and not even the host sees it ([`shared`]).

use alloc::vec::Vec;

use crate::channel::{Geometry, SlabSize};
use crate::control::{Field, MalformedControl, Name, Reader};
use crate::limits::{CONTROL_BYTES_MAX, CONTROL_FDS_MAX, PAGE_BYTES, SLAB_BYTES_MIN};

pub mod lots;
pub mod shared;

/// What the head page begins with, as two words.
pub const MAGIC: [u32; 2] = [u32::from_le_bytes(*b"ISTH"), u32::from_le_bytes(*b"WNDW")];
/// The version of this layout.
pub const VERSION: u32 = 3;
/// Word of the head page: the first half of [`MAGIC`]; the second follows.
pub const MAGIC_WORD: u32 = 0;
/// Word of the head page: [`VERSION`].
pub const VERSION_WORD: u32 = 2;
/// Word of the head page: with what the guest begins a conversation, any number but the one that stands in [`ANSWER_WORD`] and 0.
pub const CALL_WORD: u32 = 32;
/// Word of the head page: the call that the crossing was made ready for. Whatever was said before is forgotten.
pub const ANSWER_WORD: u32 = 64;
/// Word of the head page: the host's beat. As long as there is a device, the host's daemon changes it every [`BEAT_MS`], to any number
/// but 0, which says that it does not.
pub const HOST_BEAT_WORD: u32 = 96;
/// Word of the head page: the guest's beat, as the host's.
pub const GUEST_BEAT_WORD: u32 = 128;

/// How often daemons change their beat, in milliseconds.
pub const BEAT_MS: u32 = 1000;
/// Whose beat has not changed for so many milliseconds hangs, or is in a guest that is paused. That ends nothing.
pub const SILENT_AFTER_MS: u32 = 5 * BEAT_MS;

/// Where the crossing lies.
pub const CROSSING_AT: u64 = PAGE_BYTES as u64;
/// The crossing's memory.
pub const CROSSING: Geometry = Geometry { slab: SlabSize::new(2 * SLAB_BYTES_MIN).expect("a slab may be as large") };
/// Where pieces begin.
pub const PIECES_AT: u64 = (CROSSING_AT + CROSSING.size().0).next_multiple_of(PAGE_BYTES as u64);
/// The smallest window: room for a domain or two.
pub const WINDOW_BYTES_MIN: u64 = 1 << 20;

/// The vector by which either side is told to look at the crossing. Toward the host, vector 1 + w wakes worker w; toward the guest, the
/// vectors from 1 on are shared out among its domains.
pub const CROSSING_VECTOR: u16 = 0;

/// Bytes of the longest frame's content.
pub const FRAME_BYTES_MAX: usize = CONTROL_BYTES_MAX + 1 + CONTROL_FDS_MAX * Handed::BYTES;

/// Control messages of one connection that a guest's daemon has sent and the host has not taken. Beyond them it lets the program wait.
pub const UNTAKEN_MAX: u32 = 16;

/// After so many taken messages of a connection the host says [`FrameKind::Taken`].
pub const TAKEN_STEP: u32 = 8;

/// A piece of a slab is at most a quarter of it.
const _: () = assert!(FRAME_BYTES_MAX <= CROSSING.slab.bytes() as usize / 4);

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A program has connected; the content is an [`Open`]. To the host alone.
    Open,
    /// A control message: [`Packet`].
    Packet,
    /// The connection is over. No content.
    Closed,
    /// [`TAKEN_STEP`] more messages of the connection have been taken. No content. To the guest alone.
    Taken,
    /// The content is a [`Withdrawn`]; no connection. To the guest alone.
    Withdrawn,
    /// The content is the [`WindowNumber`] of a common window that the guest has now; no connection. To the host alone.
    Plugged,
    /// The same of one that it has no longer.
    Unplugged,
    /// The content is a [`Withdrawn`] that the guest was told of, and nobody there sees any more; no connection. To the host alone.
    Away,
    /// The content is a [`lots::Wanted`]; no connection. To the guest alone.
    Wanted,
    /// The content is a [`lots::Lot`]; no connection. To the host alone.
    Lot,
    /// The content is a [`shared::Share`]: a window that the guest is to have in common with another one; no connection. To the guest alone.
    Share,
    /// The content is a [`shared::Offer`]; no connection. To the host alone.
    Offer,
    /// The content is the [`WindowNumber`] of a window that [`FrameKind::Share`] was about, and that is over; no connection. To the guest
    /// alone.
    Part,
    /// The content is a [`shared::Lend`]: a lot of another guest's in a common window; no connection. To the guest alone.
    Lend,
    /// The content is a [`shared::Lent`]; no connection. To the host alone.
    Lent,
}

impl FrameKind {
    /// As the record's kind.
    pub const fn code(self) -> u8 {
        match self {
            Self::Open => 1,
            Self::Packet => 2,
            Self::Closed => 3,
            Self::Taken => 4,
            Self::Withdrawn => 5,
            Self::Plugged => 6,
            Self::Unplugged => 7,
            Self::Away => 8,
            Self::Wanted => 16,
            Self::Lot => 17,
            Self::Share => 18,
            Self::Offer => 19,
            Self::Part => 20,
            Self::Lend => 21,
            Self::Lent => 22,
        }
    }

    /// None for what is no frame.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Open),
            2 => Some(Self::Packet),
            3 => Some(Self::Closed),
            4 => Some(Self::Taken),
            5 => Some(Self::Withdrawn),
            6 => Some(Self::Plugged),
            7 => Some(Self::Unplugged),
            8 => Some(Self::Away),
            16 => Some(Self::Wanted),
            17 => Some(Self::Lot),
            18 => Some(Self::Share),
            19 => Some(Self::Offer),
            20 => Some(Self::Part),
            21 => Some(Self::Lend),
            22 => Some(Self::Lent),
            _ => None,
        }
    }
}

/// A program of the guest, as its daemon sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// Its user, in the guest. Whose its domains are on the host, the host's configuration says.
    pub uid: u32,
    /// Its process, in the guest; 0 where that cannot be seen.
    pub pid: u32,
    /// What its program is called.
    pub program: Name,
}

impl Open {
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
        let mut from = Reader::new(bytes);
        let open = Self { uid: u32::parse(&mut from)?, pid: u32::parse(&mut from)?, program: Name::parse(&mut from)? };
        from.end()?;
        Ok(open)
    }
}

/// Names a window of a guest: its number among the peers of the device that shows it, less one. Two guests call one that they have in
/// common by the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WindowNumber(pub u16);

impl WindowNumber {
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
        let mut from = Reader::new(bytes);
        let number = Self(u16::parse(&mut from)?);
        from.end()?;
        Ok(number)
    }
}

/// What takes the place of a file descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handed {
    /// Memory: a piece of a window, in whole pages, to be mapped for reading and writing.
    Piece {
        /// Of which.
        window: WindowNumber,
        /// Its first byte.
        offset: u64,
        /// How many.
        bytes: u64,
        /// Which use of these bytes it is.
        age: u32,
    },
    /// The same, of which the bytes stay with whoever maps them when it is withdrawn: a program has memory of its own there.
    Home {
        /// Of which.
        window: WindowNumber,
        /// Its first byte.
        offset: u64,
        /// How many.
        bytes: u64,
        /// Which use of these bytes it is.
        age: u32,
    },
    /// The same bytes, to be mapped for reading only.
    View {
        /// Of which.
        window: WindowNumber,
        /// Its first byte.
        offset: u64,
        /// How many.
        bytes: u64,
        /// Which use of these bytes it is.
        age: u32,
    },
    /// What rings this vector of a peer of the device: 0 is the host, any other is a guest.
    Ringer {
        /// Who is rung.
        peer: u16,
        /// The vector.
        vector: u16,
    },
    /// Where rings of this vector of the guest's own device are heard.
    Listener {
        /// The vector.
        vector: u16,
    },
    /// An end of the event channel that a lot of a common window came with ([`shared`]): what is rung there is heard at the other end.
    Line {
        /// The window.
        window: WindowNumber,
        /// The lot's place.
        place: u64,
    },
}

impl Handed {
    /// Bytes of one.
    pub const BYTES: usize = 24;

    const PIECE: u16 = 1;
    const RINGER: u16 = 2;
    const LISTENER: u16 = 3;
    const HOME: u16 = 4;
    const VIEW: u16 = 5;
    const LINE: u16 = 6;

    fn emit(self, out: &mut Vec<u8>) {
        let (kind, peer, number, offset, bytes) = match self {
            Self::Piece { window, offset, bytes, age } => (Self::PIECE, window.0, age, offset, bytes),
            Self::Home { window, offset, bytes, age } => (Self::HOME, window.0, age, offset, bytes),
            Self::View { window, offset, bytes, age } => (Self::VIEW, window.0, age, offset, bytes),
            Self::Ringer { peer, vector } => (Self::RINGER, peer, vector.into(), 0, 0),
            Self::Listener { vector } => (Self::LISTENER, 0, vector.into(), 0, 0),
            Self::Line { window, place } => (Self::LINE, window.0, 0, place, 0),
        };
        [kind, peer].iter().for_each(|half| half.emit(out));
        number.emit(out);
        [offset, bytes].iter().for_each(|number| number.emit(out));
    }

    fn parse(from: &mut Reader<'_>) -> Result<Self, MalformedControl> {
        let (kind, peer, number) = (u16::parse(from)?, u16::parse(from)?, u32::parse(from)?);
        let (offset, bytes) = (u64::parse(from)?, u64::parse(from)?);
        let (window, age) = (WindowNumber(peer), number);
        match kind {
            Self::PIECE => return Ok(Self::Piece { window, offset, bytes, age }),
            Self::HOME => return Ok(Self::Home { window, offset, bytes, age }),
            Self::VIEW => return Ok(Self::View { window, offset, bytes, age }),
            Self::LINE => return Ok(Self::Line { window, place: offset }),
            _ => {}
        }
        let vector = u16::try_from(number).map_err(|_| MalformedControl::Reserved((number >> 16) as u16))?;
        match kind {
            Self::RINGER => Ok(Self::Ringer { peer, vector }),
            Self::LISTENER => Ok(Self::Listener { vector }),
            other => Err(MalformedControl::Kind(other)),
        }
    }
}

/// A piece that is one no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Withdrawn {
    /// Of which window.
    pub window: WindowNumber,
    /// Its first byte.
    pub offset: u64,
    /// Which use of these bytes it was.
    pub age: u32,
}

impl Withdrawn {
    /// Its bytes.
    pub fn emit(self) -> Vec<u8> {
        let mut out = Vec::new();
        self.offset.emit(&mut out);
        self.age.emit(&mut out);
        self.window.0.emit(&mut out);
        out
    }

    /// Takes all of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<Self, MalformedControl> {
        let mut from = Reader::new(bytes);
        let (offset, age) = (u64::parse(&mut from)?, u32::parse(&mut from)?);
        let withdrawn = Self { window: WindowNumber(u16::parse(&mut from)?), offset, age };
        from.end()?;
        Ok(withdrawn)
    }
}

/// A control message, with what stands for its file descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// In their order. Only the host hands anything.
    pub handed: Vec<Handed>,
    /// The message as it goes over a control socket.
    pub message: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Its bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(1 + self.handed.len() * Handed::BYTES + self.message.len());
        (self.handed.len() as u8).emit(&mut out);
        self.handed.iter().for_each(|handed| handed.emit(&mut out));
        out.extend_from_slice(self.message);
        out
    }

    /// Takes all of `bytes`. What the message says is not looked at.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, MalformedControl> {
        let mut from = Reader::new(bytes);
        let have = usize::from(u8::parse(&mut from)?);
        if have > CONTROL_FDS_MAX {
            return Err(MalformedControl::List { have, most: CONTROL_FDS_MAX });
        }
        let handed = (0..have).map(|_| Handed::parse(&mut from)).collect::<Result<Vec<_>, _>>()?;
        let message = from.rest();
        if message.len() > CONTROL_BYTES_MAX {
            return Err(MalformedControl::TooLong(message.len()));
        }
        Ok(Self { handed, message })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn what_is_emitted_is_parsed() {
        let open = Open { uid: 1000, pid: 7, program: Name::new("mx_pingpong").unwrap() };
        assert_eq!(Open::parse(&open.emit()), Ok(open));
        let handed = vec![
            Handed::Piece { window: WindowNumber(3), offset: PIECES_AT, bytes: 4096, age: 70_000 },
            Handed::Home { window: WindowNumber::OWN, offset: PIECES_AT, bytes: 8192, age: 1 },
            Handed::View { window: WindowNumber(3), offset: PIECES_AT, bytes: 8192, age: 1 },
            Handed::Ringer { peer: 0, vector: 2 },
            Handed::Listener { vector: 9 },
            Handed::Line { window: WindowNumber(3), place: PIECES_AT },
        ];
        let packet = Packet { handed, message: b"hello" };
        assert_eq!(Packet::parse(&packet.emit()), Ok(packet));
        let withdrawn = Withdrawn { window: WindowNumber(3), offset: PIECES_AT, age: 70_000 };
        assert_eq!(Withdrawn::parse(&withdrawn.emit()), Ok(withdrawn));
        assert_eq!(WindowNumber::parse(&WindowNumber(0x102).emit()), Ok(WindowNumber(0x102)));
    }

    #[test]
    fn a_packet_cut_anywhere_is_refused_or_shorter() {
        let handed = vec![Handed::Listener { vector: 1 }; CONTROL_FDS_MAX];
        let whole = Packet { handed, message: b"" }.emit();
        for cut in 0..whole.len() {
            assert!(Packet::parse(&whole[..cut]).is_err(), "{cut}");
        }
        let mut more = whole.clone();
        more[0] = CONTROL_FDS_MAX as u8 + 1;
        assert_eq!(Packet::parse(&more), Err(MalformedControl::List { have: 9, most: 8 }));
        let mut other = whole;
        other[1] = 7;
        assert_eq!(Packet::parse(&other), Err(MalformedControl::Kind(7)));
    }
}
