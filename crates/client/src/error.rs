//! Errors: a reason of the table, and the details of the case as text.

pub use isthmus_layout::Refusal;
use isthmus_layout::reason::Reason;

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
