//! The source of a domain's memory and doorbells, which depends on where its program runs.

use std::sync::Arc;

use isthmus_layout::channel::{ChannelGeometry, SlabSize};
use isthmus_layout::control::Name;
use isthmus_layout::ids::DomainId;
use isthmus_layout::proxy::{GUEST, HOST, ResourceRef};
use isthmus_layout::{Refusal, RegionSize};
use isthmus_platform::{Doorbell, copy_fd, local};

use crate::{GuestId, GuestWindow, Resource, WindowError};

/// The source of a domain's memory and doorbells.
#[derive(Clone, Debug)]
pub enum Allocator {
    /// A process of this host.
    Host,
    /// A program of a guest.
    Guest(Arc<GuestWindow>),
}

/// Memory of a channel or of a domain's ring.
#[derive(Debug)]
pub struct RingMemory {
    /// Bytes of each slab.
    pub slab: SlabSize,
    /// The memory.
    pub memory: Resource,
    /// The reason why the slabs are smaller than requested.
    pub refused: Option<Refusal>,
}

impl RingMemory {
    /// Allocates two rings and two slabs of `most` bytes each by `memory`. Each time `memory` refuses, it tries again with slabs of half
    /// the size.
    pub fn of(
        most: SlabSize,
        memory: impl Fn(RegionSize) -> Result<Resource, WindowError>,
    ) -> Result<Self, WindowError> {
        let (mut slab, mut refused) = (most, None);
        loop {
            let error = match memory(ChannelGeometry { slab }.size()) {
                Ok(memory) => return Ok(Self { slab, memory, refused }),
                Err(error) => error,
            };
            match slab.half() {
                Some(half) => (slab, refused) = (half, Some(error.into())),
                None => return Err(error),
            }
        }
    }
}

impl Allocator {
    /// The number of the guest, or 0 for the host.
    pub fn number(&self) -> GuestId {
        match self {
            Self::Host => GuestId(0),
            Self::Guest(guest_window) => guest_window.number(),
        }
    }

    /// The guest's name.
    pub fn guest(&self) -> Option<&Name> {
        match self {
            Self::Host => None,
            Self::Guest(guest_window) => Some(guest_window.name()),
        }
    }

    /// Allocates zeroed memory.
    pub fn allocate(&self, size: RegionSize) -> Result<Resource, WindowError> {
        match self {
            Self::Host => Ok(local::memory(size)?.into()),
            Self::Guest(guest_window) => guest_window.window().allocate(size, None),
        }
    }

    /// Allocates zeroed memory for two rings and two slabs.
    pub fn allocate_rings(&self, most: SlabSize) -> Result<RingMemory, WindowError> {
        RingMemory::of(most, |size| self.allocate(size))
    }

    /// Returns a doorbell of the worker with this number: the end at which the worker listens, and the resource with which domains ring it.
    pub fn worker_doorbell(&self, worker: u8) -> Result<(Doorbell, Resource), WindowError> {
        match self {
            Self::Host => {
                let doorbell = Doorbell::new()?;
                let sender = copy_fd(&doorbell)?.into();
                Ok((doorbell, sender))
            }
            Self::Guest(guest_window) => {
                let (vector, doorbell) = guest_window.worker_doorbell(worker);
                Ok((doorbell, Resource::Doorbell(ResourceRef::Doorbell { peer: HOST, vector })))
            }
        }
    }

    /// Releases the doorbells of a domain that has left.
    pub fn release_vector(&self, domain: DomainId) {
        if let Self::Guest(guest_window) = self {
            guest_window.release_vector(domain);
        }
    }

    /// Returns a doorbell of one domain for peers of its owner: the end at which the domain listens, and the one that its peers ring.
    pub fn domain_doorbell(&self, domain: DomainId) -> Result<(Resource, Resource), WindowError> {
        match self {
            Self::Host => {
                let doorbell = Resource::from(copy_fd(Doorbell::new()?)?);
                Ok((doorbell.clone(), doorbell))
            }
            Self::Guest(guest_window) => {
                let vector = guest_window.vector(domain)?;
                Ok((
                    Resource::Doorbell(ResourceRef::VectorEvents { vector }),
                    Resource::Doorbell(ResourceRef::Doorbell { peer: GUEST, vector }),
                ))
            }
        }
    }
}
