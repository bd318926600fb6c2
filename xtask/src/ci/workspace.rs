//! The packages of the workspace as `cargo metadata` lists them, and what each says about its tests.
//!
//! A package describes its test targets in its manifest; all keys are optional:
//!
//! ```toml
//! [package.metadata.ci]
//! step = "suites"      # the step that counts its tests; otherwise `test`
//! alone = ["kills"]    # test targets that measure: nothing runs beside them
//! waits = ["server"]   # test targets that mostly wait: several run beside each other
//! first = ["xen"]      # test targets that take minutes: they start before others
//! long = ["kills"]     # test targets that have a long form, for `--long`
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;

use super::schedule::Cost;
use crate::cmd;

/// A package of the workspace.
#[derive(Clone, Debug)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) id: String,
    /// The folder of its manifest.
    pub(super) folder: PathBuf,
    /// The names of all packages it depends on, in any way.
    pub(super) dependencies: BTreeSet<String>,
    /// True if the package declares features.
    pub(super) has_features: bool,
    settings: Value,
}

impl Package {
    /// The step that counts this package's tests.
    pub(super) fn step(&self) -> &str {
        self.settings.get("step").and_then(Value::as_str).unwrap_or("test")
    }

    /// Returns the part of the machine that a test target of this package needs.
    pub(super) fn cost(&self, target: &str) -> Cost {
        if self.lists("alone", target) {
            Cost::Alone
        } else if self.lists("waits", target) {
            Cost::Waits
        } else {
            Cost::Computes
        }
    }

    /// Returns whether a list of the manifest names a test target.
    pub(super) fn lists(&self, key: &str, target: &str) -> bool {
        self.listed(key).any(|name| name == target)
    }

    fn listed<'a>(&'a self, key: &str) -> impl Iterator<Item = &'a str> {
        self.settings.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
    }

    /// Test targets that the manifest lists under any key.
    pub(super) fn described(&self) -> impl Iterator<Item = &str> {
        ["alone", "waits", "first", "long"].into_iter().flat_map(|key| self.listed(key))
    }
}

#[cfg(test)]
impl Package {
    /// A package in the folder of its name, without settings.
    pub(super) fn plain(name: &str, id: &str, dependencies: BTreeSet<String>) -> Self {
        let folder = Path::new("/w").join(name);
        let (name, id) = (name.to_owned(), id.to_owned());
        Self { name, id, folder, dependencies, has_features: false, settings: Value::Null }
    }
}

/// All packages of the workspace.
pub(super) fn packages() -> Result<Vec<Package>> {
    let metadata = cmd::output("cargo", &["metadata", "--no-deps", "--format-version", "1"]);
    parse(&metadata.context("cargo metadata failed")?)
}

fn parse(metadata: &str) -> Result<Vec<Package>> {
    let metadata: Value = serde_json::from_str(metadata)?;
    let packages = metadata["packages"].as_array().context("cargo metadata lists no packages")?;
    packages.iter().map(|package| read(package).context("cargo metadata describes a package without a name")).collect()
}

fn read(package: &Value) -> Option<Package> {
    let text = |key: &str| package[key].as_str().map(str::to_owned);
    let dependencies = package["dependencies"].as_array()?.iter();
    Some(Package {
        name: text("name")?,
        id: text("id")?,
        folder: Path::new(&text("manifest_path")?).parent()?.to_path_buf(),
        dependencies: dependencies.filter_map(|dependency| dependency["name"].as_str().map(str::to_owned)).collect(),
        has_features: package["features"].as_object().is_some_and(|features| !features.is_empty()),
        settings: package["metadata"]["ci"].clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_manifest_says_about_its_tests() {
        let package = r#"{ "packages": [{ "name": "a", "id": "path+a", "manifest_path": "/w/tests/a/Cargo.toml",
            "dependencies": [{ "name": "b" }], "features": { "f": [] }, "metadata": { "ci": { "step": "s", "alone": ["m"], "waits": ["w"] } } },
            { "name": "b", "id": "path+b", "manifest_path": "/w/b/Cargo.toml", "dependencies": [], "metadata": null }] }"#;
        let found = parse(package).unwrap();
        let [a, b] = &found[..] else { panic!("{found:?}") };
        assert_eq!((a.step(), b.step()), ("s", "test"));
        assert_eq!((a.cost("m"), a.cost("w"), a.cost("other")), (Cost::Alone, Cost::Waits, Cost::Computes));
        assert_eq!(a.described().collect::<Vec<_>>(), ["m", "w"]);
        assert!(a.has_features && !b.has_features);
        assert_eq!(a.folder, Path::new("/w/tests/a"));
        assert!(a.dependencies.contains("b") && b.dependencies.is_empty());
    }
}
