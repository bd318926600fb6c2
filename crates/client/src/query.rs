//! Reports of the daemon, and frames of its MX boards, for tools that need not be domains.

use crate::connect;
use crate::control::{Control, Notification};
use crate::error::Refusal;
use crate::options::Options;
use isthmus_layout::DomainId;
use isthmus_layout::control::{Capture, List, Name, Query, ToClient, Topic};
use isthmus_layout::reason::Reason;
use rustix::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// A connection that asks and never attaches.
#[derive(Debug)]
pub struct QueryClient {
    control: Control,
    path: PathBuf,
}

impl QueryClient {
    /// Connects to the daemon that [`Options`] name; never starts one.
    pub fn connect(options: &Options) -> Result<Self, Refusal> {
        let options = Options { no_autostart: true, ..options.clone() };
        let (socket, path) = connect::connect(&options)?;
        Ok(Self { control: Control::open(socket)?, path })
    }

    /// The path of the daemon's socket, as this process has found it.
    pub fn socket(&self) -> &Path {
        &self.path
    }

    pub(crate) fn control(&mut self) -> &mut Control {
        &mut self.control
    }

    /// A report, as JSON.
    pub fn query(&mut self, topic: Topic, arguments: &[&str]) -> Result<String, Refusal> {
        query(&mut self.control, topic, arguments)
    }

    /// Captures frames that MX boards receive and send from now on: of one board, or of all that have links; of one domain, or of
    /// all; `snap_bytes` of each frame at most. They arrive as the messages of `isthmus_capture::stream`. Closing the sending half of
    /// the stream ends the capture in order, with the number of missing frames. Only root and the daemon's own user may capture.
    pub fn capture(
        &mut self,
        board: Option<u32>,
        domain: Option<DomainId>,
        snap_bytes: u32,
    ) -> Result<UnixStream, Refusal> {
        let (ours, theirs) = UnixStream::pair()
            .map_err(|error| Refusal::new(Reason::OutOfFds, format!("a pair of sockets: {error}")))?;
        self.control.request(Capture { board, domain, snap_bytes }.into(), &[theirs.as_fd()])?;
        Ok(ours)
    }
}

pub(crate) fn query(control: &mut Control, topic: Topic, arguments: &[&str]) -> Result<String, Refusal> {
    control.require_minor(topic.since(), "the report")?;
    let invalid = |detail: String| Refusal::new(Reason::RequestInvalid, detail);
    let names: Result<Vec<_>, _> = arguments.iter().map(|name| Name::new(name)).collect();
    let names = names.map_err(|error| invalid(error.to_string()))?;
    let arguments = List::new(names).ok_or_else(|| invalid("too many arguments".to_owned()))?;
    let notification = control.request(Query { topic, arguments }.into(), &[])?;
    reply_text(control, notification)
}

/// Returns the JSON text of a reply that comes in several messages, of which `notification` is the first.
pub(crate) fn reply_text(control: &mut Control, mut notification: Notification) -> Result<String, Refusal> {
    let serial = notification.serial;
    let mut json = Vec::new();
    loop {
        let ToClient::QueryReply(answer) = notification.message else { return Err(Reason::NotIsthmus.into()) };
        json.extend_from_slice(&answer.json);
        if answer.last {
            return String::from_utf8(json).map_err(|_| Reason::NotIsthmus.into());
        }
        notification = control.next_reply(serial)?;
    }
}
