//! Combines frames into messages. Frames of one length to one host leave as one message, which the kernel or the card splits.

use std::net::SocketAddr;

use crate::link::SEND_MAX;
use crate::outgoing::Message;

/// The maximum size of a datagram before it is split: the limit of IPv4, which is the lower one.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;

/// Appends the messages for frames `first..`, as far as `to` knows their destinations. Frames before `singly` become messages of their own;
/// so do all frames if `singly` is `usize::MAX`. A frame that is shorter than those before it can only be the last of its message.
pub(super) fn messages(
    into: &mut Vec<Message>,
    lengths: impl Fn(usize) -> usize,
    to: impl Fn(usize) -> Option<SocketAddr>,
    frames: std::ops::Range<usize>,
    singly: usize,
) {
    into.clear();
    let mut bytes = 0;
    let mut closed = true;
    for n in frames {
        let Some(host) = to(n) else { return };
        let len = lengths(n);
        let is_full = into.len() == SEND_MAX;
        match into.last_mut() {
            Some(message) if !closed && fits(message, host, len, bytes) => {
                message.count += 1;
                closed = Some(len) != message.segment.map(usize::from);
                bytes += len;
            }
            _ if is_full => return,
            _ => {
                let segment = u16::try_from(len).ok();
                into.push(Message { first: n, count: 1, to: Some(host), segment });
                (bytes, closed) = (len, n < singly || segment.is_none());
            }
        }
    }
}

/// Returns true if a frame of length `len` can be appended to a message of `bytes` bytes.
fn fits(message: &Message, to: SocketAddr, len: usize, bytes: usize) -> bool {
    let segment = message.segment.map_or(0, usize::from);
    message.to == Some(to) && len <= segment && bytes + len <= DATAGRAM_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u8) -> Option<SocketAddr> {
        Some(SocketAddr::from(([192, 0, 2, n], 1)))
    }

    /// Returns the number of frames in each message, for frames of these lengths and destinations.
    fn counts(frames: &[(usize, Option<SocketAddr>)], singly: usize) -> Vec<usize> {
        let mut made = Vec::new();
        messages(&mut made, |n| frames[n].0, |n| frames[n].1, 0..frames.len(), singly);
        made.iter().map(|message| message.count).collect()
    }

    #[test]
    fn equal_frames_to_one_host_are_one_message() {
        assert_eq!(counts(&[(1000, host(1)); 20], 0), [20]);
        assert_eq!(counts(&[(9014, host(1)); 20], 0), [7, 7, 6]);
        assert_eq!(counts(&[(65_507, host(1)); 2], 0), [1, 1]);
    }

    #[test]
    fn a_shorter_frame_ends_its_message_and_a_longer_one_begins_the_next() {
        let sizes = [1000, 1000, 60, 60, 60, 1000, 1000].map(|len| (len, host(1)));
        assert_eq!(counts(&sizes, 0), [3, 2, 2]);
    }

    #[test]
    fn another_host_begins_another_message() {
        assert_eq!(counts(&[(60, host(1)), (60, host(2)), (60, host(2)), (60, host(1))], 0), [1, 2, 1]);
        assert_eq!(counts(&[(60, host(1)), (60, None), (60, host(1))], 0), [1]);
    }

    #[test]
    fn first_frames_leave_one_by_one_when_requested() {
        assert_eq!(counts(&[(60, host(1)); 5], usize::MAX), [1; 5]);
        assert_eq!(counts(&[(60, host(1)); 5], 2), [1, 1, 3]);
    }
}
