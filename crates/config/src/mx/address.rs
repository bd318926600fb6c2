//! Addresses, names and interfaces: what tells boards and their links apart.

use std::net::IpAddr;

use isthmus_layout::ids::NicId;
use isthmus_layout::mx::NAME_BYTES_MAX;

use crate::problem::Finding;
use crate::setting::{ConfigValue, Setting};

/// The address of one station, as network cards have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(NicId);

impl Mac {
    /// The address.
    #[must_use]
    pub const fn nic(self) -> NicId {
        self.0
    }

    /// The octets, in the order of a frame.
    #[must_use]
    pub const fn octets(self) -> [u8; 6] {
        let [_, _, a, b, c, d, e, f] = self.0.number().to_be_bytes();
        [a, b, c, d, e, f]
    }

    fn parse(text: &str) -> Option<[u8; 6]> {
        let parts: Vec<&str> = text.split([':', '-']).collect();
        let octets: Option<Vec<u8>> =
            parts.iter().map(|part| if part.len() == 2 { u8::from_str_radix(part, 16).ok() } else { None }).collect();
        octets?.try_into().ok()
    }
}

impl Setting for Mac {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        "the address of one station, as in \"02:00:5e:00:00:01\"".to_owned()
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        let octets = Self::parse(text).filter(|_| text.bytes().all(|byte| byte != b'+'));
        let help = match octets {
            Some(octets) if octets[0] & 1 != 0 => "an odd first octet means a group of stations",
            Some([0, 0, 0, 0, 0, 0]) => "all zeros is the address of no station",
            Some(octets) => return Some(Self(NicId::from_octets(octets))),
            None => "",
        };
        findings.push(item.wrong_text(&Self::expected(), Some(help.to_owned()).filter(|help| !help.is_empty())));
        None
    }

    fn to_toml(&self) -> toml::Value {
        self.0.to_string().into()
    }
}

/// The name of a board: what MX programs give and get for a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MxBoardName(String);

impl MxBoardName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text for a finding.
    pub(super) fn describe(&self) -> String {
        format!("the name \"{}\"", self.0)
    }
}

impl Setting for MxBoardName {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        format!("a name of 1 to {NAME_BYTES_MAX} printable ASCII characters without spaces")
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        let fits = (1..=NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !fits {
            findings.push(item.wrong_text(&Self::expected(), None));
        }
        fits.then(|| Self(text.to_owned()))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.as_str().into()
    }
}

/// A network interface of this host, by its name. The daemon checks at its start that the interface exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface(pub(super) String);

impl Interface {
    /// Linux's `IFNAMSIZ` is 16, and the last byte is zero.
    const BYTES_MAX: usize = 15;

    /// Returns whether Linux accepts the text as a name.
    fn is_name(text: &str) -> bool {
        (1..=Self::BYTES_MAX).contains(&text.len())
            && !matches!(text, "." | "..")
            && !text.contains(|c: char| matches!(c, '/' | ':') || c.is_whitespace() || c.is_control())
    }
}

impl Setting for Interface {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        format!("the name of a network interface: 1 to {} bytes without spaces, / and :", Self::BYTES_MAX)
    }

    fn read(item: &ConfigValue<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        if !Self::is_name(text) {
            let is_address = text.split(['/', '%']).next().is_some_and(|text| text.parse::<IpAddr>().is_ok());
            let help = is_address.then(|| "`ip address` shows which interface has that address".to_owned());
            findings.push(item.wrong_text(&Self::expected(), help));
            return None;
        }
        Some(Self(text.to_owned()))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.as_str().into()
    }
}
