//! A guest whose device is served by us: what a doorbell and a word in a window take by themselves.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

use isthmus_layout::RegionSize;
use isthmus_platform::{Listen, Ring};
use isthmus_platform_kvm::{DeviceLayout, IvshmemServer, ServerEvent, ServerGuest};
use isthmus_shm::{Access, SharedMapping, Words};
use isthmus_testbed::eventually_some;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::guest_kit::GuestKit;
use crate::shell::timeout;
use crate::window_guest::{GuestParts, WindowGuest};

/// Firmware puts a window of this size above 4 GiB, where a processor may cache it.
const SIZE: RegionSize = RegionSize(4 << 30);

const VECTORS: u16 = 4;

/// A guest with nothing but a window. Methods panic where something fails: that fails the test.
#[derive(Debug)]
pub struct WindowProbe {
    windowed: WindowGuest,
    host_side: ServerGuest,
    _server: IvshmemServer,
}

impl WindowProbe {
    /// Boots it; or says what is missing.
    pub fn start(kit: &GuestKit) -> Result<Self, String> {
        let parts = GuestParts::build(kit)?;
        let path = parts.socket();
        let layout = DeviceLayout::new(SIZE, VECTORS, VECTORS).expect("a valid layout");
        let mut server = IvshmemServer::listen(&path, None, layout).unwrap_or_else(|error| panic!("{error}"));
        let socket = format!("socket,id=window,path={}", path.display());
        let device = format!("ivshmem-doorbell,chardev=window,vectors={VECTORS}");
        let mut windowed = parts.boot(kit, &["-chardev", &socket, "-device", &device]);
        let event = eventually_some(timeout(), || {
            let mut fds = [PollFd::new(&server, PollFlags::IN)];
            let tenth = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
            rustix::event::poll(&mut fds, Some(&tenth)).expect("a descriptor of ours");
            server.poll()
        });
        let Ok(ServerEvent::Connected(host_side)) = event else { panic!("{event:?}") };
        windowed.ready();
        Ok(Self { windowed, host_side, _server: server })
    }

    /// The guest's doorbell and the host's, both sides sleeping: one there and one back, the median of so many.
    pub fn doorbells(&mut self, rounds: u32) -> Duration {
        self.windowed.bounce(&self.host_side, rounds, 0).0
    }

    /// A word in the window, both sides polling: the same.
    pub fn words(&mut self, rounds: u32) -> Duration {
        self.windowed.bounce(&self.host_side, 0, rounds).1
    }
}

impl WindowGuest {
    /// What a doorbell and what a word in the window take, there and back: medians of so many, which what is made of them is compared
    /// with. `host_side` is the host's side of the guest's device.
    pub fn bounce(&mut self, host_side: &ServerGuest, bells: u32, words: u32) -> (Duration, Duration) {
        let ours = |descriptor: Option<Result<_, _>>| descriptor.expect("a vector").expect("a descriptor");
        let (listener, ringer) = (ours(host_side.listener(1)), ours(host_side.doorbell_sender(1)));
        let mapped = host_side.map(1 << 19, RegionSize(4096), Access::ReadWrite);
        let window = SharedMapping::new(mapped.unwrap_or_else(|error| panic!("{error}")));
        window.store(0, 0, Relaxed);
        listener.clear();
        self.guest.start_command(&format!("guest_half bounce /dev/isthmus0 {bells} {words}"));
        self.guest.wait_for_line("bouncing");
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
        self.guest.finish_command().expect_success("bounce");
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
