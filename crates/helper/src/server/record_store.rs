//! The program that makes the kernel record connections: loaded once for all connections to the helper, and kept when the helper is started
//! again.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use isthmus_link::connection_record::{LoadError, RecordMap, Recorder};
use isthmus_platform::{activation, seqpacket};
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};

use crate::refusal::{Refusal, RefusalReason};

/// The names of the map and of the links in the service manager's store. The number is that of the form of a record.
const MAP: &str = "connection-records-1";
const LINKS: [&str; 2] = ["connection-recorder-1", "connection-marker-1"];

/// Returns the recorder that is among descriptors of the service manager.
fn restored(stored: Vec<(String, OwnedFd)>) -> Option<Recorder> {
    let mut stored: BTreeMap<String, OwnedFd> = stored.into_iter().collect();
    let map = RecordMap::try_from(stored.remove(MAP)?).ok()?;
    let [recording, marking] = LINKS.map(|name| stored.remove(name));
    Some(Recorder { map, links: [recording?, marking?] })
}

/// The place of the [`Recorder`], here and in the service manager's store.
#[derive(Debug, Default)]
pub struct RecordStore {
    manager: Option<OwnedFd>,
    recorder: Mutex<Option<Arc<Recorder>>>,
}

impl RecordStore {
    /// Takes a recorder from the descriptors that the service manager has kept. Called before the sandbox is entered.
    pub fn new(stored: Vec<(String, OwnedFd)>) -> Self {
        let manager = activation::fd_store_socket().unwrap_or_else(|error| {
            tracing::warn!(%error, "the program that records connections will not outlive this process");
            None
        });
        Self { manager, recorder: Mutex::new(restored(stored).map(Arc::new)) }
    }

    /// Returns the recorder, which is loaded if there is none.
    pub(super) fn recorder(&self) -> Result<Arc<Recorder>, Refusal> {
        let mut recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(recorder) = &*recorder {
            return Ok(Arc::clone(recorder));
        }
        let loaded = Recorder::load().map_err(|error| match error {
            LoadError::NoCgroups => RefusalReason::NoCgroups.into(),
            LoadError::Refused { step, errno } => {
                tracing::warn!("the kernel does not record connections: {step}: {errno}");
                Refusal::of(errno, RefusalReason::KernelRefused)
            }
        })?;
        tracing::info!("the kernel records connections");
        let [recording, marking] = &loaded.links;
        for (name, fd) in [(MAP, loaded.map.as_fd()), (LINKS[0], recording.as_fd()), (LINKS[1], marking.as_fd())] {
            if let Err(error) = self.keep(name, fd) {
                tracing::warn!(%error, "the program that records connections will not outlive this process");
            }
        }
        Ok(Arc::clone(recorder.insert(Arc::new(loaded))))
    }

    /// Stores a descriptor with the service manager, if there is one.
    fn keep(&self, name: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        let Some(manager) = &self.manager else { return Ok(()) };
        let state = format!("FDSTORE=1\nFDNAME={name}");
        seqpacket::send(manager, state.as_bytes(), &[fd]).map_err(io::Error::other)
    }
}
