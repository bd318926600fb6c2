//! Services that need broadcast and multicast: DHCP, and the router advertisements of IPv6.

use std::os::unix::fs::PermissionsExt as _;

use isthmus_overlay_tests::{DNSMASQ, Lan, Path, is_installed, timeout};
use isthmus_testbed::eventually;

/// The script of `udhcpc`: it takes the address, and prints the event.
const LEASE_SCRIPT: &str = "#!/bin/sh
[ \"$1\" != bound ] || ip addr add \"$ip/24\" dev \"$interface\"
echo \"lease $1 $ip\"
";

#[test]
fn dhcp_gives_an_address_to_a_container_on_the_other_host() {
    if !is_installed("dnsmasq", "dnsmasq-base") || !is_installed("udhcpc", "udhcpc") {
        return;
    }
    for path in Path::ALL {
        let Some(lan) = Lan::new(path) else { return };
        let script = lan.stage.file("lease");
        std::fs::write(&script, LEASE_SCRIPT).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        for (server, client, own) in [(&lan.a, &lan.b, "10.9.0.1"), (&lan.b, &lan.a, "10.9.0.2")] {
            client.run("ip -4 addr flush dev eth0");
            let leases = lan.stage.file(&format!("leases-{own}"));
            let range = "--dhcp-range=10.9.0.100,10.9.0.199,1h";
            let _server = server.spawn(&format!("{DNSMASQ} {range} --dhcp-leasefile={}", leases.display()));
            let said = client.run(&format!("udhcpc -i eth0 -f -q -t 60 -T 1 -s {}", script.display()));
            assert!(said.contains("lease bound 10.9.0.1"), "{path:?}: {said}");
            client.ping(own);
            client.run("ip -4 addr flush dev eth0");
            let number = if own == "10.9.0.1" { 2 } else { 1 };
            client.run(&format!("ip addr add 10.9.0.{number}/24 dev eth0"));
        }
    }
}

#[test]
fn router_advertisements_give_addresses_to_a_container_on_the_other_host() {
    if !is_installed("dnsmasq", "dnsmasq-base") {
        return;
    }
    for path in Path::ALL {
        let Some(lan) = Lan::new(path) else { return };
        lan.b.run("ip -6 addr flush dev eth0 scope global");
        lan.a.run("ip addr add fd0a::1/64 dev eth0 nodad");
        let leases = lan.stage.file("leases");
        let _server = lan.a.spawn(&format!(
            "{DNSMASQ} --enable-ra --ra-param=eth0,4,60 --dhcp-range=fd0a::,ra-only --dhcp-leasefile={}",
            leases.display()
        ));
        let has_address = || lan.b.run("ip -6 addr show dev eth0 scope global -tentative").contains("inet6 fd0a:");
        eventually(timeout(), has_address).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        lan.b.ping("fd0a::1");
    }
}
