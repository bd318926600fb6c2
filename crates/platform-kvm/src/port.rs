//! Names of the root ports that a guest's machine has for windows: as `isthmus guest xml` prints them, and as a daemon knows them again.

/// How libvirt has names begin that are its user's ("formatdomain: Devices", of `alias`).
const OF_USERS: &str = "ua-";

const PORT: &str = "isthmus";

/// The name of one, for QEMU.
pub fn name(number: usize) -> String {
    format!("{PORT}{number}")
}

/// The same for libvirt, which tells it to QEMU as it is.
pub fn alias(number: usize) -> String {
    format!("{OF_USERS}{}", name(number))
}

/// Whether a port has such a name, of either sort.
pub fn is_one(name: &str) -> bool {
    let number = name.strip_prefix(OF_USERS).unwrap_or(name).strip_prefix(PORT);
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_known_by_their_names() {
        assert_eq!((name(0), alias(12)), ("isthmus0".to_owned(), "ua-isthmus12".to_owned()));
        assert!([0, 7, 12].into_iter().all(|number| is_one(&name(number)) && is_one(&alias(number))));
        for other in ["", "isthmus", "isthmus-device", "isthmus-77-2-9", "ua-isthmus", "ua-", "port1", "xisthmus1"] {
            assert!(!is_one(other), "{other}");
        }
    }
}
