//! Both dialects, both usual MTUs, frames in datagrams, and boards with two links.

use isthmus_hosts::{Flow, MxProgram, TestHost, TwoHosts, board_on_wire, testbed};
use isthmus_netns::{Host, Impairments, Wire};

fn exchange(world: &TwoHosts) {
    let (mut a, mut b) = MxProgram::pair(&world.a, &world.b);
    a.exchange(&mut b, [1, 2], 200);
    a.begin(3, 2, "large", 0, &[Flow::To(0, 3), Flow::From(4)]);
    b.begin(3, 2, "large", 0, &[Flow::To(0, 4), Flow::From(3)]);
    a.done(6);
    b.done(6);
    a.close();
    b.close();
}

#[test]
fn open_mx_at_1500() {
    let Some((world, _cable)) = TwoHosts::plain(1500, "dialect = \"open-mx\"\n") else { return };
    exchange(&world);
}

#[test]
fn open_mx_at_9000() {
    let Some((world, _cable)) = TwoHosts::plain(9000, "dialect = \"open-mx\"\n") else { return };
    exchange(&world);
}

#[test]
fn mx_at_9000() {
    let Some((world, _cable)) = TwoHosts::plain(9000, "dialect = \"mx\"\n") else { return };
    exchange(&world);
}

#[test]
fn mx_mode_reports_an_mtu_of_1500_as_too_small() {
    let Some(mut bed) = testbed() else { return };
    let [a, b] = ["a", "b"].map(|name| bed.host(name).unwrap());
    bed.link(&a, &b, &Wire::mtu(1500)).unwrap();
    let said = TestHost::try_start(&a, &board_on_wire("a:0", "dialect = \"mx\"\n")).unwrap_err();
    for wanted in ["wire0", "1514", "4144", "MTU"] {
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
}

/// Hosts that are called the same, as those of a testbed are. `settings` are of both boards.
fn udp_world(wire: &Wire, settings: &str) -> Option<TwoHosts> {
    let mut bed = testbed()?;
    let [a, b] = ["a", "b"].map(|name| bed.host(name).unwrap());
    let cable = bed.link(&a, &b, wire).unwrap();
    let start = |host: &Host, name: &str, own, other| {
        let links = format!("links = [{{ udp = \"{own}\", peers = [\"{other}\"] }}]");
        TestHost::start(host, &format!("[[mx.board]]\nname = \"{name}\"\n{settings}\n{links}\n"))
    };
    let (to_a, to_b) = (cable.a().v4, cable.b().v4);
    let a = start(&a, "a:0", to_a, to_b);
    let b = start(&b, "b:0", to_b, to_a);
    Some(TwoHosts { a, b, bed })
}

fn over_udp(wire: &Wire) {
    let Some(world) = udp_world(wire, "") else { return };
    world.wait_for_peers();
    assert_eq!(world.a.board(0)["links"][0]["kind"], "udp");
    exchange(&world);
}

#[test]
fn duplicate_addresses_are_reported() {
    let Some(world) = udp_world(&Wire::mtu(1500), "mac = \"02:00:00:00:00:0a\"") else { return };
    for side in [&world.a, &world.b] {
        side.wait_until("the other one with its address", |side| side.dropped("duplicate_address") > 0);
        let warning = "another host announces the address of this board";
        side.wait_until(warning, |side| side.stderr().contains(warning));
    }
}

#[test]
fn datagrams_with_offloads() {
    over_udp(&Wire { offloads: true, ..Wire::mtu(9000) });
}

#[test]
fn datagrams_without_offloads() {
    over_udp(&Wire::mtu(1500));
}

#[test]
fn messages_go_on_by_the_other_link() {
    let Some(mut bed) = testbed() else { return };
    let [a, b] = ["a", "b"].map(|name| bed.host(name).unwrap());
    let slow = Impairments { rate_bits: Some(300_000_000), ..Impairments::default() };
    let first = bed.impaired(&a, &b, &Wire::mtu(1500), slow).unwrap();
    let second = bed.link(&a, &b, &Wire::mtu(9000)).unwrap();
    let start = |host: &Host, name: &str, own, other| {
        let links = format!("links = [{{ interface = \"wire0\" }}, {{ udp = \"{own}\", peers = [\"{other}\"] }}]");
        TestHost::start(host, &format!("[[mx.board]]\nname = \"{name}\"\nframe_bytes_max = 1400\n{links}\n"))
    };
    let (to_a, to_b) = (second.a().v4, second.b().v4);
    let world = TwoHosts { a: start(&a, "a:0", to_a, to_b), b: start(&b, "b:0", to_b, to_a), bed };
    world.wait_for_peers();
    let link_to_b = |side: &TestHost| side.peer("b:0").unwrap()["link"].clone();
    world.a.wait_until("the better link", |side| link_to_b(side) == "wire0");
    let (mut one, mut other) = MxProgram::pair(&world.a, &world.b);
    one.begin(2000, 8, "mixed", 0, &[Flow::To(0, 1)]);
    other.begin(2000, 8, "mixed", 50, &[Flow::From(1)]);
    other.until(200);
    first.down().unwrap();
    world.a.wait_until("the other link", |side| link_to_b(side) != "wire0");
    one.done(2000);
    other.done(2000);
    one.exchange(&mut other, [2, 3], 50);
    first.up().unwrap();
    world.a.wait_until("the better link again", |side| link_to_b(side) == "wire0");
    one.exchange(&mut other, [4, 5], 50);
    one.close();
    other.close();
}
