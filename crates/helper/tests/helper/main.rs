//! The program `isthmus-helper` in network namespaces: what it creates, records, refuses and leaves behind.
//!
//! Where no testbed can be made, or the kernel has no TUN driver, each test says "skipped" and why.
#![allow(clippy::unwrap_used, reason = "tests")]

mod interfaces;
mod lifetime;
mod packaging;
mod records;
mod refusals;
mod sandbox;
mod sockets;

use std::num::NonZeroU32;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};

use isthmus_helper::{
    AddressList, HelperClient, HelperError, InterfaceName, MacAddress, Mtu, OpenedTap, RefusalReason, TapRequest,
};
use isthmus_netns::{Host, Testbed};
use isthmus_platform::seqpacket;

const PROGRAM: &str = env!("CARGO_BIN_EXE_isthmus-helper");

/// Two hosts; helpers run in the first one.
struct TwoHosts {
    _testbed: Testbed,
    a: Host,
    b: Host,
}

/// Returns None, with the reason on standard error, where the tests cannot run.
fn bed() -> Option<TwoHosts> {
    let made = Testbed::new().and_then(|mut testbed| {
        let (a, b) = (testbed.host("a")?, testbed.host("b")?);
        Ok(TwoHosts { _testbed: testbed, a, b })
    });
    let bed = made.map_err(|why| eprintln!("skipped: {why}")).ok()?;
    if !isthmus_link::has_tun_driver() {
        eprintln!("skipped: /dev/net/tun cannot be opened");
        return None;
    }
    Some(bed)
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a helper in a host, with one connection.
fn start(host: &Host, options: &[&str]) -> (Running, HelperClient) {
    let (helper, socket) = start_raw(host, options);
    (helper, HelperClient::from_socket(socket).unwrap())
}

fn start_raw(host: &Host, options: &[&str]) -> (Running, OwnedFd) {
    let (ours, theirs) = seqpacket::pair().unwrap();
    let mut command = Command::new(PROGRAM);
    command.arg("--stdin").args(options).stdin(theirs).stderr(Stdio::null());
    (Running(host.spawn(command).unwrap()), ours)
}

/// A request for an interface with these properties, which is up.
fn tap(name: &str, addresses: &[&str]) -> TapRequest {
    let addresses = addresses.iter().map(|text| text.parse().unwrap()).collect();
    TapRequest {
        name: InterfaceName::new(name).unwrap(),
        mac: MacAddress::new([2, 0, 0, 0, 0, 0x11]).unwrap(),
        mtu: Mtu::new(1500).unwrap(),
        is_up: true,
        addresses: AddressList::new(addresses).unwrap(),
        gso_max_size: NonZeroU32::new(61_440),
        bridge: None,
    }
}

/// Opens a TAP in the helper's own namespace.
fn open(client: &mut HelperClient, name: &str) -> OpenedTap {
    client.open_tap(tap(name, &[]), None).unwrap()
}

/// Opens a TAP in another host.
fn open_in(client: &mut HelperClient, request: TapRequest, host: &Host) -> Result<OpenedTap, HelperError> {
    let namespace = host.namespace().unwrap();
    client.open_tap(request, Some(namespace.as_fd()))
}

/// The output of `ip` in a host; empty if it fails.
fn ip(host: &Host, arguments: &str) -> String {
    let mut command = Command::new("ip");
    let output = host.output(command_with(&mut command, arguments)).unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn command_with(command: &mut Command, arguments: &str) -> Command {
    command.args(arguments.split(' '));
    std::mem::replace(command, Command::new("true"))
}

/// Runs `ip` in a host.
#[track_caller]
fn ip_ok(host: &Host, arguments: &str) {
    let mut command = Command::new("ip");
    let output = host.output(command_with(&mut command, arguments)).unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The description of an interface; empty if there is none.
fn link(host: &Host, name: &str) -> String {
    ip(host, &format!("-details link show dev {name}"))
}

/// Returns the reason of a refusal.
#[track_caller]
fn reason<T: std::fmt::Debug>(result: Result<T, HelperError>) -> RefusalReason {
    match result {
        Err(HelperError::Refused(refusal)) => refusal.reason,
        other => panic!("{other:?}"),
    }
}
