//! The identity of the host: its name, and an identifier that distinguishes hosts of the same name. The addresses of virtual adapters are
//! derived from it, so that they are the same after each start.

use std::path::Path;

/// The files that contain the machine ID. Older systems have only the second one.
const MACHINE_IDS: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];

/// The identity of a host.
#[derive(Clone, Debug, Default)]
pub(crate) struct HostIdentity {
    /// The name of the host.
    pub(crate) name: String,
    /// The identifier. It is the same for each start.
    pub(crate) id: [u8; 32],
}

/// Returns the identity of this host. Without a machine ID, `fallback` is the identifier.
pub(crate) fn identity(fallback: [u8; 32]) -> HostIdentity {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    HostIdentity { name, id: machine_id(&MACHINE_IDS.map(Path::new)).unwrap_or(fallback) }
}

/// Returns an identifier that is derived from the machine ID. The machine ID itself is confidential according to machine-id(5).
fn machine_id(files: &[&Path]) -> Option<[u8; 32]> {
    let texts = files.iter().filter_map(|file| std::fs::read_to_string(file).ok());
    let number = texts.filter_map(|text| parse_machine_id(&text)).next()?;
    Some(blake3::derive_key("isthmus 2026 host", &number.to_le_bytes()))
}

/// Parses a machine ID. Returns `None` if the file is empty or contains `uninitialized`, as in an image that was never booted.
fn parse_machine_id(text: &str) -> Option<u128> {
    let digits = text.trim_end();
    let is_one = digits.len() == 32 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u128::from_str_radix(digits, 16).ok().filter(|number| is_one && *number != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBER: &str = "0123456789abcdef0123456789ABCDEF";

    #[test]
    fn parses_only_valid_machine_ids() {
        assert_eq!(parse_machine_id(&format!("{NUMBER}\n")), Some(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef));
        let none = ["", "uninitialized\n", &NUMBER[1..], "+123456789abcdef0123456789abcdef0", &"0".repeat(32)];
        assert!(none.into_iter().all(|text| parse_machine_id(text).is_none()));
    }

    #[test]
    fn uses_the_first_machine_id_found() {
        let folder = tempfile::tempdir().unwrap();
        let [missing, empty, first, second] =
            ["missing", "empty", "first", "second"].map(|name| folder.path().join(name));
        std::fs::write(&empty, "").unwrap();
        std::fs::write(&first, NUMBER).unwrap();
        std::fs::write(&second, "1".repeat(32)).unwrap();
        let of = |files: &[&Path]| machine_id(files);
        assert_eq!(of(&[&missing, &empty]), None);
        assert_eq!(of(&[&empty, &first, &second]), of(&[&first]));
        assert_ne!(of(&[&second]), of(&[&first]));
        let id = of(&[&first]).unwrap();
        assert!(!id.windows(8).any(|part| part == 0x0123_4567_89ab_cdef_u64.to_le_bytes()));
    }
}
