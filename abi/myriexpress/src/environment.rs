//! The environment variables of MX: `MX_…`, and `OMX_…`, which takes precedence.
//!
//! `mx_init()` reads the variables about error handling. The first endpoint that is opened reads those about messages,
//! because programs may set variables before that. Variables about frames, acknowledgements, resends and waits for
//! other endpoints have no meaning here and are ignored.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

/// The default maximum size of an eager message, in bytes.
pub(crate) const EAGER_MAX: u32 = 32 * 1024;

/// The default maximum number of copied sends of an endpoint.
const COPIED_SENDS_MAX: u32 = 512;

/// The lowest value that the environment can set: shorter messages need no slab and are always eager.
const EAGER_MIN: u32 = 128;

/// The settings for messages that the environment gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Large reused buffers are migrated to shared pages.
    pub(crate) rcache: bool,
    /// The environment asks for the cache, which enables it also where it is off by default.
    pub(crate) rcache_forced: bool,
    /// Sends to the endpoint itself complete as others do, not only when they are matched.
    pub(crate) no_self: bool,
    /// Messages use the daemon path.
    pub(crate) no_channels: bool,
    /// Maximum size of an eager message, in bytes.
    pub(crate) eager_max: u32,
    /// Maximum number of copied sends that wait for room.
    pub(crate) copied_sends_max: u32,
    /// Waits never sleep.
    pub(crate) wait_spins: bool,
    /// A signal ends a wait like a timeout.
    pub(crate) wait_ends_by_signal: bool,
    /// The context ids of endpoints opened without any: bits and shift.
    pub(crate) contexts: Option<(u8, u8)>,
    /// The number meant by `MX_ANY_ENDPOINT`.
    pub(crate) any_endpoint: Option<u32>,
    /// The CPU that the process binds to, by endpoint.
    pub(crate) binding: Option<String>,
}

impl Settings {
    /// Returns the settings, which are read once for each process.
    pub(crate) fn of_process() -> &'static Self {
        static SETTINGS: OnceLock<Settings> = OnceLock::new();
        SETTINGS.get_or_init(|| Self::read(|name| std::env::var_os(name).map(|value| value.as_bytes().to_vec())))
    }

    fn read(variable: impl Fn(&str) -> Option<Vec<u8>>) -> Self {
        let read = Reader::new(variable);
        let number = |mx, omx| read.either(mx, omx).map(|value| atoi(&value));
        let flag = |mx, omx| number(mx, omx).is_some_and(|value| value != 0);
        let threshold = |name| (read.variable)(name).map(|value| clamp(atoi(&value)));
        let thresholds = [threshold("OMX_RNDV_THRESHOLD"), threshold("OMX_SHARED_RNDV_THRESHOLD")];
        let text = |name| (read.variable)(name).map(|value| String::from_utf8_lossy(&value).into_owned());
        Self {
            // The cache is correct without cooperation of the program, so it is on unless the environment disables it.
            rcache: number(Some("MX_RCACHE"), "OMX_RCACHE").is_none_or(|value| value != 0),
            rcache_forced: flag(Some("MX_RCACHE"), "OMX_RCACHE"),
            no_self: flag(Some("MX_DISABLE_SELF"), "OMX_DISABLE_SELF"),
            no_channels: flag(Some("MX_DISABLE_SHMEM"), "OMX_DISABLE_SHARED"),
            eager_max: thresholds.into_iter().flatten().min().unwrap_or(EAGER_MAX),
            copied_sends_max: number(Some("MX_ZOMBIE_SEND"), "OMX_ZOMBIE_SEND")
                .map_or(COPIED_SENDS_MAX, |value| u32::try_from(value).unwrap_or(0)),
            wait_spins: flag(None, "OMX_WAITSPIN"),
            wait_ends_by_signal: flag(None, "OMX_WAITINTR"),
            contexts: (read.variable)("OMX_CTXIDS").as_deref().and_then(context_ids),
            any_endpoint: (read.variable)("OMX_ANY_ENDPOINT").and_then(|value| u32::try_from(atoi(&value)).ok()),
            binding: text("OMX_PROCESS_BINDING"),
        }
    }
}

/// Returns true if the initial error handler ends the process.
pub(crate) fn errors_are_fatal() -> bool {
    let read = Reader::new(|name| std::env::var_os(name).map(|value| OsStr::as_bytes(&value).to_vec()));
    read.either(Some("MX_ERRORS_ARE_FATAL"), "OMX_FATAL_ERRORS").is_none_or(|value| atoi(&value) != 0)
}

struct Reader<F> {
    variable: F,
    ignores_mx: bool,
}

impl<F: Fn(&str) -> Option<Vec<u8>>> Reader<F> {
    fn new(variable: F) -> Self {
        let ignores_mx = variable("OMX_IGNORE_MX_ENV").is_some_and(|value| atoi(&value) != 0);
        Self { variable, ignores_mx }
    }

    /// Returns the value of `omx`, or of `mx` if `omx` is not set.
    fn either(&self, mx: Option<&str>, omx: &str) -> Option<Vec<u8>> {
        (self.variable)(omx).or_else(|| (self.variable)(mx.filter(|_| !self.ignores_mx)?))
    }
}

fn clamp(bytes: i64) -> u32 {
    u32::try_from(bytes).unwrap_or(0).clamp(EAGER_MIN, EAGER_MAX)
}

/// Parses the number at the start of a text; 0 if there is none.
fn atoi(text: &[u8]) -> i64 {
    let text = text.trim_ascii_start();
    let (sign, digits) = match text.split_first() {
        Some((b'-', rest)) => (-1, rest),
        Some((b'+', rest)) => (1, rest),
        _ => (1, text),
    };
    let digits = digits.iter().take_while(|byte| byte.is_ascii_digit());
    sign * digits.fold(0_i64, |value, digit| value.saturating_mul(10).saturating_add(i64::from(digit - b'0')))
}

/// Parses `bits,shift`.
fn context_ids(text: &[u8]) -> Option<(u8, u8)> {
    let comma = text.iter().position(|&byte| byte == b',')?;
    let number = |text| u8::try_from(atoi(text)).ok();
    Some((number(&text[..comma])?, number(&text[comma + 1..])?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Settings {
        Settings::read(|wanted| {
            let found = variables.iter().find(|(name, _)| *name == wanted);
            found.map(|(_, value)| value.as_bytes().to_vec())
        })
    }

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        for (text, value) in
            [("", 0), ("x", 0), (" 12x", 12), ("-3", -3), ("+4", 4), ("99999999999999999999", i64::MAX)]
        {
            assert_eq!(atoi(text.as_bytes()), value, "{text:?}");
        }
    }

    #[test]
    fn registration_cache_is_on_unless_a_variable_disables_it() {
        assert!(with(&[]).rcache);
        assert!(with(&[("MX_RCACHE", "2")]).rcache);
        assert!(!with(&[("MX_RCACHE", "0")]).rcache);
        let asked = [None, Some("0"), Some("1")]
            .map(|value| with(&value.map(|value| ("MX_RCACHE", value)).into_iter().collect::<Vec<_>>()).rcache_forced);
        assert_eq!(asked, [false, false, true]);
        assert!(!with(&[("MX_RCACHE", "")]).rcache);
        assert!(with(&[("MX_RCACHE", "0"), ("OMX_RCACHE", "1")]).rcache);
        assert!(with(&[("MX_RCACHE", "0"), ("OMX_IGNORE_MX_ENV", "1")]).rcache);
    }

    #[test]
    fn thresholds_are_clamped_to_the_supported_range() {
        for (text, bytes) in [("0", 128), ("-1", 128), ("4096", 4096), ("1000000", EAGER_MAX)] {
            assert_eq!(with(&[("OMX_RNDV_THRESHOLD", text)]).eager_max, bytes);
        }
        assert_eq!(with(&[]).eager_max, EAGER_MAX);
        assert_eq!(with(&[("OMX_SHARED_RNDV_THRESHOLD", "4096")]).eager_max, 4096);
    }

    #[test]
    fn context_ids_are_two_numbers() {
        assert_eq!(with(&[("OMX_CTXIDS", "1,63")]).contexts, Some((1, 63)));
        assert_eq!(with(&[("OMX_CTXIDS", "7")]).contexts, None);
        assert_eq!(with(&[("OMX_ANY_ENDPOINT", "3")]).any_endpoint, Some(3));
    }
}
