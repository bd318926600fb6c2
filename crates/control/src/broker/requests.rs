//! Dispatches packets to the handlers of their requests, by the stage of their connection.

use isthmus_layout::Refusal;
use isthmus_layout::control::{Done, EndpointOpened, MalformedControl, Query, RequestSerial, ToDaemon, Version};
use isthmus_layout::ids::{DomainId, EndpointAddress};
use isthmus_layout::reason::Reason;

use super::Broker;
use crate::capabilities::Capabilities;
use crate::core::requester::{Answer, Requester};
use crate::core::types::{ControlSessionId, Outgoing};
use crate::core::{Core, SessionStage};
use crate::fd_reaper::ReceivedFd;

/// The number of messages that may wait for a program which requests another report. Messages also wait for room for descriptors in flight,
/// so some of them say nothing about the program.
const BACKLOG_MAX: usize = 4096;

type Request = (Option<RequestSerial>, ToDaemon, Vec<ReceivedFd>);

impl Broker {
    pub(super) fn request(&mut self, id: ControlSessionId, packet: &[u8], fds: Vec<ReceivedFd>) {
        let (serial, message) = match ToDaemon::parse(packet, fds.len()) {
            Ok(parsed) => parsed,
            Err(malformed) => return self.malformed(id, malformed),
        };
        let outcome = match self.core.sessions[&id].stage.clone() {
            SessionStage::Greeted { version, .. } => self.handle_greeted(id, version, (serial, message, fds)),
            SessionStage::Attached { domain } if !self.is_in_version(domain, &message) => {
                return self.malformed(id, MalformedControl::Kind(message.kind()));
            }
            SessionStage::Attached { domain } => self.handle_attached(id, domain, (serial, message, fds)),
            SessionStage::Greeting | SessionStage::Closed => return,
        };
        if let Err(refusal) = outcome {
            self.core.refuse(id, serial, &refusal);
        }
    }

    /// True if the protocol version in use with the domain has this message.
    fn is_in_version(&self, domain: DomainId, message: &ToDaemon) -> bool {
        self.core.attachments.get(&domain).is_none_or(|attachment| message.since() <= attachment.version.minor)
    }

    pub(super) fn malformed(&mut self, id: ControlSessionId, malformed: MalformedControl) {
        self.end_session(id, &Refusal::new(Reason::MalformedControl, malformed.to_string()));
    }

    /// Ends a connection because its library sent a packet that could not be received whole.
    pub fn unreceivable(&mut self, id: ControlSessionId, text: String) {
        self.end_session(id, &Refusal::new(Reason::MalformedControl, text));
    }

    fn handle_greeted(
        &mut self,
        id: ControlSessionId,
        version: Version,
        (serial, message, fds): Request,
    ) -> Result<(), Refusal> {
        if message.since() > version.minor {
            self.malformed(id, MalformedControl::Kind(message.kind()));
            return Ok(());
        }
        match message {
            ToDaemon::Attach(attach) => self.attach(id, serial, attach, fds),
            ToDaemon::Query(query) => self.query(id, serial, query),
            ToDaemon::Capture(capture) => {
                let socket = fds.into_iter().next().expect("the codec has counted");
                self.capture(id, serial, &capture, socket)
            }
            ToDaemon::Sockets(request) => {
                self.ask(id, serial, |all, core, from| all.sockets.request(core, from, request, fds))
            }
            ToDaemon::Overlay(request) => {
                self.ask(id, serial, |all, core, from| all.overlay.request(core, from, &request, fds))
            }
            ToDaemon::Detach(_) => {
                self.core.send(id, serial, Done {}.into(), Vec::new());
                self.close_session(id);
                Ok(())
            }
            _ => Err(Reason::UnexpectedMessageType.into()),
        }
    }

    fn handle_attached(
        &mut self,
        id: ControlSessionId,
        domain: DomainId,
        (serial, message, fds): Request,
    ) -> Result<(), Refusal> {
        let mut fds = fds.into_iter();
        match message {
            ToDaemon::OpenEndpoint(open) => {
                let index = self.core.directory.open_endpoint(domain, open.index, open.label)?;
                self.core.send(id, serial, EndpointOpened { index }.into(), Vec::new());
                return Ok(());
            }
            ToDaemon::CloseEndpoint(close) => {
                self.core.directory.close_endpoint(domain, close.index)?;
                let (capabilities, core) = self.lend();
                capabilities.endpoint_closed(core, EndpointAddress { domain, endpoint: close.index });
            }
            ToDaemon::Lookup(lookup) => return self.lookup(id, serial, domain, lookup.name),
            ToDaemon::RequestChannel(request) => {
                self.request_channel(id, serial, domain, &request);
                return Ok(());
            }
            ToDaemon::AcceptChannel(accept) => return self.accept_channel(domain, accept.channel),
            ToDaemon::RefuseChannel(refuse) => return self.refuse_channel(domain, refuse.channel, refuse.reason),
            ToDaemon::CloseChannel(close) => return self.close_channel(id, domain, close.channel, close.reason),
            ToDaemon::Grant(grant) => self.grant(domain, &grant, fds.next().expect("the codec has counted"))?,
            ToDaemon::Revoke(revoke) => return self.revoke(domain, &revoke),
            ToDaemon::CreateRegion(request) => return self.create_region(id, serial, domain, &request),
            ToDaemon::AdoptReadyMap(adopt) => self.adopt_ready_map(domain, &adopt)?,
            ToDaemon::AdoptChannel(adopt) => {
                self.adopt_channel(domain, &adopt, fds.next().expect("the codec has counted"))?
            }
            ToDaemon::Undelivered(report) => self.undelivered(id, domain, &report),
            ToDaemon::Query(query) => return self.query(id, serial, query),
            ToDaemon::Capture(capture) => {
                return self.capture(id, serial, &capture, fds.next().expect("the codec has counted"));
            }
            ToDaemon::Mx(request) => {
                return self.ask(id, serial, |all, core, from| all.mx.request(core, from, &request));
            }
            ToDaemon::Verbs(request) => {
                return self.ask(id, serial, |all, core, from| all.verbs.request(core, from, &request));
            }
            ToDaemon::Detach(_) => {
                self.detach(domain, Reason::PeerDetached);
                self.core.send(id, serial, Done {}.into(), Vec::new());
                self.close_session(id);
                return Ok(());
            }
            ToDaemon::Hello(_) | ToDaemon::Attach(_) | ToDaemon::Sockets(_) | ToDaemon::Overlay(_) => {
                return Err(Reason::UnexpectedMessageType.into());
            }
        }
        self.core.send(id, serial, Done {}.into(), Vec::new());
        Ok(())
    }

    fn query(&mut self, id: ControlSessionId, serial: Option<RequestSerial>, query: Query) -> Result<(), Refusal> {
        self.core.may_attach(id)?;
        if self.core.sessions[&id].backlog >= BACKLOG_MAX {
            let text = format!("{BACKLOG_MAX} messages wait to be read; another report comes when they were");
            return Err(Refusal::new(Reason::TooManyRequests, text));
        }
        self.capabilities.report_wanted(query.topic, self.core.now);
        self.core.outgoing.push_back(Outgoing::Report { to: id, serial, query });
        Ok(())
    }

    /// Passes a request on to a capability, and sends the answer.
    fn ask(
        &mut self,
        id: ControlSessionId,
        serial: Option<RequestSerial>,
        ask: impl FnOnce(&mut Capabilities, &mut Core, &Requester) -> Result<Answer, Refusal>,
    ) -> Result<(), Refusal> {
        let from = self.core.requester(id, serial).ok_or(Reason::PeerConnectionLost)?;
        let (capabilities, core) = self.lend();
        if let Answer::Now(reply, resources) = ask(capabilities, core, &from)? {
            core.send(id, serial, reply, resources);
        }
        Ok(())
    }
}
