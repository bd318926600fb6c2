//! Descriptors: what the device has made of what the host has handed, until the host or the device takes it away.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use isthmus_layout::border::{Handed, WindowNumber, Withdrawn};
use isthmus_layout::limits::PAGE_BYTES;

use super::device::{Device, Keep, LineEnd};

/// A descriptor of the device, and whose or which use of its bytes it is.
type Made = (u32, Arc<OwnedFd>);

/// What a program gets for something that the host has handed it.
pub(super) struct Thing {
    pub(super) file: Arc<OwnedFd>,
    /// Of a piece whose file is all of the window: where it begins.
    pub(super) at: Option<u64>,
    /// Of a line: the port, and what is to be dropped once the program cannot have it open any more.
    pub(super) line: Option<(u32, Keep)>,
}

/// What may be done with a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rights {
    Piece,
    Home,
    View,
}

impl Rights {
    const ALL: [Self; 3] = [Self::Piece, Self::Home, Self::View];
}

/// What the device has made of what the host has handed.
pub(super) struct Things<D> {
    pub(super) device: D,
    /// Devices that show windows which the guest has in common with others.
    pub(super) commons: RefCell<BTreeMap<WindowNumber, D>>,
    /// By their window, first byte and rights: which use of it they are.
    pieces: RefCell<BTreeMap<(WindowNumber, u64, Rights), Made>>,
    /// Where pieces show all of the window: the bytes of what was to be one, by its first, until it is away.
    bytes: RefCell<BTreeMap<u64, u64>>,
    /// By vector: which connection hears it.
    listeners: RefCell<BTreeMap<u16, Made>>,
}

impl<D: Device> Things<D> {
    pub(super) fn of(device: D) -> Self {
        let (commons, pieces, bytes, listeners) = Default::default();
        Self { device, commons, pieces, bytes, listeners }
    }

    /// All that was handed before is nobody's.
    pub(super) fn start_anew(&self) {
        for ((window, offset, _), (_, piece)) in std::mem::take(&mut *self.pieces.borrow_mut()) {
            self.take_away(window, offset, Some(&piece));
        }
        self.listeners.borrow_mut().clear();
        self.bytes.borrow_mut().clear();
    }

    /// Sees which windows have come and gone.
    pub(super) fn look(&self) {
        let mut commons = self.commons.borrow_mut();
        commons.retain(|window, device| {
            let there = !device.is_gone();
            if !there {
                self.pieces.borrow_mut().retain(|(of, ..), _| of != window);
            }
            there
        });
        let known = commons.keys().copied().collect();
        commons.extend(self.device.beside(&known));
    }

    /// Asks the device that shows a window.
    fn of_window<T>(&self, window: WindowNumber, ask: impl FnOnce(&D) -> io::Result<T>) -> io::Result<T> {
        if window == WindowNumber::OWN {
            return ask(&self.device);
        }
        let gone = || io::Error::other(format!("window {} is not there", window.0));
        ask(self.commons.borrow().get(&window).ok_or_else(gone)?)
    }

    /// What a program gets.
    pub(super) fn make(&self, connection: u32, handed: Handed) -> io::Result<Thing> {
        let file = match handed {
            Handed::Piece { window, offset, bytes, age } => {
                let file = self.piece((window, offset, Rights::Piece), bytes, age)?;
                return Ok(Thing { file, at: self.device.shows_all().then_some(offset), line: None });
            }
            Handed::Home { window, offset, bytes, age } => self.piece((window, offset, Rights::Home), bytes, age)?,
            Handed::View { window, offset, bytes, age } => self.piece((window, offset, Rights::View), bytes, age)?,
            Handed::Ringer { peer, vector } => self.device.ringer(peer, vector).map(Arc::new)?,
            Handed::Listener { vector } => self.listener(connection, vector)?,
            Handed::Line { window, place } => {
                let LineEnd { end, port, keep } = self.of_window(window, |device| device.line(place))?;
                return Ok(Thing { file: Arc::new(end), at: None, line: Some((port, keep)) });
            }
        };
        Ok(Thing { file, at: None, line: None })
    }

    fn listener(&self, connection: u32, vector: u16) -> io::Result<Arc<OwnedFd>> {
        if let Some((known, listener)) = self.listeners.borrow().get(&vector)
            && *known == connection
        {
            return Ok(Arc::clone(listener));
        }
        let listener = Arc::new(self.device.listen(vector)?);
        self.listeners.borrow_mut().insert(vector, (connection, Arc::clone(&listener)));
        Ok(listener)
    }

    fn piece(&self, at: (WindowNumber, u64, Rights), bytes: u64, age: u32) -> io::Result<Arc<OwnedFd>> {
        if let Some((known, piece)) = self.pieces.borrow().get(&at)
            && *known == age
        {
            return Ok(Arc::clone(piece));
        }
        let (window, offset, rights) = at;
        if self.device.shows_all() {
            self.bytes.borrow_mut().insert(offset, bytes);
        }
        let made = |device: &D| {
            let piece = match rights {
                Rights::Piece => device.piece(offset, bytes)?,
                Rights::Home => device.home(offset, bytes)?,
                Rights::View => device.view(offset, bytes)?,
            };
            Ok((Arc::new(piece), device.shows_to_many()))
        };
        let (piece, shows_to_many) = self.of_window(window, made)?;
        if shows_to_many {
            self.pieces.borrow_mut().insert(at, (age, Arc::clone(&piece)));
        }
        Ok(piece)
    }

    pub(super) fn withdraw(&self, withdrawn: Withdrawn) {
        let Withdrawn { window, offset, age } = withdrawn;
        let mut pieces = self.pieces.borrow_mut();
        let places = Rights::ALL.map(|rights| (window, offset, rights));
        let known = places
            .map(|at| pieces.get(&at).is_some_and(|(known, _)| *known == age).then(|| pieces.remove(&at)).flatten());
        if known.iter().all(Option::is_none) {
            return self.take_away(window, offset, None);
        }
        for (_, piece) in known.into_iter().flatten() {
            self.take_away(window, offset, Some(&piece));
        }
    }

    /// Whether somebody may still write what was withdrawn.
    pub(super) fn is_held(&self, withdrawn: Withdrawn) -> bool {
        let (offset, mut known) = (withdrawn.offset, self.bytes.borrow_mut());
        // What a daemon before this one has handed on begins there, however long it is.
        let bytes = known.get(&offset).copied().unwrap_or(PAGE_BYTES.into());
        let is_held = self.device.shows_all() && self.device.is_held(offset, bytes);
        if !is_held {
            known.remove(&offset);
        }
        is_held
    }

    fn take_away(&self, window: WindowNumber, offset: u64, piece: Option<&OwnedFd>) {
        if let Err(error) = self.of_window(window, |device| device.withdraw(offset, piece)) {
            tracing::warn!("a piece of the window could not be withdrawn: {error}");
        }
    }
}
