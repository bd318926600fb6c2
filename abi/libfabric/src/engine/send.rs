//! Sends.
//!
//! ```text
//!   head and payload up to 128 bytes ──► one record; over when it is in the ring
//!   up to 32 KiB ────────────────────► head, then the payload through the slab; over when it is there
//!   more, and what is to be matched ──► head, then the payload is announced; over when the receiver has it
//! ```
//!
//! Whoever wants to know that a short message has been delivered asks for an acknowledgement.

use crate::abi::consts::{
    FI_COMMIT_COMPLETE, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_INJECT, FI_MATCH_COMPLETE, FI_SEND,
};
use crate::engine::endpoint::Endpoint;
use crate::engine::events::{Counted, Event, Side};
use crate::engine::head::{ACKNOWLEDGE, BULK, Head, Kind};
use crate::engine::ops::{ASIDE, EAGER, Op, OpId, PAYLOAD, Progress, Report};
use crate::engine::pieces::Pieces;
use crate::engine::receive::Lane;
use crate::errno::Errno;
use isthmus_client::EndpointAddress;
use isthmus_layout::limits::SLAB_MESSAGE_BYTES_MAX;
use std::ffi::c_void;

/// Messages that wait for room on their way out, before the program is told to try again.
const EAGER_MAX: usize = 2048;

/// Bytes of a send that is over when the call returns.
pub(crate) const INJECT_MAX: usize = 4096;

/// What a program says of a send, but its bytes.
#[derive(Clone, Copy)]
pub(crate) struct Letter {
    pub(crate) lane: Lane,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) context: *mut c_void,
    pub(crate) flags: u64,
}

impl Endpoint {
    /// Makes room for another message, or has the program try again.
    #[inline]
    pub(crate) fn make_room(&mut self) -> Result<(), Errno> {
        if self.domain.matcher().eager < EAGER_MAX {
            return Ok(());
        }
        self.turn();
        if self.domain.matcher().eager < EAGER_MAX { Ok(()) } else { Err(Errno::AGAIN) }
    }

    /// Sends a message.
    ///
    /// # Safety
    ///
    /// The program lends the pieces for reading until the send is over; with `FI_INJECT`, until this returns.
    #[inline]
    pub(crate) unsafe fn send(&mut self, to: EndpointAddress, letter: &Letter, pieces: &Pieces) -> Result<(), Errno> {
        let flags = letter.flags;
        let len = pieces.len();
        if flags & FI_INJECT != 0 && len > INJECT_MAX {
            return Err(Errno::MSGSIZE);
        }
        self.make_room()?;
        let kind = if letter.lane == Lane::Tagged { Kind::Tagged } else { Kind::Plain };
        let mut head = Head::new(kind, 0);
        head.data(letter.data, true);
        if flags & (FI_MATCH_COMPLETE | FI_DELIVERY_COMPLETE | FI_COMMIT_COMPLETE) == 0 {
            if letter.lane == Lane::Tagged {
                head.word(letter.tag);
            }
            if len <= head.room() {
                // SAFETY: readable, as promised.
                unsafe { pieces.copy_to(head.payload(len)) };
                return self.send_head(to, letter, &head, len);
            }
            head.tag |= BULK;
            head.word(len as u64);
            // SAFETY: passed on.
            return unsafe { self.send_bulk(to, letter, &head, pieces, false) };
        }
        // SAFETY: passed on.
        unsafe { self.send_surely(to, letter, head, pieces) }
    }

    #[inline]
    fn report(&mut self, letter: &Letter, len: usize) -> Report {
        let tell = self.hub().events.wants(Side::Transmit, letter.flags & FI_COMPLETION != 0);
        // A call that takes flags has a context, and with it the completion it asks for.
        let injected = letter.flags & FI_INJECT != 0 && letter.context.is_null();
        let flags = FI_SEND | letter.lane.flag();
        Report { context: letter.context, flags, tell: tell && !injected, injected, counted: Counted::Send, len }
    }

    /// Sends a message that is all in its head.
    #[inline]
    fn send_head(&mut self, to: EndpointAddress, letter: &Letter, head: &Head, len: usize) -> Result<(), Errno> {
        let report = self.report(letter, len);
        if self.domain.inject(crate::engine::hub::INDEX, to, head.tag, head.body()) {
            let event = Event { len, ..Event::of(report.context, report.flags) };
            self.hub().events.over(Side::Transmit, Counted::Send, report.tell, event);
            return Ok(());
        }
        // Its bytes are copied, so it is over for a program that does not want to hear of it.
        let op = self.hub().ops.insert(Op::Send { report, to, acknowledged: false, progress: Progress::default() });
        let sent = self.send_short(to, head, op.bits());
        self.posted(op, sent.map(drop))
    }

    /// Something was posted for an operation, which is none if that was refused.
    fn posted(&mut self, op: OpId, posted: Result<(), Errno>) -> Result<(), Errno> {
        if posted.is_err() {
            self.hub().ops.take(op);
        }
        // Of a message to this endpoint itself.
        self.answer_all();
        posted
    }

    /// Sends a head, and what it announces behind it.
    ///
    /// # Safety
    ///
    /// As for [`Self::send`].
    #[inline(never)]
    unsafe fn send_bulk(
        &mut self,
        to: EndpointAddress,
        letter: &Letter,
        head: &Head,
        pieces: &Pieces,
        sync: bool,
    ) -> Result<(), Errno> {
        let len = pieces.len();
        let report = self.report(letter, len);
        self.send_short(to, head, ASIDE)?;
        let op = self.hub().ops.insert(Op::Send { report, to, acknowledged: false, progress: Progress::default() });
        let eager = !sync && len as u64 <= SLAB_MESSAGE_BYTES_MAX;
        // SAFETY: readable until the send is over, or while we are here, as promised.
        let buffer = unsafe { pieces.to_send(letter.flags & FI_INJECT != 0) };
        self.hub().eager += usize::from(eager);
        let token = if eager { op.bits() | EAGER } else { op.bits() };
        let posted = self.post(to, Kind::Bulk.bits(), buffer, token, sync);
        self.posted(op, posted)
    }

    /// Sends a message of which the program wants to know that it was delivered, or matched.
    ///
    /// # Safety
    ///
    /// As for [`Self::send`].
    #[inline(never)]
    unsafe fn send_surely(
        &mut self,
        to: EndpointAddress,
        letter: &Letter,
        mut head: Head,
        pieces: &Pieces,
    ) -> Result<(), Errno> {
        let len = pieces.len();
        let long = len as u64 > SLAB_MESSAGE_BYTES_MAX;
        if letter.flags & FI_MATCH_COMPLETE != 0 || long {
            if letter.lane == Lane::Tagged {
                head.word(letter.tag);
            }
            head.tag |= BULK;
            head.word(len as u64);
            // SAFETY: passed on.
            return unsafe { self.send_bulk(to, letter, &head, pieces, true) };
        }
        let report = self.report(letter, len);
        let op = self.hub().ops.insert(Op::Send { report, to, acknowledged: true, progress: Progress::default() });
        head.tag |= ACKNOWLEDGE;
        head.word(op.bits());
        if letter.lane == Lane::Tagged {
            head.word(letter.tag);
        }
        let token = op.bits() | ASIDE;
        if len <= head.room() {
            // SAFETY: readable, as promised.
            unsafe { pieces.copy_to(head.payload(len)) };
            let sent = self.send_short(to, &head, token).map(drop);
            return self.posted(op, sent);
        }
        head.tag |= BULK;
        head.word(len as u64);
        if let Err(errno) = self.send_short(to, &head, token) {
            return self.posted(op, Err(errno));
        }
        // SAFETY: readable until the send is over, or while we are here, as promised.
        let buffer = unsafe { pieces.to_send(letter.flags & FI_INJECT != 0) };
        self.hub().eager += 1;
        self.hub().lends(op);
        let posted = self.post(to, Kind::Bulk.bits(), buffer, token | EAGER | PAYLOAD, false);
        self.posted(op, posted)
    }
}
