//! A wire through user space, on which frames are lost, doubled, delayed, reordered and slowed down as [`ImpairedLine`] says.
//!
//! ```text
//!   host a                              the wire's own namespaces                              host b
//!   wire0 ═══ veth ═══ near ─ packet socket ─► Line (Forth) ─► packet socket ─ far ═══ veth ═══ wire0
//!                           ◄───────────────── Line (Back) ◄──────────────────
//! ```
//!
//! One thread carries the frames: on two cores TCP got 10 Gbit/s across at MTU 9000
//! and 4 at 1500; at a rate of 1 Gbit/s it got 0.989 and 0.940, where 0.990 and 0.941 fit. A frame's time is that of its
//! arrival, which the kernel stamps, so a late look at it takes nothing from the rate. Where the thread is too slow for long,
//! frames are [`Counters::overrun`].

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::time::{ClockId, clock_gettime};

use crate::SetupError;
use crate::cable::{Wire, WireInterface, veth};
use crate::frame_socket::FrameSocket;
use crate::host::Host;
use crate::impairment::{Counters, ImpairedLine, Impairments, WireDirection};

/// Frames taken in from one side before the other side gets its turn.
const BATCH: usize = 64;

/// Longer than any frame: the largest MTU is 65535.
const FRAME_BYTES_MAX: usize = 65_536 + 64;

/// A wire of a testbed with conditions set by the test. Clones refer to the same wire, which ends with its testbed.
#[derive(Clone)]
pub struct ImpairedWire {
    ends: [WireInterface; 2],
    /// Our sides of the two veth pairs, each alone in a namespace of its own.
    inner: [WireInterface; 2],
    shared: Arc<Shared>,
}

struct Shared {
    lines: Mutex<[ImpairedLine<Vec<u8>>; 2]>,
    is_over: AtomicBool,
    wake: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The thread's own.
struct Forwarder {
    ports: [FrameSocket; 2],
    shared: Arc<Shared>,
    start: Instant,
    buffer: Vec<u8>,
    /// When the last frame came to either side: the next came later, even if the system's clock was set back.
    last_arrival: [u64; 2],
    /// Memory of frames that have left.
    spare: Vec<Vec<u8>>,
}

impl ImpairedWire {
    pub(crate) fn new(wire: &Wire, conditions: Impairments, ends: [WireInterface; 2]) -> Result<Self, SetupError> {
        let system = |what| move |source| SetupError::System { what, source };
        let inner = [inner_interface(&ends[0], "near")?, inner_interface(&ends[1], "far")?];
        for side in [0, 1] {
            let (outer, inner) = (&ends[side], &inner[side]);
            veth(inner, outer, wire.mtu)?;
            let up = inner.host.ip(&format!("link set {} up\n", inner.name));
            up.map_err(|stderr| SetupError::Refused { what: "the wire's own side".to_owned(), stderr })?;
            // It is cut in any case: what takes packets one by one knows nothing of offloads.
            outer.set_up(&Wire { offloads: false, ..wire.clone() }, true, &ends[1 - side])?;
        }
        let open = |side: &WireInterface| side.host.with(|| FrameSocket::open(&side.name)).and_then(|port| port);
        let [near, far] = &inner;
        let ports = [open(near), open(far)];
        let [near, far] = ports.map(|port| port.map_err(system("packet sockets")));
        let line = |direction| ImpairedLine::new(conditions, direction);
        let shared = Arc::new(Shared {
            lines: Mutex::new([line(WireDirection::Forth), line(WireDirection::Back)]),
            is_over: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(|errno| system("an eventfd")(errno.into()))?,
            thread: Mutex::new(None),
        });
        let forwarder = Forwarder::new([near?, far?], Arc::clone(&shared));
        let thread = Builder::new().name("wire".into()).spawn(move || forwarder.run());
        *shared.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread.map_err(system("a thread"))?);
        let wire = Self { ends, inner, shared };
        wire.settle_up().map_err(system("the carrier")).inspect_err(|_| wire.end())?;
        Ok(wire)
    }

    /// The first host's end.
    pub fn a(&self) -> &WireInterface {
        &self.ends[0]
    }

    /// The second host's end.
    pub fn b(&self) -> &WireInterface {
        &self.ends[1]
    }

    /// Other conditions in both directions, for frames that enter from now on.
    pub fn change(&self, conditions: Impairments) {
        self.shared.lines().iter_mut().for_each(|line| line.change(conditions));
    }

    /// Other conditions in one direction.
    pub fn change_one(&self, direction: WireDirection, conditions: Impairments) {
        self.shared.lines()[direction as usize].change(conditions);
    }

    /// The conditions in one direction.
    pub fn conditions(&self, direction: WireDirection) -> Impairments {
        self.shared.lines()[direction as usize].conditions()
    }

    /// Returns the counters of the frames of one direction.
    pub fn counters(&self, direction: WireDirection) -> io::Result<Counters> {
        let inner = &self.inner[direction as usize];
        // In this order: what comes in between is not taken for missed.
        let entered = inner.host.with(|| packets_received(&inner.name)).and_then(|packets| packets)?;
        let counters = self.shared.lines()[direction as usize].counters();
        Ok(Counters { overrun: entered.saturating_sub(counters.offered), ..counters })
    }

    /// Pulls the plug: both hosts see their carrier go. Frames under way are refused at the far end.
    pub fn down(&self) -> io::Result<()> {
        self.both(|inner| inner.down())?;
        self.ends.iter().try_for_each(|end| end.sync_link_state(false))
    }

    /// Plugs it in again; when this returns it carries.
    pub fn up(&self) -> io::Result<()> {
        self.both(|inner| inner.host.ip(&format!("link set {} up\n", inner.name)))?;
        self.settle_up()
    }

    fn settle_up(&self) -> io::Result<()> {
        self.inner.iter().chain(&self.ends).try_for_each(|side| side.sync_link_state(true))
    }

    /// Another MTU of both interfaces and of the wire, under way.
    pub fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        self.both(|inner| inner.set_mtu(mtu))?;
        self.ends.iter().try_for_each(|end| end.set_mtu(mtu)).map_err(io::Error::other)
    }

    fn both(&self, act: impl Fn(&WireInterface) -> Result<(), String>) -> io::Result<()> {
        self.inner.iter().try_for_each(act).map_err(io::Error::other)
    }

    /// Ends the thread and the wire's own namespaces.
    pub(crate) fn end(&self) {
        self.shared.is_over.store(true, Ordering::Relaxed); // The descriptor carries the order of things.
        let _ = rustix::io::write(&self.shared.wake, &1_u64.to_ne_bytes()); // Only full if it is awake already.
        let thread = self.shared.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            drop(thread.join()); // A panic in it has been printed already, and we may be unwinding ourselves.
        }
        self.inner.iter().for_each(|inner| inner.host.end());
    }
}

impl fmt::Debug for ImpairedWire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImpairedWire").field("ends", &self.ends).finish_non_exhaustive()
    }
}

impl Shared {
    fn lines(&self) -> MutexGuard<'_, [ImpairedLine<Vec<u8>>; 2]> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Our side of a veth pair, in a namespace in which the kernel itself sends nothing.
fn inner_interface(outer: &WireInterface, name: &str) -> Result<WireInterface, SetupError> {
    let host = Host::new(name).map_err(SetupError::host)?;
    drop(host.set("ipv6/conf/default/disable_ipv6", "1")); // It fails where the kernel has no IPv6.
    let [.., last] = outer.mac;
    Ok(WireInterface {
        name: name.to_owned(),
        mac: [0x02, 0x69, 0x73, 0xFF, 0xFF, last],
        v6: None,
        host,
        ..outer.clone()
    })
}

/// Packets that an interface of this thread's namespace has received.
fn packets_received(interface: &str) -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev")?;
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(interface)?.strip_prefix(':'));
    let packets = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    packets.ok_or_else(|| io::Error::other(format!("/proc/net/dev says nothing of {interface}")))
}

/// The system's clock, as packet sockets know it.
fn system_now() -> u64 {
    let now = clock_gettime(ClockId::Realtime);
    (now.tv_sec * 1_000_000_000 + now.tv_nsec).cast_unsigned() // Positive since 1970.
}

impl Forwarder {
    fn new(ports: [FrameSocket; 2], shared: Arc<Shared>) -> Self {
        Self {
            ports,
            shared,
            start: Instant::now(),
            buffer: vec![0; FRAME_BYTES_MAX],
            last_arrival: [0; 2],
            spare: Vec::new(),
        }
    }

    fn run(mut self) {
        // Delays to the microsecond; the default lets each timer be 50 µs late.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let shared = Arc::clone(&self.shared);
        while !shared.is_over.load(Ordering::Relaxed) {
            let mut lines = shared.lines();
            let moved = self.forward_batch(&mut lines, 0) + self.forward_batch(&mut lines, 1);
            let due = lines.iter().filter_map(ImpairedLine::next_due).min();
            drop(lines);
            if moved == 0 {
                self.sleep_until(due);
            }
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX) // Centuries.
    }

    /// Takes in what came to one side and lets out at the other what is due; how many frames that were.
    fn forward_batch(&mut self, lines: &mut [ImpairedLine<Vec<u8>>; 2], side: usize) -> usize {
        let line = &mut lines[side];
        let mut moved = 0;
        let (now, system_now) = (self.now(), system_now());
        while moved < BATCH
            && let Some(came) = self.ports[side].receive(&mut self.buffer)
        {
            // What waited for us while others had the processor does not come later for it.
            let age = came.at.map_or(0, |at| system_now.saturating_sub(at));
            self.last_arrival[side] = now.saturating_sub(age).max(self.last_arrival[side]);
            let mut frame = self.spare.pop().unwrap_or_default();
            frame.clear();
            frame.extend_from_slice(came.bytes);
            line.push(self.last_arrival[side], came.bytes.len() as u32, frame); // Below FRAME_BYTES_MAX.
            moved += 1;
        }
        let now = self.now();
        while let Some(frame) = line.pop(now) {
            if self.ports[1 - side].send(&frame).is_err() {
                line.refuse();
            }
            if self.spare.len() < 8 * BATCH {
                self.spare.push(frame);
            }
            moved += 1;
        }
        moved
    }

    fn sleep_until(&self, due: Option<u64>) {
        let left = due.map(|due| due.saturating_sub(self.now()));
        let patience = left.map(|left| Timespec {
            tv_sec: (left / 1_000_000_000) as i64, // A due time is at most an hour away: u32 of microseconds.
            tv_nsec: (left % 1_000_000_000) as _,
        });
        let [near, far] = &self.ports;
        let mut fds = [
            PollFd::new(near, PollFlags::IN),
            PollFd::new(far, PollFlags::IN),
            PollFd::new(&self.shared.wake, PollFlags::IN),
        ];
        match poll(&mut fds, patience.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => panic!("poll of our own descriptors: {errno}"),
        }
    }
}
