//! Keeps a guest's connection across a restart of its server: the next server continues it, and QEMU does not notice.
//!
//! ```text
//!   server ── pack ──► fd bundle: socket, window, doorbells ── the server dies ──► resume ──► Connected, as before
//! ```

use super::{Connection, ESTABLISHED_EVENTS, IvshmemServer, ServerGuest};
use crate::device_layout::{VECTORS_MAX, VECTORS_MIN};
use isthmus_layout::RegionSize;
use isthmus_layout::proxy::WINDOW_BYTES_MIN;
use isthmus_platform::PlatformError;
use isthmus_platform::fd_bundle::{self, FdBundle};
use rustix::event::epoll;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::SealFlags;

/// The beginning of the label of a guest's connection. The numbers of vectors toward the host and toward the guest follow.
const LABEL: &str = "isthmus guest 1";

/// The reason why a kept connection cannot be resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// A guest is connected already.
    #[error("a guest is connected already")]
    AlreadyConnected,
    /// The bundle does not belong to a guest's connection, or has another version.
    #[error("the kept state is no guest's connection")]
    NotOurs,
    /// The window is not a sealed memory file of a valid size.
    #[error("the kept window is no sealed memory file of a valid size")]
    Window,
    /// The system refused.
    #[error(transparent)]
    System(#[from] PlatformError),
}

impl IvshmemServer {
    /// Packs the connection of the current guest and the host's side of it, for another process to keep. Returns `None` if there is no
    /// established connection.
    pub fn pack(&self, guest: &ServerGuest) -> Result<Option<[OwnedFd; 2]>, PlatformError> {
        let Some(Connection::Established { socket, .. }) = &self.connection else { return Ok(None) };
        let doorbells = guest.from_guest.iter().chain(&guest.to_guest);
        let fds: Vec<_> = [socket, &guest.window].into_iter().chain(doorbells).map(AsFd::as_fd).collect();
        let label = format!("{LABEL} {} {}", guest.from_guest.len(), guest.to_guest.len());
        fd_bundle::pack(label.as_bytes(), &fds).map(Some)
    }

    /// Resumes a connection that an earlier server packed. [`IvshmemServer::poll`] reports whether QEMU is still there. The guest keeps its
    /// window and vectors; the caller has to restart the protocol in the window. Returns `None` if the bundle is empty.
    pub fn resume(&mut self, kept: impl AsFd) -> Result<Option<ServerGuest>, ResumeError> {
        let Some(FdBundle { label, fds }) = fd_bundle::peek(kept)? else { return Ok(None) };
        if self.connection.is_some() {
            return Err(ResumeError::AlreadyConnected);
        }
        let (from_guest, to_guest) = counts(&label).ok_or(ResumeError::NotOurs)?;
        if fds.len() != 2 + from_guest + to_guest {
            return Err(ResumeError::NotOurs);
        }
        let mut fds = fds.into_iter();
        let (Some(socket), Some(window)) = (fds.next(), fds.next()) else { return Err(ResumeError::NotOurs) };
        let size = window_size(&window).ok_or(ResumeError::Window)?;
        let mut next = |count| fds.by_ref().take(count).collect();
        let (from_guest, to_guest) = (next(from_guest), next(to_guest));
        let process = rustix::net::sockopt::socket_peercred(&socket).ok();
        let process = process.map(|peer| peer.pid.as_raw_nonzero().get());
        epoll::add(&self.ready, &socket, epoll::EventData::new_u64(1), ESTABLISHED_EVENTS)
            .map_err(|source| PlatformError::Refused { operation: "waiting for a connection", source })?;
        self.connection = Some(Connection::established(socket));
        Ok(Some(ServerGuest { window, size, to_guest, from_guest, process }))
    }
}

/// Returns the numbers of vectors toward the host and toward the guest.
fn counts(label: &[u8]) -> Option<(usize, usize)> {
    let (from_guest, to_guest) = str::from_utf8(label).ok()?.strip_prefix(LABEL)?.strip_prefix(' ')?.split_once(' ')?;
    let count = |text: &str| text.parse().ok().filter(|count| (VECTORS_MIN..=VECTORS_MAX).contains(count));
    Some((count(from_guest)?.into(), count(to_guest)?.into()))
}

fn window_size(window: &OwnedFd) -> Option<RegionSize> {
    let seals = rustix::fs::fcntl_get_seals(window).ok()?;
    let bytes = rustix::fs::fstat(window).ok()?.st_size.unsigned_abs();
    let has_valid_size = bytes >= WINDOW_BYTES_MIN && bytes.is_power_of_two();
    (has_valid_size && seals.contains(SealFlags::SHRINK)).then_some(RegionSize(bytes))
}
