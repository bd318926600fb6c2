//! Loop devices with different kernels, a lower interface, a stopped peer, and a pair window that is unplugged.
#![allow(clippy::unwrap_used, reason = "tests")]

use isthmus_guests_tests::{GuestKit, LoopGuests};
use serde_json::json;

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
