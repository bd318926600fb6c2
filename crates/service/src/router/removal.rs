//! The end of a domain, as the router sees it: what was under way to it goes back to where it came from.

use super::{Bounced, GONE_MAX, Home, Left, Router, Slot};
use crate::kinds::{back, bounced};
use isthmus_layout::DomainId;
use isthmus_layout::reason::Reason;

impl Router {
    /// A domain of this worker is gone. What was accepted from it stays on its lanes; what is held for it is dropped, and the senders
    /// hear of it.
    pub(crate) fn remove(&mut self, slot: Slot, reason: Reason) -> Left {
        let party = self.parties[slot.0 as usize].take().expect("slots in use have parties");
        self.free.push(slot);
        self.waiting.retain(|&waiting| waiting != slot);
        self.held_cost -= party.held_cost;
        self.forget(party.domain, reason);
        let mut left = Left::default();
        for (sender, mut lane) in party.lanes {
            while let Some(held) = lane.drop_first(&mut self.spare) {
                left.dropped += 1;
                let Some(serial) = bounced(&held.record) else { continue };
                let bounce = Bounced { serial, cost: held.cost() };
                let route = back(held.route, Some(party.domain));
                match self.home(sender) {
                    Some(Home::Here(to)) => self.give_bounce(to, route, bounce, reason),
                    Some(Home::There(worker)) => left.bounces.push((worker, sender, route, bounce)),
                    // Nobody on another host is told: what was sent to it was taken.
                    Some(Home::Wire) | None => {}
                }
            }
        }
        self.settle(party.domain);
        left
    }

    /// A domain of another worker is gone, or somebody on another host; its own worker bounces what was held for it.
    pub(crate) fn remove_there(&mut self, domain: DomainId, reason: Reason) {
        self.forget(domain, reason);
        self.settle(domain);
    }

    fn forget(&mut self, domain: DomainId, reason: Reason) {
        self.homes.remove(&domain);
        if self.gone.len() == GONE_MAX {
            self.gone.pop_front();
        }
        self.gone.push_back((domain, reason));
    }

    /// Closes the accounts of those who sent there, and the lanes on which nothing waits. What was delivered and not given back by then is given back
    /// by nobody: its senders must not take it for received.
    fn settle(&mut self, gone: DomainId) {
        for at in 0..self.parties.len() {
            let Some(party) = &mut self.parties[at] else { continue };
            party.outgoing.remove(&gone);
            self.close_lane(Slot(at as u32), gone);
        }
    }

    /// Lets go of a lane whose sender is gone and on which nothing waits.
    pub(crate) fn close_lane(&mut self, to: Slot, sender: DomainId) {
        let gone = !self.homes.contains_key(&sender);
        let party = self.parties[to.0 as usize].as_mut().expect("slots in use have parties");
        if gone && party.lanes.get(&sender).is_some_and(crate::lane::Lane::is_clear) {
            party.lanes.remove(&sender);
        }
    }
}
