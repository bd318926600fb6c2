//! The reasons why well-formed packets have no effect.

macro_rules! ignored {
    ($($(#[$doc:meta])* $name:ident $reason:literal = $text:literal,)*) => {
        /// The reason why a packet was ignored. Each reason has a counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        pub enum Ignored {
            $($(#[$doc])* #[error($text)] $name,)*
        }

        impl Ignored {
            /// All reasons.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the name of this reason's counter.
            pub const fn reason(self) -> &'static str {
                match self {
                    $(Self::$name => $reason,)*
                }
            }
        }
    };
}

ignored! {
    /// The packet is not for endpoints.
    NotForEndpoints "not_for_endpoints" = "a packet that no endpoint takes",
    /// The packet is for another endpoint of this board.
    WrongEndpoint "wrong_endpoint" = "for another endpoint",
    /// The two endpoints are not connected.
    NotConnected "not_connected" = "from an endpoint that is not connected",
    /// The packet is for an earlier owner of this endpoint number.
    WrongSession "wrong_session" = "for another session",
    /// The number is from an abandoned session number.
    WrongSesnum "wrong_sesnum" = "numbered in another session number",
    /// The message was received before.
    Duplicate "duplicate" = "received before",
    /// The message is too far ahead of the missing ones.
    TooEarly "too_early" = "too far ahead",
    /// The message is out of order, and too many bytes of such messages are kept already.
    EarlyLimit "early_limit" = "no room before its turn",
    /// The message is new, and the endpoint accepts none.
    NotAccepting "not_accepting" = "no new messages are taken",
    /// The maximum number of long messages is announced already.
    TooManyAnnounced "too_many_announced" = "too many long messages announced",
    /// The packet contradicts itself, or another packet of the same message.
    Inconsistent "inconsistent" = "contradicts what was said before",
    /// The acknowledgement is older than another one.
    OldAck "old_ack" = "an old acknowledgement",
    /// No connect waits for the reply.
    NoSuchConnect "no_such_connect" = "no such connect",
    /// The connect is from a session that has ended.
    OldSession "old_session" = "from a session that is over",
    /// The frame belongs to no current transfer.
    NoSuchPull "no_such_pull" = "no such transfer",
    /// The frame was not requested.
    Unrequested "unrequested" = "not asked for",
    /// The negative acknowledgement matches no pending packet.
    UnmatchedNack "unmatched_nack" = "refuses nothing that was sent",
    /// The request is for frames outside the region, or for too many at a time.
    OutsideRegion "outside_region" = "outside the region",
    /// The peer sends more requests than an honest peer.
    TooManyPullRequests "too_many_pull_requests" = "too many questions",
    /// The packet claims that a partner has another session. The partner is queried.
    UnverifiedPartner "unverified_partner" = "says that a partner is another one now, which is asked",
    /// The endpoint has the maximum number of partners.
    TooManyPartners "too_many_partners" = "too many partners",
}

/// The number of ignored packets, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IgnoredCounts([u64; Ignored::ALL.len()]);

impl IgnoredCounts {
    pub(crate) fn add(&mut self, reason: Ignored) {
        self.0[reason as usize] += 1;
    }

    /// Returns the count for one reason.
    pub const fn of(&self, reason: Ignored) -> u64 {
        self.0[reason as usize]
    }

    /// Returns all reasons with their counts.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Ignored::ALL.iter().map(|reason| reason.reason()).zip(self.0)
    }

    /// Adds the counts of another endpoint.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }
}
