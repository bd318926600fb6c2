//! Events of the MX engine, dispatched to sending and receiving.

use crate::{LocalPeer, MxTransport, reason_of};
use isthmus_mx::net::{EndpointEvent, Time};

impl MxTransport {
    /// Takes everything that has happened. `data` is that of the packet which just came.
    pub(crate) fn process_net_events(&mut self, now: Time, data: Option<&[u8]>, domain: &mut impl LocalPeer) {
        while let Some(event) = self.net.event() {
            match event {
                EndpointEvent::Begun { message, source, match_info, length, large } => {
                    self.message_begun(now, message, source, (match_info, length, large), domain);
                }
                EndpointEvent::Bytes { message, length, at, len } => {
                    let data = data.and_then(|data| data.get(..len as usize));
                    self.receive_bytes(now, message, (length, at), data.unwrap_or_default(), domain);
                }
                EndpointEvent::Received { message, code, .. } => self.message_ended(now, message, code, domain),
                EndpointEvent::Sent { send, code, xfer_length } => self.send_finished(send, code, xfer_length, domain),
                EndpointEvent::DataWanted { send, bytes, total } => self.pull_requested(send, bytes, total, domain),
                EndpointEvent::Connected { connect, partner, outcome } => {
                    let Some(request) = self.connects.remove(&connect) else { continue };
                    let met = outcome.map_err(reason_of).and_then(|_| {
                        let peer = self.peer_at(partner, domain);
                        let peer = peer.ok_or(isthmus_layout::reason::Reason::MxPartnersFull)?;
                        Ok(self.remote_peers[peer].id)
                    });
                    domain.connect_finished(request, met);
                }
                EndpointEvent::Disconnected { partner } => {
                    if let Some(peer) = self.remote_peers.find_address(partner) {
                        self.peer_gone(now, peer, domain);
                    }
                }
            }
        }
    }
}
