//! Messages that nobody has received: kept in the order in which they came, until a receive wants them.

use crate::engine::receive::{Filter, Lane, Meta};
use isthmus_client::Unexpected;
use std::collections::{HashMap, VecDeque};

/// Where the payload of a held message is.
#[derive(Debug)]
pub(crate) enum Body {
    /// Here.
    Whole(Vec<u8>),
    /// Its head was here; it follows.
    Coming,
    /// It is arriving.
    Arriving,
    /// At its sender, who waits.
    Announced(Unexpected),
}

/// A message that nobody has received.
#[derive(Debug)]
pub(crate) struct Held {
    /// Names it for as long as its payload is not here.
    pub(crate) serial: u64,
    pub(crate) meta: Meta,
    pub(crate) body: Body,
}

/// All of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Holding {
    tagged: VecDeque<Held>,
    plain: VecDeque<Held>,
    /// Messages that were claimed, by the context they were claimed with.
    claimed: HashMap<usize, Held>,
    serials: u64,
}

impl Holding {
    fn lane(&mut self, lane: Lane) -> &mut VecDeque<Held> {
        match lane {
            Lane::Tagged => &mut self.tagged,
            Lane::Plain => &mut self.plain,
        }
    }

    /// Keeps a message. Its name.
    pub(crate) fn keep(&mut self, meta: Meta, body: Body) -> u64 {
        self.serials += 1;
        let serial = self.serials;
        self.lane(meta.lane).push_back(Held { serial, meta, body });
        serial
    }

    /// The oldest message that fits.
    pub(crate) fn find(&mut self, lane: Lane, filter: &Filter) -> Option<&mut Held> {
        self.lane(lane).iter_mut().find(|held| filter.fits(held.meta.source, held.meta.tag))
    }

    /// Takes the oldest message that fits.
    #[inline]
    pub(crate) fn take(&mut self, lane: Lane, filter: &Filter) -> Option<Held> {
        let held = self.lane(lane);
        if held.is_empty() {
            return None;
        }
        let at = held.iter().position(|held| filter.fits(held.meta.source, held.meta.tag))?;
        held.remove(at)
    }

    /// Sets a message apart for whoever comes with this context.
    pub(crate) fn claim(&mut self, context: usize, held: Held) {
        self.claimed.insert(context, held);
    }

    pub(crate) fn take_claimed(&mut self, context: usize) -> Option<Held> {
        self.claimed.remove(&context)
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Held> {
        // What is still to come came last.
        self.tagged.iter_mut().rev().chain(self.plain.iter_mut().rev()).chain(self.claimed.values_mut())
    }

    /// The message of this name.
    pub(crate) fn named(&mut self, serial: u64) -> Option<&mut Held> {
        self.all().find(|held| held.serial == serial)
    }

    /// The address vector has a name for this peer now.
    pub(crate) fn name_source(&mut self, peer: u32, source: u64) {
        self.all().filter(|held| held.meta.peer == peer).for_each(|held| held.meta.source = source);
    }

    /// What has not arrived whole from these peers will not come.
    pub(crate) fn forget(&mut self, lost: impl Fn(u32) -> bool) {
        let stays = |held: &Held| matches!(held.body, Body::Whole(_)) || !lost(held.meta.peer);
        self.tagged.retain(stays);
        self.plain.retain(stays);
        self.claimed.retain(|_, held| stays(held));
    }

    /// Everything, in no order that matters.
    pub(crate) fn drain(&mut self) -> Vec<Held> {
        let claimed = self.claimed.drain().map(|(_, held)| held);
        self.tagged.drain(..).chain(self.plain.drain(..)).chain(claimed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::consts::FI_ADDR_UNSPEC;

    fn meta(peer: u32, tag: u64) -> Meta {
        Meta { lane: Lane::Tagged, peer, source: u64::from(peer), tag, data: None, len: 0, acknowledge: None }
    }

    #[test]
    fn messages_come_out_in_their_order() {
        let mut holding = Holding::default();
        for (peer, tag) in [(1, 5), (2, 5), (1, 6)] {
            holding.keep(meta(peer, tag), Body::Whole(Vec::new()));
        }
        let take = |holding: &mut Holding, source, tag, ignore| {
            holding.take(Lane::Tagged, &Filter { source, tag, ignore }).map(|held| (held.meta.peer, held.meta.tag))
        };
        assert_eq!(take(&mut holding, FI_ADDR_UNSPEC, 6, 0), Some((1, 6)));
        assert_eq!(take(&mut holding, 2, 0, u64::MAX), Some((2, 5)));
        assert_eq!(take(&mut holding, FI_ADDR_UNSPEC, 5, 0), Some((1, 5)));
        assert_eq!(take(&mut holding, FI_ADDR_UNSPEC, 5, 0), None);
    }

    #[test]
    fn a_claimed_message_is_for_its_context_and_still_completed() {
        let mut holding = Holding::default();
        let serial = holding.keep(meta(1, 5), Body::Coming);
        let held =
            holding.take(Lane::Tagged, &Filter { source: FI_ADDR_UNSPEC, tag: 5, ignore: 0 }).expect("it is there");
        holding.claim(77, held);
        holding.named(serial).expect("it is still known").body = Body::Whole(vec![1]);
        assert!(holding.take_claimed(76).is_none());
        assert!(matches!(holding.take_claimed(77).expect("claimed").body, Body::Whole(bytes) if bytes == [1]));
    }

    #[test]
    fn what_has_arrived_stays_when_its_sender_goes() {
        let mut holding = Holding::default();
        holding.keep(meta(1, 1), Body::Whole(Vec::new()));
        holding.keep(meta(1, 2), Body::Arriving);
        holding.keep(meta(2, 3), Body::Arriving);
        holding.forget(|peer| peer == 1);
        let tags: Vec<u64> = holding.drain().iter().map(|held| held.meta.tag).collect();
        assert_eq!(tags, [1, 3]);
    }
}
