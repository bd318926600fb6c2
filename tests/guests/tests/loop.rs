//! Loop devices: packets between two guests through a pair window.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_guests_tests::{GuestKit, LoopGuests, SteeredGuests, mac};

#[test]
fn guests_exchange_packets() {
    let Some(mut pair) = LoopGuests::start([GuestKit::find(), GuestKit::find()], 1) else { return };
    pair.exchange();
    // A flood is slowed down to what its receiver takes.
    pair.guests[1].run("serve loop count 8 2000");
    pair.guests[0].run("loop flood 10.99.0.2 8 1400 20000");
    let got = pair.guests[1].run("served");
    println!("# of 20000: {}", got.last().unwrap());
    // The end of the process that made it ends the device, and the peer sees it.
    pair.guests[0].run("kill -9 $made_pid; while test -e /sys/class/net/loop0; do usleep 20000; done");
    pair.guests[1].run("until test $(cat /sys/class/net/loop0/carrier) = 0; do usleep 20000; done");
    pair.guests[1].run("kill -9 $made_pid");
    for guest in &mut pair.guests {
        // The process may not have closed all of its descriptors.
        guest.run("until rmmod isthmus 2>/dev/null; do usleep 20000; done");
        assert_eq!(guest.complaints(), [""; 0]);
    }
}

/// The attacks, and the numbers of their violations. The numbers stand in `docs/spec/loop.md`.
const ATTACKS: [(&str, u64); 11] = [
    ("produced", 1),
    ("unaligned", 1),
    ("taken", 2),
    ("short", 3),
    ("long", 3),
    ("beyond", 3),
    ("checksum", 4),
    ("segments", 4),
    ("fragments", 4),
    ("version", 5),
    ("size", 5),
];

#[test]
fn a_hostile_peer_ends_its_device_and_nothing_else() {
    let Some(mut pair) = LoopGuests::start([GuestKit::find(), GuestKit::find()], 2) else { return };
    pair.guests[0].run("loop refused /dev/isthmus0 /dev/isthmus1");
    let attack = "loop attack /dev/isthmus0 /dev/isthmus1 1 1";
    for (kind, violation) in ATTACKS {
        pair.guests[1].run(&format!("{attack} nothing"));
        pair.make(0, "");
        pair.guests[0].run("ip link set loop0 up");
        pair.guests[1].run(&format!("{attack} {kind}"));
        pair.guests[0].run("until grep -q ended /tmp/made; do usleep 20000; done");
        assert_eq!((pair.counter(0, "violation"), pair.counter(0, "violations")), (violation, 1), "{kind}");
        pair.guests[0].run("kill $made_pid; while test -e /sys/class/net/loop0; do usleep 20000; done");
    }
    // Frames that are well-formed for the device alone, then random words.
    pair.guests[1].run(&format!("{attack} nothing"));
    pair.make(0, "");
    pair.guests[0].run("ip addr add 10.99.0.1/24 dev loop0 && ip link set loop0 up");
    pair.guests[1].run(&format!("{attack} noise"));
    pair.guests[0].run("until grep -q ended /tmp/made; do usleep 20000; done");
    assert_eq!(pair.counter(0, "violations"), 1);
    assert_eq!(pair.guests[0].complaints(), [""; 0]);
}

#[test]
fn a_steered_interface_uses_its_loop_device_while_that_works() {
    let Some(mut both) = SteeredGuests::start([GuestKit::find(), GuestKit::find()], 1) else { return };
    // Without a device all frames take the card. The address is wanted, once for each table.
    assert_eq!(both.order(0, "poll"), "quiet");
    for _ in 0..2 {
        both.route(0, 0);
        both.run(0, "ping -q -A -c 5 -W 20 10.99.0.2 | grep ' 0% packet loss'");
        assert_eq!(both.order(0, "poll"), "readable");
        assert_eq!(both.order(0, "wanted"), mac(1));
        both.run(0, "ping -q -A -c 5 -W 20 10.99.0.2 | grep ' 0% packet loss'");
        assert_eq!((both.order(0, "poll"), both.order(0, "wanted")), ("quiet".to_owned(), String::new()));
    }
    both.connect(1, "loop0");
    both.exchange("loop0");
    both.run(0, "! ip addr show dev loop0 | grep inet");
    for (interface, error) in [("eth0", "Device or resource busy"), ("loop0", "Invalid argument")] {
        both.run(0, &format!("guest_steering /dev/isthmus0 /dev/isthmus1 0 2 {interface} 2>&1 | grep '{error}'"));
    }

    // Only frames from the address of the one card to that of the other arrive, and none of a VLAN.
    let (own, peer, other) = (mac(0), mac(1), "2:0:0:0:0:7");
    let forged = [
        (peer.as_str(), other, "88b5", 1),
        (&peer, &peer, "88b5", 2),
        ("ff:ff:ff:ff:ff:ff", &own, "88b5", 3),
        ("1:0:5e:0:0:1", &own, "88b5", 4),
        (other, &own, "88b5", 5),
        (&peer, &own, "8100", 6),
        (&peer, &own, "88a8", 7),
        (&peer, &own, "88b5", 7),
    ];
    for (to, from, kind, foreign) in forged {
        both.run(0, &format!("steer forge loop0 {to} {from} {kind}"));
        let arrived = both.statistic(0, "loop0", "tx_packets");
        both.run(1, &format!("until test $(($(cat /sys/class/net/loop0/statistics/rx_packets) + $(loop counter loop0 foreign_frames))) -ge {arrived}; do usleep 10000; done"));
        assert_eq!(both.pair.counter(1, "foreign_frames"), foreign);
    }

    // The end of a holder ends nothing but the loop devices.
    let enough = both.statistic(1, "loop0", "rx_bytes") + (20 << 20);
    both.pour(0, 48);
    both.run(1, &format!("until test $(cat /sys/class/net/loop0/statistics/rx_bytes) -gt {enough}; do usleep 10000; done; kill -9 $made_pid"));
    both.finish(0, 48);
    both.run(1, "! test -e /sys/class/net/loop0");
    assert!(both.statistic(1, "eth0", "rx_bytes") > 12 << 20);
    both.run(0, "kill -9 $made_pid; wait $made_pid; steer refused /dev/isthmus0 eth0");
    both.check("loop0");
}
