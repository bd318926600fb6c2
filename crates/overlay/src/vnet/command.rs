//! Commands as text.
//!
//! ```text
//!   links  │ routes                       the file of the following commands (VNET/P: the file that is written to)
//!   ADD IPv4|IPv6 PORT [udp]              in `links`
//!   ADD ROUTE                             in `routes`, see RouteLine
//!   DEL INDEX                             in both
//!   LIST                                  in both (VNET/P: the file is read)
//! ```
//!
//! CR and LF separate lines, spaces and tabs separate words, and a word that begins with `#` starts a comment. A verb counts by its first
//! three letters, of any case.

use alloc::vec::Vec;
use core::fmt;
use core::net::{IpAddr, SocketAddr};

use super::error::{VnetError, VnetReason, shown};
use super::route_line::RouteLine;

/// The two files of VNET/P.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VnetFile {
    /// The file of the links.
    Links,
    /// The file of the routes.
    Routes,
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    AddLink(SocketAddr),
    AddRoute(RouteLine),
    Delete(VnetFile, u64),
    /// Lists one file, or both.
    List(Option<VnetFile>),
}

/// Parses a text. Returns the commands with the numbers of their lines, which begin with 1.
pub(super) fn parse(text: &str) -> Result<Vec<(usize, Command)>, VnetError> {
    let mut file = None;
    let mut commands = Vec::new();
    for (number, line) in lines(text) {
        let words: Vec<_> = line.split([' ', '\t']).filter(|word| !word.is_empty()).collect();
        let comment = words.iter().position(|word| word.starts_with('#'));
        match &words[..comment.unwrap_or(words.len())] {
            [] => {}
            [word] if word.eq_ignore_ascii_case("links") => file = Some(VnetFile::Links),
            [word] if word.eq_ignore_ascii_case("routes") => file = Some(VnetFile::Routes),
            [verb, words @ ..] => {
                let command = command(file, verb, words).map_err(|reason| VnetError { line: number, reason })?;
                commands.push((number, command));
            }
        }
    }
    Ok(commands)
}

/// The lines of a text with their numbers. CR LF is one end of a line.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.split('\n').flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'));
    (1..).zip(lines)
}

fn command(file: Option<VnetFile>, verb: &str, words: &[&str]) -> Result<Command, VnetReason> {
    let is_verb = |name: &str| verb.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(name));
    if is_verb("add") {
        match (file, words.len()) {
            (Some(VnetFile::Links), _) | (None, 2 | 3) => link(words).map(Command::AddLink),
            (Some(VnetFile::Routes), _) | (None, 5 | 6) => Ok(Command::AddRoute(RouteLine::from_words(words)?)),
            (None, count) => Err(VnetReason::AddWords(count)),
        }
    } else if is_verb("del") {
        let file = file.ok_or(VnetReason::DeleteWithoutFile)?;
        let [index] = words else { return Err(VnetReason::DeleteWords(words.len())) };
        let digits = Some(index).filter(|index| index.bytes().all(|digit| digit.is_ascii_digit()));
        let number = digits.and_then(|digits| digits.parse().ok());
        Ok(Command::Delete(file, number.ok_or_else(|| VnetReason::Index(shown(index)))?))
    } else if is_verb("lis") {
        if words.is_empty() { Ok(Command::List(file)) } else { Err(VnetReason::ListWords) }
    } else {
        Err(VnetReason::Verb(shown(verb)))
    }
}

/// Parses the words of a link: where its host receives.
fn link(words: &[&str]) -> Result<SocketAddr, VnetReason> {
    let (address, port) = match *words {
        [address, port] => (address, port),
        [address, port, protocol] if protocol.eq_ignore_ascii_case("udp") => (address, port),
        [_, _, protocol] if protocol.eq_ignore_ascii_case("tcp") => return Err(VnetReason::Tcp),
        [_, _, protocol] => return Err(VnetReason::Protocol(shown(protocol))),
        _ => return Err(VnetReason::LinkWords(words.len())),
    };
    let ip = address.parse::<IpAddr>().ok().filter(|ip| is_host(*ip));
    let ip = ip.ok_or_else(|| VnetReason::Address(shown(address)))?;
    let digits = Some(port).filter(|port| port.bytes().all(|digit| digit.is_ascii_digit()));
    let port = digits.and_then(|port| port.parse().ok()).filter(|port| *port != 0);
    Ok(SocketAddr::new(ip, port.ok_or_else(|| VnetReason::Port(shown(words[1])))?))
}

/// Returns whether one host can have this address.
pub fn is_host(ip: IpAddr) -> bool {
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !ip.is_unspecified() && !ip.is_multicast() && !is_broadcast
}

impl VnetFile {
    /// Returns the name of the file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Links => "links",
            Self::Routes => "routes",
        }
    }
}

impl fmt::Display for VnetFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::super::route_line::RouteLineError;
    use super::*;
    use alloc::borrow::ToOwned as _;

    fn commands(text: &str) -> Vec<Command> {
        parse(text).unwrap_or_else(|error| panic!("{error}")).into_iter().map(|(_, command)| command).collect()
    }

    fn link(text: &str) -> Command {
        Command::AddLink(text.parse().unwrap())
    }

    fn route(text: &str) -> Command {
        Command::AddRoute(text.parse().unwrap())
    }

    #[test]
    fn the_arguments_tell_links_and_routes_apart() {
        let text = "ADD 192.0.2.2 9000\nADD fd00::2 9001 UDP\nADD any any edge 192.0.2.2 any\nADD any any edge 192.0.2.2 edge fd00::2";
        let expected = [
            link("192.0.2.2:9000"),
            link("[fd00::2]:9001"),
            route("any any edge 192.0.2.2 any"),
            route("any any edge 192.0.2.2 edge fd00::2"),
        ];
        assert_eq!(commands(text), expected);
    }

    #[test]
    fn a_file_holds_until_the_next_one() {
        use VnetFile::{Links, Routes};
        let text = "LIST\nlinks\nDEL 1\nLIST\nRoutes\nDEL 02\nLIST";
        let expected = [
            Command::List(None),
            Command::Delete(Links, 1),
            Command::List(Some(Links)),
            Command::Delete(Routes, 2),
            Command::List(Some(Routes)),
        ];
        assert_eq!(commands(text), expected);
    }

    #[test]
    fn verbs_count_by_three_letters_and_blanks_by_none() {
        let text = " \t\r\n# a comment\r\n\taddress  192.0.2.2\t9000 # another\rlisting\r\nLinks #\nDelete\t7";
        let parsed = parse(text).unwrap();
        let expected =
            [(3, link("192.0.2.2:9000")), (4, Command::List(None)), (6, Command::Delete(VnetFile::Links, 7))];
        assert_eq!(parsed, expected);
        assert_eq!(commands(""), []);
    }

    #[test]
    fn refuses_other_texts_by_name_and_line() {
        use VnetReason as Why;
        let word = |text: &str| text.to_owned();
        let cases = [
            ("CHANGE 1", Why::Verb(word("CHANGE"))),
            ("ad 192.0.2.2 9000", Why::Verb(word("ad"))),
            ("äöü", Why::Verb(word("äöü"))),
            ("ADD", Why::AddWords(0)),
            ("ADD a b c d", Why::AddWords(4)),
            ("links\nADD any any edge 192.0.2.2 any", Why::LinkWords(5)),
            ("routes\nADD 192.0.2.2 9000", Why::Route(RouteLineError::Words(2))),
            ("ADD 2:0:0:0:0 any edge 192.0.2.2 any", Why::Route(RouteLineError::Mac(word("2:0:0:0:0")))),
            ("ADD 192.0.2.2 9000 tcp", Why::Tcp),
            ("ADD 192.0.2.2 9000 sctp", Why::Protocol(word("sctp"))),
            ("ADD host 9000", Why::Address(word("host"))),
            ("ADD 224.0.0.1 9000", Why::Address(word("224.0.0.1"))),
            ("ADD ff02::1 9000", Why::Address(word("ff02::1"))),
            ("ADD 255.255.255.255 9000", Why::Address(word("255.255.255.255"))),
            ("ADD :: 9000", Why::Address(word("::"))),
            ("ADD 192.0.2.2 0", Why::Port(word("0"))),
            ("ADD 192.0.2.2 65536", Why::Port(word("65536"))),
            ("ADD 192.0.2.2 +9", Why::Port(word("+9"))),
            ("DEL 1", Why::DeleteWithoutFile),
            ("links\nDEL", Why::DeleteWords(0)),
            ("links\nDEL 1 2", Why::DeleteWords(2)),
            ("links\nDEL -1", Why::Index(word("-1"))),
            ("links\nDEL 99999999999999999999", Why::Index(word("99999999999999999999"))),
            ("LIST links", Why::ListWords),
        ];
        for (text, reason) in cases {
            let line = text.lines().count();
            assert_eq!(parse(text), Err(VnetError { line, reason }), "{text}");
        }
    }
}
