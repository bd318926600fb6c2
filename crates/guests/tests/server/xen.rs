//! Xen guests on a simulated host. Their daemons find the backend, their programs become domains in granted memory, and all grants are ended,
//! whichever side ends first.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use isthmus_config::{self as config, ConfigFile, Inputs, Role};
use isthmus_control::server::{Ended, Stop};
use isthmus_daemon::{Daemon, DaemonOptions, HostAccess};
use isthmus_layout::control::*;
use isthmus_layout::reason::Reason;
use isthmus_layout::{RegionSize, ready_map};
use isthmus_platform::seqpacket;
use isthmus_platform_xen::fake::{self, FakeHost, FakeStoreTransport};
use isthmus_platform_xen::kernel::{Kernel as _, Pages as _, Port as _};
use isthmus_platform_xen::presence::{NODE, PresenceAnnouncer, node_of};
use isthmus_platform_xen::{Domid, EvtchnPort, GrantRef, GrantRefs, Offer, Store, XenGrant, admission};
use isthmus_report::{Domains, StatusReport};
use isthmus_shm::{Access, Mapping};
use tempfile::TempDir;

use crate::testbed::{Client, channel};

/// A time limit that only failing tests reach.
const LONG: Duration = Duration::from_secs(40);

pub(crate) const WEB: u16 = 7;

pub(crate) fn domid(number: u16) -> Domid {
    Domid::new(number).unwrap()
}

fn store(domain: &fake::FakeDomain) -> Store<FakeStoreTransport> {
    Store::new(domain.store().unwrap())
}

fn store_of_zero(host: &FakeHost) -> Store<FakeStoreTransport> {
    store(&host.domain(Domid::ZERO))
}

#[track_caller]
pub(crate) fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        match found() {
            Some(found) => return found,
            None => assert!(begun.elapsed() < LONG, "{what}"),
        }
        std::thread::yield_now();
    }
}

/// A daemon in a domain.
pub(crate) struct Running {
    folder: TempDir,
    daemon: Option<(Stop, JoinHandle<Ended>)>,
}

impl Running {
    pub(crate) fn start(kernel: fake::FakeDomain, more: &str, host_access: Option<HostAccess>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().display();
        let text = format!(
            "[wait]\nmode = \"sleep\"\n[daemon]\nsocket = \"{run}/isthmus.sock\"\nruntime_dir = \"{run}\"\n{more}"
        );
        let file = ConfigFile::Given { path: "test.toml".into(), bytes: text.into_bytes() };
        let uid = rustix::process::geteuid().as_raw();
        let loaded = config::load(&Inputs { file, uid, ..Inputs::bare(Role::User) });
        let loaded = loaded.unwrap_or_else(|error| panic!("{error}"));
        let (told, ready) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let daemon =
                Daemon::open(DaemonOptions { guest: host_access, signals: false, ..DaemonOptions::new(loaded) })
                    .unwrap();
            let stop = daemon.stop();
            daemon.run_with_kernel(kernel, move || told.send(stop).unwrap()).unwrap()
        });
        Self { folder, daemon: Some((ready.recv_timeout(LONG).unwrap(), thread)) }
    }

    /// Starts a backend in domain 0, for guests of these names.
    pub(crate) fn backend(host: &FakeHost, names: &[&str], more: &str) -> Self {
        Self::backend_in(host.domain(Domid::ZERO), names, more)
    }

    /// Starts a backend in any domain.
    pub(crate) fn backend_in(domain: fake::FakeDomain, names: &[&str], more: &str) -> Self {
        let user = rustix::process::geteuid().as_raw();
        let guest = |name: &&str| format!("[[xen.guest]]\nname = \"{name}\"\nuser = {user}\n{more}");
        Self::start(domain, &names.iter().map(guest).collect::<String>(), None)
    }

    /// Starts a backend in domain 0, with settings of each guest, and of all guests.
    pub(crate) fn backend_of(host: &FakeHost, guests: &[(&str, &str)], xen: &str) -> Self {
        let user = rustix::process::geteuid().as_raw();
        let guest = |(name, own): &(&str, &str)| format!("[[xen.guest]]\nname = \"{name}\"\nuser = {user}\n{own}\n");
        let guests = guests.iter().map(guest).collect::<String>();
        Self::start(host.domain(Domid::ZERO), &format!("[xen]\n{xen}\n{guests}"), None)
    }

    pub(crate) fn frontend(domain: &fake::FakeDomain) -> Self {
        Self::start(domain.clone(), "", Some(HostAccess::Xen))
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("isthmus.sock")
    }

    pub(crate) fn greeted(&self) -> Client {
        let mut client = Client::new(seqpacket::connect(&self.socket()).unwrap());
        client.greet();
        client
    }

    /// Connects a program, once the host daemon is reachable.
    pub(crate) fn served(&self) -> Client {
        until("the host is silent", || {
            let mut client = Client::new(seqpacket::connect(&self.socket()).unwrap());
            let hello = Hello { magic: Magic, versions: VersionRange::CURRENT, library: Name::new("test 1").unwrap() };
            match client.try_request(hello)? {
                ToClient::HelloReply(_) => Some(client),
                ToClient::Refused(refused) if refused.reason == Reason::HostDaemonUnreachable => None,
                other => panic!("{other:?}"),
            }
        })
    }

    /// Attaches a program under this name.
    #[track_caller]
    pub(crate) fn program(&self, name: &str) -> Client {
        let mut client = self.served();
        attached(&mut client, name);
        client
    }

    pub(crate) fn status(&self) -> StatusReport {
        self.greeted().report(Topic::Status, &[]).unwrap()
    }

    pub(crate) fn domains(&self) -> Domains {
        self.greeted().report(Topic::Domains, &[]).unwrap()
    }

    pub(crate) fn stop(&mut self) {
        if let Some((stop, thread)) = self.daemon.take() {
            stop.stop();
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Starts a guest that domain 0 has named and allows to attach to domain 0.
pub(crate) fn admitted(host: &FakeHost, number: u16, name: &str) -> fake::FakeDomain {
    let guest = host.start(domid(number));
    store_of_zero(host).write(&format!("/local/domain/{number}/name"), name.as_bytes()).unwrap();
    allow(host, number, name, &[Domid::ZERO]);
    guest
}

/// Allows a guest to attach, as `isthmus guest allow` does.
pub(crate) fn allow(host: &FakeHost, number: u16, name: &str, backends: &[Domid]) {
    let mut zero = store_of_zero(host);
    let mut steps = admission::allow(domid(number), name, backends).unwrap();
    steps.extend(admission::stale_nodes(&mut zero, domid(number), backends).unwrap());
    admission::apply(&mut zero, &steps).unwrap();
}

/// Waits until the backend has no domain, and no grants exist.
#[track_caller]
fn until_nothing_is_left(host: &FakeHost, backend: &Running) {
    until("its program stays", || backend.domains().domains.is_empty().then_some(()));
    until("its pages stay", || (host.grants() == 0).then_some(()));
}

/// A host with a guest called web, the guest daemon, and the backend, with these settings of the guest.
fn web(more: &str) -> (FakeHost, Running, Running) {
    let host = FakeHost::new();
    let guest = admitted(&host, WEB, "web");
    let (frontend, backend) = (Running::frontend(&guest), Running::backend(&host, &["web"], more));
    (host, frontend, backend)
}

pub(crate) fn attached(client: &mut Client, name: &str) -> crate::testbed::AttachedDomain {
    client.attach(Some(name)).unwrap()
}

#[test]
fn programs_of_a_guest_attach_and_meet() {
    let (_host, frontend, backend) = web("");
    let (mut a, mut b) = (frontend.served(), frontend.served());
    let (ours, theirs) = (attached(&mut a, "a"), attached(&mut b, "b"));
    assert_eq!(ours.fds.len(), 5);
    // Each descriptor of memory maps what it is for.
    for fd in [&theirs.fds[0], &theirs.fds[1], &theirs.fds[3]] {
        Mapping::new(fd, ready_map::SIZE, Access::ReadWrite).unwrap();
    }
    let [(offer, fds), _] = channel(&mut a, &mut b, theirs.id());
    assert_eq!(offer.peer, theirs.id());
    Mapping::new(&fds[0], RegionSize(4096), Access::ReadWrite).unwrap();
    let listed = backend.domains();
    assert_eq!(listed.domains.iter().map(|domain| domain.guest.as_deref()).collect::<Vec<_>>(), [Some("web"); 2]);
    let shown = backend.status().guests.unwrap();
    assert!(shown[0].daemon && shown[0].domains == 2 && shown[0].used_bytes.is_some(), "{shown:?}");
    assert_eq!(shown[0].socket, node_of(domid(WEB)));
    // A peer of the host shares no memory with them.
    let mut outside = backend.greeted();
    let outside_id = attached(&mut outside, "outside").id();
    a.send(RequestChannel { peer: outside_id, attempt: 1 }, &[]);
    let heard = a.receive_matching(|heard| matches!(heard.message, ToClient::ChannelRefused(_)));
    assert!(matches!(heard.message, ToClient::ChannelRefused(refused) if refused.reason == Reason::NoSharedMemory));
    // The extents of a program that has ended are revoked. The next program gets others.
    drop(b);
    until("b stays", || (backend.domains().domains.len() == 2).then_some(()));
    attached(&mut frontend.served(), "b");
}

#[test]
fn attaches_more_programs_than_the_pool_holds() {
    let (_host, frontend, _backend) = web("");
    let mut clients: Vec<Client> = (0..12).map(|_| frontend.served()).collect();
    let serials: Vec<RequestSerial> =
        clients.iter_mut().map(|client| client.send(Attach { name: None, resume: None }, &[])).collect();
    for (client, serial) in clients.iter_mut().zip(serials) {
        let heard = client.receive_matching(|heard| heard.serial == Some(serial));
        assert!(matches!(heard.message, ToClient::Welcome(_)), "{heard:?}");
    }
}

#[test]
fn limits_the_window_to_window_mib() {
    let (_host, frontend, _backend) = web("window_mib = 1\n");
    let (first, mut second) = (frontend.program("first"), frontend.served());
    assert_eq!(second.attach(Some("second")).err(), Some(Reason::OutOfMemory));
    drop(first);
    until("what the first had does not come back", || frontend.served().attach(Some("third")).ok());
}

#[test]
fn a_guest_that_is_destroyed_leaves_nothing() {
    let host = FakeHost::new();
    let (web, other) = (admitted(&host, WEB, "web"), admitted(&host, 8, "other"));
    let backend = Running::backend(&host, &["web", "other"], "");
    let (frontend, beside) = (Running::frontend(&web), Running::frontend(&other));
    let (_a, mut b) = (frontend.program("a"), beside.program("b"));
    host.destroy(domid(WEB));
    until("its program stays", || (backend.domains().domains.len() == 1).then_some(()));
    until("its window stays", || {
        backend.status().guests.unwrap().iter().all(|row| row.name != "web" || row.used_bytes.is_none()).then_some(())
    });
    until("its pages stay", || (host.grants_of(domid(WEB)) == 0).then_some(()));
    b.expect_no_message();
    // Another domain has the number now. It may not attach by the permission of the previous one.
    let next = host.start(domid(WEB));
    drop(frontend);
    let again = Running::frontend(&next);
    assert!(backend.status().guests.unwrap().iter().all(|row| row.name != "web" || !row.daemon));
    allow(&host, WEB, "web", &[Domid::ZERO]);
    store_of_zero(&host).write(&format!("/local/domain/{WEB}/name"), b"web").unwrap();
    attached(&mut again.served(), "a");
}

#[test]
fn guest_daemon_and_backend_reconnect_after_a_restart() {
    let host = FakeHost::new();
    let guest = admitted(&host, WEB, "web");
    let mut backend = Running::backend(&host, &["web"], "");
    let mut frontend = Running::frontend(&guest);
    let mut a = frontend.program("a");
    frontend.stop();
    a.ended();
    until_nothing_is_left(&host, &backend);
    let frontend = Running::frontend(&guest);
    let mut a = frontend.program("a");
    backend.stop();
    a.ended();
    let _backend = Running::backend(&host, &["web"], "");
    attached(&mut frontend.served(), "a");
}

#[test]
fn guest_ends_when_its_permission_is_removed() {
    let (host, frontend, backend) = web("");
    let mut a = frontend.program("a");
    let mut zero = store_of_zero(&host);
    admission::apply(&mut zero, &admission::deny(domid(WEB), &[Domid::ZERO])).unwrap();
    a.ended();
    until_nothing_is_left(&host, &backend);
}

/// Simulates a guest that was restored on another host, where its number was free. Its announcement is missing there.
#[test]
fn reattaches_after_a_restore() {
    let (host, frontend, backend) = web("");
    let mut a = frontend.program("a");
    let mut zero = store_of_zero(&host);
    let said = zero.read(&node_of(domid(WEB))).unwrap();
    zero.remove(&node_of(domid(WEB))).unwrap();
    a.ended();
    until("its program stays", || backend.domains().domains.is_empty().then_some(()));
    attached(&mut frontend.served(), "a");
    let incarnation = |said: &[u8]| str::from_utf8(said).unwrap().split(' ').nth(2).unwrap().to_owned();
    assert_ne!(incarnation(&said), incarnation(&zero.read(&node_of(domid(WEB))).unwrap()));
}

/// A guest may be saved during a request to XenStore. The store that it is connected to after the restore does not know the request, so the
/// connection may break.
#[test]
fn reattaches_when_the_store_breaks_during_a_restore() {
    let (host, frontend, backend) = web("");
    let mut a = frontend.program("a");
    store_of_zero(&host).remove(&node_of(domid(WEB))).unwrap();
    host.disconnect_store(domid(WEB));
    a.ended();
    until("its program stays", || backend.domains().domains.is_empty().then_some(()));
    attached(&mut frontend.served(), "a");
}

#[test]
fn survives_a_lost_xenstore_connection() {
    let (host, frontend, backend) = web("");
    let (mut a, mut zero) = (frontend.program("a"), store_of_zero(&host));
    let mut beats = |host: &FakeHost, domain: Domid| {
        host.disconnect_store(domain);
        if domain == Domid::ZERO {
            zero = store_of_zero(host);
        }
        let node = node_of(domain);
        let before = zero.read(&node).unwrap();
        until("it says nothing of itself any more", || (zero.read(&node).unwrap() != before).then_some(()));
    };
    beats(&host, domid(WEB));
    beats(&host, Domid::ZERO);
    a.expect_no_message();
    drop(a);
    let mut b = frontend.program("b");
    // Changes that were missed are read after the reconnection.
    host.disconnect_store(domid(WEB));
    let mut zero = store_of_zero(&host);
    admission::apply(&mut zero, &admission::deny(domid(WEB), &[Domid::ZERO])).unwrap();
    b.ended();
    until_nothing_is_left(&host, &backend);
    allow(&host, WEB, "web", &[Domid::ZERO]);
    let _c = frontend.program("c");
    host.disconnect_store(Domid::ZERO);
    host.destroy(domid(WEB));
    until("its program stays", || backend.domains().domains.is_empty().then_some(()));
}

#[test]
fn backend_survives_hostile_offers() {
    let host = FakeHost::new();
    let (liar, honest) = (admitted(&host, 8, "liar"), admitted(&host, WEB, "web"));
    let backend = Running::backend(&host, &["liar", "web"], "");
    let mut zero = store_of_zero(&host);
    let its = until("the backend does not say that it is there", || {
        let said = zero.read(NODE).ok()?;
        u64::from_str_radix(str::from_utf8(&said).unwrap().split(' ').nth(2)?, 16).ok()
    });
    let from = domid(8);
    let pages = |count| liar.offer(Domid::ZERO, count, Access::ReadWrite).unwrap();
    let inline = |refs: &[GrantRef]| XenGrant {
        from,
        access: Access::ReadWrite,
        pages: refs.len() as u32,
        refs: GrantRefs::Inline(refs.to_vec()),
    };
    let listed = |pages, first| XenGrant { from, access: Access::ReadWrite, pages, refs: GrantRefs::Listed(first) };
    let (head, body, port) = (pages(1), pages(16), liar.listen(Domid::ZERO).unwrap());
    let offer =
        |head, proxy_ring, port| Offer { backend: Domid::ZERO, incarnation: its, port, head, proxy_ring }.emit();
    let good = inline(head.refs());
    let offers = [
        b"nonsense".to_vec(),
        offer(good.clone(), inline(body.refs()), port.number()), // A proxy ring that is too small.
        offer(good.clone(), listed(70, body.refs()[0]), port.number()), // An invalid list.
        offer(inline(&[GrantRef(4_000_000)]), good.clone(), port.number()),
        offer(good.clone(), good.clone(), EvtchnPort(4_000_000)),
        Offer {
            backend: domid(5),
            incarnation: its,
            port: port.number(),
            head: good.clone(),
            proxy_ring: good.clone(),
        }
        .emit(),
    ];
    let (mut own, honest) = (store(&liar), Running::frontend(&honest));
    for (incarnation, offer) in (1..).zip(offers) {
        let mut announcement = PresenceAnnouncer::new(incarnation, offer, &[Domid::ZERO]).unwrap();
        announcement.renew(&mut own, Instant::now()).unwrap();
        attached(&mut honest.served(), "a");
    }
    own.write(NODE, &[0xff; 2000]).unwrap();
    attached(&mut honest.served(), "a");
    let shown = backend.status().guests.unwrap();
    assert!(shown.iter().all(|row| row.name != "liar" || (!row.daemon && row.used_bytes.is_none())), "{shown:?}");
}
