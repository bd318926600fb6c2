//! One Rust file: its lines, its tokens in order, its syntax, and which of its lines are test code.
//!
//! Tokens see into macro calls, where a syntax tree is blind; they hold no comments and, as kept here, no doc comments
//! either, so a word in a text is never taken for code.

use std::ops::RangeInclusive;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Word,
    Sign,
    Literal,
    Open,
    Close,
}

/// A token and the line it starts on (from 1).
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) kind: TokenKind,
    pub(crate) line: usize,
}

/// A parsed file.
pub(crate) struct RustFile {
    pub(crate) path: String,
    pub(crate) lines: Vec<String>,
    pub(crate) tokens: Vec<Token>,
    pub(crate) syntax: syn::File,
    /// All of it is test code.
    pub(crate) all_test: bool,
    /// Files that are test code because of a `#[cfg(test)] mod name;` here, without `.rs`.
    pub(crate) test_modules: Vec<String>,
    test_lines: Vec<RangeInclusive<usize>>,
    macro_lines: Vec<RangeInclusive<usize>>,
}

impl RustFile {
    /// Parses the text of a file.
    pub(crate) fn parse(path: &str, text: &str) -> Result<Self, String> {
        let said = |error: syn::Error| format!("line {}: {error}", error.span().start().line);
        let syntax = syn::parse_file(text).map_err(said)?;
        let stream: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| error.to_string())?;
        let mut reader = TokenReader { folder: module_folder(path), ..TokenReader::default() };
        reader.visit_stream(stream);
        Ok(Self {
            path: path.to_owned(),
            lines: text.lines().map(str::to_owned).collect(),
            tokens: reader.tokens,
            syntax,
            all_test: reader.all_test || is_test_path(path),
            test_modules: reader.test_modules,
            test_lines: reader.test_lines,
            macro_lines: reader.macro_lines,
        })
    }

    /// Returns true if a line belongs to a test.
    pub(crate) fn is_test(&self, line: usize) -> bool {
        self.all_test || self.test_lines.iter().any(|range| range.contains(&line))
    }

    /// Returns true if a line is written by a `macro_rules!`.
    pub(crate) fn is_macro(&self, line: usize) -> bool {
        self.macro_lines.iter().any(|range| range.contains(&line))
    }

    /// Returns true if the tokens from `at` on have these texts.
    pub(crate) fn matches(&self, at: usize, texts: &[&str]) -> bool {
        let tokens = self.tokens.get(at..at + texts.len());
        tokens.is_some_and(|tokens| tokens.iter().zip(texts).all(|(token, text)| token.text == *text))
    }

    /// The text of a line (from 1); empty outside the file.
    pub(crate) fn line(&self, line: usize) -> &str {
        line.checked_sub(1).and_then(|at| self.lines.get(at)).map_or("", String::as_str)
    }

    /// Returns true if a line holds nothing but a comment.
    pub(crate) fn is_comment(&self, line: usize) -> bool {
        self.line(line).trim_start().starts_with("//")
    }

    /// The comment lines that end at `line`, joined; empty if it is not a comment.
    pub(crate) fn comment_ending_at(&self, line: usize) -> String {
        let mut first = line;
        while self.is_comment(first) {
            first -= 1;
        }
        let words = (first + 1..=line).map(|at| self.line(at).trim_start().trim_start_matches('/').trim());
        words.collect::<Vec<_>>().join(" ")
    }
}

/// Returns true if a path alone says that its file is test code.
fn is_test_path(path: &str) -> bool {
    path.split('/').any(|part| part == "tests" || part == "tests.rs" || part == "benches")
}

/// The folder in which the modules of a file are looked for.
fn module_folder(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        _ => path.trim_end_matches(".rs").to_owned(),
    }
}

#[derive(Default)]
struct TokenReader {
    tokens: Vec<Token>,
    test_lines: Vec<RangeInclusive<usize>>,
    macro_lines: Vec<RangeInclusive<usize>>,
    test_modules: Vec<String>,
    all_test: bool,
    folder: String,
}

impl TokenReader {
    /// Reads the tokens between two brackets. An attribute that says *test* holds from its line to the end of what it
    /// stands before: the next `{…}` or `;` of this level.
    fn visit_stream(&mut self, stream: TokenStream) {
        let mut trees = stream.into_iter().peekable();
        let mut test_from: Option<usize> = None;
        while let Some(tree) = trees.next() {
            if let TokenTree::Punct(sign) = &tree
                && sign.as_char() == '#'
            {
                let line = sign.span().start().line;
                let inner = matches!(trees.peek(), Some(TokenTree::Punct(mark)) if mark.as_char() == '!');
                let mark = inner.then(|| trees.next()).flatten();
                if let Some(TokenTree::Group(group)) = trees.peek()
                    && group.delimiter() == Delimiter::Bracket
                {
                    let attribute = group.stream();
                    if first_word(&attribute) == "doc" {
                        trees.next();
                        continue;
                    }
                    if is_test_attribute(attribute) {
                        self.all_test |= inner;
                        test_from = test_from.or(Some(line));
                    }
                }
                self.push("#", TokenKind::Sign, line);
                if mark.is_some() {
                    self.push("!", TokenKind::Sign, line);
                }
                continue;
            }
            let closes = match &tree {
                TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
                TokenTree::Punct(sign) => sign.as_char() == ';',
                _ => false,
            };
            let last = tree.span().end().line;
            let is_semicolon = matches!(tree, TokenTree::Punct(_));
            self.visit_tree(tree);
            if closes && let Some(first) = test_from.take() {
                self.test_lines.push(first..=last);
                self.record_test_module(is_semicolon);
            }
        }
    }

    fn visit_tree(&mut self, tree: TokenTree) {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::None => ("", ""),
                };
                if let [.., word, mark, _] = self.tokens.as_slice()
                    && word.text == "macro_rules"
                    && mark.text == "!"
                {
                    self.macro_lines.push(line..=group.span_close().end().line);
                }
                self.push(open, TokenKind::Open, line);
                let outer = self.folder.clone();
                if let Some(name) = self.inline_module() {
                    self.folder = format!("{outer}/{name}");
                }
                self.visit_stream(group.stream());
                self.folder = outer;
                self.push(close, TokenKind::Close, group.span_close().start().line);
            }
            TokenTree::Ident(word) => self.push(&word.to_string(), TokenKind::Word, line),
            TokenTree::Punct(sign) => self.push(&sign.as_char().to_string(), TokenKind::Sign, line),
            TokenTree::Literal(literal) => self.push(&literal.to_string(), TokenKind::Literal, line),
        }
    }

    fn push(&mut self, text: &str, kind: TokenKind, line: usize) {
        self.tokens.push(Token { text: text.to_owned(), kind, line });
    }

    /// Returns the name of the module that was opened by the `{` just read.
    fn inline_module(&self) -> Option<String> {
        match self.tokens.as_slice() {
            [.., word, name, open] if word.text == "mod" && open.text == "{" => Some(name.text.clone()),
            _ => None,
        }
    }

    /// After `mod name;` under a test attribute: that file is test code too.
    fn record_test_module(&mut self, is_semicolon: bool) {
        if let [.., word, name, _] = self.tokens.as_slice()
            && is_semicolon
            && word.text == "mod"
        {
            self.test_modules.push(format!("{}/{}", self.folder, name.text));
        }
    }
}

fn first_word(attribute: &TokenStream) -> String {
    attribute.clone().into_iter().next().map_or_else(String::new, |tree| tree.to_string())
}

/// `#[test]`, `#[some::test]`, or a `#[cfg(…)]` that asks for `test` or `loom`.
fn is_test_attribute(attribute: TokenStream) -> bool {
    if first_word(&attribute) == "cfg" {
        return attribute
            .into_iter()
            .any(|tree| matches!(tree, TokenTree::Group(group) if is_test_condition(group.stream())));
    }
    let path = attribute.into_iter().take_while(|tree| !matches!(tree, TokenTree::Group(_)));
    matches!(path.last(), Some(TokenTree::Ident(word)) if word == "test")
}

fn is_test_condition(condition: TokenStream) -> bool {
    let mut negated = false;
    condition.into_iter().any(|tree| match tree {
        TokenTree::Ident(word) => {
            negated = word == "not";
            word == "test" || word == "loom"
        }
        TokenTree::Group(group) => !negated && is_test_condition(group.stream()),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> RustFile {
        RustFile::parse("crates/x/src/ring.rs", text).unwrap()
    }

    #[test]
    fn test_lines_end_with_the_item_they_stand_before() {
        let file = parse("fn a() {}\n#[cfg(test)]\nmod tests {\n  fn b() {}\n}\nfn c() {}\n#[test]\nfn d() {\n}\n");
        let tests: Vec<usize> = (1..=9).filter(|line| file.is_test(*line)).collect();
        assert_eq!(tests, [2, 3, 4, 5, 7, 8, 9]);
    }

    #[test]
    fn cfg_not_test_is_not_test_code() {
        assert!(!parse("#[cfg(not(test))]\nfn a() {}").is_test(2));
        assert!(parse("#[cfg(any(test, feature = \"x\"))]\nfn a() {}").is_test(2));
        assert!(parse("#[cfg(all(not(miri), test))]\nfn a() {}").is_test(2));
    }

    #[test]
    fn texts_are_not_code() {
        let file = parse("//! unsafe\n/// unsafe\nfn a() {} // unsafe\nconst B: &str = \"unsafe\";");
        assert!(file.tokens.iter().all(|token| token.text != "unsafe"));
    }

    #[test]
    fn macro_calls_are_seen_through() {
        let file = parse("fn a() { assert!(b().unwrap()); }");
        assert!((0..file.tokens.len()).any(|at| file.matches(at, &[".", "unwrap", "(", ")"])));
    }

    #[test]
    fn attributes_stay_in_the_tokens() {
        let file = parse("#![forbid(unsafe_code)]\n#[inline]\nfn a() {}");
        assert!(file.matches(0, &["#", "!", "[", "forbid", "(", "unsafe_code", ")", "]", "#", "[", "inline", "]"]));
    }
}
