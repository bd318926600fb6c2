//! The interfaces of a network, as control knows them.

use std::path::Path;

use isthmus_config::overlay::Interface;
use isthmus_helper::{AddressList, InterfaceAddress, InterfaceName, InvalidValue, MacAddress, Mtu, TapRequest};
use isthmus_link::Tap;
use isthmus_overlay::{InterfaceId, MacAddr};
use isthmus_service::overlay::{NewOverlayInterface, OverlayCommand, OverlayNetworkNumber};
use std::num::NonZeroU32;

use super::opener::{InterfaceClaims, OpenError, OpenRequest, Opened};
use crate::host::HostIdentity;

/// The length of the longest frame that the kernel leaves to be cut. A *fast* edge sends it by one system call.
const GSO_BYTES_MAX: NonZeroU32 = NonZeroU32::new(61_440).expect("not zero");

/// The first interval in nanoseconds at which a missing interface is tried again.
const RETRY_NS_MIN: u64 = 5_000_000;

/// The longest such interval.
pub(super) const RETRY_NS_MAX: u64 = 1_000_000_000;

/// The number of failures from which on a taken name is a reason to report. An interface that changes is created anew, and its predecessor has
/// the name until the worker and the service manager have closed its TAP.
const NAME_FAILURES_MIN: u32 = 7;

/// Names an interface of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InterfaceKey {
    pub(super) network: OverlayNetworkNumber,
    pub(super) interface: InterfaceId,
}

/// An interface.
#[derive(Debug)]
pub(super) struct InterfaceState {
    pub(super) key: InterfaceKey,
    pub(super) plan: Interface,
    pub(super) mac: MacAddr,
    pub(super) mtu: u16,
    pub(super) stage: InterfaceStage,
    /// The last reason for which the interface was missing, and what to do.
    pub(super) reason: Option<String>,
    /// The time at which a missing interface is tried again.
    pub(super) retry_at: u64,
    /// The number of requests for the interface that have failed since it existed.
    failures: u32,
}

/// The stage of an interface.
#[derive(Debug)]
pub(super) enum InterfaceStage {
    /// The interface exists.
    Open {
        /// The records of it outside of this daemon.
        claims: InterfaceClaims,
    },
    /// The opener was asked for the interface.
    Asked,
    /// The interface could not be created, or is gone.
    Missing,
}

impl InterfaceState {
    pub(super) fn new(key: InterfaceKey, plan: &Interface, mac: MacAddr, mtu: u16) -> Self {
        Self {
            key,
            plan: plan.clone(),
            mac,
            mtu,
            stage: InterfaceStage::Missing,
            reason: None,
            retry_at: 0,
            failures: 0,
        }
    }

    /// The records of the interface outside of this daemon, if it exists.
    pub(super) fn claims(&self) -> Option<InterfaceClaims> {
        match &self.stage {
            InterfaceStage::Open { claims } => Some(claims.clone()),
            InterfaceStage::Asked | InterfaceStage::Missing => None,
        }
    }

    /// The source addresses that frames of the interface may have. None if there is no limit.
    pub(super) fn sources(&self) -> Option<Vec<MacAddr>> {
        let others = self.plan.source_macs()?;
        Some([self.mac].into_iter().chain(others.iter().map(|mac| MacAddr(mac.octets()))).collect())
    }

    /// The request that creates the interface.
    pub(super) fn request(&self) -> OpenRequest {
        OpenRequest { place: self.plan.place(), tap: self.tap_request() }
    }

    fn tap_request(&self) -> Result<TapRequest, InvalidValue> {
        let addresses = self.plan.addresses().iter();
        let addresses = addresses.map(|address| InterfaceAddress::new(address.address, address.prefix));
        Ok(TapRequest {
            name: InterfaceName::new(self.plan.name())?,
            mac: MacAddress::new(self.mac.0)?,
            mtu: Mtu::new(self.mtu.into())?,
            is_up: true,
            addresses: AddressList::new(addresses.collect::<Result<_, _>>()?)?,
            // The limit would not reach the stations behind a bridge: the kernel would cut their longer frames to the MTU.
            gso_max_size: self.plan.bridge().is_none().then_some(GSO_BYTES_MAX),
            bridge: self.plan.bridge().map(InterfaceName::new).transpose()?,
        })
    }

    /// Takes the outcome of a request. Returns the command with which the worker begins to serve the interface.
    pub(super) fn opened(&mut self, outcome: Result<Opened, OpenError>) -> Option<OverlayCommand> {
        let label = self.plan.label();
        match outcome {
            Ok(Opened { claims, tap }) => {
                let is_restored = claims.helper_number.is_none();
                tracing::info!(interface = label, mac = %self.mac, mtu = self.mtu, is_restored, "interface of an overlay network");
                self.stage = InterfaceStage::Open { claims };
                self.failures = 0;
                let InterfaceKey { network, interface } = self.key;
                let (tap, sources) = (Tap::new(label, tap), self.sources());
                let new = NewOverlayInterface { network, interface, tap, mtu: self.mtu, sources };
                Some(OverlayCommand::AddInterface(new))
            }
            Err(error) => {
                self.failures += 1;
                match error.is_name_taken() && self.failures < NAME_FAILURES_MIN {
                    true => self.stage = InterfaceStage::Missing,
                    false => self.missing(error.to_string()),
                }
                None
            }
        }
    }

    /// The time in nanoseconds until the interface is tried again. It doubles with each failure.
    pub(super) fn retry_delay(&self) -> u64 {
        RETRY_NS_MAX.min(RETRY_NS_MIN << self.failures.min(10))
    }

    /// Notes that the interface is missing. Each reason is logged once.
    pub(super) fn missing(&mut self, reason: String) {
        if self.reason.as_ref() != Some(&reason) {
            tracing::warn!(interface = self.plan.label(), "the interface of an overlay network is missing: {reason}");
        }
        self.stage = InterfaceStage::Missing;
        self.reason = Some(reason);
    }
}

/// Generates the MAC addresses of interfaces that have none in the configuration. They are the same after each start.
#[derive(Debug, Default)]
pub(super) struct MacGenerator {
    key: [u8; 32],
}

impl MacGenerator {
    /// Returns the generator of this daemon. Two daemons of one machine have different runtime folders.
    pub(super) fn new(host: &HostIdentity, runtime_dir: &Path) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&host.id);
        hasher.update(b"isthmus overlay interfaces 1");
        for text in [host.name.as_bytes(), runtime_dir.as_os_str().as_encoded_bytes()] {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text);
        }
        Self { key: *hasher.finalize().as_bytes() }
    }

    pub(super) fn mac(&self, network: &str, label: &str) -> MacAddr {
        let hash = blake3::keyed_hash(&self.key, format!("{network}\n{label}").as_bytes());
        let [first, b, c, d, e, f, ..] = *hash.as_bytes();
        MacAddr([first & !1 | 2, b, c, d, e, f]) // Of one station, assigned locally.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_addresses_depend_on_daemon_network_and_interface() {
        let host = |name: &str| HostIdentity { name: name.to_owned(), id: [1; 32] };
        let of = |name, dir: &str| MacGenerator::new(&host(name), Path::new(dir));
        let first = of("a", "/run/isthmus").mac("lan", "eth0@web");
        assert_eq!(first.0[0] & 3, 2);
        assert_eq!(first, of("a", "/run/isthmus").mac("lan", "eth0@web"));
        let others = [
            of("b", "/run/isthmus").mac("lan", "eth0@web"),
            of("a", "/run/other").mac("lan", "eth0@web"),
            of("a", "/run/isthmus").mac("lab", "eth0@web"),
            of("a", "/run/isthmus").mac("lan", "web/eth1"),
        ];
        assert!(!others.contains(&first));
    }
}
