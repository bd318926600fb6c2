//! What happens on the wire, told to the two halves.

use crate::{Domain, Gateway, reason_of};
use isthmus_mx::net::{Event, Time};

impl Gateway {
    /// Takes everything that has happened. `data` is that of the packet which just came.
    pub(crate) fn settle(&mut self, now: Time, data: Option<&[u8]>, domain: &mut impl Domain) {
        while let Some(event) = self.net.event() {
            match event {
                Event::Begun { message, source, match_info, length, large } => {
                    self.begun(now, message, source, (match_info, length, large), domain);
                }
                Event::Bytes { message, length, at, len } => {
                    let data = data.and_then(|data| data.get(..len as usize));
                    self.bytes(now, message, (length, at), data.unwrap_or_default(), domain);
                }
                Event::Received { message, code, .. } => self.received(now, message, code, domain),
                Event::Sent { send, code, xfer_length } => self.sent(send, code, xfer_length, domain),
                Event::Wanted { send, bytes, total } => self.wanted(send, bytes, total, domain),
                Event::Connected { connect, partner, outcome } => {
                    let Some(request) = self.connects.remove(&connect) else { continue };
                    let met = outcome.map_err(reason_of).and_then(|_| {
                        let place = self.introduce(partner, domain);
                        let place = place.ok_or(isthmus_layout::reason::Reason::MxPartnersFull)?;
                        Ok(self.strangers[place].id)
                    });
                    domain.connected(request, met);
                }
                Event::Severed { partner } => {
                    if let Some(place) = self.strangers.at(partner) {
                        self.sever(now, place, domain);
                    }
                }
            }
        }
    }
}
