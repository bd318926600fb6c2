//! The capabilities of the daemon. Each has its state, its requests and its reports in a folder of its own name. The common code calls all
//! four of them here.

use isthmus_config::Config;
use isthmus_layout::ids::{DomainId, EndpointAddress};
use isthmus_service::Command;
use prometheus_client::registry::Registry;

use crate::broker::{Broker, ControlSessionId};
use crate::mx::Mx;
use crate::overlay::Overlay;
pub(crate) use crate::overlay::TapStore;
use crate::sockets::Sockets;
use crate::tickets::Tickets;
use crate::verbs::Verbs;
use crate::viewer::Viewer;

/// The state of all capabilities.
#[derive(Debug, Default)]
pub struct Capabilities {
    /// MX.
    pub mx: Mx,
    /// Sockets.
    pub sockets: Sockets,
    /// Verbs.
    pub verbs: Verbs,
    /// The overlay.
    pub overlay: Overlay,
}

impl Capabilities {
    /// Opens everything that needs a privilege, and restores the claims of domains that may resume. An error names the setting and the cause.
    pub(crate) fn open(config: &Config, tickets: &Tickets, taps: TapStore) -> Result<Self, String> {
        Ok(Self {
            mx: Mx::open(config, tickets)?,
            sockets: Sockets::open(config),
            verbs: Verbs::open(config, tickets),
            overlay: Overlay::open(config, tickets, taps)?,
        })
    }

    /// Applies what may change while the daemon runs. Returns the key that could not be applied.
    pub(crate) fn reload(broker: &mut Broker, config: &Config) -> Option<&'static str> {
        let error = Overlay::reload(broker, config.overlay.network.as_slice()).err()?;
        tracing::error!("the overlay networks stay as they are: {error}");
        Some("overlay.network")
    }

    /// True if an AF_XDP link is open. Such a link needs privileges again later.
    pub(crate) fn has_xdp_links(&self) -> bool {
        self.mx.has_xdp_links()
    }

    /// True if messages from other hosts can arrive.
    pub(crate) fn has_links(&self) -> bool {
        self.mx.has_links()
    }

    /// Returns the commands that the workers carry out first.
    pub(crate) fn first_commands(&mut self) -> impl Iterator<Item = Command> {
        self.mx.first_commands().chain(self.overlay.first_commands())
    }

    /// True if programs use the daemon without a domain.
    pub(crate) fn is_used(&self) -> bool {
        self.sockets.is_used()
    }

    /// The number of descriptors that are open for programs without a domain.
    pub(crate) fn fds(&self) -> usize {
        self.sockets.fds()
    }

    /// The time at which [`Capabilities::tick`] has something to do.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.sockets.deadline().into_iter().chain(self.overlay.deadline()).min()
    }

    /// Handles all deadlines that have passed.
    pub(crate) fn tick(broker: &mut Broker) {
        Sockets::tick(broker);
        Overlay::tick(broker);
    }

    /// Releases the state of a connection that has ended.
    pub(crate) fn session_closed(broker: &mut Broker, id: ControlSessionId) {
        Sockets::session_closed(broker, id);
    }

    /// Releases the state of a domain that has left, or that will not resume.
    pub(crate) fn left(broker: &mut Broker, domain: DomainId) {
        Mx::left(broker, domain);
        Sockets::left(broker, domain);
        Verbs::left(broker, domain);
        Overlay::left(broker, domain);
    }

    /// Releases the state of an endpoint that was closed.
    pub(crate) fn endpoint_closed(broker: &mut Broker, at: EndpointAddress) {
        Mx::endpoint_closed(broker, at);
        Sockets::endpoint_closed(broker, at);
        Verbs::endpoint_closed(broker, at);
        Overlay::endpoint_closed(broker, at);
    }

    /// Adds the metrics of all capabilities. Overlay networks belong to the host.
    pub(crate) fn metrics(broker: &Broker, viewer: &Viewer, registry: &mut Registry) {
        Mx::metrics(broker, viewer, registry);
        Sockets::metrics(broker, registry);
        Verbs::metrics(broker, registry);
        if viewer.sees_all() {
            Overlay::metrics(broker, registry);
        }
    }
}
