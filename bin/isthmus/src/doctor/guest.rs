//! A guest: whether its device is there, which driver has it, and how its window is cached. A machine without a device is told nothing.

use isthmus_platform_kvm::{BareDevice, Device, Info, MemoryType};

use super::Finding;

const DRIVER: &str = "isthmus";

/// What was found of a device.
enum Found {
    /// No driver of ours has it; another one may.
    Driverless(Option<String>),
    /// The driver has it, and this user cannot ask it.
    Closed(String),
    /// The driver has it.
    Served(Info),
}

pub(super) fn check(findings: &mut Vec<Finding>) {
    let functions = BareDevice::functions();
    let strangers = functions.iter().map(|function| BareDevice::driver(function));
    let strangers = strangers.filter(|driver| driver.as_deref() != Some(DRIVER)).map(Found::Driverless);
    let nodes = Device::nodes().into_iter().map(|node| match Device::open(&node) {
        Ok(device) => device.info().map_or_else(|error| Found::Closed(error.to_string()), Found::Served),
        Err(error) => Found::Closed(error.to_string()),
    });
    findings.extend(strangers.chain(nodes).flat_map(|found| told(&found)));
}

fn told(found: &Found) -> Vec<Finding> {
    let tried = "looking for the device by which a guest reaches its host's daemon";
    let driver = |result: String| Finding::problem("guest.driver", tried, result);
    match found {
        Found::Driverless(other) => {
            let by = other.as_ref().map_or_else(|| "no driver".to_owned(), |other| format!("the driver {other}"));
            let remedy = "Install the driver of Isthmus (`kmod/`, by DKMS) and load it: `modprobe isthmus`. Another driver has to let go of the device first.";
            vec![driver(format!("a device of this guest (ivshmem) has {by}")).remedy(remedy)]
        }
        Found::Closed(why) => {
            vec![Finding::note(
                "guest.driver",
                tried,
                format!("the driver has a device, and this user cannot ask it: {why}"),
            )]
        }
        Found::Served(info) => {
            let (mib, vectors) = (info.window.0 >> 20, info.vectors);
            let result = format!("the driver has a device: a window of {mib} MiB, {vectors} vectors");
            vec![Finding::ok("guest.driver", tried, result), cached(info)]
        }
    }
}

fn cached(info: &Info) -> Finding {
    let (id, tried) = ("guest.memory", "asking the driver how the window is cached");
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

    fn info(memory_type: MemoryType) -> Info {
        let window = RegionSize(64 << 20);
        Info { window, peer: Some(1), vectors: 16, memory_type, mapped: true, address: 1 << 32 }
    }

    fn severities(found: &Found) -> Vec<(&'static str, Severity)> {
        told(found).iter().map(|finding| (finding.id, finding.severity)).collect()
    }

    #[test]
    fn what_is_missing_has_a_remedy() {
        for other in [None, Some("uio_ivshmem".to_owned())] {
            let findings = told(&Found::Driverless(other));
            assert_eq!((findings[0].id, findings[0].severity), ("guest.driver", Severity::Problem));
            assert!(findings[0].remedy.is_some());
        }
        assert_eq!(severities(&Found::Closed("no rights".to_owned())), [("guest.driver", Severity::Note)]);
    }

    #[test]
    fn a_window_that_is_cached_as_memory_is_all_right() {
        let served = |memory_type| severities(&Found::Served(info(memory_type)));
        assert_eq!(served(MemoryType::WriteBack), [("guest.driver", Severity::Ok), ("guest.memory", Severity::Ok)]);
        assert_eq!(served(MemoryType::Uncached)[1], ("guest.memory", Severity::Note));
    }
}
