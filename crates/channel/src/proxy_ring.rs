//! The proxy ring: frames in order between a guest's daemon and its host's, through memory that both map.
//!
//! It uses a channel's ring and slab in a simple way: each frame is one record, its content is a fragment of the slab, and the sender
//! rings the doorbell. Frames are rare, so nothing faster is needed. The other side may write anything into the memory at any time;
//! [`ProxyRing::receive`] then returns an error.

use isthmus_layout::channel::Direction;
use isthmus_layout::proxy::{PROXY_FRAME_BYTES_MAX, PROXY_RING, ProxyFrameKind};
use isthmus_layout::record::Fragment;
use isthmus_shm::{Consumer, Payload, PeerFault, Producer, PushError, RecordBuffer, SlabConsumer, SlabProducer, Words};

/// The header of a frame: its kind, and the guest's connection that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyFrame {
    /// The kind of the frame.
    pub kind: ProxyFrameKind,
    /// The connection number. The guest daemon assigns it, and uses no number twice in one proxy session.
    pub connection: u32,
}

/// A protocol violation by the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyRingFault {
    /// The ring or the slab is invalid.
    #[error(transparent)]
    Memory(#[from] PeerFault),
    /// A record that is not a frame.
    #[error("a record of kind {kind} with {words} words is no frame")]
    Record {
        /// The record's kind.
        kind: u8,
        /// The record's number of words.
        words: usize,
    },
}

/// One side of a proxy ring.
#[derive(Debug)]
pub struct ProxyRing<M> {
    memory: M,
    producer: Producer<M>,
    slab_out: SlabProducer<M>,
    consumer: Consumer<M>,
    slab_in: SlabConsumer<M>,
    record: RecordBuffer,
}

impl<M: Words + Payload + Clone> ProxyRing<M> {
    /// Creates one side over zeroed memory. The host sends on direction 0.
    pub fn new(memory: M, send_direction: Direction) -> Self {
        let (out, inward) = (PROXY_RING.direction(send_direction), PROXY_RING.direction(send_direction.other()));
        Self {
            producer: Producer::new(memory.clone(), out),
            slab_out: SlabProducer::new(memory.clone(), out, PROXY_RING.slab),
            consumer: Consumer::new(memory.clone(), inward),
            slab_in: SlabConsumer::new(memory.clone(), inward, PROXY_RING.slab),
            record: RecordBuffer::default(),
            memory,
        }
    }

    /// Sends a whole frame. Returns false, without sending, if the other side has left no room. The sender rings afterwards.
    pub fn send(&mut self, frame: ProxyFrame, content: &[u8]) -> Result<bool, ProxyRingFault> {
        assert!(content.len() <= PROXY_FRAME_BYTES_MAX); // Ours.
        if !self.producer.has_room()? {
            return Ok(false);
        }
        let len = content.len() as u32;
        let fragment = match len {
            0 => Fragment { offset: 0, len: 0 },
            _ => match self.slab_out.reserve(len, len)? {
                Some(fragment) => fragment,
                None => return Ok(false),
            },
        };
        if len > 0 {
            self.memory.copy_in(self.slab_out.region_offset(fragment), content);
        }
        let words = [frame.connection, fragment.offset, fragment.len];
        match self.producer.push(frame.kind.code(), &words, &[]) {
            Ok(()) => Ok(true),
            Err(PushError::Full) => unreachable!("it had room for the largest record"),
            Err(PushError::Fault(fault)) => Err(fault.into()),
        }
    }

    /// Takes the next frame, and its content into `into`.
    pub fn receive(&mut self, into: &mut Vec<u8>) -> Result<Option<ProxyFrame>, ProxyRingFault> {
        into.clear();
        if !self.consumer.pop(&mut self.record)? {
            return Ok(None);
        }
        let (kind, words) = (self.record.kind(), self.record.words());
        let (Some(kind), &[connection, offset, len]) = (ProxyFrameKind::from_code(kind), words) else {
            return Err(ProxyRingFault::Record { kind, words: words.len() });
        };
        let fragment = Fragment { offset, len };
        if len as usize > PROXY_FRAME_BYTES_MAX {
            return Err(ProxyRingFault::Record { kind: kind.code(), words: words.len() });
        }
        if len > 0 {
            let span = self.slab_in.span(fragment)?;
            into.resize(len as usize, 0);
            self.memory.copy_out(span.start(), into);
            self.slab_in.release(fragment);
            self.slab_in.publish();
        }
        // No wake-up is needed here: a side that waits for room is rung after each iteration in any case.
        let _ = self.consumer.publish();
        Ok(Some(ProxyFrame { kind, connection }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_shm::{Mapping, SharedMapping};

    fn pair() -> (ProxyRing<SharedMapping>, ProxyRing<SharedMapping>, SharedMapping) {
        let memory = SharedMapping::new(Mapping::private(PROXY_RING.size()));
        let side = |direction| ProxyRing::new(memory.clone(), direction);
        (side(Direction::Zero), side(Direction::One), memory)
    }

    #[test]
    fn frames_arrive_whole_and_in_order_until_there_is_no_room() {
        let (mut host, mut guest, _) = pair();
        let (mut sent, mut taken, mut content) = (0_u32, 0_u32, Vec::new());
        let length = |number: u32| number as usize * 977 % (PROXY_FRAME_BYTES_MAX + 1);
        for _ in 0..100 {
            while host
                .send(
                    ProxyFrame { kind: ProxyFrameKind::ControlPacket, connection: sent },
                    &vec![sent as u8; length(sent)],
                )
                .unwrap()
            {
                sent += 1;
            }
            while let Some(frame) = guest.receive(&mut content).unwrap() {
                assert_eq!(frame, ProxyFrame { kind: ProxyFrameKind::ControlPacket, connection: taken });
                assert!(content == vec![taken as u8; length(taken)], "frame {taken}");
                taken += 1;
            }
            assert_eq!(sent, taken);
        }
        assert!(sent > 300);
        assert!(guest.send(ProxyFrame { kind: ProxyFrameKind::Closed, connection: 9 }, &[]).unwrap());
        assert_eq!(
            host.receive(&mut content).unwrap(),
            Some(ProxyFrame { kind: ProxyFrameKind::Closed, connection: 9 })
        );
    }

    #[test]
    fn receive_reports_a_fault_for_other_records() {
        let at = PROXY_RING.direction(Direction::One);
        for (kind, words) in [
            (0, &[1, 0, 0][..]),
            (24, &[1, 0, 0]),
            (2, &[1, 0]),
            (2, &[1, 0, u32::MAX]),
            (2, &[1, PROXY_RING.slab.bytes(), 100]),
        ] {
            let (mut host, _, memory) = pair();
            Producer::new(memory, at).push(kind, words, &[]).unwrap();
            host.receive(&mut Vec::new()).unwrap_err();
        }
    }
}
