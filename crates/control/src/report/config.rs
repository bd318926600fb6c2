//! The configuration that a viewer may see.

use serde_json::Value;

use crate::viewer::Viewer;

/// Keys that explain refusals to their programs, besides all of `limits`. Of these, lists and tables are not shown, because they name
/// users, addresses and paths.
const PUBLIC: [&str; 11] = [
    "policy.attach",
    "policy.talk",
    "policy.channels",
    "policy.grants",
    "sockets.enabled",
    "sockets.across",
    "sockets.streams_max",
    "sockets.after_bytes",
    "verbs.enabled",
    "wait.mode",
    "wait.spin_us",
];

/// Returns the configuration, or what every program may know of it. The origins of values name files of the host.
pub(super) fn visible(config: &Value, viewer: &Viewer) -> Value {
    if viewer.sees_all() {
        return config.clone();
    }
    let all = config["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_public = |entry: &&Value| {
        let key = entry["key"].as_str().unwrap_or_default();
        let is_scalar = !entry["value"].is_array() && !entry["value"].is_object();
        is_scalar && (key.starts_with("limits.") || PUBLIC.contains(&key))
    };
    let entries: Vec<Value> = all.iter().filter(is_public).cloned().map(without_origin).collect();
    let hidden = all.len() - entries.len();
    serde_json::json!({ "schema": config["schema"], "file": null, "hidden": hidden, "entries": entries })
}

fn without_origin(mut entry: Value) -> Value {
    entry["origin"] = Value::Null;
    entry["overridden"] = Value::Array(Vec::new());
    if let Some(pending) = entry["after_restart"].as_object_mut() {
        pending.insert("origin".to_owned(), Value::Null);
    }
    entry
}
