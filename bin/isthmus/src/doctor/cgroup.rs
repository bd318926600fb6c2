//! The limits of the control groups of this process, in version 1 and 2.
//!
//! Each group from that of this process up to the visible root may have a limit. The lowest one counts.

use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/cgroup";

/// Returns the bytes that the groups still allow, and the group with the lowest limit. None if there is no limit.
pub(super) fn memory_left() -> Option<(u64, PathBuf)> {
    let groups = groups(&fs::read_to_string("/proc/self/cgroup").ok()?, "memory");
    groups.iter().filter_map(|group| Some((memory_left_in(group)?, group.clone()))).min()
}

fn memory_left_in(group: &Path) -> Option<u64> {
    let number = |names: [&str; 2]| names.iter().find_map(|name| read_number(&group.join(name)));
    let limit = number(["memory.max", "memory.limit_in_bytes"])?;
    let used = number(["memory.current", "memory.usage_in_bytes"])?;
    // Version 1 reports "no limit" as a number near the largest possible one.
    (limit < 1 << 62).then(|| limit.saturating_sub(used))
}

/// Returns the CPU time that the groups allow, in CPUs. None if there is no limit.
pub(super) fn cpus() -> Option<f64> {
    let groups = groups(&fs::read_to_string("/proc/self/cgroup").ok()?, "cpu");
    groups.iter().filter_map(|group| cpus_in(group)).min_by(f64::total_cmp)
}

fn cpus_in(group: &Path) -> Option<f64> {
    let (quota, period) = match fs::read_to_string(group.join("cpu.max")) {
        Ok(text) => {
            let (quota, period) = text.trim().split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        }
        Err(_) => (read_number(&group.join("cpu.cfs_quota_us"))?, read_number(&group.join("cpu.cfs_period_us"))?),
    };
    (period > 0).then(|| quota as f64 / period as f64)
}

/// Reads a number. None if the file contains `max` or -1.
fn read_number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Returns the folders of this process's groups for a controller, from its own group up to the root, given `/proc/self/cgroup`.
fn groups(text: &str, controller: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let root = match controllers {
            "" => PathBuf::from(ROOT),
            list if list.split(',').any(|name| name == controller) => Path::new(ROOT).join(controller),
            _ => continue,
        };
        let own = root.join(group.trim_start_matches('/'));
        folders.extend(own.ancestors().take_while(|folder| folder.starts_with(&root)).map(Path::to_path_buf));
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_in_either_version() {
        let text = "4:memory:/a/b\n2:cpu,cpuacct:/c\n0::/user.slice\n";
        let named =
            |controller| groups(text, controller).iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
        let root = ["/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"];
        assert_eq!(
            named("memory"),
            [&["/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/memory/a", "/sys/fs/cgroup/memory"][..], &root].concat()
        );
        assert_eq!(named("cpu"), [&["/sys/fs/cgroup/cpu/c", "/sys/fs/cgroup/cpu"][..], &root].concat());
    }

    #[test]
    fn limits_are_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
        assert_eq!((memory_left_in(folder.path()), cpus_in(folder.path())), (None, None));
        write("memory.max", "max\n");
        write("memory.current", "1000\n");
        write("cpu.max", "max 100000\n");
        assert_eq!((memory_left_in(folder.path()), cpus_in(folder.path())), (None, None));
        write("memory.max", "5000\n");
        write("cpu.max", "150000 100000\n");
        assert_eq!((memory_left_in(folder.path()), cpus_in(folder.path())), (Some(4000), Some(1.5)));
    }
}
