//! Creates and removes pair windows through the monitors of the guests.
//!
//! ```text
//!   memory ──► doorbells of each guest to the other's device ──► plugged into both ……► unplugged from both
//! ```
//!
//! If a monitor refuses, hangs or sends invalid responses, the window is refused. A guest that does not release its window keeps the memory, which
//! is not reused. It gets no other window with that peer until it has released this one.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use isthmus_layout::RegionSize;
use isthmus_layout::control::Name;
use isthmus_platform::local;
use isthmus_platform_kvm::{GUEST, PairDevice, port};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};

use crate::pairs::{PairError, PairMaker, PairTimeouts, run_pair};
use isthmus_control::async_fd::register;
use isthmus_control::broker::PairRequest;
use isthmus_control::server::Server;
use isthmus_window::{FileBacking, GuestWindow, PairWindow, WindowError};

use super::qmp::{Monitor, MonitorError};

/// The interval at which the removal of a device is retried, because the guest's kernel may take time.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// A guest, its peer guest, and the monitor and device server of the first.
type PairSide<'a> = (&'a Arc<GuestWindow>, &'a Arc<GuestWindow>, &'a MonitoredGuest);

/// The prefix of device names.
const NAME_PREFIX: &str = "isthmus-";

/// The number of retries after which `device_del` is sent to the guest again.
const UNPLUG_RETRY_EVERY: u32 = 20;

/// The maximum number of ports at which plugging a device is tried.
const PORTS_MAX: usize = 8;

/// A message to the task that serves a guest's device.
#[derive(Debug)]
pub(crate) enum PeerChange {
    /// Another guest was added, with the descriptors that ring its vectors. The task replies when QEMU has received them.
    Added {
        /// The peer number of the other guest at this device.
        peer: u16,
        /// The descriptors, in the order of the vectors.
        doorbells: Vec<OwnedFd>,
        /// Notified when QEMU has received all doorbells.
        drained: oneshot::Sender<()>,
    },
    /// A guest was removed from the peers.
    Removed {
        /// The peer number.
        peer: u16,
    },
}

/// The parts of a guest that are needed to create windows for it.
#[derive(Clone, Debug)]
pub(crate) struct MonitoredGuest {
    /// The socket of the guest's monitor.
    pub(crate) monitor: PathBuf,
    /// The task that serves the guest's device.
    pub(crate) device: UnboundedSender<PeerChange>,
}

/// The parameters of pair windows.
#[derive(Clone, Debug)]
pub(crate) struct PairPlan {
    /// The size of each window.
    pub(crate) size: RegionSize,
    /// The time limits.
    pub(crate) limits: PairTimeouts,
    /// The guests with a monitor, by name.
    pub(crate) monitored: BTreeMap<Name, MonitoredGuest>,
    /// Distinguishes devices of this daemon from those of other daemons.
    pub(crate) daemon_tag: String,
}

/// Creates windows on request, until the broker drops its end of the channel.
pub(crate) async fn serve(server: Server, plan: PairPlan, mut requests: UnboundedReceiver<PairRequest>) {
    let plan = Arc::new(plan);
    while let Some(request) = requests.recv().await {
        let maker = KvmPairMaker { plan: Arc::clone(&plan), plugged: Vec::new() };
        spawn_local(run_pair(server.clone(), plan.limits, request, maker));
    }
}

/// The maker of one window.
struct KvmPairMaker {
    plan: Arc<PairPlan>,
    plugged: Vec<PluggedDevice>,
}

/// Returns both sides of a window, each as seen from its guest.
fn sides<'a>(plan: &'a PairPlan, request: &'a PairRequest) -> Result<[PairSide<'a>; 2], PairError> {
    let [one, other] = &request.guests;
    let guest_entry = |guest: &Arc<GuestWindow>| {
        let guest_entry = plan.monitored.get(guest.name());
        guest_entry.ok_or_else(|| PairError::NoMonitor(guest.name().clone()))
    };
    Ok([(one, other, guest_entry(one)?), (other, one, guest_entry(other)?)])
}

impl PairMaker for KvmPairMaker {
    async fn create(&mut self, request: &PairRequest) -> Result<Arc<PairWindow>, PairError> {
        let PairRequest { number, guests, .. } = request;
        let memory = Arc::new(local::memory(self.plan.size)?);
        let file_backing = FileBacking::pair(*number, Arc::clone(&memory), self.plan.size.0);
        let window = PairWindow::new(*number, guests.clone(), file_backing);
        let sides = sides(&self.plan, request)?;
        for (guest, other, guest_entry) in sides {
            let peer = other.peer().ok_or_else(|| WindowError::NoPeerNumber(other.name().clone()))?;
            let doorbells = other.doorbells()?;
            let (drained, is_drained) = oneshot::channel();
            let is_added = guest_entry.device.send(PeerChange::Added { peer, doorbells, drained }).is_ok()
                && is_drained.await.is_ok();
            if !is_added {
                return Err(PairError::DeviceGone(guest.name().clone()));
            }
        }
        let mut sockets = Vec::new();
        for (guest, _, guest_entry) in sides {
            let (device, socket) = PairDevice::new(number.0 + GUEST, &*memory)?;
            let id = format!("{NAME_PREFIX}{}-{}-{}", self.plan.daemon_tag, number.0, guest.number().0);
            self.plugged.push(PluggedDevice { id, monitor: guest_entry.monitor.clone(), device });
            sockets.push(socket);
        }
        // The devices are plugged one after the other, because two guests may share one processor.
        for ((plugged, socket), (guest, ..)) in self.plugged.iter().zip(sockets).zip(sides) {
            let refused =
                |source: MonitorError| PairError::Monitor { guest: guest.name().clone(), source: Box::new(source) };
            plugged.plug(socket, &self.plan.daemon_tag).await.map_err(refused)?;
        }
        Ok(window)
    }

    async fn closed(&self) -> &'static str {
        let [one, other] = &self.plugged[..] else { return std::future::pending().await };
        tokio::select! {
            () = one.closed() => {}
            () = other.closed() => {}
        }
        "the device of a guest is gone"
    }

    async fn destroy(self, request: &PairRequest) {
        // Stops the guests' devices from ringing each other.
        for (_, other, guest_entry) in sides(&self.plan, request).into_iter().flatten() {
            if let Some(peer) = other.peer() {
                let _ = guest_entry.device.send(PeerChange::Removed { peer }); // Fails only when the daemon is ending.
            }
        }
        let limit = self.plan.limits.limit;
        let leaving: Vec<_> =
            self.plugged.into_iter().map(|plugged| spawn_local(async move { plugged.unplug(limit).await })).collect();
        for leaving in leaving {
            let _ = leaving.await; // The task ends when its device is gone.
        }
    }
}

/// A device that shows a window. The value exists from before the device is plugged.
struct PluggedDevice {
    /// The name of the device and of its character device in QEMU.
    id: String,
    monitor: PathBuf,
    device: PairDevice,
}

impl PluggedDevice {
    /// Plugs the device into its guest. `socket` is QEMU's end of the socket.
    async fn plug(&self, socket: OwnedFd, daemon_tag: &str) -> Result<(), MonitorError> {
        let mut monitor = Monitor::connect(&self.monitor).await?;
        for left in stale_devices(&monitor.command("query-chardev", json!({})).await?, daemon_tag) {
            tracing::debug!(device = left, "a daemon before has left it");
            for command in ["device_del", "chardev-remove"] {
                // Removal of the character device is refused until the guest has released the device. The next window retries.
                match monitor.command(command, json!({ "id": left })).await {
                    Ok(_) | Err(MonitorError::Refused { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        monitor.add_fd(&self.id, socket.as_fd()).await?;
        drop(socket);
        let address = json!({ "type": "fd", "data": { "str": self.id } });
        let backend = json!({ "type": "socket", "data": { "server": false, "addr": address } });
        monitor.command("chardev-add", json!({ "id": self.id, "backend": backend })).await?;
        let mut refused = match self.add(&mut monitor, None).await {
            Err(refused @ MonitorError::Refused { .. }) => refused,
            done => return done,
        };
        // Machines of type q35 support hotplug only behind root ports.
        for port in free_ports(&monitor.command("query-pci", json!({})).await?) {
            match self.add(&mut monitor, Some(&port)).await {
                Err(again @ MonitorError::Refused { .. }) => refused = again,
                done => return done,
            }
        }
        Err(refused)
    }

    async fn add(&self, monitor: &mut Monitor, port: Option<&str>) -> Result<(), MonitorError> {
        let mut device = json!({ "driver": "ivshmem-doorbell", "id": self.id, "chardev": self.id, "vectors": 1 });
        if let Some(port) = port {
            device["bus"] = port.into();
        }
        monitor.command("device_add", device).await.map(drop)
    }

    /// Waits until the device is gone.
    async fn closed(&self) {
        let hangs_up = |fd: io::Result<OwnedFd>| fd.and_then(register);
        match hangs_up(self.device.as_fd().try_clone_to_owned()) {
            Ok(socket) => {
                while !self.device.is_gone() {
                    match socket.readable().await {
                        Ok(mut ready) => ready.clear_ready(),
                        Err(_) => return sleep(RETRY_INTERVAL).await,
                    }
                }
            }
            Err(_) => {
                while !self.device.is_gone() {
                    sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }

    /// Unplugs the device, and returns when it is gone. A guest may delay this without limit.
    async fn unplug(&self, limit: Duration) {
        let (begun, mut tries, mut is_logged) = (Instant::now(), 0_u32, false);
        while !self.device.is_gone() {
            let tried = timeout(limit, self.try_unplug(tries)).await;
            tries += 1;
            if !is_logged && begun.elapsed() >= limit {
                is_logged = true;
                let why = tried.map_or_else(
                    |_| "the monitor does not answer".to_owned(),
                    |tried| match tried {
                        Ok(()) => "the machine keeps the device".to_owned(),
                        Err(error) => error.to_string(),
                    },
                );
                tracing::warn!(device = self.id, "a guest does not let go of a window: {why}");
            }
            let pause = if is_logged { limit } else { RETRY_INTERVAL };
            tokio::select! {
                () = self.closed() => {}
                () = sleep(pause) => {}
            }
        }
    }

    async fn try_unplug(&self, tries: u32) -> Result<(), MonitorError> {
        let mut monitor = Monitor::connect(&self.monitor).await?;
        if tries.is_multiple_of(UNPLUG_RETRY_EVERY) {
            match monitor.command("device_del", json!({ "id": self.id })).await {
                // The device is gone, was not plugged, or is already being unplugged.
                Ok(_) | Err(MonitorError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        // The monitor refuses this as long as the device exists.
        monitor.command("chardev-remove", json!({ "id": self.id })).await.map(drop)
    }
}

/// Returns the character devices of windows that another daemon has created.
fn stale_devices(chardevs: &Value, daemon_tag: &str) -> Vec<String> {
    let labels = chardevs.as_array().into_iter().flatten().filter_map(|chardev| chardev["label"].as_str());
    let of_others = |label: &&str| {
        label.strip_prefix(NAME_PREFIX).is_some_and(|rest| rest.split_once('-').is_some_and(|(of, _)| of != daemon_tag))
    };
    labels.filter(of_others).take(PORTS_MAX).map(str::to_owned).collect()
}

/// Returns the bus names of root ports that have no device. Ports that are reserved for windows (`isthmus guest xml`) come first.
fn free_ports(pci: &Value) -> Vec<String> {
    let buses = pci.as_array().into_iter().flatten();
    let devices = buses.filter_map(|bus| bus["devices"].as_array()).flatten();
    let free = devices.filter(|device| {
        device["pci_bridge"].is_object() && device["pci_bridge"]["devices"].as_array().is_none_or(Vec::is_empty)
    });
    let named = free.filter_map(|device| device["qdev_id"].as_str()).filter(|id| !id.is_empty());
    let (ours, others): (Vec<&str>, Vec<&str>) = named.partition(|id| port::is_window_port(id));
    ours.into_iter().chain(others).take(PORTS_MAX).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_stale_devices_of_other_daemons_by_name() {
        let chardevs = json!([
            { "label": "isthmus" }, { "label": "isthmus-5a-1-7" }, { "label": "isthmus-77-2-9" }, { "label": "serial0" }, 5
        ]);
        assert_eq!(stale_devices(&chardevs, "77"), ["isthmus-5a-1-7"]);
        assert_eq!(stale_devices(&json!(null), "77"), [""; 0]);
    }

    #[test]
    fn finds_empty_named_bridges_and_prefers_our_ports() {
        let bridge = |id: &str, behind: Value| json!({ "qdev_id": id, "pci_bridge": { "bus": {}, "devices": behind } });
        let devices = json!([
            { "qdev_id": "vga" },
            bridge("port1", json!([{ "qdev_id": "net" }])),
            bridge("", json!([])),
            bridge("port2", json!([])),
            { "qdev_id": "port3", "pci_bridge": { "bus": {} } },
            bridge("ua-isthmus1", json!([])),
            bridge("isthmus2", json!([])),
        ]);
        assert_eq!(
            free_ports(&json!([{ "bus": 0, "devices": devices }])),
            ["ua-isthmus1", "isthmus2", "port2", "port3"]
        );
        assert_eq!(free_ports(&json!({ "bus": "nonsense" })), [""; 0]);
    }
}
