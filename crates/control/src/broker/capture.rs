//! Requests to capture frames of links to other hosts: permissions, and the start of the task that sends the frames.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use isthmus_capture::tap;
use isthmus_layout::Refusal;
use isthmus_layout::control::{Capture, Done, RequestSerial};
use isthmus_layout::reason::Reason;
use isthmus_service::{CaptureTap, WakeReader};
use rustix::net::{AddressFamily, SocketType, sockopt};
use tokio::sync::Notify;

use super::Broker;
use crate::capture::CaptureTask;
use crate::core::types::{ControlSessionId, Outgoing};
use crate::fd_reaper::ReceivedFd;
use crate::viewer::Viewer;

/// Captures at once. Each takes a buffer and a share of the control plane's time.
const CAPTURES_MAX: usize = 4;

/// Bytes of frames that wait for a slow reader.
const BUFFER_BYTES: usize = 8 << 20;

impl Broker {
    pub(super) fn capture(
        &mut self,
        id: ControlSessionId,
        serial: Option<RequestSerial>,
        request: &Capture,
        socket: ReceivedFd,
    ) -> Result<(), Refusal> {
        self.may_capture(id)?;
        if self.captures >= CAPTURES_MAX {
            let text = format!("{CAPTURES_MAX} captures are under way, and the daemon has no buffers for more");
            return Err(Refusal::new(Reason::TooManyRequests, text));
        }
        check_stream_socket(&socket)?;
        let (boards, interfaces) = self.capabilities.mx.capture_targets(&self.core, request)?;
        let (tap, reader) = tap(interfaces.len() as u16, request.snap_bytes, BUFFER_BYTES);
        let wakeup = Arc::new(Notify::new());
        let waker = Arc::clone(&wakeup);
        let wake = WakeReader::new(move || waker.notify_one());
        self.captures += 1;
        let tap = CaptureTap::new(tap, wake);
        for command in self.capabilities.mx.start_capture(&boards, request.domain, &tap) {
            self.core.workers.send(command);
        }
        let capturing = Box::new(CaptureTask { socket, reader, interfaces, wakeup });
        self.core.outgoing.push_back(Outgoing::Capture { to: id, capturing });
        self.core.send(id, serial, Done {}.into(), Vec::new());
        Ok(())
    }

    /// Notes that a capture has ended.
    pub fn capture_ended(&mut self) {
        self.captures -= 1;
    }

    /// The number of running captures.
    pub(crate) fn captures(&self) -> usize {
        self.captures
    }

    /// Admits programs that may see everything: frames are those of all users.
    fn may_capture(&self, id: ControlSessionId) -> Result<(), Refusal> {
        if Viewer::of(&self.core, id).sees_all() {
            return Ok(());
        }
        let (uid, reason) = (self.core.sessions[&id].socket_peer.uid, Reason::CaptureForbidden);
        Err(Refusal::new(reason, format!("user {uid}: {}", reason.summary())))
    }
}

/// Accepts only a stream socket of this host. Writing to other files may block for any time, even in non-blocking mode.
fn check_stream_socket(socket: &ReceivedFd) -> Result<(), Refusal> {
    let kind = || {
        let family = sockopt::socket_domain(socket.as_fd())?;
        Ok::<_, rustix::io::Errno>((family, sockopt::socket_type(socket.as_fd())?))
    };
    match kind() {
        Ok((AddressFamily::UNIX, SocketType::STREAM)) => Ok(()),
        _ => Err(Refusal::new(
            Reason::RequestInvalid,
            "frames go to a stream socket of the Unix domain, and to nothing else",
        )),
    }
}
