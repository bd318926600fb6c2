//! Windows that two guests of one backend have in common: the backend's part ([`pairs`](crate::pairs)).
//!
//! ```text
//!   Wanted ──► CommonWindow of lots ── Share ──► the guest that grants: an offer, lots
//!                                  └── Share ──► the guest that maps              ……► Part, to both
//! ```
//!
//! All that has to be done the guests' daemons do, as they are told over their borders; here they are told. Nothing of such a window is
//! mapped here, and no ring of it is passed on here.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use isthmus_layout::border::FrameKind;
use isthmus_platform_xen::Domid;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::spawn_local;

use crate::broker::Wanted;
use crate::ground::common::Lots;
use crate::ground::{CommonWindow, GroundNumber, Sort};
use crate::pairs::{Limits, Make, live};
use crate::server::Server;

/// What a guest may not have been told when it gets another window. One that takes nothing gets none.
const UNTOLD_MAX: usize = 256;

/// What is known of guests, while they are there.
pub(super) type Known = Rc<RefCell<BTreeMap<GroundNumber, Neighbour>>>;

/// What is to be known of a guest that is to have a window in common with another one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Neighbour {
    pub(super) domid: Domid,
    /// It may map what others grant.
    pub(super) maps: bool,
}

/// How windows are made.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) known: Known,
    pub(super) sorts: Vec<Sort>,
    /// Bytes of each, at most.
    pub(super) bytes_max: u64,
    pub(super) limits: Limits,
}

/// Makes windows as long as there is somebody who wants any.
pub(super) async fn serve(server: Server, plan: Plan, mut wanted: UnboundedReceiver<Wanted>) {
    while let Some(wanted) = wanted.recv().await {
        spawn_local(live(server.clone(), plan.limits, wanted, Making { plan: plan.clone() }));
    }
}

/// One window.
struct Making {
    plan: Plan,
}

impl Make for Making {
    async fn make(&mut self, wanted: &Wanted) -> Result<Arc<CommonWindow>, String> {
        let Wanted { number, guests, .. } = wanted;
        let neighbours = {
            let known = self.plan.known.borrow();
            let neighbour = |at: usize| known.get(&guests[at].number()).copied();
            neighbour(0).zip(neighbour(1)).ok_or("one of them is not there any more")?
        };
        if let Some(deaf) = guests.iter().find(|guest| guest.orders_waiting() >= UNTOLD_MAX) {
            return Err(format!("the daemon of guest {} does not take what it is told", deaf.name()));
        }
        // The first of them grants.
        let (mut guests, mut neighbours) = (guests.clone(), <[Neighbour; 2]>::from(neighbours));
        if !neighbours[1].maps {
            guests.reverse();
            neighbours.reverse();
        }
        if !neighbours[1].maps {
            return Err("neither of them may map what the other one grants (xen.guest: maps)".to_owned());
        }
        let domains = neighbours.map(|neighbour| neighbour.domid.number());
        let lots = Lots::new(*number, domains, &self.plan.sorts, self.plan.bytes_max);
        let (side, invitation) = lots.invitation();
        let window = CommonWindow::over(*number, guests, lots);
        window.order(side, invitation);
        Ok(window)
    }

    /// Its guests' daemons say so, or are gone.
    async fn gone(&self) -> &'static str {
        std::future::pending().await
    }

    async fn unmake(self, wanted: &Wanted) {
        for guest in &wanted.guests {
            guest.order((FrameKind::Part, wanted.number.emit()));
        }
    }
}
