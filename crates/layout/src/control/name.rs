//! Names and texts: what people read in a terminal, so nothing in them may move the cursor or turn the writing around.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::codec::{Field, FieldReader, MalformedControl, Width};
use crate::ids::DomainId;
use crate::limits::NAME_BYTES_MAX;

/// Bytes of the longest [`Text`].
pub const TEXT_BYTES_MAX: usize = 512;

/// Why something is no name or no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidText {
    /// A name needs at least one character.
    #[error("the text is empty")]
    Empty,
    /// More bytes than allowed.
    #[error("the text has {have} bytes where {max} are allowed")]
    TooLong {
        /// The number of bytes.
        have: usize,
        /// The maximum.
        max: usize,
    },
    /// Not UTF-8.
    #[error("byte {at} is not UTF-8")]
    Encoding {
        /// The first byte that is not.
        at: usize,
    },
    /// A character that is not allowed: a control character, one that changes the direction of writing or takes no room,
    /// and in a name also `/`.
    #[error("character U+{:04X} is not allowed", *.0 as u32)]
    Character(char),
    /// A name begins or ends with a space.
    #[error("the name begins or ends with a space")]
    SurroundingSpace,
}

/// The name of a domain, an endpoint or a program: 1 to 64 bytes of printable UTF-8 without `/`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// Checks it.
    pub fn new(name: &str) -> Result<Self, InvalidText> {
        if name.is_empty() {
            return Err(InvalidText::Empty);
        }
        check(name, NAME_BYTES_MAX)?;
        if name.contains('/') {
            return Err(InvalidText::Character('/'));
        }
        if name.starts_with(' ') || name.ends_with(' ') {
            return Err(InvalidText::SurroundingSpace);
        }
        Ok(Self(String::from(name)))
    }

    /// As a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The domain that a name such as `d7` means by its number. No domain can be called so.
    pub fn as_number(&self) -> Option<DomainId> {
        let digits = self.0.strip_prefix('d')?;
        if digits.starts_with('0') || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        DomainId::new(digits.parse().ok()?)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A sentence for a person: at most 512 bytes of printable UTF-8, possibly none.
#[derive(Clone, PartialEq, Eq)]
pub struct Text(String);

impl Text {
    /// Checks it.
    pub fn new(text: &str) -> Result<Self, InvalidText> {
        check(text, TEXT_BYTES_MAX)?;
        Ok(Self(String::from(text)))
    }

    /// Makes a text of anything: what is not allowed becomes `?`, what is too much is cut off.
    pub fn clip(text: &str) -> Self {
        let mut clipped = String::new();
        for character in text.chars().map(|character| if printable(character) { character } else { '?' }) {
            if clipped.len() + character.len_utf8() > TEXT_BYTES_MAX {
                break;
            }
            clipped.push(character);
        }
        Self(clipped)
    }

    /// As a string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

fn check(text: &str, max: usize) -> Result<(), InvalidText> {
    if text.len() > max {
        return Err(InvalidText::TooLong { have: text.len(), max });
    }
    match text.chars().find(|&character| !printable(character)) {
        Some(character) => Err(InvalidText::Character(character)),
        None => Ok(()),
    }
}

/// Returns whether a character may stand in text for people: no control characters, no line or paragraph separators, nothing that reorders
/// or hides what stands beside it.
pub fn printable(character: char) -> bool {
    !character.is_control()
        && !matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff0}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

fn utf8<'a>(from: &mut FieldReader<'a>, max: usize) -> Result<&'a str, TextFault> {
    let have = usize::from(u16::parse(from).map_err(TextFault::Packet)?);
    if have > max {
        return Err(TextFault::Text(InvalidText::TooLong { have, max }));
    }
    let bytes = from.bytes(have).map_err(TextFault::Packet)?;
    core::str::from_utf8(bytes).map_err(|error| TextFault::Text(InvalidText::Encoding { at: error.valid_up_to() }))
}

enum TextFault {
    Packet(MalformedControl),
    Text(InvalidText),
}

impl Field for Name {
    const WIDTH: Width = Width { min: 3, max: 2 + NAME_BYTES_MAX };

    fn describe() -> String {
        format!("Name: u16 length (1 to {NAME_BYTES_MAX}), then the bytes in UTF-8")
    }

    fn emit(&self, out: &mut Vec<u8>) {
        (self.0.len() as u16).emit(out);
        out.extend_from_slice(self.0.as_bytes());
    }

    fn parse(from: &mut FieldReader<'_>) -> Result<Self, MalformedControl> {
        match utf8(from, NAME_BYTES_MAX) {
            Ok(name) => Self::new(name).map_err(MalformedControl::Name),
            Err(TextFault::Text(invalid)) => Err(MalformedControl::Name(invalid)),
            Err(TextFault::Packet(malformed)) => Err(malformed),
        }
    }
}

impl Field for Text {
    const WIDTH: Width = Width { min: 2, max: 2 + TEXT_BYTES_MAX };

    fn describe() -> String {
        format!("Text: u16 length (at most {TEXT_BYTES_MAX}), then the bytes in UTF-8")
    }

    fn emit(&self, out: &mut Vec<u8>) {
        (self.0.len() as u16).emit(out);
        out.extend_from_slice(self.0.as_bytes());
    }

    fn parse(from: &mut FieldReader<'_>) -> Result<Self, MalformedControl> {
        match utf8(from, TEXT_BYTES_MAX) {
            Ok(text) => Self::new(text).map_err(MalformedControl::Text),
            Err(TextFault::Text(invalid)) => Err(MalformedControl::Text(invalid)),
            Err(TextFault::Packet(malformed)) => Err(malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_printable_and_short() {
        assert_eq!(Name::new("web.17 Ω").map(|name| format!("{name}")), Ok(String::from("web.17 Ω")));
        assert_eq!(Name::new(""), Err(InvalidText::Empty));
        assert_eq!(Name::new("a/b"), Err(InvalidText::Character('/')));
        assert_eq!(Name::new("a\u{1b}[2J"), Err(InvalidText::Character('\u{1b}')));
        assert_eq!(Name::new("a\u{202e}b"), Err(InvalidText::Character('\u{202e}')));
        assert_eq!(Name::new(" a"), Err(InvalidText::SurroundingSpace));
        assert_eq!(Name::new(&"é".repeat(33)), Err(InvalidText::TooLong { have: 66, max: 64 }));
    }

    #[test]
    fn a_name_may_be_a_number() {
        let number = |name| Name::new(name).unwrap().as_number().map(DomainId::number);
        assert_eq!(number("d7"), Some(7));
        assert_eq!(number("d4294967295"), Some(u32::MAX));
        assert_eq!([number("d0"), number("d07"), number("d"), number("d4294967296"), number("e7")], [None; 5]);
    }

    #[test]
    fn clip_makes_a_text_of_anything() {
        let clipped = Text::clip(&"a\nüü".repeat(300));
        assert!(clipped.as_str().starts_with("a?üüa?üü"));
        assert!(Text::new(clipped.as_str()).is_ok() && clipped.as_str().len() <= TEXT_BYTES_MAX);
    }
}
