//! A wire between two hosts: what it shall be like, its two interfaces, and a plain one, which is a veth pair.

use std::fmt::Write;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::SetupError;
use crate::host::Host;
use crate::link_state::{sync_link_state, wait_for_address};
use crate::offloads::{is_checksum, is_segmentation, switch_off};

/// The properties of a wire between two hosts. A property that is not set gets a suitable value.
#[derive(Clone, Debug)]
pub struct Wire {
    /// The MTU of both interfaces: an Ethernet frame has 14 bytes more.
    pub mtu: u32,
    /// True leaves a veth pair as it is: frames of TCP and UDP cross in pieces of up to 64 KB. False cuts them to the MTU,
    /// as behind a plain NIC (TSO, GSO, USO, GRO and LRO off at both ends).
    pub offloads: bool,
    /// True gives both ends IPv6 addresses too. False keeps IPv6 off the interfaces, and then nothing at all is on the wire
    /// but what programs send: both ends know each other's address without asking.
    pub ipv6: bool,
    /// The first host's end.
    pub a: End,
    /// The second host's end.
    pub b: End,
}

/// The requested properties of one end of a wire.
#[derive(Clone, Debug, Default)]
pub struct End {
    /// The interface's name, instead of `wireN`, where N counts the testbed's wires from 0.
    pub name: Option<String>,
    /// Its MAC address, instead of 02:69:73:00:0N:01 for the first host and :02 for the second.
    pub mac: Option<[u8; 6]>,
    /// Its IPv4 address (of a /24), instead of 10.0.N.1 and .2.
    pub v4: Option<Ipv4Addr>,
    /// Its IPv6 address (of a /64) where there is IPv6, instead of `fd69:7374:N::1` and `::2`.
    pub v6: Option<Ipv6Addr>,
}

/// One end of a wire that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireInterface {
    /// The host that has the interface.
    pub host: Host,
    /// The name of the interface on that host.
    pub name: String,
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Its IPv4 address.
    pub v4: Ipv4Addr,
    /// Its IPv6 address, if the wire has IPv6.
    pub v6: Option<Ipv6Addr>,
}

/// A plain wire: a veth pair with one end in either host. It goes with its testbed.
#[derive(Clone, Debug)]
pub struct Cable {
    ends: [WireInterface; 2],
}

impl Default for Wire {
    /// MTU 1500, cut, without IPv6.
    fn default() -> Self {
        Self { mtu: 1500, offloads: false, ipv6: false, a: End::default(), b: End::default() }
    }
}

impl Wire {
    /// The default with another MTU.
    pub fn mtu(mtu: u32) -> Self {
        Self { mtu, ..Self::default() }
    }

    /// Returns both ends of the testbed's wire `number`.
    pub(crate) fn ends(&self, number: u16, hosts: [&Host; 2]) -> [WireInterface; 2] {
        let [high, low] = number.to_be_bytes();
        let end = |end: &End, host: &Host, last: u8| WireInterface {
            host: host.clone(),
            name: end.name.clone().unwrap_or_else(|| format!("wire{number}")),
            mac: end.mac.unwrap_or([0x02, 0x69, 0x73, high, low, last]),
            v4: end.v4.unwrap_or(Ipv4Addr::new(10, high, low, last)),
            v6: self.ipv6.then(|| end.v6.unwrap_or(Ipv6Addr::new(0xfd69, 0x7374, number, 0, 0, 0, 0, last.into()))),
        };
        [end(&self.a, hosts[0], 1), end(&self.b, hosts[1], 2)]
    }
}

impl WireInterface {
    /// Gives a new interface its addresses and takes it up. `other` is at the far end.
    pub(crate) fn set_up(&self, wire: &Wire, is_behind_packets: bool, other: &Self) -> Result<(), SetupError> {
        let refused = |what: &str, error: &dyn std::fmt::Display| SetupError::Refused {
            what: format!("{what} of {} in host {}", self.name, self.host.name()),
            stderr: error.to_string(),
        };
        let quiet = format!("ipv6/conf/{}/disable_ipv6", self.name);
        match self.host.set(&quiet, if self.v6.is_some() { "0" } else { "1" }) {
            Err(error) if self.v6.is_some() => return Err(refused("IPv6", &error)),
            _ => {} // A kernel without IPv6 is as quiet.
        }
        let unwanted = |name: &str| !wire.offloads && is_segmentation(name) || is_behind_packets && is_checksum(name);
        let switched = self.host.with(|| switch_off(&self.name, unwanted)).and_then(|switched| switched);
        switched.map_err(|error| refused("offloads", &error))?;
        let mut lines = format!("addr add {}/24 dev {}\n", self.v4, self.name);
        if let Some(v6) = self.v6 {
            writeln!(lines, "addr add {v6}/64 dev {} nodad", self.name).expect("a String takes all");
        }
        self.host.ip(&lines).map_err(|stderr| refused("addresses", &stderr))?;
        self.up(other).map_err(|stderr| refused("state", &stderr))
    }

    /// Takes it up, knowing the far end: the kernel forgets neighbours of an interface that goes down.
    pub(crate) fn up(&self, other: &Self) -> Result<(), String> {
        let mac = other.mac.map(|byte| format!("{byte:02x}")).join(":");
        let name = &self.name;
        let mut lines =
            format!("link set {name} up\nneigh replace {} lladdr {mac} dev {name} nud permanent\n", other.v4);
        if let (Some(v6), Some(own)) = (other.v6, self.v6) {
            let known = format!("neigh replace {v6} lladdr {mac} dev {name} nud permanent");
            // The address went too, when the interface was taken down.
            lines += &format!("addr replace {own}/64 dev {name} nodad\n{known}\n");
        }
        self.host.ip(&lines)
    }

    /// Lets the kernel complete all checksums before packets leave by it, as before a card without that offload.
    pub fn complete_checksums(&self) -> io::Result<()> {
        self.host.with(|| switch_off(&self.name, is_checksum))?
    }

    /// True if the far end is there and up. The kernel acts on what this answers: where it is true, packets go through.
    pub fn has_carrier(&self) -> io::Result<bool> {
        self.host.with(|| sync_link_state(&self.name))?
    }

    /// Makes the kernel act on a carrier that has come or gone, and have the addresses that go with it.
    pub(crate) fn sync_link_state(&self, has_carrier: bool) -> io::Result<()> {
        if self.has_carrier()? != has_carrier {
            let state = if has_carrier { "no carrier" } else { "a carrier" };
            return Err(io::Error::other(format!("{} of host {} has {state}", self.name, self.host.name())));
        }
        match self.v6 {
            Some(v6) if has_carrier => self.host.with(|| wait_for_address(v6))?,
            _ => Ok(()),
        }
    }

    pub(crate) fn down(&self) -> Result<(), String> {
        self.host.ip(&format!("link set {} down\n", self.name))
    }

    pub(crate) fn set_mtu(&self, mtu: u32) -> Result<(), String> {
        self.host.ip(&format!("link set {} mtu {mtu}\n", self.name))
    }
}

/// Makes a veth pair, both ends down.
pub(crate) fn veth(from: &WireInterface, to: &WireInterface, mtu: u32) -> Result<(), SetupError> {
    let mac = |interface: &WireInterface| interface.mac.map(|byte| format!("{byte:02x}")).join(":");
    let far = to.host.path().map_err(|source| SetupError::System { what: "the far host", source })?;
    let line = format!(
        "link add {} mtu {mtu} address {} type veth peer name {} mtu {mtu} address {} netns {}\n",
        from.name,
        mac(from),
        to.name,
        mac(to),
        far.display()
    );
    let what = || format!("the wire {} from {} to {}", from.name, from.host.name(), to.host.name());
    from.host.ip(&line).map_err(|stderr| SetupError::Refused { what: what(), stderr })
}

impl Cable {
    pub(crate) fn new(wire: &Wire, ends: [WireInterface; 2]) -> Result<Self, SetupError> {
        let [a, b] = &ends;
        veth(a, b, wire.mtu)?;
        a.set_up(wire, false, b)?;
        b.set_up(wire, false, a)?;
        let cable = Self { ends };
        cable.sync_link_state(true).map_err(|source| SetupError::System { what: "the carrier", source })?;
        Ok(cable)
    }

    /// The first host's end.
    pub fn a(&self) -> &WireInterface {
        &self.ends[0]
    }

    /// The second host's end.
    pub fn b(&self) -> &WireInterface {
        &self.ends[1]
    }

    /// Another MTU at both ends, under way.
    pub fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        self.ends.iter().try_for_each(|end| end.set_mtu(mtu)).map_err(io::Error::other)
    }

    /// Takes both interfaces down. (Of a [`crate::ImpairedWire`] the carrier can be taken away instead.)
    pub fn down(&self) -> io::Result<()> {
        self.ends.iter().try_for_each(WireInterface::down).map_err(io::Error::other)?;
        self.sync_link_state(false)
    }

    /// Takes both interfaces up again; when this returns they send.
    pub fn up(&self) -> io::Result<()> {
        let [a, b] = &self.ends;
        a.up(b).and_then(|()| b.up(a)).map_err(io::Error::other)?;
        self.sync_link_state(true)
    }

    fn sync_link_state(&self, has_carrier: bool) -> io::Result<()> {
        self.ends.iter().try_for_each(|end| end.sync_link_state(has_carrier))
    }
}
