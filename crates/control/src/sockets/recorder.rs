//! The kernel's records of connections: how the daemon gets them.
//!
//! ```text
//!   a daemon that root has started        loads the program itself, before it gives up its capabilities
//!   any other one                         asks isthmus-helper: once it serves, and again when a program attaches or a report is wanted
//! ```
//!
//! Without records, streams exist within one network namespace only, by mirrored addresses.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use isthmus_config::Config;
use isthmus_helper::HelperClient;
use isthmus_link::connection_record::Recorder;
use rustix::net::{AddressFamily, SocketType};
use rustix::thread::{CapabilitySet, capabilities};
use tokio::sync::oneshot;

use super::Sockets;
use crate::core::Core;
use crate::core::awaited_work::AwaitedWork;

/// Nanoseconds between two questions to the helper.
const RETRY_NS: u64 = 1_000_000_000;

/// Whether the kernel records connections.
#[derive(Debug)]
pub(super) struct RecordSource {
    /// The socket of the helper.
    helper: PathBuf,
    recorder: Option<Arc<Recorder>>,
    /// The reason if there is none.
    missing: String,
    /// The earliest time of the next question; none while one is under way.
    next: Option<u64>,
    /// A record was read, or the attempt has failed.
    is_checked: bool,
}

impl Default for RecordSource {
    fn default() -> Self {
        Self {
            helper: PathBuf::new(),
            recorder: None,
            missing: "`sockets.connection_records` is false".to_owned(),
            next: None,
            is_checked: false,
        }
    }
}

impl RecordSource {
    /// Loads the program, if the configuration wants records and this process may.
    pub(super) fn open(config: &Config, helper: &Path) -> Self {
        let mut source = Self { helper: helper.to_owned(), ..Self::default() };
        if !config.sockets.enabled || !config.sockets.connection_records {
            return source;
        }
        "isthmus-helper has not replied yet".clone_into(&mut source.missing);
        source.next = Some(0);
        if capabilities(None).is_ok_and(|own| own.effective.contains(CapabilitySet::BPF | CapabilitySet::NET_ADMIN)) {
            match Recorder::load() {
                Ok(recorder) => source.opened(Ok(recorder), 0),
                Err(error) => {
                    source.missing = error.to_string();
                    source.next = None; // The helper would not fare better.
                    tracing::warn!(%error, "{WITHOUT_RECORDS}");
                }
            }
        }
        source
    }

    /// Checks once that this process reads records without a capability, which Linux before 5.19 may forbid.
    pub(super) fn check(&mut self) {
        let Some(recorder) = self.recorder.as_ref().filter(|_| !std::mem::replace(&mut self.is_checked, true)) else {
            return;
        };
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None);
        if let Err(error) = socket.and_then(|socket| recorder.map.read(socket)) {
            self.missing = format!(
                "the daemon cannot read the records: {error}; Linux before 5.19 needs kernel.unprivileged_bpf_disabled = 0 for that"
            );
            tracing::warn!("{WITHOUT_RECORDS}: {}", self.missing);
            (self.recorder, self.next) = (None, None);
        }
    }

    /// The time at which the helper is to be asked first.
    pub(super) fn first(&self) -> Option<u64> {
        self.next.filter(|next| *next == 0 && self.recorder.is_none())
    }

    /// The records.
    pub(super) fn recorder(&self) -> Option<Arc<Recorder>> {
        self.recorder.clone()
    }

    /// The reason why there are no records.
    pub(super) fn missing(&self) -> Option<&str> {
        self.recorder.is_none().then_some(&self.missing)
    }

    /// Asks the helper, if that is due. Returns the work to wait for.
    pub(super) fn ask(&mut self, now: u64) -> Option<AwaitedWork<Sockets>> {
        if self.recorder.is_some() || self.next.is_none_or(|next| now < next) {
            return None;
        }
        self.next = None;
        let (done, result) = oneshot::channel();
        let helper = self.helper.clone();
        let ask = move || {
            let outcome = HelperClient::connect(&helper).and_then(|mut client| client.record_connections());
            let _ = done.send(outcome.map_err(|error| error.to_string())); // An error means that the daemon ends.
        };
        let started =
            std::thread::Builder::new().name("records".to_owned()).spawn(ask).map_err(|error| error.to_string());
        Some(AwaitedWork::new(async move {
            let outcome = match started {
                Ok(_) => {
                    result.await.unwrap_or_else(|_| Err("the thread that asks isthmus-helper has ended".to_owned()))
                }
                Err(error) => Err(error),
            };
            move |sockets: &mut Sockets, core: &mut Core| sockets.records_opened(outcome, core.now)
        }))
    }

    /// Takes the answer.
    pub(super) fn opened(&mut self, outcome: Result<Recorder, String>, now: u64) {
        match outcome {
            Ok(recorder) => self.recorder = Some(Arc::new(recorder)),
            Err(missing) => {
                if missing != self.missing {
                    tracing::info!("{WITHOUT_RECORDS}: {missing}");
                }
                self.missing = missing;
                self.next = Some(now.saturating_add(RETRY_NS));
            }
        }
    }
}

const WITHOUT_RECORDS: &str =
    "connections between network namespaces stay TCP, because the kernel does not record connections";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helper_is_asked_again_after_a_while_if_it_did_not_help() {
        let mut source = RecordSource { next: Some(0), ..RecordSource::default() };
        assert!(source.ask(5).is_some());
        assert!(source.ask(u64::MAX).is_none(), "a question is under way");
        source.opened(Err("no helper listens".to_owned()), 10);
        assert_eq!(source.missing(), Some("no helper listens"));
        assert!(source.ask(9 + RETRY_NS).is_none());
        assert!(source.ask(10 + RETRY_NS).is_some());
    }
}
