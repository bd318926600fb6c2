//! The end of the peer's bytes. The kernel's TCP connection below the stream reports it.

/// The meaning of the kernel's FIN for the program, once the ring is drained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtFin {
    /// The peer sends nothing more and still reads.
    HalfClosed,
    /// The peer has closed the connection or died, and had read everything.
    Closed,
    /// The peer has closed the connection or died with bytes unread. TCP would have reset the connection.
    Reset,
}

/// Interprets a FIN. `half_closed` is the peer's mark that it only ended its sending. `unread` is the number of bytes that were sent
/// through shared memory and not read by the peer.
pub fn at_fin(half_closed: bool, unread: u64) -> AtFin {
    match (half_closed, unread) {
        (true, _) => AtFin::HalfClosed,
        (false, 0) => AtFin::Closed,
        (false, _) => AtFin::Reset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_bytes_turn_a_close_into_a_reset() {
        assert_eq!(at_fin(false, 0), AtFin::Closed);
        assert_eq!(at_fin(false, 1), AtFin::Reset);
        assert_eq!(at_fin(true, 1), AtFin::HalfClosed);
    }
}
