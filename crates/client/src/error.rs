//! Errors: always a reason of the table, and the numbers of this case in the text.

use isthmus_layout::reason::Reason;
use std::fmt;

/// Something that was asked for is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// The details of this case; may be empty.
    pub detail: String,
}

impl Refusal {
    /// With details.
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

/// Why a program could not attach.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The daemon, or the way to it, said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A setting of the environment is wrong.
    #[error(transparent)]
    Options(#[from] crate::options::OptionError),
    /// Memory or descriptors of this process ran out on the way.
    #[error(transparent)]
    Platform(#[from] isthmus_platform::PlatformError),
}

impl AttachError {
    /// The reason, where the table has one.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Self::Refused(refusal) => Some(refusal.reason),
            Self::Options(_) | Self::Platform(_) => None,
        }
    }
}
