//! The output of results and errors: one JSON object for programs, aligned columns for people.
//!
//! Reports contain names and texts of other users. All output goes through here, and [`shown`] escapes what a terminal would obey.

use std::fmt::Write as _;
use std::io::{self, Write as _, stderr, stdout};

use anyhow::{Context, Result, bail};
use isthmus_client::{Reason, Refusal};
use isthmus_layout::control::printable;
use isthmus_report::SCHEMA;
use serde::Serialize;
use serde_json::Value;

/// The outcome of a command without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Exit status 0.
    Done,
    /// Exit status 1: the command ran, and found a problem.
    Failed,
    /// The exit status for a program that could not be started.
    Status(u8),
}

/// A usage error that the parser of arguments cannot detect: exit status 2.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl std::fmt::Display for UsageError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// The form of the output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
}

/// The common fields of all objects.
#[derive(Serialize)]
struct Envelope<'a> {
    schema: u32,
    kind: &'a str,
    #[serde(flatten)]
    body: Value,
}

impl Output {
    /// Prints a result: `body`, which must be an object, or the text.
    pub(crate) fn result(&self, kind: &str, body: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
        print(&if self.json { object(kind, body)? } else { text() })
    }

    /// Prints an error on stderr.
    pub(crate) fn report_error(&self, error: &anyhow::Error) {
        let refusal = error.chain().find_map(|cause| cause.downcast_ref::<Refusal>());
        let text = if self.json { error_json(error, refusal) } else { error_text(error, refusal) };
        // Lost if stderr is closed.
        let _: io::Result<()> = stderr().write_all(shown(&text).as_bytes());
    }
}

/// Escapes all characters that are not to be printed, as in JSON (`\u001b`), except the ends of lines and tabs. So JSON means the same.
fn shown(text: &str) -> String {
    escaped(text, |sign| matches!(sign, '\n' | '\t'))
}

/// Escapes all characters that are not to be printed, so that a reported text stays in its line.
fn in_line(text: &str) -> String {
    escaped(text, |_| false)
}

fn escaped(text: &str, is_kept: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for sign in text.chars() {
        if printable(sign) || is_kept(sign) {
            escaped.push(sign);
            continue;
        }
        for unit in sign.encode_utf16(&mut [0; 2]) {
            let _: std::fmt::Result = write!(escaped, "\\u{unit:04x}");
        }
    }
    escaped
}

/// Formats a line with one JSON object: the version of the schema, the kind, and the fields of the body.
pub(crate) fn object(kind: &str, body: &impl Serialize) -> Result<String> {
    let mut body = serde_json::to_value(body).context("cannot write the result as JSON")?;
    let Value::Object(fields) = &mut body else { bail!("the result {kind} is not a JSON object") };
    // A report of the daemon contains its own version.
    let reported = fields.remove("schema").and_then(|schema| u32::try_from(schema.as_u64()?).ok());
    fields.remove("kind");
    Ok(to_line(&Envelope { schema: reported.unwrap_or(SCHEMA), kind, body })? + "\n")
}

/// The remedy where no daemon answers. No command but `try` starts a daemon.
const START_A_DAEMON: &str = "Start one: `isthmusd --user` for this user, or `systemctl start isthmusd` for all users of the host. In a guest: `systemctl start isthmusd-guest`.";

/// Describes an error. Where no daemon answers, names the sockets that were tried.
fn message(error: &anyhow::Error, refusal: Option<&Refusal>) -> String {
    match refusal {
        Some(Refusal { reason: reason @ Reason::DaemonUnreachable, detail }) => {
            format!("no daemon answers at {detail} [{}]", reason.name())
        }
        _ => causes(error),
    }
}

/// Returns an error with its causes, each once: the texts of many errors contain that of their cause.
pub(crate) fn causes(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match &text[..] {
        "" => cause,
        _ if text.contains(&cause) => text,
        _ => format!("{text}: {cause}"),
    })
}

fn remedy(reason: Reason) -> &'static str {
    if reason == Reason::DaemonUnreachable { START_A_DAEMON } else { reason.remedy() }
}

fn error_text(error: &anyhow::Error, refusal: Option<&Refusal>) -> String {
    let mut text = format!("isthmus: {}\n", message(error, refusal));
    if let Some(refusal) = refusal {
        let _: std::fmt::Result = writeln!(text, "  remedy: {}", remedy(refusal.reason));
    }
    text
}

fn error_json(error: &anyhow::Error, refusal: Option<&Refusal>) -> String {
    #[derive(Serialize)]
    struct ErrorBody {
        error: String,
        reason: Option<&'static str>,
        remedy: Option<&'static str>,
    }
    let reason = refusal.map(|refusal| refusal.reason);
    let body = ErrorBody {
        error: message(error, refusal),
        reason: reason.map(|reason| reason.name()),
        remedy: reason.map(remedy),
    };
    let body = serde_json::to_value(&body).unwrap_or_default();
    let envelope = Envelope { schema: SCHEMA, kind: "error", body };
    to_line(&envelope).unwrap_or_else(|_| format!("isthmus: {}", causes(error))) + "\n"
}

fn to_line(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).context("cannot write the result as JSON")
}

/// Writes to stdout. A reader that ends early (`| head`) is no error.
fn print(text: &str) -> Result<()> {
    match stdout().lock().write_all(shown(text).as_bytes()).and_then(|()| stdout().flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot print the result"),
    }
}

/// Prints a line on stderr, which is for people only.
pub(crate) fn note(text: &str) {
    // Lost if stderr is closed.
    let _: io::Result<()> = writeln!(stderr(), "isthmus: {}", shown(text));
}

/// Formats a count: `1 problem`, `3 problems`.
pub(crate) fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Formats the number of rows that a report leaves out, because this user may not see them; nothing if there is none.
pub(crate) fn hidden(rows: Option<u32>) -> String {
    match rows.unwrap_or(0) {
        0 => String::new(),
        1 => "1 other is not shown: root sees all, on the host of the daemon\n".to_owned(),
        rows => format!("{rows} others are not shown: root sees all, on the host of the daemon\n"),
    }
}

/// Formats a size: `512 B`, `3.4 KiB`, `17 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = "B";
    for larger in units {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    if unit == "B" || value >= 10.0 || value.fract() < 0.05 {
        format!("{value:.0} {unit}")
    } else {
        format!("{value:.1} {unit}")
    }
}

/// Formats a duration: `45 s`, `3 min`, `2 h 5 min`, `3 d 4 h`.
pub(crate) fn duration(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, _) => format!("{minutes} min"),
        (0, _, _) => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    Left,
    Right,
}

/// A table with aligned columns below their titles.
#[derive(Debug)]
pub(crate) struct Table {
    headers: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(headers: &[(&'static str, Align)]) -> Self {
        Self { headers: headers.to_vec(), rows: Vec::new() }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|cell| in_line(cell)).collect());
    }

    pub(crate) fn text(&self) -> String {
        let headers: Vec<String> = self.headers.iter().map(|(head, _)| (*head).to_owned()).collect();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.chain(headers.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..headers.len()).map(width).collect();
        let mut text = String::new();
        for row in std::iter::once(&headers).chain(&self.rows) {
            let cells = row.iter().zip(&widths).zip(&self.headers).map(|((cell, &width), (_, lean))| match lean {
                Align::Left => format!("{cell:<width$}"),
                Align::Right => format!("{cell:>width$}"),
            });
            text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_of_an_error_is_printed_once() {
        #[derive(Debug)]
        struct Connect(io::Error);
        impl std::fmt::Display for Connect {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "connecting: {}", self.0)
            }
        }
        impl std::error::Error for Connect {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        let error = || anyhow::Error::new(Connect(io::Error::other("no such file")));
        assert_eq!(causes(&error()), "connecting: no such file");
        assert_eq!(causes(&error().context("cannot ask")), "cannot ask: connecting: no such file");
        assert_eq!(causes(&anyhow::anyhow!("b").context("a")), "a: b");
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&[("name", Align::Left), ("bytes", Align::Right), ("path", Align::Left)]);
        table.row(vec!["müller".into(), "7".into(), "channel".into()]);
        table.row(vec!["d7".into(), "1234567".into(), "-".into()]);
        assert_eq!(
            table.text(),
            "name      bytes  path\n\
             müller        7  channel\n\
             d7      1234567  -\n"
        );
    }

    #[test]
    fn characters_that_a_terminal_obeys_are_escaped() {
        assert_eq!(
            shown("a\tmüller…\n\u{1b}[2J\u{9b}\u{7f}\u{202e}\r\u{e0001}"),
            "a\tmüller…\n\\u001b[2J\\u009b\\u007f\\u202e\\u000d\\udb40\\udc01"
        );
        let text = Value::from("\u{1b}\u{9b}\u{202e}\u{e0001}\n");
        assert_eq!(serde_json::from_str::<Value>(&shown(&text.to_string())).expect("JSON"), text);
        let mut table = Table::new(&[("name", Align::Left), ("x", Align::Left)]);
        table.row(vec!["a\nb\tc".into(), "y".into()]);
        assert_eq!(table.text(), "name             x\na\\u000ab\\u0009c  y\n");
    }

    #[test]
    fn amounts_are_short() {
        let shown: Vec<String> = [0, 1023, 1024, 3500, 20480, 5 << 30, u64::MAX].map(bytes).into();
        assert_eq!(shown, ["0 B", "1023 B", "1 KiB", "3.4 KiB", "20 KiB", "5 GiB", "16 EiB"]);
        let shown: Vec<String> = [0, 59, 60, 3599, 3600, 90061].map(duration).into();
        assert_eq!(shown, ["0 s", "59 s", "1 min", "59 min", "1 h 0 min", "1 d 1 h"]);
    }

    #[test]
    fn refusal_is_printed_with_its_remedy() {
        let refusal = Refusal::new(Reason::NoSuchDomain, "web");
        let error = anyhow::Error::from(refusal.clone()).context("asking for a path");
        let text = error_text(&error, Some(&refusal));
        assert!(text.starts_with("isthmus: asking for a path: no domain is attached"), "{text}");
        assert!(text.contains("\n  remedy: Check the name with `isthmus domain list`"), "{text}");
        let json: Value = serde_json::from_str(&error_json(&error, Some(&refusal))).expect("JSON");
        assert_eq!(
            (&json["kind"], &json["reason"], &json["schema"]),
            (&"error".into(), &"no-such-domain".into(), &1.into())
        );
    }
}
