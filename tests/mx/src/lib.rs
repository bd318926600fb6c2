//! MX as programs see it: C programs against our `myriexpress.h`, linked with the library as it is shipped, in processes
//! of their own, beside a real `isthmusd`.
//!
//! ```text
//!  tests/mx/c/PROGRAM.c      rules of MX, a few dozen cases a program: `PROGRAM CASE`
//!  examples/mx/NAME.c        programs that people read and use; here they run as they would there
//!        │ cc, once
//!        ▼
//!  tests/mx/tests/mx         starts a daemon for each case, runs it, and expects exit code 0
//! ```
//!
//! `ISTHMUS_MX_LIBRARY=DIR cargo test -p isthmus-mx-tests` tests the library that lies in DIR, say an installed one. The
//! programs need no Rust: `cc` builds them, `PROGRAM --list` names their cases.
//!
//! The processes of a case are forked by the program itself and talk through sockets and messages; here the daemon is
//! started, stopped and killed. This library only builds: [`build`] is also used by the tests between hosts (tests/hosts).

#![forbid(unsafe_code)]

pub mod build;
