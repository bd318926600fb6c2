//! The environment variables of programs that use streams.

use alloc::format;
use alloc::string::String;

use crate::environment::Variable;

/// Switches streams off for a program.
pub const SOCKETS: Variable = Variable {
    name: "ISTHMUS_SOCKETS",
    default: "on",
    effect: "whether TCP connections of this program may use shared memory: on or off",
};

/// Sets when connections become streams.
pub const AFTER: Variable = Variable {
    name: "ISTHMUS_SOCKETS_AFTER",
    default: "sockets.after_bytes",
    effect: "the bytes after which a connection of this program becomes a stream; 0: with its first byte",
};

/// Forces switches, for tests.
pub const TEST_SWITCH: Variable = Variable {
    name: "ISTHMUS_SOCKETS_TEST_SWITCH",
    default: "0",
    effect: "for tests of streams: how often each direction moves to TCP and back in a second",
};

/// Returns why the library is off, if the variables switch it off. `value` reads one. A value that cannot be read switches it off.
pub fn off_reason(value: impl Fn(Variable) -> Option<String>) -> Option<String> {
    let value = |variable| value(variable).filter(|text| !text.is_empty());
    match value(SOCKETS).as_deref() {
        None | Some("on" | "1") => {}
        Some(off @ ("off" | "0")) => return Some(format!("{}={off}", SOCKETS.name)),
        Some(other) => return Some(format!("{}={other} is neither on nor off", SOCKETS.name)),
    }
    [AFTER, TEST_SWITCH].into_iter().find_map(|variable| {
        let text = value(variable)?;
        let is_number = if variable == AFTER { text.parse::<u64>().is_ok() } else { text.parse::<u32>().is_ok() };
        (!is_number).then(|| format!("{}={text} is no number", variable.name))
    })
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned as _;

    use super::*;

    #[test]
    fn values_that_cannot_be_read_switch_the_library_off() {
        let reason = |set: Variable, text: &str| off_reason(|one| (one == set).then(|| text.to_owned()));
        for on in ["", "on", "1"] {
            assert_eq!(reason(SOCKETS, on), None);
        }
        assert_eq!(reason(SOCKETS, "off").as_deref(), Some("ISTHMUS_SOCKETS=off"));
        assert_eq!(reason(SOCKETS, "0").as_deref(), Some("ISTHMUS_SOCKETS=0"));
        assert_eq!(reason(SOCKETS, "of").as_deref(), Some("ISTHMUS_SOCKETS=of is neither on nor off"));
        assert_eq!((reason(AFTER, "0"), reason(TEST_SWITCH, "100")), (None, None));
        assert_eq!(reason(AFTER, "32k").as_deref(), Some("ISTHMUS_SOCKETS_AFTER=32k is no number"));
        assert_eq!(reason(TEST_SWITCH, "-1").as_deref(), Some("ISTHMUS_SOCKETS_TEST_SWITCH=-1 is no number"));
    }
}
