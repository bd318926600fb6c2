//! A guest whose device is served by us: what a doorbell and a word in a window take by themselves.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use isthmus_layout::RegionSize;
use isthmus_platform::{Listen, Ring};
use isthmus_platform_kvm::{Event, Guest, IvshmemServer, Shape};
use isthmus_shm::{Access, Window, Words};
use isthmus_testbed::eventually_some;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::kit::Kit;
use crate::shell::patience;
use crate::windowed::{Parts, Windowed};

/// Firmware puts a window of this size above 4 GiB, where a processor may cache it.
const SIZE: RegionSize = RegionSize(4 << 30);

const VECTORS: u16 = 4;

/// A guest with nothing but a window. Methods panic where something fails: that fails the test.
#[derive(Debug)]
pub struct Probe {
    windowed: Windowed,
    half: Guest,
    _server: IvshmemServer,
}

impl Probe {
    /// Boots it; or says what is missing.
    pub fn start(kit: &Kit) -> Result<Self, String> {
        let parts = Parts::build(kit)?;
        let path = parts.socket();
        let shape = Shape::new(SIZE, VECTORS, VECTORS).expect("a shape that can be");
        let mut server = IvshmemServer::listen(&path, None, shape).unwrap_or_else(|error| panic!("{error}"));
        let socket = format!("socket,id=window,path={}", path.display());
        let device = format!("ivshmem-doorbell,chardev=window,vectors={VECTORS}");
        let mut windowed = parts.boot(kit, &["-chardev", &socket, "-device", &device]);
        let event = eventually_some(patience(), || {
            let mut fds = [PollFd::new(&server, PollFlags::IN)];
            let tenth = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            rustix::event::poll(&mut fds, Some(&tenth)).expect("a descriptor of ours");
            server.poll()
        });
        let Ok(Event::Connected(half)) = event else { panic!("{event:?}") };
        windowed.ready();
        Ok(Self { windowed, half, _server: server })
    }

    /// The guest's doorbell and the host's, both sides sleeping: one there and one back, the median of so many.
    pub fn doorbells(&mut self, rounds: u32) -> Duration {
        self.windowed.bounce(&self.half, rounds, 0).0
    }

    /// A word in the window, both sides polling: the same.
    pub fn words(&mut self, rounds: u32) -> Duration {
        self.windowed.bounce(&self.half, 0, rounds).1
    }
}

impl Windowed {
    /// What a doorbell and what a word in the window take, there and back: medians of so many, which what is made of them is compared
    /// with. `half` is the host's half of the guest's device.
    pub fn bounce(&mut self, half: &Guest, bells: u32, words: u32) -> (Duration, Duration) {
        let ours = |descriptor: Option<Result<_, _>>| descriptor.expect("a vector").expect("a descriptor");
        let (listener, ringer) = (ours(half.listener(1)), ours(half.ringer(1)));
        let mapped = half.map(1 << 19, RegionSize(4096), Access::ReadWrite);
        let window = Window::new(mapped.unwrap_or_else(|error| panic!("{error}")));
        window.store(0, 0, Relaxed);
        listener.clear();
        self.guest.begin(&format!("guest_half bounce /dev/isthmus0 {bells} {words}"));
        self.guest.hear("bouncing");
        let bell = |_| {
            ringer.ring();
            assert!(listener.wait(Duration::from_secs(60)), "nobody rings back");
        };
        let word = |at| {
            window.store(0, 2 * at + 1, Release);
            while window.load(0, Acquire) != 2 * at + 2 {
                std::hint::spin_loop();
            }
        };
        let medians = (median(bells, bell), median(words, word));
        self.guest.end().expect_success("bounce");
        medians
    }
}

/// Of so many times that this takes; nothing of none.
fn median(rounds: u32, mut round: impl FnMut(u32)) -> Duration {
    let time = |at| {
        let begun = Instant::now();
        round(at);
        begun.elapsed()
    };
    let mut times: Vec<Duration> = (0..rounds).map(time).collect();
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
