//! `isthmus overlay run`: commands of VNET on a network of a running daemon.
//!
//! ```text
//! file ─▶ text ─▶ daemon ─▶ the output of LIST, and the network as the configuration would have it
//! ```

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use isthmus_client::QueryClient;
use isthmus_config::overlay::ChangeRequest;
use isthmus_report::overlay::OverlayRan;

use super::change::{HOLDS, networks_only};
use crate::daemon::{options, show};
use crate::output::{Outcome, Output};

#[derive(Args)]
pub(crate) struct RunArgs {
    /// The network.
    network: String,
    /// The file with the commands, or `-` for the standard input.
    file: PathBuf,
}

/// Runs the commands of a file, and prints what they list.
pub(super) fn run(output: Output, socket: Option<PathBuf>, RunArgs { network, file }: RunArgs) -> Result<Outcome> {
    let text = read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let request = serde_json::to_string(&ChangeRequest::Run { network, text }).context("cannot write the request")?;
    let reply = QueryClient::connect(&options(socket)?)?.change_overlay(&request)?;
    show(output, "overlay_ran", &networks_only(&reply)?, ran_text)
}

fn read(file: &Path) -> std::io::Result<String> {
    if file != Path::new("-") {
        return std::fs::read_to_string(file);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// The output of `LIST` alone, so that it is what VNET's files return. A text that lists nothing gets a line about its changes.
fn ran_text(ran: &OverlayRan) -> String {
    match ran.changes {
        _ if !ran.output.is_empty() => ran.output.clone(),
        0 => "done. Nothing was changed.\n".to_owned(),
        _ => format!("done. {HOLDS} To keep it, write into the configuration:\n\n{}", ran.toml),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_the_list_or_what_was_changed() {
        let ran = |output: &str, changes| {
            let toml = "[[overlay.network]]\n".to_owned();
            ran_text(&OverlayRan { schema: 1, output: output.to_owned(), changes, toml })
        };
        assert_eq!(ran("1\t192.0.2.2\t9000\n", 3), "1\t192.0.2.2\t9000\n");
        assert_eq!(ran("", 0), "done. Nothing was changed.\n");
        assert!(ran("", 1).contains(HOLDS) && ran("", 1).ends_with("\n\n[[overlay.network]]\n"));
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let args = RunArgs { network: "lan".to_owned(), file: "/nonexistent/commands".into() };
        let error = run(Output { json: false }, None, args).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/commands"), "{error}");
    }
}
