//! Guests in overlay networks by QEMU's `-netdev tap`: an interface of the network and the taps of guests are ports of one bridge.
//!
//! ```text
//!  guest0 ══ tap0 ── br0 ── lan0 ── isthmusd ══ an edge ══ isthmusd, or a VXLAN device ── a container, or another guest
//! ```
#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use isthmus_guests_tests::{BridgedGuests, Extra, Guest, GuestKit, timeout};
use isthmus_overlay_tests::{Container, DNSMASQ, Daemon, Stage, is_installed};
use isthmus_testbed::{Proc, SeededRandom, eventually_some, short_or_long};

/// Only one test runs guests at a time, because each emulated processor takes a whole one.
static MACHINE: Mutex<()> = Mutex::new(());

/// The address of the container on the last host.
const CONTAINER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// The MAC address of its interfaces, of which each replaces the one before.
const CONTAINER_MAC: &str = "02:00:00:00:00:02";

/// The port of compared streams.
const PORT: u16 = 9;

/// Returns how often a compared stream repeats its block.
fn repeats() -> usize {
    short_or_long(3, 20)
}

/// Returns the length of a stream of iperf3.
fn iperf_bytes() -> u64 {
    short_or_long(16 << 20, 256 << 20)
}

/// Returns the block of compared streams. Its length is prime, so a lost, doubled or moved part shows.
fn block() -> Vec<u8> {
    let mut random = SeededRandom::seeded(11);
    (0..500_004).flat_map(|_| random.bits().to_le_bytes()).take(4_000_037).collect()
}

/// Hosts of which some have a bridge, with guests there.
struct BridgedHosts {
    guests: Vec<Guest>,
    daemons: Vec<Daemon>,
    container: Container,
    stage: Stage,
    _parts: BridgedGuests,
    _alone: MutexGuard<'static, ()>,
}

impl BridgedHosts {
    /// Boots a guest on each of the first hosts. The container is on the last one. None, with the reason on standard error, where something
    /// is missing.
    fn new(guests: u32) -> Option<Self> {
        let alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_installed("dnsmasq", "dnsmasq-base") || !is_installed("iperf3", "iperf3") {
            return None;
        }
        let kit = GuestKit::find().map_err(|why| eprintln!("skipped: {why}")).ok()?;
        let mut stage = Stage::new(2, 1500)?;
        let container = stage.container(1, "container");
        for number in 0..guests {
            let bridge = BridgedGuests::bridge(stage.host(number as usize), &[number]);
            bridge.map_err(|why| eprintln!("skipped: {why}")).ok()?;
        }
        let extra = Extra {
            programs: vec![PathBuf::from("/usr/bin/iperf3")],
            files: vec![("block".to_owned(), block())],
            ..Extra::default()
        };
        let parts = BridgedGuests::new(kit, extra);
        let mut guests: Vec<Guest> =
            (0..guests).map(|number| parts.boot(stage.host(number as usize), number)).collect();
        guests.iter_mut().for_each(|guest| BridgedGuests::wait_for_boot(guest, 1500));
        Some(Self { guests, daemons: Vec::new(), container, stage, _parts: parts, _alone: alone })
    }

    /// Starts the daemon of a host. Its network has these interfaces, and an edge of this kind to the other host.
    fn start_daemon(&mut self, host: usize, kind: &str, interfaces: &[String]) {
        let daemon = self.stage.start(
            host,
            &format!(
                "[[overlay.network]]\nname = \"lan\"\nvni = 42\ninterfaces = [{}]\nedges = [{{ to = \"{}\", kind = \"{kind}\" }}]\n",
                interfaces.join(", "),
                self.stage.address(1 - host, host),
            ),
        );
        daemon.wait_for_interfaces();
        self.daemons.push(daemon);
    }

    /// Sets the MTU of the cards of all guests, and of their taps.
    fn set_mtu(&mut self, mtu: u32) {
        for guest in &mut self.guests {
            let number = guest.number;
            self.stage.run(number as usize, &format!("ip link set tap{number} mtu {mtu}"));
            guest.run(&format!("ip link set eth0 mtu {mtu}"));
        }
    }
}

/// An interface that is a port of the bridge.
fn port(mtu: u32) -> String {
    format!("{{ name = \"lan0\", mtu = {mtu}, bridge = \"{}\" }}", BridgedGuests::BRIDGE)
}

/// Gives a guest an address by DHCP and one by router advertisement, both from a container on the other host.
fn configure(guest: &mut Guest, server: &Container, leases: &Path) -> String {
    let _server = server.spawn(&format!(
        "{DNSMASQ} --dhcp-range=10.9.0.100,10.9.0.199,1h --enable-ra --ra-param=eth0,4,60 --dhcp-range=fd09::,ra-only \
         --dhcp-leasefile={}",
        leases.display()
    ));
    let address = BridgedGuests::lease(guest);
    assert!(address.starts_with("10.9.0.1"), "{address}");
    guest.run("until ip -6 addr show dev eth0 | grep 'inet6 fd09:'; do usleep 50000; done");
    address
}

/// Sends packets in both directions, of which the longest are as long as the MTU and must not be fragmented.
fn ping_whole_packets(guest: &mut Guest, address: &str, container: &Container) {
    guest.run(&format!("ping -c 3 -W 60 {CONTAINER} && ping6 -c 3 -W 60 fd09::2"));
    container.run(&format!("ping -n -q -c 3 -i 0.1 -w 60 -M do -s {} {address}", mtu(guest) - 28));
}

/// Starts iperf3 in the container, and waits until it listens.
fn iperf_server(container: &Container) -> Proc {
    let mut server = container.spawn("iperf3 -s --forceflush");
    server.wait_prefix("Server listening", timeout()).unwrap();
    server
}

/// Returns the MTU of a guest's card.
fn mtu(guest: &mut Guest) -> u64 {
    guest.run("cat /sys/class/net/eth0/mtu")[0].trim().parse().unwrap()
}

/// The counts of a guest's card: received bytes and packets, sent bytes and packets.
fn card(guest: &mut Guest) -> [u64; 4] {
    let files = ["rx_bytes", "rx_packets", "tx_bytes", "tx_packets"];
    let lines = guest.run(&format!("cd /sys/class/net/eth0/statistics && cat {}; cd /", files.join(" ")));
    [0, 1, 2, 3].map(|at| lines[at].trim().parse().unwrap())
}

/// Runs the client of iperf3 in a guest in both directions. Returns the option and the mean number of bytes of frames that the card sent, and
/// received.
fn iperf(guest: &mut Guest, server: Ipv4Addr) -> [(&'static str, u64); 2] {
    let bytes = iperf_bytes();
    [("", 2), ("-R", 0)].map(|(option, at)| {
        let before = card(guest);
        let said = guest.run(&format!("iperf3 -c {server} -n {bytes} --json {option}")).join("\n");
        let report: serde_json::Value = serde_json::from_str(&said).unwrap();
        // The client ends once all bytes are sent. What is still in buffers is not counted.
        let received = report["end"]["sum_received"]["bytes"].as_u64().unwrap();
        assert!(received >= bytes / 4, "{received} bytes of {bytes}");
        let after = card(guest);
        let mean = (after[at] - before[at]) / (after[at + 1] - before[at + 1]);
        println!("# guest{}: iperf3 {option}: {mean} bytes a frame", guest.number);
        (option, mean)
    })
}

/// Exchanges compared streams between a guest and the container.
fn compared_streams(guest: &mut Guest, address: &str, container: &Container) {
    let (block, repeats) = (block(), repeats());
    let listener = container.network().with(|| TcpListener::bind((CONTAINER, PORT))).unwrap().unwrap();
    guest.start_command(&format!("for i in $(seq {repeats}); do cat /block; done | nc {CONTAINER} {PORT}"));
    let mut stream = listener.accept().unwrap().0;
    stream.set_read_timeout(Some(timeout().remaining())).unwrap();
    let mut received = vec![0; block.len()];
    for number in 0..repeats {
        stream.read_exact(&mut received).unwrap();
        assert!(received == block, "block {number} differs");
    }
    assert_eq!(stream.read(&mut received).unwrap(), 0);
    drop(stream);
    guest.finish_command().expect_success("nc");
    // An input that does not end, because nc would close the connection.
    guest.run(&format!("rm -f /tmp/open; mkfifo /tmp/open; nc -l -p {PORT} <>/tmp/open >/tmp/received & nc_pid=$!"));
    let target = (address.parse::<Ipv4Addr>().unwrap(), PORT);
    let connect = || container.network().with(|| TcpStream::connect(target)).unwrap().ok();
    let mut stream = eventually_some(timeout(), connect).unwrap();
    stream.set_write_timeout(Some(timeout().remaining())).unwrap();
    (0..repeats).for_each(|_| stream.write_all(&block).unwrap());
    stream.shutdown(Shutdown::Write).unwrap();
    guest.run("wait $nc_pid");
    guest.run(&format!("for i in $(seq {repeats}); do cat /block; done | cmp - /tmp/received && rm /tmp/received"));
}

/// Waits until a daemon has learned these addresses at a port.
fn wait_for_learned(daemon: &Daemon, macs: &[&str], port: &str) {
    daemon.wait(|network| {
        let rows = network["learned"].as_array().unwrap();
        macs.iter().all(|mac| rows.iter().any(|row| row["mac"] == *mac && row["port"] == port))
    });
}

#[test]
fn guest_and_a_container_on_another_host_exchange_streams_with_all_offloads() {
    let Some(mut hosts) = BridgedHosts::new(1) else { return };
    let mut address = None;
    for mtu in [1500, 9000] {
        hosts.daemons.clear();
        hosts.set_mtu(mtu);
        hosts.start_daemon(0, "fast", &[port(mtu)]);
        let fields = format!(", mac = \"{CONTAINER_MAC}\", mtu = {mtu}, addresses = [\"10.9.0.2/24\", \"fd09::2/64\"]");
        hosts.start_daemon(1, "fast", &[hosts.container.interface(&fields)]);
        let guest = &mut hosts.guests[0];
        let leases = hosts.stage.file("leases");
        let address = address.get_or_insert_with(|| configure(guest, &hosts.container, &leases));
        exchange(guest, address, &hosts.daemons[0], &hosts.container);
    }
    // The Linux VXLAN device takes the place of the other daemon.
    hosts.daemons.clear();
    hosts.set_mtu(1450);
    hosts.stage.vxlan_device((1, 0), 42, "udpcsum", &hosts.container);
    for line in ["addr add 10.9.0.2/24 dev eth0", "addr add fd09::2/64 dev eth0 nodad"] {
        hosts.container.run(&format!("ip {line}"));
    }
    hosts.container.run(&format!("ip link set eth0 mtu 1450 address {CONTAINER_MAC}"));
    hosts.start_daemon(0, "vxlan", &[port(1450)]);
    exchange(&mut hosts.guests[0], &address.unwrap(), &hosts.daemons[0], &hosts.container);
}

/// Sends packets and streams in both directions between a guest and the container.
fn exchange(guest: &mut Guest, address: &str, daemon: &Daemon, container: &Container) {
    ping_whole_packets(guest, address, container);
    let _server = iperf_server(container);
    let frames = || daemon.network()["interfaces"][0]["traffic"]["received"].as_u64().unwrap();
    let (before, sent_before) = (frames(), card(guest)[3]);
    for (option, mean) in iperf(guest, CONTAINER) {
        // Frames that are cut before the card or behind it are not longer than the MTU.
        assert!(mean > mtu(guest) + 18, "{mean} bytes a frame with the option {option:?}");
    }
    // On their way to the interface of the network, no frames are cut. Others on the bridge sent a few.
    let (received, sent) = (frames() - before, card(guest)[3] - sent_before);
    println!("# guest{} sent {sent} frames, the daemon received {received}", guest.number);
    assert!(received < sent + 100, "{received} frames of {sent}");
    compared_streams(guest, address, container);
}

#[test]
fn guests_of_two_hosts_reach_each_other_beside_a_container_on_the_bridge() {
    let Some(mut hosts) = BridgedHosts::new(2) else { return };
    let local = hosts.stage.container(0, "local");
    hosts.stage.run(0, "ip link add port type veth peer name eth0");
    hosts.stage.run(0, &format!("ip link set eth0 netns {}", local.file().display()));
    hosts.stage.run(0, "ip link set port master br0 up");
    local.run("ip link set eth0 address 02:00:00:00:00:03 up");
    local.run("ip addr add 10.9.0.3/24 dev eth0");
    for host in [0, 1] {
        hosts.start_daemon(host, "fast", &[port(1500)]);
    }
    for (number, guest) in hosts.guests.iter_mut().enumerate() {
        guest.run(&format!("ip addr add 10.9.0.{}/24 dev eth0", 11 + number));
    }
    let [client, server] = &mut hosts.guests[..] else { unreachable!() };
    client.run("ping -c 3 -W 60 10.9.0.12");
    local.ping("10.9.0.12");
    server.run(
        "iperf3 -s --forceflush >/tmp/server & until grep -q 'Server listening' /tmp/server; do usleep 20000; done",
    );
    iperf(client, Ipv4Addr::new(10, 9, 0, 12));
    // The interface of a restarted daemon is a port of the bridge again.
    hosts.daemons[0].kill_and_restart();
    hosts.daemons[0].wait_for_interfaces();
    client.run("ping -c 3 -W 60 10.9.0.12");
    local.ping("10.9.0.12");
    // Both addresses on the bridge of the first host are behind its one interface.
    let macs = ["52:54:00:86:df:00", "02:00:00:00:00:03"];
    wait_for_learned(&hosts.daemons[0], &macs, "lan0");
    wait_for_learned(&hosts.daemons[1], &macs, &format!("{}:9001", hosts.stage.address(0, 1)));
}
