//! The holder of a steering in the tests with QEMU (`tests/guests`): follows orders, which arrive as lines at `/tmp/steering`.
//!
//! ```text
//!   guest_steering BELLS PAIR SIDE PEER INTERFACE
//!
//!   device N           makes loop device N (1 to 5) over extent N of PAIR, and returns its index
//!   end N              ends it
//!   routes [MAC=N]…    replaces the routes; N is a device, or 0 for none
//!   wanted             returns the addresses that are wanted
//!   poll [N]           returns the state of the descriptor of the steering, or of a device
//!   writes             returns how often the routes were replaced
//! ```
//!
//! BELLS is the node of the device with doorbells, PAIR that of the memory. The peer listens to vector 0.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use isthmus_platform_kvm::{Device, LoopDevice, LoopSetup, Route, Steering};
use isthmus_shm::Access;
use rustix::event::{PollFd, PollFlags, Timespec};

/// Two pages of words, and two data areas of 1 MiB.
const EXTENT_BYTES: u64 = 8192 + 2 * (1 << 20);

/// The distance of extents.
const EXTENT_SPACE: u64 = 3 << 20;

type Reply = Result<String, Box<dyn Error>>;

struct Holder {
    bells: Device,
    pair: Device,
    ringer: OwnedFd,
    side: u8,
    interface: u32,
    steering: Steering,
    devices: BTreeMap<u32, LoopDevice>,
    writes: u32,
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [bells, pair, side, peer, interface] = &words[..] else {
        return Err("see the first lines of guest_steering".into());
    };
    let (bells, pair) = (Device::open(Path::new(bells))?, Device::open(Path::new(pair))?);
    let interface = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex"))?.trim().parse()?;
    let (ringer, steering) = (bells.doorbell_sender(peer.parse()?, 0)?, bells.steer(interface)?);
    let side = side.parse()?;
    let mut holder = Holder { bells, pair, ringer, side, interface, steering, devices: BTreeMap::new(), writes: 0 };
    let path = "/tmp/steering";
    drop(std::fs::remove_file(path)); // A previous holder may have left it.
    let listener = UnixListener::bind(path)?;
    println!("endpoint {interface}");
    loop {
        let (mut to, _) = listener.accept()?;
        for line in BufReader::new(to.try_clone()?).lines() {
            let reply = holder.follow(&line?).unwrap_or_else(|error| error.to_string());
            writeln!(to, "{reply}")?;
        }
    }
}

impl Holder {
    fn follow(&mut self, order: &str) -> Reply {
        match order.split(' ').collect::<Vec<_>>()[..] {
            ["device", number] => self.device(number.parse()?),
            ["end", number] => {
                Ok(if self.devices.remove(&number.parse()?).is_some() { "ended" } else { "none" }.to_owned())
            }
            ["routes", ref routes @ ..] => self.set_routes(routes),
            ["wanted"] => Ok(self.steering.wanted()?.iter().map(text).collect::<Vec<_>>().join(" ")),
            ["poll"] => poll(self.steering.as_fd()),
            ["poll", number] => poll(self.devices.get(&number.parse()?).ok_or("no such device")?.as_fd()),
            ["writes"] => Ok(self.writes.to_string()),
            _ => Err("no such order".into()),
        }
    }

    fn device(&mut self, number: u32) -> Reply {
        let piece = self.pair.extent(u64::from(number - 1) * EXTENT_SPACE, EXTENT_BYTES, Access::ReadWrite)?;
        let (piece, ringer) = (piece.as_fd(), self.ringer.as_fd());
        let setup = LoopSetup { piece, side: self.side, ringer, vector: 0, lower: self.interface };
        let device = self.bells.loop_device(&setup)?;
        let index = device.index();
        self.devices.insert(number, device);
        Ok(index.to_string())
    }

    fn set_routes(&mut self, words: &[&str]) -> Reply {
        let route = |word: &&str| -> Result<Route, Box<dyn Error>> {
            let (mac, number) = word.split_once('=').ok_or("no route")?;
            let bytes: Vec<u8> = mac.split(':').map(|byte| u8::from_str_radix(byte, 16)).collect::<Result<_, _>>()?;
            let mac = bytes.try_into().map_err(|_| "no address")?;
            Ok(Route { mac, device: self.devices.get(&number.parse()?).map(LoopDevice::index) })
        };
        let routes: Vec<Route> = words.iter().map(route).collect::<Result<_, _>>()?;
        self.writes += 1;
        self.steering.set_routes(&routes)?;
        Ok(String::new())
    }
}

fn text(mac: &[u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn poll(descriptor: BorrowedFd<'_>) -> Reply {
    let mut fds = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    let found = fds[0].revents();
    let states = [(PollFlags::empty(), "quiet"), (PollFlags::IN, "readable"), (PollFlags::HUP, "gone")];
    let state = states.iter().find(|(flags, _)| *flags == found);
    state.map(|(_, name)| (*name).to_owned()).ok_or_else(|| format!("{found:?}").into())
}
