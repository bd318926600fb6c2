//! Checks of a guest: the driver of its device, the caching of its window, and an emulated processor. A machine without a device gets no
//! finding.

use isthmus_platform_kvm::{Device, DeviceInfo, MemoryType, pci};

use super::Finding;

const DRIVER: &str = "isthmus";

/// The state of a device.
enum Found {
    /// The device is not bound to our driver; the name of the driver that it is bound to, if there is one.
    Driverless(Option<String>),
    /// The device is bound to our driver, but this user cannot open it.
    Closed(String),
    /// The device is bound to our driver.
    Bound(DeviceInfo),
}

pub(super) fn check(findings: &mut Vec<Finding>) {
    let functions = pci::ivshmem_functions();
    let other_drivers = functions.iter().map(|function| pci::bound_driver(function));
    let other_drivers = other_drivers.filter(|driver| driver.as_deref() != Some(DRIVER)).map(Found::Driverless);
    let nodes = Device::nodes().into_iter().map(|node| match Device::open(&node) {
        Ok(device) => device.info().map_or_else(|error| Found::Closed(error.to_string()), Found::Bound),
        Err(error) => Found::Closed(error.to_string()),
    });
    let before = findings.len();
    findings.extend(other_drivers.chain(nodes).flat_map(|found| report_findings(&found)));
    if findings.len() > before && is_emulated() {
        let possible = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
        findings.push(emulated(possible.trim()));
    }
}

/// Returns true on a processor that QEMU emulates, according to the CPUID leaf for hypervisors.
#[cfg(target_arch = "x86_64")]
fn is_emulated() -> bool {
    let leaf = std::arch::x86_64::__cpuid(0x4000_0000);
    [leaf.ebx, leaf.ecx, leaf.edx]
        == [u32::from_le_bytes(*b"TCGT"), u32::from_le_bytes(*b"CGTC"), u32::from_le_bytes(*b"GTCG")]
}

/// Returns false, because other processors do not report it.
#[cfg(not(target_arch = "x86_64"))]
fn is_emulated() -> bool {
    false
}

/// Returns the finding for an emulated processor. QEMU emulates barriers and atomic instructions only if the machine may have more than one
/// processor.
fn emulated(possible: &str) -> Finding {
    let (id, tried) =
        ("guest.processors", "asking the processor whether it is emulated, and the kernel how many there may be");
    match possible {
        "0" => Finding::problem(
            id,
            tried,
            "emulated, and at most one: QEMU then leaves out memory barriers, so a sleeping program may never be woken",
        )
        .remedy("Allow the machine a second processor (`-smp 1,maxcpus=2`), or use KVM."),
        _ => Finding::ok(id, tried, format!("emulated, and more than one possible (processors {possible})")),
    }
}

fn report_findings(found: &Found) -> Vec<Finding> {
    let tried = "looking for the device by which a guest reaches the host daemon";
    let driver = |result: String| Finding::problem("guest.driver", tried, result);
    match found {
        Found::Driverless(other) => {
            let state = match other {
                None => "has no driver".to_owned(),
                Some(other) => format!("is bound to the driver {other}"),
            };
            let remedy = "Install the isthmus driver (`kmod/`, by DKMS), load it (`modprobe isthmus`) and start `isthmusd --guest` again. Unbind any other driver from the device first.";
            let result = format!("a device of this guest (ivshmem) {state}: its programs cannot reach the host daemon");
            vec![driver(result).remedy(remedy)]
        }
        Found::Closed(why) => {
            vec![Finding::note(
                "guest.driver",
                tried,
                format!("the isthmus driver has a device, but this user cannot open it: {why}"),
            )]
        }
        Found::Bound(info) => {
            let (mib, vectors) = (info.window.0 >> 20, info.vectors);
            let result = format!("the isthmus driver has a device: a window of {mib} MiB, {vectors} vectors");
            vec![Finding::ok("guest.driver", tried, result), memory_type(info)]
        }
    }
}

fn memory_type(info: &DeviceInfo) -> Finding {
    let (id, tried) = ("guest.window-cache", "asking the driver how the window is cached");
    let result = format!("the window is {}", info.memory_type);
    match info.memory_type {
        MemoryType::WriteBack => Finding::ok(id, tried, result),
        MemoryType::Unknown => Finding::note(id, tried, result),
        _ => Finding::note(id, tried, result).remedy(
            "This is slow on processors that respect the memory type. Give the guest a window of 4 GiB (`window_mib = 4096`), or plug the device into the running guest.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use isthmus_layout::RegionSize;

    use super::*;
    use crate::doctor::Severity;

    fn info(memory_type: MemoryType) -> DeviceInfo {
        let window = RegionSize(64 << 20);
        DeviceInfo { window, peer: Some(1), vectors: 16, memory_type, mapped: true, address: 1 << 32 }
    }

    fn severities(found: &Found) -> Vec<(&'static str, Severity)> {
        report_findings(found).iter().map(|finding| (finding.id, finding.severity)).collect()
    }

    #[test]
    fn names_a_device_without_our_driver_and_how_to_install_it() {
        for (other, state) in [(None, "has no driver"), (Some("uio_ivshmem".to_owned()), "the driver uio_ivshmem")] {
            let findings = report_findings(&Found::Driverless(other));
            assert_eq!((findings[0].id, findings[0].severity), ("guest.driver", Severity::Problem));
            assert!(
                findings[0].result.contains("ivshmem") && findings[0].result.contains(state),
                "{}",
                findings[0].result
            );
            assert!(findings[0].remedy.as_ref().is_some_and(|remedy| remedy.contains("modprobe isthmus")));
        }
    }

    #[test]
    fn device_that_cannot_be_opened_is_a_warning() {
        assert_eq!(severities(&Found::Closed("no rights".to_owned())), [("guest.driver", Severity::Warning)]);
    }

    #[test]
    fn emulated_machine_needs_a_second_possible_processor() {
        let severities = ["0", "0-1"].map(|possible| emulated(possible).severity);
        assert_eq!(severities, [Severity::Problem, Severity::Ok]);
    }

    #[test]
    fn window_cached_as_memory_is_ok() {
        let served = |memory_type| severities(&Found::Bound(info(memory_type)));
        assert_eq!(
            served(MemoryType::WriteBack),
            [("guest.driver", Severity::Ok), ("guest.window-cache", Severity::Ok)]
        );
        assert_eq!(served(MemoryType::Uncached)[1], ("guest.window-cache", Severity::Warning));
    }
}
