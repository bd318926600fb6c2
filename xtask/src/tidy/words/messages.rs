//! Finds the messages of a Rust file: texts of log lines, errors and refusals, which are read without the code around them.
//!
//! ```text
//! warn!(guest, "text {a}")                       a log line
//! #[error("text {0}")]                           an error
//! bail!("text"), x.context("text")               an error of a program
//! Refusal::new(reason, format!("text {a}"))      a refusal
//! reasons! { … "text"; … }                       a table of reasons: every string
//! ```

use crate::tree::{RustFile, Token, TokenKind};

/// A message and the line it starts on.
pub(super) struct Message {
    pub(super) line: usize,
    pub(super) text: String,
}

/// The calls that take messages, up to their bracket.
const CALLS: [&[&str]; 14] = [
    &["error", "!", "("],
    &["warn", "!", "("],
    &["info", "!", "("],
    &["debug", "!", "("],
    &["trace", "!", "("],
    &["#", "[", "error", "("],
    &["anyhow", "!", "("],
    &["bail", "!", "("],
    &["ensure", "!", "("],
    &[".", "context", "("],
    &[".", "with_context", "("],
    &["Refusal", ":", ":", "new", "("],
    &["SocketError", ":", ":", "refused", "("],
    &["Error", ":", ":", "other", "("],
];

/// The end of the names of macros that declare tables of reasons.
const TABLE: &str = "reasons";

/// Returns the messages of a file, in order.
pub(super) fn messages(file: &RustFile) -> Vec<Message> {
    let mut found = Vec::new();
    for (at, token) in file.tokens.iter().enumerate() {
        if let Some(call) = CALLS.iter().find(|call| file.matches(at, call)) {
            found.extend(strings(file, at + call.len(), is_argument));
        }
        if token.text.ends_with(TABLE) && file.matches(at + 1, &["!", "{"]) {
            found.extend(strings(file, at + 3, |_| true));
        }
    }
    found
}

/// Returns the strings of the group that begins at `first`, if `is_message` accepts the tokens up to them.
fn strings(file: &RustFile, first: usize, is_message: fn(&[Token]) -> bool) -> Vec<Message> {
    let mut depth = 1;
    let mut found = Vec::new();
    for (at, token) in file.tokens.iter().enumerate().skip(first) {
        match token.kind {
            TokenKind::Open => depth += 1,
            TokenKind::Close => depth -= 1,
            TokenKind::Literal if is_message(&file.tokens[first - 1..at]) => found.extend(message(token)),
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

/// Returns true if the tokens of a call up to a string make the string an argument, or the format of one. The value of a
/// field of a log line (`name = "value"`) is no argument.
fn is_argument(before: &[Token]) -> bool {
    let texts: Vec<&str> = before.iter().map(|token| token.text.as_str()).collect();
    let depth = before.iter().fold(0, |depth, token| match token.kind {
        TokenKind::Open => depth + 1,
        TokenKind::Close => depth - 1,
        _ => depth,
    });
    let is_first_or_next = before.last().is_some_and(|token| token.kind == TokenKind::Open || token.text == ",");
    (depth == 1 && is_first_or_next) || texts.ends_with(&["format", "!", "("])
}

/// Returns the message in a literal, if it is a string.
fn message(token: &Token) -> Option<Message> {
    let (prefix, rest) = token.text.split_once('"')?;
    let is_string = prefix.chars().all(|sign| sign == 'r' || sign == '#');
    let text = rest.rsplit_once('"')?.0.to_owned();
    is_string.then_some(Message { line: token.line, text })
}
