//! The sources of a configuration, in the order in which later ones override earlier ones.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use isthmus_layout::environment::VARIABLES;

use super::keys::{self, KEYS, Key};
use super::origin::{Source, SourceKind};
use super::parse::unknown_key;
use super::paths::RoleDefaults;
use super::problem::{Finding, ProblemKind};
use super::suggest;
use super::{ConfigFile, Inputs};

/// The size of the longest file that is read.
const FILE_BYTES_MAX: u64 = 256 * 1024;

/// The prefix of our variables.
pub(super) const PREFIX: &str = "ISTHMUS_";

/// All sources, and the findings made while reading them.
#[derive(Default)]
pub(super) struct ConfigSources {
    pub(super) sources: Vec<Source>,
    /// The target of each source.
    pub(super) targets: Vec<Target>,
    pub(super) findings: Vec<Finding>,
    pub(super) warnings: Vec<Finding>,
    /// The file, if there was one.
    pub(super) file: Option<PathBuf>,
}

/// The target of a text.
#[derive(Clone, Copy)]
pub(super) enum Target {
    /// A whole file.
    File,
    /// The value of this key.
    Key(&'static Key),
    /// No target: the text only stands in a finding.
    Unused,
}

impl ConfigSources {
    pub(super) fn collect(inputs: &Inputs) -> Self {
        let mut sources = Self::default();
        let paths = inputs.role_defaults();
        for key in KEYS {
            let value = default_text(key, &paths);
            sources.add(Source::new(SourceKind::Default, format!("{} = ", key.path), value), Target::Key(key));
        }
        sources.add_file(inputs, &paths);
        sources.add_environment(&inputs.environment);
        for set in &inputs.sets {
            sources.add_set(set);
        }
        sources
    }

    fn add(&mut self, source: Source, target: Target) -> usize {
        self.sources.push(source);
        self.targets.push(target);
        self.sources.len() - 1
    }

    fn refuse(&mut self, source: Source, wrong: ProblemKind, help: Option<String>) {
        let source = self.add(source, Target::Unused);
        self.findings.push(Finding { source, span: None, wrong, help });
    }

    fn add_file(&mut self, inputs: &Inputs, paths: &RoleDefaults) {
        let read = match &inputs.file {
            ConfigFile::None => return,
            ConfigFile::Given { path, bytes } => Ok((path.clone(), bytes.clone())),
            ConfigFile::Named(path) => {
                read_file(path).map(|bytes| (path.clone(), bytes)).map_err(|error| (path.clone(), error))
            }
            ConfigFile::Usual => match &paths.config_file {
                None => return,
                Some(path) => match read_file(path) {
                    Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                        return;
                    }
                    read => read.map(|bytes| (path.clone(), bytes)).map_err(|error| (path.clone(), error)),
                },
            },
        };
        match read {
            Err((path, error)) => {
                let wrong = ProblemKind::Unreadable { reason: error.to_string() };
                self.refuse(Source::new(SourceKind::File(path), "", ""), wrong, None);
            }
            Ok((path, bytes)) => self.add_file_bytes(path, &bytes),
        }
    }

    fn add_file_bytes(&mut self, path: PathBuf, bytes: &[u8]) {
        self.file = Some(path.clone());
        if bytes.len() as u64 > FILE_BYTES_MAX {
            let wrong = ProblemKind::TooLong { max: FILE_BYTES_MAX };
            return self.refuse(Source::new(SourceKind::File(path), "", ""), wrong, None);
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => {
                let text = text.strip_prefix('\u{feff}').unwrap_or(text);
                self.add(Source::new(SourceKind::File(path), "", text), Target::File);
            }
            Err(error) => {
                // What stands before the first wrong byte stays where it is.
                let at = error.valid_up_to();
                let source =
                    self.add(Source::new(SourceKind::File(path), "", String::from_utf8_lossy(bytes)), Target::Unused);
                let span = Some(at..at + char::REPLACEMENT_CHARACTER.len_utf8());
                self.findings.push(Finding { source, span, wrong: ProblemKind::NotUtf8, help: None });
            }
        }
    }

    fn add_environment(&mut self, environment: &[(OsString, OsString)]) {
        let ours = environment.iter().filter_map(|(name, value)| Some((name.to_str()?, value)));
        for (name, value) in ours.filter(|(name, _)| name.starts_with(PREFIX)) {
            let from = SourceKind::Environment(name.to_owned());
            if let Some(key) = KEYS.iter().find(|key| key.environment() == name) {
                let source = Source::new(from, format!("{name}="), value.to_string_lossy());
                match value.to_str() {
                    Some(_) => drop(self.add(source, Target::Key(key))),
                    None => self.refuse(source, ProblemKind::NotUtf8, None),
                }
            } else if !VARIABLES.iter().any(|variable| variable.name == name) {
                let source = self.add(Source::new(from, "", name), Target::Unused);
                let (wrong, help) = (ProblemKind::UnknownVariable, Some(nearest_variable(name)));
                self.warnings.push(Finding { source, span: None, wrong, help });
            }
        }
    }

    fn add_set(&mut self, set: &str) {
        let assignment = set.split_once('=').map(|(path, value)| (path.trim(), value.trim()));
        let Some((path, value)) = assignment else {
            let source = self.add(Source::new(SourceKind::CommandLine, "--set ", set), Target::Unused);
            let wrong = ProblemKind::MissingAssignment { found: format!("\"{}\"", super::parse::key_text(set)) };
            let help = Some("write --set table.key=value".to_owned());
            return self.findings.push(Finding { source, span: Some(0..set.len()), wrong, help });
        };
        if let Some(key) = keys::key(path) {
            self.add(Source::new(SourceKind::CommandLine, format!("--set {path}="), value), Target::Key(key));
            return;
        }
        let source = self.add(Source::new(SourceKind::CommandLine, "--set ", set), Target::Unused);
        let (wrong, help) = match path.split_once('.') {
            Some((table, name)) => unknown_key(Some(table), name),
            None => unknown_key(None, path),
        };
        let start = set.find(path).unwrap_or(0);
        self.findings.push(Finding { source, span: Some(start..start + path.len()), wrong, help: Some(help) });
    }
}

/// A default of a daemon of this role.
pub(super) fn default_text(key: &Key, role: &RoleDefaults) -> String {
    key.default.replace("{runtime}", &role.runtime_dir.to_string_lossy()).replace("{grants}", role.grants.as_str())
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn nearest_variable(name: &str) -> String {
    // The prefix is the same for all: what counts is how much of the rest is right.
    let rest = |name: &str| name.trim_start_matches(PREFIX).to_owned();
    let known = VARIABLES.iter().map(|variable| variable.name.to_owned()).chain(KEYS.iter().map(Key::environment));
    let known: Vec<String> = known.map(|name| rest(&name)).collect();
    let rest = rest(name);
    let end = format!("_{}", rest.trim_start_matches("DAEMON_"));
    let part = || known.iter().map(String::as_str).find(|known| known.ends_with(&end) && end.len() > 1);
    match suggest::nearest(&rest, known.iter().map(String::as_str)).or_else(part) {
        Some(near) => format!("did you mean {PREFIX}{near}?"),
        None => "isthmus environment list lists all variables".to_owned(),
    }
}
