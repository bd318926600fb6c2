//! What measuring frames say: a kind and a number, after the Ethernet header.

use isthmus_layout::NicId;

use crate::frame::{nic, octets};

/// Bytes of a note: as many as the shortest frame.
pub const NOTE_BYTES: usize = 60;

/// Where it says which kind it is, and its number.
const KIND_AT: usize = 16;
const NUMBER_AT: usize = 24;

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// The frame of this number.
    Data(u64),
    /// So many frames have come, or were passed by later ones.
    Ack(u64),
    /// So many frames were sent: how far are you?
    Ask(u64),
    /// Send this number back.
    Ping(u64),
    /// The number that was sent.
    Pong(u64),
    /// That was all.
    Done,
}

impl Note {
    /// The frame.
    pub(super) fn emit(self, to: NicId, from: NicId, ethertype: u16) -> [u8; NOTE_BYTES] {
        let (kind, number) = match self {
            Self::Data(number) => (1, number),
            Self::Ack(number) => (2, number),
            Self::Ask(number) => (3, number),
            Self::Ping(number) => (4, number),
            Self::Pong(number) => (5, number),
            Self::Done => (6, 0),
        };
        let mut frame = [0; NOTE_BYTES];
        frame[..6].copy_from_slice(&octets(to));
        frame[6..12].copy_from_slice(&octets(from));
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        frame[KIND_AT] = kind;
        frame[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&number.to_be_bytes());
        frame
    }

    /// What a frame from `from` says; none if it is no note, or somebody else's.
    pub(super) fn parse(frame: &[u8], from: NicId) -> Option<Self> {
        if nic(frame, 6)? != from {
            return None;
        }
        let number = u64::from_be_bytes(frame.get(NUMBER_AT..NUMBER_AT + 8)?.try_into().ok()?);
        match frame[KIND_AT] {
            1 => Some(Self::Data(number)),
            2 => Some(Self::Ack(number)),
            3 => Some(Self::Ask(number)),
            4 => Some(Self::Ping(number)),
            5 => Some(Self::Pong(number)),
            6 => Some(Self::Done),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_read_as_they_were_written_and_from_one_sender_only() {
        let (a, b) = (NicId::from_octets([2, 0, 0, 0, 0, 1]), NicId::from_octets([2, 0, 0, 0, 0, 2]));
        for note in [Note::Data(7), Note::Ack(u64::MAX), Note::Ask(0), Note::Ping(1), Note::Pong(2), Note::Done] {
            let frame = note.emit(a, b, 0x86DF);
            assert_eq!(Note::parse(&frame, b), Some(note));
            assert_eq!(Note::parse(&frame, a), None);
            assert!((0..32).all(|len| Note::parse(&frame[..len], b).is_none()));
        }
    }
}
