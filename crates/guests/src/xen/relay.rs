//! Relays rings over one event channel. Bits in the window's head page say which vectors were rung (docs/spec/guest-proxy.md).
//!
//! ```text
//!   sender ── event descriptor ──► Relay ── a bit in the head page, then the event channel ──► Relay ── event descriptor ──► receiver
//! ```
//!
//! Programs and workers ring by writing to a descriptor and wait by polling one. A descriptor of an event channel supports neither: ringing
//! takes an ioctl, and after each event the descriptor has to be written to.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use isthmus_layout::proxy::PROXY_VECTOR;
use isthmus_layout::proxy::grants::{
    GUEST_PENDING_WORD, GUEST_PRESENT_WORD, HOST_PENDING_WORD, HOST_PRESENT_WORD, PENDING_WORDS, VECTORS_MAX,
};
use isthmus_platform_xen::kernel::Port;
use isthmus_shm::{SharedMapping, Words as _};
use rustix::event::epoll;

use super::{duplicate, event};
use isthmus_control::async_fd::register;

/// The words of the head page as used by one side.
#[derive(Clone, Copy, Debug)]
pub(super) struct RelayWords {
    outgoing: u32,
    incoming: u32,
    peer_present: u32,
}

/// The words of the backend's side.
pub(super) const BACKEND: RelayWords =
    RelayWords { outgoing: HOST_PENDING_WORD, incoming: GUEST_PENDING_WORD, peer_present: GUEST_PRESENT_WORD };
/// The words of the guest's side.
pub(super) const GUEST: RelayWords =
    RelayWords { outgoing: GUEST_PENDING_WORD, incoming: HOST_PENDING_WORD, peer_present: HOST_PRESENT_WORD };

/// The doorbells of one side, by vector.
#[derive(Debug)]
pub(super) struct VectorDoorbells {
    /// Descriptors that ring the peer, by vector. `rung` is readable when one of them was rung.
    senders: RefCell<BTreeMap<u16, OwnedFd>>,
    rung: OwnedFd,
    /// Event descriptors that receive the peer's rings, by vector.
    listeners: Rc<RefCell<BTreeMap<u16, OwnedFd>>>,
    /// The first vector of this side that the peer can ring.
    first_vector: u16,
}

impl VectorDoorbells {
    pub(super) fn new() -> io::Result<Rc<Self>> {
        Self::with_listeners(Rc::default(), 0)
    }

    /// Creates the doorbells for another peer. It can ring the same vectors of this side, except the daemon's own.
    pub(super) fn for_peer(&self) -> io::Result<Rc<Self>> {
        Self::with_listeners(Rc::clone(&self.listeners), PROXY_VECTOR + 1)
    }

    fn with_listeners(listeners: Rc<RefCell<BTreeMap<u16, OwnedFd>>>, first_vector: u16) -> io::Result<Rc<Self>> {
        let rung = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Rc::new(Self { senders: RefCell::default(), rung, listeners, first_vector }))
    }

    /// Returns a descriptor that rings a vector of the peer.
    pub(super) fn sender(&self, vector: u16) -> io::Result<OwnedFd> {
        if vector >= VECTORS_MAX {
            return Err(io::Error::other(format!("there is no vector {vector}")));
        }
        if let Some(known) = self.senders.borrow().get(&vector) {
            return duplicate(known);
        }
        let sender = event()?;
        epoll::add(&self.rung, &sender, epoll::EventData::new_u64(vector.into()), epoll::EventFlags::IN)?;
        let copy = duplicate(&sender)?;
        self.senders.borrow_mut().insert(vector, sender);
        Ok(copy)
    }

    /// Returns an event descriptor that receives the rings of a vector of this side from now on. It replaces the previous one.
    pub(super) fn listen(&self, vector: u16) -> io::Result<OwnedFd> {
        let listener = event()?;
        let copy = duplicate(&listener)?;
        self.listeners.borrow_mut().insert(vector, listener);
        Ok(copy)
    }

    /// Returns a descriptor with which this side rings a vector of its own.
    pub(super) fn own_sender(&self, vector: u16) -> io::Result<OwnedFd> {
        if let Some(known) = self.listeners.borrow().get(&vector) {
            return duplicate(known);
        }
        self.listen(vector)
    }

    /// Returns the vectors of the peer that were rung, and clears them.
    fn take_rung(&self) -> io::Result<Vec<u16>> {
        let mut events = Vec::with_capacity(usize::from(VECTORS_MAX));
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&self.rung, rustix::buffer::spare_capacity(&mut events), Some(&now))?;
        let senders = self.senders.borrow();
        let vectors = events.iter().filter_map(|event| u16::try_from(event.data.u64()).ok());
        Ok(vectors
            .inspect(|vector| {
                let _ = senders.get(vector).map(|sender| rustix::io::read(sender, &mut [0; 8]));
            })
            .collect())
    }

    /// Rings a vector of this side, if it has a listener and the peer may ring it.
    fn ring(&self, vector: u16) {
        if vector < self.first_vector {
            return;
        }
        if let Some(listener) = self.listeners.borrow().get(&vector) {
            let _ = rustix::io::write(listener, &1_u64.to_ne_bytes()); // A full counter is already readable.
        }
    }
}

/// Relays rings between [`VectorDoorbells`] and an event channel.
pub(super) struct Relay<P> {
    /// Declared before `port`, so that it is unmapped first: the kernel signals the unmapping by the port.
    head: SharedMapping,
    port: P,
    words: RelayWords,
    doorbells: Rc<VectorDoorbells>,
    /// Whether the peer has been present.
    peer_was_present: bool,
}

impl<P: Port> Relay<P> {
    pub(super) fn new(port: P, head: SharedMapping, words: RelayWords, doorbells: Rc<VectorDoorbells>) -> Self {
        let peer_was_present = head.load(words.peer_present, Ordering::Acquire) != 0;
        Self { port, head, words, doorbells, peer_was_present }
    }

    /// Relays rings until the peer has been present and is gone.
    pub(super) async fn run(self) -> io::Result<()> {
        self.run_with_callback(|| {}).await
    }

    /// Relays rings as [`run`](Self::run) does, and calls `is_here` once the peer is present.
    pub(super) async fn run_with_callback(mut self, is_here: impl Fn()) -> io::Result<()> {
        let events = register(self.port.as_fd().try_clone_to_owned()?)?;
        let rung = register(duplicate(&self.doorbells.rung)?)?;
        loop {
            tokio::select! {
                ready = events.readable() => {
                    // The readiness is cleared first, so that an event that arrives during the handling makes the descriptor ready again.
                    ready?.clear_ready();
                    self.port.wait(Duration::ZERO)?;
                    self.receive_rings();
                }
                ready = rung.readable() => {
                    if !self.send_rings()? {
                        ready?.clear_ready();
                    }
                }
            }
            let is_there = self.head.load(self.words.peer_present, Ordering::Acquire) != 0;
            if self.peer_was_present && !is_there {
                return Ok(());
            }
            if is_there && !std::mem::replace(&mut self.peer_was_present, true) {
                is_here();
            }
        }
    }

    /// Sends the rings of this side to the peer. Returns false if there were none.
    fn send_rings(&self) -> io::Result<bool> {
        let vectors = self.doorbells.take_rung()?;
        for vector in &vectors {
            // A, with B in `receive_rings`: data that was written before the ring is visible to the task that the ring wakes.
            self.head.or(self.words.outgoing + u32::from(vector / 32), 1 << (vector % 32), Ordering::Release);
        }
        if !vectors.is_empty() {
            self.port.notify()?;
        }
        Ok(!vectors.is_empty())
    }

    /// Rings the vectors of this side that the peer has rung.
    fn receive_rings(&self) {
        for word in 0..PENDING_WORDS {
            // B, with A in `send_rings`.
            let bits = self.head.swap(self.words.incoming + word, 0, Ordering::Acquire);
            (0..32).filter(|bit| bits & 1 << bit != 0).for_each(|bit| self.doorbells.ring(word as u16 * 32 + bit));
        }
    }
}

#[cfg(test)]
mod tests {
    use isthmus_layout::RegionSize;
    use isthmus_platform_xen::fake::{FakeHost, FakePort};
    use isthmus_platform_xen::{Domid, Kernel as _};
    use isthmus_shm::Mapping;

    use super::*;

    /// The doorbells of one side, and their relay.
    type RelaySide = (Rc<VectorDoorbells>, Relay<FakePort>);

    /// Creates both sides and the head page.
    fn pair() -> ([RelaySide; 2], SharedMapping) {
        let host = FakeHost::new();
        let (guest, zero) = (host.start(Domid::new(7).unwrap()), host.domain(Domid::ZERO));
        let heard = guest.listen(Domid::ZERO).unwrap();
        let bound = zero.bind(Domid::new(7).unwrap(), heard.number()).unwrap();
        let head = SharedMapping::new(Mapping::private(RegionSize(4096)));
        let side = |port, words| {
            let doorbells = VectorDoorbells::new().unwrap();
            (Rc::clone(&doorbells), Relay::new(port, head.clone(), words, doorbells))
        };
        ([side(bound, BACKEND), side(heard, GUEST)], head)
    }

    fn ring(doorbell: &OwnedFd) {
        rustix::io::write(doorbell, &1_u64.to_ne_bytes()).unwrap();
    }

    fn has_rung(doorbell: &OwnedFd) -> bool {
        rustix::io::read(doorbell, &mut [0; 8]).is_ok()
    }

    async fn rings(doorbell: &OwnedFd) {
        register(duplicate(doorbell).unwrap()).unwrap().readable().await.unwrap().retain_ready();
        assert!(has_rung(doorbell));
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(tokio::task::LocalSet::new().run_until(test));
    }

    #[test]
    fn delivers_rings_to_their_vectors_only() {
        run(async {
            let ([(backends, backend), (guests, guest)], _head) = pair();
            tokio::task::spawn_local(backend.run());
            tokio::task::spawn_local(guest.run());
            let last = VECTORS_MAX - 1;
            let heard = [0, 1, 33, last].map(|vector| guests.listen(vector).unwrap());
            let worker = backends.listen(1).unwrap();
            for (vector, listener) in [0, 33, last].into_iter().zip([&heard[0], &heard[2], &heard[3]]) {
                ring(&backends.sender(vector).unwrap());
                rings(listener).await;
            }
            ring(&guests.sender(1).unwrap());
            rings(&worker).await;
            assert!(!heard.iter().any(has_rung), "a vector heard what was not for it");
            assert!(guests.sender(VECTORS_MAX).is_err());
        });
    }

    #[test]
    fn rings_own_listeners_without_the_relay() {
        let doorbells = VectorDoorbells::new().unwrap();
        let listener = doorbells.listen(5).unwrap();
        ring(&doorbells.own_sender(5).unwrap());
        assert!(has_rung(&listener));
        let next = doorbells.listen(5).unwrap();
        ring(&doorbells.own_sender(5).unwrap());
        assert!(has_rung(&next) && !has_rung(&listener), "the earlier listener of the vector is still notified");
    }

    #[test]
    fn peer_guest_rings_all_vectors_but_the_daemon_vector() {
        run(async {
            let ([(guests, guest), (others, other)], head) = pair();
            let own = VectorDoorbells::new().unwrap();
            let heard = [0, 1].map(|vector| own.listen(vector).unwrap());
            let (for_peer, mut guest) = (own.for_peer().unwrap(), guest);
            guest.doorbells = Rc::clone(&for_peer);
            drop(guests);
            (0..PENDING_WORDS).for_each(|word| head.store(GUEST_PENDING_WORD + word, u32::MAX, Ordering::Relaxed));
            tokio::task::spawn_local(guest.run());
            tokio::task::spawn_local(other.run());
            ring(&others.sender(1).unwrap());
            rings(&heard[1]).await;
            assert!(!has_rung(&heard[0]), "another guest calls the daemon to its proxy ring");
        });
    }

    #[test]
    fn ignores_vectors_without_a_listener() {
        run(async {
            let ([(backends, backend), (_, guest)], head) = pair();
            let listener = backends.listen(1).unwrap();
            (0..PENDING_WORDS).for_each(|word| head.store(GUEST_PENDING_WORD + word, u32::MAX, Ordering::Relaxed));
            guest.port.notify().unwrap();
            tokio::task::spawn_local(backend.run());
            rings(&listener).await;
        });
    }

    #[test]
    fn relay_ends_when_the_peer_has_gone() {
        run(async {
            let ([(doorbells, backend), (_, guest)], head) = pair();
            head.store(GUEST_PRESENT_WORD, 1, Ordering::Relaxed);
            let Relay { port, words, .. } = backend;
            let backend = Relay::new(port, head.clone(), words, doorbells);
            head.store(GUEST_PRESENT_WORD, 0, Ordering::Relaxed);
            guest.port.notify().unwrap();
            backend.run().await.unwrap();
        });
    }
}
