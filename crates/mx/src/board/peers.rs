//! The text format of the static table (mxoe-wire 5.4): one peer per line, with address and name; `#` begins a comment.

use super::table::is_valid_nic;
use crate::wire::BoardName;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;
use isthmus_layout::NicId;

/// An error in a line of the table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct PeerTableError {
    /// The line number, starting at 1.
    pub line: usize,
    /// The error.
    pub what: PeerLineError,
}

/// The reason why a line does not name a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerLineError {
    /// The first word is not six octets.
    #[error("`{0}` is not an address like 00:1b:21:aa:00:01")]
    Address(String),
    /// No board can have the address: it is zero, or a group's.
    #[error("{0} is not the address of a board")]
    InvalidNic(NicId),
    /// The name is missing.
    #[error("{0} has no name: a line is an address and a name")]
    MissingName(NicId),
    /// Text follows the name.
    #[error("`{0}` stands after the name: a line is an address and a name, and a comment begins with #")]
    TrailingText(String),
    /// The name is too long.
    #[error("a name of {bytes} bytes; there are at most {}", BoardName::BYTES_MAX)]
    NameTooLong {
        /// The length of the name in bytes.
        bytes: usize,
    },
    /// The name contains a NUL.
    #[error("a name cannot contain NUL")]
    NulInName,
    /// Another address has the name already.
    #[error("`{name}` is the name of {nic} already, in line {line}")]
    NameTaken {
        /// The name.
        name: BoardName,
        /// The peer that has the name.
        nic: NicId,
        /// The line of that peer.
        line: usize,
    },
}

/// Parses a static table. An address may have several names, each on a line of its own. A name belongs to one address.
pub fn parse_peers(text: &str) -> Result<Vec<(NicId, BoardName)>, PeerTableError> {
    let mut peers = Vec::new();
    let mut names: BTreeMap<&str, (NicId, usize)> = BTreeMap::new();
    for (line, content) in (1..).zip(text.lines()) {
        let problem = |what| PeerTableError { line, what };
        let content = content.split('#').next().unwrap_or(content);
        let mut words = content.split_whitespace();
        let Some(address) = words.next() else { continue };
        let nic = parse_nic(address).map_err(problem)?;
        let word = words.next().ok_or(problem(PeerLineError::MissingName(nic)))?;
        if let Some(rest) = words.next() {
            return Err(problem(PeerLineError::TrailingText(truncated(rest))));
        }
        let name = parse_name(word).map_err(problem)?;
        match names.insert(word, (nic, line)) {
            Some((other, line)) if other != nic => {
                return Err(problem(PeerLineError::NameTaken { name, nic: other, line }));
            }
            Some(_) => {}
            None => peers.push((nic, name)),
        }
    }
    Ok(peers)
}

/// Parses six octets of one or two hexadecimal digits each.
fn parse_nic(word: &str) -> Result<NicId, PeerLineError> {
    let octet = |digits: &str| {
        let fits = matches!(digits.len(), 1 | 2) && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        if fits { u8::from_str_radix(digits, 16).ok() } else { None }
    };
    let mut octets = word.split(':').map(octet);
    let six: [Option<u8>; 6] = core::array::from_fn(|_| octets.next().flatten());
    let nic = match six {
        [Some(a), Some(b), Some(c), Some(d), Some(e), Some(f)] if octets.next().is_none() => {
            NicId::from_octets([a, b, c, d, e, f])
        }
        _ => return Err(PeerLineError::Address(truncated(word))),
    };
    if is_valid_nic(nic) { Ok(nic) } else { Err(PeerLineError::InvalidNic(nic)) }
}

fn parse_name(word: &str) -> Result<BoardName, PeerLineError> {
    if word.len() > BoardName::BYTES_MAX {
        return Err(PeerLineError::NameTooLong { bytes: word.len() });
    }
    BoardName::new(word.as_bytes()).ok_or(PeerLineError::NulInName)
}

/// Shortens a word for an error message.
fn truncated(word: &str) -> String {
    const SHOWN: usize = 40;
    let mut shown: String = word.chars().take(SHOWN).collect();
    if word.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    const NIC: NicId = NicId::from_octets([0, 0x1b, 0x21, 0xaa, 0, 1]);

    fn name(word: &str) -> BoardName {
        BoardName::new(word.as_bytes()).unwrap()
    }

    #[test]
    fn parses_a_peer_table() {
        let text = "# peers\n\n00:1b:21:aa:00:01 nodeA:0 # the first\r\n\t0:1B:21:aa:0:1   ib0\n02:0:0:0:0:9\tnodeB:0";
        let other = NicId::from_octets([2, 0, 0, 0, 0, 9]);
        let expected = [(NIC, name("nodeA:0")), (NIC, name("ib0")), (other, name("nodeB:0"))];
        assert_eq!(parse_peers(text).unwrap(), expected);
        assert_eq!(parse_peers("").unwrap(), []);
        assert_eq!(parse_peers("00:1b:21:aa:00:01 a\n00:1b:21:aa:00:01 a").unwrap(), [(NIC, name("a"))]);
    }

    #[test]
    fn errors_name_the_line_and_the_fix() {
        let said = |text: &str| parse_peers(text).unwrap_err().to_string();
        assert_eq!(said("\nnodeA"), "line 2: `nodeA` is not an address like 00:1b:21:aa:00:01");
        for address in
            ["00:1b:21:aa:00", "00:1b:21:aa:00:01:02", "00:1b:21:aa:00:", "00:1b:21:aa:00:+1", "0::::0:", "é:"]
        {
            assert!(said(&alloc::format!("{address} a")).contains("is not an address like"), "{address}");
        }
        assert_eq!(
            said("00:1b:21:aa:00:01 # no"),
            "line 1: 00:1b:21:aa:00:01 has no name: a line is an address and a name"
        );
        assert_eq!(said("ff:ff:ff:ff:ff:ff all"), "line 1: ff:ff:ff:ff:ff:ff is not the address of a board");
        assert_eq!(said("01:00:5e:0:0:1 group"), "line 1: 01:00:5e:00:00:01 is not the address of a board");
        assert_eq!(said("0:0:0:0:0:0 zero"), "line 1: 00:00:00:00:00:00 is not the address of a board");
        assert!(said("00:1b:21:aa:00:01 a b").contains("`b` stands after the name"));
        assert!(said("00:1b:21:aa:00:01 a\0b").contains("NUL"));
        let long = alloc::format!("00:1b:21:aa:00:01 {}", "x".repeat(80));
        assert_eq!(said(&long), "line 1: a name of 80 bytes; there are at most 79");
        let twice = "00:1b:21:aa:00:01 a\n\n00:1b:21:aa:00:02 a";
        assert_eq!(said(twice), "line 3: `a` is the name of 00:1b:21:aa:00:01 already, in line 1");
    }
}
