//! `isthmus cdi`: the specification by which container runtimes give a container all that its programs need.
//!
//! ```text
//! isthmus cdi --write                          /etc/cdi/isthmus.json
//! podman run --device isthmus/host=all IMAGE   mounts and variables of the device
//!
//! on the host                              in the container
//! the folder of the daemon's socket   ──►  /run/isthmus
//! the libraries of each capability    ──►  /opt/isthmus/CAPABILITY, the first one under each of its names
//! /dev/null, /dev/full                ──►  the files that programs open in place of devices
//! the variables of `isthmus run`      ──►  the same, with the folders of the container
//! ```
//!
//! The format is the Container Device Interface: <https://github.com/cncf-tags/container-device-interface/blob/v0.6.0/SPEC.md>.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use isthmus_config::Role;
use isthmus_layout::environment;
use serde::Serialize;

use crate::capability::PROGRAM_CAPABILITIES;
use crate::daemon;
use crate::output::{Outcome, Output, note};
use crate::run::{CapabilityChoice, DeviceFile, ProgramCapability, ProgramPlace, Setting, installed_folder, joined};

/// The lowest version of the specification that has every field used here. Runtimes accept lower versions than their own and
/// refuse higher ones: podman 4.3.1 refuses 0.6.0.
const CDI_VERSION: &str = "0.3.0";

/// The vendor and the class of the device.
const KIND: &str = "isthmus/host";

/// The name of the device.
const DEVICE: &str = "all";

/// The folder in which runtimes look for specifications.
const FOLDER: &str = "/etc/cdi";
const FILE: &str = "isthmus.json";

/// The folders in a container.
const SOCKET_FOLDER: &str = "/run/isthmus";
const LIBRARY_FOLDER: &str = "/opt/isthmus";

/// A container reads the folder of the socket and the libraries. Connecting to a socket needs no more.
const MOUNT_OPTIONS: [&str; 4] = ["rbind", "ro", "nosuid", "nodev"];

#[derive(Args, Clone, Debug)]
pub(crate) struct CdiArgs {
    /// Write the specification to isthmus.json in this folder instead [default folder: /etc/cdi].
    #[arg(long, value_name = "DIR", num_args = 0..=1, require_equals = true, default_missing_value = FOLDER)]
    write: Option<PathBuf>,

    #[command(flatten)]
    choice: CapabilityChoice,
}

/// The specification, as the standard names its fields.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Specification {
    cdi_version: &'static str,
    kind: &'static str,
    devices: [Device; 1],
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Device {
    name: &'static str,
    container_edits: ContainerEdits,
}

/// The changes to a container.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ContainerEdits {
    /// The variables, each as `NAME=VALUE`.
    env: Vec<String>,
    mounts: Vec<Mount>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    device_nodes: Vec<DeviceNode>,
}

/// A device file. Its numbers stand for the path on the host, which the standard has since version 0.5.0 only.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct DeviceNode {
    path: &'static str,
    #[serde(rename = "type")]
    kind: &'static str,
    major: u32,
    minor: u32,
    file_mode: u32,
    permissions: &'static str,
}

impl DeviceNode {
    const fn new(file: &DeviceFile) -> Self {
        let (major, minor) = file.number;
        Self { path: file.path, kind: "c", major, minor, file_mode: 0o666, permissions: "rw" }
    }
}

#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    host_path: String,
    container_path: String,
    options: [&'static str; 4],
}

impl Mount {
    fn new(host: &Path, container: &Path) -> Result<Self> {
        let text = |path: &Path| {
            let text = path.to_str().with_context(|| format!("{} is not UTF-8, as JSON must be", path.display()))?;
            Ok::<String, anyhow::Error>(text.to_owned())
        };
        Ok(Self { host_path: text(host)?, container_path: text(container)?, options: MOUNT_OPTIONS })
    }
}

pub(crate) fn run(output: Output, socket: Option<PathBuf>, args: &CdiArgs) -> Result<Outcome> {
    let socket = match daemon::options(socket)?.socket {
        Some(socket) => std::path::absolute(socket).context("cannot find the socket's folder")?,
        None => daemon::usual_socket(Role::System),
    };
    args.choice.check()?;
    let specification = specification(&socket, &args.choice)?;
    let text = serde_json::to_string_pretty(&specification).context("cannot write the specification as JSON")? + "\n";
    let file = args.write.as_deref().map(|folder| folder.join(FILE));
    if let Some(file) = &file {
        write(file, &text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    let body = serde_json::json!({ "specification": specification, "file": file });
    output.result("cdi", &body, || match &file {
        Some(file) => format!("written: {}\n", file.display()),
        None => text,
    })?;
    Ok(Outcome::Done)
}

/// Returns the device with the capabilities that are chosen.
fn specification(socket: &Path, choice: &CapabilityChoice) -> Result<Specification> {
    let mut edits = ContainerEdits { env: Vec::new(), mounts: Vec::new(), device_nodes: Vec::new() };
    add_daemon(&mut edits, socket)?;
    let (mut missing, mut settings) = (Vec::new(), Vec::new());
    let wanted = |row: &&ProgramCapability| choice.why_off(row).is_none();
    for capability in PROGRAM_CAPABILITIES.iter().filter(wanted) {
        match installed_folder(capability.library) {
            Ok(folder) => settings.extend(add_capability(&mut edits, capability, &folder)?),
            Err(error) if choice.names(capability) => {
                missing.push(format!("{error} (asked for: --with {})", capability.name));
            }
            Err(error) => missing.push(format!("{error} (leave it out: --without {})", capability.name)),
        }
    }
    ensure!(missing.is_empty(), "{}; `make install` installs the libraries", missing.join("; "));
    edits.env.extend(joined(settings.into_iter()).into_iter().map(|set| format!("{}={}", set.name, set.value)));
    Ok(Specification {
        cdi_version: CDI_VERSION,
        kind: KIND,
        devices: [Device { name: DEVICE, container_edits: edits }],
    })
}

/// Adds the folder of the socket, because a restarted daemon makes a new socket in it.
fn add_daemon(edits: &mut ContainerEdits, socket: &Path) -> Result<()> {
    let (Some(folder), Some(name)) = (socket.parent(), socket.file_name()) else {
        bail!("{} is not the path of a socket", socket.display());
    };
    match fs::metadata(folder) {
        // Its sockets could be those of any user, and a container would see the files of all.
        Ok(found) if folder.parent().is_none() || found.permissions().mode() & 0o002 != 0 => bail!(
            "containers would see all of {}, which is not the daemon's own: set `daemon.socket` to a path in a folder of its own",
            folder.display()
        ),
        Ok(_) => {}
        Err(error) => note(&format!(
            "{}: {error}; containers with the device do not start before the daemon runs",
            folder.display()
        )),
    }
    let within = Path::new(SOCKET_FOLDER);
    edits.mounts.push(Mount::new(folder, within)?);
    edits.env.push(format!("{}={}", environment::SOCKET.name, within.join(name).display()));
    // Without this variable, a container would start a daemon of its own while the host's is stopped.
    edits.env.push(format!("{}=0", environment::AUTOSTART.name));
    Ok(())
}

/// Adds the libraries of a capability, installed in `folder`, the first one under each of its names. Returns the variables.
fn add_capability(edits: &mut ContainerEdits, capability: &ProgramCapability, folder: &Path) -> Result<Vec<Setting>> {
    let within = Path::new(LIBRARY_FOLDER).join(capability.name);
    let names = capability.other_names.iter().chain([&capability.library]).map(|name| (capability.library, *name));
    for (library, name) in names.chain(capability.other_libraries.iter().map(|library| (*library, *library))) {
        let library = folder.join(library);
        let library = library.canonicalize().with_context(|| format!("cannot find {}", library.display()))?;
        edits.mounts.push(Mount::new(&library, &within.join(name))?);
    }
    edits.device_nodes.extend(capability.device_files.iter().map(DeviceNode::new));
    let place = ProgramPlace { folder: &within, socket: None, container: Some(Path::new(SOCKET_FOLDER)) };
    (capability.settings)(&place).map_err(anyhow::Error::msg)
}

/// Writes a file that every user may read. A runtime finds the old one or the new one, and never a part.
fn write(file: &Path, text: &str) -> Result<()> {
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder)?;
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    new.write_all(text.as_bytes())?;
    new.as_file().set_permissions(Permissions::from_mode(0o644))?;
    new.persist(file)?;
    Ok(())
}
