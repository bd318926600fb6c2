//! Reports of the daemon, for tools that need not be domains.

use crate::connect;
use crate::control::Control;
use crate::error::Refusal;
use crate::options::Options;
use isthmus_layout::control::{List, Name, Query, ToClient, Topic};
use isthmus_layout::reason::Reason;

/// A connection that asks and never attaches.
#[derive(Debug)]
pub struct Inquirer {
    control: Control,
}

impl Inquirer {
    /// Connects to the daemon that [`Options`] name; never starts one.
    pub fn connect(options: &Options) -> Result<Self, Refusal> {
        let options = Options { no_autostart: true, ..options.clone() };
        let (socket, _) = connect::connect(&options)?;
        Ok(Self { control: Control::open(socket)? })
    }

    /// A report, as JSON.
    pub fn ask(&mut self, topic: Topic, arguments: &[&str]) -> Result<String, Refusal> {
        ask(&mut self.control, topic, arguments)
    }
}

pub(crate) fn ask(control: &mut Control, topic: Topic, arguments: &[&str]) -> Result<String, Refusal> {
    control.knows(topic.since(), "the report")?;
    let invalid = |detail: String| Refusal::new(Reason::RequestInvalid, detail);
    let names: Result<Vec<_>, _> = arguments.iter().map(|name| Name::new(name)).collect();
    let names = names.map_err(|error| invalid(error.to_string()))?;
    let arguments = List::new(names).ok_or_else(|| invalid("too many arguments".to_owned()))?;
    let mut news = control.request(Query { topic, arguments }.into(), &[])?;
    let serial = news.serial;
    let mut json = Vec::new();
    loop {
        let ToClient::Answer(answer) = news.message else { return Err(Reason::NotIsthmus.into()) };
        json.extend_from_slice(&answer.json);
        if answer.last {
            return String::from_utf8(json).map_err(|_| Reason::NotIsthmus.into());
        }
        news = control.next_reply(serial)?;
    }
}
