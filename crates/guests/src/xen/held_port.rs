//! Ends of event channels in a guest that may be saved and restored.
//!
//! A restored guest runs in another domain, where the same port numbers belong to other channels. A kernel may crash if an end from before the save
//! is closed there ([`Kernel::leak_port`](isthmus_platform_xen::Kernel::leak_port)), and a program is not notified before a save. So before the
//! last descriptor of an end is closed, this module checks that the domain is still the one in which the end was created.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use isthmus_platform_xen::presence::NODE;
use isthmus_platform_xen::store::StoreTransport;
use isthmus_platform_xen::store::protocol::StoreRefusal;
use isthmus_platform_xen::{Domid, Store, StoreError};

use super::XenKernel;

/// An additional descriptor of an end. Dropping it closes the descriptor only in the domain in which the end was created.
pub(super) struct HeldPort<K: XenKernel> {
    kernel: K,
    own: Domid,
    /// Whether this daemon has announced its presence in XenStore.
    pub(super) announced: bool,
    port: Option<OwnedFd>,
}

impl<K: XenKernel> HeldPort<K> {
    /// Duplicates the descriptor of an end that was just created in this domain.
    pub(super) fn of(kernel: &K, own: Domid, port: &impl AsFd) -> io::Result<Self> {
        let port = port.as_fd().try_clone_to_owned()?;
        Ok(Self { kernel: kernel.clone(), own, announced: false, port: Some(port) })
    }
}

impl<K: XenKernel> Drop for HeldPort<K> {
    fn drop(&mut self) {
        let store = self.kernel.store().map(Store::new);
        let is_same =
            store.is_ok_and(|mut store| is_same_domain(&mut store, self.own, self.announced).unwrap_or(false));
        if let Some(port) = self.port.take().filter(|_| !is_same) {
            self.kernel.leak_port(port);
        }
    }
}

/// Returns whether this is still the same domain, not one that was restored from it. A restored domain has another number, or its XenStore lacks
/// the announcement.
pub(super) fn is_same_domain<W: StoreTransport>(
    store: &mut Store<W>,
    own: Domid,
    announced: bool,
) -> Result<bool, StoreError> {
    if store.own_domid()? != own {
        return Ok(false);
    }
    match store.read(NODE) {
        Err(StoreError::Refused { why: StoreRefusal::Missing, .. }) => Ok(!announced),
        read => read.map(|_| true),
    }
}

#[cfg(test)]
mod tests {
    use isthmus_platform_xen::Kernel as _;
    use isthmus_platform_xen::fake::FakeHost;

    use super::*;

    #[test]
    fn detects_a_restored_domain_by_number_or_missing_announcement() {
        let (host, seven) = (FakeHost::new(), Domid::new(7).unwrap());
        let guest = host.start(seven);
        let mut store = Store::new(guest.store().unwrap());
        assert!(is_same_domain(&mut store, seven, false).unwrap());
        assert!(!is_same_domain(&mut store, seven, true).unwrap(), "what was announced is not there");
        store.write(NODE, b"isthmus").unwrap();
        assert!(is_same_domain(&mut store, seven, true).unwrap());
        assert!(!is_same_domain(&mut store, Domid::new(8).unwrap(), true).unwrap());
    }
}
