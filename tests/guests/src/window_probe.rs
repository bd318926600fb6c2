//! Measures a doorbell and a word in a window, without anything on top of them, in a guest with a device that this process serves.

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

/// The size of a window that firmware maps above 4 GiB, where a processor may cache it.
const SIZE: RegionSize = RegionSize(4 << 30);

const VECTORS: u16 = 4;

/// A guest with a window and no card. Methods panic on failure, which fails the test.
#[derive(Debug)]
pub struct WindowProbe {
    windowed: WindowGuest,
    host_side: ServerGuest,
    _server: IvshmemServer,
}

impl WindowProbe {
    /// Boots the guest. The error says what is missing.
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

    /// Measures a doorbell to the guest and one back, with both sides sleeping. Returns the median of `rounds`.
    pub fn doorbells(&mut self, rounds: u32) -> Duration {
        self.windowed.bounce(&self.host_side, rounds, 0).0
    }

    /// Measures a word in the window to the guest and back, with both sides polling. Returns the median of `rounds`.
    pub fn words(&mut self, rounds: u32) -> Duration {
        self.windowed.bounce(&self.host_side, 0, rounds).1
    }
}

impl WindowGuest {
    /// Measures a doorbell and a word in the window, to the guest and back. Returns the medians of `bells` and `words` rounds. `host_side` is
    /// the host's side of the guest's device.
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
            assert!(listener.wait(Duration::from_secs(60)), "the guest does not ring back");
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

/// Returns the median time of `rounds` calls, or zero for no calls.
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
