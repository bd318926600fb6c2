//! Refused requests, each by its name.

use std::fs::File;
use std::os::fd::AsFd as _;

use isthmus_helper::{HelperClient, HelperError, InterfaceName, InterfaceNumber, Mtu, RefusalReason, TapRequest};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::sockets::activated;
use crate::{bed, ip, ip_ok, link, open, open_in, reason, start, tap};

#[test]
fn name_that_is_taken_is_refused_and_its_interface_stays() {
    let Some(bed) = bed() else { return };
    let (_helper, mut client) = start(&bed.a, &["--namespaces"]);
    ip_ok(&bed.a, "tuntap add dev theirs mode tap"); // Persistent, and no program has it.
    ip_ok(&bed.b, "link add theirs type veth peer name other");
    let before = (link(&bed.a, "theirs"), link(&bed.b, "theirs"));
    let result = client.open_tap(tap("theirs", &[]), None);
    let text = result.as_ref().unwrap_err().to_string();
    assert!(text.contains("choose another name"), "{text}");
    assert_eq!(reason(result), RefusalReason::NameTaken);
    assert_eq!(reason(open_in(&mut client, tap("theirs", &[]), &bed.b)), RefusalReason::NameTaken);
    assert_eq!((link(&bed.a, "theirs"), link(&bed.b, "theirs")), before);
    assert_eq!(ip(&bed.a, "-o link").matches("isthmus").count(), 0, "the interface under its passing name is gone");
}

#[test]
fn other_namespaces_are_refused_without_the_option() {
    let Some(bed) = bed() else { return };
    let (_helper, mut client) = start(&bed.a, &[]);
    let result = open_in(&mut client, tap("tap0", &[]), &bed.b);
    let text = result.as_ref().unwrap_err().to_string();
    assert!(text.contains("--namespaces"), "{text}");
    assert_eq!(reason(result), RefusalReason::NamespacesOff);
    assert_eq!((link(&bed.a, "tap0"), link(&bed.b, "tap0")), (String::new(), String::new()));
    open(&mut client, "tap0");
}

#[test]
fn bridges_are_refused_without_the_option_and_other_interfaces_always() {
    let Some(bed) = bed() else { return };
    let request = |bridge| TapRequest { bridge: Some(InterfaceName::new(bridge).unwrap()), ..tap("tap0", &[]) };
    ip_ok(&bed.a, "link add br0 type bridge");
    ip_ok(&bed.a, "link add veth0 type veth peer name veth1");
    let (_helper, mut client) = start(&bed.a, &["--namespaces"]);
    let result = client.open_tap(request("br0"), None);
    let text = result.as_ref().unwrap_err().to_string();
    assert!(text.contains("--bridges"), "{text}");
    assert_eq!(reason(result), RefusalReason::BridgesOff);
    let (_helper, mut client) = start(&bed.a, &["--bridges"]);
    for other in ["none", "veth0", "tap0"] {
        assert_eq!(reason(client.open_tap(request(other), None)), RefusalReason::NoBridge, "{other}");
        assert_eq!(link(&bed.a, "tap0"), "", "{other}");
    }
    assert!(!ip(&bed.a, "-o link").contains("master"));
    client.open_tap(request("br0"), None).unwrap();
}

#[test]
fn descriptors_that_are_no_network_namespace_are_refused() {
    let Some(bed) = bed() else { return };
    let (helper, mut client) = start(&bed.a, &["--namespaces"]);
    let files =
        ["/dev/null", "/proc/self/ns/uts", "/proc/self/ns/user", "/"].map(|path| File::open(path).unwrap().into());
    // The kernel enters the namespace of a process as well. This process is one that the helper may inspect: itself.
    let process = Pid::from_raw(helper.0.id() as i32).unwrap();
    let process = pidfd_open(process, PidfdFlags::empty()).unwrap();
    for descriptor in files.into_iter().chain([process]) {
        let result = client.open_tap(tap("tap0", &[]), Some(descriptor.as_fd()));
        assert_eq!(reason(result), RefusalReason::NotANamespace, "{descriptor:?}");
    }
    assert_eq!(link(&bed.a, "tap0"), "");
    open(&mut client, "tap0");
}

#[test]
fn what_the_kernel_refuses_has_a_name_and_leaves_nothing() {
    let Some(bed) = bed() else { return };
    let (_helper, mut client) = start(&bed.a, &[]);
    let mut long = tap("tap0", &[]);
    long.mtu = Mtu::new(65_535).unwrap();
    assert_eq!(reason(client.open_tap(long, None)), RefusalReason::MtuRefused);
    assert_eq!(
        reason(client.open_tap(tap("tap0", &["10.9.0.1/24", "10.9.0.1/24"]), None)),
        RefusalReason::AddressTaken
    );
    let mut short = tap("tap0", &["fd09::1/64"]);
    short.mtu = Mtu::new(1000).unwrap();
    assert_eq!(reason(client.open_tap(short, None)), RefusalReason::AddressRefused);
    assert_eq!(ip(&bed.a, "-o link").lines().count(), 1, "only lo is left");
    let opened = open(&mut client, "tap0");
    let (interface, address) = (opened.info.interface, "10.9.0.1/24".parse().unwrap());
    assert_eq!(reason(client.set_mtu(interface, Mtu::new(65_535).unwrap())), RefusalReason::MtuRefused);
    assert_eq!(reason(client.del_address(interface, address)), RefusalReason::NoSuchAddress);
    client.add_address(interface, address).unwrap();
    assert_eq!(reason(client.add_address(interface, address)), RefusalReason::AddressTaken);
}

/// A client names an interface by number only. If that interface is gone, another one with its index is not changed.
#[test]
fn interfaces_that_are_gone_are_refused() {
    let Some(bed) = bed() else { return };
    let (_helper, mut client) = start(&bed.a, &[]);
    let opened = open(&mut client, "tap0");
    let (interface, index) = (opened.info.interface, opened.info.index);
    let mtu = Mtu::new(2000).unwrap();
    ip_ok(&bed.a, "link set dev tap0 name renamed");
    client.set_mtu(interface, mtu).unwrap();
    drop(opened);
    assert_eq!(reason(client.set_mtu(interface, mtu)), RefusalReason::InterfaceGone);
    ip_ok(&bed.a, &format!("link add tap0 index {index} type veth peer name other"));
    let before = link(&bed.a, "tap0");
    assert_eq!(reason(client.set_mtu(interface, mtu)), RefusalReason::InterfaceGone);
    assert_eq!(reason(client.set_up(interface, true)), RefusalReason::InterfaceGone);
    assert_eq!(reason(client.add_address(interface, "10.9.0.1/24".parse().unwrap())), RefusalReason::InterfaceGone);
    assert_eq!(reason(client.del_address(interface, "10.9.0.1/24".parse().unwrap())), RefusalReason::InterfaceGone);
    assert_eq!(link(&bed.a, "tap0"), before);
    assert_eq!(reason(client.set_mtu(InterfaceNumber(interface.0 + 1), mtu)), RefusalReason::NoSuchInterface);
}

/// An interface counts until it is gone, also when it was released or its connection has ended.
#[test]
fn at_most_256_interfaces_of_a_helper_exist() {
    let Some(bed) = bed() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("helper.sock");
    let _helper = activated(&bed, &path, &["--namespaces"]);
    let mut client = HelperClient::connect(&path).unwrap();
    let mut opened: Vec<_> = (0..255).map(|number| open(&mut client, &format!("tap{number}"))).collect();
    let elsewhere = open_in(&mut client, tap("tap0", &[]), &bed.b).unwrap();
    let try_open = |client: &mut HelperClient, name: &str| match client.open_tap(tap(name, &[]), None) {
        Err(HelperError::Refused(refusal)) if refusal.reason == RefusalReason::TooManyInterfaces => {
            assert!(refusal.to_string().contains("256 interfaces"), "{refusal}");
            None
        }
        result => Some(result.unwrap()),
    };
    assert!(try_open(&mut client, "more").is_none());
    let released = opened.pop().unwrap();
    client.release(released.info.interface).unwrap();
    client.release(elsewhere.info.interface).unwrap();
    assert_eq!(reason(client.set_up(released.info.interface, true)), RefusalReason::NoSuchInterface);
    assert!(try_open(&mut client, "more").is_none(), "released interfaces still exist");
    drop(client);
    let mut client = HelperClient::connect(&path).unwrap();
    assert!(try_open(&mut client, "more").is_none(), "the interfaces of another connection still exist");
    for (descriptor, name) in [(released.descriptor, "again0"), (elsewhere.descriptor, "again1")] {
        drop(descriptor);
        // The interface may be there for a moment, because processes that other tests start inherit its descriptor.
        opened.push(loop {
            if let Some(again) = try_open(&mut client, name) {
                break again;
            }
        });
    }
    assert!(try_open(&mut client, "more").is_none());
}
