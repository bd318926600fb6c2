//! Connects, at both ends (mxoe-wire 7).
//!
//! Requests and replies of a partner both set its two sessions, so it does not matter which side connected. It does matter toward
//! an Open-MX partner (7.4): one that connected to us gets a connect of ours before the first message.
//!
//! Wherever a partner turns out to be another one, or to have given us up, receiving restarts in the next session number. Older
//! packets may still be in flight, and the session number distinguishes them from new ones.

use super::partner::{Partner, Reply};
use super::{Address, Endpoint, EndpointEvent, Ignored, Time};
use crate::StatusCode;
use crate::wire::{ConnectReply, ConnectRequest, ConnectStatus, Nack, NackLib, SeqNum, SessionId};

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
        if source == SessionId::UNSET || partner.previous_session == Some(source) {
            return Err(Ignored::OldSession);
        }
        let known = partner.session_back();
        if known.is_some_and(|known| known != source) {
            // Any host can claim to be another instance of the partner. Our own connect verifies it: the reply carries our session.
            if partner.connects.is_empty() {
                partner.connect(now, None, 0);
            }
            return Err(Ignored::UnverifiedPartner);
        }
        if known.is_some() && start.sesnum() != partner.outbox.next().sesnum() {
            self.reset_partner(from, StatusCode::EndpointUnreachable); // The partner has given us up.
        }
        let Some(partner) = self.partners.get_mut(&from) else { return Ok(()) };
        if partner.true_session != Some(source) {
            partner.outbox.renumber(start);
            partner.has_sequenced = false;
        }
        (partner.true_session, partner.back_session) = (Some(source), Some(source));
        partner.last_seen = now;
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
        if target == SessionId::UNSET || partner.previous_session == Some(target) {
            return Err(Ignored::OldSession);
        }
        let Some(connect) = partner.connects.remove(asked) else { return Err(Ignored::NoSuchConnect) };
        partner.last_seen = now;
        let success = reply.status == ConnectStatus::Success;
        // The key does not matter to a partner that connected to us: it knows us now.
        if success || connect.id.is_none() {
            self.accept_reply(now, from, target, start);
        }
        if let Some(connect) = connect.id {
            let outcome = if success { Ok(target) } else { Err(StatusCode::BadKey) };
            self.events.push_back(EndpointEvent::Connected { connect, partner: from, outcome });
        }
        Ok(())
    }

    /// Handles a partner's reply, which confirms its session, that it knows us, and that it expects `start`.
    fn accept_reply(&mut self, now: Time, from: Address, target: SessionId, start: SeqNum) {
        let Some(partner) = self.partners.get_mut(&from) else { return };
        let known = partner.session_back();
        let another = known.is_some_and(|known| known != target);
        // The same session may have given us up, and uses other numbers now.
        let gave_us_up = known == Some(target) && start.sesnum() != partner.outbox.next().sesnum();
        let (next, told) = (partner.inbox.next(), partner.told);
        let late = another && told.is_some_and(|told| told != next);
        if another || gave_us_up {
            let code = partner.refused.unwrap_or(StatusCode::EndpointUnreachable);
            // The partner took its first number from our request, and keeps it. If a message of its previous instance arrived after the
            // request, the number that it took is unknown. In that case we tell it another one.
            self.reset_partner_at(from, code, if late { next.given_up() } else { next });
        }
        let Some(partner) = self.partners.get_mut(&from) else { return };
        if another {
            partner.previous_session = known;
        }
        // A late reply states what was expected at its time. It counts only while no message has been sent.
        if partner.true_session != Some(target) || !partner.has_sequenced {
            partner.outbox.renumber(start);
            partner.has_sequenced = false;
        }
        (partner.true_session, partner.back_session) = (Some(target), Some(target));
        (partner.told, partner.refused) = (None, None);
        partner.knows_session = !late;
        if late {
            partner.connect(now, None, 0);
        }
    }

    /// Handles a negative acknowledgement (9.7), and verifies it. A negative acknowledgement does not say which session
    /// refused. A late or forged one would end messages that are in flight. So a refused message only makes us send a
    /// connect: a partner that is gone has another session, or refuses the connect each time.
    pub(crate) fn receive_nack(&mut self, now: Time, from: Address, nack: &NackLib) -> Result<(), Ignored> {
        let code = nack.nack_type.status();
        let partner = self.partners.get_mut(&from).ok_or(Ignored::UnmatchedNack)?;
        let counted = nack.lib_seqnum.sesnum() == partner.outbox.next().sesnum();
        if counted && partner.outbox.is_underway(nack.lib_seqnum) {
            partner.refused = Some(code);
            if partner.connects.is_empty() {
                partner.connect(now, None, 0);
            }
            return Ok(());
        }
        // A connect has number 0 and cannot have a wrong session. A negative acknowledgement with other values refuses
        // an older message.
        if nack.lib_seqnum != SeqNum::ZERO || nack.nack_type == Nack::BadSession {
            return Err(Ignored::UnmatchedNack);
        }
        self.connect_refused(from, code)
    }

    /// Handles a refusal of the oldest connect. A refusal that arrives before that connect was sent refuses nothing.
    fn connect_refused(&mut self, from: Address, code: StatusCode) -> Result<(), Ignored> {
        let partner = self.partners.get_mut(&from).ok_or(Ignored::UnmatchedNack)?;
        let oldest = partner.connects.front_mut().filter(|connect| connect.times > 0).ok_or(Ignored::UnmatchedNack)?;
        match oldest.id {
            Some(connect) => {
                partner.connects.pop_front();
                self.events.push_back(EndpointEvent::Connected { connect, partner: from, outcome: Err(code) });
            }
            // Any host can send this packet, too. A partner that exists replies to one of the tries.
            None => oldest.refuse(code),
        }
        Ok(())
    }

    /// Ends a connect that the endpoint itself began once several tries were refused and none was answered. The messages that waited
    /// for it fail, too.
    pub(crate) fn confirm_refusal(&mut self, now: Time, from: Address) {
        let Some(partner) = self.partners.get_mut(&from) else { return };
        if let Some(code) = partner.connects.front().and_then(|connect| connect.final_refusal(now)) {
            partner.connects.pop_front();
            self.reset_partner(from, code);
        }
    }
}
