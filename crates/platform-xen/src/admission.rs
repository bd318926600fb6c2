//! The XenStore nodes that domain 0 writes for a guest that may attach, and how both sides read them (docs/spec/xen.md).
//!
//! ```text
//!  isthmus guest allow 7 --backend 5
//!    /local/domain/7/isthmus/backends = "5"      for 7: the backends to attach to; for 5: the permission of 7. Removed with domain 7
//!    /local/domain/5/isthmus/guests/7 = "web"    for 5: a guest to watch, and its name, which otherwise only domain 0 can read
//! ```
//!
//! Only domain 0 can write these nodes, so neither side has to trust the other.

use crate::presence::{Advertisement, FOLLOWED_MAX, node_of};
use crate::store::protocol::{NodeRights, Permission, StoreRefusal};
use crate::store::{Store, StoreError, StoreTransport};
use crate::{Domid, Offer};

/// The node below a guest's directory that lists the domains allowed to be its backend.
pub const BACKENDS: &str = "isthmus/backends";

/// The node below a backend's directory that lists the guests allowed to attach to it.
pub const GUESTS: &str = "isthmus/guests";

/// The maximum number of backends of a guest.
pub const BACKENDS_MAX: usize = 8;

fn backends_of(guest: Domid) -> String {
    format!("/local/domain/{guest}/{BACKENDS}")
}

fn guest_of(backend: Domid, guest: Domid) -> String {
    format!("/local/domain/{backend}/{GUESTS}/{guest}")
}

/// A change that domain 0 makes to the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChange {
    /// Writes a node and sets its permissions.
    Write {
        /// The path of the node.
        path: String,
        /// The value of the node.
        value: String,
        /// The permissions of the node, the owner's first.
        permissions: Vec<Permission>,
    },
    /// Removes a node.
    Remove {
        /// The path of the node.
        path: String,
    },
}

impl StoreChange {
    /// Returns the `xenstore-utils` commands that make this change.
    pub fn commands(&self) -> Vec<String> {
        match self {
            Self::Write { path, value, permissions } => {
                let permissions: Vec<String> = permissions.iter().map(|permission| permission.emit()).collect();
                let chmod = format!("xenstore-chmod {path} {}", permissions.join(" "));
                vec![format!("xenstore-write {path} '{}'", value.replace('\'', r"'\''")), chmod]
            }
            Self::Remove { path } => vec![format!("xenstore-rm {path}")],
        }
    }
}

/// A list of backends that a guest cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendsError {
    /// The list is empty or too long.
    #[error("a guest has 1 to {BACKENDS_MAX} backends")]
    Count,
    /// The list contains the guest itself.
    #[error("domain {0} cannot be its own backend")]
    Itself(Domid),
}

/// Returns the changes that allow a guest to attach to these backends and to no others. The backends learn the guest's name, if it is
/// known. [`stale_nodes`] returns the nodes of other backends, which have to be removed.
pub fn allow(guest: Domid, name: &str, backends: &[Domid]) -> Result<Vec<StoreChange>, BackendsError> {
    if backends.is_empty() || backends.len() > BACKENDS_MAX {
        return Err(BackendsError::Count);
    }
    if backends.contains(&guest) {
        return Err(BackendsError::Itself(guest));
    }
    let node = |path, value: String, readers: &[Domid]| {
        let mut permissions = vec![Permission { domid: Domid::ZERO, rights: NodeRights::None }];
        let others = readers.iter().filter(|reader| **reader != Domid::ZERO);
        permissions.extend(others.map(|reader| Permission { domid: *reader, rights: NodeRights::Read }));
        StoreChange::Write { path, value, permissions }
    };
    let numbers: Vec<String> = backends.iter().map(ToString::to_string).collect();
    let readers = [&[guest], backends].concat();
    let mut changes = vec![node(backends_of(guest), numbers.join(" "), &readers)];
    changes.extend(backends.iter().map(|backend| node(guest_of(*backend, guest), name.to_owned(), &[*backend])));
    Ok(changes)
}

/// Returns the changes that withdraw a guest's permission to attach to these backends.
pub fn deny(guest: Domid, backends: &[Domid]) -> Vec<StoreChange> {
    let paths = backends.iter().map(|backend| guest_of(*backend, guest)).chain([backends_of(guest)]);
    paths.map(|path| StoreChange::Remove { path }).collect()
}

/// Makes all changes in one transaction.
pub fn apply<W: StoreTransport>(store: &mut Store<W>, changes: &[StoreChange]) -> Result<(), StoreError> {
    store.transaction(|store| {
        changes.iter().try_for_each(|change| match change {
            StoreChange::Write { path, value, permissions } => {
                store.write(path, value.as_bytes())?;
                store.set_permissions(path, permissions)
            }
            StoreChange::Remove { path } => store.remove(path),
        })
    })
}

/// Returns the backends that a guest may attach to; an empty list if domain 0 allowed none. Only the guest, its backends and domain 0 can
/// read them.
pub fn backends<W: StoreTransport>(store: &mut Store<W>, guest: Domid) -> Result<Vec<Domid>, StoreError> {
    match store.read(&backends_of(guest)) {
        Ok(value) => {
            let numbers = value.split(|byte| *byte == b' ').filter_map(Domid::parse);
            Ok(numbers.take(BACKENDS_MAX).collect())
        }
        Err(StoreError::Refused { why: StoreRefusal::Missing | StoreRefusal::Forbidden, .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns the guests listed below a backend's directory, which may include guests that no longer exist.
fn listed_guests<W: StoreTransport>(store: &mut Store<W>, backend: Domid) -> Result<Vec<Domid>, StoreError> {
    let names = match store.children(&format!("/local/domain/{backend}/{GUESTS}")) {
        Err(StoreError::Refused { why: StoreRefusal::Missing | StoreRefusal::Forbidden, .. }) => Vec::new(),
        names => names?,
    };
    Ok(names.iter().filter_map(|name| Domid::parse(name.as_bytes())).collect())
}

/// Returns the guests that may attach to a backend. The permission of each listed guest is checked, because a listed number may belong to
/// another domain by now.
pub fn guests<W: StoreTransport>(store: &mut Store<W>, backend: Domid) -> Result<Vec<Domid>, StoreError> {
    let mut allowed = Vec::new();
    for guest in listed_guests(store, backend)? {
        if allowed.len() < FOLLOWED_MAX && backends(store, guest)?.contains(&backend) {
            allowed.push(guest);
        }
    }
    Ok(allowed)
}

/// Returns the removals that go with allowing a guest these backends. The first remove the guest from the lists of its previous backends.
/// The others remove earlier guests from the lists of these backends, because nothing else removes them. For domain 0.
pub fn stale_nodes<W: StoreTransport>(
    store: &mut Store<W>,
    guest: Domid,
    wanted: &[Domid],
) -> Result<Vec<StoreChange>, StoreError> {
    let had = backends(store, guest)?.into_iter().filter(|backend| !wanted.contains(backend));
    let mut paths: Vec<String> = had.map(|backend| guest_of(backend, guest)).collect();
    for backend in wanted {
        for other in listed_guests(store, *backend)?.into_iter().filter(|other| *other != guest) {
            if !backends(store, other)?.contains(backend) {
                paths.push(guest_of(*backend, other));
            }
        }
    }
    Ok(paths.into_iter().map(|path| StoreChange::Remove { path }).collect())
}

/// Returns the backend to which the guest offers a window, according to its advertisement. For domain 0.
pub fn current_backend<W: StoreTransport>(store: &mut Store<W>, guest: Domid) -> Result<Option<Domid>, StoreError> {
    match store.read(&node_of(guest)) {
        Ok(said) => {
            let offer = Advertisement::parse(&said)
                .ok()
                .and_then(|advertisement| Offer::parse(&advertisement.offer, guest).ok());
            Ok(offer.map(|offer| offer.backend))
        }
        Err(StoreError::Refused { why: StoreRefusal::Missing, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns a guest's name as far as this domain can read it. Domain 0 reads the current name. A backend reads the name that domain 0 wrote
/// when it allowed the guest.
pub fn name<W: StoreTransport>(store: &mut Store<W>, own: Domid, guest: Domid) -> Result<Option<Vec<u8>>, StoreError> {
    for node in [format!("/local/domain/{guest}/name"), guest_of(own, guest)] {
        match store.read(&node) {
            Ok(name) if name.is_empty() => {}
            Ok(name) => return Ok(Some(name)),
            Err(StoreError::Refused { .. }) => {} // The node does not exist, or this domain may not read it.
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// The reason why a domain is not found.
#[derive(Debug, thiserror::Error)]
pub enum FindError {
    /// No domain has this name or number.
    #[error("no domain of this host has the name or number {0}")]
    Unknown(String),
    /// Several domains have this name.
    #[error("several domains of this host are called {0}: say its number")]
    Ambiguous(String),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Returns the domain with this number or name. For domain 0.
pub fn find<W: StoreTransport>(store: &mut Store<W>, wanted: &str) -> Result<Domid, FindError> {
    let names = store.children("/local/domain")?;
    let present: Vec<Domid> = names.iter().filter_map(|name| Domid::parse(name.as_bytes())).collect();
    if let Some(number) = Domid::parse(wanted.as_bytes()).filter(|number| present.contains(number)) {
        return Ok(number);
    }
    let mut found = Vec::new();
    for domid in present {
        match store.read(&format!("/local/domain/{domid}/name")) {
            Ok(name) if name == wanted.as_bytes() => found.push(domid),
            Ok(_) | Err(StoreError::Refused { .. }) => {} // The domain may have gone since its number was read.
            Err(error) => return Err(error.into()),
        }
    }
    match found[..] {
        [one] => Ok(one),
        [] => Err(FindError::Unknown(wanted.to_owned())),
        _ => Err(FindError::Ambiguous(wanted.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeDomain, FakeHost, FakeStoreTransport};
    use crate::kernel::Kernel;
    use crate::presence::{NODE, PresenceAnnouncer};
    use crate::{EvtchnPort, GrantRef, GrantRefs, XenGrant};
    use isthmus_shm::Access;
    use std::time::Instant;

    fn domid(number: u16) -> Domid {
        Domid::new(number).unwrap()
    }

    fn store(domain: &FakeDomain) -> Store<FakeStoreTransport> {
        Store::new(domain.store().unwrap())
    }

    #[test]
    fn prints_changes_as_commands() {
        let changes = allow(domid(7), "web", &[domid(5), Domid::ZERO]).unwrap();
        let commands: Vec<String> = changes.iter().flat_map(StoreChange::commands).collect();
        assert_eq!(
            commands,
            [
                "xenstore-write /local/domain/7/isthmus/backends '5 0'",
                "xenstore-chmod /local/domain/7/isthmus/backends n0 r7 r5",
                "xenstore-write /local/domain/5/isthmus/guests/7 'web'",
                "xenstore-chmod /local/domain/5/isthmus/guests/7 n0 r5",
                "xenstore-write /local/domain/0/isthmus/guests/7 'web'",
                "xenstore-chmod /local/domain/0/isthmus/guests/7 n0",
            ]
        );
        let removed: Vec<String> = deny(domid(7), &[domid(5)]).iter().flat_map(StoreChange::commands).collect();
        assert_eq!(
            removed,
            ["xenstore-rm /local/domain/5/isthmus/guests/7", "xenstore-rm /local/domain/7/isthmus/backends"]
        );
    }

    #[test]
    fn only_guest_and_backend_can_read_the_permission() {
        let host = FakeHost::new();
        let mut zero = store(&host.domain(Domid::ZERO));
        let [mut guest, mut backend, mut other] = [7, 5, 6].map(|number| store(&host.start(domid(number))));
        assert_eq!(backends(&mut guest, domid(7)).unwrap(), []);
        assert_eq!(guests(&mut backend, domid(5)).unwrap(), []);
        apply(&mut zero, &allow(domid(7), "web", &[domid(5)]).unwrap()).unwrap();
        assert_eq!(backends(&mut guest, domid(7)).unwrap(), [domid(5)]);
        assert_eq!(guests(&mut backend, domid(5)).unwrap(), [domid(7)]);
        assert_eq!(backends(&mut other, domid(7)).unwrap(), []);
        assert!(guest.write(BACKENDS, b"5 6").is_err() && guest.remove(BACKENDS).is_err(), "a guest changes it");
        apply(&mut zero, &deny(domid(7), &[domid(5)])).unwrap();
        assert_eq!(backends(&mut guest, domid(7)).unwrap(), []);
        assert_eq!(guests(&mut backend, domid(5)).unwrap(), []);
    }

    #[test]
    fn permission_ends_with_the_guest() {
        let host = FakeHost::new();
        let mut zero = store(&host.domain(Domid::ZERO));
        let (_guest, mut backend) = (host.start(domid(7)), store(&host.start(domid(5))));
        apply(&mut zero, &allow(domid(7), "web", &[domid(5)]).unwrap()).unwrap();
        host.destroy(domid(7));
        host.start(domid(7));
        assert_eq!(guests(&mut backend, domid(5)).unwrap(), []);
    }

    #[test]
    fn removes_nodes_of_previous_backends() {
        let host = FakeHost::new();
        let mut zero = store(&host.domain(Domid::ZERO));
        let [_guest, backend] = [7, 5].map(|number| host.start(domid(number)));
        let allowed = |zero: &mut Store<FakeStoreTransport>, backends: &[Domid]| {
            let mut changes = allow(domid(7), "web", backends).unwrap();
            changes.extend(stale_nodes(zero, domid(7), backends).unwrap());
            apply(zero, &changes).unwrap();
        };
        allowed(&mut zero, &[Domid::ZERO]);
        allowed(&mut zero, &[domid(5)]);
        assert_eq!(listed_guests(&mut zero, Domid::ZERO).unwrap(), []);
        assert_eq!(guests(&mut store(&backend), domid(5)).unwrap(), [domid(7)]);
        assert_eq!(stale_nodes(&mut zero, domid(7), &[Domid::ZERO, domid(5)]).unwrap(), []);
        host.destroy(domid(5));
        allowed(&mut zero, &[Domid::ZERO]);
        assert_eq!(guests(&mut zero, Domid::ZERO).unwrap(), [domid(7)]);
    }

    #[test]
    fn removes_nodes_of_destroyed_guests_when_one_is_allowed() {
        let host = FakeHost::new();
        let mut zero = store(&host.domain(Domid::ZERO));
        for number in 1..=FOLLOWED_MAX as u16 {
            apply(&mut zero, &allow(domid(number), "", &[Domid::ZERO]).unwrap()).unwrap();
            zero.remove(&format!("/local/domain/{number}")).unwrap();
        }
        host.start(domid(9999));
        apply(&mut zero, &allow(domid(9999), "web", &[Domid::ZERO]).unwrap()).unwrap();
        assert_eq!(guests(&mut zero, Domid::ZERO).unwrap(), [domid(9999)]);
        let changes = stale_nodes(&mut zero, domid(9999), &[Domid::ZERO]).unwrap();
        apply(&mut zero, &changes).unwrap();
        assert_eq!(listed_guests(&mut zero, Domid::ZERO).unwrap(), [domid(9999)]);
    }

    #[test]
    fn domain_0_reads_the_current_backend() {
        let host = FakeHost::new();
        let mut zero = store(&host.domain(Domid::ZERO));
        let mut guest = store(&host.start(domid(7)));
        assert_eq!(current_backend(&mut zero, domid(7)).unwrap(), None);
        let page = |number| XenGrant {
            from: domid(7),
            access: Access::ReadWrite,
            pages: 1,
            refs: GrantRefs::Inline(vec![GrantRef(number)]),
        };
        let port = EvtchnPort(1);
        let offer = Offer { backend: domid(5), incarnation: 1, port, head: page(1), proxy_ring: page(2) };
        PresenceAnnouncer::new(1, offer.emit(), &[]).unwrap().renew(&mut guest, Instant::now()).unwrap();
        assert_eq!(current_backend(&mut zero, domid(7)).unwrap(), Some(domid(5)));
        guest.write(NODE, b"isthmus").unwrap();
        assert_eq!(current_backend(&mut zero, domid(7)).unwrap(), None, "what is no offer");
    }

    #[test]
    fn backend_reads_the_guest_name_that_domain_0_wrote() {
        let host = FakeHost::new();
        let mut zero = store(&host.domain(Domid::ZERO));
        let mut backend = store(&host.start(domid(5)));
        host.start(domid(7));
        zero.write("/local/domain/7/name", b"web").unwrap();
        assert_eq!(name(&mut backend, domid(5), domid(7)).unwrap(), None);
        assert_eq!(name(&mut zero, Domid::ZERO, domid(7)).unwrap().as_deref(), Some(&b"web"[..]));
        apply(&mut zero, &allow(domid(7), "web", &[domid(5)]).unwrap()).unwrap();
        assert_eq!(name(&mut backend, domid(5), domid(7)).unwrap().as_deref(), Some(&b"web"[..]));
    }

    #[test]
    fn impossible_backends_are_refused() {
        assert_eq!(allow(domid(7), "web", &[]), Err(BackendsError::Count));
        assert_eq!(allow(domid(7), "web", &[Domid::ZERO; BACKENDS_MAX + 1]), Err(BackendsError::Count));
        assert_eq!(allow(domid(7), "web", &[domid(7)]), Err(BackendsError::Itself(domid(7))));
    }

    #[test]
    fn domains_are_found_by_number_and_by_name() {
        let host = FakeHost::new();
        let mut zero = store(&host.domain(Domid::ZERO));
        for (number, name) in [(7, "web"), (8, "web"), (9, "db"), (10, "11")] {
            host.start(domid(number));
            zero.write(&format!("/local/domain/{number}/name"), name.as_bytes()).unwrap();
        }
        let mut found = |wanted: &str| find(&mut zero, wanted).map_err(|error| error.to_string());
        assert_eq!(found("8"), Ok(domid(8)));
        assert_eq!(found("db"), Ok(domid(9)));
        assert_eq!(found("11"), Ok(domid(10)), "a name that is no number of a domain");
        assert_eq!(found("12").unwrap_err(), "no domain of this host has the name or number 12");
        assert_eq!(found("web").unwrap_err(), "several domains of this host are called web: say its number");
    }
}
