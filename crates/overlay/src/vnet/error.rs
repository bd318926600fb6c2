//! The reasons why a text is refused.

use alloc::string::String;

use super::command::VnetFile;
use super::route_line::{RouteLineError, UnknownPort};
use super::table::OUTPUT_BYTES_MAX;

/// The first line that refuses a text, and why. Nothing of the text has an effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct VnetError {
    /// The number of the line, from 1.
    pub line: usize,
    /// The reason.
    pub reason: VnetReason,
}

/// The reason why a command is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VnetReason {
    /// The verb is unknown.
    #[error("`{0}` is not `ADD`, `DEL` or `LIST`, and neither `links` nor `routes` without further words")]
    Verb(String),
    /// `ADD` without a file has the words of neither a link nor a route.
    #[error(
        "`ADD` has 2 or 3 words for a link (ADDRESS PORT [udp]) and 5 or 6 for a route (SOURCE-MAC DESTINATION-MAC edge|interface ID any, \
         or edge|interface ID in place of any), not {0}"
    )]
    AddWords(usize),
    /// A link has too few or too many words.
    #[error("`ADD` in `links` has 2 or 3 words (ADDRESS PORT [udp]), not {0}")]
    LinkWords(usize),
    /// The address is not that of a host.
    #[error("`{0}` is not the IPv4 or IPv6 address of a host")]
    Address(String),
    /// The port is not a number from 1 to 65535.
    #[error("`{0}` is not a port from 1 to 65535")]
    Port(String),
    /// A link is to use TCP.
    #[error("links use UDP; there is no encapsulation in TCP")]
    Tcp,
    /// A link is to use an unknown protocol.
    #[error("`{0}` is not `udp`")]
    Protocol(String),
    /// A route is malformed.
    #[error(transparent)]
    Route(#[from] RouteLineError),
    /// A route names an interface or edge that does not exist.
    #[error(transparent)]
    UnknownPort(#[from] UnknownPort),
    /// The network has an edge to this address and port.
    #[error("the network has this link already: it has the index {0}")]
    LinkExists(u64),
    /// `DEL` without a file.
    #[error("`DEL` applies to links or to routes: write a line `links` or `routes` before it")]
    DeleteWithoutFile,
    /// `DEL` has too few or too many words.
    #[error("`DEL` has one word, the index, not {0}")]
    DeleteWords(usize),
    /// The index is not a number.
    #[error("`{0}` is not an index: a decimal number, which `LIST` prints")]
    Index(String),
    /// No entry has the index.
    #[error("no entry of `{file}` has the index {index}")]
    UnknownIndex {
        /// The file of the command.
        file: VnetFile,
        /// The index.
        index: u64,
    },
    /// A route names the link that is to be deleted.
    #[error("the route {0} names this link: delete the route first")]
    LinkInUse(u64),
    /// `LIST` has words.
    #[error("`LIST` has no words: write a line `links` or `routes` before it to list one of them")]
    ListWords,
    /// The output of all `LIST` of the text is too long.
    #[error("the output is longer than {OUTPUT_BYTES_MAX} bytes: use `LIST` less often")]
    OutputTooLong,
}

/// The maximum number of characters of a word in a message.
const WORD_CHARS_MAX: usize = 64;

/// Returns a word for a message: its beginning, without control characters.
pub(super) fn shown(word: &str) -> String {
    word.chars().take(WORD_CHARS_MAX).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_no_long_words_and_no_control_characters() {
        assert_eq!(shown("a\u{1b}[0m"), "a\\u{1b}[0m");
        assert_eq!(shown(&"é".repeat(1000)), "é".repeat(WORD_CHARS_MAX));
    }
}
