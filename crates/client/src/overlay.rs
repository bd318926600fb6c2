//! Changes of overlay networks, for tools that need not be domains.

use crate::error::Refusal;
use crate::query::{QueryClient, reply_text};
use isthmus_layout::overlay::{OVERLAY_CHANGE_BYTES_MAX, OverlayChange};
use isthmus_layout::reason::Reason;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::{Errno, pwrite};

/// The seals that the daemon asks for.
const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW).union(SealFlags::SEAL);

impl QueryClient {
    /// Changes the overlay networks of the daemon, as a whole or not at all. `change` is the JSON of a change; the reply is JSON, too. Only
    /// root and the daemon's own user may change them.
    pub fn change_overlay(&mut self, change: &str) -> Result<String, Refusal> {
        if change.len() > OVERLAY_CHANGE_BYTES_MAX {
            let text = format!("a change has at most {OVERLAY_CHANGE_BYTES_MAX} bytes, not {}", change.len());
            return Err(Refusal::new(Reason::RequestInvalid, text));
        }
        let file = sealed(change.as_bytes())
            .map_err(|error| Refusal::new(Reason::OutOfFds, format!("a memory file: {error}")))?;
        let control = self.control();
        let notification = control.request(OverlayChange {}.into(), &[file.as_fd()])?;
        reply_text(control, notification)
    }
}

/// A memory file with these bytes, which no program can change any more.
fn sealed(bytes: &[u8]) -> Result<OwnedFd, Errno> {
    let file = memfd_create(c"isthmus-overlay-change", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut at = 0;
    while at < bytes.len() {
        at += pwrite(&file, &bytes[at..], at as u64)?;
    }
    fcntl_add_seals(&file, SEALS)?;
    Ok(file)
}
