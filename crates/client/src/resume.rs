//! Loss of the daemon, and resuming with the next one.
//!
//! Channels are not affected. Messages in flight through the daemon are lost, and their senders are notified. When a daemon
//! answers again, the domain presents its ticket and its state, and gets a new domain ring.

use crate::connect;
use crate::control::{Control, Notification};
use crate::core::{Core, LocalIdentity};
use crate::error::Refusal;
use crate::matcher::Matcher;
use crate::notifications::map;
use crate::peer::{ChannelState, GrantState, Path, PeerIndex};
use isthmus_channel::{Channel, ChannelParts, Inbox, InboxMapIndex};
use isthmus_layout::channel::{ChannelGeometry, Direction};
use isthmus_layout::control::{AdoptReadyMap, Attach, OpenEndpoint, Resume, ToClient, Welcome};
use isthmus_layout::ids::EndpointIndex;
use isthmus_layout::ready_map;
use isthmus_layout::reason::Reason;
use isthmus_layout::record::{Record, Route, Serial};
use rustix::fd::AsFd;
use std::time::{Duration, Instant};

/// The interval between attempts to reconnect to a daemon.
pub(crate) const RECONNECT_INTERVAL: Duration = Duration::from_millis(100);

/// How long messages wait for a daemon that went away before they fail.
const QUEUED_TIMEOUT: Duration = Duration::from_secs(1);

impl<M: Matcher> Core<M> {
    /// Handles a broken connection to the daemon. Channels go on. Messages in flight through the daemon are lost, and their senders
    /// are notified.
    #[cold]
    pub(crate) fn daemon_lost(&mut self) {
        if self.control.take().is_none() {
            return;
        }
        self.last_reconnect = Some(Instant::now() - RECONNECT_INTERVAL);
        self.disconnected_since = Some(Instant::now());
        if let Some(ring) = self.ring {
            self.drain(ring); // The records that the daemon delivered before it ended.
            self.ring = None;
            self.remove_from_inbox(ring);
        }
        self.peers_owed_credit.clear();
        self.channel_requests.clear();
        self.fail_replies();
        for at in self.peers.indices() {
            self.fail_daemon_path(at);
        }
    }

    /// Fails the messages to and from a peer that were in flight through the daemon, because they are lost. A channel that the daemon
    /// was about to hand over is lost too, because the daemon may have ended before it notified both sides.
    fn fail_daemon_path(&mut self, at: PeerIndex) {
        let peer = &mut self.peers[at];
        if peer.id.is_remote() {
            // The daemon carried all its messages and assigned its number.
            self.fail_peer(at, Reason::DaemonConnectionLost);
            return self.forget_peer(at);
        }
        peer.granted.retain(|_, grant| !matches!(grant, GrantState::Asked(_)));
        peer.grants_refused = None; // The next daemon may have another policy.
        let lost = peer.credit.reset();
        lost.into_iter().for_each(|message| self.fail_send(message, Reason::DaemonConnectionLost));
        let peer = &self.peers[at];
        if let (Path::Channel(_), Path::Channel(_)) = (peer.path_out, peer.path_in) {
            return;
        }
        self.abandon_channel(at);
        self.abort_channel(at, Reason::DaemonConnectionLost);
        self.fail_path(at, Reason::DaemonConnectionLost);
        let peer = &mut self.peers[at];
        (peer.epoch_out, peer.epoch_in, peer.channel_state, peer.channel_attempts) = (0, 0, ChannelState::Absent, 0);
    }

    /// The peer may be further than we are, and use the channel both ways: it is notified by the last record in it. Otherwise it would learn of
    /// it from the next daemon, and what it sends until then would be lost.
    fn abandon_channel(&mut self, at: PeerIndex) {
        let peer = &self.peers[at];
        let (Path::Channel(key), epoch) = (peer.path_out, peer.epoch_out) else { return };
        let unused = EndpointIndex::new(0).expect("the first endpoint is one");
        let route = Route { from: unused, to: unused, epoch, peer: None };
        if let Some(channel) = self.inbox.channel(key) {
            let over = Record::Bounce { serial: Serial(0), reason: Reason::DaemonConnectionLost as u16 };
            // A peer that spoils its side of the ring learns it as late as any other that is not notified.
            let _ = channel.send_final(route, &over);
        }
    }

    /// Tries to reconnect to a daemon and to resume, at intervals.
    #[cold]
    pub(crate) fn reconnect(&mut self) {
        let Some(last) = self.last_reconnect else { return };
        if self.control.is_some() || last.elapsed() < RECONNECT_INTERVAL {
            return;
        }
        self.last_reconnect = Some(Instant::now());
        if let Err(refusal) = self.try_resume() {
            self.control = None;
            if refusal.reason == Reason::HostDaemonUnreachable {
                self.handle_window_lost();
            }
            self.last_refusal = Some(refusal);
            if self.disconnected_since.is_some_and(|since| since.elapsed() >= QUEUED_TIMEOUT) {
                self.fail_waiting();
            }
        }
    }

    /// The guest that this is has lost its host, or that was started again: what peers and we had lay in a window that is another's now.
    fn handle_window_lost(&mut self) {
        for at in self.peers.indices() {
            let peer = self.peers[at].id;
            self.handle_peer_gone(peer, Reason::HostDaemonUnreachable);
        }
    }

    /// Fails the operations that have waited too long for a daemon.
    fn fail_waiting(&mut self) {
        for at in self.peers.indices() {
            if self.peers[at].path_out == Path::Daemon && self.peers[at].has_work() {
                self.fail_peer(at, Reason::DaemonConnectionLost);
            }
        }
    }

    fn try_resume(&mut self) -> Result<(), Refusal> {
        let socket = connect::reconnect(&self.socket_path)?;
        let mut control = Control::open(socket)?;
        let resume = Resume { domain: self.identity.domain, ticket: self.identity.ticket };
        let own = &self.ready_maps[0];
        let attach = Attach { name: Some(self.identity.name.clone()), resume: Some(resume) };
        let answer = control.request(attach.into(), &[own.memory.as_fd(), own.doorbell.as_fd()]);
        if answer.as_ref().is_err_and(|refusal| refusal.reason == Reason::TicketInvalid) {
            return self.attach_as_new();
        }
        let mut notification = answer?;
        let ToClient::Welcome(welcome) = notification.message.clone() else {
            return Err(Reason::NotIsthmus.into());
        };
        for (at, ready_map) in self.ready_maps.iter().enumerate().skip(1) {
            let Some(index) = isthmus_layout::control::ReadyMapIndex::new(at as u8) else { continue };
            let Some(owner) = ready_map.owner else { continue };
            let adopt = AdoptReadyMap { ready_map: index, owner };
            refusal_of(control.request(adopt.into(), &[ready_map.memory.as_fd(), ready_map.doorbell.as_fd()]))?;
        }
        let mut over = Vec::new();
        for resumable in self.resumable_channels.values() {
            let answer = control.request(resumable.channel.clone().into(), &[resumable.memory.as_fd()]);
            over.extend(refusal_of(answer)?.map(|reason| (resumable.channel.clone(), reason)));
        }
        self.reopen_endpoints(&mut control)?;
        self.open_domain_ring(&welcome, &mut notification).map_err(Refusal::from)?;
        self.finish_reconnect(control);
        for at in self.peers.indices() {
            self.grant_arena(at); // Where the old daemon has not passed it on.
        }
        for (channel, reason) in over {
            match reason {
                Reason::PeerConnectionLost => self.handle_peer_gone(channel.peer, reason),
                reason => self.handle_channel_closed(channel.channel, reason),
            }
        }
        Ok(())
    }

    /// Attaches as a new domain, after the daemon has rejected the ticket: its key was removed, or this domain's memory was in an
    /// earlier window. No peer knows the old number any more, so the daemon assigns a new one, and all operations with peers end.
    fn attach_as_new(&mut self) -> Result<(), Refusal> {
        for at in self.peers.indices() {
            self.abandon_channel(at); // The peer stops sending by it at once, and not only when it notices the end of the daemon.
            let peer = self.peers[at].id;
            self.handle_peer_gone(peer, Reason::TicketInvalid);
        }
        let mut control = Control::open(connect::reconnect(&self.socket_path)?)?;
        let attach = Attach { name: Some(self.identity.name.clone()), resume: None };
        let mut notification = control.request(attach.into(), &[])?;
        let ToClient::Welcome(welcome) = notification.message.clone() else {
            return Err(Reason::NotIsthmus.into());
        };
        (self.inbox, self.ring) = (Inbox::new(), None);
        self.ready_maps.clear();
        self.sleeper.forget_doorbells();
        self.resumable_channels.clear();
        self.identity = LocalIdentity::of(&welcome);
        self.reopen_endpoints(&mut control)?;
        self.open_domain_ring(&welcome, &mut notification).map_err(Refusal::from)?;
        self.finish_reconnect(control);
        Ok(())
    }

    /// Opens this domain's endpoints at a daemon again, and repeats their claims.
    fn reopen_endpoints(&self, control: &mut Control) -> Result<(), Refusal> {
        for (index, label) in self.endpoints.all() {
            let open = OpenEndpoint { index: Some(index), label: label.cloned() };
            refusal_of(control.request(open.into(), &[]))?;
        }
        for claim in self.endpoints.claims() {
            refusal_of(control.request(claim.clone(), &[]))?;
        }
        Ok(())
    }

    fn finish_reconnect(&mut self, control: Control) {
        self.sleeper.watch_control(&control);
        self.control = Some(control);
        (self.last_reconnect, self.disconnected_since) = (None, None);
    }

    /// Opens the domain ring that a welcome describes.
    pub(crate) fn open_domain_ring(
        &mut self,
        welcome: &Welcome,
        notification: &mut Notification,
    ) -> Result<(), Reason> {
        let (ring, daemon_ready_map, daemon_doorbell) = (notification.fd(), notification.fd(), notification.doorbell());
        if welcome.fresh {
            let (ready_map, doorbell) = (notification.fd(), notification.doorbell());
            self.add_ready_map(isthmus_layout::control::ReadyMapIndex::DAEMON, None, ready_map, doorbell)?;
        }
        let geometry = ChannelGeometry { slab: welcome.slab };
        let parts = ChannelParts {
            memory: map(&ring, geometry.size())?,
            geometry,
            send_direction: Direction::Zero,
            peer_ready_map: map(&daemon_ready_map, ready_map::SIZE)?,
            ready_bit: welcome.daemon_ready_bit,
            peer_doorbell: daemon_doorbell,
        };
        let key = self.add_to_inbox(Channel::new(parts), InboxMapIndex(0), ready_map::ReadyBit::DOMAIN_RING)?;
        self.inbox.unmute(key);
        self.ring = Some(key);
        Ok(())
    }
}

/// Why a daemon does not take over what we have; an error only if it is gone itself.
fn refusal_of(answer: Result<Notification, Refusal>) -> Result<Option<Reason>, Refusal> {
    match answer {
        Ok(_) => Ok(None),
        Err(refusal) if refusal.reason == Reason::DaemonConnectionLost => Err(refusal),
        Err(refusal) => Ok(Some(refusal.reason)),
    }
}
