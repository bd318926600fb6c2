//! The reasons for which the helper does not do what a request asks.

use std::fmt;

use rustix::io::Errno;

use crate::protocol::Malformed;
use crate::values::InvalidValue;

/// The reason why a request was refused, with the error number of the kernel if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub reason: RefusalReason,
    /// The error number of the kernel.
    pub errno: Option<Errno>,
}

/// Defines the reasons once: number on the wire, variant, name, text.
macro_rules! reasons {
    ($($number:literal $variant:ident $name:literal $text:literal)*) => {
        /// The reasons, each with a name and a text that says what to do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum RefusalReason {
            $(#[doc = $text] $variant = $number,)*
        }

        impl RefusalReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Returns the name, as in logs and metrics.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

reasons! {
    1 RequestMalformed "request-malformed" "the helper does not know the request: isthmusd and isthmus-helper are of different versions, restart both"
    2 VersionUnsupported "version-unsupported" "isthmusd and isthmus-helper are of different versions: restart both after an upgrade"
    3 NameInvalid "name-invalid" "an interface name has 1 to 15 of the characters A-Z a-z 0-9 . _ -, and is not `.` or `..`"
    4 MacInvalid "mac-invalid" "the MAC address of an interface is neither zero nor a group address"
    5 MtuInvalid "mtu-invalid" "an MTU has 68 to 65535 bytes"
    6 AddressInvalid "address-invalid" "an address is a unicast IP address with a prefix that fits, and a request has at most 8 of them"
    7 NamespacesOff "namespaces-off" "isthmus-helper may not enter other network namespaces: start it with --namespaces and CAP_SYS_ADMIN (isthmus-helper.service says how)"
    8 NotANamespace "not-a-namespace" "the descriptor is not that of a network namespace, such as /proc/PID/ns/net"
    9 NamespaceDenied "namespace-denied" "the kernel does not let isthmus-helper enter that network namespace: it needs CAP_SYS_ADMIN over it"
    10 NameTaken "name-taken" "an interface of that name exists in that network namespace: choose another name or remove it (`ip link delete`)"
    11 NoTunDevice "no-tun-device" "/dev/net/tun cannot be opened: load the driver (`modprobe tun`), or give isthmus-helper access to the device"
    12 PermissionDenied "permission-denied" "the kernel denies it: isthmus-helper needs CAP_NET_ADMIN over that network namespace"
    13 TooManyInterfaces "too-many-interfaces" "256 interfaces that isthmus-helper has created exist, which is the maximum for a host: remove some first"
    14 NoSuchInterface "no-such-interface" "this connection has no interface of that number"
    15 InterfaceGone "interface-gone" "the interface does not exist any more, or has been moved to another network namespace"
    16 MtuRefused "mtu-refused" "the kernel refuses that MTU for this interface: a TAP device has at most 65521 bytes"
    17 AddressTaken "address-taken" "the interface has that address already"
    18 NoSuchAddress "no-such-address" "the interface does not have that address"
    19 AddressRefused "address-refused" "the kernel refuses that address on this interface: for IPv6 it must be enabled there, with an MTU of at least 1280"
    20 KernelRefused "kernel-refused" "the kernel refuses the operation"
    21 InterfaceElsewhere "interface-elsewhere" "the interface is in another network namespace, where it cannot be changed: open it again with what is to change"
    22 BridgesOff "bridges-off" "isthmus-helper may not put interfaces into bridges: start it with --bridges (isthmus-helper.service says how)"
    23 NoBridge "no-bridge" "there is no bridge of that name where the interface is: create it (`ip link add NAME type bridge`)"
    24 ConnectionRecordsOff "connection-records-off" "isthmus-helper may not make the kernel record connections: start it with --connection-records and CAP_BPF (isthmus-helper.service says how)"
    25 NoCgroups "no-cgroups" "no cgroup2 file system is mounted at /sys/fs/cgroup or /sys/fs/cgroup/unified: mount one (`mount -t cgroup2 none /sys/fs/cgroup/unified`)"
}

impl RefusalReason {
    pub(crate) fn number(self) -> u16 {
        self as u16
    }

    pub(crate) fn from_number(number: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|reason| reason.number() == number)
    }

    /// Returns the refusal that the kernel caused.
    pub(crate) fn by(self, errno: Errno) -> Refusal {
        Refusal { reason: self, errno: Some(errno) }
    }
}

impl Refusal {
    /// Returns the refusal of an error of the kernel: denied permissions have a reason of their own, all other errors are `otherwise`.
    pub(crate) fn of(errno: Errno, otherwise: RefusalReason) -> Self {
        match errno {
            Errno::PERM | Errno::ACCESS => RefusalReason::PermissionDenied.by(errno),
            Errno::NODEV => RefusalReason::InterfaceGone.by(errno),
            errno => otherwise.by(errno),
        }
    }
}

impl From<RefusalReason> for Refusal {
    fn from(reason: RefusalReason) -> Self {
        Self { reason, errno: None }
    }
}

impl From<Malformed> for Refusal {
    fn from(malformed: Malformed) -> Self {
        let reason = match malformed {
            Malformed::Value(InvalidValue::Name) => RefusalReason::NameInvalid,
            Malformed::Value(InvalidValue::Mac) => RefusalReason::MacInvalid,
            Malformed::Value(InvalidValue::Mtu) => RefusalReason::MtuInvalid,
            Malformed::Value(InvalidValue::Address | InvalidValue::TooManyAddresses) => RefusalReason::AddressInvalid,
            Malformed::Length { .. }
            | Malformed::Kind(_)
            | Malformed::Flags(_)
            | Malformed::Reserved
            | Malformed::Descriptors { .. } => RefusalReason::RequestMalformed,
        };
        reason.into()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason.text())?;
        self.errno.map_or(Ok(()), |errno| write!(f, " ({errno})"))
    }
}

impl std::error::Error for Refusal {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_numbers_and_names_of_their_own() {
        for (at, reason) in RefusalReason::ALL.iter().enumerate() {
            assert_eq!(usize::from(reason.number()), at + 1);
            assert_eq!(RefusalReason::from_number(reason.number()), Some(*reason));
            assert!(RefusalReason::ALL[..at].iter().all(|other| other.name() != reason.name()));
        }
        assert_eq!(RefusalReason::from_number(0), None);
    }

    #[test]
    fn text_has_the_error_of_the_kernel() {
        let text = RefusalReason::NameTaken.by(Errno::EXIST).to_string();
        assert!(text.contains("choose another name") && text.contains("File exists"), "{text}");
    }
}
