//! Attaching: a connection becomes a domain, a new one or one that was attached to the daemon before.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;

use isthmus_channel::Ends;
use isthmus_layout::board::{self, Place};
use isthmus_layout::channel::{Direction, Geometry};
use isthmus_layout::control::{Attach, BoardIndex, Name, Owner, RequestSerial, Resume, Version, Welcome};
use isthmus_layout::ids::DomainId;
use isthmus_layout::limits::ORDINARY_CREDIT_BYTES;
use isthmus_layout::reason::Reason;
use isthmus_platform::Doorbell;
use isthmus_service::{DomainCounters, NewDomain};
use isthmus_shm::Window;

use super::grants::sealed;
use super::home::{BoardFds, Home, NewBoard};
use super::workers::Seat;
use super::{Broker, Outgoing, Refusal, SessionId, Stage};
use crate::directory::Applicant;
use crate::disposal::Given;
use crate::ground::{Ground, Item};
use crate::policy::Identity;
use crate::tickets::Survivor;

/// Nanoseconds that the other end of a channel from before a restart has to come back and show it too, where it cannot be watched.
pub(super) const SECOND_HALF_TIMEOUT: u64 = 10_000_000_000;

/// Nanoseconds that it has once its domain is back: it shows its channels at once, so what it does not show it does not have.
pub(super) const SHOW_TIMEOUT: u64 = 2_000_000_000;

/// The daemon's side of a domain's furniture, and what goes to the domain.
struct Furnished {
    home: Home,
    board: Window,
    seat: Seat,
    items: Vec<Item>,
}

impl Broker {
    /// The policy about a connection's user.
    pub(super) fn may_attach(&self, id: SessionId) -> Result<(), Refusal> {
        let uid = self.sessions[&id].peer.uid;
        if self.settings.nobody == Some(uid) {
            let text = format!("users without a number in the daemon's user namespace are all shown as {uid}");
            return Err(Refusal::new(Reason::AttachForbidden, text));
        }
        self.policy.attach(uid).map_err(|reason| Refusal::new(reason, format!("user {uid}: {}", reason.summary())))
    }

    pub(super) fn attach(
        &mut self,
        id: SessionId,
        serial: Option<RequestSerial>,
        request: Attach,
        fds: Vec<Given>,
    ) -> Result<(), Refusal> {
        let session = &self.sessions[&id];
        let Stage::Greeted { version, library } = session.stage.clone() else { return Err(Reason::OutOfTurn.into()) };
        self.may_attach(id)?;
        let owner = Owner(session.peer.uid);
        let fallback = fallback_name(&session.peer.program, session.peer.pid);
        let resumed =
            request.resume.map(|resume| self.resumes(id, owner, request.name.as_ref(), &resume)).transpose()?;
        self.make_room(request.name.as_ref(), resumed);
        let applicant = Applicant { name: request.name, fallback, owner, resumed };
        let domain = self.directory.attach(applicant)?;
        let (domain, name) = (domain.id, domain.name.clone());
        let furnished = match self.furnish(id, domain, owner, (version, library), fds) {
            Ok(furnished) => furnished,
            Err(refusal) => {
                self.directory.detach(domain);
                self.sessions[&id].peer.ground.forget(domain);
                return Err(refusal);
            }
        };
        self.welcome(id, serial, Identity { name, owner }, domain, furnished);
        if resumed.is_some() {
            self.expected.remove(&domain);
            self.channels.rearm(domain, self.now + SHOW_TIMEOUT);
        }
        Ok(())
    }

    /// Takes the proof of a domain that comes back.
    fn resumes(&self, id: SessionId, owner: Owner, name: Option<&Name>, resume: &Resume) -> Result<DomainId, Refusal> {
        let name =
            name.ok_or_else(|| Refusal::new(Reason::RequestInvalid, "a domain that comes back says its name"))?;
        if self.sessions[&id].peer.ground.guest().is_some() {
            return Err(Refusal::new(Reason::TicketInvalid, "what a guest's domain had lay in the window of before"));
        }
        if self.tickets.holds(&resume.ticket, resume.domain, owner, name) {
            Ok(resume.domain)
        } else {
            Err(Reason::TicketInvalid.into())
        }
    }

    /// Whoever has that name or number but is dead goes first: its end may wait in the same turn of the loop as our request.
    fn make_room(&mut self, name: Option<&Name>, number: Option<DomainId>) {
        let holder = name.and_then(|name| self.directory.find(name)).map(|domain| domain.id);
        for domain in [holder, number].into_iter().flatten() {
            if let Some(home) = self.homes.get(&domain).filter(|home| home.hung_up()) {
                self.lost(home.session, Reason::PeerVanished);
            }
        }
    }

    /// Makes or takes over all that a domain needs.
    fn furnish(
        &mut self,
        id: SessionId,
        domain: DomainId,
        owner: Owner,
        (version, library): (Version, Name),
        fds: Vec<Given>,
    ) -> Result<Furnished, Refusal> {
        let ground = self.sessions[&id].peer.ground.clone();
        let mut rings = ground.rings(self.settings.ring_slab)?;
        if let Some(refusal) = rings.refused.take() {
            self.note_less(id, &rings, &refusal);
        }
        let (geometry, ring) = (Geometry { slab: rings.slab }, rings.memory);
        let (own, listener) = match <[Given; 2]>::try_from(fds) {
            Ok([memory, bell]) => (adopted_board(memory, bell)?, None),
            Err(_) => {
                let board = NewBoard::own(&ground, domain)?;
                (board.peers, Some(board.listener))
            }
        };
        let window = ring.map(geometry.size())?;
        let board = own.memory.map(board::SIZE)?;
        let peer = &self.sessions[&id].peer;
        let nudge = match &ground {
            Ground::Host => Doorbell::from(peer.socket.try_clone()?),
            Ground::Guest(estate) => estate.nudge(domain)?,
        };
        let used = vec![ring.clone(), own.memory.clone()];
        let seat = self.workers.seat(domain, owner, &ground, used)?; // Last of what can fail.
        let counters = Arc::new(DomainCounters::default());
        let ends = Ends {
            window,
            geometry,
            sends: Direction::One,
            peer_board: board.clone(),
            place: Place::DOMAIN_RING,
            peer_doorbell: nudge.clone(),
        };
        let (worker, place) = (seat.worker, seat.place);
        let mut items = vec![ring, seat.memory.clone(), seat.doorbell.clone()];
        items.extend(listener.map(|listener| [own.memory.clone(), listener]).into_iter().flatten());
        let home = Home {
            session: id,
            pid: peer.pid,
            library,
            version,
            since: self.now,
            worker,
            daemon_board: seat.board,
            daemon_place: place,
            counters: Arc::clone(&counters),
            boards: BTreeMap::from([(BoardIndex::DAEMON, own)]),
            ground,
            nudge,
            ring_slab: geometry.slab,
        };
        self.workers.add(NewDomain { domain, owner, ends, board: seat.board, place, counters });
        Ok(Furnished { home, board, seat, items })
    }

    fn welcome(
        &mut self,
        id: SessionId,
        serial: Option<RequestSerial>,
        identity: Identity,
        domain: DomainId,
        furnished: Furnished,
    ) {
        let Furnished { home, board, seat, items } = furnished;
        let Identity { name, owner } = identity.clone();
        match home.ground {
            Ground::Host => self.tickets.enter(Survivor::of_process(domain, home.pid)),
            Ground::Guest(_) => self.tickets.pass(domain),
        }
        let message = Welcome {
            domain,
            ticket: self.tickets.ticket(domain, owner, &name),
            name,
            owner,
            epoch: self.settings.epoch,
            slab: home.ring_slab,
            daemon_place: seat.place,
            credit_bytes: ORDINARY_CREDIT_BYTES,
            channels: self.policy.settings().channels || !self.policy.settings().rules.as_slice().is_empty(),
            fresh: items.len() > 3,
        };
        tracing::debug!(%domain, name = %message.name, %owner, fresh = message.fresh, "attached");
        self.change_identities(|identities| drop(identities.insert(domain, identity)));
        if let Some(session) = self.sessions.get_mut(&id) {
            session.stage = Stage::Attached { domain };
        }
        self.outgoing.push_back(Outgoing::Board { to: id, board, pid: home.pid });
        self.homes.insert(domain, home);
        self.send(id, serial, message.into(), items);
    }
}

fn fallback_name(program: &Name, pid: Option<i32>) -> Name {
    let number = pid.map_or_else(String::new, |pid| format!("-{pid}"));
    Name::new(&format!("{program}{number}")).unwrap_or_else(|_| program.clone())
}

/// The board of a domain that comes back. Its doorbell will be handed to its owner's other domains, so it has to be what it was.
fn adopted_board(memory: Given, bell: Given) -> Result<BoardFds, Refusal> {
    let kind = std::fs::read_link(format!("/proc/self/fd/{}", bell.as_fd().as_raw_fd()));
    if !kind.is_ok_and(|kind| kind.as_os_str() == "anon_inode:[eventfd]") {
        return Err(Reason::DoorbellInvalid.into());
    }
    sealed(&memory, Some(board::SIZE.0))?;
    Ok(BoardFds { memory: memory.keep().into(), ringer: bell.keep().into(), line: None })
}
