//! Guests under QEMU: their devices, and a border for each that is there.
//!
//! ```text
//!   [[kvm.guest]] ──► IvshmemServer ── QEMU connects ──► Estate, Border ── QEMU or its device is gone ──► all its domains end
//!                          ▲                        └──► Keeper
//!                          └── what a daemon before this one has left there
//! ```
//!
//! Guests with a monitor can have windows in common ([`pairs`]).

pub(crate) mod keeper;
mod pairs;
mod qmp;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use isthmus_layout::RegionSize;
use isthmus_platform::PlatformError;
use isthmus_platform_kvm::{Event, Guest, IvshmemServer, Shape, VECTORS_MIN};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, oneshot};
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::border::host::Border;
use crate::broker::GuestView;
use crate::config::{self, KvmGuest};
use crate::disposal::Given;
use crate::ground::{Estate, GroundNumber, Sheet};
use crate::pairs::Limits;
use crate::server::Server;
use crate::watched::watched;
use keeper::{Keeper, Kept};
use pairs::{Neighbour, Plan};

/// Where a guest's device is served.
struct Place {
    plan: KvmGuest,
    devices: IvshmemServer,
    /// Who is there since before this daemon was.
    resumed: Option<Guest>,
}

/// How often it is looked whether a guest's machine has taken what it was told: nothing else says so.
const HEARD: Duration = Duration::from_millis(2);

/// Where guests' devices are served, before anybody is.
pub(crate) struct Guests {
    places: Vec<Place>,
    /// Of guests that cannot be gone on with: nobody needs it kept any longer.
    stale: Vec<String>,
}

impl Guests {
    /// Opens all sockets, and goes on with those guests whose connection was kept. `daemon` is the daemon's own socket, `workers` its number
    /// of workers. An error says which socket could not be opened.
    pub(crate) fn open(plans: &[KvmGuest], daemon: &Path, workers: u16, mut kept: Kept) -> Result<Self, String> {
        let mut stale = Vec::new();
        let open = |plan: &KvmGuest| {
            // The crossing's vector, and one for each worker as far as there are.
            let toward_host = (1 + workers).clamp(VECTORS_MIN, plan.vectors());
            let shape = Shape::new(RegionSize(plan.window_bytes()), toward_host, plan.vectors());
            let shape = shape.map_err(|error| error.to_string())?;
            let server = IvshmemServer::listen(&plan.socket(daemon), plan.qemu_user(), shape);
            let mut devices = server.map_err(|error| error.to_string())?;
            let name = plan.name.name().as_str();
            let ends = kept.remove(name);
            let resumed = ends.as_ref().and_then(|ends| resume(name, &mut devices, ends));
            stale.extend(ends.filter(|_| resumed.is_none()).map(|_| name.to_owned()));
            Ok(Place { plan: plan.clone(), devices, resumed })
        };
        let places = plans.iter().map(open).collect::<Result<_, String>>()?;
        stale.extend(kept.into_keys());
        Ok(Self { places, stale })
    }

    /// Serves them, each on a task of the server's thread.
    pub(crate) fn serve(self, server: &Server, daemon: &Path, kvm: &config::Kvm, keeper: Keeper) {
        if !self.places.is_empty() && !keeper.is_there() {
            tracing::warn!(
                "nobody keeps what guests need when this daemon ends (docs/operate/guests.md): they need a new device then"
            );
        }
        // Machines may still know guests of a daemon before by their numbers.
        let epoch = server.with(|broker| broker.settings.epoch);
        let numbers = Rc::new(std::cell::Cell::new(1 + u32::from(epoch as u16 / 4)));
        let (keeper, size) = (Rc::new(keeper), RegionSize(u64::from(kvm.common_mib.get()) << 20));
        let mut places = std::collections::BTreeMap::new();
        for name in self.stale {
            let keeper = Rc::clone(&keeper);
            spawn_local(async move { keeper.forget(&name).await });
        }
        for place in self.places {
            let plan = &place.plan;
            let view = GuestView {
                socket: plan.socket(daemon).display().to_string(),
                monitor: plan.monitor().map(|monitor| monitor.display().to_string()),
                common_bytes: size.0,
                ..GuestView::absent("kvm", plan.user.uid, plan.window_bytes(), plan.vectors())
            };
            server.with(|broker| broker.add_guest(plan.name.name().clone(), view));
            let (device, neighbours) = unbounded_channel();
            if let Some(monitor) = plan.monitor() {
                let monitor = monitor.to_owned();
                places.insert(plan.name.name().clone(), pairs::Place { monitor, device });
            }
            let (server, numbers, keeper) = (server.clone(), Rc::clone(&numbers), Rc::clone(&keeper));
            spawn_local(async move {
                let name = place.plan.name.name().clone();
                if let Err(error) = serve(place, neighbours, &server, &numbers, &keeper).await {
                    tracing::error!(guest = %name, "it is not served any more: {error}");
                }
            });
        }
        if !places.is_empty() {
            let (sends, wanted) = unbounded_channel();
            server.with(|broker| broker.make_windows_by("kvm", sends));
            let mark = format!("{epoch:x}");
            let seconds = |seconds| Duration::from_secs(u64::from(seconds));
            let (idle, limit) = (seconds(kvm.common_idle_s.get()), seconds(kvm.plug_timeout_s.get()));
            let limits = Limits { idle, limit, absence: limit };
            spawn_local(pairs::serve(server.clone(), Plan { size, limits, places, mark }, wanted));
        }
    }
}

/// The guest whose connection was kept by these ends of a parcel.
fn resume(name: &str, devices: &mut IvshmemServer, ends: &[OwnedFd]) -> Option<Guest> {
    for end in ends {
        match devices.resume(end) {
            Ok(Some(guest)) => return Some(guest),
            Ok(None) => {}
            Err(error) => tracing::warn!(guest = name, "what was kept of it is of no use: {error}"),
        }
    }
    None
}

/// One guest after the other, at one socket.
async fn serve(
    place: Place,
    mut neighbours: UnboundedReceiver<Neighbour>,
    server: &Server,
    numbers: &std::cell::Cell<u32>,
    keeper: &Keeper,
) -> io::Result<()> {
    let Place { plan, mut devices, resumed } = place;
    let name = plan.name.name();
    let ready = watched(devices.as_fd().try_clone_to_owned()?)?;
    let mut gone: Option<Rc<Notify>> = None;
    let begin = |guest: Guest| {
        let number = GroundNumber(numbers.replace(numbers.get() + 1));
        let estate = estate(&plan, guest, number);
        show(server, &plan, Some(Arc::clone(&estate)));
        spawn(Border::new(server.clone(), estate, plan.user.uid), name.to_string())
    };
    if let Some(guest) = resumed {
        tracing::info!(guest = %name, qemu = guest.process, "its device is there since before this daemon");
        gone = Some(begin(guest));
        note(server, &plan, |guest| guest.kept = true);
    }
    // Who waits until the guest's machine has taken what it was told.
    let mut waiting: Vec<oneshot::Sender<()>> = Vec::new();
    loop {
        if devices.is_heard() {
            for known in waiting.drain(..) {
                let _ = known.send(()); // Else it is given up.
            }
        }
        match devices.poll() {
            None => tokio::select! {
                ready = ready.readable() => ready?.clear_ready(),
                Some(neighbour) = neighbours.recv() => match neighbour {
                    Neighbour::Comes { peer, bells, known } => {
                        devices.introduce(peer, bells);
                        waiting.push(known);
                    }
                    Neighbour::Goes { peer } => devices.part(peer),
                },
                () = sleep(HEARD), if !waiting.is_empty() => {}
            },
            Some(Event::Connected(guest)) => {
                tracing::info!(guest = %name, qemu = guest.process, "its device is there");
                let parcel = devices.keep(&guest);
                gone = Some(begin(guest));
                keep(server, &plan, keeper, parcel).await;
            }
            Some(Event::Gone { how, socket }) => {
                tracing::info!(guest = %name, "{how}");
                waiting.clear(); // Nobody hears them.
                gone.take().inspect(|gone| gone.notify_one());
                show(server, &plan, None);
                drop(Given::by(plan.user.uid, socket));
                keeper.forget(name.as_str()).await;
            }
            Some(Event::Failed { why, socket }) => {
                tracing::warn!(guest = %name, "a connection for its device came to nothing: {why}");
                note(server, &plan, |guest| guest.refused = Some(why.to_string()));
                drop(socket.map(|socket| Given::by(plan.user.uid, socket)));
            }
        }
    }
}

/// Has a guest's connection kept, where somebody does that.
async fn keep(server: &Server, plan: &KvmGuest, keeper: &Keeper, parcel: Result<Option<[OwnedFd; 2]>, PlatformError>) {
    let name = plan.name.name();
    if !keeper.is_there() {
        return;
    }
    match parcel {
        Ok(Some(parcel)) => match keeper.keep(name, parcel).await {
            true => note(server, plan, |guest| guest.kept = true),
            false => tracing::warn!(guest = %name, "the service manager does not take what it needs after a restart"),
        },
        Ok(None) => {} // It is gone already.
        Err(error) => tracing::warn!(guest = %name, "what it needs after a restart cannot be kept: {error}"),
    }
}

fn estate(plan: &KvmGuest, guest: Guest, number: GroundNumber) -> Arc<Estate> {
    let Guest { window, size, outward, inward, .. } = guest;
    Estate::new(number, plan.name.name().clone(), Sheet::new(window, size.0), (outward, inward))
}

/// For reports: whether the guest has its device.
fn show(server: &Server, plan: &KvmGuest, estate: Option<Arc<Estate>>) {
    note(server, plan, |guest| {
        if estate.is_some() {
            guest.refused = None;
        }
        guest.daemon &= estate.is_some();
        guest.kept &= estate.is_some();
        guest.estate = estate;
    });
    server.with(|broker| broker.guests_changed());
}

/// For reports: something about a guest.
fn note(server: &Server, plan: &KvmGuest, change: impl FnOnce(&mut GuestView)) {
    server.with(|broker| broker.guest_mut(plan.name.name()).map(change));
}

/// What is returned ends it.
fn spawn(border: Border, name: String) -> Rc<Notify> {
    let gone = Rc::new(Notify::new());
    let told = Rc::clone(&gone);
    spawn_local(async move {
        if let Err(error) = border.serve(told.notified()).await {
            tracing::error!(guest = %name, "its border is not served: {error}");
        }
    });
    gone
}
