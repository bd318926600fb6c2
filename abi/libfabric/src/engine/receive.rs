//! Posted receives: matching, and completion.

use crate::abi::consts::{FI_ADDR_UNSPEC, FI_MSG, FI_MULTI_RECV, FI_RECV, FI_REMOTE_CQ_DATA, FI_TAGGED};
use crate::engine::events::{CounterKind, Event, Events, Side};
use crate::engine::iovecs::IoVecs;
use crate::errno::Errno;
use isthmus_layout::SlotTable;
use std::collections::VecDeque;
use std::ffi::c_void;

/// The space in which a message is matched. Tagged and untagged messages never match each other's receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MatchSpace {
    Tagged,
    Untagged,
}

impl MatchSpace {
    /// Returns the flag in completions of messages of this space.
    pub(crate) const fn flag(self) -> u64 {
        match self {
            Self::Tagged => FI_TAGGED,
            Self::Untagged => FI_MSG,
        }
    }
}

/// The messages that a receive accepts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filter {
    /// The sender's number in the address vector; [`FI_ADDR_UNSPEC`] for any sender.
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

/// A posted receive: the destination of a message.
#[derive(Debug)]
pub(crate) struct Receive {
    pub(crate) context: *mut c_void,
    pub(crate) into: IoVecs,
    pub(crate) wants_completion: bool,
    /// The multi-receive buffer that this receive is a part of.
    pub(crate) multi: Option<u32>,
}

/// The description of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    pub(crate) space: MatchSpace,
    pub(crate) peer: u32,
    pub(crate) source: u64,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) len: u64,
    /// The request to acknowledge once the message has arrived, if the sender wants an acknowledgement.
    pub(crate) acknowledge: Option<u64>,
}

impl Meta {
    /// Returns the event for a completion of the message.
    pub(crate) fn event(&self, context: *mut c_void) -> Event {
        let data_flag = if self.data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
        Event {
            len: self.len as usize,
            data: self.data.unwrap_or(0),
            tag: self.tag,
            source: self.source,
            ..Event::of(context, FI_RECV | self.space.flag() | data_flag)
        }
    }
}

#[derive(Debug)]
struct QueuedReceive {
    filter: Filter,
    receive: Receive,
}

/// A multi-receive buffer.
#[derive(Debug)]
struct MultiRecvBuffer {
    start: *mut u8,
    len: usize,
    used: usize,
    /// The number of messages that are arriving in it.
    pending: u32,
    /// The buffer takes no more messages.
    is_closed: bool,
}

// SAFETY: the program's memory, of which `IoVecs` says why threads do not matter.
unsafe impl Send for Receives {}

/// The posted receives of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Receives {
    tagged: VecDeque<QueuedReceive>,
    untagged: VecDeque<QueuedReceive>,
    multi_buffers: SlotTable<MultiRecvBuffer>,
    /// A multi-receive buffer is released once it has less free space than this.
    pub(crate) multi_min: usize,
}

impl Receives {
    fn queue(&mut self, space: MatchSpace) -> &mut VecDeque<QueuedReceive> {
        match space {
            MatchSpace::Tagged => &mut self.tagged,
            MatchSpace::Untagged => &mut self.untagged,
        }
    }

    #[inline]
    pub(crate) fn post(&mut self, space: MatchSpace, filter: Filter, receive: Receive) {
        self.queue(space).push_back(QueuedReceive { filter, receive });
    }

    /// Turns a receive into a multi-receive.
    pub(crate) fn make_multi(&mut self, receive: &mut Receive) {
        let multi = MultiRecvBuffer {
            start: receive.into.start().cast(),
            len: receive.into.len(),
            used: 0,
            pending: 0,
            is_closed: false,
        };
        receive.multi = Some(self.multi_buffers.insert(multi));
    }

    /// Returns the receive for a message: the oldest that matches, or a part of it.
    #[inline]
    pub(crate) fn take(&mut self, space: MatchSpace, source: u64, tag: u64, len: u64) -> Option<Receive> {
        let posted = match space {
            MatchSpace::Tagged => &mut self.tagged,
            MatchSpace::Untagged => &mut self.untagged,
        };
        let at = posted.iter().position(|posted| posted.filter.fits(source, tag))?;
        if posted[at].receive.multi.is_none() {
            let taken = if at == 0 { posted.pop_front() } else { posted.remove(at) };
            return taken.map(|posted| posted.receive);
        }
        let (part, spent) = self.carve_posted(space, at, len)?;
        if spent {
            self.queue(space).remove(at);
        }
        Some(part)
    }

    /// Returns a part of a posted multi-receive buffer, and whether it is the last one.
    fn carve_posted(&mut self, space: MatchSpace, at: usize, len: u64) -> Option<(Receive, bool)> {
        let whole = &self.queue(space)[at].receive;
        let (context, wants_completion, id) = (whole.context, whole.wants_completion, whole.multi?);
        self.carve(id, context, wants_completion, len)
    }

    /// Returns a part of a multi-receive buffer that may not be posted, and whether it is the last one.
    pub(crate) fn carve(
        &mut self,
        id: u32,
        context: *mut c_void,
        wants_completion: bool,
        len: u64,
    ) -> Option<(Receive, bool)> {
        let min = self.multi_min;
        let multi = self.multi_buffers.get_mut(id)?;
        let room = multi.len - multi.used;
        let take = room.min(usize::try_from(len).unwrap_or(usize::MAX));
        // The address is inside the buffer, because `used` is at most its length.
        let into = IoVecs::One { start: multi.start.wrapping_add(multi.used), len: take };
        multi.used += take;
        multi.pending += 1;
        multi.is_closed = multi.len - multi.used < min.max(1);
        Some((Receive { context, into, wants_completion, multi: Some(id) }, multi.is_closed))
    }

    /// Cancels a posted receive.
    pub(crate) fn cancel(&mut self, context: *mut c_void, events: &mut Events) -> bool {
        for space in [MatchSpace::Tagged, MatchSpace::Untagged] {
            let posted = self.queue(space);
            if let Some(at) = posted.iter().position(|posted| posted.receive.context == context)
                && let Some(posted) = posted.remove(at)
            {
                self.fail(space, &posted.receive, Errno::CANCELED, events);
                return true;
            }
        }
        false
    }

    /// Ends the receives that only a peer that is gone could match.
    pub(crate) fn fail_source(&mut self, source: u64, errno: Errno, events: &mut Events) {
        for space in [MatchSpace::Tagged, MatchSpace::Untagged] {
            let posted = std::mem::take(self.queue(space));
            let (lost, kept): (VecDeque<_>, VecDeque<_>) =
                posted.into_iter().partition(|posted| posted.filter.source == source);
            *self.queue(space) = kept;
            for posted in lost {
                self.fail(space, &posted.receive, errno, events);
            }
        }
    }

    /// Ends a receive without a message.
    pub(crate) fn fail(&mut self, space: MatchSpace, receive: &Receive, errno: Errno, events: &mut Events) {
        let last = receive.multi.is_some_and(|id| self.close_multi(id));
        let multi = if last { FI_MULTI_RECV } else { 0 };
        let event = Event { error: errno.0, ..Event::of(receive.context, FI_RECV | space.flag() | multi) };
        events.complete(Side::Receive, CounterKind::Recv, true, event);
    }

    /// Closes a multi-receive buffer for new messages. Returns true if no message is arriving in it.
    fn close_multi(&mut self, id: u32) -> bool {
        let Some(multi) = self.multi_buffers.get_mut(id) else { return false };
        multi.is_closed = true;
        let free = multi.pending == 0;
        if free {
            self.multi_buffers.remove(id);
        }
        free
    }

    /// Records that a part of a buffer is filled. Returns true if the buffer is released.
    fn part_completed(&mut self, id: u32) -> bool {
        let Some(multi) = self.multi_buffers.get_mut(id) else { return false };
        multi.pending -= 1;
        let free = multi.is_closed && multi.pending == 0;
        if free {
            self.multi_buffers.remove(id);
        }
        free
    }

    /// Completes a receive with its message, of which `copied` bytes fitted, or with an error.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        receive: &Receive,
        meta: &Meta,
        copied: usize,
        error: Option<Errno>,
        events: &mut Events,
    ) {
        let mut event = meta.event(receive.context);
        event.buf = receive.into.start();
        let overflow = (meta.len as usize).saturating_sub(copied);
        if let Some(errno) = error.or((overflow > 0).then_some(Errno::TRUNC)) {
            (event.error, event.overflow, event.len) = (errno.0, overflow, copied);
        }
        let mut wants_completion = receive.wants_completion;
        if let Some(id) = receive.multi
            && self.part_completed(id)
        {
            event.flags |= FI_MULTI_RECV;
            wants_completion = events.is_bound(Side::Receive);
        }
        events.complete(Side::Receive, CounterKind::Recv, wants_completion, event);
    }
}

#[cfg(test)]
mod tests;
