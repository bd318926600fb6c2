//! What a link has carried, and what it has not, by reason.

/// The first counters are of what was carried.
const TRAFFIC_COUNTERS: usize = 6;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a link has carried since it was opened. One counter for each reason something is lost.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct LinkCounters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl LinkCounters {
            /// All of them with their names.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }

            /// Those of frames that did not get where they should, and of times that sending stopped, with their names.
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
    /// Not sent: nobody is known by that address (UDP).
    peer_unknown,
    /// Not sent: no route to that host, or a firewall of ours (UDP).
    unreachable,
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
    /// Dropped by the kernel, for we did not receive fast enough.
    overruns,
}

impl LinkCounters {
    /// A frame of so many bytes has gone.
    pub(crate) fn count_sent(&mut self, bytes: usize) {
        self.sent += 1;
        self.sent_bytes += bytes as u64;
    }

    /// A frame of so many bytes has come.
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
        assert_eq!((names[0], names[names.len() - 1], names.len()), ("too_long", "overruns", 13));
    }
}
