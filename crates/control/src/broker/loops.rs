//! Loop devices: rings in a pair window, through which the kernels of two guests exchange Ethernet frames.
//!
//! ```text
//!   both guests state an interface of the same network
//!        │
//!        ▼       one of them has seen a frame for the other          the pair window is open
//!     (none) ─────────────────────────────────────────────► Making ─────────────────────────► Made
//!                                                            ▲   │ refused                      │ a device has ended, no frames pass,
//!                              after a while, the next frame │   ▼                              │ an interface or a guest is gone
//!                                                            Paused ◄───────────────────────────┘
//! ```
//!
//! The configuration says which interfaces a guest has and in which networks they are. A frame tells a guest the others in its networks and
//! the rings that it shares with them, each time as a whole. So it needs to know no history, and nothing is queued for a guest that does not
//! read. Guests never learn of rings that are revoked already, because the frame is made when it is sent.

use std::collections::BTreeMap;
use std::sync::Arc;

use isthmus_layout::RegionSize;
use isthmus_layout::control::{Name, Owner};
use isthmus_layout::proxy::loops::{LOOP_BYTES, LoopPeer, LoopPeers, LoopRequest, LoopRequestKind, Mac};
use isthmus_layout::proxy::{ResourceRef, WindowId};
use isthmus_report::LoopRow;
use isthmus_window::{GuestId, GuestWindow, LoopDoorbell, PairWindow, Resource};

use super::pairs::GuestPair;
use super::{Broker, GuestState};

/// The pause in nanoseconds after a refusal or the end of a device.
pub(super) const FAILED_PAUSE_NS: u64 = 10_000_000_000;

/// The pause in nanoseconds after rings were given back unused. It bounds what a guest costs its peer that asks for rings only to give them back.
const UNUSED_PAUSE_NS: u64 = 1_000_000_000;

/// The path of packets that do not go through shared memory, in reports.
const BRIDGE: &str = "bridge";

/// Reasons in reports.
const ENDED: &str = "a loop device could not be made or has ended; the guest daemons' logs say more";
const NOT_STATED: &str =
    "the guest has no such interface that is up, or cannot steer it; its guest daemon's log says more";

/// A guest that can have loop devices.
#[derive(Debug)]
struct LoopGuest {
    name: Name,
    window: Arc<GuestWindow>,
    /// The network and the MAC address of each interface that the guest has stated, and may have.
    interfaces: Vec<(String, Mac)>,
}

/// The rings of two guests.
#[derive(Debug)]
enum LoopPair {
    /// The pair window is being made.
    Making,
    Made {
        memory: Resource,
        /// The end of each guest, in the order of the key.
        doorbells: [LoopDoorbell; 2],
    },
    /// No rings are made before `until`.
    Paused { until: u64, why: String },
}

/// All guests with interfaces, and the pairs of them with rings.
#[derive(Debug, Default)]
pub(super) struct Loops {
    guests: BTreeMap<GuestId, LoopGuest>,
    pairs: BTreeMap<GuestPair, LoopPair>,
}

impl Loops {
    /// Returns the interfaces by which two guests reach each other. If they share several networks, it is the first one by name.
    fn link(&self, GuestPair([a, b]): GuestPair) -> Option<[Mac; 2]> {
        if a == b {
            return None; // A guest asks for rings with itself.
        }
        let (a, b) = (&self.guests.get(&a)?.interfaces, &self.guests.get(&b)?.interfaces);
        let of_network = |network: &str| Some(b.iter().find(|(of, _)| of == network)?.1);
        let links = a.iter().filter_map(|(network, mac)| Some((network, [*mac, of_network(network)?])));
        links.min_by_key(|(network, _)| *network).map(|(_, macs)| macs)
    }

    /// The memory of the rings of a pair.
    fn memory(&self, key: &GuestPair) -> Option<&Resource> {
        match self.pairs.get(key)? {
            LoopPair::Made { memory, .. } => Some(memory),
            LoopPair::Making | LoopPair::Paused { .. } => None,
        }
    }

    /// Returns true if rings of the pair lie in its window or are awaited.
    pub(super) fn uses_window(&self, key: GuestPair) -> bool {
        matches!(self.pairs.get(&key), Some(LoopPair::Making | LoopPair::Made { .. }))
    }

    /// Has both guests told that their rings have changed.
    fn pair_changed(&self, GuestPair(guests): GuestPair) {
        guests.iter().filter_map(|guest| self.guests.get(guest)).for_each(|guest| guest.window.loops_changed());
    }

    /// Takes the rings of a pair away, and makes none for a while.
    fn pause(&mut self, key: GuestPair, paused: LoopPair) {
        if matches!(self.pairs.insert(key, paused), Some(LoopPair::Made { .. })) {
            tracing::info!(guests = self.names(key), "the guests exchange no frames through shared memory any more");
        }
        self.pair_changed(key);
    }

    fn names(&self, GuestPair(guests): GuestPair) -> String {
        let name = |guest: &GuestId| self.guests.get(guest).map_or("?", |guest| guest.name.as_str());
        format!("{} and {}", name(&guests[0]), name(&guests[1]))
    }
}

fn key(a: GuestId, b: GuestId) -> GuestPair {
    GuestPair(if a < b { [a, b] } else { [b, a] })
}

impl Broker {
    /// Takes the addresses of the interfaces that a guest can steer. They replace those that it has stated before. Addresses that the
    /// configuration does not name are ignored.
    pub fn set_loop_interfaces(&mut self, window: &Arc<GuestWindow>, stated: &[Mac]) {
        let Some(view) = self.guests.get(window.name()) else { return };
        let allowed = view.loops.iter().filter(|(_, mac)| stated.contains(mac));
        let interfaces: Vec<_> = allowed.cloned().collect();
        let guest = window.number();
        let before = match self.pairs.loops.guests.get_mut(&guest) {
            Some(known) if known.interfaces == interfaces => return,
            Some(known) => std::mem::replace(&mut known.interfaces, interfaces.clone()),
            None if interfaces.is_empty() => return,
            None => {
                let (name, window) = (window.name().clone(), Arc::clone(window));
                let known = LoopGuest { name, window, interfaces: interfaces.clone() };
                self.pairs.loops.guests.insert(guest, known);
                Vec::new()
            }
        };
        // The interfaces of both may have changed by which they reach each other. A pause goes on.
        let of_guest = self.pairs.loops.pairs.keys().filter(|pair| pair.0.contains(&guest));
        for pair in of_guest.copied().collect::<Vec<_>>() {
            self.loop_window_closed(pair, UNUSED_PAUSE_NS, "an interface has changed");
        }
        let shared = |other: &&LoopGuest| {
            other.interfaces.iter().any(|(network, _)| before.iter().chain(&interfaces).any(|(of, _)| of == network))
        };
        self.pairs.loops.guests.values().filter(shared).for_each(|other| other.window.loops_changed());
        window.loops_changed();
        if interfaces.is_empty() {
            self.pairs.loops.guests.remove(&guest);
        }
    }

    /// Forgets a guest after its window is gone.
    pub fn loop_guest_gone(&mut self, window: &Arc<GuestWindow>) {
        self.set_loop_interfaces(window, &[]);
        self.pairs.loops.pairs.retain(|pair, _| !pair.0.contains(&window.number()));
    }

    /// Returns the guests that this one may reach, and the rings that it shares with them.
    pub fn loop_peers(&self, guest: GuestId) -> LoopPeers {
        let others = self.pairs.loops.guests.keys().filter(|other| **other != guest);
        let peers = others.filter_map(|other| self.loop_peer(guest, *other)).collect();
        LoopPeers::clip(peers)
    }

    fn loop_peer(&self, guest: GuestId, other: GuestId) -> Option<LoopPeer> {
        let pair = key(guest, other);
        let side = usize::from(pair.0[0] != guest);
        let macs = self.pairs.loops.link(pair)?;
        let mut peer = LoopPeer {
            guest: other.0,
            own: macs[side],
            mac: macs[1 - side],
            window: WindowId::OWN.0,
            side: side as u8,
            generation: 0,
            offset: 0,
            bytes: 0,
            peer: 0,
            peer_vector: 0,
            vector: 0,
        };
        if let Some(LoopPair::Made { memory, doorbells }) = self.pairs.loops.pairs.get(&pair)
            && let Some(ResourceRef::Extent { window, offset, bytes, generation }) = memory.to_ref()
        {
            let (own, others) = (doorbells[side], doorbells[1 - side]);
            peer = LoopPeer {
                window: window.0,
                generation,
                offset,
                bytes,
                peer: others.peer,
                peer_vector: others.vector,
                vector: own.vector,
                ..peer
            };
        }
        Some(peer)
    }

    /// Handles a request of a guest. A guest that it may not reach is ignored: it may have gone meanwhile.
    pub fn loop_request(&mut self, guest: GuestId, request: LoopRequest) {
        let pair = key(guest, GuestId(request.guest));
        if self.pairs.loops.link(pair).is_none() {
            return;
        }
        match request.kind {
            LoopRequestKind::FrameSeen => match self.pairs.loops.pairs.get(&pair) {
                Some(LoopPair::Making | LoopPair::Made { .. }) => {}
                Some(LoopPair::Paused { until, .. }) if self.core.now < *until => {}
                Some(LoopPair::Paused { .. }) | None => self.make_loop(pair),
            },
            LoopRequestKind::Ended | LoopRequestKind::Unused => {
                let reference = self.pairs.loops.memory(&pair).and_then(Resource::to_ref);
                let is_current = matches!(reference, Some(ResourceRef::Extent { window, generation, .. })
                    if (window.0, generation) == (request.window, request.generation));
                if !is_current {
                    return; // These rings have gone already.
                }
                let paused = match request.kind {
                    LoopRequestKind::Unused => self.paused(UNUSED_PAUSE_NS, "no packet has passed for a while"),
                    _ => self.paused(FAILED_PAUSE_NS, ENDED),
                };
                self.pairs.loops.pause(pair, paused);
            }
        }
    }

    fn paused(&self, pause_ns: u64, why: impl Into<String>) -> LoopPair {
        LoopPair::Paused { until: self.core.now.saturating_add(pause_ns), why: why.into() }
    }

    fn make_loop(&mut self, pair: GuestPair) {
        let Some([a, b]) = self.loop_windows(pair) else { return };
        // A guest that does not respond gives no memory back: its peer would ask again and again until the window is full.
        let responds = |window: &Arc<GuestWindow>| {
            self.guests.get(window.name()).is_some_and(|view| view.state(self.core.now) == GuestState::Attached)
        };
        if !responds(&a) || !responds(&b) {
            return;
        }
        let window = match self.request_window_of(pair, [a, b]) {
            Ok(Some(window)) => window,
            Ok(None) => return drop(self.pairs.loops.pairs.insert(pair, LoopPair::Making)),
            Err(refusal) => {
                tracing::debug!(
                    guests = self.pairs.loops.names(pair),
                    reason = refusal.reason.name(),
                    "no rings: {refusal}"
                );
                let paused = self.paused(FAILED_PAUSE_NS, refusal.text());
                return drop(self.pairs.loops.pairs.insert(pair, paused));
            }
        };
        self.make_rings(pair, &window);
    }

    fn loop_windows(&self, GuestPair([a, b]): GuestPair) -> Option<[Arc<GuestWindow>; 2]> {
        let window = |guest| Some(Arc::clone(&self.pairs.loops.guests.get(guest)?.window));
        Some([window(&a)?, window(&b)?])
    }

    /// Makes the rings of two guests in their window.
    fn make_rings(&mut self, pair: GuestPair, window: &Arc<PairWindow>) {
        let made = window
            .loop_doorbells()
            .and_then(|doorbells| Ok(LoopPair::Made { memory: window.allocate(RegionSize(LOOP_BYTES))?, doorbells }));
        match made {
            Ok(made) => {
                tracing::info!(
                    guests = self.pairs.loops.names(pair),
                    "the guests exchange frames through shared memory"
                );
                self.pairs.loops.pairs.insert(pair, made);
                self.pairs.loops.pair_changed(pair);
            }
            Err(error) => {
                let names = self.pairs.loops.names(pair);
                tracing::warn!(guests = names, "the guests cannot exchange frames through shared memory: {error}");
                let refusal = isthmus_layout::Refusal::from(error);
                let paused = self.paused(FAILED_PAUSE_NS, refusal.text());
                self.pairs.loops.pairs.insert(pair, paused);
                for guest in pair.0.iter().filter_map(|guest| self.pairs.loops.guests.get(guest)) {
                    let Some(view) = self.guests.get(&guest.name) else { continue };
                    self.core.reason_log.record(self.core.now, Owner(view.uid), refusal.reason, &refusal.text());
                }
            }
        }
    }

    /// The window of a pair is open.
    pub(super) fn loop_window_opened(&mut self, pair: GuestPair, window: &Arc<PairWindow>) {
        if matches!(self.pairs.loops.pairs.get(&pair), Some(LoopPair::Making)) {
            self.make_rings(pair, window);
        }
    }

    /// The window of a pair is closed, or may not be used for its rings.
    pub(super) fn loop_window_closed(&mut self, pair: GuestPair, pause_ns: u64, why: &str) {
        if self.pairs.loops.uses_window(pair) {
            let paused = self.paused(pause_ns, why);
            self.pairs.loops.pause(pair, paused);
        }
    }

    /// Returns the rows of reports: each interface of the configuration, and each pair that has tried, if `sees` is true for their guests.
    pub(crate) fn loop_rows(&self, sees: impl Fn(&Name, u32) -> bool) -> Vec<LoopRow> {
        let visible = |name: &Name| self.guests.get(name).is_some_and(|view| sees(name, view.uid));
        let interfaces = self.guests.iter().filter(|(name, _)| visible(name)).flat_map(|(name, view)| {
            let stated = view.guest_window.as_ref().and_then(|window| self.pairs.loops.guests.get(&window.number()));
            view.loops.iter().map(move |interface| {
                let is_stated = stated.is_some_and(|stated| stated.interfaces.contains(interface));
                let why = match (view.daemon, is_stated) {
                    (_, true) => None,
                    (true, false) => Some(NOT_STATED),
                    (false, false) => Some("the guest daemon is not attached"),
                };
                LoopRow {
                    guest: name.to_string(),
                    network: interface.0.clone(),
                    mac: interface.1.to_string(),
                    peer: None,
                    peer_mac: None,
                    path: why.map(|_| BRIDGE.to_owned()),
                    why: why.map(str::to_owned),
                }
            })
        });
        let pairs = self.pairs.loops.pairs.iter().filter_map(|(pair, state)| {
            let [a, b] = [self.pairs.loops.guests.get(&pair.0[0])?, self.pairs.loops.guests.get(&pair.0[1])?];
            let macs = self.pairs.loops.link(*pair).filter(|_| visible(&a.name) && visible(&b.name))?;
            let network = a.interfaces.iter().find(|(_, mac)| *mac == macs[0])?.0.clone();
            let why = match state {
                LoopPair::Made { .. } => None,
                LoopPair::Making => Some("the pair window is being made".to_owned()),
                LoopPair::Paused { why, .. } => Some(why.clone()),
            };
            Some(LoopRow {
                guest: a.name.to_string(),
                network,
                mac: macs[0].to_string(),
                peer: Some(b.name.to_string()),
                peer_mac: Some(macs[1].to_string()),
                path: Some(if why.is_none() { "shared memory" } else { BRIDGE }.to_owned()),
                why,
            })
        });
        interfaces.chain(pairs).collect()
    }
}
