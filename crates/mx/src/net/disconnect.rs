//! The end of a partner, or of one of its sessions (mxoe-wire 9.6).

use super::outbox::OutboxEntry;
use super::{Address, Endpoint, EndpointEvent, IncomingId};
use crate::StatusCode;
use crate::wire::SeqNum;
use alloc::vec::Vec;

impl Endpoint {
    /// Forgets the sessions of a partner: all pending operations with it end as unreachable, and numbering continues in another
    /// session number. The partner may be connected again.
    pub fn disconnect(&mut self, partner: Address) {
        self.give_up_partner(partner);
    }

    /// Gives up a partner that has been silent for too long. Pending connects end with it.
    pub(crate) fn give_up_partner(&mut self, address: Address) {
        let Some(partner) = self.partners.get_mut(&address) else { return };
        let connects: Vec<_> = partner.connects.drain(..).filter_map(|connect| connect.id).collect();
        partner.previous_session = None;
        for connect in connects {
            let outcome = Err(StatusCode::Timeout);
            self.events.push_back(EndpointEvent::Connected { connect, partner: address, outcome });
        }
        self.reset_partner(address, StatusCode::EndpointUnreachable);
    }

    /// Ends all pending operations with a partner except connects, and forgets its sessions.
    pub(crate) fn reset_partner(&mut self, address: Address, code: StatusCode) {
        let Some(partner) = self.partners.get(&address) else { return };
        self.reset_partner_at(address, code, partner.inbox.next().given_up());
    }

    /// Like `reset_partner`, but messages are expected from `first` on.
    pub(crate) fn reset_partner_at(&mut self, address: Address, code: StatusCode, first: SeqNum) {
        let Some(partner) = self.partners.get_mut(&address) else { return };
        (partner.true_session, partner.back_session) = (None, None);
        (partner.knows_session, partner.has_sequenced, partner.recv_acknum) = (false, false, 0);
        (partner.told, partner.refused) = (None, None);
        partner.announced = 0;
        partner.replies.clear();
        let entries = partner.outbox.drain();
        self.early_bytes -= partner.inbox.early_bytes();
        let mut incoming = partner.inbox.restart(first);
        let mut sends: Vec<_> = entries.iter().filter_map(OutboxEntry::send).collect();
        sends.extend(self.regions.close_all(address));
        sends.sort_unstable();
        sends.dedup();
        incoming.extend(self.abort_transfers(address));
        for send in sends {
            self.events.push_back(EndpointEvent::Sent { send, code, xfer_length: 0 });
        }
        for message in incoming {
            self.events.push_back(EndpointEvent::Received { message, code, xfer_length: 0 });
        }
        self.events.push_back(EndpointEvent::Disconnected { partner: address });
        // Queue the partners that waited for its regions before anything is sent.
        for waiting in self.waiting_for_region.drain(..) {
            if let Some(partner) = self.partners.get_mut(&waiting)
                && !core::mem::replace(&mut partner.is_queued, true)
            {
                self.send_queue.push_back(waiting);
            }
        }
    }

    /// Ends the long messages of a partner that were announced or are being fetched.
    fn abort_transfers(&mut self, address: Address) -> Vec<IncomingId> {
        let mut ended = Vec::new();
        self.announced.retain(|message, announced| {
            let stays = announced.from != address;
            if !stays {
                ended.push(*message);
            }
            stays
        });
        self.fetched.retain(|_, (announced, _)| announced.from != address);
        let gone = self.pulls.iter().filter(|(_, pull)| pull.announced.from == address);
        let gone: Vec<u32> = gone.map(|(handle, _)| *handle).collect();
        ended.extend(gone.into_iter().filter_map(|handle| Some(self.end_pull(handle)?.message)));
        ended
    }
}
