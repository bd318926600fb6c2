//! Send requests that a program builds call by call, and posts together.
//!
//! ```text
//!   ibv_wr_start ─► ibv_wr_send, … ─► ibv_wr_set_sge, … ─► (further requests) ─► ibv_wr_complete ─► all are posted, or none
//!                                                                               ibv_wr_abort    ─► none
//! ```
//!
//! Calls that build return nothing. The first error among them is the result of `ibv_wr_complete()`.

use crate::abi::consts::VERBS_QP_EX;
use crate::abi::context::IbvContext;
use crate::abi::objects::*;
use crate::abi::queries::IbvQpInitAttrEx;
use crate::abi::requests::IbvSge;
use crate::adapter::Adapter;
use crate::convert;
use crate::device::{Device, fail, status};
use crate::queue_pairs;
use isthmus_verbs::{
    AddressVector, AtomicOperation, Key, Operation, QpInit, QpNumber, QpType, SendFlags, SendRequest, Sge,
};
use rustix::io::Errno;
use std::ffi::{c_int, c_void};
use std::ops::Range;

/// Where the bytes of a request are.
enum Source {
    /// In regions: these of the batch's ranges.
    Ranges(Range<usize>),
    /// These of the batch's inline bytes.
    Inline(Range<usize>),
}

/// A request that the program has begun.
struct Built {
    wr_id: u64,
    operation: Operation,
    flags: SendFlags,
    source: Source,
    datagram: Option<(AddressVector, QpNumber, u32)>,
}

/// The requests since `ibv_wr_start()`.
pub(crate) struct Batch {
    requests: Vec<Built>,
    sges: Vec<Sge>,
    inline_bytes: Vec<u8>,
    /// The first error.
    error: Option<Errno>,
    kind: QpType,
    requests_max: usize,
    sges_max: usize,
    inline_max: usize,
}

impl Batch {
    /// An empty batch for a queue pair with these capacities.
    pub(crate) const fn new(init: &QpInit) -> Self {
        Self {
            requests: Vec::new(),
            sges: Vec::new(),
            inline_bytes: Vec::new(),
            error: None,
            kind: init.kind,
            requests_max: init.sends_max as usize,
            sges_max: init.send_sges_max as usize,
            inline_max: init.inline_max as usize,
        }
    }

    pub(super) fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline_bytes.clear();
        self.error = None;
    }

    /// The first error since `ibv_wr_start()`.
    pub(super) const fn error(&self) -> Option<Errno> {
        self.error
    }

    /// Notes an error, unless there was one before. The batch will not be posted.
    fn refuse(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
    }

    /// Begins a request, without bytes at first.
    pub(super) fn begin(&mut self, wr_id: u64, flags: u32, operation: Operation) {
        let Some(flags) = SendFlags::from_bits(flags) else { return self.refuse(Errno::INVAL) };
        if self.requests.len() >= self.requests_max {
            return self.refuse(Errno::NOMEM);
        }
        // Only a call that sets inline bytes makes a request inline.
        let (flags, source) = (flags.difference(SendFlags::INLINE), Source::Ranges(0..0));
        self.requests.push(Built { wr_id, operation, flags, source, datagram: None });
    }

    /// Sets the bytes of the request that was begun last.
    fn set_source(&mut self, source: Source) {
        let inline = matches!(source, Source::Inline(_));
        let Some(last) = self.requests.last_mut() else { return self.refuse(Errno::INVAL) };
        last.source = source;
        last.flags.set(SendFlags::INLINE, inline);
    }

    pub(super) fn set_ranges(&mut self, ranges: impl ExactSizeIterator<Item = Sge>) {
        if ranges.len() > self.sges_max {
            return self.refuse(Errno::INVAL);
        }
        let start = self.sges.len();
        self.sges.extend(ranges);
        self.set_source(Source::Ranges(start..self.sges.len()));
    }

    /// Copies inline bytes.
    ///
    /// # Safety
    ///
    /// The buffers may be read.
    pub(super) unsafe fn set_inline(&mut self, buffers: impl Iterator<Item = IbvDataBuf>) {
        let start = self.inline_bytes.len();
        for buffer in buffers {
            let used = self.inline_bytes.len() - start;
            if buffer.length > self.inline_max - used || buffer.addr.is_null() && buffer.length > 0 {
                return self.refuse(Errno::INVAL);
            }
            if buffer.length > 0 {
                // SAFETY: by the caller's promise.
                let bytes = unsafe { std::slice::from_raw_parts(buffer.addr.cast::<u8>(), buffer.length) };
                self.inline_bytes.extend_from_slice(bytes);
            }
        }
        self.set_source(Source::Inline(start..self.inline_bytes.len()));
    }

    pub(super) fn set_destination(&mut self, destination: Option<(AddressVector, QpNumber, u32)>) {
        match (self.requests.last_mut(), destination) {
            (Some(last), Some(_)) if self.kind == QpType::Ud => last.datagram = destination,
            _ => self.refuse(Errno::INVAL),
        }
    }

    /// Passes the requests to a function, each with its index, up to the first error.
    pub(super) fn visit(&self, mut of: impl FnMut(usize, &SendRequest<'_>) -> Result<(), Errno>) -> Result<(), Errno> {
        self.requests.iter().enumerate().try_for_each(|(at, built)| {
            let inline;
            let sges = match &built.source {
                Source::Ranges(range) => &self.sges[range.clone()],
                Source::Inline(range) if range.is_empty() => &[],
                Source::Inline(range) => {
                    let bytes = &self.inline_bytes[range.clone()];
                    inline = [Sge { addr: bytes.as_ptr() as u64, len: bytes.len() as u32, lkey: 0 }];
                    &inline[..]
                }
            };
            let Built { wr_id, operation, flags, datagram, .. } = *built;
            of(at, &SendRequest { wr_id, operation, flags, sges, datagram })
        })
    }

    /// Posts all requests, or none if one of them is refused.
    fn post(&self, adapter: &mut Adapter, number: QpNumber) -> Result<(), Errno> {
        self.error().map_or(Ok(()), Err)?;
        // A single one is checked when it is posted.
        if self.requests.len() > 1 {
            self.visit(|at, request| adapter.engine().check_send(number, request, at).map_err(convert::errno))?;
        }
        self.visit(|_, request| adapter.post_send(number, request).map_err(convert::errno))
    }
}

pub(crate) unsafe extern "C" fn create_qp_ex(_context: *mut IbvContext, attr: *mut IbvQpInitAttrEx) -> *mut IbvQp {
    // SAFETY: the program passes its attributes.
    let attr = unsafe { &mut *attr };
    let operations = match convert::qp_send_operations(attr) {
        Ok(operations) => operations,
        Err(errno) => return fail(errno),
    };
    let mut base = attr.base();
    // SAFETY: the program passes a protection domain and queues of this provider.
    let made = unsafe {
        queue_pairs::create(attr.pd, &mut base, |verbs| {
            if operations != 0 {
                set_functions(&mut verbs.qp_ex);
                verbs.comp_mask = VERBS_QP_EX;
            }
        })
    };
    attr.cap = base.cap;
    made
}

/// The functions for all operations that the adapter has. The program calls those that it asked for.
fn set_functions(qp: &mut IbvQpEx) {
    qp.wr_atomic_cmp_swp = Some(wr_atomic_cmp_swp);
    qp.wr_atomic_fetch_add = Some(wr_atomic_fetch_add);
    qp.wr_rdma_read = Some(wr_rdma_read);
    qp.wr_rdma_write = Some(wr_rdma_write);
    qp.wr_rdma_write_imm = Some(wr_rdma_write_imm);
    qp.wr_send = Some(wr_send);
    qp.wr_send_imm = Some(wr_send_imm);
    qp.wr_set_ud_addr = Some(wr_set_ud_addr);
    qp.wr_set_inline_data = Some(wr_set_inline_data);
    qp.wr_set_inline_data_list = Some(wr_set_inline_data_list);
    qp.wr_set_sge = Some(wr_set_sge);
    qp.wr_set_sge_list = Some(wr_set_sge_list);
    qp.wr_start = Some(wr_start);
    qp.wr_complete = Some(wr_complete);
    qp.wr_abort = Some(wr_abort);
}

/// The queue pair of this provider.
///
/// # Safety
///
/// The pointer is from [`create_qp_ex`], and the queue pair lives for `'a`.
unsafe fn object<'a>(qp: *mut IbvQpEx) -> &'a QpObject {
    // SAFETY: by the caller's promise: `IbvQpEx` begins with the `IbvQp` that the object embeds.
    unsafe { &*qp.cast::<QpObject>() }
}

/// The batch of a queue pair.
///
/// # Safety
///
/// As for [`object`]. The program calls between `ibv_wr_start()` and the end of the critical section, in one thread.
unsafe fn batch<'a>(qp: *mut IbvQpEx) -> &'a mut Batch {
    // SAFETY: by the caller's promise.
    unsafe { object(qp).batch.value() }
}

/// Begins a request with the number and the flags that the program has set.
///
/// # Safety
///
/// As for [`batch`].
unsafe fn begin(qp: *mut IbvQpEx, operation: Operation) {
    // SAFETY: by the caller's promise.
    unsafe { batch(qp).begin((*qp).wr_id, (*qp).wr_flags, operation) }
}

/// The functions that begin a request. The program calls them as [`batch`] demands.
macro_rules! operations {
    ($($name:ident($($argument:ident: $kind:ty),*) => $operation:expr;)*) => {$(
        unsafe extern "C" fn $name(qp: *mut IbvQpEx, $($argument: $kind),*) {
            // SAFETY: the program passes a queue pair in its critical section.
            unsafe { begin(qp, $operation) }
        }
    )*};
}

operations! {
    wr_send() => Operation::Send { immediate: None };
    wr_send_imm(immediate: u32) => Operation::Send { immediate: Some(immediate) };
    wr_rdma_write(rkey: u32, remote_addr: u64) => Operation::Write { remote_addr, rkey: Key(rkey), immediate: None };
    wr_rdma_write_imm(rkey: u32, remote_addr: u64, immediate: u32) =>
        Operation::Write { remote_addr, rkey: Key(rkey), immediate: Some(immediate) };
    wr_rdma_read(rkey: u32, remote_addr: u64) => Operation::Read { remote_addr, rkey: Key(rkey) };
    wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64) =>
        Operation::Atomic { remote_addr, rkey: Key(rkey), atomic: AtomicOperation::CompareSwap { compare, swap } };
    wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64) =>
        Operation::Atomic { remote_addr, rkey: Key(rkey), atomic: AtomicOperation::FetchAdd(add) };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut IbvQpEx, ah: *mut IbvAh, remote_qpn: u32, remote_qkey: u32) {
    // SAFETY: the program passes a queue pair in its critical section, and an address of this provider or null.
    let (batch, ah) = unsafe { (batch(qp), embedding::<AhObject>(ah)) };
    batch.set_destination(ah.map(|ah| (ah.address, QpNumber(remote_qpn & QpNumber::MASK), remote_qkey)));
}

unsafe extern "C" fn wr_set_sge(qp: *mut IbvQpEx, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the program passes a queue pair in its critical section.
    unsafe { batch(qp) }.set_ranges([Sge { addr, len: length, lkey }].into_iter());
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut IbvQpEx, len: usize, list: *const IbvSge) {
    // SAFETY: the program passes a queue pair in its critical section.
    let batch = unsafe { batch(qp) };
    if len > batch.sges_max || list.is_null() && len > 0 {
        return batch.refuse(Errno::INVAL);
    }
    // SAFETY: the program passes a list of this length.
    let range = |at| unsafe { list.add(at).read() };
    batch.set_ranges((0..len).map(range).map(|IbvSge { addr, length, lkey }| Sge { addr, len: length, lkey }));
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut IbvQpEx, addr: *mut c_void, length: usize) {
    // SAFETY: the program passes a queue pair in its critical section, and bytes of this length.
    unsafe { batch(qp).set_inline([IbvDataBuf { addr, length }].into_iter()) }
}

unsafe extern "C" fn wr_set_inline_data_list(qp: *mut IbvQpEx, len: usize, list: *const IbvDataBuf) {
    // SAFETY: the program passes a queue pair in its critical section.
    let batch = unsafe { batch(qp) };
    if list.is_null() && len > 0 {
        return batch.refuse(Errno::INVAL);
    }
    // SAFETY: the program passes a list of this length, of buffers that may be read.
    unsafe { batch.set_inline((0..len).map(|at| list.add(at).read())) }
}

unsafe extern "C" fn wr_start(qp: *mut IbvQpEx) {
    // SAFETY: the program passes a queue pair. The thread has not entered its critical section.
    unsafe { object(qp).batch.enter() };
    // SAFETY: the thread has entered it now.
    unsafe { batch(qp) }.clear();
}

unsafe extern "C" fn wr_complete(qp: *mut IbvQpEx) -> c_int {
    // SAFETY: the program passes a queue pair in its critical section. The context is open.
    let (device, object, batch) = unsafe { (Device::of((*qp).qp.context), object(qp), batch(qp)) };
    let mut adapter = device.lock();
    let posted = batch.post(&mut adapter, object.qp);
    adapter.flush_posts();
    device.end_call(&mut adapter);
    drop(adapter);
    // SAFETY: the thread is in the critical section. The batch is not used below.
    unsafe { object.batch.leave() };
    status(posted)
}

unsafe extern "C" fn wr_abort(qp: *mut IbvQpEx) {
    // SAFETY: the program passes a queue pair in its critical section.
    unsafe { object(qp).batch.leave() };
}
