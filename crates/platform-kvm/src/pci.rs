//! The PCI functions of ivshmem devices in a guest, as sysfs lists them. They exist whether or not a driver is bound to them.

use std::path::{Path, PathBuf};

/// The folder of all PCI functions.
const FUNCTIONS: &str = "/sys/bus/pci/devices";

/// The vendor and device number of QEMU's ivshmem.
const PCI_IDS: (&str, &str) = ("0x1af4", "0x1110");

/// Returns the sysfs folders of all ivshmem functions, in the order of their addresses.
pub fn ivshmem_functions() -> Vec<PathBuf> {
    ivshmem_functions_in(Path::new(FUNCTIONS))
}

fn ivshmem_functions_in(functions: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(functions).into_iter().flatten().flatten();
    let read = |folder: &Path, file: &str| std::fs::read_to_string(folder.join(file)).unwrap_or_default();
    let is_ivshmem = |path: &PathBuf| (read(path, "vendor").trim(), read(path, "device").trim()) == PCI_IDS;
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_ivshmem).collect();
    found.sort();
    found
}

/// Returns the name of the driver that is bound to a function.
pub fn bound_driver(function: &Path) -> Option<String> {
    let driver = std::fs::read_link(function.join("driver")).ok()?;
    Some(driver.file_name()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_ivshmem_functions_with_and_without_a_driver() {
        let functions = tempfile::tempdir().unwrap();
        for (address, device) in
            [("0000:00:05.0", "0x1110\n"), ("0000:00:04.0", "0x1110\n"), ("0000:00:03.0", "0x1000\n")]
        {
            let function = functions.path().join(address);
            std::fs::create_dir(&function).unwrap();
            std::fs::write(function.join("vendor"), "0x1af4\n").unwrap();
            std::fs::write(function.join("device"), device).unwrap();
        }
        let [unbound, bound] = ["0000:00:04.0", "0000:00:05.0"].map(|address| functions.path().join(address));
        std::os::unix::fs::symlink("../../../bus/pci/drivers/isthmus", bound.join("driver")).unwrap();
        assert_eq!(ivshmem_functions_in(functions.path()), [unbound.clone(), bound.clone()]);
        assert_eq!([unbound, bound].map(|function| bound_driver(&function)), [None, Some("isthmus".to_owned())]);
    }
}
