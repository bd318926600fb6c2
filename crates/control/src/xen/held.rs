//! Ends of event channels in a guest that may be saved and restored.
//!
//! Whoever is restored is in another domain, whose channels are others'. A kernel may not survive that an end of before is closed there
//! ([`Kernel::hold`](isthmus_platform_xen::Kernel::hold)), and nothing tells a program that it is about to be saved. So before the last
//! descriptor of an end is closed, it is looked whether this is still the domain that it was made in.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use isthmus_platform_xen::presence::NODE;
use isthmus_platform_xen::store::Wire;
use isthmus_platform_xen::store::wire::Refusal;
use isthmus_platform_xen::{Domid, Store, StoreError};

use super::Domain;

/// One more descriptor of an end, which closes it by being dropped only in the domain that it was made in.
pub(super) struct Held<K: Domain> {
    kernel: K,
    own: Domid,
    /// Others have been told of it.
    pub(super) announced: bool,
    port: Option<OwnedFd>,
}

impl<K: Domain> Held<K> {
    /// Of an end that was just made in this domain.
    pub(super) fn of(kernel: &K, own: Domid, port: &impl AsFd) -> io::Result<Self> {
        let port = port.as_fd().try_clone_to_owned()?;
        Ok(Self { kernel: kernel.clone(), own, announced: false, port: Some(port) })
    }
}

impl<K: Domain> Drop for Held<K> {
    fn drop(&mut self) {
        let store = self.kernel.store().map(Store::new);
        let is_same = store.is_ok_and(|mut store| is_same(&mut store, self.own, self.announced).unwrap_or(false));
        if let Some(port) = self.port.take().filter(|_| !is_same) {
            self.kernel.hold(port);
        }
    }
}

/// Whether this is the domain of that number still, and not what became of it after it was saved: another one has another number, or does
/// not say what we have announced.
pub(super) fn is_same<W: Wire>(store: &mut Store<W>, own: Domid, announced: bool) -> Result<bool, StoreError> {
    if store.own_domid()? != own {
        return Ok(false);
    }
    match store.read(NODE) {
        Err(StoreError::Refused { why: Refusal::Missing, .. }) => Ok(!announced),
        read => read.map(|_| true),
    }
}

#[cfg(test)]
mod tests {
    use isthmus_platform_xen::Kernel as _;
    use isthmus_platform_xen::fake::Host;

    use super::*;

    #[test]
    fn a_domain_is_another_one_by_its_number_or_by_what_it_does_not_say() {
        let (host, seven) = (Host::new(), Domid::new(7).unwrap());
        let guest = host.start(seven);
        let mut store = Store::new(guest.store().unwrap());
        assert!(is_same(&mut store, seven, false).unwrap());
        assert!(!is_same(&mut store, seven, true).unwrap(), "what was announced is not there");
        store.write(NODE, b"isthmus").unwrap();
        assert!(is_same(&mut store, seven, true).unwrap());
        assert!(!is_same(&mut store, Domid::new(8).unwrap(), true).unwrap());
    }
}
