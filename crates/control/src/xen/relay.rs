//! Rings over one event channel: which vector was rung stands in the window's head page (docs/spec/border.md).
//!
//! ```text
//!   whoever rings ── event descriptor ──► Relay ── a bit in the head page, then the event channel ──► Relay ── event descriptor ──► who sleeps
//! ```
//!
//! Programs and workers ring by writing to a descriptor and wait by polling one. A descriptor of an event channel is neither: it is rung by
//! a request of its own, and after each event it has to be written to.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use isthmus_layout::border::CROSSING_VECTOR;
use isthmus_layout::border::lots::{
    GUEST_RANG_WORD, GUEST_THERE_WORD, HOST_RANG_WORD, HOST_THERE_WORD, RANG_WORDS, VECTORS_MAX,
};
use isthmus_platform_xen::kernel::Port;
use isthmus_shm::{Window, Words as _};
use rustix::event::epoll;

use super::{duplicate, event};
use crate::watched::watched;

/// Which words of the head page are whose.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words {
    says: u32,
    hears: u32,
    peer: u32,
}

/// Of the backend.
pub(super) const BACKEND: Words = Words { says: HOST_RANG_WORD, hears: GUEST_RANG_WORD, peer: GUEST_THERE_WORD };
/// Of the guest.
pub(super) const GUEST: Words = Words { says: GUEST_RANG_WORD, hears: HOST_RANG_WORD, peer: HOST_THERE_WORD };

/// Bells that are passed on, by vector.
#[derive(Debug)]
pub(super) struct Bells {
    /// What rings the other side; readable when one of them was.
    ringers: RefCell<BTreeMap<u16, OwnedFd>>,
    rung: OwnedFd,
    /// Where the other side's rings are heard.
    listeners: Rc<RefCell<BTreeMap<u16, OwnedFd>>>,
    /// The first of ours that the other side can ring.
    first: u16,
}

impl Bells {
    pub(super) fn new() -> io::Result<Rc<Self>> {
        Self::over(Rc::default(), 0)
    }

    /// For another side, which rings the same vectors of ours, but for the daemon's own.
    pub(super) fn beside(&self) -> io::Result<Rc<Self>> {
        Self::over(Rc::clone(&self.listeners), CROSSING_VECTOR + 1)
    }

    fn over(listeners: Rc<RefCell<BTreeMap<u16, OwnedFd>>>, first: u16) -> io::Result<Rc<Self>> {
        let rung = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Rc::new(Self { ringers: RefCell::default(), rung, listeners, first }))
    }

    /// What rings a vector of the other side.
    pub(super) fn ringer(&self, vector: u16) -> io::Result<OwnedFd> {
        if vector >= VECTORS_MAX {
            return Err(io::Error::other(format!("there is no vector {vector}")));
        }
        if let Some(known) = self.ringers.borrow().get(&vector) {
            return duplicate(known);
        }
        let ringer = event()?;
        epoll::add(&self.rung, &ringer, epoll::EventData::new_u64(vector.into()), epoll::EventFlags::IN)?;
        let copy = duplicate(&ringer)?;
        self.ringers.borrow_mut().insert(vector, ringer);
        Ok(copy)
    }

    /// Where a vector of ours is heard from now on, and nowhere else.
    pub(super) fn listen(&self, vector: u16) -> io::Result<OwnedFd> {
        let listener = event()?;
        let copy = duplicate(&listener)?;
        self.listeners.borrow_mut().insert(vector, listener);
        Ok(copy)
    }

    /// What rings a vector of ours on this side.
    pub(super) fn own(&self, vector: u16) -> io::Result<OwnedFd> {
        if let Some(known) = self.listeners.borrow().get(&vector) {
            return duplicate(known);
        }
        self.listen(vector)
    }

    /// Vectors of the other side that were rung and are no longer.
    fn take(&self) -> io::Result<Vec<u16>> {
        let mut events = Vec::with_capacity(usize::from(VECTORS_MAX));
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&self.rung, rustix::buffer::spare_capacity(&mut events), Some(&now))?;
        let ringers = self.ringers.borrow();
        let vectors = events.iter().filter_map(|event| u16::try_from(event.data.u64()).ok());
        Ok(vectors
            .inspect(|vector| {
                let _ = ringers.get(vector).map(|ringer| rustix::io::read(ringer, &mut [0; 8]));
            })
            .collect())
    }

    /// Rings those of ours that there are.
    fn ring(&self, vector: u16) {
        if vector < self.first {
            return;
        }
        if let Some(listener) = self.listeners.borrow().get(&vector) {
            let _ = rustix::io::write(listener, &1_u64.to_ne_bytes()); // A full counter rings, too.
        }
    }
}

/// Passes rings on between [`Bells`] and an event channel.
pub(super) struct Relay<P> {
    /// Gone before the port is, by which the kernel says so.
    head: Window,
    port: P,
    words: Words,
    bells: Rc<Bells>,
    /// The other side has been there.
    was_there: bool,
}

impl<P: Port> Relay<P> {
    pub(super) fn new(port: P, head: Window, words: Words, bells: Rc<Bells>) -> Self {
        let was_there = head.load(words.peer, Ordering::Acquire) != 0;
        Self { port, head, words, bells, was_there }
    }

    /// Passes rings on until the other side was there and is no more.
    pub(super) async fn run(self) -> io::Result<()> {
        self.run_telling(|| {}).await
    }

    /// The same; says when the other side is there.
    pub(super) async fn run_telling(mut self, is_here: impl Fn()) -> io::Result<()> {
        let events = watched(self.port.as_fd().try_clone_to_owned()?)?;
        let rung = watched(duplicate(&self.bells.rung)?)?;
        loop {
            tokio::select! {
                ready = events.readable() => {
                    // Cleared first: an event that comes while we take this one is ready again.
                    ready?.clear_ready();
                    self.port.wait(Duration::ZERO)?;
                    self.hear();
                }
                ready = rung.readable() => {
                    if !self.say()? {
                        ready?.clear_ready();
                    }
                }
            }
            let is_there = self.head.load(self.words.peer, Ordering::Acquire) != 0;
            if self.was_there && !is_there {
                return Ok(());
            }
            if is_there && !std::mem::replace(&mut self.was_there, true) {
                is_here();
            }
        }
    }

    /// Says which vectors were rung here. False if none was.
    fn say(&self) -> io::Result<bool> {
        let vectors = self.bells.take()?;
        for vector in &vectors {
            // A, with B in `hear`: what was written before the ring is there for whoever is woken by it.
            self.head.or(self.words.says + u32::from(vector / 32), 1 << (vector % 32), Ordering::Release);
        }
        if !vectors.is_empty() {
            self.port.notify()?;
        }
        Ok(!vectors.is_empty())
    }

    /// Rings the vectors that were rung there.
    fn hear(&self) {
        for word in 0..RANG_WORDS {
            // B, with A in `say`.
            let bits = self.head.swap(self.words.hears + word, 0, Ordering::Acquire);
            (0..32).filter(|bit| bits & 1 << bit != 0).for_each(|bit| self.bells.ring(word as u16 * 32 + bit));
        }
    }
}

#[cfg(test)]
mod tests {
    use isthmus_layout::RegionSize;
    use isthmus_platform_xen::fake::{FakePort, Host};
    use isthmus_platform_xen::{Domid, Kernel as _};
    use isthmus_shm::Mapping;

    use super::*;

    /// Its bells, and what passes their rings on.
    type Side = (Rc<Bells>, Relay<FakePort>);

    /// Both sides, and the head page.
    fn pair() -> ([Side; 2], Window) {
        let host = Host::new();
        let (guest, zero) = (host.start(Domid::new(7).unwrap()), host.domain(Domid::ZERO));
        let heard = guest.listen(Domid::ZERO).unwrap();
        let bound = zero.bind(Domid::new(7).unwrap(), heard.number()).unwrap();
        let head = Window::new(Mapping::private(RegionSize(4096)));
        let side = |port, words| {
            let bells = Bells::new().unwrap();
            (Rc::clone(&bells), Relay::new(port, head.clone(), words, bells))
        };
        ([side(bound, BACKEND), side(heard, GUEST)], head)
    }

    fn ring(bell: &OwnedFd) {
        rustix::io::write(bell, &1_u64.to_ne_bytes()).unwrap();
    }

    fn has_rung(bell: &OwnedFd) -> bool {
        rustix::io::read(bell, &mut [0; 8]).is_ok()
    }

    async fn rings(bell: &OwnedFd) {
        watched(duplicate(bell).unwrap()).unwrap().readable().await.unwrap().retain_ready();
        assert!(has_rung(bell));
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(tokio::task::LocalSet::new().run_until(test));
    }

    #[test]
    fn rings_arrive_at_their_vectors_and_nowhere_else() {
        run(async {
            let ([(backends, backend), (guests, guest)], _head) = pair();
            tokio::task::spawn_local(backend.run());
            tokio::task::spawn_local(guest.run());
            let last = VECTORS_MAX - 1;
            let heard = [0, 1, 33, last].map(|vector| guests.listen(vector).unwrap());
            let worker = backends.listen(1).unwrap();
            for (vector, listener) in [0, 33, last].into_iter().zip([&heard[0], &heard[2], &heard[3]]) {
                ring(&backends.ringer(vector).unwrap());
                rings(listener).await;
            }
            ring(&guests.ringer(1).unwrap());
            rings(&worker).await;
            assert!(!heard.iter().any(has_rung), "a vector heard what was not for it");
            assert!(guests.ringer(VECTORS_MAX).is_err());
        });
    }

    #[test]
    fn bells_of_ones_own_side_need_nobody_to_pass_them_on() {
        let bells = Bells::new().unwrap();
        let listener = bells.listen(5).unwrap();
        ring(&bells.own(5).unwrap());
        assert!(has_rung(&listener));
        let next = bells.listen(5).unwrap();
        ring(&bells.own(5).unwrap());
        assert!(has_rung(&next) && !has_rung(&listener), "who had the vector before hears it still");
    }

    #[test]
    fn another_side_rings_the_same_vectors_but_for_the_daemons() {
        run(async {
            let ([(guests, guest), (others, other)], head) = pair();
            let own = Bells::new().unwrap();
            let heard = [0, 1].map(|vector| own.listen(vector).unwrap());
            let (beside, mut guest) = (own.beside().unwrap(), guest);
            guest.bells = Rc::clone(&beside);
            drop(guests);
            (0..RANG_WORDS).for_each(|word| head.store(GUEST_RANG_WORD + word, u32::MAX, Ordering::Relaxed));
            tokio::task::spawn_local(guest.run());
            tokio::task::spawn_local(other.run());
            ring(&others.ringer(1).unwrap());
            rings(&heard[1]).await;
            assert!(!has_rung(&heard[0]), "another guest calls the daemon to its crossing");
        });
    }

    #[test]
    fn whatever_stands_in_the_head_page_what_is_not_there_is_not_rung() {
        run(async {
            let ([(backends, backend), (_, guest)], head) = pair();
            let listener = backends.listen(1).unwrap();
            (0..RANG_WORDS).for_each(|word| head.store(GUEST_RANG_WORD + word, u32::MAX, Ordering::Relaxed));
            guest.port.notify().unwrap();
            tokio::task::spawn_local(backend.run());
            rings(&listener).await;
        });
    }

    #[test]
    fn a_relay_ends_once_the_other_side_was_there_and_is_not() {
        run(async {
            let ([(bells, backend), (_, guest)], head) = pair();
            head.store(GUEST_THERE_WORD, 1, Ordering::Relaxed);
            let Relay { port, words, .. } = backend;
            let backend = Relay::new(port, head.clone(), words, bells);
            head.store(GUEST_THERE_WORD, 0, Ordering::Relaxed);
            guest.port.notify().unwrap();
            backend.run().await.unwrap();
        });
    }
}
