//! The counters of a link: carried traffic, and losses by reason.

/// The number of leading counters that count carried traffic.
const TRAFFIC_COUNTERS: usize = 6;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The counters of a link since it was opened. There is one counter for each reason of a loss.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct LinkCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl LinkCounters {
            /// Returns all counters with their names.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// Returns the counters of lost frames and of interrupted sends, with their names.
            pub fn lost(&self) -> impl Iterator<Item = (&'static str, u64)> {
                self.named().skip(TRAFFIC_COUNTERS)
            }
        }
    };
}

counters! {
    /// Frames that the kernel took from us.
    sent,
    /// Bytes of these, from the Ethernet header on.
    sent_bytes,
    /// System calls that sent them.
    sends,
    /// Frames handed to our caller.
    received,
    /// Bytes of these.
    received_bytes,
    /// System calls that received them.
    receives,
    /// Not sent: larger than the interface, or the path, takes now.
    too_long,
    /// Not sent: no peer has this address (UDP).
    peer_unknown,
    /// Not sent: no route to that host (UDP).
    unreachable,
    /// Not sent: a firewall of this host, or the service manager of this process, does not permit it (UDP).
    not_permitted,
    /// Times that sending stopped for want of room.
    no_room,
    /// Times that sending stopped because the link was down.
    down,
    /// Received and dropped: for another host.
    not_for_us,
    /// Received and dropped: longer than we took room for.
    truncated,
    /// Received and dropped: shorter than an Ethernet header.
    short,
    /// Received and dropped: another ethertype (UDP).
    ethertype_foreign,
    /// Received and dropped: not from an address that was configured (UDP).
    sender_unknown,
    /// Received and dropped: from the address of one host in the name of another (UDP).
    sender_forged,
    /// Names not learned, because one host has announced too many (UDP).
    names_refused,
    /// Dropped by the kernel, because this process did not receive fast enough.
    overruns,
}

impl LinkCounters {
    /// Counts a sent frame of `bytes` bytes.
    pub(crate) fn count_sent(&mut self, bytes: usize) {
        self.sent += 1;
        self.sent_bytes += bytes as u64;
    }

    /// Counts a received frame of `bytes` bytes.
    pub(crate) fn count_received(&mut self, bytes: usize) {
        self.received += 1;
        self.received_bytes += bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_counters_follow_traffic_counters() {
        let names: Vec<_> = LinkCounters::default().lost().map(|(name, _)| name).collect();
        assert_eq!((names[0], names[names.len() - 1], names.len()), ("too_long", "overruns", 14));
    }
}
