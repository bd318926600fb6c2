//! Pair windows of two guests of one backend: the backend's side ([`pairs`](crate::pairs)).
//!
//! ```text
//!   PairRequest ──► PairWindow of grants ── PairInvite ──► the guest that grants: an offer, grant batches
//!                                       └── PairInvite ──► the guest that maps              ……► PairClose, to both
//! ```
//!
//! The guest daemons set up the window on requests that arrive through their control proxies. The backend only sends these requests. It maps no part
//! of such a window and relays none of its rings.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use isthmus_layout::proxy::ProxyFrameKind;
use isthmus_platform_xen::Domid;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::spawn_local;

use crate::pairs::{PairError, PairMaker, PairTimeouts, run_pair};
use isthmus_control::broker::PairRequest;
use isthmus_control::server::Server;
use isthmus_window::GrantBacking;
use isthmus_window::{GuestId, PairWindow, SizeClass};

/// The number of unsent frames from which on a guest gets no further window, because its daemon does not read them.
const UNSENT_MAX: usize = 256;

/// The attached guests.
pub(super) type GuestTable = Rc<RefCell<BTreeMap<GuestId, PeerGuestInfo>>>;

/// The properties of a guest that matter for pair windows.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerGuestInfo {
    pub(super) domid: Domid,
    /// Whether the guest may map grants of other guests.
    pub(super) may_map: bool,
}

/// The parameters of pair windows.
#[derive(Clone, Debug)]
pub(super) struct PairPlan {
    pub(super) known: GuestTable,
    pub(super) size_classes: Vec<SizeClass>,
    /// The maximum size of each window in bytes.
    pub(super) bytes_max: u64,
    pub(super) limits: PairTimeouts,
}

/// Creates windows on request, until the broker drops its end of the channel.
pub(super) async fn serve(server: Server, plan: PairPlan, mut requests: UnboundedReceiver<PairRequest>) {
    while let Some(request) = requests.recv().await {
        spawn_local(run_pair(server.clone(), plan.limits, request, XenPairMaker { plan: plan.clone() }));
    }
}

/// The maker of one window.
struct XenPairMaker {
    plan: PairPlan,
}

impl PairMaker for XenPairMaker {
    async fn create(&mut self, request: &PairRequest) -> Result<Arc<PairWindow>, PairError> {
        let PairRequest { number, guests, .. } = request;
        let peer_guests = {
            let known = self.plan.known.borrow();
            let peer_guest = |at: usize| known.get(&guests[at].number()).copied();
            peer_guest(0).zip(peer_guest(1)).ok_or(PairError::GuestGone)?
        };
        if let Some(unresponsive) = guests.iter().find(|guest| guest.frames_waiting() >= UNSENT_MAX) {
            return Err(PairError::Unresponsive(unresponsive.name().clone()));
        }
        // The first guest grants, the second maps.
        let (mut guests, mut peer_guests) = (guests.clone(), <[PeerGuestInfo; 2]>::from(peer_guests));
        if !peer_guests[1].may_map {
            guests.reverse();
            peer_guests.reverse();
        }
        if !peer_guests[1].may_map {
            return Err(PairError::MayNotMap);
        }
        let domains = peer_guests.map(|peer_guest| peer_guest.domid.number());
        let backing = GrantBacking::pair(*number, domains, &self.plan.size_classes, self.plan.bytes_max);
        Ok(PairWindow::new(*number, guests, backing))
    }

    /// Never completes: the guest daemons report the end of the window, or are gone.
    async fn closed(&self) -> &'static str {
        std::future::pending().await
    }

    async fn destroy(self, request: &PairRequest) {
        for guest in &request.guests {
            guest.queue_frame((ProxyFrameKind::PairClose, request.number.emit()));
        }
    }
}
