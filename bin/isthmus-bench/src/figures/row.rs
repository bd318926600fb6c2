//! A row: the case that a figure is about, and the cases that run in the same turns.

use crate::case::{Case, LinkCase};
use crate::target::Target;

/// One row.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) target: Option<Target>,
    pub(crate) case: Box<dyn Case>,
    /// Programs that do the same without Isthmus. The best of them is the baseline of the figure.
    pub(crate) peers: Vec<Box<dyn Case>>,
    /// The smallest program of the same structure: the limit that this machine sets.
    pub(crate) floor: Option<Box<dyn Case>>,
    /// Further cases, for the reader.
    pub(crate) beside: Vec<Box<dyn Case>>,
}

impl Row {
    /// Returns a row that stands alone.
    pub(crate) fn new(name: &'static str, case: impl Case + 'static) -> Self {
        Self { name, target: None, case: Box::new(case), peers: Vec::new(), floor: None, beside: Vec::new() }
    }

    /// Returns a row of a pair of workers; none if the path cannot do this.
    pub(crate) fn of_link(name: &'static str, case: LinkCase) -> Option<Self> {
        case.is_supported().then(|| Self::new(name, case))
    }

    pub(crate) fn target(self, target: Target) -> Self {
        Self { target: Some(target), ..self }
    }

    /// Adds a peer, unless it is the case of the row: a path is no peer of its own.
    pub(crate) fn peer(self, peer: impl Case + 'static) -> Self {
        self.peers([Box::new(peer) as Box<dyn Case>])
    }

    /// Adds peers, as [`Self::peer`] does.
    pub(crate) fn peers(mut self, peers: impl IntoIterator<Item = Box<dyn Case>>) -> Self {
        let own = self.case.name();
        self.peers.extend(peers.into_iter().filter(|peer| peer.name() != own));
        self
    }

    pub(crate) fn floor(self, floor: impl Case + 'static) -> Self {
        Self { floor: Some(Box::new(floor)), ..self }
    }

    pub(crate) fn beside(mut self, case: impl Case + 'static) -> Self {
        self.beside.push(Box::new(case));
        self
    }

    /// All cases: the row's own, the peers, the floor, and the others.
    pub(crate) fn cases(&self) -> impl Iterator<Item = &dyn Case> {
        std::iter::once(&self.case).chain(&self.peers).chain(&self.floor).chain(&self.beside).map(|case| &**case)
    }
}
