//! The dependencies that are allowed between crates.
//!
//! ```text
//! layout ◄─ shm ◄─ platform ◄─ channel ◄─┬─ service ◄─ control ◄─ guests ◄─ daemon ◄─ isthmusd
//!   ▲        ▲        ▲                   └─ client ◄─┬─ abi/*
//! engines   link   window, -kvm, -xen                 └─ isthmus, isthmus-bench
//! ```
//!
//! The rule also says which crates may use some external crates, that versions stand once in the workspace, and that a folder is called
//! like its package. Names of dependencies that are renamed are followed.

use toml::{Table, Value};

use super::Finding;
use crate::tree::Tree;

const RULE: &str = "arrows";

const LAYOUT: &str = "isthmus-layout";
const SHM: &str = "isthmus-shm";
const PLATFORM: &str = "isthmus-platform";
const CHANNEL: &str = "isthmus-channel";
const CLIENT: &str = "isthmus-client";
const SERVICE: &str = "isthmus-service";
const CONFIG: &str = "isthmus-config";
const REPORT: &str = "isthmus-report";
const WINDOW: &str = "isthmus-window";
const CONTROL: &str = "isthmus-control";
const GUESTS: &str = "isthmus-guests";
const DAEMON: &str = "isthmus-daemon";
const MX: &str = "isthmus-mx";
const VERBS: &str = "isthmus-verbs";
const OVERLAY: &str = "isthmus-overlay";
const SOCKETS: &str = "isthmus-sockets";
const LINK: &str = "isthmus-link";
const HELPER: &str = "isthmus-helper";
const NETNS: &str = "isthmus-netns";
const CAPTURE: &str = "isthmus-capture";
const MX_TRANSPORT: &str = "isthmus-mx-transport";
const KVM: &str = "isthmus-platform-kvm";
const XEN: &str = "isthmus-platform-xen";

/// Engines: decisions without I/O. They and `layout` live without std.
pub(super) const ENGINES: [&str; 4] = [MX, VERBS, OVERLAY, SOCKETS];

/// Each package and what it may depend on; `abi` stands for every crate below abi/.
const ALLOWED: [(&str, &[&str]); 35] = [
    (LAYOUT, &[]),
    (SHM, &[LAYOUT]),
    (PLATFORM, &[LAYOUT, SHM]),
    (KVM, &[LAYOUT, SHM, PLATFORM]),
    (XEN, &[LAYOUT, SHM, PLATFORM]),
    (CHANNEL, &[LAYOUT, SHM, PLATFORM]),
    (MX, &[LAYOUT]),
    (VERBS, &[LAYOUT]),
    (OVERLAY, &[LAYOUT]),
    (SOCKETS, &[LAYOUT]),
    (LINK, &[LAYOUT, SHM]),
    (HELPER, &[LAYOUT, SHM, PLATFORM, LINK, NETNS]),
    (NETNS, &[]),
    (CAPTURE, &[LAYOUT, MX]),
    (MX_TRANSPORT, &[LAYOUT, SHM, MX]),
    (SERVICE, &[LAYOUT, SHM, PLATFORM, CHANNEL, CAPTURE, LINK, MX_TRANSPORT, MX, VERBS, OVERLAY, SOCKETS]),
    (CLIENT, &[LAYOUT, SHM, PLATFORM, CHANNEL]),
    (CONFIG, &[LAYOUT, MX, OVERLAY]),
    (REPORT, &[LAYOUT]),
    (WINDOW, &[LAYOUT, SHM, PLATFORM]),
    (CONTROL, &[CONFIG, REPORT, LAYOUT, SHM, PLATFORM, WINDOW, CHANNEL, CAPTURE, SERVICE, LINK, HELPER, MX, OVERLAY]),
    (GUESTS, &[CONFIG, REPORT, LAYOUT, SHM, PLATFORM, WINDOW, CHANNEL, CONTROL, KVM, XEN]),
    (DAEMON, &[CONFIG, REPORT, LAYOUT, SHM, PLATFORM, CHANNEL, SERVICE, CONTROL, GUESTS, KVM, XEN]),
    ("isthmusd", &[CONFIG, CONTROL, DAEMON, LAYOUT, PLATFORM, KVM, XEN]),
    ("isthmus", &[CAPTURE, CLIENT, CONFIG, REPORT, LAYOUT, SHM, PLATFORM, KVM, XEN, "isthmus-bench", NETNS]),
    ("isthmus-bench", &[CLIENT, SHM, LAYOUT, PLATFORM, LINK, NETNS, OVERLAY]),
    ("abi", &[CLIENT, LAYOUT, SHM, PLATFORM, CHANNEL, MX, SOCKETS, VERBS]),
    ("xtask", &[]),
    ("isthmus-testbed", &[LAYOUT, SHM, PLATFORM, CHANNEL, SERVICE, CLIENT, CONFIG, REPORT, CONTROL, NETNS]),
    ("isthmus-xen-test-agent", &[LAYOUT, SHM, PLATFORM, XEN]),
    ("isthmus-mx-tests", &[CLIENT, "isthmus-testbed"]),
    ("isthmus-mpi-tests", &["isthmus-hosts", LAYOUT, NETNS]),
    ("isthmus-sockets-tests", &["isthmus-testbed", NETNS]),
    ("isthmus-verbs-tests", &["isthmus-client", "isthmus-testbed", NETNS]),
    ("isthmus-overlay-tests", &["isthmus-testbed", NETNS]),
];

/// The crates that any crate may use in its own tests, beside those it may use anyway.
const FOR_TESTS: [&str; 3] = ["isthmus-testbed", DAEMON, NETNS];

/// Crates of others that only some of ours may know: in which packages or folders (ending in `/`).
const RESERVED: [(&str, &[&str]); 3] = [
    ("tokio", &[WINDOW, CONTROL, GUESTS, DAEMON, "isthmusd", "tests/"]),
    ("anyhow", &["bin/", "tests/", "xtask/", "fuzz/"]),
    ("libc", &["abi/", LINK, PLATFORM]),
];

/// A dependency as some manifest declares it.
struct Dependency {
    name: String,
    in_workspace_table: bool,
    for_tests: bool,
}

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut manifests = Vec::new();
    for file in tree.texts.iter().filter(|file| file.path.ends_with("Cargo.toml")) {
        match file.text.parse::<Table>() {
            Ok(table) => manifests.push((file.path.as_str(), table)),
            Err(error) => findings.push(Finding::error(RULE, &file.path, 0, error.message())),
        }
    }
    let empty = Table::new();
    let root = manifests.iter().find(|(path, _)| *path == "Cargo.toml").map_or(&empty, |(_, table)| table);
    let names: Vec<String> = manifests.iter().filter_map(|(_, table)| package_name(table)).collect();
    for (path, table) in &manifests {
        let Some(name) = package_name(table) else { continue };
        let complain = |text: String| Finding::error(RULE, path, 0, text);
        if is_member(path) {
            findings.extend(check_form(path, &name, table).into_iter().map(complain));
        }
        let dependencies = dependencies(table, root);
        let ours = dependencies.iter().filter(|dependency| names.contains(&dependency.name));
        findings.extend(ours.filter_map(|dependency| refuse(path, &name, dependency)).map(complain));
        findings
            .extend(dependencies.iter().filter_map(|dependency| check_external(path, &name, dependency)).map(complain));
        if is_member(path) {
            let own = dependencies.iter().filter(|dependency| !dependency.in_workspace_table);
            findings.extend(own.map(|dependency| {
                let text = format!("say `{0}.workspace = true`, with its version in the workspace", dependency.name);
                Finding::error(RULE, path, 0, text)
            }));
        }
    }
    findings
}

/// fuzz/ stands outside of the workspace: it is built with other flags.
fn is_member(path: &str) -> bool {
    path != "Cargo.toml" && !path.starts_with("fuzz/")
}

fn package_name(manifest: &Table) -> Option<String> {
    manifest.get("package")?.get("name")?.as_str().map(str::to_owned)
}

/// The folder of a package below `crates/`: its name without the prefix.
pub(super) fn folder_of(package: &str) -> String {
    format!("crates/{}", package.trim_start_matches("isthmus-"))
}

/// Lints come from the workspace. A folder of `bin/` has the name of its package, one of `crates/` the name without the prefix.
fn check_form(path: &str, name: &str, manifest: &Table) -> Vec<String> {
    let mut said = Vec::new();
    let lints = manifest.get("lints").and_then(|lints| lints.get("workspace")).and_then(Value::as_bool);
    if lints != Some(true) {
        said.push("needs `[lints] workspace = true`".to_owned());
    }
    let folder = path.trim_end_matches("/Cargo.toml");
    let expected = if folder.starts_with("crates/") { folder_of(name) } else { format!("bin/{name}") };
    if (folder.starts_with("crates/") || folder.starts_with("bin/")) && folder != expected {
        said.push(format!("the folder of package {name} is {folder}; it must be {expected}"));
    }
    said
}

fn dependencies(manifest: &Table, root: &Table) -> Vec<Dependency> {
    let mut found = Vec::new();
    let targets = manifest.get("target").and_then(Value::as_table);
    let per_target = targets.into_iter().flat_map(|targets| targets.values()).filter_map(Value::as_table);
    for table in std::iter::once(manifest).chain(per_target) {
        for section in ["dependencies", "build-dependencies", "dev-dependencies"] {
            let entries = table.get(section).and_then(Value::as_table);
            for (key, spec) in entries.into_iter().flatten() {
                let in_workspace_table = spec.get("workspace").and_then(Value::as_bool) == Some(true);
                let declared = root.get("workspace").and_then(|table| table.get("dependencies")?.get(key));
                let spec = if in_workspace_table { declared.unwrap_or(spec) } else { spec };
                let name = spec.get("package").and_then(Value::as_str).unwrap_or(key).to_owned();
                found.push(Dependency { name, in_workspace_table, for_tests: section == "dev-dependencies" });
            }
        }
    }
    found
}

/// Returns the reason why a dependency between two of our packages is refused.
fn refuse(path: &str, name: &str, dependency: &Dependency) -> Option<String> {
    let on = dependency.name.as_str();
    if on == "xtask" {
        return Some("nothing depends on xtask".to_owned());
    }
    let is_free = path.starts_with("tests/suites/")
        || path.starts_with("tests/hosts/")
        || path.starts_with("tests/guests/")
        || path.starts_with("tests/interop/")
        || path.starts_with("fuzz/");
    let is_helper = dependency.for_tests && (FOR_TESTS.contains(&on) || on == name);
    if is_free || is_helper {
        return None;
    }
    let key = if path.starts_with("abi/") { "abi" } else { name };
    match ALLOWED.iter().find(|(package, _)| *package == key) {
        Some((_, allowed)) if allowed.contains(&on) => None,
        Some((_, [])) => Some(format!("{name} must not depend on {on}: it depends on nothing of ours")),
        Some((_, allowed)) => Some(format!("{name} must not depend on {on}; it may on {}", allowed.join(", "))),
        None => Some(format!(
            "{name} is not in the table of xtask/src/tidy/dependencies.rs: say there what it may depend on"
        )),
    }
}

/// Returns the reason why an external crate is refused.
fn check_external(path: &str, name: &str, dependency: &Dependency) -> Option<String> {
    let (_, knowers) = RESERVED.iter().find(|(reserved, _)| *reserved == dependency.name)?;
    let may = knowers.iter().any(|knower| *knower == name || (knower.ends_with('/') && path.starts_with(knower)));
    (!may && !dependency.for_tests)
        .then(|| format!("{name} must not know {}; {} may", dependency.name, knowers.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::render;

    const ROOT: (&str, &str) = (
        "Cargo.toml",
        "[workspace.dependencies]\nisthmus-layout = {path=\"x\"}\nisthmus-shm = {path=\"y\"}\nisthmus-control = {path=\"z\"}\n\
         runtime = {package=\"tokio\", version=\"1\"}",
    );

    /// Manifests of the named packages with these dependencies, as the check sees them.
    fn findings(packages: &[(&str, &str, &str)]) -> Vec<String> {
        let manifest = |name: &str, rest: &str| format!("[package]\nname=\"{name}\"\n[lints]\nworkspace=true\n{rest}");
        let texts: Vec<(String, String)> =
            packages.iter().map(|(path, name, rest)| ((*path).to_owned(), manifest(name, rest))).collect();
        let mut files: Vec<(&str, &str)> = texts.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        files.push(ROOT);
        render(&check(&Tree::of(&files)))
    }

    const LAYOUT_MANIFEST: (&str, &str, &str) = ("crates/layout/Cargo.toml", LAYOUT, "");

    #[test]
    fn dependency_of_the_table_passes_and_its_reverse_fails() {
        let shm = |rest| ("crates/shm/Cargo.toml", SHM, rest);
        assert_eq!(findings(&[LAYOUT_MANIFEST, shm("[dependencies]\nisthmus-layout.workspace=true")]), [""; 0]);
        let reverse = ("crates/layout/Cargo.toml", LAYOUT, "[dependencies]\nisthmus-shm.workspace=true");
        assert_eq!(findings(&[reverse, shm("")]).len(), 1);
    }

    #[test]
    fn every_kind_of_dependency_is_seen() {
        let shm = ("crates/shm/Cargo.toml", SHM, "");
        for section in ["dependencies", "build-dependencies", "dev-dependencies", "target.'cfg(unix)'.dependencies"] {
            let rest = format!("[{section}]\nisthmus-shm.workspace=true");
            let layout = ("crates/layout/Cargo.toml", LAYOUT, rest.as_str());
            assert_eq!(findings(&[layout, shm]).len(), 1, "{section}");
        }
    }

    #[test]
    fn a_package_outside_the_table_must_be_entered() {
        let rest = "[dependencies]\nisthmus-layout.workspace=true";
        let found = findings(&[LAYOUT_MANIFEST, ("crates/new/Cargo.toml", "isthmus-new", rest)]);
        assert!(found.len() == 1 && found[0].contains("not in the table"), "{found:?}");
    }

    #[test]
    fn tokio_is_refused_outside_control_even_when_renamed() {
        let rest = "[dependencies]\nruntime.workspace=true";
        assert_eq!(findings(&[("crates/control/Cargo.toml", CONTROL, rest)]), [""; 0]);
        let found = findings(&[("crates/service/Cargo.toml", SERVICE, rest)]);
        assert!(found.len() == 1 && found[0].contains("must not know tokio"), "{found:?}");
    }

    #[test]
    fn versions_and_lints_stand_in_the_workspace() {
        let found = findings(&[("crates/shm/Cargo.toml", SHM, "[dependencies]\nrustix=\"1\"")]);
        assert!(found.len() == 1 && found[0].contains("rustix.workspace"), "{found:?}");
        let bare = render(&check(&Tree::of(&[("bin/isthmusd/Cargo.toml", "[package]\nname=\"isthmusd\"")])));
        assert!(bare.len() == 1 && bare[0].contains("[lints]"), "{bare:?}");
    }

    #[test]
    fn folder_has_the_name_of_its_package_without_the_prefix() {
        assert_eq!(findings(&[("crates/shm/Cargo.toml", SHM, "")]), [""; 0]);
        let found = findings(&[("crates/isthmus-shm/Cargo.toml", SHM, "")]);
        assert!(found.len() == 1 && found[0].contains("it must be crates/shm"), "{found:?}");
    }

    #[test]
    fn engines_see_layout_only() {
        let shm = ("crates/shm/Cargo.toml", SHM, "");
        for engine in ENGINES {
            let path = format!("{}/Cargo.toml", folder_of(engine));
            let good = findings(&[LAYOUT_MANIFEST, (&path, engine, "[dependencies]\nisthmus-layout.workspace=true")]);
            assert_eq!(good, [""; 0]);
            assert_eq!(findings(&[shm, (&path, engine, "[dependencies]\nisthmus-shm.workspace=true")]).len(), 1);
        }
    }
}
