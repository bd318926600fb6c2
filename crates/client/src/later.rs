//! Requests with a reply that comes later: the program goes on meanwhile, and its matcher gets the reply.

use crate::control::Notification;
use crate::core::Core;
use crate::domain::Domain;
use crate::error::Refusal;
use crate::matcher::Matcher;
use isthmus_layout::control::{RequestSerial, ToClient, ToDaemon};
use isthmus_layout::reason::Reason;

impl<M: Matcher> Domain<M> {
    /// Sends a request without blocking: [`Matcher::answered`] gets the reply, in a later call of the domain. The serial ties the two
    /// together. For requests with one reply that has no descriptors. There is no time limit.
    pub fn request_later(&mut self, request: ToDaemon) -> Result<RequestSerial, Refusal> {
        let serial = self.core.request_or_retry(|control| control.send_request(request.clone(), &[]))?;
        self.core.awaiting_reply.push(serial);
        Ok(serial)
    }
}

impl<M: Matcher> Core<M> {
    /// Passes the reply to a request of [`Domain::request_later`] to the matcher. Returns any other notification.
    pub(crate) fn pass_reply(&mut self, notification: Notification) -> Option<Notification> {
        let at = self.awaiting_reply.iter().position(|serial| Some(*serial) == notification.serial);
        let Some(at) = at else { return Some(notification) };
        let serial = self.awaiting_reply.swap_remove(at);
        let reply = match notification.message {
            _ if notification.descriptors_lost => Err(Reason::OutOfFds.into()),
            ToClient::Refused(refused) => Err(Refusal::from(&refused)),
            message => Ok(message),
        };
        self.matcher.answered(serial, reply);
        None
    }

    /// The connection to the daemon is lost, and with it all replies.
    pub(crate) fn fail_replies(&mut self) {
        for serial in std::mem::take(&mut self.awaiting_reply) {
            self.matcher.answered(serial, Err(Reason::DaemonConnectionLost.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::opened;
    use crate::core::LocalIdentity;
    use crate::matcher::{Completion, Envelope, Posted, Unexpected};
    use crate::options::Options;
    use isthmus_channel::AdaptiveSpin;
    use isthmus_layout::control::{Done, Name, Owner, Refused, Text, Ticket};
    use isthmus_layout::mx::MxConnect;
    use isthmus_layout::verbs::{VerbsFound, VerbsResolve, VerbsToClient};
    use isthmus_layout::{DomainId, EndpointIndex};
    use isthmus_platform::seqpacket;
    use isthmus_shm::{ForkGuard, RecordBuffer};
    use rustix::fd::{AsFd, OwnedFd};

    /// Keeps the replies.
    #[derive(Debug, Default)]
    struct Replies(Vec<(RequestSerial, Result<ToClient, Reason>)>);

    impl Matcher for Replies {
        fn answered(&mut self, serial: RequestSerial, reply: Result<ToClient, Refusal>) {
            self.0.push((serial, reply.map_err(|refusal| refusal.reason)));
        }

        fn match_message(&mut self, _: &Envelope) -> Option<Posted> {
            None
        }

        fn store_unexpected(&mut self, _: Unexpected) {}

        fn unexpected_complete(&mut self, _: &Envelope, _: Vec<u8>) {}

        fn next_match(&mut self, _: EndpointIndex) -> Option<(Posted, Unexpected)> {
            None
        }

        fn complete(&mut self, _: Completion) {}

        fn is_busy(&self) -> bool {
            false
        }

        fn forget(&mut self, _: DomainId) {}

        fn close(&mut self, _: EndpointIndex) -> (Vec<Posted>, Vec<Unexpected>) {
            (Vec::new(), Vec::new())
        }
    }

    /// An attached domain, and its daemon's end of the connection.
    fn attached() -> (Domain<Replies>, OwnedFd) {
        let (control, daemon) = opened(0);
        let identity = LocalIdentity {
            domain: DomainId::new(1).expect("not zero"),
            name: Name::new("asks").expect("short"),
            owner: Owner(0),
            ticket: Ticket([0; 32]),
        };
        let (options, guard) = (Options::default(), ForkGuard::new().expect("memory"));
        let mut core =
            Core::new(identity, "no-daemon".into(), &options, guard, Replies::default()).expect("an epoll set");
        core.control = Some(control);
        (Domain { record: RecordBuffer::default(), waiting: AdaptiveSpin::new(options.wait), core }, daemon)
    }

    fn connect() -> ToDaemon {
        MxConnect { nic: 1, endpoint: 0, key: 0 }.into()
    }

    fn resolve() -> ToDaemon {
        VerbsResolve { gid_high: 0, gid_low: 0, qpn: 256 }.into()
    }

    #[test]
    fn matcher_gets_replies_in_any_order_and_no_others() {
        let (mut domain, daemon) = attached();
        let serials = [connect(), resolve(), connect()].map(|request| domain.request_later(request).expect("sent"));
        let found = VerbsFound { domain: domain.id(), endpoint: EndpointIndex::new(3).expect("below the limit") };
        let found = ToClient::from(VerbsToClient::from(found));
        let refused = Refused { reason: Reason::MxBadKey, text: Text::clip("") };
        let replies = [
            (Some(serials[1]), found.clone()),
            (Some(serials[1]), found.clone()), // Each request has one reply.
            (Some(serials[2].next()), Done {}.into()),
            (None, found.clone()),
            (Some(serials[0]), refused.into()),
        ];
        for (serial, reply) in replies {
            seqpacket::send(daemon.as_fd(), &reply.emit(serial), &[]).expect("room");
        }
        domain.core.process_notifications();
        let expected = [(serials[1], Ok(found)), (serials[0], Err(Reason::MxBadKey))];
        assert_eq!(domain.matcher().0, expected);
        drop(daemon);
        domain.core.process_notifications();
        assert_eq!(domain.matcher().0[2..], [(serials[2], Err(Reason::DaemonConnectionLost))]);
        assert!(domain.request_later(connect()).is_err(), "there is no daemon");
        assert_eq!(domain.matcher().0.len(), 3);
    }
}
