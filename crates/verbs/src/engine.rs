//! The adapter of an open device: its objects, and the calls that make, change and end them.

mod objects;
mod regions;
mod states;

use crate::accesses::PeerAccesses;
use crate::events::AsyncEvent;
use crate::memory::{FastMap, Regions};
use crate::outgoing::Outgoing;
use crate::packet::Tag;
use crate::queue_pair::{Positions, QueuePair};
use crate::queues::{CompletionQueue, ReceiveQueue};
use crate::receive::PayloadUse;
use crate::types::{Completion, Cq, Gid, QpNumber};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::ops::Range;
use isthmus_layout::{DomainId, EndpointAddress, SlotTable};

/// The maximum values that the adapter reports and enforces.
pub mod limits {
    /// Requests of one queue.
    pub const REQUESTS_MAX: u32 = 16_384;
    /// Ranges of one list.
    pub const SGES_MAX: u32 = 32;
    /// Inline bytes of one request.
    pub const INLINE_BYTES_MAX: u32 = 1024;
    /// Completions of one queue.
    pub const COMPLETIONS_MAX: u32 = 1 << 20;
    /// Reads and atomic operations under way on one queue pair, in each direction.
    pub const READS_MAX: u32 = 128;
    /// Bytes of one message.
    pub const MESSAGE_BYTES_MAX: u32 = 1 << 30;
    /// Bytes of one datagram: the largest path MTU.
    pub const DATAGRAM_BYTES_MAX: u32 = 4096;
    /// Bytes before a datagram in its receive buffer, for the GRH.
    pub const GRH_BYTES: u32 = 40;
    /// Bytes of writes of one queue pair's peer that wait for earlier ones.
    pub const LATE_BYTES_MAX: u64 = 16 << 20;
    /// Objects of one kind.
    pub const OBJECTS_MAX: usize = 1 << 20;
}

/// The queue pair numbers that the daemon has given.
#[derive(Debug, Default)]
struct Numbers {
    /// The first number of each block of 256.
    blocks: Vec<u32>,
    /// Numbers without a queue pair, the one that is free for longest first.
    free: VecDeque<QpNumber>,
}

const BLOCK: u32 = 256;

impl Numbers {
    /// The place of a number in tables.
    #[inline]
    fn slot(&self, number: QpNumber) -> Option<u32> {
        let first = number.0 & !(BLOCK - 1);
        let block = self.blocks.iter().position(|block| *block == first)?;
        Some(block as u32 * BLOCK + (number.0 & (BLOCK - 1)))
    }
}

/// The adapter of an open device.
///
/// The engine does no I/O. Calls of the program and arriving packets change its state; [`Self::next_outgoing`] and [`Self::next_ack`]
/// return the packets to send.
#[derive(Debug, Default)]
pub struct Engine {
    pub(crate) regions: Regions,
    pds: SlotTable<()>,
    pub(crate) cqs: SlotTable<CompletionQueue>,
    pub(crate) receive_queues: SlotTable<ReceiveQueue>,
    numbers: Numbers,
    qps: Vec<Option<Box<QueuePair>>>,
    /// The numbers that the next queue pair of a slot begins with.
    positions: Vec<Positions>,
    /// Devices that send a payload next.
    pub(crate) peers: FastMap<EndpointAddress, PayloadUse>,
    pub(crate) routes: FastMap<(Gid, QpNumber), Option<EndpointAddress>>,
    pub(crate) outbox: VecDeque<Outgoing>,
    /// Slots of queue pairs that owe an acknowledgement.
    pub(crate) owing: VecDeque<u32>,
    /// Refusals for queue pairs that do not exist.
    pub(crate) strays: VecDeque<(EndpointAddress, Tag)>,
    /// Slots of queue pairs that pause for some time.
    pub(crate) pausing: Vec<u32>,
    /// Slots of queue pairs that look their peers up again.
    pub(crate) searching: Vec<u32>,
    /// Peers that have borrowed buffers which they must release: requests ended that had lent them.
    pub(crate) released: Vec<DomainId>,
    /// Packets of peers that no device of ours would have sent.
    pub(crate) violations: u64,
    /// Requests of peers for memory.
    pub(crate) accesses: Vec<PeerAccesses>,
    pub(crate) accesses_pending: u64,
    /// Completions reported so far.
    pub(crate) completions: u64,
    pub(crate) completion_events: VecDeque<Cq>,
    pub(crate) async_events: VecDeque<AsyncEvent>,
}

impl Engine {
    /// Makes an adapter. `seed` makes its keys unguessable, so it has to be random.
    pub fn new(seed: u64) -> Self {
        Self { regions: Regions::new(seed), ..Self::default() }
    }

    /// Adds a block of 256 queue pair numbers, the first of which is a multiple of 256.
    pub fn add_numbers(&mut self, numbers: Range<u32>) {
        assert!(numbers.start.is_multiple_of(BLOCK) && numbers.len() == BLOCK as usize);
        self.numbers.blocks.push(numbers.start);
        self.numbers.free.extend(numbers.map(QpNumber));
        let slots = self.numbers.blocks.len() * BLOCK as usize;
        self.qps.resize_with(slots, || None);
        self.positions.resize(slots, Positions::FIRST);
    }

    /// The number of violations of peers so far.
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// The number of completions reported so far, polled or not.
    #[inline]
    pub fn completions(&self) -> u64 {
        self.completions
    }

    /// Domains that may hold buffers of requests that ended. After each call of the engine, the caller takes them: payloads on their way to
    /// such a domain go on from copies, and of the payloads that come from it, those that [`Self::wants_payload`] does not know are
    /// discarded. All other payloads go on. Tokens of released buffers may be confirmed later, or never.
    pub fn take_released(&mut self) -> Vec<DomainId> {
        core::mem::take(&mut self.released)
    }

    /// True if [`Self::take_released`] would return a domain.
    #[inline]
    pub fn has_released(&self) -> bool {
        !self.released.is_empty()
    }

    /// The caller has to release the buffers of requests with a domain.
    pub(crate) fn release(&mut self, domain: DomainId) {
        if !self.released.contains(&domain) {
            self.released.push(domain);
        }
    }

    /// The place of a queue pair in tables.
    #[inline]
    pub(crate) fn slot(&self, number: QpNumber) -> Option<u32> {
        let slot = self.numbers.slot(number)?;
        self.qps.get(slot as usize)?.as_ref().map(|_| slot)
    }

    #[inline]
    pub(crate) fn qp(&self, slot: u32) -> Option<&QueuePair> {
        self.qps.get(slot as usize)?.as_deref()
    }

    #[inline]
    pub(crate) fn qp_mut(&mut self, slot: u32) -> Option<&mut QueuePair> {
        self.qps.get_mut(slot as usize)?.as_deref_mut()
    }

    /// A queue pair, with what its requests need.
    #[inline]
    pub(crate) fn parts(&mut self, slot: u32) -> Option<(&mut QueuePair, &mut Regions, &mut VecDeque<Outgoing>)> {
        let qp = self.qps.get_mut(slot as usize)?.as_deref_mut()?;
        Some((qp, &mut self.regions, &mut self.outbox))
    }

    /// All queue pairs, by slot.
    pub(crate) fn slots(&self) -> Vec<u32> {
        (0..self.qps.len() as u32).filter(|slot| self.qps[*slot as usize].is_some()).collect()
    }

    #[inline]
    pub(crate) fn report(&mut self, cq: Cq, completion: Completion) {
        self.completions += 1;
        if let Some(queue) = self.cqs.get_mut(cq.0) {
            queue.push(completion);
            if queue.armed.is_some() || queue.overrun {
                self.note_completion(cq, &completion);
            }
        }
    }

    /// Records the result of a look-up: the device that has a queue pair, or none. A look-up without a device is used once.
    pub fn add_route(&mut self, gid: Gid, number: QpNumber, to: Option<EndpointAddress>) {
        self.routes.insert((gid, number), to);
    }
}
