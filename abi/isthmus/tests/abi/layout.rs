//! Sizes, offsets and values as a C compiler sees them in the header, and as Rust has them.

use crate::build::cc;
use isthmus_abi::{IsthAddress, IsthCompletion, IsthOptions};
use isthmus_client::Reason;
use isthmus_testbed::Scratch;
use std::fmt::Write;
use std::mem::offset_of;
use std::process::Command;

/// Lines that say the same in both languages: what to print in C, and what Rust says it is.
#[derive(Default)]
struct Facts {
    c: String,
    rust: String,
}

impl Facts {
    fn add(&mut self, expression: &str, value: impl Into<i128>) {
        writeln!(self.c, "    printf(\"%s %lld\\n\", \"{expression}\", (long long)({expression}));").unwrap();
        writeln!(self.rust, "{expression} {}", value.into()).unwrap();
    }
}

/// Adds a structure: its size, and each field's place and width.
macro_rules! structure {
    ($facts:ident, $c:literal is $rust:ident: $($field:ident)*) => {
        // A pattern without `..`: a field that is not named here does not compile.
        let _ = |whole: $rust| { let $rust { $($field: _),* } = whole; };
        $facts.add(concat!("sizeof(", $c, ")"), size_of::<$rust>() as u64);
        $(
            $facts.add(concat!("offsetof(", $c, ", ", stringify!($field), ")"), offset_of!($rust, $field) as u64);
            let width = |whole: &$rust| size_of_val(&whole.$field);
            $facts.add(concat!("sizeof(((", $c, " *)0)->", stringify!($field), ")"), width_of(width) as u64);
        )*
    };
}

/// Adds constants.
macro_rules! constants {
    ($facts:ident: $($name:ident)*) => {
        $( $facts.add(stringify!($name), isthmus_abi::$name); )*
    };
}

/// Returns the width that `width` gives for a structure; all of ours may be zeros.
fn width_of<T>(width: impl Fn(&T) -> usize) -> usize {
    // SAFETY: used with the three structures of the header, of numbers and raw pointers, for which zeros are a value.
    width(&unsafe { std::mem::zeroed() })
}

#[test]
fn c_and_rust_layouts_agree() {
    let mut facts = Facts::default();
    structure!(facts, "isth_address" is IsthAddress: domain endpoint);
    structure!(facts, "isth_options" is IsthOptions: name socket wait spin_us flags reserved0 reserved);
    structure!(facts, "isth_completion" is IsthCompletion:
        context token tag len from endpoint kind reason reserved0 reserved);
    constants!(facts:
        ISTH_VERSION ISTH_VERSION_MAJOR ISTH_VERSION_MINOR
        ISTH_WAIT_DEFAULT ISTH_WAIT_ADAPTIVE ISTH_WAIT_SPIN ISTH_WAIT_SLEEP
        ISTH_NO_AUTOSTART ISTH_NO_REGCACHE ISTH_NO_CHANNELS ISTH_ENDPOINT_ANY
        ISTH_SENT ISTH_RECEIVED ISTH_CANCELLED ISTH_FAILED);
    for reason in Reason::ALL {
        let name = reason.name().to_uppercase().replace('-', "_");
        facts.add(&format!("ISTH_REASON_{name}"), reason.code());
    }
    assert_eq!(printed(&facts.c), facts.rust);
}

/// Returns the output of a program of these statements.
fn printed(statements: &str) -> String {
    let scratch = Scratch::new().unwrap();
    let text =
        format!("#include <isthmus.h>\n#include <stdio.h>\n\nint main(void)\n{{\n{statements}    return 0;\n}}\n");
    let source = scratch.write("facts.c", text).unwrap();
    let program = scratch.join("facts");
    let output = cc().arg("-o").arg(&program).arg(source).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = Command::new(program).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}
