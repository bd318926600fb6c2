//! `cargo xtask mx-programs`: the MX library and the C programs of `examples/mx`, beside the other programs.
//!
//! ```text
//! abi/myriexpress ──link-abi──► target/debug/libmyriexpress.so ◄── loads ── target/debug/mx_pingpong, …
//! examples/mx/*.c ──cc────────────────────────────────────────────────────────────┘
//! ```
//!
//! The programs look for the library in their own folder and in `../lib`, so they may be copied anywhere together with it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::{cmd, link_abi};

const PACKAGE: &str = "isthmus-myriexpress";
const ABI: &str = "abi/myriexpress";
const SOURCES: &str = "examples/mx";
const LIBRARY: &str = "libmyriexpress.so";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Builds with optimisations, in target/release
    #[arg(long)]
    release: bool,
}

pub(crate) fn run(args: &Args) -> Result<bool> {
    let root = cmd::root();
    let folder = Path::new("target").join(if args.release { "release" } else { "debug" });
    let map = Path::new(ABI).join("libmyriexpress.map");
    link_abi::link(&root, &link_abi::Args::new(PACKAGE, map, folder.join(LIBRARY), args.release))?;
    let sources = sources(&root.join(SOURCES))?;
    for source in &sources {
        let name = source.file_stem().context("a source has a name")?;
        compile(&root, source, &root.join(&folder).join(name))?;
    }
    println!("{}: {LIBRARY} and {} programs", folder.display(), sources.len());
    Ok(true)
}

/// Each is a program of its own.
fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    let mut sources: Vec<PathBuf> =
        files.into_iter().filter(|file| file.extension().is_some_and(|extension| extension == "c")).collect();
    sources.sort();
    Ok(sources)
}

fn compile(root: &Path, source: &Path, program: &Path) -> Result<()> {
    let folder = program.parent().context("a program lies in a folder")?;
    let mut cc = cmd::command("cc");
    cc.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-o"]).arg(program).arg(source);
    cc.arg("-I").arg(root.join(ABI).join("include")).arg("-L").arg(folder);
    cc.args(["-Wl,-rpath,$ORIGIN:$ORIGIN/../lib", "-lmyriexpress", "-pthread"]);
    let output = cc.output().context("cannot start cc")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cc does not compile {}:\n{}", source.display(), said.trim_end());
    Ok(())
}
