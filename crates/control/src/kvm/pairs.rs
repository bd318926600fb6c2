//! Makes the windows that two guests have in common, and takes them away, by the guests' monitors.
//!
//! ```text
//!   memory ──► bells of each guest to the other's device ──► plugged into both ……► unplugged from both
//! ```
//!
//! A monitor that refuses, hangs or lies ends in a refusal. A guest that does not let its window go keeps memory that nobody else gets, and
//! gets no other window with that peer before it has.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use isthmus_layout::RegionSize;
use isthmus_layout::control::Name;
use isthmus_platform::local;
use isthmus_platform_kvm::{CommonDevice, GUEST, port};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};

use crate::broker::Wanted;
use crate::ground::common::Sheet;
use crate::ground::{CommonWindow, Estate};
use crate::pairs::{Limits, Make, live};
use crate::server::Server;
use crate::watched::watched;

use super::qmp::{Monitor, MonitorError};

/// How often a device that is to go is asked for again: a guest's kernel takes its time.
const AGAIN: Duration = Duration::from_millis(500);

/// A guest, the other one, and where windows are made for the first.
type Side<'a> = (&'a Arc<Estate>, &'a Arc<Estate>, &'a Place);

/// What the names of devices begin with.
const NAMES: &str = "isthmus-";

/// How many times of these the guest itself is asked once more.
const ASK_EVERY: u32 = 20;

/// Ports that a device is tried at.
const PORTS_MAX: usize = 8;

/// For the server of a guest's device.
#[derive(Debug)]
pub(crate) enum Neighbour {
    /// Another guest, and what rings its vectors; answered when the guest's machine knows.
    Comes {
        /// Its number among the device's peers.
        peer: u16,
        /// In the order of the vectors.
        bells: Vec<OwnedFd>,
        /// Told when it is known.
        known: oneshot::Sender<()>,
    },
    /// It is none any more.
    Goes {
        /// Its number.
        peer: u16,
    },
}

/// A guest as far as windows are made for it.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// Its monitor.
    pub(crate) monitor: PathBuf,
    /// The server of its device.
    pub(crate) device: UnboundedSender<Neighbour>,
}

/// How windows are made.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Bytes of each.
    pub(crate) size: RegionSize,
    /// How long things may take.
    pub(crate) limits: Limits,
    /// Guests with a monitor.
    pub(crate) places: BTreeMap<Name, Place>,
    /// Tells devices of this daemon from those of others.
    pub(crate) mark: String,
}

/// Makes windows as long as there is somebody who wants any.
pub(crate) async fn serve(server: Server, plan: Plan, mut wanted: UnboundedReceiver<Wanted>) {
    let plan = Arc::new(plan);
    while let Some(wanted) = wanted.recv().await {
        let maker = Making { plan: Arc::clone(&plan), plugged: Vec::new() };
        spawn_local(live(server.clone(), plan.limits, wanted, maker));
    }
}

/// One window.
struct Making {
    plan: Arc<Plan>,
    plugged: Vec<Plugged>,
}

/// Both, in either order.
fn sides<'a>(plan: &'a Plan, wanted: &'a Wanted) -> Result<[Side<'a>; 2], String> {
    let [one, other] = &wanted.guests;
    let place = |guest: &Arc<Estate>| {
        let place = plan.places.get(guest.name());
        place.ok_or_else(|| format!("guest {} has no monitor", guest.name()))
    };
    Ok([(one, other, place(one)?), (other, one, place(other)?)])
}

impl Make for Making {
    async fn make(&mut self, wanted: &Wanted) -> Result<Arc<CommonWindow>, String> {
        let Wanted { number, guests, .. } = wanted;
        let memory = Arc::new(local::memory(self.plan.size).map_err(|error| error.to_string())?);
        let sheet = Sheet::new(*number, Arc::clone(&memory), self.plan.size.0);
        let window = CommonWindow::over(*number, guests.clone(), sheet);
        let sides = sides(&self.plan, wanted)?;
        for (guest, other, place) in sides {
            let peer = other.peer().ok_or_else(|| format!("guest {} has come too often", other.name()))?;
            let bells = other.bells().map_err(|error| error.to_string())?;
            let (known, is_known) = oneshot::channel();
            let told = place.device.send(Neighbour::Comes { peer, bells, known }).is_ok() && is_known.await.is_ok();
            told.then_some(()).ok_or_else(|| format!("guest {} is not there any more", guest.name()))?;
        }
        let mut sockets = Vec::new();
        for (guest, _, place) in sides {
            let (device, socket) = CommonDevice::new(number.0 + GUEST, &*memory).map_err(|error| error.to_string())?;
            let id = format!("{NAMES}{}-{}-{}", self.plan.mark, number.0, guest.number().0);
            self.plugged.push(Plugged { id, monitor: place.monitor.clone(), device });
            sockets.push(socket);
        }
        // One after the other: two guests may have one processor.
        for ((plugged, socket), (guest, ..)) in self.plugged.iter().zip(sockets).zip(sides) {
            let refused = |error| format!("the monitor of guest {}: {error}", guest.name());
            plugged.plug(socket, &self.plan.mark).await.map_err(refused)?;
        }
        Ok(window)
    }

    async fn gone(&self) -> &'static str {
        let [one, other] = &self.plugged[..] else { return std::future::pending().await };
        tokio::select! {
            () = one.gone() => {}
            () = other.gone() => {}
        }
        "its device is gone"
    }

    async fn unmake(self, wanted: &Wanted) {
        // The guests' devices ring one another no more.
        for (_, other, place) in sides(&self.plan, wanted).into_iter().flatten() {
            if let Some(peer) = other.peer() {
                let _ = place.device.send(Neighbour::Goes { peer }); // Else the daemon ends.
            }
        }
        let limit = self.plan.limits.limit;
        let leaving: Vec<_> =
            self.plugged.into_iter().map(|plugged| spawn_local(async move { plugged.unplug(limit).await })).collect();
        for leaving in leaving {
            let _ = leaving.await; // It ends when its device is gone.
        }
    }
}

/// A device that shows a window, from before it is plugged.
struct Plugged {
    /// What QEMU calls it, and its character device.
    id: String,
    monitor: PathBuf,
    device: CommonDevice,
}

impl Plugged {
    /// Plugs it into its guest, with this end of its socket.
    async fn plug(&self, socket: OwnedFd, mark: &str) -> Result<(), MonitorError> {
        let mut monitor = Monitor::connect(&self.monitor).await?;
        for left in left_behind(&monitor.command("query-chardev", json!({})).await?, mark) {
            tracing::debug!(device = left, "a daemon before has left it");
            for command in ["device_del", "chardev-remove"] {
                // While its guest thinks about it the character device is refused; the next window asks again.
                match monitor.command(command, json!({ "id": left })).await {
                    Ok(_) | Err(MonitorError::Refused { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        monitor.hand(&self.id, socket.as_fd()).await?;
        drop(socket);
        let address = json!({ "type": "fd", "data": { "str": self.id } });
        let backend = json!({ "type": "socket", "data": { "server": false, "addr": address } });
        monitor.command("chardev-add", json!({ "id": self.id, "backend": backend })).await?;
        let mut refused = match self.add(&mut monitor, None).await {
            Err(refused @ MonitorError::Refused { .. }) => refused,
            done => return done,
        };
        // Machines of the kind q35 have slots to plug into behind root ports alone.
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

    /// Waits until it is gone.
    async fn gone(&self) {
        let hangs_up = |fd: io::Result<OwnedFd>| fd.and_then(watched);
        match hangs_up(self.device.as_fd().try_clone_to_owned()) {
            Ok(socket) => {
                while !self.device.is_gone() {
                    match socket.readable().await {
                        Ok(mut ready) => ready.clear_ready(),
                        Err(_) => return sleep(AGAIN).await,
                    }
                }
            }
            Err(_) => {
                while !self.device.is_gone() {
                    sleep(AGAIN).await;
                }
            }
        }
    }

    /// Unplugs it, and returns when it is gone. A guest may take as long as it likes, and keep it for ever.
    async fn unplug(&self, limit: Duration) {
        let (begun, mut tries, mut told) = (Instant::now(), 0_u32, false);
        while !self.device.is_gone() {
            let tried = timeout(limit, self.try_to_unplug(tries)).await;
            tries += 1;
            if !told && begun.elapsed() >= limit {
                told = true;
                let why = tried.map_or_else(
                    |_| "its monitor does not answer".to_owned(),
                    |tried| match tried {
                        Ok(()) => "its machine keeps it".to_owned(),
                        Err(error) => error.to_string(),
                    },
                );
                tracing::warn!(device = self.id, "a guest does not let go of a window: {why}");
            }
            let pause = if told { limit } else { AGAIN };
            tokio::select! {
                () = self.gone() => {}
                () = sleep(pause) => {}
            }
        }
    }

    async fn try_to_unplug(&self, tries: u32) -> Result<(), MonitorError> {
        let mut monitor = Monitor::connect(&self.monitor).await?;
        if tries.is_multiple_of(ASK_EVERY) {
            match monitor.command("device_del", json!({ "id": self.id })).await {
                // It is not there any more, was not plugged, or is on its way already.
                Ok(_) | Err(MonitorError::Refused { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        // Refused as long as the device is there.
        monitor.command("chardev-remove", json!({ "id": self.id })).await.map(drop)
    }
}

/// Character devices of windows that another daemon has made.
fn left_behind(chardevs: &Value, mark: &str) -> Vec<String> {
    let labels = chardevs.as_array().into_iter().flatten().filter_map(|chardev| chardev["label"].as_str());
    let of_others = |label: &&str| {
        label.strip_prefix(NAMES).is_some_and(|rest| rest.split_once('-').is_some_and(|(of, _)| of != mark))
    };
    labels.filter(of_others).take(PORTS_MAX).map(str::to_owned).collect()
}

/// Root ports that nothing is plugged into, by the names of their buses; first those that are there for it (`isthmus guest xml`), which have room.
fn free_ports(pci: &Value) -> Vec<String> {
    let buses = pci.as_array().into_iter().flatten();
    let devices = buses.filter_map(|bus| bus["devices"].as_array()).flatten();
    let free = devices.filter(|device| {
        device["pci_bridge"].is_object() && device["pci_bridge"]["devices"].as_array().is_none_or(Vec::is_empty)
    });
    let named = free.filter_map(|device| device["qdev_id"].as_str()).filter(|id| !id.is_empty());
    let (ours, others): (Vec<&str>, Vec<&str>) = named.partition(|id| port::is_one(id));
    ours.into_iter().chain(others).take(PORTS_MAX).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_have_left_is_known_by_its_name() {
        let chardevs = json!([
            { "label": "isthmus" }, { "label": "isthmus-5a-1-7" }, { "label": "isthmus-77-2-9" }, { "label": "serial0" }, 5
        ]);
        assert_eq!(left_behind(&chardevs, "77"), ["isthmus-5a-1-7"]);
        assert_eq!(left_behind(&json!(null), "77"), [""; 0]);
    }

    #[test]
    fn a_free_port_is_a_bridge_with_a_name_and_nothing_behind_it_and_ours_come_first() {
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
