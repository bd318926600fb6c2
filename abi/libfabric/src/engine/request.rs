//! Requests of this endpoint to peers: writes, reads and atomic operations on their regions. Each request ends with the
//! peer's reply.

use crate::abi::consts::{FI_ATOMIC, FI_COMPLETION, FI_INJECT, FI_READ, FI_RMA, FI_WRITE};
use crate::engine::arithmetic::AtomicForm;
use crate::engine::endpoint::Endpoint;
use crate::engine::events::{CounterKind, Side};
use crate::engine::header::{Header, PAYLOAD_FOLLOWS, PacketKind};
use crate::engine::iovecs::IoVecs;
use crate::engine::ops::{EAGER, OP_CONTINUES, Op, OpId, OpProgress, PAYLOAD, Report};
use crate::engine::send::INJECT_MAX;
use crate::errno::Errno;
use isthmus_client::{Buffer, EndpointAddress};
use isthmus_layout::limits::SLAB_MESSAGE_BYTES_MAX;
use std::ffi::c_void;

/// The program's description of a request, except its memory.
#[derive(Clone, Copy)]
pub(crate) struct RmaRequest {
    pub(crate) to: EndpointAddress,
    pub(crate) offset: u64,
    pub(crate) key: u64,
    pub(crate) context: *mut c_void,
    pub(crate) flags: u64,
    pub(crate) data: Option<u64>,
}

impl Endpoint {
    fn rma_report(
        &mut self,
        rma_request: &RmaRequest,
        flags: u64,
        counter_kind: CounterKind,
        len: usize,
    ) -> Result<Report, Errno> {
        if rma_request.flags & FI_INJECT != 0 && len > INJECT_MAX {
            return Err(Errno::MSGSIZE);
        }
        let tell = self.dispatcher().events.wants(Side::Transmit, rma_request.flags & FI_COMPLETION != 0);
        let injected = rma_request.flags & FI_INJECT != 0 && rma_request.context.is_null();
        Ok(Report {
            context: rma_request.context,
            flags,
            wants_completion: tell && !injected,
            injected,
            counter_kind,
            len,
        })
    }

    fn begin(&mut self, rma_request: &RmaRequest, report: Report, into: IoVecs) -> Result<u64, Errno> {
        self.make_room()?;
        Ok(self
            .dispatcher()
            .ops
            .insert(Op::Request { report, to: rma_request.to, into, progress: OpProgress::default() })
            .bits())
    }

    /// Completes the start of a request, or removes it if it was not sent.
    fn finish_request(&mut self, op: u64, sent: Result<(), Errno>) -> Result<(), Errno> {
        if sent.is_err() {
            self.dispatcher().ops.take(OpId::of(op));
        }
        // Replies to requests of this endpoint to itself wait here.
        self.send_replies();
        sent
    }

    /// Writes into a region.
    ///
    /// # Safety
    ///
    /// The program lends the buffers for reading until the write is over; with `FI_INJECT`, until this returns.
    pub(crate) unsafe fn write(&mut self, rma_request: &RmaRequest, iovecs: &IoVecs) -> Result<(), Errno> {
        let len = iovecs.len();
        let nowhere = IoVecs::one(std::ptr::null(), 0);
        let report = self.rma_report(rma_request, FI_RMA | FI_WRITE, CounterKind::Write, len)?;
        // SAFETY: passed on.
        let placed = unsafe { self.write_direct(rma_request, iovecs) };
        if placed && rma_request.data.is_none() {
            self.dispatcher().report(&report, None);
            return Ok(());
        }
        let op = self.begin(rma_request, report, nowhere)?;
        let mut header = Header::new(PacketKind::Write, op);
        header.data(rma_request.data, false);
        [rma_request.key, rma_request.offset, len as u64].into_iter().for_each(|word| header.word(word));
        if placed || len <= header.room() {
            if !placed {
                // SAFETY: readable, as promised.
                unsafe { iovecs.copy_to(header.payload(len)) };
            }
            let sent = self.send_short(rma_request.to, &header, op | OP_CONTINUES);
            return self.finish_request(op, sent);
        }
        // SAFETY: readable until the write is over, or while we are here, as promised.
        let buffer = unsafe { iovecs.to_send(rma_request.flags & FI_INJECT != 0) };
        self.request_with(rma_request, header, buffer, op)
    }

    /// Sends a header and its payload.
    fn request_with(
        &mut self,
        rma_request: &RmaRequest,
        mut header: Header,
        buffer: Buffer,
        op: u64,
    ) -> Result<(), Errno> {
        header.tag |= PAYLOAD_FOLLOWS;
        if let Err(errno) = self.send_short(rma_request.to, &header, op | OP_CONTINUES) {
            return self.finish_request(op, Err(errno));
        }
        let eager = buffer.len() as u64 <= SLAB_MESSAGE_BYTES_MAX;
        self.dispatcher().eager += usize::from(eager);
        self.dispatcher().note_lent(OpId::of(op));
        let token = op | OP_CONTINUES | PAYLOAD | if eager { EAGER } else { 0 };
        let posted = self.post(rma_request.to, PacketKind::Payload.bits(), buffer, token, false);
        self.finish_request(op, posted)
    }

    /// Reads out of a region.
    ///
    /// # Safety
    ///
    /// The program lends the buffers for writing until the read is over.
    pub(crate) unsafe fn read(&mut self, rma_request: &RmaRequest, into: IoVecs) -> Result<(), Errno> {
        let len = into.len();
        let report = self.rma_report(rma_request, FI_RMA | FI_READ, CounterKind::Read, len)?;
        // SAFETY: passed on.
        if unsafe { self.read_direct(rma_request, &into) } {
            self.dispatcher().report(&report, None);
            return Ok(());
        }
        let op = self.begin(rma_request, report, into)?;
        let mut header = Header::new(PacketKind::Read, op);
        [rma_request.key, rma_request.offset, len as u64].into_iter().for_each(|word| header.word(word));
        let sent = self.send_short(rma_request.to, &header, op | OP_CONTINUES);
        self.finish_request(op, sent)
    }

    /// Requests an atomic operation on a region.
    ///
    /// # Safety
    ///
    /// The program lends the buffers for writing until the operation is over.
    pub(crate) unsafe fn operate(
        &mut self,
        rma_request: &RmaRequest,
        what: u64,
        form: AtomicForm,
        operands: Vec<u8>,
        result: IoVecs,
    ) -> Result<(), Errno> {
        let (flag, counter_kind) =
            if form == AtomicForm::Write { (FI_WRITE, CounterKind::Write) } else { (FI_READ, CounterKind::Read) };
        let report = self.rma_report(rma_request, FI_ATOMIC | flag, counter_kind, operands.len())?;
        // SAFETY: passed on.
        if let Some(done) = unsafe { self.operate_direct(rma_request, what, &operands, &result) } {
            self.dispatcher().report(&report, done.err());
            return Ok(());
        }
        let op = self.begin(rma_request, report, result)?;
        let mut header = Header::new(PacketKind::Atomic, op);
        [rma_request.key, rma_request.offset, what, operands.len() as u64]
            .into_iter()
            .for_each(|word| header.word(word));
        if operands.len() <= header.room() {
            header.payload(operands.len()).copy_from_slice(&operands);
            let sent = self.send_short(rma_request.to, &header, op | OP_CONTINUES);
            return self.finish_request(op, sent);
        }
        self.request_with(rma_request, header, operands.into(), op)
    }
}
