//! The counters in the words of a stream, which its programs can write: any value is shown, and none is used.

use std::sync::atomic::Ordering::Relaxed;

use isthmus_layout::sockets::{
    HEAD, HEAD_HIGH, SWITCH_AT, SWITCH_PATH, SWITCHES, StreamEndIndex, StreamPath, TAIL, TAIL_HIGH, TCP_BYTES,
};
use isthmus_shm::Words;

/// The counters of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counters {
    /// The path of the next byte; none if the number is unknown.
    pub(super) path: Option<StreamPath>,
    /// The changes of the path.
    pub(super) switches: u32,
    /// The bytes by shared memory.
    pub(super) shared_bytes: u64,
    /// The bytes by TCP: all up to the last switch, and those behind it that the other end has read.
    pub(super) tcp_bytes: u64,
    /// The bytes that the other end has read, on any path.
    pub(super) read_bytes: u64,
}

/// Reads the counters of the direction that an end sends on.
pub(super) fn counters(words: &impl Words, end: StreamEndIndex) -> Counters {
    let (block, peer) = (end.block(), end.peer().block());
    let load = |word: u32| words.load(word, Relaxed);
    let long = |low: u32, high: u32| u64::from(load(high)) << 32 | u64::from(load(low));
    let switches = load(block + SWITCHES);
    let path = StreamPath::from_word(load(block + SWITCH_PATH + switches % 2));
    let by_tcp = long(block + TCP_BYTES, block + TCP_BYTES + 1);
    // The tail counts the bytes of all paths up to the last byte in a ring.
    let tail = long(block + TAIL, block + TAIL_HIGH);
    let read_bytes = long(peer + HEAD, peer + HEAD_HIGH);
    let (end_of_rings, since) = match path {
        Some(StreamPath::Tcp) => {
            // The tail stays behind if the last ring got no byte. The word has the low half of the position of the switch.
            let least = tail.max(by_tcp);
            let ahead = load(block + SWITCH_AT + switches % 2).wrapping_sub(least as u32);
            let switch_at = least.saturating_add(ahead.into());
            (switch_at, read_bytes.saturating_sub(switch_at))
        }
        _ => (tail, 0),
    };
    let shared_bytes = end_of_rings.saturating_sub(by_tcp);
    Counters { path, switches, shared_bytes, tcp_bytes: by_tcp.saturating_add(since), read_bytes }
}

#[cfg(test)]
mod tests {
    use isthmus_layout::sockets::BLOCK_WORDS;
    use isthmus_platform::local;
    use isthmus_shm::SharedMapping;

    use super::*;

    const END: StreamEndIndex = StreamEndIndex::Connector;

    /// The counters of a direction with these words, of which the other end has read `read` bytes.
    fn of(words: &[(u32, u32)], read: u64) -> Counters {
        let (_, mapping) = local::published_memory(isthmus_layout::sockets::LISTED_SIZE).unwrap();
        let memory = SharedMapping::new(mapping);
        let read = [(BLOCK_WORDS + HEAD, read as u32), (BLOCK_WORDS + HEAD_HIGH, (read >> 32) as u32)];
        words.iter().chain(&read).for_each(|&(word, value)| memory.store(word, value, Relaxed));
        counters(&memory, END)
    }

    fn bytes(counters: Counters) -> (u64, u64) {
        (counters.shared_bytes, counters.tcp_bytes)
    }

    #[test]
    fn bytes_by_tcp_count_when_they_are_read() {
        assert_eq!(bytes(of(&[], 0)), (0, 0));
        assert_eq!(bytes(of(&[], 700)), (0, 700), "before the first switch");
        let ring = [(SWITCHES, 1), (SWITCH_AT + 1, 1000), (SWITCH_PATH + 1, 1), (TCP_BYTES, 1000), (TAIL, 5000)];
        assert_eq!(bytes(of(&ring, 4000)), (4000, 1000));
        let back = [&ring[..], &[(SWITCHES, 2), (SWITCH_AT, 5000), (SWITCH_PATH, 0)]].concat();
        assert_eq!(bytes(of(&back, 4500)), (4000, 1000), "bytes of the ring are unread");
        assert_eq!(bytes(of(&back, 5000 + (9 << 32))), (4000, 1000 + (9 << 32)));
        // A ring without a byte between two times of TCP.
        let again = [(SWITCHES, 4), (SWITCH_AT, 8000), (SWITCH_PATH, 0), (TCP_BYTES, 4000)];
        assert_eq!(bytes(of(&[&back[..], &again].concat(), 8100)), (4000, 4100));
    }

    #[test]
    fn any_words_are_counters() {
        let ones: Vec<_> = (0..BLOCK_WORDS).map(|word| (word, u32::MAX)).collect();
        assert_eq!(of(&ones, u64::MAX).path, None);
        let tcp = [&ones[..], &[(SWITCHES, 0), (SWITCH_PATH, 0)]].concat();
        assert_eq!(bytes(of(&tcp, u64::MAX)), (0, u64::MAX));
    }
}
