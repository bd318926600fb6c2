//! The headers compile alone and together, as every C standard and as C++, and declare the specified items.

use crate::build::{cc, package, run};
use isthmus_testbed::Scratch;

const HEADERS: [&str; 6] = [
    "myriexpress.h",
    "mx_extensions.h",
    "mx_raw.h",
    "mx_io.h",
    "mx_internals/mx__fops.h",
    "mx_internals/mx__driver_interface.h",
];

const LANGUAGES: [(&str, &str); 8] = [
    ("c", "c89"),
    ("c", "c99"),
    ("c", "c11"),
    ("c", "gnu17"),
    ("c", "c2x"),
    ("c++", "c++98"),
    ("c++", "c++11"),
    ("c++", "c++20"),
];

#[test]
fn each_header_stands_alone() {
    let scratch = Scratch::new().unwrap();
    for header in HEADERS {
        let twice = format!("#include <{header}>\n#include <{header}>\nint main(void) {{ return 0; }}\n");
        let file = scratch.write("only.c", twice).unwrap();
        for (language, standard) in LANGUAGES {
            run(cc(language).args([&format!("-std={standard}"), "-fsyntax-only"]).arg(&file));
        }
    }
}

#[test]
fn function_signatures_match_the_specification() {
    for (language, standard) in LANGUAGES {
        let source = package().join("tests/c/prototypes.c");
        run(cc(language).args([&format!("-std={standard}"), "-fsyntax-only"]).arg(source));
    }
}

#[test]
fn headers_define_the_macros_that_programs_test() {
    let scratch = Scratch::new().unwrap();
    let asks = "#include <mx_extensions.h>\n#include <mx_raw.h>\n\
                #if MX_API < 0x301 || !defined(MX_HAS_NET_TYPE) || MX_HAS_ICONNECT_V2 != 1\n#error core\n#endif\n\
                #if MX_RAW_POLL_SUPPORTED != 1 || MX_SET_ROUTE_TAKES_MAGID != 1 || MX_HAS_RAW_LINE_SPEED != 1 \
                || MX_HAS_RAW_SET_NIC_REPLY_INFO != 1\n#error raw\n#endif\n\
                #if MX_INFINITE != 0\n#error infinite\n#endif\n\
                int main(void) { return mx_init() == MX_SUCCESS ? 0 : (int)MX_U32(1) + (int)MX_L32(1); }\n";
    let file = scratch.write("asks.c", asks).unwrap();
    run(cc("c").args(["-std=c89", "-fsyntax-only"]).arg(&file));
}
