//! The boards and links of a capture.

use isthmus_capture::{InterfaceIndex, PcapInterface};
use isthmus_layout::Refusal;
use isthmus_layout::control::Capture;
use isthmus_layout::reason::Reason;
use isthmus_service::{Command, MxBoardNumber, MxCommand, NewCapture};

use super::Mx;
use crate::broker::Broker;

/// The targets of a capture: the number of each board with the interface of its first link, and all interfaces.
type CaptureTargets = (Vec<(MxBoardNumber, InterfaceIndex)>, Vec<PcapInterface>);

impl Mx {
    /// Returns the command with which the workers begin to copy frames.
    pub(crate) fn start_capture(capture: NewCapture) -> Command {
        Command::Mx(MxCommand::Capture(Box::new(capture)))
    }

    /// The requested boards, and their links.
    pub(crate) fn capture_targets(broker: &Broker, request: &Capture) -> Result<CaptureTargets, Refusal> {
        let of = match request.domain.map(|domain| broker.directory.get(domain).ok_or(domain)) {
            None => String::new(),
            Some(Ok(domain)) => format!(", frames of {} ({})", domain.name, domain.id),
            Some(Err(domain)) => {
                let text = format!("{domain} is not attached to this daemon");
                return Err(Refusal::new(Reason::NoSuchDomain, text));
            }
        };
        let mx = &broker.capabilities.mx;
        let (mut boards, mut interfaces) = (Vec::new(), Vec::new());
        for (number, board) in (0_u32..).zip(mx.numbers.boards()) {
            let view = mx.views.get(number as usize).and_then(Option::as_ref);
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
        if boards.is_empty() { Err(mx.no_links(request.board)) } else { Ok((boards, interfaces)) }
    }

    fn no_links(&self, board: Option<u32>) -> Refusal {
        let boards = self.numbers.boards().len();
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
