//! Kills all processes in a testbed's hosts, also when the program that made the testbed is killed.
//!
//! The reaper is a small shell that reads a pipe of ours. The pipe ends when the testbed is dropped, or when the program ends in any way.
//! Then the reaper kills each process in a network namespace of the testbed, until none is left. The reaper holds no namespace itself:
//! after the end of this program and of those processes, the kernel removes namespaces, interfaces and addresses.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// $1 is the program that made the testbed. The script spares it even if it runs in one of its own hosts. The script gives up after many
/// rounds on a process that it cannot kill, because it ran as another user.
const SCRIPT: &str = r#"
trap '' HUP INT TERM
hosts=' '
while read -r inode; do hosts="$hosts$inode "; done
round=0
while [ $((round += 1)) -le 200 ]; do
    left=
    for line in $(stat -L -c '%i:%n' /proc/[0-9]*/ns/net 2>/dev/null); do
        pid=${line#*:/proc/} pid=${pid%%/*}
        case $hosts in *" ${line%%:*} "*) [ "$pid" = "$1" ] || { kill -KILL "$pid" 2>/dev/null && left=1; } ;; esac
    done
    [ -n "$left" ] || exit 0
done
exit 1
"#;

#[derive(Debug)]
pub(crate) struct Reaper(Child);

impl Reaper {
    pub(crate) fn start() -> io::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "reaper"]).arg(std::process::id().to_string()).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // Out of our group: it must outlive a Ctrl-C that ends us.
        Ok(Self(command.process_group(0).spawn()?))
    }

    /// Processes in the namespace of this number will end.
    pub(crate) fn watch(&mut self, inode: u64) -> io::Result<()> {
        let stdin = self.0.stdin.as_mut().expect("taken in `end` only");
        writeln!(stdin, "{inode}")
    }

    /// Ends the processes, and waits for that.
    pub(crate) fn end(&mut self) {
        drop(self.0.stdin.take());
        drop(self.0.wait()); // A child of ours, which no other thread waits for.
    }
}
