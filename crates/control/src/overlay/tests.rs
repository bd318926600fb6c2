//! The control plane of the overlay with a helper of the tests, and a data plane that keeps its commands.

mod change;
mod vnet;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use isthmus_config::{Config, ConfigFile, Inputs, Role, load};
use isthmus_helper::{HelperInfo, InterfaceNumber, Reply, Request, TapInfo, VERSION};
use isthmus_layout::Refusal;
use isthmus_layout::channel::SlabSize;
use isthmus_layout::control::{Name, VersionRange};
use isthmus_layout::ids::DomainId;
use isthmus_layout::limits::SLAB_BYTES_MIN;
use isthmus_overlay::vxlan::Vni;
use isthmus_overlay::{Decision, FrameHeader, InterfaceId, MacAddr, Millis, Network, Port};
use isthmus_platform::seqpacket;
use isthmus_report::overlay::{OverlayExplanation, OverlayReport};
use isthmus_service::overlay::{LearnedView, NewOverlayNetwork, OverlayView, UnknownDatagram};
use isthmus_service::{WorkerCounters, WorkerIndex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};

use super::*;
use crate::broker::Broker;
use crate::capabilities::Capabilities;
use crate::core::types::{ReportFacts, Settings};
use crate::core::workers::DataPlane;
use crate::directory::{Directory, Limits};
use crate::policy::Policy;
use crate::report::written::Finish;
use crate::viewer::Viewer;

/// A data plane that keeps commands of the overlay.
#[derive(Clone, Debug, Default)]
struct KeptCommands(Arc<Mutex<Vec<OverlayCommand>>>);

impl DataPlane for KeptCommands {
    fn worker_of(&self, _domain: DomainId) -> WorkerIndex {
        WorkerIndex(0)
    }

    fn send(&self, command: Command) {
        if let Command::Overlay(_, command) = command {
            self.0.lock().unwrap().push(command);
        }
    }

    fn counters(&self) -> &[Arc<WorkerCounters>] {
        &[]
    }
}

/// A helper that grants everything and creates nothing. Keeps its requests.
fn start_helper(socket: &Path) -> Arc<Mutex<Vec<Request>>> {
    let listener = seqpacket::listen(socket, 8).unwrap();
    let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
    let kept = Arc::clone(&requests);
    std::thread::spawn(move || {
        wait(&listener);
        let connection = seqpacket::accept(&listener).unwrap();
        let mut number = 0;
        loop {
            let (mut packet, mut descriptors) = ([0; 4096], Vec::new());
            wait(&connection);
            let Ok(bytes) = seqpacket::receive(&connection, &mut packet, &mut descriptors, false) else { return };
            let request = Request::parse(&packet[..bytes], descriptors.len()).unwrap();
            let tap = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
            let reply = match request {
                Request::Hello { .. } => Reply::Hello(HelperInfo {
                    version: VERSION,
                    has_net_admin: true,
                    has_namespaces: true,
                    has_tun: true,
                }),
                Request::OpenTap { .. } => {
                    number += 1;
                    let interface = InterfaceNumber(number);
                    Reply::TapOpened(TapInfo { interface, index: 9, has_udp_offloads: true, has_gso_max_size: true })
                }
                _ => Reply::Done,
            };
            let tap = matches!(reply, Reply::TapOpened(_)).then(|| tap.as_fd());
            kept.lock().unwrap().push(request);
            seqpacket::send(&connection, &reply.emit(), tap.as_slice()).unwrap();
        }
    });
    requests
}

fn wait(socket: &OwnedFd) {
    poll(&mut [PollFd::new(socket, PollFlags::IN)], None).unwrap();
}

fn config(folder: &Path, port: u16) -> Config {
    let text = format!(
        r#"
        [overlay]
        helper = "{folder}/helper.sock"
        listen = "127.0.0.1"
        [[overlay.network]]
        name = "lan"
        vni = 7
        interfaces = [
            {{ name = "lan0", mac = "02:00:00:00:00:01" }},
            {{ name = "eth0", namespace = "{folder}/web", source_macs = ["02:00:00:00:00:02"] }},
        ]
        edges = [{{ to = "127.0.0.2:{port}", kind = "vxlan" }}]
        routes = ["any 02:00:00:00:00:09 edge 127.0.0.2 any"]
        "#,
        folder = folder.display(),
    );
    std::fs::write(folder.join("isthmus.toml"), text).unwrap();
    let file = ConfigFile::Named(folder.join("isthmus.toml"));
    load(&Inputs { file, ..Inputs::bare(Role::User) }).unwrap_or_else(|error| panic!("{error}")).config
}

/// A broker with a network, the first commands to its worker, and those that follow.
struct Fixture {
    broker: Broker,
    first: Vec<OverlayCommand>,
    kept: KeptCommands,
    folder: tempfile::TempDir,
}

impl Fixture {
    /// `prepare` gets the folder of the helper's socket and the namespaces, before the overlay is opened.
    fn new<T>(prepare: impl FnOnce(&Path) -> T) -> (Self, T) {
        let folder = tempfile::tempdir().unwrap();
        let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let config = config(folder.path(), port);
        let prepared = prepare(folder.path());
        let tickets = Tickets::ephemeral().unwrap();
        let mut overlay = Overlay::open(&config, &tickets, StoredFds::default()).unwrap();
        let overlay_command = |command| match command {
            Command::Overlay(_, command) => command,
            other => panic!("{other:?}"),
        };
        let first = overlay.first_commands().map(overlay_command).collect();
        let settings = Settings {
            versions: VersionRange::CURRENT,
            name: Name::new("tests").unwrap(),
            uid: 0,
            overflow_uid: None,
            slab: SlabSize::new(SLAB_BYTES_MIN).unwrap(),
            ring_slab: SlabSize::new(SLAB_BYTES_MIN).unwrap(),
            epoch: 1,
            fds_max: 100,
            sessions_max: 4,
            sessions_per_owner_max: 4,
            offer_timeout: 1,
            report_facts: ReportFacts::default(),
        };
        let limits = Limits { domains: 4, domains_per_owner: 3, endpoints: 32, channels: 8 };
        let directory = Directory::new(limits, tickets.first());
        let (policy, kept) = (Policy::new(config.policy.clone(), 0), KeptCommands::default());
        let capabilities = Capabilities { overlay, ..Capabilities::default() };
        let broker = Broker::new(settings, policy, directory, tickets, Box::new(kept.clone()), capabilities);
        (Self { broker, first, kept, folder }, prepared)
    }

    fn with<T>(&mut self, act: impl FnOnce(&mut Overlay, &mut Core) -> T) -> T {
        act(&mut self.broker.capabilities.overlay, &mut self.broker.core)
    }

    /// The overlay's report with these arguments, for the daemon's user.
    fn report_of(&self, arguments: &[Name]) -> Result<Finish, Refusal> {
        self.broker.capabilities.overlay.report(self.broker.core.now, &Viewer::All, arguments)
    }

    fn report(&self) -> OverlayReport {
        serde_json::from_slice(&self.report_of(&[]).unwrap()().unwrap()).unwrap()
    }

    fn missing(&self, interface: usize) -> String {
        self.report().networks[0].interfaces[interface].missing.clone().unwrap_or_default()
    }

    /// Lets the overlay act at its deadlines until `done` returns a value.
    fn until<T>(&mut self, mut done: impl FnMut(&Self) -> Option<T>) -> T {
        let started = Instant::now();
        loop {
            if let Some(value) = done(self) {
                return value;
            }
            if let Some(due) = self.broker.capabilities.overlay.deadline() {
                self.broker.set_now(due);
            }
            self.with(Overlay::tick);
            while let Some(work) = self.broker.next_awaited() {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                self.broker.finish(runtime.block_on(work.wait()));
            }
            assert!(started.elapsed() < Duration::from_secs(30), "it does not happen");
            std::thread::yield_now();
        }
    }

    /// Takes the interfaces that the worker was to add or remove since the last call.
    fn changes(&self) -> Vec<(&'static str, u16)> {
        let commands = std::mem::take(&mut *self.kept.0.lock().unwrap());
        commands.iter().filter_map(change).collect()
    }

    /// The network that the worker begins with.
    fn first_network(&self) -> &NewOverlayNetwork {
        let network = self.first.iter().find_map(|command| match command {
            OverlayCommand::AddNetwork(new) => Some(new),
            _ => None,
        });
        network.expect("the network")
    }
}

fn change(command: &OverlayCommand) -> Option<(&'static str, u16)> {
    match command {
        OverlayCommand::AddInterface(new) => Some(("add", new.interface.0)),
        OverlayCommand::RemoveInterface { interface, .. } => Some(("remove", interface.0)),
        _ => None,
    }
}

#[test]
fn a_missing_helper_is_named_and_tried_again() {
    let (mut fixture, ()) = Fixture::new(|_| ());
    assert!(fixture.missing(0).contains("helper.sock"), "{}", fixture.missing(0));
    assert_eq!(fixture.first.iter().filter_map(change).count(), 0);
    start_helper(&fixture.folder.path().join("helper.sock"));
    let changes = fixture.until(|fixture| Some(fixture.changes()).filter(|changes| !changes.is_empty()));
    assert_eq!(changes, [("add", 0)]);
    assert!(fixture.report().networks[0].interfaces[0].exists);
    assert_eq!(fixture.missing(0), "");
}

#[test]
fn a_missing_namespace_is_named_and_waited_for() {
    let (mut fixture, requests) = Fixture::new(|folder| start_helper(&folder.join("helper.sock")));
    assert_eq!(fixture.first.iter().filter_map(change).collect::<Vec<_>>(), [("add", 0)]);
    let reason = fixture.missing(1);
    assert!(reason.contains("/web") && reason.contains("the daemon waits for it"), "{reason}");
    let mut retries = BTreeSet::new();
    fixture.until(|fixture| {
        let retry_at = fixture.broker.capabilities.overlay.networks[0].interfaces[1].retry_at;
        retries.insert(retry_at);
        (retries.len() > 3).then_some(())
    });
    assert_eq!(fixture.missing(1), reason, "the reason stays, so it is logged once");
    assert!(fixture.changes().is_empty());
    std::fs::write(fixture.folder.path().join("web"), []).unwrap();
    let changes = fixture.until(|fixture| Some(fixture.changes()).filter(|changes| !changes.is_empty()));
    assert_eq!(changes, [("add", 1)]);
    let opened = requests.lock().unwrap().iter().filter(|request| matches!(request, Request::OpenTap { .. })).count();
    assert_eq!(opened, 2, "the helper is not asked while the namespace is missing");
}

#[test]
fn a_gone_interface_is_removed_and_created_again() {
    let (mut fixture, requests) = Fixture::new(|folder| {
        std::fs::write(folder.join("web"), []).unwrap();
        start_helper(&folder.join("helper.sock"))
    });
    assert_eq!(fixture.first.iter().filter_map(change).collect::<Vec<_>>(), [("add", 0), ("add", 1)]);
    assert_eq!(fixture.broker.capabilities.overlay.deadline(), None);
    let network = fixture.first_network().number;
    let gone = Event::Overlay(OverlayEvent::InterfaceGone { network, interface: InterfaceId(1) });
    fixture.with(|overlay, core| overlay.event(core, &gone));
    assert_eq!(fixture.changes(), [("remove", 1)]);
    assert!(fixture.missing(1).contains("deleted"));
    assert_eq!(fixture.broker.capabilities.overlay.deadline(), Some(RETRY_NS_MAX));
    let changes = fixture.until(|fixture| Some(fixture.changes()).filter(|changes| !changes.is_empty()));
    assert_eq!(changes, [("add", 1)]);
    let requests = requests.lock().unwrap();
    assert!(requests.contains(&Request::Release { interface: InterfaceNumber(2) }));
}

/// The worker's network, with its learned addresses in the view that control explains by.
fn worker(fixture: &Fixture) -> Network {
    let new = fixture.first_network();
    let mut network = Network::new(new.options);
    for command in &fixture.first {
        match command {
            OverlayCommand::AddInterface(new) => {
                network.add_port(Port::Interface(new.interface));
                network.limit_sources(Port::Interface(new.interface), new.sources.as_ref().unwrap());
            }
            OverlayCommand::AddEdge(new) => _ = network.add_port(Port::Edge(new.edge)),
            OverlayCommand::ChangeRoutes { removed, added, .. } => _ = network.change_routes(removed, added).unwrap(),
            _ => {}
        }
    }
    for (source, port) in [(1, Port::Interface(InterfaceId(0))), (2, Port::Interface(InterfaceId(1)))] {
        network.forward(Millis(5), port, &FrameHeader::untagged(MacAddr::BROADCAST, mac_of(source)));
    }
    let learned = network.learned(Millis(10)).map(LearnedView::from);
    *new.view.lock().unwrap() = OverlayView { learned: learned.collect(), ..OverlayView::default() };
    network
}

fn mac_of(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 0, number])
}

#[test]
fn explanations_are_the_decisions_of_the_worker() {
    let (fixture, _) = Fixture::new(|folder| {
        std::fs::write(folder.join("web"), []).unwrap();
        start_helper(&folder.join("helper.sock"))
    });
    let mut network = worker(&fixture);
    let state = &fixture.broker.capabilities.overlay.networks[0];
    let ports = [Port::Interface(InterfaceId(0)), Port::Interface(InterfaceId(1)), Port::Edge(state.edges[0].id)];
    let mut rules = BTreeSet::new();
    for from in ports {
        for (source, destination) in (1..4).flat_map(|source| [1, 2, 5, 9, 255].map(|to| (mac_of(source), mac_of(to))))
        {
            let destination = if destination.0[5] == 255 { MacAddr::BROADCAST } else { destination };
            let arguments = ["lan".to_owned(), state.port_name(from), source.to_string(), destination.to_string()];
            let arguments = arguments.map(|text| Name::new(&text).unwrap());
            let report = fixture.report_of(&arguments).unwrap()().unwrap();
            let explained: OverlayExplanation = serde_json::from_slice(&report).unwrap();
            let copies: Vec<_> = explained.copies.iter().map(|copy| copy.to.clone()).collect();
            // Each frame changes what was learned, so the next one gets a new network.
            let decided = match network.forward(Millis(10), from, &FrameHeader::untagged(destination, source)) {
                Decision::To(to) => to.iter().map(|&port| state.port_name(port)).collect(),
                Decision::Drop(_) => Vec::new(),
            };
            network = worker(&fixture);
            assert_eq!(copies, decided, "{from:?}: {source} to {destination}: {}", explained.rule);
            let starts = ["the matching routes", "no route matches; ", "no route matches, ", "dropped: "];
            rules.insert(starts.iter().position(|start| explained.rule.starts_with(start)).unwrap());
        }
    }
    assert_eq!(rules.len(), 4, "routed, learned, flooded and dropped");
    let unknown = ["lan", "eth7", "02:00:00:00:00:01", "02:00:00:00:00:02"].map(|text| Name::new(text).unwrap());
    assert!(fixture.report_of(&unknown).err().unwrap().to_string().contains("lan0"));
}

#[test]
fn refused_datagrams_are_in_report_and_metrics() {
    let (fixture, ()) = Fixture::new(|_| ());
    let socket = fixture.first.iter().find_map(|command| match command {
        OverlayCommand::AddSocket(new) => Some(new),
        _ => None,
    });
    let counters = &socket.unwrap().counters;
    counters.unknown_senders.store(3, Relaxed);
    let unknown = UnknownDatagram { from: "127.0.0.2".parse().unwrap(), vni: Vni::new(9).unwrap(), at: Instant::now() };
    *counters.last_unknown.lock().unwrap() = Some(unknown);
    let report = fixture.report();
    assert_eq!((report.networks[0].name.as_str(), report.networks[0].vni), ("lan", 7));
    assert_eq!(report.networks[0].edges[0].kind, "vxlan");
    let [socket] = &report.sockets[..] else { panic!("{:?}", report.sockets) };
    assert_eq!((socket.kind.as_str(), socket.refused.len()), ("vxlan", 1));
    assert_eq!((socket.refused[0].reason.as_str(), socket.refused[0].count), ("unknown-sender", 3));
    let last = socket.last_unknown.as_ref().unwrap();
    assert_eq!((last.from.as_str(), last.vni, last.edges.len()), ("127.0.0.2", Some(9), 1));
    assert!(last.edges[0].starts_with("lan (VNI 7) has a vxlan edge to 127.0.0.2:"), "{:?}", last.edges);
    let text = crate::metrics::text(&fixture.broker, &Viewer::All);
    let bound = &socket.bound;
    for line in [
        "isthmus_overlay_missing_interfaces 2".to_owned(),
        format!("isthmus_overlay_refused_datagrams_total{{socket=\"{bound}\",reason=\"unknown-sender\"}} 3"),
        format!("isthmus_overlay_refused_datagrams_total{{socket=\"{bound}\",reason=\"invalid\"}} 0"),
    ] {
        assert!(text.lines().any(|other| other == line), "no {line} in {text}");
    }
}
