//! How a request ended.

use crate::PartnerId;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// How a request ended, with the numbers that programs see.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum StatusCode {
            $($(#[$doc])* $name = $number,)*
        }

        impl StatusCode {
            /// All of them, by number.
            pub const ALL: [Self; 17] = [$(Self::$name),*];
        }
    };
}

codes! {
    /// As asked.
    Success = 0,
    /// Not over yet.
    Pending = 1,
    /// Not over yet, but the buffer may be used again.
    Buffered = 2,
    /// Refused.
    Rejected = 3,
    /// No answer in time.
    Timeout = 4,
    /// The receiver had less room than the message has bytes.
    Truncated = 5,
    /// Cancelled.
    Cancelled = 6,
    /// There is no such endpoint.
    EndpointUnknown = 7,
    /// The endpoint was there and has been closed.
    EndpointClosed = 8,
    /// The peer is gone, or was disconnected.
    EndpointUnreachable = 9,
    /// The peer has been opened again since it was connected to.
    BadSession = 10,
    /// The endpoint wants another key.
    BadKey = 11,
    /// An endpoint number beyond what the target has.
    BadEndpoint = 12,
    /// Memory that was announced is not there.
    BadRdmaWindow = 13,
    /// The transfer was given up.
    Aborted = 14,
    /// The receiver's event queue is full.
    EventQueueFull = 15,
    /// Out of memory.
    NoResources = 16,
}

impl StatusCode {
    /// The number that programs see.
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// The result of a completed request, or the description of an unexpected message.
///
/// In this order, in which no two fields lie side by side that programs see side by side, too: they would be copied together, and what
/// was written one by one a moment ago would have to reach the cache first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Status {
    /// How it ended.
    pub code: StatusCode,
    /// Bytes of the message.
    pub msg_length: u32,
    /// Of the message; of a connect what was given to it.
    pub match_info: u64,
    /// The sender of the message, its destination, or the endpoint that was connected to. None for a connect that failed. The partner
    /// may have been disconnected since.
    pub source: Option<PartnerId>,
    /// The context that the program gave to the request.
    pub context: usize,
    /// Bytes that were moved.
    pub xfer_length: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_no_gap() {
        for (number, code) in (0..).zip(StatusCode::ALL) {
            assert_eq!(code.number(), number);
        }
    }
}
