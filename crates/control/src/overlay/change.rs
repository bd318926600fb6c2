//! Changes of the networks by a command: all edits, or none.
//!
//! ```text
//!   OverlayChange, with a sealed memory file ──► may_change ──► edits ──► Networks::edited ──► Overlay::apply
//!                                                  │                        │                     │
//!                                                  ▼                        ▼                     ▼
//!                                          overlay-forbidden     overlay-change-invalid   overlay-change-failed
//! ```
//!
//! A change holds until the daemon restarts or reads its configuration again.

use std::collections::BTreeSet;
use std::os::fd::AsFd as _;

use isthmus_config::overlay::{ChangeRequest, Edit, Network, Networks};
use isthmus_layout::Refusal;
use isthmus_layout::control::{BoundedBytes, QUERY_REPLY_BYTES_MAX, QueryReply};
use isthmus_layout::overlay::{OVERLAY_CHANGE_BYTES_MAX, OverlayToDaemon};
use isthmus_layout::reason::Reason;
use isthmus_report::SCHEMA;
use isthmus_report::overlay::{OverlayChanged, OverlayTable};
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::io::pread;

use super::Overlay;
use crate::core::Core;
use crate::core::requester::{Answer, Requester};
use crate::fd_reaper::ReceivedFd;
use crate::report::written::json;
use crate::viewer::Viewer;

/// The seals of a file that no program can change any more.
const SEALS: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK).union(SealFlags::GROW);

impl Overlay {
    /// Carries out a request about networks.
    pub(crate) fn request(
        &mut self,
        core: &mut Core,
        from: &Requester,
        request: &OverlayToDaemon,
        fds: Vec<ReceivedFd>,
    ) -> Result<Answer, Refusal> {
        let OverlayToDaemon::OverlayChange(_) = request;
        may_change(core, from)?;
        let file = fds.into_iter().next().expect("the codec has counted");
        let request = serde_json::from_slice(&read(&file)?)
            .map_err(|error| Refusal::new(Reason::RequestInvalid, format!("the change is not well formed: {error}")))?;
        let reply = match request {
            ChangeRequest::Edits(edits) => json(&self.edit(core, &edits)?)?,
            ChangeRequest::Run { network, text } => json(&self.run(core, &network, &text)?)?,
        };
        let mut parts = reply.chunks(QUERY_REPLY_BYTES_MAX).peekable();
        while let Some(part) = parts.next() {
            let json = BoundedBytes::new(part.to_vec()).expect("a chunk of at most this length");
            core.send(from.session, from.serial, QueryReply { last: parts.peek().is_none(), json }.into(), Vec::new());
        }
        Ok(Answer::Later) // All parts were sent.
    }

    /// Applies edits in their order: all, or none.
    pub(super) fn edit(&mut self, core: &mut Core, edits: &[Edit]) -> Result<OverlayChanged, Refusal> {
        let running = self.running();
        let edited =
            running.edited(edits).map_err(|error| Refusal::new(Reason::OverlayChangeInvalid, error.to_string()))?;
        self.apply(core, edited.as_slice()).map_err(|error| Refusal::new(Reason::OverlayChangeFailed, error))?;
        self.changes += 1;
        let names: BTreeSet<_> = edits.iter().map(Edit::network).collect();
        tracing::info!(edits = edits.len(), ?names, "a command has changed overlay networks");
        Ok(OverlayChanged { schema: SCHEMA, toml: edited.toml_text(|name| names.contains(name)) })
    }

    /// Notes that the configuration was read again. `before` are the networks that it has replaced.
    pub(super) fn changes_replaced(&mut self, before: &Networks) {
        let changes = std::mem::take(&mut self.changes);
        let now = self.running();
        let names: BTreeSet<_> = differing(before, &now).chain(differing(&now, before)).collect();
        if changes > 0 && !names.is_empty() {
            tracing::warn!(changes, ?names, "the configuration replaces changes that commands have made to networks");
        }
    }

    /// The running networks, as the configuration would have them.
    pub(super) fn table(&self) -> OverlayTable {
        OverlayTable { schema: SCHEMA, toml: self.running().toml_text(|_| true), changes: self.changes }
    }

    pub(super) fn running(&self) -> Networks {
        Networks::new(self.networks.iter().map(|network| network.plan.clone()).collect())
    }
}

/// The names of networks that `others` does not have as they are.
fn differing<'a>(networks: &'a Networks, others: &Networks) -> impl Iterator<Item = &'a str> {
    let is_other = |network: &&Network| !others.as_slice().contains(network);
    networks.as_slice().iter().filter(is_other).map(|network| network.name.name().as_str())
}

/// Admits root and the user of the daemon, on this host.
fn may_change(core: &Core, from: &Requester) -> Result<(), Refusal> {
    match Viewer::of(core, from.session) {
        Viewer::All => Ok(()),
        Viewer::Guest(_) | Viewer::User(_) | Viewer::Unidentified => {
            let reason = Reason::OverlayForbidden;
            Err(Refusal::new(reason, format!("user {}: {}", from.owner.0, reason.summary())))
        }
    }
}

/// Reads a sealed memory file. Reading from other files may block for any time.
fn read(file: &ReceivedFd) -> Result<Vec<u8>, Refusal> {
    let refused = |text: String| Refusal::new(Reason::RequestInvalid, text);
    if !fcntl_get_seals(file.as_fd()).is_ok_and(|seals| seals.contains(SEALS)) {
        return Err(refused("a change comes in a memory file that is sealed against writing and resizing".to_owned()));
    }
    let failed = |error: rustix::io::Errno| refused(format!("cannot read the change: {error}"));
    let len = fstat(file.as_fd()).map_err(failed)?.st_size as u64;
    if len > OVERLAY_CHANGE_BYTES_MAX as u64 {
        return Err(refused(format!("a change has at most {OVERLAY_CHANGE_BYTES_MAX} bytes, not {len}")));
    }
    let mut bytes = vec![0; len as usize];
    let mut at = 0;
    while at < bytes.len() {
        match pread(file.as_fd(), &mut bytes[at..], at as u64).map_err(failed)? {
            0 => break,
            count => at += count,
        }
    }
    bytes.truncate(at);
    Ok(bytes)
}
