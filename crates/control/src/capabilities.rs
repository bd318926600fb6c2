//! The capabilities of the daemon. Each has its state, its requests and its reports in a folder of its own name. The common code calls all
//! four of them here.

use isthmus_config::Config;
use isthmus_layout::control::Topic;
use isthmus_layout::ids::{DomainId, EndpointAddress};
use isthmus_service::{Command, Event};
use prometheus_client::registry::Registry;

use crate::core::Core;
use crate::core::awaited_work::AwaitedWork;
use crate::core::types::{ControlSessionId, StoredFds};
use crate::mx::Mx;
use crate::overlay::Overlay;

use crate::sockets::Sockets;
use crate::tickets::Tickets;
use crate::verbs::Verbs;
use crate::viewer::Viewer;

/// The state of all capabilities.
#[derive(Debug, Default)]
pub struct Capabilities {
    /// Boards, and the endpoints on them.
    pub mx: Mx,
    /// Streams.
    pub sockets: Sockets,
    /// The virtual RDMA device.
    pub verbs: Verbs,
    /// The overlay.
    pub overlay: Overlay,
}

impl Capabilities {
    /// Opens everything that needs a privilege, and restores the claims of domains that may resume. An error names the setting and the cause.
    pub fn open(config: &Config, tickets: &Tickets, stored: StoredFds) -> Result<Self, String> {
        Ok(Self {
            mx: Mx::open(config, tickets)?,
            sockets: Sockets::open(config, config.helper_socket()),
            verbs: Verbs::open(config, tickets),
            overlay: Overlay::open(config, tickets, stored)?,
        })
    }

    /// Applies what may change while the daemon runs. Returns the key that could not be applied.
    pub(crate) fn reload(&mut self, core: &mut Core, config: &Config) -> Option<&'static str> {
        self.overlay.reload(core, config)
    }

    /// True if an AF_XDP link is open. Such a link needs privileges again later.
    pub fn has_xdp_links(&self) -> bool {
        self.mx.has_xdp_links()
    }

    /// True if messages from other hosts can arrive.
    pub fn has_links(&self) -> bool {
        self.mx.has_links()
    }

    /// Returns the commands that the workers carry out first.
    pub fn first_commands(&mut self) -> impl Iterator<Item = Command> {
        self.mx.first_commands().chain(self.overlay.first_commands())
    }

    /// The number of descriptors that are open for programs without a domain. Each of them has one at least.
    pub(crate) fn fds(&self) -> usize {
        self.sockets.fds()
    }

    /// A program has asked for a report.
    pub(crate) fn report_wanted(&mut self, topic: Topic, now: u64) {
        if topic == Topic::Streams {
            self.sockets.report_wanted(now);
        }
    }

    /// Returns the next work of another thread that is to be waited for.
    pub(crate) fn next_awaited(&mut self) -> Option<AwaitedWork<Self>> {
        let of_sockets = self.sockets.next_awaited().map(|work| work.of(|all: &mut Self| &mut all.sockets));
        of_sockets.or_else(|| Some(self.overlay.next_awaited()?.of(|all: &mut Self| &mut all.overlay)))
    }

    /// The time at which [`Capabilities::tick`] or [`Capabilities::release_part`] has something to do.
    pub(crate) fn deadline(&self) -> Option<u64> {
        self.sockets.deadline().into_iter().chain(self.overlay.deadline()).min()
    }

    /// Handles all deadlines that have passed.
    pub(crate) fn tick(&mut self, core: &mut Core) {
        self.sockets.tick(core);
        self.overlay.tick(core);
    }

    /// Releases a part of the state of connections that have ended, `count` items at most. Returns the rest of `count`.
    pub(crate) fn release_part(&mut self, core: &mut Core, count: usize) -> usize {
        self.sockets.release_part(core, count)
    }

    /// Handles an event of a worker about other hosts or networks.
    pub(crate) fn event(&mut self, core: &mut Core, event: &Event) {
        self.mx.event(core, event);
        self.overlay.event(core, event);
    }

    /// Releases the state of a connection that has ended.
    pub(crate) fn session_closed(&mut self, core: &mut Core, id: ControlSessionId) {
        self.sockets.session_closed(core, id);
    }

    /// Releases the state of a domain that has left, or that will not resume.
    pub(crate) fn left(&mut self, core: &mut Core, domain: DomainId) {
        self.mx.left(core, domain);
        self.verbs.left(domain);
    }

    /// Releases the state of an endpoint that was closed.
    pub(crate) fn endpoint_closed(&mut self, core: &mut Core, at: EndpointAddress) {
        self.mx.endpoint_closed(core, at);
        self.verbs.endpoint_closed(core, at);
    }

    /// Adds the metrics of all capabilities. Ethernet networks belong to the host.
    pub(crate) fn metrics(&self, viewer: &Viewer, registry: &mut Registry) {
        self.mx.metrics(viewer, registry);
        self.sockets.metrics(registry);
        self.verbs.metrics(registry);
        if viewer.sees_all() {
            self.overlay.metrics(registry);
        }
    }
}
