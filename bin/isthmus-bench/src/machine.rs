//! The machine that figures were measured on, for comparison with other runs.

use serde::Serialize;

use crate::cpu_placement::HostCpus;
use crate::pin::Placement;

/// The machine at the start of the measurement.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    /// The CPU's model, as the kernel names it.
    pub(crate) cpu: String,
    /// CPUs that are online.
    pub(crate) cpus: usize,
    /// True if a hypervisor runs this machine.
    pub(crate) virtual_machine: bool,
    /// Kernel name and release.
    pub(crate) kernel: String,
    /// Memory, in MiB.
    pub(crate) memory_mib: u64,
    /// The transparent huge page setting in force.
    pub(crate) huge_pages: String,
    /// Load averages over 1, 5 and 15 minutes at the start: well below 1 on a quiet machine.
    pub(crate) load: String,
    /// The CPUs that sides are pinned to, in order.
    pub(crate) pinned: String,
    /// The CPUs of two hosts and of their daemons.
    pub(crate) cpu_placement: String,
    /// The guests that ran the measured programs, if guests did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) guests: Option<String>,
    /// This program's version.
    pub(crate) version: String,
    /// True if this program was built without optimisation, which makes its figures worthless.
    pub(crate) debug_build: bool,
}

impl Machine {
    pub(crate) fn look(placement: &Placement, host_cpus: &HostCpus) -> Self {
        Self::pinned(placement.list(), host_cpus.describe(), None)
    }

    /// Describes a machine with guests that run the measured programs, where nothing is pinned.
    pub(crate) fn for_guests(guests: String) -> Self {
        Self::pinned("none".to_owned(), "free".to_owned(), Some(guests))
    }

    fn pinned(pinned: String, cpu_placement: String, guests: Option<String>) -> Self {
        let cpuinfo = read("/proc/cpuinfo");
        let uname = rustix::system::uname();
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or_else(|| uname.machine().to_string_lossy().into_owned()),
            cpus: cpuinfo.lines().filter(|line| line.starts_with("processor")).count().max(1),
            virtual_machine: field(&cpuinfo, "flags")
                .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            memory_mib: field(&read("/proc/meminfo"), "MemTotal").and_then(|text| first_number(&text)).unwrap_or(0)
                / 1024,
            huge_pages: chosen(&read("/sys/kernel/mm/transparent_hugepage/enabled")),
            load: read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" "),
            pinned,
            cpu_placement,
            guests,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            debug_build: cfg!(debug_assertions),
        }
    }

    /// One paragraph for people, above a table.
    pub(crate) fn describe(&self) -> String {
        let what = if self.virtual_machine { "virtual machine" } else { "machine" };
        let warning = if self.debug_build {
            "\nThis is a debug build: its figures mean nothing. Build with --release."
        } else {
            ""
        };
        let cpu_placement = match &self.guests {
            Some(guests) => format!("guests: {guests}"),
            None => format!("pinned to CPUs {} ({})", self.pinned, self.cpu_placement),
        };
        format!(
            "{} ({} CPUs, {} MiB, {what}), {}, huge pages {}, load {}, {cpu_placement}, isthmus-bench {}{warning}",
            self.cpu, self.cpus, self.memory_mib, self.kernel, self.huge_pages, self.load, self.version,
        )
    }
}

/// Returns the text of a file; empty if it cannot be read, because a figure is useful on a machine without /proc, too.
fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// The value of the first `name : value` line.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim().to_owned())
    })
}

fn first_number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// The word in brackets of `always [madvise] never`.
fn chosen(text: &str) -> String {
    text.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map_or("unknown", |(word, _)| word).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_choices_are_found() {
        let text = "processor\t: 0\nmodel name\t: A CPU: fast\nflags\t\t: fpu hypervisor";
        assert_eq!(field(text, "model name").as_deref(), Some("A CPU: fast"));
        assert_eq!(field(text, "missing"), None);
        assert_eq!(chosen("always [madvise] never\n"), "madvise");
        assert_eq!(chosen(""), "unknown");
        assert_eq!(first_number("24 kB"), Some(24));
    }
}
