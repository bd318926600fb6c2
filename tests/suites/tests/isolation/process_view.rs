//! Which memory and which doorbells a process has, out of /proc: what two processes have in common is what the one could do to
//! the other.

use isthmus_testbed::View;
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt as _;

/// The name of a region's memory file.
pub(crate) const REGION: &str = "isthmus-migrated";

/// A memory file: its inode and its name.
pub(crate) type Memory = (u64, String);

/// The memory files that a process has mapped or open.
pub(crate) fn memories(view: &View) -> BTreeSet<Memory> {
    let maps = view.maps().expect("its mappings");
    let mapped = maps.iter().filter_map(|mapping| Some((mapping.inode, mapping.memfd()?.to_owned())));
    let mut found: BTreeSet<Memory> = mapped.collect();
    for fd in view.fds().expect("its descriptors") {
        let Some(name) = fd.target.strip_prefix("/memfd:") else { continue };
        let path = format!("/proc/{}/fd/{}", view.pid(), fd.number);
        let inode = std::fs::metadata(path).expect("it stands still while we look").ino();
        found.insert((inode, name.trim_end_matches(" (deleted)").to_owned()));
    }
    found
}

/// The memory files that two processes share.
pub(crate) fn common(one: &View, other: &View) -> Vec<Memory> {
    memories(one).intersection(&memories(other)).cloned().collect()
}

/// Regions of a process: memory files that it has moved its buffers to, or that peers have granted it.
pub(crate) fn regions(view: &View) -> BTreeSet<u64> {
    memories(view).into_iter().filter(|(_, name)| name == REGION).map(|(inode, _)| inode).collect()
}

/// True if every mapping that the process has of this memory is for reading.
pub(crate) fn only_reads(view: &View, inode: u64) -> bool {
    let maps = view.maps().expect("its mappings");
    let mut of_it = maps.iter().filter(|mapping| mapping.inode == inode).peekable();
    of_it.peek().is_some() && of_it.all(|mapping| !mapping.is_writable())
}

/// The event descriptors of a process, by the kernel's numbers.
pub(crate) fn events(view: &View) -> BTreeSet<u64> {
    let fds = view.fds().expect("its descriptors");
    let events = fds.iter().filter(|fd| fd.target == "anon_inode:[eventfd]");
    let number = |number: i32| {
        let info =
            std::fs::read_to_string(format!("/proc/{}/fdinfo/{number}", view.pid())).expect("a descriptor's info");
        let line = info.lines().find_map(|line| line.strip_prefix("eventfd-id:"));
        line.and_then(|id| id.trim().parse().ok()).expect("event descriptors have numbers since Linux 5.2")
    };
    events.map(|fd| number(fd.number)).collect()
}

/// Returns the number of sockets that a process has.
pub(crate) fn sockets(view: &View) -> usize {
    view.fds().expect("its descriptors").iter().filter(|fd| fd.target.starts_with("socket:")).count()
}
