//! Requests for pair windows, and the requests for channels that wait for a window. A maker for each platform (`isthmus-guests`)
//! creates and removes the windows.
//!
//! ```text
//!            first request                both guests show it
//!   (none) ───────────────► Making ────────────────────────────► Open
//!     ▲                        │ the maker or a guest does not      │ nobody uses it, a guest is gone
//!     │      after a while     ▼                                    │
//!     ├───────────────────── Refused                                │
//!     └─────────────────────────────────────────────────────────────┘
//! ```
//!
//! A request for a channel is answered once the window is open or refused. Messages take the daemon path until then.

use std::collections::BTreeMap;
use std::sync::Arc;

use isthmus_layout::Refusal;
use isthmus_layout::control::RequestSerial;
use isthmus_layout::ids::{ChannelId, DomainId};
use isthmus_layout::proxy::WindowId;
use isthmus_layout::reason::Reason;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use super::Broker;
use super::loops::{FAILED_PAUSE_NS, Loops};
use isthmus_window::{Allocator, GuestId, GuestWindow, PairWindow};

/// Pair windows of one guest. Each takes a slot of its machine.
const PAIR_WINDOWS_MAX: usize = 16;

/// The pause in nanoseconds after a refusal, in which makers receive no request for the pair.
const REFUSED_PAUSE_NS: u64 = 30_000_000_000;

/// Two guests, the lower number first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestPair(pub [GuestId; 2]);

/// A request to make a window.
#[derive(Debug)]
pub struct PairRequest {
    /// The two guests.
    pub key: GuestPair,
    /// The number by which both guests know the window.
    pub number: WindowId,
    /// Their windows, in the order of the key.
    pub guests: [Arc<GuestWindow>; 2],
    /// Notified when a guest shows the window, stops showing it, or is gone.
    pub changed: Arc<Notify>,
}

/// The state of a pair's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairState {
    /// One of the guests is gone.
    GuestGone,
    /// At least one of the guests does not show the window.
    Absent,
    /// Both guests show the window, and it is in use.
    InUse,
    /// Both guests show the window, and it is not in use.
    Idle,
}

/// A request for a channel that waits for the window.
#[derive(Clone, Copy, Debug)]
struct WaitingRequest {
    connector: DomainId,
    listener: DomainId,
    attempt: u8,
    serial: Option<RequestSerial>,
}

#[derive(Debug)]
enum PairStage {
    Making,
    Open(Arc<PairWindow>),
    /// No window is requested before `until`, which is `u64::MAX` while parts of the old window remain.
    Refused {
        text: String,
        until: u64,
    },
}

#[derive(Debug)]
struct PairEntry {
    number: WindowId,
    stage: PairStage,
    /// Whether each guest shows the window.
    present: [bool; 2],
    waiting: Vec<WaitingRequest>,
    changed: Arc<Notify>,
}

/// All pairs of guests that have a window or have requested one.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    table: BTreeMap<GuestPair, PairEntry>,
    last: u16,
    /// The makers of pair windows, by platform. A platform without a maker has no pair windows.
    makers: BTreeMap<&'static str, UnboundedSender<PairRequest>>,
    /// Rings between the kernels of pairs.
    pub(super) loops: Loops,
}

impl Pairs {
    /// Returns a number that no window has.
    fn allocate_number(&mut self) -> WindowId {
        loop {
            self.last = self.last.checked_add(1).unwrap_or(1);
            let number = WindowId(self.last);
            // The largest number is left out, because the device's own number is one more.
            if self.last != u16::MAX && self.table.values().all(|pair| pair.number != number) {
                return number;
            }
        }
    }

    fn count_of_guest(&self, guest: GuestId) -> usize {
        let is_live = |(key, pair): &(&GuestPair, &PairEntry)| {
            key.0.contains(&guest) && !matches!(pair.stage, PairStage::Refused { until, .. } if until < u64::MAX)
        };
        self.table.iter().filter(is_live).count()
    }
}

impl Broker {
    /// Sends requests for pair windows of a platform to this maker from now on. Guests may still have windows of a previous daemon. Numbers
    /// begin at a random value, so that a new window is not taken for an old one.
    pub fn set_pair_maker(&mut self, platform: &'static str, requests: UnboundedSender<PairRequest>) {
        self.pairs.makers.insert(platform, requests);
        self.pairs.last = self.core.settings.epoch as u16 / 2;
    }

    /// Returns the pair window of two domains in different guests, or None while it is being made. The first call requests it.
    pub(super) fn request_pair_window(&mut self, a: DomainId, b: DomainId) -> Result<Option<Arc<PairWindow>>, Refusal> {
        let (key, guests) = self.pair_of(a, b)?;
        self.request_window_of(key, guests)
    }

    /// Returns the pair window of two guests, or None while it is being made. The first call requests it.
    pub(super) fn request_window_of(
        &mut self,
        key: GuestPair,
        guests: [Arc<GuestWindow>; 2],
    ) -> Result<Option<Arc<PairWindow>>, Refusal> {
        let platform = self.pair_platform(&guests)?;
        match self.pairs.table.get(&key) {
            Some(PairEntry { stage: PairStage::Open(window), present: [true, true], .. }) => {
                return Ok(Some(Arc::clone(window)));
            }
            Some(PairEntry { stage: PairStage::Refused { text, until }, .. }) if self.core.now < *until => {
                return Err(Refusal::new(Reason::PairWindowRefused, text.clone()));
            }
            Some(PairEntry { stage: PairStage::Making | PairStage::Open(_), .. }) => return Ok(None),
            Some(_) | None => {}
        }
        for guest in &guests {
            if self.pairs.count_of_guest(guest.number()) >= PAIR_WINDOWS_MAX {
                let text = format!("guest {} has pair windows with {PAIR_WINDOWS_MAX} others", guest.name());
                return Err(Refusal::new(Reason::PairWindowRefused, text));
            }
        }
        let (number, changed) = (self.pairs.allocate_number(), Arc::new(Notify::new()));
        let request = PairRequest { key, number, guests, changed: Arc::clone(&changed) };
        let sent = self.pairs.makers.get(platform).is_some_and(|maker| maker.send(request).is_ok());
        if !sent {
            return Err(Reason::NoSharedMemory.into()); // The daemon is ending.
        }
        let pair = PairEntry { number, stage: PairStage::Making, present: [false; 2], waiting: Vec::new(), changed };
        self.pairs.table.insert(key, pair);
        Ok(None)
    }

    /// Returns the reason why two domains with different allocators have no channel yet, for reports. None if no window was requested, or
    /// if the window is open.
    pub(crate) fn pair_window_refusal(&self, a: DomainId, b: DomainId) -> Option<Reason> {
        let (key, guests) = match self.pair_of(a, b) {
            Ok(found) => found,
            Err(refusal) => return Some(refusal.reason),
        };
        if let Err(refusal) = self.pair_platform(&guests) {
            return Some(refusal.reason);
        }
        match self.pairs.table.get(&key)? {
            PairEntry { stage: PairStage::Open(_), present: [true, true], .. } => None,
            PairEntry { stage: PairStage::Refused { .. }, .. } => Some(Reason::PairWindowRefused),
            PairEntry { .. } => Some(Reason::PairWindowPending),
        }
    }

    fn pair_of(&self, a: DomainId, b: DomainId) -> Result<(GuestPair, [Arc<GuestWindow>; 2]), Refusal> {
        let (Some(a), Some(b)) = (self.core.attachments.get(&a), self.core.attachments.get(&b)) else {
            return Err(Reason::NoSuchDomain.into());
        };
        let (Allocator::Guest(a), Allocator::Guest(b)) = (&a.allocator, &b.allocator) else {
            return Err(Reason::NoSharedMemory.into());
        };
        let mut guests = [Arc::clone(a), Arc::clone(b)];
        guests.sort_by_key(|guest| guest.number());
        Ok((GuestPair([guests[0].number(), guests[1].number()]), guests))
    }

    /// Returns the platform that both guests have, if its maker can make a window for them.
    fn pair_platform(&self, guests: &[Arc<GuestWindow>; 2]) -> Result<&'static str, Refusal> {
        let mut platform = None;
        for guest in guests {
            let view = self.guests.get(guest.name()).ok_or(Reason::NoSharedMemory)?;
            if view.platform == "kvm" && view.monitor.is_none() {
                let text = format!("the daemon was not given the monitor of guest {}", guest.name());
                return Err(Refusal::new(Reason::MonitorMissing, text));
            }
            if !self.pairs.makers.contains_key(view.platform) || platform.is_some_and(|known| known != view.platform) {
                return Err(Reason::NoSharedMemory.into());
            }
            platform = Some(view.platform);
        }
        Ok(platform.expect("there are two"))
    }

    /// Has a domain's request for a channel answered when the window is open or refused.
    pub(super) fn wait_for_window(
        &mut self,
        (connector, listener): (DomainId, DomainId),
        attempt: u8,
        serial: Option<RequestSerial>,
    ) {
        let Ok((key, _)) = self.pair_of(connector, listener) else { return };
        let Some(pair) = self.pairs.table.get_mut(&key) else { return };
        pair.waiting.retain(|known| (known.connector, known.listener) != (connector, listener));
        pair.waiting.push(WaitingRequest { connector, listener, attempt, serial });
        for of in [connector, listener] {
            let peer = if of == connector { listener } else { connector };
            self.core.directory.peer_state(of, peer).refused = Some(Reason::PairWindowPending);
        }
    }

    /// Notes that a guest's daemon has a window, or no longer has it. Numbers of unknown windows are ignored.
    pub fn set_window_present(&mut self, guest: GuestId, window: WindowId, present: bool) {
        let mut shown = None;
        for (key, pair) in self.pairs.table.iter_mut().filter(|(_, pair)| pair.number == window) {
            if let Some(side) = key.0.iter().position(|of| *of == guest) {
                pair.present[side] = present;
                pair.changed.notify_one();
                if let PairStage::Open(window) = &pair.stage
                    && pair.present == [true; 2]
                {
                    shown = Some((*key, Arc::clone(window)));
                }
            }
        }
        // The task of the window may not have seen that it was away.
        if let Some((key, window)) = shown {
            self.loop_window_opened(key, &window);
        }
    }

    /// Notes that a guest's daemon is gone or has started a new proxy session, and so has reported no window yet.
    pub fn clear_windows_present(&mut self, guest: GuestId) {
        for (key, pair) in &mut self.pairs.table {
            if let Some(side) = key.0.iter().position(|of| *of == guest) {
                pair.present[side] = false;
                pair.changed.notify_one();
            }
        }
    }

    /// Notifies all makers that a guest has come or gone, or that a pair window has changed.
    pub fn guests_changed(&self) {
        self.pairs.table.values().for_each(|pair| pair.changed.notify_one());
    }

    fn are_attached(&self, GuestPair(guests): GuestPair) -> bool {
        let numbers: Vec<_> =
            self.guests.values().filter_map(|view| Some(view.guest_window.as_ref()?.number())).collect();
        guests.iter().all(|guest| numbers.contains(guest))
    }

    /// The state of a pair's window.
    pub fn pair_state(&self, key: GuestPair) -> PairState {
        let Some(pair) = self.pairs.table.get(&key).filter(|_| self.are_attached(key)) else {
            return PairState::GuestGone;
        };
        let of_channels = self.channels.iter().filter_map(|channel| channel.memory.as_ref());
        let lingering = self.guest_memory.lingering.values().map(|lingering| &lingering.memory);
        let used = of_channels.chain(lingering).any(|memory| memory.pair_window() == Some(pair.number));
        let used = used || !pair.waiting.is_empty() || self.pairs.loops.uses_window(key);
        match pair.present {
            [true, true] if used => PairState::InUse,
            [true, true] => PairState::Idle,
            _ => PairState::Absent,
        }
    }

    /// Notes that both guests show the window, and answers the requests for channels that wait for it.
    pub fn open_pair(&mut self, key: GuestPair, window: &Arc<PairWindow>) {
        let Some(pair) = self.pairs.table.get_mut(&key) else { return };
        pair.stage = PairStage::Open(Arc::clone(window));
        self.answer_waiting(key);
        self.loop_window_opened(key, window);
    }

    /// Ends the channels of a pair's window. No other window is requested before [`Broker::remove_pair`].
    pub fn close_pair(&mut self, key: GuestPair, reason: Reason, text: &str) {
        self.end_pair_channels(key, reason);
        self.loop_window_closed(key, FAILED_PAUSE_NS, text);
        if let Some(pair) = self.pairs.table.get_mut(&key) {
            pair.stage = PairStage::Refused { text: text.to_owned(), until: u64::MAX };
        }
        self.answer_waiting(key);
    }

    /// True until every domain has confirmed that it is done with its remaining memory in the window.
    pub fn pair_lingers(&self, key: GuestPair) -> bool {
        let number = self.pairs.table.get(&key).map(|pair| pair.number);
        self.guest_memory
            .lingering
            .values()
            .any(|lingering| lingering.memory.pair_window() == number && number.is_some())
    }

    /// Releases the memory in the window, without waiting for domains any longer.
    pub fn release_pair(&mut self, key: GuestPair) {
        let Some(number) = self.pairs.table.get(&key).map(|pair| pair.number) else { return };
        self.guest_memory.lingering.retain(|_, lingering| lingering.memory.pair_window() != Some(number));
        let of_pair = self.core.attachments.iter().filter(|(_, attached)| key.0.contains(&attached.allocator.number()));
        let domains: Vec<DomainId> = of_pair.map(|(domain, _)| *domain).collect();
        for domain in domains {
            let Some(known) = self.core.directory.get_mut(domain) else { continue };
            for ready_map in known.ready_maps.retire(number) {
                self.core.attachments.remove_ready_map(domain, ready_map);
            }
        }
    }

    /// Forgets a pair after its window is gone. If the window was refused, the maker receives no request for a while.
    pub fn remove_pair(&mut self, key: GuestPair, refused: bool) {
        let pause = self.core.now.saturating_add(REFUSED_PAUSE_NS);
        let pauses = refused && self.are_attached(key);
        match self.pairs.table.get_mut(&key) {
            Some(PairEntry { stage: PairStage::Refused { until, .. }, .. }) if pauses => *until = pause,
            _ => drop(self.pairs.table.remove(&key)),
        }
    }

    fn answer_waiting(&mut self, key: GuestPair) {
        let waiting = self.pairs.table.get_mut(&key).map(|pair| std::mem::take(&mut pair.waiting));
        for waiting in waiting.unwrap_or_default() {
            let WaitingRequest { connector, listener, attempt, serial } = waiting;
            if !self.core.attachments.contains_key(&connector) {
                continue;
            }
            if let Err(refusal) = self.offer(connector, listener, attempt, serial) {
                self.refuse_waiting(waiting, &refusal);
            }
        }
    }

    fn refuse_waiting(&mut self, waiting: WaitingRequest, refusal: &Refusal) {
        let WaitingRequest { connector, listener, attempt, serial } = waiting;
        if let Some(attachment) = self.core.attachments.get(&connector) {
            self.refuse_request(attachment.session, serial, (connector, listener), attempt, refusal);
        }
    }

    /// Ends all channels in a window.
    fn end_pair_channels(&mut self, key: GuestPair, reason: Reason) {
        let Some(number) = self.pairs.table.get(&key).map(|pair| pair.number) else { return };
        let inside = self
            .channels
            .iter()
            .filter(|channel| channel.memory.as_ref().is_some_and(|memory| memory.pair_window() == Some(number)));
        let inside: Vec<ChannelId> = inside.map(|channel| channel.id).collect();
        self.revoke_regions_in_pair(number);
        for channel in inside {
            self.end_channel(channel, None, reason);
        }
    }
}
