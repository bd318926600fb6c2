//! An end of an event channel of Xen's that was handed to us, as `linux/include/uapi/xen/evtchn.h` has it. Ends are made elsewhere
//! (`isthmus-platform-xen`).

use rustix::fd::AsFd;
use rustix::io::Errno;
use rustix::ioctl::{Direction, Opcode, Setter, ioctl, opcode};

/// `IOCTL_EVTCHN_NOTIFY`: one word, the port.
pub const NOTIFY: Opcode = opcode::from_components(Direction::None, b'E', 4, 4);

/// Rings the other end of the channel. An error where the descriptor is no end with that port.
pub fn notify(end: impl AsFd, port: u32) -> Result<(), Errno> {
    // SAFETY: the request has the kernel read one `u32`, which `Setter` points to as long as the call lasts, and changes no memory of
    // this process. Of a descriptor that is something else it is a request that nobody knows: no other device has this number.
    unsafe { ioctl(end, Setter::<NOTIFY, u32>::new(port)) }
}

/// Takes the event that there is, if there is one, and lets the next one come: until its number was written back the kernel keeps the
/// port's events to itself.
pub fn take_event(end: impl AsFd) -> Result<bool, Errno> {
    let mut port = [0; 4];
    match rustix::io::read(&end, &mut port) {
        Err(Errno::AGAIN) => return Ok(false),
        taken => taken?,
    };
    rustix::io::write(&end, &port)?;
    Ok(true)
}
