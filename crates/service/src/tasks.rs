//! The tasks that a worker carries out for control and for other workers.

use crate::command::{Command, Event, NewDomain};
use crate::counters::bump;
use crate::mailbox::{ForwardedRecord, Task};
use crate::record_kinds::{bounce_serial, reply_route};
use crate::router::{BounceInfo, Location};
use crate::worker::Worker;
use isthmus_layout::DomainId;
use isthmus_layout::limits::DAEMON_PATH_RECORD_COST;
use isthmus_layout::reason::Reason;

impl Worker {
    pub(crate) fn run_task(&mut self, task: Task) {
        match task {
            Task::Command(command) => self.execute(command),
            Task::RemoteDomainAdded { domain, worker } => self.shared.router.add_elsewhere(domain, worker),
            Task::RemoteDomainRemoved { domain, reason } => self.shared.router.remove_elsewhere(domain, reason),
            Task::ForwardedRecord(forwarded) => self.handle_forwarded(&forwarded),
            Task::Credit { to, route, bytes } => match (self.shared.router.location(to), route.peer) {
                (Some(Location::Local(slot)), _) => self.shared.router.credit_sender(slot, route, bytes),
                (Some(Location::Remote(poller)), Some(domain)) => {
                    self.pollers.return_remote_credit(poller, &mut self.shared, (domain, to), bytes);
                }
                _ => {}
            },
            Task::Bounce { to, route, bounce, reason } => {
                if let Some(Location::Local(slot)) = self.shared.router.location(to) {
                    self.shared.router.bounce_to_sender(slot, route, bounce, reason);
                }
            }
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::AddReadyMap { ready_map, memory, doorbell, .. } => {
                assert!(!self.shared.rings.has_ready_map(ready_map), "control numbers each ready map once");
                match self.shared.sleeper.add(&doorbell) {
                    Ok(()) => self.shared.rings.add_ready_map(ready_map, memory, doorbell),
                    Err(error) => tracing::error!(%error, "cannot wait for the doorbell of a ready map"),
                }
            }
            Command::RemoveReadyMap { ready_map, .. } => match self.shared.rings.remove_ready_map(ready_map) {
                Some(doorbell) => self.shared.sleeper.remove(&doorbell),
                None => tracing::error!(ready_map = ready_map.0, "cannot remove a ready map that is in use"),
            },
            Command::Add(new) => self.add(*new),
            Command::Remove { domain, reason } => self.remove_domain(domain, reason),
            Command::Overlay(_, command) => self.pollers.overlay.execute(&mut self.shared, command),
            Command::Mx(_, command) => self.pollers.mx.execute(&mut self.shared, command),
            Command::GrantRemote { remote_peer, region, memory, .. } => {
                if let Some(Location::Remote(poller)) = self.shared.router.location(remote_peer) {
                    self.pollers.grant(poller, remote_peer, region, memory);
                }
            }
            Command::RevokeRemote { remote_peer, region, .. } => {
                if let Some(Location::Remote(poller)) = self.shared.router.location(remote_peer) {
                    self.pollers.revoke(poller, remote_peer, region);
                }
            }
            Command::SendPolicy(send_policy) => self.shared.router.set_send_policy(send_policy),
            Command::Heartbeat => bump(&self.shared.counters.heartbeats, 1),
            Command::Shutdown => self.ended = true,
        }
    }

    fn add(&mut self, new: NewDomain) {
        if !self.shared.rings.has_ready_map(new.ready_map) {
            return; // Its ready map could not be added, which is logged. The domain gets no record until control removes it.
        }
        assert!(self.shared.router.location(new.domain).is_none(), "control numbers each domain once");
        let slot = self.shared.router.add(new.domain, new.owner);
        self.shared.rings.add(slot, new);
    }

    fn remove_domain(&mut self, domain: DomainId, reason: Reason) {
        if let Some(Location::Local(slot)) = self.shared.router.location(domain) {
            self.remove(slot, reason);
            // Control notifies the peers over their sockets, so records and credit of the domain must be in their rings before.
            self.shared.deliver_waiting();
            self.shared.rings.flush();
        }
        self.shared.emit_event(Event::Removed { domain });
    }

    fn handle_forwarded(&mut self, forwarded: &ForwardedRecord) {
        match (self.shared.router.location(forwarded.to), forwarded.route.peer) {
            (Some(Location::Local(slot)), _) => return self.shared.deliver_forwarded(slot, forwarded),
            (Some(Location::Remote(poller)), Some(domain)) => {
                let ForwardedRecord { to, record, bytes, .. } = forwarded;
                return self.pollers.send_to_remote(poller, &mut self.shared, (domain, *to), record, bytes);
            }
            _ => {}
        }
        // The receiver is gone, and the sender does not know it yet.
        let reason = self.shared.router.end_reason(forwarded.to);
        self.shared.counters.drops.add(reason, 1);
        if let (Some(sender), Some(serial)) = (forwarded.route.peer, bounce_serial(&forwarded.record)) {
            let bounce = BounceInfo { serial, cost: DAEMON_PATH_RECORD_COST + forwarded.bytes.len() as u32 };
            let route = reply_route(forwarded.route, Some(forwarded.to));
            self.shared.post(forwarded.worker, Task::Bounce { to: sender, route, bounce, reason });
        }
    }
}
