//! Loop devices with different kernels, a lower interface, a stopped peer, a pair window that is unplugged, and steering that changes.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_guests_tests::{GuestKit, LoopGuests, SteeredGuests, mac};
use isthmus_testbed::short_or_long;
use serde_json::json;

/// Returns whether only the short form is run, and says so.
fn is_short() -> bool {
    if short_or_long(true, false) {
        println!("skipped: part of the long form (`make test-long`)");
    }
    short_or_long(true, false)
}

#[test]
fn unplugging_a_pair_window_under_load_ends_the_device() {
    let Some(mut pair) = LoopGuests::start([GuestKit::find(), GuestKit::find()], 2) else { return };
    pair.connect();
    pair.guests[1].run("serve loop count 8 -1");
    pair.guests[0].run("{ loop flood 10.99.0.2 8 1400 100000000; } >/dev/null 2>&1 & flood_pid=$!");
    pair.guests[0].run("until test $(cat /sys/class/net/loop0/statistics/tx_packets) -gt 2000; do usleep 20000; done");
    let mut monitor = pair.monitor(0);
    monitor.command("device_del", &json!({ "id": "pair" }));
    monitor.wait("DEVICE_DELETED", "pair");
    pair.guests[0].run("until grep -q ended /tmp/made; do usleep 20000; done; ! test -e /sys/class/net/loop0");
    pair.guests[0].run("kill $flood_pid; ! test -e /dev/isthmus1");
    pair.guests[1].run("until test $(cat /sys/class/net/loop0/carrier) = 0; do usleep 20000; done");
    for number in [0, 1] {
        assert_eq!(pair.guests[number].complaints(), [""; 0]);
    }
}

#[test]
fn frames_arrive_on_the_lower_interface_until_it_goes() {
    let Some(mut pair) = LoopGuests::start([GuestKit::find(), GuestKit::find()], 1) else { return };
    for number in [0, 1] {
        let (own, other) = (number + 1, 2 - number);
        pair.guests[number].run(&format!("ip link set eth0 up && ip addr add 10.99.0.{own}/32 dev eth0"));
        pair.make(number, "eth0");
        // The same addresses as the interfaces below. Nothing but these frames takes the loop device.
        pair.guests[number].run(&format!(
            "ip link set loop0 up && ip route add 10.99.0.{other} dev loop0 src 10.99.0.{own} && \
             arp -i loop0 -s 10.99.0.{other} 52:54:00:86:df:0{}",
            1 - number
        ));
    }
    pair.guests[0].run("ping -q -A -c 100 -W 20 -s 8000 10.99.0.2 | grep ' 0% packet loss'");
    pair.stream(0);
    for number in [0, 1] {
        // The other way would have been the card.
        pair.guests[number].run("test $(cat /sys/class/net/loop0/statistics/rx_packets) -ge 100");
    }
    pair.guests[0].run(
        "n=$(basename $(readlink /sys/class/net/eth0/device)); echo $n >/sys/bus/virtio/drivers/virtio_net/unbind",
    );
    pair.guests[0].run("! test -e /sys/class/net/eth0; until grep -q ended /tmp/made; do usleep 20000; done");
    pair.guests[1].run("until test $(cat /sys/class/net/loop0/carrier) = 0; do usleep 20000; done");
    for guest in &mut pair.guests {
        assert_eq!(guest.complaints(), [""; 0]);
    }
}

#[test]
fn kernels_of_different_versions_exchange_packets() {
    let Some(mut pair) = LoopGuests::start([GuestKit::find(), GuestKit::backported()], 2) else { return };
    pair.exchange();
}

#[test]
fn a_stopped_peer_is_cut_off_until_it_moves() {
    let Some(mut pair) = LoopGuests::start([GuestKit::find(), GuestKit::find()], 1) else { return };
    pair.connect();
    pair.guests[0].run("ping -c 1 -W 20 10.99.0.2");
    let mut monitor = pair.monitor(1);
    monitor.command("stop", &json!({}));
    pair.guests[0].run("loop flood 10.99.0.2 8 1400 2000 >/dev/null 2>&1 & flood_pid=$!");
    pair.guests[0].run("until test $(cat /sys/class/net/loop0/carrier) = 0; do usleep 20000; done; wait $flood_pid");
    assert_eq!(pair.counter(0, "stalls"), 1);
    monitor.command("cont", &json!({}));
    pair.guests[0].run("until test $(cat /sys/class/net/loop0/carrier) = 1; do usleep 20000; done");
    pair.stream(0);
    assert_eq!((pair.counter(0, "violations"), pair.counter(1, "violations")), (0, 0));
    for guest in &mut pair.guests {
        assert_eq!(guest.complaints(), [""; 0]);
    }
}

#[test]
fn devices_go_down_and_up_under_load() {
    let Some(mut pair) = LoopGuests::start([GuestKit::backported(), GuestKit::find()], 2) else { return };
    pair.connect();
    for (number, guest) in pair.guests.iter_mut().enumerate() {
        let peer = 2 - number;
        guest.run(&format!("loop flood 10.99.0.{peer} 8 1400 100000000 >/dev/null 2>&1 & flood_pid=$!"));
    }
    let cycle = "ip link set loop0 down && ip link set loop0 up && until test $(cat /sys/class/net/loop0/carrier) = 1; do usleep 1000; done";
    for _ in 0..40 {
        pair.guests.iter_mut().for_each(|guest| guest.start_command(cycle));
        pair.guests.iter_mut().for_each(|guest| drop(guest.finish_command().expect_success(cycle)));
    }
    pair.guests.iter_mut().for_each(|guest| drop(guest.run("kill $flood_pid")));
    pair.stream(0);
    pair.stream(1);
    for number in [0, 1] {
        assert_eq!(pair.counter(number, "violations"), 0);
        assert_eq!(pair.guests[number].complaints(), [""; 0]);
    }
}

#[test]
fn a_stream_arrives_whole_while_its_path_is_switched() {
    let Some(mut both) = SteeredGuests::start([GuestKit::find(), GuestKit::backported()], 2) else { return };
    both.connect(1, "loop0");
    both.exchange("loop0");
    // The sender's routes, then the receiver's, which decide whether it takes frames from the device.
    for (number, mib) in short_or_long(&[(0, 256)][..], &[(0, 1024), (1, 256)]).iter().copied() {
        let before = [both.statistic(0, "eth0", "tx_bytes"), both.statistic(0, "loop0", "tx_bytes")];
        both.pour(0, mib);
        let peer = mac(1 - number);
        both.run(number, &format!("steer switch 25 {peer} 1 >/tmp/switched 2>&1 & switch_pid=$!"));
        both.finish(0, mib);
        both.run(number, "kill $switch_pid; test ! -s /tmp/switched");
        both.route(number, 1);
        let writes: u64 = both.order(number, "writes").parse().unwrap();
        let ways = [both.statistic(0, "eth0", "tx_bytes"), both.statistic(0, "loop0", "tx_bytes")];
        let [card, device] = [0, 1].map(|at| (ways[at] - before[at]) >> 20);
        println!(
            "# {mib} MiB with {writes} tables at guest{number}: {card} MiB by the card, {device} MiB by the device"
        );
        assert!(writes > 20 && card > 4 && device > 4);
    }
    both.check("loop0");
}

#[test]
fn devices_share_a_vector_and_end_one_by_one() {
    if is_short() {
        return;
    }
    let Some(mut both) = SteeredGuests::start([GuestKit::backported(), GuestKit::find()], 1) else { return };
    both.connect(1, "loop0");
    both.exchange("loop0");
    both.connect(2, "loop1");
    both.exchange("loop1");
    for (number, name) in [(0, "loop0"), (0, "loop1"), (1, "loop0"), (1, "loop1")] {
        let said = both.run(number, &format!("loop counter {name} interrupts")).concat();
        assert!(said.parse::<u64>().unwrap() > 100, "{name}: {said}");
    }
    // The other device has no part in the end of this one.
    both.order(0, "end 1");
    both.run(1, "until test $(cat /sys/class/net/loop0/carrier) = 0; do usleep 10000; done");
    both.exchange("loop1");
    // A route to a device that is gone has its address wanted.
    both.order(0, "wanted");
    both.order(0, "end 2");
    both.run(0, "ping -q -A -c 5 -W 20 10.99.0.2 | grep ' 0% packet loss'");
    assert_eq!(both.order(0, "wanted"), mac(1));
    both.order(1, "end 1");
    both.order(1, "end 2");
    both.connect(3, "loop0");
    both.exchange("loop0");
    both.check("loop0");
}

#[test]
fn an_interface_goes_down_and_away_while_it_is_steered() {
    if is_short() {
        return;
    }
    let Some(mut both) = SteeredGuests::start([GuestKit::find(), GuestKit::find()], 2) else { return };
    both.connect(1, "loop0");
    both.pour(0, 128);
    // Neither way leads there while the card is down.
    for _ in 0..5 {
        both.run(1, "ip link set eth0 down && ip link set eth0 up");
    }
    both.finish(0, 128);
    both.run(1, "ip -6 addr add fd00::2/64 dev eth0");
    both.exchange("loop0");
    // In another namespace: the steering of guest1 ends, and so does its device.
    both.run(1, "unshare -n sleep 1000 & away_pid=$!");
    both.run(
        1,
        "until test $(readlink /proc/$away_pid/ns/net) != $(readlink /proc/self/ns/net); do usleep 10000; done",
    );
    both.run(1, "ip link set eth0 netns $away_pid");
    for (number, ways) in [(1, "poll"), (1, "poll 1")] {
        assert_eq!(both.order(number, ways), "gone");
    }
    assert_eq!(both.order(1, "wanted"), "");
    assert!(both.order(1, "routes").contains("No such device"));
    both.run(0, "until test $(cat /sys/class/net/loop0/carrier) = 0; do usleep 10000; done");
    // Removed, while it sends.
    both.run(0, "loop flood 10.99.0.2 8 1400 100000000 >/dev/null 2>&1 & flood_pid=$!");
    both.run(
        0,
        "n=$(basename $(readlink /sys/class/net/eth0/device)); echo $n >/sys/bus/virtio/drivers/virtio_net/unbind",
    );
    assert_eq!((both.order(0, "poll"), both.order(0, "poll 1")), ("gone".to_owned(), "gone".to_owned()));
    both.run(0, "kill $flood_pid; kill -9 $made_pid; wait $made_pid; rmmod isthmus");
    both.run(1, "kill -9 $made_pid; wait $made_pid; kill $away_pid; rmmod isthmus");
    both.check("loop0");
}

#[test]
fn a_stream_goes_on_while_holders_are_killed_and_the_window_is_unplugged() {
    if is_short() {
        return;
    }
    let Some(mut both) = SteeredGuests::start([GuestKit::find(), GuestKit::find()], 2) else { return };
    both.connect(1, "loop0");
    both.pour(0, 1024);
    // The sender's holder and the receiver's. The end of the process ends its steering and its devices.
    for (round, device) in (2..=5).enumerate() {
        let number = round % 2;
        both.run(number, "kill -9 $made_pid; wait $made_pid; ! test -e /sys/class/net/loop0");
        both.hold(number);
        both.order(1 - number, &format!("end {}", device - 1));
        both.connect(device, "loop0");
    }
    both.run(0, "! test -e /tmp/poured");
    let mut monitor = both.pair.monitor(0);
    monitor.command("device_del", &json!({ "id": "pair" }));
    monitor.wait("DEVICE_DELETED", "pair");
    both.run(0, "! test -e /sys/class/net/loop0");
    assert_eq!(both.order(0, "poll 5"), "gone");
    both.run(0, "until test $(steer order poll) = readable; do usleep 10000; done");
    both.finish(0, 1024);
    both.check("loop0");
}
