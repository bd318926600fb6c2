//! How a model is run: as it is, or with one ordering left out.

mod arena;
mod path;
mod ready_map;
mod ring;
mod slab;
mod stream;
mod words;

use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use words::{Bodies, Weaken};

/// The ordering that is left out, on either side of a model: "sends" is the side that publishes, "receives" the side that takes.
#[derive(Clone)]
struct Setting {
    sends: Option<Weaken>,
    receives: Option<Weaken>,
    bodies: Bodies,
    /// How often at most a thread is interrupted where it does not wait.
    preemptions: Option<usize>,
}

/// Nothing is left out, and loom tries every order it knows.
const WHOLE: Setting = Setting { sends: None, receives: None, bodies: Bodies::Plain, preemptions: None };

fn sends(weak: Weaken) -> Setting {
    Setting { sends: Some(weak), ..WHOLE }
}

fn receives(weak: Weaken) -> Setting {
    Setting { receives: Some(weak), ..WHOLE }
}

fn only(word: u32) -> RangeInclusive<u32> {
    word..=word
}

// How models fail.
const RACE: &str = "Causality violation";
const TORN: &str = "assertion `left == right` failed";
const FORGOTTEN: &str = "asleep, and nothing will";
const EARLY: &str = "set before it was written";
const UNOPENED: &str = "counted before it is open";
const LOST: &str = "a bit is left over";
const DEADLOCK: &str = "deadlock";
const WRONG_PATH: &str = "a byte of the wrong path";
const UNSEEN: &str = "neither the switch nor the call is seen";
const UNPUBLISHED: &str = "the last byte is not published";

impl Setting {
    fn atomic(self) -> Self {
        Self { bodies: Bodies::Atomic, ..self }
    }

    /// For models with too many orders to try all.
    fn bounded(self) -> Self {
        Self { preemptions: Some(4), ..self }
    }

    fn passes(self, model: fn(&Setting)) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = self.preemptions;
        builder.max_branches = 10_000;
        builder.check(move || model(&self));
    }

    /// Loom must find an order in which `model` ends with the words `why`.
    fn fails(self, why: &str, model: fn(&Setting)) {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.passes(model)));
        let panic = outcome.expect_err("loom does not see the difference");
        let said = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        let said = said.expect("panics say something");
        assert!(said.contains(why), "loom fails for another reason: {said}");
    }
}
