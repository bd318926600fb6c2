//! Errors: a reason of the table, and the details of the case as text.

use isthmus_layout::reason::Reason;
use std::fmt;

/// A refused request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub reason: Reason,
    /// The details of this case; may be empty.
    pub detail: String,
}

impl Refusal {
    /// Makes a refusal with details.
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into() }
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self { reason, detail: String::new() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, summary) = (self.reason.name(), self.reason.summary());
        match self.detail.as_str() {
            "" => write!(f, "{summary} [{name}]"),
            detail => write!(f, "{summary}: {detail} [{name}]"),
        }
    }
}

impl std::error::Error for Refusal {}

/// The reason why a program could not attach.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The daemon refused, or could not be reached.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A variable of the environment is invalid.
    #[error(transparent)]
    Options(#[from] crate::options::OptionError),
    /// The process ran out of memory or descriptors.
    #[error(transparent)]
    Platform(#[from] isthmus_platform::PlatformError),
}

impl AttachError {
    /// Returns the reason, if the table has one.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Refused(refusal) => Some(refusal.reason),
            Self::Options(_) | Self::Platform(_) => None,
        }
    }
}
