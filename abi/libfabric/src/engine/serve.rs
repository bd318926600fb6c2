//! Requests of peers to this endpoint: writes, reads and atomic operations on registered regions, and the replies.

use crate::abi::consts::{FI_REMOTE_CQ_DATA, FI_REMOTE_WRITE, FI_RMA};
use crate::engine::arithmetic::{self, AtomicOp};
use crate::engine::dispatcher::{Dispatcher, PayloadTarget};
use crate::engine::events::{CounterKind, Event, Side};
use crate::engine::header::{HeaderReader, PAYLOAD_FOLLOWS, parameter};
use crate::engine::ops::{Op, OpId, RemoteWrite};
use crate::engine::regions::{Region, RegionAccess};
use crate::errno::Errno;
use isthmus_client::EndpointAddress;
use std::sync::Arc;

/// A reply to a request.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) to: EndpointAddress,
    pub(crate) request: u64,
    pub(crate) answer: ReplyBody,
}

/// The content of a reply.
#[derive(Debug)]
pub(crate) enum ReplyBody {
    /// The request has been executed.
    Done,
    /// The request was refused.
    Refused(Errno),
    /// The requested bytes.
    Bytes(Vec<u8>),
    /// Bytes of a region, sent from the region itself.
    Region(Arc<Region>, RegionRange),
}

/// A range of bytes in a region, checked against its bounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionRange {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
}

// SAFETY: in a region, of which `Region` says why threads do not matter.
unsafe impl Send for RegionRange {}

impl Reply {
    pub(crate) const fn done(to: EndpointAddress, request: u64) -> Self {
        Self { to, request, answer: ReplyBody::Done }
    }
}

impl Dispatcher {
    fn answer(&mut self, peer: u32, request: u64, answer: ReplyBody) {
        let to = self.peers[peer as usize].address;
        self.outbox.push_back(Reply { to, request, answer });
    }

    /// Records that a peer on this host asked for an access that peers usually make directly.
    fn record_assisted_access(&mut self, peer: u32, region: &Region, offset: u64, len: u64) {
        let from = self.peers[peer as usize].address.domain;
        if !from.is_remote() {
            self.assisted.push((from, region.assist_reason(offset, len)));
        }
    }

    /// Serves a write. Returns `None` if the header is invalid.
    pub(crate) fn serve_write(&mut self, peer: u32, tag: u64, mut words: HeaderReader<'_>) -> Option<()> {
        let request = parameter(tag);
        let data = words.data(tag)?;
        let (key, offset, len) = (words.word()?, words.word()?, words.word()?);
        let bytes = words.payload();
        let has_payload = tag & PAYLOAD_FOLLOWS != 0;
        let found = self.regions.find(key, offset, len, RegionAccess::Write);
        // A header without any bytes reports bytes that are already in the region.
        let fits = has_payload || bytes.is_empty() || bytes.len() as u64 == len;
        let found = found.and_then(|found| if fits { Ok(found) } else { Err(Errno::INVAL) });
        match found {
            Err(errno) => {
                self.answer(peer, request, ReplyBody::Refused(errno));
                if has_payload {
                    self.peers[peer as usize].payload_target = Some(PayloadTarget::Discard);
                }
            }
            Ok((region, place)) => {
                // A write without payload needs no access to the region.
                if has_payload || !bytes.is_empty() {
                    self.record_assisted_access(peer, &region, offset, len);
                }
                let remote_write = RemoteWrite { region, place, len, peer, request, data };
                if has_payload {
                    self.expect(peer, Op::RemoteWrite(remote_write));
                } else {
                    // SAFETY: `place` has `len` bytes in a region that is registered for writing by others; `bytes` are ours.
                    unsafe { std::ptr::copy(bytes.as_ptr(), place, bytes.len()) };
                    self.remote_write_done(remote_write, len);
                }
            }
        }
        Some(())
    }

    /// Completes a write, successfully if all announced bytes arrived.
    pub(crate) fn remote_write_done(&mut self, remote_write: RemoteWrite, len: u64) {
        let RemoteWrite { region, peer, request, data, .. } = remote_write;
        let whole = len == remote_write.len;
        self.answer(peer, request, if whole { ReplyBody::Done } else { ReplyBody::Refused(Errno::INVAL) });
        if let Ok(counter) = region.counter.lock()
            && let Some(counter) = counter.as_ref()
        {
            counter.value.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        let flags = FI_RMA | FI_REMOTE_WRITE | if data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
        let source = self.peers[peer as usize].source;
        let event =
            Event { len: len as usize, data: data.unwrap_or(0), source, ..Event::of(std::ptr::null_mut(), flags) };
        let wants_completion = data.is_some() && self.events.is_bound(Side::Receive);
        self.events.complete(Side::Receive, CounterKind::RemoteWrite, wants_completion, event);
    }

    /// Serves a read.
    pub(crate) fn serve_read(&mut self, peer: u32, tag: u64, mut words: HeaderReader<'_>) -> Option<()> {
        let (key, offset, len) = (words.word()?, words.word()?, words.word()?);
        let answer = match self.regions.find(key, offset, len, RegionAccess::Read) {
            Ok((region, start)) => {
                self.record_assisted_access(peer, &region, offset, len);
                ReplyBody::Region(region, RegionRange { start, len: len as usize })
            }
            Err(errno) => ReplyBody::Refused(errno),
        };
        self.answer(peer, parameter(tag), answer);
        let event = Event::of(std::ptr::null_mut(), 0);
        self.events.complete(Side::Receive, CounterKind::RemoteRead, false, event);
        Some(())
    }

    /// Serves an atomic operation.
    pub(crate) fn serve_atomic(&mut self, peer: u32, tag: u64, mut words: HeaderReader<'_>) -> Option<()> {
        let request = parameter(tag);
        let words4 = [words.word()?, words.word()?, words.word()?, words.word()?];
        if tag & PAYLOAD_FOLLOWS != 0 {
            if words4[3] > arithmetic::OPERAND_BYTES_MAX {
                self.answer(peer, request, ReplyBody::Refused(Errno::MSGSIZE));
                self.peers[peer as usize].payload_target = Some(PayloadTarget::Discard);
            } else {
                self.expect(peer, Op::RemoteAtomic { peer, request, words: words4 });
            }
            return Some(());
        }
        self.operate(peer, request, words4, words.payload());
        Some(())
    }

    /// Executes an atomic operation after its operands have arrived.
    pub(crate) fn remote_atomic_ready(&mut self, id: OpId, bytes: &[u8]) {
        if let Some(Op::RemoteAtomic { peer, request, words }) = self.ops.take(id) {
            self.operate(peer, request, words, bytes);
        }
    }

    fn operate(&mut self, peer: u32, request: u64, words: [u64; 4], operands: &[u8]) {
        let answer = self.try_operate(peer, words, operands).unwrap_or_else(ReplyBody::Refused);
        self.answer(peer, request, answer);
    }

    fn try_operate(&mut self, peer: u32, words: [u64; 4], operands: &[u8]) -> Result<ReplyBody, Errno> {
        let [key, offset, what, len] = words;
        let what = AtomicOp::parse(what)?;
        if operands.len() as u64 != len || what.operand_bytes() != operands.len() {
            return Err(Errno::INVAL);
        }
        let access = if what.reads() { RegionAccess::Both } else { RegionAccess::Write };
        let access = if what.only_reads() { RegionAccess::Read } else { access };
        let (region, place) = self.regions.find(key, offset, what.target_bytes() as u64, access)?;
        self.record_assisted_access(peer, &region, offset, what.target_bytes() as u64);
        let mut before = vec![0; if what.fetches() { what.target_bytes() } else { 0 }];
        // SAFETY: the place has `target_bytes` bytes in a region registered for this access; nothing of ours touches them
        // meanwhile, since the domain is locked; the operands are as long as they have to be, as was checked.
        unsafe { what.apply(place, operands, &mut before) };
        let event = Event::of(std::ptr::null_mut(), 0);
        self.events.complete(Side::Receive, CounterKind::RemoteWrite, false, event);
        Ok(if what.fetches() { ReplyBody::Bytes(before) } else { ReplyBody::Done })
    }
}
