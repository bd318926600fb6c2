//! Compares `include/isthmus.h` with the sources. `UPDATE=1 cargo test -p isthmus-abi` writes it.

use crate::build::{cc, package};
use cbindgen::{Builder, Config, Language, Style};
use isthmus_client::Reason;
use isthmus_testbed::Scratch;

const INTRODUCTION: &str = r#"/*
 * Isthmus: messages between the processes, containers and guests of one machine.
 *
 *   isth_attach(NULL, &me);                          a domain: this program's side of the daemon
 *   isth_open(me, ISTH_ENDPOINT_ANY, "web", &mine);  where messages arrive
 *   isth_lookup(me, "db", &them.domain);             find a peer by its name
 *   isth_receive(me, mine, buffer, size, ctx, NULL); post receives ...
 *   isth_send(me, mine, them, 7, data, len, ctx, NULL);
 *   while (isth_wait(me, &done, -1) == 1) ...        ... and take completions
 *   isth_detach(me, 1000);
 *
 * Every call returns 0, or the number that its comment names, or a negative reason: -ISTH_REASON_... isth_strerror()
 * returns the text of a reason, isth_last_error() the details of the case. A call that needs a pointer and gets a null
 * pointer returns -ISTH_REASON_REQUEST_INVALID. A domain is valid from isth_attach() to isth_detach(), as memory is from
 * malloc() to free(). The library works only inside its calls: it has no thread and no signal handler.
 *
 * Link with -listhmus.
 *
 * Printed from abi/isthmus/src by `UPDATE=1 cargo test -p isthmus-abi`.
 */"#;

/// Rust's names and C's.
const RENAMED: [(&str, &str); 4] = [
    ("Handle", "isth_domain"),
    ("IsthAddress", "isth_address"),
    ("IsthOptions", "isth_options"),
    ("IsthCompletion", "isth_completion"),
];

/// Replacements that turn what cbindgen writes into C that a compiler of 1989 takes too.
const C_OF_OLD: [(&str, &str); 4] = [
    (" * # Safety\n", " * The caller promises:\n"),
    ("// __cplusplus", "/* __cplusplus */"),
    ("// extern \"C\"", "/* extern \"C\" */"),
    (" 4294967295\n", " 0xffffffffU\n"),
];

fn generated() -> String {
    let mut config = Config {
        header: Some(INTRODUCTION.to_owned()),
        include_guard: Some("ISTHMUS_H".to_owned()),
        no_includes: true,
        sys_includes: vec!["stddef.h".to_owned(), "stdint.h".to_owned()],
        after_includes: Some(reasons()),
        language: Language::C,
        cpp_compat: true,
        style: Style::Both,
        tab_width: 4,
        line_length: 116,
        usize_is_size_t: true,
        ..Config::default()
    };
    config.export.rename = RENAMED.map(|(rust, c)| (rust.to_owned(), c.to_owned())).into();
    let mut builder = Builder::new().with_config(config);
    for file in ["types", "domain", "attach", "message", "wait", "text"] {
        builder = builder.with_src(package().join(format!("src/{file}.rs")));
    }
    let mut header = Vec::new();
    builder.generate().unwrap().write(&mut header);
    let header = String::from_utf8(header).unwrap();
    C_OF_OLD.iter().fold(header, |header, (rust, c)| header.replace(rust, c))
}

/// The table of reasons as an enum.
fn reasons() -> String {
    let name = |reason: Reason| reason.name().to_uppercase().replace('-', "_");
    let longest = Reason::ALL.iter().map(|reason| reason.name().len()).max().unwrap();
    let mut text =
        "\n/**\n * The reason why something was refused, took a slower path, broke, or came to an end.\n */\nenum isth_reason {\n"
            .to_owned();
    for (at, &reason) in Reason::ALL.iter().enumerate() {
        let comma = if at + 1 == Reason::ALL.len() { ' ' } else { ',' };
        let (name, code, summary) = (name(reason), reason.code(), reason.summary());
        text += &format!("    ISTH_REASON_{name:longest$} = {code:3}{comma} /* {summary} */\n");
    }
    text + "};"
}

#[test]
fn header_matches_the_sources() {
    let path = package().join("include/isthmus.h");
    let header = generated();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &header).unwrap();
    }
    let stands = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(stands == header, "{} is not what the sources say: run with UPDATE=1", path.display());
}

#[test]
fn header_compiles_as_every_c_standard_and_cpp() {
    let scratch = Scratch::new().unwrap();
    let twice = "#include <isthmus.h>\n#include <isthmus.h>\nint main(void) { return 0; }\n";
    let file = scratch.write("only.c", twice).unwrap();
    for (language, standard) in
        [("c", "c89"), ("c", "c99"), ("c", "c11"), ("c", "c2x"), ("c++", "c++98"), ("c++", "c++11"), ("c++", "c++20")]
    {
        let mut cc = cc();
        cc.args(["-x", language, &format!("-std={standard}"), "-pedantic", "-fsyntax-only"]).arg(&file);
        let output = cc.output().unwrap();
        assert!(output.status.success(), "{language} {standard}:\n{}", String::from_utf8_lossy(&output.stderr));
    }
}
