//! The target of `isthmus why`: the connection that the question is about.
//!
//! | form | target | accepted |
//! | --- | --- | --- |
//! | two domains, as in `web d7` | the pair of the two | yes |
//! | `PID:FD`, as in `4711:5` | a descriptor of a process | yes |
//! | `qp:N`, as in `qp:0x432800` or `qp:17` | a queue pair | yes |
//!
//! This is the only parser of targets. An error names the form that was given, and lists the accepted ones.

use isthmus_layout::control::Name;

use crate::output::UsageError;

/// The list of accepted forms, as errors show it.
const ACCEPTED: &str = "`isthmus why` accepts two domains, each by name or by number, as in `isthmus why web d7`; a descriptor of a process, \
                        as in `isthmus why 4711:5`; or a queue pair, as in `isthmus why qp:0x432800`";

/// The largest number of a queue pair, which has 24 bits.
const QUEUE_PAIR_MAX: u32 = 0xFF_FFFF;

/// A target that can be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WhyTarget {
    /// The path between two domains.
    Pair(Name, Name),
    /// A descriptor of a process.
    Descriptor { pid: u32, fd: u32 },
    /// A queue pair.
    QueuePair(u32),
}

impl WhyTarget {
    /// Parses the words of the command line.
    pub(crate) fn parse(words: &[String]) -> Result<Self, UsageError> {
        match words {
            [from, to] => Ok(Self::Pair(domain(from)?, domain(to)?)),
            [word] => descriptor(word)
                .or_else(|| queue_pair(word))
                .ok_or_else(|| UsageError(format!("{}; {ACCEPTED}", incomplete(word)))),
            _ => Err(UsageError(ACCEPTED.to_owned())),
        }
    }
}

/// Parses the name or the number of a domain.
fn domain(word: &str) -> Result<Name, UsageError> {
    Name::new(word).map_err(|error| UsageError(format!("{word:?} is not a domain: {error}; {ACCEPTED}")))
}

/// Parses `PID:FD`.
fn descriptor(word: &str) -> Option<WhyTarget> {
    let number = |word: &str| is_number(word).then(|| word.parse().ok())?;
    let (pid, fd) = word.split_once(':')?;
    Some(WhyTarget::Descriptor { pid: number(pid)?, fd: number(fd)? })
}

/// Parses `qp:NUMBER`.
fn queue_pair(word: &str) -> Option<WhyTarget> {
    let number = word.strip_prefix("qp:")?;
    let parsed = match number.strip_prefix("0x") {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => u32::from_str_radix(digits, 16),
        _ if is_number(number) => number.parse(),
        _ => return None,
    };
    parsed.ok().filter(|number| *number <= QUEUE_PAIR_MAX).map(WhyTarget::QueuePair)
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit())
}

/// Describes the form of a single word, which is not a target.
fn incomplete(word: &str) -> String {
    match word.split_once(':') {
        Some(("qp", _)) => format!("{word} is no queue pair: its number has 24 bits"),
        Some((process, number)) if is_number(process) && is_number(number) => {
            format!("{word} has a number that no process or descriptor can have")
        }
        _ => format!("{word:?} is one domain of a pair"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<WhyTarget, String> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        WhyTarget::parse(&words).map_err(|UsageError(text)| text)
    }

    fn pair(from: &str, to: &str) -> WhyTarget {
        WhyTarget::Pair(Name::new(from).expect("a valid name"), Name::new(to).expect("a valid name"))
    }

    #[test]
    fn two_domains_are_a_pair_in_the_given_order() {
        assert_eq!(parse(&["web", "d7"]), Ok(pair("web", "d7")));
        assert_eq!(parse(&["d7", "web"]), Ok(pair("d7", "web")));
        // A domain may have such a name.
        assert_eq!(parse(&["4711:5", "qp:3"]), Ok(pair("4711:5", "qp:3")));
    }

    #[test]
    fn process_and_number_are_a_descriptor() {
        assert_eq!(parse(&["4711:5"]), Ok(WhyTarget::Descriptor { pid: 4711, fd: 5 }));
        assert_eq!(parse(&["1:0"]), Ok(WhyTarget::Descriptor { pid: 1, fd: 0 }));
    }

    #[test]
    fn number_of_a_queue_pair_is_decimal_or_hexadecimal() {
        for word in ["qp:4401152", "qp:0x432800"] {
            assert_eq!(parse(&[word]), Ok(WhyTarget::QueuePair(0x43_2800)));
        }
        assert_eq!(parse(&["qp:0xffFFff"]), Ok(WhyTarget::QueuePair(0xFF_FFFF)));
    }

    #[test]
    fn error_names_the_form_and_lists_the_accepted_ones() {
        for (words, beginning) in [
            (&["4711:99999999999"][..], "4711:99999999999 has a number that no process or descriptor can have; "),
            (&["qp:0x1000000"], "qp:0x1000000 is no queue pair: its number has 24 bits; "),
            (&["qp:0x"], "qp:0x is no queue pair: "),
            (&["qp:+1"], "qp:+1 is no queue pair: "),
            (&["qp:"], "qp: is no queue pair: "),
            (&["4711:"], "\"4711:\" is one domain of a pair; "),
            (&["web"], "\"web\" is one domain of a pair; "),
            (&["web", ""], "\"\" is not a domain: "),
            (&["a/b", "web"], "\"a/b\" is not a domain: "),
            (&[" web", "db"], "\" web\" is not a domain: "),
            (&["a", "b", "c"], ""),
            (&[], ""),
        ] {
            let error = parse(words).expect_err("not a target");
            assert!(error.starts_with(beginning) && error.ends_with(ACCEPTED), "{words:?}: {error}");
        }
    }
}
