//! Creates interfaces by the privileged helper, from a thread of its own once the daemon serves: a helper that does not reply never delays
//! the control plane.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use isthmus_config::overlay::Place;
use isthmus_helper::{
    HelperClient, HelperError, InterfaceNumber, InvalidValue, Permissions, RefusalReason, TapRequest,
};
use rustix::fd::{AsFd as _, OwnedFd};

use super::interface::InterfaceKey;
use super::tap_store::{TapName, TapStore};

/// The name of the helper's program, which lies beside that of the daemon.
const PROGRAM: &str = "isthmus-helper";

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
    /// The helper that this daemon had started has ended.
    #[error("isthmus-helper, which this daemon had started, has ended: restart the daemon")]
    OwnHelperEnded,
}

impl OpenError {
    /// Whether another interface has the name.
    pub(super) fn is_name_taken(&self) -> bool {
        matches!(self, Self::Helper(HelperError::Refused(refusal)) if refusal.reason == RefusalReason::NameTaken)
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
    pub(super) key: InterfaceKey,
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
type Outcome = Result<Opened, OpenError>;

/// The result of a request that [`Opener::ask`] has passed on.
type Reply = (InterfaceKey, Outcome);

/// A task of the thread.
enum Task {
    Open(OpenRequest),
    Release(InterfaceClaims),
}

/// The way to the helper.
#[derive(Debug)]
struct Helper {
    socket: PathBuf,
    client: Option<HelperClient>,
    /// Whether the daemon still has the capabilities that a helper of its own needs.
    may_spawn: bool,
    /// Whether the helper is a child of this daemon.
    is_own: bool,
    taps: TapStore,
}

/// Creates interfaces.
#[derive(Debug)]
pub(super) struct Opener {
    helper: Arc<Mutex<Helper>>,
    tasks: Option<Sender<Task>>,
    sender: Sender<Reply>,
    replies: Receiver<Reply>,
}

impl Opener {
    /// Returns the opener for the helper at a socket. It stores TAPs in `taps`, and takes those that the previous daemon has stored.
    pub(super) fn new(socket: &Path, taps: TapStore) -> Self {
        let helper = Helper { socket: socket.to_owned(), client: None, may_spawn: true, is_own: false, taps };
        let (sender, replies) = channel();
        Self { helper: Arc::new(Mutex::new(helper)), tasks: None, sender, replies }
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

    /// Asks for an interface. [`Opener::reply`] returns the outcome later.
    pub(super) fn ask(&mut self, request: OpenRequest) {
        self.send(Task::Open(request));
    }

    /// Lets the helper and the service manager forget an interface that is gone.
    pub(super) fn release(&mut self, claims: InterfaceClaims) {
        self.send(Task::Release(claims));
    }

    /// Returns the next outcome, if there is one.
    pub(super) fn reply(&self) -> Option<Reply> {
        self.replies.try_recv().ok()
    }

    /// Passes a task to the thread, which is started for the first one.
    fn send(&mut self, task: Task) {
        let Self { helper, tasks, sender: replies, .. } = self;
        let sender = tasks.get_or_insert_with(|| {
            let (sender, receiver) = channel::<Task>();
            let (helper, replies) = (Arc::clone(helper), replies.clone());
            let started = std::thread::Builder::new().name("overlay-opener".to_owned()).spawn(move || {
                receiver.into_iter().for_each(|task| match task {
                    Task::Open(request) => {
                        let outcome = lock(&helper).open(&request);
                        let _ = replies.send((request.key, outcome)); // An error means that the daemon ends.
                    }
                    Task::Release(claims) => lock(&helper).release(&claims),
                });
            });
            if let Err(error) = started {
                tracing::error!(%error, "cannot start the thread that creates interfaces");
            }
            sender
        });
        let _ = sender.send(task); // Without a thread, the interfaces stay missing; the error was logged.
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
        if let Err(HelperError::Closed | HelperError::Timeout | HelperError::Socket(_)) = &opened {
            self.client = None; // The next request connects again.
        }
        let opened = opened?;
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
            let client = match HelperClient::connect(&self.socket) {
                Err(HelperError::NotRunning { .. }) if self.is_own => return Err(OpenError::OwnHelperEnded),
                Err(HelperError::NotRunning { path }) if self.may_spawn && rustix::process::geteuid().is_root() => {
                    self.is_own = true;
                    match own_program() {
                        Some(program) => HelperClient::spawn(&program, Permissions::ALL)?,
                        None => return Err(HelperError::NotRunning { path }.into()),
                    }
                }
                connected => connected?,
            };
            self.client = Some(client);
        }
        Ok(self.client.as_mut().expect("made above"))
    }
}

/// The helper's program, if it lies beside that of the daemon.
fn own_program() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?.with_file_name(PROGRAM);
    program.is_file().then_some(program)
}
