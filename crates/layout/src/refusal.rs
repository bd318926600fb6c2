//! Refusals: a reason of the table, with the details of one case.

use alloc::string::{String, ToString as _};
use core::fmt;

use crate::capability::Capability;
use crate::control::{Refused, Text};
use crate::reason::Reason;

/// The refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub reason: Reason,
    /// The details of this case; may be empty.
    pub detail: String,
}

impl Refusal {
    /// Returns a refusal with details.
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }

    /// Returns the refusal of a capability that a program of a guest has asked for.
    pub fn not_in_guests_yet(capability: Capability) -> Self {
        Self::new(Reason::NotInGuestsYet, capability.name())
    }

    /// Returns the details, or the summary of the reason if there are none.
    pub fn text(&self) -> &str {
        if self.detail.is_empty() { self.reason.summary() } else { &self.detail }
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self { reason, detail: String::new() }
    }
}

impl From<&Refusal> for Refused {
    fn from(refusal: &Refusal) -> Self {
        Self { reason: refusal.reason, text: Text::clip(refusal.text()) }
    }
}

impl From<&Refused> for Refusal {
    fn from(refused: &Refused) -> Self {
        Self { reason: refused.reason, detail: refused.text.to_string() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, summary) = (self.reason.name(), self.reason.summary());
        match self.detail.as_str() {
            "" => write!(f, "{summary} [{name}]"),
            // A peer sends the summary where there are no details, and details may begin with it.
            detail if detail.starts_with(summary) => write!(f, "{detail} [{name}]"),
            detail => write!(f, "{summary}: {detail} [{name}]"),
        }
    }
}

impl core::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_the_summary_if_there_are_no_details() {
        let plain = Refusal::from(Reason::NameTaken);
        let sent = Refused::from(&plain);
        assert_eq!((sent.reason, &*sent.text.to_string()), (Reason::NameTaken, Reason::NameTaken.summary()));
        assert_eq!(plain.to_string(), "another domain has this name [name-taken]");
        assert_eq!(Refusal::from(&sent).to_string(), plain.to_string(), "once, also after a message");
    }

    #[test]
    fn details_survive_the_message() {
        let refusal = Refusal::new(Reason::NoSuchDomain, "no domain is called web");
        assert_eq!(Refusal::from(&Refused::from(&refusal)), refusal);
        let shown = "no domain is attached under this name or number: no domain is called web [no-such-domain]";
        assert_eq!(refusal.to_string(), shown);
    }
}
