//! The section "Commands" of `docs/operate/cli.md` is what `--help` prints. `UPDATE=1 cargo test -p isthmus --test page` writes it.

use assert_cmd::Command;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate/cli.md");
const BEGIN: &str = "<!-- commands -->\n";
const END: &str = "<!-- end -->\n";

/// Options that every command has. The page describes them once.
const COMMON_OPTIONS: [&str; 3] = ["--json", "--socket <PATH>", "-h, --help"];

fn help(command: &[String]) -> String {
    let mut isthmus = Command::new(env!("CARGO_BIN_EXE_isthmus"));
    let output = isthmus.args(command).arg("--help").assert().success().get_output().stdout.clone();
    String::from_utf8(output).expect("help is UTF-8")
}

/// Returns the names below "Commands:" of a help text.
fn subcommands(help: &str) -> Vec<String> {
    let Some((_, list)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let lines = list.lines().take_while(|line| !line.is_empty());
    let names = lines.filter(|line| !line.starts_with("   ")).filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

fn without_common_options(help: &str) -> String {
    let (text, options) = help.split_once("\nOptions:\n").expect("each command has options");
    let mut own = String::new();
    let mut is_kept = true;
    for line in options.lines() {
        if line.trim_start().starts_with('-') {
            is_kept = !COMMON_OPTIONS.iter().any(|option| line.trim_start().starts_with(option));
        }
        if is_kept {
            own += line.trim_end();
            own.push('\n');
        }
    }
    let text = text.trim_end();
    if own.trim().is_empty() { format!("{text}\n") } else { format!("{text}\n\nOptions:\n{}\n", own.trim_end()) }
}

/// Appends each command without subcommands below `command`.
fn append(page: &mut String, command: &[String]) {
    let help = help(command);
    let below = subcommands(&help);
    if below.is_empty() {
        *page += &format!("\n### isthmus {}\n\n```text\n{}```\n", command.join(" "), without_common_options(&help));
    }
    for name in below {
        append(page, &[command, &[name]].concat());
    }
}

#[test]
fn page_has_the_help_of_every_command() {
    let stands = std::fs::read_to_string(PAGE).expect("the page");
    let (before, rest) = stands.split_once(BEGIN).expect("the begin of the section");
    let (_, after) = rest.split_once(END).expect("the end of the section");
    let mut commands = String::new();
    append(&mut commands, &[]);
    assert!(commands.contains("\n### isthmus guest allow\n"), "{commands}");
    let printed = format!("{before}{BEGIN}{commands}\n{END}{after}");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(PAGE, printed).expect("the page is writable");
    } else {
        assert!(stands == printed, "docs/operate/cli.md is not what --help prints: run with UPDATE=1");
    }
}
