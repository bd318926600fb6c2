//! What shows a guest its window: the device of QEMU, or what a guest of Xen grants.

use std::any::Any;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use isthmus_layout::RegionSize;
use isthmus_layout::border::WindowNumber;
use isthmus_layout::border::lots::Wanted;
use isthmus_layout::border::shared::{Lend, Share};
use isthmus_platform_kvm::GUEST;
use isthmus_shm::{Access, Mapping, Window};

/// Lasts as long as it is kept, whatever it is.
pub type Keep = Box<dyn Any>;

/// An end of an event channel, to be handed to a program.
pub struct LineEnd {
    /// It, able to do nothing else.
    pub end: OwnedFd,
    /// The channel's port in this guest.
    pub port: u32,
    /// To be dropped once the program cannot have it open any more.
    pub keep: Keep,
}

/// What shows a guest its window.
#[expect(async_fn_in_trait, reason = "all is done on one thread")]
pub trait Device: Sized {
    /// Our mapping of a part of the window.
    fn window(&self, at: u64, size: RegionSize) -> io::Result<Window> {
        let piece = self.piece(at, size.0)?;
        Mapping::new(piece, size, Access::ReadWrite).map(Window::new).map_err(io::Error::other)
    }
    /// A descriptor that maps these bytes of the window, in whole pages, and nothing else, for reading and writing.
    fn piece(&self, offset: u64, bytes: u64) -> io::Result<OwnedFd>;
    /// The same for a program's own memory: the bytes stay with whoever maps them.
    fn home(&self, _offset: u64, _bytes: u64) -> io::Result<OwnedFd> {
        Err(io::Error::other("nobody keeps what would be there"))
    }
    /// The same, for reading only.
    fn view(&self, _offset: u64, _bytes: u64) -> io::Result<OwnedFd> {
        Err(io::Error::other("its rights cannot be less"))
    }
    /// What is at `offset` is no piece any more: takes it away from whoever maps it, if it was ever handed to anybody.
    fn withdraw(&self, offset: u64, piece: Option<&OwnedFd>) -> io::Result<()>;
    /// A descriptor that rings a vector of a peer when eight bytes are written to it.
    fn ringer(&self, peer: u16, vector: u16) -> io::Result<OwnedFd>;
    /// Our end of the line that a lot came with.
    fn line(&self, _place: u64) -> io::Result<LineEnd> {
        Err(io::Error::other("the window is not made of lots"))
    }
    /// An event descriptor that counts the rings of a vector of ours from now on, and no other does.
    fn listen(&self, vector: u16) -> io::Result<OwnedFd>;
    /// A descriptor that hangs up when the device is gone.
    fn hang_up(&self) -> io::Result<OwnedFd>;
    /// Other devices of this guest, each of which shows a window that it has in common with another one, but for those that are known.
    fn beside(&self, known: &BTreeSet<WindowNumber>) -> Vec<(WindowNumber, Self)>;
    /// True when it was unplugged.
    fn is_gone(&self) -> bool;

    /// Makes a part of a window that is made piece by piece; what the host needs to map it.
    fn make(&self, _wanted: Wanted) -> io::Result<Vec<u8>> {
        Err(io::Error::other("the window is whole"))
    }
    /// Has a window in common with another guest: makes it, or maps what that one offers. What the host is told of that, if anything.
    fn share(&self, _share: &Share<'_>) -> io::Result<Option<Vec<u8>>> {
        Err(io::Error::other("windows in common are plugged in"))
    }
    /// It is over.
    fn part(&self, _window: WindowNumber) {}
    /// Takes a lot of the other guest's, if it can be mapped.
    fn borrow(&self, _lend: &Lend<'_>) -> io::Result<()> {
        Err(io::Error::other("windows in common are plugged in"))
    }
    /// Waits until a common window may have come or gone.
    async fn changed(&self) {
        std::future::pending().await
    }
    /// Whether a descriptor of a piece can be mapped by several programs.
    fn shows_to_many(&self) -> bool {
        true
    }
    /// Whether a descriptor of a piece shows all of the window, in which the piece begins where it lies, and nothing can be taken away from
    /// whoever has one: then only root is served, who could open the window as well.
    fn shows_all(&self) -> bool {
        false
    }
    /// Whether somebody may still write what is no piece any more, of so many bytes.
    fn is_held(&self, _offset: u64, _bytes: u64) -> bool {
        false
    }
    /// Whether the host can be called again in this window once a conversation has ended.
    fn lasts(&self) -> bool {
        true
    }
}

impl Device for isthmus_platform_kvm::Device {
    fn piece(&self, offset: u64, bytes: u64) -> io::Result<OwnedFd> {
        Self::piece(self, offset, bytes, Access::ReadWrite).map_err(io::Error::other)
    }

    fn home(&self, offset: u64, bytes: u64) -> io::Result<OwnedFd> {
        Self::home(self, offset, bytes).map_err(io::Error::other)
    }

    fn view(&self, offset: u64, bytes: u64) -> io::Result<OwnedFd> {
        Self::piece(self, offset, bytes, Access::Read).map_err(io::Error::other)
    }

    fn withdraw(&self, _offset: u64, piece: Option<&OwnedFd>) -> io::Result<()> {
        piece.map_or(Ok(()), |piece| Self::withdraw(self, piece).map_err(io::Error::other))
    }

    fn ringer(&self, peer: u16, vector: u16) -> io::Result<OwnedFd> {
        Self::ringer(self, peer, vector).map_err(io::Error::other)
    }

    fn listen(&self, vector: u16) -> io::Result<OwnedFd> {
        self.listener(vector).map_err(io::Error::other)
    }

    fn hang_up(&self) -> io::Result<OwnedFd> {
        self.as_fd().try_clone_to_owned()
    }

    fn beside(&self, known: &BTreeSet<WindowNumber>) -> Vec<(WindowNumber, Self)> {
        let nodes = Self::nodes().into_iter().filter(|node| node != self.path());
        let devices = nodes.filter_map(|node| Self::open(&node).ok());
        let numbered = devices.filter_map(|device| {
            // The guest's own has the number of a guest; what has none was not made for this.
            let number = device.info().ok()?.peer?.checked_sub(GUEST).map(WindowNumber)?;
            (number != WindowNumber::OWN && !known.contains(&number)).then_some((number, device))
        });
        numbered.collect()
    }

    fn is_gone(&self) -> bool {
        Self::is_gone(self)
    }
}
