//! The crossing: frames between a guest's daemon and its host's, one after the other, through memory that both see.
//!
//! A channel's ring and slab, used plainly: each frame is one record, its content a piece of the slab, and whoever sends rings. What is
//! rare needs no better. The other side may write anything into the memory at any time; then [`Crossing::receive`] says so, once.

use isthmus_layout::border::{CROSSING, FRAME_BYTES_MAX, FrameKind};
use isthmus_layout::channel::Direction;
use isthmus_layout::record::Piece;
use isthmus_shm::{Consumer, Payload, PeerFault, Producer, PushError, RecordBuffer, SlabConsumer, SlabProducer, Words};

/// What a frame is, and which of the guest's connections it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: FrameKind,
    /// The guest's daemon numbers them, and uses no number twice in one conversation.
    pub connection: u32,
}

/// Why the other side's frames make no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CrossingFault {
    /// The ring or the slab is not as it should be.
    #[error(transparent)]
    Memory(#[from] PeerFault),
    /// A record that is no frame.
    #[error("a record of kind {kind} with {words} words is no frame")]
    Record {
        /// Its kind.
        kind: u8,
        /// Its words.
        words: usize,
    },
}

/// One side of a crossing.
#[derive(Debug)]
pub struct Crossing<M> {
    memory: M,
    producer: Producer<M>,
    slab_out: SlabProducer<M>,
    consumer: Consumer<M>,
    slab_in: SlabConsumer<M>,
    record: RecordBuffer,
}

impl<M: Words + Payload + Clone> Crossing<M> {
    /// Over zeroed memory. The host sends on direction 0.
    pub fn new(memory: M, sends: Direction) -> Self {
        let (out, inward) = (CROSSING.direction(sends), CROSSING.direction(sends.other()));
        Self {
            producer: Producer::new(memory.clone(), out),
            slab_out: SlabProducer::new(memory.clone(), out, CROSSING.slab),
            consumer: Consumer::new(memory.clone(), inward),
            slab_in: SlabConsumer::new(memory.clone(), inward, CROSSING.slab),
            record: RecordBuffer::default(),
            memory,
        }
    }

    /// Sends a frame, whole or, while the other side has not taken enough, not at all. Whoever sent rings afterwards.
    pub fn send(&mut self, frame: Frame, content: &[u8]) -> Result<bool, CrossingFault> {
        assert!(content.len() <= FRAME_BYTES_MAX); // Ours.
        if !self.producer.has_room()? {
            return Ok(false);
        }
        let len = content.len() as u32;
        let piece = match len {
            0 => Piece { offset: 0, len: 0 },
            _ => match self.slab_out.reserve(len, len)? {
                Some(piece) => piece,
                None => return Ok(false),
            },
        };
        if len > 0 {
            self.memory.copy_in(self.slab_out.byte(piece), content);
        }
        let words = [frame.connection, piece.offset, piece.len];
        match self.producer.push(frame.kind.code(), &words, &[]) {
            Ok(()) => Ok(true),
            Err(PushError::Full) => unreachable!("it had room for the largest record"),
            Err(PushError::Fault(fault)) => Err(fault.into()),
        }
    }

    /// Takes the next frame, its content into `into`.
    pub fn receive(&mut self, into: &mut Vec<u8>) -> Result<Option<Frame>, CrossingFault> {
        into.clear();
        if !self.consumer.pop(&mut self.record)? {
            return Ok(None);
        }
        let (kind, words) = (self.record.kind(), self.record.words());
        let (Some(kind), &[connection, offset, len]) = (FrameKind::from_code(kind), words) else {
            return Err(CrossingFault::Record { kind, words: words.len() });
        };
        let piece = Piece { offset, len };
        if len as usize > FRAME_BYTES_MAX {
            return Err(CrossingFault::Record { kind: kind.code(), words: words.len() });
        }
        if len > 0 {
            let span = self.slab_in.span(piece)?;
            into.resize(len as usize, 0);
            self.memory.copy_out(span.start(), into);
            self.slab_in.give_back(piece);
            self.slab_in.publish();
        }
        // Whoever waits for room is rung after each turn in any case.
        let _ = self.consumer.publish();
        Ok(Some(Frame { kind, connection }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_shm::{Mapping, Window};

    fn pair() -> (Crossing<Window>, Crossing<Window>, Window) {
        let memory = Window::new(Mapping::private(CROSSING.size()));
        let side = |direction| Crossing::new(memory.clone(), direction);
        (side(Direction::Zero), side(Direction::One), memory)
    }

    #[test]
    fn frames_arrive_whole_and_in_order_until_there_is_no_room() {
        let (mut host, mut guest, _) = pair();
        let (mut sent, mut taken, mut content) = (0_u32, 0_u32, Vec::new());
        let length = |number: u32| number as usize * 977 % (FRAME_BYTES_MAX + 1);
        for _ in 0..100 {
            while host
                .send(Frame { kind: FrameKind::Packet, connection: sent }, &vec![sent as u8; length(sent)])
                .unwrap()
            {
                sent += 1;
            }
            while let Some(frame) = guest.receive(&mut content).unwrap() {
                assert_eq!(frame, Frame { kind: FrameKind::Packet, connection: taken });
                assert!(content == vec![taken as u8; length(taken)], "frame {taken}");
                taken += 1;
            }
            assert_eq!(sent, taken);
        }
        assert!(sent > 300);
        assert!(guest.send(Frame { kind: FrameKind::Closed, connection: 9 }, &[]).unwrap());
        assert_eq!(host.receive(&mut content).unwrap(), Some(Frame { kind: FrameKind::Closed, connection: 9 }));
    }

    #[test]
    fn what_is_no_frame_is_a_fault() {
        let at = CROSSING.direction(Direction::One);
        for (kind, words) in [
            (0, &[1, 0, 0][..]),
            (9, &[1, 0, 0]),
            (2, &[1, 0]),
            (2, &[1, 0, u32::MAX]),
            (2, &[1, CROSSING.slab.bytes(), 100]),
        ] {
            let (mut host, _, memory) = pair();
            Producer::new(memory, at).push(kind, words, &[]).unwrap();
            host.receive(&mut Vec::new()).unwrap_err();
        }
    }
}
