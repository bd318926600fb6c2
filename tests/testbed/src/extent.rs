//! The short form of a test, which every run has, and the long form of what is long by nature.
//!
//! `make test-long` sets `ISTHMUS_TEST_LONG` and runs the test targets that their packages list as `long` in
//! `[package.metadata.ci]`.

use std::env;

/// Returns `short`, or `long` if `ISTHMUS_TEST_LONG` is set.
pub fn short_or_long<T>(short: T, long: T) -> T {
    if env::var_os("ISTHMUS_TEST_LONG").is_some() { long } else { short }
}
