//! The boards and links of a capture.

use std::collections::BTreeMap;

use isthmus_capture::{InterfaceIndex, PcapInterface};
use isthmus_layout::Refusal;
use isthmus_layout::control::Capture;
use isthmus_layout::ids::DomainId;
use isthmus_layout::reason::Reason;
use isthmus_service::{CaptureTap, Command, MxBoardNumber, MxCommand, NewCapture, WorkerIndex};

use super::{Mx, worker_of};
use crate::core::Core;

/// The number of each board with the interface of its first link.
type CaptureBoards = Vec<(MxBoardNumber, InterfaceIndex)>;

/// The targets of a capture: the boards, and all interfaces.
type CaptureTargets = (CaptureBoards, Vec<PcapInterface>);

impl Mx {
    /// Returns the commands with which the workers of the boards begin to copy frames.
    pub(crate) fn start_capture(
        &self,
        targets: &CaptureBoards,
        domain: Option<DomainId>,
        tap: &CaptureTap,
    ) -> Vec<Command> {
        let mut by_worker: BTreeMap<WorkerIndex, CaptureBoards> = BTreeMap::new();
        for &(board, first) in targets {
            by_worker.entry(worker_of(board)).or_default().push((board, first));
        }
        let command = |(worker, boards)| {
            let capture = NewCapture { boards, domain, tap: tap.clone() };
            Command::Mx(worker, MxCommand::Capture(Box::new(capture)))
        };
        by_worker.into_iter().map(command).collect()
    }

    /// The requested boards, and their links.
    pub(crate) fn capture_targets(&self, core: &Core, request: &Capture) -> Result<CaptureTargets, Refusal> {
        let of = match request.domain.map(|domain| core.directory.get(domain).ok_or(domain)) {
            None => String::new(),
            Some(Ok(domain)) => format!(", frames of {} ({})", domain.name, domain.id),
            Some(Err(domain)) => {
                let text = format!("{domain} is not attached to this daemon");
                return Err(Refusal::new(Reason::NoSuchDomain, text));
            }
        };
        let (mut boards, mut interfaces) = (Vec::new(), Vec::new());
        for (number, board) in (0_u32..).zip(self.numbers.boards()) {
            let view = self.views.get(number as usize).and_then(Option::as_ref);
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
