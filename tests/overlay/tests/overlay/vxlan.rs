//! The VXLAN device of Linux as the other host: network numbers, outer checksums, and a path shorter than the frames.

use isthmus_overlay_tests::Lan;

use crate::traffic::exchange_datagrams;

fn pings(lan: &Lan) {
    lan.a.ping("10.9.0.2");
    lan.b.ping("10.9.0.1");
    lan.b.ping("fd09::1");
}

#[test]
fn the_first_and_the_last_network_number_work() {
    for vni in [0, 0xFF_FFFF] {
        let Some(lan) = Lan::vxlan(1500, vni, "", "udpcsum") else { return };
        pings(&lan);
    }
}

#[test]
fn datagrams_with_and_without_outer_checksums_are_accepted() {
    for option in ["udpcsum", "noudpcsum"] {
        let Some(lan) = Lan::vxlan(1500, 42, "", option) else { return };
        pings(&lan);
    }
}

#[test]
fn frames_longer_than_the_path_arrive_in_fragments() {
    let Some(lan) = Lan::vxlan(1500, 42, ", mtu = 4000", "udpcsum") else { return };
    exchange_datagrams(&lan, 3900);
    let fragments = || std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let counts = lan.stage.host(0).with(fragments).unwrap();
    let mut rows = counts.lines().filter(|line| line.starts_with("Ip:")).map(|line| line.split_whitespace());
    let (mut names, values) = (rows.next().unwrap(), rows.next().unwrap());
    let created = values.clone().nth(names.position(|name| name == "FragCreates").unwrap());
    assert!(created.unwrap().parse::<u64>().unwrap() >= 20 * 3, "{counts}");
}
