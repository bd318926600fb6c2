//! Finds the comments and string literals of Rust or C source text.
//!
//! Tokens hold no comments, so this reads the text itself. Line comments that follow each other are one passage.

/// The kind of a passage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassageKind {
    /// `///`
    Doc,
    /// `//!`
    ModuleDoc,
    /// `//` and `/* */`
    Comment,
    String,
}

/// A comment or a string, without its marks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Passage {
    pub(super) kind: PassageKind,
    /// The line it starts on, from 1. The text has the line breaks of the source.
    pub(super) line: usize,
    pub(super) text: String,
}

/// Returns the comments and strings of a source text, in order.
pub(super) fn passages(source: &str) -> Vec<Passage> {
    let mut lexer = Lexer { rest: source, line: 1, starts_line: true, found: Vec::new() };
    while let Some(first) = lexer.rest.chars().next() {
        lexer.step(first);
    }
    lexer.found
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    /// Nothing but white space stands before this on the line.
    starts_line: bool,
    found: Vec<Passage>,
}

impl<'a> Lexer<'a> {
    fn step(&mut self, first: char) {
        if self.rest.starts_with("//") {
            self.line_comment();
        } else if self.rest.starts_with("/*") {
            self.block_comment();
        } else if first == '"' {
            self.string();
        } else if first == '\'' {
            self.skip(character_len(self.rest));
        } else if is_word(first) {
            let len = self.rest.find(|sign| !is_word(sign)).unwrap_or(self.rest.len());
            if matches!(self.skip(len), "r" | "br" | "cr") {
                self.raw_string();
            }
        } else {
            self.skip(first.len_utf8());
        }
    }

    /// Goes on by `len` bytes and returns them.
    fn skip(&mut self, len: usize) -> &'a str {
        let (skipped, rest) = self.rest.split_at(len);
        self.rest = rest;
        self.line += skipped.matches('\n').count();
        let last_line = skipped.rsplit_once('\n').map(|(_, last)| last);
        self.starts_line = (self.starts_line || last_line.is_some()) && last_line.unwrap_or(skipped).trim().is_empty();
        skipped
    }

    fn push(&mut self, kind: PassageKind, line: usize, text: String) {
        self.found.push(Passage { kind, line, text });
    }

    fn line_comment(&mut self) {
        let (line, starts_line) = (self.line, self.starts_line);
        let comment = self.skip(self.rest.find('\n').unwrap_or(self.rest.len()));
        let (kind, text) = if let Some(text) = comment.strip_prefix("//!") {
            (PassageKind::ModuleDoc, text)
        } else if let Some(text) = comment.strip_prefix("///").filter(|text| !text.starts_with('/')) {
            (PassageKind::Doc, text)
        } else {
            (PassageKind::Comment, comment.trim_start_matches('/'))
        };
        match self.found.last_mut() {
            Some(last)
                if starts_line && last.kind == kind && last.line + last.text.matches('\n').count() + 1 == line =>
            {
                last.text.push('\n');
                last.text.push_str(text);
            }
            _ => self.push(kind, line, text.to_owned()),
        }
    }

    /// Block comments nest in Rust. In C they do not, and a mark of another one inside is not found in practice.
    fn block_comment(&mut self) {
        let (line, start) = (self.line, self.rest);
        self.skip(2);
        let mut depth = 1;
        while depth > 0 && !self.rest.is_empty() {
            let at = self.rest.find(['/', '*']).unwrap_or(self.rest.len());
            self.skip(at);
            let (step, change) = match self.rest.get(..2) {
                Some("/*") => (2, 1),
                Some("*/") => (2, -1),
                _ => (1.min(self.rest.len()), 0),
            };
            self.skip(step);
            depth += change;
        }
        let comment = &start[2..start.len() - self.rest.len()];
        let lines = comment.trim_end_matches("*/").lines().map(|line| line.trim_start().trim_start_matches('*'));
        self.push(PassageKind::Comment, line, lines.collect::<Vec<_>>().join("\n"));
    }

    fn string(&mut self) {
        let line = self.line;
        self.skip(1);
        let mut text = String::new();
        while let Some(sign) = self.rest.chars().next() {
            self.skip(sign.len_utf8());
            match sign {
                '"' => break,
                '\\' => {
                    let escaped = self.rest.chars().next().unwrap_or(' ');
                    self.skip(escaped.len_utf8().min(self.rest.len()));
                    text.push(if escaped == '\n' { '\n' } else { ' ' });
                }
                _ => text.push(sign),
            }
        }
        self.push(PassageKind::String, line, text);
    }

    /// A raw string after its `r`; nothing if this is a raw identifier.
    fn raw_string(&mut self) {
        let hashes = self.rest.len() - self.rest.trim_start_matches('#').len();
        if !self.rest[hashes..].starts_with('"') {
            return;
        }
        let line = self.line;
        self.skip(hashes + 1);
        let end = format!("\"{}", "#".repeat(hashes));
        let text = self.skip(self.rest.find(&end).unwrap_or(self.rest.len()));
        self.skip(end.len().min(self.rest.len()));
        self.push(PassageKind::String, line, text.to_owned());
    }
}

/// The bytes of a character literal at the start of `text`; 1 if it starts a lifetime.
fn character_len(text: &str) -> usize {
    let mut signs = text.char_indices().skip(1);
    match signs.next() {
        Some((_, '\\')) => text[3.min(text.len())..].find('\'').map_or(text.len(), |at| at + 4),
        Some(_) => signs.next().filter(|(_, sign)| *sign == '\'').map_or(1, |(at, _)| at + 1),
        None => 1,
    }
}

fn is_word(sign: char) -> bool {
    sign.is_alphanumeric() || sign == '_'
}
