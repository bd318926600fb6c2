//! The overlay in the control plane. The daemon does not have this capability yet: there are no messages for it, and it keeps and reports nothing.

use isthmus_layout::ids::{DomainId, EndpointAddress};
use prometheus_client::registry::Registry;

use crate::broker::Broker;

/// The state of the overlay.
#[derive(Debug, Default)]
pub struct Overlay;

impl Overlay {
    /// Releases the state of a domain that has left, or that will not resume.
    pub(crate) fn left(_broker: &mut Broker, _domain: DomainId) {}

    /// Releases the state of an endpoint that was closed.
    pub(crate) fn endpoint_closed(_broker: &mut Broker, _at: EndpointAddress) {}

    /// Adds the metrics of the overlay.
    pub(crate) fn metrics(_broker: &Broker, _registry: &mut Registry) {}
}
