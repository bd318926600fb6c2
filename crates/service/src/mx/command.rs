//! The commands of control about MX boards.

use super::capture::NewCapture;
use super::view::{LinkView, MxView};
#[cfg(doc)]
use crate::command::Event;
use isthmus_layout::{DomainId, EndpointIndex, NicId};
use isthmus_link::Link;
use isthmus_mx::board::{Board, BoardSetup};
use isthmus_mx::net::{EndpointTuning, Time};
use isthmus_mx::wire::{BoardName, SessionId, Sizes};
use std::sync::{Arc, Mutex, PoisonError};

/// A command about MX boards.
#[derive(Debug)]
pub enum MxCommand {
    /// Adds a board, with its links to other hosts.
    AddBoard(Box<NewMxBoard>),
    /// Opens an endpoint for a domain.
    OpenEndpoint(Box<NewMxEndpoint>),
    /// Closes an endpoint. Messages that the domain has sent are still delivered.
    CloseEndpoint {
        /// The board.
        board: MxBoardNumber,
        /// The endpoint number.
        endpoint: u8,
    },
    /// Connects a domain to an endpoint of another host. The reply is [`Event::RemoteConnected`].
    Connect(NewMxConnect),
    /// Copies frames of boards into a tap from now on.
    Capture(Box<NewCapture>),
}

/// An MX board, numbered by control.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MxBoardNumber(pub u32);

/// An MX board with links to other hosts.
#[derive(Debug)]
pub struct NewMxBoard {
    /// The number of the board; each number is used once.
    pub number: MxBoardNumber,
    /// Address, name, dialect, and how it finds others.
    pub setup: BoardSetup,
    /// The sizes that all hosts of the network have to agree on.
    pub sizes: Sizes,
    /// Times and limits of its endpoints.
    pub tuning: EndpointTuning,
    /// Other boards of this host; packets for them never go to a link.
    pub locals: Vec<(NicId, BoardName)>,
    /// Boards of other hosts that are known from the beginning.
    pub peers: Vec<(NicId, BoardName)>,
    /// The links of the board with their ranks; a higher rank is better.
    pub links: Vec<(Box<dyn Link>, u32)>,
    /// The visible state of the board, which the worker updates.
    pub view: Arc<Mutex<MxView>>,
}

impl NewMxBoard {
    /// Fills the view with the links and the static peers, before the worker updates it for the first time.
    pub fn show(&self) {
        let mut board = Board::new(self.setup);
        for &(nic, name) in &self.locals {
            let _ = board.add_local(nic, name); // The worker logs the boards that do not fit.
        }
        for &(nic, name) in &self.peers {
            let _ = board.add_static(Time::ZERO, nic, name); // The worker logs these errors, too.
        }
        let links = self.links.iter().map(|(link, rank)| LinkView::of(&**link, *rank)).collect();
        let shown = MxView { links, peers: board.peers().collect(), ..MxView::default() };
        *self.view.lock().unwrap_or_else(PoisonError::into_inner) = shown;
    }
}

/// An endpoint number of such a board that a domain has.
#[derive(Clone, Debug)]
pub struct NewMxEndpoint {
    /// The board.
    pub board: MxBoardNumber,
    /// The number.
    pub number: u8,
    /// The domain that the endpoint belongs to.
    pub domain: DomainId,
    /// The endpoint of the domain.
    pub at: EndpointIndex,
    /// Bytes that each remote peer may have in the domain's ring: a ring has room for more.
    pub credit: u32,
    /// The key that a connecting peer must present.
    pub key: u32,
    /// Random, drawn for this opening.
    pub session: SessionId,
    /// Random and secret.
    pub secret: u32,
}

/// A connect from one of our endpoints to one of another host.
#[derive(Clone, Copy, Debug)]
pub struct NewMxConnect {
    /// The number of the request, which the [`Event::RemoteConnected`] carries.
    pub request: u64,
    /// The board of ours.
    pub board: MxBoardNumber,
    /// The endpoint number on that board.
    pub endpoint: u8,
    /// The board of the other host.
    pub nic: NicId,
    /// The endpoint there.
    pub number: u8,
    /// The key of that endpoint.
    pub key: u32,
}
