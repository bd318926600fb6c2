//! A long message on its way from the domain to another host: what is here of it.

/// So much is fetched from the domain before it was asked for.
const PREFETCH_BYTES: u32 = 1 << 20;

/// A message that comes from the domain while it goes.
#[derive(Debug)]
pub(crate) struct OutgoingStream {
    /// Bytes of it that are wanted in all.
    pub(crate) total: u32,
    /// So many of them have been asked for by the peer.
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
    /// So many bytes of the message have come.
    pub(crate) fn received(&self) -> u32 {
        self.base + self.bytes.len() as u32
    }

    /// Credit is given back later: more is here than was asked for, or all. In the domain the send is over when it has all credit
    /// back, so that of the last fragment waits until the message is.
    pub(crate) fn defers_credit(&self) -> bool {
        self.received() == self.total || self.received() > self.wanted.saturating_add(PREFETCH_BYTES)
    }

    /// Drops bytes that the peer no longer asks for, now and then. Returns how many.
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
