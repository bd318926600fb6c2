//! The contents of measuring frames: a kind and a number, after the Ethernet header.

use isthmus_layout::NicId;

use crate::frame::{nic, octets};

/// The size of a message, equal to the shortest frame.
pub const RAW_MESSAGE_BYTES: usize = 60;

/// The offsets of the kind and of the number.
const KIND_AT: usize = 16;
const NUMBER_AT: usize = 24;

/// The message in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RawMessage {
    /// The frame with this number.
    Data(u64),
    /// The number of frames that have arrived or were overtaken by later ones.
    Ack(u64),
    /// The number of frames sent so far, with a request for an acknowledgement.
    Probe(u64),
    /// A number to be sent back.
    Ping(u64),
    /// The number that was sent back.
    Pong(u64),
    /// The end of the measurement.
    Done,
}

impl RawMessage {
    /// Returns the bytes of the frame.
    pub(super) fn emit(self, to: NicId, from: NicId, ethertype: u16) -> [u8; RAW_MESSAGE_BYTES] {
        let (kind, number) = match self {
            Self::Data(number) => (1, number),
            Self::Ack(number) => (2, number),
            Self::Probe(number) => (3, number),
            Self::Ping(number) => (4, number),
            Self::Pong(number) => (5, number),
            Self::Done => (6, 0),
        };
        let mut frame = [0; RAW_MESSAGE_BYTES];
        frame[..6].copy_from_slice(&octets(to));
        frame[6..12].copy_from_slice(&octets(from));
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        frame[KIND_AT] = kind;
        frame[NUMBER_AT..NUMBER_AT + 8].copy_from_slice(&number.to_be_bytes());
        frame
    }

    /// Parses a frame from `from`; returns `None` for other frames and other senders.
    pub(super) fn parse(frame: &[u8], from: NicId) -> Option<Self> {
        if nic(frame, 6)? != from {
            return None;
        }
        let number = u64::from_be_bytes(frame.get(NUMBER_AT..NUMBER_AT + 8)?.try_into().ok()?);
        match frame[KIND_AT] {
            1 => Some(Self::Data(number)),
            2 => Some(Self::Ack(number)),
            3 => Some(Self::Probe(number)),
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
        for message in [
            RawMessage::Data(7),
            RawMessage::Ack(u64::MAX),
            RawMessage::Probe(0),
            RawMessage::Ping(1),
            RawMessage::Pong(2),
            RawMessage::Done,
        ] {
            let frame = message.emit(a, b, 0x86DF);
            assert_eq!(RawMessage::parse(&frame, b), Some(message));
            assert_eq!(RawMessage::parse(&frame, a), None);
            assert!((0..32).all(|len| RawMessage::parse(&frame[..len], b).is_none()));
        }
    }
}
