//! The plan made from the boards' settings: names and addresses that were left open, and questions that the daemon has
//! to ask the host.

use std::fmt::Display;
use std::net::SocketAddr;

use isthmus_layout::ids::NicId;
use isthmus_layout::mx::NAME_BYTES_MAX;

use super::network::Network;
use crate::keys::MxConfig;
use crate::setting::Integer;

/// The default number of endpoints of a board.
const ENDPOINTS_DEFAULT: u32 = 32;

/// The largest part of a host's name, in bytes, in a board's name. A colon and a number follow.
const HOST_BYTES_MAX: usize = NAME_BYTES_MAX - ":4294967295".len();

/// The host as boards know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MxHost {
    /// The name of the host.
    pub name: String,
    /// The number that tells the host from hosts of the same name. It is the same for each start.
    pub id: [u8; 32],
}

/// The plan of a board that the daemon sets up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MxBoardPlan {
    /// The address, or the interface to ask for it.
    pub nic: BoardNic,
    /// The name that people use.
    pub name: String,
    /// The number of its endpoints.
    pub endpoints: u32,
    /// The other hosts and the links to them; none if the board serves this host only.
    pub network: Option<Network>,
}

/// The address of a board.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoardNic {
    /// A configured or generated address.
    Fixed(NicId),
    /// The address of an interface.
    OfInterface(String),
}

/// A board as the configuration describes it, with its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MxBoardEntry {
    /// Its address.
    pub nic: NicId,
    /// The name that people use.
    pub name: String,
    /// The number of its endpoints.
    pub endpoints: u32,
}

impl MxConfig {
    /// Plans the boards, and generates what was left open: names from the name of the host, addresses from the identity
    /// of the host. Both stay the same as long as these do. A board with an interface takes its address. The error
    /// names two boards that have the same name or address.
    pub fn plans(&self, host: &MxHost) -> Result<Vec<MxBoardPlan>, String> {
        let plan = |(number, board): (usize, &super::MxBoardConfig)| MxBoardPlan {
            nic: match (board.mac, board.address_interface()) {
                (Some(mac), _) => BoardNic::Fixed(mac.nic()),
                (None, Some(interface)) => BoardNic::OfInterface(interface.to_owned()),
                (None, None) => BoardNic::Fixed(generated_address(host, number, board.udp_address())),
            },
            name: board.name.as_ref().map_or_else(|| default_name(&host.name, number), |name| name.as_str().to_owned()),
            endpoints: board.endpoints_max.map_or(ENDPOINTS_DEFAULT, Integer::get),
            network: board.network.clone(),
        };
        let plans: Vec<MxBoardPlan> = self.board.as_slice().iter().enumerate().map(plan).collect();
        check_distinct(plans.iter().map(|plan| match plan.nic {
            BoardNic::Fixed(nic) => (plan.name.as_str(), Some(nic)),
            BoardNic::OfInterface(_) => (plan.name.as_str(), None),
        }))?;
        Ok(plans)
    }

    /// Returns the boards without links: one that would take an interface's address has a generated one.
    pub fn resolved(&self, host: &MxHost) -> Result<Vec<MxBoardEntry>, String> {
        MxBoardPlan::resolve_addresses(&self.plans(host)?, |number, _| {
            Ok::<_, String>(generated_address(host, number, None))
        })
    }
}

impl MxBoardPlan {
    /// Resolves the addresses of the boards. `address_of` gets the number of a board and the interface to take its
    /// address from. The error names a board without an address, or two boards with the same address.
    pub fn resolve_addresses<E: Display>(
        plans: &[Self],
        mut address_of: impl FnMut(usize, &str) -> Result<NicId, E>,
    ) -> Result<Vec<MxBoardEntry>, String> {
        let mut boards = Vec::new();
        for (number, plan) in plans.iter().enumerate() {
            let nic = match &plan.nic {
                BoardNic::Fixed(nic) => *nic,
                BoardNic::OfInterface(interface) => {
                    let nic = address_of(number, interface).map_err(|error| format!("mx.board[{number}]: {error}"))?;
                    if !is_unicast(nic) {
                        return Err(format!("mx.board[{number}] needs a mac: {interface} has the address {nic}"));
                    }
                    nic
                }
            };
            boards.push(MxBoardEntry { nic, name: plan.name.clone(), endpoints: plan.endpoints });
        }
        check_distinct(boards.iter().map(|board| (board.name.as_str(), Some(board.nic))))?;
        Ok(boards)
    }
}

/// Checks that no two boards have the same name or address; the error names both.
fn check_distinct<'a>(boards: impl Iterator<Item = (&'a str, Option<NicId>)>) -> Result<(), String> {
    let mut seen: Vec<(&str, Option<NicId>)> = Vec::new();
    for (number, (name, nic)) in boards.enumerate() {
        if let Some(other) = seen.iter().position(|other| other.0 == name) {
            return Err(format!("mx.board[{other}] and mx.board[{number}] are both called {name}"));
        }
        if let (Some(nic), Some(other)) = (nic, seen.iter().position(|other| nic.is_some() && other.1 == nic)) {
            return Err(format!("mx.board[{other}] and mx.board[{number}] both have the address {nic}"));
        }
        seen.push((name, nic));
    }
    Ok(())
}

/// Whether an address can be that of one station.
fn is_unicast(nic: NicId) -> bool {
    nic.number() != 0 && nic.number() >> 40 & 1 == 0
}

/// Generates an address that no card has, the same for each start: locally administered, for one station. Where
/// machines are copies of each other, name and all, the address of their datagrams still tells them apart.
fn generated_address(host: &MxHost, number: usize, udp_address: Option<SocketAddr>) -> NicId {
    let mut hasher = blake3::Hasher::new_keyed(&host.id);
    hasher.update(b"isthmus mx board 2");
    hasher.update(&(number as u64).to_le_bytes());
    hasher.update(host.name.as_bytes());
    if let Some(at) = udp_address {
        hasher.update(&[0]); // Which no name has.
        hasher.update(at.to_string().as_bytes());
    }
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{ConfigFile, Inputs, Role, load};

    fn mx(toml: &str) -> MxConfig {
        let file = ConfigFile::Given { path: "test.toml".into(), bytes: toml.as_bytes().to_vec() };
        load(&Inputs { file, ..Inputs::bare(Role::System) }).unwrap().config.mx
    }

    fn host(name: &str) -> MxHost {
        MxHost { name: name.to_owned(), id: [7; 32] }
    }

    fn resolved(toml: &str, name: &str) -> Result<Vec<MxBoardEntry>, String> {
        mx(toml).resolved(&host(name))
    }

    #[test]
    fn default_is_one_board_named_after_the_host() {
        let boards = resolved("", "node7").unwrap();
        assert_eq!((boards.len(), boards[0].name.as_str(), boards[0].endpoints), (1, "node7:0", 32));
        assert_eq!(resolved("", "node7").unwrap(), boards, "the same for each start");
        assert_ne!(resolved("", "node8").unwrap()[0].nic, boards[0].nic);
    }

    #[test]
    fn generated_addresses_are_local_and_unicast() {
        let addresses: BTreeSet<_> = (0..1000).map(|number| generated_address(&host("node7"), number, None)).collect();
        assert_eq!(addresses.len(), 1000);
        assert!(addresses.iter().all(|nic| nic.number() >> 40 & 0b11 == 0b10));
    }

    #[test]
    fn hosts_of_one_name_get_different_addresses() {
        let datagrams = |at: &str| format!("[[mx.board]]\nlinks = [{{ udp = '{at}', peers = ['10.0.0.9'] }}]\n");
        let nic =
            |toml: &str, id| mx(toml).resolved(&MxHost { name: "node7".to_owned(), id: [id; 32] }).unwrap()[0].nic;
        assert_ne!(nic("", 1), nic("", 2), "each machine has an id");
        let copies = ["10.0.0.1", "10.0.0.2", "10.0.0.1:7000"].map(|at| nic(&datagrams(at), 1));
        assert_eq!(nic(&datagrams("10.0.0.1"), 1), copies[0], "the same for each start");
        assert_eq!(BTreeSet::from(copies).len(), 3, "copies of a machine still have addresses of their own");
    }

    #[test]
    fn keeps_configured_values_and_generates_the_rest() {
        let toml = "[[mx.board]]\nname = 'big'\nendpoints_max = 255\n[[mx.board]]\nmac = '00-60-DD-00-00-01'\n";
        let boards = resolved(toml, "node7").unwrap();
        assert_eq!((boards[0].name.as_str(), boards[0].endpoints), ("big", 255));
        assert_eq!((boards[1].name.as_str(), boards[1].nic.number()), ("node7:1", 0x0060_dd00_0001));
        assert_eq!(resolved("mx.board = []", "node7"), Ok(Vec::new()));
    }

    #[test]
    fn refuses_a_configured_name_equal_to_a_default_name() {
        let toml = "[[mx.board]]\nname = 'node7:1'\n[[mx.board]]\n";
        let address = generated_address(&host("node7"), 0, None);
        let second = format!("[[mx.board]]\n[[mx.board]]\nmac = '{address}'\n");
        assert!(resolved(&second, "node7").unwrap_err().ends_with(&format!("both have the address {address}")));
        assert!(
            resolved(toml, "node7").unwrap_err().starts_with("mx.board[0] and mx.board[1] are both called node7:1")
        );
        assert_eq!(resolved(toml, "node8").unwrap().len(), 2);
    }

    #[test]
    fn shortens_and_cleans_host_names() {
        assert_eq!(resolved("", &"x".repeat(300)).unwrap()[0].name.len(), HOST_BYTES_MAX + 2);
        assert_eq!(resolved("", "").unwrap()[0].name, "localhost:0");
        assert_eq!(resolved("", "a b\u{7}é").unwrap()[0].name, "ab:0");
    }

    const LINKED: &str = "
        [[mx.board]]
        links = [{ udp = '10.0.0.1', peers = ['10.0.0.2'] }, { interface = 'eth1' }, { interface = 'eth0' }]
        [[mx.board]]
        mac = '02:00:00:00:00:01'
        links = [{ interface = 'eth1' }]
        [[mx.board]]
        links = [{ udp = '10.0.0.1:7000', peers = ['10.0.0.2:7000'], interface = 'eth0' }]
    ";

    #[test]
    fn board_uses_the_address_of_its_first_interface_by_default() {
        let plans = mx(LINKED).plans(&host("node7")).unwrap();
        assert_eq!(plans[0].nic, BoardNic::OfInterface("eth1".to_owned()));
        assert_eq!(plans[1].nic, BoardNic::Fixed(NicId::from_octets([2, 0, 0, 0, 0, 1])));
        assert_eq!(
            plans[2].nic,
            BoardNic::Fixed(generated_address(&host("node7"), 2, "10.0.0.1:7000".parse().ok())),
            "datagrams do not need a card's address"
        );

        let card = NicId::from_octets([0, 0x1b, 0x21, 0, 0, 7]);
        let mut asked = Vec::new();
        let boards = MxBoardPlan::resolve_addresses(&plans, |number, interface| {
            asked.push((number, interface.to_owned()));
            Ok::<_, String>(card)
        });
        let boards = boards.unwrap();
        assert_eq!(asked, [(0, "eth1".to_owned())]);
        assert_eq!((boards[0].nic, boards[0].name.as_str(), boards[0].endpoints), (card, "node7:0", ENDPOINTS_DEFAULT));
        assert_eq!(boards[2].nic, generated_address(&host("node7"), 2, "10.0.0.1:7000".parse().ok()));
        assert_eq!(mx(LINKED).resolved(&host("node7")).unwrap()[0].nic, generated_address(&host("node7"), 0, None));
    }

    #[test]
    fn refuses_an_interface_without_a_unicast_address() {
        let plans = mx(LINKED).plans(&host("node7")).unwrap();
        let with = |octets| {
            MxBoardPlan::resolve_addresses(&plans, |_, _| Ok::<_, String>(NicId::from_octets(octets))).unwrap_err()
        };
        assert_eq!(with([0; 6]), "mx.board[0] needs a mac: eth1 has the address 00:00:00:00:00:00");
        assert_eq!(with([1, 0, 0, 0, 0, 0]), "mx.board[0] needs a mac: eth1 has the address 01:00:00:00:00:00");
        let taken = "mx.board[0] and mx.board[1] both have the address 02:00:00:00:00:01";
        assert_eq!(with([2, 0, 0, 0, 0, 1]), taken);
        let error =
            MxBoardPlan::resolve_addresses(&plans, |_, interface| Err(format!("there is no interface {interface}")))
                .unwrap_err();
        assert_eq!(error, "mx.board[0]: there is no interface eth1");
    }
}
