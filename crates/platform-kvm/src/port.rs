//! Names of the root ports that a guest's machine has for windows. `isthmus guest xml` prints them, and the daemon recognizes them.

/// The prefix that libvirt requires of names chosen by its user ("formatdomain: Devices", of `alias`).
const USER_ALIAS_PREFIX: &str = "ua-";

const NAME_PREFIX: &str = "isthmus";

/// Returns the name of a port for QEMU.
pub fn name(number: usize) -> String {
    format!("{NAME_PREFIX}{number}")
}

/// Returns the name of a port for libvirt, which passes it to QEMU unchanged.
pub fn alias(number: usize) -> String {
    format!("{USER_ALIAS_PREFIX}{}", name(number))
}

/// Returns true if a port has such a name, of either kind.
pub fn is_window_port(name: &str) -> bool {
    let number = name.strip_prefix(USER_ALIAS_PREFIX).unwrap_or(name).strip_prefix(NAME_PREFIX);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_ports_by_name() {
        assert_eq!((name(0), alias(12)), ("isthmus0".to_owned(), "ua-isthmus12".to_owned()));
        assert!([0, 7, 12].into_iter().all(|number| is_window_port(&name(number)) && is_window_port(&alias(number))));
        for other in ["", "isthmus", "isthmus-device", "isthmus-77-2-9", "ua-isthmus", "ua-", "port1", "xisthmus1"] {
            assert!(!is_window_port(other), "{other}");
        }
    }
}
