//! Names and addresses of interfaces.

use std::fmt;
use std::net::IpAddr;

use crate::Mac;
use crate::fields::members;
use crate::problem::Finding;
use crate::setting::{ConfigValue, Setting};

/// The maximum number of addresses of an interface.
const ADDRESSES_MAX: usize = 8;

/// The maximum number of MAC addresses that an interface may send from besides its own.
const SOURCE_MACS_MAX: usize = 64;

/// The longest name of an interface that Linux has.
const NAME_BYTES_MAX: usize = 15;

/// Declares a string with a check.
macro_rules! texts {
    ($($(#[$doc:meta])* $name:ident, $expected:expr, $check:expr;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(super) struct $name(String);

        impl $name {
            pub(super) fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Setting for $name {
            const TYPE: &'static str = "string";

            fn expected() -> String {
                $expected
            }

            fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
                let text = item.text::<Self>(findings)?;
                let check: fn(&str) -> bool = $check;
                if !check(text) {
                    findings.push(item.wrong_text(&Self::expected(), None));
                    return None;
                }
                Some(Self(text.to_owned()))
            }

            fn to_toml(&self) -> toml::Value {
                self.0.clone().into()
            }
        }
    )* };
}

texts! {
    /// The name of an interface.
    InterfaceName, format!("1 to {NAME_BYTES_MAX} letters, digits, -, _ and ."), is_interface_name;
    /// A network namespace, by name or path.
    Namespace, "the name of a network namespace (`ip netns list`), or the path of its file, as in \"/proc/4711/ns/net\"".to_owned(), is_namespace;
}

impl Namespace {
    /// The namespace in the names of its interfaces.
    pub(super) fn short(namespace: &str) -> &str {
        let process = namespace.strip_prefix("/proc/").and_then(|rest| rest.strip_suffix("/ns/net"));
        process.or_else(|| namespace.rsplit('/').find(|part| !part.is_empty())).unwrap_or(namespace)
    }
}

fn is_plain(text: &str) -> bool {
    !matches!(text, "" | "." | "..")
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

fn is_interface_name(text: &str) -> bool {
    is_plain(text) && text.len() <= NAME_BYTES_MAX
}

fn is_namespace(text: &str) -> bool {
    let is_path = text.starts_with('/') && !text.contains('\0') && text.len() <= 4095;
    is_path || is_plain(text) && text.len() <= 255
}

/// The address at which edges receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenAddress(IpAddr);

impl ListenAddress {
    /// The address.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        self.0
    }
}

impl Setting for ListenAddress {
    const TYPE: &'static str = "string";
    const BARE: bool = true;

    fn expected() -> String {
        "an address of this host without a port, as in \"192.0.2.1\", \"0.0.0.0\" or \"::\"".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let address = item.text::<Self>(findings)?.parse::<IpAddr>().ok().filter(|ip| !ip.is_multicast());
        if address.is_none() {
            findings.push(item.wrong_text(&Self::expected(), None));
        }
        address.map(Self)
    }

    fn to_toml(&self) -> toml::Value {
        self.0.to_string().into()
    }
}

/// An IP address of an interface, with its prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address.
    pub address: IpAddr,
    /// The number of bits of the network.
    pub prefix: u8,
}

impl InterfaceAddress {
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/')?;
        let (address, prefix) = (address.parse::<IpAddr>().ok()?, prefix.parse::<u8>().ok()?);
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let is_group = address.is_multicast() || address.is_unspecified();
        (prefix <= bits && !is_group).then_some(Self { address, prefix })
    }
}

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl Setting for InterfaceAddress {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        "an IP address with the length of its prefix, as in \"10.0.0.1/24\" or \"fd00::1/64\"".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        let address = Self::parse(text);
        if address.is_none() {
            let help = text
                .parse::<IpAddr>()
                .ok()
                .map(|ip| format!("did you mean \"{ip}/{}\"?", if ip.is_ipv4() { 24 } else { 64 }));
            findings.push(item.wrong_text(&Self::expected(), help));
        }
        address
    }

    fn to_toml(&self) -> toml::Value {
        self.to_string().into()
    }
}

/// The addresses of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Addresses(Vec<InterfaceAddress>);

impl Addresses {
    pub(super) fn as_slice(&self) -> &[InterfaceAddress] {
        &self.0
    }
}

impl Setting for Addresses {
    const TYPE: &'static str = "list of strings";
    const EXAMPLE: &'static str = "addresses are written as in [\"10.0.0.1/24\"]";

    fn expected() -> String {
        format!("a list of at most {ADDRESSES_MAX} addresses, each {}", InterfaceAddress::expected())
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let addresses = members::<Self, InterfaceAddress>(item, ADDRESSES_MAX, findings)?;
        (findings.len() == before).then(|| Self(addresses.into_iter().map(|(_, address)| address).collect()))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.iter().map(InterfaceAddress::to_toml).collect::<Vec<_>>().into()
    }
}

/// The MAC addresses that an interface may send from, besides its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SourceMacs {
    /// All addresses.
    Any,
    /// These addresses.
    Listed(Vec<Mac>),
}

impl Setting for SourceMacs {
    const TYPE: &'static str = "list of strings, or a string";
    const EXAMPLE: &'static str = "MAC addresses are written as in [\"00:00:5e:00:01:01\"]";

    fn expected() -> String {
        format!("\"any\", or a list of at most {SOURCE_MACS_MAX} MAC addresses, as in [\"00:00:5e:00:01:01\"]")
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        if item.value.get_ref().as_str().is_some() {
            let is_any = item.text::<Self>(findings)? == "any";
            if !is_any {
                findings.push(item.wrong_text(&Self::expected(), None));
            }
            return is_any.then_some(Self::Any);
        }
        let before = findings.len();
        let macs = members::<Self, Mac>(item, SOURCE_MACS_MAX, findings)?;
        (findings.len() == before).then(|| Self::Listed(macs.into_iter().map(|(_, mac)| mac).collect()))
    }

    fn to_toml(&self) -> toml::Value {
        match self {
            Self::Any => "any".into(),
            Self::Listed(macs) => macs.iter().map(Setting::to_toml).collect::<Vec<_>>().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_the_kernel_and_no_path() {
        assert!(is_interface_name("eth0") && is_interface_name("a-b_c.4") && is_interface_name("abcdefghijklmno"));
        for text in ["", ".", "..", "abcdefghijklmnop", "a/b", "a b", "ä"] {
            assert!(!is_interface_name(text), "{text}");
        }
        assert!(is_namespace("web") && is_namespace("/proc/1/ns/net") && is_namespace("abcdefghijklmnop"));
        assert!(!is_namespace("a/b") && !is_namespace("") && !is_namespace("/a\0b"));
    }

    #[test]
    fn addresses_need_a_prefix_of_their_family() {
        for text in ["10.0.0.1/24", "10.0.0.1/32", "fd00::1/64", "fd00::1/128", "10.0.0.1/0"] {
            assert_eq!(InterfaceAddress::parse(text).unwrap().to_string(), text);
        }
        for text in [
            "10.0.0.1",
            "10.0.0.1/33",
            "fd00::1/129",
            "224.0.0.1/24",
            "0.0.0.0/0",
            "::/0",
            "ff02::1/64",
            "/24",
            "10.0.0.1/",
        ] {
            assert_eq!(InterfaceAddress::parse(text), None, "{text}");
        }
    }
}
