//! After a restart: what domains had with the daemon before. Both ends of a channel show it; where the two fit it goes on, and the
//! channel itself never notices.

use isthmus_layout::channel::{Direction, Geometry};
use isthmus_layout::control::{Adopt, AdoptBoard};
use isthmus_layout::ids::{ChannelId, DomainId};
use isthmus_layout::reason::Reason;

use super::attach::{SECOND_HALF_TIMEOUT, SHOW_TIMEOUT};
use super::grants::sealed;
use super::{Broker, Refusal};
use crate::directory::channels::{Channel, End, Half, Stage};
use crate::disposal::Given;
use crate::ground::Item;

impl Broker {
    pub(super) fn adopt_board(&mut self, domain: DomainId, adopt: &AdoptBoard) -> Result<(), Refusal> {
        let entry = self.directory.get_mut(domain).ok_or(Reason::NoSuchDomain)?;
        entry.boards.adopt(adopt.board, adopt.owner)?;
        Ok(())
    }

    pub(super) fn adopt(&mut self, domain: DomainId, adopt: &Adopt, memory: Given) -> Result<(), Refusal> {
        let (peer, channel) = (adopt.peer, adopt.channel);
        let invalid = |text: &str| Refusal::new(Reason::RequestInvalid, format!("channel {channel}: {text}"));
        if peer == domain || self.channels.knows(channel, domain) || self.channel_of(domain, peer).is_some() {
            return Err(invalid("it is there already"));
        }
        if self.channels.is_to_come(channel) {
            return Err(invalid("no daemon has given out this number yet"));
        }
        sealed(&memory, Some(Geometry { slab: adopt.slab }.size().0))?;
        let file = file(&memory)?;
        let keep = self.keeps_another();
        let until = self.other_half_until(peer)?;
        let most = self.directory.limits().channels;
        let entry = self.directory.get_mut(domain).ok_or(Reason::NoSuchDomain)?;
        if self.channels.halves_of(domain) + entry.channels().count() >= most {
            return Err(Reason::ChannelsFull.into());
        }
        entry
            .boards
            .adopt_place(adopt.board, adopt.place)
            .map_err(|_| invalid("its place is taken or there is no such board"))?;
        let half = Half {
            end: End { domain, board: adopt.board, place: adopt.place },
            direction: adopt.direction,
            peer,
            peer_place: adopt.peer_place,
            slab: adopt.slab,
            file,
            memory: keep.then(|| memory.keep().into()),
            until,
        };
        match self.channels.adopt(channel, half) {
            Some((mine, other)) => self.join(channel, mine, other),
            None => Ok(()),
        }
    }

    /// How long the other end has: as long as its process lives, if that can be watched.
    fn other_half_until(&self, peer: DomainId) -> Result<u64, Refusal> {
        let soon = self.now.saturating_add(SECOND_HALF_TIMEOUT);
        match self.expected.get(&peer) {
            Some(survivor) if survivor.process.is_some() => Ok(u64::MAX),
            Some(_) => Ok(soon),
            None if self.directory.get(peer).is_some() => Ok(self.now.saturating_add(SHOW_TIMEOUT)),
            None => Err(Reason::PeerVanished.into()),
        }
    }

    /// Both ends are here.
    fn join(&mut self, id: ChannelId, mine: Half<Item>, other: Half<Item>) -> Result<(), Refusal> {
        let (a, b) = (mine.end.domain, other.end.domain);
        let both = self.identity(a).zip(self.identity(b)).ok_or(Reason::NoSuchDomain)?;
        let outcome = match self.policy.channel(&both.0, &both.1) {
            Ok(()) if mine.file == other.file => Ok(()),
            Ok(()) => {
                Err(Refusal::new(Reason::RequestInvalid, format!("channel {id}: the two ends have other memory")))
            }
            Err(reason) => Err(reason.into()),
        };
        let (connector, listener) = match mine.direction {
            Direction::Zero => (mine.end, other.end),
            Direction::One => (other.end, mine.end),
        };
        let (since, slab, memory) = (self.now, mine.slab, mine.memory);
        self.channels.insert(Channel { id, connector, listener, slab, stage: Stage::Open, since, memory });
        for (of, peer) in [(a, b), (b, a)] {
            self.directory.acquaintance(of, peer).channel = Some(id);
            self.directory.watch(of, peer);
        }
        if let Err(refusal) = &outcome {
            self.end_channel(id, Some(a), refusal.reason);
        }
        outcome
    }
}

fn file(memory: &Given) -> Result<(u64, u64), Refusal> {
    let stat = rustix::fs::fstat(memory).map_err(|error| Refusal::from(std::io::Error::from(error)))?;
    Ok((stat.st_dev, stat.st_ino))
}
