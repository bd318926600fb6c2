//! A daemon that goes away, and one that comes back.
//!
//! Channels do not notice. What was under way through the daemon is lost with it, and its senders hear of it. When a daemon answers
//! again, the domain shows its ticket and what it has, gets a fresh domain ring, and everything is as before.

use crate::connect;
use crate::control::{Control, News};
use crate::core::Core;
use crate::error::Refusal;
use crate::news::map;
use crate::peer::{Granted, Making, Path};
use isthmus_channel::{BoardIndex, Channel, Ends};
use isthmus_layout::board;
use isthmus_layout::channel::{Direction, Geometry};
use isthmus_layout::control::{AdoptBoard, Attach, OpenEndpoint, Resume, ToClient, Welcome};
use isthmus_layout::reason::Reason;
use isthmus_platform::Doorbell;
use rustix::fd::AsFd;
use std::time::{Duration, Instant};

/// How often a daemon that went away is looked for.
pub(crate) const RECONNECT: Duration = Duration::from_millis(100);

impl Core {
    /// The connection to the daemon broke. Channels go on. What was under way through the daemon is lost, and its senders
    /// hear of it.
    #[cold]
    pub(crate) fn daemon_lost(&mut self) {
        if self.control.take().is_none() {
            return;
        }
        self.lost_at = Some(Instant::now() - RECONNECT);
        if let Some(ring) = self.ring.take() {
            self.inbox.remove(ring);
        }
        self.owing.clear();
        self.asked.clear();
        for at in self.peers.indices() {
            let peer = &mut self.peers[at];
            for grant in peer.granted.values_mut() {
                if matches!(grant, Granted::Asked(_)) {
                    *grant = Granted::Refused;
                }
            }
            let lost = peer.credit.lose();
            match peer.making {
                // The listener may not have it: as if it had never been offered.
                Making::Made { id, key, connector: true, open: false } => {
                    self.inbox.remove(key);
                    self.held.remove(&id);
                    peer.making = Making::Not;
                }
                Making::Made { key, connector, .. } => {
                    // Our word that we change paths may be lost; the listener thinks of it too.
                    if connector && peer.out == Path::Ordinary {
                        (peer.out, peer.switch) = (Path::Channel(key), None);
                        peer.epoch_out = peer.epoch_out.wrapping_add(1);
                    }
                    // And so may the peer's: what it sends by the channel is all that still comes.
                    if peer.inward == Path::Ordinary {
                        peer.inward = Path::Channel(key);
                        peer.epoch_in = peer.epoch_in.wrapping_add(1);
                        self.inbox.unmute(key);
                    }
                }
                Making::Asked => peer.making = Making::Not,
                Making::Not | Making::Refused { .. } => {}
            }
            if peer.out == Path::Ordinary {
                peer.started = None;
            }
            lost.into_iter().for_each(|message| self.failed(message, Reason::DaemonGone));
            self.list(at);
        }
    }

    /// Looks for a daemon to resume with, now and then.
    #[cold]
    pub(crate) fn reconnect(&mut self) {
        let Some(lost_at) = self.lost_at else { return };
        if self.control.is_some() || lost_at.elapsed() < RECONNECT {
            return;
        }
        self.lost_at = Some(Instant::now());
        if let Err(refusal) = self.try_resume() {
            self.control = None;
            self.last_refusal = Some(refusal);
        }
    }

    fn try_resume(&mut self) -> Result<(), Refusal> {
        let socket = connect::reconnect(&self.socket_path)?;
        let mut control = Control::open(socket)?;
        let resume = Resume { domain: self.me.domain, ticket: self.me.ticket };
        let own = &self.boards[0];
        let attach = Attach { name: Some(self.me.name.clone()), resume: Some(resume) };
        let mut news = control.request(attach.into(), &[own.memory.as_fd(), own.doorbell.as_fd()])?;
        let ToClient::Welcome(welcome) = news.message.clone() else {
            return Err(Reason::NotIsthmus.into());
        };
        for (at, board) in self.boards.iter().enumerate().skip(1) {
            let Some(board_index) = isthmus_layout::control::BoardIndex::new(at as u8) else { continue };
            let Some(owner) = board.owner else { continue };
            let adopt = AdoptBoard { board: board_index, owner };
            control.request(adopt.into(), &[board.memory.as_fd(), board.doorbell.as_fd()])?;
        }
        for held in self.held.values() {
            control.request(held.channel.clone().into(), &[held.memory.as_fd()])?;
        }
        for (index, endpoint) in self.endpoints.all() {
            let open = OpenEndpoint { index: Some(index), label: endpoint.label.clone() };
            control.request(open.into(), &[])?;
        }
        self.take_ring(&welcome, &mut news).map_err(Refusal::from)?;
        self.control = Some(control);
        self.lost_at = None;
        self.sleeper.watch_control(self.control.as_ref().expect("set a line above"));
        Ok(())
    }

    /// Makes the domain ring out of a welcome.
    pub(crate) fn take_ring(&mut self, welcome: &Welcome, news: &mut News) -> Result<(), Reason> {
        let (ring, daemon_board, daemon_doorbell) = (news.fd(), news.fd(), news.fd());
        if welcome.fresh {
            let (board, doorbell) = (news.fd(), news.fd());
            self.add_board(isthmus_layout::control::BoardIndex::DAEMON, None, board, doorbell)?;
        }
        let geometry = Geometry { slab: welcome.slab };
        let ends = Ends {
            window: map(&ring, geometry.size())?,
            geometry,
            sends: Direction::Zero,
            peer_board: map(&daemon_board, board::SIZE)?,
            place: welcome.daemon_place,
            peer_doorbell: Doorbell::from(daemon_doorbell),
        };
        let key = self.inbox.add(Channel::new(ends), BoardIndex(0), board::Place::DOMAIN_RING);
        self.inbox.unmute(key);
        self.ring = Some(key);
        Ok(())
    }
}
