//! Connects, at both ends (mxoe-wire 7).
//!
//! Both sessions of a partner are set by its requests and by its replies, so that it does not matter who connected to whom. Toward
//! an Open-MX partner it does (7.4): one that connected to us gets a connect of ours before the first message.
//!
//! Wherever a partner turns out to be another one, or to have given us up, receiving starts anew in the next session number:
//! packets of before, which may still be on their way, are told from new ones thereby.

use super::partner::{Partner, Reply};
use super::{Address, Endpoint, Event, Ignored, Time};
use crate::StatusCode;
use crate::wire::{ConnectReply, ConnectRequest, ConnectStatus, SessionId};

impl Endpoint {
    pub(crate) fn receive_request(
        &mut self,
        now: Time,
        from: Address,
        request: &ConnectRequest,
    ) -> Result<(), Ignored> {
        let (source, start) = (request.src_session_id, request.target_recv_seqnum_start);
        if !self.partners.contains_key(&from) && self.partners.len() >= self.setup.tuning.partners_max {
            return Err(Ignored::TooManyPartners);
        }
        let partner = self.partners.entry(from).or_insert_with(Partner::new);
        if source == SessionId::UNSET || partner.retired == Some(source) {
            return Err(Ignored::OldSession);
        }
        let known = partner.session_back();
        let gave_us_up = known == Some(source) && start.sesnum() != partner.outbox.next().sesnum();
        if known.is_some_and(|known| known != source) || gave_us_up {
            self.sever(from, StatusCode::EndpointUnreachable);
        }
        let Some(partner) = self.partners.get_mut(&from) else { return Ok(()) };
        if known != Some(source) {
            partner.retired = known;
        }
        if partner.true_session != Some(source) {
            partner.outbox.renumber(start);
            partner.numbered = false;
        }
        (partner.true_session, partner.back_session) = (Some(source), Some(source));
        partner.heard = now;
        let right = request.app_key == self.setup.key;
        let status = if right { ConnectStatus::Success } else { ConnectStatus::BadKey };
        partner.reply(Reply { session: source, seqnum: request.connect_seqnum, status });
        Ok(())
    }

    pub(crate) fn receive_reply(&mut self, now: Time, from: Address, reply: &ConnectReply) -> Result<(), Ignored> {
        if reply.src_session_id != self.setup.session {
            return Err(Ignored::WrongSession);
        }
        let partner = self.partners.get_mut(&from).ok_or(Ignored::NoSuchConnect)?;
        let (target, start) = (reply.target_session_id, reply.target_recv_seqnum_start);
        let asked = partner.connects.iter().position(|connect| connect.seqnum == reply.connect_seqnum);
        let asked = asked.ok_or(Ignored::NoSuchConnect)?;
        if target == SessionId::UNSET || partner.retired == Some(target) {
            return Err(Ignored::OldSession);
        }
        let Some(connect) = partner.connects.remove(asked) else { return Err(Ignored::NoSuchConnect) };
        partner.heard = now;
        let success = reply.status == ConnectStatus::Success;
        // To one who connected to us the key does not matter: it knows us now.
        if success || connect.id.is_none() {
            self.meet(from, target, start);
        }
        if let Some(connect) = connect.id {
            let outcome = if success { Ok(target) } else { Err(StatusCode::BadKey) };
            self.events.push_back(Event::Connected { connect, partner: from, outcome });
        }
        Ok(())
    }

    /// A partner has answered: it is who it says, knows us, and expects `start`.
    fn meet(&mut self, from: Address, target: SessionId, start: crate::wire::SeqNum) {
        let Some(partner) = self.partners.get_mut(&from) else { return };
        let known = partner.session_back();
        // The same one may have given us up, and counts elsewhere now.
        let gave_us_up = partner.numbered && start.sesnum() != partner.outbox.next().sesnum();
        if known.is_some_and(|known| known != target || gave_us_up) {
            // It took its first number from our request, where we said what we expect next: that stays.
            let next = partner.inbox.next();
            self.sever_at(from, StatusCode::EndpointUnreachable, next);
        }
        let Some(partner) = self.partners.get_mut(&from) else { return };
        if known != Some(target) {
            partner.retired = known;
        }
        // A reply that comes late says what was expected then. It counts only while nothing has been sent.
        if partner.true_session != Some(target) || !partner.numbered {
            partner.outbox.renumber(start);
            partner.numbered = false;
        }
        (partner.true_session, partner.back_session) = (Some(target), Some(target));
        partner.introduced = true;
    }

    /// A connect, or whichever is the oldest, was refused.
    pub(crate) fn connect_refused(&mut self, from: Address, code: StatusCode) -> Result<(), Ignored> {
        let partner = self.partners.get_mut(&from).ok_or(Ignored::NothingRefused)?;
        let connect = partner.connects.pop_front().ok_or(Ignored::NothingRefused)?;
        match connect.id {
            Some(connect) => {
                self.events.push_back(Event::Connected { connect, partner: from, outcome: Err(code) });
            }
            // What waited for it will not get there either.
            None => self.sever(from, code),
        }
        Ok(())
    }
}
