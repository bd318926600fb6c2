//! How a worker carries out what control and other workers ask of it.

use crate::command::{Command, Event, NewDomain};
use crate::kinds::{back, bounced};
use crate::mailbox::{Parcel, Task};
use crate::router::{Bounced, Home};
use crate::worker::Worker;
use isthmus_layout::DomainId;
use isthmus_layout::limits::ORDINARY_RECORD_COST;
use isthmus_layout::reason::Reason;

impl Worker {
    pub(crate) fn carry_out(&mut self, task: Task) {
        match task {
            Task::Command(command) => self.obey(command),
            Task::Neighbour { domain, worker } => self.router.add_there(domain, worker),
            Task::NeighbourGone { domain, reason } => self.router.remove_there(domain, reason),
            Task::Parcel(parcel) => self.parcel(&parcel),
            Task::Credit { to, route, bytes } => match (self.router.home(to), route.peer) {
                (Some(Home::Here(slot)), _) => self.router.give_credit(slot, route, bytes),
                (Some(Home::Wire), Some(domain)) => self.give_to_wire(domain, to, bytes),
                _ => {}
            },
            Task::Bounce { to, route, bounce, reason } => {
                if let Some(Home::Here(slot)) = self.router.home(to) {
                    self.router.give_bounce(slot, route, bounce, reason);
                }
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::AddBoard { board, memory, doorbell, .. } => {
                assert!(!self.rings.has_board(board), "control numbers each board once");
                match self.sleeper.add(&doorbell) {
                    Ok(()) => self.rings.add_board(board, memory, doorbell),
                    Err(error) => tracing::error!(%error, "a board cannot be listened to"),
                }
            }
            Command::RemoveBoard { board, .. } => match self.rings.remove_board(board) {
                Some(doorbell) => self.sleeper.remove(&doorbell),
                None => tracing::error!(board = board.0, "a board that is in use was to be removed"),
            },
            Command::Add(new) => self.add(*new),
            Command::Remove { domain, reason } => self.remove_domain(domain, reason),
            Command::AddMxBoard(_)
            | Command::OpenMx(_)
            | Command::CloseMx { .. }
            | Command::ConnectMx(_)
            | Command::Capture(_)
            | Command::GrantStranger { .. }
            | Command::RevokeStranger { .. } => self.obey_about_wire(command),
            Command::Permit(permit) => self.router.set_permit(permit),
            Command::Shutdown => self.ended = true,
        }
    }

    fn add(&mut self, new: NewDomain) {
        if !self.rings.has_board(new.board) {
            return; // Its board could not be had, which is logged: it hears nothing, as if we were slow, until control removes it.
        }
        assert!(self.router.home(new.domain).is_none(), "control numbers each domain once");
        let slot = self.router.add(new.domain, new.owner);
        self.rings.add(slot, new);
    }

    fn remove_domain(&mut self, domain: DomainId, reason: Reason) {
        if let Some(Home::Here(slot)) = self.router.home(domain) {
            self.remove(slot, reason);
            // Control tells its peers by another road: what it has sent them, credit too, has to be with them before.
            self.deliver_waiting();
            self.rings.flush();
        }
        (self.listener)(Event::Removed { domain });
    }

    fn parcel(&mut self, parcel: &Parcel) {
        match (self.router.home(parcel.to), parcel.route.peer) {
            (Some(Home::Here(slot)), _) => return self.take_parcel(slot, parcel),
            (Some(Home::Wire), Some(domain)) => {
                return self.take_for_wire(domain, parcel.to, &parcel.record, &parcel.bytes);
            }
            _ => {}
        }
        // Gone, and its sender did not know yet.
        let reason = self.router.ended(parcel.to);
        self.counters.drops.add(reason, 1);
        if let (Some(sender), Some(serial)) = (parcel.route.peer, bounced(&parcel.record)) {
            let bounce = Bounced { serial, cost: ORDINARY_RECORD_COST + parcel.bytes.len() as u32 };
            let route = back(parcel.route, Some(parcel.to));
            self.post(parcel.worker, Task::Bounce { to: sender, route, bounce, reason });
        }
    }
}
