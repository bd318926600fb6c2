//! Why a packet that was well formed changed nothing.

macro_rules! ignored {
    ($($(#[$doc:meta])* $name:ident $reason:literal = $text:literal,)*) => {
        /// Why a packet was dropped. Each reason is counted under its name.
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
    /// Not for the engine of an endpoint.
    NotForEndpoints "not_for_endpoints" = "a packet that no endpoint takes",
    /// For another endpoint of this board.
    WrongEndpoint "wrong_endpoint" = "for another endpoint",
    /// No connect has joined the two endpoints.
    NotConnected "not_connected" = "from an endpoint that is not connected",
    /// For an earlier owner of this endpoint number.
    WrongSession "wrong_session" = "for another session",
    /// Numbered by a count that was given up.
    WrongSesnum "wrong_sesnum" = "numbered in another session number",
    /// A message that has been received.
    Duplicate "duplicate" = "received before",
    /// A message too far ahead of those that are missing.
    TooEarly "too_early" = "too far ahead",
    /// A message before its turn, with too many bytes before their turn already.
    EarlyLimit "early_limit" = "no room before its turn",
    /// A new message while the endpoint takes none.
    NotAccepting "not_accepting" = "no new messages are taken",
    /// A long message more than an endpoint may be told of.
    TooManyAnnounced "too_many_announced" = "too many long messages announced",
    /// A packet that contradicts another one of the same message, or itself.
    Inconsistent "inconsistent" = "contradicts what was said before",
    /// An acknowledgement that is older than another one.
    OldAck "old_ack" = "an old acknowledgement",
    /// A reply that no connect waits for.
    NoSuchConnect "no_such_connect" = "no such connect",
    /// A connect of a session that has ended.
    OldSession "old_session" = "from a session that is over",
    /// Frames of a transfer that is over, or never was.
    NoSuchPull "no_such_pull" = "no such transfer",
    /// Frames that were not asked for.
    Unrequested "unrequested" = "not asked for",
    /// A negative answer to something that was not sent, or is over.
    UnmatchedNack "unmatched_nack" = "refuses nothing that was sent",
    /// A question for frames outside the region, or for too many at a time.
    OutsideRegion "outside_region" = "outside the region",
    /// More questions than an honest peer asks.
    TooManyPullRequests "too_many_pull_requests" = "too many questions",
    /// A partner that is said to be another one now: it is asked.
    UnverifiedPartner "unverified_partner" = "says that a partner is another one now, which is asked",
    /// A partner more than there may be.
    TooManyPartners "too_many_partners" = "too many partners",
}

/// How many packets were dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IgnoredCounts([u64; Ignored::ALL.len()]);

impl IgnoredCounts {
    pub(crate) fn add(&mut self, reason: Ignored) {
        self.0[reason as usize] += 1;
    }

    /// For one reason.
    pub const fn of(&self, reason: Ignored) -> u64 {
        self.0[reason as usize]
    }

    /// All reasons by name, with their counts.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Ignored::ALL.iter().map(|reason| reason.reason()).zip(self.0)
    }

    /// Adds those of another endpoint.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }
}
