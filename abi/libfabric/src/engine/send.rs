//! Sends of messages.
//!
//! ```text
//!   header and payload up to 128 bytes ► one record; over when it is in the ring
//!   up to 32 KiB ──────────────────────► header, then the payload through the slab; over when it is there
//!   more, or with match-complete ──────► header, then the payload is announced; over when the receiver has it
//! ```
//!
//! A sender that has to know of the delivery of a short message requests an acknowledgement.

use crate::abi::consts::{
    FI_COMMIT_COMPLETE, FI_COMPLETION, FI_DELIVERY_COMPLETE, FI_INJECT, FI_MATCH_COMPLETE, FI_SEND,
};
use crate::engine::endpoint::Endpoint;
use crate::engine::events::{CounterKind, Event, Side};
use crate::engine::header::{ACKNOWLEDGE, Header, PAYLOAD_FOLLOWS, PacketKind};
use crate::engine::iovecs::IoVecs;
use crate::engine::ops::{EAGER, OP_CONTINUES, Op, OpId, OpProgress, PAYLOAD, Report};
use crate::engine::receive::MatchSpace;
use crate::errno::Errno;
use isthmus_client::EndpointAddress;
use isthmus_layout::limits::SLAB_MESSAGE_BYTES_MAX;
use std::ffi::c_void;

/// The maximum number of messages that wait for room. Beyond it, the program has to try again.
const EAGER_MAX: usize = 2048;

/// Maximum size of an injected send, in bytes.
pub(crate) const INJECT_MAX: usize = 4096;

/// The program's description of a send, except its bytes.
#[derive(Clone, Copy)]
pub(crate) struct SendRequest {
    pub(crate) space: MatchSpace,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) context: *mut c_void,
    pub(crate) flags: u64,
}

impl Endpoint {
    /// Makes progress until another message may be queued. Otherwise, the program has to try again.
    #[inline]
    pub(crate) fn make_room(&mut self) -> Result<(), Errno> {
        if self.domain.matcher().eager < EAGER_MAX {
            return Ok(());
        }
        self.progress();
        if self.domain.matcher().eager < EAGER_MAX { Ok(()) } else { Err(Errno::AGAIN) }
    }

    /// Sends a message.
    ///
    /// # Safety
    ///
    /// The program lends the buffers for reading until the send is over; with `FI_INJECT`, until this returns.
    #[inline]
    pub(crate) unsafe fn send(
        &mut self,
        to: EndpointAddress,
        send_request: &SendRequest,
        iovecs: &IoVecs,
    ) -> Result<(), Errno> {
        let flags = send_request.flags;
        let len = iovecs.len();
        if flags & FI_INJECT != 0 && len > INJECT_MAX {
            return Err(Errno::MSGSIZE);
        }
        self.make_room()?;
        let kind = if send_request.space == MatchSpace::Tagged { PacketKind::Tagged } else { PacketKind::Untagged };
        let mut header = Header::new(kind, 0);
        header.data(send_request.data, true);
        if flags & (FI_MATCH_COMPLETE | FI_DELIVERY_COMPLETE | FI_COMMIT_COMPLETE) == 0 {
            if send_request.space == MatchSpace::Tagged {
                header.word(send_request.tag);
            }
            if len <= header.room() {
                // SAFETY: readable, as promised.
                unsafe { iovecs.copy_to(header.payload(len)) };
                return self.send_short_message(to, send_request, &header, len);
            }
            header.tag |= PAYLOAD_FOLLOWS;
            header.word(len as u64);
            // SAFETY: passed on.
            return unsafe { self.send_with_payload(to, send_request, &header, iovecs, false) };
        }
        // SAFETY: passed on.
        unsafe { self.send_acknowledged(to, send_request, header, iovecs) }
    }

    #[inline]
    fn make_report(&mut self, send_request: &SendRequest, len: usize) -> Report {
        let tell = self.dispatcher().events.wants(Side::Transmit, send_request.flags & FI_COMPLETION != 0);
        // A call that takes flags has a context, and with it the completion it asks for.
        let injected = send_request.flags & FI_INJECT != 0 && send_request.context.is_null();
        let flags = FI_SEND | send_request.space.flag();
        Report {
            context: send_request.context,
            flags,
            wants_completion: tell && !injected,
            injected,
            counter_kind: CounterKind::Send,
            len,
        }
    }

    /// Sends a message that fits into its header.
    #[inline]
    fn send_short_message(
        &mut self,
        to: EndpointAddress,
        send_request: &SendRequest,
        header: &Header,
        len: usize,
    ) -> Result<(), Errno> {
        let report = self.make_report(send_request, len);
        if self.domain.inject(crate::engine::dispatcher::INDEX, to, header.tag, header.body()) {
            let event = Event { len, ..Event::of(report.context, report.flags) };
            self.dispatcher().events.complete(Side::Transmit, CounterKind::Send, report.wants_completion, event);
            return Ok(());
        }
        self.queue_short_message(to, report, header)
    }

    /// Queues a message that fits into its header, because there was no room for it.
    fn queue_short_message(&mut self, to: EndpointAddress, report: Report, header: &Header) -> Result<(), Errno> {
        // The bytes are copied, so the send is over for a program that does not want a completion.
        let op =
            self.dispatcher().ops.insert(Op::Send { report, to, acknowledged: false, progress: OpProgress::default() });
        let queued = self.queue_short(to, header, op.bits());
        self.finish_post(op, queued)
    }

    /// Completes the start of an operation, or removes it if the post was refused.
    fn finish_post(&mut self, op: OpId, posted: Result<(), Errno>) -> Result<(), Errno> {
        if posted.is_err() {
            self.dispatcher().ops.take(op);
        }
        // Replies to messages of this endpoint to itself wait here.
        self.send_replies();
        posted
    }

    /// Sends a header and the payload that it announces.
    ///
    /// # Safety
    ///
    /// As for [`Self::send`].
    #[inline(never)]
    unsafe fn send_with_payload(
        &mut self,
        to: EndpointAddress,
        send_request: &SendRequest,
        header: &Header,
        iovecs: &IoVecs,
        sync: bool,
    ) -> Result<(), Errno> {
        let len = iovecs.len();
        let report = self.make_report(send_request, len);
        self.send_short(to, header, OP_CONTINUES)?;
        let op =
            self.dispatcher().ops.insert(Op::Send { report, to, acknowledged: false, progress: OpProgress::default() });
        let eager = !sync && len as u64 <= SLAB_MESSAGE_BYTES_MAX;
        // SAFETY: readable until the send is over, or while we are here, as promised.
        let buffer = unsafe { iovecs.to_send(send_request.flags & FI_INJECT != 0) };
        self.dispatcher().eager += usize::from(eager);
        let token = if eager { op.bits() | EAGER } else { op.bits() };
        let posted = self.post(to, PacketKind::Payload.bits(), buffer, token, sync);
        self.finish_post(op, posted)
    }

    /// Sends a message with a delivery or match acknowledgement.
    ///
    /// # Safety
    ///
    /// As for [`Self::send`].
    #[inline(never)]
    unsafe fn send_acknowledged(
        &mut self,
        to: EndpointAddress,
        send_request: &SendRequest,
        mut header: Header,
        iovecs: &IoVecs,
    ) -> Result<(), Errno> {
        let len = iovecs.len();
        let long = len as u64 > SLAB_MESSAGE_BYTES_MAX;
        if send_request.flags & FI_MATCH_COMPLETE != 0 || long {
            if send_request.space == MatchSpace::Tagged {
                header.word(send_request.tag);
            }
            header.tag |= PAYLOAD_FOLLOWS;
            header.word(len as u64);
            // SAFETY: passed on.
            return unsafe { self.send_with_payload(to, send_request, &header, iovecs, true) };
        }
        let report = self.make_report(send_request, len);
        let op =
            self.dispatcher().ops.insert(Op::Send { report, to, acknowledged: true, progress: OpProgress::default() });
        header.tag |= ACKNOWLEDGE;
        header.word(op.bits());
        if send_request.space == MatchSpace::Tagged {
            header.word(send_request.tag);
        }
        let token = op.bits() | OP_CONTINUES;
        if len <= header.room() {
            // SAFETY: readable, as promised.
            unsafe { iovecs.copy_to(header.payload(len)) };
            let sent = self.send_short(to, &header, token);
            return self.finish_post(op, sent);
        }
        header.tag |= PAYLOAD_FOLLOWS;
        header.word(len as u64);
        if let Err(errno) = self.send_short(to, &header, token) {
            return self.finish_post(op, Err(errno));
        }
        // SAFETY: readable until the send is over, or while we are here, as promised.
        let buffer = unsafe { iovecs.to_send(send_request.flags & FI_INJECT != 0) };
        self.dispatcher().eager += 1;
        self.dispatcher().note_lent(op);
        let posted = self.post(to, PacketKind::Payload.bits(), buffer, token | EAGER | PAYLOAD, false);
        self.finish_post(op, posted)
    }
}

#[cfg(test)]
mod tests;
