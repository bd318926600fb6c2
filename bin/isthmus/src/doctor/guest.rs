//! A guest: whether its device is there, which driver has it, how its window is cached, and whether its processor keeps what rings need. A
//! machine without a device is told nothing.

use isthmus_platform_kvm::{BareDevice, Device, DeviceInfo, MemoryType};

use super::Finding;

const DRIVER: &str = "isthmus";

/// What was found of a device.
enum Found {
    /// No driver of ours has it; another one may.
    Driverless(Option<String>),
    /// The driver has it, and this user cannot ask it.
    Closed(String),
    /// The driver has it.
    Bound(DeviceInfo),
}

pub(super) fn check(findings: &mut Vec<Finding>) {
    let functions = BareDevice::functions();
    let other_drivers = functions.iter().map(|function| BareDevice::driver(function));
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

/// True on a processor that QEMU emulates, as that says in the leaf which is any hypervisor's.
#[cfg(target_arch = "x86_64")]
fn is_emulated() -> bool {
    let leaf = std::arch::x86_64::__cpuid(0x4000_0000);
    [leaf.ebx, leaf.ecx, leaf.edx]
        == [u32::from_le_bytes(*b"TCGT"), u32::from_le_bytes(*b"CGTC"), u32::from_le_bytes(*b"GTCG")]
}

/// Other processors do not say.
#[cfg(not(target_arch = "x86_64"))]
fn is_emulated() -> bool {
    false
}

/// QEMU emulates barriers and atomic instructions as such only where a machine may have more than one processor.
fn emulated(possible: &str) -> Finding {
    let (id, tried) =
        ("guest.processors", "asking the processor whether it is emulated, and the kernel how many there may be");
    match possible {
        "0" => Finding::problem(id, tried, "emulated, and there is room for one: QEMU leaves out its memory barriers, so that whoever sleeps may never be woken")
            .remedy("Give the machine room for another processor (`-smp 1,maxcpus=2`), or KVM."),
        _ => Finding::ok(id, tried, format!("emulated, with room for several (processors {possible})")),
    }
}

fn report_findings(found: &Found) -> Vec<Finding> {
    let tried = "looking for the device by which a guest reaches its host's daemon";
    let driver = |result: String| Finding::problem("guest.driver", tried, result);
    match found {
        Found::Driverless(other) => {
            let by = other.as_ref().map_or_else(|| "no driver".to_owned(), |other| format!("the driver {other}"));
            // Without any, root can have all of the window.
            let without = match other {
                None => ": only root's programs are served, without being woken, and the window is not cached",
                Some(_) => "",
            };
            let remedy = "Install the driver of Isthmus (`kmod/`, by DKMS), load it (`modprobe isthmus`) and start `isthmusd --guest` again. Another driver has to let go of the device first.";
            vec![driver(format!("a device of this guest (ivshmem) has {by}{without}")).remedy(remedy)]
        }
        Found::Closed(why) => {
            vec![Finding::note(
                "guest.driver",
                tried,
                format!("the driver has a device, and this user cannot ask it: {why}"),
            )]
        }
        Found::Bound(info) => {
            let (mib, vectors) = (info.window.0 >> 20, info.vectors);
            let result = format!("the driver has a device: a window of {mib} MiB, {vectors} vectors");
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
            "Where the host's processor heeds it, this is slow: give the guest a window of 4 GiB (`window_mib = 4096`), or plug the device into the running guest.",
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
    fn missing_parts_have_a_remedy() {
        for other in [None, Some("uio_ivshmem".to_owned())] {
            let findings = report_findings(&Found::Driverless(other));
            assert_eq!((findings[0].id, findings[0].severity), ("guest.driver", Severity::Problem));
            assert!(findings[0].remedy.is_some());
        }
        assert_eq!(severities(&Found::Closed("no rights".to_owned())), [("guest.driver", Severity::Warning)]);
    }

    #[test]
    fn an_emulated_machine_needs_room_for_a_second_processor() {
        let severities = ["0", "0-1"].map(|possible| emulated(possible).severity);
        assert_eq!(severities, [Severity::Problem, Severity::Ok]);
    }

    #[test]
    fn a_window_that_is_cached_as_memory_is_all_right() {
        let served = |memory_type| severities(&Found::Bound(info(memory_type)));
        assert_eq!(
            served(MemoryType::WriteBack),
            [("guest.driver", Severity::Ok), ("guest.window-cache", Severity::Ok)]
        );
        assert_eq!(served(MemoryType::Uncached)[1], ("guest.window-cache", Severity::Warning));
    }
}
