//! The permissions of a helper to do more than create interfaces in its own namespace.

/// The permissions of a helper, which its command line gives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permissions {
    /// Interfaces may be created in other network namespaces.
    pub namespaces: bool,
    /// Interfaces may become ports of bridges.
    pub bridges: bool,
    /// The kernel may be made to record connections.
    pub connection_records: bool,
}

impl Permissions {
    /// All permissions.
    pub const ALL: Self = Self { namespaces: true, bridges: true, connection_records: true };

    /// Returns the options of the command line.
    pub(crate) fn options(self) -> impl Iterator<Item = &'static str> {
        let options = [
            (self.namespaces, "--namespaces"),
            (self.bridges, "--bridges"),
            (self.connection_records, "--connection-records"),
        ];
        options.into_iter().filter_map(|(is_given, option)| is_given.then_some(option))
    }
}
