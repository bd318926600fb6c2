//! Steering: frames of an interface take loop devices.

use crate::device::refused;
use crate::driver::{ROUTES_MAX, WANTED_BYTES};
use isthmus_platform::PlatformError;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// The path to a MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The address: unicast, and not zero.
    pub mac: [u8; 6],
    /// The index of a loop device that was made while its lower interface was steered. None: a frame to the address makes it wanted.
    pub device: Option<u32>,
}

/// The steering of an interface ([`Device::steer`](crate::Device::steer)). Dropping it ends it: all frames take the interface then, and loop
/// devices that were made under it deliver nothing more.
#[derive(Debug)]
pub struct Steering {
    descriptor: OwnedFd,
}

impl Steering {
    pub(crate) fn new(descriptor: OwnedFd) -> Result<Self, PlatformError> {
        let configured = rustix::fs::fcntl_setfl(&descriptor, OFlags::NONBLOCK);
        configured.map_err(refused("configuring the steering of a network interface"))?;
        Ok(Self { descriptor })
    }

    /// Replaces all routes at once. There are at most 256, each to another address; other tables are refused with INVAL, and the previous one
    /// stays. Returns NODEV if the interface is gone.
    pub fn set_routes(&self, routes: &[Route]) -> Result<(), PlatformError> {
        let mut table = Vec::with_capacity(routes.len() * size_of::<crate::driver::RawRoute>());
        for route in routes {
            table.extend_from_slice(&route.mac);
            table.extend_from_slice(&[0; 2]);
            table.extend_from_slice(&route.device.unwrap_or(0).to_ne_bytes());
        }
        let written = rustix::io::write(&self.descriptor, &table);
        written.map(drop).map_err(refused("setting the routes of a network interface"))
    }

    /// Returns the addresses to which frames were sent but no device leads, if no call has returned them since the last
    /// [`set_routes`](Self::set_routes).
    pub fn wanted(&self) -> Result<Vec<[u8; 6]>, PlatformError> {
        let mut buffer = [0; ROUTES_MAX * WANTED_BYTES];
        let read = match rustix::io::read(&self.descriptor, &mut buffer[..]) {
            Err(Errno::AGAIN) => 0,
            read => read.map_err(refused("reading the wanted addresses of a network interface"))?,
        };
        let addresses = buffer[..read].chunks_exact(WANTED_BYTES);
        Ok(addresses.map(|address| [address[0], address[1], address[2], address[3], address[4], address[5]]).collect())
    }
}

impl AsFd for Steering {
    /// The descriptor is readable when there are wanted addresses, and hangs up when the interface is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
