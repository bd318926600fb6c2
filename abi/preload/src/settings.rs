//! The settings of the library, from the environment.

use std::sync::OnceLock;

use isthmus_channel::WaitMode;
use isthmus_client::Options;
use isthmus_layout::environment::Variable;
use isthmus_layout::sockets::{AFTER, TEST_SWITCH, off_reason};

/// The settings.
pub(crate) struct Settings {
    /// False if `ISTHMUS_SOCKETS=off`, or if a variable cannot be read.
    pub(crate) enabled: bool,
    pub(crate) wait: WaitMode,
    pub(crate) options: Options,
    /// The bytes after which a connection is shown, in place of the daemon's number.
    pub(crate) after_bytes: Option<u64>,
    /// Forced switches a second in each direction, for tests.
    pub(crate) test_switches: u32,
}

/// Called when the library is loaded: programs may change or clear their environment later, as nginx does. It opens nothing, and calls
/// nothing but the C library's memory functions.
extern "C" fn load() {
    get();
}

#[used]
// SAFETY: the section has addresses of functions, which the dynamic linker calls with arguments that this one ignores.
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// Returns the settings once the library is loaded. The runtime of a sanitizer makes calls before that, without an environment.
pub(crate) fn loaded() -> Option<&'static Settings> {
    SETTINGS.get()
}

/// Returns the settings, read once.
pub(crate) fn get() -> &'static Settings {
    SETTINGS.get_or_init(|| {
        let options = Options::from_environment();
        let value = |variable: Variable| Some(std::env::var_os(variable.name)?.to_string_lossy().into_owned());
        let is_off = off_reason(value).is_some();
        let after_bytes = std::env::var(AFTER.name).ok().and_then(|text| text.parse().ok());
        let switches = std::env::var(TEST_SWITCH.name).ok().and_then(|text| text.parse().ok());
        Settings {
            enabled: !is_off && options.is_ok(),
            wait: options.as_ref().map_or(WaitMode::Sleep, |options| options.wait),
            options: options.unwrap_or_default(),
            after_bytes,
            test_switches: switches.unwrap_or(0),
        }
    })
}
