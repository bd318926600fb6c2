//! Posted receives: which one a message goes to, and what is said when it is there.

use crate::abi::consts::{FI_ADDR_UNSPEC, FI_MSG, FI_MULTI_RECV, FI_RECV, FI_REMOTE_CQ_DATA, FI_TAGGED};
use crate::engine::events::{Counted, Event, Events, Side};
use crate::engine::pieces::Pieces;
use crate::errno::Errno;
use std::collections::VecDeque;
use std::ffi::c_void;

/// Tagged messages and plain ones never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    Tagged,
    Plain,
}

impl Lane {
    /// What completions say of it.
    pub(crate) const fn flag(self) -> u64 {
        match self {
            Self::Tagged => FI_TAGGED,
            Self::Plain => FI_MSG,
        }
    }
}

/// What a receive wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filter {
    /// From whom, as the address vector has it; [`FI_ADDR_UNSPEC`] for anybody.
    pub(crate) source: u64,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
}

impl Filter {
    #[inline]
    pub(crate) const fn fits(&self, source: u64, tag: u64) -> bool {
        (self.tag ^ tag) & !self.ignore == 0 && (self.source == FI_ADDR_UNSPEC || self.source == source)
    }
}

/// Where a message goes.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) context: *mut c_void,
    pub(crate) into: Pieces,
    pub(crate) tell: bool,
    /// It is a part of this buffer for several messages.
    pub(crate) multi: Option<u32>,
}

/// What is known of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    pub(crate) lane: Lane,
    pub(crate) peer: u32,
    pub(crate) source: u64,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) len: u64,
    /// What the sender wants to hear when it has arrived.
    pub(crate) acknowledge: Option<u64>,
}

impl Meta {
    /// What a completion says of it.
    pub(crate) fn event(&self, context: *mut c_void) -> Event {
        let data_flag = if self.data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
        Event {
            len: self.len as usize,
            data: self.data.unwrap_or(0),
            tag: self.tag,
            source: self.source,
            ..Event::of(context, FI_RECV | self.lane.flag() | data_flag)
        }
    }
}

#[derive(Debug)]
struct Posted {
    filter: Filter,
    receive: Receive,
}

/// A buffer for several messages.
#[derive(Debug)]
struct Multi {
    start: *mut u8,
    len: usize,
    used: usize,
    /// Messages on their way into it.
    pending: u32,
    /// No further message goes there.
    spent: bool,
}

// SAFETY: the program's memory, of which `Pieces` says why threads do not matter.
unsafe impl Send for Receives {}

/// The posted receives of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Receives {
    tagged: VecDeque<Posted>,
    plain: VecDeque<Posted>,
    multis: Vec<Option<Multi>>,
    /// A buffer for several messages is given back when there is less room than this.
    pub(crate) multi_min: usize,
}

impl Receives {
    fn lane(&mut self, lane: Lane) -> &mut VecDeque<Posted> {
        match lane {
            Lane::Tagged => &mut self.tagged,
            Lane::Plain => &mut self.plain,
        }
    }

    #[inline]
    pub(crate) fn post(&mut self, lane: Lane, filter: Filter, receive: Receive) {
        self.lane(lane).push_back(Posted { filter, receive });
    }

    /// Makes a receive one for several messages.
    pub(crate) fn make_multi(&mut self, receive: &mut Receive) {
        let multi =
            Multi { start: receive.into.start().cast(), len: receive.into.len(), used: 0, pending: 0, spent: false };
        let free = self.multis.iter().position(Option::is_none).unwrap_or_else(|| {
            self.multis.push(None);
            self.multis.len() - 1
        });
        self.multis[free] = Some(multi);
        receive.multi = Some(free as u32);
    }

    /// The receive that a message goes to: the oldest that fits, or a part of it.
    #[inline]
    pub(crate) fn take(&mut self, lane: Lane, source: u64, tag: u64, len: u64) -> Option<Receive> {
        let posted = match lane {
            Lane::Tagged => &mut self.tagged,
            Lane::Plain => &mut self.plain,
        };
        let at = posted.iter().position(|posted| posted.filter.fits(source, tag))?;
        if posted[at].receive.multi.is_none() {
            let taken = if at == 0 { posted.pop_front() } else { posted.remove(at) };
            return taken.map(|posted| posted.receive);
        }
        let (part, spent) = self.part(lane, at, len)?;
        if spent {
            self.lane(lane).remove(at);
        }
        Some(part)
    }

    /// A part of a buffer for several messages, and whether that was the last.
    fn part(&mut self, lane: Lane, at: usize, len: u64) -> Option<(Receive, bool)> {
        let whole = &self.lane(lane)[at].receive;
        let (context, tell, id) = (whole.context, whole.tell, whole.multi?);
        self.part_of(id, context, tell, len)
    }

    /// As [`Self::part`], for a buffer that is not posted yet or any more.
    pub(crate) fn part_of(&mut self, id: u32, context: *mut c_void, tell: bool, len: u64) -> Option<(Receive, bool)> {
        let min = self.multi_min;
        let multi = self.multis.get_mut(id as usize)?.as_mut()?;
        let room = multi.len - multi.used;
        let take = room.min(usize::try_from(len).unwrap_or(usize::MAX));
        // Inside the buffer: `used` is its length at most.
        let into = Pieces::One { start: multi.start.wrapping_add(multi.used), len: take };
        multi.used += take;
        multi.pending += 1;
        multi.spent = multi.len - multi.used < min.max(1);
        Some((Receive { context, into, tell, multi: Some(id) }, multi.spent))
    }

    /// Takes a posted receive back.
    pub(crate) fn cancel(&mut self, context: *mut c_void, events: &mut Events) -> bool {
        for lane in [Lane::Tagged, Lane::Plain] {
            let posted = self.lane(lane);
            if let Some(at) = posted.iter().position(|posted| posted.receive.context == context)
                && let Some(posted) = posted.remove(at)
            {
                self.fail(lane, &posted.receive, Errno::CANCELED, events);
                return true;
            }
        }
        false
    }

    /// Receives that can only be met by a peer that is gone are over.
    pub(crate) fn fail_from(&mut self, source: u64, errno: Errno, events: &mut Events) {
        for lane in [Lane::Tagged, Lane::Plain] {
            let posted = std::mem::take(self.lane(lane));
            let (lost, kept): (VecDeque<_>, VecDeque<_>) =
                posted.into_iter().partition(|posted| posted.filter.source == source);
            *self.lane(lane) = kept;
            for posted in lost {
                self.fail(lane, &posted.receive, errno, events);
            }
        }
    }

    /// A receive is over without a message.
    pub(crate) fn fail(&mut self, lane: Lane, receive: &Receive, errno: Errno, events: &mut Events) {
        let last = receive.multi.is_some_and(|id| self.spend(id));
        let multi = if last { FI_MULTI_RECV } else { 0 };
        let event = Event { error: errno.0, ..Event::of(receive.context, FI_RECV | lane.flag() | multi) };
        events.over(Side::Receive, Counted::Recv, true, event);
    }

    /// No further message goes into the buffer. True if it is the program's again.
    fn spend(&mut self, id: u32) -> bool {
        let Some(place) = self.multis.get_mut(id as usize) else { return false };
        let Some(multi) = place else { return false };
        multi.spent = true;
        let free = multi.pending == 0;
        if free {
            *place = None;
        }
        free
    }

    /// A part of a buffer is filled. True if the buffer is the program's again.
    fn filled(&mut self, id: u32) -> bool {
        let Some(place) = self.multis.get_mut(id as usize) else { return false };
        let Some(multi) = place else { return false };
        multi.pending -= 1;
        let free = multi.spent && multi.pending == 0;
        if free {
            *place = None;
        }
        free
    }

    /// A receive has its message, of which `copied` bytes found room; or it ended otherwise.
    #[inline]
    pub(crate) fn over(
        &mut self,
        receive: &Receive,
        meta: &Meta,
        copied: usize,
        error: Option<Errno>,
        events: &mut Events,
    ) {
        let mut event = meta.event(receive.context);
        event.buf = receive.into.start();
        let excess = (meta.len as usize).saturating_sub(copied);
        if let Some(errno) = error.or((excess > 0).then_some(Errno::TRUNC)) {
            (event.error, event.excess, event.len) = (errno.0, excess, copied);
        }
        let mut tell = receive.tell;
        if let Some(id) = receive.multi
            && self.filled(id)
        {
            event.flags |= FI_MULTI_RECV;
            tell = events.is_bound(Side::Receive);
        }
        events.over(Side::Receive, Counted::Recv, tell, event);
    }
}

#[cfg(test)]
mod tests;
