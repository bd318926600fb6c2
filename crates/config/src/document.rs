//! docs/operate/configuration.md, made from the table of keys.

use std::fmt::Write;

use isthmus_layout::environment::VARIABLES;

use super::fields::{Field, FieldTable};
use super::keys::{KEYS, Key, TABLES};
use super::paths::Role;
use super::setting::Grants;
use super::{ConfigFile, Inputs, load};

/// A file with mistakes of each usual kind. The document shows how they are reported.
const INVALID_EXAMPLE: &str = "\
[daemon]
workers = 100

[wait]
mode = \"adaptve\"
spin-us = 20
";

/// The longest line of prose in the document.
const COLUMNS: usize = 100;

/// The whole document.
#[must_use]
pub fn document() -> String {
    let mut text = String::from(HEAD);
    let file = ConfigFile::Given { path: "/etc/isthmus/isthmus.toml".into(), bytes: INVALID_EXAMPLE.into() };
    if let Err(error) = load(&Inputs { file, ..Inputs::bare(Role::System) }) {
        section(
            &mut text,
            format_args!("## Mistakes\n\n{MISTAKES}\n```toml\n{INVALID_EXAMPLE}```\n\n```text\n{error}\n```\n"),
        );
    }
    section(&mut text, format_args!("## Keys\n\n{KEYS_HEAD}"));
    for table in TABLES {
        section(&mut text, format_args!("### [{}]\n\n{}", table.name, wrapped(&table.text(), "")));
        for key in KEYS.iter().filter(|key| key.table == table.name) {
            section(&mut text, format_args!("{}", key_text(key)));
            for table in key.tables {
                section(&mut text, format_args!("{}", table_text(table)));
            }
        }
    }
    section(&mut text, format_args!("## The whole file, with its defaults\n\nAs `isthmusd --check` prints it.\n"));
    if let Ok(defaults) = load(&Inputs::bare(Role::System)) {
        section(&mut text, format_args!("```toml\n{}```\n", defaults.check_text()));
    }
    section(&mut text, format_args!("## Variables of the library\n\n{VARIABLES_HEAD}"));
    let rows: String = VARIABLES
        .iter()
        .map(|variable| format!("| `{}` | `{}` | {} |\n", variable.name, variable.default, variable.effect))
        .collect();
    section(&mut text, format_args!("| variable | default | effect |\n| --- | --- | --- |\n{rows}"));
    text
}

fn section(text: &mut String, section: std::fmt::Arguments<'_>) {
    write!(text, "\n{section}").expect("a string takes everything");
}

fn key_text(key: &Key) -> String {
    let default =
        key.default_toml().replace("{runtime}", "<runtime>").replace("{grants}", Grants::SameContainer.as_str());
    let head = format!("**`{}`** = `{default}`: {}.", key.path, key.expected());
    let head = format!("{head} `{}`, {}.", key.environment(), key.effect.as_str());
    format!("{}\n{}", wrapped(&head, ""), wrapped(&key.text(), ""))
}

/// Breaks a text into lines of at most [`COLUMNS`]; all but the first begin with `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    let (mut lines, mut width) = (String::new(), 0);
    for word in text.split_whitespace() {
        let len = word.chars().count();
        if width > 0 && width + 1 + len > COLUMNS {
            lines.push('\n');
            lines.push_str(indent);
            width = indent.len();
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }
        lines.push_str(word);
        width += len;
    }
    lines.push('\n');
    lines
}

/// The fields of a table inside a value: their values in a table, and below it their purpose.
fn table_text(table: &FieldTable) -> String {
    let escaped = |text: &str| text.replace('|', "\\|");
    let row = |field: &Field| {
        format!("| `{}` | {} | {} |\n", field.name, escaped(&(field.expected)()), escaped(field.default))
    };
    let rows: String = table.fields.iter().map(row).collect();
    let item = |field: &Field| wrapped(&format!("- `{}`: {}", field.name, field.text), "  ");
    let items: String = table.fields.iter().map(item).collect();
    format!("{} has\n\n| field | must be | default |\n| --- | --- | --- |\n{rows}\n{items}", table.of)
}

const HEAD: &str = "\
# Configuration

<!-- Made from crates/config/src/keys.rs by `UPDATE=1 cargo test -p isthmus-config --test config`. -->

No configuration is needed on one machine. All settings stand in one TOML file; each key has a
default.

| daemon | file | `<runtime>` |
| --- | --- | --- |
| the system's | `/etc/isthmus/isthmus.toml` | `/run/isthmus` |
| a user's (`isthmusd --user`) | `$XDG_CONFIG_HOME/isthmus/isthmus.toml`, else `~/.config/isthmus/isthmus.toml` | \
`$XDG_RUNTIME_DIR/isthmus`, else `/tmp/isthmus-<uid>` |

`isthmusd --config FILE` reads that file instead, and it must exist. For each key, the last of these
sources that sets it wins:

1. the defaults below;
2. the file;
3. the daemon's environment: `ISTHMUS_DAEMON_` and the key in capitals, as in
   `ISTHMUS_DAEMON_WAIT_SPIN_US=20` (keys of [daemon] do not repeat it:
   `ISTHMUS_DAEMON_WORKERS=2`);
4. the command line: `isthmusd --set wait.spin_us=20`.

In variables and after `--set`, a word means a string, so that no second pair of quotes is needed:
`ISTHMUS_DAEMON_WAIT_MODE=spin`. Lists are written as in the file:
`--set 'daemon.worker_cpus=[2, 3]'`.

`isthmusd --check` reads all sources, reports all mistakes, and prints the whole configuration that
would be in force. `isthmus config show --origin` prints each key with its value and the source of
the value; `--json` is for programs. `isthmus environment list` prints every variable, the daemon's
and the library's.
";

const MISTAKES: &str = "\
A configuration with a mistake is refused as a whole, with a report of all its mistakes. An unknown
variable that begins with `ISTHMUS_` only causes a warning.
";

const KEYS_HEAD: &str = "\
Each key is followed by its default, the allowed values, its variable, and the time at which a
change counts: `restart` is after a restart of the daemon, `reload` already when the daemon reads
its configuration again (SIGHUP).
";

const VARIABLES_HEAD: &str = "\
Programs read no file. These variables count in the program that uses the library, not in the
daemon.
";
