//! The duration of each test, derived from the times at which libtest writes its lines.
//!
//! libtest measures tests only where unstable options are allowed. But it sorts tests by name, starts as many as there are
//! threads, and starts the next one when one ends. So a line's time is the end of one test and the start of another.

use std::collections::BTreeMap;
use std::time::Duration;

/// A test, and the seconds it took.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Timed {
    pub(super) name: String,
    pub(super) seconds: f64,
}

/// The tests among the lines of one run of a test program, each with the time since its start at which it was written.
pub(super) fn tests(lines: &[(Duration, String)], threads: usize) -> Vec<Timed> {
    let ends: BTreeMap<&str, Duration> = lines.iter().filter_map(|(at, line)| Some((ended(line)?, *at))).collect();
    // The moments at which a thread becomes free, in the order in which that happens.
    let mut free = vec![Duration::ZERO; threads.max(1)];
    let mut timed = Vec::new();
    for (name, end) in &ends {
        free.sort_unstable();
        let start = free[0].min(*end);
        free[0] = *end;
        timed.push(Timed { name: (*name).to_owned(), seconds: (*end - start).as_secs_f64() });
    }
    timed
}

/// The name of the test that a line says has ended.
fn ended(line: &str) -> Option<&str> {
    let (name, how) = line.strip_prefix("test ")?.split_once(" ... ")?;
    (how.starts_with("ok") || how.starts_with("FAILED")).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_starts_when_a_thread_is_free() {
        let line = |seconds, text: &str| (Duration::from_secs(seconds), text.to_owned());
        let lines = [
            line(0, "running 4 tests"),
            line(2, "test b ... ok"),
            line(5, "test c ... FAILED"),
            line(6, "test a ... ok"),
            line(6, "test d ... ignored, a role"),
            line(9, "test e ... ok"),
        ];
        let took: Vec<(String, f64)> = tests(&lines, 2).into_iter().map(|test| (test.name, test.seconds)).collect();
        let expected = [("a", 6.0), ("b", 2.0), ("c", 3.0), ("e", 4.0)].map(|(name, s)| (name.to_owned(), s));
        assert_eq!(took, expected);
    }
}
