//! `isthmus environment list`: all variables of the library and the daemon, with their values here.

use anyhow::Result;
use isthmus_config::{self as config, ConfigFile, Inputs, Problem, Role, VariableRow};
use serde::Serialize;

use crate::output::{Outcome, Output};

#[derive(Serialize)]
struct Variables {
    variables: Vec<VariableRow>,
    /// Unknown variables that begin with `ISTHMUS_`, and invalid values.
    problems: Vec<Problem>,
}

pub(crate) fn list(output: Output, role: Role) -> Result<Outcome> {
    let inputs = inputs(role);
    let variables = Variables { variables: config::variables(&inputs), problems: problems(&inputs) };
    output.result("environment", &variables, || {
        let problems = variables.problems.iter().map(|problem| format!("\n{problem}\n"));
        config::variables_text(&variables.variables) + &problems.collect::<String>()
    })?;
    Ok(Outcome::Done)
}

/// Returns the environment of this process as the only input.
pub(crate) fn inputs(role: Role) -> Inputs {
    Inputs { file: ConfigFile::None, ..Inputs::of_this_process(role, None, Vec::new()) }
}

/// Returns the errors in the variables.
pub(crate) fn problems(inputs: &Inputs) -> Vec<Problem> {
    match config::load(inputs) {
        Ok(loaded) => loaded.warnings,
        Err(error) => error.problems,
    }
}
