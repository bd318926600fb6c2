//! The virtual RDMA device of a report, as values that may become files.
//!
//! ```text
//! the daemon's report ─▶ Device::parse ─▶ numbers, and the names of interfaces ─▶ the files of the device
//! ```
//!
//! Root may write these files, and programs of all users read them. So no text of a report becomes a path, and none becomes content as it
//! stands: names are constants, and a number is written anew.

use std::fmt;
use std::net::Ipv6Addr;

use isthmus_layout::verbs::{DEVICE, GID_KIND, GIDS_MAX};
use isthmus_report::{VerbsGidRow, VerbsReport};

/// The maximum number of bytes of an interface's name, as of Linux (`IFNAMSIZ` with the final zero).
const INTERFACE_BYTES_MAX: usize = 15;

/// The maximum number of characters of an invalid value that an error repeats.
const SHOWN_CHARS: usize = 64;

/// The device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    pub(super) node_guid: u64,
    /// The GIDs, by index.
    pub(super) gids: Vec<Gid>,
}

/// A GID of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Gid {
    pub(super) gid: Ipv6Addr,
    pub(super) interface: Option<InterfaceName>,
}

/// The name of an interface, which is one part of a path and one word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InterfaceName(String);

/// A field of a report without a valid value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidField {
    pub(super) field: String,
    value: String,
    expected: String,
}

/// The remedy for a report with an invalid field.
pub(super) const REMEDY: &str = "Use the tool and the daemon of one version. If they are, the daemon is not the one that was installed: check its user's programs.";

impl Device {
    pub(super) fn parse(report: &VerbsReport) -> Result<Self, InvalidField> {
        let VerbsReport { device, node_guid, gids, .. } = report;
        let invalid = |field: &str, value: &str, expected: String| Err(InvalidField::new(field, value, expected));
        if device != DEVICE {
            return invalid("device", device, DEVICE.to_owned());
        }
        let Some(guid) = from_groups::<4>(node_guid) else {
            return invalid("node_guid", node_guid, "four groups of four hexadecimal digits".to_owned());
        };
        if gids.len() > GIDS_MAX {
            return invalid("gids", &format!("{} GIDs", gids.len()), format!("at most {GIDS_MAX} GIDs"));
        }
        let node_guid = guid.iter().fold(0, |guid, group| guid << 16 | u64::from(*group));
        let gids = gids.iter().enumerate().map(|(index, row)| Gid::parse(index, row));
        Ok(Self { node_guid, gids: gids.collect::<Result<_, _>>()? })
    }

    /// Formats the node GUID as sysfs does.
    pub(super) fn node_guid(&self) -> String {
        groups(&self.node_guid.to_be_bytes())
    }
}

impl Gid {
    fn parse(index: usize, row: &VerbsGidRow) -> Result<Self, InvalidField> {
        let invalid = |name: &str, value: &str, expected: &str| {
            InvalidField::new(&format!("gids[{index}].{name}"), value, expected.to_owned())
        };
        if usize::try_from(row.index) != Ok(index) {
            return Err(invalid("index", &row.index.to_string(), &index.to_string()));
        }
        if row.kind != GID_KIND {
            return Err(invalid("kind", &row.kind, GID_KIND));
        }
        let gid = from_groups::<8>(&row.gid).map(Ipv6Addr::from);
        let gid = gid.ok_or_else(|| invalid("gid", &row.gid, "eight groups of four hexadecimal digits"))?;
        let interface = match &row.interface {
            None => None,
            Some(name) => Some(
                InterfaceName::parse(name)
                    .ok_or_else(|| invalid("interface", name, "the name of an interface: 1 to 15 bytes of one word"))?,
            ),
        };
        Ok(Self { gid, interface })
    }

    /// Formats the GID as sysfs does, with all digits.
    pub(super) fn full(&self) -> String {
        groups(&self.gid.octets())
    }
}

impl InterfaceName {
    fn parse(name: &str) -> Option<Self> {
        let is_allowed = |sign: char| sign != '/' && !sign.is_whitespace() && !sign.is_control();
        let is_name = (1..=INTERFACE_BYTES_MAX).contains(&name.len()) && name.chars().all(is_allowed);
        (is_name && name != "." && name != "..").then(|| Self(name.to_owned()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl InvalidField {
    fn new(field: &str, value: &str, expected: String) -> Self {
        Self { field: field.to_owned(), value: value.chars().take(SHOWN_CHARS).collect(), expected }
    }
}

impl fmt::Display for InvalidField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, value, expected } = self;
        write!(f, "the daemon's report about verbs has {value:?} as {field}; expected: {expected}")
    }
}

impl std::error::Error for InvalidField {}

/// Parses groups of four hexadecimal digits.
fn from_groups<const COUNT: usize>(text: &str) -> Option<[u16; COUNT]> {
    let group = |text: &str| {
        let is_group = text.len() == 4 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u16::from_str_radix(text, 16).ok().filter(|_| is_group)
    };
    let groups: Option<Vec<u16>> = text.split(':').map(group).collect();
    groups?.try_into().ok()
}

/// Formats bytes as groups of four hexadecimal digits.
fn groups(bytes: &[u8]) -> String {
    let groups: Vec<String> =
        bytes.chunks(2).map(|pair| pair.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    groups.join(":")
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The full form of a GID that ends with these digits.
    pub(crate) fn gid(end: &str) -> String {
        format!("fe80:0000:0000:0000:0000:0000:0000:{end:0>4}")
    }

    /// A report with these GIDs and interfaces.
    pub(crate) fn report(gids: &[(&str, Option<&str>)]) -> VerbsReport {
        serde_json::from_value(json(gids)).unwrap()
    }

    fn json(gids: &[(&str, Option<&str>)]) -> Value {
        let row = |(index, (end, interface)): (usize, &(&str, Option<&str>))| json!({ "index": index, "gid": gid(end), "interface": interface, "kind": GID_KIND });
        let gids: Vec<_> = gids.iter().enumerate().map(row).collect();
        json!({ "schema": 1, "enabled": true, "device": DEVICE, "node_guid": "0211:2233:4455:6677", "gids": gids, "domains": [] })
    }

    #[test]
    fn values_are_written_in_one_form() {
        let mut report = report(&[("1", None), ("abcd", Some("eth0:1"))]);
        report.gids[1].gid = report.gids[1].gid.to_uppercase();
        report.node_guid = "0211:2233:AABB:ccdd".to_owned();
        let device = Device::parse(&report).unwrap();
        assert_eq!(device.node_guid(), "0211:2233:aabb:ccdd");
        assert_eq!(device.gids.iter().map(Gid::full).collect::<Vec<_>>(), [gid("1"), gid("abcd")]);
        assert_eq!(device.gids[1].interface, Some(InterfaceName("eth0:1".to_owned())));
    }

    #[test]
    fn value_that_is_not_of_its_kind_is_refused_with_the_name_of_the_field() {
        let good = json(&[("1", None), ("2", Some("eth0"))]);
        assert!(Device::parse(&serde_json::from_value(good.clone()).unwrap()).is_ok());
        let names = ["", ".", "..", "a/b", "../x", "a b", "a\nb", "\u{1b}[2J", "a\u{a0}", "sixteen-bytes-xx"];
        let numbers =
            ["", "x", "0211:2233:4455", "0211:2233:4455:6677\n", "+211:2233:4455:6677", "../../../etc", "1::2"];
        let of =
            |place: &'static str, values: &[&str]| values.iter().map(|value| (place, json!(value))).collect::<Vec<_>>();
        let bad = [
            of("/device", &["", ".", "../../x", "isthmus1", "isthmus0\n", "isthmus0/../../x"]),
            of("/node_guid", &numbers),
            of("/gids/1/gid", &numbers),
            of("/gids/1/gid", &["fe80::1", "fe80:0000:0000:0000:0000:0000:0000:00001"]),
            of("/gids/1/kind", &["", "IB", "RoCE v2\nx", "../types"]),
            of("/gids/1/interface", &names),
            [0, 2, u32::MAX].map(|index| ("/gids/1/index", json!(index))).into(),
        ];
        for (place, value) in bad.concat() {
            let mut report = good.clone();
            *report.pointer_mut(place).unwrap() = value.clone();
            let error = Device::parse(&serde_json::from_value(report).unwrap()).unwrap_err();
            let field = place[1..].replace("gids/1/", "gids[1].");
            assert_eq!(error.field, field, "{value}");
            assert!(error.to_string().contains(&field) && !error.to_string().contains(char::is_control), "{error}");
        }
        let many = report(&vec![("1", None); GIDS_MAX + 1]);
        assert_eq!(Device::parse(&many).unwrap_err().field, "gids");
    }
}
