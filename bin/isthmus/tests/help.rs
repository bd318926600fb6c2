//! Snapshots of the help texts, so that each change of them is reviewed.

use assert_cmd::Command;

fn isthmus(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isthmus"));
    command.args(arguments);
    command
}

fn help(of: &[&str]) -> String {
    let output = isthmus(of).arg("--help").assert().success().get_output().stdout.clone();
    String::from_utf8(output).expect("help is UTF-8")
}

#[test]
fn help_texts_equal_their_snapshots() {
    let nouns: [&[&str]; 28] = [
        &[],
        &["status"],
        &["domain"],
        &["domain", "list"],
        &["channel"],
        &["channel", "list"],
        &["endpoint", "list"],
        &["board", "list"],
        &["peer", "list"],
        &["why"],
        &["capture"],
        &["verbs"],
        &["verbs", "enable"],
        &["reason"],
        &["reason", "show"],
        &["environment", "list"],
        &["run"],
        &["mpi"],
        &["mpi", "env"],
        &["mpi", "run"],
        &["guest"],
        &["guest", "allow"],
        &["guest", "deny"],
        &["config"],
        &["config", "show"],
        &["doctor"],
        &["try"],
        &["reason", "list"],
    ];
    for noun in nouns {
        let name = format!("help {}", noun.join(" "));
        insta::assert_snapshot!(name.trim(), help(noun));
    }
}

#[test]
fn help_command_prints_the_text_of_the_help_option() {
    let nouns: [&[&str]; 4] = [&[], &["why"], &["domain", "list"], &["board"]];
    for noun in nouns {
        let output = isthmus(&["help"]).args(noun).assert().success().get_output().stdout.clone();
        assert_eq!(String::from_utf8(output).expect("help is UTF-8"), help(noun), "{noun:?}");
    }
    isthmus(&["help", "nonsense"]).assert().code(2);
}

#[test]
fn internal_commands_are_hidden_from_help() {
    let top = help(&[]);
    for hidden in ["worker", "run-bound", "remove-on-exit"] {
        assert!(!top.contains(hidden), "{hidden} in {top}");
    }
}

#[test]
fn settings_that_help_names_exist() {
    let text = help(&[]) + &help(&["try"]) + &help(&["config", "show"]);
    let words = text.split(|sign: char| !(sign.is_ascii_uppercase() || sign == '_'));
    let named: Vec<&str> = words.filter(|word| word.starts_with("ISTHMUS_")).collect();
    let output = isthmus(&["environment", "list", "--json"]).assert().success().get_output().stdout.clone();
    let listed = String::from_utf8(output).expect("UTF-8");
    assert!(named.iter().all(|name| listed.contains(&format!("\"{name}\""))), "{named:?}");
    assert!(!named.is_empty());
}
