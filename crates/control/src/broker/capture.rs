//! Requests to capture the frames of MX boards: permissions, the choice of boards and links, and the start of the task that sends the
//! frames.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use isthmus_capture::{InterfaceIndex, PcapInterface, tap};
use isthmus_layout::control::{Capture, Done, RequestSerial};
use isthmus_layout::reason::Reason;
use isthmus_service::{Command, MxBoardNumber, MxCommand, NewCapture, WakeReader};
use rustix::net::{AddressFamily, SocketType, sockopt};
use tokio::sync::Notify;

use super::{Broker, ControlSessionId, Outgoing, Refusal};
use crate::capture::CaptureTask;
use crate::fd_reaper::ReceivedFd;

/// Captures at once. Each takes a buffer and a share of the control plane's time.
const CAPTURES_MAX: usize = 4;

/// Bytes of frames that wait for a slow reader.
const BUFFER_BYTES: usize = 8 << 20;

/// The targets of a capture: the number of each board with the interface of its first link, and all interfaces.
type CaptureTargets = (Vec<(MxBoardNumber, InterfaceIndex)>, Vec<PcapInterface>);

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
        let (boards, interfaces) = self.capture_targets(request)?;
        let (tap, reader) = tap(interfaces.len() as u16, request.snap_bytes, BUFFER_BYTES);
        let wakeup = Arc::new(Notify::new());
        let waker = Arc::clone(&wakeup);
        let wake = WakeReader::new(move || waker.notify_one());
        self.captures += 1;
        self.workers.send(Command::Mx(MxCommand::Capture(Box::new(NewCapture {
            boards,
            domain: request.domain,
            tap,
            wake,
        }))));
        let capturing = Box::new(CaptureTask { socket, reader, interfaces, wakeup });
        self.outgoing.push_back(Outgoing::Capture { to: id, capturing });
        self.send(id, serial, Done {}.into(), Vec::new());
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

    fn may_capture(&self, id: ControlSessionId) -> Result<(), Refusal> {
        let uid = self.sessions[&id].socket_peer.uid;
        let refused = |reason: Reason| Refusal::new(reason, format!("user {uid}: {}", reason.summary()));
        if self.settings.overflow_uid == Some(uid) {
            return Err(refused(Reason::CaptureForbidden)); // Several users may share this UID.
        }
        self.policy.may_capture(uid).map_err(refused)
    }

    /// The requested boards, and their links.
    fn capture_targets(&self, request: &Capture) -> Result<CaptureTargets, Refusal> {
        let of = match request.domain.map(|domain| self.directory.get(domain).ok_or(domain)) {
            None => String::new(),
            Some(Ok(domain)) => format!(", frames of {} ({})", domain.name, domain.id),
            Some(Err(domain)) => {
                let text = format!("{domain} is not attached to this daemon");
                return Err(Refusal::new(Reason::NoSuchDomain, text));
            }
        };
        let (mut boards, mut interfaces) = (Vec::new(), Vec::new());
        for (number, board) in (0_u32..).zip(self.directory.mx().boards()) {
            let view = self.remote_peers.views.get(number as usize).and_then(Option::as_ref);
            let Some(view) = view.filter(|_| request.board.is_none_or(|wanted| wanted == number)) else { continue };
            let first = u16::try_from(interfaces.len()).map(InterfaceIndex).map_err(|_| Reason::RequestInvalid)?;
            boards.push((MxBoardNumber(number), first));
            let view = view.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            interfaces.extend(view.links.iter().map(|link| {
                let description = format!("MX board mx{number} ({}), {}{of}", board.name, link.kind);
                let interface = PcapInterface::new(&link.name, &description).with_nic(board.nic);
                interface.with_snap_bytes(request.snap_bytes)
            }));
        }
        if boards.is_empty() { Err(self.no_links(request.board)) } else { Ok((boards, interfaces)) }
    }

    fn no_links(&self, board: Option<u32>) -> Refusal {
        let boards = self.directory.mx().boards().len();
        match board {
            Some(board) if board as usize >= boards => {
                let text = format!("{}: mx{board}, where there are {boards}", Reason::MxBoardUnknown.summary());
                Refusal::new(Reason::MxBoardUnknown, text)
            }
            Some(board) => Refusal::new(Reason::MxNoLinks, format!("{}: mx{board}", Reason::MxNoLinks.summary())),
            None => Refusal::new(Reason::MxNoLinks, "no MX board of this host has links to other hosts"),
        }
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
