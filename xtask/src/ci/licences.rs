//! Every dependency's licence is one of those in `deny.toml`.
//!
//! A small part of what cargo-deny does, for machines that do not have it: the list is read from its file.

use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;

use super::step::{Log, Outcome};
use crate::cmd;

pub(super) fn check(_: &Log) -> Result<Outcome> {
    let config = fs::read_to_string(cmd::root().join("deny.toml")).context("cannot read deny.toml")?;
    let config: toml::Table = config.parse().context("deny.toml")?;
    let allowed =
        config.get("licenses").and_then(|section| section.get("allow")?.as_array()).context("[licenses] allow")?;
    let allowed: Vec<&str> = allowed.iter().filter_map(toml::Value::as_str).collect();
    let metadata = cmd::output("cargo", &["metadata", "--format-version", "1"]).context("cargo metadata failed")?;
    let metadata: Value = serde_json::from_str(&metadata)?;
    let packages = metadata.get("packages").and_then(Value::as_array).context("cargo metadata has no packages")?;
    let refused: Vec<String> = packages.iter().filter_map(|package| refuse(package, &allowed)).collect();
    if refused.is_empty() {
        return Ok(Outcome::passed(format!("{} packages", packages.len())));
    }
    Ok(Outcome::failed(refused.join("; ")))
}

fn refuse(package: &Value, allowed: &[&str]) -> Option<String> {
    let text = |key: &str| package.get(key).and_then(Value::as_str);
    let licence = text("license").unwrap_or("");
    (!is_permitted(licence, allowed)).then(|| format!("{} is under `{licence}`", text("name").unwrap_or("?")))
}

/// Returns true if an SPDX expression can be met with the allowed licences. An exception (`WITH …`) only adds permissions.
fn is_permitted(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any_of(&mut rest, allowed) && rest.is_empty()
}

fn any_of(rest: &mut &[&str], allowed: &[&str]) -> bool {
    let mut holds = all_of(rest, allowed);
    while let ["OR", after @ ..] = *rest {
        *rest = after;
        holds |= all_of(rest, allowed);
    }
    holds
}

fn all_of(rest: &mut &[&str], allowed: &[&str]) -> bool {
    let mut holds = visit_tree(rest, allowed);
    while let ["AND", after @ ..] = *rest {
        *rest = after;
        holds &= visit_tree(rest, allowed);
    }
    holds
}

fn visit_tree(rest: &mut &[&str], allowed: &[&str]) -> bool {
    let Some((first, after)) = rest.split_first() else { return false };
    *rest = after;
    if *first == "(" {
        let holds = any_of(rest, allowed);
        *rest = rest.strip_prefix(&[")"]).unwrap_or(rest);
        return holds;
    }
    if let ["WITH", _, after @ ..] = *rest {
        *rest = after;
    }
    allowed.contains(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_weighed() {
        let permits = |expression| is_permitted(expression, &["MIT", "Apache-2.0", "Unicode-3.0"]);
        assert!(permits("MIT"));
        assert!(permits("GPL-2.0 OR MIT"));
        assert!(permits("MIT/GPL-2.0"));
        assert!(permits("(MIT OR Apache-2.0) AND Unicode-3.0"));
        assert!(permits("Apache-2.0 WITH LLVM-exception OR GPL-3.0"));
        assert!(!permits("GPL-2.0"));
        assert!(!permits("MIT AND GPL-2.0"));
        assert!(!permits("(MIT OR Apache-2.0) AND GPL-2.0"));
        assert!(!permits(""));
    }
}
