//! Compares the table of reasons in `docs/spec/mxoe.md` with the board's. `UPDATE=1 cargo test -p isthmus-mx --test
//! board spec` writes it.

use isthmus_mx::board::BoardCounters;
use std::fmt::Write;

#[test]
fn reasons_stand_as_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/spec/mxoe.md");
    let stands = std::fs::read_to_string(path).unwrap();
    let mut table = String::from("\n| reason | the frame is |\n| --- | --- |\n");
    for (reason, text) in BoardCounters::own_reasons() {
        writeln!(table, "| `{reason}` | {text} |").unwrap();
    }
    table.push('\n');
    let begin = "<!-- table board reasons -->\n";
    let start = stands.find(begin).expect("the page has no table of the board's reasons") + begin.len();
    let end = start + stands[start..].find("<!-- end -->").unwrap();
    if std::env::var_os("UPDATE").is_some() {
        let mut printed = stands.clone();
        printed.replace_range(start..end, &table);
        std::fs::write(path, printed).unwrap();
    } else {
        assert!(stands[start..end] == table, "docs/spec/mxoe.md is not what the board says: run with UPDATE=1");
    }
}
