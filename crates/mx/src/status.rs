//! The results of requests.

use crate::PartnerId;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal,)*) => {
        /// The result of a request, with the number that programs see.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum StatusCode {
            $($(#[$doc])* $name = $number,)*
        }

        impl StatusCode {
            /// All codes, by number.
            pub const ALL: [Self; 17] = [$(Self::$name),*];
        }
    };
}

codes! {
    /// The request succeeded.
    Success = 0,
    /// The request is pending.
    Pending = 1,
    /// The request is pending, but its buffer may be reused.
    Buffered = 2,
    /// The request was refused.
    Rejected = 3,
    /// No reply arrived in time.
    Timeout = 4,
    /// The receive's buffer was shorter than the message.
    Truncated = 5,
    /// The request was cancelled.
    Cancelled = 6,
    /// The endpoint does not exist.
    EndpointUnknown = 7,
    /// The endpoint has been closed.
    EndpointClosed = 8,
    /// The peer is gone, or was disconnected.
    EndpointUnreachable = 9,
    /// The peer's endpoint was reopened after the connect.
    BadSession = 10,
    /// The endpoint has another key.
    BadKey = 11,
    /// The endpoint number is beyond the target's maximum.
    BadEndpoint = 12,
    /// The announced memory does not exist.
    BadRdmaWindow = 13,
    /// The transfer was aborted.
    Aborted = 14,
    /// The receiver's event queue is full.
    EventQueueFull = 15,
    /// Memory is exhausted.
    NoResources = 16,
}

impl StatusCode {
    /// Returns the number that programs see.
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
    /// The result.
    pub code: StatusCode,
    /// The length of the message in bytes.
    pub msg_length: u32,
    /// The match info of the message, or the one that was given to a connect.
    pub match_info: u64,
    /// The sender of the message, its destination, or the endpoint that was connected to. None for a connect that failed. The partner
    /// may have been disconnected since.
    pub source: Option<PartnerId>,
    /// The context that the program gave to the request.
    pub context: usize,
    /// The number of bytes transferred.
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
