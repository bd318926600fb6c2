//! Descriptors in flight: sent and never received. The kernel counts them for each user, and refuses a send while there are more than the
//! sender may have open (RLIMIT_NOFILE). Root may send all the same.

use isthmus_platform::seqpacket::{self, SendError};
use rustix::fd::{AsFd, OwnedFd};

/// Descriptors under way in sockets of this process, until it is dropped.
#[derive(Debug, Default)]
pub struct InFlightFds {
    /// Both ends of each socket pair. The kernel drops the descriptors in flight when the receiving end is closed.
    pairs: Vec<(OwnedFd, OwnedFd)>,
}

impl InFlightFds {
    /// Puts `count` descriptors in flight. The error says why there cannot be as many.
    pub fn of(count: usize) -> Result<Self, SendError> {
        let mut in_flight = Self::default();
        // Not a socket: one that is under way in itself stays until the kernel looks for such.
        let carried = rustix::pipe::pipe().map_err(SendError::Refused)?.0;
        let mut under_way = 0;
        while under_way < count {
            let (from, to) = seqpacket::pair().map_err(SendError::Refused)?;
            while under_way < count {
                match seqpacket::send(&from, &[0], &[carried.as_fd()]) {
                    Ok(()) => under_way += 1,
                    Err(SendError::Full) if under_way > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            in_flight.pairs.push((from, to));
        }
        Ok(in_flight)
    }
}
