//! Creates interfaces by the privileged helper, from a thread of its own once the daemon serves: a helper that does not reply never delays
//! the control plane.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use isthmus_config::overlay::Place;
use isthmus_helper::{
    HelperClient, HelperError, HelperStarter, InterfaceNumber, InvalidValue, Permissions, RefusalReason, TapRequest,
};
use rustix::fd::{AsFd as _, OwnedFd};
use tokio::sync::oneshot;

use super::tap_store::{TapName, TapStore};

/// The name of the helper's program, which lies beside that of the daemon.
const PROGRAM: &str = "isthmus-helper";

/// The times between the starts of helpers of which none has replied to a request. Each is double the one before.
const RESTART_DELAY_MIN: Duration = Duration::from_millis(100);
const RESTART_DELAY_MAX: Duration = Duration::from_secs(30);

/// The reason why an interface could not be created.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    /// The network namespace cannot be opened.
    #[error("the network namespace {}: {source}{}", path.display(), namespace_remedy(source))]
    Namespace { path: PathBuf, source: io::Error },
    /// The helper is not there, or refused.
    #[error(transparent)]
    Helper(#[from] HelperError),
    /// The configuration has a value that the helper does not take.
    #[error(transparent)]
    Value(#[from] InvalidValue),
    /// There is no thread that creates interfaces. The log says why.
    #[error("the thread that creates interfaces has ended or could not be started")]
    NoThread,
    /// The helper that this daemon had started has ended. Another one is started at the next attempt.
    #[error("isthmus-helper, which this daemon had started, has ended; the daemon starts it again ({})", log_hint())]
    OwnHelperEnded,
    /// The process that starts helpers for this daemon has ended.
    #[error("isthmus-helper --starter, which this daemon had started, has ended: restart the daemon ({})", log_hint())]
    OwnStarterEnded,
}

impl OpenError {
    /// Whether another interface has the name.
    pub(super) fn is_name_taken(&self) -> bool {
        matches!(self, Self::Helper(HelperError::Refused(refusal)) if refusal.reason == RefusalReason::NameTaken)
    }
}

/// Says where a helper of this daemon logs. It has the daemon's standard error.
fn log_hint() -> String {
    match std::fs::read_link("/proc/self/fd/2") {
        Ok(path) if path.is_file() => format!("{} may say why", path.display()),
        _ => "the log of the daemon may say why".to_owned(),
    }
}

fn namespace_remedy(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::NotFound => "; the daemon waits for it (`ip netns list` shows those with names)",
        io::ErrorKind::PermissionDenied => "; give it a name (`ip netns attach NAME PID`) and use that",
        _ => "",
    }
}

/// An interface to create.
#[derive(Debug)]
pub(super) struct OpenRequest {
    pub(super) place: Place,
    pub(super) tap: Result<TapRequest, InvalidValue>,
}

/// The input of the creation of an interface.
struct Opening {
    tap: TapRequest,
    /// None is the namespace of the helper.
    namespace: Option<File>,
    name: TapName,
}

impl OpenRequest {
    /// Opens the network namespace.
    fn open(&self) -> Result<Opening, OpenError> {
        let tap = self.tap.clone()?;
        let (namespace, metadata) = match &self.place {
            Place::Host => (None, None),
            Place::Namespace(path) => {
                let opened = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
                let (metadata, file) = opened.map_err(|source| OpenError::Namespace { path: path.clone(), source })?;
                (Some(file), Some(metadata))
            }
        };
        let name = TapName::new(&tap, metadata.as_ref());
        Ok(Opening { tap, namespace, name })
    }
}

/// A created or restored interface.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) claims: InterfaceClaims,
    pub(super) tap: OwnedFd,
}

/// The records of an interface outside of this daemon. They are released when it is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InterfaceClaims {
    /// The helper's number for the interface. None if a previous daemon had created it: the helper forgets interfaces with their connection.
    pub(super) helper_number: Option<InterfaceNumber>,
    /// The name of its TAP in the store of the service manager.
    pub(super) stored_as: Option<TapName>,
}

/// The result of a request.
pub(super) type Outcome = Result<Opened, OpenError>;

/// A task of the thread.
enum Task {
    Open(OpenRequest, oneshot::Sender<Outcome>),
    Release(InterfaceClaims),
}

/// The way to the helper.
#[derive(Debug)]
struct Helper {
    socket: PathBuf,
    client: Option<HelperClient>,
    /// Whether the daemon still has the capabilities that a helper of its own needs.
    may_spawn: bool,
    /// Starts helpers of this daemon. None if it uses that of the system.
    starter: Option<HelperStarter>,
    restarts: Restarts,
    taps: TapStore,
}

/// The starts of helpers since one has replied to a request.
#[derive(Debug, Default)]
struct Restarts {
    count: u32,
    /// The earliest time of the next one.
    next: Option<Instant>,
}

impl Restarts {
    /// Returns whether a helper may be started now, and counts it.
    fn begin(&mut self, now: Instant) -> bool {
        if self.next.is_some_and(|next| now < next) {
            return false;
        }
        let delay = RESTART_DELAY_MIN.saturating_mul(1 << self.count.min(16)).min(RESTART_DELAY_MAX);
        self.count = self.count.saturating_add(1);
        self.next = Some(now + delay);
        true
    }

    /// A helper has replied to a request.
    fn replied(&mut self) {
        *self = Self::default();
    }
}

/// Creates interfaces.
#[derive(Debug)]
pub(super) struct Opener {
    helper: Arc<Mutex<Helper>>,
    tasks: Option<Sender<Task>>,
}

impl Opener {
    /// Returns the opener for the helper at a socket. It stores TAPs in `taps`, and takes those that the previous daemon has stored.
    pub(super) fn new(socket: &Path, taps: TapStore) -> Self {
        let helper = Helper {
            socket: socket.to_owned(),
            client: None,
            may_spawn: true,
            starter: None,
            restarts: Restarts::default(),
            taps,
        };
        Self { helper: Arc::new(Mutex::new(helper)), tasks: None }
    }

    /// Closes the TAPs of the previous daemon that none of these requests asks for.
    pub(super) fn close_unwanted(&self, requests: &[OpenRequest]) {
        let mut helper = lock(&self.helper);
        if helper.taps.has_restored() {
            let wanted: Vec<TapName> = requests.iter().filter_map(|request| Some(request.open().ok()?.name)).collect();
            helper.taps.retain(&wanted);
        }
    }

    /// Creates or restores an interface, and waits for it.
    pub(super) fn open_now(&self, request: &OpenRequest) -> Outcome {
        lock(&self.helper).open(request)
    }

    /// Notes that the daemon is about to give up its capabilities, so that it cannot start a helper any more.
    pub(super) fn privileges_dropped(&self) {
        lock(&self.helper).may_spawn = false;
    }

    /// Asks for an interface, and waits for the outcome.
    pub(super) fn ask(&mut self, request: OpenRequest) -> impl Future<Output = Outcome> + use<> {
        let (reply, outcome) = oneshot::channel();
        self.send(Task::Open(request, reply));
        async { outcome.await.unwrap_or(Err(OpenError::NoThread)) }
    }

    /// Lets the helper and the service manager forget an interface that is gone.
    pub(super) fn release(&mut self, claims: InterfaceClaims) {
        self.send(Task::Release(claims));
    }

    /// Passes a task to the thread, which is started for the first one.
    fn send(&mut self, task: Task) {
        let Self { helper, tasks } = self;
        let sender = tasks.get_or_insert_with(|| {
            let (sender, receiver) = channel::<Task>();
            let helper = Arc::clone(helper);
            let started = std::thread::Builder::new().name("overlay-opener".to_owned()).spawn(move || {
                receiver.into_iter().for_each(|task| match task {
                    Task::Open(request, reply) => {
                        let outcome = lock(&helper).open(&request);
                        let _ = reply.send(outcome); // An error means that the daemon ends.
                    }
                    Task::Release(claims) => lock(&helper).release(&claims),
                });
            });
            if let Err(error) = started {
                tracing::error!(%error, "cannot start the thread that creates interfaces");
            }
            sender
        });
        if sender.send(task).is_err() {
            *tasks = None; // There was no thread; the next task starts one.
        }
    }
}

fn lock(helper: &Mutex<Helper>) -> std::sync::MutexGuard<'_, Helper> {
    helper.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Helper {
    fn open(&mut self, request: &OpenRequest) -> Outcome {
        // Before the namespace, which may come later: then the daemon cannot start a helper any more.
        let has_helper = self.client().map(drop);
        let opening = request.open();
        if let Ok(Opening { tap, name, .. }) = &opening
            && let Some(restored) = self.taps.take(name, tap.name.as_str())
        {
            let claims = InterfaceClaims { helper_number: None, stored_as: Some(name.clone()) };
            return Ok(Opened { claims, tap: restored });
        }
        has_helper?;
        let Opening { tap, namespace, name } = opening?;
        let opened = self.client()?.open_tap(tap, namespace.as_ref().map(|file| file.as_fd()));
        match &opened {
            Ok(_) | Err(HelperError::Refused(_)) => self.restarts.replied(),
            Err(_) => self.client = None, // The next request connects again.
        }
        let opened = opened.map_err(|error| self.own_error(error))?;
        self.taps.store(&name, &opened.descriptor);
        let claims = InterfaceClaims { helper_number: Some(opened.info.interface), stored_as: Some(name) };
        Ok(Opened { claims, tap: opened.descriptor })
    }

    fn release(&mut self, claims: &InterfaceClaims) {
        if let Some(name) = &claims.stored_as {
            self.taps.remove(name);
        }
        if let Some(number) = claims.helper_number
            && let Some(client) = &mut self.client
            && client.release(number).is_err()
        {
            self.client = None;
        }
    }

    fn client(&mut self) -> Result<&mut HelperClient, OpenError> {
        if self.client.is_none() {
            self.client = Some(self.connect()?);
        }
        Ok(self.client.as_mut().expect("made above"))
    }

    /// Connects to the helper of the system. Where none listens, a daemon that root has started has helpers of its own.
    fn connect(&mut self) -> Result<HelperClient, OpenError> {
        let missing = match HelperClient::connect(&self.socket) {
            Err(error @ HelperError::NotRunning { .. }) => error,
            connected => return Ok(connected?),
        };
        if self.starter.is_none() && self.may_spawn && rustix::process::geteuid().is_root() {
            self.starter = own_program().map(|program| HelperStarter::spawn(&program, Permissions::ALL)).transpose()?;
        }
        let Some(starter) = &mut self.starter else { return Err(missing.into()) };
        if starter.has_ended() {
            return Err(OpenError::OwnStarterEnded);
        }
        if !self.restarts.begin(Instant::now()) {
            return Err(OpenError::OwnHelperEnded);
        }
        starter.connect().map_err(|error| self.own_error(error))
    }

    /// Says of a connection that has ended whether that was a helper of this daemon.
    fn own_error(&self, error: HelperError) -> OpenError {
        match error {
            HelperError::Closed if self.starter.is_some() => OpenError::OwnHelperEnded,
            error => error.into(),
        }
    }
}

/// The helper's program, if it lies beside that of the daemon.
fn own_program() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.with_file_name(PROGRAM);
    program.is_file().then_some(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn helpers_that_end_at_once_are_started_ever_less_often() {
        let start = Instant::now();
        let mut restarts = Restarts::default();
        let tries = (0..10 * 3600).map(|tenth| start + Duration::from_millis(100) * tenth);
        let begun = tries.filter(|now| restarts.begin(*now)).count();
        assert!((100..=130).contains(&begun), "{begun} in an hour of ten attempts a second");
        assert!(!restarts.begin(start));
        restarts.replied();
        assert!(restarts.begin(start));
    }
}
