//! Words of a peer that break the specification.

use core::fmt;

/// A word of the peer that breaks the specification. The stream ends with `ECONNRESET`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The receiver's position lies outside what the sender has written.
    HeadOutside,
    /// The sender's position lies outside the ring.
    TailOutside,
    /// The receiver has taken switches that were not announced.
    TakenOutside,
    /// The sender announced a switch too many, or went back.
    SwitchOutOfTurn,
    /// The announced position lies before what was read, or too far ahead.
    SwitchOutside,
    /// The announced path does not exist, or is the present one.
    PathUnknown,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HeadOutside => "the receiver's position lies outside what was sent",
            Self::TailOutside => "the sender's position lies outside its ring",
            Self::TakenOutside => "the receiver took a switch that was not announced",
            Self::SwitchOutOfTurn => "the sender announced a switch before earlier ones were taken",
            Self::SwitchOutside => "the announced position lies outside what can be in flight",
            Self::PathUnknown => "the announced path does not exist or is the present one",
        })
    }
}

impl core::error::Error for Violation {}
