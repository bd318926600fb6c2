//! The endpoints of a board, by number.

use isthmus_layout::DomainId;
use isthmus_mx::net::Time;
use isthmus_mx::wire::EndpointNumber;
use isthmus_mx_transport::MxTransport;

/// An endpoint and its domain.
#[derive(Debug)]
pub(super) struct ServedEndpoint {
    pub(super) transport: MxTransport,
    pub(super) domain: DomainId,
    /// Whether it is in the board's `send_queue`.
    pub(super) is_queued: bool,
    /// Set when the domain has closed the endpoint: the time at which it is removed at the latest.
    pub(super) linger_until: Option<Time>,
}

/// Endpoints by number.
#[derive(Debug, Default)]
pub(super) struct Endpoints(Vec<Option<Box<ServedEndpoint>>>);

impl Endpoints {
    pub(super) fn get(&self, endpoint: EndpointNumber) -> Option<&ServedEndpoint> {
        self.0.get(usize::from(endpoint.0))?.as_deref()
    }

    /// The domain that an endpoint belongs to.
    pub(super) fn owner(&self, endpoint: EndpointNumber) -> Option<DomainId> {
        self.get(endpoint).map(|served| served.domain)
    }

    pub(super) fn get_mut(&mut self, endpoint: EndpointNumber) -> Option<&mut ServedEndpoint> {
        self.0.get_mut(usize::from(endpoint.0))?.as_deref_mut()
    }

    pub(super) fn insert(&mut self, endpoint: EndpointNumber, served: ServedEndpoint) {
        let at = usize::from(endpoint.0);
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        self.0[at] = Some(Box::new(served));
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (EndpointNumber, &ServedEndpoint)> {
        // An endpoint's number has eight bits.
        self.0.iter().enumerate().filter_map(|(at, served)| Some((EndpointNumber(at as u8), served.as_deref()?)))
    }

    pub(super) fn all_mut(&mut self) -> impl Iterator<Item = &mut ServedEndpoint> {
        self.0.iter_mut().flatten().map(Box::as_mut)
    }

    /// Numbers that endpoints have, or had.
    pub(super) fn numbers(&self) -> impl Iterator<Item = EndpointNumber> + use<> {
        (0..self.0.len()).map(|at| EndpointNumber(at as u8))
    }

    pub(super) fn remove(&mut self, endpoint: EndpointNumber) {
        if let Some(place) = self.0.get_mut(usize::from(endpoint.0)) {
            *place = None;
        }
    }
}
