//! The MX boards of this host: the settings, and what is made of those that are left open.

use std::collections::BTreeSet;

use isthmus_layout::ids::NicId;
use isthmus_layout::limits::{MX_BOARDS_MAX, MX_ENDPOINTS_MAX, MX_NAME_BYTES_MAX};

use super::fields::Fields;
use super::keys::Mx;
use super::problem::{Finding, Wrong};
use super::setting::{Integer, Item, Setting};
use crate::directory::mx::MxBoard;

/// Endpoint numbers of a board that does not say how many it has.
const ENDPOINTS_DEFAULT: u32 = 32;

/// Bytes of a host's name that are kept in a board's: behind it stand a colon and a number.
const HOST_BYTES_MAX: usize = MX_NAME_BYTES_MAX - ":4294967295".len();

impl Mx {
    /// The boards, with everything that was left open: names and addresses come from the name of the host, and stay the same as
    /// long as that does. Says which two cannot be told apart, if there are such.
    pub fn resolved(&self, host: &str) -> Result<Vec<MxBoard>, String> {
        let mut boards: Vec<MxBoard> = Vec::new();
        for (number, board) in self.board.0.iter().enumerate() {
            let nic = board.mac.map_or_else(|| made_up(host, number), |mac| mac.0);
            let name = board.name.as_ref().map_or_else(|| default_name(host, number), |name| name.0.clone());
            if let Some(other) = boards.iter().position(|other| other.name == name) {
                return Err(format!("mx.board[{other}] and mx.board[{number}] are both called {name}"));
            }
            if let Some(other) = boards.iter().position(|other| other.nic == nic) {
                return Err(format!("mx.board[{other}] and mx.board[{number}] both have the address {nic}"));
            }
            let endpoints = board.endpoints_max.map_or(ENDPOINTS_DEFAULT, Integer::get);
            boards.push(MxBoard { nic, name, endpoints });
        }
        Ok(boards)
    }
}

/// An address that no card has, the same for each start: locally administered, for one station.
fn made_up(host: &str, number: usize) -> NicId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"isthmus mx board 1");
    hasher.update(&(number as u64).to_le_bytes());
    hasher.update(host.as_bytes());
    let mut octets: [u8; 6] = std::array::from_fn(|at| hasher.finalize().as_bytes()[at]);
    octets[0] = octets[0] & !0x01 | 0x02;
    NicId::from_octets(octets)
}

fn default_name(host: &str, number: usize) -> String {
    let mut name = String::new();
    for character in host.chars().filter(|character| character.is_ascii_graphic()).take(HOST_BYTES_MAX) {
        name.push(character);
    }
    let host = if name.is_empty() { "localhost" } else { &name };
    format!("{host}:{number}")
}

/// The boards, numbered from 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Boards(Vec<Board>);

impl Boards {
    /// In the order of their numbers.
    #[must_use]
    pub fn as_slice(&self) -> &[Board] {
        &self.0
    }
}

impl Setting for Boards {
    const TYPE: &'static str = "list of tables";
    const EXAMPLE: &'static str = "boards are written as in [{ name = \"web:0\", endpoints_max = 64 }]";

    fn expected() -> String {
        format!("a list of at most {MX_BOARDS_MAX} tables {{ mac, name, endpoints_max }}")
    }

    fn read(item: &Item<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let members = item.list::<Self>(findings)?;
        if members.len() > MX_BOARDS_MAX {
            let (key, found) = (item.key.clone(), format!("a list of {}", members.len()));
            findings.push(item.finding(Wrong::OutOfRange { key, found, expected: Self::expected() }, None));
            return None;
        }
        let (mut boards, mut seen) = (Vec::new(), BTreeSet::new());
        for member in members {
            let Some(board) = Board::read(&member, findings) else { continue };
            let named =
                [board.mac.map(|mac| format!("the address {}", mac.0)), board.name.as_ref().map(BoardName::told)];
            for found in named.into_iter().flatten().filter(|named| !seen.insert(named.clone())) {
                findings.push(member.finding(Wrong::Repeated { key: item.key.clone(), found }, None));
            }
            boards.push(board);
        }
        (findings.len() == before).then_some(Self(boards))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.iter().map(Board::to_toml).collect::<Vec<_>>().into()
    }
}

/// A board; what it does not say is made up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Board {
    /// Its address.
    pub mac: Option<Mac>,
    /// What it is called.
    pub name: Option<BoardName>,
    /// How many endpoint numbers it has.
    pub endpoints_max: Option<Integer<1, MX_ENDPOINTS_MAX>>,
}

impl Board {
    const FIELDS: &'static [&'static str] = &["mac", "name", "endpoints_max"];
}

impl Setting for Board {
    const TYPE: &'static str = "table";

    fn expected() -> String {
        "a table { mac, name, endpoints_max }".to_owned()
    }

    fn read(item: &Item<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let before = findings.len();
        let fields = Fields::of::<Self>(item, Self::FIELDS, "a board has mac, name and endpoints_max", findings)?;
        let board = Self {
            mac: fields.get("mac", findings),
            name: fields.get("name", findings),
            endpoints_max: fields.get("endpoints_max", findings),
        };
        (findings.len() == before).then_some(board)
    }

    fn to_toml(&self) -> toml::Value {
        let mut table = toml::Table::new();
        let fields = [
            ("mac", self.mac.as_ref().map(Setting::to_toml)),
            ("name", self.name.as_ref().map(Setting::to_toml)),
            ("endpoints_max", self.endpoints_max.as_ref().map(Setting::to_toml)),
        ];
        for (name, value) in fields {
            table.extend(value.map(|value| (name.to_owned(), value)));
        }
        table.into()
    }
}

/// The address of one station, as network cards have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(NicId);

impl Mac {
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

    fn read(item: &Item<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        let octets = Self::parse(text).filter(|_| text.bytes().all(|byte| byte != b'+'));
        let help = match octets {
            Some(octets) if octets[0] & 1 != 0 => "an odd first octet means a group of stations",
            Some([0, 0, 0, 0, 0, 0]) => "all zeros is nobody's address",
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

/// What a board is called: what MX programs give and get for a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoardName(String);

impl BoardName {
    fn told(&self) -> String {
        format!("the name \"{}\"", self.0)
    }
}

impl Setting for BoardName {
    const TYPE: &'static str = "string";

    fn expected() -> String {
        format!("a name of 1 to {MX_NAME_BYTES_MAX} printable ASCII characters without spaces")
    }

    fn read(item: &Item<'_>, findings: &mut Vec<Finding>) -> Option<Self> {
        let text = item.text::<Self>(findings)?;
        let fits = (1..=MX_NAME_BYTES_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        if !fits {
            findings.push(item.wrong_text(&Self::expected(), None));
        }
        fits.then(|| Self(text.to_owned()))
    }

    fn to_toml(&self) -> toml::Value {
        self.0.as_str().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigFile, Inputs, Role, load};

    fn resolved(toml: &str, host: &str) -> Result<Vec<MxBoard>, String> {
        let file = ConfigFile::Given { path: "test.toml".into(), bytes: toml.as_bytes().to_vec() };
        load(&Inputs { file, ..Inputs::bare(Role::System) }).unwrap().config.mx.resolved(host)
    }

    #[test]
    fn without_a_word_there_is_one_board_named_after_the_host() {
        let boards = resolved("", "node7").unwrap();
        assert_eq!((boards.len(), boards[0].name.as_str(), boards[0].endpoints), (1, "node7:0", 32));
        assert_eq!(resolved("", "node7").unwrap(), boards, "the same for each start");
        assert_ne!(resolved("", "node8").unwrap()[0].nic, boards[0].nic);
    }

    #[test]
    fn made_up_addresses_are_those_of_no_card_and_of_one_station() {
        let addresses: BTreeSet<_> = (0..1000).map(|number| made_up("node7", number)).collect();
        assert_eq!(addresses.len(), 1000);
        assert!(addresses.iter().all(|nic| nic.number() >> 40 & 0b11 == 0b10));
    }

    #[test]
    fn what_is_said_holds_and_the_rest_is_made_up() {
        let toml = "[[mx.board]]\nname = 'big'\nendpoints_max = 255\n[[mx.board]]\nmac = '00-60-DD-00-00-01'\n";
        let boards = resolved(toml, "node7").unwrap();
        assert_eq!((boards[0].name.as_str(), boards[0].endpoints), ("big", 255));
        assert_eq!((boards[1].name.as_str(), boards[1].nic.number()), ("node7:1", 0x0060_dd00_0001));
        assert_eq!(resolved("mx.board = []", "node7"), Ok(Vec::new()));
    }

    #[test]
    fn a_name_that_a_host_makes_may_be_taken_already() {
        let toml = "[[mx.board]]\nname = 'node7:1'\n[[mx.board]]\n";
        let address = made_up("node7", 0);
        let second = format!("[[mx.board]]\n[[mx.board]]\nmac = '{address}'\n");
        assert!(resolved(&second, "node7").unwrap_err().ends_with(&format!("both have the address {address}")));
        assert!(
            resolved(toml, "node7").unwrap_err().starts_with("mx.board[0] and mx.board[1] are both called node7:1")
        );
        assert_eq!(resolved(toml, "node8").unwrap().len(), 2);
    }

    #[test]
    fn a_long_or_strange_host_still_makes_a_name() {
        assert_eq!(resolved("", &"x".repeat(300)).unwrap()[0].name.len(), HOST_BYTES_MAX + 2);
        assert_eq!(resolved("", "").unwrap()[0].name, "localhost:0");
        assert_eq!(resolved("", "a b\u{7}é").unwrap()[0].name, "ab:0");
    }
}
