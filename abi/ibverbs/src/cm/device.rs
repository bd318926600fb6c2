//! The device to which identifiers belong: its number and its GIDs, from the files that libibverbs reads as well.

use crate::attributes;
use crate::device::gids;
use isthmus_verbs::Gid;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The folder of the first device of this provider that libibverbs has found.
static FOLDER: Mutex<Option<PathBuf>> = Mutex::new(None);

/// The device as it was read last, and until when it is taken for that.
static LAST: Mutex<Option<(u64, Device)>> = Mutex::new(None);

/// Addresses of an interface that came a second ago are as good as new.
const KEPT_NS: u64 = 1_000_000_000;

/// Notes a device that libibverbs has found.
pub(crate) fn found(folder: &Path) {
    let mut known = FOLDER.lock().unwrap_or_else(PoisonError::into_inner);
    known.get_or_insert_with(|| folder.to_owned());
}

/// A device.
#[derive(Clone, Debug)]
pub(super) struct Device {
    /// The number of the node, in the byte order of the network.
    pub(super) guid: u64,
    pub(super) gids: Vec<Gid>,
}

impl Device {
    /// The device, if there is one.
    pub(super) fn find() -> Option<Self> {
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        let now = super::now();
        if let Some((until, device)) = &*last
            && now < *until
        {
            return Some(device.clone());
        }
        let device = Self::read()?;
        *last = Some((now + KEPT_NS, device.clone()));
        Some(device)
    }

    fn read() -> Option<Self> {
        let folder = FOLDER.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let guid = std::fs::read_to_string(folder.join("node_guid")).ok()?;
        let guid = attributes::parse_guid(guid.trim())?.to_be();
        Some(Self { guid, gids: gids(&folder.join("ports/1/gids")) })
    }

    /// The GID of an address: that of the address itself if the device has it, else any. All reach every queue pair of the host.
    pub(super) fn gid_of(&self, address: IpAddr) -> Option<Gid> {
        let mapped = match address {
            IpAddr::V4(address) => address.to_ipv6_mapped(),
            IpAddr::V6(address) => address,
        };
        let own = Gid(mapped.octets());
        let of_family = |gid: &&Gid| gid.0.starts_with(&[0; 10]) == address.is_ipv4();
        self.gids
            .iter()
            .find(|gid| **gid == own)
            .or_else(|| self.gids.iter().find(of_family))
            .or_else(|| self.gids.first())
            .copied()
    }

    /// The index of a GID, or that of the first.
    pub(super) fn index_of(&self, gid: Gid) -> u8 {
        self.gids.iter().position(|known| *known == gid).and_then(|at| u8::try_from(at).ok()).unwrap_or(0)
    }
}
