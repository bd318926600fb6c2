//! Operations on an end of a Xen event channel that was handed to us, as in `linux/include/uapi/xen/evtchn.h`. Ends are created elsewhere
//! (`isthmus-platform-xen`).

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::ioctl::{Direction, Opcode, Setter, ioctl, opcode};

/// `IOCTL_EVTCHN_NOTIFY`: one word, the port.
pub const NOTIFY: Opcode = opcode::from_components(Direction::None, b'E', 4, 4);

/// Rings the other end of the channel. Returns an error if the descriptor is not an end with that port.
pub fn notify(end: impl AsFd, port: u32) -> Result<(), Errno> {
    // SAFETY: the request has the kernel read one `u32`, which `Setter` points to as long as the call lasts, and changes no memory of
    // this process. On any other descriptor the request is unknown: no other device has this number.
    unsafe { ioctl(end, Setter::<NOTIFY, u32>::new(port)) }
}

/// Takes the pending event, if there is one, and enables the next one: the kernel holds back the port's events until its number was
/// written back.
pub fn take_event(end: impl AsFd) -> Result<bool, Errno> {
    let mut port = [0; 4];
    match rustix::io::read(&end, &mut port) {
        Err(Errno::AGAIN) => return Ok(false),
        taken => taken?,
    };
    rustix::io::write(&end, &port)?;
    Ok(true)
}
