//! The project's chores: `cargo xtask <command>`.
//!
//! ```text
//! tidy          reads the sources and refuses what the compiler lets pass    src/tidy.rs
//! link-abi      links a C library from a crate, with versioned symbols       src/link_abi.rs
//! mx-programs   the MX library and the C programs that use it                src/mx_programs.rs
//! ci            all checks in order, one line each, counts at the end        src/ci.rs
//! figures       writes docs/performance.md from the results of the bench     src/figures.rs
//! ```
//!
//! Nothing here is part of what users run.

#![forbid(unsafe_code)]

mod ci;
mod cmd;
mod figures;
mod link_abi;
mod mx_programs;
mod tidy;
mod tree;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's chores", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Reads the sources (compiles nothing) and refuses what breaks our rules
    Tidy(tidy::Args),
    /// Links a C library with versioned symbols from a crate under abi/
    LinkAbi(link_abi::Args),
    /// Builds the MX library and the C programs of examples/mx beside the other programs
    MxPrograms(mx_programs::Args),
    /// Runs every check, one line each; ends with `N passed, N failed, N skipped`
    Ci(ci::Args),
    /// Writes docs/performance.md from the results in docs/performance
    Figures(figures::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Tidy(args) => tidy::run(&args),
        Command::LinkAbi(args) => link_abi::run(&args),
        Command::MxPrograms(args) => mx_programs::run(&args),
        Command::Ci(args) => ci::run(&args),
        Command::Figures(args) => figures::run(&args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(1)
        }
    }
}
