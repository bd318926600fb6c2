//! `isthmus run`: starts a program with the capabilities that are installed.
//!
//! ```text
//! isthmus run -- ./program     finds each capability's library, sets its variables, becomes the program
//!     PROGRAM_CAPABILITIES     the table: a row a capability, with its library and its variables
//! ```
//!
//! The program keeps this process: its signals, exit status, descriptors and environment are as without `isthmus run`, but for the
//! variables of the table. A variable that is set already keeps its value, because the user knows better; a list, such
//! as a search path, gets the capability's value in front.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser};
use serde::Serialize;

use isthmus_client::{Reason, Topic};
use isthmus_report::StatusReport;

use crate::capability::PROGRAM_CAPABILITIES;
use crate::daemon::{ask, read};
use crate::doctor::{CheckPlace, Finding};
use crate::output::{Outcome, Output, UsageError, note};
use crate::program_file::{ProgramFile, Unfit};

/// The exit statuses for a program that could not be started, as in a shell and in `env`.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Why a capability is off that the user does not want.
const WITHOUT: &str = "--without";

/// A capability that programs use through a library: a row of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramCapability {
    /// The name, as in `--with` and `--without`.
    pub(crate) name: &'static str,
    /// The programs that use it, as help shows them.
    pub(crate) users: &'static str,
    /// The file that shows that the capability is installed.
    pub(crate) library: &'static str,
    /// The other names by which programs load the library.
    pub(crate) other_names: &'static [&'static str],
    /// Further libraries that lie beside it.
    pub(crate) other_libraries: &'static [&'static str],
    /// The files that programs open in place of devices.
    pub(crate) device_files: &'static [DeviceFile],
    /// Whether it is off unless `--with` names it.
    pub(crate) is_opt_in: bool,
    /// Whether it is supported in guests.
    pub(crate) is_in_guests: bool,
    /// Returns the variables that a program needs, or why the capability is off.
    pub(crate) settings: fn(&ProgramPlace<'_>) -> Result<Vec<Setting>, String>,
    /// Returns why a program does not use the capability.
    pub(crate) unfit: fn(&ProgramFile) -> Option<Unfit>,
    /// Its checks of `isthmus doctor`, if they are not among the common ones.
    pub(crate) doctor: Option<fn(&CheckPlace<'_>, &mut Vec<Finding>)>,
}

/// A file that programs open in place of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceFile {
    pub(crate) path: &'static str,
    /// The memory device that it is.
    pub(crate) target: &'static str,
    /// The major and minor number of that device.
    pub(crate) number: (u32, u32),
}

/// The place in which a program starts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProgramPlace<'a> {
    /// The folder with the library of the capability.
    pub(crate) folder: &'a Path,
    /// The socket of the daemon, if the command line names one.
    pub(crate) socket: Option<&'a Path>,
    /// In a container: the folder that has what is beside the daemon's socket.
    pub(crate) container: Option<&'a Path>,
}

/// A variable, and its effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) effect: &'static str,
    /// Whether the variable is a list, as LD_LIBRARY_PATH and LD_PRELOAD are: the value goes in front of the one that is set.
    pub(crate) is_list: bool,
}

/// The environment that one capability needs in a program.
#[derive(Debug, Serialize)]
struct Switch {
    capability: &'static str,
    /// The folder with the capability's library.
    folder: PathBuf,
    variables: Vec<Setting>,
}

impl Switch {
    /// The row of the table.
    fn row(&self) -> &'static ProgramCapability {
        let is_own = |row: &&ProgramCapability| row.name == self.capability;
        PROGRAM_CAPABILITIES.iter().find(is_own).expect("a switch is made of a row")
    }

    /// A file of the capability that does not exist here. A program may have a `/dev` of its own, as in a container.
    fn missing_file(&self) -> Option<&'static str> {
        self.row().device_files.iter().map(|file| file.path).find(|path| !Path::new(path).exists())
    }
}

/// The options that choose capabilities.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct CapabilityChoice {
    /// Switch this capability on; may be given more than once. All but `sockets` are on without it.
    #[arg(long, value_name = "CAPABILITY", value_parser = capability_names())]
    with: Vec<String>,

    /// Leave this capability off; may be given more than once.
    #[arg(long, value_name = "CAPABILITY", value_parser = capability_names())]
    without: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct RunArgs {
    /// Print the variables and the command, and start no program.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    choice: CapabilityChoice,

    /// Do not print which capabilities are on.
    #[arg(short, long)]
    quiet: bool,

    /// The program and its arguments, after `--`.
    #[arg(value_name = "PROGRAM", last = true, required = true)]
    command: Vec<OsString>,
}

impl ProgramCapability {
    fn switch(&self, socket: Option<&Path>) -> Result<Switch, String> {
        let folder = installed_folder(self.library).map_err(|error| format!("not installed: {error}"))?;
        let variables = (self.settings)(&ProgramPlace { folder: &folder, socket, container: None })?;
        Ok(Switch { capability: self.name, folder, variables })
    }
}

impl CapabilityChoice {
    /// Refuses a capability that is to be on and off.
    pub(crate) fn check(&self) -> Result<()> {
        match self.with.iter().find(|name| self.without.contains(name)) {
            Some(name) => Err(UsageError(format!("`--with {name}` and `--without {name}` exclude each other")).into()),
            None => Ok(()),
        }
    }

    /// Returns whether `--with` names a capability.
    pub(crate) fn names(&self, capability: &ProgramCapability) -> bool {
        self.with.iter().any(|name| name == capability.name)
    }

    /// Returns why a capability is to be off, if it is.
    pub(crate) fn why_off(&self, capability: &ProgramCapability) -> Option<String> {
        let name = capability.name;
        if self.without.iter().any(|unwanted| unwanted == name) {
            return Some(WITHOUT.to_owned());
        }
        let is_missing = capability.is_opt_in && !self.names(capability);
        is_missing.then(|| format!("ask for it with `--with {name}`"))
    }
}

/// The parser of `--with` and `--without`: the names of the table.
fn capability_names() -> PossibleValuesParser {
    PROGRAM_CAPABILITIES.map(|row| PossibleValue::new(row.name).help(row.users)).into()
}

/// Finds the folder with a library in the installation of this program.
pub(crate) fn installed_folder(library: &str) -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find this program")?;
    let own = program.parent().context("a program lies in a folder")?;
    let above = own.parent().unwrap_or(own);
    let candidates = [own.to_owned(), above.join("lib/libfabric"), above.join("lib"), above.join("abi")];
    let found = candidates.iter().find(|folder| folder.join(library).is_file()).cloned();
    let searched = || candidates.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ");
    found.with_context(|| format!("{library} is in none of {}", searched()))
}

/// Joins the values of a list that several capabilities set.
pub(crate) fn joined(all: impl Iterator<Item = Setting>) -> Vec<Setting> {
    let mut variables: Vec<Setting> = Vec::new();
    for set in all {
        match variables.iter_mut().find(|other| other.name == set.name && set.is_list) {
            Some(other) => {
                other.value = format!("{}:{}", other.value, set.value);
                other.effect = "libraries of several capabilities";
            }
            None => variables.push(set),
        }
    }
    variables
}

/// Sets the variables for a command. A variable that is set already keeps its value, unless it is a list.
pub(crate) fn apply(command: &mut Command, variables: &[Setting]) {
    for set in variables {
        if let Some(value) = value_for(set, std::env::var_os(set.name)) {
            command.env(set.name, value);
        }
    }
}

/// Returns the new value of a variable, given its present one. None if it keeps that one.
fn value_for(set: &Setting, present: Option<OsString>) -> Option<OsString> {
    match present.filter(|present| !set.is_list || !present.is_empty()) {
        None => Some(set.value.clone().into()),
        Some(present) if set.is_list => {
            let mut value = OsString::from(&set.value);
            value.push(":");
            value.push(present);
            Some(value)
        }
        Some(_) => None,
    }
}

/// Quotes a value for a shell.
pub(crate) fn shell_quoted(value: &str) -> String {
    let plain = |sign: char| sign.is_ascii_alphanumeric() || "/._-,:+=".contains(sign);
    if !value.is_empty() && value.chars().all(plain) {
        value.to_owned()
    } else {
        format!("'{}'", value.replace('\'', r"'\''"))
    }
}

/// Returns whether this is a guest, as its daemon says. None if no daemon answers: none is started for the question.
fn is_guest(socket: Option<&Path>) -> Option<bool> {
    let report = ask(socket.map(Path::to_owned), Topic::Status, &[]).ok()?;
    read::<StatusReport>(&report).ok().map(|status| status.guest.is_some())
}

/// The capabilities of one start.
#[derive(Debug, Default)]
struct Switches {
    /// Those that are installed and wanted.
    on: Vec<Switch>,
    /// Those that the program does not use, and the programs that it starts may.
    for_children: Vec<Switch>,
    /// All but those of `on`, each with why it is off.
    off: Vec<String>,
    /// Lists that are set already, without the library of a capability that is off.
    corrected: Vec<(&'static str, OsString)>,
    /// A capability is off because of the program, which runs all the same.
    is_program_unfit: bool,
    /// A capability is on that has no effect without a daemon, and none answers.
    is_daemon_missing: bool,
}

impl Switches {
    fn new(choice: &CapabilityChoice, program: Option<&ProgramFile>, socket: Option<&Path>) -> Self {
        let mut switches = Self::default();
        for capability in &PROGRAM_CAPABILITIES {
            switches.add(capability, choice, program.and_then(capability.unfit), socket);
        }
        // Asking the daemon takes longer than all the rest, so it is asked only if its answer matters.
        let matters = |switch: &Switch| !switch.row().is_in_guests;
        if switches.on.iter().chain(&switches.for_children).any(matters) {
            match is_guest(socket) {
                Some(true) => switches.leave_to_hosts(),
                Some(false) => {}
                None => switches.is_daemon_missing = true,
            }
        }
        switches
    }

    /// Switches off what is not supported in guests.
    fn leave_to_hosts(&mut self) {
        let unsupported = |switch: &mut Switch| !switch.row().is_in_guests;
        let left: Vec<_> =
            self.on.extract_if(.., unsupported).chain(self.for_children.extract_if(.., unsupported)).collect();
        for row in left.iter().map(Switch::row) {
            let name = row.name;
            self.off.retain(|off| !off.starts_with(&format!("{name} (")));
            let reason = Reason::NotInGuestsYet;
            self.off.push(format!("{name} ({} [{reason}])", reason.summary()));
            self.correct(row);
        }
    }

    fn add(
        &mut self,
        capability: &ProgramCapability,
        choice: &CapabilityChoice,
        unfit: Option<Unfit>,
        socket: Option<&Path>,
    ) {
        let name = capability.name;
        let (unfit, for_children) = match unfit {
            Some(Unfit { why, children_load: true }) => (None, Some(why)),
            other => (other, None),
        };
        if let Some(Unfit { why, .. }) = unfit {
            self.off.push(format!("{name} ({why})"));
            self.is_program_unfit = true;
            self.correct(capability);
        } else if let Some(why) = choice.why_off(capability) {
            // A library that is preloaded already was asked for before, as by a shell that `isthmus run` has started.
            let is_kept = capability.is_opt_in && why != WITHOUT && for_children.is_none();
            match preloaded_folder(capability).filter(|_| is_kept) {
                Some(folder) => self.on.push(Switch { capability: name, folder, variables: Vec::new() }),
                None => self.off.push(format!("{name} ({why})")),
            }
        } else {
            match (capability.switch(socket), for_children) {
                (Ok(switch), None) => self.on.push(switch),
                (Ok(switch), Some(why)) => {
                    self.off.push(format!("{name} ({why}; the programs that it starts may)"));
                    self.for_children.push(switch);
                }
                (Err(error), _) => self.off.push(format!("{name} ({error})")),
            }
        }
    }

    /// Takes the libraries of a capability out of the lists that are set already, as by a shell that `isthmus run` has started.
    fn correct(&mut self, capability: &ProgramCapability) {
        let place = ProgramPlace { folder: Path::new(""), socket: None, container: Some(Path::new("")) };
        for list in (capability.settings)(&place).iter().flatten().filter(|set| set.is_list) {
            let before = self.corrected.iter().find(|(name, _)| *name == list.name).map(|(_, value)| value.clone());
            let mut value = before.or_else(|| std::env::var_os(list.name)).unwrap_or_default();
            for library in capability.other_libraries.iter().chain([&capability.library]) {
                if let Some(kept) = without_library(&value, library) {
                    value = kept;
                    self.corrected.retain(|(name, _)| *name != list.name);
                    self.corrected.push((list.name, value.clone()));
                }
            }
        }
    }

    fn summary(&self) -> String {
        let lacks = |switch: &Switch| match switch.missing_file() {
            Some(path) => format!("; there is no {path} here, see `isthmus doctor`"),
            None if self.is_daemon_missing && !switch.row().is_in_guests => "; no daemon answers".to_owned(),
            None => String::new(),
        };
        let name = |switch: &Switch| format!("{} ({}{})", switch.capability, switch.folder.display(), lacks(switch));
        let names: Vec<String> = self.on.iter().map(name).collect();
        let on = if names.is_empty() { String::new() } else { format!("on: {}", names.join(", ")) };
        let off = if self.off.is_empty() { String::new() } else { format!("off: {}", self.off.join(", ")) };
        [on, off].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
    }
}

/// Returns the files of a list.
fn files(list: &OsStr) -> impl Iterator<Item = &[u8]> {
    list.as_bytes().split(|byte| b": ".contains(byte)).filter(|file| !file.is_empty())
}

/// Returns whether a file has this name.
fn is_named(file: &[u8], library: &str) -> bool {
    file.rsplit(|&byte| byte == b'/').next() == Some(library.as_bytes())
}

/// Returns the folder of a capability's library that LD_PRELOAD names already.
fn preloaded_folder(capability: &ProgramCapability) -> Option<PathBuf> {
    let list = std::env::var_os("LD_PRELOAD")?;
    let file = files(&list).find(|file| is_named(file, capability.library))?;
    Path::new(OsStr::from_bytes(file)).parent().map(Path::to_owned)
}

/// Returns a list of files without those of this name. None if there are none.
fn without_library(list: &OsStr, library: &str) -> Option<OsString> {
    let kept: Vec<&[u8]> = files(list).filter(|file| !is_named(file, library)).collect();
    (kept.len() < files(list).count()).then(|| OsString::from_vec(kept.join(&b':')))
}

/// Formats the text of `--dry-run`: a line for each variable, then the command.
fn dry_run_text(variables: &[Setting], command: &[OsString]) -> String {
    let line = |set: &Setting| {
        let value = value_for(set, std::env::var_os(set.name));
        let kept = if value.is_some() { "" } else { " (set already, kept)" };
        let value = value.or_else(|| std::env::var_os(set.name)).unwrap_or_default();
        format!("export {}={} # {}{kept}\n", set.name, shell_quoted(&value.to_string_lossy()), set.effect)
    };
    let words: Vec<String> = command.iter().map(|word| shell_quoted(&word.to_string_lossy())).collect();
    format!("{}exec {}\n", variables.iter().map(line).collect::<String>(), words.join(" "))
}

pub(crate) fn run(output: Output, socket: Option<PathBuf>, args: &RunArgs) -> Result<Outcome> {
    let [program, arguments @ ..] = args.command.as_slice() else { bail!("no program is named") };
    args.choice.check()?;
    let switches = Switches::new(&args.choice, ProgramFile::find(program).as_ref(), socket.as_deref());
    let Switches { on, off, for_children, .. } = &switches;
    ensure!(
        !on.is_empty() || !for_children.is_empty() || switches.is_program_unfit,
        "nothing to switch on: {}; `make install` installs the libraries",
        off.join(", ")
    );
    let variables = joined(on.iter().chain(for_children).flat_map(|switch| switch.variables.iter().cloned()));
    if args.dry_run {
        let command: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
        let body = serde_json::json!({ "on": on, "off": off, "for_children": for_children, "command": command });
        output.result("run", &body, || dry_run_text(&variables, &args.command))?;
        return Ok(Outcome::Done);
    }
    if !args.quiet {
        note(&switches.summary());
    }
    exec(program, arguments, socket, &variables, &switches.corrected)
}

/// Becomes the program. Returns only if it cannot be started.
pub(crate) fn exec(
    program: &OsStr,
    arguments: &[OsString],
    socket: Option<PathBuf>,
    variables: &[Setting],
    corrected: &[(&'static str, OsString)],
) -> Result<Outcome> {
    let mut command = Command::new(program);
    command.envs(corrected.iter().map(|(name, value)| (name, value)));
    if let Some(socket) = socket {
        command.env(isthmus_layout::environment::SOCKET.name, std::path::absolute(socket)?);
    }
    apply(&mut command, variables);
    let error = command.args(arguments).exec();
    let status = if error.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    note(&format!("cannot run {}: {error}", program.display()));
    Ok(Outcome::Status(status))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn set(is_list: bool) -> Setting {
        Setting { name: "X", value: "/opt/lib".to_owned(), effect: "", is_list }
    }

    #[test]
    fn list_gets_the_value_in_front_and_other_variables_keep_their_value() {
        let value = |is_list, present: Option<&str>| {
            value_for(&set(is_list), present.map(OsString::from)).map(|value| value.into_string().unwrap())
        };
        assert_eq!(value(true, None).as_deref(), Some("/opt/lib"));
        assert_eq!(value(true, Some("")).as_deref(), Some("/opt/lib"), "an empty part means the current folder");
        assert_eq!(value(true, Some("/usr/lib")).as_deref(), Some("/opt/lib:/usr/lib"));
        assert_eq!(value(false, None).as_deref(), Some("/opt/lib"));
        assert_eq!(value(false, Some("")), None, "an empty value was set on purpose");
        assert_eq!(value(false, Some("mine")), None);
    }

    #[test]
    fn library_is_taken_out_of_a_list() {
        let kept = |list: &str| without_library(OsStr::new(list), "ours.so").map(|list| list.into_string().unwrap());
        assert_eq!(kept("/opt/ours.so:/usr/lib/a.so b.so").as_deref(), Some("/usr/lib/a.so:b.so"));
        assert_eq!(kept("ours.so").as_deref(), Some(""));
        assert_eq!((kept(""), kept("/ours.so/a.so:not-ours.so")), (None, None));
    }

    #[test]
    fn capabilities_that_guests_do_not_have_are_off_with_the_reason() {
        let switch = |capability| Switch { capability, folder: PathBuf::new(), variables: Vec::new() };
        let off = vec![
            "fabric (not installed)".to_owned(),
            "sockets (it is static; the programs that it starts may)".to_owned(),
        ];
        let mut switches = Switches {
            on: vec![switch("mx"), switch("verbs")],
            for_children: vec![switch("sockets")],
            off,
            ..Switches::default()
        };
        switches.leave_to_hosts();
        let on: Vec<_> = switches.on.iter().map(|switch| switch.capability).collect();
        assert_eq!((on, switches.for_children.len()), (vec!["mx", "verbs"], 0));
        let not_yet =
            |name: &str| format!("{name} (the capability is not supported in guests yet [not-in-guests-yet])");
        assert_eq!(switches.off, ["fabric (not installed)".to_owned(), not_yet("sockets")]);
    }

    #[test]
    fn summary_says_what_a_capability_lacks() {
        let switch = |capability| Switch { capability, folder: PathBuf::from("/lib"), variables: Vec::new() };
        let mut switches = Switches { on: vec![switch("mx"), switch("sockets")], ..Switches::default() };
        assert_eq!(switches.summary(), "on: mx (/lib), sockets (/lib)");
        switches.is_daemon_missing = true;
        assert_eq!(switches.summary(), "on: mx (/lib), sockets (/lib; no daemon answers)");
        let files = switch("verbs").row().device_files.iter().map(|file| file.path);
        let missing = files.into_iter().find(|path| !Path::new(path).exists());
        let lacks = missing.map(|path| format!("; there is no {path} here, see `isthmus doctor`")).unwrap_or_default();
        assert_eq!(
            Switches { on: vec![switch("verbs")], ..Switches::default() }.summary(),
            format!("on: verbs (/lib{lacks})")
        );
    }

    #[test]
    fn shell_quoted_values_survive_the_shell() {
        assert_eq!(shell_quoted("ofi,self"), "ofi,self");
        assert_eq!(shell_quoted("^sm,ucx"), "'^sm,ucx'");
        assert_eq!(shell_quoted("/a b/it's"), r"'/a b/it'\''s'");
        assert_eq!(shell_quoted(""), "''");
    }

    #[test]
    fn lists_of_several_capabilities_are_joined() {
        let one = Setting { name: "L", ..set(true) };
        let other = Setting { value: "/opt/other".to_owned(), ..one.clone() };
        let values: Vec<_> =
            joined([one.clone(), set(false), other].into_iter()).into_iter().map(|set| set.value).collect();
        assert_eq!(values, ["/opt/lib:/opt/other", "/opt/lib"]);
        assert_eq!(joined([one.clone()].into_iter()), [one]);
    }

    #[test]
    fn no_two_capabilities_set_the_same_variable() {
        let place = ProgramPlace { folder: Path::new("/x"), socket: None, container: None };
        let all = PROGRAM_CAPABILITIES.map(|capability| (capability.settings)(&place));
        let names: Vec<&str> = all.iter().flatten().flatten().map(|set| set.name).collect();
        let distinct: HashSet<&str> = names.iter().copied().collect();
        assert_eq!(distinct.len(), names.len(), "{names:?}");
    }
}
