//! Unexpected messages, in the order of arrival.

use crate::engine::receive::{Filter, MatchSpace, Meta};
use isthmus_client::Unexpected;
use std::collections::{HashMap, VecDeque};

/// The place of an unexpected message's payload.
#[derive(Debug)]
pub(crate) enum Body {
    /// The payload is here.
    Whole(Vec<u8>),
    /// The header has arrived; the payload follows.
    Coming,
    /// The payload is arriving.
    Arriving,
    /// The payload is at the sender, which waits for a receive.
    Announced(Unexpected),
}

/// An unexpected message.
#[derive(Debug)]
pub(crate) struct UnexpectedMessage {
    /// The serial number of the message, valid until its payload has arrived.
    pub(crate) serial: u64,
    pub(crate) meta: Meta,
    pub(crate) body: Body,
}

/// All unexpected messages of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct UnexpectedQueue {
    tagged: VecDeque<UnexpectedMessage>,
    untagged: VecDeque<UnexpectedMessage>,
    /// Claimed messages, by the context of the claim.
    claimed: HashMap<usize, UnexpectedMessage>,
    serials: u64,
}

impl UnexpectedQueue {
    fn queue(&mut self, space: MatchSpace) -> &mut VecDeque<UnexpectedMessage> {
        match space {
            MatchSpace::Tagged => &mut self.tagged,
            MatchSpace::Untagged => &mut self.untagged,
        }
    }

    /// Keeps a message, and returns its serial number.
    pub(crate) fn keep(&mut self, meta: Meta, body: Body) -> u64 {
        self.serials += 1;
        let serial = self.serials;
        self.queue(meta.space).push_back(UnexpectedMessage { serial, meta, body });
        serial
    }

    /// Finds the oldest message that matches.
    pub(crate) fn find(&mut self, space: MatchSpace, filter: &Filter) -> Option<&mut UnexpectedMessage> {
        self.queue(space).iter_mut().find(|unexpected| filter.fits(unexpected.meta.source, unexpected.meta.tag))
    }

    /// Removes and returns the oldest message that matches.
    #[inline]
    pub(crate) fn take(&mut self, space: MatchSpace, filter: &Filter) -> Option<UnexpectedMessage> {
        let unexpected = self.queue(space);
        if unexpected.is_empty() {
            return None;
        }
        let at = unexpected.iter().position(|unexpected| filter.fits(unexpected.meta.source, unexpected.meta.tag))?;
        unexpected.remove(at)
    }

    /// Reserves a message for a later receive with this context.
    pub(crate) fn claim(&mut self, context: usize, unexpected: UnexpectedMessage) {
        self.claimed.insert(context, unexpected);
    }

    pub(crate) fn take_claimed(&mut self, context: usize) -> Option<UnexpectedMessage> {
        self.claimed.remove(&context)
    }

    fn all(&mut self) -> impl Iterator<Item = &mut UnexpectedMessage> {
        // Messages with a pending payload are usually the newest.
        self.tagged.iter_mut().rev().chain(self.untagged.iter_mut().rev()).chain(self.claimed.values_mut())
    }

    /// Returns the message with this serial number.
    pub(crate) fn named(&mut self, serial: u64) -> Option<&mut UnexpectedMessage> {
        self.all().find(|unexpected| unexpected.serial == serial)
    }

    /// Sets the peer's number in the address vector.
    pub(crate) fn set_source(&mut self, peer: u32, source: u64) {
        self.all()
            .filter(|unexpected| unexpected.meta.peer == peer)
            .for_each(|unexpected| unexpected.meta.source = source);
    }

    /// Drops incomplete messages of these peers, because the rest will not arrive.
    pub(crate) fn forget(&mut self, lost: impl Fn(u32) -> bool) {
        let stays =
            |unexpected: &UnexpectedMessage| matches!(unexpected.body, Body::Whole(_)) || !lost(unexpected.meta.peer);
        self.tagged.retain(stays);
        self.untagged.retain(stays);
        self.claimed.retain(|_, unexpected| stays(unexpected));
    }

    /// Removes and returns all messages, in any order.
    pub(crate) fn drain(&mut self) -> Vec<UnexpectedMessage> {
        let claimed = self.claimed.drain().map(|(_, unexpected)| unexpected);
        self.tagged.drain(..).chain(self.untagged.drain(..)).chain(claimed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::consts::FI_ADDR_UNSPEC;

    fn meta(peer: u32, tag: u64) -> Meta {
        Meta { space: MatchSpace::Tagged, peer, source: u64::from(peer), tag, data: None, len: 0, acknowledge: None }
    }

    #[test]
    fn takes_the_oldest_matching_message() {
        let mut queue = UnexpectedQueue::default();
        for (peer, tag) in [(1, 5), (2, 5), (1, 6)] {
            queue.keep(meta(peer, tag), Body::Whole(Vec::new()));
        }
        let take = |queue: &mut UnexpectedQueue, source, tag, ignore| {
            queue
                .take(MatchSpace::Tagged, &Filter { source, tag, ignore })
                .map(|unexpected| (unexpected.meta.peer, unexpected.meta.tag))
        };
        assert_eq!(take(&mut queue, FI_ADDR_UNSPEC, 6, 0), Some((1, 6)));
        assert_eq!(take(&mut queue, 2, 0, u64::MAX), Some((2, 5)));
        assert_eq!(take(&mut queue, FI_ADDR_UNSPEC, 5, 0), Some((1, 5)));
        assert_eq!(take(&mut queue, FI_ADDR_UNSPEC, 5, 0), None);
    }

    #[test]
    fn claimed_message_completes_for_its_context() {
        let mut queue = UnexpectedQueue::default();
        let serial = queue.keep(meta(1, 5), Body::Coming);
        let unexpected =
            queue.take(MatchSpace::Tagged, &Filter { source: FI_ADDR_UNSPEC, tag: 5, ignore: 0 }).expect("it is there");
        queue.claim(77, unexpected);
        queue.named(serial).expect("it is still known").body = Body::Whole(vec![1]);
        assert!(queue.take_claimed(76).is_none());
        assert!(matches!(queue.take_claimed(77).expect("claimed").body, Body::Whole(bytes) if bytes == [1]));
    }

    #[test]
    fn complete_messages_stay_when_their_sender_is_gone() {
        let mut queue = UnexpectedQueue::default();
        queue.keep(meta(1, 1), Body::Whole(Vec::new()));
        queue.keep(meta(1, 2), Body::Arriving);
        queue.keep(meta(2, 3), Body::Arriving);
        queue.forget(|peer| peer == 1);
        let tags: Vec<u64> = queue.drain().iter().map(|unexpected| unexpected.meta.tag).collect();
        assert_eq!(tags, [1, 3]);
    }
}
