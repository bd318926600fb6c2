//! The capabilities of the daemon, and the numbers that belong to each of them.
//!
//! Four tables number what the parts of the system say to each other: messages to the daemon, messages to the client, reasons, and topics
//! of reports. A capability has blocks of its own in each table. All other numbers are general. A number that is in use never changes.

use core::ops::RangeInclusive;

use crate::control::{ToDaemon, Topic};

/// A way to use the daemon, with messages, reasons and reports of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Capability {
    /// MX programs, on MX boards.
    Mx,
    /// TCP and UDP programs.
    Sockets,
    /// RDMA programs.
    Verbs,
    /// Ethernet networks for guests and containers.
    Overlay,
}

/// The blocks of numbers of one capability.
#[derive(Clone, Copy, Debug)]
pub struct NumberBlocks {
    /// The kinds of messages to the daemon.
    pub to_daemon: &'static [RangeInclusive<u16>],
    /// The kinds of messages to the client.
    pub to_client: &'static [RangeInclusive<u16>],
    /// The codes of reasons.
    pub reasons: &'static [RangeInclusive<u16>],
    /// The codes of topics.
    pub topics: &'static [RangeInclusive<u8>],
    /// True if programs of guests may use the capability.
    pub in_guests: bool,
}

impl Capability {
    /// All capabilities.
    pub const ALL: [Self; 4] = [Self::Mx, Self::Sockets, Self::Verbs, Self::Overlay];

    /// Returns the name, as in folders, commands and configuration tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mx => "mx",
            Self::Sockets => "sockets",
            Self::Verbs => "verbs",
            Self::Overlay => "overlay",
        }
    }

    /// True if the capability is supported in guests.
    pub const fn is_in_guests(self) -> bool {
        self.blocks().in_guests
    }

    /// Returns the capability of a message to the daemon. None of a general message.
    pub fn of_message(message: &ToDaemon) -> Option<Self> {
        let kind = message.kind();
        Self::ALL.into_iter().find(|capability| capability.blocks().to_daemon.iter().any(|block| block.contains(&kind)))
    }

    /// Returns the capability of a topic. None of a general topic.
    pub fn of_topic(topic: Topic) -> Option<Self> {
        let code = topic.code();
        Self::ALL.into_iter().find(|capability| capability.blocks().topics.iter().any(|block| block.contains(&code)))
    }

    /// Returns the blocks of numbers of the capability.
    pub const fn blocks(self) -> NumberBlocks {
        match self {
            Self::Mx => NumberBlocks {
                to_daemon: &[16..=18],
                to_client: &[144..=146],
                reasons: &[210..=229, 231..=239], // 230 is general.
                topics: &[9..=9],
                in_guests: true,
            },
            Self::Sockets => NumberBlocks {
                to_daemon: &[32..=47],
                to_client: &[160..=175],
                reasons: &[300..=349],
                topics: &[32..=39],
                in_guests: false,
            },
            Self::Verbs => NumberBlocks {
                to_daemon: &[48..=63],
                to_client: &[176..=191],
                reasons: &[350..=399],
                topics: &[40..=47],
                in_guests: true,
            },
            Self::Overlay => NumberBlocks {
                to_daemon: &[64..=79],
                to_client: &[192..=207],
                reasons: &[400..=449],
                topics: &[48..=55],
                in_guests: false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Capability::{Mx, Overlay, Sockets, Verbs};
    use super::*;
    use crate::control::ToClient;
    use crate::mx::{MxToClient, MxToDaemon};
    use crate::overlay::OverlayToDaemon;
    use crate::reason::Reason;
    use crate::sockets::{SocketsToClient, SocketsToDaemon};
    use crate::verbs::{VerbsToClient, VerbsToDaemon};
    use alloc::collections::BTreeMap;
    use alloc::format;
    use alloc::vec;
    use alloc::vec::Vec;

    /// The number blocks of one table.
    type Table = fn(NumberBlocks) -> Vec<RangeInclusive<u16>>;

    const TO_DAEMON: Table = |blocks| blocks.to_daemon.to_vec();
    const TO_CLIENT: Table = |blocks| blocks.to_client.to_vec();
    const REASONS: Table = |blocks| blocks.reasons.to_vec();
    const TOPICS: Table =
        |blocks| blocks.topics.iter().map(|block| u16::from(*block.start())..=u16::from(*block.end())).collect();

    /// Maps each number of the blocks of a table to its capability.
    fn owners(table: Table) -> BTreeMap<u16, Capability> {
        let mut owners = BTreeMap::new();
        for capability in Capability::ALL {
            for number in table(capability.blocks()).into_iter().flatten() {
                let other = owners.insert(number, capability);
                assert_eq!(other, None, "{number} is also a number of {}", capability.name());
            }
        }
        owners
    }

    /// Checks that the numbers in use that lie in a block are exactly those of the capabilities.
    fn check_numbers_in_use<const N: usize>(
        table: Table,
        in_use: impl IntoIterator<Item = u16>,
        of_capabilities: [(Capability, Vec<u16>); N],
    ) {
        let owners = owners(table);
        let in_blocks: BTreeMap<u16, Capability> =
            in_use.into_iter().filter_map(|number| Some((number, *owners.get(&number)?))).collect();
        let mut expected = BTreeMap::new();
        for (capability, numbers) in of_capabilities {
            assert!(!numbers.is_empty());
            expected.extend(numbers.into_iter().map(|number| (number, capability)));
        }
        assert_eq!(in_blocks, expected);
    }

    #[test]
    fn messages_lie_in_the_blocks_of_their_capabilities() {
        let kinds =
            |table: &'static [crate::control::MessageInfo]| table.iter().map(|info| info.kind).collect::<Vec<_>>();
        let of_capabilities = [
            (Mx, kinds(MxToDaemon::TABLE)),
            (Sockets, kinds(SocketsToDaemon::TABLE)),
            (Verbs, kinds(VerbsToDaemon::TABLE)),
            (Overlay, kinds(OverlayToDaemon::TABLE)),
        ];
        check_numbers_in_use(TO_DAEMON, kinds(ToDaemon::TABLE), of_capabilities);
        let of_capabilities = [
            (Mx, kinds(MxToClient::TABLE)),
            (Sockets, kinds(SocketsToClient::TABLE)),
            (Verbs, kinds(VerbsToClient::TABLE)),
        ];
        check_numbers_in_use(TO_CLIENT, kinds(ToClient::TABLE), of_capabilities);
        assert!(
            owners(TO_DAEMON).into_keys().all(|kind| kind < 128)
                && owners(TO_CLIENT).into_keys().all(|kind| kind > 128)
        );
    }

    #[test]
    fn reasons_lie_in_the_blocks_of_their_capabilities() {
        let of = |prefix: &str| {
            let reasons = Reason::ALL.iter().filter(|reason| format!("{reason:?}").starts_with(prefix));
            reasons.map(|reason| reason.code()).collect()
        };
        let in_use = Reason::ALL.iter().map(|reason| reason.code());
        check_numbers_in_use(
            REASONS,
            in_use,
            [(Mx, of("Mx")), (Sockets, of("Stream")), (Verbs, of("Verbs")), (Overlay, of("Overlay"))],
        );
    }

    #[test]
    fn topics_lie_in_the_blocks_of_their_capabilities() {
        let of_capabilities =
            [(Mx, Topic::Mx), (Sockets, Topic::Streams), (Verbs, Topic::Verbs), (Overlay, Topic::Overlay)]
                .map(|(capability, topic)| (capability, vec![topic.code().into()]));
        check_numbers_in_use(TOPICS, Topic::ALL.map(|topic| topic.code().into()), of_capabilities);
    }
}
