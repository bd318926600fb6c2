//! Streams between sockets: the addresses of connections that stay TCP.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::fields::members;
use super::problem::Finding;
use super::setting::{ConfigValue, Setting};

/// The maximum number of patterns.
const PATTERNS_MAX: usize = 256;

/// Patterns for addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AddressPatterns(Vec<AddressPattern>);

impl AddressPatterns {
    /// True if an address matches one of the patterns.
    #[must_use]
    pub fn matches(&self, address: SocketAddr) -> bool {
        self.0.iter().any(|pattern| pattern.matches(address))
    }

    /// True if there are no patterns.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Setting for AddressPatterns {
    const TYPE: &'static str = "list of strings";
    const EXAMPLE: &'static str = "addresses are written as in [\"10.0.0.0/8\", \"[fd00::1]:443\"]";

    fn expected() -> String {
        format!("a list of at most {PATTERNS_MAX} addresses, each {}", AddressPattern::expected())
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let patterns = members::<Self, AddressPattern>(item, PATTERNS_MAX, findings)?;
        (findings.len() == before).then(|| Self(patterns.into_iter().map(|(_, pattern)| pattern).collect()))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.iter().map(AddressPattern::to_toml).collect::<Vec<_>>().into()
    }
}

/// A pattern for addresses: those of a network, at one port or at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AddressPattern {
    network: IpAddr,
    /// The number of bits of the network that count.
    prefix: u8,
    port: Option<u16>,
}

impl AddressPattern {
    /// Parses `ADDRESS[/PREFIX][:PORT]`. An IPv6 address before a port has brackets, with or without its prefix in them.
    fn parse(text: &str) -> Option<Self> {
        let (network, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((inside, "")) => (inside.to_owned(), None),
            Some((inside, behind)) => {
                let (prefix, port) =
                    behind.rsplit_once(':').map_or((behind, None), |(prefix, port)| (prefix, Some(port)));
                (format!("{inside}{prefix}"), port)
            }
            None if text.matches(':').count() == 1 => {
                text.rsplit_once(':').map(|(network, port)| (network.to_owned(), Some(port)))?
            }
            None => (text.to_owned(), None),
        };
        let (address, prefix) = match network.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (&*network, None),
        };
        let network: IpAddr = address.parse().ok()?;
        let bits = if network.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Some(bits), |prefix| prefix.parse().ok())?;
        let port = port.map(|port| port.parse().ok().filter(|port| *port > 0).ok_or(())).transpose().ok()?;
        (prefix <= bits).then_some(Self { network, prefix, port })
    }

    fn matches(&self, address: SocketAddr) -> bool {
        let is_in_network = match (self.network, address.ip().to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(ip)) => {
                let ignored = 32 - u32::from(self.prefix);
                (network.to_bits() ^ ip.to_bits()).checked_shr(ignored).unwrap_or(0) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(ip)) => {
                let ignored = 128 - u32::from(self.prefix);
                (network.to_bits() ^ ip.to_bits()).checked_shr(ignored).unwrap_or(0) == 0
            }
            _ => false,
        };
        is_in_network && self.port.is_none_or(|port| port == address.port())
    }
}

impl fmt::Display for AddressPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (open, close) = if self.network.is_ipv6() && self.port.is_some() { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}", self.network)?;
        if self.prefix < if self.network.is_ipv4() { 32 } else { 128 } {
            write!(f, "/{}", self.prefix)?;
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl Setting for AddressPattern {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        "ADDRESS, ADDRESS/PREFIX, or one of them with :PORT (IPv6 addresses before a port in brackets)".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        let pattern = Self::parse(text);
        if pattern.is_none() {
            findings.push(item.wrong_text(&Self::expected(), None));
        }
        pattern
    }

    fn to_toml(&self) -> toml::Value {
        self.to_string().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_matches_its_network_and_port() {
        let matches = |pattern: &str, address: &str| {
            AddressPattern::parse(pattern).unwrap().matches(address.parse::<SocketAddr>().unwrap())
        };
        assert!(matches("10.0.0.0/8", "10.1.2.3:80") && !matches("10.0.0.0/8", "11.1.2.3:80"));
        assert!(matches("10.0.0.1", "[::ffff:10.0.0.1]:80") && !matches("10.0.0.1", "10.0.0.2:80"));
        assert!(matches("0.0.0.0/0:22", "10.0.0.2:22") && !matches("0.0.0.0/0:22", "10.0.0.2:23"));
        assert!(!matches("0.0.0.0/0:22", "[fd00::1]:22") && matches("::/0", "[fd00::1]:22"));
        assert!(matches("[fd00::]/8:443", "[fd12::1]:443") && !matches("[fd00::]/8:443", "[fe12::1]:443"));
        assert!(matches("[fd00::/8]:443", "[fd12::1]:443") && matches("fd00::1", "[fd00::1]:9"));
    }

    #[test]
    fn pattern_is_shown_as_it_is_parsed() {
        for text in ["10.0.0.0/8", "10.0.0.1:80", "fd00::/8", "[fd00::]/8:443", "0.0.0.0/0:22"] {
            assert_eq!(AddressPattern::parse(text).unwrap().to_string(), text);
        }
        for text in
            ["", "web", "10.0.0.0/33", "10.0.0.1:0", "10.0.0.1:http", "fd00::/129", "[fd00::1", "[]:1", "10.0.0.1/"]
        {
            assert_eq!(AddressPattern::parse(text), None, "{text}");
        }
    }
}
