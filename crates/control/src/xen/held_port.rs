//! Ends of event channels in a guest that may be saved and restored.
//!
//! Whoever is restored is in another domain, whose channels are others'. A kernel may not survive that an end of before is closed there
//! ([`Kernel::leak_port`](isthmus_platform_xen::Kernel::leak_port)), and nothing tells a program that it is about to be saved. So before the last
//! descriptor of an end is closed, it is looked whether this is still the domain that it was made in.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use isthmus_platform_xen::presence::NODE;
use isthmus_platform_xen::store::StoreTransport;
use isthmus_platform_xen::store::protocol::StoreRefusal;
use isthmus_platform_xen::{Domid, Store, StoreError};

use super::XenKernel;

/// One more descriptor of an end, which closes it by being dropped only in the domain that it was made in.
pub(super) struct HeldPort<K: XenKernel> {
    kernel: K,
    own: Domid,
    /// Others have been told of it.
    pub(super) announced: bool,
    port: Option<OwnedFd>,
}

impl<K: XenKernel> HeldPort<K> {
    /// Of an end that was just made in this domain.
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

/// Whether this is the domain of that number still, and not what became of it after it was saved: another one has another number, or does
/// not say what we have announced.
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
