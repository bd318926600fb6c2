//! Descriptors that the device has opened for resources of the host's messages, until the host revokes them or the device is gone.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use isthmus_layout::proxy::{ResourceRef, RevokedExtent, WindowId};

use super::device::{EventChannelFd, GuestDevice, KeepAlive};

/// A descriptor of the device, with the generation of its extent or the number of the connection that uses it.
type CachedFd = (u32, Arc<OwnedFd>);

/// A resource that is opened for a program, in place of the reference in the host's message.
pub(super) struct OpenedResource {
    pub(super) file: Arc<OwnedFd>,
    /// The port of an event channel, and an object to drop once the program cannot have the channel open any more.
    pub(super) event_channel: Option<(u32, KeepAlive)>,
}

/// The access rights of an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ExtentRights {
    ReadWrite,
    Private,
    ReadOnly,
}

impl ExtentRights {
    const ALL: [Self; 3] = [Self::ReadWrite, Self::Private, Self::ReadOnly];
}

/// The descriptors that the device has opened for references of the host.
pub(super) struct ResourceCache<D> {
    pub(super) device: D,
    /// Devices that show pair windows.
    pub(super) pair_windows: RefCell<BTreeMap<WindowId, D>>,
    /// Descriptors with their generation, by window, offset and rights.
    extents: RefCell<BTreeMap<(WindowId, u64, ExtentRights), CachedFd>>,
    /// Event descriptors by vector, each with the connection that listens.
    listeners: RefCell<BTreeMap<u16, CachedFd>>,
}

impl<D: GuestDevice> ResourceCache<D> {
    pub(super) fn new(device: D) -> Self {
        let (pair_windows, extents, listeners) = Default::default();
        Self { device, pair_windows, extents, listeners }
    }

    /// Revokes and forgets everything that was opened before.
    pub(super) fn reset(&self) {
        for ((window, offset, _), (_, extent)) in std::mem::take(&mut *self.extents.borrow_mut()) {
            self.revoke_mapping(window, offset, Some(&extent));
        }
        self.listeners.borrow_mut().clear();
    }

    /// Updates the list of pair windows from the device.
    pub(super) fn refresh_windows(&self) {
        let mut pair_windows = self.pair_windows.borrow_mut();
        pair_windows.retain(|window, device| {
            let there = !device.is_gone();
            if !there {
                self.extents.borrow_mut().retain(|(of, ..), _| of != window);
            }
            there
        });
        let known = pair_windows.keys().copied().collect();
        pair_windows.extend(self.device.pair_devices(&known));
    }

    /// Calls a function with the device that shows a window.
    fn with_device<T>(&self, window: WindowId, ask: impl FnOnce(&D) -> io::Result<T>) -> io::Result<T> {
        if window == WindowId::OWN {
            return ask(&self.device);
        }
        let gone = || io::Error::other(format!("window {} is not there", window.0));
        ask(self.pair_windows.borrow().get(&window).ok_or_else(gone)?)
    }

    /// Opens the resource that a reference stands for.
    pub(super) fn open(&self, connection: u32, reference: ResourceRef) -> io::Result<OpenedResource> {
        let file = match reference {
            ResourceRef::Extent { window, offset, bytes, generation } => {
                self.extent((window, offset, ExtentRights::ReadWrite), bytes, generation)?
            }
            ResourceRef::PrivateExtent { window, offset, bytes, generation } => {
                self.extent((window, offset, ExtentRights::Private), bytes, generation)?
            }
            ResourceRef::ReadOnlyExtent { window, offset, bytes, generation } => {
                self.extent((window, offset, ExtentRights::ReadOnly), bytes, generation)?
            }
            ResourceRef::Doorbell { peer, vector } => self.device.doorbell_sender(peer, vector).map(Arc::new)?,
            ResourceRef::VectorEvents { vector } => self.listener(connection, vector)?,
            ResourceRef::EventChannel { window, offset } => {
                let EventChannelFd { end, port, keep_alive } =
                    self.with_device(window, |device| device.event_channel(offset))?;
                return Ok(OpenedResource { file: Arc::new(end), event_channel: Some((port, keep_alive)) });
            }
        };
        Ok(OpenedResource { file, event_channel: None })
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

    fn extent(&self, at: (WindowId, u64, ExtentRights), bytes: u64, generation: u32) -> io::Result<Arc<OwnedFd>> {
        if let Some((known, extent)) = self.extents.borrow().get(&at)
            && *known == generation
        {
            return Ok(Arc::clone(extent));
        }
        let (window, offset, rights) = at;
        let opened = |device: &D| {
            let extent = match rights {
                ExtentRights::ReadWrite => device.extent(offset, bytes)?,
                ExtentRights::Private => device.private_extent(offset, bytes)?,
                ExtentRights::ReadOnly => device.read_only_extent(offset, bytes)?,
            };
            Ok((Arc::new(extent), device.is_shareable()))
        };
        let (extent, is_shareable) = self.with_device(window, opened)?;
        if is_shareable {
            self.extents.borrow_mut().insert(at, (generation, Arc::clone(&extent)));
        }
        Ok(extent)
    }

    pub(super) fn revoke(&self, revoked: RevokedExtent) {
        let RevokedExtent { window, offset, generation } = revoked;
        let mut extents = self.extents.borrow_mut();
        let keys = ExtentRights::ALL.map(|rights| (window, offset, rights));
        let known = keys.map(|at| {
            extents.get(&at).is_some_and(|(known, _)| *known == generation).then(|| extents.remove(&at)).flatten()
        });
        if known.iter().all(Option::is_none) {
            return self.revoke_mapping(window, offset, None);
        }
        for (_, extent) in known.into_iter().flatten() {
            self.revoke_mapping(window, offset, Some(&extent));
        }
    }

    fn revoke_mapping(&self, window: WindowId, offset: u64, extent: Option<&OwnedFd>) {
        if let Err(error) = self.with_device(window, |device| device.revoke(offset, extent)) {
            tracing::warn!("an extent of the window could not be revoked: {error}");
        }
    }
}
