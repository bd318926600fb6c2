//! What this endpoint asks of others: writes, reads and atomic operations on their regions. Each is over when they say so.

use crate::abi::consts::{FI_ATOMIC, FI_COMPLETION, FI_INJECT, FI_READ, FI_RMA, FI_WRITE};
use crate::engine::arithmetic::Form;
use crate::engine::endpoint::Endpoint;
use crate::engine::events::{Counted, Side};
use crate::engine::head::{BULK, Head, Kind};
use crate::engine::ops::{ASIDE, EAGER, Op, OpId, PAYLOAD, Progress, Report};
use crate::engine::pieces::Pieces;
use crate::engine::send::INJECT_MAX;
use crate::errno::Errno;
use isthmus_client::{Buffer, EndpointAddress};
use isthmus_layout::limits::SLAB_MESSAGE_BYTES_MAX;
use std::ffi::c_void;

/// What a program says of a request, but its memory.
#[derive(Clone, Copy)]
pub(crate) struct Demand {
    pub(crate) to: EndpointAddress,
    pub(crate) offset: u64,
    pub(crate) key: u64,
    pub(crate) context: *mut c_void,
    pub(crate) flags: u64,
    pub(crate) data: Option<u64>,
}

impl Endpoint {
    fn reports(&mut self, demand: &Demand, flags: u64, counted: Counted, len: usize) -> Result<Report, Errno> {
        if demand.flags & FI_INJECT != 0 && len > INJECT_MAX {
            return Err(Errno::MSGSIZE);
        }
        let tell = self.hub().events.wants(Side::Transmit, demand.flags & FI_COMPLETION != 0);
        let injected = demand.flags & FI_INJECT != 0 && demand.context.is_null();
        Ok(Report { context: demand.context, flags, tell: tell && !injected, injected, counted, len })
    }

    fn begin(&mut self, demand: &Demand, report: Report, into: Pieces) -> Result<u64, Errno> {
        self.make_room()?;
        Ok(self.hub().ops.insert(Op::Request { report, to: demand.to, into, progress: Progress::default() }).bits())
    }

    /// A request is on its way, or never was.
    fn begun(&mut self, op: u64, sent: Result<(), Errno>) -> Result<(), Errno> {
        if sent.is_err() {
            self.hub().ops.take(OpId::of(op));
        }
        // Of a request to this endpoint itself.
        self.answer_all();
        sent
    }

    /// Writes into a region.
    ///
    /// # Safety
    ///
    /// The program lends the pieces for reading until the write is over; with `FI_INJECT`, until this returns.
    pub(crate) unsafe fn write(&mut self, demand: &Demand, pieces: &Pieces) -> Result<(), Errno> {
        let len = pieces.len();
        let nowhere = Pieces::one(std::ptr::null(), 0);
        let report = self.reports(demand, FI_RMA | FI_WRITE, Counted::Write, len)?;
        // SAFETY: passed on.
        let placed = unsafe { self.write_direct(demand, pieces) };
        if placed && demand.data.is_none() {
            self.hub().report(&report, None);
            return Ok(());
        }
        let op = self.begin(demand, report, nowhere)?;
        let mut head = Head::new(Kind::Write, op);
        head.data(demand.data, false);
        [demand.key, demand.offset, len as u64].into_iter().for_each(|word| head.word(word));
        if placed || len <= head.room() {
            if !placed {
                // SAFETY: readable, as promised.
                unsafe { pieces.copy_to(head.payload(len)) };
            }
            let sent = self.send_short(demand.to, &head, op | ASIDE);
            return self.begun(op, sent.map(drop));
        }
        // SAFETY: readable until the write is over, or while we are here, as promised.
        let buffer = unsafe { pieces.to_send(demand.flags & FI_INJECT != 0) };
        self.request_with(demand, head, buffer, op)
    }

    /// Sends a head and the bulk that belongs to it.
    fn request_with(&mut self, demand: &Demand, mut head: Head, buffer: Buffer, op: u64) -> Result<(), Errno> {
        head.tag |= BULK;
        if let Err(errno) = self.send_short(demand.to, &head, op | ASIDE) {
            return self.begun(op, Err(errno));
        }
        let eager = buffer.len() as u64 <= SLAB_MESSAGE_BYTES_MAX;
        self.hub().eager += usize::from(eager);
        self.hub().lends(OpId::of(op));
        let token = op | ASIDE | PAYLOAD | if eager { EAGER } else { 0 };
        let posted = self.post(demand.to, Kind::Bulk.bits(), buffer, token, false);
        self.begun(op, posted)
    }

    /// Reads out of a region.
    ///
    /// # Safety
    ///
    /// The program lends the pieces for writing until the read is over.
    pub(crate) unsafe fn read(&mut self, demand: &Demand, into: Pieces) -> Result<(), Errno> {
        let len = into.len();
        let report = self.reports(demand, FI_RMA | FI_READ, Counted::Read, len)?;
        // SAFETY: passed on.
        if unsafe { self.read_direct(demand, &into) } {
            self.hub().report(&report, None);
            return Ok(());
        }
        let op = self.begin(demand, report, into)?;
        let mut head = Head::new(Kind::Read, op);
        [demand.key, demand.offset, len as u64].into_iter().for_each(|word| head.word(word));
        let sent = self.send_short(demand.to, &head, op | ASIDE);
        self.begun(op, sent.map(drop))
    }

    /// Has an atomic operation done on a region.
    ///
    /// # Safety
    ///
    /// The program lends the pieces for writing until the operation is over.
    pub(crate) unsafe fn operate(
        &mut self,
        demand: &Demand,
        what: u64,
        form: Form,
        operands: Vec<u8>,
        result: Pieces,
    ) -> Result<(), Errno> {
        let (flag, counted) = if form == Form::Write { (FI_WRITE, Counted::Write) } else { (FI_READ, Counted::Read) };
        let report = self.reports(demand, FI_ATOMIC | flag, counted, operands.len())?;
        // SAFETY: passed on.
        if let Some(done) = unsafe { self.operate_direct(demand, what, &operands, &result) } {
            self.hub().report(&report, done.err());
            return Ok(());
        }
        let op = self.begin(demand, report, result)?;
        let mut head = Head::new(Kind::Atomic, op);
        [demand.key, demand.offset, what, operands.len() as u64].into_iter().for_each(|word| head.word(word));
        if operands.len() <= head.room() {
            head.payload(operands.len()).copy_from_slice(&operands);
            let sent = self.send_short(demand.to, &head, op | ASIDE);
            return self.begun(op, sent.map(drop));
        }
        self.request_with(demand, head, operands.into(), op)
    }
}
