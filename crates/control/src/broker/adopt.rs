//! Channels and ready maps from before a restart. Both ends of a channel show it to the daemon. If the two match, the channel continues,
//! and its messages are not affected.

use isthmus_layout::Refusal;
use isthmus_layout::channel::{ChannelGeometry, Direction};
use isthmus_layout::control::{AdoptChannel, AdoptReadyMap};
use isthmus_layout::ids::{ChannelId, DomainId};
use isthmus_layout::reason::Reason;

use super::Broker;
use super::attach::{ADOPT_TIMEOUT, OTHER_HALF_TIMEOUT};
use crate::core::granted_memory::sealed;
use crate::directory::channels::{ChannelEnd, ChannelEntry, ChannelStage, Half};
use crate::fd_reaper::ReceivedFd;
use isthmus_platform::PlatformError;
use isthmus_window::Resource;

impl Broker {
    pub(super) fn adopt_ready_map(&mut self, domain: DomainId, adopt: &AdoptReadyMap) -> Result<(), Refusal> {
        let entry = self.core.directory.get_mut(domain).ok_or(Reason::NoSuchDomain)?;
        entry.ready_maps.adopt(adopt.ready_map, adopt.owner)?;
        Ok(())
    }

    pub(super) fn adopt_channel(
        &mut self,
        domain: DomainId,
        adopt: &AdoptChannel,
        memory: ReceivedFd,
    ) -> Result<(), Refusal> {
        let (peer, channel) = (adopt.peer, adopt.channel);
        let invalid = |text: &str| Refusal::new(Reason::RequestInvalid, format!("channel {channel}: {text}"));
        if peer == domain || self.channels.has_end(channel, domain) || self.channel_of(domain, peer).is_some() {
            return Err(invalid("the channel is there already"));
        }
        if self.channels.is_unissued(channel) {
            return Err(invalid("no daemon has given out this number yet"));
        }
        sealed(&memory, Some(ChannelGeometry { slab: adopt.slab }.size().0))?;
        let file_id = file_id(&memory)?;
        let account = self.core.directory.get(domain).ok_or(Reason::NoSuchDomain)?.account;
        let keep_memory = self.may_keep_memory(account);
        let until = self.other_half_deadline(peer)?;
        let most = self.core.directory.limits().channels;
        let entry = self.core.directory.get_mut(domain).ok_or(Reason::NoSuchDomain)?;
        if self.channels.halves_of(domain) + entry.channels().count() >= most {
            return Err(Reason::ChannelsFull.into());
        }
        entry
            .ready_maps
            .adopt_bit(adopt.ready_map, adopt.ready_bit)
            .map_err(|_| invalid("the ready bit is taken or there is no such ready map"))?;
        let half = Half {
            end: ChannelEnd { domain, ready_map: adopt.ready_map, ready_bit: adopt.ready_bit },
            direction: adopt.direction,
            peer,
            peer_ready_bit: adopt.peer_ready_bit,
            slab: adopt.slab,
            file_id,
            memory: keep_memory.then(|| memory.into_fd().into()),
            until,
            account,
        };
        match self.channels.adopt(channel, half) {
            Some((mine, other)) => self.join_halves(channel, mine, other),
            None => Ok(()),
        }
    }

    /// The deadline of the other end. Without limit if its process can be watched.
    fn other_half_deadline(&self, peer: DomainId) -> Result<u64, Refusal> {
        let soon = self.core.now.saturating_add(OTHER_HALF_TIMEOUT);
        match self.resumable.get(peer) {
            Some(resumable_domain) if resumable_domain.process.is_some() => Ok(u64::MAX),
            Some(_) => Ok(soon),
            None if self.core.directory.get(peer).is_some() => Ok(self.core.now.saturating_add(ADOPT_TIMEOUT)),
            None if self.core.tickets.may_have_lost(peer) => Ok(soon),
            None => Err(Reason::PeerConnectionLost.into()),
        }
    }

    /// Opens a channel of which both ends have resumed.
    fn join_halves(&mut self, id: ChannelId, mine: Half<Resource>, other: Half<Resource>) -> Result<(), Refusal> {
        let (a, b) = (mine.end.domain, other.end.domain);
        let both = self.core.identity(a).zip(self.core.identity(b)).ok_or(Reason::NoSuchDomain)?;
        let outcome = match self.core.policy.may_open_channel(&both.0, &both.1) {
            Ok(()) if mine.file_id == other.file_id => Ok(()),
            Ok(()) => {
                Err(Refusal::new(Reason::RequestInvalid, format!("channel {id}: the two ends have other memory")))
            }
            Err(reason) => Err(reason.into()),
        };
        let (connector, listener) = match mine.direction {
            Direction::Zero => (mine.end, other.end),
            Direction::One => (other.end, mine.end),
        };
        let (since, slab, memory, account) = (self.core.now, mine.slab, mine.memory, mine.account);
        let (stage, ready_maps) = (ChannelStage::Open, Vec::new());
        self.channels.insert(ChannelEntry { id, connector, listener, slab, stage, since, memory, ready_maps, account });
        for (of, peer) in [(a, b), (b, a)] {
            self.core.directory.peer_state(of, peer).channel = Some(id);
            self.core.directory.watch(of, peer);
        }
        if let Err(refusal) = &outcome {
            self.end_channel(id, Some(a), refusal.reason);
        }
        outcome
    }
}

fn file_id(memory: &ReceivedFd) -> Result<(u64, u64), Refusal> {
    let stat = rustix::fs::fstat(memory)
        .map_err(|source| PlatformError::Refused { operation: "asking for the size of memory", source })?;
    Ok((stat.st_dev, stat.st_ino))
}
