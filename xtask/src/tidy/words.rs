//! Plain words: retired names and turns of phrase are counted, and the counts may only fall.
//!
//! ```text
//! pronouns     words for people, in comments, strings and Markdown             words/prose.txt
//! beginnings   doc comments and messages that do not begin with the thing       words/prose.txt
//! phrases      phrases that have a plain equivalent                            words/prose.txt
//! retired      identifiers that have a better name now, whole or in part       words/retired.txt
//! ```
//!
//! `docs/design/glossary.md` says what to write instead. Each package and each document outside the packages has four
//! counts in the ratchet file; a missing line means zeros. A count above its entry is an error. `--bless` lowers the
//! entries and never raises one. `cargo xtask tidy words` prints the counts, `cargo xtask tidy words PACKAGE` the places.

mod lexer;
mod lists;
mod messages;
mod prose;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;

use super::Finding;
use crate::tree::{RustFile, TextFile, Tree};

use lexer::Passage;
use lists::Lists;

pub(super) use lists::parts;
pub(super) use table::print;

const RULE: &str = "words";

/// The files that have to quote the words.
const QUOTING: [&str; 2] = ["docs/design/glossary.md", "xtask/src/tidy/words/tests.rs"];

/// The folder of the kernel module: C, with no package around it.
const KERNEL_MODULE: &str = "kmod";

/// Places that an error names one by one; above this number it names only their count.
const NAMED_MAX: usize = 10;

const HEADER: &str = "\
# Words that docs/design/glossary.md retires: pronouns, beginnings of doc comments, phrases, identifiers; package or file.
# Counts may fall (`cargo xtask tidy --bless`), never rise; what is not listed has none.
";

/// The rule that a word breaks. The order is that of the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Pronoun,
    Beginning,
    Phrase,
    Retired,
}

impl Class {
    const ALL: [Self; 4] = [Self::Pronoun, Self::Beginning, Self::Phrase, Self::Retired];
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pronoun => "pronoun",
            Self::Beginning => "beginning",
            Self::Phrase => "phrase",
            Self::Retired => "retired",
        })
    }
}

/// One occurrence of a word.
#[derive(Clone, Debug)]
struct Place {
    class: Class,
    path: String,
    line: usize,
    word: String,
}

/// The occurrences in one package or document.
#[derive(Default)]
struct Tally {
    places: Vec<Place>,
    /// Words of comments and Markdown.
    words: usize,
    /// Pronouns among them; those of strings are left out.
    pronouns_in_words: usize,
    /// Doc comments.
    docs: usize,
}

/// Counts in the order of [`Class::ALL`].
type Counts = [usize; 4];

impl Tally {
    fn counts(&self) -> Counts {
        Class::ALL.map(|class| self.of(class).count())
    }

    fn of(&self, class: Class) -> impl Iterator<Item = &Place> {
        self.places.iter().filter(move |place| place.class == class)
    }

    fn add(&mut self, class: Class, path: &str, line: usize, word: impl Into<String>) {
        self.places.push(Place { class, path: path.to_owned(), line, word: word.into() });
    }

    /// Counts the pronouns and phrases of some prose.
    fn add_prose(&mut self, path: &str, prose: &[Option<prose::Word>], is_string: bool, lists: &Lists) {
        for (at, word) in prose.iter().enumerate().filter_map(|(at, word)| Some((at, word.as_ref()?))) {
            if !is_string {
                self.words += 1;
            }
            if lists.pronouns.contains(word.text.as_str()) {
                self.pronouns_in_words += usize::from(!is_string);
                self.add(Class::Pronoun, path, word.line, &word.text);
            }
            if let Some(phrase) = lists.phrases.iter().find(|phrase| prose::begins_with(&prose[at..], phrase)) {
                self.add(Class::Phrase, path, word.line, phrase.join(" "));
            }
        }
    }

    fn add_passage(&mut self, path: &str, passage: &Passage, lists: &Lists) {
        let prose = prose::words(&passage.text, passage.line);
        self.add_prose(path, &prose, passage.kind == lexer::PassageKind::String, lists);
        if !matches!(passage.kind, lexer::PassageKind::Doc | lexer::PassageKind::ModuleDoc) {
            return;
        }
        self.docs += 1;
        if let Some(beginning) = lists.beginnings.iter().find(|beginning| prose::begins_with(&prose, beginning)) {
            self.add(Class::Beginning, path, passage.line, beginning.join(" "));
        }
    }

    /// Counts the messages that begin with a pronoun: their readers see no sentence before it.
    fn add_messages(&mut self, file: &RustFile, lists: &Lists) {
        for message in messages::messages(file) {
            let prose = prose::words(&message.text, message.line);
            let mut words = lists.beginnings.iter().chain(&lists.openings);
            if let Some(words) = words.find(|words| prose::begins_with(&prose, words)) {
                self.add(Class::Beginning, &file.path, message.line, words.join(" "));
            }
        }
    }

    fn add_names(&mut self, file: &RustFile, lists: &Lists) {
        for token in file.tokens.iter().filter(|token| token.kind == crate::tree::TokenKind::Word) {
            if let Some(instead) = lists.replacement(&token.text) {
                self.add(Class::Retired, &file.path, token.line, format!("{} (now: {instead})", token.text));
            }
        }
    }
}

pub(super) fn check(tree: &Tree, ratchet: &str) -> Vec<Finding> {
    let listed = read(ratchet);
    let mut findings = Vec::new();
    for (unit, tally) in tallies(tree) {
        let (counts, allowed) = (tally.counts(), listed.get(&unit).copied().unwrap_or_default());
        for (class, (count, allowed)) in Class::ALL.into_iter().zip(counts.into_iter().zip(allowed)) {
            if count > allowed {
                findings.extend(risen(&unit, class, allowed, &tally));
            }
        }
        if counts.iter().zip(allowed).any(|(count, allowed)| *count < allowed) {
            let text = format!("{unit} has {counts:?} and its entry is {allowed:?}: `--bless` lowers it");
            findings.push(Finding::warning(RULE, super::WORDS, 0, text));
        }
    }
    findings
}

/// The errors for a count above its entry: the places if they are few, otherwise their number.
fn risen(unit: &str, class: Class, allowed: usize, tally: &Tally) -> Vec<Finding> {
    let places: Vec<&Place> = tally.of(class).collect();
    if places.len() > NAMED_MAX {
        let count = places.len();
        let text = format!("{unit}: {class}: {count}, allowed {allowed}; `cargo xtask tidy words {unit}` lists them");
        return vec![Finding::error(RULE, &places[0].path, 0, text)];
    }
    let finding = |place: &&Place| {
        let text = format!("{class}: {}; {unit} may have {allowed}", place.word);
        Finding::error(RULE, &place.path, place.line, text)
    };
    places.iter().map(finding).collect()
}

/// The ratchet file after some counts have fallen.
pub(super) fn shrink(ratchet: &str, tree: &Tree) -> String {
    let now = tallies(tree);
    let mut text = HEADER.to_owned();
    for (unit, before) in read(ratchet) {
        let Some(tally) = now.get(&unit) else { continue };
        let counts = tally.counts();
        let lower: Counts = std::array::from_fn(|at| counts[at].min(before[at]));
        if lower != Counts::default() {
            text += &entry(&unit, lower);
        }
    }
    text
}

/// A line of the ratchet file.
fn entry(unit: &str, [pronouns, beginnings, phrases, retired]: Counts) -> String {
    format!("{pronouns:>5} {beginnings:>5} {phrases:>5} {retired:>5}  {unit}\n")
}

fn read(ratchet: &str) -> BTreeMap<String, Counts> {
    let parse = |line: &str| {
        let mut cells = line.split_whitespace();
        let mut counts = Counts::default();
        for count in &mut counts {
            *count = cells.next()?.parse().ok()?;
        }
        Some((cells.next()?.to_owned(), counts))
    };
    ratchet.lines().filter_map(parse).collect()
}

/// The occurrences by package name, or by path for Markdown outside the packages.
fn tallies(tree: &Tree) -> BTreeMap<String, Tally> {
    let lists = Lists::new();
    let packages = packages(tree);
    let mut tallies: BTreeMap<String, Tally> = BTreeMap::new();
    let read = tree.texts.iter().filter(|file| !QUOTING.contains(&file.path.as_str()));
    for (unit, file) in read.filter_map(|file| Some((unit_of(file, &packages)?, file))) {
        let tally = tallies.entry(unit).or_default();
        if file.path.ends_with(".md") {
            tally.add_prose(&file.path, &prose::words(&file.text, 1), false, &lists);
            continue;
        }
        let is_c = !file.path.ends_with(".rs");
        for passage in lexer::passages(&file.text) {
            if !(is_c && passage.kind == lexer::PassageKind::String) {
                tally.add_passage(&file.path, &passage, &lists);
            }
        }
    }
    for file in &tree.rust {
        if let Some(tally) = package_of(&file.path, &packages).and_then(|package| tallies.get_mut(package)) {
            tally.add_names(file, &lists);
            tally.add_messages(file, &lists);
        }
    }
    for tally in tallies.values_mut() {
        tally.places.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    }
    tallies
}

/// The package or document that a file counts for; `None` if it is not read.
fn unit_of(file: &TextFile, packages: &[(String, String)]) -> Option<String> {
    let (name, suffix) = file.path.rsplit_once('.')?;
    let package = package_of(&file.path, packages);
    match suffix {
        "md" => Some(package.unwrap_or(&file.path).to_owned()),
        "rs" => package.map(str::to_owned),
        "c" | "h" if name.starts_with(KERNEL_MODULE) => Some(KERNEL_MODULE.to_owned()),
        _ => None,
    }
}

fn package_of<'a>(path: &str, packages: &'a [(String, String)]) -> Option<&'a str> {
    packages.iter().find(|(folder, _)| path.starts_with(folder.as_str())).map(|(_, name)| name.as_str())
}

/// The folders of packages, with a slash at the end, and their names; folders inside others come first.
fn packages(tree: &Tree) -> Vec<(String, String)> {
    let mut packages = Vec::new();
    for file in &tree.texts {
        let Some(folder) = file.path.strip_suffix("Cargo.toml").filter(|folder| folder.ends_with('/')) else {
            continue;
        };
        let manifest: Option<toml::Table> = file.text.parse().ok();
        let name = manifest.as_ref().and_then(|manifest| manifest.get("package")?.get("name")?.as_str());
        packages.extend(name.map(|name| (folder.to_owned(), name.to_owned())));
    }
    packages.sort_by(|a, b| b.cmp(a));
    packages
}
