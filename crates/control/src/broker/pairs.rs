//! Windows that two guests have in common: who gets one, and who waits for one. They are made and taken away by a maker for each platform
//! ([`pairs`](crate::pairs)).
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
//! Who asks for a channel while the window is not there is answered when it is, or is not. Messages take the ordinary path until then.

use std::collections::BTreeMap;
use std::sync::Arc;

use isthmus_layout::border::WindowNumber;
use isthmus_layout::control::RequestSerial;
use isthmus_layout::ids::{ChannelId, DomainId};
use isthmus_layout::reason::Reason;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use super::{Broker, Refusal};
use crate::ground::{CommonWindow, Estate, Ground, GroundNumber};

/// Windows that one guest has in common with others: each takes a slot of its machine.
const WINDOWS_MAX: usize = 16;

/// After a refusal makers are left alone for so long, in nanoseconds.
const PAUSE: u64 = 30_000_000_000;

/// Two guests, the lower number first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PairKey(pub(crate) [GroundNumber; 2]);

/// A window is wanted.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) key: PairKey,
    pub(crate) number: WindowNumber,
    /// In the order of the key.
    pub(crate) guests: [Arc<Estate>; 2],
    /// Told when a guest shows the window, or shows it no longer, or is gone.
    pub(crate) changed: Arc<Notify>,
}

/// What a pair's window is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// One of the guests is there no more.
    Parted,
    /// Not both guests show it.
    Unshown,
    /// Both do, and somebody has something in it.
    Used,
    /// Both do, and nobody has.
    Idle,
}

/// Who has asked for a channel.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    connector: DomainId,
    listener: DomainId,
    attempt: u8,
    serial: Option<RequestSerial>,
}

#[derive(Debug)]
enum Stage {
    Making,
    Open(Arc<CommonWindow>),
    /// Until then nobody is asked again; while something of it is still there, for ever.
    Refused {
        text: String,
        until: u64,
    },
}

#[derive(Debug)]
struct Pair {
    number: WindowNumber,
    stage: Stage,
    /// Whether each guest shows it.
    shown: [bool; 2],
    waiting: Vec<Waiting>,
    changed: Arc<Notify>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    known: BTreeMap<PairKey, Pair>,
    last: u16,
    /// Where windows of guests of a platform are made; none where they cannot be.
    makers: BTreeMap<&'static str, UnboundedSender<Wanted>>,
}

impl Pairs {
    /// A number that no window has.
    fn number(&mut self) -> WindowNumber {
        loop {
            self.last = self.last.checked_add(1).unwrap_or(1);
            let number = WindowNumber(self.last);
            // One less than there are: the device's own number is one more.
            if self.last != u16::MAX && self.known.values().all(|pair| pair.number != number) {
                return number;
            }
        }
    }

    fn of_guest(&self, guest: GroundNumber) -> usize {
        let live = |(key, pair): &(&PairKey, &Pair)| {
            key.0.contains(&guest) && !matches!(pair.stage, Stage::Refused { until, .. } if until < u64::MAX)
        };
        self.known.iter().filter(live).count()
    }
}

impl Broker {
    /// Windows of guests of a platform are made there from now on. Guests may still have some of a daemon before: numbers begin anywhere,
    /// so that none is taken for another.
    pub(crate) fn make_windows_by(&mut self, platform: &'static str, wanted: UnboundedSender<Wanted>) {
        self.pairs.makers.insert(platform, wanted);
        self.pairs.last = self.settings.epoch as u16 / 2;
    }

    /// Where two domains in different guests have memory in common; None where it is being made. Asking has it made.
    pub(super) fn common_window(&mut self, a: DomainId, b: DomainId) -> Result<Option<Arc<CommonWindow>>, Refusal> {
        let (key, guests) = self.pair_of(a, b)?;
        let platform = self.may_pair(&guests)?;
        match self.pairs.known.get(&key) {
            Some(Pair { stage: Stage::Open(window), shown: [true, true], .. }) => return Ok(Some(Arc::clone(window))),
            Some(Pair { stage: Stage::Refused { text, until }, .. }) if self.now < *until => {
                return Err(Refusal::new(Reason::WindowRefused, text.clone()));
            }
            Some(Pair { stage: Stage::Making | Stage::Open(_), .. }) => return Ok(None),
            Some(_) | None => {}
        }
        for guest in &guests {
            if self.pairs.of_guest(guest.number()) >= WINDOWS_MAX {
                let text = format!("guest {} has windows in common with {WINDOWS_MAX} others", guest.name());
                return Err(Refusal::new(Reason::WindowRefused, text));
            }
        }
        let (number, changed) = (self.pairs.number(), Arc::new(Notify::new()));
        let wanted = Wanted { key, number, guests, changed: Arc::clone(&changed) };
        let sent = self.pairs.makers.get(platform).is_some_and(|maker| maker.send(wanted).is_ok());
        if !sent {
            return Err(Reason::NoCommonMemory.into()); // The daemon ends.
        }
        let pair = Pair { number, stage: Stage::Making, shown: [false; 2], waiting: Vec::new(), changed };
        self.pairs.known.insert(key, pair);
        Ok(None)
    }

    /// Why two domains that are not on one ground have no channel yet; for reports. None where nobody has asked, or all is there.
    pub(crate) fn why_no_window(&self, a: DomainId, b: DomainId) -> Option<Reason> {
        let (key, guests) = match self.pair_of(a, b) {
            Ok(found) => found,
            Err(refusal) => return Some(refusal.reason),
        };
        if let Err(refusal) = self.may_pair(&guests) {
            return Some(refusal.reason);
        }
        match self.pairs.known.get(&key)? {
            Pair { stage: Stage::Open(_), shown: [true, true], .. } => None,
            Pair { stage: Stage::Refused { .. }, .. } => Some(Reason::WindowRefused),
            Pair { .. } => Some(Reason::WindowPending),
        }
    }

    fn pair_of(&self, a: DomainId, b: DomainId) -> Result<(PairKey, [Arc<Estate>; 2]), Refusal> {
        let (Some(a), Some(b)) = (self.homes.get(&a), self.homes.get(&b)) else {
            return Err(Reason::NoSuchDomain.into());
        };
        let (Ground::Guest(a), Ground::Guest(b)) = (&a.ground, &b.ground) else {
            return Err(Reason::NoCommonMemory.into());
        };
        let mut guests = [Arc::clone(a), Arc::clone(b)];
        guests.sort_by_key(|guest| guest.number());
        Ok((PairKey([guests[0].number(), guests[1].number()]), guests))
    }

    /// The platform whose maker can make a window for both.
    fn may_pair(&self, guests: &[Arc<Estate>; 2]) -> Result<&'static str, Refusal> {
        let mut platform = None;
        for guest in guests {
            let view = self.guests.get(guest.name()).ok_or(Reason::NoCommonMemory)?;
            if view.platform == "kvm" && view.monitor.is_none() {
                let text = format!("the daemon was not given the monitor of guest {}", guest.name());
                return Err(Refusal::new(Reason::NoMonitor, text));
            }
            if !self.pairs.makers.contains_key(view.platform) || platform.is_some_and(|known| known != view.platform) {
                return Err(Reason::NoCommonMemory.into());
            }
            platform = Some(view.platform);
        }
        Ok(platform.expect("there are two"))
    }

    /// A domain's request for a channel is answered when the window is there, or is not.
    pub(super) fn wait_for_window(
        &mut self,
        (connector, listener): (DomainId, DomainId),
        attempt: u8,
        serial: Option<RequestSerial>,
    ) {
        let Ok((key, _)) = self.pair_of(connector, listener) else { return };
        let Some(pair) = self.pairs.known.get_mut(&key) else { return };
        pair.waiting.retain(|known| (known.connector, known.listener) != (connector, listener));
        pair.waiting.push(Waiting { connector, listener, attempt, serial });
        for of in [connector, listener] {
            let peer = if of == connector { listener } else { connector };
            self.directory.acquaintance(of, peer).refused = Some(Reason::WindowPending);
        }
    }

    /// A guest's daemon says that it has a window, or has it no longer. What it says of windows that are none is not listened to.
    pub(crate) fn window_shown(&mut self, guest: GroundNumber, window: WindowNumber, there: bool) {
        for (key, pair) in self.pairs.known.iter_mut().filter(|(_, pair)| pair.number == window) {
            if let Some(side) = key.0.iter().position(|of| *of == guest) {
                pair.shown[side] = there;
                pair.changed.notify_one();
            }
        }
    }

    /// A guest's daemon is gone, or speaks anew: it has said of no window that it has it.
    pub(crate) fn no_window_shown(&mut self, guest: GroundNumber) {
        for (key, pair) in &mut self.pairs.known {
            if let Some(side) = key.0.iter().position(|of| *of == guest) {
                pair.shown[side] = false;
                pair.changed.notify_one();
            }
        }
    }

    /// A guest has come or gone, or has something of a common window.
    pub(crate) fn guests_changed(&self) {
        self.pairs.known.values().for_each(|pair| pair.changed.notify_one());
    }

    fn are_there(&self, PairKey(guests): PairKey) -> bool {
        let numbers: Vec<_> = self.guests.values().filter_map(|view| Some(view.estate.as_ref()?.number())).collect();
        guests.iter().all(|guest| numbers.contains(guest))
    }

    /// The state of a pair's window.
    pub(crate) fn look_at_pair(&self, key: PairKey) -> Look {
        let Some(pair) = self.pairs.known.get(&key).filter(|_| self.are_there(key)) else { return Look::Parted };
        let here = self.channels.iter().filter_map(|channel| channel.memory.as_ref());
        let left = self.lingering.values().map(|lingering| &lingering.memory);
        let used = here.chain(left).any(|memory| memory.common() == Some(pair.number));
        match pair.shown {
            [true, true] if used || !pair.waiting.is_empty() => Look::Used,
            [true, true] => Look::Idle,
            _ => Look::Unshown,
        }
    }

    /// The window is there and both guests show it: who has waited for it has channels in it.
    pub(crate) fn pair_open(&mut self, key: PairKey, window: &Arc<CommonWindow>) {
        let Some(pair) = self.pairs.known.get_mut(&key) else { return };
        pair.stage = Stage::Open(Arc::clone(window));
        self.answer_waiting(key);
    }

    /// There is no window, or none any more, and nobody is asked for one before [`Broker::pair_over`].
    pub(crate) fn pair_ends(&mut self, key: PairKey, reason: Reason, text: &str) {
        self.end_pair(key, reason);
        if let Some(pair) = self.pairs.known.get_mut(&key) {
            pair.stage = Stage::Refused { text: text.to_owned(), until: u64::MAX };
        }
        self.answer_waiting(key);
    }

    /// True as long as a domain has not said that it is done with what was left for it there.
    pub(crate) fn pair_lingers(&self, key: PairKey) -> bool {
        let number = self.pairs.known.get(&key).map(|pair| pair.number);
        self.lingering.values().any(|lingering| lingering.memory.common() == number && number.is_some())
    }

    /// Nobody is waited for any more: what is in the window is nobody's.
    pub(crate) fn pair_is_left(&mut self, key: PairKey) {
        let Some(number) = self.pairs.known.get(&key).map(|pair| pair.number) else { return };
        self.lingering.retain(|_, lingering| lingering.memory.common() != Some(number));
        for (&domain, home) in &mut self.homes {
            if key.0.contains(&home.ground.number())
                && let Some(known) = self.directory.get_mut(domain)
            {
                for board in known.boards.retire(number) {
                    home.boards.remove(&board);
                }
            }
        }
    }

    /// Nothing of it is there any more. Where it was refused, its maker is left alone for a while.
    pub(crate) fn pair_over(&mut self, key: PairKey, refused: bool) {
        let pause = self.now.saturating_add(PAUSE);
        let rests = refused && self.are_there(key);
        match self.pairs.known.get_mut(&key) {
            Some(Pair { stage: Stage::Refused { until, .. }, .. }) if rests => *until = pause,
            _ => drop(self.pairs.known.remove(&key)),
        }
    }

    fn answer_waiting(&mut self, key: PairKey) {
        let waiting = self.pairs.known.get_mut(&key).map(|pair| std::mem::take(&mut pair.waiting));
        for waiting in waiting.unwrap_or_default() {
            let Waiting { connector, listener, attempt, serial } = waiting;
            if !self.homes.contains_key(&connector) {
                continue;
            }
            if let Err(refusal) = self.offer(connector, listener, attempt, serial) {
                self.refuse_waiting(waiting, &refusal);
            }
        }
    }

    fn refuse_waiting(&mut self, waiting: Waiting, refusal: &Refusal) {
        let Waiting { connector, listener, attempt, serial } = waiting;
        if let Some(home) = self.homes.get(&connector) {
            self.refuse_request(home.session, serial, (connector, listener), attempt, refusal);
        }
    }

    /// Ends all channels in a window.
    fn end_pair(&mut self, key: PairKey, reason: Reason) {
        let Some(number) = self.pairs.known.get(&key).map(|pair| pair.number) else { return };
        let inside = self
            .channels
            .iter()
            .filter(|channel| channel.memory.as_ref().is_some_and(|memory| memory.common() == Some(number)));
        let inside: Vec<ChannelId> = inside.map(|channel| channel.id).collect();
        self.end_regions_in(number);
        for channel in inside {
            self.end_channel(channel, None, reason);
        }
    }
}
