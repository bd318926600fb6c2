//! The open endpoints of a domain.

use isthmus_layout::control::{Name, ToDaemon};
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::limits::ENDPOINTS_MAX;

const _: () = assert!(ENDPOINTS_MAX <= u32::BITS as u8);

/// Which endpoints are open, and what they are for.
#[derive(Debug, Default)]
pub(crate) struct Endpoints {
    /// A bit for each that is open.
    open: u32,
    labels: [Option<Name>; ENDPOINTS_MAX as usize],
    /// Requests by which capabilities have numbers for endpoints, to be repeated at a daemon after this one.
    claims: Vec<(EndpointIndex, ToDaemon)>,
}

impl Endpoints {
    pub(crate) fn open(&mut self, index: EndpointIndex, label: Option<Name>) {
        self.open |= 1 << index.number();
        self.labels[usize::from(index.number())] = label;
    }

    /// Has a request repeated at a daemon after this one, as long as the endpoint is open.
    pub(crate) fn claim(&mut self, index: EndpointIndex, claim: ToDaemon) {
        self.claims.push((index, claim));
    }

    /// The requests to repeat, in the order in which they were sent.
    pub(crate) fn claims(&self) -> impl Iterator<Item = &ToDaemon> {
        self.claims.iter().map(|(_, claim)| claim)
    }

    /// True if it was open.
    pub(crate) fn close(&mut self, index: EndpointIndex) -> bool {
        let was = self.is_open(index);
        self.open &= !(1 << index.number());
        self.claims.retain(|(of, _)| *of != index);
        was
    }

    #[inline]
    pub(crate) fn is_open(&self, index: EndpointIndex) -> bool {
        self.open & 1 << index.number() != 0
    }

    /// Those that are open, with their labels.
    pub(crate) fn all(&self) -> impl Iterator<Item = (EndpointIndex, Option<&Name>)> {
        let indices = (0..ENDPOINTS_MAX).filter_map(EndpointIndex::new);
        indices
            .filter(|index| self.is_open(*index))
            .map(|index| (index, self.labels[usize::from(index.number())].as_ref()))
    }
}
