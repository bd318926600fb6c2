//! The broker's side of the data plane: the workers' ready maps, and the domains' bits in them.

use std::collections::BTreeMap;
use std::sync::Arc;

use isthmus_layout::Refusal;
use isthmus_layout::control::Owner;
use isthmus_layout::ids::DomainId;
use isthmus_layout::ready_map::{self, ReadyBit};
use isthmus_layout::reason::Reason;
use isthmus_service::{Command, NewDomain, SendPolicy, WorkerCounters, WorkerIndex, WorkerReadyMapId};

use crate::directory::ready_maps::ReadyBits;
use isthmus_window::{Allocator, GuestId, Resource};

/// Carries out the workers' commands: the [`Service`](isthmus_service::Service), or a fake one in tests.
pub trait DataPlane: std::fmt::Debug {
    /// The worker that serves a domain.
    fn worker_of(&self, domain: DomainId) -> WorkerIndex;
    /// Passes a command on without waiting.
    fn send(&self, command: Command);
    /// The workers' counters.
    fn counters(&self) -> &[Arc<WorkerCounters>];
}

impl DataPlane for isthmus_service::Service {
    fn worker_of(&self, domain: DomainId) -> WorkerIndex {
        Self::worker_of(self, domain)
    }

    fn send(&self, command: Command) {
        Self::send(self, command);
    }

    fn counters(&self) -> &[Arc<WorkerCounters>] {
        Self::counters(self)
    }
}

#[derive(Debug)]
struct WorkerReadyMap {
    number: WorkerReadyMapId,
    memory: Resource,
    doorbell: Resource,
    bits: ReadyBits,
}

/// A domain's bit in a worker's ready map.
#[derive(Clone, Debug)]
pub(crate) struct WorkerSlot {
    pub(crate) worker: WorkerIndex,
    pub(crate) ready_map: WorkerReadyMapId,
    pub(crate) ready_bit: ReadyBit,
    pub(crate) memory: Resource,
    pub(crate) doorbell: Resource,
    key: WorkerMapKey,
    /// Other resources that the worker uses. They must not be given to another domain before the worker has released them.
    #[expect(dead_code, reason = "is held")]
    pub(crate) in_use: Vec<Resource>,
}

/// Identifies a ready map, which serves the domains of one worker, one allocator and one owner.
type WorkerMapKey = (WorkerIndex, GuestId, Owner);

/// The workers' ready maps.
#[derive(Debug)]
pub struct WorkerReadyMaps {
    plane: Box<dyn DataPlane>,
    ready_maps: BTreeMap<WorkerMapKey, WorkerReadyMap>,
    /// The slot of each domain, until the worker has removed the domain.
    slots: BTreeMap<DomainId, WorkerSlot>,
    next: u32,
}

impl WorkerReadyMaps {
    /// Creates the state for a data plane without domains.
    pub fn new(plane: Box<dyn DataPlane>) -> Self {
        Self { plane, ready_maps: BTreeMap::new(), slots: BTreeMap::new(), next: 0 }
    }

    /// The counters of each worker.
    pub fn counters(&self) -> &[Arc<WorkerCounters>] {
        self.plane.counters()
    }

    pub(crate) fn set_send_policy(&self, policy: SendPolicy) {
        self.plane.send(Command::SendPolicy(policy));
    }

    /// Allocates a slot for a domain. Creates the ready map if this is the first domain with its key.
    pub(crate) fn allocate_slot(
        &mut self,
        domain: DomainId,
        owner: Owner,
        allocator: &Allocator,
        in_use: Vec<Resource>,
    ) -> Result<WorkerSlot, Refusal> {
        if self.slots.contains_key(&domain) {
            return Err(Reason::StillAttached.into()); // The domain resumed before its worker had released it.
        }
        let worker = self.plane.worker_of(domain);
        let key = (worker, allocator.number(), owner);
        if !self.ready_maps.contains_key(&key) {
            let ready_map = self.new_ready_map(worker, allocator)?;
            self.ready_maps.insert(key, ready_map);
        }
        let ready_map = self.ready_maps.get_mut(&key).expect("made above");
        let ready_bit = ready_map.bits.alloc().ok_or(Reason::ReadyMapFull)?;
        let (memory, doorbell) = (ready_map.memory.clone(), ready_map.doorbell.clone());
        let slot = WorkerSlot { worker, ready_map: ready_map.number, ready_bit, memory, doorbell, key, in_use };
        self.slots.insert(domain, slot.clone());
        Ok(slot)
    }

    fn new_ready_map(&mut self, worker: WorkerIndex, allocator: &Allocator) -> Result<WorkerReadyMap, Refusal> {
        let memory = allocator.allocate(ready_map::SIZE)?;
        let mapping = memory.map(ready_map::SIZE)?;
        let (doorbell, doorbell_resource) = allocator.worker_doorbell(worker.0)?;
        let number = WorkerReadyMapId(self.next);
        self.next += 1;
        self.plane.send(Command::AddReadyMap { worker, ready_map: number, memory: mapping, doorbell });
        Ok(WorkerReadyMap { number, memory, doorbell: doorbell_resource, bits: ReadyBits::default() })
    }

    /// Has the worker serve the domain from now on.
    pub(crate) fn add(&self, domain: NewDomain) {
        self.plane.send(Command::Add(Box::new(domain)));
    }

    pub(crate) fn remove(&self, domain: DomainId, reason: Reason) {
        self.plane.send(Command::Remove { domain, reason });
    }

    /// Frees the slot of a domain that the worker has released, and the ready map if it was the last slot in it.
    pub(crate) fn release_slot(&mut self, domain: DomainId) {
        let Some(slot) = self.slots.remove(&domain) else { return };
        let Some(ready_map) = self.ready_maps.get_mut(&slot.key) else { return };
        ready_map.bits.free(slot.ready_bit);
        if ready_map.bits.count() == 0 {
            self.ready_maps.remove(&slot.key);
            self.plane.send(Command::RemoveReadyMap { worker: slot.worker, ready_map: slot.ready_map });
        }
    }

    /// Sends a command of a capability, or about remote peers.
    pub fn send(&self, command: Command) {
        self.plane.send(command);
    }

    pub(crate) fn shutdown(&self) {
        self.plane.send(Command::Shutdown);
    }
}
