//! The errors of windows.

use isthmus_layout::Refusal;
use isthmus_layout::control::Name;
use isthmus_layout::reason::Reason;
use isthmus_platform::PlatformError;

/// The reason why a domain cannot be given memory or a doorbell.
#[derive(Debug, thiserror::Error)]
pub enum WindowError {
    /// The window has no room for another extent of this size.
    #[error("the window of {} has no room for {bytes} bytes", guests(.viewers))]
    Full {
        /// The guests that see the window.
        viewers: Vec<Name>,
        /// The number of bytes.
        bytes: u64,
    },
    /// The guest has granted no memory for these bytes.
    #[error("the guest has granted no such part of the window")]
    Outside,
    /// Only the guests see the window.
    #[error("the host does not see what one guest grants to another")]
    NotVisible,
    /// Each vector of the guest wakes a domain already.
    #[error("all {vectors} vectors of guest {guest} for domains are taken")]
    VectorsTaken {
        /// The guest.
        guest: Name,
        /// The number of its vectors for domains.
        vectors: usize,
    },
    /// The guest has no number among the peers of another guest's device, because there were too many guests.
    #[error("guest {0} has come too often")]
    NoPeerNumber(Name),
    /// The device of one guest has fewer vectors than the other one.
    #[error("the device of guest {from} cannot ring vector {vector} of guest {of}")]
    VectorOutOfReach {
        /// The guest that rings.
        from: Name,
        /// The guest with the vector.
        of: Name,
        /// The vector.
        vector: u16,
    },
    /// The system refused memory or a descriptor.
    #[error(transparent)]
    Platform(#[from] PlatformError),
}

fn guests(viewers: &[Name]) -> String {
    let names: Vec<&str> = viewers.iter().map(Name::as_str).collect();
    format!("guest{} {}", if names.len() > 1 { "s" } else { "" }, names.join(" and "))
}

impl From<WindowError> for Refusal {
    fn from(error: WindowError) -> Self {
        let reason = match error {
            WindowError::Full { .. } | WindowError::Outside => Reason::OutOfMemory,
            WindowError::NotVisible => Reason::NoSharedMemory,
            WindowError::VectorsTaken { .. } | WindowError::NoPeerNumber(_) | WindowError::VectorOutOfReach { .. } => {
                Reason::GuestVectorsFull
            }
            WindowError::Platform(error) => return error.into(),
        };
        Self::new(reason, error.to_string())
    }
}

/// A reply of a guest to a request that is not pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnexpectedReply {
    /// The guest grants an extent.
    #[error("the guest grants an extent that was not requested")]
    Grant,
    /// The guest says whether it can map a grant batch.
    #[error("the guest answers a map request that is not pending")]
    Map,
    /// The guest offers a pair window.
    #[error("the guest offers a pair window that it was not asked for")]
    Offer,
}
