//! The functions that an ELF file of 64 bits exports, by its `.dynsym` and the versions of its symbols.

use std::collections::{BTreeMap, BTreeSet};

/// Types of sections and symbols (elf.h).
const SHT_DYNSYM: u64 = 11;
const SHT_GNU_VERDEF: u64 = 0x6fff_fffd;
const SHT_GNU_VERSYM: u64 = 0x6fff_ffff;
const STT_FUNC: u64 = 2;
const STT_GNU_IFUNC: u64 = 10;

/// The bit of a version that is not the default one.
const HIDDEN: u64 = 0x8000;

struct Section {
    kind: u64,
    at: usize,
    bytes: usize,
    link: usize,
}

struct Elf<'a> {
    file: &'a [u8],
    sections: Vec<Section>,
}

/// Returns the names of the functions with a version other than `skipped`, default or not.
pub(crate) fn functions(file: &[u8], skipped: &str) -> BTreeSet<String> {
    assert_eq!(file.get(..6), Some(b"\x7fELF\x02\x01".as_slice()), "a little-endian ELF file of 64 bits");
    let elf = Elf { file, sections: sections(file) };
    let (symbols, versions) = (elf.section(SHT_DYNSYM), elf.section(SHT_GNU_VERSYM));
    let names = &elf.sections[symbols.link];
    let defined = elf.versions();
    let mut found = BTreeSet::new();
    for index in 1..symbols.bytes / 24 {
        let at = symbols.at + index * 24;
        let kind = number(file, at + 4, 1) & 0xf;
        let is_undefined = number(file, at + 6, 2) == 0;
        let version = number(file, versions.at + index * 2, 2) & !HIDDEN;
        let is_skipped = defined.get(&version).is_some_and(|version| version == skipped);
        if matches!(kind, STT_FUNC | STT_GNU_IFUNC) && !is_undefined && !is_skipped {
            found.insert(elf.text(names, number(file, at, 4)));
        }
    }
    found
}

fn sections(file: &[u8]) -> Vec<Section> {
    let (table, size, count) = (index(file, 0x28, 8), index(file, 0x3a, 2), index(file, 0x3c, 2));
    let section = |at| Section {
        kind: number(file, at + 4, 4),
        at: index(file, at + 0x18, 8),
        bytes: index(file, at + 0x20, 8),
        link: index(file, at + 0x28, 4),
    };
    (0..count).map(|number| section(table + number * size)).collect()
}

impl Elf<'_> {
    fn section(&self, kind: u64) -> &Section {
        self.sections.iter().find(|section| section.kind == kind).expect("a shared library has this section")
    }

    /// The names of the versions that the file defines, by their numbers.
    fn versions(&self) -> BTreeMap<u64, String> {
        let section = self.section(SHT_GNU_VERDEF);
        let names = &self.sections[section.link];
        let (mut versions, mut at) = (BTreeMap::new(), section.at);
        loop {
            let name = at + index(self.file, at + 12, 4);
            versions.insert(number(self.file, at + 4, 2), self.text(names, number(self.file, name, 4)));
            match index(self.file, at + 16, 4) {
                0 => return versions,
                next => at += next,
            }
        }
    }

    fn text(&self, names: &Section, at: u64) -> String {
        let bytes = &self.file[names.at + at as usize..];
        let end = bytes.iter().position(|byte| *byte == 0).expect("a name ends");
        String::from_utf8(bytes[..end].to_vec()).expect("names are ASCII")
    }
}

fn number(file: &[u8], at: usize, bytes: usize) -> u64 {
    file[at..at + bytes].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn index(file: &[u8], at: usize, bytes: usize) -> usize {
    usize::try_from(number(file, at, bytes)).expect("a file is smaller than the address space")
}
