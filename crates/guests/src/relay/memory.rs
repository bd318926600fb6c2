//! Memory and sockets of a guest. The host cannot map them; it makes the memory that programs of guests share, as extents of windows.

use isthmus_layout::Refusal;
use isthmus_layout::control::ToDaemon;
use isthmus_layout::reason::Reason;

/// Returns the refusal of a request with descriptors.
pub(super) fn refusal(request: &ToDaemon) -> Refusal {
    let (reason, text) = match request {
        ToDaemon::Attach(_) => {
            (Reason::TicketInvalid, "the domain's memory in the window may be used by another domain now")
        }
        ToDaemon::Capture(_) => (Reason::CaptureForbidden, "programs of a guest cannot capture on its host"),
        _ => (Reason::NoSharedMemory, "the host cannot map memory of a guest; regions of the window can be shared"),
    };
    Refusal::new(reason, text)
}
