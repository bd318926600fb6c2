//! Queries to the daemon, and its reports: unchanged for programs, in columns for people.
//!
//! The daemon may be one version older or newer than this tool. The columns leave out fields that this tool does not know;
//! `--json` shows all.

mod channels;
mod why;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use isthmus_client::{Options, QueryClient, Topic};
use isthmus_config::{Inputs, Role};
use isthmus_report::{DomainName, Domains, Endpoints, ReasonCount, StatusReport, container_of_cgroup};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::capability::ENDPOINT_COLUMNS;
use crate::output::{Align, Outcome, Output, Table, bytes, duration, hidden};

pub(crate) use channels::{has_channel, list as channels, text as channels_text};
pub(crate) use why::{WhyTarget, explained, text as why_text, why};

/// A connection for queries, which never attaches.
#[derive(Debug)]
pub(crate) struct Daemon(QueryClient);

impl Daemon {
    pub(crate) fn connect(options: &Options) -> Result<Self> {
        Ok(Self(QueryClient::connect(options)?))
    }

    /// Returns the path of the socket by which this process has found the daemon. The path in the report is the daemon's word.
    pub(crate) fn socket(&self) -> &Path {
        self.0.socket()
    }

    pub(crate) fn ask(&mut self, topic: Topic, arguments: &[&str]) -> Result<Value> {
        match serde_json::from_str(&self.0.query(topic, arguments)?).context("the daemon's report is not JSON")? {
            answer @ Value::Object(_) => Ok(answer),
            other => bail!("the daemon's report is {other}, not an object"),
        }
    }
}

/// Returns the options of the environment, with the socket of the command line if there is one. No daemon is started.
pub(crate) fn options(socket: Option<PathBuf>) -> Result<Options> {
    let options = Options::from_environment()?;
    Ok(Options { socket: socket.or(options.socket), no_autostart: true, ..options })
}

/// Returns the default socket of a daemon.
pub(crate) fn usual_socket(role: Role) -> PathBuf {
    let inputs = Inputs::of_this_process(role, None, Vec::new());
    inputs.role_defaults().runtime_dir.join("isthmus.sock")
}

pub(crate) fn ask(socket: Option<PathBuf>, topic: Topic, arguments: &[&str]) -> Result<Value> {
    Daemon::connect(&options(socket)?)?.ask(topic, arguments)
}

/// Prints a report. A report that this tool does not understand fails only if it has to be formatted.
pub(crate) fn show<T: DeserializeOwned>(
    output: Output,
    kind: &str,
    answer: &Value,
    text: fn(&T) -> String,
) -> Result<Outcome> {
    let shown = if output.json { String::new() } else { text(&read(answer)?) };
    output.result(kind, answer, || shown)?;
    Ok(Outcome::Done)
}

pub(crate) fn read<T: DeserializeOwned>(answer: &Value) -> Result<T> {
    T::deserialize(answer)
        .context("this tool does not understand the report of this version of the daemon; --json shows it")
}

pub(crate) fn status(output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
    show(output, "status", &ask(socket, Topic::Status, &[])?, status_text)
}

pub(crate) fn domains(output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
    show(output, "domains", &ask(socket, Topic::Domains, &[])?, domains_text)
}

pub(crate) fn endpoints(output: Output, socket: Option<PathBuf>) -> Result<Outcome> {
    show(output, "endpoints", &ask(socket, Topic::Endpoints, &[])?, endpoints_text)
}

/// Formats a domain within a sentence.
pub(crate) fn named(domain: &DomainName) -> String {
    format!("{} (d{})", domain.name, domain.id)
}

fn status_text(status: &StatusReport) -> String {
    let resumable = match status.domains_resumable {
        0 => String::new(),
        count => format!(", {count} resumable after a restart"),
    };
    let mut lines = vec![("daemon", format!("{}, protocol {}", status.daemon, status.protocol))];
    match &status.guest {
        Some(guest) => {
            lines.push(("guest", format!("{guest}; the daemon is on the host, up {}", duration(status.uptime_s))))
        }
        None => lines.extend([
            ("process", format!("{}, user {}, up {}", status.pid, status.uid, duration(status.uptime_s))),
            ("socket", status.socket.clone()),
        ]),
    }
    lines.extend([
        ("wait mode", status.wait.clone()),
        ("domains", format!("{} of {}{resumable}", status.domains, status.domains_max)),
        ("endpoints", status.endpoints.to_string()),
        ("channels", status.channels.to_string()),
        ("connections", status.connections.to_string()),
    ]);
    for worker in &status.workers {
        let (records, sleeps) = (worker.records, worker.sleeps);
        let queued = bytes(worker.queued_bytes);
        let moved = format!(
            "{records} records, {} moved; {queued} queued; {sleeps} sleeps, {} wakeups",
            bytes(worker.bytes),
            worker.wakeups
        );
        lines.push(("worker", format!("{}: {moved}", worker.worker)));
        lines.extend(counted("  faults", &worker.faults));
        lines.extend(counted("  drops", &worker.drops));
    }
    lines.extend(counted("reasons", &status.reasons));
    lines.iter().map(|(name, value)| format!("{name:<12}  {value}\n")).collect()
}

fn counted(name: &'static str, counts: &[ReasonCount]) -> Option<(&'static str, String)> {
    let shown: Vec<String> = counts.iter().map(|count| format!("{} {}", count.reason, count.count)).collect();
    (!shown.is_empty()).then(|| (name, shown.join(", ")))
}

fn domains_text(answer: &Domains) -> String {
    let mut table = Table::new(&[
        ("domain", Align::Left),
        ("name", Align::Left),
        ("user", Align::Right),
        ("pid", Align::Right),
        ("guest", Align::Left),
        ("container", Align::Left),
        ("age", Align::Right),
        ("endpoints", Align::Right),
        ("channels", Align::Right),
        ("daemon sent", Align::Right),
        ("received", Align::Right),
        ("queued", Align::Right),
        ("library", Align::Left),
    ]);
    for row in &answer.domains {
        table.row(vec![
            format!("d{}", row.id),
            row.name.clone(),
            row.uid.to_string(),
            row.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string()),
            row.guest.clone().unwrap_or_else(|| "-".to_owned()),
            row.cgroup.as_deref().and_then(container).unwrap_or_else(|| "-".to_owned()),
            duration(row.age_s),
            row.endpoints.to_string(),
            row.channels.to_string(),
            bytes(row.daemon_path_sent_bytes),
            bytes(row.daemon_path_received_bytes),
            bytes(row.queued_bytes),
            row.library.clone(),
        ]);
    }
    table.text() + &hidden(answer.hidden)
}

/// Returns the container of a cgroup, else its systemd unit, else its last part. Long identifiers are shortened.
fn container(cgroup: &str) -> Option<String> {
    let parts = |path| str::split(path, '/').filter(|part| !part.is_empty());
    if let Some((path, id)) = container_of_cgroup(cgroup) {
        let name = parts(path).next_back()?;
        return Some(id.map_or(name.to_owned(), |id| name.trim_end_matches(".scope").replace(id, &id[..12])));
    }
    let is_unit = |part: &&str| part.ends_with(".service") || part.ends_with(".scope");
    parts(cgroup).rfind(is_unit).or_else(|| parts(cgroup).next_back()).map(str::to_owned)
}

fn endpoints_text(answer: &Endpoints) -> String {
    let added = ENDPOINT_COLUMNS.map(|column| (column.title, Align::Left));
    let columns = [("endpoint", Align::Left), ("domain", Align::Left)].into_iter().chain(added);
    let mut table = Table::new(&columns.chain([("label", Align::Left)]).collect::<Vec<_>>());
    for row in &answer.endpoints {
        let added = ENDPOINT_COLUMNS.map(|column| (column.cell)(row));
        let cells = [Some(format!("d{}.e{}", row.domain.id, row.index)), Some(row.domain.name.clone())];
        let cells = cells.into_iter().chain(added).chain([row.label.clone()]);
        table.row(cells.map(|cell| cell.unwrap_or_else(|| "-".to_owned())).collect());
    }
    table.text() + &hidden(answer.hidden)
}

#[cfg(test)]
mod tests;
