//! `isthmus config show`: the configuration in force, or the one that a daemon would read now.

use std::path::PathBuf;

use anyhow::{Context, Result};
use isthmus_client::{Reason, Refusal, Topic};
use isthmus_config::{self as config, Inputs, Role};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::daemon;
use crate::output::{Outcome, Output, note};

/// A key with its value, as the daemon reports it.
#[derive(Deserialize)]
struct Row {
    key: String,
    value: toml::Value,
    #[serde(default)]
    origin: Option<OriginText>,
    #[serde(default)]
    overridden: Vec<OriginText>,
    #[serde(default)]
    after_restart: Option<Pending>,
}

/// A value that the daemon has read since, and that waits for a restart.
#[derive(Deserialize)]
struct Pending {
    value: toml::Value,
    #[serde(default)]
    origin: Option<OriginText>,
}

/// An origin, or its text.
#[derive(Deserialize)]
#[serde(untagged)]
enum OriginText {
    Origin(Origin),
    Text(String),
}

/// The origin of a value.
#[derive(Deserialize, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum Origin {
    Default,
    File {
        path: PathBuf,
        line: usize,
    },
    Environment {
        variable: String,
    },
    CommandLine,
    /// An origin of a later version.
    #[serde(other)]
    Other,
}

pub(crate) fn show(output: Output, socket: Option<PathBuf>, role: Option<Role>, with_origin: bool) -> Result<Outcome> {
    let answer = match role {
        Some(role) => read(role)?,
        None => in_force(socket)?,
    };
    let rows: Vec<Row> =
        serde_json::from_value(answer["entries"].clone()).context("the daemon's answer lists no configuration")?;
    output.result("config", &answer, || text(&rows, with_origin))?;
    if let Some(keys @ 1..) = answer["hidden"].as_u64() {
        note(&format!("{keys} keys are not shown: root sees all, on the host of the daemon"));
    }
    Ok(Outcome::Done)
}

/// Returns the configuration of the daemon that answers. If none answers and none was named, returns the one that a new daemon
/// would read.
fn in_force(socket: Option<PathBuf>) -> Result<Value> {
    let options = daemon::options(socket)?;
    match daemon::Daemon::connect(&options).and_then(|mut daemon| daemon.ask(Topic::Config, &[])) {
        Err(error) if options.socket.is_none() && is_unreachable(&error) => {
            note("no daemon answers; a daemon of this user would read this configuration now");
            read(Role::User)
        }
        answer => answer,
    }
}

fn is_unreachable(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.reason == Reason::DaemonUnreachable)
}

fn read(role: Role) -> Result<Value> {
    let loaded = config::load(&Inputs::of_this_process(role, None, Vec::new()))
        .context("a daemon started now would refuse its configuration")?;
    for warning in &loaded.warnings {
        note(&warning.to_string());
    }
    Ok(json!({ "entries": loaded.show_json(), "file": loaded.file }))
}

fn text(rows: &[Row], with_origin: bool) -> String {
    let lines: Vec<String> = rows.iter().map(|row| format!("{} = {}", row.key, row.value)).collect();
    if !with_origin {
        let shown = lines.iter().zip(rows).map(|(line, row)| match &row.after_restart {
            Some(next) => format!("{line}  # after a restart: {}\n", next.value),
            None => format!("{line}\n"),
        });
        return shown.collect();
    }
    // One long line does not push all origins to the right.
    let width = lines.iter().map(|line| line.chars().count()).filter(|&width| width <= 60).max().unwrap_or(0);
    let with_origin = |(line, row): (&String, &Row)| {
        let origin = row.origin.as_ref().map_or_else(|| "-".to_owned(), OriginText::to_string);
        let over: Vec<String> = row.overridden.iter().map(OriginText::to_string).collect();
        let over = if over.is_empty() { String::new() } else { format!(" (instead of {})", over.join(", ")) };
        let next = row.after_restart.as_ref().map(|next| {
            let origin = next.origin.as_ref().map_or_else(|| "-".to_owned(), OriginText::to_string);
            format!("; after a restart: {} ({origin})", next.value)
        });
        format!("{line:width$}  # {origin}{over}{}\n", next.unwrap_or_default())
    };
    lines.iter().zip(rows).map(with_origin).collect()
}

impl std::fmt::Display for OriginText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Origin(origin) => origin.fmt(f),
            Self::Text(words) => f.write_str(words),
        }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line: 0 } => write!(f, "{}", path.display()),
            Self::File { path, line } => write!(f, "{}:{line}", path.display()),
            Self::Environment { variable } => write!(f, "environment {variable}"),
            Self::CommandLine => f.write_str("command line"),
            Self::Other => f.write_str("elsewhere"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isthmus_config::ConfigFile;

    fn rows(toml: &str) -> Vec<Row> {
        let file = ConfigFile::Given { path: "isthmus.toml".into(), bytes: toml.as_bytes().to_vec() };
        let loaded = config::load(&Inputs { file, ..Inputs::bare(Role::System) }).expect("a valid file");
        serde_json::from_value(loaded.show_json()).expect("rows")
    }

    #[test]
    fn a_configuration_is_shown_as_toml_with_its_origin() {
        let shown = text(&rows("[wait]\nmode = \"spin\"\n"), true);
        let line = shown.lines().find(|line| line.starts_with("wait.mode")).expect("the key");
        assert!(line.starts_with("wait.mode = \"spin\" ") && line.ends_with("# isthmus.toml:2"), "{line}");
    }

    #[test]
    fn value_that_waits_for_a_restart_is_shown_beside_the_one_in_force() {
        let load = |toml: &str| {
            let file = ConfigFile::Given { path: "f".into(), bytes: toml.as_bytes().to_vec() };
            config::load(&Inputs { file, ..Inputs::bare(Role::System) }).expect("a valid file")
        };
        let mut loaded = load("[daemon]\nworkers = 2\n");
        let new = load("\n[daemon]\nworkers = 3\n[policy]\ntalk = \"all\"\n");
        assert_eq!(loaded.note_reload(new, &[]), ["daemon.workers"]);
        let rows: Vec<Row> = serde_json::from_value(loaded.show_json()).expect("rows");
        for with_origin in [false, true] {
            assert_eq!(text(&rows, with_origin), loaded.show_text(with_origin));
        }
        let shown = text(&rows, false);
        assert!(shown.contains("\ndaemon.workers = 2  # after a restart: 3\n"), "{shown}");
        assert!(shown.contains("\npolicy.talk = \"all\"\n"), "{shown}");
        let line = "  # f:2; after a restart: 3 (f:3)\n";
        assert!(text(&rows, true).contains(line), "{}", text(&rows, true));
        loaded.note_reload(load("[daemon]\nworkers = 2\n[policy]\ntalk = \"all\"\n"), &["policy.talk"]);
        assert!(!loaded.show_text(true).contains("after a restart"), "nothing differs any more");
    }

    #[test]
    fn unknown_origin_text_is_shown_verbatim() {
        let row = json!({ "key": "wait.spin_us", "value": 7, "origin": "command line" });
        let rows: Vec<Row> = serde_json::from_value(json!([row])).expect("rows");
        assert_eq!(text(&rows, true), "wait.spin_us = 7  # command line\n");
    }

    #[test]
    fn config_show_equals_the_daemon_output() {
        let file = ConfigFile::Given {
            path: "f".into(),
            bytes: b"[[policy.rules]]\nfrom = \"a*\"\nchannel = false\n".to_vec(),
        };
        let loaded = config::load(&Inputs { file, ..Inputs::bare(Role::System) }).expect("a valid file");
        let rows: Vec<Row> = serde_json::from_value(loaded.show_json()).expect("rows");
        assert_eq!(text(&rows, true), loaded.show_text(true));
        assert_eq!(text(&rows, false), loaded.show_text(false));
    }
}
