//! Pair windows of two guests of one backend: the backend's part ([`pairs`](crate::pairs)).
//!
//! ```text
//!   PairRequest ──► PairWindow of grants ── PairInvite ──► the guest that grants: an offer, grant batches
//!                                       └── PairInvite ──► the guest that maps              ……► PairClose, to both
//! ```
//!
//! All that has to be done the guests' daemons do, as they are told by their control proxies; here they are told. Nothing of such a window is
//! mapped here, and no ring of it is passed on here.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use isthmus_layout::proxy::ProxyFrameKind;
use isthmus_platform_xen::Domid;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::spawn_local;

use crate::allocator::pair_window::PairGrantBacking;
use crate::allocator::{GuestId, PairWindow, SizeClass};
use crate::broker::PairRequest;
use crate::pairs::{PairMaker, PairTimeouts, run_pair};
use crate::server::Server;

/// Frames that may be unsent when a guest gets another window. One that takes nothing gets none.
const UNSENT_MAX: usize = 256;

/// What is known of guests, while they are there.
pub(super) type GuestTable = Rc<RefCell<BTreeMap<GuestId, PeerGuestInfo>>>;

/// What is to be known of a guest that is to have a pair window with another one.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerGuestInfo {
    pub(super) domid: Domid,
    /// It may map what others grant.
    pub(super) may_map: bool,
}

/// How windows are made.
#[derive(Clone, Debug)]
pub(super) struct PairPlan {
    pub(super) known: GuestTable,
    pub(super) size_classes: Vec<SizeClass>,
    /// Bytes of each, at most.
    pub(super) bytes_max: u64,
    pub(super) limits: PairTimeouts,
}

/// Makes windows as long as there is somebody who wants any.
pub(super) async fn serve(server: Server, plan: PairPlan, mut requests: UnboundedReceiver<PairRequest>) {
    while let Some(request) = requests.recv().await {
        spawn_local(run_pair(server.clone(), plan.limits, request, XenPairMaker { plan: plan.clone() }));
    }
}

/// One window.
struct XenPairMaker {
    plan: PairPlan,
}

impl PairMaker for XenPairMaker {
    async fn create(&mut self, request: &PairRequest) -> Result<Arc<PairWindow>, String> {
        let PairRequest { number, guests, .. } = request;
        let peer_guests = {
            let known = self.plan.known.borrow();
            let peer_guest = |at: usize| known.get(&guests[at].number()).copied();
            peer_guest(0).zip(peer_guest(1)).ok_or("one of them is not there any more")?
        };
        if let Some(unresponsive) = guests.iter().find(|guest| guest.frames_waiting() >= UNSENT_MAX) {
            return Err(format!("the daemon of guest {} does not take what it is told", unresponsive.name()));
        }
        // The first of them grants.
        let (mut guests, mut peer_guests) = (guests.clone(), <[PeerGuestInfo; 2]>::from(peer_guests));
        if !peer_guests[1].may_map {
            guests.reverse();
            peer_guests.reverse();
        }
        if !peer_guests[1].may_map {
            return Err("neither of them may map what the other one grants (xen.guest: maps)".to_owned());
        }
        let domains = peer_guests.map(|peer_guest| peer_guest.domid.number());
        let backing = PairGrantBacking::new(*number, domains, &self.plan.size_classes, self.plan.bytes_max);
        let (side, invitation) = backing.invitation();
        let window = PairWindow::new(*number, guests, backing);
        window.queue_frame(side, invitation);
        Ok(window)
    }

    /// Its guests' daemons say so, or are gone.
    async fn closed(&self) -> &'static str {
        std::future::pending().await
    }

    async fn destroy(self, request: &PairRequest) {
        for guest in &request.guests {
            guest.queue_frame((ProxyFrameKind::PairClose, request.number.emit()));
        }
    }
}
