//! The buffered part of a long message on its way from the domain to another host.

/// The number of bytes that are fetched from the domain before the peer asks for them.
const PREFETCH_BYTES: u32 = 1 << 20;

/// A message that is fetched from the domain while it is sent.
#[derive(Debug)]
pub(crate) struct OutgoingStream {
    /// The number of bytes that the peer will have requested in total.
    pub(crate) total: u32,
    /// The number of bytes that the peer has requested so far: the end of its furthest request.
    pub(crate) wanted: u32,
    /// The first byte of `bytes` in the message.
    pub(crate) base: u32,
    pub(crate) bytes: Vec<u8>,
    /// Credit that the domain gets back later.
    pub(crate) owed: u32,
    /// The domain was asked to send it.
    pub(crate) requested: bool,
}

impl OutgoingStream {
    /// The number of bytes of the message that have arrived.
    pub(crate) fn received(&self) -> u32 {
        self.base + self.bytes.len() as u32
    }

    /// True if credit is returned later: more bytes are buffered than the peer asked for, or all bytes have arrived. In the domain the
    /// send is over when all credit is back, so the credit of the last fragment waits until the message is over.
    pub(crate) fn defers_credit(&self) -> bool {
        self.received() == self.total || self.received() > self.wanted.saturating_add(PREFETCH_BYTES)
    }

    /// Drops bytes that the peer no longer asks for, once `keep` of them have accumulated. Returns the number of bytes dropped.
    pub(crate) fn discard_consumed(&mut self, keep: u32) -> usize {
        let from = self.wanted.saturating_sub(keep);
        if from.saturating_sub(self.base) < keep {
            return 0;
        }
        let gone = (from - self.base).min(self.bytes.len() as u32);
        self.bytes.drain(..gone as usize);
        self.base += gone;
        gone as usize
    }
}
