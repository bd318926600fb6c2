//! Creates interfaces by the privileged helper, from a thread of its own once the daemon serves: a helper that does not reply never delays
//! the control plane.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use isthmus_config::overlay::Place;
use isthmus_helper::{HelperClient, HelperError, InterfaceNumber, InvalidValue, TapRequest};
use rustix::fd::{AsFd as _, OwnedFd};

use super::interface::InterfaceKey;

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

/// A created interface.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) helper_number: InterfaceNumber,
    pub(super) tap: OwnedFd,
}

/// The result of a request.
type Outcome = Result<Opened, OpenError>;

/// The result of a request that [`Opener::ask`] has passed on.
type Reply = (InterfaceKey, Outcome);

/// A task of the thread.
enum Task {
    Open(OpenRequest),
    Release(InterfaceNumber),
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
    /// Returns the opener for the helper at a socket.
    pub(super) fn new(socket: &Path) -> Self {
        let helper = Helper { socket: socket.to_owned(), client: None, may_spawn: true, is_own: false };
        let (sender, replies) = channel();
        Self { helper: Arc::new(Mutex::new(helper)), tasks: None, sender, replies }
    }

    /// Creates an interface, and waits for it.
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

    /// Lets the helper forget an interface that is gone.
    pub(super) fn release(&mut self, number: InterfaceNumber) {
        self.send(Task::Release(number));
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
                    Task::Release(number) => lock(&helper).release(number),
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
        let tap = request.tap.clone()?;
        // Before the namespace, which may come later: then the daemon cannot start a helper any more.
        self.client()?;
        let namespace = match &request.place {
            Place::Host => None,
            Place::Namespace(path) => {
                let file = File::open(path);
                Some(file.map_err(|source| OpenError::Namespace { path: path.clone(), source })?)
            }
        };
        let opened = self.client()?.open_tap(tap, namespace.as_ref().map(|file| file.as_fd()));
        if let Err(HelperError::Closed | HelperError::Timeout | HelperError::Socket(_)) = &opened {
            self.client = None; // The next request connects again.
        }
        let opened = opened?;
        Ok(Opened { helper_number: opened.info.interface, tap: opened.descriptor })
    }

    fn release(&mut self, number: InterfaceNumber) {
        if let Some(client) = &mut self.client
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
                        Some(program) => HelperClient::spawn(&program, true)?,
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
