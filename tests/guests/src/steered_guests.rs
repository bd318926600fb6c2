//! Two guests with connected cards and steering: their frames to one another take loop devices.
//!
//! ```text
//!  ┌ guest0 ──────────────────────┐                ┌ guest1 ──────────────────────┐
//!  │ 10.99.0.1 ── eth0 ═══════════╪═══ datagrams ══╪═══════════ eth0 ── 10.99.0.2 │
//!  │       steering └─ loop0 ═════╪═══ pair window ╪═════ loop0 ─┘ steering       │
//!  │        guest_steering        │                │        guest_steering        │
//!  └──────────────────────────────┘                └──────────────────────────────┘
//! ```

use crate::guest_kit::GuestKit;
use crate::loop_guests::LoopGuests;

/// The MTU of the cards.
const MTU: u32 = 9000;

/// Two guests. Dropping it ends them and removes their files. Methods panic on failure, which fails the test.
#[derive(Debug)]
pub struct SteeredGuests {
    /// The guests, without loop devices at first.
    pub pair: LoopGuests,
}

/// Returns the address of a guest's card.
pub fn mac(number: usize) -> String {
    format!("52:54:00:86:df:0{number}")
}

impl SteeredGuests {
    /// Boots both guests, and steers their cards. There are no routes. None, with the reason on standard output, if something is missing.
    pub fn start(kits: [Result<GuestKit, String>; 2], processors: u32) -> Option<Self> {
        let mut both = Self { pair: LoopGuests::start(kits, processors)? };
        for number in [0, 1] {
            let own = number + 1;
            both.run(
                number,
                &format!(
                    "echo 0 >/proc/sys/net/ipv6/conf/eth0/accept_dad && ip link set eth0 mtu {MTU} && ip link set eth0 up && \
                     ip addr add 10.99.0.{own}/24 dev eth0 && ip -6 addr add fd00::{own}/64 dev eth0"
                ),
            );
            both.hold(number);
        }
        Some(both)
    }

    /// Runs a command in a guest.
    #[track_caller]
    pub fn run(&mut self, number: usize, order: &str) -> Vec<String> {
        self.pair.guests[number].run(order)
    }

    /// Starts the process that holds the steering of a guest: `$made_pid`.
    pub fn hold(&mut self, number: usize) {
        let peer = 2 - number;
        let hold = format!("serve guest_steering /dev/isthmus0 /dev/isthmus1 {number} {peer} eth0");
        self.run(number, &format!("{hold} && made_pid=$served_pid && mv /tmp/served /tmp/made"));
    }

    /// Gives the holder of a guest an order (`guest_steering`), and returns its reply.
    #[track_caller]
    pub fn order(&mut self, number: usize, order: &str) -> String {
        self.run(number, &format!("steer order {order}")).join("\n")
    }

    /// Routes frames to the other guest to a device of the holder, or to none (0).
    #[track_caller]
    pub fn route(&mut self, number: usize, device: u32) {
        assert_eq!(self.order(number, &format!("routes {}={device}", mac(1 - number))), "");
    }

    /// Makes this device of both holders, which is called `name`, and waits until it works.
    pub fn connect(&mut self, device: u32, name: &str) {
        for number in [0, 1] {
            let index = self.order(number, &format!("device {device}"));
            assert_eq!(self.run(number, &format!("cat /sys/class/net/{name}/ifindex")), [index]);
            self.route(number, device);
        }
        for number in [0, 1] {
            self.run(number, &format!("until test $(cat /sys/class/net/{name}/operstate) = up; do usleep 10000; done"));
        }
    }

    /// Returns a statistic of an interface.
    pub fn statistic(&mut self, number: usize, interface: &str, name: &str) -> u64 {
        let said = self.run(number, &format!("cat /sys/class/net/{interface}/statistics/{name}")).concat();
        said.parse().unwrap_or_else(|_| panic!("{name}: {said}"))
    }

    /// Sends every kind of traffic, compares what arrives, and asserts that almost all of it has taken the loop devices.
    pub fn exchange(&mut self, name: &str) {
        let before = self.sent(name);
        for (address, overhead) in [("10.99.0.2", 28), ("fd00::2", 48)] {
            let bytes = MTU - overhead;
            self.run(0, &format!("ping -q -A -c 100 -W 20 -s {bytes} {address} | grep ' 0% packet loss'"));
        }
        self.pair.datagrams();
        self.pair.stream(0);
        self.pair.stream(1);
        for ((before_card, before_loop), (card, device)) in before.into_iter().zip(self.sent(name)) {
            let (card, device) = (card - before_card, device - before_loop);
            println!("# {card} bytes by the card, {device} by {name}");
            assert!(card < 1 << 20 && device > 24 << 20, "{card} {device}");
        }
    }

    /// Returns the bytes that each guest has sent by its card and by a loop device.
    fn sent(&mut self, name: &str) -> [(u64, u64); 2] {
        [0, 1].map(|number| (self.statistic(number, "eth0", "tx_bytes"), self.statistic(number, name, "tx_bytes")))
    }

    /// Begins a stream from one guest to the other.
    pub fn pour(&mut self, from: usize, mib: u32) {
        let to = 1 - from;
        self.run(to, "serve steer drain 10 && drain_pid=$served_pid && mv /tmp/served /tmp/drained");
        self.run(
            from,
            &format!("rm -f /tmp/poured; {{ steer pour 10.99.0.{} 10 {mib}; echo $? >/tmp/poured; }} &", to + 1),
        );
    }

    /// Waits for the end of that stream, all of which must have arrived.
    pub fn finish(&mut self, from: usize, mib: u32) {
        let to = 1 - from;
        let part = "for n in $(seq 400); do test -e /tmp/poured && break; usleep 100000; done; cat /tmp/poured 2>/dev/null; true";
        let ended = (0..30).find_map(|_| self.run(from, part).pop());
        assert_eq!(ended.as_deref(), Some("0"));
        assert_eq!(self.run(to, "wait $drain_pid; cat /tmp/drained").last(), Some(&format!("{mib} MiB are the same")));
    }

    /// Asserts that no kernel has reported a fault, and no device a violation.
    pub fn check(&mut self, name: &str) {
        for number in [0, 1] {
            assert_eq!(self.pair.guests[number].complaints(), [""; 0]);
            if self.run(number, "ls /sys/class/net").iter().any(|interface| interface == name) {
                let said = self.run(number, &format!("loop counter {name} violations")).concat();
                assert_eq!(said, "0");
            }
        }
    }
}
