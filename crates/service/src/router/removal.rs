//! The end of a domain, as the router sees it: what was under way to it goes back to where it came from.

use super::{BounceInfo, ENDED_DOMAINS_MAX, Location, Removal, Router, Slot};
use crate::record_kinds::{bounce_serial, reply_route};
use isthmus_layout::DomainId;
use isthmus_layout::reason::Reason;

impl Router {
    /// A domain of this worker is gone. What was accepted from it stays in its flows; what is held for it is dropped, and the senders
    /// are notified.
    pub(crate) fn remove(&mut self, slot: Slot, reason: Reason) -> Removal {
        let state = self.states.remove(slot.0).expect("slots in use have a state");
        self.waiting.retain(|&waiting| waiting != slot);
        self.held_cost -= state.held_cost;
        self.forget(state.domain, reason);
        let mut removal = Removal::default();
        for (sender, mut flow) in state.flows {
            while let Some(held) = flow.pop_first(&mut self.queue_pool) {
                removal.dropped += 1;
                let Some(serial) = bounce_serial(&held.record) else { continue };
                let bounce = BounceInfo { serial, cost: held.cost() };
                let route = reply_route(held.route, Some(state.domain));
                match self.location(sender) {
                    Some(Location::Local(to)) => self.bounce_to_sender(to, route, bounce, reason),
                    Some(Location::Worker(worker)) => removal.bounces.push((worker, sender, route, bounce)),
                    // A remote peer is not notified: what it sent was taken.
                    Some(Location::Remote(_)) | None => {}
                }
            }
        }
        self.close_accounts(state.domain);
        removal
    }

    /// A domain of another worker is gone, or a remote peer; its own worker bounces what was held for it.
    pub(crate) fn remove_elsewhere(&mut self, domain: DomainId, reason: Reason) {
        self.forget(domain, reason);
        self.close_accounts(domain);
    }

    fn forget(&mut self, domain: DomainId, reason: Reason) {
        self.locations.remove(&domain);
        if self.ended_domains.len() == ENDED_DOMAINS_MAX {
            self.ended_domains.pop_front();
        }
        self.ended_domains.push_back((domain, reason));
    }

    /// Closes the accounts of the senders to a domain that ended, and its own flows in which no record waits. Credit for records
    /// that were delivered and not yet returned is never returned, because the senders must not take these records for received.
    fn close_accounts(&mut self, ended: DomainId) {
        for at in 0..self.states.slots() as u32 {
            let Some(state) = self.states.get_mut(at) else { continue };
            state.outgoing.remove(&ended);
            self.close_flow(Slot(at), ended);
        }
    }

    /// Removes a flow if its sender is gone and no record waits in it.
    pub(crate) fn close_flow(&mut self, to: Slot, sender: DomainId) {
        let gone = !self.locations.contains_key(&sender);
        let state = &mut self.states[to.0];
        if gone && state.flows.get(&sender).is_some_and(crate::flow::Flow::is_clear) {
            state.flows.remove(&sender);
        }
    }
}
